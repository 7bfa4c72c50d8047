"""Versions of what computed the numbers of a report."""

import importlib.metadata
import platform


def versions(*packages: str) -> dict[str, str | None]:
    """Of fastadv, Python and the libraries that every number depends on, and of more ``packages``."""
    import numpy
    import torch
    import transformers

    from fastadv import __version__

    return {
        "fastadv": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": numpy.__version__,
        **{package: version_of(package) for package in packages},
    }


def version_of(package: str) -> str | None:
    """None where the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
