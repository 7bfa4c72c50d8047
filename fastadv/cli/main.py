"""The command line: ``fastadv COMMAND``. Parsing only.

A user's mistake is one line on stderr and exit status 2; a disk that takes no more, or a part of an evaluation that
could not be done, one line and status 1. Anything else that goes wrong keeps its traceback.
Every subcommand takes ``--dry_run``: check what was given, say what would be done, do nothing.
"""

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from fastadv import __version__
from fastadv.cli.attack import add_attack
from fastadv.cli.average import add_average
from fastadv.cli.evaluate import add_evaluate
from fastadv.cli.flags import add_flags, read_settings, whole_number
from fastadv.cli.parts import Parser, add_command, check_encoder, encoder_words, load_encoder, say_warnings
from fastadv.cli.prepare_attack_data import add_prepare_attack_data
from fastadv.cli.report import add_report
from fastadv.cli.word_sets import add_word_sets
from fastadv.config.commands import EncodeOptions, encoding_words
from fastadv.distributed.launchers import told_rank
from fastadv.errors import SaveFailed, UserError, require_docstrings
from fastadv.files.disk import disk_errors_explained
from fastadv.files.terminal_log import remarks_after

# torch and its like are imported by the subcommand that needs them: `fastadv --help` is immediate.

_EXAMPLES = """\
examples:
  fastadv train --config configs/quickstart.yaml --train.max_steps 100 --train.output_dir runs/longer
  fastadv encode --model runs/quickstart/model --input sentences.txt --output vectors.npy
  fastadv evaluate sts --model runs/quickstart/model --data senteval/
  fastadv attack --model runs/classifier/model --data demo:imdb --out runs/attack
  fastadv evaluate transfer --model runs/quickstart/model --data senteval/
  fastadv evaluate geometry --model demo:minilm --model runs/quickstart/model --data senteval/ --out geometry
  fastadv evaluate all --model plain=runs/a/model --model robust=runs/b/model --data senteval/ --out evaluation
  fastadv report runs/quickstart
  fastadv report runs/a runs/b --out runs/compared

`fastadv COMMAND --help` says more of each."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Runs one command and returns the exit status.

    Args:
        argv: the arguments after the program's name; by default those of this process.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        require_docstrings()
        if argv[:1] == ["train"]:
            return _train(argv[1:])
        arguments = _build_parser().parse_args(argv)
        # What is said of the texts that a command reads.
        with remarks_after("fastadv.data"), disk_errors_explained(Path.cwd()):
            return arguments.run(arguments) or 0
    except UserError as error:
        if told_rank() == 0:
            print(f"fastadv: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except SaveFailed as error:
        print(f"fastadv: {' '.join(str(error).split())}", file=sys.stderr)
        return 1


def _build_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="fastadv",
        description="Text encoders that keep their meaning under attack.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"fastadv {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    commands.add_parser("train", help="train an encoder, measure it before and after, and export it", add_help=False)
    _add_encode(commands)
    add_evaluate(commands)
    add_attack(commands)
    add_prepare_attack_data(commands)
    add_word_sets(commands)
    add_average(commands)
    add_report(commands)
    _add_reshape_checkpoint(commands)
    return parser


def _train(argv: list[str]) -> int:
    from fastadv.train import main as train

    return train(argv)


def _add_encode(commands) -> None:
    add_flags(add_command(commands, "encode", _encode, "turn sentences into vectors"), EncodeOptions)


def _encode(arguments) -> None:
    from fastadv.data.sources.find import open_source
    from fastadv.encoder.export.encode_file import check_output, encode_file

    options = read_settings(arguments, EncodeOptions)
    output = check_output(options.output)
    open_source(options.input, field=options.field, split=options.split, quoting=options.quoting)
    check_encoder(options.model, options)
    if arguments.dry_run:
        print(f"would encode {options.input} with {encoder_words(options.model, options)} into {output}")
        return
    encoder = load_encoder(options.model, options)
    summary = encode_file(
        encoder,
        options.input,
        output,
        field=options.field,
        batch_size=options.batch_size,
        split=options.split,
        quoting=options.quoting,
        progress=True,
    )
    print(
        f"{summary['output']}: {summary['num_sentences']:,} vectors of {summary['hidden_size']}, "
        f"{encoding_words(encoder.settings)} "
        f"({summary['sentences_per_s']:.0f} sentences/s); {summary['lines']}"
    )
    say_warnings(f"{options.input}: {doubt}" for doubt in summary["doubts"])


def _add_reshape_checkpoint(commands) -> None:
    about = "make a stopped run's newest checkpoint one that another number of processes goes on from"
    parser = add_command(commands, "reshape-checkpoint", _reshape_checkpoint, about)
    parser.add_argument("run_folder", help="what train.output_dir named")
    parser.add_argument("--num_ranks", type=whole_number(1), required=True, help="processes that will go on")


def _reshape_checkpoint(arguments) -> None:
    folder = _check_run_folder(arguments.run_folder)
    from fastadv.engine.checkpoints.reshape import describe_reshaping, reshape_checkpoint

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
