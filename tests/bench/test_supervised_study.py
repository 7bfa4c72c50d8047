"""The supervised study's numbers, from arms made by hand."""

import numpy as np
import pytest

from bench.studies.supervised_study import folder_of, measured
from bench.studies.supervised_study_report import Arm, change, outcomes, plot, report


def arm(clean, attacked, epsilons=(0.5, 1.0), num_texts=200):
    """So many of the first texts right: clean, and at each radius."""
    first = lambda count: np.arange(num_texts) < count  # noqa: E731
    return Arm(
        np.array(epsilons),
        first(clean),
        np.stack([first(count) for count in attacked]),
        np.full((2, 40), 2.0),
        np.full((2, 40), 0.1),
        np.array([10.0, 20.0]),
    )


ARMS = {
    "fine_tuning": [arm(160, [100, 60]), arm(150, [90, 50])],
    "robust": [arm(160, [140, 100]), arm(150, [130, 90])],
    "worse": [arm(120, [100, 60]), arm(110, [90, 50])],
}


def test_changes_are_of_the_same_texts_and_seeds():
    assert outcomes(ARMS["fine_tuning"], 0.5).mean() == pytest.approx(100 * (100 + 90) / 400)
    found = change(ARMS["fine_tuning"], ARMS["robust"], 0.5)
    assert found.value == pytest.approx(20) and found.low > 10 and found.high < 30
    unchanged = change(ARMS["fine_tuning"], ARMS["robust"], 0)
    assert (unchanged.low, unchanged.value, unchanged.high) == (0, 0, 0)


def test_what_falls_short_is_marked():
    text, numbers = report(ARMS, (0.5, 1.0))
    rows = {line.split("|")[1].strip(): line.split("|")[2:] for line in text.splitlines() if line.startswith("|")}
    assert "short" not in rows["ε = 0.5"][1] and "short" in rows["ε = 0.5"][2]
    # Its clean accuracy fell by more than two points; the other's did not move.
    assert "short" not in rows["clean"][1] and "short" in rows["clean"][2]
    row = next(r for r in numbers["rows"] if r["system"] == "robust" and r["epsilon"] == 1.0)
    assert row["by_seed"] == [50, 45] and row["accuracy"] == 47.5 and row["change"] == pytest.approx(20)


def test_distances_that_were_not_measured_have_no_row():
    from dataclasses import replace

    without = {"distance_l2": np.empty((2, 0)), "distance_cosine": np.empty((2, 0))}
    assert "h_adv" in report(ARMS, (0.5, 1.0))[0]
    arms = {name: [replace(arm, **without) for arm in seeds] for name, seeds in ARMS.items()}
    assert "h_adv" not in report(arms, (0.5, 1.0))[0]


def test_a_radius_of_one_seed_is_compared_with_that_seed_alone():
    arms = {
        "fine_tuning": [arm(160, [150, 100, 60], (0.1, 0.5, 1.0)), ARMS["fine_tuning"][1]],
        "robust": [arm(160, [160, 140, 100], (0.1, 0.5, 1.0)), ARMS["robust"][1]],
    }
    text, _ = report(arms, (0.5, 1.0))
    (row,) = [line for line in text.splitlines() if line.startswith("| ε = 0.1")]
    # Beside the radii that are asked for, nothing must hold.
    assert "one seed" in row and "| 75.0 | 80.0 [" in row and "short" not in row


def test_an_arm_is_read_as_it_was_written_and_drawn(tmp_path):
    folder = folder_of(tmp_path, "robust", 0)
    folder.mkdir()
    assert measured(folder) is None
    np.savez(folder / "measured.npz", **vars(ARMS["robust"][0]))
    assert (measured(folder).right_at(1.0) == ARMS["robust"][0].right_at(1.0)).all()
    plot(ARMS, tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 10_000
