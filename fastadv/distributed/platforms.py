"""Where training runs: wherever deepspeed does. Everything else runs without it."""

import importlib.util
import platform

from fastadv.errors import UserError

_WITHOUT_TRAINING = "fastadv encode, evaluate and report, which need no deepspeed"


def require_training_platform(system: str | None = None, has_deepspeed: bool | None = None) -> None:
    """Raises UserError where training cannot run. Looks for deepspeed without importing it, which takes seconds.

    Args:
        system: ``platform.system()`` unless given.
        has_deepspeed: whether the package can be found; looked for unless given.
    """
    if has_deepspeed is None:
        has_deepspeed = importlib.util.find_spec("deepspeed") is not None
    if has_deepspeed:
        return
    system = platform.system() if system is None else system
    if system == "Linux":
        raise UserError(
            f"training needs deepspeed, which is not installed; pip install deepspeed, or {_WITHOUT_TRAINING}"
        )
    name = "macOS" if system == "Darwin" else system or "an unknown platform"
    raise UserError(
        f"training needs deepspeed, which comes with fastadv on Linux alone; on {name}: {_WITHOUT_TRAINING}"
    )
