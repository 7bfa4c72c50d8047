"""How large perturbations are: scalars that stay on the device."""

from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.perturbation import Perturbation
from fastadv_kernels import row_norm, segment_norm


def norm_sums(found: Perturbation, batch: PackedBatch) -> dict[str, tuple[Tensor, int | Tensor]]:
    """Sums and counts of norms in the search's norm P, by the name of their mean:

    * delta_norm: over sentences, of ||delta||_P over all tokens and entries of a sentence.
    * eta_norm: over perturbed tokens, of ||eta_i||_P over E.
    """
    around = found.trace.around
    of_delta = segment_norm(found.delta, batch.cu_seqlens, around.plan.norm)
    sums = {"delta_norm": (of_delta.sum(), batch.num_sentences)}
    if found.eta is not None:
        num_tokens = batch.num_tokens if around.active is None else around.active.sum()
        sums["eta_norm"] = row_norm(found.eta, around.plan.norm).sum(), num_tokens
    return sums
