"""What an objective is, and how one is found by name.

An objective declares which views of a sentence it needs, which loss makes the inner gradient and which the outer one.
It owns its heads. It knows nothing of DeepSpeed, files, devices, or of how the views were computed: the step
(`fastadv/engine/step/step.py`) hands it vectors. To add a system, copy `simcse.py` and name the file in ``SHIPPED``, or
keep it in a package of your own and pass ``--objective my_package.my_module:MyObjective``.
"""

import copy
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Callable, Mapping, Optional, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fastadv.config.own_class import find_class
from fastadv.config.search_plan import SearchPlan
from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError
from fastadv.objectives.needs import Needs
from fastadv.objectives.options import check_bounds
from fastadv.objectives.original import OriginalEncoder, copy_of
from fastadv.objectives.ranks import ALONE, Ranks
from fastadv.objectives.sentences.rtd import ReplacedTokenDetection, build_detection
from fastadv.objectives.texts.victims import build_victim
from fastadv.perturbation import Search
from fastadv.perturbation.chains import MixedSearch

SHIPPED = {
    "simcse": "fastadv.objectives.sentences.simcse:SimCSE",
    "robustsentembed": "fastadv.objectives.sentences.robustsentembed:RobustSentEmbed",
    "uscal": "fastadv.objectives.sentences.uscal:USCAL",
    "fine_tuning": "fastadv.objectives.classes.fine_tuning:FineTuning",
    "adversarial_training": "fastadv.objectives.classes.adversarial_training:AdversarialTraining",
    "scal": "fastadv.objectives.classes.scal:SCAL",
    "carl": "fastadv.objectives.classes.carl:CARL",
    "rar": "fastadv.objectives.classes.rar:RAR",
    "smart": "fastadv.objectives.classes.smart:SMART",
    "text_adversarial": "fastadv.objectives.classes.text_adversarial:TextAdversarial",
    "safer": "fastadv.objectives.texts.safer:SAFER",
    "ada": "fastadv.objectives.texts.ada:ADA",
    "base_adv": "fastadv.objectives.texts.base_adv:BaseAdv",
    "a2t": "fastadv.objectives.texts.a2t:A2T",
    "bat_pairwise": "fastadv.objectives.texts.bat:BATPairwise",
    "bat_triplet": "fastadv.objectives.texts.bat:BATTriplet",
    "taichi": "fastadv.objectives.texts.taichi:TaiChi",
}


@dataclass(frozen=True)
class Keys:
    """Vectors the queries are compared with: those of the global batch."""

    vectors: Tensor
    """(M, D)"""
    sentence_ids: Tensor
    """(M,) equal for equal sentences"""
    row_offset: int = 0
    """the key of this process's row i is row_offset + i"""
    num_ranks: int = 1
    """processes that have a share of the M rows"""
    hard_negatives: Optional[Tensor] = None
    """(M, D) a given negative of each key's sentence, and a negative of every other; None where none are given"""
    hard_negative_ids: Optional[Tensor] = None
    """(M,) their own sentence ids"""

    @property
    def rows_a_rank(self) -> float:
        """What a sum over this rank's rows is divided by; see `Views.mean`."""
        return len(self.vectors) / self.num_ranks

    def with_hard_negatives(self, given: "Keys") -> "Keys":
        """These keys, and the vectors of ``given``, of the same sentences in the same order, as hard negatives."""
        return replace(self, hard_negatives=given.vectors, hard_negative_ids=given.sentence_ids)

    def from_row(self, row: int) -> "Keys":
        """The same keys for queries that begin with this process's row ``row``."""
        return replace(self, row_offset=self.row_offset + row)

    def detach(self) -> "Keys":
        """The same keys as constants."""
        hard = None if self.hard_negatives is None else self.hard_negatives.detach()
        return replace(self, vectors=self.vectors.detach(), hard_negatives=hard)


@dataclass(frozen=True)
class Variant:
    """What a network makes of another text of each sentence."""

    pooled: Tensor
    """(B, D) h of the text; of a missing one, h of the sentence itself in its place"""
    is_present: Tensor
    """(B,) bool"""
    batch: PackedBatch
    """the texts, T' tokens of them"""
    tokens: Optional[Tensor] = None
    """(T', D) last hidden states; where `Needs.tokens`"""


@dataclass(frozen=True)
class EditedView:
    """What the encoder makes of the proposal that was chosen of each sentence."""

    query: Tensor
    """(B, D) z_text; of a sentence without a proposal, the view of the sentence itself under another mask"""
    pooled: Tensor
    """(B, D) h, what z_text is the projection of"""
    is_present: Tensor
    """(B,) bool, whether the sentence has a proposal"""
    keys: Optional[Keys] = None
    """z_text of the global batch; where `TextView.keys`"""


@dataclass(frozen=True)
class SecondViews:
    """What the second network makes of the same texts; where `Needs.second_network`."""

    pooled: Optional[Tensor]
    """(B, D) h of the clean pass; None without `Needs.clean`"""
    variants: Mapping[str, Variant]
    tokens: Optional[Tensor] = None
    """(T, D) last hidden states of the clean pass; where `Needs.tokens`"""


@dataclass(frozen=True)
class Views:
    """Everything a loss may use, with its graph.

    In the inner loss ``query`` and ``pooled`` are those of the perturbed point, and the keys are constants.
    """

    query: Optional[Tensor]
    """(B, D) z, the clean pass under the first dropout mask; None without `Needs.clean`"""
    sentence_ids: Tensor
    """(B,)"""
    positive_keys: Optional[Keys] = None
    """z+ of the global batch: given positive texts, or a clean pass under the second mask; where `Needs.positive`"""
    adversarial: Optional[Tensor] = None
    """(B, D) z_adv = f(X + delta); where `Needs.adversarial`"""
    adversarial_keys: Optional[Keys] = None
    """z_adv of the global batch; where `AdversarialView.keys`"""
    rows_a_rank: Optional[float] = None
    """rows of the global batch over ranks; None on one process, whose B rows are all there are"""
    pooled: Optional[Tensor] = None
    """(B, D) h of the clean pass, what z is the projection of; None without `Needs.clean`"""
    adversarial_pooled: Optional[Tensor] = None
    """(B, D) h of the adversarial pass; where `Needs.adversarial`"""
    adversarial_tokens: Optional[Tensor] = None
    """(T, D) last hidden states of the adversarial pass; where `AdversarialView.tokens`, and of N passes the last"""
    anchor: Optional[Tensor] = None
    """(B, D) in the inner loss alone: h of the unperturbed point under the inner passes' masks, a constant; where
    `AdversarialView.anchor`"""
    average_logits: Optional[Tensor] = None
    """(B, C) of the average model, constants; where `Needs.average`"""
    labels: Optional[Tensor] = None
    """(B,) int64, the class of each sentence; None where there are none"""
    batch: Optional[PackedBatch] = None
    """the sentences themselves"""
    tokens_a_rank: Optional[float] = None
    """real tokens of the global batch over ranks; None on one process"""
    ranks: Optional[Ranks] = None
    """the ranks that share the global batch; None on one process"""
    last_pass: float = 1.0
    """factor of a term that only the last pass has: where N passes train (`reuse: free`) each counts 1/N, so it is N on
    the last and 0 on the others; 1 where there are no such passes"""
    tokens: Optional[Tensor] = None
    """(T, D) last hidden states of the clean pass; where `Needs.tokens`"""
    variants: Mapping[str, Variant] = field(default_factory=dict)
    """other texts of the sentences by name; those of `Needs.variants` that this epoch has any of"""
    second: Optional[SecondViews] = None
    """the second network's; where `Needs.second_network`"""
    text: Optional[EditedView] = None
    """the worst proposal of each sentence; where `Needs.text`"""
    flip: Optional[EditedView] = None
    """the nearest flipped copy of each sentence; where `Needs.flip`"""

    def mean(self, row_losses: Tensor) -> Tensor:
        """The mean of ``row_losses`` (B,) over the global batch.

        On several ranks it is this rank's part times their number: averaged over ranks, as gradients are, it is the
        mean over all rows also where ranks have unequal shares.
        """
        return row_losses.sum() / (len(row_losses) if self.rows_a_rank is None else self.rows_a_rank)

    def masked_mean(self, row_losses: Tensor, is_counted: Tensor) -> Tensor:
        """The mean of ``row_losses`` (B,) over those rows of the global batch where ``is_counted`` (B,) bool; 0 where
        there are none. Ranks as in `mean`."""
        ranks = self.ranks or ALONE
        # Whole numbers: bfloat16 has none between 256 and 258.
        num_counted = ranks.gather(is_counted.long()).sum()
        return torch.where(is_counted, row_losses, 0).sum() * ranks.num_ranks / num_counted.clamp(min=1)

    def gather(self, vectors: Tensor) -> Keys:
        """``vectors`` (B, D) of all ranks' sentences, with their graph, as keys."""
        ranks = self.ranks or ALONE
        return Keys(ranks.gather(vectors), ranks.gather(self.sentence_ids), ranks.row_offset, ranks.num_ranks)


@dataclass(frozen=True)
class RunFacts:
    """What an objective may know of the run it is part of."""

    num_rows: int
    """sentences of the training data; ``batch.row_ids`` are below it"""
    batches_per_epoch: int
    total_steps: int
    seed: int = 0
    row_labels: Optional[np.ndarray] = None
    """(num_rows,) int64, the class of each; None where there are none"""
    label_names: Optional[Sequence[str]] = None
    """of the classes, in the order of their ids"""
    accumulation_steps: int = 1
    """batches of an optimizer step"""
    ranks: Ranks = ALONE
    """who else takes part, for state that is shared out"""


@dataclass(frozen=True)
class Materials:
    """What a run hands to an objective for the networks it has beside the encoder."""

    label_names: Sequence[str] | None = None
    """Names of the classes, in the order of their ids; None where there are none."""
    token_counts: Callable[[], Tensor] | None = None
    """() → (V,) how often each token occurs in the training data; None where there are no data."""
    frozen_dtype: torch.dtype | None = None
    """Type that frozen models compute in; None: float32."""


@dataclass(frozen=True)
class Companions:
    """Networks that the step trains beside the encoder. It owns them, for checkpoints know them by its names."""

    detection: ReplacedTokenDetection | None = None
    """Discriminator of replaced tokens with its frozen generator, where `Needs.detection`."""
    second: nn.Module | None = None
    """Second encoder, where `Needs.second_network`."""


@dataclass(frozen=True)
class LossSizes:
    """Sizes of a batch over all ranks, and of the encoder, that the FLOPs of a loss depend on."""

    num_sentences: int
    num_tokens: float
    hidden_size: int
    embedding_size: int
    vocab_size: int
    num_passes: int = 1
    """Passes of which each has the loss: those of ``reuse: free``, else 1."""

    @property
    def comparison(self) -> float:
        """FLOPs of comparing the vectors (B, D) of all sentences with each other, forward."""
        return 2.0 * self.num_sentences**2 * self.hidden_size


OLD_FLAGS = {
    *("uses_positive", "uses_adversary", "uses_keys", "uses_clean", "uses_anchor", "uses_average", "uses_tokens"),
    *("uses_adversarial_tokens", "uses_second_network", "uses_labels", "attack_at_epochs", "perturbation_methods"),
    *("variants", "victim", "raised_term", "detection"),
}
"""Names by which an objective said what it needs before `Needs`; one that still does is refused, not ignored"""


class Objective(nn.Module):
    """Base of all objectives.

    A subclass's constructor takes ``hidden_size`` and then its options, keyword-only, typed, with defaults: the
    config's ``objective_options`` are checked against that signature before anything loads, and against its bounds
    (``fastadv.config.bounds``).
    """

    needs = Needs()
    """What the step and the run compute for the objective."""
    num_gathered = 0
    """Sets of vectors (B, D) that the loss itself gathers over ranks, beside those that the needs name."""

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        old = sorted(OLD_FLAGS & vars(cls).keys())
        if old:
            raise TypeError(
                f"{cls.__name__}.{old[0]}: expected `needs = Needs(...)`, whose fields took the flags' place"
            )

    def __new__(cls, *given, **options):
        # Before any constructor: the bounds stand in the signatures alone.
        check_bounds(cls, options)
        return super().__new__(cls)

    def __init__(self, hidden_size: int):
        super().__init__()
        self.hidden_size = hidden_size
        # h (B, D) of the second network → logits (B, C).
        self.second_classifier: Optional[nn.Module] = None
        # Texts → the victim's probabilities (B, C), constants; no module, so that DeepSpeed does not find it.
        self.victim_probabilities: Optional[Callable[[PackedBatch], Tensor]] = None
        # Sentences → h (B, D) of the encoder before training, constants; no module either.
        self.original_vectors: Optional[Callable[[PackedBatch], Tensor]] = None

    @classmethod
    def needs_under(cls, options: Mapping[str, Any]) -> Needs:
        """What an objective of these options needs of the search over texts, before one is made: `Needs.text` and
        `Needs.flip` are right, the rest may be what the class states."""
        return cls.needs

    def project(self, pooled: Tensor, is_inner: bool = False) -> Tensor:
        """z (B, D) of the pooled vectors h (B, D); in inner steps no running statistic may change."""
        raise NotImplementedError

    def inner_loss(self, views: Views) -> Tensor:
        """The loss the perturbation raises: a scalar, SUMMED over rows, each row's part of its own vector only.

        ``views`` has the perturbed point's ``query`` and ``pooled``, ``sentence_ids``, ``labels``, ``batch``, and
        ``positive_keys`` and ``anchor`` as constants.
        """
        raise NotImplementedError

    def row_losses(self, views: Views) -> Tensor:
        """(B,) what the text search raises: the inner loss of each row, at one proposal a sentence; no graph is kept.

        ``views`` is as in `inner_loss`, without ``anchor``. Called where the objective has `Needs.text`.
        """
        raise NotImplementedError

    def make_search(self, plan: SearchPlan) -> Search:
        """How the perturbation moves, where ``perturbation.search`` names no other search."""
        return MixedSearch(plan)

    def loss(self, views: Views) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss the parameters lower (a scalar), and its terms by name, detached.

        Terms are logged; a name that is not in `TERMS` (terms.py) as ``own/<name>``.
        """
        raise NotImplementedError

    def bind(self, encoder: nn.Module) -> None:
        """Once, after the constructor: for parameters whose sizes are the encoder's, and those that both use.

        A parameter of the encoder's must not become one of the objective's, which would register it twice: keep the
        way to it, not the parameter. ``encoder.word_embeddings`` is (V, E), and may be without memory (a dry run's).
        """
        if self.needs.second_network:
            self.second_classifier = copy.deepcopy(self.classifier)

    def companions(self, encoder: nn.Module, materials: Materials) -> Companions:
        """Once, after `bind`: makes the networks that start from the encoder's weights or keep them, and reads the
        victim.

        Raises:
            UserError: no such victim or generator, or one that cannot serve.
        """
        needs, detection, second = self.needs, None, None
        if needs.victim is not None:
            names, dtype = materials.label_names, materials.frozen_dtype
            self.victim_probabilities = build_victim(needs.victim, encoder, names, dtype)
        if needs.original:
            self.original_vectors = OriginalEncoder(encoder, materials.frozen_dtype)
        if needs.second_network:
            second = copy_of(encoder)
        if needs.detection is not None:
            detection = build_detection(needs.detection, encoder, materials.token_counts, materials.frozen_dtype)
        return Companions(detection, second)

    @property
    def num_contrasts(self) -> int:
        """Sets of keys that the loss compares queries with; read by `loss_flops` alone."""
        return 0 if self.needs.labels else 1 + (self.needs.adversarial is not None)

    def inner_loss_flops(self, sizes: LossSizes) -> float:
        """FLOPs of the forward of `inner_loss` beside `heads`: a classifier's cross-entropy compares nothing."""
        return 0.0 if self.needs.labels else sizes.comparison

    def loss_flops(self, sizes: LossSizes) -> dict[str, float]:
        """FLOPs of `loss` and its gradient by part, beside `heads`."""
        return {"contrastive losses": 3 * self.num_contrasts * sizes.num_passes * sizes.comparison}

    def heads(self) -> list[nn.Module]:
        """Modules that each pass of the encoder runs at its pooled vectors (B, D)."""
        return [part for name, part in self.named_children() if name != "second_classifier"]

    def decay_of_average(self, step: int) -> float:
        """What is left of the average model in optimizer step ``step``, counted from 1; where `Needs.average`."""
        raise NotImplementedError

    def exported_beside(self) -> dict[str, nn.Module]:
        """Modules that are saved beside an exported classifier, each as ``<name>.safetensors``."""
        return {}

    def begin(self, run: RunFacts) -> None:
        """Once, before the first step or the load of a checkpoint: what of the run an objective may ask."""

    def commit(self) -> None:
        """After an optimizer step."""

    def discard(self) -> None:
        """After a batch that is not stepped on: what its loss noted for `commit` is forgotten."""

    def stateful(self) -> list[Any]:
        """Owners of ``state_dict()`` and ``load_state_dict()``, tensors by name: what a checkpoint keeps beside
        parameters and buffers. The same on all ranks; names must differ."""
        return []


def resolve_objective(name: str) -> type[Objective]:
    """The class behind a shipped name or a ``my_package.my_module:MyObjective``.

    Raises:
        UserError: an unknown name, a module that does not import, or a class that is no Objective.
    """
    if name in SHIPPED:
        module_name, _, class_name = SHIPPED[name].partition(":")
        return getattr(import_module(module_name), class_name)
    if ":" not in name:
        raise UserError(
            f"objective: {name!r} is unknown; shipped are {', '.join(SHIPPED)}; "
            "your own is named my_package.my_module:MyObjective"
        )
    return find_class(name, Objective, "objective")
