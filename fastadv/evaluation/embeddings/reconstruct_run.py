"""Adversarial text of saved classifiers with its files: ``reconstruct.json``, ``.csv`` and ``.html``.

A text counts as fooling where the model is right on the text as given and as its own tokenizer spells it, and wrong on
the reconstructed text, tokenised anew. How often that happens is told beside how many words had to change for it, and
by class: destroying a text fools a model too.
"""

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

import numpy as np

from fastadv.config.text_attack import CAPS
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.tokenize_texts import say_tokens
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
from fastadv.evaluation.embeddings.reconstruct_page import page, rate_cells
from fastadv.evaluation.embeddings.run import AttackOnClassifiers
from fastadv.evaluation.model_run import kept_json
from fastadv.evaluation.text.attacked_data import hash_of_texts
from fastadv.evaluation.versions import versions
from fastadv.files.atomic_file import written_aside
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import write_json
from fastadv.pages.shown_text import num_changed, word_changes
from fastadv.pages.text_table import aligned

ANY, FEW_WORDS, SMALL_SHARE = CAPS
_WITHOUT_EFFECT = ("epsilons", "measure_distances")
"""settings that no text depends on: a radius is attacked by itself"""


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
        shared = None if other is None else self._make(other, self.load(other, data), data, out, progress)
        examples: List[Example] = []
        summaries = []
        for name, model in zip(self.names, self.models):
            classifier = self.load(model, data)
            say_tokens(classifier.encoder, f"{model} on {self.data.source}", data.first, data.second)
            made = shared or self._make(model, classifier, data, out, progress)
            found = _examples(name, classifier, data, rows, made)
            rates = _rates(found, self.settings.epsilons)
            device = str(classifier.encoder.device)
            facts = {"name": name, "model": model, "has_reconstructor": made.has_reconstructor, "device": device}
            summaries.append({**facts, "epsilons": rates})
            examples += found
        written = {
            "kind": "reconstruct",
            "versions": versions(),
            "settings": self.settings.as_dict(),
            "protocol": {"perturb_at": self.perturb_at, "transfer_from": self.transfer_from},
            "data": self.data.described(data),
            "max_words": FEW_WORDS.max_words,
            "max_share": SMALL_SHARE.max_share,
            "models": summaries,
        }
        columns = [*(field.name for field in fields(Example)), "num_words", "num_words_changed"]
        lines = [[getattr(example, column) for column in columns] for example in examples]
        shown = ([int(value) if isinstance(value, bool) else value for value in line] for line in lines)
        write_csv(out / "reconstruct.csv", columns, shown)
        with written_aside(out / "reconstruct.html") as aside:
            aside.write_text(page(written, examples), encoding="utf-8")
        write_json(out / "reconstruct.json", written)
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


class _Made(NamedTuple):
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
        counts = {cap: sum(map(cap.admits, fooled)) for cap in (ANY, FEW_WORDS, SMALL_SHARE)}
        success = {cap: count / len(attacked) if attacked else None for cap, count in counts.items()}
        num_words = sum(one.num_words for one in attacked)
        of_class, fooled_of_class = (Counter(one.label for one in some) for some in (attacked, fooled))
        rows.append(
            {
                "epsilon": epsilon,
                "num_texts": len(of_radius),
                "num_attacked": len(attacked),
                "num_fooled": len(fooled),
                "success": success[ANY],
                "success_few_words": success[FEW_WORDS],
                "success_small_share": success[SMALL_SHARE],
                "share_of_words_changed": sum(one.num_words_changed for one in attacked) / num_words
                if num_words
                else None,
                "per_class": {
                    label: {"num_attacked": of_class[label], "num_fooled": fooled_of_class[label]}
                    for label in sorted(of_class)
                },
            }
        )
    return rows


def reconstruct_table(results: dict) -> str:
    """Aligned lines, a model and radius a line."""
    few, share = results["max_words"], results["max_share"]
    head = ("", "epsilon", "attacked", "fooled", f"by <= {few} words", f"by <= {share:.0%}", "words changed")
    models = results["models"]
    return aligned([head, *([model["name"], *rate_cells(row)] for model in models for row in model["epsilons"])])
