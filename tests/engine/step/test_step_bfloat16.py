"""bfloat16 at ZeRO stage 0: weights cast once a step, float32 masters, float32 perturbations."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastadv.encoder.cast import CastWeights

ROUTES = [
    {},
    {"perturb_at": "word"},
    {"path": "generic", "pooling": "mean"},
    {"pooling": "first_last"},
    {"reuse": "none"},
    {"reuse": "free"},
    {"objective": "uscal", "method": "fgm", "epsilon_relative": 0.1},
    {"objective_options": {"rtd_generator": "unigram", "weight_rtd": 0.5}},
]


def outcome(make_step, sentences, narrow, **options):
    compute_dtype, use_eta = torch.bfloat16 if narrow else None, "method" not in options
    recorded = make_step(
        dtype=torch.float32, compute_dtype=compute_dtype, num_steps=2, sigma=0.0, use_eta=use_eta, **options
    )
    torch.manual_seed(3)
    loss, grads = recorded.run(recorded.step.encoder.pack(sentences))
    return recorded, loss, grads


@pytest.mark.parametrize("options", ROUTES, ids=str)
def test_masters_get_float32_gradients_near_those_of_float32(make_step, sentences, options):
    recorded, loss, grads = outcome(make_step, sentences, True, **options)
    _, exact_loss, exact = outcome(make_step, sentences, False, **options)
    assert grads.keys() == exact.keys()
    assert all(grad.dtype == torch.float32 for grad in grads.values())
    assert all(p.is_leaf and p.requires_grad and p.dtype == torch.float32 for p in recorded.step.parameters())
    difference = sum((grads[name] - exact[name]).square().sum() for name in grads).sqrt()
    # Eight bits, 2^-9 a rounding, at the temperature of 0.05 twenty times that in a logit.
    assert 0 < difference < 0.2 * sum(grad.square().sum() for grad in exact.values()).sqrt()
    assert float(loss) == pytest.approx(float(exact_loss), rel=0.05) and loss.dtype == torch.float32
    found = recorded.found
    if found:
        assert found[0].delta.dtype == torch.float32 and found[0].delta.any()


def test_each_weight_is_cast_once(make_step, sentences):
    recorded = make_step(dtype=torch.float32, compute_dtype=torch.bfloat16)
    batch = recorded.step.encoder.pack(sentences)
    passes, encode = [], recorded.step.encoder.encode
    weight = "hf.encoder.layer.0.attention.self.query.weight"

    def watched(*arguments, **options):
        passes.append(recorded.step.encoder.get_submodule(weight.rpartition(".")[0]).weight)
        return encode(*arguments, **options)

    recorded.step.encoder.encode = watched
    recorded.run(batch)
    assert len(passes) > 5 and {w.dtype for w in passes} == {torch.bfloat16}
    # In the search they are the same numbers outside the graph.
    assert len({w.data_ptr() for w in passes}) == 1
    assert passes[0].requires_grad and passes[-1].requires_grad and not passes[2].requires_grad


def test_the_embedding_layer_stays_wide_on_the_packed_path(tiny_encoder, sentences):
    encoder = tiny_encoder(dtype=torch.float32).eval()
    batch = encoder.pack(sentences)
    exact = encoder.embed(batch)
    with encoder.computing_in(torch.bfloat16):
        assert torch.equal(encoder.embed(batch), exact) and encoder.dtype == torch.bfloat16
        vectors = encoder.encode(exact, batch)
    assert vectors.dtype == torch.float32 and torch.equal(vectors, vectors.bfloat16().float())
    assert encoder.dtype == torch.float32


def test_the_parameters_are_back_after_an_error(tiny_encoder):
    encoder = tiny_encoder(dtype=torch.float32)
    before = dict(encoder.named_parameters())
    with pytest.raises(RuntimeError, match="planted"), encoder.computing_in(torch.bfloat16):
        raise RuntimeError("planted")
    after = dict(encoder.named_parameters())
    assert before.keys() == after.keys() and all(before[name] is after[name] for name in before)


def test_a_shared_weight_is_cast_once_and_gets_one_gradient():
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    pair = torch.nn.Sequential(first, second)
    with CastWeights(pair, torch.bfloat16, lambda name: True).applied():
        assert first.weight is second.weight and first.weight.dtype == torch.bfloat16
        out = pair(torch.ones(2, 4, dtype=torch.bfloat16)).float().sum()
    out.backward()
    assert first.weight.is_leaf and first.weight.grad.dtype == torch.float32


def test_weights_are_cast_in_groups_and_gradients_come_back_as_one_by_one():
    """Of 40 weights one is shared, one is not used and one is frozen; the shared one's gradient is summed first."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(20))
    model[5].weight = model[4].weight
    model[7].bias.requires_grad_(False)
    x, seen = torch.randn(4, 3), []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, arguments=(), options=None):
            seen.append(operation.overloadpacket.__name__)
            return operation(*arguments, **(options or {}))

    def gradients(weights_of):
        states = x.bfloat16()
        for number in (0, 4, 5, 7, 19):
            states = torch.tanh(states @ weights_of(model[number], "weight") + weights_of(model[number], "bias"))
        return torch.autograd.grad(states.float().sum(), used, allow_unused=True)

    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    alone = {id(parameter): parameter.bfloat16() for parameter in model.parameters()}
    expected = gradients(lambda layer, name: alone[id(getattr(layer, name))])
    with Copies():
        cast = CastWeights(model, torch.bfloat16, lambda name: True)
        with cast.applied():
            found = gradients(lambda layer, name: layer._parameters[name])
    # Two groups there and back; x, the last states and their gradient by themselves.
    assert seen.count("_foreach_copy_") == 4 and seen.count("_to_copy") == 3
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == torch.float32 and torch.equal(ours, theirs))
