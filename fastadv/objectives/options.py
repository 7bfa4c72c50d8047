"""The options of an objective: what its constructor takes by name, with types and bounds as annotations."""

import inspect
from functools import lru_cache
from typing import Any, Mapping, get_type_hints

from fastadv.config.values import MISFIT, conform, describe, show
from fastadv.errors import UserError

_GIVEN = {"hidden_size", "classifier"}
"""arguments that the run gives, not the config"""


@lru_cache(maxsize=64)
def constructor_options(objective: type) -> Mapping[str, inspect.Parameter]:
    """The options that ``objective``'s constructor takes, by name, each with its type and bounds as annotation.

    A constructor with ``**options`` hands them to its base, whose options are then taken too.
    """
    options: dict[str, inspect.Parameter] = {}
    for owner in objective.__mro__:
        if "__init__" not in vars(owner):
            continue
        parameters = inspect.signature(owner.__init__).parameters.values()
        try:
            types = get_type_hints(owner.__init__, include_extras=True)
        except Exception:  # whatever evaluating somebody's annotations may raise
            types = {}
        for parameter in parameters:
            is_named = parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            if is_named and parameter.name not in {"self", *_GIVEN, *options}:
                options[parameter.name] = parameter.replace(annotation=types.get(parameter.name, Any))
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return options


def check_bounds(objective: type, given: Mapping[str, Any]) -> None:
    """Refuses a value that the annotation of its option does not allow; other names are the constructor's business.

    Raises:
        UserError: naming the option, its value and what is allowed.
    """
    taken = constructor_options(objective)
    for name, value in given.items():
        if name in taken and conform(value, taken[name].annotation) is MISFIT:
            allowed = describe(taken[name].annotation)
            raise UserError(f"objective_options.{name} = {show(value)}: expected {allowed}")
