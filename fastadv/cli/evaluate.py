"""``fastadv evaluate``: sts, transfer, geometry, robustness, and what `evaluate_attacks` and `evaluate_all` add.

Parsing only.
"""

import os
import sys
from pathlib import Path

from fastadv.cli.evaluate_all import add_evaluate_all
from fastadv.cli.evaluate_attacks import add_evaluate_attacks
from fastadv.cli.flags import add_flags, read_settings, whole_number
from fastadv.cli.parts import (
    Parser,
    add_cache_dir,
    add_command,
    add_encoder_options,
    add_seed,
    check_json,
    check_model,
    check_out_folder,
    encoder_words,
    load_encoder,
)
from fastadv.config.flag import LARGEST_SEED
from fastadv.config.robustness import RobustnessSettings
from fastadv.errors import UserError
from fastadv.files.json_file import write_json


def add_evaluate(commands) -> None:
    """Adds ``evaluate`` and its kinds to the subcommands of `fastadv`."""
    evaluate = commands.add_parser("evaluate", help="measure an encoder", allow_abbrev=False)
    kinds = evaluate.add_subparsers(metavar="KIND", required=True, parser_class=Parser)
    _add_sts(kinds)
    _add_transfer(kinds)
    _add_geometry(kinds)
    _add_robustness(kinds)
    add_evaluate_attacks(kinds)
    add_evaluate_all(kinds)


def _add_sts(kinds) -> None:
    about = "Spearman x 100 of cosine and human score on the test splits of STS12-16, STS-B and SICK-R"
    parser = add_command(kinds, "sts", _sts, about)
    add_encoder_options(parser, max_length=256, pooling="mean")
    parser.add_argument("--data", required=True, help="a folder in SentEval layout, with STS/ and SICK/ in it")
    parser.add_argument(
        "--sets", nargs="+", metavar="SET", help="some of STS12 ... STS16, STS-B, SICK-R (default: all)"
    )
    add_cache_dir(parser, "vectors")
    parser.add_argument("--out", help="a .json file for the scores")


def _sts(arguments) -> None:
    from fastadv.evaluation.vectors.sts import evaluate_sts, read_sts_sets, sts_table
    from fastadv.evaluation.vectors.vector_cache import checked_cache_folder

    arguments.data = os.path.expanduser(arguments.data)
    out = None if arguments.out is None else check_json(arguments.out)
    pairs = read_sts_sets(arguments.data, arguments.sets)
    check_model(arguments)
    if arguments.dry_run:
        counts = ", ".join(f"{name} {len(rows)}" for name, rows in pairs.items())
        target = f"; into {out}" if out else ""
        print(f"would score {encoder_words(arguments)} on pairs of {arguments.data}: {counts}{target}")
        return
    checked_cache_folder(arguments.cache_dir)
    scores = evaluate_sts(
        load_encoder(arguments),
        arguments.data,
        sets=arguments.sets,
        batch_size=arguments.batch_size,
        progress=sys.stderr.isatty(),
        cache_dir=arguments.cache_dir,
    )
    print(sts_table(scores))
    if out is not None:
        write_json(out, scores)


def _add_transfer(kinds) -> None:
    about = "accuracy x 100 of logistic regression on frozen vectors: MR, CR, SUBJ, MPQA, SST-2, MRPC and TREC"
    parser = add_command(kinds, "transfer", _transfer, about)
    add_encoder_options(parser, max_length=128, pooling=None)
    parser.add_argument("--data", required=True, help="a folder in SentEval layout, with MR/, CR/, ... in it")
    parser.add_argument(
        "--sets", nargs="+", metavar="SET", help="some of MR, CR, SUBJ, MPQA, SST-2, MRPC, TREC (default: all)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0, LARGEST_SEED), default=1111, help="of the folds (default: 1111, SentEval's)"
    )
    add_cache_dir(parser, "vectors and finished sets")
    parser.add_argument("--out", help="a .json file for the scores and how they came about")


def _transfer(arguments) -> int:
    from fastadv.evaluation.vectors.transfer import transfer_record, transfer_results, transfer_table
    from fastadv.evaluation.vectors.transfer_sets import check_senteval_folder, check_set_names
    from fastadv.evaluation.vectors.vector_cache import checked_cache_folder

    names = check_set_names(arguments.sets)
    arguments.data = str(check_senteval_folder(arguments.data))
    out = None if arguments.out is None else check_json(arguments.out)
    check_model(arguments)
    if arguments.dry_run:
        return _transfer_plan(arguments, names, out)
    checked_cache_folder(arguments.cache_dir)
    encoder = load_encoder(arguments)
    results = transfer_results(
        encoder,
        arguments.data,
        sets=names,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        cache_dir=arguments.cache_dir,
        progress=sys.stderr.isatty(),
    )
    print(f"{arguments.model}, {encoder.pooling} pooling, cut to {encoder.max_length} tokens: accuracy x 100")
    print(transfer_table(results))
    for result in results.values():
        for warning in result.warnings:
            print(f"fastadv: warning: {warning}", file=sys.stderr)
    if out is not None:
        settings = {"model": arguments.model, "pooling": encoder.pooling, "max_length": encoder.max_length}
        write_json(out, transfer_record(results, {**settings, "seed": arguments.seed}))
    return _say_what_is_missing({name: result.why for name, result in results.items()})


def _transfer_plan(arguments, names, out) -> int:
    from fastadv.evaluation.vectors.transfer_sets import read_transfer_set

    counts, reasons = [], {}
    for name in names:
        try:
            data = read_transfer_set(Path(arguments.data), name)
            rows = ", ".join(f"{split} {len(labels)}" for split, labels in data.labels.items())
            counts.append(f"{name} ({rows})")
        except UserError as error:
            reasons[name] = str(error)
    target = f"; into {out}" if out else ""
    print(
        f"would fit logistic regressions on vectors of {encoder_words(arguments)}, sets of {arguments.data}: "
        f"{', '.join(counts) or 'none'}{target}"
    )
    return _say_what_is_missing(reasons)


def _say_what_is_missing(reasons) -> int:
    """One line on stderr for each set without a score; the exit status, 1 where there is one."""
    missing = {name: why for name, why in reasons.items() if why is not None}
    for name, why in missing.items():
        print(f"fastadv: {name} n/a: {' '.join(why.split())}", file=sys.stderr)
    return int(bool(missing))


def _add_geometry(kinds) -> None:
    about = "how vectors lie on the unit sphere: alignment, uniformity, effective rank, mean cosine, spectrum"
    parser = add_command(kinds, "geometry", _geometry, about)
    add_encoder_options(parser, max_length=128, pooling=None, is_one=False)
    parser.add_argument(
        "--data",
        required=True,
        help="a folder in SentEval layout with STS/STSBenchmark in it, or sentences: a file, a folder, or a dataset",
    )
    parser.add_argument("--split", help="of STS-B: dev, test or train (default: test); or of a dataset")
    parser.add_argument(
        "--field", default="text", help="the JSON field or dataset column of the sentence (default: text)"
    )
    parser.add_argument(
        "--num_sentences", type=whole_number(16), default=3000, help="sentences drawn at most (default: 3000)"
    )
    add_seed(parser, "the draw and the resamples")
    parser.add_argument("--out", help="a folder for geometry.json, geometry.csv and geometry.png")


def _geometry(arguments) -> None:
    from fastadv.evaluation.model_run import check_once
    from fastadv.evaluation.vectors.geometry_of_models import (
        describe_geometry_data,
        find_geometry_data,
        geometry_table,
        measure_geometry,
        write_geometry,
    )

    check_once(arguments.model)
    data = find_geometry_data(arguments.data, arguments.field, arguments.split)
    out = None if arguments.out is None else check_out_folder(arguments.out)
    for model in arguments.model:
        check_model(arguments, model)
    if arguments.dry_run:
        models = ", ".join(encoder_words(arguments, model) for model in arguments.model)
        target = f"; into {out}" if out else ""
        print(f"would measure {models} on {describe_geometry_data(data, arguments.num_sentences)}{target}")
        return
    record = measure_geometry(
        {model: lambda model=model: load_encoder(arguments, model) for model in arguments.model},
        data,
        num_sentences=arguments.num_sentences,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        progress=sys.stderr.isatty(),
    )
    print(geometry_table(record))
    for warning in record["warnings"]:
        print(f"fastadv: warning: {warning}", file=sys.stderr)
    if out is not None:
        write_geometry(record, out)
        print(out)


def _add_robustness(kinds) -> None:
    about = "how far vectors move and how rankings change when texts are mistyped, reworded or flipped; no labels"
    parser = add_command(kinds, "robustness", _robustness, about)
    add_encoder_options(parser, max_length=None, pooling=None, is_one=False)
    add_flags(parser, RobustnessSettings)
    parser.add_argument("--out", help="a folder for robustness.json, .md, .html and .png")


def _robustness(arguments) -> None:
    from fastadv.evaluation.model_run import check_once
    from fastadv.evaluation.robustness.edited import RobustnessData
    from fastadv.evaluation.robustness.page import FILES, write_robustness
    from fastadv.evaluation.robustness.result import robustness_table
    from fastadv.evaluation.robustness.run import describe_robustness, measure_robustness

    check_once(arguments.model)
    settings = read_settings(arguments, RobustnessSettings)
    data = RobustnessData.read(settings)
    out = None if arguments.out is None else check_out_folder(arguments.out)
    for model in arguments.model:
        check_model(arguments, model)
    if arguments.dry_run:
        models = ", ".join(encoder_words(arguments, model) for model in arguments.model)
        target = f"; into {out}" if out else ""
        print(f"would measure {models} on {describe_robustness(data)}{target}")
        return
    record = measure_robustness(
        {model: lambda model=model: load_encoder(arguments, model) for model in arguments.model},
        data,
        settings,
        batch_size=arguments.batch_size,
        progress=sys.stderr.isatty(),
    )
    print(robustness_table(record))
    if out is not None:
        write_robustness(record, out)
        print(f"{out}: {', '.join(FILES)}")
