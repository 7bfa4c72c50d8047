"""Compiles every Triton kernel for GPUs that are not there, and fails where one spills or cannot fit.

    python -m bench.gpu.kernels_aot          # or: make kernels-aot

The launchers are called as for a GPU, on small CPU tensors, with Triton's driver replaced by one that names a target
and runs nothing: what is compiled is what they launch. Each distinct kernel that ``kernel_calls.CALLS`` reaches, for
the sizes and dtypes below, is compiled for sm_80, sm_90 and gfx942. The gate is its resources: no stack and no local
memory by the cuobjdump that Triton carries, no spilled register and no scratch in AMD's assembly, shared memory
within the target's.
"""

import argparse
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.jit import JITFunction

from bench.gpu.kernel_calls import CALLS, Shape
from fastadv_kernels import backend

SIZES = (384, 768, 1000, 1024)
DTYPES = (torch.float32, torch.bfloat16)
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
SHARED_LIMITS = {"sm_80": 163 * 1024, "sm_90": 227 * 1024, "gfx942": 64 * 1024}
"""bytes of shared memory that one program may have"""


class TargetAlone(DriverBase):
    """A driver of a GPU that is not there."""

    def __init__(self, target: GPUTarget):
        self.target = target

    @classmethod
    def is_active(cls):
        return False

    def map_python_to_cpp_type(self, ty):
        return "void*"

    def get_current_target(self):
        return self.target

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_benchmarker(self):
        raise RuntimeError("nothing runs on a GPU that is not there")

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return 0


@contextmanager
def compiling_for(target: str) -> Iterator[list[tuple[str, Any]]]:
    """Launches compile for ``target`` and run nothing. Gives the list of what was launched, as (name, kernel)."""
    launched, functions, original = [], set(), JITFunction.run

    def run(self, *args, grid, warmup, **options):
        if self not in functions:
            # What it was compiled to for another target is not asked for again.
            self.device_caches.clear()
            functions.add(self)
        kernel = original(self, *args, grid=grid, warmup=True, **options)
        launched.append((self.fn.__name__, kernel))
        return kernel

    JITFunction.run = run
    # reset_active() would look for the machine's own driver, which need not have one.
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(TargetAlone(TARGETS[target]))
    backend.compiles_without_gpu = True
    try:
        yield launched
    finally:
        JITFunction.run = original
        triton.runtime.driver._active = before
        backend.compiles_without_gpu = False
        for function in functions:
            function.device_caches.clear()


@dataclass(frozen=True)
class Compiled:
    """What one kernel takes on one target."""

    op: str
    target: str
    kernel: str
    hash: str
    label: str
    registers: int
    """a thread's"""
    spilled_bytes: int
    shared_bytes: int

    def fault(self) -> str | None:
        if self.spilled_bytes:
            return f"{self.spilled_bytes} bytes of stack, local or scratch memory"
        if self.shared_bytes > SHARED_LIMITS[self.target]:
            return f"{self.shared_bytes} bytes of shared memory; allowed: {SHARED_LIMITS[self.target]}"
        return None


def nvidia_resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = (re.findall(rf"\b{name}:(\d+)", usage) for name in ("REG", "STACK", "LOCAL"))
    if not registers or not stack or not local:
        raise RuntimeError(f"cuobjdump reported no resources: {usage!r}")
    return max(map(int, registers)), sum(map(int, stack + local))


def amd_resources(assembly: str) -> tuple[int, int]:
    """Registers, and bytes of spilled registers and scratch memory."""

    def read(name):
        (value,) = re.findall(rf"\.{name}:\s+(\d+)", assembly)
        return int(value)

    return read("vgpr_count"), 4 * read("vgpr_spill_count") + read("private_segment_fixed_size")


def read_resources(op: str, target: str, name: str, label: str, kernel: Any) -> Compiled:
    is_amd = target.startswith("gfx")
    resources = amd_resources(kernel.asm["amdgcn"]) if is_amd else nvidia_resources(kernel.asm["cubin"])
    return Compiled(op, target, name, kernel.hash, label, *resources, kernel.metadata.shared)


def compile_op(task: tuple[str, str, torch.dtype]) -> list[Compiled]:
    """The distinct kernels of one op, target and dtype."""
    op, target, dtype = task
    found = {}
    with compiling_for(target) as launched:
        for size in SIZES:
            for call in CALLS[op](Shape(2, 2, size, dtype)):
                launched.clear()
                call.run()
                for name, kernel in launched:
                    if (name, kernel.hash) not in found:
                        label = f"{call.label} {size} {str(dtype).removeprefix('torch.')}".strip()
                        found[name, kernel.hash] = read_resources(op, target, name, label, kernel)
    return list(found.values())


def report(compiled: list[Compiled], elapsed_s: float, cpu_s: float) -> str:
    """A line an op and target, the faults, and the whole."""
    groups = defaultdict(list)
    for kernel in compiled:
        groups[kernel.op, kernel.target].append(kernel)
    lines = [f"{'op':16} {'target':8} {'kernels':>7} {'registers':>10} {'shared bytes':>13}"]
    for (op, target), kernels in sorted(groups.items()):
        registers = f"{min(k.registers for k in kernels)}-{max(k.registers for k in kernels)}"
        lines.append(f"{op:16} {target:8} {len(kernels):7} {registers:>10} {max(k.shared_bytes for k in kernels):13}")
    faulty = [kernel for kernel in compiled if kernel.fault()]
    lines += [f"{k.op} {k.target} {k.kernel} [{k.label}]: {k.fault()}" for k in faulty]
    time_taken = f"{elapsed_s:.0f} s ({cpu_s:.0f} s of CPU)"
    lines.append(f"{len(compiled)} kernels, {len(faulty)} faulty, {time_taken}, triton {triton.__version__}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", nargs="+", choices=CALLS, default=list(CALLS), help="default: all")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help="default: all")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, 2))
    options = parser.parse_args()
    tasks = [(op, target, dtype) for op in options.ops for target in options.targets for dtype in DTYPES]
    start = time.perf_counter()
    # Torch's and LLVM's state of a forked process is not to be trusted.
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        compiled = [kernel for kernels in pool.imap_unordered(compile_op, tasks) for kernel in kernels]
        pool.close()
        pool.join()
    print(report(compiled, time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime))
    sys.exit(any(kernel.fault() for kernel in compiled))


if __name__ == "__main__":
    main()
