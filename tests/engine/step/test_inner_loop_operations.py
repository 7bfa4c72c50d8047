"""Which operations the search runs: none that waits for a value, and none for a parameter's sake."""

import pytest
import torch

from fastadv.engine.step.dropout_replay import DropoutReplay
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.inner_loss import InnerLoss
from fastadv_kernels.backend import native_library
from tests.engine.step.dispatch import DataDependence, RefuseDataDependence, WeightGradients


def search(step, batch):
    """From embed to the found perturbation, as the step does it."""
    encoder, objective = step.encoder, step.objective
    x = encoder.embed(batch)
    masks = DropoutReplay(x.device)
    objective.project(encoder.encode(x, batch))
    keys = GlobalBatch(batch).gather_keys(objective.project(encoder(batch)), batch.sentence_ids)
    frozen = masks if step.plan.inner_dropout == "frozen" else None
    loss = InnerLoss(encoder, objective, batch, keys, frozen)
    eta = None if step.eta_table is None else step.eta_table.read(batch)
    return step.search.adversary.search(x, batch, loss, eta)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"norm": "linf"},
        {"norm": "l2"},
        {"norm": "l1"},
        {"sigma": 0.1, "gradient": "separate"},
        {"perturb_special_tokens": False, "norm": "l2"},
        {"use_eta": False, "epsilon": 0.3},
        {"method": "fgm"},
        {"inner_dropout": "frozen", "dropout": 0.1},
        {"pooling": "mean"},
        {"pooling": "first_last", "perturb_at": "word"},
        {"objective_options": {"head": "bn_mlp", "mask_duplicates": False}},
    ],
    ids=str,
)
def test_nothing_depends_on_values_from_embed_to_the_perturbation(make_step, sentences, options, dtype):
    step = make_step(dtype=dtype, **options).step
    batch = step.encoder.pack(sentences)
    if options.get("norm") == "l1" and (dtype == torch.float64 or native_library is None):
        # The reference of the l1 projection asks for the longest sentence; its fast forms do not.
        with pytest.raises(DataDependence, match="_local_scalar_dense"), RefuseDataDependence():
            search(step, batch)
        return
    with RefuseDataDependence():
        found = search(step, batch)
    assert found.delta.abs().max() > 0
    assert (found.nonfinite_step == 0).all()


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[x > 0],
        lambda x: x.unique(),
        lambda x: x.nonzero(),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(x.long().abs() + 1),
    ],
)
def test_an_operation_that_depends_on_values_is_refused(operation):
    with pytest.raises(DataDependence), RefuseDataDependence():
        operation(torch.randn(5))


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "l2"}, {"pooling": "mean", "objective_options": {"head": "bn_mlp"}}, {"perturb_at": "word"}],
    ids=str,
)
def test_no_kernel_of_the_inner_loop_makes_a_weight_s_gradient(make_step, sentences, options):
    step = make_step(num_steps=3, **options).step
    batch = step.encoder.pack(sentences)
    # Activations' shapes must not be mistaken for parameters'.
    sizes = {size for p in step.parameters() for size in p.shape}
    assert batch.num_tokens not in sizes and batch.num_sentences not in sizes
    watch = watched(step)
    step(batch)
    assert watch.num_products > 0
    assert watch.found == []


def test_a_weight_s_gradient_in_the_inner_loop_is_found(make_step, sentences):
    step = make_step(num_steps=1, reuse="none").step
    watch = watched(step)
    step(step.encoder.pack(sentences))
    found = " ".join(watch.found)
    assert "mm" in found and "sum" in found and "native_layer_norm_backward" in found
    step = make_step(num_steps=1, reuse="none", perturb_at="word").step
    watch = watched(step)
    step(step.encoder.pack(sentences))
    assert any("embedding" in line for line in watch.found)


def watched(step):
    """The watcher of all that the step's search will run."""
    watch, run = WeightGradients(list(step.parameters())), step.search.search

    def watched_search(*arguments):
        with watch:
            return run(*arguments)

    step.search.search = watched_search
    return watch


def saved_linear_inputs(step, batch):
    """How many of the inputs of linear layers the inner passes kept for a backward."""
    # Tensors, not their addresses alone: what is freed leaves its address to others.
    inputs, kept = [], []
    run = step.search.search

    def keep(tensor):
        kept.append(tensor)
        return tensor

    def watched_search(*arguments):
        linear = [m for m in step.modules() if isinstance(m, torch.nn.Linear)]
        handles = [m.register_forward_pre_hook(lambda module, args: inputs.append(args[0])) for m in linear]
        try:
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                return run(*arguments)
        finally:
            for handle in handles:
                handle.remove()

    step.search.search = watched_search
    step(batch)
    return len({t.data_ptr() for t in inputs} & {t.data_ptr() for t in kept})


def test_inner_passes_keep_no_activation_for_a_weight_s_gradient(make_step, sentences):
    exact = make_step(num_steps=1).step
    batch = exact.encoder.pack(sentences)
    assert saved_linear_inputs(exact, batch) == 0
    none = make_step(num_steps=1, reuse="none").step
    assert saved_linear_inputs(none, batch) > 0
