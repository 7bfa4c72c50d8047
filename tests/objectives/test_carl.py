"""CARL's course: when the banks are filled and read, what a skipped batch leaves, and what a user is told."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fastadv import UserError, load_config
from fastadv.objectives.base import RunFacts, Views
from fastadv.objectives.classes.carl import CARL
from tests.oracle.classes.supervised_cases import CASES, LABELS, NUM_FILLING, NUM_ROWS, examples
from tests.oracle.classes.torch_run_supervised import SupervisedRun, pack_examples

LABELS = np.array(LABELS)


def state_of(objective):
    return {name: value.clone() for owner in objective.stateful() for name, value in owner.state_dict().items()}


def make(facts=None, **options):
    torch.manual_seed(0)
    objective = CARL(4, nn.Linear(4, 6), num_negatives=5, **options).double()
    objective.begin(facts or RunFacts(NUM_ROWS, 3, 100, row_labels=LABELS))
    return objective


def views_of(rows, seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    pooled = torch.randn(2, len(rows), 4, generator=generator, dtype=torch.float64)
    batch = pack_examples(examples(rows))
    views = Views(
        None, batch.sentence_ids, pooled=pooled[0], adversarial_pooled=pooled[1], labels=batch.labels, batch=batch
    )
    return replace(views, **changes)


def contrast_of(terms):
    return terms["loss_contrast_original"] + terms["loss_contrast_adversarial"]


def walk(objective, num_steps, rows=(0, 1, 2, 3)):
    """Terms of so many steps, and what the banks held after each."""
    found = []
    for number in range(num_steps):
        views = views_of(rows, number)
        if not objective.needs.clean:
            views = replace(views, pooled=None)
        _, terms = objective.loss(views)
        objective.commit()
        found.append((objective.banks.is_written.any().item(), set(terms)))
    return found


CONTRAST = {"loss_classification", "loss_contrast_original", "loss_contrast_adversarial"}


@pytest.mark.parametrize(
    ("start_step", "accumulation", "first_write", "first_contrast"),
    [(None, 1, 0, 3), (5, 1, 2, 5), (2, 1, 0, 2), (0, 1, 0, 0), (4, 2, 2, 4), (4, 3, 3, 4), (None, 2, 0, 2)],
)
def test_banks_are_filled_in_the_epoch_before_the_contrast(start_step, accumulation, first_write, first_contrast):
    """Three batches an epoch. Before that epoch there is no clean pass; the count is of optimizer steps."""
    facts = RunFacts(NUM_ROWS, 3, 100, row_labels=LABELS, accumulation_steps=accumulation)
    for number, (has_written, terms) in enumerate(walk(make(facts, start_step=start_step), 7)):
        assert has_written == (number >= first_write)
        assert (terms == CONTRAST) == (number >= first_contrast)


def test_the_first_contrast_may_find_empty_banks_and_says_so_once(caplog):
    objective = make(start_step=0)
    with caplog.at_level(logging.WARNING):
        for number, rows in enumerate([(0, 6, 9), (0, 6), (9, 0)]):
            loss, terms = objective.loss(views_of(rows, number))
            assert contrast_of(terms) == 0 and loss == terms["loss_classification"]
            objective.commit()
    assert [record.message for record in caplog.records] == [
        "objective carl: the batch of step 1, of class 0, has no negatives, for the banks hold no row of another "
        "class; its contrast is 0, and that of such batches to come"
    ]
    assert objective.course.log_z.isnan().all()
    assert contrast_of(objective.loss(views_of((1,)))[1]) > 0


@pytest.mark.parametrize("estimator", ["nce", "softmax"])
def test_a_row_without_negatives_counts_as_zero_in_the_mean(estimator):
    """Only class 0 is written: rows of class 0 have no negatives, row 1's contrast is shared with them."""
    objective = make(start_step=1, estimator=estimator)
    objective.loss(views_of((0, 6)))
    objective.commit()
    before = objective.course.generator.get_state()
    alone = objective.loss(views_of((1,)))[1]
    objective.course.generator.set_state(before)
    views = views_of((1,))
    of_others = views_of((9, 10), 7)
    joined = views_of((1, 9, 10))
    pooled = torch.cat([views.pooled, of_others.pooled])
    adversarial = torch.cat([views.adversarial_pooled, of_others.adversarial_pooled])
    together = objective.loss(replace(joined, pooled=pooled, adversarial_pooled=adversarial))[1]
    for name in CONTRAST - {"loss_classification"}:
        torch.testing.assert_close(together[name], alone[name] / 3, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rows", [(1,), (0, 6, 9, 10), (3, 3, 3)], ids=["one row", "one class", "one row thrice"])
@pytest.mark.parametrize("negatives", ["per_batch", "per_row"])
@pytest.mark.parametrize("estimator", ["nce", "softmax"])
def test_small_batches_have_finite_losses_and_gradients(rows, negatives, estimator):
    objective = make(start_step=1, negatives=negatives, estimator=estimator)
    objective.loss(views_of((0, 1, 2)))
    objective.commit()
    views = views_of(rows, 3)
    pooled = views.pooled.requires_grad_(), views.adversarial_pooled.requires_grad_()
    loss, terms = objective.loss(views)
    grads = torch.autograd.grad(loss, pooled)
    assert terms.keys() == CONTRAST and loss.isfinite()
    assert all(grad.isfinite().all() and grad.norm(dim=1).gt(0).all() for grad in grads)


def test_a_vector_of_zeros_has_a_finite_loss_and_gradient():
    objective = make(start_step=1)
    objective.loss(views_of((0, 1, 2)))
    objective.commit()
    views = views_of((3, 4))
    pooled = (views.pooled * torch.tensor([[0.0], [1.0]])).requires_grad_()
    loss, _ = objective.loss(replace(views, pooled=pooled))
    (grad,) = torch.autograd.grad(loss, pooled)
    assert loss.isfinite() and grad.isfinite().all()


def test_a_skipped_batch_writes_nothing():
    """Neither banks nor Z, nor does it count as a step; the batch in its place finds what it would have found."""
    run = SupervisedRun(CASES["carl-nce-plain"])
    batches = [pack_examples(examples(rows)) for rows in CASES["carl-nce-plain"].batches]
    for batch in batches[:NUM_FILLING]:
        run.module(batch)
        run.module.commit()
    before = state_of(run.objective)
    run.module(batches[NUM_FILLING])
    assert run.objective.course.has_z
    run.module.discard()
    after = state_of(run.objective)
    assert all(
        torch.equal(after[name].nan_to_num(), before[name].nan_to_num()) for name in set(before) - {"carl_generator"}
    )
    assert after["carl_log_z"].isnan().all()
    run.module(batches[NUM_FILLING])
    run.module.commit()
    assert run.objective.course.num_steps == NUM_FILLING + 1 and run.objective.course.has_z
    assert not torch.equal(state_of(run.objective)["carl_banks"], before["carl_banks"])


def test_batches_of_one_optimizer_step_are_written_together():
    """The second reads the banks of before the step; a batch that is skipped among them leaves the others."""
    together, apart = make(start_step=0), make(start_step=0)
    for objective in (together, apart):
        objective.loss(views_of((0, 1, 2)))
        objective.commit()
    before = state_of(together)["carl_banks"]
    together.loss(views_of((3, 4), 1))
    assert torch.equal(state_of(together)["carl_banks"], before)
    together.loss(views_of((7, 8), 2))
    together.discard()
    together.loss(views_of((5, 6), 3))
    together.commit()
    for rows, seed in (((3, 4), 1), ((5, 6), 3)):
        apart.loss(views_of(rows, seed))
        apart.commit()
    assert torch.equal(state_of(together)["carl_banks"], state_of(apart)["carl_banks"])
    assert together.course.num_steps == 2 and apart.course.num_steps == 3


def test_only_the_last_pass_has_a_contrast():
    objective = make(start_step=1)
    objective.loss(views_of((0, 1, 2)))
    objective.commit()
    banks = state_of(objective)
    first, terms = objective.loss(views_of((3, 4, 5), last_pass=0.0))
    assert set(terms) == {"loss_classification"} and first == terms["loss_classification"]
    last, terms = objective.loss(views_of((3, 4, 5), last_pass=3.0))
    torch.testing.assert_close(last, terms["loss_classification"] + 3 * contrast_of(terms))
    objective.commit()
    assert state_of(objective)["carl_is_written"].sum() == banks["carl_is_written"].sum() + 3


def test_raw_vectors_far_apart_do_not_overflow():
    """exp of the dot product overflows float32 at 89; the loss does not."""
    objective = make(start_step=1, normalize=False, temperature=0.01).float()
    views = [views_of(rows, seed) for seed, rows in enumerate([(0, 1, 2), (3, 4, 5)])]
    views = [
        replace(v, pooled=20 * v.pooled.float(), adversarial_pooled=20 * v.adversarial_pooled.float()) for v in views
    ]
    objective.loss(views[0])
    objective.commit()
    pooled = views[1].pooled.requires_grad_()
    loss, _ = objective.loss(views[1])
    (grad,) = torch.autograd.grad(loss, pooled)
    assert loss.isfinite() and grad.isfinite().all()


def test_draws_follow_the_seed_and_are_restored():
    one, other = make(start_step=1), make(start_step=1)
    for objective in (one, other):
        objective.loss(views_of(range(6)))
        objective.commit()
    state = state_of(one)
    losses = [one.loss(views_of((0, 1), 5))[0].item() for _ in range(3)]
    assert len(set(losses)) == 3
    assert losses == [other.loss(views_of((0, 1), 5))[0].item() for _ in range(3)]
    resumed = make(RunFacts(NUM_ROWS, 3, 100, seed=9, row_labels=LABELS), start_step=1)
    for owner in resumed.stateful():
        owner.load_state_dict(state)
    assert losses == [resumed.loss(views_of((0, 1), 5))[0].item() for _ in range(3)]


@pytest.mark.parametrize(("start_step", "said"), [(100, True), (99, False), (None, False)])
def test_a_contrast_that_never_begins_is_warned_of(caplog, start_step, said):
    with caplog.at_level(logging.WARNING):
        make(start_step=start_step)
    assert bool(caplog.records) == said
    if said:
        assert caplog.records[0].message.startswith("objective_options.start_step = 100: the run ends after step 100")


@pytest.mark.parametrize("objective", ["carl", "rar"])
@pytest.mark.parametrize("method", ["mixed", "pgd", "fgm", "fgsm"])
def test_another_search_than_freelb_is_refused(objective, method):
    overrides = ["--objective", objective, "--perturbation.method", method, "--data.label_field", "label"]
    overrides += ["--data.train", "demo:imdb", "--encoder.model", "demo:minilm", "--perturbation.epsilon", "1"]
    with pytest.raises(
        UserError, match=f"^perturbation.method = {method}: expected freelb where objective is {objective}$"
    ):
        load_config(None, overrides)


def test_a_run_without_classes_is_no_run():
    with pytest.raises(ValueError, match="class of every row"):
        CARL(4, nn.Linear(4, 6)).begin(RunFacts(5, 1, 1))
