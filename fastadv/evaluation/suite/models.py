"""The models of an evaluation: which systems they are seeds of, what kind they are, and whether they work at all."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import List, Optional, Sequence, Tuple

import numpy as np

from fastadv.config.commands import Encoding
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.parts import fingerprint
from fastadv.evaluation.model_names import folders_in, is_folder, names_of_seeds, short_names
from fastadv.evaluation.suite.schema import System
from fastadv.evaluation.vectors.vector_cache import model_fingerprint

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_. +-]*)=(.+)", re.DOTALL)

_SIGNS = (
    "A film about two brothers.",
    "The weather will be fine tomorrow!",
    "No.",
    "She had never seen so many books in one small room, and she read them all.",
)
"""texts that any model tells apart"""

_EXPORT = "model"
"""what the folder of a run's model is called"""


@dataclass(frozen=True)
class SuiteModel:
    """One model of a system."""

    model: str
    """as it was given"""
    name: str
    """in tables and file names"""
    pooling: Optional[str]
    max_length: Optional[int]
    prompt: str = ""
    """text put before every sentence"""
    is_classifier: bool = False
    fingerprint: str = ""
    """of its weights, configuration, tokenizer, and head"""
    why: Optional[str] = None
    """what keeps it from being measured"""
    labels: Tuple[str, ...] = ()
    """a classifier's classes"""
    modules: Tuple[str, ...] = ()
    """what comes after the pooling"""
    device: str = "auto"
    """where it computes"""

    @property
    def key(self) -> list:
        """All of it that has a say in a number."""
        return [self.fingerprint, self.pooling, self.max_length, self.is_classifier, self.why]

    @property
    def kind(self) -> str:
        return "classifier" if self.is_classifier else "encoder"

    def load(self):
        """A `fastadv.Encoder`."""
        from fastadv.encoder import Encoder

        options = {"prompt": self.prompt, "device": self.device}
        return Encoder.from_pretrained(self.model, self.pooling, self.max_length, **options)

    def load_classifier(self, folder: Optional[str] = None):
        """A `Classifier`, of ``folder`` where it is an encoder with a head made for it."""
        from fastadv.encoder.classifier.text_classifier import Classifier

        names = self.labels if folder is None and self.labels else None
        options = {"label_names": names, "device": self.device}
        return Classifier.from_pretrained(folder or self.model, max_length=self.max_length, **options)

    def described(self, system: str) -> dict:
        """For ``evaluation.json``."""
        names = "kind", "pooling", "max_length", "prompt", "modules", "device", "fingerprint", "why"
        facts = {name: getattr(self, name) for name in names}
        return {"model": self.model, "name": self.name, "system": system, **facts}


def at_shortest(models: Sequence[SuiteModel]) -> List[SuiteModel]:
    """All of them cutting texts to the shortest length of one: attacked alike."""
    lengths = [model.max_length for model in models if model.max_length is not None]
    return [replace(model, max_length=min(lengths)) for model in models] if lengths else list(models)


def systems_of(given: Sequence[str]) -> List[System]:
    """``[NAME=]DIR[,DIR...]`` each; a system without a name has that of its first folder. Folders that exist win: one
    called ``lr=3e-5,bs=8`` is a folder, no name and two models.

    Raises:
        UserError: an empty folder name, a model or a name that is given twice.
    """
    named: List[Tuple[Optional[str], Tuple[str, ...]]] = []
    for text in given:
        found, name, models = _NAMED.fullmatch(text), None, tuple(folders_in(text))
        if found and not all(map(is_folder, models)):
            name, models = found.group(1), tuple(folders_in(found.group(2)))
        if not all(model.strip() for model in models):
            raise UserError(f"--model {text!r}: expected [NAME=]DIR[,DIR...], each DIR with a name")
        named.append((name, models))
    every = [model for _, models in named for model in models]
    places = [_place(model) for model in every]
    twice = next((model for model, place in zip(every, places) if places.count(place) > 1), None)
    if twice is not None:
        raise UserError(f"--model {twice} is given twice; expected each model once")
    firsts = [models[0] for _, models in named]
    short = short_names(firsts) if len(firsts) > 1 else [_last_name(firsts[0])]
    systems = [System(name or own, models) for (name, models), own in zip(named, short)]
    names = [system.name for system in systems]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--model: two systems are called {twice!r}; give each a name of its own, NAME=DIR")
    return systems


def _place(model: str) -> str:
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model.rstrip("/")


def _last_name(model: str) -> str:
    """runs/mine/model is mine."""
    parts = [part for part in Path(_place(model)).parts if part != "/"] or [model]
    return parts[-2] if parts[-1] == _EXPORT and len(parts) > 1 else parts[-1]


def find_models(
    systems: Sequence[System], encoding: Encoding, label_names: Optional[Sequence[str]] = None
) -> List[SuiteModel]:
    """All models in their order, without reading weights: called as their system is, with what tells its seeds apart.

    Args:
        encoding: how all of them are opened.
        label_names: what the classes of those that are classifiers are called, in the order of their numbers; None: as
            each says.

    Raises:
        UserError: a model that is not there, or cannot be opened so.
    """
    every = [model for system in systems for model in system.models]
    names = names_of_seeds({system.name: system.models for system in systems})
    return [_found(model, name, encoding, label_names) for model, name in zip(every, names)]


def _found(model: str, name: str, encoding: Encoding, label_names: Optional[Sequence[str]]) -> SuiteModel:
    from fastadv.distributed.devices import named_device
    from fastadv.encoder.classifier.classification_head import HEAD_FILE, classes_of
    from fastadv.encoder.sentence_files.read import find_file
    from fastadv.encoder.weights.source import find_model

    source = find_model(model)
    source.check_encoding(encoding)
    prompt = source.choose_prompt(encoding.prompt, encoding.prompt_name)
    modules = tuple(file.kind for file in source.files.modules)
    pooling = source.choose_pooling(encoding.pooling)
    device = str(named_device(encoding.device))
    found = SuiteModel(model, name, pooling, encoding.max_length, prompt, modules=modules, device=device)
    has_head = find_file(source.location, HEAD_FILE) is not None or any(
        architecture.endswith("ForSequenceClassification") for architecture in source.config.architectures or ()
    )
    if not has_head:
        return found
    try:
        return replace(found, is_classifier=True, labels=classes_of(source, label_names).names)
    except UserError as error:
        return replace(found, is_classifier=True, why=str(error))


def examine(model: SuiteModel) -> SuiteModel:
    """The model with its fingerprint, and with what is wrong with it where it makes no use of texts."""
    try:
        encoder = model.load()
        of_model, why = [model_fingerprint(encoder)], model.why or _what_is_wrong(encoder.encode_texts(list(_SIGNS)))
        if model.is_classifier and why is None:
            classifier = model.load_classifier()
            of_model.append(fingerprint(classifier))
            if not np.isfinite(classifier.classify_texts(list(_SIGNS))).all():
                why = "the classifier gives logits with NaN or infinity"
    except UserError as error:
        return replace(model, why=str(error))
    return replace(model, fingerprint="-".join(of_model), max_length=encoder.max_length, why=why)


def _what_is_wrong(vectors: np.ndarray) -> Optional[str]:
    if not np.isfinite(vectors).all():
        return "the model gives vectors with NaN or infinity"
    # Equal but for rounding, which differs with a text's length.
    if np.ptp(vectors, axis=0).max() <= 1e-6 * max(float(np.abs(vectors).max()), 1e-30):
        return "the model gives every text the same vector"
    return None
