"""The search over texts: which of each sentence's proposals becomes its view, and the pass that makes the view.

    proposals   x~^1 ... x~^K of each sentence, drawn by the loader (`fastadv/data/edits`)
    losses      of all K from one pass without graph and dropout, against the keys, constants
    z_text = f(x~^k*)      k* the worst; under a mask of its own, with its graph
    z_flip                 the same for the copies that say another thing, of which the one nearest to z is taken

METHODS 8. A sentence without a proposal keeps itself; of equal losses the first proposal is taken. Under ``choose:
gradient`` no proposal is compared: the words are edited where the inner loss has its largest gradient at X.
"""

import math
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Iterator, NamedTuple, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.config.search_plan import SearchPlan
from fastadv.config.text_search import TextSearchConfig
from fastadv.data.edits.word_tokens import with_edited_words
from fastadv.data.packing import PackedBatch
from fastadv.distributed.zero import is_cut_up
from fastadv.encoder.matrix_units import is_bf16_fast
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.inner_loss import InnerLoss
from fastadv.engine.step.micro_batch import MicroBatch
from fastadv.engine.step.passes import CleanPasses, Passes
from fastadv.engine.step.views import joined
from fastadv.objectives.base import EditedView, Keys, Objective, Views
from fastadv.perturbation import Adversary

_TOKENS_ON_CPU = 2048
"""Tokens of a pass without graph on a CPU: larger passes leave its cache (8 x 755 tokens took 11 % longer in one)."""


class TextSearch:
    """Chooses and encodes the text views of a batch.

    Args:
        config: how proposals are chosen, and what the passes that compare them compute in.
        passes, objective: make vectors and losses of texts.
        plan: how perturbations of embeddings are searched; says which tokens have a gradient.
    """

    def __init__(self, config: TextSearchConfig, passes: Passes, objective: Objective, plan: SearchPlan):
        self._config, self._passes, self._objective = config, passes, objective
        self._adversary = Adversary(plan, passes.encoder, objective)

    def extend(
        self, views: Views, pieces: Sequence[MicroBatch], clean: Sequence[CleanPasses], whole: GlobalBatch
    ) -> tuple[Views, dict[str, Tensor]]:
        """``views`` with those of the texts that the objective asks for, and the search's metrics."""
        needs, keys = self._objective.needs, views.positive_keys
        if needs.text.is_positive:
            # Without z+, a sentence's own key is z.
            keys = whole.gather_keys(views.query.detach(), views.sentence_ids)
        keys = None if keys is None else keys.detach()
        # Weights are cast once for all that is compared; a gradient is taken in the step's own type.
        compares = self._config.choose == "worst"
        with self._narrowed() if compares else nullcontext():
            picks, gains = zip(*(self._chosen(*of_piece, keys) for of_piece in zip(pieces, clean, strict=True)))
            if needs.flip:
                queries = views.query.detach().split([piece.sentences.num_sentences for piece in pieces])
                picks += tuple(self._nearest(piece, query) for piece, query in zip(pieces, queries, strict=True))
        texts = _taken(picks)
        text = self._view(pieces, texts[: len(pieces)], views, whole if needs.text.keys else None)
        metrics = {"num_unedited": (~text.is_present).sum() * whole.num_ranks}
        if gains[0] is not None:
            metrics["text_gain"] = views.masked_mean(torch.cat(gains), text.is_present)
        views = replace(views, text=text, positive_keys=text.keys if needs.text.is_positive else views.positive_keys)
        if needs.flip:
            flip = self._view(pieces, texts[len(pieces) :], views, None)
            views, metrics["num_unflipped"] = replace(views, flip=flip), (~flip.is_present).sum() * whole.num_ranks
        return views, metrics

    def _chosen(self, piece: MicroBatch, clean: CleanPasses, keys: Keys | None) -> tuple["Pick", Tensor | None]:
        """The text of each sentence that becomes its view, and the loss gained by the choice (b,), where it is known.

        Args:
            keys: of the whole batch, constants.
        """
        drawn = _proposals_of(piece, "text")
        keys = None if keys is None else keys.from_row(piece.first_row)
        if drawn[0].words is not None:
            return Pick([self._at_gradient(piece, clean, keys, *drawn)]), None
        if self._config.choose == "random" or len(drawn) == 1:
            return Pick(drawn[:1]), None
        return self._worst(piece.batch, keys, drawn)

    def _worst(self, batch: PackedBatch, keys: Keys | None, drawn: Sequence[PackedBatch]) -> tuple["Pick", Tensor]:
        """The proposal of the highest loss of each sentence, and by how much it is above the mean of all (b,)."""
        objective, losses = self._objective, []
        with torch.no_grad():
            for pooled in self._pooled(drawn):
                query = objective.project(pooled, is_inner=True)
                views = Views(query, batch.sentence_ids, keys, pooled=pooled, labels=batch.labels, batch=batch)
                losses.append(objective.row_losses(views))
            values, is_present = torch.stack(losses), _presence(drawn)
            index = first_highest(values, is_present)
            highest = values.gather(0, index[None])[0]
            mean = torch.where(is_present, values, 0).sum(0) / is_present.sum(0).clamp(min=1)
        return Pick(drawn, index), torch.where(is_present.any(0), highest - mean, 0)

    def _at_gradient(
        self, piece: MicroBatch, clean: CleanPasses, keys: Keys | None, own: PackedBatch, edited: PackedBatch
    ) -> PackedBatch:
        """The sentences with those words edited whose tokens have the largest gradients of the inner loss at X."""
        encoder, batch = self._passes.encoder, piece.batch
        with torch.no_grad():
            x = clean.x()
        grad = self._adversary.gradient(x, batch, InnerLoss(encoder, self._objective, batch, keys, None))
        # A sentence has fewer words than tokens.
        num_sentences, num_words = own.num_sentences, own.max_seqlen
        place = own.token_sentence * num_words + own.words.clamp(min=0)
        size = torch.where(own.words >= 0, grad.norm(dim=1).nan_to_num(nan=0.0), 0)
        sizes = size.new_zeros(num_sentences * num_words).index_add(0, place, size).view(num_sentences, num_words)
        is_word = torch.zeros_like(sizes, dtype=torch.int64).flatten()
        is_word = is_word.index_add(0, place, (own.words >= 0).long()).view_as(sizes) > 0
        order = sizes.masked_fill(~is_word, -1).argsort(dim=1, descending=True, stable=True)
        is_among_first = torch.arange(num_words, device=order.device) < edited.num_edits[:, None]
        is_edited = torch.zeros_like(is_word).scatter(1, order, is_among_first) & is_word
        return with_edited_words(own, edited, is_edited, encoder.max_length)

    def _nearest(self, piece: MicroBatch, query: Tensor) -> "Pick":
        """The flipped copy of each sentence whose z has the highest cosine to ``query`` (b, D)."""
        drawn = _proposals_of(piece, "flip")
        if len(drawn) == 1:
            return Pick(drawn)
        with torch.no_grad():
            project = self._objective.project
            near = [F.cosine_similarity(project(h, is_inner=True), query, dim=-1) for h in self._pooled(drawn)]
            return Pick(drawn, first_highest(torch.stack(near), _presence(drawn)))

    def _pooled(self, drawn: Sequence[PackedBatch]) -> Sequence[Tensor]:
        """h (b, D) of each of K sets of proposals, without graph and dropout; on a GPU as many sets in a pass as the
        encoder has layers."""
        encoder, pooled = self._passes.encoder, []
        is_cpu = drawn[0].input_ids.device.type == "cpu"
        # Without a graph one layer's states are held at a time, of no more texts than the layers of a pass that trains
        # hold: the comparison never needs the step's most memory. Where ranks fetch parameters together, all of them
        # make equally many passes.
        is_small = is_cpu and not is_cut_up(encoder)
        at_once = max(1, _TOKENS_ON_CPU // drawn[0].num_tokens) if is_small else encoder.num_layers
        for first in range(0, len(drawn), at_once):
            part = drawn[first : first + at_once]
            texts = PackedBatch.end_to_end(part)
            h = encoder.encode(encoder.embed(texts, dropout=False), texts, dropout=False)
            pooled += h.chunk(len(part))
        return pooled

    @contextmanager
    def _narrowed(self) -> Iterator[None]:
        """Inside, the encoder computes in the type that proposals are compared in."""
        encoder, precision = self._passes.encoder, self._config.precision
        if precision == "auto":
            # Pieces of weights that ranks share cannot be cast here.
            precision = "bf16" if is_bf16_fast(encoder.device) and not is_cut_up(encoder) else "fp32"
        is_narrow = precision == "bf16" and encoder.dtype != torch.bfloat16
        with encoder.computing_in(torch.bfloat16) if is_narrow else nullcontext():
            yield

    def _view(
        self, pieces: Sequence[MicroBatch], texts: Sequence[PackedBatch], views: Views, whole: GlobalBatch | None
    ) -> EditedView:
        """The view of one text of each sentence; ``whole`` gathers its keys, None: it has none."""
        encode, project = self._passes.encode_texts, self._objective.project
        pooled = joined([piece.run(encode, replace(of_piece))[0] for piece, of_piece in zip(pieces, texts)])
        query, is_present = project(pooled), torch.cat([of_piece.is_present for of_piece in texts])
        keys = None if whole is None else whole.gather_keys(query, views.sentence_ids)
        return EditedView(query, pooled, is_present, keys)


class Pick(NamedTuple):
    """Proposals of b sentences, and which of them is taken for each."""

    drawn: Sequence[PackedBatch]
    index: Tensor | None = None
    """(b,) int64; None: the first"""


def _taken(picks: Sequence[Pick]) -> list[PackedBatch]:
    """The texts that were picked. A GPU is asked once, for which they are."""
    asked = [pick.index for pick in picks if pick.index is not None]
    on_host = iter(torch.cat(asked).tolist() if asked else [])
    return [
        pick.drawn[0]
        if pick.index is None
        else PackedBatch.chosen(pick.drawn, pick.index, list(islice(on_host, len(pick.index))))
        for pick in picks
    ]


def first_highest(values: Tensor, is_present: Tensor) -> Tensor:
    """(b,) the first row of the highest value in each column among those present; row 0 where none is.

    Args:
        values: (K, b); one that is not a number counts as the lowest.
        is_present: (K, b) bool.
    """
    lowest = torch.finfo(values.dtype).min
    known = values.nan_to_num(nan=lowest, neginf=lowest).masked_fill(~is_present, -math.inf)
    is_highest = known == known.max(dim=0).values
    rows = torch.arange(len(values), device=values.device)[:, None].expand_as(values)
    return torch.where(is_highest, rows, len(values)).min(dim=0).values


def _presence(drawn: Sequence[PackedBatch]) -> Tensor:
    """(K, b) bool."""
    return torch.stack([each.is_present for each in drawn])


def _proposals_of(piece: MicroBatch, side: str) -> Sequence[PackedBatch]:
    if side not in piece.sentences.proposals:
        raise ValueError(f"the batch has no proposals {side!r}, which the objective asks for")
    return piece.sentences.proposals[side]
