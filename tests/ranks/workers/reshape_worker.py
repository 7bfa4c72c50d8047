"""A rank of test_reshape.py: runs that stop after two steps, and runs that go on.

Usage: reshape_worker.py CONFIG_FILE start|go-on NAME STAGE PRECISION [NAME STAGE PRECISION ...]
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from fastadv import load_config
from fastadv.distributed import processes
from tests.ranks.whole_state import Observed
from tests.small_runs import StopAfter


def config_of(config_file, name, stage, precision):
    """Stages above 0 with bf16 freeze a layer, so that pieces of frozen weights are cut, too."""
    folder = Path(config_file).parent / name
    frozen = ["--encoder.num_frozen_layers=1"] if precision == "bf16" else []
    overrides = [f"--train.output_dir={folder}", f"--engine.zero_stage={stage}", f"--engine.precision={precision}"]
    return load_config(config_file, [*overrides, *frozen])


def start(config_file, name, stage, precision):
    """A run that stops after two steps and leaves its state beside its folder."""
    stopped = Observed(config_of(config_file, name, stage, precision), [StopAfter(2)])
    keep(stopped.fit(), "saved", stopped.at_save, stopped.generator_at_save)


def go_on(config_file, name, stage, precision):
    resumed = Observed(config_of(config_file, name, stage, precision))
    keep(resumed.fit(), "resumed", resumed.at_start, resumed.generator_at_start)
    assert resumed.is_finished


def keep(folder, what, state, generator):
    save_file({"generator": generator}, f"{folder}-{what}-generator{processes.rank()}.safetensors")
    if processes.is_first_rank():
        save_file(state, f"{folder}-{what}.safetensors")


def main(config_file, action, *runs):
    torch.set_num_threads(1)
    processes.init_distributed()
    for name, stage, precision in zip(runs[::3], runs[1::3], runs[2::3]):
        {"start": start, "go-on": go_on}[action](config_file, name, stage, precision)
    processes.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
