"""What every run over several models shares: their names, the checks before it, its folder, and finished parts.

A finished part is a file in ``parts/``, named by a hash of all that has an effect on it: weights, texts, settings. So a
stopped run goes on, and a changed setting finds nothing to mix with.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

from fastadv.errors import UserError
from fastadv.evaluation.embeddings.parts import check_out
from fastadv.evaluation.model_names import names_of
from fastadv.files.json_file import read_json, write_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelRun:
    """Several models under one set of settings on the same data."""

    models: Sequence[str]
    """folders of models; with several the first is the one that the others are compared with"""
    data: Any
    settings: Any
    out: str
    """a folder"""
    max_length: int | None = None
    """tokens a text is cut to; None: each model's own"""
    names: Sequence[str] | None = None
    """what the models are called in tables; None: `short_names`"""
    label_names: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """model → what its classes are called, in the order of their numbers; one that is not there says so itself"""
    device: str = "auto"
    """where the models compute (`fastadv.distributed.devices.named_device`); a part that is finished was computed where
    it was begun"""

    def __post_init__(self):
        check_once(self.models)
        object.__setattr__(self, "names", names_of(self.models, self.names))

    @property
    def folder(self) -> Path:
        """Where the results go."""
        return Path(self.out).expanduser()

    def opened_folder(self) -> Path:
        """`folder`, made where it is not there, with one for finished parts in it."""
        (self.folder / "parts").mkdir(parents=True, exist_ok=True)
        return self.folder

    def check_models(self, *others: str | None) -> list:
        """UserError for a wrong ``out``, or for what is wrong with models and can be found without their weights.

        Args:
            others: models that are read besides; None is none.

        Returns:
            the places of `models` and ``others`` (`fastadv.encoder.weights.source.find_model`).
        """
        from fastadv.distributed.devices import named_device
        from fastadv.encoder.weights.source import find_model

        named_device(self.device)
        check_out(self.out)
        sources = [find_model(model) for model in (*self.models, *filter(None, others))]
        for source in sources:
            source.check_max_length(self.max_length)
        return sources

    def check_classes(self, sources: Sequence[Any]) -> None:
        """UserError for a model, of those that `check_models` gave, whose classes are not right."""
        from fastadv.encoder.classifier.classification_head import classes_of

        for source in sources:
            classes_of(source, self.label_names.get(source.name))

    def call_classes(self, classifier: Any, model: str, data: Any) -> None:
        """Has a classifier call its classes as the labelled texts that are attacked do.

        Raises:
            UserError: a label that is no class of the model.
        """
        try:
            classifier.label_map = data.classes_of(classifier.label_map, model)
        except UserError as error:
            raise UserError(f"{model} on {self.data.source}: {error}") from error


def warn_below_chance(model: str, is_right: Sequence[bool], num_classes: int) -> None:
    """Warns of a model that is right on fewer texts than chance would be: its classes may be called in another order.

    Args:
        is_right: of each text, before any attack.
    """
    num_right = sum(map(bool, is_right))
    if num_right * num_classes < len(is_right):
        logger.warning(
            "%s: %d of %d of the texts are classified as labelled, fewer than by chance; --label_names gives the names "
            "of its classes in the order of their numbers, if it is another one",
            model,
            num_right,
            len(is_right),
        )


def check_once(models: Sequence[str]) -> None:
    """UserError for a model that is given twice."""
    twice = next((model for model in models if list(models).count(model) > 1), None)
    if twice is not None:
        raise UserError(f"--model {twice} is given twice; expected each model once")


def kept_json(path: Path, make: Callable[[], Any]) -> Any:
    """The plain values that are kept at ``path``; made and kept where they are not there, or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        value = make()
        write_json(path, value, indent=None)
        return value
