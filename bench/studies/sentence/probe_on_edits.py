"""A probe on frozen vectors under edits that no attack chose: what an arm gains on the edits that it trained on, and on
others."""

from typing import Dict, List, Optional, Tuple

import numpy as np

from fastadv.data.edits.kinds import make_edits
from fastadv.data.variants.word_sets import WordSets
from fastadv.evaluation.robustness.edited import Variant, copies_of
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.rows import set_name, share_measured
from fastadv.evaluation.suite.schema import Quantity
from fastadv.evaluation.text.attacked_data import AttackedData
from fastadv.evaluation.victims.probe import draw_train, probe_victim

EDITS: Dict[str, Tuple[str, ...]] = {
    "typos": ("typos",),
    "swap and insert": ("swap", "insert"),
    "drop, neighbour and double": ("drop", "neighbour", "double"),
    "looks": ("looks",),
    "spaces": ("spaces",),
    "synonyms": ("synonyms",),
}
"""what is measured → edits, of which every edited word draws one; synonyms where word sets are given"""
CLEAN = "accuracy"


def under(edits: str) -> str:
    """The metric of the probe under ``edits`` of `EDITS`."""
    return f"accuracy, {edits}"


def probe_on_edits(
    encoder, source: str, num_texts: int, share: float, word_sets: Optional[str], model: str, seed: int = 0
) -> List[Measured]:
    """Accuracy of a logistic regression on the encoder's vectors, fitted on clean texts: on others, clean and edited.

    Args:
        source: labelled texts, of which ``num_texts`` are classified and others fit the probe.
        share: of the words of a text that are edited.
        model: what the values go by.
    """
    labelled = AttackedData(source, max_texts=num_texts, seed=seed)
    data, whole = labelled.read()[0], AttackedData(source, max_texts=None, seed=seed).read()[0]
    probe = probe_victim(encoder, draw_train(whole, data.first, seed=seed))
    sets = None if word_sets is None else WordSets.load(word_sets)

    def measured(metric: str, texts: List[str]) -> Measured:
        predicted = np.asarray(probe.classify_texts(texts)).argmax(axis=1)
        rows = 100.0 * (predicted == np.asarray(data.labels))
        return share_measured(Quantity("probe", set_name(source), metric, None, "%"), model, rows)

    found = [measured(CLEAN, list(data.first))]
    for name, names in EDITS.items():
        if sets is None and name == "synonyms":
            continue
        edits = make_edits(names, "the study's edits", sets)
        copies = copies_of(data.first, Variant(name, share), edits, seed, "a probe's texts")
        found.append(measured(under(name), [t if c is None else c.text for t, c in zip(data.first, copies)]))
    return found
