"""Every system trains on a GPU, is stopped, and goes on from its checkpoint."""

import pytest
import torch

from tests.engine.systems import CLASS_SYSTEMS, SENTENCE_SYSTEMS
from tests.quick_trainer import Trainer
from tests.small_runs import StopAfter, lines_of


def train_with_a_stop(config):
    """Trains four steps, of which the first two end with a stop; returns the run's folder."""
    config.train.save_every = 1
    stopped = Trainer(config, [StopAfter(2)])
    stopped.fit()
    assert stopped.position.step == 2 and not stopped.is_finished
    trainer = Trainer(config)
    folder = trainer.fit()
    assert trainer.is_finished and trainer.position.step == 4
    assert all(p.device == torch.device("cuda", 0) for p in trainer.run.step.parameters())
    return folder


@pytest.mark.parametrize("system", [*SENTENCE_SYSTEMS, *CLASS_SYSTEMS])
def test_trains(make_system, attack, system):
    folder = train_with_a_stop(make_system(system))
    losses = [line["loss"] for line in lines_of(folder) if "loss" in line]
    assert len(losses) == 4 and torch.tensor(losses).isfinite().all()
