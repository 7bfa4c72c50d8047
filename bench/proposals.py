"""How many sentences a second a loader process edits and tokenises: ``python -m bench.proposals``.

Batches of 64 sentences of film reviews, each with K mistyped proposals, cut at 32 tokens; one process, one thread, CPU
time. Parts: drawing the proposals, tokenising them, and the whole of what a loader does (rows, proposals, packing).
"""

import argparse
import os
import time
from functools import partial

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from fastadv.config.text_search import TextSearchConfig
from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
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


def rate(run, num_sentences: int, repeats: int) -> float:
    """Sentences a CPU second: the median over repeats."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return num_sentences / sorted(seconds)[repeats // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num_proposals", type=int, default=8, help="K")
    parser.add_argument("--edits", nargs="+", default=["typos"], help="names of edits")
    parser.add_argument("--num_batches", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    tokenizer = load_tokenizer(find_model("demo:minilm"))
    count = BATCH_SIZE * options.num_batches
    texts = [(text,) for text in demo_sentences("demo:imdb-train")[:count]]
    text = TextSearchConfig(options.edits, options.num_proposals)
    settings = options.num_proposals, tuple(text.word_share), (), text.min_letters
    proposer = Proposer(make_edits(options.edits, "--edits"), *settings)
    drawn = [proposer.of(row, of_row, 0) for row, of_row in enumerate(texts)]
    flat = [(own if text is None else text)[0] for own, of_row in zip(texts, drawn) for text in of_row]
    tokens, special, _ = tokenize(tokenizer, MAX_LENGTH, [text for (text,) in texts])
    rows = [dict(row=i, **_row(ids, flags)) for i, (ids, flags) in enumerate(zip(tokens, special))]
    whole = TextVariants(texts, Limits(tokenizer), {}, [proposer]).collate(partial(collate, position_offset=0), 0)

    def batches() -> None:
        for first in range(0, count, BATCH_SIZE):
            whole(rows[first : first + BATCH_SIZE])

    parts = {
        "draw": lambda: [proposer.of(row, of_row, 0) for row, of_row in enumerate(texts)],
        "tokenise": lambda: tokenize(tokenizer, MAX_LENGTH, flat),
        "whole": batches,
    }
    for name, run in parts.items():
        found = rate(run, count, options.repeats)
        print(
            f"{name:9} {found:8,.0f} sentences a second, each with {options.num_proposals} proposals of {options.edits}"
        )


def _row(ids: list[int], flags: list[bool]) -> dict:
    import numpy as np

    return {"input_ids": np.array(ids), "is_special": np.array(flags), "sentence_id": sentence_id(ids)}


if __name__ == "__main__":
    main()
