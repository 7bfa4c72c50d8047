"""RAR's reconstructor: its size, its tied weight, its mean, and the masks of the passes it reads."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fastadv.config.schema import PerturbationConfig
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.engine.step.step import Step
from fastadv.objectives.base import Views
from fastadv.objectives.classes import rar
from fastadv.objectives.classes.rar import RAR, Reconstructor
from tests.oracle.classes.supervised_cases import BATCHES, CASES, examples
from tests.oracle.classes.torch_run_supervised import SupervisedRun, pack_examples

TEXTS = ["the film was not very good .", "a wonderful story !", "it is dull", "never"]


def test_parameters_are_as_many_as_the_paper_counts():
    """Table 7, on ALBERT-base: RAR 11,813,810, the others 11,685,122. D 768, E 128, V 30,000."""
    with torch.device("meta"):
        built = Reconstructor(768, 128, 30000)
    assert sum(p.numel() for p in built.parameters()) == 11_813_810 - 11_685_122


def make_step(folder, dropout=0.0, **search):
    torch.manual_seed(0)
    encoder = Encoder.from_pretrained(str(folder), dropout=dropout)
    objective = RAR(encoder.hidden_size, ClassificationHead(encoder.hidden_size, 4))
    objective.bind(encoder)
    config = PerturbationConfig(method="freelb", **{"num_steps": 3, "epsilon": None, "alpha": 0.5, **search})
    return Step(encoder, objective, config).train()


def test_the_tied_weight_is_registered_once_and_not_copied(tiny_bert_dir):
    step = make_step(tiny_bert_dir)
    words = step.encoder.word_embeddings
    assert [name for name, p in step.named_parameters(remove_duplicate=False) if p is words] == [
        "encoder.hf.embeddings.word_embeddings.weight"
    ]
    assert step.objective._word_embeddings() is words
    assert sum(p.shape == words.shape for p in step.parameters()) == 1
    saved = [name for name in step.state_dict() if name.startswith("objective.reconstructor")]
    assert len(saved) == 5


def test_words_that_are_not_in_the_batch_have_a_gradient(tiny_bert_dir):
    """They get it as outputs of the reconstruction alone."""
    step = make_step(tiny_bert_dir)
    batch = step.encoder.pack(TEXTS, [0, 1, 2, 3])
    step(batch).backward()
    grad = step.encoder.word_embeddings.grad
    absent = sorted(set(range(len(grad))) - set(batch.input_ids.tolist()))
    assert absent and grad[absent].norm(dim=1).gt(0).all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_all_passes_have_one_mask(tiny_bert_dir, dropout, monkeypatch):
    """Without a start and a step the passes are the same pass, the last with its token states too."""
    step = make_step(tiny_bert_dir, dropout, alpha=0.0, sigma=0.0)
    seen, loss = [], step.objective.loss
    monkeypatch.setattr(step.objective, "loss", lambda views: (seen.append(views), loss(views))[1])
    step(step.encoder.pack(TEXTS, [0, 1, 2, 3]))
    assert [views.adversarial_tokens is None for views in seen] == [True, True, False]
    for views in seen:
        assert torch.equal(views.adversarial_pooled, seen[0].adversarial_pooled)
    first_tokens = seen[2].batch.cu_seqlens[:-1].long()
    assert torch.equal(seen[2].adversarial_tokens[first_tokens], seen[2].adversarial_pooled)


@pytest.mark.parametrize("at_a_time", [1, 3, 1000])
def test_pieces_of_tokens_have_the_loss_and_gradient_of_the_whole(at_a_time, monkeypatch):
    monkeypatch.setattr(rar, "TOKENS_AT_A_TIME", at_a_time)
    torch.manual_seed(0)
    built = Reconstructor(4, 3, 7).double()
    states = torch.randn(8, 4, dtype=torch.float64, requires_grad=True)
    embeddings = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    words = torch.arange(8) % 7
    losses = built.losses(states, words, embeddings)
    inner = built.norm(F.gelu(built.dense(states)))
    expected = F.cross_entropy(inner @ embeddings.T + built.bias, words, reduction="none")
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    wanted = [states, embeddings, *built.parameters()]
    # As free passes take them, and as a backward does.
    grads = torch.autograd.grad(losses.sum(), wanted)
    for ours, theirs in zip(grads, torch.autograd.grad(expected.sum(), wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-13)


def test_mean_is_over_the_tokens_of_all_ranks():
    """Half of the global batch's tokens: the local sum over tokens a rank, as means over rows are taken."""
    run = SupervisedRun(CASES["rar-heavy"])
    batch = pack_examples(examples(BATCHES[0]))
    states = torch.randn(batch.num_tokens, 4, dtype=torch.float64)
    views = Views(
        None,
        batch.sentence_ids,
        adversarial_pooled=torch.randn(4, 4, dtype=torch.float64),
        adversarial_tokens=states,
        labels=batch.labels,
        batch=batch,
    )
    alone = run.objective.loss(views)[1]["loss_reconstruction"]
    shared = run.objective.loss(replace(views, tokens_a_rank=2.5 * batch.num_tokens))[1]["loss_reconstruction"]
    torch.testing.assert_close(shared, alone / 2.5)


def test_reconstruction_learns_the_words(tiny_bert_dir):
    """The loss of the reconstruction falls from chance's log V to where the words are known."""
    step = make_step(tiny_bert_dir, alpha=0.1, sigma=0.1)
    step.objective.weight_reconstruction = 1.0
    batch = step.encoder.pack(TEXTS, [0, 1, 2, 3])
    optimizer, found = torch.optim.Adam(step.parameters(), lr=3e-3), []
    for _ in range(80):
        optimizer.zero_grad()
        step(batch).backward()
        optimizer.step()
        found.append(float(step.metrics["loss_reconstruction"]))
    assert found[-1] < 0.3 * found[0]
