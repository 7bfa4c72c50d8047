"""The CPU's form of ``info_nce``: matrix products over blocks of rows and columns, in float32.

The logits of 1024 rows at most exist at a time, in tiles of 1024 columns: 4 MiB, which two cores' caches hold between
the product that makes a tile and what reads it. Smaller tiles are no faster, and their threads wait for each other more
often. One matrix product gives the losses. With the gradients it takes three, if each row's share in the result is
known beforehand (``total``: the tiles of a block of rows are kept until the rows' log-sum-exps are known), and
four if it only comes with the backward pass (``forward``, ``backward``).
Logits that are no negatives are set to -inf by their index: pairs of equal ids are found by sorting, never by an (N, M)
comparison.
"""

import math
from dataclasses import dataclass
from typing import Iterator, Optional

import torch
from torch import Tensor

from .info_nce_rows import row_losses, row_scales

ROWS = 1024
COLUMNS = 1024
KEPT_BYTES = 64 * 2**20
FEWEST_ROWS = 64
"""Below this many rows the products slow down; their tiles take less memory than the keys from D = 64 on."""


def normalised(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of length 1 in float32, and the two factors (R, 1) of the lengths they had: x = unit · size · magnitude.

    A zero row stays zero, with magnitude 0. Two factors, since a length may leave float32's range.
    """
    unit = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    magnitude, size = unit.new_empty(len(x), 1), unit.new_empty(len(x), 1)
    for rows in _blocks(len(x), COLUMNS):
        part = x[rows].float()
        magnitude[rows] = part.abs().amax(dim=1, keepdim=True)
        torch.div(part, magnitude[rows].masked_fill(magnitude[rows] == 0, 1), out=unit[rows])
        total = unit[rows].square().sum(dim=1, keepdim=True)
        size[rows] = total.masked_fill_(total == 0, 1).sqrt_()
        unit[rows] /= size[rows]
    return unit, magnitude, size


def through_normalisation(grad_unit: Tensor, unit: Tensor, magnitude: Tensor, size: Tensor) -> Tensor:
    """Turns the derivative by unit vectors into the one by the vectors as they were given, in place."""
    for rows in _blocks(len(unit), COLUMNS):
        grad, direction = grad_unit[rows], unit[rows]
        along = (grad * direction).sum(dim=1, keepdim=True)
        grad.addcmul_(direction, along, value=-1).div_(size[rows])
        grad.div_(magnitude[rows]).masked_fill_(magnitude[rows] == 0, 0)
    return grad_unit


def _blocks(length: int, block: int) -> Iterator[slice]:
    for start in range(0, length, block):
        yield slice(start, min(start + block, length))


@dataclass
class Tile:
    """Columns of one source, a key set or the hard negatives, against which rows are compared."""

    source: int
    """the key set's number; S for the hard negatives"""
    columns: slice
    is_hard: bool
    ids: Optional[Tensor]
    """the columns' ids, sorted"""
    order: Optional[Tensor]
    """where in the tile each of them lies"""


class Problem:
    """One call's unit vectors and the tiles of its columns. Arguments as in ``info_nce``, keys (S, M, D).

    The columns' unit vectors are used by every block of rows, and are kept. Those of the rows are made by ``enter``.
    """

    def __init__(
        self,
        query,
        keys,
        hard_negatives,
        query_ids,
        key_ids,
        hard_negative_ids,
        temperature,
        row_offset,
        multi_positive,
        hard_negative_weight,
        own_hard_negative_weight,
    ):
        self.temperature, self.row_offset, self.multi_positive = temperature, row_offset, multi_positive
        self.query_ids = query_ids
        self.log_weight, self.log_own_weight = math.log(hard_negative_weight), math.log(own_hard_negative_weight)
        self.query = query
        sources = [*keys] if hard_negatives is None else [*keys, hard_negatives]
        self.num_sets, self.num_sources = len(keys), len(sources)
        self.num_groups = self.num_sets if multi_positive == "separate" else 1
        self.sources, self.lengths = [], []
        for source in sources:
            unit, *length = normalised(source)
            self.sources.append(unit)
            self.lengths.append(length)
        ids = [key_ids] * self.num_sets + [hard_negative_ids]
        self.tiles = [tile for number in range(self.num_sources) for tile in self._tiles(number, ids[number])]

    def _tiles(self, source: int, ids: Optional[Tensor]) -> Iterator[Tile]:
        for columns in _blocks(len(self.sources[source]), COLUMNS):
            in_order = (None, None) if ids is None else ids[columns].sort()
            yield Tile(source, columns, source == self.num_sets, *in_order)

    def row_blocks(self, keeps_tiles: bool) -> Iterator[slice]:
        """Blocks of rows; with ``keeps_tiles`` so few that all their tiles fit into ``KEPT_BYTES``."""
        width = sum(len(unit) for unit in self.sources)
        fitting = max(FEWEST_ROWS, KEPT_BYTES // (4 * width)) if keeps_tiles else ROWS
        return _blocks(len(self.query), min(ROWS, fitting))

    def enter(self, rows: slice) -> None:
        """Makes ``rows`` the block that the other methods work on."""
        self.rows = rows
        self.unit, *self.length = normalised(self.query[rows])
        self.scaled = self.unit / self.temperature

    def own(self) -> slice:
        """The columns of the rows' positives."""
        return slice(self.rows.start + self.row_offset, self.rows.stop + self.row_offset)

    def positive(self) -> Tensor:
        """The positives' logits, (S, rows)."""
        own = [unit[self.own()] for unit in self.sources[: self.num_sets]]
        return torch.stack([(self.unit * unit).sum(dim=1) for unit in own]) / self.temperature

    def logits(self, tile: Tile, buffer: Tensor) -> Tensor:
        """The rows' logits in a tile, -inf where a column is no negative: a contiguous matrix in the buffer."""
        shape = len(self.unit), tile.columns.stop - tile.columns.start
        out = buffer[: shape[0] * shape[1]].view(shape)
        logits = torch.mm(self.scaled, self.sources[tile.source][tile.columns].T, out=out)
        own = logits.diagonal(self.row_offset + self.rows.start - tile.columns.start)
        if not tile.is_hard:
            own.fill_(-math.inf)
        else:
            if self.log_weight != 0:
                logits.add_(self.log_weight)
            if self.log_own_weight != 0:
                own.add_(self.log_own_weight)
        if tile.ids is not None:
            row, column = _equal_pairs(self.query_ids[self.rows], tile)
            logits.view(-1)[row * logits.shape[1] + column] = -math.inf
        return logits

    def combine(self, sums: Tensor) -> Tensor:
        """The negatives' log-sum-exps (G, rows) from those of the tiles (number of tiles, rows)."""
        of_source = [
            sums[[i for i, tile in enumerate(self.tiles) if tile.source == number]].logsumexp(dim=0)
            for number in range(self.num_sources)
        ]
        if self.multi_positive != "separate":
            return torch.stack(of_source).logsumexp(dim=0, keepdim=True)
        negative = torch.stack(of_source[: self.num_sets])
        return negative.logaddexp(of_source[-1]) if self.num_sources > self.num_sets else negative


def _equal_pairs(query_ids: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """Rows and columns of a tile whose ids are equal."""
    first = torch.searchsorted(tile.ids, query_ids)
    count = torch.searchsorted(tile.ids, query_ids, right=True) - first
    row = torch.repeat_interleave(count)
    # Pair p is number p - (pairs of earlier rows) among its row's, which are neighbours in the sorted tile.
    start = first - (count.cumsum(0) - count)
    return row, tile.order[start[row] + torch.arange(len(row))]


class Gradients:
    """The derivatives by unit vectors, summed up block by block; None for what is not asked for."""

    def __init__(self, problem: Problem, needs_query: bool, needs_keys: bool, needs_hard: bool):
        self.problem = problem
        self.query = torch.empty(problem.query.shape) if needs_query else None
        needs = [needs_keys] * problem.num_sets + [needs_hard]
        self.keys = self.hard = None
        if needs_keys:
            # One tensor for all sets, which is the result.
            self.keys = torch.zeros(problem.num_sets, *problem.sources[0].shape)
        if needs_hard:
            self.hard = torch.zeros_like(problem.sources[-1])
        self.sources = [*([None] * problem.num_sets if self.keys is None else self.keys), self.hard]
        self.needs_source = needs

    def add(self, factor: Tensor, positive: Tensor, negative: Tensor, logits_of) -> None:
        """Adds what the problem's block of rows gives.

        Args:
            factor: (rows,) derivative of the result by their losses.
            logits_of: tile number -> the rows' logits there, which are overwritten.
        """
        problem, unit = self.problem, self.problem.unit
        key_scale, hard_scale, slope = row_scales(positive, negative, problem.multi_positive)
        weighted = unit * (factor / problem.temperature).unsqueeze(1)
        grad_query = torch.zeros_like(unit)
        for number, tile in enumerate(problem.tiles):
            if self.query is None and not self.needs_source[tile.source]:
                continue
            scale = hard_scale if tile.is_hard else key_scale[tile.source]
            weight = logits_of(number).add_(scale.unsqueeze(1)).exp_()
            if self.query is not None:
                grad_query.addmm_(weight, problem.sources[tile.source][tile.columns])
            if self.needs_source[tile.source]:
                self.sources[tile.source][tile.columns].addmm_(weight.T, weighted)
        own = problem.own()
        for source in range(problem.num_sets):
            grad_query.addcmul_(problem.sources[source][own], slope[source].unsqueeze(1))
            if self.keys is not None:
                self.keys[source, own].addcmul_(weighted, slope[source].unsqueeze(1))
        if self.query is not None:
            grad_query.mul_((factor / problem.temperature).unsqueeze(1))
            self.query[problem.rows] = through_normalisation(grad_query, unit, *problem.length)

    def finish(self) -> list[Tensor]:
        """The derivatives by query, keys and hard negatives as they were given, in float32."""
        problem = self.problem
        for number, grad in enumerate(self.sources):
            if grad is not None:
                through_normalisation(grad, problem.sources[number], *problem.lengths[number])
        return [torch.empty(0) if grad is None else grad for grad in (self.query, self.keys, self.hard)]


def forward(*arguments) -> tuple[Tensor, Tensor]:
    """Losses (N,) and the negatives' log-sum-exps (G, N). Arguments as ``Problem`` takes them."""
    with torch.autocast("cpu", enabled=False):
        problem = Problem(*arguments)
        loss = torch.empty(len(problem.query))
        negative = torch.empty(problem.num_groups, len(loss))
        buffer = torch.empty(ROWS * COLUMNS)
        for rows in problem.row_blocks(keeps_tiles=False):
            problem.enter(rows)
            sums = [problem.logits(tile, buffer).logsumexp(dim=1) for tile in problem.tiles]
            negative[:, rows] = problem.combine(torch.stack(sums))
            loss[rows] = row_losses(problem.positive(), negative[:, rows], problem.multi_positive)
        return loss, negative


def backward(grad_loss: Tensor, negative: Tensor, *arguments) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives by query, keys and hard negatives, in their dtypes; the logits are computed anew.

    Args:
        grad_loss: (N,); negative: (G, N) from ``forward``; then ``Problem``'s arguments and three flags that
            say which derivatives are needed.
    """
    *arguments, needs_query, needs_keys, needs_hard = arguments
    with torch.autocast("cpu", enabled=False):
        problem = Problem(*arguments)
        gradients = Gradients(problem, needs_query, needs_keys, needs_hard)
        buffer = torch.empty(ROWS * COLUMNS)
        for rows in problem.row_blocks(keeps_tiles=False):
            problem.enter(rows)
            gradients.add(
                grad_loss[rows],
                problem.positive(),
                negative[:, rows],
                lambda number: problem.logits(problem.tiles[number], buffer),
            )
        inputs = arguments[:3]
        return tuple(g if x is None else g.to(x.dtype) for g, x in zip(gradients.finish(), inputs, strict=True))


def total(factor: Tensor, *arguments) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sum over the rows of factor · loss, the losses, and the sum's derivatives by query, keys and hard negatives.

    The derivatives are float32: what multiplies them later may bring them back into a smaller dtype's range.

    Args:
        factor: (N,); then ``Problem``'s arguments and three flags that say which derivatives are needed.
    """
    *arguments, needs_query, needs_keys, needs_hard = arguments
    with torch.autocast("cpu", enabled=False):
        problem = Problem(*arguments)
        gradients = Gradients(problem, needs_query, needs_keys, needs_hard)
        loss = torch.empty(len(problem.query))
        buffers = None
        for rows in problem.row_blocks(keeps_tiles=True):
            problem.enter(rows)
            if buffers is None:
                # One allocation, which goes back to the system as a whole; the first block is the largest.
                buffers = torch.empty(len(problem.tiles), len(problem.unit) * COLUMNS)
            logits, sums = [], []
            for tile, buffer in zip(problem.tiles, buffers, strict=True):
                logits.append(problem.logits(tile, buffer))
                sums.append(logits[-1].logsumexp(dim=1))
            positive = problem.positive()
            negative = problem.combine(torch.stack(sums))
            loss[rows] = row_losses(positive, negative, problem.multi_positive)
            gradients.add(factor[rows], positive, negative, logits.__getitem__)
        return (loss * factor).sum(), loss, *gradients.finish()
