"""The BERT family on packed tokens, run on Hugging Face's own modules.

Every parameter is reached by calling the module that owns it, so weights, state dict and forward hooks
(ZeRO's among them) stay Hugging Face's; only the order of calls, the layout of the tokens and the dropout
switch are ours.
"""

from typing import Optional

import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.attention import Padding, first_rows, padding_of, self_attention

# Every type whose modules are embeddings.{word,position,token_type}_embeddings,
# encoder.layer[i].attention.self.{query,key,value} and so on, with the LayerNorm after the sum.
PACKED_TYPES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text")


def why_not_packed(config) -> Optional[str]:
    """The reason the packed path cannot run a model of this config, or None where it can."""
    if config.model_type not in PACKED_TYPES:
        return f"model type {config.model_type} is not one of {', '.join(PACKED_TYPES)}"
    # transformers 5 dropped the attribute together with every other kind.
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        return f"position_embedding_type is {kind}"
    if getattr(config, "is_decoder", False):
        return "is_decoder is set"
    return None


class PackedModel:
    """Runs a BERT-family model on packed tokens. Holds no parameters of its own.

    ``dropout`` is a plain switch here: no module changes between train and eval mode. Random numbers are
    drawn in a fixed order (embeddings, then layer by layer: attention, its output, the feed-forward's
    output), so that restoring the generator's state gives the same masks again.
    """

    name = "packed"

    def __init__(self, hf: nn.Module, perturb_at: str):
        self.hf = hf
        self.perturb_at = perturb_at

    def embed(self, batch: PackedBatch, dropout: bool) -> Tensor:
        """X (T, E): the embedding layer's output, or the word rows where those are perturbed."""
        words = self.hf.embeddings.word_embeddings(batch.input_ids)
        return words if self.perturb_at == "word" else self._finish_embedding(words, batch, dropout)

    def first_and_last(self, x: Tensor, batch: PackedBatch, dropout: bool, first_tokens_only: bool = False):
        """(embedding output (T, D), last hidden states (T, D), or (B, D) of the first tokens only).

        With ``first_tokens_only`` the last layer asks, and runs its feed-forward, only where the answer is
        read: its keys and values still see every token, so the result is the same.
        """
        padding = padding_of(batch)
        first = self._finish_embedding(x, batch, dropout) if self.perturb_at == "word" else x
        states = first
        layers = self.hf.encoder.layer
        for i, layer in enumerate(layers):
            states = _layer(layer, states, padding, dropout, first_tokens_only and i == len(layers) - 1)
        return first, states

    def _finish_embedding(self, words: Tensor, batch: PackedBatch, dropout: bool) -> Tensor:
        embeddings = self.hf.embeddings
        summed = words + embeddings.token_type_embeddings(batch.token_type_ids)
        summed = summed + embeddings.position_embeddings(batch.position_ids)
        return _dropout(embeddings.LayerNorm(summed), embeddings.dropout, dropout)


def _layer(layer: nn.Module, states: Tensor, padding: Padding, dropout: bool, first_tokens_only: bool) -> Tensor:
    attention, asking = layer.attention.self, states
    if first_tokens_only:
        asking = first_rows(states, padding)
    context = self_attention(
        attention.query(asking),
        attention.key(states),
        attention.value(states),
        padding,
        attention.num_attention_heads,
        attention.dropout.p if dropout else 0.0,
        first_tokens_only,
    )
    attended = _add_and_norm(layer.attention.output, context, asking, dropout)
    return _add_and_norm(layer.output, layer.intermediate(attended), attended, dropout)


def _add_and_norm(output: nn.Module, states: Tensor, residual: Tensor, dropout: bool) -> Tensor:
    return output.LayerNorm(_dropout(output.dense(states), output.dropout, dropout) + residual)


def _dropout(states: Tensor, module: nn.Dropout, is_on: bool) -> Tensor:
    return F.dropout(states, module.p, training=True) if is_on and module.p > 0 else states
