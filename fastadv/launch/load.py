"""From a YAML file and dotted overrides to a checked ``Config``.

Keys and types come from the dataclasses of ``config.py`` and from the constructor of the objective's class,
so that an option of your own objective is checked, and shown by ``--help``, like any other key.
jsonargparse builds the values and the help; its own error output (usage, several lines, tracebacks) never
reaches the user.
"""

import inspect
import logging
import os
import sys
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Any, Iterable, NamedTuple, Optional, Sequence, get_type_hints

from fastadv.config.schema import RENAMED, Config
from fastadv.config.values import MISFIT, allows_null, conform, describe, read_text, show
from fastadv.config.yaml import read_yaml
from fastadv.errors import UserError
from fastadv.files.small_file import read_small
from fastadv.launch.checks import RULES, check_config, warn

logger = logging.getLogger(__name__)

OPTIONS = "objective_options"
# What an objective's constructor is given by the run.
_GIVEN = {"hidden_size", "classifier"}
_COMMAND_LINE = "on the command line"
# A config with a thousand sources has a tenth of it. YAML is slow to read: this much takes seconds.
_MAX_BYTES = 1 << 18
_MAX_NAME = 500


class Given(NamedTuple):
    """What a user gave for one key."""

    value: Any
    """a YAML value, or the text of an override"""
    origin: str
    """where, in words: ``in <path>`` or ``on the command line``"""

    def __str__(self) -> str:
        # A command line shows what was typed, a file what it means: "3" and 3 differ there.
        is_typed = self.origin == _COMMAND_LINE and 0 < len(self.value) <= 80 and self.value.isprintable()
        return f"{self.value if is_typed else show(self.value)} {self.origin}"


def load_config(path: str | None = None, overrides: Sequence[str] = ()) -> Config:
    """A checked configuration: the defaults, over them the YAML file's values, over them the overrides.

    Args:
        path: a YAML file with any of the keys of ``Config``; None for defaults alone.
        overrides: ``["--train.max_steps=10", "--perturbation.epsilon", "null"]``; the last of a key holds.

    Returns:
        the configuration, with the objective's own options complete.

    Raises:
        UserError: one line that names the key, the value and what is allowed, or the nearest key.
    """
    from_file = {} if path is None else _with_new_names(_read_file(path))
    typed = {key: Given(text, _COMMAND_LINE) for key, text in split_overrides(overrides)}
    given = from_file | _with_new_names(typed)
    hints = _config_hints()
    sections = {key.partition(".")[0] for key in hints if "." in key} | {OPTIONS}
    # Everything but the objective's options first: a misspelt key shows before torch is imported.
    values = {key: _convert(key, entry, hints, sections) for key, entry in given.items() if not _is_option(key)}
    objective = objective_class(values.get("objective", Config.objective))
    option_hints, required = _option_hints(objective)
    options = {key: entry for key, entry in given.items() if _is_option(key)}
    values |= {key: _convert(key, entry, option_hints, sections, objective) for key, entry in options.items()}
    for key in required:
        if key not in values:
            raise UserError(
                f"{key} is missing: {objective.__name__} requires it, expected {describe(option_hints[key])}"
            )
    config = _build(values, objective)
    check_config(config)
    from fastadv.launch.checks_objective import check_objective

    check_objective(config, objective)
    warn(config, is_searched=objective.needs.adversarial is not None)
    return config


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


def split_overrides(arguments: Sequence[str], flags: Iterable[str] = ()) -> list[tuple[str, Optional[str]]]:
    """``--key value`` and ``--key=value`` as (key, text); a key among ``flags`` takes no value and gets None.

    Raises:
        UserError: an argument that is no key, or a key without a value.
    """
    pairs: list[tuple[str, Optional[str]]] = []
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
            raise UserError(f"--{key} has no value: expected --{key} value or --{key}=value")
    return pairs


def _is_key(argument: str) -> bool:
    return argument.startswith("--") and argument[2:3].isalpha()


def _whole(path: str) -> str:
    """A path in quotes and uncut: its end is what tells files apart."""
    return show(path, longest=10_000)


def _read_file(path: str) -> dict[str, Given]:
    """The file's values by dotted key."""
    try:
        text = read_small(os.path.expanduser(path), _MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise UserError(f"--config {_whole(path)}: expected a YAML file that can be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"--config {_whole(path)}: expected a YAML file in UTF-8") from None
    content = read_yaml(text, path)
    if content is None:
        raise UserError(f"--config {_whole(path)}: expected keys and values, the file holds none")
    if not isinstance(content, dict):
        raise UserError(f"--config {_whole(path)}: expected keys and values, the file holds {show(content)}")
    given: dict[str, Given] = {}
    leaves = set(_config_hints())
    for key, value in _flatten(content, "", leaves):
        if key in given:
            raise UserError(f"{path}: the key {key} is given twice, nested and dotted")
        given[key] = Given(value, f"in {path}")
    return given


def _flatten(content: dict, prefix: str, leaves: set[str]) -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        key = f"{prefix}{name if isinstance(name, str) else show(name)}"
        if isinstance(value, dict) and key not in leaves and not (_is_option(key) and key != OPTIONS):
            yield from _flatten(value, f"{key}.", leaves)
        else:
            yield key, value


def _is_option(key: str) -> bool:
    return key.startswith(f"{OPTIONS}.")


def _config_hints() -> dict[str, Any]:
    """Type by dotted key of everything in ``Config`` but the objective's options."""
    hints = {}
    for name, hint in get_type_hints(Config).items():
        if is_dataclass(hint):
            hints |= {f"{name}.{inner}": inner_hint for inner, inner_hint in get_type_hints(hint).items()}
        elif name != OPTIONS:
            hints[name] = hint
    return hints


def _convert(
    key: str, entry: Given, hints: dict[str, Any], sections: set[str], objective: Optional[type] = None
) -> Any:
    if key in sections:
        raise UserError(f"{key} = {entry}: expected a section of keys, such as {key}.<name>")
    if key not in hints:
        raise _unknown(key, entry, hints, objective)
    hint = hints[key]
    value = read_text(entry.value, hint) if entry.origin == _COMMAND_LINE else entry.value
    fit = conform(value, hint)
    if fit is MISFIT:
        allowed = RULES[key][1] if key in RULES else describe(hint)
        if key in RULES and allows_null(hint):
            allowed += ", or null"
        raise UserError(f"{key} = {entry}: expected {allowed}")
    return fit


def _unknown(key: str, entry: Given, hints: dict[str, Any], objective: Optional[type]) -> UserError:
    owner = "" if objective is None else f" of {objective.__name__}"
    closest = f"nearest is {nearest(key, hints)}" if hints else "it takes no options"
    return UserError(f"{key} = {entry}: no such key{owner}, {closest}")


def nearest(key: str, candidates: Iterable[str]) -> str:
    """The candidate most like ``key``; the last name of a dotted key counts more than its section."""

    def likeness(candidate: str) -> float:
        last = SequenceMatcher(None, key.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
        return 0.6 * last + 0.4 * SequenceMatcher(None, key, candidate).ratio()

    return max(candidates, key=likeness)


def objective_class(name: str) -> type:
    """The class that ``objective`` names; your own may lie in the current folder.

    Raises:
        UserError: no such objective, or its module does not import.
    """
    if len(name) > _MAX_NAME:
        raise UserError(f"objective = {show(name)}: expected a shipped name, or my_package.my_module:MyObjective")
    if ":" in name and os.getcwd() not in sys.path and "" not in sys.path:
        # Last, so that no file of the user's shadows a library.
        sys.path.append(os.getcwd())
    from fastadv.objectives import resolve_objective

    try:
        return resolve_objective(name)
    except UserError as error:
        raise UserError(" ".join(str(error).split())) from error


def _option_hints(objective: type) -> tuple[dict[str, Any], list[str]]:
    """Type by dotted key of the options that ``objective``'s constructor takes, and those without a default.

    A constructor with ``**options`` hands them to its base, whose options are then taken too.
    """
    hints: dict[str, Any] = {}
    required = []
    for owner in objective.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = inspect.signature(owner.__init__).parameters.values()
        try:
            types = get_type_hints(owner.__init__)
        except Exception:  # whatever evaluating somebody's annotations may raise
            types = {}
        for parameter in parameters:
            key = f"{OPTIONS}.{parameter.name}"
            is_named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if not is_named or parameter.name in {"self", *_GIVEN} or key in hints:
                continue
            hints[key] = types.get(parameter.name, Any)
            if parameter.default is parameter.empty:
                required.append(key)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return hints, required


def check_option_names(objective: type, options: dict[str, Any]) -> None:
    """Refuses an option that ``objective``'s constructor does not take, in a config that was not parsed.

    Raises:
        UserError: naming the option and those there are.
    """
    allowed = [key.partition(".")[2] for key in _option_hints(objective)[0]]
    for name in options:
        if name not in allowed:
            raise UserError(
                f"{OPTIONS}.{name}: {objective.__name__} has no such option; it has {', '.join(sorted(allowed))}"
            )


def build_parser(objective: type, has_help: bool = False, **settings):
    """A jsonargparse parser of all keys and of ``objective``'s options; its errors are UserErrors, one line.

    Args:
        has_help: show the docstring under each field; finding them in the source takes most of the time.
        settings: those of ``argparse.ArgumentParser``.
    """
    import jsonargparse

    class Parser(jsonargparse.ArgumentParser):
        def error(self, message, *_):
            raise UserError(" ".join(str(message).split()))

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=has_help)
    parser = Parser(**settings)
    parser.add_class_arguments(Config, None, skip={OPTIONS})
    parser.add_class_arguments(
        objective, OPTIONS, skip=_GIVEN & set(inspect.signature(objective).parameters), instantiate=False
    )
    return parser


_parser_of = lru_cache(maxsize=8)(build_parser)


def _build(values: dict[str, Any], objective: type) -> Config:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        section, dot, name = key.partition(".")
        if dot:
            nested.setdefault(section, {})[name] = value
        else:
            nested[section] = value
    given = nested.get(OPTIONS, {})
    parser = _parser_of(objective)
    built = parser.instantiate(parser.parse_object(nested))
    taken = built.get(OPTIONS)
    options = {} if taken is None else taken.as_dict()
    for name, value in given.items():
        if not _is_plain(options[name]):
            kind = type(options[name]).__name__
            raise UserError(f"{OPTIONS}.{name} = {show(value)}: options of type {kind} cannot be configured")
    # A default that YAML has no word for stays the class's own business.
    plain = {name: value for name, value in options.items() if _is_plain(value)}
    return Config(**{f.name: built[f.name] for f in fields(Config) if f.name != OPTIONS}, objective_options=plain)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    return (
        value is None
        or type(value) in (bool, int, float, str)
        or (isinstance(value, list) and all(map(_is_plain, value)))
    )
