"""Passes whose activations are not kept: the backward makes them again, under the same dropout masks."""

from contextlib import AbstractContextManager, nullcontext
from typing import Callable, Optional, TypeVar

from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

T = TypeVar("T")


def recomputed(
    function: Callable[..., T], *arguments, inside: Optional[Callable[[], AbstractContextManager]] = None
) -> T:
    """``function(*arguments)``, of whose graph only arguments and results are kept.

    The backward runs it once more, random numbers included. It is one graph all the same: each parameter's gradient
    arrives once, summed over everything that used it, which is what ZeRO's reduction counts on.

    Args:
        inside: makes the context in which the second run finds what the first one found around it.
    """

    def contexts():
        return nullcontext(), nullcontext() if inside is None else inside()

    # To its end, since ZeRO stage 3 counts on every module that was entered being left.
    with set_checkpoint_early_stop(False):
        return checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)
