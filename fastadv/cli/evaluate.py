"""``fastadv evaluate``: sts, transfer, geometry, robustness, and what `evaluate_attacks` and `evaluate_all` add.

Parsing only.
"""

import os
import sys
from pathlib import Path

from fastadv.cli.evaluate_all import add_evaluate_all
from fastadv.cli.evaluate_attacks import add_evaluate_attacks
from fastadv.cli.flags import add_flags, read_settings
from fastadv.cli.parts import (
    Parser,
    add_command,
    check_encoder,
    check_json,
    check_out_folder,
    encoder_words,
    into,
    load_encoder,
    say_warnings,
)
from fastadv.config.commands import GeometryOptions, RobustnessInput, StsOptions, TransferOptions, encoding_words
from fastadv.config.robustness import RobustnessSettings
from fastadv.errors import UserError
from fastadv.files.json_file import write_json


def add_evaluate(commands) -> None:
    """Adds ``evaluate`` and its kinds to the subcommands of `fastadv`."""
    evaluate = commands.add_parser("evaluate", help="measure an encoder", allow_abbrev=False)
    kinds = evaluate.add_subparsers(metavar="KIND", required=True, parser_class=Parser)
    about = "Spearman x 100 of cosine and human score on the test splits of STS12-16, STS-B and SICK-R"
    add_flags(add_command(kinds, "sts", _sts, about), StsOptions)
    about = "accuracy x 100 of logistic regression on frozen vectors: MR, CR, SUBJ, MPQA, SST-2, MRPC and TREC"
    add_flags(add_command(kinds, "transfer", _transfer, about), TransferOptions)
    about = "how vectors lie on the unit sphere: alignment, uniformity, effective rank, mean cosine, spectrum"
    add_flags(add_command(kinds, "geometry", _geometry, about), GeometryOptions)
    about = "how far vectors move and how rankings change when texts are mistyped, reworded or flipped; no labels"
    parser = add_command(kinds, "robustness", _robustness, about)
    add_flags(parser, RobustnessInput)
    add_flags(parser, RobustnessSettings)
    add_evaluate_attacks(kinds)
    add_evaluate_all(kinds)


def _sts(arguments) -> None:
    from fastadv.evaluation.vectors.sts import evaluate_sts, read_sts_sets, sts_table
    from fastadv.evaluation.vectors.vector_cache import checked_cache_folder

    options = read_settings(arguments, StsOptions)
    data, out = os.path.expanduser(options.data), check_json(options.out)
    pairs = read_sts_sets(data, options.sets)
    check_encoder(options.model, options)
    if arguments.dry_run:
        counts = ", ".join(f"{name} {len(rows)}" for name, rows in pairs.items())
        print(f"would score {encoder_words(options.model, options)} on pairs of {data}: {counts}{into(out)}")
        return
    checked_cache_folder(options.cache_dir)
    encoder = load_encoder(options.model, options)
    scores = evaluate_sts(encoder, data, options.sets, options.batch_size, True, options.cache_dir)
    settings = {"model": options.model, **encoder.settings}
    print(f"{options.model}, {encoding_words(settings)}: Spearman x 100 of cosine and human score")
    print(sts_table(scores))
    if out is not None:
        write_json(out, {**scores, "details": settings})


def _transfer(arguments) -> int:
    from fastadv.evaluation.vectors.transfer import transfer_record, transfer_results, transfer_table
    from fastadv.evaluation.vectors.transfer_sets import check_senteval_folder, check_set_names
    from fastadv.evaluation.vectors.vector_cache import checked_cache_folder

    options = read_settings(arguments, TransferOptions)
    names, data, out = check_set_names(options.sets), check_senteval_folder(options.data), check_json(options.out)
    check_encoder(options.model, options)
    if arguments.dry_run:
        return _transfer_plan(encoder_words(options.model, options), data, names, out)
    checked_cache_folder(options.cache_dir)
    encoder = load_encoder(options.model, options)
    results = transfer_results(encoder, data, names, options.seed, options.batch_size, options.cache_dir, True)
    settings = {"model": options.model, **encoder.settings}
    print(f"{options.model}, {encoding_words(settings)}: accuracy x 100 on vectors as they are before a Normalize")
    print(transfer_table(results))
    say_warnings(warning for result in results.values() for warning in result.warnings)
    if out is not None:
        write_json(out, transfer_record(results, {**settings, "seed": options.seed}))
    return _say_what_is_missing({name: result.why for name, result in results.items()})


def _transfer_plan(encoder: str, data: Path, names, out) -> int:
    from fastadv.evaluation.vectors.transfer_sets import read_transfer_set

    counts, reasons = [], {}
    for name in names:
        try:
            labels = read_transfer_set(data, name).labels
            counts.append(f"{name} ({', '.join(f'{split} {len(rows)}' for split, rows in labels.items())})")
        except UserError as error:
            reasons[name] = str(error)
    sets = ", ".join(counts) or "none"
    print(f"would fit logistic regressions on vectors of {encoder}, sets of {data}: {sets}{into(out)}")
    return _say_what_is_missing(reasons)


def _say_what_is_missing(reasons) -> int:
    """One line on stderr for each set without a score; the exit status, 1 where there is one."""
    missing = {name: why for name, why in reasons.items() if why is not None}
    for name, why in missing.items():
        print(f"fastadv: {name} n/a: {' '.join(why.split())}", file=sys.stderr)
    return int(bool(missing))


def _geometry(arguments) -> None:
    from fastadv.evaluation.model_run import check_once
    from fastadv.evaluation.vectors.geometry_of_models import (
        describe_geometry_data,
        find_geometry_data,
        geometry_table,
        measure_geometry,
        write_geometry,
    )

    options = read_settings(arguments, GeometryOptions)
    check_once(options.models)
    data = find_geometry_data(options.data, options.field, options.split, options.quoting)
    out = check_out_folder(options.out)
    for model in options.models:
        check_encoder(model, options)
    if arguments.dry_run:
        models = ", ".join(encoder_words(model, options) for model in options.models)
        print(f"would measure {models} on {describe_geometry_data(data, options.num_sentences)}{into(out)}")
        return
    record = measure_geometry(
        {model: lambda model=model: load_encoder(model, options) for model in options.models},
        data,
        num_sentences=options.num_sentences,
        seed=options.seed,
        batch_size=options.batch_size,
        progress=True,
    )
    print(geometry_table(record))
    say_warnings(record["warnings"])
    if out is not None:
        write_geometry(record, out)
        print(out)


def _robustness(arguments) -> None:
    from fastadv.evaluation.model_run import check_once
    from fastadv.evaluation.robustness.edited import RobustnessData
    from fastadv.evaluation.robustness.page import FILES, write_robustness
    from fastadv.evaluation.robustness.result import robustness_table
    from fastadv.evaluation.robustness.run import describe_robustness, measure_robustness

    options, settings = read_settings(arguments, RobustnessInput), read_settings(arguments, RobustnessSettings)
    check_once(options.models)
    data = RobustnessData.read(settings)
    out = check_out_folder(options.out)
    for model in options.models:
        check_encoder(model, options)
    if arguments.dry_run:
        models = ", ".join(encoder_words(model, options) for model in options.models)
        print(f"would measure {models} on {describe_robustness(data)}{into(out)}")
        return
    record = measure_robustness(
        {model: lambda model=model: load_encoder(model, options) for model in options.models},
        data,
        settings,
        batch_size=options.batch_size,
        progress=True,
    )
    print(robustness_table(record))
    if out is not None:
        write_robustness(record, out)
        print(f"{out}: {', '.join(FILES)}")
