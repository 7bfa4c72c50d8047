"""The BERT family on packed tokens, run on Hugging Face's own modules.

Every parameter is reached by calling the module that owns it, so weights, state dict, adapters and forward hooks
(ZeRO's among them) stay Hugging Face's; only the order of calls, the layout of the tokens and the dropout
switch are ours. Where the modules lie is ``families.py``'s business.
"""

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.attention.kinds import HALF, self_attention
from fastadv.encoder.attention.layout import Padding, first_rows, padding_of
from fastadv.encoder.dropout import drop
from fastadv.encoder.families import FAMILIES, Layer
from fastadv.encoder.positions import position_ids
from fastadv.encoder.recompute import recomputed

_HALF_TILE = 16
"""rows of a tile of AMX, and a multiple of what AVX-512 takes at once"""


def why_not_packed(config) -> Optional[str]:
    """The reason the packed path cannot run a model of this config, or None where it can."""
    if config.model_type not in FAMILIES:
        return f"model type {config.model_type} is not one of {', '.join(FAMILIES)}"
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

    def __init__(self, hf: nn.Module, perturb_at: str, attention: str = "auto"):
        self.hf = hf
        self.attention = attention
        self.family = FAMILIES[hf.config.model_type]
        self.perturb_at = perturb_at
        self._keeps_activations = True
        # What a layer that is run once more needs around it; set by `Encoder.computing_in`.
        self.recompute_inside: Optional[Callable[[], AbstractContextManager]] = None

    def checkpoint_activations(self) -> None:
        """From here on passes keep the layers' inputs alone."""
        self._keeps_activations = False

    @property
    def embedding_size(self) -> int:
        """E. The embedding layer's output is as wide as its word rows; D comes after it."""
        return self.hf.get_input_embeddings().embedding_dim

    def prepare(self, batch: PackedBatch, dtype: torch.dtype) -> None:
        """The layouts by head that `first_and_last` will ask for in ``dtype``, where the attention has any."""
        device = self.hf.device.type
        if self.attention not in ("auto", "matmul") or (self.attention == "auto" and device != "cpu"):
            return
        for block in self.family.blocks(self.hf):
            for layer in self.family.layers(block):
                padding_of(batch).heads(layer.num_heads, dtype)

    def embed(self, batch: PackedBatch, dropout: bool) -> Tensor:
        """X (T, E): the embedding layer's output, or the word rows where those are perturbed."""
        return self.embedder(batch, dropout)()

    def embedder(self, batch: PackedBatch, dropout: bool) -> Callable[[], Tensor]:
        """Gives X under a mask of its own at each call. Rows are looked up, and their gradient summed, once for all."""
        words = self.hf.embeddings.word_embeddings(batch.input_ids)
        if self.perturb_at == "word":
            return lambda: words
        normed = self._normed_embedding(words, batch)
        return lambda: _dropout(normed, self.hf.embeddings.dropout, dropout)

    @staticmethod
    def is_behind_embeddings(name: str) -> bool:
        """Whether a parameter of this name computes in the type given to `first_and_last`."""
        return not name.startswith("embeddings.")

    def first_and_last(
        self,
        x: Tensor,
        batch: PackedBatch,
        dropout: bool,
        first_tokens_only: bool = False,
        rows: Optional[Tensor] = None,
        dtype: Optional[torch.dtype] = None,
        needs_first: bool = True,
    ):
        """(first layer's input (T, D), last hidden states (T, D), or (B, D) of first tokens, or (M, D) of ``rows``).

        Layers compute in ``dtype``; None: in that of x. With ``first_tokens_only``, or with ``rows`` (M,), distinct
        places among the T tokens, the last layer asks, and runs its feed-forward, only where the answer is read: its
        keys and values still see every token, so the result is the same. ``needs_first`` has no effect.
        """
        padding = padding_of(batch)
        first = x
        if self.perturb_at == "word":
            first = _dropout(self._normed_embedding(x, batch), self.hf.embeddings.dropout, dropout)
        first = first if dtype is None else first.to(dtype)
        to_hidden = self.family.to_hidden(self.hf)
        if to_hidden is not None:
            first = to_hidden(first)
        num_tokens, states = len(first), first
        if states.device.type == "cpu" and states.dtype in HALF:
            # Matrix products in half precision run at two thirds of their rate where the rows fill no whole tiles.
            padding = padding.aligned(_HALF_TILE)
            if len(padding.index) > num_tokens:
                states = F.pad(states, (0, 0, 0, len(padding.index) - num_tokens))
        layers = [layer for block in self.family.blocks(self.hf) for layer in self.family.layers(block)]
        for i, layer in enumerate(layers):
            is_last = i == len(layers) - 1
            read = (first_tokens_only, rows) if is_last else (False, None)
            arguments = layer, states, padding, dropout, self.attention, *read
            if self._keeps_activations or not torch.is_grad_enabled():
                states = _run_layer(*arguments)
            else:
                states = recomputed(_run_layer, *arguments, inside=self.recompute_inside)
        return first, states[:num_tokens] if rows is None and not first_tokens_only else states

    def _normed_embedding(self, words: Tensor, batch: PackedBatch) -> Tensor:
        embeddings = self.hf.embeddings
        summed = words + embeddings.token_type_embeddings(batch.token_type_ids)
        summed = summed + embeddings.position_embeddings(position_ids(batch, self.hf.config))
        return embeddings.LayerNorm(summed)


def with_tokens(batch: PackedBatch, **changes: Tensor) -> PackedBatch:
    """``batch`` with other tokens in the same places: what has been worked out about its layout goes along."""
    changed = replace(batch, **changes)
    changed.remembered["padding"] = padding_of(batch)
    return changed


def _run_layer(
    layer: Layer,
    states: Tensor,
    padding: Padding,
    dropout: bool,
    attention: str,
    first_tokens_only: bool,
    rows: Optional[Tensor],
) -> Tensor:
    if rows is not None:
        asking = states.index_select(0, rows)
    else:
        asking = first_rows(states, padding) if first_tokens_only else states
    query = layer.query(asking)
    if rows is not None:
        # Sentences ask as a whole: what the others would be told is not read.
        query = query.new_zeros(len(states), query.shape[1]).index_copy(0, rows, query)
    context = self_attention(
        query,
        layer.key(states),
        layer.value(states),
        padding,
        layer.num_heads,
        layer.attention_dropout.p if dropout else 0.0,
        first_tokens_only,
        attention,
    )
    if rows is not None:
        context = context.index_select(0, rows)
    context = _dropout(layer.attention_dense(context), layer.attention_output_dropout, dropout)
    attended = layer.attention_norm(context + asking)
    fed = attended
    for part in layer.feed_forward:
        fed = part(fed)
    return layer.feed_forward_norm(_dropout(fed, layer.feed_forward_dropout, dropout) + attended)


def _dropout(states: Tensor, module: Optional[nn.Dropout], is_on: bool) -> Tensor:
    if module is None or not is_on or module.p == 0:
        return states
    return drop(states, module.p)
