"""How far a perturbation may go, and how far one step takes it.

Radii and steps are given absolutely or as multiples of the size of a sentence's own embeddings, so that one setting
means the same for every encoder. Shapes: ``B`` sentences, ``T`` packed tokens, ``E`` embedding size.
"""

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from fastadv.config.search_plan import SearchPlan
from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError
from fastadv_kernels import segment_norm


@dataclass(frozen=True)
class Sizes:
    """Radii and steps of every sentence, each (B,); a radius of None is no ball."""

    epsilon: Optional[Tensor]
    """ball of delta, over all tokens of a sentence"""
    epsilon_token: Optional[Tensor]
    """ball of eta, of each token of a sentence"""
    alpha: Tensor
    """PGD step"""
    beta: Tensor
    """FGSM step"""
    gamma: Tensor
    """token step"""


def active_tokens(batch: PackedBatch, plan: SearchPlan) -> Optional[Tensor]:
    """(T,) bool, the tokens that are perturbed; None where all are."""
    return None if plan.perturb_special_tokens else ~batch.is_special


def wide(dtype: torch.dtype) -> torch.dtype:
    """The type perturbations live in: float32, or float64 for a float64 encoder."""
    return torch.promote_types(dtype, torch.float32)


def entries_root(num_entries: Tensor | float, norm: str) -> Tensor | float:
    """n^(1/p): the norm of a vector of n ones, 1 for linf."""
    return {"linf": num_entries**0, "l2": num_entries**0.5, "l1": num_entries}[norm]


def sentence_rms(x: Tensor, batch: PackedBatch, active: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    """RMS of each sentence's perturbed entries (B,) and their count (B,); 0 and 0 where a sentence has none."""
    x = x.detach().to(wide(x.dtype))
    if active is None:
        num_tokens = batch.lengths
    else:
        x = torch.where(active[:, None], x, 0)
        num_tokens = torch.zeros_like(batch.lengths).index_add(0, batch.token_sentence, active.long())
    num_entries = (num_tokens * x.shape[1]).to(x.dtype)
    return segment_norm(x, batch.cu_seqlens, "l2") / num_entries.clamp(min=1).sqrt(), num_entries


def sentence_sizes(x: Tensor, batch: PackedBatch, plan: SearchPlan, active: Optional[Tensor] = None) -> Sizes:
    """Radii and steps for the embeddings ``x`` (T, E), constants of the search.

    With ``epsilon_relative`` kappa the radius is kappa * RMS(X_s) * n^(1/p), n = len * E for delta and E for eta
    (exponent 0 for linf); steps are multiples of the radii where ``plan`` says so.
    """
    ones = torch.ones(batch.num_sentences, dtype=wide(x.dtype), device=x.device)
    if plan.epsilon_relative is not None:
        rms, num_entries = sentence_rms(x, batch, active)
        epsilon = plan.epsilon_relative * rms * entries_root(num_entries, plan.norm)
        epsilon_token = plan.epsilon_relative * rms * entries_root(float(x.shape[1]), plan.norm)
    else:
        epsilon = None if plan.epsilon is None else plan.epsilon * ones
        epsilon_token = None if plan.epsilon_token is None else plan.epsilon_token * ones
    unit = unit_token = ones
    if plan.steps_are_relative:
        if epsilon is None or (plan.use_eta and epsilon_token is None):
            raise UserError("perturbation.step_relative true needs a radius: epsilon and epsilon_token are null")
        unit, unit_token = epsilon, epsilon_token if epsilon_token is not None else ones
    return Sizes(epsilon, epsilon_token, plan.alpha * unit, plan.beta * unit, plan.gamma * unit_token)


def check_resolution(x: Tensor, batch: PackedBatch, plan: SearchPlan, dtype: Optional[torch.dtype] = None) -> None:
    """Refuses a ball too small for the compute type: one in which most entries of X could not move at all.

    An entry of a perturbation on the ball's surface has the size epsilon * n^(-1/p) (exponent 0 for linf); adding it
    to an entry of X changes nothing when it is under half a unit in the last place of that entry (METHODS 1).

    Args:
        dtype: the compute type; by default that of ``x``.

    Raises:
        UserError: more than half of X's entries would not move.
    """
    active = active_tokens(batch, plan)
    sizes = sentence_sizes(x, batch, plan, active)
    if sizes.epsilon is None or not bool((sizes.epsilon > 0).any()):
        return
    dtype = dtype or x.dtype
    _, num_entries = sentence_rms(x, batch, active)
    per_entry = sizes.epsilon / entries_root(num_entries.clamp(min=1), plan.norm)
    x = x.detach().to(torch.float64)
    # One unit in the last place of a number in [2^e, 2^(e+1)) is 2^e times the type's machine epsilon.
    mantissa, exponent = torch.frexp(x)
    half_ulp = torch.ldexp(torch.full_like(x, torch.finfo(dtype).eps / 2), exponent - 1)
    half_ulp = torch.where(mantissa == 0, 0, half_ulp)
    lost = per_entry.to(torch.float64)[batch.token_sentence, None] < half_ulp
    if active is not None:
        lost = lost[active]
    share = lost.double().mean().item()
    if share > 0.5:
        raise UserError(
            f"perturbation.epsilon: a radius of {sizes.epsilon.mean().item():.3g} ({plan.norm}) is below "
            f"the resolution of {str(dtype).removeprefix('torch.')} at {share:.0%} of the embeddings' entries; "
            "take a larger radius (epsilon_relative 0.1 is a tenth of their size) or engine.precision fp32"
        )
