"""Which files beside its page a report has written, so that a later one, or a run that begins anew, clears them.

Their names (``summary.md``, ``figures/``, ``tables/``) are ones that a user's own files may have: only what the list
names is ever removed.
"""

import json
import re
from pathlib import Path
from typing import Collection, List

from fastadv.atomic_file import written_aside

LIST = "report-files.json"

_OURS = re.compile(r"summary\.md|figures/[^/\\\0]+\.png|tables/[^/\\\0]+\.csv")


def write_list(folder: Path, files: Collection[str]) -> None:
    """Names relative to ``folder``, in their order."""
    with written_aside(folder / LIST) as aside:
        aside.write_text(json.dumps(sorted(files), indent=1) + "\n", encoding="utf-8")


def read_list(folder: Path) -> List[str]:
    """The names that a report can have written, of those listed; none where there is no list, or a damaged one."""
    try:
        found = json.loads((folder / LIST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    names = found if isinstance(found, list) else []
    return [name for name in names if isinstance(name, str) and _OURS.fullmatch(name)]


def clear_written(folder: Path, but: Collection[str] = ()) -> None:
    """Removes the listed files that are not in ``but``, folders that this leaves empty, and, of none, the list."""
    for name in set(read_list(folder)).difference(but):
        # Through a link, or a folder where the list has a file, lies something that no report has written.
        if not (folder / name).parent.is_symlink() and not (folder / name).is_dir():
            (folder / name).unlink(missing_ok=True)
    for name in ("figures", "tables"):
        place = folder / name
        if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
            place.rmdir()
    if not but:
        (folder / LIST).unlink(missing_ok=True)
