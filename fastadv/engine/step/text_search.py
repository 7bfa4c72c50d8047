"""The search over texts: which of each sentence's proposals becomes its view, and the pass that makes the view.

    proposals   x~^1 ... x~^K of each sentence, drawn by the loader (`fastadv/data/edits`)
    losses      of all K from one pass without graph and dropout, against the keys, constants
    z_text = f(x~^k*)      k* the worst; under a mask of its own, with its graph
    z_flip = f(x-^k*)      likewise of the copies that say another thing, k* the one nearest to z

METHODS 8. A sentence without a proposal keeps itself; of equal losses the first proposal is taken.
"""

import math
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fastadv.config.text_search import TextSearchConfig
from fastadv.data.packing import PackedBatch
from fastadv.distributed.zero import is_cut_up
from fastadv.encoder.matrix_units import is_bf16_fast
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.micro_batch import MicroBatch
from fastadv.engine.step.passes import Passes
from fastadv.engine.step.views import joined
from fastadv.objectives.base import EditedView, Keys, Objective, Views

_TOKENS_ON_CPU = 2048
"""Tokens of a pass without graph on a CPU: larger passes leave its cache (8 x 755 tokens took 11 % longer in one)."""


class TextSearch:
    """Chooses and encodes the text views of a batch.

    Args:
        config: how proposals are chosen, and what the passes that compare them compute in.
        passes, objective: make vectors and losses of texts.
    """

    def __init__(self, config: TextSearchConfig, passes: Passes, objective: Objective):
        self._config, self._passes, self._objective = config, passes, objective

    def extend(self, views: Views, pieces: Sequence[MicroBatch], whole: GlobalBatch) -> tuple[Views, dict[str, Tensor]]:
        """``views`` with those of the texts that the objective asks for, and the search's metrics."""
        needs, keys = self._objective.needs, views.positive_keys
        if needs.text.is_positive:
            # Without z+, a sentence's own key is z.
            keys = whole.gather_keys(views.query.detach(), views.sentence_ids)
        chosen, gains = zip(*(self._worst(piece, keys) for piece in pieces))
        text = self._view(pieces, chosen, views, whole if needs.text.keys else None)
        metrics = {"num_unedited": (~text.is_present).sum() * whole.num_ranks}
        if gains[0] is not None:
            num_rows = text.is_present.sum().clamp(min=1)
            metrics["text_gain"] = torch.cat(gains).sum() / num_rows
        views = replace(views, text=text, positive_keys=text.keys if needs.text.is_positive else views.positive_keys)
        if needs.flip:
            queries = [None] * len(pieces) if views.query is None else self._of_pieces(views.query, pieces)
            flips = [self._nearest(piece, query) for piece, query in zip(pieces, queries, strict=True)]
            flip = self._view(pieces, flips, views, None)
            views, metrics["num_unflipped"] = replace(views, flip=flip), (~flip.is_present).sum() * whole.num_ranks
        return views, metrics

    def _worst(self, piece: MicroBatch, keys: Keys | None) -> tuple[PackedBatch, Tensor | None]:
        """The proposal of the highest loss of each sentence, and by how much it is above the mean of all (b,)."""
        drawn = _proposals_of(piece, "text")
        if self._config.choose == "random" or len(drawn) == 1:
            return drawn[0], None
        objective, batch = self._objective, piece.batch
        keys = None if keys is None else keys.detach().from_row(piece.first_row)
        losses = []
        with torch.no_grad():
            for pooled in self._pooled(drawn):
                query = objective.project(pooled, is_inner=True)
                views = Views(query, batch.sentence_ids, keys, pooled=pooled, labels=batch.labels, batch=batch)
                losses.append(objective.row_losses(views))
            index, values, is_present = first_highest(torch.stack(losses), _presence(drawn))
            highest = values.gather(0, index[None])[0]
            mean = torch.where(is_present, values, 0).sum(0) / is_present.sum(0).clamp(min=1)
        return PackedBatch.chosen(drawn, index), torch.where(is_present.any(0), highest - mean, 0)

    def _nearest(self, piece: MicroBatch, query: Tensor) -> PackedBatch:
        """The flipped copy of each sentence whose z has the highest cosine to ``query`` (b, D)."""
        drawn = _proposals_of(piece, "flip")
        if len(drawn) == 1:
            return drawn[0]
        with torch.no_grad():
            project = self._objective.project
            near = [F.cosine_similarity(project(h, is_inner=True), query, dim=-1) for h in self._pooled(drawn)]
            return PackedBatch.chosen(drawn, first_highest(torch.stack(near), _presence(drawn))[0])

    def _pooled(self, drawn: Sequence[PackedBatch]) -> Sequence[Tensor]:
        """h (b, D) of each of K sets of proposals, without graph and dropout; all in one pass on a GPU."""
        encoder, pooled = self._passes.encoder, []
        is_cpu = drawn[0].input_ids.device.type == "cpu"
        at_once = max(1, _TOKENS_ON_CPU // drawn[0].num_tokens) if is_cpu else len(drawn)
        with self._narrowed():
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

    @staticmethod
    def _of_pieces(rows: Tensor, pieces: Sequence[MicroBatch]) -> Sequence[Tensor]:
        return rows.detach().split([piece.sentences.num_sentences for piece in pieces])


def first_highest(values: Tensor, is_present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The first row of the highest value in each column among those present; row 0 where none is.

    Args:
        values: (K, b); one that is not a number is never the highest.
        is_present: (K, b) bool.

    Returns:
        the rows (b,) int64, ``values``, and ``is_present``.
    """
    known = values.nan_to_num(nan=-math.inf).masked_fill(~is_present, -math.inf)
    is_highest = known == known.max(dim=0).values
    rows = torch.arange(len(values), device=values.device)[:, None].expand_as(values)
    return torch.where(is_highest, rows, len(values)).min(dim=0).values, values, is_present


def _presence(drawn: Sequence[PackedBatch]) -> Tensor:
    """(K, b) bool."""
    return torch.stack([each.is_present for each in drawn])


def _proposals_of(piece: MicroBatch, side: str) -> Sequence[PackedBatch]:
    if side not in piece.sentences.proposals:
        raise ValueError(f"the batch has no proposals {side!r}, which the objective asks for")
    return piece.sentences.proposals[side]
