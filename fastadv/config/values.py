"""A value of a configuration against the type and bounds that its key declares, and words for what is allowed.

Pydantic judges, in its strict mode: ``true`` is no number, ``"3"`` in quotes is text, ``3.0`` is not a count, and
infinity and NaN are no settings. A whole number where a float is declared becomes that float.
"""

import json
import math
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import DocInfo, GroupedMetadata
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from fastadv.config.yaml import read_yaml
from fastadv.errors import UserError

MISFIT = object()
"""what ``conform`` returns for a value that is not allowed"""
_RULES = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
_WORDS = {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}
_WORDS |= {list: "a list", dict: "a mapping", Any: "anything", types.NoneType: "null"}

_LIMITS = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}


def conform(value: Any, hint: Any) -> Any:
    """``value`` as an instance of ``hint`` and within its bounds, or ``MISFIT``."""
    try:
        fit = TypeAdapter(hint, config=_RULES).validate_python(value)
    except (ValidationError, PydanticUserError):
        # The latter where a user's own type is none that YAML has a word for.
        return MISFIT
    # Of Literal[0, 1] pydantic takes true and 1.0, too.
    return fit if type(fit) in (type(value), float) else MISFIT


def read_text(text: str, hint: Any) -> Any:
    """The value that ``text`` on a command line stands for: itself where ``hint`` takes text, else YAML's.

    Where ``hint`` also takes lists or null, text in brackets is the list that it spells, and null is null.
    """
    try:
        spelt = read_yaml(text, "")
    except UserError:
        return text
    taken = kinds(hint)
    is_other = isinstance(spelt, list) or (spelt is None and text)
    if str in taken:
        return spelt if is_other and conform(spelt, hint) is not MISFIT else text
    return text if Any not in taken and conform(text, hint) is not MISFIT else spelt


def kinds(hint: Any) -> list[Any]:
    """The types of which ``hint`` is a union, without their bounds."""
    if get_origin(hint) is Annotated:
        return kinds(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for member in get_args(hint) for kind in kinds(member)]
    return [hint]


def describe(hint: Any) -> str:
    """What ``hint`` allows, in words: "a number above 0", "one of linf, l2, l1", "a whole number or null"."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _in_bounds(*parts)
    if origin in (Union, types.UnionType):
        return (", or " if Annotated in map(get_origin, parts) else " or ").join(map(describe, parts))
    if origin is Literal:
        words = [word if isinstance(word, str) else show(word) for word in parts]
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    nouns = [describe(part).removeprefix("a ") for part in parts]
    if origin is list:
        return f"a list of {nouns[0]}s"
    if origin is dict:
        return f"a mapping of {nouns[0]}s to {nouns[1]}s"
    return _WORDS.get(hint) or getattr(hint, "__name__", str(hint))


def _in_bounds(kind: Any, *rules: Any) -> str:
    flat = [part for rule in rules for part in (rule if isinstance(rule, GroupedMetadata) else [rule])]
    for rule in reversed(flat):
        if isinstance(rule, DocInfo):
            return rule.documentation
    bounds = {name: getattr(rule, name) for rule in flat for name in _LIMITS if hasattr(rule, name)}
    if kind is float:
        if {"ge", "le"} <= set(bounds):
            return f"a number in [{bounds['ge']}, {bounds['le']}]"
        if {"ge", "lt"} <= set(bounds):
            return f"a number from {bounds['ge']} to below {bounds['lt']}"
    limits = [f"{word} {bounds[name]:.10g}" for name, word in _LIMITS.items() if name in bounds]
    noun = "a number" if kind is float else describe(kind)
    return " ".join([noun, ", ".join(limits)]) if limits else noun


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
