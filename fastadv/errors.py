"""The errors a user is meant to read."""

import sys


class UserError(ValueError):
    """A mistake in what the user gave. The message is one line: what was given, and what is allowed.

    The command line prints it alone on stderr and exits with status 2; a library user catches it like any ValueError.
    """


class SaveFailed(RuntimeError):
    """A file of a run could not be written. The message is one line: which, why, and what is left to go on from.

    The command line prints it alone on stderr and exits with status 1: the command was right.
    """


def require_docstrings() -> None:
    """UserError where Python runs without docstrings, which transformers reads as it defines its models."""
    if sys.flags.optimize > 1:
        raise UserError("PYTHONOPTIMIZE = 2 (python -OO): expected 0 or 1, for transformers needs docstrings")
