"""Batches of real sentences for the step benchmarks, packed for fastadv and padded for a Hugging Face model.

Sentences are those of ``demo:imdb-dev`` with at most `MOST_TOKENS` tokens before they are cut to 32, special tokens
included; the bound puts their mean at about 22. They are drawn with a fixed seed, and dealt to batches in order of
length, so that all batches have about the same number of tokens and the same spread.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.data.sources.demo import demo_sentences
from fastadv.data.text import sentence_id

MAX_LENGTH = 32
MOST_TOKENS = 46
NUM_BATCHES = 8
_SEED = 7


@dataclass(frozen=True)
class Sample:
    """One batch in both layouts."""

    packed: PackedBatch
    input_ids: Tensor
    """(B, L), padded with 0 to `MAX_LENGTH`"""
    attention_mask: Tensor
    """(B, L), 1 at real tokens"""


@lru_cache(maxsize=4)
def _tokens(tokenizer) -> list[list[int]]:
    whole = tokenizer(demo_sentences("demo:imdb-dev"), truncation=True, max_length=MOST_TOKENS + 1)["input_ids"]
    return [
        ids if len(ids) <= MAX_LENGTH else ids[: MAX_LENGTH - 1] + ids[-1:] for ids in whole if len(ids) <= MOST_TOKENS
    ]


def draw_samples(tokenizer, batch_size: int, num_batches: int = NUM_BATCHES) -> list[Sample]:
    """The same batches for the same tokenizer and size."""
    kept = _tokens(tokenizer)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(_SEED)).tolist()
    drawn = sorted((kept[i] for i in order[: batch_size * num_batches]), key=len)
    special = set(tokenizer.all_special_ids)
    samples = []
    for number in range(num_batches):
        # Of every num_batches neighbours in length each batch has one, in turn the shortest and the longest.
        rows = [
            drawn[i * num_batches + (number if i % 2 == 0 else num_batches - 1 - number)] for i in range(batch_size)
        ]
        packed = PackedBatch.from_token_lists(
            rows,
            [[token in special for token in row] for row in rows],
            [sentence_id(row) for row in rows],
            # What the classes are has no say in what a step costs.
            labels=[i % 2 for i in range(batch_size)],
        )
        ids, mask = torch.zeros(batch_size, MAX_LENGTH, dtype=torch.int64), torch.zeros(batch_size, MAX_LENGTH)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
        samples.append(Sample(packed, ids, mask.long()))
    return samples


def describe_lengths(samples: list[Sample]) -> dict[str, float]:
    """Tokens a sentence: mean, standard deviation and quartiles."""
    lengths = torch.cat([sample.packed.lengths for sample in samples]).double()
    low, middle, high = lengths.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    found = {"mean": lengths.mean().item(), "sd": lengths.std().item(), "q1": low, "median": middle, "q3": high}
    return {f"length_{name}": round(value, 2) for name, value in found.items()}


class TokenPieces:
    """The drawn sentences as ``count_tokens`` reads a training text."""

    def __init__(self, samples: list[Sample]):
        self._samples = samples

    def token_pieces(self):
        for sample in self._samples:
            yield sample.packed.input_ids.numpy()
