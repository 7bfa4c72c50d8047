"""AdamW over groups of parameters, and the schedule of its rate."""

import math

import torch
from torch import nn

from fastadv.config.schema import OptimizerConfig
from fastadv.errors import UserError


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW; biases and LayerNorm weights are not decayed, as is the custom with BERT.

    With ``layer_lr_decay`` below 1, layer i of n takes lr * layer_lr_decay^(n + 1 - i), the embeddings as layer 0;
    what is no part of ``module.encoder``'s layers, or of a second network's, takes lr. The group of the highest rate
    comes first: it is the one that is logged.

    Raises:
        UserError: every parameter is frozen.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        raise UserError("nothing is left to train: encoder.num_frozen_layers freezes all there is")
    levels = _levels_below_head(module) if config.layer_lr_decay < 1 else {}
    groups = []
    for level in sorted({levels.get(id(p), 0) for p in trained}):
        here = [p for p in trained if levels.get(id(p), 0) == level]
        lr = config.lr * config.layer_lr_decay**level
        groups.append({"params": [p for p in here if p.ndim > 1], "weight_decay": config.weight_decay, "lr": lr})
        groups.append({"params": [p for p in here if p.ndim <= 1], "weight_decay": 0.0, "lr": lr})
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def _levels_below_head(module: nn.Module) -> dict[int, int]:
    """id of a parameter of an encoder -> how many layers it lies below the head: 1 in the last layer."""
    levels = {}
    for encoder in (module.encoder, getattr(module, "second", None)):
        if encoder is not None:
            depths = encoder.parameter_depths()
            levels.update({id(p): encoder.num_layers + 1 - depths[name] for name, p in encoder.hf.named_parameters()})
    return levels


def linear_schedule(optimizer, warmup_ratio: float, total_steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The rate climbs from 0 over the first ``ceil(warmup_ratio * total_steps)`` steps, then falls to 0 at the end.

    Step k, counted from 0, takes k/w of the rate while k < w, and (total - k)/(total - w) of it afterwards.
    """
    warmup_steps = math.ceil(warmup_ratio * total_steps)

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)
