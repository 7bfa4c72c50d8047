"""What a search has done: its gradients, its losses, its faults; and what it would have done with fewer gradients."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastadv.perturbation.chains import Chains, Gradients
from fastadv_kernels import direction, segment_norm
from fastadv_kernels.segment import segment_sum


@dataclass
class Trace:
    """Kept while a search runs.

    Args:
        start: where the search began.
        keeps_gradients: whether ``gradients`` holds all of them, (T, E) and more a step, and not the last alone.
    """

    start: Chains
    keeps_gradients: bool = False
    gradients: list[Gradients] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    """summed over sentences, where each gradient was taken"""

    def __post_init__(self):
        batch = self.start.around.batch
        # (B,) int64: the inner step, from 1, whose gradient was not finite in that sentence first; 0 for never.
        self.nonfinite_step = torch.zeros(batch.num_sentences, dtype=torch.int64, device=batch.cu_seqlens.device)

    def add(self, step: int, grads: Gradients, loss: Tensor) -> None:
        """One gradient taken in inner step ``step``, counted from 1, and the loss there."""
        if not self.keeps_gradients:
            self.gradients.clear()
        self.gradients.append(grads)
        self.losses.append(loss)
        for grad in grads.of_chains():
            is_bad = ~segment_norm(grad, self.start.around.batch.cu_seqlens, "linf").isfinite()
            self.nonfinite_step = torch.where(is_bad & (self.nonfinite_step == 0), step, self.nonfinite_step)

    @property
    def gain(self) -> Tensor:
        """Loss a sentence where the last gradient was taken, less that where the first one was."""
        num_sentences = self.start.around.batch.num_sentences
        if not self.losses:
            return self.start.delta.new_zeros(())
        return (self.losses[-1] - self.losses[0]) / num_sentences

    def agreements(self) -> Tensor:
        """(B, N): min over u >= t of cos(g_t, g_u), the least a gradient agrees with all later ones of its sentence.

        Separate gradients count by the chain that agrees less. Two gradients that are zero agree, and a sentence whose
        gradient is not finite, which is not moved by it either, has no say: 1.
        """
        if not self.keeps_gradients:
            raise ValueError("the gradients were not kept")
        cu_seqlens = self.start.around.batch.cu_seqlens
        chains = [[grads.pgd for grads in self.gradients]]
        if any(grads.pgd is not grads.fgsm for grads in self.gradients):
            chains.append([grads.fgsm for grads in self.gradients])
        units = [[direction(grad, "l2", cu_seqlens) for grad in grads] for grads in chains]
        columns = []
        for t in range(len(self.gradients)):
            least = torch.ones_like(self.nonfinite_step, dtype=units[0][0].dtype)
            for of_chain in units:
                for later in of_chain[t + 1 :]:
                    least = torch.minimum(least, _cosine(of_chain[t], later, cu_seqlens))
            columns.append(least)
        return torch.stack(columns, dim=1)

    def end_with(self, num_gradients: int, num_steps: int) -> Chains:
        """Where the search would have ended, had its steps after ``num_gradients`` reused the last of these.

        The steps before are the same in both: no gradient is taken anew.
        """
        chains = self.start
        for step in range(1, num_steps + 1):
            chains = chains.move(step, self.gradients[min(step, num_gradients) - 1])
        return chains


def _cosine(unit: Tensor, other: Tensor, cu_seqlens: Tensor) -> Tensor:
    """(B,) of two directions (T, E)."""
    cosine = segment_sum((unit * other).sum(dim=1), cu_seqlens)
    are_zero = (segment_norm(unit, cu_seqlens, "linf") == 0) & (segment_norm(other, cu_seqlens, "linf") == 0)
    return torch.where(cosine.isfinite() & ~are_zero, cosine, 1)
