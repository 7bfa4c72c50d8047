"""``fastadv attack --recipe``: parsing only. What it runs is `fastadv.evaluation.text.run`."""

import argparse
from typing import Dict

from fastadv.cli.attack_parts import add_text_search_options, run_or_describe, text_search
from fastadv.cli.parts import count_from
from fastadv.errors import UserError

_RECIPES = {
    "deepwordbug": "swapped, lost and wrong letters",
    "pwws": "WordNet synonyms, by saliency",
    "textfooler": "near words of word vectors",
    "textbugger": "letters, look-alikes and near words",
    "bae": "words of a masked LM",
    "bert-attack": "sub-words of a masked LM",
    "a2t": "near words, ranked by gradients",
    "antonym": "one word to its antonym",
    "negation": "one negation more or less",
    "synonym": "words to their synonyms",
}

_OWN = (
    "goal",
    "max_queries",
    "max_seconds",
    "processes",
    "threads",
    "mlm",
    "attack_data",
    "word_vectors",
    "word_sets",
    "write_pairs",
)
"""options that need --recipe"""

_OTHERS = (
    "method",
    "epsilons",
    "norm",
    "num_steps",
    "num_restarts",
    "step_sizes",
    "transfer_from",
    "perturb_at",
    "keep_special_tokens",
    "no_checks",
    "no_distances",
)
"""options of an attack on embeddings"""


def add_text_attack_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``--recipe`` and what goes with it."""
    group = parser.add_argument_group("attacks on text")
    recipes = "; ".join(f"{name}: {text}" for name, text in _RECIPES.items())
    group.add_argument("--recipe", choices=tuple(_RECIPES), help=f"attack the text itself. {recipes}")
    group.add_argument(
        "--goal",
        choices=("untargeted", "remain"),
        help="what succeeds: another prediction, or the same after a change of the true class "
        "(default: remain for antonym and negation, else untargeted)",
    )
    group.add_argument("--processes", type=count_from(1), help="processes that attack (default: 1)")
    group.add_argument("--threads", type=count_from(1), help="torch threads of each process (default: 1)")
    add_text_search_options(group, "a text")
    group.add_argument(
        "--write-pairs",
        "--write_pairs",
        metavar="FILE",
        help="a csv file for the texts that were fooled and what fooled the model, to train on (data.pairs)",
    )


def check_kind(arguments: argparse.Namespace, defaults: Dict[str, object]) -> None:
    """UserError for an option that belongs to the other kind of attack."""
    is_text = arguments.recipe is not None
    wrong = next((name for name in (_OTHERS if is_text else _OWN) if getattr(arguments, name) != defaults[name]), None)
    if wrong is None:
        return
    if is_text:
        raise UserError(f"attack: --{wrong} belongs to an attack on embeddings; expected it without --recipe")
    raise UserError(f"attack: --{wrong} belongs to an attack on text; expected it with --recipe")


def run_text_attack(arguments: argparse.Namespace, data) -> None:
    """Runs the attack, or says what it would do.

    Args:
        data: `fastadv.evaluation.text.attacked_data.AttackedData`.
    """
    from fastadv.evaluation.text.run import TextAttackRun
    from fastadv.evaluation.text_report.report import text_table

    run = TextAttackRun(
        models=arguments.model,
        data=data,
        settings=_settings(arguments),
        out=arguments.out,
        max_length=arguments.max_length,
        num_processes=arguments.processes or 1,
        num_threads=arguments.threads or 1,
        pairs=arguments.write_pairs,
    )
    results = run_or_describe(run, arguments)
    if results is None:
        return
    print(text_table(results))
    print(f"{arguments.out}: {', '.join(run.files)}")
    if run.pairs is not None:
        print(f"{run.pairs}: {results['num_pairs']:,} pairs")


def _settings(arguments: argparse.Namespace):
    from fastadv.evaluation.text.attack import TextAttackSettings

    try:
        return TextAttackSettings(recipe=arguments.recipe, goal=arguments.goal, **text_search(arguments))
    except UserError as error:
        raise UserError(f"attack: {error}") from error
