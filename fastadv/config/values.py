"""A value of a configuration against the type its key declares, and the words for what would be right.

Stricter than a cast: ``true`` is no number, ``"3"`` in quotes is text, ``3.0`` is not a count, and infinity
and NaN are no settings. An int where a float is declared becomes that float.
"""

import json
import math
import types
from typing import Any, Literal, Union, get_args, get_origin

from fastadv.config.yaml import read_yaml
from fastadv.errors import UserError

MISFIT = object()
"""what ``conform`` returns for a value that the type does not allow"""


def conform(value: Any, hint: Any) -> Any:
    """``value`` as an instance of ``hint``, or ``MISFIT``.

    Types without a rule here (a class, an Enum) let everything pass: jsonargparse judges them afterwards.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        fits = (conform(value, member) for member in get_args(hint))
        return next((fit for fit in fits if fit is not MISFIT), MISFIT)
    if origin is Literal:
        return next((word for word in get_args(hint) if type(word) is type(value) and word == value), MISFIT)
    if hint is None or hint is type(None):
        return None if value is None else MISFIT
    if hint is float:
        return _finite_float(value)
    if hint in (bool, int, str):
        return value if type(value) is hint else MISFIT
    if hint is list or origin is list:
        return _conform_list(value, get_args(hint))
    if hint is dict or origin is dict:
        return _conform_dict(value, get_args(hint))
    return value


def _finite_float(value):
    if type(value) not in (int, float):
        return MISFIT
    try:
        number = float(value)
    except OverflowError:
        return MISFIT
    return number if math.isfinite(number) else MISFIT


def _conform_list(value, item_hints):
    if not isinstance(value, list):
        return MISFIT
    items = [conform(item, item_hints[0]) for item in value] if item_hints else value
    return MISFIT if any(item is MISFIT for item in items) else items


def _conform_dict(value, item_hints):
    if not isinstance(value, dict):
        return MISFIT
    key_hint, value_hint = item_hints or (Any, Any)
    items = {conform(key, key_hint): conform(item, value_hint) for key, item in value.items()}
    return MISFIT if any(key is MISFIT or item is MISFIT for key, item in items.items()) else items


def read_text(text: str, hint: Any) -> Any:
    """The value that ``text`` on a command line stands for: itself where ``hint`` takes text, else YAML's.

    Where ``hint`` takes lists too, text in brackets is the list it spells.
    """
    if text.startswith("[") and list in map(get_origin, get_args(hint)):
        try:
            spelt = read_yaml(text, "")
        except UserError:
            return text
        return text if conform(spelt, hint) is MISFIT else spelt
    if conform(text, hint) is not MISFIT and not _takes_anything(hint):
        return text
    try:
        return read_yaml(text, "")
    except UserError:
        return text


def _takes_anything(hint) -> bool:
    """Whether text fits ``hint`` only because no rule of ours speaks of it."""
    if get_origin(hint) in (Union, types.UnionType):
        return str not in get_args(hint) and any(map(_takes_anything, get_args(hint)))
    return get_origin(hint) is not Literal and hint is not str


def describe(hint: Any) -> str:
    """What ``hint`` allows, in words: "a number", "one of linf, l2, l1", "a whole number or null"."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in get_args(hint))
    if origin is Literal:
        words = [show(word) if not isinstance(word, str) else word for word in get_args(hint)]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    if origin is list and get_args(hint):
        return f"a list of {describe(get_args(hint)[0]).removeprefix('a ')}s"
    if origin is dict and get_args(hint):
        return "a mapping of {}s to {}s".format(*(describe(item).removeprefix("a ") for item in get_args(hint)))
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
    names |= {list: "a list", dict: "a mapping", Any: "anything", None: "null", type(None): "null"}
    if hint in names:
        return names[hint]
    return getattr(hint, "__name__", str(hint))


def allows_null(hint: Any) -> bool:
    return conform(None, hint) is not MISFIT


def show(value: Any, longest: int = 80) -> str:
    """``value`` as one would write it in YAML, on one line and not endless."""
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[: longest - 4]} ..."


def flat_values(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a nested ``config`` by dotted name."""
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(flat_values(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
