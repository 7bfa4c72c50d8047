"""``reuse: free``: every pass of the search is a pass of the training too (FreeLB, METHODS 1).

    for t = 1 ... N:   value_t, (g, gradients by everything else) = one forward and one full backward at X + delta_t
                       each adds 1/N of its gradients;  delta moves along g after passes 1 ... N - 1

So the N perturbed points all train, and no pass is made for the search alone. What is lowered is the mean of the N
losses, another thing than the loss at the last point, which ``exact`` lowers.
"""

from dataclasses import dataclass
from typing import Callable, Optional, Sequence

import torch
from torch import Tensor

from fastadv.perturbation.ball import wide
from fastadv.perturbation.inner_loop import Adversary, Perturbation
from fastadv.perturbation.search import Gradients, perturbed
from fastadv.perturbation.trace import Trace

PassLoss = Callable[[Tensor, int], Tensor]
"""(points (T, E), pass from 1) → the loss that training lowers, a scalar"""


@dataclass(frozen=True)
class FreePasses:
    """What N passes found: constants, but for ``last``."""

    value: Tensor
    """scalar: 1/N of the losses of the passes whose gradients were taken"""
    by_x: Optional[Tensor]
    """(T, E) the gradient of ``value`` by X; None where no gradient was taken"""
    by_inputs: list[Optional[Tensor]]
    """those by the inputs, None where an input has no say; all are summed in float32 at least"""
    last: Optional[Tensor]
    """scalar: 1/N of the last pass' loss with its graph, where that was kept, and its gradients were not taken"""
    found: Perturbation
    """the last pass' perturbation"""


def free_passes(
    adversary: Adversary,
    trace: Trace,
    x: Tensor,
    loss: PassLoss,
    inputs: Sequence[Tensor],
    keeps_last: bool = False,
    raised: Optional[Sequence[Tensor]] = None,
) -> FreePasses:
    """N passes, N of the adversary's search.

    Args:
        adversary: moves the perturbation.
        trace: says where it begins, and takes down what is done.
        x: (T, E) embeddings.
        loss: its gradient by the points moves the perturbation; only its direction counts, not its size.
        inputs: what the gradients are wanted by, beside ``x``: parameters, and views that all passes share.
        keeps_last: leave the last pass with its graph, back to ``x`` itself, to the caller's backward. Whether its
            gradient is finite is then not looked at here.
        raised: what the trace takes for each pass's loss, appended by ``loss``, where that has terms the search does
            not raise.
    """
    search, around, state = adversary.moves, trace.around, trace.start
    num_passes, num_sentences = search.num_steps, around.batch.num_sentences
    values: list[Tensor] = []
    sums: list[Optional[Tensor]] = [None] * (1 + len(inputs))
    last: Optional[Tensor] = None
    for t in range(1, num_passes + 1):
        if keeps_last and t == num_passes:
            point = perturbed(x, search.shift(state))
            with torch.enable_grad():
                value = loss(point if point.requires_grad else point.requires_grad_(), t)
                last = value / num_passes
            trace.losses.append((raised[-1] if raised else value.detach()) * num_sentences)
            break
        point = perturbed(x.detach(), search.shift(state)).requires_grad_()
        with torch.enable_grad():
            value = loss(point, t)
            grads = torch.autograd.grad(value, [point, *inputs], allow_unused=True)
        for i, grad in enumerate(grads):
            if grad is not None:
                part = grad.to(wide(grad.dtype)) / num_passes
                sums[i] = part if sums[i] is None else sums[i].add_(part)
        grad = Gradients.shared(around.of_active(grads[0]))
        values.append(value.detach())
        # A trace has sums over sentences, a pass's loss is a mean.
        trace.add(t, grad, (raised[-1] if raised else values[-1]) * num_sentences)
        del grads, value
        if t < num_passes:
            state = search.move(state, t, grad, around)
    wide_type = wide(x.dtype)
    value = torch.stack(values).to(wide_type).sum() / num_passes if values else x.new_zeros((), dtype=wide_type)
    return FreePasses(value, sums[0], sums[1:], last, Perturbation.of(search, state, trace))


def with_gradients(value: Tensor, inputs: Sequence[Tensor], gradients: Sequence[Optional[Tensor]]) -> Tensor:
    """``value`` (a scalar), whose gradients by ``inputs`` are the given ones, once: a graph in one piece.

    So gradients that were found without ``backward`` reach the graphs behind the inputs, and the parameters' hooks,
    when the loss they belong to is backpropagated.
    """
    return _WithGradients.apply(value, list(gradients), *inputs)


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value, gradients, *inputs):
        ctx.gradients, ctx.dtypes = gradients, [x.dtype for x in inputs]
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        # Dropped one by one: there is room for one set of gradients, not two.
        gradients, ctx.gradients = ctx.gradients, None
        found = []
        for i, dtype in enumerate(ctx.dtypes):
            part, gradients[i] = gradients[i], None
            found.append(None if part is None else part.mul_(grad).to(dtype))
        return None, None, *found
