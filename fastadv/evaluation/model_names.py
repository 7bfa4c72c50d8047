"""What models and runs are called in tables."""

from typing import List, Sequence


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
