"""A classifier as attacks on text ask it: the answers are those of transformers' own model, asked text by text."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.victims import text as text_victim
from fastadv.evaluation.victims.text import OutOfTime, TextVictim
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier

PAIRS = [(first, second) for first, second in zip(TEXTS, TEXTS[3:] + TEXTS[:3])]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("victim") / "model"
    make_classifier(tiny_bert_dir, dtype=torch.float32).save_pretrained(folder)
    return folder


@pytest.fixture
def victim(folder):
    return TextVictim(Classifier.from_pretrained(str(folder)), batch_size=3)


@pytest.fixture
def reference(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def logits(text, bias=None):
        texts = (text,) if isinstance(text, str) else text
        with torch.no_grad():
            return model(**tokenizer(*texts, truncation=True, return_tensors="pt")).logits[0].double()

    return model, tokenizer, logits


@pytest.mark.parametrize("texts", [TEXTS, PAIRS])
def test_probabilities_are_those_of_transformers_text_by_text(victim, reference, texts):
    expected = torch.stack([F.softmax(reference[2](text), dim=0) for text in texts])
    found = victim(texts)
    assert found.dtype == torch.float64 and found.shape == (len(TEXTS), len(CLASSES))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.sum(dim=1), torch.ones(len(texts), dtype=torch.float64), atol=1e-12, rtol=0)


def test_any_order_and_repetition_keeps_each_texts_answer(victim):
    order = [3, 0, 3, 11, 5, 0, 7]
    asked = victim([TEXTS[i] for i in order])
    assert torch.equal(asked[0], asked[2]) and torch.equal(asked[1], asked[5])
    assert victim.num_asked == 7 and victim.num_run == 5
    again = victim([TEXTS[0], TEXTS[1]])
    assert torch.equal(again[0], asked[1])
    # Known, or new: only the second was run.
    assert victim.num_run == 6
    victim.begin()
    victim([TEXTS[0]])
    assert victim.num_run == 7


def test_texts_of_the_same_tokens_run_once(victim):
    long = "the film was dull " * 40
    answers = victim([long, long + "wonderful", "It  is   DULL", "it is dull"])
    assert victim.num_run == 2
    assert torch.equal(answers[0], answers[1]) and torch.equal(answers[2], answers[3])


def test_the_cache_is_bounded(folder):
    victim = TextVictim(Classifier.from_pretrained(str(folder)), cache_size=4)
    first = victim(TEXTS)
    # Of those kept, the newest: the first texts are run anew.
    assert victim.num_run == 12
    torch.testing.assert_close(victim(TEXTS[-4:]), first[-4:], atol=0, rtol=0)
    assert victim.num_run == 12
    victim(TEXTS[:1])
    assert victim.num_run == 13


def test_a_bias_moves_the_logits(folder, reference):
    bias = [0.5, -1.0, 2.0, 0.0]
    victim = TextVictim(Classifier.from_pretrained(str(folder)), bias=bias)
    expected = torch.stack([F.softmax(reference[2](text) + torch.tensor(bias).double(), dim=0) for text in TEXTS])
    torch.testing.assert_close(victim(TEXTS), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("bias", [[1.0], [1.0, 2.0, 3.0, float("nan")]])
def test_a_bias_that_does_not_fit_is_refused(folder, bias):
    with pytest.raises(UserError, match="expected 4 finite numbers, one a class"):
        TextVictim(Classifier.from_pretrained(str(folder)), bias=bias)


@pytest.mark.parametrize("text", [TEXTS[3], PAIRS[3]])
@pytest.mark.parametrize("bias", [None, [0.0, 30.0, 0.0, 0.0]])
def test_word_gradients_are_those_of_transformers(folder, reference, text, bias):
    victim = TextVictim(Classifier.from_pretrained(str(folder)), bias=bias)
    model, tokenizer, _ = reference
    given = tokenizer(*((text,) if isinstance(text, str) else text), return_tensors="pt")
    words = model.get_input_embeddings()(given.pop("input_ids")).detach().requires_grad_()
    logits = model(inputs_embeds=words, **given).logits
    if bias is not None:
        logits = logits + torch.tensor(bias)
    F.cross_entropy(logits, logits.argmax(dim=1)).backward()
    found = victim.get_grad(text)
    assert found["gradient"].shape == words.shape[1:] and found["ids"].shape == words.shape[:2]
    np.testing.assert_allclose(found["gradient"], words.grad[0].numpy(), atol=1e-5)
    assert np.abs(found["gradient"]).max() > 1e-3 or bias is not None
    assert all(parameter.grad is None for parameter in victim.model.parameters())
    # The hook is gone.
    assert victim([text]).requires_grad is False


def test_tokens_stand_for_the_rows_of_the_gradient(victim):
    (tokens,) = victim.tokenize(["dull zoo"])
    assert tokens == ["[CLS]", "dull", "z", "##o", "##o", "[SEP]"]
    assert victim.tokenize(["dull zoo"], strip_prefix=True) == [["[CLS]", "dull", "z", "o", "o", "[SEP]"]]
    assert len(victim.get_grad("dull zoo")["gradient"]) == 6


def test_time_that_is_over_ends_the_questions(victim):
    victim.begin(seconds=0.0)
    with pytest.raises(OutOfTime):
        victim(["never"])
    assert not issubclass(OutOfTime, Exception)
    victim.begin()
    victim(["never"])


@pytest.mark.parametrize("texts", [TEXTS, PAIRS])
def test_much_text_is_tokenised_in_pieces_between_which_time_is_looked_at(victim, monkeypatch, texts):
    expected, sizes, tokens = victim(texts), [], victim._tokens
    clock = [0.0]
    monkeypatch.setattr(text_victim, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    victim.begin()

    def slow(piece):
        sizes.append(sum(len("".join(text)) for text in piece))
        clock[0] += pause
        return tokens(piece)

    pause = 0.0
    monkeypatch.setattr(victim, "_tokens", slow)
    monkeypatch.setattr(text_victim, "_PIECE_CHARACTERS", 60)
    assert torch.equal(victim(texts), expected)
    longest = max(len("".join(text)) for text in texts)
    assert len(sizes) > 2 and sum(sizes) == sum(len("".join(text)) for text in texts)
    assert all(60 <= size < 60 + longest for size in sizes[:-1])
    pause, sizes[:] = 0.03, []
    victim.begin(seconds=0.02)
    with pytest.raises(OutOfTime):
        victim(texts)
    assert len(sizes) == 1


def test_texts_and_pairs_are_not_mixed(victim):
    with pytest.raises(UserError, match="texts and pairs"):
        victim(["a", ("a", "b")])


def test_logits_that_are_no_numbers_are_refused(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    with torch.no_grad():
        classifier.head.out.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="runs/mine gave logits with NaN or infinity for 2 of 2 texts"):
        TextVictim(classifier, model_folder="runs/mine")(TEXTS[:2])
