"""``reuse: adaptive``: fresh gradients only as long as they turn (METHODS 1, Reuse).

A search of N steps takes n fresh gradients and steps on along the last of them. How many are needed is measured: every
``probe_every`` steps one batch takes all N, and n becomes the least t for which the gradient of step t agrees with all
later ones: the mean over the batch of min over u >= t of cos(g_t, g_u) is ``agreement`` or more.
"""

import torch
from torch import Tensor


class AdaptiveReuse:
    """How many gradients a search takes, and when that is measured again. The same on all ranks.

    Args:
        num_steps: N.
        probe_every: optimizer steps from one probe to the next; the first step probes.
        agreement: in (0, 1]; at 1 hardly any gradient is reused.
    """

    def __init__(self, num_steps: int, probe_every: int, agreement: float):
        self._probe_every, self._agreement = probe_every, agreement
        self._num_gradients, self._steps_to_probe = num_steps, 0
        self._has_probed = False

    @property
    def is_probe_due(self) -> bool:
        """Whether the next batch takes all gradients. One batch of an optimizer step does, the first."""
        return self._steps_to_probe == 0 and not self._has_probed

    @property
    def num_gradients(self) -> int:
        """n, of the last probe."""
        return self._num_gradients

    def learn(self, agreements: Tensor) -> int:
        """Sets n by a probe.

        Args:
            agreements: (B, N) of the global batch, as `Trace.agreements` gives them.

        Returns:
            n.
        """
        means = agreements.to(torch.float64).mean(dim=0)
        # The last one agrees with itself.
        enough = [t for t, mean in enumerate(means.tolist(), start=1) if mean >= self._agreement or t == len(means)]
        self._num_gradients, self._has_probed = enough[0], True
        return self._num_gradients

    def commit(self) -> None:
        """After an optimizer step."""
        self._steps_to_probe = self._probe_every - 1 if self._has_probed else max(0, self._steps_to_probe - 1)
        self._has_probed = False

    def state_dict(self) -> dict[str, Tensor]:
        return {"adaptive_reuse": torch.tensor([self._num_gradients, self._steps_to_probe])}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self._num_gradients, self._steps_to_probe = state["adaptive_reuse"].tolist()
        self._has_probed = False
