"""From a YAML file and dotted overrides to a checked ``Config``.

Keys, types and bounds come from the dataclasses of ``fastadv.config.schema`` and from the constructor of the
objective's class, so that an option of your own objective is checked, and shown by ``--help``, like any other key.
"""

import logging
import os
from difflib import SequenceMatcher
from itertools import chain
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from fastadv.config.schema import RENAMED, SECTIONS, Config, field_types
from fastadv.config.values import MISFIT, conform, describe, read_text, show
from fastadv.config.yaml import read_yaml
from fastadv.errors import UserError
from fastadv.files.small_file import read_small
from fastadv.launch.checks import check_config, warn

logger = logging.getLogger(__name__)

OPTIONS = "objective_options"
_COMMAND_LINE = "on the command line"
# A config with a thousand sources has a tenth of it. YAML is slow to read: this much takes seconds.
_MAX_BYTES = 1 << 18


class Given(NamedTuple):
    """What a user gave for one key."""

    value: Any
    """a YAML value, or the text of an override"""
    origin: str
    """where, in words: ``in <path>`` or ``on the command line``"""

    def __str__(self) -> str:
        # A command line shows what was typed, a file what it means: "3" and 3 differ there.
        is_typed = self.origin == _COMMAND_LINE and 0 < len(self.value) <= 80 and self.value.isprintable()
        return f"{self.value if is_typed else show(self.value)} {self.origin}".rstrip()


def load_config(path: str | Sequence[str] | None = None, overrides: Sequence[str] = ()) -> Config:
    """A checked configuration: the defaults, over them the YAML file's values, over them the overrides.

    Args:
        path: a YAML file with any of the keys of ``Config``, or several, of which the last that has a key holds; None
            for defaults alone.
        overrides: ``["--train.max_steps=10", "--perturbation.epsilon", "null"]``; the last of a key holds.

    Returns:
        the configuration, with the objective's own options complete.

    Raises:
        UserError: one line that names the key, the value and what is allowed, or the nearest key.
    """
    paths = [] if path is None else [path] if isinstance(path, str) else path
    return build_config(paths, dict(split_overrides(overrides)))


def build_config(paths: Sequence[str], overrides: Mapping[str, str], other_names: Iterable[str] = ()) -> Config:
    """``load_config`` with a list of files and overrides by key.

    Args:
        other_names: what else the command line takes, one of which a key that does not exist may have meant.
    """
    types, typed = field_types(), {key: Given(text, _COMMAND_LINE) for key, text in overrides.items()}
    # Everything but the objective's options first: a misspelt key shows before torch is imported.
    options: dict[str, Given] = {}
    stages: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    # A file's mistake is told of although a later file or the command line sets the key again.
    for key, entry in chain(*(_with_new_names(layer).items() for layer in (*map(_read_file, paths), typed))):
        section, _, name = key.rpartition(".")
        if key in SECTIONS or key == OPTIONS:
            raise UserError(f"{key} = {entry}: expected a section of keys, such as {key}.<name>")
        if _is_option(key):
            options[key] = entry
            continue
        if key not in types:
            raise UserError(f"{key} = {entry}: no such key, nearest is {nearest(key, [*types, *other_names])}")
        stages[section][name] = _convert(key, entry, types[key])
    from fastadv.launch.checks_objective import check_objective
    from fastadv.objectives import resolve_objective

    for section in reversed(SECTIONS):
        parent, _, name = section.rpartition(".")
        stages[parent][name] = SECTIONS[section](**stages[section])
    config = Config(**stages[""])
    objective = resolve_objective(config.objective)
    config.objective_options = complete_options(objective, options)
    check_config(config)
    check_objective(config, objective)
    warn(config, is_searched=objective.needs.adversarial is not None)
    return config


def check_options(objective: type, options: Mapping[str, Any]) -> None:
    """Refuses an option that ``objective``'s constructor does not take, or that is out of its bounds.

    Raises:
        UserError: naming the option, its value, and what is allowed or the nearest option.
    """
    complete_options(objective, {f"{OPTIONS}.{name}": Given(value, "") for name, value in options.items()})


def complete_options(objective: type, given: Mapping[str, Given]) -> dict[str, Any]:
    """The options of ``objective`` by name: those given by dotted key, and else the defaults of its constructor."""
    from fastadv.objectives.options import constructor_options

    taken = {f"{OPTIONS}.{name}": option for name, option in constructor_options(objective).items()}
    for key, entry in given.items():
        if key not in taken:
            closest = f"nearest is {nearest(key, taken)}" if taken else "it takes no options"
            raise UserError(f"{key} = {entry}: no such key of {objective.__name__}, {closest}")
    values = {}
    for key, option in taken.items():
        if key in given:
            values[option.name] = _convert(key, given[key], option.annotation)
        elif option.default is option.empty:
            allowed = describe(option.annotation)
            raise UserError(f"{key} is missing: {objective.__name__} requires it, expected {allowed}")
        # A default that YAML has no word for stays the class's own business.
        elif _is_plain(option.default):
            values[option.name] = option.default
    return values


def _convert(key: str, entry: Given, hint: Any) -> Any:
    value = read_text(entry.value, hint) if entry.origin == _COMMAND_LINE else entry.value
    fit = conform(value, hint)
    if fit is MISFIT:
        raise UserError(f"{key} = {entry}: expected {describe(hint)}")
    return fit


def _with_new_names(given: dict[str, Given]) -> dict[str, Given]:
    """``given`` under today's names of keys; keys under an old name are told of in one line."""
    old = [key for key in given if key in RENAMED]
    for key in old:
        if RENAMED[key] in given:
            raise UserError(f"{key} = {given[key]}: expected {RENAMED[key]} alone, which is its new name")
    if old:
        changes = ", ".join(f"{key} is now {RENAMED[key]}" for key in old)
        logger.warning("%s; the old name still loads (%s)", changes, given[old[0]].origin)
    return {RENAMED.get(key, key): entry for key, entry in given.items()}


def split_overrides(
    arguments: Sequence[str], flags: Iterable[str] = (), other_names: Iterable[str] = ()
) -> list[tuple[str, str | None]]:
    """``--key value`` and ``--key=value`` as (key, text).

    Args:
        flags: keys that take no value; their text is None.
        other_names: keys with a value besides those of a configuration.

    Raises:
        UserError: an argument that is no key, or a key without a value.
    """
    pairs: list[tuple[str, str | None]] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        key, equals, text = argument.removeprefix("--").partition("=")
        if not key or not argument.startswith("--"):
            raise UserError(f"argument {show(argument)}: expected --key value, with a key like train.max_steps")
        if key in flags:
            if equals:
                raise UserError(f"--{key} = {show(text)}: expected --{key} alone, it takes no value")
            pairs.append((key, None))
        elif equals:
            pairs.append((key, text))
        elif waiting and not _is_key(waiting[0]):
            pairs.append((key, waiting.pop(0)))
        else:
            names = [*field_types(), *RENAMED, *flags, *other_names]
            if key not in (*names, *SECTIONS) and not _is_option(key):
                raise UserError(f"--{key}: no such key, nearest is --{nearest(key, names)}")
            raise UserError(f"--{key} has no value: expected --{key} value or --{key}=value")
    return pairs


def _is_key(argument: str) -> bool:
    return argument.startswith("--") and argument[2:3].isalpha()


def _is_option(key: str) -> bool:
    return key.startswith(f"{OPTIONS}.")


def _read_file(path: str) -> dict[str, Given]:
    """The file's values by dotted key."""
    # Uncut: a path's end is what tells files apart.
    name = f"--config {show(path, longest=10_000)}"
    try:
        text = read_small(os.path.expanduser(path), _MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"{name}: expected a YAML file that can be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{name}: expected a YAML file in UTF-8") from None
    content = read_yaml(text, path)
    if not isinstance(content, dict):
        held = "none" if content is None else show(content)
        raise UserError(f"{name}: expected keys and values, the file holds {held}")
    given: dict[str, Given] = {}
    for key, value in _flatten(content, "", {*field_types(), *RENAMED}):
        if key in given:
            raise UserError(f"{path}: the key {key} is given twice, nested and dotted")
        given[key] = Given(value, f"in {path}")
    return given


def _flatten(content: dict, prefix: str, leaves: set[str]) -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        key = f"{prefix}{name if isinstance(name, str) else show(name)}"
        if isinstance(value, dict) and key not in leaves and not _is_option(key):
            yield from _flatten(value, f"{key}.", leaves)
        else:
            yield key, value


def nearest(key: str, candidates: Iterable[str]) -> str:
    """The candidate most like ``key``; the last name of a dotted key counts more than its section."""

    def likeness(candidate: str) -> float:
        last = SequenceMatcher(None, key.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
        return 0.6 * last + 0.4 * SequenceMatcher(None, key, candidate).ratio()

    return max(candidates, key=likeness)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (bool, int, float, str)
