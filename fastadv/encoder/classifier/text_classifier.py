"""An encoder with a classification head: what a supervised run trains and exports, and what is attacked."""

from pathlib import Path
from typing import Dict, Optional, Sequence

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fastadv.data.labelled.labels import LabelMap
from fastadv.data.packing import PackedBatch
from fastadv.data.tokenize_texts import checked_texts
from fastadv.encoder.classifier.classification_head import (
    HEAD_FILE,
    Head,
    LinearHead,
    check_classifiable,
    check_pooled,
    classes_of,
    classifier_state,
    labelled_config,
    load_head,
    pooling_of_head,
)
from fastadv.encoder.encoder import Encoder
from fastadv.encoder.export.cards import default_card
from fastadv.encoder.export.write import export_encoder, weights_of
from fastadv.encoder.weights.lora import merged_state_dict
from fastadv.encoder.weights.source import find_model, quiet_transformers
from fastadv.errors import UserError


class Classifier(nn.Module):
    """Texts, or pairs of texts, to logits (B, C).

    Args:
        encoder: with mean pooling, or with cls pooling and of a model type that has a head for it
            (`classification_head.LAYOUTS`).
        head: h (B, D) → logits (B, C).
        label_map: the names of the C classes.
        beside: modules that are saved with it, each as ``<name>.safetensors``; a classifier as a folder ``<name>``.

    Raises:
        UserError: another pooling, modules after it, a model type without a head, or a head of the other pooling.
    """

    def __init__(
        self,
        encoder: Encoder,
        head: Head,
        label_map: LabelMap,
        beside: Optional[Dict[str, nn.Module]] = None,
    ):
        super().__init__()
        check_classifiable(encoder.hf.config, encoder.pooling, encoder.hf.config.model_type)
        if not isinstance(head, LinearHead):
            check_pooled(encoder.after.files, encoder.hf.config.model_type)
        if isinstance(head, LinearHead) != (encoder.pooling == "mean"):
            raise UserError(f"a {type(head).__name__} does not read vectors of pooling {encoder.pooling}")
        self.encoder, self.head, self.label_map = encoder, head, label_map
        self.beside = nn.ModuleDict(beside or {})

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        max_length: Optional[int] = None,
        path: str = "auto",
        perturb_at: str = "embedding",
        label_names: Optional[Sequence[str]] = None,
        device: str | torch.device = "cpu",
    ) -> "Classifier":
        """Opens a trained classifier: an export of a supervised run, or what AutoModelForSequenceClassification opens.

        Args:
            max_length, path, perturb_at, device: as `Encoder.from_pretrained` has them.
            label_names: what the classes are called, in the order of their numbers; None: as the model says.

        Raises:
            UserError: no such model or device, none with a trained head, or names that do not fit its classes.
        """
        source = find_model(model)
        label_map = classes_of(source, label_names)
        pooling = pooling_of_head(source)
        check_pooled(source.files.modules, model)
        head = load_head(source, label_map, is_trained=True, pooling=pooling)
        encoder = Encoder.from_pretrained(model, pooling, max_length, path=path, perturb_at=perturb_at, device=device)
        return cls(encoder, head.to(encoder.device), label_map).eval()

    def logits(self, x: Tensor, batch: PackedBatch, dropout: Optional[bool] = None) -> Tensor:
        """(B, C) of X (T, E)."""
        return self.head(self.encoder.encode(x, batch, dropout))

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits (B, C) of a clean pass, dropout as in training or not."""
        return self.logits(self.encoder.embed(batch), batch)

    @torch.no_grad()
    def classify_batch(self, batch: PackedBatch) -> Tensor:
        """Logits (B, C) without dropout and without a graph."""
        return self.logits(self.encoder.embed(batch, dropout=False), batch, dropout=False)

    def classify_texts(
        self, texts: Sequence[str], pairs: Optional[Sequence[str]] = None, batch_size: int = 64
    ) -> np.ndarray:
        """Logits (N, C) in float32, in the order of the texts.

        Args:
            pairs: the second text of each, for a classifier of pairs.

        Raises:
            TypeError: one text in the place of a list, or something that is no text.
        """
        texts = checked_texts(texts)
        found = np.empty((len(texts), len(self.label_map)), dtype=np.float32)
        for rows, batch in self.encoder.batches_of(texts, pairs, batch_size):
            found[rows] = self.classify_batch(batch).float().cpu().numpy()
        return found

    def save_pretrained(
        self, folder: str | Path, card: Optional[str] = None, state_dict: Optional[Dict[str, Tensor]] = None
    ) -> Path:
        """Writes an export that `from_pretrained` opens, and Encoder and SentenceTransformer without its head; see
        ``export/write.py``.

        With cls pooling AutoModelForSequenceClassification opens it with its label names; with mean pooling it cannot,
        for it knows no classifier of means.

        Args:
            card: README.md; None writes a short one.
            state_dict: weights of ``encoder.hf`` to write in place of its own.

        Raises:
            UserError: a head on vectors that modules after the pooling give.
        """
        check_pooled(self.encoder.after.files, self.encoder.hf.config.model_type)
        card = self.default_card() if card is None else card
        write_model = self._write_with_linear_head if self.encoder.pooling == "mean" else self._write_model
        return export_encoder(self.encoder, folder, card, state_dict, write_model)

    def default_card(self) -> str:
        """README.md of an export about whose training nothing was said."""
        return default_card(self.encoder, self.label_map)

    def _write_with_linear_head(self, folder: Path, state_dict: Optional[Dict[str, Tensor]]) -> None:
        hf = self.encoder.hf
        with quiet_transformers():
            hf.save_pretrained(folder, state_dict=weights_of(self.encoder, state_dict))
        # Once more, with the classes; the model's own configuration stays without them.
        labelled_config(hf.config, self.label_map).save_pretrained(folder)
        save_file(_on_cpu(self.head.state_dict()), folder / HEAD_FILE)
        self._write_beside(folder)

    def _write_model(self, folder: Path, state_dict: Optional[Dict[str, Tensor]]) -> None:
        from transformers import AutoModelForSequenceClassification

        hf = self.encoder.hf
        config = labelled_config(hf.config, self.label_map)
        with torch.device("meta"), quiet_transformers():
            model = AutoModelForSequenceClassification.from_config(config)
        weights = merged_state_dict(hf, state_dict)
        state = classifier_state(config, weights, self.head, model.base_model_prefix)
        model.load_state_dict(state, strict=True, assign=True)
        with quiet_transformers():
            model.save_pretrained(folder, state_dict=_on_cpu(state))
        self._write_beside(folder)

    def _write_beside(self, folder: Path) -> None:
        for name, module in self.beside.items():
            if isinstance(module, Classifier):
                note = "It was trained beside the classifier in the folder above it, which is the one to use."
                module.save_pretrained(folder / name, f"{module.default_card()}\n{note}\n")
                continue
            save_file(_on_cpu(module.state_dict()), folder / f"{name}.safetensors")


def _on_cpu(state: Dict[str, Tensor]) -> Dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}
