"""Starts a worker script of this folder as several ranks on this machine: over gloo, or, where ``PRETENDED_GPUS`` is
set, on that many pretended GPUs each (tests/gpu)."""

import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run_ranks(num_ranks: int, script: str, *arguments: str, timeout_s: float = 300) -> None:
    """Runs ``script`` with ``arguments`` as ``num_ranks`` processes; fails with what the first failing rank said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    on_gpus = "PRETENDED_GPUS" in os.environ
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[2]), *sys.path]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_ranks),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cuda" if on_gpus else "cpu",
    }
    started_by = ["-m", "tests.gpu.device.run"] if on_gpus else []
    processes = [
        subprocess.Popen(
            [sys.executable, *started_by, str(HERE / script), *arguments],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(num_ranks)
    ]
    said = []
    try:
        for process in processes:
            said.append(process.communicate(timeout=timeout_s)[0])
    finally:
        for process in processes:
            process.kill()
    for rank, (process, text) in enumerate(zip(processes, said)):
        assert process.returncode == 0, f"rank {rank} of {num_ranks} ended with {process.returncode}:\n{text[-6000:]}"
