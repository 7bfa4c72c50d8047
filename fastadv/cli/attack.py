"""``fastadv attack``: parsing only.

What it runs is `fastadv.evaluation.embeddings.run`, `...reconstruct_run`, or for text `fastadv.evaluation.text.run`.
"""

import argparse
import sys

from fastadv.cli.flags import add_flags, changed_flag, option_names, read_settings
from fastadv.cli.parts import add_command, run_or_describe, where
from fastadv.config.commands import AttackedClassifiers
from fastadv.config.embedding_attack import AttackSettings, EmbeddingAttackOptions
from fastadv.config.flag import Flag
from fastadv.config.text_attack import AttackedTexts, TextAttackOptions, TextAttackSettings
from fastadv.errors import UserError

_METHODS = {
    "fgsm": "one step along the sign of the gradient (linf)",
    "fgm": "one step along the gradient (l2)",
    "pgd": "several steps, each projected on the ball",
    "apgd": "PGD with momentum and steps that halve where they do not help (Auto-PGD)",
    "reconstruct": "PGD, then the word that each perturbed token is nearest to: text that can be read",
}


def add_attack(commands, text_settings: type[TextAttackSettings] = TextAttackSettings) -> None:
    """Adds the subcommand.

    Args:
        text_settings: what an attack on text is told; a subclass may have settings of its own.
    """
    about = "attack a classifier: at its embeddings, accuracy against the radius; or its text, by a recipe"
    parser = add_command(commands, "attack", _attack, about)
    add_flags(parser, AttackedClassifiers)
    add_flags(parser, AttackedTexts)
    methods = "; ".join(f"{name}: {text}" for name, text in _METHODS.items())
    add_flags(parser, AttackSettings, method=Flag(methods, choices=tuple(_METHODS)))
    add_flags(parser, EmbeddingAttackOptions)
    group = parser.add_argument_group("attacks on text")
    add_flags(group, text_settings, recipe=changed_flag(text_settings, "recipe", is_required=False))
    add_flags(group, TextAttackOptions)
    parser.set_defaults(text_settings=text_settings)


def check_kind(arguments: argparse.Namespace) -> None:
    """UserError for an option that belongs to the other kind of attack."""
    of_embeddings = option_names(AttackSettings, EmbeddingAttackOptions)
    of_text = option_names(arguments.text_settings, TextAttackOptions)
    is_text = "recipe" in arguments
    own, other = (of_text, of_embeddings) if is_text else (of_embeddings, of_text)
    wrong = next((option for name, option in other.items() if name in arguments and name not in own), None)
    if wrong is None:
        return
    if is_text:
        raise UserError(f"attack: {wrong} belongs to an attack on embeddings; expected it without --recipe")
    raise UserError(f"attack: {wrong} belongs to an attack on text; expected it with --recipe")


def _attack(arguments: argparse.Namespace) -> None:
    check_kind(arguments)
    if "recipe" in arguments:
        _text(arguments)
    elif getattr(arguments, "method", None) == "reconstruct":
        _reconstruct(arguments)
    else:
        _embeddings(arguments)


def _embeddings(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.embeddings.parts import FILES
    from fastadv.evaluation.embeddings.report import text_table, warning_lines
    from fastadv.evaluation.embeddings.run import AttackRun

    results = _run(arguments, AttackRun, AttackSettings)[1]
    if results is not None:
        print(text_table(results))
        print(f"{arguments.out}: {', '.join(FILES)}; {where(results)}")
        for line in warning_lines(results):
            print(f"warning: {line}", file=sys.stderr)


def _reconstruct(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.embeddings.parts import RECONSTRUCT_FILES
    from fastadv.evaluation.embeddings.reconstruct_run import ReconstructRun, reconstruct_table

    results = _run(arguments, ReconstructRun, AttackSettings, method="pgd")[1]
    if results is not None:
        print(reconstruct_table(results))
        print(f"{arguments.out}: {', '.join(RECONSTRUCT_FILES)}; {where(results)}")


def _text(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.text.run import TextAttackRun
    from fastadv.evaluation.text_report.report import text_table

    run, results = _run(arguments, TextAttackRun, arguments.text_settings)
    if results is not None:
        print(text_table(results))
        print(f"{arguments.out}: {', '.join(run.files)}; {where(results)}")
        if run.pairs is not None:
            print(f"{run.pairs}: {results['num_pairs']:,} pairs")


def _run(arguments: argparse.Namespace, kind: type, settings_kind: type, **values):
    """The run of ``kind`` and its results; ``values`` are settings that were not given as they are."""
    from fastadv.evaluation.text.attacked_data import AttackedData

    try:
        settings = read_settings(arguments, settings_kind, **values)
    except UserError as error:
        raise UserError(f"attack: {error}") from error
    models, data = read_settings(arguments, AttackedClassifiers), read_settings(arguments, AttackedData)
    given = vars(models) | {"settings": settings, "data": data}
    every = (*models.models, getattr(arguments, "transfer_from", None))
    given["label_names"] = {} if models.label_names is None else dict.fromkeys(every, models.label_names)
    run = read_settings(arguments, kind, **given)
    return run, run_or_describe(run, arguments)
