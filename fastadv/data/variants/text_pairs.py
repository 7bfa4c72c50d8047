"""Training texts and what an attack made of them, as a CSV: ``data.pairs``.

``fastadv attack --write-pairs`` and the attack at an epoch's start write it; texts are known again by their words.
"""

import csv
import os
from pathlib import Path
from typing import Dict, Mapping, Tuple

from fastadv.data.sources.compressed import kind_of
from fastadv.data.sources.first_fault import FirstFault
from fastadv.data.sources.lines import MAX_BYTES_PER_LINE, without_surrogates
from fastadv.data.sources.tables import TABLES, columns_of, iterate_table
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

Texts = Tuple[str, ...]
"""a text, or the two of a pair"""

PAIR_COLUMNS = ("first", "second", "label", "first_adversarial", "second_adversarial")
_MAX_BYTES_A_ROW = 8 * MAX_BYTES_PER_LINE
"""Two texts and what was made of them, each as long as a text may be, and their quotes."""


def read_pairs(path: str | os.PathLike, may_be_empty: bool = False) -> Dict[Texts, Texts]:
    """Texts and what an attack made of them, from a CSV as ``fastadv attack --write-pairs`` writes it; of a text that
    is there twice the first row counts.

    Args:
        may_be_empty: an attack may have fooled no text.

    Raises:
        UserError: no such file, other columns, a row without texts or with a fault, or no row at all.
    """
    path, pairs = Path(path).expanduser(), {}
    if kind_of(path) not in TABLES:
        raise UserError(f"{path} is no table of pairs; expected a .csv or .tsv file, plain or .gz")
    names = columns_of(path)
    missing = [name for name in ("first", "first_adversarial") if name not in names]
    if missing and names:
        raise UserError(f"{path}: no column {missing[0]}; expected {', '.join(PAIR_COLUMNS)}")
    columns = [name for name in PAIR_COLUMNS if name in names and name != "label"]
    blank = [name for name in columns if name.startswith("second")]
    rows = iterate_table(path, columns, FirstFault(path, "texts"), _MAX_BYTES_A_ROW, may_be_blank=blank)
    for cells, where in rows:
        row = dict(zip(columns, cells))
        texts, found = _texts_of(row, ""), _texts_of(row, "_adversarial")
        if len(texts) != len(found):
            raise UserError(f"{path.with_name(where)}: a text is missing")
        pairs.setdefault(texts, found)
    if not pairs and not may_be_empty:
        raise UserError(f"{path} holds no pair")
    return pairs


def _texts_of(row: Mapping[str, str], ending: str) -> Texts:
    first, second = row[f"first{ending}"], row.get(f"second{ending}")
    return (first, second) if second else (first,)


def write_pairs(path: str | os.PathLike, pairs: Mapping[Texts, Texts], labels: Mapping[Texts, str]) -> None:
    """Writes what `read_pairs` reads, columns of second texts only where there are any. Whole or not at all.

    Half a surrogate pair, which no reader takes for text, is written as U+FFFD.

    Args:
        labels: the names of the texts' classes.
    """
    has_second = any(len(texts) == 2 for texts in pairs)
    columns = [name for name in PAIR_COLUMNS if has_second or not name.startswith("second")]
    with written_aside(Path(path).expanduser()) as aside, open(aside, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for texts, found in pairs.items():
            line = {**dict(zip(("first", "second"), texts)), "label": labels[texts]}
            line |= dict(zip(("first_adversarial", "second_adversarial"), found))
            writer.writerow({name: without_surrogates(text)[0] for name, text in line.items()})
