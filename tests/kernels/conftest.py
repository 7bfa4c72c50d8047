"""Packed batches for the kernels' tests."""

import os

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastadv_kernels import info_nce


def make_packed(lengths, embedding_size, seed=0, dtype=torch.float64, scale=1.0):
    """``cu_seqlens`` of sentences of the given lengths, and random perturbation and gradient for them."""
    generator = torch.Generator().manual_seed(seed)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    shape = (sum(lengths), embedding_size)
    perturbation = torch.randn(shape, generator=generator, dtype=torch.float64) * scale
    # Tokens of very different sizes, so that a norm over the wrong tokens shows.
    sizes = torch.randn(shape[0], 1, generator=generator, dtype=torch.float64).exp()
    grad = torch.randn(shape, generator=generator, dtype=torch.float64) * sizes
    return cu_seqlens, perturbation.to(dtype), grad.to(dtype)


@pytest.fixture(scope="session")
def packed():
    return make_packed


@pytest.fixture
def native():
    """The C++ library. Without it, tests of it are skipped; with FASTADV_REQUIRE_NATIVE (in CI) they fail."""
    from fastadv_kernels import backend

    if backend.native_library is None:
        reason = "fastadv_kernels._native is not built; `make venv` builds it"
        pytest.fail(reason) if os.environ.get("FASTADV_REQUIRE_NATIVE") else pytest.skip(reason)
    yield backend.native_library
    backend.set_backend("auto")


@pytest.fixture
def poisoned_memory():
    """Fresh memory holds NaN, so that an element nobody writes fails the test."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    assert torch.isnan(torch.empty(3)).all()
    yield
    torch.use_deterministic_algorithms(False)


class Calls(TorchDispatchMode):
    """The package's ops that are called inside the block, by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fastadv":
            self.names.append(func._schema.name.removeprefix("fastadv::"))
        return func(*args, **(kwargs or {}))


def assert_within_twice_the_references_error(result, exact, plain, floor):
    """The references in float64 and in the dtype of ``result``; ``floor`` is relative to the largest result."""
    allowed = 2 * (plain.double() - exact).abs().max() + floor * exact.abs().max()
    assert (result.double() - exact).abs().max() <= allowed


def info_nce_case(num_rows=11, num_keys=17, num_sets=2, size=7, num_hard=0, has_ids=False, seed=0, **options):
    """Vectors and options; a query and a key of zeros among them, a row and its own key nearly parallel."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def ids(length):
        return torch.randint(6, (length,), generator=generator)

    row_offset = min(3, num_keys - num_rows)
    query, keys = randn(num_rows, size), randn(num_sets, num_keys, size)
    keys[:, row_offset] = query[0] + 0.1 * randn(num_sets, size)
    if num_rows > 2:
        query[1] = 0
        keys[0, -1] = 0
    vectors = [query, keys] + ([randn(num_hard, size)] if num_hard else [])
    options = {"temperature": 0.05, "row_offset": row_offset, **options}
    if num_hard:
        options["hard_negative_weight"] = 1.7
        if num_hard == num_keys:
            options["own_hard_negative_weight"] = 0.4
    if has_ids:
        options.update(query_ids=ids(num_rows), key_ids=ids(num_keys))
        if num_hard:
            options["hard_negative_ids"] = ids(num_hard)
    return vectors, options


def loss_and_gradients(vectors, options, dtype, computed_in, backend, upstream):
    """InfoNCE's loss and its gradients by all vectors, these rounded to ``dtype`` and computed in another."""
    inputs = [x.to(dtype).to(computed_in).requires_grad_() for x in vectors]
    hard = inputs[2] if len(inputs) == 3 else None
    loss = info_nce(*inputs[:2], hard_negatives=hard, backend=backend, **options)
    return [loss.detach(), *torch.autograd.grad(loss, inputs, upstream.to(loss.dtype).expand_as(loss))]


def assert_info_nce_is_as_exact_as_torch(vectors, options, dtype, backend, floor_of):
    """``floor_of`` a value: what it may be off by besides, relative to the whole, and absolutely."""
    upstream = torch.randn(len(vectors[0]) if options.get("reduction") == "none" else (), dtype=torch.float64)
    exact, plain, ours = (
        loss_and_gradients(vectors, options, dtype, computed_in, form, upstream)
        for computed_in, form in ((torch.float64, "reference"), (dtype, "reference"), (dtype, backend))
    )
    for value, other, expected in zip(ours, plain, exact, strict=True):
        assert value.dtype == other.dtype and value.shape == other.shape
        # A logit of size 1 / temperature rounds to that many units, and what hangs on it with it.
        floor = torch.finfo(torch.float32).eps * (4 + 1 / options["temperature"])
        relative, absolute = (0.0, 0.0) if value.dtype == torch.float32 else floor_of(value)
        allowed = 2 * (other.double() - expected).norm() + (floor + relative) * (expected.norm() + 1e-6) + absolute
        assert (value.double() - expected).norm() <= allowed
