"""Texts that an attack finds at the start of an epoch, for an objective that trains on them (A2T, METHODS 4).

They are kept in the run folder as ``adversarial/epoch-<n>.csv``, in the form of ``data.pairs``: a run stopped within
the epoch goes on with the same ones.
"""

from pathlib import Path
from typing import Any, Sequence

import numpy as np

from fastadv.data.variants.text_pairs import Texts, read_pairs, write_pairs
from fastadv.distributed import processes
from fastadv.engine.checkpoints.checkpoint import Position
from fastadv.engine.training_data import TrainingData
from fastadv.errors import UserError
from fastadv.evaluation.text.training_attack import find_texts
from fastadv.objectives.needs import EpochAttack


def texts_of_epoch(
    plan: EpochAttack, position: Position, model: Any, data: TrainingData, run_folder: Path, seed: int
) -> dict[Texts, Texts]:
    """The adversarial texts of the epoch that ``position`` is in; attacks where it begins. All ranks call it.

    The first rank attacks, the others wait for its file (``engine.timeout_minutes``).

    Args:
        model: the classifier as it is now; None within an epoch.

    Raises:
        UserError: the file of an epoch that is gone on with is not there, or textattack or its data are not.
    """
    if position.epoch < plan.first_epoch:
        return {}
    path = run_folder / "adversarial" / f"epoch-{position.epoch}.csv"
    if position.batch == 0:
        processes.first_rank_only(lambda: _write(path, plan, position.epoch, model, data, seed))
    elif not path.exists():
        raise UserError(f"{path} is not there, with the texts of the epoch that this run stopped in; start it anew")
    return read_pairs(path, may_be_empty=True)


def _write(path: Path, plan: EpochAttack, epoch: int, model, data, seed: int) -> None:
    texts: Sequence[Texts] = data.variants.texts
    order = np.random.default_rng([seed, epoch]).permutation(len(texts))
    names = [data.label_map.names[label] for label in data.text.labels]
    model.eval()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pairs = find_texts(plan, model, texts, names, order, seed, path.with_name("attack.log"), data.roles)
    finally:
        model.train()
    write_pairs(path, pairs, dict(zip(texts, names)))
