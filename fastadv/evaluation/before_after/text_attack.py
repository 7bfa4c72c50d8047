"""DeepWordBug in the table before → after: it mistypes words of labelled sentences until the probe on the model's
frozen vectors is wrong.

A success rate is of the texts that the model's own probe is right on before the attack; texts on which the attack ended
in an error do not count. Both models are resampled on all attacked texts alike.

Shapes: ``M`` attacked texts.
"""

import os
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
import torch

from fastadv.config.schema import EvaluationConfig
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.sources.demo import SENTIMENTS
from fastadv.errors import UserError
from fastadv.evaluation.before_after.embedding_attack import evaluation_mode
from fastadv.evaluation.before_after.probe import Probe
from fastadv.evaluation.before_after.rows import table_row
from fastadv.evaluation.intervals import known_mean_statistic, resample_counts
from fastadv.evaluation.recipes.textattack_offline import load_textattack
from fastadv.evaluation.text.attack import LabelledText, TextAttackSettings, check_settings
from fastadv.evaluation.text.rows import ERROR, FAILED, SUCCEEDED
from fastadv.evaluation.text.workers import AttackJob, attack_here
from fastadv.evaluation.victims.probe import check_pooling, linear_classifier

RECIPE, NAME = "deepwordbug", "DeepWordBug"
_SUCCEEDS = f"{NAME} succeeds"
LOG = f"{RECIPE}.log"
WORDS = (1, 2, 3)
"""caps on the words changed at which successes are counted, besides any number"""
_RIGHT, _CHANGED = f"{RECIPE}_right", f"{RECIPE}_words"


def why_not_attacked(cfg: EvaluationConfig, pooling: str) -> Optional[str]:
    """Why no text can be attacked here, in one line; None where nothing is in the way, or no attack is asked for."""
    if not cfg.num_attacked_texts:
        return None
    try:
        check_pooling(pooling)
        check_settings(_settings(cfg))
    except UserError as error:
        return str(error)
    return None


def as_far_as_can_be(cfg: EvaluationConfig, pooling: str) -> Tuple[EvaluationConfig, List[dict]]:
    """``cfg`` without an attack that cannot be run here, and what the table lacks then: its ``label`` and ``why``."""
    why = why_not_attacked(cfg, pooling)
    if cfg.num_attacked_texts and why is None:
        try:
            # It may be installed, and yet not fit what it needs.
            load_textattack()
        except UserError as error:
            why = str(error)
    if why is None:
        return cfg, []
    return replace(cfg, num_attacked_texts=0), [{"label": _SUCCEEDS, "why": why}]


def attack_probe(
    encoder,
    probe: Probe,
    texts: Sequence[str],
    labels: Sequence[int],
    cfg: EvaluationConfig,
    log: Path = Path(os.devnull),
    on_text: Callable[[], object] = lambda: None,
) -> Dict[str, np.ndarray]:
    """Attacks every text.

    Args:
        log: what the attack prints goes to its end.
        on_text: is called after each text.

    Returns:
        ``deepwordbug_right`` (M,), whether the probe is right before the attack; ``deepwordbug_words`` (M,), how many
        words were changed when it no longer was: inf where the attack failed, NaN where the probe was wrong before.
        Both are NaN where the attack ended in an error.

    Raises:
        UserError: TextAttack, or its data, are not there (`as_far_as_can_be`).
    """
    given = [LabelledText(row, (text,), int(label)) for row, (text, label) in enumerate(zip(texts, labels))]
    right, changed = [], []
    with evaluation_mode(encoder):
        weight, bias = probe.weight[None], np.array([probe.bias])
        classifier = linear_classifier(encoder, weight, bias, LabelMap(SENTIMENTS), present=[0, 1])
        job = AttackJob("", _settings(cfg), log, num_threads=torch.get_num_threads())
        for row in attack_here(job, given, classifier):
            right.append(np.nan if row.outcome == ERROR else float(row.is_attacked))
            changed.append({SUCCEEDED: row.num_words_changed, FAILED: np.inf}.get(row.outcome, np.nan))
            on_text()
    return {_RIGHT: np.array(right), _CHANGED: np.array(changed, dtype=np.float64)}


def num_attacked(values: Mapping[str, np.ndarray]) -> int:
    """Texts that `attack_probe` was given."""
    return len(values.get(_RIGHT, ()))


def attack_rows(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], seed: int
) -> Tuple[List[dict], List[dict]]:
    """Rows of the table, of what `attack_probe` gave among other values: success at each cap on the words changed
    (``max_words``; None: any number), and whether the probe was right before the attack; and what the table lacks
    (`as_far_as_can_be`) where no text counts."""
    if _RIGHT not in before:
        return [], []
    sides = {"before": before, "after": after}
    for side, values in sides.items():
        if np.isnan(values[_CHANGED]).all():
            why = f"{side} training the probe is right on none of the {len(values[_CHANGED])} texts, or all were errors"
            return [], [{"label": _SUCCEEDS, "why": why}]
    counts = resample_counts(len(before[_RIGHT]), seed=seed)

    def row(key: str, label: str, better: str, values_of: Callable[[dict], np.ndarray], **about) -> dict:
        statistics = tuple(known_mean_statistic(values_of(values)) for values in sides.values())
        return table_row(f"{RECIPE}@{key}", label, better, statistics, counts, **about)

    caps = {f"≤ {words} word{'s' * (words > 1)}": words for words in WORDS} | {"any number of words": None}
    rows = [
        row(str(words or "any"), f"{_SUCCEEDS}, {label}", "lower", partial(_is_fooled, most=words), max_words=words)
        for label, words in caps.items()
    ]
    return [*rows, row("0", f"probe before {NAME}", "higher", itemgetter(_RIGHT))], []


def _is_fooled(values: Mapping[str, np.ndarray], most: Optional[int]) -> np.ndarray:
    """(M,) 1 where at most so many changed words were enough, else 0; NaN where nothing was attacked."""
    changed = values[_CHANGED]
    return np.where(np.isnan(changed), np.nan, np.isfinite(changed) if most is None else changed <= most)


def attack_warnings(which: str, values: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Errors are told, since they make a rate one of fewer texts."""
    num_texts, num_errors = num_attacked(values), int(np.isnan(values.get(_RIGHT, np.zeros(0))).sum())
    if num_errors:
        yield f"{which}: {NAME} ended in an error on {num_errors} of {num_texts} texts, which do not count ({LOG})"


def _settings(cfg: EvaluationConfig) -> TextAttackSettings:
    # Under a limit of time the rows would depend on the machine.
    return TextAttackSettings(RECIPE, max_seconds=None, seed=cfg.seed)
