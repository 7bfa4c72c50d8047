"""A search that hardly moves the loss is told of, once."""

import pytest

from fastadv.engine.monitor.weak_search import WeakSearchWatch
from tests.quick_trainer import Trainer

MANY = {"train.max_steps": 12}
PRINTED = {"perturbation.epsilon_relative": None, "perturbation.epsilon": None}
PRINTED |= {"perturbation.alpha": 1e-5, "perturbation.beta": 1e-3, "perturbation.gamma": 2e-2}


def warnings_of(make_config, caplog, **changes):
    Trainer(make_config("run", **{**MANY, **changes}), writes_report=False).fit()
    return [record.getMessage() for record in caplog.records if "the search raises its loss" in record.getMessage()]


def test_printed_sizes_do_less_than_dropout(make_config, caplog):
    (line,) = warnings_of(make_config, caplog, **PRINTED)
    assert line.startswith("step 10: ") and "less than dropout moves it" in line


@pytest.mark.parametrize("log_every", [1, 5])
def test_sizes_that_move_a_vector_are_not_told_of(make_config, caplog, log_every):
    assert not warnings_of(make_config, caplog, **{"train.log_every": log_every, "perturbation.epsilon_relative": 0.5})


def test_one_step_under_the_clean_masks_is_measured_by_the_loss(make_config, caplog):
    fgm = {"objective": "uscal", "perturbation.method": "fgm", "perturbation.epsilon_relative": None}
    (line,) = warnings_of(make_config, caplog, **fgm, **{"perturbation.epsilon": 1e-5})
    assert "less than a thousandth of it" in line


def test_nothing_is_said_where_nothing_is_searched():
    watch = WeakSearchWatch()
    for step in range(1, 30):
        watch.look(step, {"loss": 1.0}, 1)
