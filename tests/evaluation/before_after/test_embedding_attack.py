"""PGD on embeddings: laws of start, step and project, what the loop promises, and exact answers of a linear encoder."""

import pytest
import torch

from fastadv.data.packing import PackedBatch
from fastadv.evaluation.before_after.embedding_attack import (
    negative_cosine,
    pgd_attack,
    project,
    relative_radius,
    start,
    step,
)


class LinearEncoder(torch.nn.Module):
    """X is a table of word rows and a vector their weighted sum, so that the worst point of a ball is known."""

    def __init__(self, width=6):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Parameter(torch.randn(20, width, generator=generator))
        self.mixing = torch.nn.Parameter(torch.randn(width, width, generator=generator))

    def embed(self, batch, dropout=None):
        return self.table[batch.input_ids]

    def encode(self, x, batch, dropout=None):
        sums = x.new_zeros(batch.num_sentences, x.shape[1]).index_add(0, batch.token_sentence, x)
        return sums @ self.mixing


def packed(*lengths):
    return PackedBatch.from_token_lists(
        [[(7 * row + i) % 20 for i in range(n)] for row, n in enumerate(lengths)], [[False] * n for n in lengths]
    )


def test_radius_is_a_share_of_the_sentence_rms():
    batch = packed(3, 1, 5)
    x = torch.randn(9, 4)
    radius = relative_radius(x, batch, 0.2)
    expected = [0.2 * part.square().mean().sqrt() for part in x.split([3, 1, 5])]
    torch.testing.assert_close(radius, torch.stack(expected))
    assert relative_radius(torch.zeros(9, 4), batch, 0.2).tolist() == [0, 0, 0]


def test_start_fills_the_ball_and_ignores_batch_mates():
    batch, width = packed(40, 3), 50
    x = torch.randn(43, width)
    radius = torch.tensor([0.5, 2.0])
    delta = start(x, batch, radius, [11, 12], seed=3)
    bound = radius[batch.token_sentence, None]
    assert (delta.abs() <= bound).all()
    # 2,000 uniform draws: mean of |u| is 1/2 with a standard deviation of 0.29 / sqrt(2000) = 0.0065.
    assert (delta / bound)[:40].abs().mean() == pytest.approx(0.5, abs=0.03)
    alone = start(torch.randn(3, width), packed(3), radius[1:], [12], seed=3)
    assert torch.equal(alone, delta[40:])
    assert not torch.equal(start(x, batch, radius, [11, 12], seed=4), delta)


def test_step_is_a_sign_step_inside_the_ball():
    batch, radius = packed(2, 1), torch.tensor([0.3, 0.6])
    delta = torch.tensor([[0.0, 0.3], [-0.1, 0.0], [0.5, 0.0]])
    grad = torch.tensor([[5.0, 1e-20], [-2.0, 0.0], [3.0, -4.0]])
    moved = step(delta, grad, batch, radius, step_relative=0.5)
    torch.testing.assert_close(moved, torch.tensor([[0.15, 0.3], [-0.25, 0.0], [0.6, -0.3]]))
    torch.testing.assert_close(project(2 * moved, batch, radius).abs().amax(), torch.tensor(0.6))
    # A sentence without a finite gradient stays.
    radius = torch.ones(2)
    delta = torch.full((3, 2), 0.25)
    grad = torch.ones(3, 2)
    grad[0, 1] = float("nan")
    moved = step(delta, grad, batch, radius, 0.5)
    assert torch.equal(moved[:2], delta[:2])
    assert torch.equal(moved[2], torch.full((2,), 0.75))


def test_linear_loss_reaches_the_corner_of_the_ball():
    encoder, batch = LinearEncoder(), packed(4, 1, 7)
    weight = torch.tensor([1.0, -2, 0.5, 3, 0.1, -0.7])
    result = pgd_attack(encoder, batch, lambda vectors: vectors @ weight, kappa=0.3, num_steps=6)
    with torch.no_grad():
        radius = relative_radius(encoder.embed(batch), batch, 0.3)
        corner = radius[batch.token_sentence, None] * (encoder.mixing @ weight).sign()
        torch.testing.assert_close(result.delta, corner)
        torch.testing.assert_close(result.vectors, encoder.encode(encoder.embed(batch) + corner, batch))


def test_loss_never_falls_with_steps_starts_at_noise_and_radius_zero_is_the_clean_pass(tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float32, pooling="mean")
    batch = encoder.pack(sentences)
    clean = encoder.encode(encoder.embed(batch, False), batch, False).detach()
    loss = negative_cosine(clean)
    results = [pgd_attack(encoder, batch, loss, kappa=0.3, num_steps=steps) for steps in (0, 2, 5)]
    assert torch.equal(results[0].vectors, results[0].start_vectors)
    losses = torch.stack([loss(result.vectors) for result in results])
    assert (losses.diff(dim=0) >= 0).all()
    assert (losses[-1] - losses[0]).mean() > 0.05
    radius = relative_radius(encoder.embed(batch, False), batch, 0.3)[batch.token_sentence, None]
    assert (results[-1].delta.abs() <= radius).all()
    result = pgd_attack(encoder, batch, negative_cosine(clean), kappa=0.0, num_steps=2)
    assert not result.delta.any()
    assert torch.equal(result.vectors, clean)


def test_batching_does_not_matter(tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float64)
    weight = torch.randn(encoder.hidden_size)

    def attack(texts, draws):
        result = pgd_attack(encoder, encoder.pack(texts), lambda v: (v @ weight).tanh(), 0.2, num_steps=3, draws=draws)
        return result.vectors

    together = attack(sentences, range(len(sentences)))
    for row in (0, 3, 4):
        # float32 perturbations and losses: a few units in the last place of vectors of size about 1.
        torch.testing.assert_close(attack([sentences[row]], [row]), together[row : row + 1], rtol=0, atol=1e-5)


def test_parameters_get_no_gradient_and_the_mode_returns(tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float32, dropout=0.5)
    encoder.train()
    encoder.hf.encoder.layer[0].eval()
    modes = [module.training for module in encoder.modules()]
    batch = encoder.pack(sentences)
    clean = torch.randn(len(sentences), encoder.hidden_size)
    first, second = (pgd_attack(encoder, batch, negative_cosine(clean), 0.1, num_steps=2) for _ in range(2))
    assert torch.equal(first.vectors, second.vectors)  # no dropout, one seed
    assert [module.training for module in encoder.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in encoder.parameters())
    assert not first.vectors.requires_grad and not first.delta.requires_grad
