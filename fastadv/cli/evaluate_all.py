"""``fastadv evaluate all``: parsing only. What it runs is `fastadv.evaluation.suite.suite`."""

import argparse
import sys
from typing import List

from fastadv.cli.flags import add_flags, changed_flag, given, read_settings, whole_number
from fastadv.cli.parts import add_cache_dir, add_command, add_encoder_options, add_seed, check_out_folder
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
    add_encoder_options(
        parser,
        max_length=None,
        pooling=None,
        is_one=False,
        about="[NAME=]DIR[,DIR...]: a system and its models, a seed each; once for each system, the first of which "
        "the others are compared with",
    )
    parser.add_argument("--data", help="a folder in SentEval layout, for sts, transfer, geometry and adv-sts")
    parser.add_argument("--out", required=True, help="a folder for the results; what is done in it is not run again")
    parser.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help=f"some of {', '.join(PARTS)} (default: all), or your own, my_package.my_module:MyPart",
    )
    parser.add_argument(
        "--write_cards", action="store_true", help="write each model's scores into the README.md of its folder"
    )
    add_seed(parser, "draws, attacks and resamples")
    add_cache_dir(parser, "vectors")
    _add_attacks(parser)


def _add_attacks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("attacks")
    add_flags(
        group,
        AttackedTexts,
        without=("pair_field", "labels"),
        defaults={"source": "demo:imdb", "max_texts": 200},
        source=changed_flag(AttackedTexts, "source", about="labelled texts to attack", name="labelled"),
    )
    group.add_argument("--max_pairs", type=whole_number(2), help="pairs of adv-sts, drawn (default: all)")
    group.add_argument(
        "--recipes",
        nargs="+",
        metavar="RECIPE",
        help="attacks on texts, as fastadv attack has them (default: pwws deepwordbug)",
    )
    group.add_argument("--adv_sts_recipe", default="pwws", help="the attack of adv-sts (default: pwws)")
    group.add_argument("--no_control", action="store_true", help="leave out the controls of adv-sts")
    add_flags(group, AttackSettings, only=("epsilons",))
    group.add_argument(
        "--held_out",
        default="demo:imdb-test",
        help="sentences that are edited, and on which encoders without a head are attacked (default: demo:imdb-test)",
    )
    group.add_argument("--num_sentences", type=whole_number(16), default=256, help="of them (default: 256)")
    group.add_argument(
        "--num_probe_sentences",
        type=whole_number(0),
        default=256,
        help="on which the sentiment probe is attacked, 0 for none (default: 256)",
    )
    add_flags(group, TextAttackSettings, without=("recipe", "goal"))


def _all(arguments: argparse.Namespace) -> int:
    from fastadv.evaluation.suite.report import FILES, short_table
    from fastadv.evaluation.suite.suite import Suite
    from fastadv.evaluation.vectors.vector_cache import checked_cache_folder

    out = check_out_folder(arguments.out)
    parts, named = choose_parts(_options(arguments, out))
    suite = Suite(arguments.model, parts, out, arguments.seed, arguments.pooling, arguments.max_length, named)
    wrong_cards = _wrong_cards(suite) if arguments.write_cards else []
    if arguments.dry_run:
        lines, is_missing = suite.plan()
        lines += [f"card: n/a: {why}" for why in wrong_cards]
        print("\n".join([*lines, f"into {out}: {', '.join(FILES)}"]))
        return int(is_missing or bool(wrong_cards))
    if wrong_cards:
        raise UserError(f"--write_cards: {'; '.join(wrong_cards)}")
    checked_cache_folder(arguments.cache_dir)
    evaluation = suite.run(sys.stderr.isatty(), say=_say)
    print(short_table(evaluation))
    print(f"{out}: {', '.join(FILES)}")
    has_all_cards = not arguments.write_cards or _write_cards(evaluation)
    return int(suite.is_missing(evaluation) or not has_all_cards)


def _say(line: str) -> None:
    print(f"fastadv: {line}", file=sys.stderr, flush=True)


def _wrong_cards(suite) -> List[str]:
    from fastadv.evaluation.suite.model_card import check_cards

    return check_cards([model for system in suite.systems for model in system.models])


def _write_cards(evaluation: dict) -> bool:
    """Whether no card had a problem."""
    from fastadv.evaluation.suite.model_card import write_cards

    cards = write_cards(evaluation)
    for path in cards.written:
        print(path)
    for line in (*cards.left, *cards.problems):
        _say(line)
    return not cards.problems


def _options(arguments: argparse.Namespace, out):
    from fastadv.config.schema import EvaluationConfig
    from fastadv.evaluation.suite.parts import SuiteOptions
    from fastadv.evaluation.text.attacked_data import AttackedData

    labelled = read_settings(arguments, AttackedData)
    return SuiteOptions(
        out=out,
        data=arguments.data,
        parts=None if arguments.parts is None else tuple(arguments.parts),
        recipes=None if arguments.recipes is None else tuple(arguments.recipes),
        adv_sts_recipe=arguments.adv_sts_recipe,
        labelled=labelled,
        max_pairs=arguments.max_pairs,
        has_control=not arguments.no_control,
        attack=read_settings(arguments, AttackSettings),
        of_encoders=EvaluationConfig(
            num_sentences=arguments.num_sentences,
            num_probe_sentences=arguments.num_probe_sentences,
            held_out=arguments.held_out,
            held_out_split=labelled.split,
            seed=arguments.seed,
        ),
        text_settings=given(arguments, TextAttackSettings),
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        cache_dir=arguments.cache_dir,
    )
