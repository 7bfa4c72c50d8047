"""What the texts that fool one model do to others: an attack that has not looked at them.

A system that withstands these and still falls to the attack itself has learnt to resist certain texts, not the attack.
Another seed of the same training withstands some of them, too.
"""

import json
from pathlib import Path
from typing import Dict, List, Mapping, Sequence

import numpy as np

from fastadv.evaluation.text.rows import SUCCEEDED, TextAttackRow
from fastadv.files.atomic_file import written_aside


def transferred(
    rows: Sequence[TextAttackRow], folders: Mapping[str, Path], file: Path, remains: bool = False
) -> Dict[str, dict]:
    """Of the texts that fooled a model, how many fool each other one that is right without the attack.

    Args:
        rows: what the attack on that model found.
        folders: the others' names → where they are saved.
        file: keeps what was found; read where it is there.
        remains: the attack changes the true class, and fools where the prediction remains.

    Returns:
        model → num_tried and num_fooled.
    """
    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    fooling = [row for row in rows if row.outcome == SUCCEEDED]
    found = {name: _tried(fooling, folder, remains) for name, folder in folders.items()}
    with written_aside(file) as aside:
        aside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def _tried(rows: List[TextAttackRow], folder: Path, remains: bool) -> dict:
    from fastadv.encoder.classifier.text_classifier import Classifier

    if not rows:
        return {"num_tried": 0, "num_fooled": 0}
    classifier = Classifier.from_pretrained(str(folder))
    labels = np.array([classifier.label_map.label2id[row.label] for row in rows])

    def is_right(first: List[str], second: List[str]) -> np.ndarray:
        pairs = None if second[0] is None else second
        return classifier.classify_texts(first, pairs).argmax(axis=1) == labels

    is_tried = is_right([row.first for row in rows], [row.second for row in rows])
    after = is_right([row.first_adversarial for row in rows], [row.second_adversarial for row in rows])
    is_fooled = after if remains else ~after
    return {"num_tried": int(is_tried.sum()), "num_fooled": int((is_tried & is_fooled).sum())}
