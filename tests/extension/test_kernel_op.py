"""A kernel op that lives outside the package: one registration gives it a reference, a CPU form, and the choice."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fastadv_kernels import BackendError, resolve, set_backend
from fastadv_kernels.backend import Form, reference_alone
from fastadv_kernels.library import define_op, run_op

CALLS = []


def squash_reference(x, limit):
    return limit * torch.tanh(x / limit)


def _squash_native(x, limit):
    CALLS.append("native")
    return limit * torch.tanh(x / limit)


@pytest.fixture(scope="module", autouse=True)
def squash():
    """Registered once a process: torch keeps an op for good."""
    define_op(
        "test_extension_squash(Tensor x, float limit) -> Tensor",
        lambda x, limit: torch.empty_like(x),
        _squash_native,
        native_form=Form("cpu", (torch.float32,)),
    )

    def squash(x, limit, *, backend=None):
        chosen = resolve("test_extension_squash", x, backend)
        if chosen == "reference":
            return squash_reference(x, limit)
        return run_op("test_extension_squash", chosen, x, limit)

    return squash


@pytest.fixture(autouse=True)
def _no_calls_yet():
    CALLS.clear()
    yield
    set_backend("auto")


class Ops(TorchDispatchMode):
    """The names of the package's ops that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "fastadv":
            self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))


def test_its_cpu_form_is_what_runs(squash):
    x = torch.randn(5, 7)
    with Ops() as ops:
        result = squash(x, 0.5)
    assert ops.names == ["fastadv::test_extension_squash"] and CALLS == ["native"]
    assert torch.equal(result, squash_reference(x, 0.5))
    assert resolve("test_extension_squash", x) == "native"


def test_the_reference_runs_where_it_is_named_or_nothing_else_can(squash):
    x = torch.randn(5, 7)
    for backend, values in (("reference", x), (None, x.double()), (None, x.clone().requires_grad_())):
        squash(values, 0.5, backend=backend)
    set_backend("reference")
    squash(x, 0.5)
    assert CALLS == []


def test_a_form_it_does_not_have_is_refused(squash):
    with pytest.raises(BackendError, match="^backend triton: test_extension_squash has no such form"):
        squash(torch.randn(2), 0.5, backend="triton")
    with pytest.raises(BackendError, match="^backend native: test_extension_squash cannot run, it takes torch.float32"):
        squash(torch.randn(2).double(), 0.5, backend="native")


def test_it_compiles_as_a_whole_and_fits_torch_library(squash):
    x = torch.randn(5, 7)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: squash(2 * x, 0.5) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), squash(2 * x, 0.5) + 1)
    outcome = torch.library.opcheck(torch.ops.fastadv.test_extension_squash.default, (x, 0.5))
    assert set(outcome.values()) == {"SUCCESS"}


def test_an_op_that_nobody_registered_is_no_silent_reference():
    with pytest.raises(ValueError, match="^test_extension_unknown is not registered"):
        resolve("test_extension_unknown", torch.randn(2))
    reference_alone("test_extension_known")
    assert resolve("test_extension_known", torch.randn(2)) == "reference"
