"""Training texts and what an attack made of them, as a CSV: ``data.pairs``.

``fastadv attack --write-pairs`` and the attack at an epoch's start write it; texts are known again by their words.
"""

import csv
import os
from pathlib import Path
from typing import Dict, Mapping, Optional, Tuple

from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

Texts = Tuple[str, ...]
"""a text, or the two of a pair"""

PAIR_COLUMNS = ("first", "second", "label", "first_adversarial", "second_adversarial")
# Half a surrogate pair may stand in a text.
_ENCODING = {"encoding": "utf-8", "errors": "surrogatepass", "newline": ""}


def read_pairs(path: str | os.PathLike) -> Dict[Texts, Texts]:
    """Texts and what an attack made of them, from a CSV as ``fastadv attack --write-pairs`` writes it; of a text that
    is there twice the first line counts.

    Raises:
        UserError: no such file, other columns, a line without texts, or no line at all.
    """
    path, pairs = Path(path).expanduser(), {}
    try:
        with open(path, **_ENCODING) as file:
            reader = csv.DictReader(file, strict=True)
            missing = [name for name in ("first", "first_adversarial") if name not in (reader.fieldnames or ())]
            if missing:
                raise UserError(f"{path}: no column {missing[0]}; expected {', '.join(PAIR_COLUMNS)}")
            for line in reader:
                texts, found = _texts_of(line, ""), _texts_of(line, "_adversarial")
                if not texts[0].strip() or not found[0].strip() or len(texts) != len(found):
                    raise UserError(f"{path}, line {reader.line_num}: a text is missing")
                pairs.setdefault(texts, found)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path} is no readable CSV of pairs: {error}") from error
    if not pairs:
        raise UserError(f"{path} holds no pair")
    return pairs


def _texts_of(line: Mapping[str, Optional[str]], ending: str) -> Texts:
    first, second = line[f"first{ending}"] or "", line.get(f"second{ending}")
    return (first, second) if second else (first,)


def write_pairs(path: str | os.PathLike, pairs: Mapping[Texts, Texts], labels: Mapping[Texts, str]) -> None:
    """Writes what `read_pairs` reads, columns of second texts only where there are any. Whole or not at all.

    Args:
        labels: the names of the texts' classes.
    """
    has_second = any(len(texts) == 2 for texts in pairs)
    columns = [name for name in PAIR_COLUMNS if has_second or not name.startswith("second")]
    with written_aside(Path(path).expanduser()) as aside, open(aside, "w", **_ENCODING) as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        for texts, found in pairs.items():
            line = {**dict(zip(("first", "second"), texts)), "label": labels[texts]}
            writer.writerow({**line, **dict(zip(("first_adversarial", "second_adversarial"), found))})
