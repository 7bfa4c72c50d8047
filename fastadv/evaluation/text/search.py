"""What every attack on a text has in common: questions that are counted and limited, a goal, and what was found.

Success is told by the goal. ``untargeted``: the prediction is no longer the true class, which the change of the text
has left as it was (a fickle example). ``remain``: the prediction is still the class that was true before the change,
which has made another one true (an obstinate example, BAT section 2.2).
"""

from dataclasses import dataclass, field
from typing import List, Optional, Protocol, Sequence, Tuple

import numpy as np

from fastadv.config.text_attack import UNTARGETED
from fastadv.evaluation.victims.text import TextVictim

Texts = Tuple[str, ...]
"""one text, or the two of a pair"""


@dataclass
class TextSearch:
    """One attack on one text while it goes on."""

    texts: Texts
    label: int
    """the true class"""
    goal: str = UNTARGETED
    max_queries: Optional[int] = None
    before: Optional[np.ndarray] = None
    """(C,) probabilities of the text as given; None until it was asked"""
    found: Optional[Texts] = None
    """texts that reach the goal"""
    after: Optional[np.ndarray] = None
    """(C,) of those"""
    num_queries: int = 0
    is_over: bool = field(default=False)
    """no query is left"""

    def is_reached(self, probabilities: np.ndarray) -> np.ndarray:
        """(N,) bool, of probabilities (N, C): does the goal hold for a changed text?"""
        return (probabilities.argmax(axis=1) != self.label) == (self.goal == UNTARGETED)

    @property
    def is_right_before(self) -> bool:
        """Whether there is anything to attack."""
        return self.before is not None and int(self.before.argmax()) == self.label


class TextAttacker(Protocol):
    """An attack on one text."""

    def __call__(self, search: TextSearch) -> None:
        """Runs it; everything found is written into ``search``."""


class Questions:
    """The victim as one attack asks it: counted, and no further than the limit."""

    def __init__(self, victim: TextVictim, search: TextSearch):
        self._victim, self._search = victim, search

    def __call__(self, candidates: Sequence[Texts]) -> np.ndarray:
        """Probabilities (N', C) of the first candidates: of all of them, unless the queries run out on the way."""
        search = self._search
        if search.max_queries is not None:
            candidates = candidates[: search.max_queries - search.num_queries]
        search.num_queries += len(candidates)
        search.is_over = search.num_queries == search.max_queries
        if not candidates:
            return np.empty((0, len(self._victim.names)))
        return self._victim([texts[0] if len(texts) == 1 else texts for texts in candidates]).numpy()

    def first(self) -> bool:
        """Asks for the text as given. Returns whether it is worth attacking: right before."""
        self._search.before = self([self._search.texts])[0]
        return self._search.is_right_before

    def try_all(self, candidates: Sequence[Texts]) -> Tuple[List[Texts], np.ndarray]:
        """Asks for all; where any reaches the goal, the one that reaches it most clearly is found.

        Returns:
            those that were asked for, and 1 - the probability of the true class (N',) of each.
        """
        search, asked = self._search, self(candidates)
        scores = 1 - asked[:, search.label]
        is_reached = search.is_reached(asked)
        if is_reached.any():
            # Untargeted: the least of the true class; remain: the most of it.
            ranked = np.where(is_reached, scores if search.goal == UNTARGETED else -scores, -np.inf)
            best = int(ranked.argmax())
            search.found, search.after = candidates[best], asked[best]
        return list(candidates[: len(asked)]), scores
