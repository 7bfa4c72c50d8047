"""Given positives and hard negatives: SimCSE's supervised loss, through the whole step."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fastadv.objectives import Keys, Views, resolve_objective

ANCHORS = ["a good film", "the plot is slow", "never", "a good film"]
POSITIVES = ["a great film", "it is dull and slow", "not always", "this is a good movie !"]
NEGATIVES = ["a terrible film", "the plot is sharp", "always", "the film is bad"]


def triplets(encoder, has_negatives=True):
    batch = replace(encoder.pack(ANCHORS), positive=encoder.pack(POSITIVES))
    return replace(batch, hard_negative=encoder.pack(NEGATIVES)) if has_negatives else batch


def simcse_as_published(query, positive, negative, temperature, weight):
    """Gao et al. 2021, their code: the log of the weight is added to a row's own hard negative's logit."""

    def cosines(a, b):
        return F.cosine_similarity(a[:, None], b[None], dim=-1) / temperature

    logits = torch.cat([cosines(query, positive), cosines(query, negative)], dim=1)
    own = torch.zeros_like(logits)
    own[:, len(query) :].fill_diagonal_(math.log(weight))
    return F.cross_entropy(logits + own, torch.arange(len(query)))


@pytest.mark.parametrize("weight", [1.0, 0.5, 3.0])
def test_loss_is_simcses_supervised_one(weight):
    query, positive, negative = torch.randn(3, 6, 8, dtype=torch.float64)
    ids = torch.arange(6)
    objective = resolve_objective("simcse")(8, temperature=0.1, weight_hard_negative=weight)
    keys = Keys(positive, ids).with_hard_negatives(Keys(negative, ids + 100))
    loss, _ = objective.loss(Views(query, ids, keys))
    torch.testing.assert_close(loss, simcse_as_published(query, positive, negative, 0.1, weight))


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_step_encodes_the_given_texts(make_step, weight):
    options = {"weight_hard_negative": weight, "mask_duplicates": False}
    step = make_step("simcse", objective_options=options).step
    encoder, project = step.encoder, step.objective.project
    query, positive, negative = (project(encoder(encoder.pack(t))) for t in (ANCHORS, POSITIVES, NEGATIVES))
    expected = simcse_as_published(query, positive, negative, 0.05, weight)
    torch.testing.assert_close(step(triplets(encoder)), expected, rtol=1e-10, atol=0)


def test_without_hard_negatives_the_positives_alone_are_keys(make_step):
    step = make_step("simcse", objective_options={"mask_duplicates": False}).step
    encoder, project = step.encoder, step.objective.project
    query, positive = (project(encoder(encoder.pack(texts))) for texts in (ANCHORS, POSITIVES))
    cosines = F.cosine_similarity(query[:, None], positive[None], dim=-1)
    expected = F.cross_entropy(cosines / 0.05, torch.arange(4))
    torch.testing.assert_close(step(triplets(encoder, has_negatives=False)), expected, rtol=1e-10, atol=0)


@pytest.mark.parametrize("objective", ["robustsentembed", "uscal"])
def test_hard_negatives_raise_the_inner_loss_too_and_reuse_changes_nothing(make_step, objective):
    losses, deltas = {}, {}
    for reuse in ("none", "exact"):
        recorded = make_step(objective, dropout=0.2, reuse=reuse, sigma=0.0)
        batch = triplets(recorded.step.encoder)
        torch.manual_seed(5)
        losses[reuse], _ = recorded.run(batch)
        deltas[reuse] = recorded.found[0].delta
    torch.testing.assert_close(losses["exact"], losses["none"], rtol=1e-12, atol=0)
    torch.testing.assert_close(deltas["exact"], deltas["none"], rtol=1e-11, atol=1e-14)
    recorded = make_step(objective, dropout=0.2, sigma=0.0)
    torch.manual_seed(5)
    recorded.run(triplets(recorded.step.encoder, has_negatives=False))
    assert not torch.equal(recorded.found[0].delta, deltas["exact"])


def test_gradients_reach_the_encoder_through_all_three_texts(make_step):
    recorded = make_step("simcse")
    recorded.run(triplets(recorded.step.encoder))
    grad = recorded.step.encoder.hf.embeddings.word_embeddings.weight.grad
    for text in ("plot", "dull", "always"):
        assert grad[recorded.step.encoder.tokenizer.convert_tokens_to_ids(text)].any(), text


def test_a_hard_negative_equal_to_a_sentence_is_no_negative_of_it():
    query, positive, negative = torch.randn(3, 3, 8, dtype=torch.float64)
    ids, negative_ids = torch.tensor([1, 2, 3]), torch.tensor([9, 1, 8])
    objective = resolve_objective("simcse")(8, temperature=0.5)
    keys = Keys(positive, ids).with_hard_negatives(Keys(negative, negative_ids))
    loss, _ = objective.loss(Views(query, ids, keys))
    logits = F.normalize(query, dim=1) @ F.normalize(torch.cat([positive, negative]), dim=1).T / 0.5
    logits[0, 4] = -torch.inf
    torch.testing.assert_close(loss, F.cross_entropy(logits, torch.arange(3)))


def test_detached_keys_are_constants():
    vectors = torch.randn(2, 4, requires_grad=True)
    keys = Keys(vectors, torch.arange(2)).with_hard_negatives(Keys(2 * vectors, torch.arange(2))).detach()
    assert not keys.vectors.requires_grad and not keys.hard_negatives.requires_grad


def test_texts_move_with_their_batch_and_must_be_as_many(tiny_encoder):
    encoder = tiny_encoder()
    moved = triplets(encoder).to("meta")
    assert moved.positive.input_ids.device.type == moved.hard_negative.cu_seqlens.device.type == "meta"
    with pytest.raises(ValueError, match="positive has 1 sentences, the batch 4"):
        replace(encoder.pack(ANCHORS), positive=encoder.pack(["a"]))
