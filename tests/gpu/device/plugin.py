"""A CUDA device of host memory, for a torch without CUDA. Importing it changes the process for good.

It must come before torch: ``python -m pytest -p tests.gpu.device.plugin``, or the first import of a worker. Tensors on
it say cuda:0 and are computed by the CPU's kernels; tensors of two devices are refused as CUDA refuses them;
operations, waits of the host and copies are counted (`watching.py`); the backend "nccl" is gloo and refuses what NCCL
refuses (`nccl.py`). Fresh memory is NaN. It shows what a program asks of a GPU, never how fast one is.

``PRETENDED_GPUS`` is how many devices the process sees; 1 where it is not set.
"""

from tests.gpu.device.library import library

library()

import fastadv_kernels.backend  # noqa: E402
from tests.gpu.device import nccl, torch_cuda, watching  # noqa: E402

torch_cuda.install()
nccl.install()
# The driver that Triton's kernels would need is not there, and its interpreter is slow: the plain forms run.
fastadv_kernels.backend._why_no_triton = lambda: "the GPU is pretended"


def pytest_sessionfinish(session):
    """Tests that pass without having touched the device show nothing."""
    if session.testscollected and not watching.num_operations():
        raise RuntimeError("no operation ran on the pretended GPU")
