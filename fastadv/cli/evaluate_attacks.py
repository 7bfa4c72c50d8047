"""``fastadv evaluate adv-sts | pair-distances | perturbation-map | attack-by-epoch``. Parsing only."""

import argparse
import sys

from fastadv.cli.attack_parts import (
    add_labelled_options,
    add_text_search_options,
    labelled_texts,
    run_or_describe,
    text_search,
)
from fastadv.cli.parts import add_command, add_encoder_options, check_out_folder, count_from, seed

# As `fastadv.evaluation.text.adv_sts.RECIPES`, which is not imported before it is needed.
_ADV_STS_RECIPES = ("deepwordbug", "pwws", "textfooler", "textbugger", "bae", "bert-attack", "synonym")
_CAPS = ("any", "words_2", "share_20")


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
    parser.add_argument("--max_pairs", type=count_from(2), help="pairs drawn at most (default: all)")
    parser.add_argument("--recipe", required=True, choices=_ADV_STS_RECIPES, help="the attack")
    parser.add_argument(
        "--side", choices=("both", "second"), default="both", help="which texts of a pair may change (default: both)"
    )
    add_text_search_options(parser, "a pair")
    parser.add_argument("--seed", type=seed, default=0, help="of drawn pairs and of the attack (default: 0)")
    parser.add_argument("--no_control", action="store_true", help="leave out the first model with another's cosines")
    parser.add_argument("--out", required=True, help="a folder for the results; pairs that are done are not run again")


def _adv_sts(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.text.adv_sts import AdvStsData, AdvStsRun, spearman_lines
    from fastadv.evaluation.text.attack import TextAttackSettings
    from fastadv.evaluation.text_report.report import REPORT_FILES, text_table

    out = check_out_folder(arguments.out)
    settings = TextAttackSettings(recipe=arguments.recipe, **text_search(arguments))
    data = AdvStsData.read(
        arguments.data,
        arguments.set,
        arguments.split,
        None if arguments.scale is None else tuple(arguments.scale),
        arguments.max_pairs,
        arguments.seed,
    )
    run = AdvStsRun(
        models=arguments.model,
        data=data,
        settings=settings,
        out=str(out),
        side=arguments.side,
        pooling=arguments.pooling,
        max_length=arguments.max_length,
        has_control=not arguments.no_control,
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
    parser.add_argument("--max_length", type=count_from(3), help="tokens a text is cut to (default: the model's own)")
    parser.add_argument("--batch_size", type=count_from(1), default=64, help="texts a forward pass (default: 64)")


def _classifiers(arguments: argparse.Namespace) -> dict:
    """Name → () → classifier; refuses what can be found wrong without reading weights."""
    from fastadv.encoder.classifier.text_classifier import Classifier
    from fastadv.encoder.weights.source import find_model
    from fastadv.evaluation.model_names import short_names
    from fastadv.evaluation.vectors.geometry_of_models import check_models

    check_models(arguments.model)
    for model in arguments.model:
        find_model(model).check_max_length(arguments.max_length)
    names = short_names(arguments.model)
    return {
        name: lambda model=model: Classifier.from_pretrained(model, max_length=arguments.max_length)
        for name, model in zip(names, arguments.model, strict=True)
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
    parser.add_argument("--max_pairs", type=count_from(2), default=1000, help="pairs at most (default: 1000)")
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
    parser.add_argument("--data", required=True, help="labelled texts: a file, a folder, a dataset, or demo:imdb")
    parser.add_argument("--word_sets", required=True, help="synonyms and antonyms: a file of fastadv word-sets")
    parser.add_argument("--out", required=True, help="a folder for perturbation-map.png, .csv and .json")
    parser.add_argument("--leave_out", nargs="+", default=[], metavar="LABEL", help="classes to leave out, as neutral")
    parser.add_argument("--max_texts", type=count_from(4), default=500, help="texts drawn at most (default: 500)")
    add_labelled_options(parser)
    parser.add_argument("--seed", type=seed, default=0, help="of the texts, the words and the map (default: 0)")


def _perturbation_map(arguments: argparse.Namespace) -> None:
    from fastadv.data.variants.word_sets import WordSets
    from fastadv.evaluation.papers.perturbation_map import map_models, map_table, perturbed_texts, write_map

    models, out = _classifiers(arguments), check_out_folder(arguments.out)
    source = labelled_texts(arguments, arguments.data, max_texts=None)
    source.check()
    word_sets = WordSets.load(arguments.word_sets)
    if arguments.dry_run:
        print(f"would map at most {arguments.max_texts:,} texts of {arguments.data} by {', '.join(models)}; into {out}")
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
    parser.add_argument("--cap", choices=_CAPS, default="any", help="what may change for a success (default: any)")
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
