"""The command line: ``fastadv train | encode | evaluate sts | attack | report | reshape-checkpoint``. Parsing only.

A user's mistake is one line on stderr and exit status 2, a disk that takes no more one line and status 1; anything else
that goes wrong keeps its traceback.
Every subcommand takes ``--dry_run``: check what was given, say what would be done, do nothing.
"""

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Callable, Optional, Sequence

from fastadv import __version__
from fastadv.cli_attack import add_attack
from fastadv.errors import SaveFailed, UserError

# torch and its like are imported by the subcommand that needs them: `fastadv --help` is immediate.

_EXAMPLES = """\
examples:
  fastadv train --config configs/quickstart.yaml --train.max_steps 100 --train.output_dir runs/longer
  fastadv encode --model runs/quickstart/model --input sentences.txt --output vectors.npy
  fastadv evaluate sts --model runs/quickstart/model --data senteval/
  fastadv attack --model runs/classifier/model --data demo:imdb --out runs/attack
  fastadv report runs/quickstart

`fastadv COMMAND --help` says more of each."""


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UserError(f"{self.prog.partition(' ')[2] or 'command line'}: {message}")


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs one command and returns the exit status.

    Args:
        argv: the arguments after the program's name; by default those of this process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        if argv[:1] == ["train"]:
            return _train(argv[1:])
        arguments = _build_parser().parse_args(argv)
        arguments.run(arguments)
        return 0
    except UserError as error:
        if int(os.environ.get("RANK", "0")) == 0:
            print(f"fastadv: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except SaveFailed as error:
        print(f"fastadv: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fastadv",
        description="Text encoders that keep their meaning under attack.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastadv {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    commands.add_parser("train", help="train an encoder, measure it before and after, and export it", add_help=False)
    _add_encode(commands)
    evaluate = commands.add_parser("evaluate", help="measure an encoder", allow_abbrev=False)
    _add_evaluate_sts(evaluate.add_subparsers(metavar="KIND", required=True, parser_class=_Parser))
    add_attack(commands, _add_command, _count_from)
    _add_report(commands)
    _add_reshape_checkpoint(commands)
    return parser


def _add_command(commands, name: str, run: Callable, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
    parser.add_argument("--dry_run", action="store_true", help="check what was given, print the plan, and end")
    parser.set_defaults(run=run)
    return parser


def _add_encoder_options(parser: argparse.ArgumentParser, max_length: Optional[int], pooling: Optional[str]) -> None:
    own = "the model's own"
    parser.add_argument("--model", required=True, help="a folder, a Hub name, or demo:minilm")
    parser.add_argument(
        "--pooling",
        choices=("cls", "mean", "first_last"),
        default=pooling,
        help=f"how token states become one vector (default: {pooling or own})",
    )
    parser.add_argument(
        "--max_length",
        type=_count_from(3),
        default=max_length,
        help=f"tokens a sentence is cut to, special tokens included (default: {max_length or own})",
    )
    parser.add_argument("--batch_size", type=_count_from(1), default=64, help="sentences a forward pass (default: 64)")


def _count_from(low: int) -> Callable[[str], int]:
    def count(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} given, expected a whole number of at least {low}")
        return int(text)

    return count


def _train(argv: list[str]) -> int:
    from fastadv.train import main as train

    return train(argv)


def _add_encode(commands) -> None:
    parser = _add_command(commands, "encode", _encode, "turn sentences into vectors")
    _add_encoder_options(parser, max_length=None, pooling=None)
    parser.add_argument("--input", required=True, help="a file of text or a table, a folder, or a dataset")
    parser.add_argument(
        "--output",
        required=True,
        help="a .npy file (num_sentences, D), or a .parquet file with columns text and vector",
    )
    parser.add_argument(
        "--field", default="text", help="the JSON field or dataset column of the sentence (default: text)"
    )
    parser.add_argument("--split", default="train", help="the split of a named dataset (default: train)")


def _encode(arguments) -> None:
    from fastadv.data.sources import open_source
    from fastadv.encoder.encode_file import check_output, encode_file

    output = check_output(arguments.output)
    open_source(arguments.input, field=arguments.field, split=arguments.split)
    _check_model(arguments)
    if arguments.dry_run:
        print(f"would encode {arguments.input} with {_encoder_words(arguments)} into {output}")
        return
    summary = encode_file(
        _load_encoder(arguments),
        arguments.input,
        output,
        field=arguments.field,
        batch_size=arguments.batch_size,
        split=arguments.split,
        progress=sys.stderr.isatty(),
    )
    print(
        f"{summary['output']}: {summary['num_sentences']:,} vectors of {summary['hidden_size']} "
        f"({summary['sentences_per_s']:.0f} sentences/s); {summary['lines']}"
    )


def _add_evaluate_sts(kinds) -> None:
    about = "Spearman x 100 of cosine and human score on the test splits of STS12-16, STS-B and SICK-R"
    parser = _add_command(kinds, "sts", _evaluate_sts, about)
    _add_encoder_options(parser, max_length=256, pooling="mean")
    parser.add_argument("--data", required=True, help="a folder in SentEval layout, with STS/ and SICK/ in it")
    parser.add_argument(
        "--sets", nargs="+", metavar="SET", help="some of STS12 ... STS16, STS-B, SICK-R (default: all)"
    )
    parser.add_argument("--out", help="a .json file for the scores")


def _evaluate_sts(arguments) -> None:
    from fastadv.evaluation.sts import evaluate_sts, read_sts_sets, sts_table

    arguments.data = os.path.expanduser(arguments.data)
    out = None if arguments.out is None else _check_json(arguments.out)
    pairs = read_sts_sets(arguments.data, arguments.sets)
    _check_model(arguments)
    if arguments.dry_run:
        counts = ", ".join(f"{name} {len(rows)}" for name, rows in pairs.items())
        target = f"; into {out}" if out else ""
        print(f"would score {_encoder_words(arguments)} on pairs of {arguments.data}: {counts}{target}")
        return
    scores = evaluate_sts(
        _load_encoder(arguments),
        arguments.data,
        sets=arguments.sets,
        batch_size=arguments.batch_size,
        progress=sys.stderr.isatty(),
    )
    print(sts_table(scores))
    if out is not None:
        # JSON has no NaN, which is what a set gives whose vectors are all alike.
        finite = {name: score if math.isfinite(score) else None for name, score in scores.items()}
        out.write_text(json.dumps(finite, indent=1) + "\n", encoding="utf-8")


def _check_json(path: str) -> Path:
    out = Path(path).expanduser()
    if out.suffix != ".json" or out.is_dir():
        raise UserError(f"--out {path!r}: expected a file that ends in .json")
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"--out {path!r}: expected a file in a folder that exists and can be written")
    return out


def _add_report(commands) -> None:
    parser = _add_command(commands, "report", _report, "write report.html of a run folder anew")
    parser.add_argument("run_folder", help="what train.output_dir named")


def _report(arguments) -> None:
    folder = _check_run_folder(arguments.run_folder)
    if arguments.dry_run:
        print(f"would write {folder / 'report.html'}")
        return
    from fastadv.evaluation.report import write_report

    write_report(folder)
    print(folder / "report.html")


def _add_reshape_checkpoint(commands) -> None:
    about = "make a stopped run's newest checkpoint one that another number of processes goes on from"
    parser = _add_command(commands, "reshape-checkpoint", _reshape_checkpoint, about)
    parser.add_argument("run_folder", help="what train.output_dir named")
    parser.add_argument("--num_ranks", type=_count_from(1), required=True, help="processes that will go on")


def _reshape_checkpoint(arguments) -> None:
    folder = _check_run_folder(arguments.run_folder)
    from fastadv.engine.reshape import describe_reshaping, reshape_checkpoint

    if arguments.dry_run:
        print(describe_reshaping(folder, arguments.num_ranks))
        return
    checkpoint = reshape_checkpoint(folder, arguments.num_ranks)
    print(f"{checkpoint}: the same command on {arguments.num_ranks} processes goes on from it")


def _check_run_folder(name: str) -> Path:
    folder = Path(name).expanduser()
    missing = [name for name in ("config.yaml", "metrics.jsonl") if not (folder / name).is_file()]
    if missing:
        raise UserError(f"{name!r} is no run folder: it has no {' and no '.join(missing)}")
    return folder


def _check_model(arguments) -> None:
    """Refuses a model that is not there, too short, or not pooled as named or known, before any weight is read."""
    from fastadv.encoder.source import find_model

    source = find_model(arguments.model)
    source.check_max_length(arguments.max_length)
    source.choose_pooling(arguments.pooling)


def _load_encoder(arguments):
    from fastadv.encoder import Encoder

    return Encoder.from_pretrained(arguments.model, pooling=arguments.pooling, max_length=arguments.max_length)


def _encoder_words(arguments) -> str:
    own = "the model's own"
    return f"{arguments.model} (pooling: {arguments.pooling or own}, max_length: {arguments.max_length or own})"
