"""The pretended GPU refuses, waits and draws as a GPU does; without that the other checks would show nothing."""

import pytest
import torch
import torch.distributed as dist

from fastadv.distributed import processes
from tests.gpu.device.watching import watching


def test_fresh_memory_is_nan():
    assert torch.empty(3, device="cuda").isnan().all()
    assert not torch.zeros(3, device="cuda").isnan().any()


@pytest.mark.parametrize(
    "mix",
    [
        lambda device, host: device + host,
        lambda device, host: device @ host,
        lambda device, host: torch.cat([device, host]),
        lambda device, host: device.copy_(host) + torch.nn.functional.linear(host, device),
        lambda device, host: torch.where(host > 0, device, 0.0),
    ],
)
def test_tensors_of_two_devices_do_not_meet(mix):
    with pytest.raises(RuntimeError, match="same device"):
        mix(torch.ones(2, 2, device="cuda"), torch.ones(2, 2))


def test_numbers_and_indices_may_lie_on_the_host():
    x = torch.arange(6.0, device="cuda")
    assert (x * torch.tensor(2.0)).device == x.device
    with watching() as seen:
        taken = x[torch.tensor([1, 4])]
    assert taken.tolist() == [1.0, 4.0] and len(seen.waits()) == 1


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x.nonzero(),
        lambda x: x[x > 1],
        lambda x: x.unique(),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(x.long()),
        lambda x: torch.tensor([1.0], device="cuda"),
        lambda x: torch.ones(2).to("cuda"),
        lambda x: torch.cuda.synchronize(),
        lambda x: torch.cuda.Event().synchronize(),
    ],
)
def test_what_makes_the_host_wait_is_told(wait):
    x = torch.arange(4.0, device="cuda")
    with watching() as seen:
        wait(x)
    assert len(seen.waits()) >= 1


@pytest.mark.parametrize(
    "launch",
    [
        lambda x: x.softmax(0) @ x,
        lambda x: torch.where(x > 1, x, 0.0).sum(),
        lambda x: torch.repeat_interleave(x, 2, output_size=8),
        lambda x: x[torch.arange(2, device="cuda")],
        lambda x: torch.ones(4).pin_memory().to("cuda", non_blocking=True),
        lambda x: torch.nn.functional.dropout(x, 0.5),
    ],
)
def test_what_does_not_is_not(launch):
    x = torch.arange(4.0, device="cuda")
    with watching() as seen:
        launch(x)
    assert not seen.waits()


def test_operations_are_counted():
    x = torch.ones(3, device="cuda")
    with watching() as seen:
        (x * 2).exp_()
    assert seen.counts == {"aten::mul.out": 1, "aten::exp.out": 1} and seen.num_operations() == 2


def test_each_device_has_its_own_random_numbers():
    torch.manual_seed(3)
    drawn, of_host = torch.rand(4, device="cuda"), torch.rand(4)
    state = torch.cuda.get_rng_state()
    following = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), following)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(4), of_host) and torch.equal(torch.rand(4, device="cuda"), drawn)


def test_gradients_stay_on_the_device():
    x = torch.randn(2, 3, 4, 8, device="cuda", requires_grad=True)
    mask = torch.zeros(2, 1, 4, 4, device="cuda")
    with watching() as seen:
        torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask).sum().backward()
    assert x.grad.device == x.device and x.grad.isfinite().all()
    assert seen.counts["aten::_scaled_dot_product_efficient_attention_backward"] == 1


def test_nccl_takes_contiguous_tensors_of_its_device_alone():
    device = processes.init_distributed()
    assert device == torch.device("cuda", 0) and dist.get_backend() == "nccl"
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(1))
    with pytest.raises(RuntimeError, match="contiguous"):
        dist.all_reduce(torch.ones(2, 3, device=device).T)
    x = torch.full((2,), 3.0, device=device)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    assert x.tolist() == [3.0, 3.0]
