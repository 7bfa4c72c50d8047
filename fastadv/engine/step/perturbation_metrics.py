"""How large perturbations are: scalars that stay on the device."""

from torch import Tensor

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation import Perturbation
from fastadv.perturbation.ball import active_tokens
from fastadv_kernels import row_norm, segment_norm


def norm_sums(
    found: Perturbation, batch: PackedBatch, config: PerturbationConfig
) -> dict[str, tuple[Tensor, int | Tensor]]:
    """Sums and counts of norms in P, the norm of ``config``, by the name of their mean:

    * delta_norm: over sentences, of ||delta||_P over all tokens and entries of a sentence.
    * eta_norm: over perturbed tokens, of ||eta_i||_P over E.
    """
    of_delta = segment_norm(found.delta, batch.cu_seqlens, config.norm)
    sums = {"delta_norm": (of_delta.sum(), batch.num_sentences)}
    if found.eta is not None:
        active = active_tokens(batch, config)
        sums["eta_norm"] = row_norm(found.eta, config.norm).sum(), batch.num_tokens if active is None else active.sum()
    return sums
