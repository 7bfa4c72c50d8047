"""Classes of the user's own, named ``my_package.my_module:MyClass`` in a config or on a command line."""

from importlib import import_module
from typing import Any

from fastadv.errors import UserError


def find_class(path: str, base: Any, key: str) -> Any:
    """The class that ``path`` names, a subclass of ``base``.

    Args:
        path: ``my_package.my_module:MyClass``.
        key: the config key or flag that ``path`` was given for, which the error names.

    Raises:
        UserError: no such form, a module that does not import, or a class that is no ``base``.
    """
    module_name, colon, class_name = path.partition(":")
    if not colon:
        raise UserError(f"{key}: {path!r} is unknown; your own is named my_package.my_module:My{base.__name__}")
    try:
        found = getattr(import_module(module_name), class_name, None)
    except Exception as error:  # whatever the user's module raises while it is imported
        raise UserError(
            f"{key}: {path!r} does not import: {type(error).__name__}: {error}".replace("\n", " ")
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{key}: {path!r} must name a subclass of fastadv.{base.__name__}, {module_name} has {found!r}")
    return found
