"""A classifier's accuracy under the worst small perturbation of its embeddings, against the radius.

    result = attack_classifier(classifier, data, AttackSettings(epsilons=(0.25, 0.5, 1.0)))
    result.is_right          # (K, N): whether each text stays right at each radius
    result.is_right_clean    # (N,)

A text counts as robust at a radius only where it is right without an attack, at every point that every run meets there
(each restart, each step size, and the attack transferred from another model), and at every smaller radius: what fools
it there lies in the larger ball. So accuracy never rises with the radius, nor with a run more.

The first run at a radius attacks every text, and its end says how far vectors move; further runs take only the texts
that are still right.

Shapes: ``N`` texts, ``K`` radii, ``D`` hidden size.
"""

from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fastadv.config.embedding_attack import DEFAULT_BATCH_SIZE, AttackSettings
from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.packing import PackedBatch
from fastadv.data.text import sentence_id
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.search import SEARCHES, Found, Radius, Target, attacking
from fastadv.evaluation.vectors.geometry import cosine_distances
from fastadv.files.progress import Bar

Part = Dict[str, np.ndarray]
"""what one radius gave, or the clean pass: one value a text by name"""


@dataclass(frozen=True)
class ClassifierUnderAttack:
    """What an attack found; row n of every array is text n."""

    settings: AttackSettings
    labels: np.ndarray
    """(N,) int64, by the model's own classes"""
    predicted: np.ndarray
    """(N,) int64, without an attack"""
    is_right_clean: np.ndarray
    """(N,) bool"""
    has_vanished: np.ndarray
    """(N,) bool: the gradient of the loss at the text itself is 0 or not finite"""
    is_right: np.ndarray
    """(K, N) bool: robust at each radius, as the module says"""
    is_right_first_run: np.ndarray
    """(K, N) bool: right clean and at every point of the first run of this radius alone"""
    is_right_transferred: Optional[np.ndarray]
    """(K, N) bool: likewise under the transferred attack alone; None without one"""
    distance_l2: Optional[np.ndarray]
    """(K, N) float64: ‖h_adv − h‖₂ at the end of the first run; None where it does not attack every text"""
    distance_cosine: Optional[np.ndarray]
    """(K, N) float64: 1 − cos(h_adv, h)"""

    @property
    def fooling_epsilon(self) -> np.ndarray:
        """(N,) float64: the smallest radius at which each text is fooled; 0 where it is wrong clean, inf for never."""
        radii = np.array([0.0, *self.settings.epsilons, np.inf])
        is_wrong = ~np.vstack([self.is_right_clean, self.is_right, np.zeros_like(self.is_right_clean)])
        return radii[is_wrong.argmax(axis=0)]


class Texts:
    """Labelled texts as one model reads them: tokenised once, batched by length whatever the order of the rows."""

    def __init__(self, classifier, data: LabelledTexts, batch_size: int = DEFAULT_BATCH_SIZE):
        encoder = classifier.encoder
        self.classifier, self._encoder, self._batch_size, self.num_texts = classifier, encoder, batch_size, len(data)
        if data.second is None:
            self.tokens, self._special = encoder.tokenize(data.first)
            self._types: Optional[List[List[int]]] = None
        else:
            self.tokens, self._special, self._types = encoder.tokenize_pairs(data.first, data.second)
        self.lengths = np.array([len(tokens) for tokens in self.tokens])
        self.labels = labels_of(classifier, data)

    def batches(self, rows: Sequence[int]) -> Iterator[Tuple[np.ndarray, PackedBatch, Tensor]]:
        """Rows, their batch and their labels (B,), longest texts first: what does not fit shows at once."""
        rows = np.asarray(rows, dtype=np.int64)
        order = rows[np.argsort(-self.lengths[rows], kind="stable")]
        for begin in range(0, len(order), self._batch_size):
            chosen = order[begin : begin + self._batch_size]
            yield chosen, self.pack(chosen), torch.as_tensor(self.labels[chosen], device=self._encoder.device)

    def targets(self, rows: Sequence[int], settings: AttackSettings, bar: Bar) -> Iterator[Tuple[np.ndarray, Target]]:
        """Rows and a target around them; ``bar`` counts those that were worked on."""
        bar.total += len(rows)
        for chosen, batch, labels in self.batches(rows):
            yield chosen, Target(self.classifier, batch, labels, settings.perturb_special_tokens)
            bar.update(len(chosen))

    def pack(self, rows: Sequence[int]) -> PackedBatch:
        tokens = [self.tokens[row] for row in rows]
        return PackedBatch.from_token_lists(
            tokens,
            [self._special[row] for row in rows],
            sentence_ids=[sentence_id(ids) for ids in tokens],
            token_type_lists=None if self._types is None else [self._types[row] for row in rows],
            position_offset=self._encoder.position_offset,
        ).to(self._encoder.device)


def labels_of(classifier, data: LabelledTexts) -> np.ndarray:
    """(N,) int64: the labels as the model numbers its classes.

    Raises:
        UserError: a label of the data that is no class of the model.
    """
    ids, names = classifier.label_map.label2id, [data.label_map.names[label] for label in data.labels]
    unknown = next((name for name in names if name not in ids), None)
    if unknown is not None:
        known = ", ".join(repr(name) for name in list(ids)[:20])
        raise UserError(f"the label {unknown!r} of the data is no class of the model; its classes are {known}")
    return np.array([ids[name] for name in names], dtype=np.int64)


def check_transfer(classifier, transfer_from) -> None:
    """Refuses a model whose perturbations do not fit the other's embeddings.

    Raises:
        UserError: texts are cut otherwise, or X has another width or another place.
    """
    mine, other = classifier.encoder, transfer_from.encoder
    differences = {
        "tokenizer": mine.tokenizer_fingerprint == other.tokenizer_fingerprint,
        f"max_length ({other.max_length} and {mine.max_length})": mine.max_length == other.max_length,
        f"embedding size ({other.embedding_size} and {mine.embedding_size})": mine.embedding_size
        == other.embedding_size,
        f"perturb_at ({other.perturb_at} and {mine.perturb_at})": mine.perturb_at == other.perturb_at,
    }
    differing = [name for name, is_equal in differences.items() if not is_equal]
    if differing:
        raise UserError(
            f"an attack can be transferred between models of one shape alone: these differ in {', '.join(differing)}"
        )


def attack_classifier(
    classifier,
    data: LabelledTexts,
    settings: AttackSettings,
    transfer_from=None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    progress: bool = False,
    kept: Callable[[int, Callable[[], Part]], Part] = lambda number, make: make(),
) -> ClassifierUnderAttack:
    """Attacks every text at every radius; see the module.

    Args:
        classifier: has ``encoder``, ``head`` and ``label_map``.
        transfer_from: another classifier of the same shape; perturbations found on it are tried on this one too.
        batch_size: texts a pass. It has no effect on the result, but for rounding.
        progress: show a bar a radius.
        kept: gives part ``number`` (a radius; -1 is the clean pass), which it makes where it has none.

    Raises:
        UserError: labels the model does not know, a model that does not fit, or logits that are not finite.
    """
    if transfer_from is not None:
        check_transfer(classifier, transfer_from)
    models = [classifier] if transfer_from is None else [classifier, transfer_from]
    texts = Texts(classifier, data, batch_size)
    source = None if transfer_from is None else labels_of(transfer_from, data)
    with attacking(*models):
        clean = kept(-1, lambda: _clean(texts))
        is_right, found = clean["is_right"], []
        for number, epsilon in enumerate(settings.epsilons):
            attack = _Attack(texts, settings, epsilon, clean["vectors"], transfer_from, source, progress)
            found.append(kept(number, lambda attack=attack, is_right=is_right: attack.run(is_right)))
            is_right = found[-1]["is_right"]
    stacked = {name: np.stack([part[name] for part in found]) for name in found[0]}
    return ClassifierUnderAttack(
        settings=settings,
        labels=texts.labels,
        predicted=clean["predicted"],
        is_right_clean=clean["is_right"],
        has_vanished=clean["has_vanished"],
        is_right=stacked["is_right"],
        is_right_first_run=stacked["is_right_first_run"] & clean["is_right"],
        is_right_transferred=None if transfer_from is None else stacked["is_right_transferred"] & clean["is_right"],
        distance_l2=stacked.get("distance_l2"),
        distance_cosine=stacked.get("distance_cosine"),
    )


def _clean(texts: Texts) -> Part:
    """The pass without an attack, with its gradient."""
    predicted, is_right = np.empty(texts.num_texts, np.int64), np.empty(texts.num_texts, bool)
    vectors = np.empty((texts.num_texts, texts.classifier.encoder.hidden_size))
    has_vanished = np.empty(texts.num_texts, bool)
    for rows, batch, labels in texts.batches(range(texts.num_texts)):
        target = Target(texts.classifier, batch, labels)
        # A search of no length: the classifier at the text itself, and its gradient there.
        found = SEARCHES["pgd"](target, target.zeros(), 0.0, 0.0, 1, "l2")
        if not found.end.losses.isfinite().all():
            bad = rows[(~found.end.losses.isfinite()).cpu().numpy()][0]
            raise UserError(f"the model's logits of row {bad} are not finite; there is nothing to attack")
        predicted[rows], is_right[rows] = found.end.predicted.cpu().numpy(), found.end.is_right.cpu().numpy()
        vectors[rows], has_vanished[rows] = found.end.vectors.double().cpu().numpy(), found.has_vanished.cpu().numpy()
    return {"predicted": predicted, "is_right": is_right, "vectors": vectors, "has_vanished": has_vanished}


@dataclass(frozen=True)
class _Attack:
    """All runs at one radius."""

    texts: Texts
    settings: AttackSettings
    epsilon: float
    clean_vectors: np.ndarray
    transfer_from: Optional[object]
    transfer_labels: Optional[np.ndarray]
    progress: bool

    def run(self, is_right: np.ndarray) -> Part:
        """``is_right`` (N,): the texts that no smaller radius has fooled; that of the part says who is left of them."""
        everyone, was_right, settings = np.arange(self.texts.num_texts), is_right, self.settings
        runs = [(size, restart) for size in settings.step_sizes for restart in range(settings.num_restarts)]
        with Bar(desc=f"{settings.method}, epsilon {self.epsilon:g}", unit=" texts", disable=not self.progress) as bar:
            bar.total = 0
            first = everyone if settings.measure_distances else everyone[is_right]
            part = self._first_run(first, *runs[0], bar)
            is_right = is_right & part["is_right"]
            if self.transfer_from is not None:
                # On every text, so that it can be compared with the first run.
                part["is_right_transferred"] = self._right_where(self._transferred(first, *runs[0], bar))
                is_right = is_right & part["is_right_transferred"]
            for size, restart in runs[1:]:
                found = self._searches(everyone[is_right], size, restart, bar)
                is_right = is_right & self._right_where((chosen, each.is_right) for chosen, each in found)
        part["is_right_first_run"] = part.pop("is_right")
        if not settings.measure_distances:
            # What was not attacked here has been fooled before.
            part = {name: values & was_right for name, values in part.items()}
        return {**part, "is_right": is_right}

    def _first_run(self, rows: np.ndarray, size: float, restart: int, bar: Bar) -> Part:
        count = self.texts.num_texts
        part = {"is_right": np.ones(count, bool)}
        distances = {"distance_l2": np.full(count, np.nan), "distance_cosine": np.full(count, np.nan)}
        for chosen, found in self._searches(rows, size, restart, bar):
            part["is_right"][chosen] = found.is_right.cpu().numpy()
            vectors, clean = found.end.vectors.double().cpu().numpy(), self.clean_vectors[chosen]
            distances["distance_l2"][chosen] = np.linalg.norm(vectors - clean, axis=1)
            distances["distance_cosine"][chosen] = cosine_distances(vectors, clean)
        return {**part, **distances} if self.settings.measure_distances else part

    def _right_where(self, outcomes: Iterable[Tuple[np.ndarray, Tensor]]) -> np.ndarray:
        """(N,) bool of rows and whether each is right (B,); texts that are not among them stay right."""
        is_right = np.ones(self.texts.num_texts, bool)
        for chosen, right in outcomes:
            is_right[chosen] = right.cpu().numpy()
        return is_right

    def _searches(self, rows, size: float, restart: int, bar: Bar) -> Iterator[Tuple[np.ndarray, Found]]:
        for chosen, target in self.texts.targets(rows, self.settings, bar):
            yield chosen, search(target, self.settings, self.epsilon, size, restart, chosen.tolist())

    def _transferred(self, rows, size: float, restart: int, bar: Bar) -> Iterator[Tuple[np.ndarray, Tensor]]:
        """Rows, and whether each is right under what a run on the other model ended at."""
        for chosen, here in self.texts.targets(rows, self.settings, bar):
            others = torch.as_tensor(self.transfer_labels[chosen], device=here.labels.device)
            there = Target(self.transfer_from, here.batch, others, self.settings.perturb_special_tokens)
            found = search(there, self.settings, self.epsilon, size, restart, chosen.tolist())
            yield chosen, here.at(found.end.delta).is_right


def search(
    target: Target, settings: AttackSettings, radius: Radius, size: float, restart: int, draws: Sequence[int]
) -> Found:
    """One run of the settings' method: from the text itself where ``restart`` is 0, else from a random point.

    Args:
        radius: a number, or one a text (B,); ``size``: the step as a multiple of it.
        draws: a number for each text that addresses its random start.
    """
    if restart == 0:
        start = target.zeros()
    else:
        start = target.random_delta(draws, (settings.seed, restart), radius, settings.norm)
    return SEARCHES[settings.method](target, start, radius, size * radius, settings.num_steps, settings.norm)


def with_rows(data: LabelledTexts, rows: Sequence[int]) -> LabelledTexts:
    """Some rows of labelled texts, in the order given."""
    second = None if data.second is None else [data.second[row] for row in rows]
    return replace(
        data, first=[data.first[row] for row in rows], second=second, labels=[data.labels[row] for row in rows]
    )
