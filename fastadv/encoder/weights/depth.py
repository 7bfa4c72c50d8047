"""Which layer a parameter belongs to: what freezing and a learning rate that falls layer by layer need to know."""

from typing import Dict, List

from torch import nn

from fastadv.encoder.families import FAMILIES
from fastadv.errors import UserError


def layer_modules(hf: nn.Module) -> List[nn.Module]:
    """The modules of a model's layers in the order they run; one that several layers share stands there again.

    Raises:
        UserError: they cannot be told from the rest of the model.
    """
    config = hf.config
    if config.model_type in FAMILIES:
        return FAMILIES[config.model_type].blocks(hf)
    num_layers = getattr(config, "num_hidden_layers", None)
    lists = [module for module in hf.modules() if isinstance(module, nn.ModuleList) and len(module) == num_layers]
    if not lists:
        raise UserError(
            f"{type(hf).__name__} has no list of {num_layers} layers: it can neither be frozen in part nor trained "
            "at a rate of its own in each layer"
        )
    return list(lists[0])


def parameter_depths(hf: nn.Module) -> Dict[str, int]:
    """Parameter name -> 0 in the embeddings, i in layer i counted from 1, number of layers + 1 behind the last.

    The embeddings are all that comes before the layers, and every table elsewhere (relative positions). A parameter
    shared by several layers counts for the last of them.
    """
    layers = layer_modules(hf)
    depth_of = {}
    for depth, layer in enumerate(layers, start=1):
        depth_of.update({id(parameter): depth for parameter in layer.parameters()})
    tables = {id(p) for module in hf.modules() if isinstance(module, nn.Embedding) for p in module.parameters()}
    depths: Dict[str, int] = {}
    outside = 0
    for name, parameter in hf.named_parameters():
        if id(parameter) in depth_of:
            depths[name] = depth_of[id(parameter)]
            # Modules are named in the order they were built, which is the order they run in.
            outside = len(layers) + 1
        else:
            depths[name] = 0 if id(parameter) in tables else outside
    return depths


def check_num_frozen_layers(num_frozen: int, config, key: str) -> None:
    """UserError where a model of this configuration has fewer layers than ``num_frozen``.

    Args:
        key: what the user calls the number.
    """
    num_layers = getattr(config, "num_hidden_layers", None)
    if num_layers is not None and num_frozen > num_layers:
        raise UserError(f"{key} = {num_frozen}: expected at most {num_layers}, the layers of the encoder")


def freeze_layers(hf: nn.Module, num_frozen: int) -> None:
    """Takes the embeddings and the first ``num_frozen`` layers out of training; 0 freezes the embeddings alone.

    Raises:
        UserError: a negative number, more layers than there are, or a layer whose weights a later one shares.
    """
    if num_frozen < 0:
        raise UserError(f"num_frozen_layers = {num_frozen}: expected a whole number of at least 0, or null")
    check_num_frozen_layers(num_frozen, hf.config, "num_frozen_layers")
    layers = layer_modules(hf)
    # Sharing layers are neighbours.
    allowed = [n for n in range(len(layers) + 1) if n in (0, len(layers)) or layers[n - 1] is not layers[n]]
    if num_frozen not in allowed:
        raise UserError(
            f"num_frozen_layers = {num_frozen}: expected one of {', '.join(map(str, allowed))}, or null, since layers "
            f"of {hf.config.model_type} share their weights"
        )
    depths = parameter_depths(hf)
    for name, parameter in hf.named_parameters():
        if depths[name] <= num_frozen:
            parameter.requires_grad_(False)
