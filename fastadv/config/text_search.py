"""Settings of the search over texts: which edits are proposed for a sentence, and which proposal becomes its view."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Interval, Predicate, doc

from fastadv.config.bounds import Name


def _are_bounds(value: list[float]) -> bool:
    return len(value) == 2 and 0 <= value[0] <= value[1] <= 1


Names = Annotated[list[Name], Predicate(lambda value: len(set(value)) == len(value)), doc("a list of different names")]
ShareBounds = Annotated[list[float], Predicate(_are_bounds), doc("a list of two numbers in [0, 1], the lower first")]


@dataclass
class TextSearchConfig:
    """The search for the worst of a text's own edited copies (METHODS 8)."""

    edits: Names = field(default_factory=list)
    """edits that keep what a sentence says, which its proposals are made by: typos, looks, spaces, synonyms (of
    data.word_sets), a single one such as swap, or your own as my_package.my_module:function (docs/text-search.md);
    empty: no text view"""
    num_proposals: Annotated[int, Interval(ge=1, le=256)] = 8
    """K, proposals of each sentence, drawn again each epoch"""
    choose: Literal["worst", "random", "gradient"] = "worst"
    """worst: all proposals pass once without a graph, and the one of the highest inner loss becomes the text view;
    random: the first; gradient: the words where the inner loss has its largest gradient are edited"""
    word_share: ShareBounds = field(default_factory=lambda: [0.1, 0.5])
    """bounds of the share of words that a proposal edits, drawn for each proposal; one word at least"""
    min_letters: Annotated[int, Ge(1)] = 4
    """words of fewer letters stay as they are"""
    protected: list[Name] = field(default_factory=list)
    """regular expressions of what stays as it is, besides addresses, mark-up and whatever has a digit"""
    keyboard: Literal["qwerty", "qwertz", "azerty", "dvorak", "jcuken"] = "qwerty"
    """the keyboard whose neighbouring keys the edit neighbour hits"""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """compute type of the passes that compare proposals; auto: bf16 where the machine has fast units for it (AMX, a
    GPU), else as engine.precision says"""
    flips: Names = field(default_factory=list)
    """edits that change what a sentence says: flips (antonym of data.word_sets, negation, number, name), one of them,
    or your own; for an objective that pushes such texts off"""
    num_flips: Annotated[int, Interval(ge=1, le=256)] = 4
    """flipped copies of each sentence, of which the one nearest to it is pushed off"""
