"""A frozen classifier whose probabilities are targets: the victim of soft labels.

Like a generator of replaced token detection it is no module of the objective's: DeepSpeed silently drops frozen
parameters from its checkpoints, and these need none. It is read again from its folder when a run goes on.
"""

from dataclasses import replace
from typing import Optional, Sequence

import torch
from torch import Tensor

from fastadv.data.labelled.labels import LabelMap, listed
from fastadv.data.packing import PackedBatch
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.encoder.weights.source import ModelSource, find_model, load_tokenizer
from fastadv.errors import UserError

KEY = "objective_options.victim"


class FrozenVictim:
    """batch → probabilities (B, C) of its texts, without dropout and without a graph, in float32 at least.

    Args:
        classifier: of the same vocabulary as the encoder that the batches are cut for.
        names: the run's classes in their order, the victim's own in any other.
        position_offset: of the batches, the encoder's own.
    """

    def __init__(self, classifier: Classifier, names: Sequence[str], position_offset: int):
        self._classifier = classifier.eval().requires_grad_(False)
        self._columns = [classifier.label_map.names.index(name) for name in names]
        self._moved = classifier.encoder.position_offset - position_offset
        self._last_type = max(classifier.encoder.num_token_types - 1, 0)

    def __call__(self, batch: PackedBatch) -> Tensor:
        classifier = self._classifier
        if classifier.encoder.device != batch.input_ids.device:
            classifier.to(batch.input_ids.device)
        own = replace(
            batch,
            position_ids=batch.position_ids + self._moved,
            token_type_ids=batch.token_type_ids.clamp(max=self._last_type),
        )
        logits = classifier.classify_batch(own)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits.softmax(1)[:, self._columns]


def check_victim(name: str, tokenizer, max_length: int, names: Optional[Sequence[str]] = None) -> ModelSource:
    """Finds a classifier and refuses one that cannot read f's tokens, or has other classes. Reads no weights.

    Args:
        tokenizer, max_length: of f.
        names: the run's classes, where they are known.

    Raises:
        UserError: one line.
    """
    try:
        source = find_model(name)
        theirs = load_tokenizer(source).get_vocab()
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from error
    if tokenizer.get_vocab() != theirs:
        raise UserError(
            f"{KEY} = {name}: its vocabulary of {len(theirs)} tokens is not the encoder's of "
            f"{len(tokenizer.get_vocab())}; expected a classifier of the same vocabulary, for both read the same tokens"
        )
    if source.num_positions is not None and source.num_positions < max_length:
        raise UserError(
            f"{KEY} = {name}: it has {source.num_positions} positions, fewer than encoder.max_length = {max_length}"
        )
    try:
        found = LabelMap.from_config(source.config).names
    except UserError as error:
        raise UserError(f"{KEY} = {name}: {error}") from error
    if names is not None and sorted(found) != sorted(names):
        raise UserError(f"{KEY} = {name}: its classes are {listed(found)}; expected those of the data, {listed(names)}")
    return source


def build_victim(name: str, encoder, names: Sequence[str], dtype: Optional[torch.dtype] = None) -> FrozenVictim:
    """The victim of a name, for batches cut for ``encoder``; it computes in ``dtype``, by default float32.

    Raises:
        UserError: no such classifier, or one that cannot serve.
    """
    check_victim(name, encoder.tokenizer, encoder.max_length, names)
    try:
        classifier = Classifier.from_pretrained(name)
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from error
    return FrozenVictim(classifier.to(encoder.device, dtype), names, encoder.position_offset)
