"""The compiled search finds what the search finds, traces as whole graphs, and is not traced again for each batch."""

import shutil

import pytest
import torch

from fastadv import UserError
from fastadv.config.schema import Config
from fastadv.data.fixed_size import fill_up
from fastadv.engine.build import check_machine
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.inner_loss import InnerLoss
from fastadv.engine.step.passes import CompiledEncode
from fastadv.perturbation import Adversary, compiled
from fastadv.perturbation.chains import Chains
from fastadv.perturbation.compiled import CompiledAdversary, gradients_of, moved
from fastadv.perturbation.search import Surroundings, map_rows
from tests.conftest import write_tiny_bert
from tests.engine.step.test_text_search import with_proposals

MAX_LENGTH = 24
OTHERS = [
    "an almost terrible ending",
    "the music is good and the actor was great",
    "hate it",
    "it was sad",
    "every scene was sad and slow , and not funny",
    "never",
    "it is dull",
]


@pytest.fixture(scope="module")
def tiny_bert_dir(tmp_path_factory):
    """One layer: the graphs of two are as many, and take twice as long to trace."""
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "shallow-bert", num_layers=1)


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def num_graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def compiled_adversary(step, backend="aot_eager", **options):
    # aot_eager stops before code generation: tracing is the question, and a C++ compiler takes its time.
    return CompiledAdversary(step.plan, step.encoder, step.objective, max_length=MAX_LENGTH, backend=backend, **options)


def surroundings(step, batch):
    """(X, the inner loss, eta) of a batch, as the step makes them."""
    encoder, objective = step.encoder, step.objective
    with torch.no_grad():
        x = encoder.embed(batch)
        keys = GlobalBatch(batch).gather_keys(objective.project(encoder(batch)), batch.sentence_ids)
    eta = None if step.eta_table is None else step.eta_table.read(batch)
    return x, InnerLoss(encoder, objective, batch, keys, None), eta


def search(adversary, x, batch, loss, eta, **options):
    torch.manual_seed(3)
    return adversary.search(x, batch, loss, eta, **options)


def assert_equal(ours, theirs, tolerance=1e-12):
    for name, one, other in zip(
        ("delta", *ours.state._fields), (ours.delta, *ours.state), (theirs.delta, *theirs.state)
    ):
        if other is None:
            assert one is None
            continue
        assert one.shape == other.shape and other.abs().max() > 0
        assert (one - other).abs().max() <= tolerance * other.abs().max(), name
    torch.testing.assert_close(ours.gain, theirs.gain, rtol=0, atol=max(tolerance, 1e-12))
    assert torch.equal(ours.nonfinite_step, theirs.nonfinite_step)


OPTIONS = [
    {},
    {"norm": "l2", "sigma": 0.1, "rho": 1.0, "num_fgsm_steps": 2, "perturb_special_tokens": False},
    {"norm": "l1", "use_eta": False, "gradient": "separate", "pooling": "mean"},
    {"pooling": "first_last", "perturb_at": "word", "objective_options": {"head": "bn_mlp"}},
    {"epsilon": None, "alpha": 0.1, "beta": 0.05, "gamma": 0.1, "eta_scaling": "none", "norm": "l2"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_finds_what_the_search_finds(make_step, sentences, options):
    step = make_step(dropout=0.1, **options).step
    batch = step.encoder.pack(sentences)
    given = surroundings(step, batch)
    found = search(compiled_adversary(step), given[0], batch, *given[1:])
    assert_equal(found, search(step.search.adversary, given[0], batch, *given[1:]))


@pytest.mark.parametrize("options", [{"sigma": 0.0}, {"norm": "l2", "sigma": 0.1, "gradient": "separate"}], ids=str)
def test_filling_up_alone_changes_nothing(make_step, sentences, options):
    step = make_step(**options).step
    batch = step.encoder.pack(sentences)
    given = surroundings(step, batch)
    with torch.compiler.set_stance("force_eager"):
        found = search(compiled_adversary(step), given[0], batch, *given[1:], keeps_gradients=True)
    expected = search(step.search.adversary, given[0], batch, *given[1:], keeps_gradients=True)
    assert num_graphs() == 0
    assert_equal(found, expected)
    # A probe sees the batch's own rows alone.
    torch.testing.assert_close(found.trace.agreements(), expected.trace.agreements(), rtol=0, atol=1e-12)
    moves = step.search.adversary.moves
    ours, theirs = (moves.delta(result.trace.end_with(moves, 2)) for result in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


INDUCTOR = pytest.param(
    "inductor",
    marks=pytest.mark.skipif(shutil.which("g++") is None, reason="inductor's code for a CPU needs a C++ compiler"),
)


@pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
def test_float32_is_as_close_as_the_search_itself(make_step, sentences, backend):
    options = {"rho": 1.0, "norm": "l2", "sigma": 0.0, "num_steps": 2}
    exact, single = (make_step(dtype=dtype, **options).step for dtype in (torch.float64, torch.float32))
    exact.load_state_dict({name: value.double() for name, value in single.state_dict().items()})
    batch = single.encoder.pack(sentences)
    gold = search(exact.search.adversary, *given(exact, batch))
    ours = search(compiled_adversary(single, backend), *given(single, batch))
    # One run's error is one draw: of runs whose input differs by a rounding, the largest is a third to a half larger.
    x, *rest = given(single, batch)
    roundings = torch.rand(5, *x.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
    roundings[0] = 0
    plain = [search(single.search.adversary, x * (1 + 2**-24 * of_run), *rest) for of_run in roundings]
    for part in ("delta", "eta"):
        expected, our_part = (getattr(result, part).double() for result in (gold, ours))
        own_error = max((getattr(result, part).double() - expected).abs().max() for result in plain)
        # Twice the search's own error and one unit in the last place.
        allowed = 2 * own_error + expected.abs().max() * 2**-23
        assert (our_part - expected).abs().max() <= allowed, part


def given(step, batch):
    x, loss, eta = surroundings(step, batch)
    return x, batch, loss, eta


def test_batches_of_one_size_share_two_graphs(make_step, sentences):
    step = make_step().step
    adversary = compiled_adversary(step)
    batches = [step.encoder.pack(texts) for texts in (sentences, OTHERS, OTHERS[::-1])]
    sizes = {fill_up(batch, MAX_LENGTH).batch.num_tokens for batch in batches}
    assert len(sizes) == 1 and len({batch.num_tokens for batch in batches}) == 2
    for batch in batches:
        search(adversary, *given(step, batch))
        # The gradient and the move.
        assert num_graphs() == 2
    assert torch._dynamo.utils.counters["graph_break"] == {}
    search(adversary, *given(step, step.encoder.pack(sentences[:4])))
    assert num_graphs() == 4


def test_the_whole_inner_step_is_one_graph(make_step, sentences):
    step = make_step().step
    batch = step.encoder.pack(sentences)
    x, loss, eta = surroundings(step, batch)
    step.requires_grad_(False)
    filled = fill_up(batch, MAX_LENGTH)
    padded, on_filled = filled.pad(x), loss.on(filled)
    around = Surroundings.of(step.plan, padded, filled.batch)
    start, moves = torch.zeros_like(padded), step.search.adversary.moves

    def inner_step(x, state):
        grads, value = gradients_of(moves, x, state, on_filled, around)
        return (*moved(moves, state, 1, grads, around), value)

    arguments = padded, Chains(start, start, filled.pad(eta))
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = torch.compile(inner_step, fullgraph=True, dynamic=False, backend="aot_eager")(*arguments)
    assert num_graphs() == 1
    for one, other in zip(found, inner_step(*arguments), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("joint_views", [False, True])
def test_compiled_passes_give_the_same_loss_and_gradients(make_step, sentences, pooling, joint_views):
    outcomes = []
    for is_compiled in (False, True):
        recorded = make_step(pooling=pooling, sigma=0.0, use_eta=False)
        step, encoder = recorded.step, recorded.step.encoder
        step.passes.joint_views = joint_views
        if is_compiled:
            step.passes.compiled = CompiledEncode(encoder, backend="aot_eager")
        outcomes.append([recorded.run(encoder.pack(texts)) for texts in (sentences, OTHERS)])
        # One graph for each number of sentences.
        assert num_graphs() == is_compiled * (1 + joint_views)
    for (loss, grads), (expected, expected_grads) in zip(outcomes[1], outcomes[0], strict=True):
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        assert grads.keys() == expected_grads.keys()
        for name, grad in expected_grads.items():
            torch.testing.assert_close(grads[name], grad, rtol=1e-10, atol=1e-12, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_passes_have_dropout_masks_of_their_own(make_step, sentences, dtype):
    step = make_step(dropout=0.2, dtype=dtype).step
    batch = step.encoder.pack(sentences)
    passes = CompiledEncode(step.encoder, backend="aot_eager")
    x = step.encoder.embed(batch, dropout=False).detach()
    state = torch.get_rng_state()
    first, second = passes(x, batch), passes(x, batch)
    assert ((first - second).abs().amax(1) > 1e-3).all()
    torch.set_rng_state(state)
    assert torch.equal(passes(x, batch), first)
    assert num_graphs() == 1


@pytest.mark.parametrize(
    "options", [{"reuse": "exact", "dropout": 0.1}, {"reuse": "adaptive", "probe_every": 2}], ids=str
)
def test_a_step_has_the_same_loss_gradients_and_metrics(make_step, sentences, options):
    outcomes = []
    for is_compiled in (False, True):
        recorded = make_step(num_steps=3, **options)
        step = recorded.step
        if is_compiled:
            step.search.adversary = compiled_adversary(step)
        torch.manual_seed(5)
        runs = []
        for texts in (sentences, OTHERS):
            runs.append((*recorded.run(step.encoder.pack(texts)), step.metrics))
            step.commit()
        outcomes.append((runs, step.eta_table.table))
    assert num_graphs() >= 2
    for plain, ours in zip(*(runs for runs, _ in outcomes), strict=True):
        torch.testing.assert_close(ours[0], plain[0], rtol=1e-12, atol=0)
        for name, grad in plain[1].items():
            torch.testing.assert_close(ours[1][name], grad, rtol=1e-10, atol=1e-12, msg=name)
        assert ours[2].keys() == plain[2].keys()
        for name, value in plain[2].items():
            torch.testing.assert_close(ours[2][name], value, rtol=1e-9, atol=1e-12, msg=name)
    torch.testing.assert_close(outcomes[1][1], outcomes[0][1], rtol=1e-12, atol=1e-14)


def test_views_of_texts_are_chosen_and_learnt_from_alike(make_step, sentences):
    """With z_text, a flip and the search over embeddings; dropout off, whose masks are drawn for filled batches."""
    outcomes = []
    for is_compiled in (False, True):
        options = {"text_positive": "beside", "weight_text": 0.5, "weight_flip": 0.3, "flip_margin": 0.5}
        recorded = make_step("robustsentembed", options, num_steps=2)
        step = recorded.step
        if is_compiled:
            step.search.adversary = compiled_adversary(step)
            step.passes.compiled = CompiledEncode(step.encoder, backend="aot_eager")
        outcomes.append((*recorded.run(with_proposals(step.encoder, sentences)), step.metrics))
    (loss, gradients, metrics), ours = outcomes
    assert metrics["text_gain"] > 0
    torch.testing.assert_close(ours[0], loss, rtol=1e-12, atol=0)
    for name, grad in gradients.items():
        torch.testing.assert_close(ours[1][name], grad, rtol=1e-10, atol=1e-12, msg=name)
    assert ours[2].keys() == metrics.keys()
    for name, value in metrics.items():
        torch.testing.assert_close(ours[2][name], value, rtol=1e-9, atol=1e-12, msg=name)


def test_a_step_is_built_with_it_and_without(tiny_bert_dir):
    from fastadv.engine.build import build_encoder, build_step

    config = Config()
    config.encoder.model, config.encoder.max_length = str(tiny_bert_dir), 32
    step = build_step(config, build_encoder(config))
    assert type(step.search.adversary) is Adversary and step.passes.compiled is None
    config.engine.compile = "default"
    step = build_step(config, build_encoder(config))
    assert type(step.search.adversary) is CompiledAdversary and type(step.passes.compiled) is CompiledEncode
    config.encoder.path = "generic"
    with pytest.raises(UserError, match="^engine.compile = default: expected none, .* runs padded"):
        build_step(config, build_encoder(config))


def test_cuda_graphs_are_asked_for_and_their_results_copied(monkeypatch, make_step, sentences):
    asked, marks, results = [], [], []

    def stand_in(function, **options):
        asked.append(options)

        def run(*arguments):
            results.append(function(*arguments))
            return results[-1]

        return run

    monkeypatch.setattr(compiled.torch, "compile", stand_in)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    step = make_step(num_steps=2).step
    batch = step.encoder.pack(sentences)
    arguments = given(step, batch)
    adversary = CompiledAdversary(step.plan, step.encoder, step.objective, max_length=MAX_LENGTH, kind="cudagraphs")
    assert asked == [{"fullgraph": True, "dynamic": False, "backend": "inductor", "mode": "reduce-overhead"}] * 2
    found = search(adversary, *arguments)
    expected = search(step.search.adversary, *arguments)
    # The next replay writes to the last one's results.
    map_rows(torch.Tensor.zero_, tuple(results))
    assert_equal(found, expected)
    assert len(marks) == len(results) == 4


def test_a_machine_without_cuda_refuses_cuda_graphs():
    config = Config()
    config.engine.compile = "cudagraphs"
    with pytest.raises(
        UserError, match="^engine.compile = cudagraphs: needs a CUDA device.*allowed here: none, default$"
    ):
        check_machine(config)
    config.engine.compile = "default"
    check_machine(config)


def test_masks_of_the_clean_pass_are_refused(make_step, sentences):
    step = make_step().step
    batch = step.encoder.pack(sentences)
    x, loss, _ = surroundings(step, batch)
    loss._masks = object()
    with pytest.raises(ValueError, match="no masks"):
        loss.on(fill_up(batch, MAX_LENGTH))
