"""What a value may be besides its type: annotations of the fields of a configuration and of an objective's options.

The checks and the help read them. Bounds are those of ``annotated_types``; ``doc`` says in words what a rule allows.
"""

import re
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Interval, MaxLen, Predicate, doc

from fastadv.config.commands import POOLINGS, is_pooling


def _is_name(value: str) -> bool:
    # A command line may hold bytes that are no UTF-8, and a model card, say, may not.
    return bool(value.strip()) and "\0" not in value and not re.search("[\ud800-\udfff]", value)


def _are_sources(value: str | list[dict[str, Any]]) -> bool:
    """Whether ``value`` is one source, or one or more of them with weights."""
    if isinstance(value, str):
        return _is_name(value)
    for entry in value:
        path, weight = entry.get("path"), entry.get("weight", 1)
        if set(entry) - {"path", "weight"} or not isinstance(path, str) or not _is_name(path):
            return False
        # The bound keeps a slip of the keyboard from filling the memory with copies.
        if type(weight) not in (int, float) or not 0 < weight <= 1000:
            return False
    return 0 < len(value) == len({entry["path"] for entry in value})


def _are_radii(value: list[float]) -> bool:
    return bool(value) and min(value) >= 0 and len(set(value)) == len(value)


def _are_labels(value: list[str | int]) -> bool:
    names = [str(name) for name in value]
    return len(names) == len(set(names)) > 0 and all(name and name == name.strip() for name in names)


def _are_classes(value: list[str | int]) -> bool:
    return _are_labels(value) and len(value) > 1


NotNegative = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
ShareBelow1 = Annotated[float, Interval(ge=0, lt=1)]
PositiveShare = Annotated[float, Interval(gt=0, le=1)]
Seed = Annotated[int, Interval(ge=0, lt=2**32), doc("a whole number from 0 to 4294967295")]
Name = Annotated[str, Predicate(_is_name), doc("text that is not empty, in UTF-8 and without NUL")]
Prompt = Annotated[
    str, Predicate(lambda value: not value or _is_name(value)), doc("text in UTF-8 and without NUL, or empty")
]
ObjectiveName = Annotated[
    Name, MaxLen(500), doc("the name of a shipped objective, or my_package.my_module:MyObjective")
]
Pooling = Annotated[
    str, Predicate(is_pooling), doc(f"one of {', '.join(POOLINGS)}, or several of all but first_last, as cls+mean")
]
TokenRadius = Annotated[
    NotNegative | Literal["equal"], doc("a number of at least 0, or equal (the sentence's epsilon)")
]
StepSize = Annotated[NotNegative | Literal["auto"], doc("a number of at least 0, or auto (a share of the radius)")]
Radius = Annotated[NotNegative | Literal["auto"], doc("a number of at least 0, or auto (relative to the embeddings)")]
ProbeSize = Annotated[
    int,
    Predicate(lambda value: value == 0 or value >= 16),
    doc("a whole number of at least 16, or 0 for none"),
]
WordShares = Annotated[
    list[float],
    Predicate(lambda value: all(0 < share <= 1 for share in value) and len(set(value)) == len(value)),
    doc("a list of different shares of words, more than 0 and at most 1"),
]
Radii = Annotated[list[float], Predicate(_are_radii), doc("a list of one or more different numbers of at least 0")]
ClassNames = Annotated[
    list[str | int],
    Predicate(_are_classes),
    doc("a list of two or more different names of classes, text or whole numbers"),
]
Labels = Annotated[
    list[str | int], Predicate(_are_labels), doc("a list of one or more different labels, text or whole numbers")
]
ModuleNames = Annotated[
    list[str],
    Predicate(lambda value: bool(value) and all(name.strip() for name in value)),
    doc("a list of one or more names of modules"),
]
Trackers = Annotated[
    list[Literal["wandb", "mlflow"]],
    Predicate(lambda value: len(set(value)) == len(value)),
    doc("a list of any of wandb, mlflow, each once"),
]
Sources = Annotated[
    str | list[dict[str, Any]],
    Predicate(_are_sources),
    doc("a path or name, or a list of {path: P, weight: W} with different P in UTF-8 and W above 0, at most 1000"),
]
