"""A rank of two: a disk that is full on the second alone, SIGUSR2 and SIGTERM to the second alone, damage and a lock
seen by both, and the generators of each.

Usage: survival_worker.py CONFIG_FILE
"""

import os
import resource
import signal
import sys
from contextlib import ExitStack
from functools import partial

import torch

from fastadv import load_config
from fastadv.distributed import processes
from fastadv.engine import loop
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, newest_checkpoint
from fastadv.engine.checkpoints.run_lock import locked
from fastadv.errors import SaveFailed, UserError
from fastadv.train import main as train
from tests.ranks.whole_state import Observed


class AfterStep(Observed):
    """Does something on the second rank after some steps."""

    def __init__(self, config, actions):
        super().__init__(config)
        self._actions = actions

    def _tell(self, learning_rate):
        super()._tell(learning_rate)
        if processes.rank() == 1 and self.position.step in self._actions:
            self._actions[self.position.step]()


def limit_files(num_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def main(config_file):
    torch.set_num_threads(1)
    processes.init_distributed(1.0)
    config = load_config(config_file)
    first = AfterStep(config, {3: lambda: limit_files(20_000)})
    try:
        first.fit()
    except SaveFailed as error:
        said = processes.from_all_ranks(str(error))
        assert said[0] == said[1] and "zero_pp_rank_1" in said[0] and "File too large" in said[0], said
    else:
        raise AssertionError("nothing was raised")
    limit_files(resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    folders = checkpoint_folders(first.run_folder)
    assert [folder.name for folder in folders] == ["step-2"]
    assert newest_checkpoint(folders[0].parents[1]) == folders[0]

    # A byte of the second rank's file: the first rank decides for both, whichever of them has read it.
    damaged = folders[0] / "engine" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    processes.first_rank_only(lambda: flip(damaged))
    try:
        AfterStep(config, {}).fit()
    except UserError as error:
        said = processes.from_all_ranks(str(error))
        assert said[0] == said[1] and damaged.name in said[0], said
    else:
        raise AssertionError("nothing was raised")
    processes.first_rank_only(lambda: flip(damaged))

    # The first rank's lock is another's: both are told.
    with ExitStack() as held:
        processes.first_rank_only(lambda: held.enter_context(locked(first.run_folder)) and None)
        try:
            AfterStep(config, {}).fit()
        except UserError as error:
            said = processes.from_all_ranks(str(error))
            assert said[0] == said[1] and "is in use by process" in said[0], said
        else:
            raise AssertionError("nothing was raised")
        processes.from_all_ranks(None)

    signals = {3: signal.SIGUSR2, 4: signal.SIGTERM}
    resumed = AfterStep(config, {step: partial(os.kill, os.getpid(), number) for step, number in signals.items()})
    loop.Trainer = lambda config: resumed
    generators = processes.from_all_ranks(first.generator_at_save)
    assert not torch.equal(*generators)
    # It leaves the process group, so this comes last.
    assert train(["--config", config_file]) == 0
    assert torch.equal(resumed.generator_at_start, first.generator_at_save)
    assert all(torch.equal(value, resumed.at_start[name]) for name, value in first.at_save.items())


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


if __name__ == "__main__":
    main(*sys.argv[1:])
