"""Classes of the user's own, named ``my_package.my_module:MyClass`` in a config or on a command line."""

import os
import sys
from importlib import import_module
from typing import Any

from fastadv.errors import UserError

_LONGEST, _LONGEST_REASON = 80, 300
"""characters of a name and of a reason that an error shows"""


def find_class(path: str, base: Any, key: str) -> Any:
    """The class that ``path`` names, a subclass of ``base``; its module may lie in the current folder.

    Args:
        path: ``my_package.my_module:MyClass``.
        key: the config key or flag that ``path`` was given for, which the error names.

    Raises:
        UserError: no such form, a module that does not import, or a class that is no ``base``.
    """
    module_name, colon, class_name = path.partition(":")
    shown = repr(path if len(path) <= _LONGEST else f"{path[: _LONGEST - 4]} ...")
    if not colon:
        raise UserError(f"{key}: {shown} is unknown; your own is named my_package.my_module:My{base.__name__}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        # Last, so that no file of the user's shadows a library.
        sys.path.append(os.getcwd())
    try:
        found = getattr(import_module(module_name), class_name, None)
    except Exception as error:  # whatever the user's module raises while it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        raise UserError(f"{key}: {shown} does not import: {reason}") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{key}: {shown} must name a subclass of fastadv.{base.__name__}, {module_name} has {found!r}")
    return found
