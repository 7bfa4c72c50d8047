"""Texts to tokens: how many are cut and unknown, what is no list of texts, and that all readings say so."""

import copy
import logging

import numpy as np
import pytest

from fastadv.data.labelled.text import LabelledText
from fastadv.data.sources.line_report import LineReport
from fastadv.data.text import TokenizedText
from fastadv.data.tokenize_texts import counting_tokens, say_tokens
from fastadv.encoder.export.encode_file import encode_file
from fastadv.errors import UserError

WORDS = "the film was very good".split()
# Of three words just as many tokens as fit, of four one too many; no letter of 字 is in the vocabulary.
TEXTS = ["the film was", "the film was very", "字 film 字", " ".join(WORDS), "film"]


@pytest.fixture
def encoder(tiny_encoder):
    return tiny_encoder(max_length=5)


def counts_of(report):
    return report.num_texts, report.num_cut, report.num_tokens, report.num_unknown, report.max_length


def test_what_is_cut_and_unknown_is_counted(encoder):
    report = LineReport()
    with counting_tokens(report):
        tokens, special = encoder.tokenize(TEXTS)
    encoder.tokenize(TEXTS)
    # Three letters of each text but the last are left between [CLS] and [SEP].
    assert [len(row) for row in tokens] == [5, 5, 5, 5, 3]
    unknown = encoder.tokenizer.unk_token_id
    assert counts_of(report) == (5, 2, 13, sum(row.count(unknown) for row in tokens), 5) == (5, 2, 13, 2, 5)
    assert report.summary_of_tokens() == "2 cut to 5 tokens; 2 of 13 tokens unknown to the tokenizer"
    assert encoder.tokenize(TEXTS) == (tokens, special)


def test_a_slow_tokenizer_counts_the_same(encoder):
    from transformers import BertTokenizer

    class Slow(BertTokenizer):
        """Without `encodings`, as tokenizers in Python are."""

        def __call__(self, *arguments, **options):
            return {name: value for name, value in super().__call__(*arguments, **options).items()}

    from fastadv.data.tokenize_texts import tokenize

    slow = Slow.from_pretrained(encoder.tokenizer.name_or_path)
    for prompt, expected in {"": (5, 2, 13, 2, 5), "the film ": (5, 4, 15, 1, 5)}.items():
        report = LineReport()
        with counting_tokens(report):
            tokenize(slow, 5, TEXTS, prompt=prompt)
        assert counts_of(report) == expected


def test_a_prompt_takes_room_of_every_text(encoder):
    encoder.set_prompt("the film ")
    report = LineReport()
    with counting_tokens(report):
        tokens, _ = encoder.tokenize(TEXTS)
    assert [len(row) for row in tokens] == [5] * 5 and counts_of(report) == (5, 4, 15, 1, 5)


@pytest.mark.parametrize("max_length, num_cut", [(6, 3), (7, 1), (8, 1), (9, 0)])
def test_a_pair_that_loses_tokens_is_cut(tiny_encoder, max_length, num_cut):
    encoder, report = tiny_encoder(max_length=max_length), LineReport()
    with counting_tokens(report):
        encoder.tokenize_pairs(
            ["the film", "the film was", "film", "the film was"], ["was very", "good", "x", "was " * 3]
        )
    assert (report.num_texts, report.num_cut) == (4, num_cut)


def test_a_model_whose_unknown_token_is_its_special_one_knows_all(encoder):
    class Tokenizer:
        unk_token_id = 0

        def num_special_tokens_to_add(self, pair):
            return 1

        def __call__(self, texts, **options):
            ids = [[0, *map(ord, text)] for text in texts]
            return {"input_ids": ids, "special_tokens_mask": [[1] + [0] * (len(row) - 1) for row in ids]}

    from fastadv.data.tokenize_texts import tokenize

    report = LineReport()
    with counting_tokens(report):
        tokenize(Tokenizer(), 50, ["ab", "a\0"])
    assert (report.num_tokens, report.num_unknown) == (4, 1)


def test_every_reading_says_both_at_its_end(tmp_path, encoder, caplog):
    caplog.set_level(logging.INFO, logger="fastadv.data")
    (tmp_path / "a.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{i % 2}\n" for i, text in enumerate(TEXTS)))
    both = "2 cut to 5 tokens; 2 of 13 tokens unknown to the tokenizer"

    def build():
        return TokenizedText.build(
            tmp_path / "a.txt", encoder.tokenize, "tiny", 5, cache_dir=tmp_path / "cache", progress=False
        )

    def build_labelled():
        return LabelledText.build(tmp_path / "a.csv", encoder, cache_dir=tmp_path / "cache", progress=False)

    # The second time nothing is tokenised.
    for read in (build, build, build_labelled, build_labelled):
        caplog.clear()
        read()
        said = [record for record in caplog.records if "sentences of 5 lines" in record.message]
        assert len(said) == 1 and both in said[0].message, caplog.text
        doubts = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(doubts) == 1 and "15.4 % of the tokens are unknown to the tokenizer" in doubts[0]
    summary = encode_file(encoder, tmp_path / "a.txt", tmp_path / "a.npy")
    assert both in summary["lines"] and len(summary["doubts"]) == 1
    caplog.clear()
    say_tokens(encoder, "texts", TEXTS)
    assert f"texts: 5 texts, {both}" in caplog.text


def test_texts_that_are_mostly_cut_are_a_warning():
    report = LineReport(num_texts=100, num_cut=50, num_tokens=1000, num_unknown=10, max_length=32)
    assert report.doubts() == []
    report.num_cut += 1
    report.num_unknown += 1
    assert report.doubts() == [
        "51 of 100 texts are cut to 32 tokens",
        "1.1 % of the tokens are unknown to the tokenizer: is it of the text's language?",
    ]


CALLS = {
    "encode_texts": lambda encoder, texts: encoder.encode_texts(texts),
    "pack": lambda encoder, texts: encoder.pack(texts),
    "tokenize": lambda encoder, texts: encoder.tokenize(texts),
    "tokenize_pairs": lambda encoder, texts: encoder.tokenize_pairs(texts, texts),
    "batches_of": lambda encoder, texts: list(encoder.batches_of(texts)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "texts, message",
    [
        ("hello world", r"a list of texts is expected, got one text; give \['hello world'\]"),
        (b"hello", "a list of texts is expected"),
        (["a", None], "text 1 is expected to be a str, got NoneType None"),
        (["a", float("nan")], "text 1 is expected to be a str, got float nan"),
        ([("a film", "b")], r"text 0 is expected to be a str, got tuple \('a film', 'b'\)"),
        ([["a", "b"]], "text 0 is expected to be a str, got list"),
        ([b"bytes"], "text 0 is expected to be a str, got bytes"),
    ],
)
def test_what_is_no_list_of_texts_is_no_vector_a_letter(encoder, call, texts, message):
    with pytest.raises(TypeError, match=message):
        call(encoder, texts)


def test_lists_of_unequal_lengths_make_no_pairs(encoder):
    with pytest.raises(ValueError, match="2 first texts and 1 second ones"):
        encoder.tokenize_pairs(["a", "b"], ["c"])


def test_a_token_that_the_model_does_not_embed_is_one_line(encoder):
    encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
    size = encoder.vocab_size
    encoder.tokenizer.add_tokens([f"zz{i:04}" for i in range(size)])
    assert encoder.encode_texts(["the film"]).shape[0] == 1
    for read in (encoder.tokenize, encoder.encode_texts, lambda texts: encoder.tokenize_pairs(texts, texts)):
        with pytest.raises(UserError, match=f"numbers 'zz{size - 1:04}' .* embeds tokens 0 to {size - 1} alone"):
            read(["the film", f"zz{size - 1:04}"])


def test_a_text_without_any_token_is_one_line(encoder):
    encoder.tokenizer = copy.deepcopy(encoder.tokenizer)
    encoder.tokenizer.backend_tokenizer.post_processor = None
    assert encoder.encode_texts(["the film"]).shape[0] == 1
    for read in (encoder.pack, encoder.encode_texts):
        with pytest.raises(UserError, match="text 1, ' ', has no token"):
            read(["the film", " "])


def test_no_text_has_no_vector(encoder):
    assert encoder.encode_texts([]).shape == (0, encoder.hidden_size)
    assert encoder.tokenize([]) == ([], []) and encoder.tokenize_pairs([], []) == ([], [], [])


@pytest.mark.parametrize("kind", [tuple, np.array, iter, lambda texts: dict.fromkeys(texts).keys(), "Series"])
def test_any_sequence_of_texts_will_do(encoder, kind):
    if kind == "Series":
        # Numbered otherwise than from 0, as a table is that was filtered.
        kind = lambda texts: pytest.importorskip("pandas").Series(texts, index=[7, 3, 0, 1, 2])  # noqa: E731
    np.testing.assert_array_equal(
        encoder.encode_texts(kind(TEXTS), batch_size=2), encoder.encode_texts(TEXTS, batch_size=2)
    )
