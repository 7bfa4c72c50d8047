"""Runs a script on pretended GPUs: ``python -m tests.gpu.device.run SCRIPT ARGUMENTS``."""

import runpy
import sys

if __name__ == "__main__":
    import tests.gpu.device.plugin  # noqa: F401
    from tests.gpu.device.watching import num_operations

    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
    if not num_operations():
        raise RuntimeError("no operation ran on the pretended GPU")
