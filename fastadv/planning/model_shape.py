"""What a model's configuration says of its size: parameters and matrix products, layer by layer, without its weights.

The model is built on torch's meta device, which gives every tensor a shape and no memory, so a folder with nothing but
a ``config.json`` is enough. Freezing and adapters are put in as in a run.
"""

import copy
from dataclasses import dataclass
from typing import Iterable, Optional

import torch
from torch import nn

from fastadv.config.schema import EncoderConfig
from fastadv.encoder.families import FAMILIES
from fastadv.encoder.packed import why_not_packed
from fastadv.encoder.weights.depth import freeze_layers, layer_modules
from fastadv.encoder.weights.lora import add_lora
from fastadv.encoder.weights.source import quiet_transformers, without_pooler
from fastadv.errors import UserError


class NoShape(RuntimeError):
    """A configuration from which no model can be built on the meta device."""


@dataclass(frozen=True)
class Count:
    """Elements, and how many of them are trained."""

    total: int = 0
    trained: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.total + other.total, self.trained + other.trained)

    @classmethod
    def of(cls, parameters: Iterable[nn.Parameter]) -> "Count":
        """Of distinct parameters."""
        distinct = {id(p): p for p in parameters}.values()
        return cls(sum(p.numel() for p in distinct), sum(p.numel() for p in distinct if p.requires_grad))


@dataclass(frozen=True)
class LayerShape:
    """The matrices of one layer that tokens are multiplied with, by where they run."""

    keys: Count
    """key and value: at every token"""
    query: Count
    rest: Count
    """behind the attention"""

    @property
    def asking(self) -> Count:
        """In the last layer, where one vector a sentence is read: at first tokens alone."""
        return self.query + self.rest

    @property
    def is_trained(self) -> bool:
        return (self.keys + self.asking).trained > 0


@dataclass(frozen=True)
class ModelShape:
    """Sizes of an encoder, or of the body of a masked language model."""

    embeddings: Count
    body: Count
    """all parameters behind the embeddings; a shared layer counts once"""
    layers: tuple[LayerShape, ...]
    """in the order they run; a shared one stands there again"""
    mapping: Count
    """the matrix that takes E to D, or none"""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    embedding_size: int
    vocab_size: int
    is_packed: bool
    """runs on packed tokens; else padded, with every layer at every place"""
    dropout: float
    """the largest probability the configuration states"""

    @property
    def parameters(self) -> Count:
        return self.embeddings + self.body

    @property
    def head_parameters_of_detection(self) -> int:
        return 2 * self.hidden_size + 2


def shape_of(encoder: EncoderConfig, model_config) -> ModelShape:
    """The shape of the encoder that a run would train.

    Args:
        model_config: the transformers configuration of ``encoder.model``.
    """
    hf = on_meta(model_config)
    if encoder.num_frozen_layers is not None:
        freeze_layers(hf, encoder.num_frozen_layers)
    if encoder.lora_rank is not None:
        add_lora(hf, encoder.lora_rank, None, encoder.lora_target_modules)
    return measure(hf, encoder.path, encoder.dropout)


def on_meta(config, of_language_model: bool = False) -> nn.Module:
    """The model of a configuration without memory, and without a pooler where it can be left out as in a run."""
    from transformers import AutoModel, AutoModelForMaskedLM

    auto = AutoModelForMaskedLM if of_language_model else AutoModel
    config = copy.deepcopy(config)
    try:
        with quiet_transformers(), torch.device("meta"):
            return auto.from_config(config, trust_remote_code=False, **without_pooler(auto, config))
    except Exception as error:
        reason = " ".join(str(error).split())
        raise NoShape(f"no model of type {config.model_type} can be made without weights: {reason}") from error


def measure(hf: nn.Module, path: str = "auto", dropout: Optional[float] = None) -> ModelShape:
    """The shape of a model, which may lie on the meta device."""
    config = hf.config
    is_packed = path != "generic" and why_not_packed(config) is None
    try:
        blocks = layer_modules(hf)
    except UserError:
        # One layer that holds whatever is multiplied with tokens.
        blocks = [hf]
    behind = {id(p) for block in blocks for p in block.parameters()}
    word_rows = hf.get_input_embeddings()
    to_hidden = FAMILIES[config.model_type].to_hidden(hf) if config.model_type in FAMILIES else None
    mapping = matrices([to_hidden]) if to_hidden is not None else Count()
    mapped = {id(p) for p in to_hidden.parameters()} if to_hidden is not None else set()
    everything = list(hf.parameters())
    hidden = config.hidden_size
    return ModelShape(
        embeddings=Count.of(p for p in everything if id(p) not in behind and id(p) not in mapped),
        body=Count.of(p for p in everything if id(p) in behind or id(p) in mapped),
        layers=tuple(layer for block in blocks for layer in _layers_of(block, config)),
        mapping=mapping,
        hidden_size=hidden,
        intermediate_size=getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", 4 * hidden),
        num_heads=getattr(config, "num_attention_heads", 1),
        embedding_size=word_rows.embedding_dim,
        vocab_size=word_rows.num_embeddings,
        is_packed=is_packed,
        dropout=_dropout_of(config) if dropout is None else dropout,
    )


def _layers_of(block: nn.Module, config) -> list[LayerShape]:
    if config.model_type not in FAMILIES:
        return [LayerShape(Count(), Count(), matrices([block]))]
    return [
        LayerShape(
            matrices([layer.key, layer.value]),
            matrices([layer.query]),
            matrices([layer.attention_dense, *(p for p in layer.feed_forward if isinstance(p, nn.Module))]),
        )
        for layer in FAMILIES[config.model_type].layers(block)
    ]


def matrices(modules: Iterable[nn.Module]) -> Count:
    """The weights of linear maps inside ``modules``, those of adapters among them."""
    return Count.of(
        parameter
        for module in modules
        for owner in module.modules()
        if not isinstance(owner, nn.Embedding)
        for parameter in owner.parameters(recurse=False)
        if parameter.ndim == 2
    )


def _dropout_of(config) -> float:
    # A classifier's own probability is no part of the encoder.
    values = [v for name, v in vars(config).items() if "dropout" in name and "classif" not in name]
    return max((value for value in values if isinstance(value, (int, float))), default=0.0)
