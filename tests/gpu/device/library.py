"""The compiled library, which must be loaded before torch: torch asks for its devices while it is imported."""

import ctypes
import functools
import importlib.util
import os
import sys
from pathlib import Path

from tests.gpu.device.build import built


@functools.cache
def library() -> ctypes.CDLL:
    """The library, which from its first call on is in the process for good.

    Raises:
        ImportError: torch was imported before.
        RuntimeError: it does not compile.
    """
    if "torch" in sys.modules:
        raise ImportError("torch was imported before the pretended GPU; see tests/gpu/device/plugin.py")
    torch_folder = Path(importlib.util.find_spec("torch").origin).parent
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    loaded = ctypes.CDLL(str(built(torch_folder)))
    loaded.set_num_devices(num_devices())
    return loaded


def num_devices() -> int:
    """How many devices the process sees."""
    return int(os.environ.get("PRETENDED_GPUS", "1"))
