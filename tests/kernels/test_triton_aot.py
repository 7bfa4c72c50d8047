"""What `make kernels-aot` compiles is what the ops launch, on a machine without a GPU."""

import pytest
import torch

from fastadv_kernels import backend
from fastadv_kernels.library import TRITON_LAUNCHERS, triton_launcher

pytest.importorskip("triton")

from bench.gpu import kernels_aot  # noqa: E402
from bench.gpu.kernel_calls import CALLS, Shape  # noqa: E402

SHAPE = Shape(2, 2, 384, torch.float32)


def launched_by(run, *arguments):
    with kernels_aot.compiling_for("sm_90") as launched:
        run(*arguments)
    return {(name, kernel.hash) for name, kernel in launched}


@pytest.mark.parametrize("op", CALLS)
def test_each_op_has_calls_that_launch(op):
    call = next(iter(CALLS[op](SHAPE)))
    first = launched_by(call.run)
    assert first
    # The same call is the same kernel: what is counted is distinct kernels, not launches.
    assert launched_by(call.run) == first


def test_every_registered_launcher_is_compiled_ahead():
    assert set(TRITON_LAUNCHERS) <= set(CALLS)
    for op in TRITON_LAUNCHERS:
        call = next(iter(CALLS[op](SHAPE)))
        assert call.launcher == TRITON_LAUNCHERS[op]
        # define_op gives the CUDA key what triton_launcher finds, and nothing else.
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fastadv::{op}", "CUDA")
        assert callable(triton_launcher(op))


@pytest.mark.parametrize("op", [op for op in CALLS if op in TRITON_LAUNCHERS])
def test_the_public_op_launches_a_kernel_of_the_list(op):
    call = next(iter(CALLS[op](SHAPE)))
    known = set().union(*(launched_by(c.run) for c in CALLS[op](SHAPE)))
    launched = launched_by(call.run_public, "triton")
    assert launched and launched <= known
    assert not backend.compiles_without_gpu


def test_a_spill_and_too_much_shared_memory_are_faults():
    def compiled(**resources):
        return kernels_aot.Compiled("op", "sm_90", "kernel", "hash", "label", **resources)

    assert compiled(registers=32, spilled_bytes=0, shared_bytes=1024).fault() is None
    assert "8 bytes of stack" in compiled(registers=32, spilled_bytes=8, shared_bytes=0).fault()
    assert "allowed: 232448" in compiled(registers=32, spilled_bytes=0, shared_bytes=232449).fault()


def test_resources_are_read_from_what_the_compilers_write():
    assembly = ".vgpr_count:     58\n.vgpr_spill_count: 3\n.private_segment_fixed_size: 16\n"
    assert kernels_aot.amd_resources(assembly) == (58, 28)
    call = next(iter(CALLS["mix_chains"](SHAPE)))
    with kernels_aot.compiling_for("sm_90") as launched:
        call.run()
    registers, spilled = kernels_aot.nvidia_resources(launched[0][1].asm["cubin"])
    assert 8 <= registers <= 255 and spilled == 0
