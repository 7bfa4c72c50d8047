"""The toy encoder of `toy_encoder.py` a second time, as a torch module that the real `Step` drives."""

from functools import partial

import numpy as np
import torch
from torch import nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.classifier.classification_head import ClassificationHead
from tests.oracle import toy_encoder

DROPOUT = 0.25
OF_CLASSIFIER = {
    "dense_weight": "dense.weight",
    "dense_bias": "dense.bias",
    "out_weight": "out.weight",
    "out_bias": "out.bias",
}
"""parameters of a classification head by the transcription's names"""


def pack(sentences, **fields):
    """A batch of the step, of sentences of the transcription."""
    columns = ([getattr(sentence, name) for sentence in sentences] for name in ("tokens", "special", "identity"))
    return PackedBatch.from_token_lists(*columns, **fields)


def by_sentence(values, batch):
    """Arrays, one a sentence."""
    return [part.detach().numpy().copy() for part in values.split(batch.lengths.tolist())]


def gradients_of(named_parameters):
    """Arrays by name; zeros for what has none."""
    return {n: np.zeros(p.shape) if p.grad is None else p.grad.numpy().copy() for n, p in named_parameters.items()}


def make_head(parameters, num_classes):
    """The shipped head with the transcription's parameters."""
    head = ClassificationHead(toy_encoder.HIDDEN_SIZE, num_classes).double()
    head.load_state_dict({theirs: torch.tensor(parameters[name]) for name, theirs in OF_CLASSIFIER.items()})
    return head


class ToyEncoder(nn.Module):
    """Offers what `Step` asks of an encoder; every dropout mask it uses is kept in ``drawn``, in order.

    Masks in ``forced`` are used up before any is drawn: a mutant's way to use one twice.
    """

    vocab_size = toy_encoder.VOCAB_SIZE
    embedding_size = toy_encoder.EMBEDDING_SIZE
    hidden_size = toy_encoder.HIDDEN_SIZE
    keeps_activations = True

    def __init__(self, parameters, has_dropout):
        super().__init__()
        for name in ("word", "first", "position", "second", "mixing"):
            self.register_parameter(name, nn.Parameter(torch.tensor(parameters[name])))
        self.has_dropout = has_dropout
        self.drawn = []
        self.forced = []

    def _dropped(self, values, dropout):
        if dropout is False or not self.has_dropout or not self.training:
            return values
        mask = (torch.rand(values.shape, dtype=values.dtype) >= DROPOUT) / (1 - DROPOUT)
        if self.forced:
            mask = self.forced.pop(0)
        self.drawn.append(mask)
        return values * mask

    def embedder(self, batch):
        return partial(self.embed, batch)

    def embed(self, batch, dropout=None):
        return self._dropped(self.word[batch.input_ids], dropout)

    @property
    def word_embeddings(self):
        return self.word

    def encode(self, x, batch, dropout=None):
        return self.encode_with_tokens(x, batch, dropout)[0]

    def encode_with_tokens(self, x, batch, dropout=None):
        lengths = batch.lengths[:, None]

        def mean(values):
            sums = values.new_zeros(batch.num_sentences, values.shape[1])
            return sums.index_add(0, batch.token_sentence, values) / lengths

        before = x @ self.first.T + self.position[batch.position_ids]
        a = self._dropped(before.clamp(-toy_encoder.CLAMP, toy_encoder.CLAMP).atan(), dropout)
        m = mean(a)[batch.token_sentence]
        b = torch.atan(a @ self.second.T + (a * m) @ self.mixing.T)
        return torch.atan(mean(b)), b
