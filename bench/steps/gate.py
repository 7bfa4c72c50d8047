"""What must hold before a step is timed: ``exact`` gives what ``none`` gives, in float64."""

import torch
from torch import Tensor

from bench.steps.rows import LABELS, MODES, Mode, Models
from fastadv.encoder import Encoder
from fastadv.engine.build import build_step

ALLOWED = 1e-12
"""relative to the largest magnitude"""
_TEXTS = ["a wonderful story", "it is dull", "the plot was slow and the ending was almost terrible .", "never"]


def require_exact_is_none(model: str = "demo:minilm", num_steps: int = 2) -> None:
    """Raises RuntimeError where perturbation, loss or a gradient differ, with and without the clean graph."""
    for label in ("exact", "exact, clean graph", "scal"):
        mode = next(mode for mode in MODES if mode.label == label)
        exact = _outcome(model, mode.options, num_steps)
        reference = tuple(option.replace("reuse=exact", "reuse=none") for option in mode.options)
        for name, expected in _outcome(model, reference, num_steps).items():
            error = (exact[name] - expected).abs().max() / expected.abs().max().clamp(min=1e-300)
            if not error <= ALLOWED:
                raise RuntimeError(f"{label}: {name} is off by {error:.1e} from reuse none's; nothing was timed")


def _outcome(model: str, options: tuple[str, ...], num_steps: int) -> dict[str, Tensor]:
    """Perturbations, loss and gradients of one step with dropout; the same random numbers for the same search."""
    # Views in one pass have other masks than views in two; the reference takes two.
    mode = Mode("", (*options, "--engine.joint_views=false"))
    config = Models("", model, "").config(mode, len(_TEXTS), "fp32", num_steps)
    encoder = Encoder.from_pretrained(model, pooling="cls", max_length=32, dtype=torch.float64)
    step = build_step(config, encoder, label_map=LABELS).double().train()
    found = []
    if step.search is not None:
        search = step.search.search
        step.search.search = lambda *arguments: found.append(search(*arguments)) or found[-1]
    batch = encoder.pack(_TEXTS, labels=[0, 1, 0, 1])
    torch.manual_seed(3)
    loss = step(batch)
    loss.backward()
    outcome = {"loss": loss.detach(), "delta": found[0].delta}
    if found[0].eta is not None:
        outcome["eta"] = found[0].eta
    for name, parameter in step.named_parameters():
        if parameter.grad is not None:
            outcome[f"gradient of {name}"] = parameter.grad
    return outcome
