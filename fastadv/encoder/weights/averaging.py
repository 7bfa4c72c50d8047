"""The linear average of two classifiers' parameters, λ·A + (1 − λ)·B, which TaiChi is compared with (its figure 5)."""

from pathlib import Path
from typing import Dict, List, Sequence

import torch
from torch import Tensor

from fastadv.encoder.classifier.classification_head import pooling_of_head
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.encoder.weights.source import ModelSource, find_model
from fastadv.errors import UserError
from fastadv.files.progress import Bar

# Of a configuration: what says nothing of the function that the parameters are of; classes have a word of their own.
_OF_A_COPY = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures"}
_OF_TRAINING = {"problem_type", "id2label", "label2id"}


def average_folders(out: str | Path, weights: Sequence[float]) -> List[Path]:
    """Where the average of each weight is written: ``<out>/weight-<λ>``.

    Raises:
        UserError: a weight outside [0, 1], or one that is given twice.
    """
    bad = next((weight for weight in weights if not 0 <= weight <= 1), None)
    if bad is not None:
        raise UserError(f"weight {bad:g} given, expected a number from 0 (the second model) to 1 (the first)")
    folders = [Path(out).expanduser() / f"weight-{weight:g}" for weight in weights]
    twice = next((folder.name for folder in folders if folders.count(folder) > 1), None)
    if twice is not None:
        raise UserError(f"{twice.replace('-', ' ')} is given twice")
    return folders


def check_averageable(first: str, second: str) -> None:
    """Refuses two models whose files say that their parameters do not lie on one another; reads no weights.

    Raises:
        UserError: one of them is not there, or they differ in architecture, pooling or classes.
    """
    sources = [find_model(model) for model in (first, second)]
    configs = [source.config.to_dict() for source in sources]
    forms = [{key: value for key, value in config.items() if not _is_harmless(key)} for config in configs]
    differing = sorted(key for key in {*forms[0], *forms[1]} if forms[0].get(key) != forms[1].get(key))
    if sources[0].config.model_type != sources[1].config.model_type:
        differing = ["model_type"]
    differing += ["classes"] * (configs[0]["id2label"] != configs[1]["id2label"])
    differing += ["pooling"] * (pooling_of_head(sources[0]) != pooling_of_head(sources[1]))
    if differing:
        raise UserError(f"{_pair(sources)} cannot be averaged: they differ in {', '.join(differing)}")


def average_classifiers(
    first: str, second: str, weights: Sequence[float], out: str | Path, progress: bool = False
) -> List[Path]:
    """Writes λ·first + (1 − λ)·second, encoder and head, for each λ of ``weights``; each is computed in float64 and
    rounded once, so that λ = 1 and λ = 0 are the models themselves, bit for bit.

    Args:
        first, second: folders of trained classifiers of one architecture, one tokenizer and the same classes.
        progress: show a bar.

    Returns:
        the folders, each an export like a run's.

    Raises:
        UserError: what `average_folders` and `check_averageable` find, tokenizers or shapes that differ, or a folder in
            the place of an export that is none.
    """
    folders = average_folders(out, weights)
    check_averageable(first, second)
    classifier, other = (Classifier.from_pretrained(model) for model in (first, second))
    a = {name: value.clone() for name, value in classifier.state_dict().items()}
    b = other.state_dict()
    differences = {
        "tokenizer": classifier.encoder.tokenizer_fingerprint != other.encoder.tokenizer_fingerprint,
        "max_length": classifier.encoder.max_length != other.encoder.max_length,
        "parameters": {name: value.shape for name, value in a.items()}
        != {name: value.shape for name, value in b.items()},
    }
    differing = [name for name, is_different in differences.items() if is_different]
    if differing:
        raise UserError(f"models {first!r} and {second!r} cannot be averaged: they differ in {', '.join(differing)}")
    for weight, folder in zip(Bar(weights, desc="average", unit="model", disable=not progress), folders):
        classifier.load_state_dict(averaged(a, b, weight))
        note = f"The average of two classifiers' parameters: {weight:g} of `{first}` and {1 - weight:g} of `{second}`."
        classifier.save_pretrained(folder, f"{classifier.default_card()}\n{note}\n")
    return folders


def averaged(a: Dict[str, Tensor], b: Dict[str, Tensor], weight: float) -> Dict[str, Tensor]:
    """``weight``·a + (1 − ``weight``)·b of two state dicts of the same names and shapes, in the types of ``a``.

    Numbers that are no parameters (positions, say) are those of ``a``.
    """
    state = {}
    for name, value in a.items():
        if value.is_floating_point():
            value = (weight * value.double() + (1 - weight) * b[name].to(torch.float64)).to(value.dtype)
        state[name] = value
    return state


def _is_harmless(key: str) -> bool:
    return key in _OF_A_COPY or key in _OF_TRAINING or "dropout" in key


def _pair(sources: Sequence[ModelSource]) -> str:
    return f"models {sources[0].name!r} and {sources[1].name!r}"
