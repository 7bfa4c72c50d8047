"""The loss of a step whose inner steps train (``reuse: free``; the passes are ``fastadv/perturbation/freelb.py``'s).

Each pass is the objective's own loss with z_adv = f(X + delta_t + eta_t), one dropout mask for all passes. The clean
views z and z+ serve every pass: their gradients are summed over passes and backpropagated once, by the caller's
``backward``, as are those of X and of the parameters.
"""

from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from typing import Callable

import torch
from torch import Tensor

from fastadv.distributed.zero import is_cut_up
from fastadv.engine.step.dropout_replay import DropoutReplay
from fastadv.engine.step.inner_loss import kept_buffers
from fastadv.engine.step.passes import Passes
from fastadv.engine.step.views import with_adversarial
from fastadv.objectives.base import EditedView, Keys, Objective, Views
from fastadv.perturbation import Adversary, Perturbation
from fastadv.perturbation.freelb import free_passes, with_gradients
from fastadv.perturbation.trace import Trace


def free_loss(
    passes: Passes,
    objective: Objective,
    adversary: Adversary,
    x: Tensor,
    views: Views,
    eta: Tensor | None,
    see_last: Callable[[Tensor], None],
) -> tuple[Tensor, dict[str, Tensor], Perturbation]:
    """The mean of the passes' losses, with a graph that delivers their gradients.

    Args:
        x: (T, E) X of the clean pass.
        views: the clean ones, with their graphs.
        eta: (T, E) start of the token-level perturbation, or None.
        see_last: told z_adv (B, D) of the last pass.

    Returns:
        the loss (a scalar); its terms, means over passes; and the last pass's perturbation.
    """
    encoder, batch, leaves = passes.encoder, views.batch, _Leaves()
    parameters = [p for module in (encoder, objective) for p in module.parameters() if p.requires_grad]
    # At ZeRO stage 3 a parameter is whole where a pass runs forward or backward, and nowhere else takes a gradient. So
    # the last pass leaves its one backward to the engine, and what the others found arrives with it.
    keeps_last = is_cut_up(encoder)
    num_passes = adversary.moves.num_steps
    shared = replace(
        views,
        query=leaves.of(views.query),
        pooled=leaves.of(views.pooled),
        positive_keys=leaves.of_keys(views.positive_keys),
        text=leaves.of_text(views.text),
        flip=leaves.of_text(views.flip),
    )
    terms: dict[str, list[Tensor]] = defaultdict(list)
    raised: list[Tensor] = []
    trace = Trace(*adversary.start(x.detach(), batch, eta))
    # After the start, which draws numbers too.
    masks = DropoutReplay(x.device)

    def loss_of_pass(points: Tensor, t: int) -> Tensor:
        is_first, is_last = t == 1, t == num_passes
        with nullcontext() if is_first else masks.again(), nullcontext() if is_first else kept_buffers(objective):
            tokens = None
            if objective.needs.adversarial.tokens:
                # In every pass: where first tokens alone are encoded, the last layer's masks are of another shape.
                pooled, tokens = encoder.encode_with_tokens(points, batch)
                tokens = tokens if is_last else None
            else:
                pooled = encoder.encode(points, batch)
            last_pass = float(num_passes) if is_last else 0.0
            of_pass = replace(views if keeps_last and is_last else shared, last_pass=last_pass)
            of_pass = with_adversarial(of_pass, objective, views.ranks, pooled, tokens)
            loss, found = objective.loss(of_pass)
        if is_last:
            see_last(of_pass.adversarial)
        for name, value in found.items():
            terms[name].append(value)
        if objective.needs.adversarial.raised_term is not None:
            raised.append(found[objective.needs.adversarial.raised_term])
        return loss

    outcome = free_passes(adversary, trace, x, loss_of_pass, [*leaves.made, *parameters], keeps_last, raised)
    of_views, of_parameters = outcome.by_inputs[: len(leaves.made)], outcome.by_inputs[len(leaves.made) :]
    # Views that no pass's loss has read get none, and frozen embeddings have no graph to X.
    read = [(view, grad) for view, grad in zip(leaves.originals, of_views, strict=True) if grad is not None]
    read += [(x, outcome.by_x)] if x.requires_grad else []
    delivered = [*[view for view, _ in read], *parameters]
    loss = with_gradients(outcome.value, delivered, [*[grad for _, grad in read], *of_parameters])
    if outcome.last is not None:
        loss = loss + outcome.last
    return loss, {name: torch.stack(values).mean() for name, values in terms.items()}, outcome.found


class _Leaves:
    """Views cut from their graphs, whose gradients are collected first and handed on to the graphs later."""

    def __init__(self):
        self.originals: list[Tensor] = []
        self.made: list[Tensor] = []

    def of(self, view: Tensor | None) -> Tensor | None:
        if view is None or not view.requires_grad:
            return view
        known = next((made for original, made in zip(self.originals, self.made) if original is view), None)
        if known is not None:
            # h, where z is h itself.
            return known
        self.originals.append(view)
        self.made.append(view.detach().requires_grad_())
        return self.made[-1]

    def of_text(self, view: EditedView | None) -> EditedView | None:
        if view is None:
            return None
        return replace(view, query=self.of(view.query), pooled=self.of(view.pooled), keys=self.of_keys(view.keys))

    def of_keys(self, keys: Keys | None) -> Keys | None:
        if keys is None:
            return None
        hard = keys.hard_negatives
        return replace(keys, vectors=self.of(keys.vectors), hard_negatives=None if hard is None else self.of(hard))
