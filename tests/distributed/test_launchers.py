"""What a process takes over from the launcher that started it, and what it refuses."""

import pytest

from fastadv.distributed.launchers import adopt_launcher, told_rank
from fastadv.errors import UserError

SRUN = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
MVAPICH = {name.replace("OMPI", "MV2"): value for name, value in MPIRUN.items()}
MPIEXEC = {"PMI_RANK": "3", "MPI_LOCALRANKID": "1", "PMI_SIZE": "4"}
# What a process is told of the one on its machine that started it: srun started one a machine.
OF_ITS_STARTER = {"SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}
OF_SRUNS_PMI = {"PMI_RANK": "3", "PMI_SIZE": "4"}
OF_SRUNS_PMIX = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "slurm.pmix.77.0"}


@pytest.mark.parametrize(
    "launcher",
    [
        SRUN,
        MPIRUN,
        MVAPICH,
        MPIEXEC,
        {**MPIRUN, **OF_ITS_STARTER},
        {**MPIEXEC, **OF_ITS_STARTER},
        {**MPIRUN, "PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-node1-5@1"},
        {**SRUN, **OF_SRUNS_PMI},
        {**SRUN, **OF_SRUNS_PMIX},
    ],
    ids=lambda launcher: "+".join(launcher),
)
def test_another_launchers_ranks_become_torchs(launcher):
    environment = dict(launcher)
    adopt_launcher(environment)
    assert environment == {**launcher, "RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    "environment",
    [
        {**SRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {**MPIRUN, "RANK": "2"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {**MPIRUN, "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
        {**SRUN, **OF_SRUNS_PMIX, "PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_PROCID": "0"},
        {},
    ],
    ids=lambda environment: "+".join(environment) or "none",
)
def test_a_process_alone_and_torchs_own_words_stay(environment):
    before = dict(environment)
    adopt_launcher(environment)
    assert environment == before


@pytest.mark.parametrize(
    "environment, named",
    [
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK = 1 and left OMPI_COMM_WO"),
        (OF_SRUNS_PMI, "PMI_RANK = 3 and left MPI_LOCALRANKID unset"),
        ({"PMI_RANK": "0"}, "PMI_RANK = 0 and left PMI_SIZE and MPI_LOCALRANKID unset"),
        ({"PMIX_RANK": "1"}, "PMIX_RANK = 1 and left no variable"),
        ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-node1-5@1", **SRUN}, "PMIX_RANK = 0 and left no variable"),
        ({"RANK": "-1"}, "RANK = '-1' in the environment: expected a whole number"),
        ({**SRUN, "SLURM_STEP_NUM_TASKS": "4(x2)"}, "SLURM_STEP_NUM_TASKS = '4(x2)' in the environment"),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_RANK": ""}, "LOCAL_RANK = '' in the environment"),
    ],
)
def test_what_would_train_alone_is_refused_in_one_line(environment, named):
    with pytest.raises(UserError) as caught:
        adopt_launcher(environment)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_rank_that_is_no_number_can_still_be_told_of():
    assert [told_rank(environment) for environment in ({"RANK": "2"}, {"RANK": "two"}, {})] == [2, 0, 0]
