"""The one error a user is meant to read."""


class UserError(ValueError):
    """A mistake in what the user gave. The message is one line: what was given, and what is allowed.

    The command line prints it alone on stderr and exits with status 2; a library user catches it like any ValueError.
    """
