"""``info_nce``'s fast forms as ops of torch.library, and their derivatives.

``info_nce`` gives rows' losses and keeps one log-sum-exp a row for ``info_nce_backward``, which computes the
logits anew. ``info_nce_total`` gives their weighted sum and forms its gradients at once, where the logits are still at
hand. None has a second derivative: asking for one raises.
"""

from typing import Optional

import torch
from torch import Tensor

from . import info_nce_blocked
from .backend import Form
from .library import LIBRARY, define_op, run_op, triton_launcher

_HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
_FORMS = {
    "native_form": Form("cpu", _HALF_AND_SINGLE, has_derivative=True),
    "triton_form": Form("cuda", _HALF_AND_SINGLE, has_derivative=True),
}

_INPUTS = (
    "Tensor query, Tensor keys, Tensor? hard_negatives, Tensor? query_ids, Tensor? key_ids, "
    "Tensor? hard_negative_ids, float temperature, int row_offset, str multi_positive, float hard_negative_weight, "
    "float own_hard_negative_weight"
)
_NEEDS = "bool needs_query, bool needs_keys, bool needs_hard"
_NUM_INPUTS = 11


def _forward_fake(query, keys, hard_negatives, *rest):
    num_groups = keys.shape[0] if rest[5] == "separate" else 1
    single = {"dtype": torch.float32}
    return query.new_empty(query.shape[0], **single), query.new_empty(num_groups, query.shape[0], **single)


def _grads_fake(inputs, needs, dtype=None):
    def like(x, is_needed):
        if not is_needed:
            shape = (0,)
            # What is not asked for is float32 where there is nothing to take a dtype from.
            return inputs[0].new_empty(shape, dtype=dtype or (torch.float32 if x is None else x.dtype))
        return x.new_empty(x.shape, dtype=dtype or x.dtype)

    return tuple(like(x, is_needed) for x, is_needed in zip(inputs, needs, strict=True))


def _backward_fake(grad_loss, negative, query, keys, hard_negatives, *rest):
    return _grads_fake((query, keys, hard_negatives), rest[-3:])


def _total_fake(factor, query, keys, hard_negatives, *rest):
    loss = factor.new_empty(query.shape[0], dtype=torch.float32)
    return loss.new_empty(()), loss, *_grads_fake((query, keys, hard_negatives), rest[-3:], torch.float32)


def _total_backward_fake(grad_total, grad_query, grad_keys, grad_hard, query, keys, hard_negatives):
    grads, inputs = (grad_query, grad_keys, grad_hard), (query, keys, hard_negatives)
    return tuple(g.new_empty(g.shape, dtype=g.dtype if x is None else x.dtype) for g, x in zip(grads, inputs))


def _total_backward(grad_total, grad_query, grad_keys, grad_hard, query, keys, hard_negatives):
    grads, inputs = (grad_query, grad_keys, grad_hard), (query, keys, hard_negatives)
    return tuple((g * grad_total).to(g.dtype if x is None else x.dtype) for g, x in zip(grads, inputs))


define_op(
    f"info_nce({_INPUTS}) -> (Tensor, Tensor)",
    _forward_fake,
    info_nce_blocked.forward,
    "info_nce_triton:launch_forward",
    **_FORMS,
)
define_op(
    f"info_nce_backward(Tensor grad_loss, Tensor negative, {_INPUTS}, {_NEEDS}) -> (Tensor, Tensor, Tensor)",
    _backward_fake,
    info_nce_blocked.backward,
    "info_nce_triton:launch_backward",
    **_FORMS,
)
define_op(
    f"info_nce_total(Tensor factor, {_INPUTS}, {_NEEDS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _total_fake,
    info_nce_blocked.total,
    **_FORMS,
)
# The inputs come along so that what it returns depends on them in autograd's eyes.
define_op(
    "info_nce_total_backward(Tensor grad_total, Tensor grad_query, Tensor grad_keys, Tensor grad_hard, "
    "Tensor query, Tensor keys, Tensor? hard_negatives) -> (Tensor, Tensor, Tensor)",
    _total_backward_fake,
    _total_backward,
    **_FORMS,
)


def _save_rows(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:6], output[1])
    ctx.options = inputs[6:]
    ctx.mark_non_differentiable(output[1])


def _rows_backward(ctx, grad_loss, _, backend="native"):
    *tensors, negative = ctx.saved_tensors
    needs = ctx.needs_input_grad[:3]
    grads = run_op("info_nce_backward", backend, grad_loss, negative, *tensors, *ctx.options, *needs)
    asked_for = [grad if is_needed else None for grad, is_needed in zip(grads, needs, strict=True)]
    return *asked_for, *[None] * (_NUM_INPUTS - 3)


def _save_total(ctx, inputs, output):
    _, loss, *grads = output
    ctx.save_for_backward(loss, *grads, *inputs[1:4])
    ctx.mark_non_differentiable(loss, *grads)
    # Else the backward pass is given zeros as large as the gradients, for outputs that have none.
    ctx.set_materialize_grads(False)


def _total_autograd(ctx, grad_total, *_):
    loss, *tensors = ctx.saved_tensors
    needs = ctx.needs_input_grad
    grads = torch.ops.fastadv.info_nce_total_backward(grad_total, *tensors)
    by_factor = grad_total * loss if needs[0] else None
    asked_for = [grad if is_needed else None for grad, is_needed in zip(grads, needs[1:4], strict=True)]
    return by_factor, *asked_for, *[None] * _NUM_INPUTS


def _no_second_derivative(ctx, *_):
    raise RuntimeError("info_nce: its fast forms have no second derivative; use backend reference")


def _register(op, backward, setup_context=None):
    torch.library.register_autograd(f"fastadv::{op}", backward, setup_context=setup_context, lib=LIBRARY)


_register("info_nce", _rows_backward, _save_rows)
_register("info_nce_total", _total_autograd, _save_total)
_register("info_nce_backward", _no_second_derivative)
_register("info_nce_total_backward", _no_second_derivative)


class _TritonOnCpu(torch.autograd.Function):
    """The Triton form where a CPU stands in for the GPU, and torch's dispatcher would take the CPU's form."""

    @staticmethod
    def forward(*inputs):
        return triton_launcher("info_nce")(*inputs)

    setup_context = staticmethod(_save_rows)

    @staticmethod
    def backward(ctx, grad_loss, _):
        return _rows_backward(ctx, grad_loss, _, backend="triton")


def rows(backend: str, *inputs) -> Tensor:
    """The rows' losses (N,), differentiable. Inputs as the op takes them."""
    if backend == "triton" and inputs[0].device.type != "cuda":
        return _TritonOnCpu.apply(*inputs)[0]
    return torch.ops.fastadv.info_nce(*inputs)[0]


def total(factor: Tensor, query: Tensor, keys: Tensor, hard_negatives: Optional[Tensor], *rest) -> Tensor:
    """Sum over the rows of factor (N,) · loss, differentiable."""
    needs = [x is not None and x.requires_grad for x in (query, keys, hard_negatives)]
    return torch.ops.fastadv.info_nce_total(factor, query, keys, hard_negatives, *rest, *needs)[0]
