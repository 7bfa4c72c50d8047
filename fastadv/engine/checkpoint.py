"""Checkpoints of a run, from which it goes on bit for bit.

A checkpoint is a folder ``checkpoints/step-<n>``: DeepSpeed's files (weights, optimizer, schedule), and ours: the place
in the data, the generators, the eta table, and the config that all of it belongs to. It is written under another name
and renamed when whole, so that a folder of that name is always complete.
"""

import json
import pickle
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fastadv.config import Config
from fastadv.engine.processes import is_first_rank, wait_for_all, world_size
from fastadv.errors import UserError

_FORMAT = 1
_KEPT = 2

_MAY_CHANGE = (
    "data.cache_dir",
    "data.num_workers",
    "engine.timeout_minutes",
    "evaluation.",
    "train.output_dir",
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.resume",
    "train.collapse",
    "train.trackers",
    # These two count through the total number of steps, which the schedule depends on and which is compared itself.
    "train.max_steps",
    "train.num_epochs",
)
"""Fields (or stages, by a final dot) that have no say in the numbers of a step."""


@dataclass
class Position:
    """Where a run stands between two steps."""

    step: int = 0
    """optimizer steps done"""
    epoch: int = 0
    batch: int = 0
    """batches of this epoch already taken"""
    num_skipped: int = 0
    """batches skipped for a non-finite inner gradient, and"""
    num_skipped_in_a_row: int = 0
    best_score: Optional[float] = None
    best_step: Optional[int] = None


@dataclass
class RunIdentity:
    """What must be equal for a checkpoint to be gone on from, and what is only recorded."""

    config: dict[str, Any]
    total_steps: int
    data: str
    """fingerprint of the tokenised sentences"""
    torch_version: str
    num_threads: int
    world_size: int

    @classmethod
    def of(cls, config: Config, total_steps: int, data: str) -> "RunIdentity":
        # Through JSON and back, so that it compares equal with what a file holds.
        plain = json.loads(json.dumps(asdict(config)))
        return cls(plain, total_steps, data, torch.__version__, torch.get_num_threads(), world_size())


def newest_checkpoint(run_folder: Path) -> Optional[Path]:
    """The complete checkpoint of the highest step, or None."""
    found = checkpoint_folders(run_folder)
    return found[-1] if found else None


def checkpoint_folders(run_folder: Path) -> list[Path]:
    """The complete checkpoints, oldest step first."""
    found = (run_folder / "checkpoints").glob("step-*")
    folders = [path for path in found if path.name[5:].isdigit() and path.is_dir()]
    return sorted(folders, key=lambda path: int(path.name[5:]))


def save_checkpoint(
    run_folder: Path, engine, extra_state: dict[str, Tensor], position: Position, identity: RunIdentity
) -> Path:
    """Writes ``checkpoints/step-<n>`` and removes all but the two newest. Every rank calls it.

    Args:
        engine: the DeepSpeed engine, between two steps.
        extra_state: tensors equal on all ranks that no module holds (the eta table).
    """
    folder = run_folder / "checkpoints" / f"step-{position.step}"
    aside = folder.with_name(f"partial-step-{position.step}")
    if is_first_rank() and aside.exists():
        shutil.rmtree(aside)
    wait_for_all()
    engine.save_checkpoint(str(aside), tag="engine", save_latest=False)
    save_file(_generator_states(), aside / f"generators-rank{engine.global_rank}.safetensors")
    if is_first_rank():
        on_cpu = {name: value.detach().cpu().contiguous() for name, value in extra_state.items()}
        save_file(on_cpu, aside / "extra_state.safetensors")
        state = {"format": _FORMAT, "position": asdict(position), "identity": asdict(identity)}
        (aside / "trainer_state.json").write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    wait_for_all()
    if is_first_rank():
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)
        for old in checkpoint_folders(run_folder)[:-_KEPT]:
            shutil.rmtree(old)
    wait_for_all()
    return folder


def load_checkpoint(folder: Path, engine, identity: RunIdentity) -> tuple[Position, dict[str, Tensor], list[str]]:
    """Puts weights, optimizer, schedule and generators back as they were.

    Returns:
        the place in the run; the extra state; and remarks on what may keep the run from going on bit for bit.

    Raises:
        UserError: the checkpoint belongs to a run with another config, other data or another length.
    """
    position, saved = read_state(folder)
    require_same_run(folder, saved, identity)
    # Nothing but tensors, numbers and DeepSpeed's own three classes may come out of its files: a run folder can be a
    # stranger's.
    engine.checkpoint_engine.load = _load_plain
    try:
        with torch.serialization.safe_globals(_deepspeed_classes()):
            engine.load_checkpoint(str(folder), tag="engine")
    except pickle.UnpicklingError as error:
        raise UserError(f"{folder}: its files hold more than tensors and numbers; they are not loaded") from error
    finally:
        del engine.checkpoint_engine.load
    remarks = [
        f"checkpoint of {name} {old}, now {new}: the last bits may differ"
        for name, old, new in (
            ("torch", saved.torch_version, identity.torch_version),
            ("threads", saved.num_threads, identity.num_threads),
        )
        if old != new
    ]
    _restore_generators(load_file(folder / f"generators-rank{engine.global_rank}.safetensors"))
    return position, load_file(folder / "extra_state.safetensors"), remarks


def read_state(folder: Path) -> tuple[Position, RunIdentity]:
    """A checkpoint's place in its run, and the run it belongs to.

    Raises:
        UserError: the folder is not a checkpoint of this version.
    """
    path = folder / "trainer_state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["format"] != _FORMAT:
            raise ValueError(f"format {state['format']}, this version reads {_FORMAT}")
        return Position(**state["position"]), RunIdentity(**state["identity"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a checkpoint that this version can go on from ({error})") from error


_ADVICE = "give the old value, name another train.output_dir, or delete the run folder to start anew"


def require_same_config(folder: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises UserError naming the first field that differs and matters. Needs no data and no weights."""
    old, new = _flat(saved), _flat(json.loads(json.dumps(now)))
    for name in sorted(old.keys() | new.keys()):
        if not name.startswith(_MAY_CHANGE) and old.get(name) != new.get(name):
            raise UserError(f"{name}: {new.get(name)!r}, but {folder} was made with {old.get(name)!r}; {_ADVICE}")


def require_same_run(folder: Path, saved: RunIdentity, now: RunIdentity) -> None:
    """Raises UserError naming what differs and matters, be it a field, the data or the number of steps."""
    require_same_config(folder, saved.config, now.config)
    for name, was, is_now in (
        ("train.max_steps and num_epochs: the total number of steps", saved.total_steps, now.total_steps),
        ("data.train: the fingerprint of the sentences", saved.data, now.data),
        ("the number of processes", saved.world_size, now.world_size),
    ):
        if was != is_now:
            raise UserError(f"{name} is {is_now}, but {folder} was made with {was}; {_ADVICE}")


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat


def _generator_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_generators(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _load_plain(path: str, map_location=None):
    return torch.load(path, map_location=map_location, weights_only=True)


def _deepspeed_classes() -> list[type]:
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, ZeroStageEnum, fragment_address]
