"""What the texts that fool one model do to others: an attack that has not looked at them.

A system that withstands these and still falls to the attack itself has learnt to resist certain texts, not the attack.
"""

import json
from pathlib import Path
from typing import Dict, List, Mapping

from fastadv.atomic_file import written_aside
from fastadv.evaluation.text_attack_rows import SUCCEEDED, TextAttackRow


def transferred(rows: Mapping[str, List[TextAttackRow]], folders: Mapping[str, Path], file: Path) -> Dict[str, dict]:
    """Of the texts that fooled the first model, how many fool each other one that is right without the attack.

    Args:
        rows: model → what the attack on it found, the same texts for all.
        folders: model → where it is saved.
        file: keeps what was found; read where it is there.

    Returns:
        model → num_tried and num_fooled; the first model is not in it.
    """
    from fastadv.encoder.classifier import Classifier

    if file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    first, *others = folders
    fooling = {row.row: row for row in rows[first] if row.outcome == SUCCEEDED}
    found = {}
    for name in others:
        tried = [fooling[row.row] for row in rows[name] if row.is_attacked and row.row in fooling]
        num_fooled = 0
        if tried:
            classifier = Classifier.from_pretrained(str(folders[name]))
            second = [row.second_adversarial for row in tried] if tried[0].second_adversarial is not None else None
            logits = classifier.classify_texts([row.first_adversarial for row in tried], second)
            names = classifier.label_map.names
            num_fooled = sum(names[said] != row.label for said, row in zip(logits.argmax(axis=1).tolist(), tried))
        found[name] = {"num_tried": len(tried), "num_fooled": num_fooled}
    with written_aside(file) as aside:
        aside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found
