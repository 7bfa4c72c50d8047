"""Low-rank adaptation (LoRA, Hu et al. 2021) through peft: W x + (alpha / rank) B A x, with only A and B trained.

peft puts its layers into the model in the place of its linear ones. The packed and the generic path call modules and
never read a weight, so both run them as they are. An export holds W + (alpha / rank) B A and knows nothing of peft.
"""

import importlib.util
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fastadv.encoder.weights.depth import layer_modules
from fastadv.errors import UserError


def check_lora_usable(key: str, rank: int) -> None:
    """UserError where peft is not installed. ``key``: what the user calls the rank."""
    if importlib.util.find_spec("peft") is None:
        raise UserError(f"{key} = {rank}: needs peft, which is not installed: pip install 'fastadv[peft]'")


def add_lora(
    hf: nn.Module, rank: int, alpha: Optional[float] = None, target_modules: Optional[Sequence[str]] = None
) -> List[str]:
    """Puts adapters into ``hf`` in place, and takes all its other parameters out of training.

    Where parameters were frozen before (``freeze_layers``), their modules get no adapter. B starts at 0, so the
    model computes what it did. There is no dropout of its own: it would not follow the encoder's dropout switch.

    Args:
        alpha: None takes twice the rank.
        target_modules: how the names of the adapted linear modules end, whole words between dots (``query``,
            ``output.dense``); None: every linear module inside the layers.

    Returns:
        the names of the adapted modules.

    Raises:
        UserError: peft is missing, a rank below 1, an alpha that is not positive, a target that names no linear
            module, or a model that has adapters already.
    """
    check_lora_usable("lora_rank", rank)
    if rank < 1:
        raise UserError(f"lora_rank = {rank}: expected a whole number of at least 1, or null")
    if alpha is not None and alpha <= 0:
        raise UserError(f"lora_alpha = {alpha}: expected a number above 0, or null")
    if next(lora_modules(hf), None) is not None:
        raise UserError("lora_rank: the model has adapters already")
    names = _targets(hf, target_modules)
    from peft import LoraConfig, inject_adapter_in_model

    settings = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        target_modules=names,
        lora_dropout=0.0,
        bias="none",
        # GPT-2's linear modules hold their weight the other way round.
        fan_in_fan_out=_is_transposed(hf.get_submodule(names[0])),
    )
    inject_adapter_in_model(settings, hf)
    return names


def _targets(hf: nn.Module, target_modules: Optional[Sequence[str]]) -> List[str]:
    linear = {
        name: module
        for name, module in hf.named_modules()
        if (isinstance(module, nn.Linear) or _is_transposed(module)) and "pooler" not in name.split(".")
    }
    if target_modules is None:
        inside = {id(module) for layer in layer_modules(hf) for module in layer.modules()}
        chosen = [name for name, module in linear.items() if id(module) in inside]
    else:
        for target in target_modules:
            if not any(_ends_with(name, target) for name in linear):
                there = sorted({name.split(".")[-1] for name in linear})
                raise UserError(
                    f'lora_target_modules: "{target}" names no linear module of {type(hf).__name__}, '
                    f"whose are {', '.join(there)}"
                )
        chosen = [name for name in linear if any(_ends_with(name, target) for target in target_modules)]
    chosen = [name for name in chosen if all(p.requires_grad for p in linear[name].parameters())]
    if not chosen:
        raise UserError("lora_rank: no linear module is left to adapt (num_frozen_layers, lora_target_modules)")
    return chosen


def _ends_with(name: str, target: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)


def lora_modules(hf: nn.Module) -> Iterator[Tuple[str, nn.Module]]:
    """Name and module of each adapted layer."""
    for name, module in hf.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def merged_state_dict(hf: nn.Module, state_dict: Optional[Dict[str, Tensor]] = None) -> Dict[str, Tensor]:
    """``hf``'s state dict as if it never had adapters, their product added to the weights it belongs to.

    Args:
        state_dict: of ``hf``, to merge in place of its own values.
    """
    state = dict(hf.state_dict() if state_dict is None else state_dict)
    for name, module in lora_modules(hf):
        for adapter, scaling in module.scaling.items():
            a, b = (state.pop(f"{name}.lora_{part}.{adapter}.weight") for part in "AB")
            weight = state[f"{name}.base_layer.weight"]
            # The product of half-precision factors is rounded once, with the sum.
            wide = torch.promote_types(weight.dtype, torch.float32)
            product = scaling * (b.to(wide) @ a.to(wide))
            merged = weight.to(wide) + (product.T if module.fan_in_fan_out else product)
            state[f"{name}.base_layer.weight"] = merged.to(weight.dtype)
        for own in module.base_layer.state_dict():
            state[f"{name}.{own}"] = state.pop(f"{name}.base_layer.{own}")
    return state
