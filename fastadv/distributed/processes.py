"""The processes of a run: how they find each other, who speaks, and what they agree on.

A rank is one process; each computes a share of every batch. Everything here but `is_first_rank` is called by all ranks
in the same order.
"""

import atexit
import importlib.util
import logging
import os
import platform
import time
import warnings
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Callable, Mapping, TypeVar

import torch
import torch.distributed as dist

from fastadv.distributed.devices import device_of_rank, device_type
from fastadv.distributed.launchers import adopt_launcher, told_rank
from fastadv.distributed.signals import Interrupted
from fastadv.errors import SaveFailed, UserError

T = TypeVar("T")

# What launchers (deepspeed, torchrun) set. Port 0 lets the operating system choose a free one, which only works because
# a lone process has nobody to tell it to.
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

_ON_MACHINE = "FASTADV_LOCAL_RANK"
"""This process's number on its machine, where LOCAL_RANK is its GPU's number instead."""

_PATIENCE_S = 5.0
"""Seconds that the end of a run waits for the threads that sent its last tensors."""


class OtherRankFailed(RuntimeError):
    """Another rank ended by an error while this one waited for it; that rank says by which."""


def import_deepspeed():
    """The deepspeed package, told to keep to the CPU where there is no GPU, and to keep quiet."""
    if device_type() == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    # It calls collectives by names that torch has since renamed; the user can do nothing about it.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    # Its warnings go to stdout and tear the progress bar; what matters among them (a skipped step) is raised here.
    logger.setLevel(logging.ERROR)
    if device_type() == "cpu":
        # Compiling the shared-memory reduction takes 40 s and a compiler, and gains nothing below several ranks. On a
        # GPU nothing asks for it, and to ask here would have DeepSpeed warn of each op that it cannot compile.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def require_training_platform() -> None:
    """Raises UserError where deepspeed is not installed. Looks for it without importing it, which takes seconds."""
    if importlib.util.find_spec("deepspeed") is not None:
        return
    without = "fastadv encode, evaluate and report, which need no deepspeed"
    system = platform.system()
    if system == "Linux":
        raise UserError(f"training needs deepspeed, which is not installed; pip install deepspeed, or {without}")
    name = "macOS" if system == "Darwin" else system or "an unknown platform"
    raise UserError(f"training needs deepspeed, which comes with fastadv on Linux alone; on {name}: {without}")


def init_distributed(timeout_minutes: float = 30.0) -> torch.device:
    """Joins or starts the process group, once a process, and returns this rank's device.

    Works under ``deepspeed``, ``torchrun``, ``mpirun`` and ``srun``, and in a bare Python process, whose missing
    variables are set here.

    Args:
        timeout_minutes: how long a rank waits for the others before it gives up.

    Raises:
        UserError: a launcher set some of its variables and not others, or a number that is none; the machine has
            fewer GPUs than processes.
    """
    adopt_launcher()
    missing = [name for name in _ALONE if name not in os.environ]
    if "RANK" in missing and "WORLD_SIZE" in missing:
        os.environ.update(_ALONE)
    elif missing:
        raise UserError(
            f"the launcher left {', '.join(missing)} unset; start with deepspeed, torchrun, plain python, or mpirun or "
            "srun with MASTER_ADDR and MASTER_PORT set"
        )
    device = device_of_rank()
    deepspeed = import_deepspeed()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        _tell_deepspeed_of(device)
    if not dist.is_initialized():
        deepspeed.init_distributed(
            dist_backend="nccl" if device.type == "cuda" else "gloo",
            auto_mpi_discovery=False,
            timeout=timedelta(minutes=timeout_minutes),
        )
        # Without a barrier: at exit another rank may be gone already.
        atexit.register(shutdown, wait=False)
    return device


def _tell_deepspeed_of(device: torch.device) -> None:
    """Makes LOCAL_RANK the number of the GPU, as which DeepSpeed reads it, where the process sees one GPU alone."""
    if os.environ["LOCAL_RANK"] == str(device.index):
        return
    os.environ[_ON_MACHINE] = os.environ["LOCAL_RANK"]
    for name in ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"):
        # It insists that both be equal.
        if name in os.environ:
            os.environ[name] = str(device.index)


def shutdown(wait: bool = True) -> None:
    """Leaves the process group; ``wait`` for the other ranks unless this one ends by an error."""
    if not dist.is_initialized():
        return
    import deepspeed.comm

    if wait:
        dist.barrier()
    deepspeed.comm.destroy_process_group()
    # DeepSpeed's engine keeps the groups, so their threads live on. One that has not yet let go of its last tensor when
    # the interpreter ends asks for the interpreter's lock, is not given it, and the process aborts. Sleeping gives it.
    until = time.monotonic() + _PATIENCE_S
    time.sleep(0.01)
    while time.monotonic() < until and threads_at_work("gloo"):
        time.sleep(0.01)


def threads_at_work(name: str) -> int:
    """How many threads of this process with ``name`` in theirs run or wait for a core; 0 where nothing lists them."""
    num = 0
    for file in Path("/proc/self/task").glob("*/stat"):
        with suppress(OSError):  # The thread has ended.
            # "id (name) state ...", and a name may hold brackets.
            its_name, _, rest = file.read_text().partition(" (")[2].rpartition(") ")
            num += name in its_name and rest.startswith("R")
    return num


def is_first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process writes files and speaks to the user; known before the process group exists."""
    return told_rank(environment) == 0


def is_first_on_machine() -> bool:
    """Whether this process is the first of those on its machine."""
    return int(os.environ.get(_ON_MACHINE) or os.environ.get("LOCAL_RANK", "0")) == 0


def world_size() -> int:
    """How many ranks there are: 1 outside a process group."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's number among them."""
    return dist.get_rank() if dist.is_initialized() else 0


def highest(value: int, device: torch.device) -> int:
    """The highest of all ranks' values."""
    if world_size() == 1:
        return value
    values = torch.tensor([value], device=device)
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return int(values.item())


def first_rank_only(action: Callable[[], T]) -> T:
    """Runs ``action`` on the first rank while the others wait, and returns its value (or its copy) on every rank.

    Raises:
        UserError, SaveFailed, Interrupted: that of the first rank, on every rank.
        OtherRankFailed: on the others, where it ended by any other error.
    """
    value, values = _run_and_tell(action, is_first_rank())
    return value if is_first_rank() else values[0]


def first_rank_first(action: Callable[[], T]) -> T:
    """Runs ``action`` on the first rank of each machine and then on the others, which find what it left on disk.

    Raises:
        UserError, SaveFailed, OtherRankFailed: as ``first_rank_only``, of whichever first rank failed.
    """
    is_mine = world_size() == 1 or is_first_on_machine()
    # What it gives may be large, and each rank makes its own.
    own = []
    _run_and_tell(lambda: own.append(action()), is_mine)
    return own[0] if is_mine else action()


def _run_and_tell(action, is_mine: bool):
    """Runs ``action`` where ``is_mine``: (its value, every rank's value); a failure of one rank is raised on all."""
    if world_size() == 1:
        return action(), []
    value, failure, error = None, None, None
    if is_mine:
        try:
            value = action()
        except BaseException as caught:
            error = caught
            failure = _to_tell(caught)
    told = from_all_ranks((failure, value))
    if error is not None:
        raise error
    for failure, _ in told:
        if failure is not None:
            raise failure
    return value, [value for _, value in told]


def _to_tell(caught: BaseException) -> BaseException:
    """What the other ranks raise where one has raised ``caught``."""
    if isinstance(caught, Interrupted):
        return Interrupted(str(caught), caught.signal_number)
    for kind in (UserError, SaveFailed):
        if isinstance(caught, kind):
            return kind(str(caught))
    return OtherRankFailed("another rank ended by an error")


def from_all_ranks(value: T) -> list[T]:
    """Every rank's value, on every rank, by rank."""
    if world_size() == 1:
        return [value]
    values = [None] * world_size()
    # Pickled, but by the ranks of this very run.
    dist.all_gather_object(values, value)
    return values


def mean_over_ranks(values: dict[str, tuple[float, int]]) -> dict[str, float]:
    """Name → sum over all ranks over count over all ranks, of (sum, count) by name; names may differ by rank."""
    if world_size() == 1:
        return {name: total / count for name, (total, count) in values.items()}
    parts = from_all_ranks(values)
    names = dict.fromkeys(name for part in parts for name in part)
    sums = {name: [part[name] for part in parts if name in part] for name in names}
    return {name: sum(total for total, _ in found) / sum(n for _, n in found) for name, found in sums.items()}
