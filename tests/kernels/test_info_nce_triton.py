"""InfoNCE's Triton form: what is registered, and what is refused without a GPU."""

import pytest
import torch

from fastadv_kernels import backend, info_nce, library


def test_what_cuda_runs_is_the_launcher_that_was_compiled_and_interpreted():
    for op, function in (("info_nce", "launch_forward"), ("info_nce_backward", "launch_backward")):
        assert library.TRITON_LAUNCHERS[op] == f"info_nce_triton:{function}"
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"fastadv::{op}", "CUDA")


def test_a_named_triton_without_a_gpu_raises(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(backend.BackendError, match="backend triton: .*; allowed: auto, reference"):
        info_nce(torch.randn(3, 4), torch.randn(3, 4), temperature=0.1, backend="triton")
