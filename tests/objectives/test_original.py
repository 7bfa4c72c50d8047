"""What ``weight_keep`` holds an encoder to: its own vectors before training, of a frozen copy."""

import pytest
import torch
import torch.nn.functional as F

from fastadv.objectives.base import Views
from fastadv.objectives.original import OriginalEncoder
from fastadv.objectives.sentences.simcse import SimCSE


def test_the_copy_stays_as_it_was_and_has_no_gradient(tiny_encoder, sentences):
    encoder = tiny_encoder()
    batch = encoder.pack(sentences)
    with torch.no_grad():
        before = encoder.eval().encode(encoder.embed(batch), batch)
    original = OriginalEncoder(encoder.train())
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.5
    found = original(batch)
    assert torch.equal(found, before) and not found.requires_grad
    assert not torch.equal(found, encoder.eval().encode(encoder.embed(batch), batch))


def test_it_is_neither_trained_nor_in_checkpoints(tiny_encoder):
    objective = SimCSE(tiny_encoder().hidden_size, weight_keep=1.0)
    objective.original_vectors = OriginalEncoder(tiny_encoder())
    assert set(objective.state_dict()) == {"head.0.weight", "head.0.bias"}
    assert objective.needs.original and not SimCSE(8).needs.original


def test_without_texts_the_sentences_alone_are_kept():
    torch.manual_seed(0)
    h, start = torch.randn(4, 8), torch.randn(4, 8)
    objective = SimCSE(8, head="none", weight_keep=2.0)
    objective.original_vectors = lambda batch: start
    views = Views(h, torch.arange(4), pooled=h)
    loss, terms = objective.with_text_terms(torch.tensor(1.0), {}, views)
    expected = (1 - F.cosine_similarity(h, start)).mean()
    assert torch.equal(terms["loss_keep"], expected) and torch.equal(loss, 1 + 2 * expected)


def test_a_step_made_by_hand_without_it_says_so():
    with pytest.raises(ValueError, match="weight_keep needs original_vectors"):
        objective = SimCSE(8, head="none", weight_keep=2.0)
        objective.with_text_terms(torch.tensor(1.0), {}, Views(torch.ones(2, 8), torch.arange(2)))
