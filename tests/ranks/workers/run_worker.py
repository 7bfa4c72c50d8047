"""A rank of test_ranks_run.py: whole runs at every ZeRO stage, one after another.

Usage: run_worker.py CONFIG_FILE PAIRS_FILE
"""

import sys
from pathlib import Path

import torch

from fastadv import load_config
from fastadv.distributed import processes
from fastadv.perturbation import NonFiniteGradient
from tests.quick_trainer import Trainer
from tests.ranks.cases.objectives import STAGES
from tests.small_runs import StopAfter


def config_of(config_file, name, *overrides):
    folder = Path(config_file).parent / name
    return load_config(config_file, ["--train.output_dir", str(folder), *overrides])


def main(config_file, pairs_file):
    torch.set_num_threads(1)
    processes.init_distributed()
    for stage, precision in STAGES:
        options = "--engine.zero_stage", str(stage), "--engine.precision", precision
        dev = "--dev.data", pairs_file, "--train.eval_every", "1"
        name = f"stage-{stage}-{precision}"
        Trainer(config_of(config_file, name, *options)).fit()
        Trainer(config_of(config_file, f"{name}-best", *options, *dev)).fit()
        stopped = config_of(config_file, f"{name}-stopped", *options)
        first = Trainer(stopped, [StopAfter(2)])
        first.fit()
        assert not first.is_finished and first.position.step == 2
        Trainer(stopped).fit()
    bad = config_of(config_file, "bad", "--objective", "tests.ranks.cases.objectives:BadOnRankOne")
    try:
        Trainer(bad).fit()
    except NonFiniteGradient as error:
        # Rows of rank 1, named on every rank.
        assert str(error).startswith("step 1: ") and "rows 4, 5, 6, 7" in str(error), str(error)
    else:
        raise AssertionError("nothing was raised")
    processes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
