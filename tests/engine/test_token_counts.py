"""Token counts against a count of the rows, one token after the other."""

from collections import Counter

import pytest
import torch

from fastadv.data import text as text_module
from fastadv.data.mixture import TrainingRows
from fastadv.data.text import TokenizedText
from fastadv.engine.training_data import count_tokens

CLS, SEP, VOCAB_SIZE = 1, 2, 128


def tokenize(texts):
    """One id a letter, between two special tokens."""
    tokens = [[CLS, *map(ord, text), SEP] for text in texts]
    return tokens, [[True] + [False] * len(text) + [True] for text in texts]


@pytest.mark.parametrize("rows_a_batch", [1, 3, 8192])
def test_every_token_of_every_row_is_counted(tmp_path, monkeypatch, rows_a_batch):
    monkeypatch.setattr(text_module, "_ROWS_A_BATCH", rows_a_batch)
    lines = ["abc", "a", "zzzz", "abca", "b", "the last", "~"]
    # Triplets too: their positives and hard negatives are not counted.
    table = "text,near,far\n" + "".join(f"{line},{line}y,{line}x\n" for line in lines)
    (tmp_path / "a.csv").write_text(table)
    options = dict(max_length=16, cache_dir=tmp_path / "cache", progress=False)
    alone = TokenizedText.build(tmp_path / "a.csv", tokenize, "letters", **options)
    triplets = TokenizedText.build(
        tmp_path / "a.csv", tokenize, "letters", **options, positive_field="near", negative_field="far"
    )
    for text, times in ((alone, 1), (triplets, 1), (TrainingRows([alone, alone]), 2)):
        counts = count_tokens(text, VOCAB_SIZE)
        expected = Counter(int(token) for i in range(len(text)) for token in text[i]["input_ids"])
        assert counts.dtype == torch.int64 and counts.shape == (VOCAB_SIZE,)
        assert {token: n for token, n in enumerate(counts.tolist()) if n} == expected
        assert counts[CLS] == times * len(lines) and counts[ord("y")] == 0
