"""The supervised study's table and plot, from what its arms measured.

Intervals are of the change against the first arm, by a bootstrap over texts, paired: the same texts, and the same seeds
for both, of whose outcomes on a text the mean is taken.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

import numpy as np

from fastadv.evaluation.intervals import Interval, paired_interval

LARGEST_LOSS = 2.0
"""points of clean accuracy that the interval of a robust system's change must stay above, downwards"""


@dataclass(frozen=True)
class Arm:
    """What one system with one seed measured; K radii, N texts, M of them, of some seeds none, for distances at R."""

    epsilons: np.ndarray
    """(K,)"""
    is_right_clean: np.ndarray
    """(N,) bool"""
    is_right: np.ndarray
    """(K, N) bool"""
    distance_l2: np.ndarray
    """(R, M)"""
    distance_cosine: np.ndarray
    """(R, M)"""
    seconds: np.ndarray
    """of training, of the attack"""

    def right_at(self, epsilon: float) -> np.ndarray:
        """(N,) 0 or 1; the clean pass at radius 0."""
        if epsilon == 0:
            return self.is_right_clean.astype(np.float64)
        (number,) = np.flatnonzero(np.isclose(self.epsilons, epsilon))
        return self.is_right[number].astype(np.float64)

    def has(self, epsilon: float) -> bool:
        return epsilon == 0 or bool(np.isclose(self.epsilons, epsilon).any())


def outcomes(seeds: Sequence[Arm], epsilon: float) -> np.ndarray:
    """(N,) in points: how often each text is right, of the seeds that were attacked at this radius."""
    return 100 * np.mean([arm.right_at(epsilon) for arm in seeds if arm.has(epsilon)], axis=0)


def change(baseline: Sequence[Arm], seeds: Sequence[Arm], epsilon: float) -> Interval:
    """Points gained over the baseline's same seeds, with its paired interval."""
    pairs = [(b, a) for b, a in zip(baseline, seeds) if b.has(epsilon) and a.has(epsilon)]
    return paired_interval(outcomes([b for b, _ in pairs], epsilon), outcomes([a for _, a in pairs], epsilon))


def holds(epsilon: float, found: Interval) -> bool:
    """Whether a robust system does what it is for: clean accuracy kept, accuracy under attack gained."""
    return found.low >= -LARGEST_LOSS if epsilon == 0 else found.low > 0


def report(arms: Dict[str, List[Arm]], epsilons: Sequence[float]) -> Tuple[str, dict]:
    """Two tables in Markdown, and all their numbers.

    Args:
        arms: system -> its seeds; the first is what the others are compared with.
    """
    (first, baseline), *others = arms.items()
    radii = [0.0, *sorted({float(e) for seeds in arms.values() for arm in seeds for e in arm.epsilons})]
    numbers: dict = {"baseline": first, "num_texts": len(baseline[0].is_right_clean), "rows": []}
    lines = [
        "| accuracy, % | " + " | ".join(f"{name}{' [change]' if name != first else ''}" for name in arms) + " |",
        "|---" + "|---:" * len(arms) + "|",
    ]
    for epsilon in radii:
        cells = [f"{outcomes(baseline, epsilon).mean():.1f}"]
        for name, seeds in others:
            found = change(baseline, seeds, epsilon)
            value = outcomes(seeds, epsilon).mean()
            mark = "" if epsilon not in (0.0, *epsilons) or holds(epsilon, found) else " (short)"
            cells.append(f"{value:.1f} [{found.low:+.1f}, {found.high:+.1f}]{mark}")
            by_seed = [100 * arm.right_at(epsilon).mean() for arm in seeds if arm.has(epsilon)]
            row = {"system": name, "epsilon": epsilon, "accuracy": value, "by_seed": by_seed}
            numbers["rows"].append({**row, "change": found.value, "low": found.low, "high": found.high})
        is_partial = sum(arm.has(epsilon) for arm in baseline) < len(baseline)
        label = "clean" if epsilon == 0 else f"ε = {epsilon:g}{', one seed' if is_partial else ''}"
        lines.append("| " + " | ".join([label, *cells]) + " |")
    lines += [
        "",
        "| | " + " | ".join(arms) + " |",
        "|---" + "|---:" * len(arms) + "|",
    ]
    for number, epsilon in enumerate(epsilons):
        for name, field in (("‖h_adv − h‖₂", "distance_l2"), ("1 − cos(h_adv, h)", "distance_cosine")):
            found = [np.concatenate([getattr(arm, field)[number] for arm in seeds]) for seeds in arms.values()]
            if not all(len(of_seeds) for of_seeds in found):
                continue
            means = [of_seeds.mean() for of_seeds in found]
            lines.append("| " + " | ".join([f"{name}, ε = {epsilon:g}", *(f"{m:.3f}" for m in means)]) + " |")
    for number, name in enumerate(("training, s", "attack, s")):
        means = [np.mean([arm.seconds[number] for arm in seeds]) for seeds in arms.values()]
        lines.append("| " + " | ".join([name, *(f"{m:.0f}" for m in means)]) + " |")
    return "\n".join(lines) + "\n", numbers


def plot(arms: Dict[str, List[Arm]], path: Path) -> None:
    """Accuracy against the radius, a line a system: the mean over seeds, and a thin line a seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6.4, 4.2), layout="constrained")
    for number, (name, seeds) in enumerate(arms.items()):
        radii = [0.0, *(e for e in seeds[0].epsilons if all(arm.has(e) for arm in seeds))]
        for arm in seeds:
            axis.plot(radii, [100 * arm.right_at(e).mean() for e in radii], f"C{number}-", alpha=0.3, linewidth=1)
        axis.plot(radii, [outcomes(seeds, e).mean() for e in radii], f"C{number}o-", label=name)
    axis.set(xlabel="radius ε of the attack (l2, a text)", ylabel="accuracy, %", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, dpi=140, format="png")
    pyplot.close(figure)
