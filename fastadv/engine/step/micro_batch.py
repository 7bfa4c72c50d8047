"""One piece of a rank's batch in the outer step: what is computed of its rows alone.

The loss is of the whole batch, so vectors of all pieces are there together; what lies behind them, a piece at a time.
With several pieces the passes keep no activations: the backward runs each again, by itself, with its dropout masks
(two-pass gradient caching, Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
setup", as checkpoints of one graph, so that each parameter's gradient arrives once and is reduced over ranks once). A
batch of one piece keeps its graph.
"""

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Callable, Optional

import torch
from torch import Tensor

from fastadv.data.packing import PackedBatch
from fastadv.encoder.recompute import recomputed
from fastadv.engine.step.dropout_replay import DropoutReplay
from fastadv.engine.step.gather import GlobalBatch
from fastadv.engine.step.variant_passes import Passed, encode_texts, encode_variants
from fastadv.perturbation.search import perturbed

if TYPE_CHECKING:
    from fastadv.engine.step.step import Step


def num_pieces(whole: GlobalBatch, micro_batch_size: Optional[int]) -> int:
    """Pieces of every rank's share, of ``micro_batch_size`` sentences at most; None: one.

    The same on all ranks, which at ZeRO stage 3 fetch parameters together. Where a rank has fewer sentences than that
    makes pieces, another's pieces may be larger.
    """
    if micro_batch_size is None:
        return 1
    return min(-(-max(whole.rows) // micro_batch_size), min(whole.rows))


class MicroBatch:
    """A piece, from its clean passes to its part of L_RTD.

    Args:
        batch: the piece's sentences; the whole batch where it is the only piece.
        first_row: the batch's row that the piece begins with.
        is_only: whether it is.
        inside: contexts that its passes need when they are run again (`Encoder.computing_in`).

    Attributes, after `encode_clean`:
        pooled: (b, D) h of z; None where the objective has no clean pass.
        positive: (b, D) h of z+, where the objective has one.
        hard_negative: (b, D), where such are given.
        masks: those of z's pass behind X.
        keys_masks: those of z+ and what follows.
        tokens: (t, D) last hidden states of z's pass, where the objective asks for them.
        variants: h and, likewise, states of each other text of the sentences.
        second, second_variants: the second network's, where there is one.
    """

    def __init__(self, step: "Step", batch: PackedBatch, first_row: int, is_only: bool, inside: list[Callable] = ()):
        self._step, self._batch, self.is_only, self._inside = step, batch, is_only, list(inside)
        self.first_row = first_row
        self._x: Optional[Tensor] = None

    @property
    def num_sentences(self) -> int:
        return self._batch.num_sentences

    @property
    def num_tokens(self) -> int:
        return self._batch.num_tokens

    @property
    def has_no_dropout(self) -> bool:
        """Whether no random number was drawn since the layers of z's pass began: asked before z_adv's."""
        return self.masks.is_unused()

    @property
    def batch(self) -> PackedBatch:
        """The sentences. Pieces do not remember their layout: together they would hold all of it."""
        return self._batch if self.is_only else replace(self._batch)

    def encode_clean(self) -> None:
        """The clean passes: z's, z+'s, that of given hard negatives, those of variants, and the second network's."""
        self._encode_sentences()
        step, batch = self._step, self.batch
        uses_tokens = step.objective.needs.tokens
        self.variants = encode_variants(lambda texts: self._run(self._encode_text, texts, uses_tokens), batch)
        if step.second is not None:
            anew = partial(self._run, encode_texts, step.second)
            self.second = anew(batch, uses_tokens) if step.objective.needs.clean else (None, None)
            self.second_variants = encode_variants(lambda texts: anew(texts, uses_tokens), batch)

    def _encode_sentences(self) -> None:
        batch, objective = self.batch, self._step.objective
        embed = self._step.encoder.embedder(batch) if self.is_only else None
        self.pooled = self.positive = self.hard_negative = self.tokens = None
        if not objective.needs.clean:
            # Masks of X's alone; inner steps with frozen dropout have those that come first behind it.
            with nullcontext() if self.is_only else torch.no_grad():
                self._embed_first(batch, embed)
            self.masks = DropoutReplay(batch.input_ids.device)
            return
        if self._step.joins_views(batch):
            self.pooled, self.positive = self._run(self._encode_both, batch, embed)
        else:
            self.pooled, self.tokens = self._run(self._encode_query, batch, embed)
            self.keys_masks = DropoutReplay(batch.input_ids.device)
            if objective.needs.positive:
                self.positive = self._run(self._encode_positive, batch, embed)
        if objective.needs.positive and batch.hard_negative is not None:
            self.hard_negative = self._run(self._encode_anew, batch.hard_negative)

    def keys_anew(self) -> list[Optional[Tensor]]:
        """h of z+ and then of hard negatives once more, from a look-up of their own."""
        batch = self.batch
        positive = self._encode_positive(batch)
        return [positive, None if batch.hard_negative is None else self._encode_anew(batch.hard_negative)]

    def x(self) -> Tensor:
        """X (t, E) of z's pass: with its graph where the piece is the only one or inside a pass that is run again."""
        if self._x is not None:
            return self._x
        with self._x_masks.again():
            return self._step.encoder.embed(self.batch)

    def encode_adversarial(self, delta: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        """h (b, D) of X + delta (t, E), under a mask of its own; and its last states (t, D), where asked for."""
        batch, step = self.batch, self._step
        if step.objective.needs.adversarial.tokens:
            return self._run(lambda: step.encoder.encode_with_tokens(perturbed(self.x(), delta), batch))
        return self._run(lambda: step.encode(perturbed(self.x(), delta), batch)), None

    def detect(self, query: Tensor, eta: Optional[Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """This piece's part of L_RTD, and its metrics; ``query`` (b, D) and ``eta`` (t, E) are the piece's."""
        step, batch = self._step, self.batch
        options = {"tokens_a_rank": step.whole.tokens_a_rank, "num_ranks": step.whole.num_ranks}
        if not self.is_only:
            # Drawn once: what is run again is the discriminator, not the generator.
            options["corrupted"] = step.detection.corrupt(batch)
        return self._run(partial(step.detection, **options), batch, self.pooled, query, eta)

    def _encode_query(self, batch: PackedBatch, embed: Optional[Callable[[], Tensor]]) -> Passed:
        x = self._embed_first(batch, embed)
        self.masks = DropoutReplay(x.device)
        step = self._step
        if step.objective.needs.tokens:
            return step.encoder.encode_with_tokens(x, batch)
        return step.encode(x, batch), None

    def _encode_both(self, batch: PackedBatch, embed: Optional[Callable[[], Tensor]]) -> tuple[Tensor, Tensor]:
        embed = embed or self._step.encoder.embedder(batch)
        x, x_positive = self._embed_first(batch, embed), embed()
        self.masks = self.keys_masks = DropoutReplay(x.device)
        pooled, positive = self._step.encode(torch.cat([x, x_positive]), batch.twice()).chunk(2)
        return pooled, positive

    def _encode_positive(self, batch: PackedBatch, embed: Optional[Callable[[], Tensor]] = None) -> Tensor:
        return self._encode_anew(batch, embed) if batch.positive is None else self._encode_anew(batch.positive)

    def _encode_anew(self, texts: PackedBatch, embed: Optional[Callable[[], Tensor]] = None) -> Tensor:
        return self._step.encode((embed or self._step.encoder.embedder(texts))(), texts)

    def _encode_text(self, texts: PackedBatch, uses_tokens: bool) -> Passed:
        return encode_texts(self._step.encoder, texts, True) if uses_tokens else (self._encode_anew(texts), None)

    def _embed_first(self, batch: PackedBatch, embed: Optional[Callable[[], Tensor]]) -> Tensor:
        self._x_masks = DropoutReplay(batch.input_ids.device)
        x = (embed or self._step.encoder.embedder(batch))()
        if self.is_only:
            self._x = x
        return x

    def _run(self, function: Callable, *arguments):
        return function(*arguments) if self.is_only else recomputed(function, *arguments, inside=self._surroundings)

    @contextmanager
    def _surroundings(self):
        with ExitStack() as stack:
            for enter in self._inside:
                stack.enter_context(enter())
            yield
