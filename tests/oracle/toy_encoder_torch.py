"""The toy encoder of `toy_encoder.py` a second time, as a torch module that the real `Step` drives."""

from functools import partial

import torch
from torch import nn

from tests.oracle import toy_encoder

DROPOUT = 0.25


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
