"""The shipped objectives against their textbook forms, and how an objective is found."""

import math
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F

from fastadv.config.values import show
from fastadv.errors import UserError
from fastadv.objectives import Keys, Objective, Views, resolve_objective

D = 8


def unit(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_simcse_is_cross_entropy_of_cosines_over_temperature():
    query, positive = unit(6, D), unit(6, D)
    ids = torch.arange(6)
    objective = resolve_objective("simcse")(D, temperature=0.1)
    loss, terms = objective.loss(Views(query, ids, Keys(positive, ids)))
    cosines = F.cosine_similarity(query[:, None], positive[None], dim=-1)
    torch.testing.assert_close(loss, F.cross_entropy(cosines / 0.1, ids))
    assert terms["loss_contrastive"] == loss and not terms["loss_contrastive"].requires_grad


def test_robustsentembed_is_eq_9_plus_lambda_times_the_adversarial_anchor():
    query, positive, adversarial = unit(5, D), unit(5, D), unit(5, D)
    ids = torch.arange(5)
    objective = resolve_objective("robustsentembed")(D, temperature=0.5, weight_adversarial=0.25)
    loss, terms = objective.loss(Views(query, ids, Keys(positive, ids), adversarial, Keys(adversarial, ids)))

    def scores(a, b):
        return (F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T / 0.5).exp()

    clean, attacked = scores(query, positive), scores(query, adversarial)
    first = -((clean.diagonal() + attacked.diagonal()) / (clean.sum(1) + attacked.sum(1))).log().mean()
    anchor = scores(adversarial, positive)
    second = -(anchor.diagonal() / anchor.sum(1)).log().mean()
    torch.testing.assert_close(terms["loss_contrastive"], first)
    torch.testing.assert_close(terms["loss_adversarial"], second)
    torch.testing.assert_close(loss, first + 0.25 * second)


def test_uscal_is_two_single_set_losses():
    query, positive, adversarial = unit(5, D), unit(5, D), unit(5, D)
    ids = torch.arange(5)
    objective = resolve_objective("uscal")(D, temperature=0.5, weight_adversarial=0.25)
    loss, terms = objective.loss(Views(query, ids, Keys(positive, ids), adversarial, Keys(adversarial, ids)))

    def single(keys):
        return F.cross_entropy(F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).T / 0.5, ids)

    torch.testing.assert_close(terms["loss_contrastive"], single(positive))
    torch.testing.assert_close(terms["loss_adversarial"], single(adversarial))
    torch.testing.assert_close(loss, single(positive) + 0.25 * single(adversarial))


def test_the_inner_loss_sums_rows_and_each_row_stands_alone():
    query, positive = unit(4, D), unit(4, D)
    ids = torch.tensor([7, 8, 7, 9])
    objective = resolve_objective("robustsentembed")(D)
    whole = objective.inner_loss(Views(query, ids, Keys(positive, ids)))
    rows = [
        objective.inner_loss(Views(query[i : i + 1], ids[i : i + 1], Keys(positive, ids, row_offset=i)))
        for i in range(4)
    ]
    torch.testing.assert_close(whole, sum(rows))


def test_equal_sentences_are_no_negatives_unless_asked():
    query = unit(3, D)
    positive = query.clone()
    ids = torch.tensor([1, 1, 2])
    masked = resolve_objective("simcse")(D).loss(Views(query, ids, Keys(positive, ids)))[0]
    plain = resolve_objective("simcse")(D, mask_duplicates=False).loss(Views(query, ids, Keys(positive, ids)))[0]
    alone = resolve_objective("simcse")(D).loss(Views(query, torch.arange(3), Keys(positive, torch.arange(3))))[0]
    assert masked < plain
    torch.testing.assert_close(plain, alone)


def test_a_batch_norm_head_keeps_its_statistics_in_inner_steps():
    objective = resolve_objective("simcse")(D, head="bn_mlp").double().train()
    before = {name: b.clone() for name, b in objective.named_buffers()}
    whole = objective.project(unit(6, D), is_inner=True)
    assert whole.shape == (6, D)
    for name, buffer in objective.named_buffers():
        assert torch.equal(buffer, before[name]), name
    rows = unit(6, D)
    alone = torch.cat([objective.project(row[None], is_inner=True) for row in rows])
    torch.testing.assert_close(objective.project(rows, is_inner=True), alone)
    objective.project(rows)
    assert any(not torch.equal(b, before[name]) for name, b in objective.named_buffers())


@pytest.mark.parametrize(
    "name, message",
    [
        ("simcsee", "objective: 'simcsee' is unknown; shipped are simcse, robustsentembed, uscal"),
        ("no_such_module:Thing", "does not import: ModuleNotFoundError"),
        ("json:JSONDecoder", "must name a subclass of fastadv.Objective"),
        ("json:Nothing", "must name a subclass of fastadv.Objective"),
    ],
)
def test_an_objective_that_is_none_is_named_in_one_line(name, message):
    with pytest.raises(UserError, match=".") as caught:
        resolve_objective(name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_your_own_objective_is_found_by_module_and_class(tmp_path, monkeypatch):
    source = """
        from fastadv.objectives.sentences.simcse import SimCSE

        class Doubled(SimCSE):
            def loss(self, views):
                loss, terms = super().loss(views)
                return 2 * loss, terms
    """
    (tmp_path / "my_objective.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        found = resolve_objective("my_objective:Doubled")
    finally:
        sys.modules.pop("my_objective", None)
    assert issubclass(found, Objective) and found.__name__ == "Doubled"


@pytest.mark.parametrize(
    ("name", "option", "values", "allowed"),
    [
        ("robustsentembed", "temperature", (0.0, -1.0, math.nan), "a number above 0"),
        ("robustsentembed", "weight_adversarial", (-0.1,), "a number of at least 0"),
        ("robustsentembed", "weight_rtd", (-0.1,), "a number of at least 0"),
        ("robustsentembed", "rtd_mask_ratio", (-0.1, 1.1), "a number in [0, 1]"),
        ("simcse", "weight_hard_negative", (0.0,), "a number above 0"),
        ("uscal", "weight_adversarial", (-0.1,), "a number of at least 0"),
        ("scal", "weight_contrastive", (-0.1,), "a number of at least 0"),
        ("adversarial_training", "weight_clean", (-0.1, 1.1), "a number in [0, 1]"),
        ("smart", "weight_smoothness", (-0.1,), "a number of at least 0"),
        ("smart", "weight_momentum", (-0.1,), "a number of at least 0"),
        ("carl", "temperature", (0.0,), "a number above 0"),
        ("carl", "num_negatives", (0,), "a whole number of at least 1"),
        ("carl", "momentum", (1.0, -0.1), "a number from 0 to below 1"),
        ("carl", "start_step", (-1,), "a whole number of at least 0, or null"),
        ("rar", "weight_reconstruction", (-0.1,), "a number of at least 0"),
        ("taichi", "temperature", (0.0, -1.0, math.nan), "a number above 0"),
        ("bat_pairwise", "margin", (2.5, math.nan), "a number in [0, 2]"),
        ("bat_triplet", "margin", (-0.1,), "a number in [0, 2]"),
        ("a2t", "share", (0.0, 1.1, math.nan), "a number above 0, at most 1"),
        ("a2t", "num_clean_epochs", (-1,), "a whole number of at least 0"),
        ("a2t", "max_queries", (0,), "a whole number of at least 1"),
    ],
)
def test_an_option_out_of_its_bounds_is_refused_in_one_line(name, option, values, allowed):
    kind = resolve_objective(name)
    given = (D, torch.nn.Linear(D, 3)) if kind.needs.labels else (D,)
    for value in values:
        with pytest.raises(UserError) as caught:
            kind(*given, **{option: value})
        assert str(caught.value) == f"objective_options.{option} = {show(value)}: expected {allowed}"


@pytest.mark.parametrize("flag, value", [("uses_adversary", True), ("variants", ("fickle",)), ("raised_term", "kl")])
def test_a_flag_of_before_is_refused_and_not_ignored(flag, value):
    with pytest.raises(TypeError, match=rf"Old\.{flag}: expected `needs = Needs\(\.\.\.\)`"):
        type("Old", (Objective,), {flag: value})
