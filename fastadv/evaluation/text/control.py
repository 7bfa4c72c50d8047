"""The control of a robust model: the baseline, shifted to the robust model's class shares, under the same attack.

An attack that ruins words drives a classifier to one class; a mere shift of its bias then looks like robustness
(METHODS.md, section 5). So every model that is compared with a baseline has a third row beside the two, "BASE, bias of
ROBUST", and a gain counts only beyond that row.
"""

from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from fastadv.data.labelled.find import LabelledTexts
from fastadv.errors import UserError
from fastadv.evaluation.text.class_bias import ControlBias, match_class_share
from fastadv.evaluation.text.rows import TextAttackRow
from fastadv.evaluation.vectors.accuracy import check_finite


class AttackedModel(NamedTuple):
    """What is reported of one model under one attack."""

    name: str
    """in tables"""
    rows: Sequence[TextAttackRow]
    facts: Mapping[str, Any] = {}
    """goes into the summary; ``labels`` are the names of its classes in their order, ``control`` makes it a control:
    the names of its ``baseline`` and of the ``robust`` model, and `ControlBias.as_dict`"""


def control_name(baseline: str, robust: str) -> str:
    """What a control is called in tables."""
    return f"{baseline}, bias of {robust}"


def control_runs(
    names: Sequence[str],
    load: Callable[[str], Any],
    data: LabelledTexts,
    attack: Callable[[str, ControlBias], Sequence[TextAttackRow]],
    batch_size: int = 64,
) -> Iterator[AttackedModel]:
    """One control for each model after the first, attacked as it is asked for.

    Args:
        names: of the models in tables; the first is the baseline.
        load: name → `fastadv.encoder.classifier.text_classifier.Classifier`; one is held at a time.
        data: the texts that are attacked.
        attack: attacks the baseline with a shift of its logits; it is given the control's name and the shift.

    Raises:
        UserError: see `control_biases`; before anything is attacked.
    """
    biases = list(control_biases(load, names, data, batch_size))
    for robust, bias in biases:
        name = control_name(names[0], robust)
        facts: Dict[str, Any] = {"baseline": names[0], "robust": robust, **bias.as_dict()}
        yield AttackedModel(name, attack(name, bias), {"labels": bias.labels, "control": facts})


def control_biases(
    load: Callable[[str], Any], names: Sequence[str], data: LabelledTexts, batch_size: int = 64
) -> Iterator[tuple[str, ControlBias]]:
    """Each name but the first, with the shift under which the first model predicts each class as often as it does.

    Raises:
        UserError: two models do not know the same classes, or the logits of one are not finite.
    """

    def classified(name: str):
        classifier = load(name)
        logits = classifier.classify_texts(data.first, pairs=data.second, batch_size=batch_size)
        check_finite(logits, name)
        return list(classifier.label_map.names), logits

    labels, logits = classified(names[0])
    for name in names[1:]:
        others, other_logits = classified(name)
        if set(labels) != set(others):
            raise UserError(
                f"the models know different classes: {names[0]} {', '.join(labels)} and {name} {', '.join(others)}; "
                "a control needs the same"
            )
        said = np.bincount([labels.index(others[i]) for i in other_logits.argmax(axis=1)], minlength=len(labels))
        yield name, match_class_share(logits, said / len(logits), labels)
