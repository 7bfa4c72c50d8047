"""The one torch.library of this package, `torch.ops.fastadv`. Each op defines itself in its own file."""

from importlib import import_module
from typing import Callable, Optional

import torch

LIBRARY = torch.library.Library("fastadv", "DEF")
TRITON_LAUNCHERS: dict[str, str] = {}
"""op -> "module:function" of this package"""


def define_op(schema: str, fake: Callable, cpu: Optional[Callable], triton: Optional[str] = None) -> None:
    """Registers an op, opaque to torch.compile.

    Args:
        schema: as `torch.library.Library.define` takes it.
        fake: gives empty results of the right shapes, without data.
        cpu: runs on CPU tensors; None where this installation has no fast form there.
        triton: what runs on CUDA tensors, as "module:function" of this package, imported at the first call.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema)
    torch.library.register_fake(f"fastadv::{name}", fake, lib=LIBRARY)
    if cpu is not None:
        LIBRARY.impl(name, cpu, "CPU")
    if triton is not None:
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
