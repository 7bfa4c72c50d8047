"""Batches of real sentences for the step benchmarks, packed for fastadv and padded for a Hugging Face model.

Sentences are those of ``demo:imdb-dev`` with at most `MOST_TOKENS` tokens before they are cut to 32, special tokens
included; the bound puts their mean at about 22. They are drawn with a fixed seed, and dealt to batches in order of
length, so that all batches have about the same number of tokens and the same spread.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.packing import PackedBatch
from fastadv.data.sources.demo import demo_sentences
from fastadv.data.text import sentence_id

MAX_LENGTH = 32
MOST_TOKENS = 46
NUM_BATCHES = 8
NUM_PROPOSALS = 8
"""mistyped copies that each sentence has; a step compares the first K of them"""
_SEED = 7


@dataclass(frozen=True)
class Sample:
    """One batch in both layouts."""

    packed: PackedBatch
    """with `NUM_PROPOSALS` proposals of each sentence"""
    input_ids: Tensor
    """(B, L), padded with 0 to `MAX_LENGTH`"""
    attention_mask: Tensor
    """(B, L), 1 at real tokens"""

    def with_proposals(self, count: int) -> PackedBatch:
        """The packed batch with the first ``count`` proposals of each sentence."""
        return replace(self.packed, proposals={side: drawn[:count] for side, drawn in self.packed.proposals.items()})


@lru_cache(maxsize=4)
def _sentences(tokenizer) -> list[tuple[str, list[int]]]:
    """Sentences that are short enough, with their tokens."""
    texts = demo_sentences("demo:imdb-dev")
    whole = tokenizer(texts, truncation=True, max_length=MOST_TOKENS + 1)["input_ids"]
    return [
        (text, ids if len(ids) <= MAX_LENGTH else ids[: MAX_LENGTH - 1] + ids[-1:])
        for text, ids in zip(texts, whole)
        if len(ids) <= MOST_TOKENS
    ]


def _proposals(tokenizer, texts: list[str], first_row: int) -> list[PackedBatch]:
    proposer, special = Proposer(make_edits(["typos"], "edits"), NUM_PROPOSALS), set(tokenizer.all_special_ids)
    drawn = [proposer.of(first_row + i, (text,), 0) for i, text in enumerate(texts)]
    packed = []
    for of_k in zip(*drawn, strict=True):
        filled = [text if edited is None else edited[0] for text, edited in zip(texts, of_k)]
        ids = tokenizer(filled, truncation=True, max_length=MAX_LENGTH)["input_ids"]
        batch = PackedBatch.from_token_lists(ids, [[token in special for token in row] for row in ids])
        packed.append(replace(batch, is_present=torch.tensor([edited is not None for edited in of_k])))
    return packed


def draw_samples(tokenizer, batch_size: int, num_batches: int = NUM_BATCHES) -> list[Sample]:
    """The same batches for the same tokenizer and size."""
    kept = _sentences(tokenizer)
    order = torch.randperm(len(kept), generator=torch.Generator().manual_seed(_SEED)).tolist()
    drawn = sorted((kept[i] for i in order[: batch_size * num_batches]), key=lambda sentence: len(sentence[1]))
    special = set(tokenizer.all_special_ids)
    samples = []
    for number in range(num_batches):
        # Of every num_batches neighbours in length each batch has one, in turn the shortest and the longest.
        places = [i * num_batches + (number if i % 2 == 0 else num_batches - 1 - number) for i in range(batch_size)]
        texts, rows = map(list, zip(*(drawn[place] for place in places)))
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
        packed = replace(packed, proposals={"text": _proposals(tokenizer, texts, number * batch_size)})
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
