"""The encoder's passes of the outer step, of one piece of a batch at a time: texts to vectors, with graph and dropout.

X  = embed(batch)    z  = encode(X)      mask m1
X+ = embed(batch)    z+ = encode(X+)     mask m2, or a given positive text; on a GPU both in one pass of 2B
other texts of the sentences, and all of it by a second network, where the objective asks for them
z_adv = encode(X + delta)                a mask of its own, X's graph kept
"""

from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from fastadv.data.fixed_size import QUANTUM, fill_up
from fastadv.data.packing import PackedBatch
from fastadv.distributed.zero import is_cut_up
from fastadv.engine.step.dropout_replay import DropoutReplay
from fastadv.engine.step.micro_batch import Enter, MicroBatch
from fastadv.objectives.base import Objective
from fastadv.perturbation.compiled import MOST_SIZES
from fastadv.perturbation.search import perturbed

Passed = tuple[Tensor | None, Tensor | None]
"""h (b, D) and, where the objective asks for them, the last hidden states (t, D)"""


@dataclass(frozen=True)
class CleanPasses:
    """What the clean passes of one piece made: b sentences of t tokens, all with their graphs."""

    pooled: Tensor | None
    """(b, D) h of z; None where the objective has no clean pass."""
    tokens: Tensor | None
    """(t, D) last hidden states of z's pass, where the objective asks for them."""
    positive: Tensor | None
    """(b, D) h of z+, where the objective has one."""
    hard_negative: Tensor | None
    """(b, D) h of the given hard negatives, where there are some."""
    variants: Mapping[str, Passed]
    """Vectors and states of each other text of the sentences, by its name."""
    second: Passed | None
    """What the second network makes of the sentences, where there is one."""
    second_variants: Mapping[str, Passed]
    """What the second network makes of each other text, by its name."""
    x: Callable[[], Tensor]
    """() → X (t, E) of z's pass: with its graph where the piece is the only one, or inside a pass that is run again."""
    masks: DropoutReplay
    """Dropout masks of z's pass after X."""
    keys_masks: DropoutReplay | None
    """Dropout masks of z+'s pass and of those after it, where there is one."""

    @property
    def has_no_dropout(self) -> bool:
        """Whether no random number was drawn since the layers of z's pass began. To be asked before z_adv's pass."""
        return self.masks.is_unused()


class Passes:
    """The passes of a step, as its options want them.

    Args:
        encoder, second, compile, joint_views, compute_dtype: as `Step` has them.
        objective: says in its ``needs`` which passes it reads, which may change from step to step.
        replays_masks: whether masks of one clean view are drawn again, so that the two cannot share a pass.
    """

    def __init__(
        self,
        encoder: nn.Module,
        objective: Objective,
        second: nn.Module | None = None,
        compile: str = "none",
        joint_views: bool | None = False,
        replays_masks: bool = False,
        compute_dtype: torch.dtype | None = None,
    ):
        self.encoder, self.second, self._objective = encoder, second, objective
        self.compiled = None if compile == "none" else CompiledEncode(encoder)
        self.joint_views, self._replays_masks = joint_views, replays_masks
        self.compute_dtype = compute_dtype
        # One pass of both views was faster than two up to so many tokens on a CPU.
        self.most_joint_tokens = 1024

    @property
    def keeps_graphs(self) -> bool:
        """Whether a pass's graph can serve a gradient before the step's backward.

        The graph of a compiled pass, or of one at ZeRO stage 3, serves one backward; checkpointed layers keep none.
        """
        return self.compiled is None and self.encoder.keeps_activations and not is_cut_up(self.encoder)

    @contextmanager
    def narrowed(self, *others: nn.Module | None) -> Iterator[list[Enter]]:
        """Inside, the encoders, and ``others``, compute in ``compute_dtype``; gives what passes that run again need."""
        with ExitStack() as stack:
            networks = [network for network in (self.encoder, *others, self.second) if network is not None]
            if self.compute_dtype is None:
                yield []
            else:
                yield [stack.enter_context(network.computing_in(self.compute_dtype)) for network in networks]

    def encode(self, x: Tensor, batch: PackedBatch) -> Tensor:
        """h (B, D) of X (T, E), for the loss that the parameters lower."""
        return self.encoder.encode(x, batch) if self.compiled is None else self.compiled(x, batch)

    def joins_views(self, batch: PackedBatch) -> bool:
        """Whether X and X+ pass through the encoder as one batch: not where z+ has texts of its own."""
        needs = self._objective.needs
        if self._replays_masks or not needs.positive or batch.positive is not None or needs.tokens:
            return False
        if self.joint_views is None:
            # A GPU waits for launches; on a CPU small products gain, and large ones lose the cache.
            return batch.input_ids.device.type != "cpu" or 2 * batch.num_tokens <= self.most_joint_tokens
        return self.joint_views

    def encode_clean(self, piece: MicroBatch) -> CleanPasses:
        """The clean passes of ``piece``: z, z+, given hard negatives, variants, and those of the second network."""
        sentences, batch = self._encode_sentences(piece), piece.batch

        def variants_by(network: nn.Module) -> dict[str, Passed]:
            return {n: piece.run(self._encode_by, network, replace(texts)) for n, texts in batch.variants.items()}

        variants, second, second_variants = variants_by(self.encoder), None, {}
        if self.second is not None:
            is_clean = self._objective.needs.clean
            second = piece.run(self._encode_by, self.second, batch) if is_clean else (None, None)
            second_variants = variants_by(self.second)
        return CleanPasses(**sentences, variants=variants, second=second, second_variants=second_variants)

    def encode_positive(self, batch: PackedBatch, embed: Callable[[], Tensor] | None = None) -> Tensor:
        """h (b, D) of z+; ``embed`` gives X+ where it is a second view of the sentences themselves."""
        return self._encode_again(batch, embed) if batch.positive is None else self._encode_again(batch.positive)

    def encode_keys(self, batch: PackedBatch) -> Passed:
        """h (b, D) of z+, and then of the given hard negatives, from look-ups of their own."""
        positive = self.encode_positive(batch)
        return positive, None if batch.hard_negative is None else self._encode_again(batch.hard_negative)

    def encode_adversarial(self, piece: MicroBatch, clean: CleanPasses, delta: Tensor) -> Passed:
        """h (b, D) of X + delta (t, E), under a mask of its own; and its last states (t, D), where asked for."""
        batch = piece.batch
        if self._objective.needs.adversarial.tokens:
            return piece.run(lambda: self.encoder.encode_with_tokens(perturbed(clean.x(), delta), batch))
        return piece.run(lambda: self.encode(perturbed(clean.x(), delta), batch)), None

    def _encode_sentences(self, piece: MicroBatch) -> dict[str, Any]:
        """The fields of `CleanPasses` that are of the sentences themselves and of what stands beside them."""
        needs, batch, device = self._objective.needs, piece.batch, piece.sentences.input_ids.device
        # One look-up serves both views.
        embed = self.encoder.embedder(batch) if piece.is_only else None
        pooled = tokens = positive = hard_negative = keys_masks = None
        if not needs.clean:
            with nullcontext() if piece.is_only else torch.no_grad():
                x, x_masks = self._embed_first(batch, embed)
            # Inner steps with frozen dropout have the masks that come first after X.
            masks = DropoutReplay(device)
        elif self.joins_views(batch):
            pooled, positive, x, x_masks, masks = piece.run(self._encode_both, batch, embed)
            keys_masks = masks
        else:
            (pooled, tokens), x, x_masks, masks = piece.run(self._encode_query, batch, embed)
            if needs.positive:
                keys_masks = DropoutReplay(device)
                positive = piece.run(self.encode_positive, batch, embed)
        if positive is not None and batch.hard_negative is not None:
            hard_negative = piece.run(self._encode_again, batch.hard_negative)

        def x_again() -> Tensor:
            with x_masks.again():
                return self.encoder.embed(piece.batch)

        return {
            "pooled": pooled,
            "tokens": tokens,
            "positive": positive,
            "hard_negative": hard_negative,
            "x": (lambda: x) if piece.is_only else x_again,
            "masks": masks,
            "keys_masks": keys_masks,
        }

    def _embed_first(self, batch: PackedBatch, embed: Callable[[], Tensor] | None) -> tuple[Tensor, DropoutReplay]:
        """X (t, E) of z's pass, and its masks."""
        masks = DropoutReplay(batch.input_ids.device)
        return (embed or self.encoder.embedder(batch))(), masks

    def _encode_query(self, batch: PackedBatch, embed: Callable[[], Tensor] | None) -> tuple:
        x, x_masks = self._embed_first(batch, embed)
        masks = DropoutReplay(x.device)
        if self._objective.needs.tokens:
            return self.encoder.encode_with_tokens(x, batch), x, x_masks, masks
        return (self.encode(x, batch), None), x, x_masks, masks

    def _encode_both(self, batch: PackedBatch, embed: Callable[[], Tensor] | None) -> tuple:
        embed = embed or self.encoder.embedder(batch)
        (x, x_masks), x_positive = self._embed_first(batch, embed), embed()
        masks = DropoutReplay(x.device)
        pooled, positive = self.encode(torch.cat([x, x_positive]), batch.twice()).chunk(2)
        return pooled, positive, x, x_masks, masks

    def _encode_again(self, texts: PackedBatch, embed: Callable[[], Tensor] | None = None) -> Tensor:
        return self.encode((embed or self.encoder.embedder(texts))(), texts)

    def _encode_by(self, network: nn.Module, texts: PackedBatch) -> Passed:
        """A pass of ``network`` from the token ids on, under a dropout mask of its own."""
        x = network.embed(texts)
        if self._objective.needs.tokens:
            return network.encode_with_tokens(x, texts)
        return (self.encode(x, texts) if network is self.encoder else network.encode(x, texts)), None


class CompiledEncode:
    """(X (T, E), batch) → h (B, D) as ``encoder.encode`` gives them, compiled (``engine.compile``).

    Batches are filled up, as the compiled search does (`fastadv.perturbation.compiled`) and for the same reason: static
    shapes that return. Fillers' rows are dropped after the pass, so their gradient is exactly 0. Dropout masks are
    drawn for the filled batch: others than the uncompiled pass would draw, from the same generator.

    Args:
        encoder: offers ``encode``, ``prepare`` and ``max_length``.
        quantum: token counts are multiples of it.
        backend: torch.compile's.
    """

    def __init__(self, encoder: Any, quantum: int = QUANTUM, backend: str = "inductor"):
        self._encoder, self._quantum = encoder, quantum
        self._compiled = torch.compile(_encode, fullgraph=True, dynamic=False, backend=backend)

    def __call__(self, x: Tensor, batch: PackedBatch) -> Tensor:
        filled = fill_up(batch, self._encoder.max_length, self._quantum)
        # What passes remember of a batch must be there before they are traced.
        self._encoder.prepare(filled.batch)
        with torch._dynamo.config.patch(recompile_limit=MOST_SIZES):
            return filled.cut(self._compiled(self._encoder, filled.pad(x), filled.batch))


def _encode(encoder: Any, x: Tensor, batch: PackedBatch) -> Tensor:
    return encoder.encode(x, batch)
