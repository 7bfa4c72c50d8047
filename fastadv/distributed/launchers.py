"""Which process of a run this one is, in the words of the launcher that started it.

``deepspeed`` and ``torchrun`` say it in torch's own variables (RANK, LOCAL_RANK, WORLD_SIZE), others in theirs. A
launcher's words that are passed over would let each of its processes train alone, all of them into one run folder.
"""

import os
from typing import Mapping, MutableMapping

from fastadv.errors import UserError

# A process's number among all, how many there are, its number on its machine: as mpirun of Open MPI, mpirun_rsh of
# MVAPICH2, mpiexec of MPICH and Intel MPI, and Slurm's srun say it. A launcher of MPI that Slurm started comes before
# Slurm, whose variables are then those of the one process a machine that starts the others.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")
_TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def adopt_launcher(environment: MutableMapping[str, str] = os.environ) -> None:
    """Takes RANK, WORLD_SIZE and LOCAL_RANK from another launcher's variables where RANK is not set.

    Nothing is changed where the launcher started one process. No launcher named here says where the processes meet:
    the user sets MASTER_ADDR and MASTER_PORT (docs/several-gpus.md).

    Raises:
        UserError: a launcher says that this is one of several processes, and not all that is needed of it; or a
            variable is no number.
    """
    if "RANK" not in environment:
        names = _said_by_launcher(environment)
        if names is not None and _number(environment, names[1]) > 1:
            environment.update({ours: environment[theirs] for ours, theirs in zip(_TORCH, names, strict=True)})
    for name in _TORCH:
        if name in environment:
            _number(environment, name)


def told_rank(environment: Mapping[str, str] = os.environ) -> int:
    """This process's number as its environment has it: 0 alone, and where RANK is no number, which is refused later."""
    text = environment.get("RANK", "0")
    return int(text) if _is_number(text) else 0


def _said_by_launcher(environment: Mapping[str, str]) -> tuple[str, str, str] | None:
    """The variables to read, all of them set; None where no launcher has spoken."""
    for names in _LAUNCHERS:
        rank, size, _ = names
        # srun speaks PMI, too, and leaves the number on the machine to its own variable.
        is_of_srun = [environment.get(name) for name in names[:2]] == [environment.get(name) for name in _SLURM[:2]]
        if rank not in environment or is_of_srun:
            continue
        missing = [name for name in names if name not in environment]
        if missing and environment.get(size) != "1":
            raise _refusal(rank, environment, f"{' and '.join(missing)} unset")
        return names
    # PMIx tells a process its number and nobody the number of processes; srun's own names its job after Slurm.
    if "PMIX_RANK" in environment and not environment.get("PMIX_NAMESPACE", "").startswith("slurm."):
        raise _refusal("PMIX_RANK", environment, "no variable that says how many processes there are")
    return _SLURM if all(name in environment for name in _SLURM) else None


def _refusal(rank: str, environment: Mapping[str, str], what: str) -> UserError:
    return UserError(
        f"the launcher set {rank} = {environment[rank]} and left {what}; set RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR "
        "and MASTER_PORT for each process, or start with deepspeed, torchrun, mpirun, srun or plain python"
    )


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not _is_number(text):
        raise UserError(f"{name} = {text!r} in the environment: expected a whole number of at least 0")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
