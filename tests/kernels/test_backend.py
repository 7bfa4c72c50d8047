"""The choice of a backend: a named one runs or raises, and nothing falls back silently."""

import logging
import platform

import pytest
import torch

from fastadv_kernels import backend, resolve, row_norm, set_backend, token_update

X = torch.zeros(3, 4)
OFFSETS = torch.tensor([0, 1, 3], dtype=torch.int32)


@pytest.fixture(autouse=True)
def _automatic_again():
    yield
    set_backend("auto")


@pytest.fixture
def without_native(monkeypatch):
    monkeypatch.setattr(backend, "native_library", None)
    monkeypatch.setattr(backend, "_said", False)


def test_automatic_takes_native_where_it_can(native):
    assert resolve("token_update", X, norm="l2") == "native"
    assert resolve("token_update", X, norm="l1") == "native"
    assert resolve("token_update", X.double(), norm="l2") == "reference"
    assert resolve("token_update", (X, X.bfloat16()), norm="l2") == "reference"
    assert resolve("token_update", X.to("meta"), norm="l2") == "reference"
    assert resolve("row_norm", X, norm="l2") == "reference"
    needs_grad = X.clone().requires_grad_()
    assert resolve("token_update", needs_grad, norm="l2") == "reference"
    with torch.no_grad():
        assert resolve("token_update", needs_grad, norm="l2") == "native"


def test_a_call_overrules_the_setting_and_the_setting_overrules_automatic(native):
    set_backend("reference")
    assert resolve("token_update", X, norm="l2") == "reference"
    assert resolve("token_update", X, "native", norm="l2") == "native"
    set_backend("native")
    assert resolve("token_update", X, norm="l2") == "native"
    # An op without a native form has its reference alone.
    assert resolve("row_norm", X) == "reference"


@pytest.mark.parametrize(
    ("eta", "norm", "reason"),
    [
        (X.double(), "l2", "it takes torch.float32, got torch.float64"),
        (X.clone().requires_grad_(), "l2", "it has no derivative"),
    ],
    ids=["dtype", "grad"],
)
def test_a_named_backend_that_cannot_run_says_what_can(native, eta, norm, reason):
    with pytest.raises(backend.BackendError, match=f"backend native: token_update cannot run, {reason}"):
        token_update(eta, eta.detach(), OFFSETS, 0.1, 0.1, norm, backend="native")
    set_backend("native")
    with pytest.raises(backend.BackendError, match=reason):
        token_update(eta, eta.detach(), OFFSETS, 0.1, 0.1, norm)


def test_a_form_may_be_limited_to_some_norms(native, monkeypatch):
    form = backend.Form("cpu", (torch.float32,), ("linf", "l2"), needs_library=True)
    monkeypatch.setitem(backend.FORMS, "token_update", {"native": form})
    assert resolve("token_update", X, norm="l2") == "native"
    assert resolve("token_update", X, norm="l1") == "reference"
    with pytest.raises(backend.BackendError, match="it takes norm linf or l2, got l1"):
        resolve("token_update", X, "native", norm="l1")


def test_names_that_are_none():
    with pytest.raises(ValueError, match="backend is 'cuda'; allowed: auto, reference, native, triton"):
        set_backend("cuda")
    with pytest.raises(ValueError, match="backend is 'cuda'"):
        row_norm(X, "l2", backend="cuda")
    with pytest.raises(
        backend.BackendError, match="backend triton: row_norm has no such form; allowed: auto, reference"
    ):
        row_norm(X, "l2", backend="triton")
    with pytest.raises(backend.BackendError, match="backend triton: .*; allowed: auto, ref"):
        set_backend("triton")


def test_without_the_library_the_reference_runs_and_says_so_once(without_native, caplog):
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert resolve("token_update", X, norm="l2") == "reference"
            token_update(X, X, OFFSETS, 0.1, 0.1, "l2")
    assert [record.getMessage() for record in caplog.records] == [
        "fastadv_kernels was installed without its C++ library; the slower reference runs instead"
    ]
    for call in (
        lambda: set_backend("native"),
        lambda: token_update(X, X, OFFSETS, 0.1, 0.1, "l2", backend="native"),
    ):
        with pytest.raises(backend.BackendError, match="^backend native: the C\\+\\+ library was not built") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_where_torch_s_threads_are_not_found_the_loops_do_without():
    elsewhere = "Linux" if platform.system() == "Windows" else "Windows"
    assert backend._address_of_parallel_for(platform.system())
    assert backend._address_of_parallel_for(elsewhere) is None
