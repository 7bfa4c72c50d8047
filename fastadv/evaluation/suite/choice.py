"""Which parts an evaluation has: those that were named, or all; one that cannot even be set up says why."""

from importlib import import_module
from typing import List, Tuple

from fastadv.errors import UserError

PARTS = {
    "sts": "fastadv.evaluation.suite.parts:StsPart",
    "transfer": "fastadv.evaluation.suite.parts:TransferPart",
    "geometry": "fastadv.evaluation.suite.parts:GeometryPart",
    "adv-sts": "fastadv.evaluation.suite.adv_sts:AdvStsPart",
    "embeddings": "fastadv.evaluation.suite.attacks:EmbeddingPart",
    "text": "fastadv.evaluation.suite.attacks:TextPart",
    "robustness": "fastadv.evaluation.suite.robustness:RobustnessPart",
}
"""name → the class of the part, a `fastadv.evaluation.suite.parts.Part`, in the order in which parts are measured"""


def choose_parts(options) -> Tuple[list, Tuple[str, ...]]:
    """The parts in their order, and the names of those that were asked for by name.

    Args:
        options: `fastadv.evaluation.suite.parts.SuiteOptions`.

    Raises:
        UserError: an unknown part, one that is named twice, or a class that is no whole part.
    """
    chosen = tuple(PARTS) if options.parts is None else options.parts
    unknown = next((name for name in chosen if name not in PARTS and ":" not in name), None)
    if unknown is not None or not chosen:
        raise UserError(
            f"--parts {unknown or 'without a name'}: expected some of {', '.join(PARTS)}; your own is named "
            "my_package.my_module:MyPart"
        )
    parts: list = []
    for kind in [*(name for name in PARTS if name in chosen), *(name for name in chosen if name not in PARTS)]:
        parts += _parts_of(kind, options)
    names = [part.name for part in parts]
    for option, given in (("--parts", chosen), ("--recipes", options.recipes or ()), ("--parts", names)):
        if len(set(given)) < len(given):
            raise UserError(f"{option} {' '.join(given)}: expected each once")
    is_named = {name: options.parts is not None for name in names}
    if options.recipes is not None:
        is_named.update({name: True for name in is_named if name.startswith("text-")})
    return parts, tuple(name for name, was_asked_for in is_named.items() if was_asked_for)


def _parts_of(kind: str, options) -> List:
    from fastadv.evaluation.suite.parts import MissingPart

    part_class = _class_of(kind)
    try:
        return list(part_class.from_options(options))
    except UserError as error:
        return [MissingPart(getattr(part_class, "name", kind), str(error))]


def _class_of(kind: str) -> type:
    """The class of a part, whole as far as it shows without making one."""
    from fastadv.evaluation.model_names import plain_name
    from fastadv.evaluation.suite.parts import Part

    module_name, _, class_name = PARTS.get(kind, kind).partition(":")
    try:
        found = getattr(import_module(module_name), class_name, None)
    except Exception as error:  # whatever the user's module raises while it is imported
        if kind in PARTS:
            raise
        raise UserError(
            f"--parts {kind}: it does not import: {type(error).__name__}: {error}".replace("\n", " ")
        ) from error
    if not (isinstance(found, type) and issubclass(found, Part)):
        raise UserError(f"--parts {kind}: expected a subclass of {Part.__module__}.Part, {module_name} has {found!r}")
    missing = sorted(found.__abstractmethods__)
    if kind not in PARTS:
        name = getattr(found, "name", None)
        missing += [] if isinstance(name, str) and name and plain_name(name) == name else ["name that is a file's"]
    if missing:
        raise UserError(f"--parts {kind}: {class_name} has no {', no '.join(missing)}")
    return found
