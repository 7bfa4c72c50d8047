"""What a part of an evaluation has measured, kept as one file: numbers as JSON and arrays beside it, without pickle.

The files that the part left lie in a folder that other evaluations write to as well: they are known by their hashes,
and where one of them is another's by now the part is measured again.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Dict, Optional, Sequence, Tuple

import numpy as np

from fastadv.evaluation.embeddings.parts import DAMAGED
from fastadv.evaluation.suite.numbers import Measured
from fastadv.evaluation.suite.parts import Found
from fastadv.evaluation.suite.schema import Quantity
from fastadv.files.atomic_file import written_aside
from fastadv.files.hashes import sha256_of_file
from fastadv.files.json_file import json_text

_ARRAYS = ("rows", "ranked", "draws")
"""of `Measured`"""
_NOT_MEASURED = tuple(f.name for f in fields(Found) if f.name != "measured")


def save_part(path: Path, found: Found, seconds: float, folder: Path) -> None:
    """Keeps at ``path`` what was measured, and the hashes of the files that it left in ``folder``."""
    arrays, entries = {}, []
    for number, one in enumerate(found.measured):
        entry = {f.name: getattr(one, f.name) for f in fields(one) if f.name not in _ARRAYS}
        entries.append({**entry, "quantity": list(one.quantity), "over": list(one.over)})
        for name in _ARRAYS:
            if getattr(one, name) is not None:
                arrays[f"{name}-{number}"] = getattr(one, name)
    record = {name: getattr(found, name) for name in _NOT_MEASURED}
    record.update(measured=entries, seconds=seconds, hashes=_hashes(folder, found.files))
    text = json_text(record)
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(file, record=np.frombuffer(text.encode(), dtype=np.uint8), **arrays)


def load_part(path: Path, folder: Path) -> Optional[Tuple[Found, float]]:
    """What `save_part` kept, and the seconds it took; None where it is not there or damaged, or a file in ``folder`` is
    not the one that was measured."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            record = json.loads(arrays["record"].tobytes())
            if record["hashes"] != _hashes(folder, record["files"]):
                return None
            measured = []
            for number, entry in enumerate(record["measured"]):
                of_one = {n: arrays[f"{n}-{number}"] for n in _ARRAYS if f"{n}-{number}" in arrays.files}
                entry["quantity"], entry["over"] = Quantity.of(entry["quantity"]), tuple(entry["over"])
                measured.append(Measured(**entry, **of_one))
        return Found(measured, **{name: record[name] for name in _NOT_MEASURED}), record["seconds"]
    except (*DAMAGED, TypeError):
        return None


def _hashes(folder: Path, files: Sequence[str]) -> Dict[str, str]:
    """OSError where one is not there."""
    return {file: sha256_of_file(folder / file) for file in files}
