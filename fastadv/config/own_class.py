"""Classes and functions of the user's own, named ``my_package.my_module:MyClass`` in a config or on a command line."""

import os
import sys
from importlib import import_module
from typing import Any, Callable

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
    if ":" not in path:
        raise UserError(f"{key}: {_shown(path)} is unknown; your own is named my_package.my_module:My{base.__name__}")
    found, module_name = _imported(path, key)
    if not (isinstance(found, type) and issubclass(found, base)):
        wanted = f"must name a subclass of fastadv.{base.__name__}, {module_name} has {found!r}"
        raise UserError(f"{key}: {_shown(path)} {wanted}")
    return found


def find_function(path: str, key: str) -> Callable[..., Any]:
    """The function that ``path``, ``my_package.my_module:function``, names; otherwise as `find_class`."""
    found, module_name = _imported(path, key)
    if not callable(found):
        raise UserError(f"{key}: {_shown(path)} must name a function, {module_name} has {found!r}")
    return found


def _imported(path: str, key: str) -> tuple[Any, str]:
    """What ``path`` names, None where its module has no such name; and the module's name."""
    module_name, _, name = path.partition(":")
    if os.getcwd() not in sys.path and "" not in sys.path:
        # Last, so that no file of the user's shadows a library.
        sys.path.append(os.getcwd())
    try:
        return getattr(import_module(module_name), name, None), module_name
    except Exception as error:  # whatever the user's module raises while it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_REASON]
        raise UserError(f"{key}: {_shown(path)} does not import: {reason}") from error


def _shown(path: str) -> str:
    return repr(path if len(path) <= _LONGEST else f"{path[: _LONGEST - 4]} ...")
