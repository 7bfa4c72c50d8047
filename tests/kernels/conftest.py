"""Packed batches for the kernels' tests."""

import os

import pytest
import torch


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
