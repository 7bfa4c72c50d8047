"""Calls of InfoNCE's Triton launchers, with what each should give: for compiling ahead, checking and timing.

Between them are all kernels that the launchers have for vectors of a size and dtype: with and without ids, with and
without hard negatives. How many rows and key sets there are makes no kernel of its own.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fastadv_kernels.info_nce import info_nce, info_nce_reference

TEMPERATURE = 0.05
OPTIONS = (TEMPERATURE, 16, "sum", 0.5, 2.0)
"""temperature, row_offset, multi_positive, hard_negative_weight, own_hard_negative_weight"""


def launch_forward(*inputs) -> Tensor:
    from fastadv_kernels import info_nce_triton

    return info_nce_triton.launch_forward(*inputs)[0]


def launch_step(grad_loss: Tensor, *inputs) -> tuple[Tensor, ...]:
    """Forward and backward, as a training step has them."""
    from fastadv_kernels import info_nce_triton

    negative = info_nce_triton.launch_forward(*inputs)[1]
    needs = (True, True, inputs[2] is not None)
    return info_nce_triton.launch_backward(grad_loss, negative, *inputs, *needs)[: sum(needs)]


def step_reference(grad_loss: Tensor, *inputs) -> tuple[Tensor, ...]:
    vectors = [x.detach().requires_grad_() for x in inputs[:3] if x is not None]
    with torch.enable_grad():
        loss = info_nce_reference(*vectors, *[None] * (3 - len(vectors)), *inputs[3:])
    return torch.autograd.grad(loss, vectors, grad_loss.to(loss.dtype))


def run_public(is_forward: bool, arguments: tuple[Any, ...], backend: str):
    """The public function on what a launcher is given, and for a step its backward."""
    grad_loss, inputs = (None, arguments) if is_forward else (arguments[0], arguments[1:])
    vectors = [None if x is None else x.detach().requires_grad_(not is_forward) for x in inputs[:3]]
    names = "query_ids key_ids hard_negative_ids temperature row_offset multi_positive".split()
    names += ["hard_negative_weight", "own_hard_negative_weight"]
    options = dict(zip(names, inputs[3:], strict=True))
    loss = info_nce(*vectors[:2], hard_negatives=vectors[2], reduction="none", backend=backend, **options)
    if is_forward:
        return loss
    return torch.autograd.grad(loss, [x for x in vectors if x is not None], grad_loss)


def calls(
    num_rows: int, num_keys: int, size: int, dtype: torch.dtype, device: str = "cpu"
) -> Iterator[tuple[str, Callable, tuple[Any, ...], Callable, int]]:
    """Label, launch, arguments, reference, and floating-point operations. ``num_keys`` is rows + 16 at least."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    def ids(length):
        return torch.randint(4 * num_keys, (length,), generator=generator).to(device)

    query, keys, hard = random(num_rows, size), random(1, num_keys, size), random(num_keys, size)
    grad_loss = torch.rand(num_rows, generator=generator).to(device)
    for label, hard_negatives, has_ids in (("", None, False), ("hard negatives", hard, False), ("ids", hard, True)):
        given = ids(num_rows), ids(num_keys), ids(num_keys)
        inputs = query, keys, hard_negatives, *(given if has_ids else (None, None, None)), *OPTIONS
        product = 2 * num_rows * num_keys * (1 if hard_negatives is None else 2) * size
        yield f"forward {label}".strip(), launch_forward, inputs, info_nce_reference, product
        yield f"step {label}".strip(), launch_step, (grad_loss, *inputs), step_reference, 4 * product
