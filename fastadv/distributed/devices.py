"""Which device a process computes on: the only place that asks whether there is a GPU.

DeepSpeed's variable ``DS_ACCELERATOR`` rules where it is set, so that ``DS_ACCELERATOR=cpu`` keeps everything on the
CPU of a machine that has GPUs.
"""

import os
from typing import Mapping

import torch

from fastadv.config.commands import check_device_name
from fastadv.errors import UserError

_NUM_OF_LAUNCHER = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
"""Processes on this machine, as torchrun and deepspeed say it, which let all of them see the same GPUs."""

_NO_GPU = "torch sees no GPU"


def device_type(environment: Mapping[str, str] = os.environ) -> str:
    """``cuda`` where torch sees a GPU, else ``cpu``; what ``DS_ACCELERATOR`` says where it is set.

    Raises:
        UserError: ``DS_ACCELERATOR`` names something else, or a GPU where torch sees none.
    """
    named = environment.get("DS_ACCELERATOR")
    if named is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if named not in ("cpu", "cuda"):
        raise UserError(f"DS_ACCELERATOR = {named!r} in the environment: expected cpu or cuda")
    if named == "cuda" and not torch.cuda.is_available():
        raise UserError(f"DS_ACCELERATOR = cuda in the environment: {_NO_GPU}; allowed here: cpu, or leave it unset")
    return named


def named_device(name: str | torch.device) -> torch.device:
    """The device of a name: ``cpu``, ``cuda:N``, ``cuda`` (this process's own GPU), ``auto`` (what `device_type` says).

    A GPU becomes this process's own, since kernels are launched on that one alone.

    Raises:
        UserError: another name, or a GPU that is not there.
    """
    name = str(name)
    check_device_name(name)
    kind, _, number = (device_type() if name == "auto" else name).partition(":")
    if kind == "cpu":
        return torch.device("cpu")
    num_visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= num_visible:
        there = ", ".join(["auto", "cpu", *(f"cuda:{i}" for i in range(num_visible))])
        why = "torch sees no such GPU" if num_visible else _NO_GPU
        raise UserError(f"device {name}: {why}; allowed here: {there}")
    device = torch.device("cuda", int(number) if number else torch.cuda.current_device())
    torch.cuda.set_device(device)
    return device


def device_of_rank(environment: Mapping[str, str] = os.environ) -> torch.device:
    """The device of the process that is ``LOCAL_RANK`` on its machine: that GPU, or the one that was bound to it.

    A launcher that binds a GPU to each process (``srun --gpus-per-task=1``) lets it see that one alone, as number 0.

    Raises:
        UserError: the machine has fewer GPUs than processes.
    """
    if device_type(environment) == "cpu":
        return torch.device("cpu")
    local_rank, num_visible = int(environment["LOCAL_RANK"]), torch.cuda.device_count()
    num_here = max(int(environment.get(name, "1")) for name in _NUM_OF_LAUNCHER)
    if local_rank >= num_visible and (num_visible > 1 or num_here > 1):
        seen = f"{num_visible} GPU{'s' * (num_visible > 1)}"
        raise UserError(
            f"LOCAL_RANK = {local_rank}: this process sees {seen}, and each process needs one of its own; start fewer, "
            "bind a GPU to each (srun --gpus-per-task=1), or set DS_ACCELERATOR=cpu"
        )
    return torch.device("cuda", local_rank if local_rank < num_visible else 0)


def gpus_in_use() -> list[torch.device]:
    """The GPU of this process once it holds something, else none: ``fork_rng``'s devices. Touches no other GPU."""
    return [torch.device("cuda", torch.cuda.current_device())] if torch.cuda.is_initialized() else []
