"""The same dropout masks twice, by running code again from a remembered state of torch's generators."""

from contextlib import contextmanager

import torch


class DropoutReplay:
    """Remembers the generator state at its making; inside ``again()`` random numbers repeat from there.

    Outside the block the stream goes on as if the block had not been.
    """

    def __init__(self, device: torch.device):
        self._cuda = [device] if device.type == "cuda" else []
        self._cpu_state = torch.get_rng_state()
        self._cuda_states = [torch.cuda.get_rng_state(d) for d in self._cuda]

    def is_unused(self) -> bool:
        """Whether no random number was drawn since: there was no dropout."""
        return torch.equal(torch.get_rng_state(), self._cpu_state) and all(
            torch.equal(torch.cuda.get_rng_state(device), state)
            for device, state in zip(self._cuda, self._cuda_states, strict=True)
        )

    @contextmanager
    def again(self):
        with torch.random.fork_rng(devices=self._cuda):
            torch.set_rng_state(self._cpu_state)
            for device, state in zip(self._cuda, self._cuda_states):
                torch.cuda.set_rng_state(state, device)
            yield
