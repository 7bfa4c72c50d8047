"""``fastadv evaluate adv-sts | pair-distances | perturbation-map | attack-by-epoch``. Parsing only."""

import argparse
import sys

from fastadv.cli.flags import add_flags, changed_flag, read_settings, whole_number
from fastadv.cli.parts import (
    add_command,
    add_encoder_options,
    add_max_length,
    add_seed,
    check_out_folder,
    run_or_describe,
)
from fastadv.config.text_attack import ADV_STS_RECIPES, CAPS, AdvStsOptions, AttackedTexts, TextAttackSettings


def add_evaluate_attacks(kinds) -> None:
    """Adds what reads or makes texts of an attack to the kinds of ``fastadv evaluate``."""
    _add_adv_sts(kinds)
    _add_pair_distances(kinds)
    _add_perturbation_map(kinds)
    _add_attack_by_epoch(kinds)


def _add_adv_sts(kinds) -> None:
    about = "attack the similarity of sentence pairs: how many move a point away from the human score (AdvSTS)"
    parser = add_command(kinds, "adv-sts", _adv_sts, about)
    add_encoder_options(parser, max_length=256, pooling="mean", is_one=False)
    parser.add_argument(
        "--data",
        required=True,
        help="a folder in SentEval layout, or a file with columns sentence1, sentence2 and score",
    )
    parser.add_argument("--set", default="STS-B", help="of a folder: STS-B or SICK-R (default: STS-B)")
    parser.add_argument("--split", default="test", help="of a folder's set (default: test)")
    parser.add_argument(
        "--scale", nargs=2, type=float, metavar=("LOW", "HIGH"), help="of a file's scores (default: 0 5)"
    )
    parser.add_argument("--max_pairs", type=whole_number(2), help="pairs drawn at most (default: all)")
    add_seed(parser, "drawn pairs and of the attack")
    recipe = changed_flag(TextAttackSettings, "recipe", about="the attack", choices=ADV_STS_RECIPES)
    add_flags(parser, TextAttackSettings, without=("goal",), recipe=recipe)
    add_flags(parser, AdvStsOptions)
    parser.add_argument("--out", required=True, help="a folder for the results; pairs that are done are not run again")


def _adv_sts(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.text.adv_sts import AdvStsData, AdvStsRun, spearman_lines
    from fastadv.evaluation.text_report.report import REPORT_FILES, text_table

    out = check_out_folder(arguments.out)
    settings = read_settings(arguments, TextAttackSettings)
    data = AdvStsData.read(
        arguments.data,
        arguments.set,
        arguments.split,
        None if arguments.scale is None else tuple(arguments.scale),
        arguments.max_pairs,
        arguments.seed,
    )
    run = read_settings(
        arguments,
        AdvStsRun,
        models=arguments.model,
        data=data,
        settings=settings,
        out=str(out),
        pooling=arguments.pooling,
        max_length=arguments.max_length,
    )
    results = run_or_describe(run, arguments)
    if results is None:
        return
    print(text_table(results))
    print(spearman_lines(results))
    print(f"{out}: {', '.join(REPORT_FILES)}")


def _add_classifiers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, action="append", help="a folder of a trained classifier; once for each model"
    )
    add_max_length(parser)
    parser.add_argument("--batch_size", type=whole_number(1), default=64, help="texts a forward pass (default: 64)")


def _classifiers(arguments: argparse.Namespace) -> dict:
    """Name → () → classifier; refuses what can be found wrong without reading weights."""
    from fastadv.encoder.classifier.text_classifier import Classifier
    from fastadv.encoder.weights.source import find_model
    from fastadv.evaluation.model_names import short_names
    from fastadv.evaluation.model_run import check_once

    check_once(arguments.model)
    for model in arguments.model:
        find_model(model).check_max_length(arguments.max_length)
    return {
        name: lambda model=model: Classifier.from_pretrained(model, max_length=arguments.max_length)
        for name, model in zip(short_names(arguments.model), arguments.model, strict=True)
    }


def _add_pair_distances(kinds) -> None:
    about = (
        "distance and divergence between texts and what an attack made of them, and between classes (TaiChi, table 7)"
    )
    parser = add_command(kinds, "pair-distances", _pair_distances, about)
    _add_classifiers(parser)
    parser.add_argument(
        "--rows", required=True, help="the rows of an attack: a file rows.csv of fastadv attack --recipe"
    )
    parser.add_argument("--max_pairs", type=whole_number(2), default=1000, help="pairs at most (default: 1000)")
    parser.add_argument("--out", help="a folder for pair-distances.json and .csv")


def _pair_distances(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.papers.pair_distances import AttackedPairs, measure_pairs, pair_table, write_pairs_record

    models = _classifiers(arguments)
    out = None if arguments.out is None else check_out_folder(arguments.out)
    pairs = AttackedPairs.read(arguments.rows, arguments.max_pairs)
    if arguments.dry_run:
        target = f"; into {out}" if out else ""
        print(f"would measure {', '.join(models)} on {len(pairs.labels):,} pairs of {arguments.rows}{target}")
        return
    record = measure_pairs(models, pairs, arguments.batch_size, progress=sys.stderr.isatty())
    print(pair_table(record))
    if out is not None:
        write_pairs_record(record, out)
        print(out)


def _add_perturbation_map(kinds) -> None:
    about = "where synonyms and antonyms move texts to: t-SNE of vectors, and cosine distances (BAT, figure 5)"
    parser = add_command(kinds, "perturbation-map", _perturbation_map, about)
    _add_classifiers(parser)
    parser.add_argument("--word_sets", required=True, help="synonyms and antonyms: a file of fastadv word-sets")
    parser.add_argument("--out", required=True, help="a folder for perturbation-map.png, .csv and .json")
    parser.add_argument("--leave_out", nargs="+", default=[], metavar="LABEL", help="classes to leave out, as neutral")
    parser.add_argument("--max_texts", type=whole_number(4), default=500, help="texts drawn at most (default: 500)")
    add_seed(parser, "the texts, the words and the map")
    add_flags(parser, AttackedTexts, without=("labels",))


def _perturbation_map(arguments: argparse.Namespace) -> None:
    from fastadv.data.variants.word_sets import WordSets
    from fastadv.evaluation.papers.perturbation_map import map_models, map_table, perturbed_texts, write_map
    from fastadv.evaluation.text.attacked_data import AttackedData

    models, out = _classifiers(arguments), check_out_folder(arguments.out)
    source = read_settings(arguments, AttackedData, max_texts=None)
    source.check()
    word_sets = WordSets.load(arguments.word_sets)
    if arguments.dry_run:
        print(f"would map at most {arguments.max_texts:,} texts of {source.source} by {', '.join(models)}; into {out}")
        return
    data, rows = source.read()
    texts = perturbed_texts(
        data, rows.tolist(), word_sets, arguments.max_texts, tuple(arguments.leave_out), arguments.seed
    )
    record, points = map_models(models, texts, arguments.seed, arguments.batch_size, progress=sys.stderr.isatty())
    write_map(out, record, points, texts)
    print(map_table(record))
    print(out)


def _add_attack_by_epoch(kinds) -> None:
    about = "success of attacks over the epochs of a training, from their reports (BAT, figures 3 and 4)"
    parser = add_command(kinds, "attack-by-epoch", _attack_by_epoch, about)
    parser.add_argument(
        "--run",
        dest="points",
        required=True,
        action="append",
        metavar="[SERIES:]EPOCH=DIR",
        help="the folder of an attack on the model of an epoch; once a point. The series is by default the recipe",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="[SERIES=]DIR",
        help="the folder of an attack on a model without the defence: a dashed line",
    )
    parser.add_argument(
        "--cap", choices=[cap.name for cap in CAPS], default="any", help="what may change for a success (default: any)"
    )
    parser.add_argument("--out", required=True, help="a folder for attack-by-epoch.csv and .png")


def _attack_by_epoch(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.papers.attack_by_epoch import epoch_table, points_of, write_epochs

    out = check_out_folder(arguments.out)
    points = points_of(arguments.points, arguments.baseline, arguments.cap)
    if arguments.dry_run:
        print(f"would draw {len(points)} attacks; into {out}")
        return
    write_epochs(out, points, arguments.cap)
    print(epoch_table(points))
    print(out)
