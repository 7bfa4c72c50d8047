"""The functions of `torch.cuda`, which a build without CUDA lacks or refuses."""

import contextlib
import time

import torch
import torch.cuda

from tests.gpu.device.library import library, num_devices
from tests.gpu.device.watching import tell

NAME = "NVIDIA H200"


def _index(device=None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return library().get_device() if index is None else index


def _set_device(device) -> None:
    index = _index(device)
    if not 0 <= index < num_devices():
        raise RuntimeError("CUDA error: invalid device ordinal")
    library().set_device(index)


def _exchange_device(index: int) -> int:
    before = library().get_device()
    if index >= 0:
        _set_device(index)
    return before


class Event:
    """Over as soon as it is recorded."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        self._is_timed, self._recorded_at_s = enable_timing, None

    def record(self, stream=None):
        self._recorded_at_s = time.perf_counter()

    def query(self):
        return True

    def synchronize(self):
        tell("sync", "Event.synchronize")

    def wait(self, stream=None):
        pass

    def elapsed_time(self, end):
        if not (self._is_timed and end._is_timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'")
        return (end._recorded_at_s - self._recorded_at_s) * 1000


class Stream(torch.Stream):
    """The only stream of a device."""

    cuda_stream = 0

    def __new__(cls, device=None, priority=0, **_):
        cuda = 1
        return super().__new__(cls, stream_id=0, device_index=_index(device), device_type=cuda)

    def synchronize(self):
        tell("sync", "Stream.synchronize")

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def query(self):
        return True


class Properties:
    """Those of an H200, for code that asks for sizes."""

    name = NAME
    major, minor, multi_processor_count, total_memory = 9, 0, 132, 141 * 2**30
    warp_size, max_threads_per_multi_processor, regs_per_multiprocessor = 32, 2048, 65536
    shared_memory_per_block, shared_memory_per_block_optin, L2_cache_size = 49152, 232448, 50 * 2**20
    gcnArchName, is_integrated, uuid = "", False, "pretended"


@contextlib.contextmanager
def _stream(stream):
    yield


def _storage_to(storage, device, non_blocking=False):
    device = torch.device(device)
    if storage.device == device:
        return storage
    return (
        torch.empty(storage.nbytes(), dtype=torch.uint8, device=device).untyped_storage().copy_(storage, non_blocking)
    )


def _storage_clone(storage):
    made = torch.empty(storage.nbytes(), dtype=torch.uint8, device=storage.device)
    return made.untyped_storage().copy_(storage)


_FUNCTIONS = {
    "is_available": lambda: True,
    "device_count": num_devices,
    "_device_count_nvml": num_devices,
    "is_initialized": lambda: True,
    "_lazy_init": lambda: None,
    "init": lambda: None,
    "_is_in_bad_fork": lambda: False,
    "set_device": _set_device,
    "_exchange_device": _exchange_device,
    "_maybe_exchange_device": _exchange_device,
    "current_device": lambda: library().get_device(),
    "synchronize": lambda device=None: tell("sync", "torch.cuda.synchronize"),
    "Event": Event,
    "Stream": Stream,
    "stream": _stream,
    "set_stream": lambda stream: None,
    "current_stream": Stream,
    "default_stream": Stream,
    "is_current_stream_capturing": lambda: False,
    "get_device_name": lambda device=None: NAME,
    "get_device_capability": lambda device=None: (Properties.major, Properties.minor),
    "get_device_properties": lambda device=None: Properties(),
    "can_device_access_peer": lambda device, peer: True,
    "get_arch_list": lambda: ["sm_90"],
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": lambda: True,
    "empty_cache": lambda: None,
    "ipc_collect": lambda: None,
    "memory_allocated": lambda device=None: 0,
    "max_memory_allocated": lambda device=None: 0,
    "memory_reserved": lambda device=None: 0,
    "max_memory_reserved": lambda device=None: 0,
    "memory_stats": lambda device=None: {},
    "mem_get_info": lambda device=None: (Properties.total_memory, Properties.total_memory),
    "reset_peak_memory_stats": lambda device=None: None,
    "reset_max_memory_allocated": lambda device=None: None,
    "reset_max_memory_cached": lambda device=None: None,
    "get_rng_state": lambda device="cuda": torch.ops.pretended_gpu.rng_state(_index(device)),
    "set_rng_state": lambda new_state, device="cuda": torch.ops.pretended_gpu.set_rng_state(_index(device), new_state),
    "get_rng_state_all": lambda: [torch.ops.pretended_gpu.rng_state(i) for i in range(num_devices())],
    "manual_seed": lambda seed: torch.ops.pretended_gpu.seed(_index(), seed),
    "manual_seed_all": lambda seed: [torch.ops.pretended_gpu.seed(i, seed) for i in range(num_devices())] and None,
}


def install() -> None:
    """Replaces them, for the rest of the process."""
    for name, function in _FUNCTIONS.items():
        setattr(torch.cuda, name, function)
        for module in (torch.cuda.random, torch.cuda.memory, torch.cuda.streams):
            if hasattr(module, name):
                setattr(module, name, function)
    torch.cuda.default_generators = tuple(torch.Generator() for _ in range(num_devices()))
    torch.cuda.nvtx.range_push = lambda message: None
    torch.cuda.nvtx.range_pop = lambda: None
    torch.version.cuda = "13.0"
    torch._C._cuda_getCurrentRawStream = lambda device: 0
    torch.accelerator.synchronize = lambda device=None: tell("sync", "torch.accelerator.synchronize")
    # A build without CUDA makes no storages there, by which modules are copied and files are loaded.
    torch.storage._StorageBase.clone = torch.UntypedStorage.clone = _storage_clone
    torch.storage._to = torch._utils._to = _storage_to
    torch.UntypedStorage.cuda = lambda self, device=None, non_blocking=False: _storage_to(
        self, f"cuda:{_index(device)}", non_blocking
    )
