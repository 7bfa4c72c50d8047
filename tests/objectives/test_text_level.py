"""SAFER, ADA, Base_adv, A2T and BAT on vectors made by hand: whose text counts, distances to a digit, options."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastadv import UserError
from fastadv.data.packing import PackedBatch
from fastadv.encoder.classifier.classification_head import ClassificationHead
from fastadv.objectives import resolve_objective
from fastadv.objectives.base import RunFacts, Variant, Views

NAMES = ("entailment", "neutral", "contradiction", "other")
LABELS = torch.tensor([0, 1, 2, 3, 1, 0])
SIZE, NUM_ROWS = 8, len(LABELS)
PRESENT = torch.tensor([True, True, False, True, True, False])


def vectors(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_ROWS, SIZE, generator=generator, dtype=torch.float64).to(dtype)


def packed(lengths=(1,) * NUM_ROWS):
    return PackedBatch.from_token_lists([[5] * n for n in lengths], [[False] * n for n in lengths])


def make(name, dtype=torch.float64, **options):
    torch.manual_seed(1)
    head = ClassificationHead(SIZE, len(NAMES))
    objective = resolve_objective(name)(SIZE, head, **options).to(dtype)
    objective.begin(RunFacts(NUM_ROWS, 1, 1, label_names=NAMES))
    return objective


def views(objective, pooled, of_variants, is_present=PRESENT, **others):
    variants = {
        name: Variant(vectors_of, is_present, packed(), None)
        for name, vectors_of in of_variants.items()
        if name in objective.needs.variants
    }
    clean = {"query": pooled, "pooled": pooled} if objective.needs.clean else {"query": None}
    return Views(
        **clean, sentence_ids=torch.arange(NUM_ROWS), labels=LABELS, batch=packed(), variants=variants, **others
    )


def cross_entropy(objective, pooled, reduction="none"):
    return F.cross_entropy(objective.classifier(pooled), LABELS, reduction=reduction)


def test_safer_reads_the_fickle_text_of_every_row():
    """Of a missing one the run gives the vector of the sentence."""
    objective = make("safer")
    assert not objective.needs.clean and objective.needs.variants == ("fickle",)
    loss, terms = objective.loss(views(objective, None, {"fickle": vectors(1)}))
    # A sum that is divided and a mean may round apart.
    assert loss.item() == pytest.approx(float(cross_entropy(objective, vectors(1), "mean").detach()), rel=1e-14)
    assert set(terms) == {"loss_fickle"}


@pytest.mark.parametrize("name", ["ada", "a2t"])
def test_an_attacked_text_counts_what_a_clean_one_does(name):
    objective, x, attacked = make(name, weight_adversarial=0.5), vectors(0), vectors(1)
    for is_present in (PRESENT, torch.zeros_like(PRESENT), torch.ones_like(PRESENT)):
        loss, terms = objective.loss(views(objective, x, {"adversarial": attacked}, is_present))
        expected = cross_entropy(objective, x).sum() + 0.5 * cross_entropy(objective, attacked)[is_present].sum()
        assert loss.item() == pytest.approx(float(expected.detach()) / NUM_ROWS, rel=1e-14)
        assert loss.item() == pytest.approx(float(terms["loss_clean"] + 0.5 * terms["loss_adversarial"]), rel=1e-14)


def test_base_adv_is_the_mean_over_attacked_texts():
    objective, attacked = make("base_adv"), vectors(1).requires_grad_()
    assert not objective.needs.clean
    loss, _ = objective.loss(views(objective, None, {"adversarial": attacked}))
    assert loss.item() == pytest.approx(float(cross_entropy(objective, attacked)[PRESENT].mean().detach()), rel=1e-14)
    nothing, _ = objective.loss(views(objective, None, {"adversarial": attacked}, torch.zeros_like(PRESENT)))
    # With a graph, for a batch without an attacked text is stepped on like any other.
    nothing.backward()
    assert nothing == 0 and attacked.grad.norm() == 0


@pytest.mark.parametrize("name", ["ada", "base_adv"])
def test_soft_targets_are_the_victims(name):
    objective, x, attacked = make(name, targets="soft", victim="somewhere"), vectors(0), vectors(1)
    asked = []

    def victim(batch):
        asked.append(batch)
        return vectors(3, torch.float32)[:, : len(NAMES)].softmax(1)

    objective.victim_probabilities = victim
    given = views(objective, x, {"adversarial": attacked})
    loss, _ = objective.loss(given)
    probabilities = vectors(3)[:, : len(NAMES)].softmax(1)
    of_rows = -(probabilities * objective.classifier(attacked).log_softmax(1)).sum(1)
    expected = of_rows[PRESENT].mean()
    if name == "ada":
        expected = cross_entropy(objective, x, "mean") + of_rows[PRESENT].sum() / NUM_ROWS
    # The victim's are of float32.
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert asked == [given.variants["adversarial"].batch]
    objective.victim_probabilities = None
    with pytest.raises(ValueError, match="victim_probabilities"):
        objective.loss(given)


BAT = ("bat_pairwise", "bat_triplet")


def test_pairwise_by_hand():
    objective = make("bat_pairwise", weight_fickle=2.0, weight_obstinate=3.0, margin=0.8)
    x, fickle, obstinate = vectors(0), vectors(1), vectors(2)
    loss, terms = objective.loss(views(objective, x, {"fickle": fickle, "obstinate": obstinate}))
    d_f, d_o = (1 - F.cosine_similarity(x, other)[PRESENT] for other in (fickle, obstinate))
    pulled, pushed = d_f.mean(), (0.8 - d_o).clamp(min=0).mean()
    assert terms["loss_fickle"] == pytest.approx(float(pulled), rel=1e-13)
    assert terms["loss_obstinate"] == pytest.approx(float(pushed), rel=1e-13)
    expected = cross_entropy(objective, x, "mean") + 2 * pulled + 3 * pushed
    assert loss.item() == pytest.approx(float(expected.detach()), rel=1e-13)


def test_triplet_by_hand():
    objective = make("bat_triplet", weight_triplet=2.0, margin=0.8)
    x, fickle, obstinate = vectors(0), vectors(1), vectors(2)
    loss, _ = objective.loss(views(objective, x, {"fickle": fickle, "obstinate": obstinate}))
    d_f, d_o = (1 - F.cosine_similarity(x, other) for other in (fickle, obstinate))
    rows = (d_f + 0.8 - d_o).clamp(min=0) * PRESENT
    expected = cross_entropy(objective, x, "mean") + 2 * rows.sum() / NUM_ROWS
    assert loss.item() == pytest.approx(float(expected.detach()), rel=1e-13)


@pytest.mark.parametrize("name", BAT)
def test_obstinate_texts_of_other_classes_do_not_count(name):
    x, fickle, obstinate = vectors(0), vectors(1), vectors(2).requires_grad_()
    objective = make(name, obstinate_labels=["contradiction", "entailment"])
    objective.loss(views(objective, x, {"fickle": fickle, "obstinate": obstinate}))[0].backward()
    counted = PRESENT & torch.tensor([name in ("contradiction", "entailment") for name in NAMES])[LABELS]
    assert torch.equal(obstinate.grad.norm(dim=1) > 0, counted) and counted.sum() == 1
    with pytest.raises(
        UserError, match="obstinate_labels: 'duplicate' is none of the classes; they are entailment, ne"
    ):
        make(name, obstinate_labels=["neutral", "duplicate"])


@pytest.mark.parametrize("kind", ["mean", "max"])
def test_distances_of_token_states(kind):
    """Sentences of unequal lengths, states below 0 too: neither padding nor a neighbour's tokens have a say."""
    lengths, variant_lengths = (3, 1, 4, 2, 1, 5), (2, 2, 1, 6, 1, 3)
    generator = torch.Generator().manual_seed(0)
    states, others = (
        torch.randn(sum(of_one), SIZE, generator=generator, dtype=torch.float64) - 3
        for of_one in (lengths, variant_lengths)
    )
    objective = make("bat_pairwise", distance_of=kind, weight_obstinate=0.0)
    assert objective.needs.tokens and objective.needs.variants == ("fickle",)
    variant = Variant(vectors(1), PRESENT, packed(variant_lengths), others)
    given = Views(
        query=vectors(0),
        pooled=vectors(0),
        sentence_ids=torch.arange(NUM_ROWS),
        labels=LABELS,
        batch=packed(lengths),
        variants={"fickle": variant},
        tokens=states,
    )
    expected = []
    for one, other in zip(states.split(lengths), others.split(variant_lengths), strict=True):
        pair = [of_text.mean(0) if kind == "mean" else of_text.max(0).values for of_text in (one, other)]
        expected.append(1 - F.cosine_similarity(*pair, dim=0))
    torch.testing.assert_close(objective.distance(given, "fickle"), torch.stack(expected), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_distances_keep_their_digits_where_texts_are_close(dtype):
    """At 1e-8 a float32 1 - cos is 0 or 6e-8. The vectors are exact in the type; what is lost is the normalising's."""
    objective = make("bat_pairwise", torch.float32)
    x = vectors(0, dtype)
    near = x.clone()
    near[:, 0] = (near[:, 0].float() * (1 + 2.0**-13 if dtype == torch.float32 else 1 + 2.0**-6)).to(dtype)
    # 1 - cos without a difference of near numbers, in float64: |x|^2 |y|^2 - (x y)^2 is a sum of squares.
    a, b = x.double(), near.double()
    crossed = (a[:, :, None] * b[:, None] - a[:, None] * b[:, :, None]).square().sum((1, 2)) / 2
    squares = a.square().sum(1) * b.square().sum(1)
    cosine = (a * b).sum(1) / squares.sqrt()
    exact = crossed / squares / (1 + cosine)
    found = objective.distance(views(objective, x, {"fickle": near, "obstinate": near}), "fickle")
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=0)


@pytest.mark.parametrize("name", BAT)
def test_equal_texts_have_distance_0_and_a_finite_gradient(name):
    objective, x = make(name), vectors(0).requires_grad_()
    loss, _ = objective.loss(views(objective, x, {"fickle": x, "obstinate": x}))
    loss.backward()
    assert x.grad.isfinite().all()
    extra = 1.2 if name == "bat_pairwise" else PRESENT.double().mean()
    assert loss.item() == pytest.approx(float(cross_entropy(objective, x, "mean").detach() + extra), rel=1e-12)


def test_texts_that_no_weight_counts_are_not_drawn():
    assert make("bat_pairwise").needs.variants == ("fickle", "obstinate")
    assert make("bat_pairwise", weight_fickle=0.0).needs.variants == ("obstinate",)
    neither = make("bat_pairwise", weight_fickle=0.0, weight_obstinate=0.0)
    assert neither.needs.variants == ()
    x = vectors(0)
    assert neither.loss(views(neither, x, {}))[0] == cross_entropy(neither, x, "mean")
    assert make("bat_triplet").needs.variants == ("fickle", "obstinate") and not make("bat_triplet").needs.tokens


def test_a2t_says_when_to_attack():
    asked = make("a2t", num_clean_epochs=2, share=0.1, max_queries=50).needs.epoch_attack
    assert (asked.first_epoch, asked.share, asked.max_queries, asked.recipe) == (2, 0.1, 50, "a2t")
    assert make("ada").needs.epoch_attack is None


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ada", {"targets": "soft"}, "objective_options.victim = null: expected a trained classifier where"),
        ("base_adv", {"victim": "runs/x"}, "objective_options.victim = runs/x: expected null where"),
    ],
)
def test_mistakes_are_told(name, options, message):
    with pytest.raises(UserError, match=message):
        resolve_objective(name)(SIZE, nn.Linear(SIZE, 4), **options)
