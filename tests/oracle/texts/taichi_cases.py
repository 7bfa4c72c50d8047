"""The batches and options TaiChi's transcription and the package are compared on.

Five classes. Attacked texts differ from theirs in a word or two, one of them in length too; some rows have none.
"""

from dataclasses import dataclass

import numpy as np

from tests.oracle.sentences.cases import framed
from tests.oracle.texts.taichi import ADVERSARIAL, CLEAN, Row, TaiChiOptions
from tests.oracle.toy_encoder import EMBEDDING_SIZE, INNER_SIZE, Masks


def row(number, words, attacked, label):
    """Sentences of the numbers ``number`` and 100 more."""
    return Row(framed(words, number), None if attacked is None else framed(attacked, 100 + number), label)


PAIRED = [
    row(0, [2, 3, 4], [2, 9, 4], 3),
    row(1, [5, 2], [5, 10], 0),
    row(2, [6, 7, 3, 2], [6, 7, 8], 4),
    row(3, [3, 3, 9], [3, 11, 9], 1),
    row(4, [10, 4], [7, 5], 2),
]
MIXED = [
    row(5, [8, 2], None, 2),
    row(0, [2, 3, 4], [2, 9, 4], 3),
    row(6, [4, 4, 11], [4, 6, 11], 1),
    row(7, [9], None, 0),
    row(2, [6, 7, 3, 2], [6, 7, 8], 4),
]
LONE = [row(5, [8, 2], None, 2), row(1, [5, 2], [5, 10], 0), row(7, [9], None, 0)]
UNPAIRED = [row(5, [8, 2], None, 2), row(7, [9], None, 4)]
ONE = [row(1, [5, 2], [5, 10], 0)]
# A text twice: each is the other's negative. An attack that changed nothing.
EQUAL = [row(0, [2, 3, 4], [2, 9, 4], 3), row(0, [2, 3, 4], [2, 9, 4], 3), row(8, [6, 5], [6, 5], 1)]
BATCHES = {"paired": PAIRED, "mixed": MIXED, "lone": LONE, "unpaired": UNPAIRED, "one": ONE, "equal": EQUAL}


@dataclass(frozen=True)
class Case:
    options: TaiChiOptions
    has_dropout: bool = True
    batches: tuple = ("paired", "mixed", "lone", "unpaired", "one")


CASES = {
    "plain": Case(TaiChiOptions()),
    "no-dropout": Case(TaiChiOptions(), has_dropout=False, batches=tuple(BATCHES)),
    "cold": Case(TaiChiOptions(temperature=0.2)),
    "distance": Case(TaiChiOptions(similarity="neg_l2")),
    "distance-cold": Case(TaiChiOptions(similarity="neg_l2", temperature=0.3)),
    **{ablation: Case(TaiChiOptions(ablation)) for ablation in ("no_kl", "no_ctr", "no_adv", "clean", "adversarial")},
    "no_adv-distance": Case(TaiChiOptions("no_adv", "neg_l2", 0.5)),
    "adversarial-distance": Case(TaiChiOptions("adversarial", "neg_l2", 0.5)),
}


def random_masks(rows, seed=0):
    """Of every network at every text, by row; None where a row has no such text."""
    rng, masks = np.random.default_rng(seed), {}

    def drawn(sentence, size):
        return None if sentence is None else rng.choice([0.0, 4 / 3], size=(sentence.length, size), p=[0.25, 0.75])

    for network in (CLEAN, ADVERSARIAL):
        for text in ("x", "x'"):
            sentences = [one.text if text == "x" else one.attacked for one in rows]
            pairs = [[drawn(s, size) for s in sentences] for size in (EMBEDDING_SIZE, INNER_SIZE)]
            masks[network, text] = Masks(*pairs)
    return masks
