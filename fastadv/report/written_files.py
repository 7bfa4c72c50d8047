"""Which files beside its page a report has written, so that a later one, or a run that begins anew, clears them.

They have names that a user's own files may have: only what the list names is ever replaced or removed. A page's name is
in those of its files, so that two pages of one folder keep theirs apart.
"""

import re
from pathlib import Path
from typing import Collection, List, NamedTuple, Optional

from fastadv.errors import UserError
from fastadv.files.json_file import read_json, write_json

STEM = "report"
"""of the page's name, where none is given"""


class Names(NamedTuple):
    """Of the files beside a page, by the page's own name without .html; relative to its folder."""

    markdown: str
    figures: str
    tables: str
    list: str


def names_of(stem: str = STEM) -> Names:
    """``figures/`` and ``tables/`` of report.html, ``a-figures/`` and ``a-tables/`` of a.html."""
    before = "" if stem == STEM else f"{stem}-"
    return Names(f"{stem}.md", f"{before}figures", f"{before}tables", f"{stem}-files.json")


LIST = names_of().list


def require_free(folder: Path, files: Collection[str], stem: str = STEM) -> None:
    """UserError where one of ``files``, relative to ``folder``, or the list is there and no report has written it."""
    written = set(read_list(folder, stem))
    foreign = next((n for n in files if n not in written and (folder / n).exists()), None)
    if foreign is None and (folder / names_of(stem).list).exists() and _listed(folder, stem) is None:
        foreign = names_of(stem).list
    if foreign is not None:
        raise UserError(
            f"{str(folder / foreign)!r} is there and no report has written it; move it or name another place by --out"
        )


def write_list(folder: Path, files: Collection[str], stem: str = STEM) -> None:
    """Names relative to ``folder``, in their order."""
    write_json(folder / names_of(stem).list, sorted(files))


def read_list(folder: Path, stem: str = STEM) -> List[str]:
    """The names that a report can have written, of those listed; none where there is no list, or a damaged one."""
    names = names_of(stem)
    markdown, figures, tables = (re.escape(name) for name in names[:3])
    ours = re.compile(rf"{markdown}|{figures}/[^/\\\0]+\.png|{tables}/[^/\\\0]+\.csv")
    found = _listed(folder, stem) or []
    return [name for name in found if isinstance(name, str) and ours.fullmatch(name)]


def clear_written(folder: Path, but: Collection[str] = (), stem: str = STEM) -> None:
    """Removes the listed files that are not in ``but``, folders that this leaves empty, and, of none, the list."""
    names = names_of(stem)
    for name in set(read_list(folder, stem)).difference(but):
        # Through a link, or a folder where the list has a file, lies something that no report has written.
        if not (folder / name).parent.is_symlink() and not (folder / name).is_dir():
            (folder / name).unlink(missing_ok=True)
    for name in (names.figures, names.tables):
        place = folder / name
        if place.is_dir() and not place.is_symlink() and not any(place.iterdir()):
            place.rmdir()
    if not but and _listed(folder, stem) is not None:
        (folder / names.list).unlink(missing_ok=True)


def _listed(folder: Path, stem: str) -> Optional[list]:
    """What the list holds; None where there is none, or what lies there is no list."""
    try:
        found = read_json(folder / names_of(stem).list)
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None
