"""Fewer gradients than steps: what is reused, when that is measured, and what is learned from it."""

import numpy as np
import pytest
import torch

from fastadv.config.schema import PerturbationConfig
from fastadv.data.packing import PackedBatch
from fastadv.perturbation import AdaptiveReuse, Adversary
from fastadv.perturbation.chains import MixedSearch
from fastadv.perturbation.search import Gradients
from fastadv_kernels import sentence_step, sign_step, token_update

NORMS = ["linf", "l2", "l1"]
LENGTHS = (4, 2, 3)


@pytest.fixture
def batch():
    return PackedBatch.from_token_lists([[1] * n for n in LENGTHS], [[False] * n for n in LENGTHS])


@pytest.fixture
def x(batch):
    return torch.randn(batch.num_tokens, 6, dtype=torch.float64)


def curved(points):
    return (2 * points + points.pow(3)).sin().sum()


def config_of(norm="linf", **options):
    return PerturbationConfig(norm=norm, epsilon=0.5, alpha=0.2, beta=0.1, gamma=0.1, num_steps=5, **options)


def search(x, batch, config, **options):
    torch.manual_seed(3)
    return Adversary(config).search(x, batch, curved, **options)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("num_gradients", [1, 2, 4])
def test_late_steps_go_along_the_last_gradient(batch, x, norm, num_gradients):
    """Against a loop written out here."""
    found = search(x, batch, config_of(norm, sigma=0.0), num_gradients=num_gradients)
    pgd = fgsm = eta = torch.zeros_like(x)
    for step in range(5):
        if step < num_gradients:
            point = (x + 0.5 * pgd + 0.5 * fgsm + eta).requires_grad_()
            (grad,) = torch.autograd.grad(curved(point), point)
        pgd = sentence_step(pgd, grad, batch.cu_seqlens, 0.2, 0.5, norm)
        fgsm = sign_step(fgsm, grad, batch.cu_seqlens, 0.1, 0.5, norm)
        eta = token_update(eta, grad, batch.cu_seqlens, 0.1, 0.5, norm, "after")
    for ours, theirs in ((found.state.pgd, pgd), (found.state.fgsm, fgsm), (found.eta, eta)):
        assert (ours - theirs).abs().max() <= 1e-14
    assert len(found.trace.losses) == num_gradients


@pytest.mark.parametrize("gradient", ["shared", "separate"])
@pytest.mark.parametrize("num_gradients", [1, 3, 5])
def test_a_probe_tells_where_fewer_gradients_would_have_ended(batch, x, gradient, num_gradients):
    config = config_of(gradient=gradient, num_pgd_steps=4)
    probe = search(x, batch, config, keeps_gradients=True)
    moves = MixedSearch(config.resolve())
    end = probe.trace.end_with(moves, num_gradients)
    reused = search(x, batch, config, num_gradients=num_gradients)
    assert torch.equal(moves.delta(end), reused.delta) and torch.equal(end.eta, reused.eta)
    assert torch.equal(moves.delta(end), probe.delta) == (num_gradients == 5)


def test_as_many_gradients_as_steps_is_the_exact_search(batch, x):
    found, exact = search(x, batch, config_of(), num_gradients=5), search(x, batch, config_of())
    assert torch.equal(found.delta, exact.delta) and torch.equal(found.eta, exact.eta)


@pytest.mark.parametrize("gradient", ["shared", "separate"])
def test_agreements_are_the_least_cosines_to_later_gradients(batch, x, gradient):
    trace = search(x, batch, config_of(gradient=gradient), keeps_gradients=True).trace
    ends = np.cumsum((0, *LENGTHS))
    expected = np.ones((len(LENGTHS), 5))
    for chain in (0, -1):
        grads = [grads.delta[chain].numpy() for grads in trace.gradients]
        for b in range(len(LENGTHS)):
            flat = [grad[ends[b] : ends[b + 1]].ravel() for grad in grads]
            for t in range(5):
                for u in range(t, 5):
                    cosine = flat[t] @ flat[u] / np.linalg.norm(flat[t]) / np.linalg.norm(flat[u])
                    expected[b, t] = min(expected[b, t], cosine)
    assert expected.min() < 0.9
    assert np.abs(trace.agreements().numpy() - expected).max() <= 1e-14
    assert (np.abs(expected[:, -1] - 1) <= 1e-15).all()


def test_sentences_that_do_not_move_have_no_say(batch, x):
    trace = search(x, batch, config_of(), keeps_gradients=True).trace
    still, broken = torch.zeros_like(x), x.clone()
    broken[0] = torch.nan
    one_is_zero = torch.where(batch.token_sentence[:, None] == 1, 0, x)
    trace.gradients = [Gradients.shared(grad) for grad in (still, still)]
    assert torch.equal(trace.agreements(), torch.ones(3, 2, dtype=x.dtype))
    trace.gradients = [Gradients.shared(grad) for grad in (broken, x)]
    assert trace.agreements()[0, 0] == 1
    trace.gradients = [Gradients.shared(grad) for grad in (x, one_is_zero)]
    assert trace.agreements()[1, 0] == 0


def test_agreements_need_the_gradients(batch, x):
    with pytest.raises(ValueError, match="not kept"):
        search(x, batch, config_of()).trace.agreements()


@pytest.mark.parametrize(
    "columns, agreement, expected",
    [
        ([[0.5, 0.98, 1.0], [0.5, 1.0, 1.0]], 0.99, 2),
        ([[0.99, 0.98, 1.0], [0.99, 0.99, 1.0]], 0.99, 1),
        ([[0.2, 0.3, 1.0], [0.2, 0.3, 1.0]], 0.99, 3),
        ([[0.2, 0.3, 0.999], [0.2, 0.3, 0.999]], 1.0, 3),
        ([[0.2, 0.3, 1.0], [0.2, 0.3, 1.0]], 0.2, 1),
    ],
)
def test_learns_the_least_number_whose_mean_agrees(columns, agreement, expected):
    reuse = AdaptiveReuse(3, 100, agreement)
    assert reuse.learn(torch.tensor(columns)) == reuse.num_gradients == expected


def test_probes_the_first_batch_of_every_so_many_steps():
    reuse, probed = AdaptiveReuse(5, 3, 0.99), []
    agreeing = torch.ones(2, 5)
    for step in range(8):
        for batch_of_step in range(2):
            if reuse.is_probe_due:
                probed.append((step, batch_of_step))
                reuse.learn(agreeing)
        reuse.commit()
    assert probed == [(0, 0), (3, 0), (6, 0)]


def test_a_skipped_probe_stays_due():
    reuse = AdaptiveReuse(5, 3, 0.99)
    assert reuse.is_probe_due
    # A batch that is skipped teaches nothing, so that also a whole step without a lesson leaves the probe to the next.
    reuse.commit()
    assert reuse.is_probe_due and reuse.num_gradients == 5
    reuse.learn(torch.ones(2, 5))
    reuse.commit()
    assert not reuse.is_probe_due and reuse.num_gradients == 1


def test_goes_on_from_its_state():
    reuse, other = AdaptiveReuse(5, 4, 0.99), AdaptiveReuse(5, 4, 0.99)
    reuse.learn(torch.ones(2, 5))
    reuse.commit()
    other.load_state_dict(reuse.state_dict())
    for _ in range(6):
        assert (other.is_probe_due, other.num_gradients) == (reuse.is_probe_due, reuse.num_gradients)
        reuse.commit(), other.commit()
