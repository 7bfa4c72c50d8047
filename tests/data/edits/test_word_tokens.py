"""Sentences put together of their own tokens and edited ones are what the tokenizer makes of the text put together."""

import random
from dataclasses import replace

import pytest
import torch

from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.edits.word_tokens import check_tokenizer, pack_words, with_edited_words, words_of_tokens
from fastadv.data.variants.word_sets import WordSets
from fastadv.encoder import Encoder
from fastadv.errors import UserError

TEXTS = [
    "The actor's performance wasn't wonderful, although everybody clapped politely afterwards.",
    "never",
    "12 34 !!",
    "A film that I'd recommend: http://a.b/c unconditionally; its story rewards patience, and how!",
    "Überraschend guter Schluß, naïve façade",
]


def drawn_of(texts, names=("typos", "case", "split"), seed=0):
    proposer = Proposer(make_edits(names, "edits"), 1, word_share=(0.3, 0.6), seed=seed, is_by_word=True)
    return [proposer.every_word(row, of_row, 0) for row, of_row in enumerate(texts)]


def known_words(tokenizer, texts, drawn, max_length):
    """The words of a row, by their place among its spans, that are whole in the text as it is and in the edited one."""
    known = None
    for side, spans in ((texts, drawn.own_spans), (drawn.edited, drawn.edited_spans)):
        options = dict(truncation=True, max_length=max_length, return_offsets_mapping=True)
        encoding = tokenizer(*([text] for text in side), **options).encodings[0]
        found = set(words_of_tokens(encoding, spans)) - {-1}
        known = found if known is None else known & found
    return sorted(known)


def assembled(texts, drawn, known, is_edited):
    """The texts of a row with the words of ``is_edited``, which counts those that are known, edited."""
    pieces, place = [], 0
    for part, text in enumerate(texts):
        result, end = "", 0
        for own, other in zip(drawn.own_spans[part], drawn.edited_spans[part], strict=True):
            word = text[own[0] : own[1]]
            if place in known and is_edited[known.index(place)]:
                word = drawn.edited[part][other[0] : other[1]]
            result, end, place = result + text[end : own[0]] + word, own[1], place + 1
        pieces.append(result + text[end:])
    return tuple(pieces)


@pytest.mark.parametrize("max_length", [12, 64])
@pytest.mark.parametrize("is_pair", [False, True])
def test_tokens_put_together_are_those_of_the_text(minilm_dir, max_length, is_pair):
    encoder = Encoder.from_pretrained(str(minilm_dir), max_length=max_length)
    texts = [(a, b) if is_pair else (a,) for a, b in zip(TEXTS, TEXTS[1:] + TEXTS[:1])]
    limits = encoder.max_length, encoder.num_token_types, encoder.position_offset
    num_cut = 0
    for seed in range(4):
        drawn = drawn_of(texts, seed=seed)
        own, edited = pack_words(encoder.tokenizer, *limits, texts, drawn)
        draw = torch.Generator().manual_seed(seed)
        is_edited = torch.rand(len(texts), own.max_seqlen, generator=draw) < 0.5
        together = with_edited_words(own, edited, is_edited, max_length)
        for row, tokens in enumerate(together.input_ids.split(together.lengths.tolist())):
            known = known_words(encoder.tokenizer, texts[row], drawn[row], max_length)
            numbers = own.words[own.token_sentence == row]
            assert sorted(set(numbers.tolist()) - {-1}) == list(range(len(known)))
            expected = assembled(texts[row], drawn[row], known, is_edited[row].tolist())
            whole = encoder.tokenizer(*expected)["input_ids"]
            cut = encoder.tokenizer(*expected, truncation=True, max_length=max_length)["input_ids"]
            is_any = any(is_edited[row, : len(known)])
            of_own = own.input_ids[own.token_sentence == row].tolist()
            own_whole = encoder.tokenizer(*texts[row])["input_ids"]
            if not is_pair or len(own_whole) <= max_length >= len(whole):
                assert tokens.tolist() == cut and together.is_present[row] == is_any
            elif len(tokens) == len(of_own) and not together.is_present[row]:
                # A pair that would be cut keeps its own words.
                assert tokens.tolist() == of_own
            num_cut += len(whole) > max_length
        assert together.position_ids.tolist() == [i for n in together.lengths.tolist() for i in range(n)]
        assert together.max_seqlen == together.lengths.max() <= max_length
        assert torch.equal(together.sentence_ids, own.sentence_ids)
    assert num_cut or max_length == 64


def test_words_of_a_long_first_text_stay_below_the_number_of_tokens(minilm_dir):
    encoder = Encoder.from_pretrained(str(minilm_dir), max_length=16)
    texts = [("remarkable wonderful performances everywhere " * 20, "another sentence entirely different")]
    own, edited = pack_words(encoder.tokenizer, 16, 2, 0, texts, drawn_of(texts))
    assert -1 < own.words.max() < own.max_seqlen and edited.words.max() < own.max_seqlen


def test_a_pair_that_would_be_cut_keeps_its_own_words(minilm_dir):
    encoder = Encoder.from_pretrained(str(minilm_dir), max_length=12)
    texts = [("wonderful acting", "terrible plot overall though charming"), ("good", "bad")]
    drawn = drawn_of(texts, ("insert",))
    own, edited = pack_words(encoder.tokenizer, 12, 2, 0, texts, drawn)
    together = with_edited_words(own, edited, torch.ones(2, own.max_seqlen).bool(), 12)
    assert torch.equal(together.input_ids[together.token_sentence == 0], own.input_ids[own.token_sentence == 0])
    assert together.is_present.tolist() == [False, True]


def test_words_that_no_edit_changes_have_no_number(minilm_dir):
    encoder = Encoder.from_pretrained(str(minilm_dir), max_length=64)
    sets = WordSets({"film": ["movie"]}, {})
    proposer = Proposer(make_edits(["synonyms"], "edits", sets), 1, (1.0, 1.0), is_by_word=True)
    texts = [("this film never ends before midnight",), ("nothing here",)]
    drawn = [proposer.every_word(row, of_row, 0) for row, of_row in enumerate(texts)]
    own, edited = pack_words(encoder.tokenizer, 64, 2, 0, texts, drawn)
    assert own.is_present.tolist() == [True, False] and edited.num_edits[0] == 1
    assert [encoder.tokenizer.decode(t) for t in own.input_ids[own.words == 0]] == ["film"]


def test_nothing_and_everything(minilm_dir):
    encoder = Encoder.from_pretrained(str(minilm_dir), max_length=64)
    texts = [(text,) for text in TEXTS]
    own, edited = pack_words(encoder.tokenizer, 64, 2, 0, texts, drawn_of(texts))
    none = torch.zeros(len(texts), own.max_seqlen, dtype=torch.bool)
    assert torch.equal(with_edited_words(own, edited, none, 64).input_ids, own.input_ids)
    assert torch.equal(with_edited_words(own, edited, ~none, 64).input_ids, edited.input_ids)
    assert own.is_present.tolist() == [True, True, False, True, True]


def test_byte_level_tokens_begin_with_a_space():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer, alphabet = Tokenizer(models.BPE()), pre_tokenizers.ByteLevel.alphabet()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    texts = [(TEXTS[0],), (TEXTS[3],)]
    drawn = drawn_of(texts)
    own, edited = pack_words(fast, 512, 0, 0, texts, drawn)
    is_edited = torch.rand(2, own.max_seqlen, generator=torch.Generator().manual_seed(0)) < 0.5
    together = with_edited_words(own, edited, is_edited, 512)
    for row, tokens in enumerate(together.input_ids.split(together.lengths.tolist())):
        known = known_words(fast, texts[row], drawn[row], 512)
        (text,) = assembled(texts[row], drawn[row], known, is_edited[row].tolist())
        assert known and tokens.tolist() == fast(text)["input_ids"]


def test_words_of_the_largest_gradient_are_edited(make_step, minilm_dir):
    """The step edits as many words as the draw says, and those whose tokens weigh most."""
    from fastadv.config.text_search import TextSearchConfig
    from fastadv.engine.step.text_search import TextSearch

    recorded = make_step("simcse", {"text_positive": "instead"}, dropout=0.0)
    step, encoder = recorded.step, recorded.step.encoder
    text = TextSearchConfig(choose="gradient", precision="fp32")
    step.text_search = TextSearch(text, step.passes, step.objective, step.plan)
    sentences = ["the film was not very good", "never", "every scene was sad and slow", "love this camera and music"]
    texts = [(sentence,) for sentence in sentences]
    proposer = Proposer(make_edits(["drop"], "edits"), 1, (0.4, 0.6), min_letters=1, is_by_word=True)
    drawn = [proposer.every_word(row, of_row, 0) for row, of_row in enumerate(texts)]
    sides = pack_words(encoder.tokenizer, encoder.max_length, encoder.num_token_types, 0, texts, drawn)
    batch = replace(encoder.pack(sentences), proposals={"text": sides})
    seen, gradient = {}, step.text_search._adversary.gradient
    at_gradient = step.text_search._at_gradient
    step.text_search._adversary.gradient = lambda *args: seen.setdefault("grad", gradient(*args))
    step.text_search._at_gradient = lambda *args: seen.setdefault("text", at_gradient(*args))
    loss, grads = recorded.run(batch)
    assert loss.isfinite() and all(grad.isfinite().all() for grad in grads.values())
    own, sizes = sides[0], seen["grad"].norm(dim=1)
    for row in range(len(sentences)):
        of_row = own.token_sentence == row
        weights = {
            word: sizes[of_row & (own.words == word)].sum().item() for word in set(own.words[of_row].tolist()) - {-1}
        }
        num_edits = max(1, round(drawn[row].share * len(weights)))
        chosen = sorted(weights, key=weights.get, reverse=True)[:num_edits]
        is_edited = [word in chosen for word in range(100)]
        known = known_words(encoder.tokenizer, texts[row], drawn[row], encoder.max_length)
        (text,) = assembled(texts[row], drawn[row], known, is_edited)
        found = seen["text"].input_ids[seen["text"].token_sentence == row].tolist()
        assert found == encoder.tokenizer(text)["input_ids"]


def test_a_tokenizer_without_offsets_is_refused():
    class Slow:
        is_fast = False

    with pytest.raises(UserError, match="choose = gradient: Slow does not say"):
        check_tokenizer(Slow())


def test_draws_do_not_depend_on_other_rows():
    texts = [(text,) for text in TEXTS]
    random.seed(0)
    assert drawn_of(texts)[3] == drawn_of(texts[:4])[3] != drawn_of(texts, seed=1)[3]
