"""The toy discriminator of `rtd.py` a second time, as the encoder that the real `ReplacedTokenDetection` drives."""

import torch
from torch import nn

from tests.oracle.sentences.rtd import Corruption
from tests.oracle.toy_encoder import EMBEDDING_SIZE, HIDDEN_SIZE, VOCAB_SIZE


class ToyDiscriminator(nn.Module):
    """Offers what the detection asks of an encoder; what maps E to D has ELECTRA's name."""

    embedding_size = EMBEDDING_SIZE
    hidden_size = HIDDEN_SIZE

    def __init__(self, parameters):
        super().__init__()
        for name in ("word", "inner", "position", "mixing"):
            self.register_parameter(name, nn.Parameter(torch.tensor(parameters[f"d_{name}"])))
        self.embeddings_project = nn.Linear(EMBEDDING_SIZE, HIDDEN_SIZE, bias=False, dtype=torch.float64)
        self.embeddings_project.weight.data.copy_(torch.tensor(parameters["d_mapping"]))

    @property
    def hf(self):
        return self

    def embed(self, batch):
        return self.word[batch.input_ids]

    def token_states(self, x, batch):
        states = self.embeddings_project(x)
        sums = states.new_zeros(batch.num_sentences, states.shape[1]).index_add(0, batch.token_sentence, states)
        mean = (sums / batch.lengths[:, None])[batch.token_sentence]
        return torch.tanh(states @ self.inner.T + self.position[batch.position_ids] + (states * mean) @ self.mixing.T)


class RecordedFills:
    """A generator of random fills, a third of them the original again; ``corruption()`` is what it last did."""

    def fill(self, batch, masked, how):
        drawn = torch.randint(VOCAB_SIZE, batch.input_ids.shape)
        filled = torch.where(torch.rand(drawn.shape) < 1 / 3, batch.input_ids, drawn)
        self._last = [part.split(batch.lengths.tolist()) for part in (masked, filled)]
        return filled

    def corruption(self):
        masked, fills = ([part.numpy() for part in parts] for parts in self._last)
        return Corruption(masked, fills)
