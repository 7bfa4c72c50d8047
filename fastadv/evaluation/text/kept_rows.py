"""The rows of an attack on text, kept as they are made, so that a stopped run goes on from what is there."""

import sys
from collections import Counter
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Callable, Iterator, NamedTuple, Sequence

import numpy as np

from fastadv.errors import UserError
from fastadv.evaluation.text.rows import ERROR, FAILED, SUCCEEDED, RowWriter, TextAttackRow
from fastadv.files.progress import Bar


class RowKey(NamedTuple):
    """What a text is known by within one file of rows."""

    row: int
    """in the data source, from 0"""
    first: str
    second: str | None
    label: str

    @classmethod
    def of(cls, row: TextAttackRow) -> "RowKey":
        return cls(row.row, row.first, row.second, row.label)


def complete_rows(
    path: Path,
    keys: Sequence[RowKey],
    attack: Callable[[list[int]], Iterator[TextAttackRow]],
    name: str,
    progress: bool = False,
) -> list[TextAttackRow]:
    """A row for each of ``keys``, in their order: those at ``path`` are read, the others attacked and added to it.

    Args:
        attack: attacks the texts of some places in ``keys``, and gives each row as it is finished, in any order.
        name: in the progress bar.

    Raises:
        UserError: another run writes to ``path``, or what lies there is no file of rows.
    """
    with locked_writer(path, any(key.second is not None for key in keys)) as writer:
        done = {RowKey.of(row): row for row in writer.rows if _is_done(row)}
        waiting = [place for place, key in enumerate(keys) if key not in done]
        outcomes = Counter(row.outcome for row in done.values())
        # stderr as it is now: recipes write to another one.
        look = {"desc": name, "unit": "text", "disable": not progress, "file": sys.stderr, "dynamic_ncols": True}
        bar = Bar(total=len(keys), initial=len(keys) - len(waiting), **look)
        with bar, closing(attack(waiting)) as rows:
            for row in rows:
                writer.write(row)
                done[RowKey.of(row)] = row
                outcomes[row.outcome] += 1
                bar.set_postfix_str(_rate(outcomes), refresh=False)
                bar.update()
    return [done[key] for key in keys]


def _rate(outcomes: Counter) -> str:
    """The success rate so far, of the texts that were right before."""
    num_succeeded, num_errors = outcomes[SUCCEEDED], outcomes[ERROR]
    num_attacked = num_succeeded + outcomes[FAILED]
    share = f" ({num_succeeded / num_attacked:.0%})" if num_attacked else ""
    return f"{num_succeeded}/{num_attacked} succeeded{share}{f', {num_errors} errors' if num_errors else ''}"


def _is_done(row: TextAttackRow) -> bool:
    # Texts that ended in an error are tried again. Earlier versions took a model's NaN for an answer.
    return row.outcome != ERROR and bool(np.isfinite([row.score, row.score_adversarial]).all())


@contextmanager
def locked_writer(path: Path, is_pair: bool) -> Iterator[RowWriter]:
    """The rows of a part, which nobody else writes to meanwhile."""
    with path.open("ab") as lock:
        if not _is_locked(lock):
            raise UserError(f"another run writes to {path}; wait for its end, or give another --out")
        with RowWriter(path, is_pair) as writer:
            yield writer


def _is_locked(file) -> bool:
    try:
        import fcntl
    except ImportError:
        # Windows has no such locks.
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
