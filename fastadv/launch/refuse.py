"""One line for a value that cannot be meant: the key, the value, and what is expected in its place."""

from typing import NoReturn

from fastadv.config.schema import Config, field_types, value_of
from fastadv.config.values import kinds, show
from fastadv.errors import UserError


def refuse(config: Config, key: str, expected: str) -> NoReturn:
    """Raises the UserError ``key = value: expected ...``; a choice is shown as a bare word, text in quotes."""
    value = value_of(config, key)
    is_choice = isinstance(value, str) and str not in kinds(field_types()[key])
    raise UserError(f"{key} = {value if is_choice else show(value)}: expected {expected}")


def refuse_first(config: Config, contradictions: list[tuple[bool, str, str]]) -> None:
    """Refuses the first key that contradicts another.

    Args:
        contradictions: (whether it is one, the key to blame, what is expected in its place).
    """
    for is_one, key, expected in contradictions:
        if is_one:
            refuse(config, key, expected)
