"""Copies put together of the tokens of their words are what the tokenizer makes of each whole copy."""

import pickle
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.piece_tokens import ByteLevelTokens, WordPieceTokens, piece_tokens
from fastadv.data.variants.text_packer import TextPacker

TEXTS = [
    "The actor's performance wasn't wonderful, although everybody clapped politely afterwards.",
    "A film that I'd  recommend: http://a.b/c unconditionally; its story rewards patience, and how!",
    "and/or well-made   two  spaces (parentheses) Überraschend naïve façade",
    "İstanbul ﬃ ß 한국어 你好世界",
    "a  <s> b   <mask> [MASK]c  word<s>s  <s",
    "   ",
    "never",
]
EDITS = ["typos", "case", "spaces", "looks", "negation"]
EDGES = [" ", "  ", "\t", "\n", "\x1c", "\x85", "\u00a0", "\u3000", "\u200b", "\u180e", "\ufeff", "\u0301", "\u0345"]
EDGES += [
    "'s",
    "'",
    "-",
    "/",
    "<s>",
    "[MASK]",
    "<mask>",
    "mask",
    "Σ",
    "ς",
    "İ",
    "\u212a",
    "é",
    "中",
    "가",
    "👍🏽",
    "\x00",
    "7",
]
PLAIN = st.sampled_from([" ", "film", "Great", "don't", "well-made", ".", ",", "a", "42", " the "])
HOSTILE = st.lists(st.one_of(PLAIN, st.sampled_from(EDGES), st.characters(exclude_categories=["Cs"])), max_size=16)


def framed(tokenizer, begin, end) -> PreTrainedTokenizerFast:
    ids = [(token, tokenizer.token_to_id(token)) for token in (begin, end)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", pair=f"{begin} $A {end} $B:1 {end}:1", special_tokens=ids
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, cls_token=begin, sep_token=end, pad_token=begin)


def word_piece(normalizer):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    special = ["[UNK]", "[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True)]
    tokenizer.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    return framed(tokenizer, "[CLS]", "[SEP]")


def byte_level(normalizer=None, **options):
    tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(**options)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    special = ["<s>", "</s>", AddedToken("<mask>", lstrip=True, normalized=False)]
    trainer = trainers.BpeTrainer(
        vocab_size=420, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    # Runs of spaces become tokens.
    tokenizer.train_from_iterator([*TEXTS, *["a    b"] * 20], trainer)
    return framed(tokenizer, "<s>", "</s>")


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    tokenizer.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    return framed(tokenizer, "<s>", "</s>")


KINDS = {
    "WordPiece, lower case": (lambda: word_piece(normalizers.BertNormalizer()), WordPieceTokens),
    "WordPiece, cased": (lambda: word_piece(normalizers.BertNormalizer(lowercase=False)), WordPieceTokens),
    "WordPiece, as it is": (lambda: word_piece(None), WordPieceTokens),
    "byte-level BPE": (lambda: byte_level(add_prefix_space=False), ByteLevelTokens),
    "byte-level BPE with a space before": (lambda: byte_level(add_prefix_space=True), ByteLevelTokens),
    "byte-level BPE in NFC": (lambda: byte_level(normalizers.NFC(), add_prefix_space=False), ByteLevelTokens),
    "byte-level BPE in lower case": (lambda: byte_level(normalizers.Lowercase(), add_prefix_space=False), None),
    "byte-level BPE of whole texts": (lambda: byte_level(add_prefix_space=False, use_regex=False), None),
    "WordPiece in NFKC": (lambda: word_piece(normalizers.NFKC()), None),
    "Unigram": (unigram, None),
}


@cache
def tokenizer_of(kind):
    return KINDS[kind][0]()


def packer(kind, max_length) -> TextPacker:
    return TextPacker(tokenizer_of(kind), max_length, 2, 1)


def drawn_of(texts, seed=0):
    proposer = Proposer(make_edits(EDITS, "edits"), 4, word_share=(0.1, 0.9), min_letters=1, seed=seed)
    return [proposer.copies(row, of_row, 0) for row, of_row in enumerate(texts)]


def assert_equal(one, other):
    for name in ("input_ids", "token_type_ids", "position_ids", "is_special", "cu_seqlens", "sentence_ids"):
        values = getattr(one, name), getattr(other, name)
        assert values[0].dtype == values[1].dtype and torch.equal(*values), name
    assert (one.max_seqlen, one.host_lengths) == (other.max_seqlen, other.host_lengths)


def check(pack, texts, seed):
    drawn, own = drawn_of(texts, seed), pack._packed_whole(texts)
    assert_equal(pack(texts), own)
    for number, part in enumerate(pack.copies(drawn, own.sentence_ids)):
        whole = pack._packed_whole([copies.texts_of(number) or copies.texts for copies in drawn])
        assert_equal(part, whole)
        assert torch.equal(part.is_present, whole.sentence_ids != own.sentence_ids)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_is_known_by_its_parts(kind):
    pieces = piece_tokens(tokenizer_of(kind))
    assert type(pieces) is (KINDS[kind][1] or type(None))
    assert (packer(kind, 16)._frame(1) is None) == (KINDS[kind][1] is None)


def test_other_tokenizers_have_no_pieces():
    cut_at_begin = byte_level(add_prefix_space=False)
    cut_at_begin.truncation_side = "left"
    assert TextPacker(cut_at_begin, 16, 2, 0)._frame(1) is None
    with_space = byte_level(add_prefix_space=False)
    with_space.add_tokens([AddedToken("great film")])
    assert piece_tokens(with_space) is None
    of_bert = word_piece(normalizers.BertNormalizer())
    of_bert.add_tokens([AddedToken("café", normalized=True)])
    assert piece_tokens(of_bert) is None
    dropping = byte_level(add_prefix_space=False)
    dropping.backend_tokenizer.model.dropout = 0.1
    assert piece_tokens(dropping) is None


@pytest.mark.parametrize("max_length", [6, 13, 200])
@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_copies_are_those_of_whole_texts(kind, is_pair, max_length):
    texts = [(a, b) if is_pair else (a,) for a, b in zip(TEXTS, TEXTS[1:] + TEXTS[:1])]
    for seed in range(3):
        check(packer(kind, max_length), texts, seed)


@pytest.mark.parametrize("kind", [kind for kind, (_, pieces) in KINDS.items() if pieces])
@given(parts=HOSTILE, others=HOSTILE, max_length=st.integers(5, 30), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_hostile_copies_are_those_of_whole_texts(kind, parts, others, max_length, seed):
    first, second = "".join(parts), "".join(others)
    check(packer(kind, max_length), [(first,), (second,)], seed)
    check(packer(kind, max_length), [(first, second)], seed)


@pytest.mark.parametrize("kind", ["WordPiece, lower case", "byte-level BPE", "byte-level BPE with a space before"])
def test_a_text_is_cut_where_no_token_lies_across(kind):
    """Every character of the first planes, before a space and after it."""
    tokenizer, pieces = tokenizer_of(kind), piece_tokens(tokenizer_of(kind))
    texts = [f"a {chr(code)} b{chr(code)}  c" for code in range(0x3100) if not 0xD800 <= code < 0xE000]
    whole = tokenizer(texts, add_special_tokens=False)["input_ids"]
    for text, ids in zip(texts, whole):
        assert torch.frombuffer(bytearray(pieces.of(text)), dtype=torch.int32).tolist() == ids, ascii(text)


def test_kept_pieces_change_nothing(monkeypatch):
    monkeypatch.setattr("fastadv.data.piece_tokens._GENERATION", 3)
    pack, texts = packer("WordPiece, lower case", 16), [(text,) for text in TEXTS]
    for seed in range(3):
        check(pack, texts, seed)
        check(pickle.loads(pickle.dumps(pack)), texts, seed)
    assert len(pack._pieces) <= 3


def test_another_tokenizer_than_that_of_the_text_raises():
    pack, drawn = packer("WordPiece, cased", 16), drawn_of([("never",)])
    with pytest.raises(ValueError, match="other tokens than it gave"):
        pack.copies(drawn, torch.tensor([7]))
