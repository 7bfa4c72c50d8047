"""The CPU's blocked form of InfoNCE: which path ran, its error beside the reference's, its memory, torch.compile."""

import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fastadv_kernels import info_nce, info_nce_blocked
from tests.kernels.conftest import Calls, assert_info_nce_is_as_exact_as_torch
from tests.kernels.conftest import info_nce_case as make_case

COMBINATIONS = ("sum", "mean", "separate")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that a few rows make several, the last of them ragged."""
    monkeypatch.setattr(info_nce_blocked, "ROWS", 4)
    monkeypatch.setattr(info_nce_blocked, "COLUMNS", 5)


def assert_as_exact_as_torch(vectors, options, dtype):
    assert_info_nce_is_as_exact_as_torch(
        vectors, options, dtype, "native", lambda value: (0.0, torch.finfo(value.dtype).tiny * math.sqrt(value.numel()))
    )


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("multi_positive", COMBINATIONS)
@pytest.mark.parametrize("has_ids", [False, True])
@pytest.mark.parametrize("num_hard", [0, 3, 17])
def test_error_is_the_references_at_most_twice(
    small_blocks, poisoned_memory, reduction, multi_positive, has_ids, num_hard
):
    options = {"multi_positive": multi_positive, "reduction": reduction, "row_weight": torch.rand(11)}
    vectors, options = make_case(has_ids=has_ids, num_hard=num_hard, **options)
    for dtype in DTYPES:
        assert_as_exact_as_torch(vectors, options, dtype)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("num_keys", [1024, 1025])
def test_whole_blocks_and_one_more(reduction, num_keys):
    vectors, options = make_case(513, num_keys, 1, 33, has_ids=True, reduction=reduction)
    assert_as_exact_as_torch(vectors, options, torch.float32)


@given(
    num_rows=st.integers(1, 9),
    more_keys=st.integers(0, 9),
    num_sets=st.integers(1, 3),
    size=st.sampled_from([1, 2, 7, 16, 33]),
    temperature=st.sampled_from([0.01, 0.05, 1.0]),
    multi_positive=st.sampled_from(COMBINATIONS),
    reduction=st.sampled_from(["none", "mean", "sum"]),
    num_hard=st.integers(0, 4),
    has_ids=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_any_shape_and_option(num_rows, more_keys, num_sets, size, num_hard, has_ids, seed, **options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(info_nce_blocked, "ROWS", 4)
        patch.setattr(info_nce_blocked, "COLUMNS", 5)
        vectors, options = make_case(num_rows, num_rows + more_keys, num_sets, size, num_hard, has_ids, seed, **options)
        assert_as_exact_as_torch(vectors, options, torch.float32)


def test_which_path_runs():
    vectors, options = make_case()
    query, keys = (x.float().requires_grad_() for x in vectors)

    def called(**changes):
        with Calls() as calls:
            loss = info_nce(query, keys, **{**options, **changes})
            if loss.requires_grad:
                loss.sum().backward()
        return calls.names

    assert called() == ["info_nce_total", "info_nce_total_backward"]
    assert called(backend="native") == ["info_nce_total", "info_nce_total_backward"]
    assert called(reduction="none") == ["info_nce", "info_nce_backward"]
    with torch.no_grad():
        assert called() == ["info_nce"]
    assert called(backend="reference") == []
    query, keys = (x.double().requires_grad_() for x in (query.detach(), keys.detach()))
    assert called() == []


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_only_the_gradients_asked_for_are_computed(monkeypatch, needed, reduction):
    vectors, options = make_case(num_hard=4, reduction=reduction)
    inputs = [x.float().requires_grad_(number in needed) for number, x in enumerate(vectors)]
    products = []
    addmm = torch.Tensor.addmm_
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda *args, **kw: products.append(1) or addmm(*args, **kw))
    loss = info_nce(*inputs[:2], hard_negatives=inputs[2], **options)
    grads = torch.autograd.grad(loss.sum(), [inputs[number] for number in needed])
    # Three tiles: two key sets and the hard negatives. Query needs all, keys theirs.
    assert len(products) == sum({0: 3, 1: 2, 2: 1}[number] for number in needed)
    all_inputs = [x.detach().requires_grad_() for x in inputs]
    loss = info_nce(*all_inputs[:2], hard_negatives=all_inputs[2], backend="reference", **options)
    expected = torch.autograd.grad(loss.sum(), all_inputs)
    for number, grad in zip(needed, grads, strict=True):
        torch.testing.assert_close(grad, expected[number], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_weights_of_rows_have_a_gradient(reduction):
    vectors, options = make_case(reduction=reduction)
    query, keys = (x.float().requires_grad_() for x in vectors)
    weight = torch.rand(11, requires_grad=True)
    upstream = torch.randn(11 if reduction == "none" else ())
    slopes = [
        torch.autograd.grad(info_nce(query, keys, row_weight=weight, backend=b, **options), weight, upstream)[0]
        for b in ("native", "reference")
    ]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_backward_twice_gives_the_same_and_a_second_derivative_raises(reduction):
    vectors, options = make_case(reduction=reduction)
    query, keys = (x.float().requires_grad_() for x in vectors)
    loss = info_nce(query, keys, **options).sum()
    first = torch.autograd.grad(loss * 3, (query, keys), retain_graph=True)
    second = torch.autograd.grad(loss * 3, (query, keys), create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="info_nce: its fast forms have no second derivative; use backend reference"):
        torch.autograd.grad(second[0].square().sum(), query)


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_a_bad_query_spoils_its_own_row_and_the_keys(small_blocks, reduction):
    vectors, options = make_case(has_ids=True, reduction=reduction)
    query, keys = (x.float().requires_grad_() for x in vectors)
    clean = torch.autograd.grad(info_nce(query, keys, **options).sum(), (query, keys))
    losses = info_nce(query, keys, **{**options, "reduction": "none"})
    with torch.no_grad():
        query[5, 2] = math.nan
    others = torch.arange(11) != 5
    spoilt = info_nce(query, keys, **{**options, "reduction": "none"})
    assert torch.isnan(spoilt[5]) and torch.equal(spoilt[others], losses[others])
    grad_query, grad_keys = torch.autograd.grad(info_nce(query, keys, **options).sum(), (query, keys))
    assert torch.isnan(grad_query[5]).all() and torch.equal(grad_query[others], clean[0][others])
    # A product over all rows adds up every key's gradient, as it does in plain torch; a key of zeros has none.
    is_zero = (keys == 0).all(dim=2)
    assert torch.isnan(grad_keys[~is_zero]).all() and (grad_keys[is_zero] == 0).all()


def test_strided_inputs():
    vectors, options = make_case(size=14)
    query, keys = vectors[0].float()[:, ::2], vectors[1].float().transpose(0, 1).contiguous().transpose(0, 1)[..., ::2]
    for reduction in ("none", "mean"):
        options["reduction"] = reduction
        expected = info_nce(query.contiguous(), keys.contiguous(), **options)
        assert torch.equal(info_nce(query, keys, **options), expected)


@pytest.mark.parametrize("num_hard", [0, 5])
def test_all_ids_equal_leaves_nothing(small_blocks, num_hard):
    vectors, options = make_case(num_hard=num_hard)
    options.update(query_ids=torch.zeros(11, dtype=torch.int64), key_ids=torch.zeros(17, dtype=torch.int32))
    if num_hard:
        options["hard_negative_ids"] = torch.zeros(num_hard, dtype=torch.int64)
    inputs = [x.float().requires_grad_() for x in vectors]
    loss = info_nce(*inputs[:2], hard_negatives=inputs[2] if num_hard else None, **options)
    assert loss == 0
    assert all((grad == 0).all() for grad in torch.autograd.grad(loss, inputs))


def test_autocast_does_not_reach_the_products():
    vectors, options = make_case(size=64)
    query, keys = (x.float() for x in vectors)
    expected = info_nce(query, keys, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(info_nce(query, keys, **options), expected)


def op_arguments(num_hard):
    vectors, options = make_case(num_hard=num_hard, has_ids=True)
    query, keys, *hard = (x.float().requires_grad_() for x in vectors)
    ids = options["query_ids"], options["key_ids"], options.get("hard_negative_ids")
    return query, keys, hard[0] if hard else None, *ids, 0.05, 3, "separate", 1.7, 1.0


@pytest.mark.parametrize("num_hard", [0, 3])
def test_opcheck(num_hard):
    arguments = op_arguments(num_hard)
    query, keys, hard = arguments[:3]
    needs = True, True, num_hard > 0
    ops = torch.ops.fastadv
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in arguments]
    loss, negative = ops.info_nce(*detached)
    total = ops.info_nce_total(torch.rand(11), *detached, *needs)
    for op, example in (
        (ops.info_nce, arguments),
        (ops.info_nce_total, (torch.rand(11, requires_grad=True), *arguments, *needs)),
        (ops.info_nce_backward, (torch.rand_like(loss), negative, *detached, *needs)),
        (ops.info_nce_total_backward, (total[0], *total[2:], *detached[:3])),
    ):
        outcome = torch.library.opcheck(op.default, example)
        assert set(outcome.values()) == {"SUCCESS"}, op


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_compile_takes_the_whole_graph(reduction):
    vectors, options = make_case(has_ids=True, reduction=reduction)
    query, keys = (x.float().requires_grad_() for x in vectors)

    def step(query, keys):
        return info_nce(2 * query, keys, **options).sum() + 1

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(query, keys), step(query, keys))
    grads = torch.autograd.grad(compiled(query, keys), (query, keys))
    for grad, expected in zip(grads, torch.autograd.grad(step(query, keys), (query, keys)), strict=True):
        assert torch.equal(grad, expected)


class Allocations(TorchDispatchMode):
    """The most bytes that lived at a time of what was allocated, inside the package's ops too."""

    FORMS = {
        "fastadv::info_nce": info_nce_blocked.forward,
        "fastadv::info_nce_backward": info_nce_blocked.backward,
        "fastadv::info_nce_total": info_nce_blocked.total,
    }

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in self.FORMS:
            with self:
                return self.FORMS[func._schema.name](*args)
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes():
                self._hold(tensor)
        self.peak = max(self.peak, sum(size for size, _ in self.alive.values()))
        return result

    def _hold(self, tensor):
        storage = tensor.untyped_storage()
        size, holders = self.alive.get(storage.data_ptr(), (storage.nbytes(), 0))
        self.alive[storage.data_ptr()] = size, holders + 1
        weakref.finalize(tensor, self._release, storage.data_ptr())

    def _release(self, place):
        size, holders = self.alive.pop(place)
        if holders > 1:
            self.alive[place] = size, holders - 1


@pytest.mark.parametrize(("reduction", "most_mib"), [("none", 8), ("mean", 24), ("reference", None)])
def test_the_matrix_of_logits_never_exists(reduction, most_mib):
    """It has 64 MiB, a tile 4 MiB, all tiles of a block of rows 16 MiB. The reference shows that it would be seen."""
    query, keys = (torch.randn(4096, 16, requires_grad=True) for _ in range(2))
    options = {"backend": "reference"} if reduction == "reference" else {"reduction": reduction}
    with Allocations() as allocations:
        info_nce(query, keys, temperature=0.05, **options).sum().backward()
    if most_mib is None:
        assert allocations.peak > 64 * 2**20
    else:
        assert 4 * 2**20 < allocations.peak < most_mib * 2**20
