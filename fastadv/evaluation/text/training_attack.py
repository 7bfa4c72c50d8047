"""An attack on training texts by the model that is being trained, until enough of them fool it (A2T, METHODS 4).

The attack is one of ``fastadv attack --recipe``; here it goes on through texts in random order and stops once a share
of the training set is fooled. Each text is attacked as it would be alone (`fastadv.evaluation.text.attack`).
"""

import logging
import math
import sys
from contextlib import closing
from pathlib import Path
from typing import Dict, Sequence

import torch

from fastadv.config.text_attack import PAIR_ROLES, TextAttackSettings
from fastadv.data.variants.text_pairs import Texts
from fastadv.errors import UserError
from fastadv.evaluation.text.attack import LabelledText, check_settings
from fastadv.evaluation.text.rows import ERROR, SUCCEEDED
from fastadv.evaluation.text.workers import AttackJob, attack_here
from fastadv.files.progress import Bar
from fastadv.objectives.needs import EpochAttack

logger = logging.getLogger(__name__)


def settings_of(plan: EpochAttack, seed: int = 0) -> TextAttackSettings:
    """UserError for a recipe that does not exist, or a file that it needs and the plan does not name."""
    return TextAttackSettings(
        recipe=plan.recipe,
        max_queries=plan.max_queries,
        seed=seed,
        word_vectors=plan.word_vectors,
        attack_data=plan.attack_data,
    )


def check_attack(plan: EpochAttack) -> None:
    """UserError for what is missing on the disk, or in the environment: an epoch before the attack is a long wait."""
    try:
        check_settings(settings_of(plan))
    except UserError as error:
        # Options are named as the command line of the attack has them.
        raise UserError(f"the attack at epochs' starts: {str(error).replace('--', 'objective_options.')}") from error


def find_texts(
    plan: EpochAttack,
    model,
    texts: Sequence[Texts],
    labels: Sequence[str],
    order: Sequence[int],
    seed: int,
    log: Path,
    roles: tuple[str, str] = PAIR_ROLES,
) -> Dict[Texts, Texts]:
    """What the attack put in the place of those texts that it fooled the model on.

    Args:
        plan: recipe, limits, and the share of ``texts`` that is enough.
        model: a `fastadv.encoder.classifier.text_classifier.Classifier` without dropout.
        labels: the names of the texts' classes.
        order: in which texts are attacked; a text that occurs twice is attacked once.
        log: what the recipe prints goes to its end.
        roles: of the two texts of a pair (`fastadv.evaluation.recipes.recipe_attack.RecipeAttack`).

    Raises:
        UserError: the attack cannot be built, or every text that it tried ended in an error.
    """
    num_wanted = math.ceil(plan.share * len(texts))
    numbers = model.label_map.label2id
    first = {}
    for row in map(int, order):
        first.setdefault(tuple(texts[row]), LabelledText(row, tuple(texts[row]), numbers[labels[row]]))
    job = AttackJob("", settings_of(plan, seed), log, num_threads=torch.get_num_threads(), roles=roles)
    found: Dict[Texts, Texts] = {}
    num_tried = num_errors = 0
    bar = Bar(total=num_wanted, desc=plan.recipe, unit="text", file=sys.stderr, leave=False)
    with bar, closing(attack_here(job, list(first.values()), model)) as rows:
        for row in rows:
            num_tried += 1
            num_errors += row.outcome == ERROR
            if row.outcome == SUCCEEDED:
                found[row.texts] = row.texts_adversarial
                bar.update()
            bar.set_postfix_str(f"{num_tried:,} attacked", refresh=False)
            if len(found) >= num_wanted:
                break
    if num_errors and num_errors == num_tried:
        raise UserError(f"the attack {plan.recipe} ended in an error on all {num_tried:,} texts that it tried: {log}")
    logger.info(
        "%s fooled the model on %s of %s training texts; %s were wanted",
        plan.recipe,
        f"{len(found):,}",
        f"{num_tried:,} attacked",
        f"{num_wanted:,}",
    )
    if num_errors:
        logger.warning("%s ended in an error on %s texts: %s", plan.recipe, f"{num_errors:,}", log)
    return found
