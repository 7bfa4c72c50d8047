"""``fastadv evaluate adv-sts | pair-distances | perturbation-map | attack-by-epoch``. Parsing only."""

import argparse

from fastadv.cli.flags import add_flags, changed_flag, read_settings
from fastadv.cli.parts import add_command, check_out_folder, into, run_or_describe, where
from fastadv.config.commands import (
    AdvStsInput,
    AttackByEpochOptions,
    Classifiers,
    PairDistancesOptions,
    PerturbationMapOptions,
)
from fastadv.config.text_attack import ADV_STS_RECIPES, AdvStsOptions, AttackedTexts, TextAttackSettings


def add_evaluate_attacks(kinds) -> None:
    """Adds what reads or makes texts of an attack to the kinds of ``fastadv evaluate``."""
    about = "attack the similarity of sentence pairs: how many move a point away from the human score (AdvSTS)"
    parser = add_command(kinds, "adv-sts", _adv_sts, about)
    add_flags(parser, AdvStsInput)
    recipe = changed_flag(TextAttackSettings, "recipe", about="the attack", choices=ADV_STS_RECIPES)
    add_flags(parser, TextAttackSettings, without=("goal",), recipe=recipe)
    add_flags(parser, AdvStsOptions)
    about = (
        "distance and divergence between texts and what an attack made of them, and between classes (TaiChi, table 7)"
    )
    add_flags(add_command(kinds, "pair-distances", _pair_distances, about), PairDistancesOptions)
    about = "where synonyms and antonyms move texts to: t-SNE of vectors, and cosine distances (BAT, figure 5)"
    parser = add_command(kinds, "perturbation-map", _perturbation_map, about)
    add_flags(parser, PerturbationMapOptions)
    add_flags(parser, AttackedTexts, without=("labels",))
    about = "success of attacks over the epochs of a training, from their reports (BAT, figures 3 and 4)"
    add_flags(add_command(kinds, "attack-by-epoch", _attack_by_epoch, about), AttackByEpochOptions)


def _adv_sts(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.text.adv_sts import AdvStsData, AdvStsRun, spearman_lines
    from fastadv.evaluation.text_report.report import REPORT_FILES, text_table

    given = read_settings(arguments, AdvStsInput)
    out = check_out_folder(given.out)
    run = read_settings(
        arguments,
        AdvStsRun,
        models=given.models,
        settings=read_settings(arguments, TextAttackSettings, batch_size=given.batch_size),
        data=AdvStsData.read(given.data, given.name, given.split, given.scale, given.max_pairs, given.seed),
        out=str(out),
        **given.of_encoder,
    )
    results = run_or_describe(run, arguments)
    if results is not None:
        print(text_table(results))
        print(spearman_lines(results))
        print(f"{out}: {', '.join(REPORT_FILES)}")


def _loaders(options: Classifiers) -> dict:
    """Name → () → classifier; refuses what can be found wrong without reading weights."""
    from fastadv.distributed.devices import named_device
    from fastadv.encoder.classifier.classification_head import classes_of
    from fastadv.encoder.classifier.text_classifier import Classifier
    from fastadv.encoder.weights.source import find_model
    from fastadv.evaluation.model_names import short_names
    from fastadv.evaluation.model_run import check_once

    check_once(options.models)
    named_device(options.device)
    for model in options.models:
        source = find_model(model)
        source.check_max_length(options.max_length)
        classes_of(source, options.label_names)
    how = {name: getattr(options, name) for name in ("max_length", "label_names", "device")}
    return {
        name: lambda model=model: Classifier.from_pretrained(model, **how)
        for name, model in zip(short_names(options.models), options.models, strict=True)
    }


def _pair_distances(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.papers.pair_distances import AttackedPairs, measure_pairs, pair_table, write_pairs_record

    options = read_settings(arguments, PairDistancesOptions)
    models, out = _loaders(options), check_out_folder(options.out)
    pairs = AttackedPairs.read(options.rows, options.max_pairs)
    if arguments.dry_run:
        print(f"would measure {', '.join(models)} on {len(pairs.labels):,} pairs of {options.rows}{into(out)}")
        return
    record = measure_pairs(models, pairs, options.batch_size, progress=True)
    print(f"{pair_table(record)}\n{where(record)}")
    if out is not None:
        write_pairs_record(record, out)
        print(out)


def _perturbation_map(arguments: argparse.Namespace) -> None:
    from fastadv.data.variants.word_sets import WordSets
    from fastadv.evaluation.papers.perturbation_map import map_models, map_table, perturbed_texts, write_map
    from fastadv.evaluation.text.attacked_data import AttackedData

    options = read_settings(arguments, PerturbationMapOptions)
    models, out = _loaders(options), check_out_folder(options.out)
    source = read_settings(arguments, AttackedData, max_texts=None)
    source.check()
    word_sets = WordSets.load(options.word_sets)
    if arguments.dry_run:
        print(f"would map at most {options.max_texts:,} texts of {source.source} by {', '.join(models)}{into(out)}")
        return
    data, rows = source.read()
    texts = perturbed_texts(data, rows.tolist(), word_sets, options.max_texts, options.leave_out, options.seed)
    record, points = map_models(models, texts, options.seed, options.batch_size, progress=True)
    write_map(out, record, points, texts)
    print(f"{map_table(record)}\n{where(record)}")
    print(out)


def _attack_by_epoch(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.papers.attack_by_epoch import epoch_table, points_of, write_epochs

    options = read_settings(arguments, AttackByEpochOptions)
    out = check_out_folder(options.out)
    points = points_of(options.runs, options.baselines, options.cap)
    if arguments.dry_run:
        print(f"would draw {len(points)} attacks{into(out)}")
        return
    write_epochs(out, points, options.cap)
    print(epoch_table(points))
    print(out)
