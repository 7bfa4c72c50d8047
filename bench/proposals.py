"""How many sentences a second a loader process edits and tokenises: ``python -m bench.proposals``.

Batches of 64 sentences of film reviews, each with K mistyped proposals, cut at 32 tokens; one process, one thread, CPU
time. Each turn takes sentences that the process has not seen: what it keeps of words helps only where words recur.
Parts: drawing the proposals, tokenising whole copies, and all that a loader process does: proposals, tokens, packing,
and folding the batch for its way to the process that trains. The first turn is shown alone, for a loader process
starts anew each epoch and has kept nothing then.
"""

import argparse
import os
import time
from functools import partial
from statistics import quantiles

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch

from fastadv.config.text_search import TextSearchConfig
from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.folding import FoldedCollate
from fastadv.data.sources.demo import demo_sentences
from fastadv.data.text import collate, sentence_id
from fastadv.data.tokenize_texts import tokenize
from fastadv.data.variants.text_variants import TextVariants
from fastadv.encoder.weights.source import find_model, load_tokenizer

BATCH_SIZE, MAX_LENGTH = 64, 32


class Limits:
    """What a loader asks of an encoder."""

    max_length, num_token_types, position_offset, prompt = MAX_LENGTH, 2, 0, ""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer


def rates(run, num_sentences: int, repeats: int) -> list[float]:
    """Sentences a CPU second of each turn.

    Args:
        run: given the number of the turn.
    """
    per_s = []
    for turn in range(repeats):
        start = time.process_time()
        run(turn)
        per_s.append(num_sentences / (time.process_time() - start))
    return per_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_proposals", type=int, default=8, help="K")
    parser.add_argument("--edits", nargs="+", default=["typos"], help="names of edits")
    parser.add_argument("--model", default="demo:minilm", help="the encoder whose tokenizer is taken")
    parser.add_argument("--num_batches", type=int, default=32, help="batches of a turn")
    parser.add_argument("--repeats", type=int, default=6, help="turns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = load_tokenizer(find_model(options.model))
    count = BATCH_SIZE * options.num_batches
    texts = [(text,) for text in demo_sentences("demo:imdb-train")[: count * options.repeats]]
    if len(texts) < count * options.repeats:
        parser.error(f"{count * options.repeats:,} sentences are asked for; there are {len(texts):,}")
    text = TextSearchConfig(options.edits, options.num_proposals)
    settings = options.num_proposals, tuple(text.word_share), (), text.min_letters
    proposer = Proposer(make_edits(options.edits, "--edits"), *settings)
    tokens, special, _ = tokenize(tokenizer, MAX_LENGTH, [text for (text,) in texts])
    rows = [dict(row=i, **_row(ids, flags)) for i, (ids, flags) in enumerate(zip(tokens, special))]
    whole = FoldedCollate(
        TextVariants(texts, Limits(tokenizer), {}, [proposer]).collate(partial(collate, position_offset=0), 0)
    )
    copies = [
        [(copy or own)[0] for row, own in _of_turn(texts, turn, count) for copy in proposer.of(row, own, 1)]
        for turn in range(options.repeats)
    ]

    def batches(turn: int) -> None:
        for first in range(turn * count, (turn + 1) * count, BATCH_SIZE):
            whole(rows[first : first + BATCH_SIZE])

    parts = {
        "draw": lambda turn: [proposer.of(row, own, 0) for row, own in _of_turn(texts, turn, count)],
        "tokenise": lambda turn: tokenize(tokenizer, MAX_LENGTH, copies[turn]),
        "all": batches,
    }
    print(f"Sentences a second, each with {options.num_proposals} proposals of {options.edits}, {options.model}:")
    for name, run in parts.items():
        first, *later = rates(run, count, options.repeats)
        low, median, high = quantiles(later, n=4)
        print(f"{name:9} {median:8,.0f} [{low:,.0f}, {high:,.0f}], in the first turn {first:,.0f}", flush=True)


def _of_turn(texts: list, turn: int, count: int) -> list[tuple[int, tuple[str]]]:
    return list(enumerate(texts))[turn * count : (turn + 1) * count]


def _row(ids: list[int], flags: list[bool]) -> dict:
    return {"input_ids": np.array(ids), "is_special": np.array(flags), "sentence_id": sentence_id(ids)}


if __name__ == "__main__":
    main()
