"""A shift of logits that gives wanted class shares: exact where it can be, near where it cannot, nothing where none is
needed."""

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from fastadv.errors import UserError
from fastadv.evaluation.text import class_bias
from fastadv.evaluation.text.class_bias import bias_to_match, class_share, match_class_share


def logits_and_share(num_texts, num_classes, seed):
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(num_texts, rng.dirichlet(np.full(num_classes, 0.7)))
    return rng.normal(size=(num_texts, num_classes)).astype(np.float32), counts / num_texts


@pytest.mark.parametrize("num_texts,num_classes", [(1, 2), (7, 2), (200, 2), (200, 4), (61, 7), (120, 20)])
@pytest.mark.parametrize("seed", range(2))
def test_whole_shares_are_reached_to_the_text(num_texts, num_classes, seed):
    logits, share = logits_and_share(num_texts, num_classes, seed)
    bias = bias_to_match(logits, share)
    predicted = (logits.astype(np.float64) + bias).argmax(axis=1)
    for number in range(num_classes):
        assert (predicted == number).sum() == round(share[number] * num_texts)
    assert bias.mean() == pytest.approx(0, abs=1e-9)


def test_two_classes_against_the_sorted_margins():
    logits, _ = logits_and_share(50, 2, seed=3)
    margins = np.sort(logits[:, 0].astype(np.float64) - logits[:, 1])[::-1]
    bias = bias_to_match(logits, np.array([0.3, 0.7]))
    # 15 texts to the first class: the cut lies in the middle between the 15th and the 16th margin.
    assert bias[1] - bias[0] == pytest.approx((margins[14] + margins[15]) / 2, abs=1e-6)


def test_the_texts_that_move_are_those_of_the_largest_sum():
    """Under a shift the assignment is optimal for its own counts: no exchange of two texts gains."""
    logits, share = logits_and_share(40, 5, seed=4)
    predicted = (logits + bias_to_match(logits, share)).argmax(axis=1)
    for i in range(40):
        for j in range(40):
            a, c = predicted[i], predicted[j]
            assert logits[i, a] + logits[j, c] >= logits[i, c] + logits[j, a] - 1e-5


@pytest.mark.parametrize("seed", range(4))
def test_no_assignment_of_these_counts_has_a_larger_sum(seed):
    """Against the Hungarian algorithm on a column for each place; equal logits too."""
    logits, share = logits_and_share(30, 6, seed)
    counts = np.round(share * 30).astype(int)
    for given in (logits.astype(np.float64), np.round(logits)):
        assigned = class_bias._assigned(given, counts)
        assert np.bincount(assigned, minlength=6).tolist() == counts.tolist()
        columns = np.repeat(np.arange(6), counts)
        rows, places = linear_sum_assignment(-given[:, columns])
        best = given[rows, columns[places]].sum()
        assert given[np.arange(30), assigned].sum() == pytest.approx(best, abs=1e-9)


def test_own_shares_move_nothing():
    logits, _ = logits_and_share(80, 4, seed=5)
    assert not bias_to_match(logits, class_share(logits)).any()


def test_a_class_that_is_never_wanted_is_pushed_away_no_further_than_needed():
    logits, _ = logits_and_share(100, 4, seed=6)
    bias = bias_to_match(logits, np.array([0.4, 0.0, 0.3, 0.3]))
    assert class_share(logits, bias)[1] == 0
    shifted = logits + bias
    others = np.delete(shifted, 1, axis=1).max(axis=1)
    assert 0 < (others - shifted[:, 1]).min() <= 1.0 + 1e-6


def test_all_texts_to_one_class():
    logits, _ = logits_and_share(30, 4, seed=7)
    bias = bias_to_match(logits, np.array([0.0, 0.0, 1.0, 0.0]))
    assert (logits + bias).argmax(axis=1).tolist() == [2] * 30 and np.abs(bias).max() < 20


def test_shares_that_are_no_whole_numbers_are_rounded_by_the_largest_remainder():
    logits, _ = logits_and_share(10, 4, seed=8)
    # 3.7, 3.1, 1.6, 1.6: rounded down they sum to 8, so the two largest remainders go up.
    share = class_share(logits, bias_to_match(logits, np.array([0.37, 0.31, 0.16, 0.16])))
    assert share.tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_equal_logits_come_as_near_as_they_can_and_say_so():
    logits = np.repeat([[1.0, 0.0, 0.0, 0.0]], 10, axis=0)
    found = match_class_share(logits, np.array([0.5, 0.5, 0.0, 0.0]), ["a", "b", "c", "d"])
    assert found.largest_miss == pytest.approx(0.5)
    written = found.as_dict()
    assert written["share_wanted"] == {"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.0} and written["num_texts"] == 10


def test_the_nearest_text_is_as_far_from_a_tie_as_its_rival():
    """The rounding of a batch must not undo the shift: both texts beside the cut are equally far."""
    logits, share = logits_and_share(200, 4, seed=9)
    shifted = np.sort(logits + bias_to_match(logits, share), axis=1)
    assert (shifted[:, -1] - shifted[:, -2]).min() > 1e-5


@pytest.mark.parametrize(
    "logits,share,message",
    [
        (np.zeros((0, 4)), [0.25] * 4, "at least one text"),
        ([[0.0, np.nan, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], [0.25] * 4, "NaN or infinity for 1 of 2 texts"),
        (np.zeros((3, 4)), [0.5, 0.5], "4 numbers from 0 that sum to 1"),
        (np.zeros((3, 4)), [0.5, 0.5, 0.5, -0.5], "4 numbers from 0 that sum to 1"),
        (np.zeros((3, 4)), [0.5, 0.1, 0.1, 0.1], "4 numbers from 0 that sum to 1"),
    ],
)
def test_what_is_refused(logits, share, message):
    with pytest.raises(UserError, match=message):
        bias_to_match(np.asarray(logits), np.asarray(share))
