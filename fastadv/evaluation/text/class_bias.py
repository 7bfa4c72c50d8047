"""A shift of a classifier's logits that gives its predictions another model's class shares.

An attack by ruined words pushes a classifier to one class, so a model that leans towards the other class looks robust.
The control of METHODS.md section 5 is the baseline with no more than that lean: its logits plus a constant for each
class, chosen such that it predicts each class as often as the robust model does.

Which texts fall to which class under the best shift is a transport problem: text i goes to one class, class c takes
n_c of the N texts, and the sum of the logits taken is largest. A shift under which every text prefers the class it was
given exists by duality. Of all these shifts the one is taken that keeps the nearest text furthest from a tie, so that
the rounding of a batch does not undo it.
"""

from dataclasses import dataclass
from typing import Dict, List, Sequence

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from fastadv.errors import UserError

_LARGEST_GAP = 1.0
"""logits between the best class and the next that are enough; more would push a class that is never predicted away
without end"""
_SMALLNESS = 1e-4
"""of the size of the shift, against its gap: decides between shifts that are as good"""


@dataclass(frozen=True)
class ControlBias:
    """The shift, and how near it came."""

    bias: np.ndarray
    """(C,) is added to the baseline's logits; its mean is 0"""
    labels: List[str]
    """the baseline's classes in their order"""
    share_before: np.ndarray
    """(C,) of the baseline's predictions as it is"""
    share_wanted: np.ndarray
    """(C,) of the robust model's predictions"""
    share_reached: np.ndarray
    """(C,) of the baseline's predictions with the shift"""
    num_texts: int

    @property
    def largest_miss(self) -> float:
        """The largest difference of a share from the one that was wanted."""
        return float(np.abs(self.share_reached - self.share_wanted).max())

    def as_dict(self) -> Dict[str, object]:
        """Ready for JSON, by the name of the class."""

        def named(values: np.ndarray) -> Dict[str, float]:
            return {label: float(value) for label, value in zip(self.labels, values, strict=True)}

        return {
            "bias": named(self.bias),
            "share_before": named(self.share_before),
            "share_wanted": named(self.share_wanted),
            "share_reached": named(self.share_reached),
            "largest_miss": self.largest_miss,
            "num_texts": self.num_texts,
        }


def class_share(logits: np.ndarray, bias: np.ndarray | float = 0.0) -> np.ndarray:
    """(C,) the share of the N texts that ``logits`` (N, C) plus ``bias`` give to each class."""
    predicted = (np.asarray(logits, dtype=np.float64) + bias).argmax(axis=1)
    return np.bincount(predicted, minlength=logits.shape[1]) / len(logits)


def bias_to_match(logits: np.ndarray, share: np.ndarray) -> np.ndarray:
    """(C,) the shift of ``logits`` (N, C) under which the share of each class is ``share`` (C,).

    It is exact wherever the shares are whole numbers of texts and no two texts have equal logits; where they are not
    whole, they are rounded to numbers of texts by the largest remainders. All zeros where nothing needs to move.

    Raises:
        UserError: no text, logits that are not finite, or shares that are none.
    """
    logits, share = np.asarray(logits, dtype=np.float64), np.asarray(share, dtype=np.float64)
    if logits.ndim != 2 or not len(logits):
        raise UserError(f"a class bias needs logits (N, C) of at least one text, got the shape {logits.shape}")
    if not np.isfinite(logits).all():
        num_broken = int((~np.isfinite(logits).all(axis=1)).sum())
        raise UserError(f"the baseline gave logits with NaN or infinity for {num_broken} of {len(logits)} texts")
    if share.shape != logits.shape[1:] or not (share >= 0).all() or abs(share.sum() - 1) > 1e-6:
        raise UserError(f"class shares must be {logits.shape[1]} numbers from 0 that sum to 1, got {share.tolist()}")
    counts = _whole(share * len(logits), len(logits))
    if np.array_equal(np.bincount(logits.argmax(axis=1), minlength=len(share)), counts):
        return np.zeros(len(share))
    bias = _widest(_least_needed(logits, _assigned(logits, counts)))
    return bias - bias.mean()


def match_class_share(logits: np.ndarray, share: np.ndarray, labels: Sequence[str]) -> ControlBias:
    """`bias_to_match` with what it reached."""
    bias = bias_to_match(logits, share)
    return ControlBias(
        bias=bias,
        labels=list(labels),
        share_before=class_share(logits),
        share_wanted=np.asarray(share, dtype=np.float64),
        share_reached=class_share(logits, bias),
        num_texts=len(logits),
    )


def _whole(parts: np.ndarray, total: int) -> np.ndarray:
    """``parts`` as whole numbers that sum to ``total``: rounded down, the largest remainders up."""
    # A third of 3 is 1, whatever binary fractions say.
    counts = np.floor(parts + 1e-9).astype(np.int64)
    order = np.argsort(counts - parts, kind="stable")
    counts[order[: total - counts.sum()]] += 1
    return counts


def _assigned(logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(N,) the class of each text: ``counts`` of each, the sum of the logits as large as can be.

    The simplex ends at a corner of the transport problem, where every text is whole.
    """
    num_texts, num_classes = logits.shape
    sums = sparse.vstack(
        [
            sparse.kron(sparse.eye(num_texts), np.ones((1, num_classes))),
            sparse.kron(np.ones((1, num_texts)), sparse.eye(num_classes)),
        ]
    )
    totals = np.concatenate([np.ones(num_texts), counts])
    solved = linprog(-logits.ravel(), A_eq=sums.tocsr(), b_eq=totals, bounds=(0, 1), method="highs-ds")
    return _solution(solved).reshape(logits.shape).argmax(axis=1)


def _solution(solved) -> np.ndarray:
    if not solved.success:
        raise RuntimeError(f"the class bias was not found: {solved.message}")
    return solved.x


def _least_needed(logits: np.ndarray, assigned: np.ndarray) -> np.ndarray:
    """(C, C): how far the bias of class a must exceed that of c for every text given to a to prefer a; −inf of none."""
    num_classes = logits.shape[1]
    needed = np.full((num_classes, num_classes), -np.inf)
    for a in range(num_classes):
        of_class = logits[assigned == a]
        if len(of_class):
            needed[a] = (of_class - of_class[:, a : a + 1]).max(axis=0)
    return needed


def _widest(needed: np.ndarray) -> np.ndarray:
    """(C,): b with b_a − b_c ≥ needed_ac + gap for all a ≠ c, the gap as large as can be, then b small."""
    num_classes = len(needed)
    unit, rows, limits = np.eye(2 * num_classes + 1), [], []
    for a, c in np.argwhere(np.isfinite(needed) & ~np.eye(num_classes, dtype=bool)):
        rows.append(unit[c] - unit[a] + unit[-1])
        limits.append(-needed[a, c])
    for a in range(num_classes):
        # size_a ≥ |b_a|
        rows += [sign * unit[a] - unit[num_classes + a] for sign in (1, -1)]
        limits += [0.0, 0.0]
    cost = np.concatenate([np.zeros(num_classes), np.full(num_classes, _SMALLNESS / num_classes), [-1.0]])
    # Texts with equal logits that go to two classes leave a gap of 0 or less: as near as can be.
    bounds = [(None, None)] * num_classes + [(0, None)] * num_classes + [(None, _LARGEST_GAP)]
    solved = linprog(cost, A_ub=np.array(rows), b_ub=np.array(limits), bounds=bounds, method="highs")
    return _solution(solved)[:num_classes]
