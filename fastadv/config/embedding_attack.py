"""What an attack on a classifier's embeddings is: method, radii, steps and starts, checked before anything runs."""

import math
from dataclasses import asdict, dataclass
from typing import Annotated

from fastadv.config.flag import Flag, seed_flag
from fastadv.errors import UserError

METHODS = ("fgsm", "fgm", "pgd", "apgd")
NORMS = ("l2", "linf")
ONE_STEP = ("fgsm", "fgm")
DEFAULT_BATCH_SIZE = 32
"""texts a pass"""

EPSILONS_L2 = (0.02, 0.075, 0.1, 0.25, 0.5, 1.0)
"""the radii of CARL's and RAR's table 5, and three at which a MiniLM falls too"""
EPSILONS_LINF = tuple(radius / 100 for radius in EPSILONS_L2)
"""a text of 10,000 entries that all move by so much has moved by the radius of `EPSILONS_L2`"""

PGD_TRAVEL = 2.5
"""all steps of k-PGD together, as a multiple of the radius: 10 steps of 2.5 * epsilon / 10"""
APGD_FIRST_STEP = 2.0
"""the first step of Auto-PGD as a multiple of the radius (Croce & Hein 2020, section 3)"""

_NORM_OF = {"fgsm": "linf", "fgm": "l2"}


@dataclass(frozen=True)
class AttackSettings:
    """An attack; everything that has an effect on its result besides the model and the texts.

    Raises:
        UserError: a value that is not allowed, or one that the method does not use.
    """

    method: Annotated[str, Flag("", choices=METHODS)] = "pgd"
    """fgsm: one step along the gradient's sign; fgm: one along the gradient; pgd: several; apgd: PGD with momentum and
    steps that are halved where they do not help (Auto-PGD). All by the cross-entropy of the true class"""
    epsilons: Annotated[
        tuple[float, ...] | None,
        Flag(
            "radii of a text's ball, absolute",
            default="0.02 0.075 0.1 0.25 0.5 1; a hundredth of them for linf",
            metavar="RADIUS",
        ),
    ] = None
    """radii of a text's ball over its real tokens, absolute and ascending; None: `EPSILONS_L2` or `EPSILONS_LINF`"""
    norm: Annotated[str | None, Flag("of the ball", default="l2; linf for fgsm", choices=NORMS)] = None
    """of the ball, l2 or linf; None: l2, and linf for fgsm. Steps in the linf ball are along the gradient's sign"""
    num_steps: Annotated[int | None, Flag("gradient steps", default="10", least=1)] = None
    """gradients a run takes; None: 10, and 1 for fgsm and fgm"""
    num_restarts: Annotated[int, Flag("runs, the first from zero", least=1)] = 1
    """runs a step size: the first starts at the text itself, the others at random points of the ball"""
    step_sizes: Annotated[
        tuple[float, ...] | None,
        Flag(
            "step sizes as multiples of the radius, each a run of its own",
            default="2.5 / num_steps; 2 for apgd",
            metavar="SIZE",
        ),
    ] = None
    """multiples of epsilon, each a run; of apgd its first step. None: 2.5 / num_steps, 1 for fgsm, fgm, 2 for apgd"""
    seed: Annotated[int, seed_flag("of drawn texts and starts")] = 0
    """of the random starts"""
    perturb_special_tokens: Annotated[
        bool, Flag("leave [CLS], [SEP] and their like unperturbed", name="keep_special_tokens")
    ] = True
    """false: [CLS], [SEP] and their like stay as they are"""
    measure_distances: Annotated[
        bool,
        Flag(
            "attack only texts that no smaller radius has fooled: faster, without distances of the vectors",
            name="no_distances",
        ),
    ] = True
    """attack every text at every radius, to see how far its vector moves; false: only those not fooled yet"""

    def __post_init__(self):
        _choice("method", self.method, METHODS)
        is_one_step, own_norm = self.method in ONE_STEP, _NORM_OF.get(self.method)
        norm = self.norm or own_norm or "l2"
        _choice("norm", norm, NORMS)
        if own_norm is not None and norm != own_norm:
            raise UserError(f"norm is {norm}, but {self.method} moves in the {own_norm} ball; pgd and apgd take either")
        if is_one_step and (self.num_steps not in (None, 1) or self.num_restarts != 1 or self.step_sizes):
            raise UserError(
                f"{self.method} is one step of length epsilon: num_steps, num_restarts and step_sizes are for "
                "pgd and apgd"
            )
        num_steps = (1 if is_one_step else 10) if self.num_steps is None else self.num_steps
        if num_steps < 1 or self.num_restarts < 1:
            raise UserError(
                f"num_steps and num_restarts are {num_steps} and {self.num_restarts}; expected 1 or more of each"
            )
        epsilons = (EPSILONS_L2 if norm == "l2" else EPSILONS_LINF) if self.epsilons is None else self.epsilons
        sizes = self.step_sizes or ({"pgd": PGD_TRAVEL / num_steps, "apgd": APGD_FIRST_STEP}.get(self.method, 1.0),)
        resolved = {
            "norm": norm,
            "num_steps": num_steps,
            "epsilons": tuple(sorted(_numbers("epsilons", epsilons, may_be_zero=True))),
            "step_sizes": _numbers("step_sizes", sizes),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict:
        """Plain values, as JSON holds them."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


@dataclass(frozen=True)
class EmbeddingAttackOptions:
    """How the embeddings of classifiers are attacked, besides the search."""

    transfer_from: Annotated[str | None, Flag("try what fools this classifier on each model too", metavar="DIR")] = None
    """a classifier whose perturbations are tried on every model"""
    perturb_at: Annotated[
        str,
        Flag("perturb the embedding layer's output, or the word embeddings before it", choices=("embedding", "word")),
    ] = "embedding"
    batch_size: Annotated[int, Flag("texts a pass", least=1)] = DEFAULT_BATCH_SIZE
    has_checks: Annotated[bool, Flag("leave out the checks of the attack itself", name="no_checks")] = True


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{name} {value!r} is not one of {', '.join(allowed)}")


def _numbers(name: str, values: tuple[float, ...], may_be_zero: bool = False) -> tuple[float, ...]:
    numbers = tuple(float(value) for value in values)
    bad = [n for n in numbers if not math.isfinite(n) or n < 0 or (n == 0 and not may_be_zero)]
    if bad or not numbers:
        shown = f"{bad[0]:g} is among them" if bad else "there are none"
        raise UserError(f"{name}: {shown}; expected numbers {'of at least' if may_be_zero else 'above'} 0")
    twice = next((n for n in numbers if numbers.count(n) > 1), None)
    if twice is not None:
        raise UserError(f"{name}: {twice:g} is given twice")
    return numbers
