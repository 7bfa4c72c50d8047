"""The models of an evaluation: which systems they are seeds of, what kind they are, and whether they work at all."""

import re
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

import numpy as np

from fastadv.errors import UserError
from fastadv.evaluation.attack_parts import fingerprint
from fastadv.evaluation.model_names import short_names
from fastadv.evaluation.suite_numbers import System
from fastadv.evaluation.vector_cache import model_fingerprint

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9_. +-]*)=(.+)", re.DOTALL)

_SIGNS = (
    "A film about two brothers.",
    "The weather will be fine tomorrow!",
    "No.",
    "She had never seen so many books in one small room, and she read them all.",
)
"""texts that any model tells apart"""


@dataclass(frozen=True)
class SuiteModel:
    """One model of a system."""

    model: str
    """as it was given"""
    name: str
    """in tables and file names"""
    pooling: Optional[str]
    max_length: Optional[int]
    is_classifier: bool = False
    fingerprint: str = ""
    """of its weights, configuration, tokenizer, and head"""
    why: Optional[str] = None
    """what keeps it from being measured"""

    @property
    def key(self) -> list:
        """All of it that has a say in a number."""
        return [self.fingerprint, self.pooling, self.max_length, self.is_classifier, self.why]

    def load(self):
        """A `fastadv.Encoder`."""
        from fastadv.encoder import Encoder

        return Encoder.from_pretrained(self.model, pooling=self.pooling, max_length=self.max_length)


def systems_of(given: Sequence[str]) -> List[System]:
    """``[NAME=]DIR[,DIR...]`` each; a system without a name has that of its first folder.

    Raises:
        UserError: an empty folder name, a model or a name that is given twice.
    """
    named: List[Tuple[Optional[str], Tuple[str, ...]]] = []
    for text in given:
        found = _NAMED.fullmatch(text)
        name, folders = (found.group(1), found.group(2)) if found else (None, text)
        models = tuple(folders.split(","))
        if not all(model.strip() for model in models):
            raise UserError(f"--model {text!r}: expected [NAME=]DIR[,DIR...], each DIR with a name")
        named.append((name, models))
    every = [model.rstrip("/") for _, models in named for model in models]
    twice = next((model for model in every if every.count(model) > 1), None)
    if twice is not None:
        raise UserError(f"--model {twice} is given twice; expected each model once")
    short = short_names([models[0] for _, models in named])
    systems = [System(name or own, models) for (name, models), own in zip(named, short)]
    names = [system.name for system in systems]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"--model: two systems are called {twice!r}; give each a name of its own, NAME=DIR")
    return systems


def find_models(systems: Sequence[System], pooling: Optional[str], max_length: Optional[int]) -> List[SuiteModel]:
    """All models in their order, without reading weights.

    Raises:
        UserError: a model that is not there, too short, or not pooled as named or known.
    """
    every = [model for system in systems for model in system.models]
    return [_found(model, name, pooling, max_length) for model, name in zip(every, short_names(every))]


def _found(model: str, name: str, pooling: Optional[str], max_length: Optional[int]) -> SuiteModel:
    from fastadv.encoder.classification_head import HEAD_FILE
    from fastadv.encoder.source import find_file, find_model

    source = find_model(model)
    source.check_max_length(max_length)
    chosen = source.choose_pooling(pooling)
    has_head = find_file(source.location, HEAD_FILE) is not None or any(
        architecture.endswith("ForSequenceClassification") for architecture in source.config.architectures or ()
    )
    return SuiteModel(model, name, chosen, max_length, has_head)


def examine(model: SuiteModel) -> SuiteModel:
    """The model with its fingerprint, and with what is wrong with it where it makes no use of texts."""
    from fastadv.encoder.classifier import Classifier

    try:
        encoder = model.load()
        of_model = [model_fingerprint(encoder)]
        if model.is_classifier:
            of_model.append(fingerprint(Classifier.from_pretrained(model.model, max_length=model.max_length)))
        why = _what_is_wrong(encoder.encode_texts(list(_SIGNS)))
    except UserError as error:
        return SuiteModel(**{**vars(model), "why": str(error)})
    known = {"fingerprint": "-".join(of_model), "max_length": encoder.max_length, "why": why}
    return SuiteModel(**{**vars(model), **known})


def _what_is_wrong(vectors: np.ndarray) -> Optional[str]:
    if not np.isfinite(vectors).all():
        return "the model gives vectors with NaN or infinity"
    # Equal but for rounding, which differs with a text's length.
    if np.ptp(vectors, axis=0).max() <= 1e-6 * max(float(np.abs(vectors).max()), 1e-30):
        return "the model gives every text the same vector"
    return None
