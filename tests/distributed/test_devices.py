"""Which device a process computes on, where GPUs are pretended."""

import pytest
import torch

from fastadv.distributed import processes
from fastadv.distributed.devices import device_of_rank, device_type, gpus_in_use
from fastadv.errors import UserError


@pytest.fixture
def gpus(monkeypatch):
    """``gpus(2)``: torch sees two GPUs."""

    def see(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)

    return see


@pytest.mark.parametrize(
    "num_gpus, named, found",
    [(1, None, "cuda"), (0, None, "cpu"), (1, "cpu", "cpu"), (0, "cpu", "cpu"), (1, "cuda", "cuda")],
)
def test_a_gpu_is_used_where_there_is_one_unless_deepspeed_s_variable_says_otherwise(num_gpus, named, found, gpus):
    gpus(num_gpus)
    environment = {} if named is None else {"DS_ACCELERATOR": named}
    assert device_type(environment) == found
    assert device_of_rank({**environment, "LOCAL_RANK": "0"}) == torch.device(found, *[0] * (found == "cuda"))


@pytest.mark.parametrize("named, words", [("cuda", "torch sees no GPU"), ("", "expected cpu or cuda"), ("xpu", "cuda")])
def test_a_variable_that_cannot_be_followed_is_refused(named, words, gpus):
    gpus(0)
    with pytest.raises(UserError, match=f"^DS_ACCELERATOR = .*{words}"):
        device_type({"DS_ACCELERATOR": named})


@pytest.mark.parametrize(
    "num_gpus, local_rank, beside, index",
    [
        (2, "1", {"LOCAL_WORLD_SIZE": "2"}, 1),
        # What a launcher has bound to a task is the only one that it sees.
        (1, "3", {}, 0),
        (1, "3", {"LOCAL_WORLD_SIZE": "1"}, 0),
    ],
)
def test_a_process_takes_its_own_gpu_or_the_one_bound_to_it(num_gpus, local_rank, beside, index, gpus):
    gpus(num_gpus)
    assert device_of_rank({"LOCAL_RANK": local_rank, **beside}) == torch.device("cuda", index)


@pytest.mark.parametrize("num_gpus, beside", [(2, {}), (1, {"LOCAL_WORLD_SIZE": "4"}), (1, {"LOCAL_SIZE": "4"})])
def test_more_processes_than_gpus_are_refused(num_gpus, beside, gpus):
    gpus(num_gpus)
    with pytest.raises(UserError, match=f"^LOCAL_RANK = 3: this process sees {num_gpus} GPU") as caught:
        device_of_rank({"LOCAL_RANK": "3", **beside})
    assert "\n" not in str(caught.value)


def test_deepspeed_is_told_the_bound_gpu_and_the_machine_keeps_its_first_rank(monkeypatch):
    """DeepSpeed takes LOCAL_RANK for the number of a GPU, and insists that Open MPI's variable has the same."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "3")
    monkeypatch.setenv("FASTADV_LOCAL_RANK", "")
    gpu = torch.device("cuda", 0)
    for _ in range(2):  # Two runs of one process.
        processes._tell_deepspeed_of(gpu)
        assert processes.os.environ["LOCAL_RANK"] == processes.os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] == "0"
        assert not processes.is_first_on_machine()
    monkeypatch.setenv("FASTADV_LOCAL_RANK", "")
    assert processes.is_first_on_machine()


def test_a_gpu_that_holds_nothing_is_left_alone(gpus, monkeypatch):
    gpus(2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("it would begin to use the GPU"))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert gpus_in_use() == []
