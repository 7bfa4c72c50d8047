"""Sentences put together of their own tokens and edited ones are what the tokenizer makes of the text put together."""

import random
from dataclasses import replace

import pytest
import torch

from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.edits.word_tokens import check_tokenizer, pack_words, with_edited_words
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


def assembled(texts, drawn, of_row, is_edited):
    """The texts of a row with the words of ``is_edited`` edited; a word that has no number stays."""
    pieces, number = [], 0
    for part, text in enumerate(texts):
        result, end = "", 0
        for own, other in zip(drawn.own_spans[part], drawn.edited_spans[part], strict=True):
            word = text[own[0] : own[1]]
            if number in of_row and is_edited[number]:
                word = drawn.edited[part][other[0] : other[1]]
            result, end, number = result + text[end : own[0]] + word, own[1], number + 1
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
        is_edited = torch.rand(len(texts), own.max_seqlen + 40, generator=draw) < 0.5
        together = with_edited_words(own, edited, is_edited, max_length)
        columns = together.input_ids.split(together.lengths.tolist())
        for row, tokens in enumerate(columns):
            known = set(own.words[own.token_sentence == row].tolist()) - {-1}
            expected = assembled(texts[row], drawn[row], known, is_edited[row].tolist())
            whole = encoder.tokenizer(*expected, truncation=not is_pair, max_length=max_length)["input_ids"]
            num_cut += len(whole) > max_length or len(whole) == max_length
            if not is_pair or len(whole) < max_length:
                assert tokens.tolist() == whole
        assert together.position_ids.tolist() == [i for n in together.lengths.tolist() for i in range(n)]
        assert together.max_seqlen == together.lengths.max() <= max_length
        assert torch.equal(together.sentence_ids, own.sentence_ids)
    assert num_cut or max_length == 64


def test_nothing_and_everything(minilm_dir):
    encoder = Encoder.from_pretrained(str(minilm_dir), max_length=64)
    texts = [(text,) for text in TEXTS]
    own, edited = pack_words(encoder.tokenizer, 64, 2, 0, texts, drawn_of(texts))
    none = torch.zeros(len(texts), own.max_seqlen, dtype=torch.bool)
    assert torch.equal(with_edited_words(own, edited, none, 64).input_ids, own.input_ids)
    assert torch.equal(with_edited_words(own, edited, ~none, 64).input_ids, edited.input_ids)
    assert own.is_present.tolist() == [True, True, False, True, True]
    assert (edited.num_edits > 0).tolist() == own.is_present.tolist()


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
        known = set(own.words[own.token_sentence == row].tolist()) - {-1}
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
        chosen = sorted(weights, key=weights.get, reverse=True)[: drawn[row].num_edits]
        is_edited = [word in chosen for word in range(100)]
        (text,) = assembled(texts[row], drawn[row], set(weights), is_edited)
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
