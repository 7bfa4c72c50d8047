"""The classes of somebody's model by the names that labelled data have for them.

Models of the Hub often call their classes ``LABEL_0`` and ``LABEL_1``, or spell them otherwise than the data do. In
this order, as soon as it serves all labels that occur,

* a class and a label of one name are the same;
* likewise where they differ in case alone;
* label number i is class number i, where one side has numbers for names (0, 1, or ``LABEL_0``, ``LABEL_1``) and the
  other side's order is stated: that of a model always is, that of the data where they name their classes in order.

Anything else is a guess, and refused.
"""

import re
from typing import Dict, List, Optional, Sequence, Tuple

from fastadv.data.labelled.labels import LabelMap, listed
from fastadv.errors import UserError

_NUMBERED = re.compile(r"(?:LABEL_)?(0|[1-9][0-9]*)")


def matched(
    model: LabelMap, data: LabelMap, present: Sequence[str], is_ordered: bool
) -> Tuple[LabelMap, Optional[str]]:
    """The model's classes, called as the data call them, and how they were matched, in words; None: by their names.

    Args:
        model: the classes as the model names them.
        data: those of the data.
        present: names in ``data`` that occur.
        is_ordered: whether the data say in which order their classes are.

    Raises:
        UserError: a label that is no class of the model.
    """
    if set(present) <= set(model.names):
        return model, None
    ways = ("case", _by_case(model, data)), ("number", _by_number(model, data, is_ordered))
    found = next((way for way in ways if set(present) <= set(way[1])), None)
    if found is None:
        unknown = next(name for name in present if name not in model.names)
        raise UserError(
            f"the label {unknown!r} of the data is no class of the model; its classes are {listed(model.names)}; "
            "--label_names gives them in the model's order, as the data call them"
        )
    how, number_of = found
    names = list(model.names)
    for name, number in number_of.items():
        names[number] = name
    pairs = ", ".join(f"{old} = {new}" for old, new in zip(model.names, names) if old != new)
    return LabelMap(tuple(names)), f"classes matched by {how}: {pairs}"


def _by_case(model: LabelMap, data: LabelMap) -> Dict[str, int]:
    """Name of a label → number of its class; nothing where that is not one to one."""
    numbers = {name.casefold(): number for number, name in enumerate(model.names)}
    labels = {name.casefold(): name for name in data.names}
    if len(numbers) < len(model) or len(labels) < len(data):
        return {}
    return {name: numbers[folded] for folded, name in labels.items() if folded in numbers}


def _by_number(model: LabelMap, data: LabelMap, is_ordered: bool) -> Dict[str, int]:
    """Likewise by numbers."""
    of_model, of_data = _numbers(model.names), _numbers(data.names)
    if of_model is None and of_data is None:
        return {}
    if of_data is None:
        # All classes must be there, or the order would not tell which is which.
        if not is_ordered or len(data) != len(model):
            return {}
        of_data = list(range(len(data)))
    places = {number: place for place, number in enumerate(range(len(model)) if of_model is None else of_model)}
    return {name: places[number] for name, number in zip(data.names, of_data) if number in places}


def _numbers(names: Sequence[str]) -> Optional[List[int]]:
    """The numbers that all of ``names`` spell, or None."""
    found = [_NUMBERED.fullmatch(name) for name in names]
    return [int(match[1]) for match in found] if all(found) else None
