"""Where the packed path finds the parts of a model: one entry of ``FAMILIES`` for each way of arranging them.

A family fits where every layer is attention, sum and LayerNorm, then a feed-forward, sum and LayerNorm, and the
embeddings are ``hf.embeddings`` with ``word_embeddings``, ``position_embeddings``, ``token_type_embeddings``,
``LayerNorm`` and ``dropout``. To add one: say how its layers are reached and what maps E to D, name its model types,
and put it into ``PACKED`` of tests/encoder/test_packed_path.py, which compares vectors and gradients with Hugging
Face's own.
"""

from typing import Callable, List, NamedTuple, Optional, Tuple

from torch import Tensor, nn


class Layer(NamedTuple):
    """The parts of a transformer layer in the order they run."""

    num_heads: int
    query: nn.Module
    key: nn.Module
    value: nn.Module
    attention_dropout: nn.Dropout
    """on attention weights"""
    attention_dense: nn.Module
    attention_output_dropout: nn.Dropout
    attention_norm: nn.Module
    feed_forward: Tuple[Callable[[Tensor], Tensor], ...]
    feed_forward_dropout: Optional[nn.Dropout]
    feed_forward_norm: nn.Module


class Family(NamedTuple):
    """How to reach a model's layers. Nothing is kept: adapters and ZeRO may replace a module at any time."""

    blocks: Callable[[nn.Module], List[nn.Module]]
    """model -> its layers' modules in the order they run, ``num_hidden_layers`` of them; a shared one stands there
    again"""
    layers: Callable[[nn.Module], List[Layer]]
    """one of those modules -> the layers in it"""
    to_hidden: Callable[[nn.Module], Optional[nn.Module]]
    """model -> what maps the embedding output (T, E) to the first layer's input (T, D), or None"""


def _bert_blocks(hf: nn.Module) -> List[nn.Module]:
    return list(hf.encoder.layer)


def _bert_layers(block: nn.Module) -> List[Layer]:
    attention, attention_output, output = block.attention.self, block.attention.output, block.output
    layer = Layer(
        attention.num_attention_heads,
        attention.query,
        attention.key,
        attention.value,
        attention.dropout,
        attention_output.dense,
        attention_output.dropout,
        attention_output.LayerNorm,
        (block.intermediate, output.dense),
        output.dropout,
        output.LayerNorm,
    )
    return [layer]


def _albert_blocks(hf: nn.Module) -> List[nn.Module]:
    """Layer i of n runs group i // (n / num_hidden_groups)."""
    groups, num_layers = hf.encoder.albert_layer_groups, hf.config.num_hidden_layers
    return [groups[i * len(groups) // num_layers] for i in range(num_layers)]


def _albert_layers(block: nn.Module) -> List[Layer]:
    return [
        Layer(
            layer.attention.num_attention_heads,
            layer.attention.query,
            layer.attention.key,
            layer.attention.value,
            layer.attention.attention_dropout,
            layer.attention.dense,
            layer.attention.output_dropout,
            layer.attention.LayerNorm,
            (layer.ffn, layer.activation, layer.ffn_output),
            # The module is there, but ALBERT never calls it.
            None,
            layer.full_layer_layer_norm,
        )
        for layer in block.albert_layers
    ]


# Functions with a name, so that an encoder pickles.
def _no_map(hf: nn.Module) -> None:
    """E = D."""


def _electra_map(hf: nn.Module) -> Optional[nn.Module]:
    # Without the module where E = D.
    return getattr(hf, "embeddings_project", None)


def _albert_map(hf: nn.Module) -> nn.Module:
    return hf.encoder.embedding_hidden_mapping_in


_BERT = Family(_bert_blocks, _bert_layers, _no_map)
_ELECTRA = Family(_bert_blocks, _bert_layers, _electra_map)
_ALBERT = Family(_albert_blocks, _albert_layers, _albert_map)

FAMILIES = {
    # model_type of a configuration: how its model is arranged
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "data2vec-text": _BERT,
    "electra": _ELECTRA,
    "albert": _ALBERT,
}
