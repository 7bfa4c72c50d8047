"""TextAttack's recipes as attacks of `fastadv.evaluation.text.attack`: built offline, limited, one text at a time."""

import importlib.metadata
import math
import traceback
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from fastadv.config.text_attack import PAIR_ROLES
from fastadv.evaluation.recipes.text_recipes import Resources, build_recipe, candidate_counts
from fastadv.evaluation.text.search import TextSearch
from fastadv.evaluation.victims.text import TextVictim

_WHOLE = 10**9
"""texts that TextAttack asks for at once: the victim makes batches of its own"""
_NUM_COUNTED = 5
_MAX_WORDS_COUNTED = 15
"""of each of the first texts: the sentence encoder judges every change of every word"""


@dataclass(frozen=True)
class RecipeAttack:
    """A recipe on a victim."""

    recipe: str
    attack: Any
    """a ``textattack.Attack``"""
    victim: TextVictim
    roles: Tuple[str, str] = PAIR_ROLES
    """what the two texts of a pair are called: TextFooler and A2T leave a premise beside a hypothesis as it is"""

    @classmethod
    def build(
        cls, recipe: str, victim: TextVictim, resources: Resources, roles: Tuple[str, str] = PAIR_ROLES
    ) -> "RecipeAttack":
        """UserError as `build_recipe`."""
        attack = build_recipe(recipe, victim, resources)
        # Not before: that tells TextAttack where its data lie, which it looks for when it is imported.
        from textattack.constraints.pre_transformation import InputColumnModification

        attack.goal_function.batch_size = _WHOLE
        for constraint in attack.pre_transformation_constraints:
            # It knows these columns in one order alone.
            if isinstance(constraint, InputColumnModification) and {*constraint.matching_column_labels} == {*roles}:
                constraint.matching_column_labels = list(roles)
        return cls(recipe, attack, victim, roles)

    def __call__(self, search: TextSearch) -> None:
        from textattack.attack_results import SuccessfulAttackResult
        from textattack.shared import AttackedText

        if any(AttackedText.SPLIT_TOKEN in text for text in search.texts):
            raise ValueError(f"the text holds {AttackedText.SPLIT_TOKEN}, by which TextAttack tells two texts apart")
        goal = self.attack.goal_function
        # An answer, or a change that was judged, must not depend on the text that was attacked before.
        self.attack.clear_cache()
        goal.query_budget = math.inf if search.max_queries is None else search.max_queries
        goal.num_queries = 0
        search.before = self.victim([search.texts[0] if len(search.texts) == 1 else search.texts])[0].numpy()
        given: Any = search.texts[0] if len(search.texts) == 1 else OrderedDict(zip(self.roles, search.texts))
        try:
            result = self.attack.attack(given, search.label)
        finally:
            search.num_queries = goal.num_queries
            search.is_over = search.num_queries >= goal.query_budget
        if isinstance(result, SuccessfulAttackResult):
            end = result.perturbed_result
            changed = end.attacked_text.tokenizer_input
            search.found = (changed,) if isinstance(changed, str) else tuple(changed)
            search.after = np.asarray(end.raw_output)

    def facts(self, texts: Sequence[Sequence[str]], max_seconds: Optional[float] = None) -> Dict[str, Any]:
        """TextAttack's version, the recipe's parts, and how many words it has for a word of the first few texts: of as
        many words as are counted in ``max_seconds``."""
        joined = [" ".join(" ".join(of_text).split()[:_MAX_WORDS_COUNTED]) for of_text in texts[:_NUM_COUNTED]]
        try:
            counts: Any = candidate_counts(self.attack, joined, max_seconds)
        except Exception:
            # A text that no word can be changed in is an error of its own row, not of the run.
            traceback.print_exc()
            counts = None
        return {
            "name": self.recipe,
            "textattack": importlib.metadata.version("textattack"),
            "parts": repr(self.attack),
            "num_texts_counted": len(joined),
            "candidates": counts,
        }
