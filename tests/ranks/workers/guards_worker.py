"""A rank of test_ranks_guards.py: what is not finite on one rank alone, at every ZeRO stage.

Usage: guards_worker.py CONFIG_FILE

Writes what was raised, and what the skipping runs left, as JSON beside the config.
"""

import json
import sys
from pathlib import Path

import torch

from fastadv import load_config
from fastadv.distributed import processes
from fastadv.distributed.zero import NonFiniteUpdate
from fastadv.engine.monitor.collapse import Collapsed
from fastadv.engine.training_data import TrainingData
from fastadv.perturbation import NonFiniteGradient
from tests.quick_trainer import Trainer
from tests.ranks.cases.objectives import STAGES

MODES = ((0, "bf16"), *STAGES)
# A loss is guarded before DeepSpeed has any part in it; gradients are at every stage in another place.
WHOLE_MODES = ("0-fp32", "3-bf16")
FAULTS = ("z", "z+", "z_adv", "slope", "loss")


def config_of(config_file, name, fault, at, *overrides):
    options = "--objective_options.fault", fault, "--objective_options.at", json.dumps(at)
    folder = Path(config_file).parent / name
    return load_config(config_file, ["--train.output_dir", str(folder), *options, *overrides])


def raised(config):
    try:
        Trainer(config).fit()
    except (NonFiniteUpdate, NonFiniteGradient, Collapsed) as error:
        return f"{type(error).__name__}: {error}"
    return None


def main(config_file):
    torch.set_num_threads(1)
    processes.init_distributed()
    messages = {}
    for fault in FAULTS:
        messages[fault] = raised(config_of(config_file, f"raise-{fault}", fault, [1]))
    flat = "--objective", "tests.ranks.cases.planted:Flat", "--train.collapse", "raise"
    messages["collapse"] = raised(config_of(config_file, "flat", "loss", [], *flat))
    num_skipped = {}
    batches = TrainingData.batches
    for stage, precision in MODES:
        mode = f"{stage}-{precision}"
        options = "--engine.zero_stage", str(stage), "--engine.precision", precision
        messages[mode] = raised(config_of(config_file, f"raise-{mode}", "z_adv", [1], *options))
        options = *options, "--train.on_nonfinite", "skip"
        for fault in ("z_adv", "slope") if mode in WHOLE_MODES else ("slope",):
            trainer = Trainer(config_of(config_file, f"skip-{mode}-{fault}", fault, [2], *options))
            trainer.fit()
            num_skipped[f"{mode}-{fault}"] = trainer.position.num_skipped
        TrainingData.batches = lambda *arguments: without_second(batches(*arguments), arguments[1])
        Trainer(config_of(config_file, f"twin-{mode}", "loss", [], *options)).fit()
        TrainingData.batches = batches
    path = Path(config_file).parent / f"rank-{processes.rank()}.json"
    path.write_text(json.dumps({"messages": messages, "num_skipped": num_skipped}), encoding="utf-8")
    processes.shutdown()


def without_second(batches, epoch):
    """Batches of which the run's second is left out: an epoch has one."""
    return (batch for batch in batches if epoch != 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
