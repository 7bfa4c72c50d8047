"""A rank that dies or hangs, in one line on each of the others.

A collective in which another rank takes no part fails in whatever words the backend has for it: gloo's with a file
and a line of its source, within a second of the other's end or after ``engine.timeout_minutes`` of its silence. NCCL's
watchdog ends the process by itself, with words of its own (docs/faults.md).
"""

import functools
import re
from typing import Callable, TypeVar

import torch.distributed as dist

from fastadv.distributed.processes import OtherRankFailed

T = TypeVar("T")

_ENDED = re.compile(
    r"connection (was )?(closed|reset)|connection refused|broken pipe|socket closed|connection lost|remote peer|"
    r"recvvalue failed|failed to recv, got 0 bytes",
    re.IGNORECASE,
)
_SILENT = re.compile(r"timed out|timeout", re.IGNORECASE)
_OF_A_COLLECTIVE = re.compile(r"gloo|nccl|tcpstore|rendezvous|clients joined|process ?group", re.IGNORECASE)


def explain_lost_ranks(fit: Callable[..., T]) -> Callable[..., T]:
    """Wraps ``Trainer.fit``: what a lost rank makes collectives raise becomes `OtherRankFailed`, naming the step."""

    @functools.wraps(fit)
    def explained(trainer, *arguments, **options) -> T:
        try:
            return fit(trainer, *arguments, **options)
        except (RuntimeError, OSError) as error:
            reason = why_lost(error, trainer.config.engine.timeout_minutes)
            if reason is None:
                raise
            step = trainer.position.step
            place = f"after step {step}" if step else "before the end of the first step"
            raise OtherRankFailed(f"{place}: {reason}") from error

    return explained


def why_lost(error: BaseException, timeout_minutes: float) -> str | None:
    """What happened to another rank if ``error`` is a collective's that lost it; None for any other error."""
    if isinstance(error, OtherRankFailed) or not is_of_a_collective(error):
        return None
    # gloo's "Application timeout caused pair closure" is a closed connection by its words, and a silence by its cause.
    if _SILENT.search(str(error)):
        return (
            f"another process did not answer for {timeout_minutes:g} minutes (engine.timeout_minutes); it hangs, or "
            "has more to do than that"
        )
    if _ENDED.search(str(error)):
        return "another process has ended, by a signal or by an error of its own"
    return None


def is_of_a_collective(error: BaseException) -> bool:
    if isinstance(error, (dist.DistError, ConnectionError)):
        return True
    return isinstance(error, RuntimeError) and _OF_A_COLLECTIVE.search(str(error)) is not None
