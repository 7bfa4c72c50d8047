"""``fastadv evaluate all``: parsing only. What it runs is `fastadv.evaluation.suite.suite`."""

import argparse
import sys
from pathlib import Path

from fastadv.cli.flags import add_flags, changed_flag, given, read_settings
from fastadv.cli.parts import add_command, check_out_folder
from fastadv.config.commands import SuiteAttacks, SuiteInput
from fastadv.config.embedding_attack import AttackSettings
from fastadv.config.text_attack import AttackedTexts, TextAttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.suite.choice import PARTS, choose_parts


def add_evaluate_all(kinds) -> None:
    """Adds it to the kinds of ``fastadv evaluate``."""
    about = (
        "all of it on several systems: sts, transfer, geometry, adv-sts, attacks on embeddings and on texts, robustness"
    )
    parser = add_command(kinds, "all", _all, about)
    words = f"some of {', '.join(PARTS)} (default: all), or your own, my_package.my_module:MyPart"
    add_flags(parser, SuiteInput, parts=changed_flag(SuiteInput, "parts", about=words))
    group = parser.add_argument_group("attacks")
    add_flags(
        group,
        AttackedTexts,
        without=("pair_field", "labels"),
        defaults={"source": "demo:imdb", "max_texts": 200},
        source=changed_flag(AttackedTexts, "source", about="labelled texts to attack", name="labelled"),
    )
    add_flags(group, SuiteAttacks)
    add_flags(group, AttackSettings, only=("epsilons",))
    add_flags(group, TextAttackSettings, without=("recipe", "goal"))


def _all(arguments: argparse.Namespace) -> int:
    from fastadv.evaluation.suite.model_card import check_cards
    from fastadv.evaluation.suite.report import FILES, short_table
    from fastadv.evaluation.suite.suite import Suite
    from fastadv.evaluation.vectors.vector_cache import checked_cache_folder

    options = read_settings(arguments, SuiteInput)
    out = check_out_folder(options.out)
    parts, named = choose_parts(_options(arguments, options, out))
    suite = Suite(list(options.models), parts, out, options.seed, named, options, options.label_names)
    models = [model for system in suite.systems for model in system.models]
    wrong_cards = check_cards(models) if options.write_cards else []
    if arguments.dry_run:
        lines, is_missing = suite.plan()
        lines += [f"card: n/a: {why}" for why in wrong_cards]
        print("\n".join([*lines, f"into {out}: {', '.join(FILES)}"]))
        return int(is_missing or bool(wrong_cards))
    if wrong_cards:
        raise UserError(f"--write_cards: {'; '.join(wrong_cards)}")
    checked_cache_folder(options.cache_dir)
    evaluation = suite.run(True, say=_say)
    print(short_table(evaluation))
    print(f"{out}: {', '.join(FILES)}")
    has_all_cards = not options.write_cards or _write_cards(evaluation)
    return int(suite.is_missing(evaluation) or not has_all_cards)


def _say(line: str) -> None:
    print(f"fastadv: {line}", file=sys.stderr, flush=True)


def _write_cards(evaluation: dict) -> bool:
    """Whether no card had a problem."""
    from fastadv.evaluation.suite.model_card import write_cards

    cards = write_cards(evaluation)
    for path in cards.written:
        print(path)
    for line in (*cards.left, *cards.problems):
        _say(line)
    return not cards.problems


def _options(arguments: argparse.Namespace, suite: SuiteInput, out: Path):
    from fastadv.config.schema import EvaluationConfig
    from fastadv.evaluation.suite.parts import SuiteOptions
    from fastadv.evaluation.text.attacked_data import AttackedData

    attacks, labelled = read_settings(arguments, SuiteAttacks), read_settings(arguments, AttackedData)
    return SuiteOptions(
        out=out,
        data=suite.data,
        parts=suite.parts,
        recipes=attacks.recipes,
        adv_sts_recipe=attacks.adv_sts_recipe,
        labelled=labelled,
        max_pairs=attacks.max_pairs,
        has_control=attacks.has_control,
        attack=read_settings(arguments, AttackSettings),
        of_encoders=EvaluationConfig(
            num_sentences=attacks.num_sentences,
            num_probe_sentences=attacks.num_probe_sentences,
            held_out=attacks.held_out,
            held_out_split=labelled.split,
            seed=suite.seed,
        ),
        text_settings=given(arguments, TextAttackSettings),
        seed=suite.seed,
        batch_size=suite.batch_size,
        cache_dir=suite.cache_dir,
    )
