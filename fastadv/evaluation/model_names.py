"""What models and runs are called in tables."""

from pathlib import Path
from typing import Dict, List, Optional, Sequence

from fastadv.errors import UserError


def is_folder(path: str) -> bool:
    """Whether there is such a folder: its name may hold whatever separates names elsewhere."""
    return Path(path).expanduser().is_dir()


def folders_in(text: str) -> List[str]:
    """``DIR[,DIR...]`` as the folders in it; one that exists is not taken apart at its commas."""
    parts, found, start = text.split(","), [], 0
    while start < len(parts):
        ends = range(len(parts), start, -1)
        end = next((end for end in ends if is_folder(",".join(parts[start:end]))), start + 1)
        found.append(",".join(parts[start:end]))
        start = end
    return found


def short_names(models: Sequence[str]) -> List[str]:
    """The models' paths without what all of them share at either end: runs/a/model and runs/b/model are a and b."""
    if len(models) == 1:
        return [model.rstrip("/") for model in models]
    parts = [model.rstrip("/").split("/") for model in models]
    while len({part[0] for part in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [part[1:] for part in parts]
    while len({part[-1] for part in parts}) == 1 and min(map(len, parts)) > 1:
        parts = [part[:-1] for part in parts]
    return ["/".join(part) for part in parts]


def names_of(models: Sequence[str], names: Optional[Sequence[str]] = None) -> List[str]:
    """``names``, one a model, or where there are none `short_names`.

    Raises:
        UserError: another number of names, or one that is given twice.
    """
    if names is None:
        return short_names(models)
    if len(names) != len(models) or len(set(names)) < len(names):
        raise UserError(f"names {', '.join(names)}: expected one for each of {len(models)} models, each once")
    return list(names)


def names_of_seeds(systems: Dict[str, Sequence[str]]) -> List[str]:
    """Every model of ``systems`` (name → its models) in order: the system's name, and of several what tells them apart.

    Where two would be called alike, all are called as `short_names` has it.
    """
    names: List[str] = []
    for system, models in systems.items():
        names += [system] if len(models) == 1 else [f"{system}/{seed}" for seed in short_names(models)]
    if len(set(names)) < len(names):
        return short_names([model for models in systems.values() for model in models])
    return names


def plain_name(name: str) -> str:
    """As a file name."""
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in name)
