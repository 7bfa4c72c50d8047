"""Flags of the command line from the fields of settings, and settings from what was given.

A flag that is not given is not in the namespace, so that the default of a setting is written once, in its dataclass.
"""

import argparse
import types
from dataclasses import MISSING, Field, fields, replace
from typing import Any, Callable, Iterator, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from fastadv.config.flag import Flag
from fastadv.errors import UserError

Settings = TypeVar("Settings")


class _Setting(NamedTuple):
    """A field that is on the command line."""

    field: Field
    hint: Any
    flag: Flag

    @property
    def option(self) -> str:
        return f"--{self.flag.name or self.field.name}"


def add_flags(
    parser,
    settings: type,
    only: tuple[str, ...] | None = None,
    without: tuple[str, ...] = (),
    defaults: dict[str, Any] | None = None,
    **changed: Flag,
) -> None:
    """Adds a flag for each field of ``settings`` that has a `Flag` and is not on the parser yet.

    Args:
        parser: a parser, or a group of one.
        settings: a dataclass.
        only: the fields that are added; None: all.
        without: fields that are left out.
        defaults: values in the place of the fields' own defaults.
        changed: other flags than the fields' own, by the field's name.
    """
    known = {action.dest for action in parser._actions}
    for one in _settings_in(settings):
        name = one.field.name
        is_wanted = name not in without and (only is None or name in only)
        if is_wanted and name not in known:
            one = one._replace(flag=changed.get(name, one.flag))
            parser.add_argument(*_names(one), dest=name, **_options(one, (defaults or {}).get(name, MISSING)))


def option_names(*settings: type) -> dict[str, str]:
    """The name of each setting that is on the command line → its option, in the last of its spellings."""
    return {one.field.name: _names(one)[-1] for kind in settings for one in _settings_in(kind)}


def given(arguments: argparse.Namespace, settings: type) -> dict[str, Any]:
    """Those settings of ``arguments`` that are fields of a dataclass, as keyword arguments of it."""
    found = {}
    for one in _settings_in(settings):
        if hasattr(arguments, one.field.name):
            value = getattr(arguments, one.field.name)
            found[one.field.name] = tuple(value) if isinstance(value, list) else value
    return found


def read_settings(arguments: argparse.Namespace, settings: type[Settings], /, **values: Any) -> Settings:
    """The dataclass of what was given, and of ``values`` beside it."""
    return settings(**{**given(arguments, settings), **values})


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Parses a whole number of at least ``least``, or from ``least`` to ``most``."""
    expected = f"of at least {least}" if most is None else f"from {least} to {most}"

    def whole(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} given, expected a whole number {expected}")
        return int(text)

    return whole


def _settings_in(settings: type) -> Iterator[_Setting]:
    hints = get_type_hints(settings, include_extras=True)
    for field in fields(settings):
        hint, *extras = get_args(hints[field.name]) if get_origin(hints[field.name]) is not None else (None,)
        flag = next((extra for extra in extras if isinstance(extra, Flag)), None)
        if flag is not None:
            yield _Setting(field, hint, flag)


def _names(one: _Setting) -> list[str]:
    return [one.option] if one.flag.alias is None else [one.option, f"--{one.flag.alias}"]


def _options(one: _Setting, default: Any) -> dict[str, Any]:
    """The keyword arguments of ``add_argument``."""
    flag, own = one.flag, one.field.default
    if isinstance(own, bool):
        return {"action": "store_false" if own else "store_true", "default": argparse.SUPPRESS, "help": flag.about}
    shown = own if default is MISSING else default
    is_required = shown is MISSING if flag.is_required is None else flag.is_required
    words = flag.default if default is MISSING else None
    if words is None and shown not in (MISSING, None, ()):
        words = f"{shown:g}" if isinstance(shown, float) else str(shown)
    options = {
        "help": f"{flag.about} (default: {words})" if words else flag.about,
        "default": argparse.SUPPRESS if default is MISSING else default,
        "required": is_required,
        "choices": flag.choices,
        "metavar": flag.metavar or (None if flag.choices else one.option.lstrip("-").upper()),
        **_parsing(one.hint, flag),
    }
    return {name: value for name, value in options.items() if value is not None}


def _parsing(hint: Any, flag: Flag) -> dict[str, Any]:
    """How the words of the command line become a value of type ``hint``."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        many = {"action": "append"} if flag.is_repeated else {"nargs": "+" if ... in kinds else len(kinds)}
        return {**many, **_parsing(kinds[0], flag)}
    if hint is int:
        return {"type": whole_number(flag.least, flag.most)}
    if hint is float:
        return {"type": _float_or_none if flag.is_zero_none else float}
    return {} if flag.check is None else {"type": _checked(flag.check)}


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """Parses a word that ``check`` does not refuse."""

    def checked(text: str) -> str:
        try:
            check(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return checked


def _float_or_none(text: str) -> float | None:
    return float(text) or None


# As argparse calls the type of a value that cannot be read.
_float_or_none.__name__ = "float"


def changed_flag(settings: type, field: str, /, **values: Any) -> Flag:
    """The flag of a field with other ``values``."""
    return replace(next(one.flag for one in _settings_in(settings) if one.field.name == field), **values)
