"""``fastadv attack``: parsing only. What it runs is `fastadv.evaluation.embeddings.run` and `...reconstruct_run`.

Attacks on text are parsed in `fastadv.cli.attack_text`.
"""

import argparse
import sys

from fastadv.cli.attack_parts import add_labelled_options, labelled_texts, run_or_describe
from fastadv.cli.attack_text import add_text_attack_options, check_kind, run_text_attack
from fastadv.cli.parts import add_command, count_from, seed
from fastadv.errors import UserError

_METHODS = {
    "fgsm": "one step along the sign of the gradient (linf)",
    "fgm": "one step along the gradient (l2)",
    "pgd": "several steps, each projected on the ball",
    "apgd": "PGD with momentum and steps that halve where they do not help (Auto-PGD)",
    "reconstruct": "PGD, then the word that each perturbed token is nearest to: text that can be read",
}


def add_attack(commands) -> None:
    """Adds the subcommand."""
    about = "attack a classifier: at its embeddings, accuracy against the radius; or its text, by a recipe"
    parser = add_command(commands, "attack", _attack, about)
    parser.add_argument(
        "--model",
        required=True,
        action="append",
        help="a folder of a trained classifier; give --model several times to compare",
    )
    parser.add_argument("--data", required=True, help="labelled texts: a file, a folder, a dataset, or demo:imdb")
    methods = "; ".join(f"{name}: {text}" for name, text in _METHODS.items())
    parser.add_argument("--method", choices=tuple(_METHODS), help=f"{methods} (default: pgd)")
    parser.add_argument("--out", required=True, help="a folder for the results; finished parts in it are not run again")
    parser.add_argument(
        "--epsilons",
        nargs="+",
        type=float,
        metavar="RADIUS",
        help="radii of a text's ball, absolute (default: 0.02 0.075 0.1 0.25 0.5 1; a hundredth of them for linf)",
    )
    parser.add_argument("--norm", choices=("l2", "linf"), help="of the ball (default: l2; linf for fgsm)")
    parser.add_argument("--num_steps", type=count_from(1), help="gradient steps (default: 10)")
    parser.add_argument("--num_restarts", type=count_from(1), default=1, help="runs, the first from zero (default: 1)")
    parser.add_argument(
        "--step_sizes",
        nargs="+",
        type=float,
        metavar="SIZE",
        help="step sizes as multiples of the radius, each a run of its own (default: 2.5 / num_steps; 2 for apgd)",
    )
    parser.add_argument("--transfer_from", metavar="DIR", help="try what fools this classifier on each model too")
    parser.add_argument(
        "--perturb_at",
        choices=("embedding", "word"),
        default="embedding",
        help="perturb the embedding layer's output, or the word embeddings before it (default: embedding)",
    )
    parser.add_argument(
        "--keep_special_tokens", action="store_true", help="leave [CLS], [SEP] and their like unperturbed"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of drawn texts and starts (default: 0)")
    add_labelled_options(parser)
    parser.add_argument("--labels", nargs="+", metavar="CLASS", help="draw texts of these classes only")
    parser.add_argument("--max_texts", type=count_from(1), default=1000, help="texts drawn (default: 1000)")
    parser.add_argument("--max_length", type=count_from(3), help="tokens a text is cut to (default: the model's own)")
    parser.add_argument("--batch_size", type=count_from(1), default=32, help="texts a pass (default: 32)")
    parser.add_argument("--no_checks", action="store_true", help="leave out the checks of the attack itself")
    parser.add_argument(
        "--no_distances",
        action="store_true",
        help="attack only texts that no smaller radius has fooled: faster, without distances of the vectors",
    )
    add_text_attack_options(parser)
    parser.set_defaults(defaults=vars(parser.parse_args(["--model", "", "--data", "", "--out", ""])))


def _attack(arguments: argparse.Namespace) -> None:
    check_kind(arguments, arguments.defaults)
    if arguments.recipe is not None:
        run_text_attack(arguments, _data(arguments))
        return
    if arguments.method == "reconstruct":
        _reconstruct(arguments)
        return
    from fastadv.evaluation.embeddings.parts import FILES
    from fastadv.evaluation.embeddings.report import text_table, warning_lines
    from fastadv.evaluation.embeddings.run import AttackRun

    run = AttackRun(
        models=arguments.model,
        data=_data(arguments),
        settings=_settings(arguments, arguments.method or "pgd"),
        out=arguments.out,
        transfer_from=arguments.transfer_from,
        perturb_at=arguments.perturb_at,
        max_length=arguments.max_length,
        batch_size=arguments.batch_size,
        has_checks=not arguments.no_checks,
    )
    results = run_or_describe(run, arguments)
    if results is None:
        return
    print(text_table(results))
    print(f"{arguments.out}: {', '.join(FILES)}")
    for line in warning_lines(results):
        print(f"warning: {line}", file=sys.stderr)


def _data(arguments: argparse.Namespace):
    labels = None if arguments.labels is None else tuple(arguments.labels)
    return labelled_texts(arguments, arguments.data, max_texts=arguments.max_texts, seed=arguments.seed, labels=labels)


def _settings(arguments: argparse.Namespace, method: str):
    from fastadv.evaluation.embeddings.settings import AttackSettings

    try:
        return AttackSettings(
            method=method,
            epsilons=None if arguments.epsilons is None else tuple(arguments.epsilons),
            norm=arguments.norm,
            num_steps=arguments.num_steps,
            num_restarts=arguments.num_restarts,
            step_sizes=None if arguments.step_sizes is None else tuple(arguments.step_sizes),
            seed=arguments.seed,
            perturb_special_tokens=not arguments.keep_special_tokens,
            measure_distances=not arguments.no_distances,
        )
    except UserError as error:
        raise UserError(f"attack: {error}") from error


def _reconstruct(arguments: argparse.Namespace) -> None:
    from fastadv.evaluation.embeddings.parts import RECONSTRUCT_FILES
    from fastadv.evaluation.embeddings.reconstruct_run import ReconstructRun, reconstruct_table

    run = ReconstructRun(
        models=arguments.model,
        data=_data(arguments),
        settings=_settings(arguments, "pgd"),
        out=arguments.out,
        transfer_from=arguments.transfer_from,
        perturb_at=arguments.perturb_at,
        max_length=arguments.max_length,
        batch_size=arguments.batch_size,
    )
    results = run_or_describe(run, arguments)
    if results is not None:
        print(reconstruct_table(results))
        print(f"{arguments.out}: {', '.join(RECONSTRUCT_FILES)}")
