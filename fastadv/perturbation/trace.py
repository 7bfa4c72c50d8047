"""What a search has done: its gradients, its losses, its faults; and what it would have done with fewer gradients."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fastadv.perturbation.search import Gradients, Search, State, Surroundings
from fastadv_kernels import direction, segment_norm
from fastadv_kernels.segment import segment_sum


@dataclass
class Trace:
    """Kept while a search runs.

    Args:
        around: the surroundings of the search.
        start: where it began.
        keeps_gradients: whether ``gradients`` holds those of all steps, (T, E) or more a step, or of the last alone.
    """

    around: Surroundings
    start: State
    keeps_gradients: bool = False
    gradients: list[Gradients] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    """summed over sentences, where each gradient was taken"""

    def __post_init__(self):
        batch = self.around.batch
        # (B,) int64: the inner step, from 1, whose gradient was not finite in that sentence first; 0 for never.
        self.nonfinite_step = torch.zeros(batch.num_sentences, dtype=torch.int64, device=batch.cu_seqlens.device)

    def add(self, step: int, grads: Gradients, loss: Tensor) -> None:
        """One gradient taken in inner step ``step``, counted from 1, and the loss there."""
        if not self.keeps_gradients:
            self.gradients.clear()
        self.gradients.append(grads)
        self.losses.append(loss)
        for grad in grads.delta:
            is_bad = ~segment_norm(grad, self.around.batch.cu_seqlens, "linf").isfinite()
            self.nonfinite_step = torch.where(is_bad & (self.nonfinite_step == 0), step, self.nonfinite_step)

    def gain(self, like: Tensor) -> Tensor:
        """Loss a sentence where the last gradient was taken, less that where the first one was; 0, of the type of
        ``like``, where none was taken."""
        if not self.losses:
            return like.new_zeros(())
        return (self.losses[-1] - self.losses[0]) / self.around.batch.num_sentences

    def end_with(self, search: Search, num_gradients: int) -> State:
        """Where ``search`` would have ended, had its steps after ``num_gradients`` reused the last of these gradients.

        The steps before are the same in both: no gradient is taken again.
        """
        state = self.start
        for step in range(1, search.num_steps + 1):
            state = search.move(state, step, self.gradients[min(step, num_gradients) - 1], self.around)
        return state

    def agreements(self) -> Tensor:
        """(B, N): min over u >= t of cos(g_t, g_u), the least a gradient agrees with all later ones of its sentence.

        Of gradients at several points the one that agrees least counts. Two gradients that are zero agree, and a
        sentence whose gradient is not finite, which does not move it either, counts as 1.

        Raises:
            ValueError: the gradients were not kept.
        """
        if not self.keeps_gradients:
            raise ValueError("the gradients were not kept")
        cu_seqlens = self.around.batch.cu_seqlens
        chains = zip(*(grads.delta for grads in self.gradients))
        units = [[direction(grad, "l2", cu_seqlens) for grad in of_chain] for of_chain in chains]
        columns = []
        for t in range(len(self.gradients)):
            least = torch.ones_like(self.nonfinite_step, dtype=units[0][0].dtype)
            for of_chain in units:
                for later in of_chain[t + 1 :]:
                    least = torch.minimum(least, _cosine(of_chain[t], later, cu_seqlens))
            columns.append(least)
        return torch.stack(columns, dim=1)


def _cosine(unit: Tensor, other: Tensor, cu_seqlens: Tensor) -> Tensor:
    """(B,) of two directions (T, E)."""
    cosine = segment_sum((unit * other).sum(dim=1), cu_seqlens)
    are_zero = (segment_norm(unit, cu_seqlens, "linf") == 0) & (segment_norm(other, cu_seqlens, "linf") == 0)
    return torch.where(cosine.isfinite() & ~are_zero, cosine, 1)
