"""Adversarial text of saved classifiers with its files: ``reconstruct.json``, ``.csv`` and ``.html``.

A text counts as fooling where the model is right on the text as given and as its own tokenizer spells it, and wrong on
the reconstructed text, tokenised anew. How often that happens is told beside how many words had to change for it, and
by class: destroying a text fools a model too.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import numpy as np

from fastadv.data.labelled.find import LabelledTexts
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import labels_of
from fastadv.evaluation.embeddings.parts import fingerprint, hash_of_weights, part_path
from fastadv.evaluation.embeddings.reconstruct import (
    TextPair,
    as_texts,
    detokenized,
    joined,
    load_reconstructor,
    reconstruct,
)
from fastadv.evaluation.embeddings.reconstruct_page import page
from fastadv.evaluation.embeddings.run import AttackOnClassifiers
from fastadv.evaluation.model_run import kept_json
from fastadv.evaluation.text.attacked_data import hash_of_texts
from fastadv.evaluation.versions import versions
from fastadv.files.atomic_file import written_aside
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import write_json
from fastadv.pages.shown_text import num_changed, word_changes
from fastadv.pages.text_table import aligned

_WITHOUT_EFFECT = ("epsilons", "measure_distances")
"""settings that no text depends on: a radius is attacked by itself"""

MAX_WORDS = 2
"""words changed at most, for the rate of small changes"""
MAX_SHARE = 0.2
"""likewise as a share of a text's words"""


@dataclass(frozen=True)
class Example:
    """One text at one radius."""

    model: str
    row: int
    """of the source, from 0"""
    epsilon: float
    label: str
    predicted: str
    """of the text as given"""
    predicted_after: str
    """of the reconstructed text"""
    is_attacked: bool
    """right on the text as given and as the tokenizer spells it"""
    is_fooled: bool
    text: str
    """as the tokenizer spells it"""
    reconstructed: str

    @property
    def num_words(self) -> int:
        return len(self.text.split())

    @property
    def num_words_changed(self) -> int:
        return num_changed(word_changes(self.text, self.reconstructed))


@dataclass(frozen=True)
class ReconstructRun(AttackOnClassifiers):
    """What ``fastadv attack --method reconstruct`` runs.

    ``transfer_from`` makes the texts for all models; without it each makes its own.
    """

    def __post_init__(self):
        super().__post_init__()
        if self.settings.num_restarts > 1 or len(self.settings.step_sizes) > 1:
            raise UserError("reconstruct takes the end of one run: expected num_restarts 1 and one step size")

    def describe(self) -> str:
        """What would be done, in a line."""
        maker = self.transfer_from or "each model itself"
        return (
            f"would make adversarial text of {self.data.words} by {maker}, "
            f"{self.settings.norm} radii {', '.join(f'{e:g}' for e in self.settings.epsilons)}, and try it on "
            f"{', '.join(self.models)}; into {self.out}"
        )

    def run(self, progress: bool = False) -> dict:
        """Makes the texts, tries them and writes the files; returns what is in ``reconstruct.json``."""
        self.check()
        data, rows = self.data.read()
        out = self.opened_folder()
        other = self.transfer_from
        shared = None if other is None else self._make(other, self.load(other), data, out, progress)
        examples: List[Example] = []
        summaries = []
        for name, model in zip(self.names, self.models):
            classifier = self.load(model)
            made = shared or self._make(model, classifier, data, out, progress)
            found = _examples(name, classifier, data, rows, made)
            rates = _rates(found, self.settings.epsilons)
            facts = {"name": name, "model": model, "has_reconstructor": made.has_reconstructor}
            summaries.append({**facts, "epsilons": rates})
            examples += found
        written = {
            "kind": "reconstruct",
            "versions": versions(),
            "settings": self.settings.as_dict(),
            "protocol": {"perturb_at": self.perturb_at, "transfer_from": self.transfer_from},
            "data": {**vars(self.data), "num_texts": len(data), "hash": hash_of_texts(data)},
            "max_words": MAX_WORDS,
            "max_share": MAX_SHARE,
            "models": summaries,
        }
        self._write(out, written, examples)
        return written

    def _make(self, model: str, classifier, data: LabelledTexts, out: Path, progress: bool) -> "_Made":
        """The texts of one model; radii that are finished are read."""
        from fastadv.encoder.weights.source import find_model

        reconstructor = load_reconstructor(find_model(model).location, classifier.encoder)
        settings = {name: value for name, value in self.settings.as_dict().items() if name not in _WITHOUT_EFFECT}
        inputs = [fingerprint(classifier), None if reconstructor is None else hash_of_weights(reconstructor)]
        made: Dict[float, List[TextPair]] = {}
        for epsilon in self.settings.epsilons:
            path = part_path(out / "parts", ["reconstruct", *inputs, hash_of_texts(data), settings, epsilon], "json")
            texts = kept_json(
                path,
                lambda epsilon=epsilon: reconstruct(
                    classifier, data, self.settings, epsilon, reconstructor, self.batch_size, progress=progress
                ),
            )
            made[epsilon] = [(first, second) for first, second in texts]
        return _Made(detokenized(classifier, data), made, reconstructor is not None)

    def _write(self, out: Path, written: dict, examples: List[Example]) -> None:
        columns = [field.name for field in fields(Example)]
        lines = []
        for example in examples:
            values = [getattr(example, column) for column in columns]
            shown = [int(value) if isinstance(value, bool) else value for value in values]
            lines.append([*shown, example.num_words, example.num_words_changed])
        write_csv(out / "reconstruct.csv", [*columns, "num_words", "num_words_changed"], lines)
        with written_aside(out / "reconstruct.html") as aside:
            aside.write_text(page(written, examples), encoding="utf-8")
        write_json(out / "reconstruct.json", written)


@dataclass(frozen=True)
class _Made:
    """Texts of one model."""

    plain: List[TextPair]
    """as its tokenizer spells them, nobody having attacked them"""
    attacked: Dict[float, List[TextPair]]
    """by radius"""
    has_reconstructor: bool


def _examples(name: str, classifier, data: LabelledTexts, rows: np.ndarray, made: _Made) -> List[Example]:
    """Every text at every radius, as ``classifier`` sees it."""
    labels, names = labels_of(classifier, data), classifier.label_map.names

    def predict(texts: List[TextPair]) -> np.ndarray:
        return classifier.classify_texts(**as_texts(data, texts)).argmax(axis=1)

    given = predict(list(zip(data.first, data.second or [None] * len(data))))
    is_attacked = (given == labels) & (predict(made.plain) == labels)
    found = []
    for epsilon, texts in made.attacked.items():
        after = predict(texts)
        for number, row in enumerate(rows.tolist()):
            found.append(
                Example(
                    model=name,
                    row=row,
                    epsilon=epsilon,
                    label=names[labels[number]],
                    predicted=names[given[number]],
                    predicted_after=names[after[number]],
                    is_attacked=bool(is_attacked[number]),
                    is_fooled=bool(is_attacked[number] and after[number] != labels[number]),
                    text=joined(made.plain[number]),
                    reconstructed=joined(texts[number]),
                )
            )
    return found


def _rates(examples: List[Example], epsilons: Sequence[float]) -> List[dict]:
    """Of one model, by radius."""
    rows = []
    for epsilon in epsilons:
        of_radius = [one for one in examples if one.epsilon == epsilon]
        attacked = [one for one in of_radius if one.is_attacked]
        fooled = [one for one in attacked if one.is_fooled]
        few = [one for one in fooled if one.num_words_changed <= MAX_WORDS]
        small = [one for one in fooled if one.num_words_changed <= MAX_SHARE * one.num_words]
        classes = sorted({one.label for one in attacked})
        rows.append(
            {
                "epsilon": epsilon,
                "num_texts": len(of_radius),
                "num_attacked": len(attacked),
                "num_fooled": len(fooled),
                "success": _share(len(fooled), len(attacked)),
                "success_few_words": _share(len(few), len(attacked)),
                "success_small_share": _share(len(small), len(attacked)),
                "share_of_words_changed": _share(
                    sum(one.num_words_changed for one in attacked), sum(one.num_words for one in attacked)
                ),
                "per_class": {
                    label: {
                        "num_attacked": sum(one.label == label for one in attacked),
                        "num_fooled": sum(one.label == label for one in fooled),
                    }
                    for label in classes
                },
            }
        )
    return rows


def _share(count: int, total: int) -> Optional[float]:
    return count / total if total else None


def reconstruct_table(results: dict) -> str:
    """Aligned lines, a model and radius a line."""
    head = ("", "epsilon", "attacked", "fooled", f"by <= {MAX_WORDS} words", f"by <= {MAX_SHARE:.0%}", "words changed")
    lines: List[Sequence[str]] = [head]
    for model in results["models"]:
        for row in model["epsilons"]:
            shares = (row[name] for name in ("success", "success_few_words", "success_small_share"))
            changed = _percent(row["share_of_words_changed"])
            cells = [model["name"], f"{row['epsilon']:g}", f"{row['num_attacked']:,}", *map(_percent, shares), changed]
            lines.append(cells)
    return aligned(lines)


def _percent(share: Optional[float]) -> str:
    return "none" if share is None else f"{share:.1%}"
