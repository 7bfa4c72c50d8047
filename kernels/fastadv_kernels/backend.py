"""Which form of an op runs: "reference" (plain torch), "native" (the CPU's fast one, C++) or "triton" (GPU).

The reference defines an op; the others are faster forms of it that some ops have. The choice: the call's own
``backend``, else ``set_backend``'s, else ("auto") the best form that can take these tensors. A form that is
named and cannot run raises ``BackendError``, in one line that says what can; nothing falls back silently.
``set_backend("native")`` speaks of the ops that have a native form: the others have the reference alone and
run it. An op gets its forms where it gets what runs them: ``library.define_op`` writes both down, and an op that nobody
registered is an error, not a reference that runs without a word.
"""

import ctypes
import importlib.util
import logging
import os
import platform
from dataclasses import dataclass
from types import ModuleType
from typing import Optional

import torch
from torch import Tensor

BACKENDS = ("auto", "reference", "native", "triton")


class BackendError(RuntimeError):
    """A backend was named that cannot run here. The message is one line."""


@dataclass(frozen=True)
class Form:
    """What a fast form of an op can take."""

    device: str
    dtypes: tuple[torch.dtype, ...]
    norms: tuple[str, ...] = ("linf", "l2", "l1")
    needs_library: bool = False
    """whether it is in the C++ library"""
    has_derivative: bool = False

    def obstacle(self, tensors: tuple[Tensor, ...], norm: Optional[str]) -> Optional[str]:
        """Why these arguments cannot be taken, with what can; None if they can."""
        for tensor in tensors:
            if tensor.device.type != self.device and not (self.device == "cuda" and _cpu_stands_in(tensor)):
                return f"it takes {self.device} tensors, got one on {tensor.device}"
            if tensor.dtype not in self.dtypes:
                return f"it takes {', '.join(str(d) for d in self.dtypes)}, got {tensor.dtype}"
        if norm is not None and norm not in self.norms:
            return f"it takes norm {' or '.join(self.norms)}, got {norm}"
        if not self.has_derivative and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            return "it has no derivative; detach the tensors or use backend reference"
        return None


TRITON_FORM = Form("cuda", (torch.float32, torch.bfloat16, torch.float16))
NATIVE_FORM = Form("cpu", (torch.float32,), needs_library=True)

FORMS: dict[str, dict[str, Form]] = {}
"""op -> name of a backend -> its form, of every op; ``library.define_op`` and ``reference_alone`` write it"""

compiles_without_gpu = False
"""set while kernels are compiled for a GPU that is not there: their launchers then take CPU tensors"""


def reference_alone(op: str) -> None:
    """Registers an op without a fast form."""
    FORMS[op] = {}


def _cpu_stands_in(tensor: Tensor) -> bool:
    """Whether Triton's launchers take a CPU tensor: in its interpreter, or where nothing runs at all."""
    return tensor.device.type == "cpu" and (compiles_without_gpu or os.environ.get("TRITON_INTERPRET") == "1")


_log = logging.getLogger(__name__)
_chosen = "auto"
_said = False


def _load_native() -> Optional[ModuleType]:
    """The C++ library with torch's threads, or None where the package was installed without a compiler."""
    # Looked for before it is imported, so that a library which is there but does not load is an error.
    if importlib.util.find_spec(f"{__package__}._native") is None:
        return None
    from . import _native

    # torch's own thread pool: torch.set_num_threads rules, and no second pool spins beside it.
    address = _address_of_parallel_for(platform.system())
    if address is not None:
        _native.set_parallel_for(address)
    return _native


def _address_of_parallel_for(system: str) -> Optional[int]:
    """Where torch's C function torch_parallel_for lies (torch 2.10 on), or None: the loops then run on one thread."""
    name = {"Windows": "torch_cpu.dll", "Darwin": "libtorch_cpu.dylib"}.get(system, "libtorch_cpu.so")
    try:
        torch_cpu = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", name))
        return ctypes.cast(torch_cpu.torch_parallel_for, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


native_library = _load_native()


def _say_once_that_native_is_missing() -> None:
    global _said
    if not _said and not torch.compiler.is_compiling():
        _said = True
        _log.warning("fastadv_kernels was installed without its C++ library; the slower reference runs instead")


def set_backend(name: str) -> None:
    """Chooses the form for every later call that names none.

    Raises:
        ValueError: not one of ``BACKENDS``.
        BackendError: no form of that backend can run in this installation.
    """
    global _chosen
    if name not in BACKENDS:
        raise ValueError(f"backend is {name!r}; allowed: {', '.join(BACKENDS)}")
    if name == "native" and native_library is None:
        raise BackendError("backend native: the C++ library was not built at install; allowed: auto, reference")
    if name == "triton" and name not in usable_backends():
        raise BackendError(f"backend triton: {_why_no_triton()}; allowed: {', '.join(usable_backends())}")
    _chosen = name


def usable_backends() -> tuple[str, ...]:
    """The names ``set_backend`` accepts here."""
    native = () if native_library is None else ("native",)
    triton = () if _why_no_triton() else ("triton",)
    return ("auto", "reference", *native, *triton)


def _why_no_triton() -> Optional[str]:
    """What keeps Triton's kernels from running in this process, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        return "there is no GPU"
    return None


def resolve(
    op: str, tensors: Tensor | tuple[Tensor, ...], explicit: Optional[str] = None, norm: Optional[str] = None
) -> str:
    """The backend that runs ``op``: "reference", "native" or "triton".

    Args:
        op: a public function's name.
        tensors: the floating-point tensor, or tensors, it works on.
        explicit: the call's own choice; None takes ``set_backend``'s.
        norm: the norm of ops that have one.

    Raises:
        ValueError: an unknown backend, or an op that is not registered.
        BackendError: the backend was named and cannot run.
    """
    if op not in FORMS:
        raise ValueError(f"{op} is not registered: library.define_op registers an op and its forms")
    named = explicit if explicit is not None else _chosen
    if named not in BACKENDS:
        raise ValueError(f"backend is {named!r}; allowed: {', '.join(BACKENDS)}")
    if named == "reference":
        return "reference"
    forms = FORMS[op]
    tensors = (tensors,) if isinstance(tensors, Tensor) else tensors
    if named == "auto":
        for name, form in forms.items():
            # The interpreter is for tests, which name it.
            if form.obstacle(tensors, norm) is None and tensors[0].device.type == form.device:
                if form.needs_library and native_library is None:
                    _say_once_that_native_is_missing()
                elif name != "triton" or _why_no_triton() is None:
                    return name
        return "reference"
    if named not in forms:
        if explicit is None:
            return "reference"
        raise BackendError(
            f"backend {named}: {op} has no such form; allowed: {', '.join(['auto', 'reference', *forms])}"
        )
    if forms[named].needs_library and native_library is None:
        raise BackendError("backend native: the C++ library was not built at install; allowed: auto, reference")
    if named == "triton" and not compiles_without_gpu and _why_no_triton() is not None:
        raise BackendError(f"backend triton: {_why_no_triton()}; allowed: {', '.join(usable_backends())}")
    obstacle = forms[named].obstacle(tensors, norm)
    if obstacle is not None:
        raise BackendError(f"backend {named}: {op} cannot run, {obstacle}")
    return named
