"""What a setting is on the command line, written beside the setting: ``seed: Annotated[int, Flag("of the draw")] = 0``.

`fastadv.cli.flags` makes the flags of a dataclass from its fields, and the dataclass again from what was given. So a
setting is listed once: a field with a `Flag` is on the command line, and one without is not.
"""

from dataclasses import dataclass
from typing import Callable

LARGEST_SEED = 2**32 - 1
"""the largest seed that numpy takes"""


@dataclass(frozen=True)
class Flag:
    """How one setting is given."""

    about: str
    """for the help; the default is added to it"""
    default: str | None = None
    """the default in words, where the value does not say it; "" says nothing"""
    name: str | None = None
    """where it is not the field's. A field that is True by default is switched off by its flag"""
    alias: str | None = None
    """another spelling"""
    metavar: str | tuple[str, ...] | None = None
    choices: tuple[str, ...] | None = None
    check: Callable[[str], object] | None = None
    """Raises UserError where a word is not allowed; None: any is, or `choices` say which."""
    least: int | None = None
    """Least whole number that is allowed; None: no lower bound."""
    most: int | None = None
    """Largest whole number that is allowed; None: no upper bound."""
    is_zero_none: bool = False
    """0 stands for None: no limit"""
    is_repeated: bool = False
    """Whether the flag is given once for each value of a tuple."""
    is_required: bool | None = None
    """None: exactly where the field has no default"""


def seed_flag(about: str) -> Flag:
    """Of a whole number that numpy takes as a seed."""
    return Flag(about, least=0, most=LARGEST_SEED)


QUOTING = Flag(
    "whether cells of tables may lie in double quotes; auto: in .csv and not in .tsv",
    choices=("auto", "double", "none"),
)
