"""PGD and Auto-PGD on a classifier: inside the ball, special tokens apart, equal to loops written independently."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fastadv.config.embedding_attack import AttackSettings
from fastadv.data.packing import PackedBatch
from fastadv.evaluation.embeddings import search as attack_search
from fastadv.evaluation.embeddings.classifier_attack import Texts, search
from fastadv.evaluation.embeddings.search import (
    Point,
    Target,
    apgd,
    attacking,
    checkpoints_of,
    cross_entropy,
    pgd,
    step,
    vanished,
)
from tests.evaluation.attacked import TEXTS, Constant, Rounded, Scaled, make_classifier, own_labels

RADIUS = {"l2": 0.7, "linf": 0.02}


def target_of(classifier, texts=TEXTS, shift=0, **options):
    """All texts in one batch, in their order; ``shift`` labels them with another class than the model says."""
    data = own_labels(classifier, texts)
    of_model = Texts(classifier, data)
    labels = (torch.as_tensor(of_model.labels) + shift) % 4
    return Target(classifier, of_model.pack(range(len(texts))), labels, **options)


def norms_of(delta, batch, norm):
    order = 2 if norm == "l2" else float("inf")
    return torch.stack([part.flatten().norm(order) for part in delta.split(batch.lengths.tolist())])


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("method", ["pgd", "apgd"])
@pytest.mark.parametrize("restart", [0, 1])
def test_delta_stays_in_the_ball_and_raises_the_loss(tiny_bert_dir, norm, method, restart):
    classifier = make_classifier(tiny_bert_dir)
    target, radius = target_of(classifier), RADIUS[norm]
    settings = AttackSettings(method=method, norm=norm, num_steps=7)
    with attacking(classifier):
        found = search(target, settings, radius, settings.step_sizes[0], restart, range(len(TEXTS)))
        clean = target.at(target.zeros())
    # A few units in the last place: the norm here is taken otherwise than by the projection.
    assert (norms_of(found.end.delta, target.batch, norm) <= radius * (1 + 1e-12)).all()
    assert (found.end.losses > clean.losses).all()
    # The radius is used: far more than half of it, where the loss rises along the whole way.
    assert norms_of(found.end.delta, target.batch, norm).mean() > 0.9 * radius


@pytest.mark.parametrize("method", ["fgm", "fgsm", "pgd", "apgd"])
def test_special_tokens_stay_where_they_are(tiny_bert_dir, method):
    classifier = make_classifier(tiny_bert_dir)
    settings = AttackSettings(method=method, perturb_special_tokens=False)
    radius = RADIUS[settings.norm]
    found = {}
    with attacking(classifier):
        for perturbs_special in (True, False):
            target = target_of(classifier, perturb_special_tokens=perturbs_special)
            for restart in (0, 1):
                run = search(target, settings, radius, settings.step_sizes[0], restart, range(len(TEXTS)))
                found[perturbs_special, restart] = run.end.delta
    special = target.batch.is_special
    for restart in (0, 1):
        assert not found[False, restart][special].any()
        assert found[False, restart][~special].abs().amax(dim=1).all()
        assert found[True, restart][special].abs().amax(dim=1).all()
    # The whole radius is left to the other tokens.
    if method in ("fgm", "fgsm"):
        sizes = norms_of(found[False, 0], target.batch, settings.norm)
        torch.testing.assert_close(sizes, torch.full_like(sizes, radius))


def test_one_step_methods_are_their_formulas(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir)
    target = target_of(classifier)
    with attacking(classifier):
        grad = target.at(target.zeros(), needs_gradient=True).grad
        fgm = search(target, AttackSettings(method="fgm"), 0.3, 1.0, 0, range(len(TEXTS))).end.delta
        fgsm = search(target, AttackSettings(method="fgsm"), 0.01, 1.0, 0, range(len(TEXTS))).end.delta
    lengths = target.batch.lengths.tolist()
    torch.testing.assert_close(fgm, torch.cat([0.3 * part / part.norm() for part in grad.split(lengths)]))
    torch.testing.assert_close(fgsm, 0.01 * grad.sign())


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_pgd_is_a_plain_loop_on_the_padded_model(tiny_bert_dir, tmp_path, norm):
    """transformers' own classifier, padded, its word embeddings perturbed through ``inputs_embeds``."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    classifier = make_classifier(tiny_bert_dir, perturb_at="word")
    classifier.save_pretrained(tmp_path / "model")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model", dtype=torch.float64).eval()
    tokens = AutoTokenizer.from_pretrained(tmp_path / "model")(TEXTS, padding=True, return_tensors="pt")
    mask, labels = tokens["attention_mask"], torch.as_tensor(own_labels(classifier).labels)
    words = stock.get_input_embeddings()(tokens["input_ids"]).detach()
    # Word embeddings are smaller than the normed output of their layer.
    radius, num_steps = RADIUS[norm] / 10, 6
    size = 2.5 * radius / num_steps
    delta, is_right = torch.zeros_like(words), torch.ones(len(TEXTS), dtype=torch.bool)
    for _ in range(num_steps):
        delta.requires_grad_()
        logits = stock(inputs_embeds=words + delta, attention_mask=mask).logits
        is_right &= logits.argmax(dim=1) == labels
        (grad,) = torch.autograd.grad(F.cross_entropy(logits, labels, reduction="sum"), delta)
        delta, grad = delta.detach(), grad * mask[..., None]
        if norm == "linf":
            delta = (delta + size * grad.sign()).clamp(-radius, radius)
        else:
            delta = delta + size * grad / grad.flatten(1).norm(dim=1)[:, None, None]
            delta = delta * (radius / delta.flatten(1).norm(dim=1)).clamp(max=1)[:, None, None]
    with torch.no_grad():
        logits = stock(inputs_embeds=words + delta, attention_mask=mask).logits
    is_right &= logits.argmax(dim=1) == labels

    target = target_of(classifier)
    with attacking(classifier):
        found = pgd(target, target.zeros(), radius, size, num_steps, norm)
    # float64 throughout; the padded model sums in another order.
    torch.testing.assert_close(found.end.delta, delta[mask.bool()], rtol=0, atol=1e-9)
    torch.testing.assert_close(found.end.losses, F.cross_entropy(logits, labels, reduction="none"), rtol=0, atol=1e-9)
    assert torch.equal(found.is_right, is_right)
    assert 0 < is_right.sum() < len(TEXTS)


def auto_pgd_of_one_text(loss_and_grad, length, width, radius, num_steps, norm):
    """Algorithm 1 of Croce & Hein 2020 as it is printed, for one input; returns the best point and its loss."""

    def project(d):
        if norm == "linf":
            return np.clip(d, -radius, radius)
        return d * min(1.0, radius / max(np.linalg.norm(d), 1e-300))

    def ascent(g):
        return np.sign(g) if norm == "linf" else g / np.linalg.norm(g)

    p = [0.0, 0.22]
    while p[-1] < 1:
        p.append(p[-1] + max(p[-1] - p[-2] - 0.03, 0.06))
    w = [math.ceil(round(share * num_steps, 6)) for share in p]
    eta, x_before = 2 * radius, np.zeros((length, width))
    f_before, g = loss_and_grad(x_before)
    x = project(x_before + eta * ascent(g))
    f, g = loss_and_grad(x)
    values, etas, bests = [f_before, f], {0: eta}, {0: f_before}
    x_max, f_max = (x_before, f_before) if f_before >= f else (x, f)
    halved_at = []

    def checkpoint(k):
        nonlocal eta, x, f, g
        j = max(i for i in range(len(w)) if w[i] == k)
        last = max(step for step in etas if step < k)
        rises = sum(values[i + 1] > values[i] for i in range(last, k))
        first = rises < 0.75 * (k - last)
        second = etas[last] == etas.get(max([s for s in etas if s < last], default=last)) and bests[last] == f_max
        bests[k] = f_max
        if first or second:
            eta = eta / 2
            halved_at.append((k, j))
            x = x_max
            f, g = loss_and_grad(x)
            values[-1] = f
        etas[k] = eta

    if 1 in w and num_steps > 1:
        checkpoint(1)
    for k in range(1, num_steps):
        z = project(x + eta * ascent(g))
        moved = project(x + 0.75 * (z - x) + 0.25 * (x - x_before))
        x_before, x = x, moved
        f, g = loss_and_grad(x)
        values.append(f)
        if f > f_max:
            x_max, f_max = x, f
        if k + 1 in w and k + 1 < num_steps:
            checkpoint(k + 1)
    return x_max, f_max, halved_at


@pytest.mark.parametrize("norm, radius", [("l2", 3.0), ("linf", 0.1)])
def test_apgd_is_the_algorithm_as_printed(tiny_bert_dir, norm, radius):
    classifier = make_classifier(tiny_bert_dir)
    texts, num_steps, num_halved = TEXTS[:4], 20, 0
    target = target_of(classifier, texts)
    with attacking(classifier):
        found = apgd(target, target.zeros(), radius, 2 * radius, num_steps, norm)
        for row, delta in enumerate(found.end.delta.split(target.batch.lengths.tolist())):
            alone = target_of(classifier, texts[row : row + 1])

            def loss_and_grad(point, alone=alone):
                at = alone.at(torch.from_numpy(point), needs_gradient=True)
                return at.losses.item(), at.grad.numpy()

            best, loss, halved_at = auto_pgd_of_one_text(loss_and_grad, *delta.shape, radius, num_steps, norm)
            num_halved += len(halved_at)
            assert found.end.losses[row].item() == pytest.approx(loss, abs=1e-7)
            np.testing.assert_allclose(delta.numpy(), best, rtol=0, atol=1e-6)
    assert num_halved > len(texts)


class Scripted:
    """One text of one number, whose gradient is always 1 and whose losses are told beforehand."""

    def __init__(self, losses):
        self.batch = PackedBatch.from_token_lists([[0]], [[False]])
        self._losses = list(losses)

    def at(self, delta, needs_gradient=False):
        loss = torch.tensor([float(self._losses.pop(0))], dtype=torch.float64)
        is_right = torch.ones(1, dtype=torch.bool)
        return Point(delta, delta, loss, torch.zeros(1, dtype=torch.int64), is_right, torch.ones_like(delta))


def test_steps_are_halved_for_either_reason_and_not_twice_for_one(monkeypatch):
    """Checkpoints of 20 steps: 5, 9, 12, 14, ... Losses that mostly rise, and never above the first, fulfil the second
    condition of the paper alone; after a halving it waits for a checkpoint."""
    losses = [10, 1, 2, 3, 4, 5]  # 4 of 5 steps rise, none above 10: halved
    losses += [2, 3, 4, 5]  # 3 of 4 rise from 10 on, none above, but halved at the last checkpoint
    losses += [6, 7, 8]  # all rise, none above: halved
    losses += [11, 3]  # 1 of 2 rises, which is too few: halved, although one is the best so far
    losses += [12, 13, 14, 15, 16, 17]  # all rise above: never again
    sizes, moves = [], []

    def recorded(delta, grad, batch, size, radius, norm):
        moves.append(delta.item())
        sizes.append(size.item())
        return step(delta, grad, batch, size, radius, norm)

    monkeypatch.setattr(attack_search, "step", recorded)
    found = apgd(Scripted(losses), torch.zeros(1, 1, dtype=torch.float64), 1e6, 8.0, 20, "linf")
    assert sizes == [8.0] * 5 + [4.0] * 7 + [2.0] * 2 + [1.0] * 6
    # From the best point: the start after the first and the third checkpoint, the point of loss 11 after the fourth.
    assert moves[5] == moves[12] == 0 and moves[9] != 0 and moves[14] == moves[13] != 0
    assert found.end.losses.item() == 17


def test_checkpoints_of_the_paper():
    # 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99, of 100 iterations.
    assert checkpoints_of(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints_of(10) == [3, 5, 6, 7, 8, 9, 10]


def test_apgd_keeps_the_best_point(tiny_bert_dir):
    """Steps of twice the radius overshoot; what is kept never falls with more of them, and is above where PGD ends."""
    classifier = make_classifier(tiny_bert_dir)
    target = target_of(classifier)
    with attacking(classifier):
        losses = [apgd(target, target.zeros(), 4.0, 8.0, steps, "l2").end.losses for steps in (1, 2, 3)]
        long = apgd(target, target.zeros(), 4.0, 8.0, 20, "l2").end.losses
        plain = pgd(target, target.zeros(), 4.0, 8.0, 20, "l2").end.losses
    assert (losses[1] >= losses[0]).all() and (losses[2] >= losses[1]).all()
    assert (long >= plain).all() and long.mean() > plain.mean() + 0.1


def test_any_point_met_counts(tiny_bert_dir):
    """Steps that leap to and fro across the ball end where they like; a text that was wrong on the way is fooled."""
    classifier = make_classifier(tiny_bert_dir)
    target = target_of(classifier)
    with attacking(classifier):
        one, two = (pgd(target, target.zeros(), 3.0, 12.0, steps, "linf") for steps in (1, 2))
    assert torch.equal(two.is_right, one.end.is_right & two.end.is_right)
    assert (two.end.is_right & ~one.end.is_right).any()  # some have come back


def test_a_text_wrong_at_the_start_is_not_robust(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir)
    target = target_of(classifier, shift=1)
    with attacking(classifier):
        for method in (pgd, apgd):
            assert not method(target, target.zeros(), 1e-9, 1e-9, 2, "l2").is_right.any()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_random_points_depend_on_seed_and_draw_alone(tiny_bert_dir, norm):
    classifier = make_classifier(tiny_bert_dir)
    target, draws = target_of(classifier), list(range(100, 100 + len(TEXTS)))
    delta = target.random_delta(draws, (0, 1), 0.5, norm)
    lengths = target.batch.lengths.tolist()
    alone = target_of(classifier, TEXTS[4:5]).random_delta(draws[4:5], (0, 1), 0.5, norm)
    assert torch.equal(alone, delta.split(lengths)[4])
    assert not torch.equal(delta, target.random_delta(draws, (0, 2), 0.5, norm))
    assert not torch.equal(delta, target.random_delta(draws, (1, 1), 0.5, norm))
    sizes = norms_of(delta, target.batch, norm)
    assert (sizes <= 0.5 * (1 + 1e-12)).all() and len(set(sizes.tolist())) == len(TEXTS)
    surface = target.random_delta(draws, (0, 0), 0.5, norm, on_surface=True)
    torch.testing.assert_close(norms_of(surface, target.batch, norm), torch.full_like(sizes, 0.5))
    if norm == "linf":
        assert torch.equal(surface.abs(), torch.full_like(surface, 0.5))


@pytest.mark.parametrize("method", ["pgd", "apgd"])
def test_a_run_from_a_random_start_is_the_text_s_own(tiny_bert_dir, method):
    classifier = make_classifier(tiny_bert_dir)
    settings, draws = AttackSettings(method=method, num_steps=1), list(range(100, 100 + len(TEXTS)))
    with attacking(classifier):
        target = target_of(classifier)
        together = search(target, settings, 0.5, 0.1, 1, draws).end.delta
        alone = search(target_of(classifier, TEXTS[4:5]), settings, 0.5, 0.1, 1, draws[4:5]).end.delta
        from_zero = search(target, settings, 0.5, 0.1, 0, draws).end.delta
    torch.testing.assert_close(alone, together.split(target.batch.lengths.tolist())[4], rtol=0, atol=1e-9)
    assert (norms_of(together - from_zero, target.batch, "l2") > 0.1).all()


def test_uniform_points_lie_as_deep_as_they_should(tiny_bert_dir):
    """In n dimensions the share of a ball's points within r of its radius is r^n: |u|^n is uniform in [0, 1]."""
    classifier = make_classifier(tiny_bert_dir)
    target = target_of(classifier, ["never"] * 400)
    sizes = norms_of(target.random_delta(range(400), (3, 1), 1.0, "l2"), target.batch, "l2")
    shares = sizes ** (target.batch.lengths * 32)
    # 400 draws: their mean has a standard deviation of 0.29 / 20.
    assert shares.mean().item() == pytest.approx(0.5, abs=0.06) and shares.min() < 0.05 and shares.max() > 0.95


def test_cross_entropy_keeps_the_true_class_of_a_sure_model():
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, 1])
    torch.testing.assert_close(cross_entropy(logits, labels), F.cross_entropy(logits, labels, reduction="none"))
    assert torch.autograd.gradcheck(lambda z: cross_entropy(z, labels), logits)
    sure = torch.tensor([[30.0, 0.0, -3.0, 1.0]], requires_grad=True)
    (grad,) = torch.autograd.grad(cross_entropy(sure, torch.tensor([0])).sum(), sure)
    (stock,) = torch.autograd.grad(F.cross_entropy(sure, torch.tensor([0])), sure)
    assert grad[0, 0] == pytest.approx(-grad[0, 1:].sum().item(), rel=1e-5) and grad[0, 0] < 0
    assert stock[0, 0] == 0  # what the usual form loses


def test_gradients_that_are_zero_or_not_finite_are_told(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    head = classifier.head
    grads = {}
    for name, broken in (("plain", head), ("rounded", Rounded(head, 0.5)), ("saturated", Scaled(head, 1e4))):
        classifier.head = broken
        target = target_of(classifier)
        grads[name] = target.at(target.zeros(), needs_gradient=True).grad
    classifier.head = Constant([0.0, 1.0, 5.0, 2.0])
    constant = target_of(classifier)
    grads["constant"] = constant.at(constant.zeros(), needs_gradient=True).grad
    shares = {name: vanished(grad, target.batch).float().mean().item() for name, grad in grads.items()}
    assert shares == {"plain": 0, "rounded": 1, "saturated": 1, "constant": 1}
    broken = grads["plain"].clone()
    broken[0, 3] = float("nan")
    broken[-1, 0] = float("inf")
    assert vanished(broken, target.batch).nonzero().flatten().tolist() == [0, len(TEXTS) - 1]


def test_logits_that_are_not_finite_are_wrong(tiny_bert_dir):
    """Also where arg-max, which takes the first NaN, happens to name the true class."""
    classifier = make_classifier(tiny_bert_dir)
    target = target_of(classifier)
    row = target.labels.tolist().index(0)
    delta = target.zeros()
    delta[target.batch.token_sentence == row] = float("nan")
    at = target.at(delta)
    assert at.predicted[row] == 0 and not at.is_right[row]
    assert at.is_right.sum() == len(TEXTS) - 1


def test_everything_is_as_before_an_attack(tiny_bert_dir):
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32, dropout=0.5).train()
    classifier.encoder.hf.encoder.layer[0].eval()
    next(classifier.head.parameters()).requires_grad_(False)
    modes = [module.training for module in classifier.modules()]
    trained = [parameter.requires_grad for parameter in classifier.parameters()]
    with attacking(classifier):
        assert not any(parameter.requires_grad for parameter in classifier.parameters())
        target = target_of(classifier)
        first, second = (pgd(target, target.zeros(), 0.3, 0.1, 3, "l2").end.delta for _ in range(2))
    assert torch.equal(first, second)  # no dropout
    assert [module.training for module in classifier.modules()] == modes
    assert [parameter.requires_grad for parameter in classifier.parameters()] == trained
    assert all(parameter.grad is None for parameter in classifier.parameters())
