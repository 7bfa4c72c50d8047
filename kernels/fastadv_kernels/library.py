"""The one torch.library of this package, `torch.ops.fastadv`. Each op defines itself in its own file."""

from importlib import import_module
from typing import Callable, Optional

import torch

from . import backend
from .backend import NATIVE_FORM, TRITON_FORM, Form

LIBRARY = torch.library.Library("fastadv", "DEF")
TRITON_LAUNCHERS: dict[str, str] = {}
"""op -> "module:function" of this package, or of a package anywhere"""


def define_op(
    schema: str,
    fake: Callable,
    native: Optional[Callable] = None,
    triton: Optional[str] = None,
    native_form: Form = NATIVE_FORM,
    triton_form: Form = TRITON_FORM,
) -> None:
    """Registers an op, opaque to torch.compile, with its fast forms: `backend.resolve` then knows each that is given.

    Args:
        schema: as `torch.library.Library.define` takes it; the op is ``torch.ops.fastadv.<name>``.
        fake: gives empty results of the right shapes, without data.
        native: runs on CPU tensors.
        triton: what runs on CUDA tensors, as "module:function", imported at the first call.
        native_form, triton_form: what these take. Where the native form needs the C++ library, and this installation
            has none, the reference runs, as for an op without one.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    torch.library.register_fake(f"fastadv::{name}", fake, lib=LIBRARY)
    forms = backend.FORMS[name] = {}
    if native is not None:
        forms["native"] = native_form
        if not native_form.needs_library or backend.native_library is not None:
            LIBRARY.impl(name, native, "CPU")
    if triton is not None:
        forms["triton"] = triton_form
        TRITON_LAUNCHERS[name] = triton
        LIBRARY.impl(name, lambda *arguments: triton_launcher(name)(*arguments), "CUDA")


def triton_launcher(op: str) -> Callable:
    """The function that launches an op's Triton kernels. Triton is not imported before one is asked for."""
    module, _, function = TRITON_LAUNCHERS[op].partition(":")
    return getattr(import_module(f"{__package__}.{module}"), function)


def run_op(name: str, backend: str, *arguments):
    """Calls the op's fast form: through torch's dispatcher, or Triton's launcher itself where a CPU stands in."""
    if backend == "triton" and arguments[0].device.type != "cuda":
        return triton_launcher(name)(*arguments)
    return getattr(torch.ops.fastadv, name)(*arguments)
