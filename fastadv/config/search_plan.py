"""A search with every setting explicit, as `PerturbationConfig.resolve` makes it of a method and its options."""

from dataclasses import dataclass, replace
from typing import Literal

Norm = Literal["linf", "l2", "l1"]
"""P, the norm of balls and directions"""


@dataclass(frozen=True)
class SearchPlan:
    """Two chains of delta, PGD's and FGSM's, and a token-level eta: what each starts from and how it moves.

    Every method is such a plan: FGM is one PGD step from zero, FreeLB a PGD chain alone whose passes train.
    """

    norm: Norm
    num_pgd_steps: int
    """K: steps of the PGD chain; 0 where the chain has no weight in the mix"""
    num_fgsm_steps: int
    """T_s: steps of the FGSM chain; 0 where the chain has no weight in the mix"""
    alpha: float
    """PGD step, a multiple of the radius where steps are relative"""
    beta: float
    """FGSM step, a multiple of the radius where steps are relative"""
    gamma: float
    """token step, a multiple of the token radius where steps are relative"""
    rho: float
    """weight of the PGD chain in the mix"""
    epsilon: float | None
    """radius of a sentence's ball for delta; None: no ball"""
    epsilon_token: float | None
    """radius of a token's ball for eta; None: no ball"""
    epsilon_relative: float | None
    """kappa: radius kappa * RMS(X_s) * n^(1/p) of each sentence, in place of both radii"""
    steps_are_relative: bool
    """whether alpha, beta and gamma multiply the radii"""
    sigma: float
    """size of the start of delta, and of the eta table"""
    start: Literal["token", "sentence", "normal"]
    """distribution of delta's start"""
    use_eta: bool
    """whether a token-level perturbation is searched"""
    eta_scaling: Literal["after", "before", "none"]
    """where eta's norm share n_i is taken"""
    gradient: Literal["shared", "separate"]
    """one gradient a step at the mix of both chains, or one at each chain"""
    inner_dropout: Literal["off", "frozen"]
    """no dropout in inner steps, or the clean pass's masks"""
    start_step: int
    """optimizer steps before the search begins; delta and eta are 0 until then"""
    perturb_special_tokens: bool
    """whether special tokens are perturbed"""
    reuse: Literal["none", "exact", "adaptive", "free"]
    """what inner steps share"""
    probe_every: int
    """adaptive reuse: optimizer steps between batches that take all gradients"""
    agreement: float
    """adaptive reuse: mean cosine to all later gradients at which one stands for them"""

    @property
    def num_steps(self) -> int:
        """N, the steps of the longer chain; eta moves in each of these steps."""
        return max(self.num_pgd_steps, self.num_fgsm_steps)

    @property
    def still(self) -> "SearchPlan":
        """The plan of a search that leaves delta 0 and takes no gradient; of one pass where the passes train."""
        num_steps = 1 if self.reuse == "free" else 0
        sizes = {"alpha": 0.0, "sigma": 0.0, "rho": 1.0, "use_eta": False}
        return replace(self, num_pgd_steps=num_steps, num_fgsm_steps=0, **sizes)

    @property
    def takes_one_gradient(self) -> bool:
        """Whether each step takes its gradient at one point, not at each chain."""
        return self.gradient == "shared" or self.rho in (0, 1)
