"""``fastadv attack``: parsing only.

What it runs is `fastadv.evaluation.embeddings.run`, `...reconstruct_run`, or for text `fastadv.evaluation.text.run`.
"""

import argparse
import sys

from fastadv.cli.flags import add_flags, changed_flag, option_names, read_settings
from fastadv.cli.parts import add_command, add_max_length, run_or_describe
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
    parser.add_argument(
        "--model",
        required=True,
        action="append",
        help="a folder of a trained classifier; give --model several times to compare",
    )
    parser.add_argument("--out", required=True, help="a folder for the results; finished parts in it are not run again")
    add_flags(parser, AttackedTexts)
    add_max_length(parser)
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

    settings = _settings(arguments, AttackSettings)
    results = run_or_describe(read_settings(arguments, AttackRun, **_shared(arguments, settings)), arguments)
    if results is None:
        return
    print(text_table(results))
    print(f"{arguments.out}: {', '.join(FILES)}")
    for line in warning_lines(results):
        print(f"warning: {line}", file=sys.stderr)


def _reconstruct(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.embeddings.parts import RECONSTRUCT_FILES
    from fastadv.evaluation.embeddings.reconstruct_run import ReconstructRun, reconstruct_table

    settings = _settings(arguments, AttackSettings, method="pgd")
    results = run_or_describe(read_settings(arguments, ReconstructRun, **_shared(arguments, settings)), arguments)
    if results is not None:
        print(reconstruct_table(results))
        print(f"{arguments.out}: {', '.join(RECONSTRUCT_FILES)}")


def _text(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.text.run import TextAttackRun
    from fastadv.evaluation.text_report.report import text_table

    settings = _settings(arguments, arguments.text_settings)
    run = read_settings(arguments, TextAttackRun, **_shared(arguments, settings))
    results = run_or_describe(run, arguments)
    if results is None:
        return
    print(text_table(results))
    print(f"{arguments.out}: {', '.join(run.files)}")
    if run.pairs is not None:
        print(f"{run.pairs}: {results['num_pairs']:,} pairs")


def _settings(arguments: argparse.Namespace, kind: type, **values):
    try:
        return read_settings(arguments, kind, **values)
    except UserError as error:
        raise UserError(f"attack: {error}") from error


def _shared(arguments: argparse.Namespace, settings) -> dict:
    """What every kind of attack is told."""
    from fastadv.evaluation.text.attacked_data import AttackedData

    return {
        "models": arguments.model,
        "data": read_settings(arguments, AttackedData),
        "settings": settings,
        "out": arguments.out,
        "max_length": arguments.max_length,
    }
