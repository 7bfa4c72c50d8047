"""The compiled library, loaded before torch, which asks for its devices while it is imported."""

import ctypes
import importlib.util
import os
from pathlib import Path

from tests.gpu.device.build import built

_TORCH = Path(importlib.util.find_spec("torch").origin).parent

for _name in ("libc10.so", "libtorch_cpu.so"):
    ctypes.CDLL(str(_TORCH / "lib" / _name), mode=ctypes.RTLD_GLOBAL)

LIBRARY = ctypes.CDLL(str(built(_TORCH)))
NUM_DEVICES = int(os.environ.get("PRETENDED_GPUS", "1"))
LIBRARY.set_num_devices(NUM_DEVICES)
