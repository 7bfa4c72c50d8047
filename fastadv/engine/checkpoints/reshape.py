"""A checkpoint of W processes made one of M.

ZeRO cuts weights and optimizer state into one piece a process: at stages 1 and 2 each parameter group, laid end to end,
is filled up to a multiple of 2 W and cut into W; at stage 3 each parameter is filled up to a multiple of W and cut.
Here the pieces are laid together, freed of the filling, filled up for M and cut again, so that no bit of a weight or a
moment changes. DeepSpeed's own way, ``ds_to_universal``, gives the same numbers and unpickles whatever the files hold,
when it converts and when it loads; this reads them as `fastadv.engine.checkpoints.checkpoint` does.
"""

import hashlib
import math
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

import torch
from torch import Tensor

from fastadv.distributed.processes import import_deepspeed
from fastadv.engine.checkpoints.checkpoint import (
    ENGINE,
    EXTRA_STATE,
    CheckpointWriter,
    Position,
    RunIdentity,
    generators_name,
    load_plain,
    read_state,
)
from fastadv.engine.checkpoints.checkpoint_folders import begin_writing, newest_checkpoint
from fastadv.engine.checkpoints.manifest import Entry, read_manifest
from fastadv.engine.checkpoints.run_lock import locked
from fastadv.errors import UserError

# DeepSpeed starts every piece of stages 1 and 2 at a multiple of 4 bytes of bfloat16.
_ALIGNMENT = 2
# Above so many elements on one process DeepSpeed cuts a stage-3 group into several, and differently for each M.
_STAGE_3_SUB_GROUP = 10**9


def reshape_checkpoint(run_folder: Path, num_ranks: int) -> Path:
    """Makes the newest whole checkpoint of ``run_folder`` one that ``num_ranks`` processes go on from.

    Weights, moments, schedule, eta table, data position and scores are the same to the last bit. Every process draws
    new random numbers, seeded by the run's seed, the step and its rank. The old checkpoint is there until the new one
    is whole. Reads with little memory: one process's new piece at a time.

    Returns:
        the checkpoint.

    Raises:
        UserError: there is no checkpoint, none is whole, it cannot be cut for so many processes, or a run is writing to
            the folder.
        SaveFailed: the disk is full, or the folder cannot be written.
    """
    with locked(run_folder):
        return _reshape(run_folder, num_ranks)


def _reshape(run_folder: Path, num_ranks: int) -> Path:
    folder, position, identity = _to_reshape(run_folder, num_ranks)
    if identity.world_size == num_ranks:
        return folder
    import_deepspeed()
    manifest = read_manifest(folder)
    writer = CheckpointWriter(begin_writing(run_folder, position.step))
    with torch.no_grad():
        for name, state in _engine_states(folder, manifest.files, identity.world_size, num_ranks):
            writer.write_pickle(f"{ENGINE}/{name}", state)
    for rank in range(num_ranks):
        seed = torch.tensor(_seed(identity.config["train"]["seed"], position.step, rank))
        writer.write_tensors(generators_name(rank), {"seed": seed})
    whole = (folder / EXTRA_STATE).read_bytes()
    writer.write(EXTRA_STATE, lambda stream: stream.write(whole))
    identity.world_size = num_ranks
    writer.write_state(position, identity)
    return writer.finish(manifest.beside, run_folder)


def describe_reshaping(run_folder: Path, num_ranks: int) -> str:
    """What `reshape_checkpoint` would do, in a line; it reads the checkpoint and writes nothing."""
    folder, _, identity = _to_reshape(run_folder, num_ranks)
    if identity.world_size == num_ranks:
        return f"{folder} is of {num_ranks} processes already"
    return f"would make {folder}, of {identity.world_size} processes, one of {num_ranks}"


def _to_reshape(run_folder: Path, num_ranks: int) -> tuple[Path, Position, RunIdentity]:
    folder = newest_checkpoint(run_folder)
    if folder is None:
        raise UserError(f"{run_folder} holds no checkpoint; name a run folder whose run was stopped")
    position, identity = read_state(folder)
    batch_size = identity.config["train"]["batch_size"]
    if num_ranks > batch_size:
        raise UserError(f"--num_ranks {num_ranks}: expected at most {batch_size}, the run's train.batch_size")
    return folder, position, identity


def _seed(seed: int, step: int, rank: int) -> int:
    """63 bits that a resumed rank seeds its generators with; unrelated for unequal arguments."""
    return int.from_bytes(hashlib.sha256(f"{seed} {step} {rank}".encode()).digest()[:8], "little") >> 1


def _engine_states(folder: Path, files: dict[str, Entry], old: int, new: int) -> Iterable[tuple[str, Any]]:
    """Name and content of each of DeepSpeed's files for ``new`` processes, one at a time."""
    names = {name.partition("/")[2] for name in files if name.startswith(f"{ENGINE}/")}

    def load(name: str) -> Any:
        if name not in names:
            raise UserError(f"{folder}: {ENGINE}/{name} is not there; it is no checkpoint of {old} processes")
        # Mapped, not read: each new piece touches the old ones it needs.
        return load_plain(str(folder / ENGINE / name), map_location="cpu", mmap=True)

    models = sorted(name for name in names if name.endswith("model_states.pt"))
    optimizers = [name for name in names if name.endswith("optim_states.pt")]
    unknown = names - {*models, *optimizers}
    if unknown:
        raise UserError(f"{folder}: {ENGINE}/{min(unknown)} cannot be cut for another number of processes")
    is_stage_3 = any(name.startswith("zero_pp_rank_") for name in models)
    template = "zero_pp_rank_{}_mp_rank_00_model_states.pt" if is_stage_3 else "mp_rank_00_model_states.pt"
    parts = [load(template.format(rank)) for rank in range(old if is_stage_3 else 1)]
    for rank in range(new if is_stage_3 else 1):
        model = {**parts[0], "dp_world_size": new}
        if is_stage_3:
            model["frozen_param_fragments"] = _frozen_fragments(parts, rank, new)
        yield template.format(rank), model
    if not optimizers:
        return
    prefix = "bf16_zero" if optimizers[0].startswith("bf16_zero") else "zero"
    template = f"{prefix}_pp_rank_{{}}_mp_rank_00_optim_states.pt"
    states = [load(template.format(rank)) for rank in range(old)]
    cut = _cut_stage_3 if is_stage_3 else _cut_stage_1_2
    pieces = [state["optimizer_state_dict"] for state in states]
    for rank in range(new):
        mine = cut(pieces, parts[0]["param_shapes"], rank, new)
        yield template.format(rank), {**states[0], "optimizer_state_dict": mine}


def _cut_stage_1_2(old: list[dict], shapes: list[dict], rank: int, num_ranks: int) -> dict:
    """Rank ``rank``'s optimizer state of ``num_ranks``; what the parameters' shapes are does not matter here."""
    fp32, sizes, bounds = [], [], []
    for pieces in zip(*(state["single_partition_of_fp32_groups"] for state in old)):
        num_elements = sum(piece.numel() for piece in pieces)
        size = math.ceil(num_elements / (_ALIGNMENT * num_ranks)) * _ALIGNMENT
        sizes.append(size)
        bounds.append((min(rank * size, num_elements), min((rank + 1) * size, num_elements)))
        # Weights are kept without their filling, moments with it.
        fp32.append(_slice(pieces, *bounds[-1]))

    def cut(group: int, pieces: Sequence[Tensor]) -> Tensor:
        return _padded(_slice(pieces, *bounds[group]), sizes[group])

    return {
        **{key: value for key, value in old[0].items() if key != "param_slice_mappings"},
        "base_optimizer_state": _cut_moments([state["base_optimizer_state"] for state in old], cut),
        "single_partition_of_fp32_groups": fp32,
        "group_paddings": [size - (last - first) for size, (first, last) in zip(sizes, bounds)],
        "partition_count": [num_ranks] * len(fp32),
    }


def _cut_stage_3(old: list[dict], shapes: list[dict], rank: int, num_ranks: int) -> dict:
    """Rank ``rank``'s optimizer state of ``num_ranks``.

    Args:
        shapes: of the parameters of each group by name, in the order in which they lie in it.
    """
    bases = [state["optimizer_state_dict"] for state in old]
    if len(shapes) != len(bases[0]["param_groups"]):
        raise UserError("stage 3 with groups of over 10^9 elements a process cannot be cut for another number of them")
    counts = [[math.prod(shape) for shape in names.values()] for names in shapes]
    if any(sum(-(-count // num_ranks) for count in of_group) >= _STAGE_3_SUB_GROUP for of_group in counts):
        raise UserError(f"--num_ranks {num_ranks}: stage 3 would hold over 10^9 elements of a group on one process")

    def cut(group: int, pieces: Sequence[Tensor]) -> Tensor:
        return _recut(pieces, counts[group], rank, num_ranks)

    return {
        **old[0],
        "optimizer_state_dict": _cut_moments(bases, cut),
        "fp32_flat_groups": [cut(i, pieces) for i, pieces in enumerate(zip(*(s["fp32_flat_groups"] for s in old)))],
        "partition_count": num_ranks,
    }


def _cut_moments(bases: list[dict], cut: Callable[[int, Sequence[Tensor]], Tensor]) -> dict:
    """The optimizer's own state of one rank, each moment by ``cut`` (number of the group, the old ranks' pieces)."""
    groups, state = bases[0]["param_groups"], {}
    for number, group in enumerate(groups):
        moments = [base["state"][group["params"][0]] for base in bases]
        state[group["params"][0]] = {
            key: cut(number, [of_rank[key] for of_rank in moments]) if value.ndim else value
            for key, value in moments[0].items()
        }
    return {"state": state, "param_groups": groups}


def _frozen_fragments(parts: list[dict], rank: int, num_ranks: int) -> dict[str, Tensor] | None:
    """Rank ``rank``'s pieces of the parameters that are not trained, at stage 3."""
    shapes = parts[0]["frozen_param_shapes"]
    if not shapes:
        return parts[0]["frozen_param_fragments"]
    return {
        name: _recut([part["frozen_param_fragments"][name] for part in parts], [math.prod(shape)], rank, num_ranks)
        for name, shape in shapes.items()
    }


def _recut(pieces: Sequence[Tensor], counts: list[int], rank: int, num_ranks: int) -> Tensor:
    """Stage 3: parameters that lie one after another, each cut into equal pieces, cut into ``num_ranks`` instead.

    Args:
        pieces: what each old rank holds, its piece of the first parameter, of the second, ...
        counts: elements of each parameter.
    """
    cut, start = [], 0
    for count in counts:
        old_size, size = -(-count // len(pieces)), -(-count // num_ranks)
        mine = [piece.narrow(0, start, old_size) for piece in pieces]
        start += old_size
        cut.append(_padded(_slice(mine, min(rank * size, count), min((rank + 1) * size, count)), size))
    return torch.cat(cut)


def _slice(pieces: Sequence[Tensor], first: int, last: int) -> Tensor:
    """Elements ``first`` to ``last`` of pieces laid end to end, as a tensor of its own."""
    found, start = [pieces[0][:0]], 0
    for piece in pieces:
        found.append(piece[max(first - start, 0) : max(last - start, 0)])
        start += piece.numel()
    return torch.cat(found)


def _padded(tensor: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, size - tensor.numel()))
