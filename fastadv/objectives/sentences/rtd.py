"""Replaced token detection (RobustSentEmbed eq. 8): a discriminator that only the sentence's vector can help.

    x'   = Mask(x), x'' = G(x')          some tokens masked, and refilled by a generator
    D    : embed(x'') + eta, position 0 replaced by h  →  states (T, D)  →  replaced or not, for every token

| paper | here |
|---|---|
| G | `rtd_generators.py`, frozen |
| D | `ReplacedTokenDetection.discriminator`, an encoder started from f's own weights |
| h = f(x) | position 0 of D's first layer; its gradient reaches f |
"""

import copy
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.packed import with_tokens
from fastadv.errors import UserError
from fastadv.objectives.needs import DetectionOptions
from fastadv.objectives.sentences.rtd_generators import Generator, make_generator
from fastadv.perturbation.search import perturbed


@dataclass(frozen=True)
class Corrupted:
    """x'' and what became of each token."""

    input_ids: Tensor
    """(T,) x''"""
    replaced: Tensor
    """(T,) bool; false where a masked token was restored"""


class ReplacedTokenDetection(nn.Module):
    """L_RTD of a batch, and how well D does.

    Args:
        options: see there.
        generator: refills masked tokens. No parameter of it is seen by an optimizer or written to a checkpoint.
        discriminator: offers ``embed(batch)`` → (T, E), ``token_states(x, batch)`` → (T, D), ``hidden_size`` and
            ``embedding_size``; ``hf`` holds what maps E to D where these differ.
    """

    def __init__(self, options: DetectionOptions, generator: Generator, discriminator: nn.Module):
        super().__init__()
        self.options = options
        self.discriminator = discriminator
        self.head = nn.Linear(discriminator.hidden_size, 2)
        self._generator = generator
        if find_mapping(discriminator.hf) is None and discriminator.embedding_size != discriminator.hidden_size:
            raise UserError(
                f"objective_options.rtd_generator: embeddings are {discriminator.embedding_size} wide, the encoder's "
                f"first layer {discriminator.hidden_size}, and what maps one to the other is not known"
            )

    def forward(
        self,
        batch: PackedBatch,
        pooled: Tensor,
        query: Tensor,
        eta: Optional[Tensor],
        tokens_a_rank: Optional[float] = None,
        num_ranks: int = 1,
        corrupted: Optional[Corrupted] = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """L_RTD (a scalar) and its metrics.

        Args:
            pooled, query: (B, D) h and z of the clean pass, with their graph.
            eta: (T, E) token-level perturbation, a constant, or None for none.
            tokens_a_rank: tokens of the global batch over ranks, which the mean divides by; None: T.
            num_ranks: the sum is multiplied by it, since gradients are averaged over ranks.
            corrupted: what `corrupt` made of the batch, where the caller has it.
        """
        corrupted = corrupted or self.corrupt(batch)
        vectors = pooled if self.options.input == "h" else query
        logits = self.logits(with_tokens(batch, input_ids=corrupted.input_ids), vectors, eta)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        total = F.cross_entropy(logits, corrupted.replaced.long(), reduction="sum")
        is_mean = self.options.reduction == "mean"
        loss = total / (batch.num_tokens if tokens_a_rank is None else tokens_a_rank) if is_mean else total * num_ranks
        is_right = logits.detach().argmax(dim=1) == corrupted.replaced
        # Over all tokens, so it has a value where nothing was replaced, and nobody need ask the device whether.
        metrics = {"rtd_replaced_share": corrupted.replaced.float().mean(), "rtd_accuracy": is_right.float().mean()}
        return loss, metrics

    def corrupt(self, batch: PackedBatch) -> Corrupted:
        """Masks some tokens and has the generator refill them."""
        masked = choose_masked(batch, self.options.mask_ratio)
        filled = self._generator.fill(batch, masked, self.options.fill)
        input_ids = torch.where(masked, filled, batch.input_ids)
        return Corrupted(input_ids, input_ids != batch.input_ids)

    def logits(self, corrupted: PackedBatch, vectors: Tensor, eta: Optional[Tensor]) -> Tensor:
        """(T, 2), original and replaced, of the batch of x''."""
        encoder, first_tokens = self.discriminator, corrupted.cu_seqlens[:-1].long()
        x = encoder.embed(corrupted)
        if eta is not None:
            x = perturbed(x, eta)
        mapping = find_mapping(encoder.hf)
        if mapping is None:
            x = x.index_copy(0, first_tokens, vectors.to(x.dtype))
        with nullcontext() if mapping is None else _first_replaced(mapping, vectors, first_tokens):
            return self.head(encoder.token_states(x, corrupted))


def choose_masked(batch: PackedBatch, ratio: float) -> Tensor:
    """(T,) bool: each token that is not special with probability ``ratio``, and one of a sentence where none was."""
    draw = torch.rand(batch.num_tokens, device=batch.input_ids.device)
    draw = draw.masked_fill(batch.is_special, 2.0)
    lowest = draw.new_full((batch.num_sentences,), 2.0).scatter_reduce(0, batch.token_sentence, draw, "amin")
    return ~batch.is_special & ((draw < ratio) | (draw == lowest[batch.token_sentence]))


def find_mapping(hf: nn.Module) -> Optional[nn.Module]:
    """What takes the embedding output (E) to the first layer (D) in ALBERT and ELECTRA, or None."""
    if hasattr(hf, "embeddings_project"):
        return hf.embeddings_project
    return getattr(getattr(hf, "encoder", None), "embedding_hidden_mapping_in", None)


@contextmanager
def _first_replaced(mapping: nn.Module, vectors: Tensor, first_tokens: Tensor):
    """While it lasts ``mapping``'s output has ``vectors`` (B, D) at each sentence's first token."""

    def put(module, args, output):
        rows = vectors.to(output.dtype)
        if output.ndim == 2:
            return output.index_copy(0, first_tokens, rows)
        # The padded path: (B, L, D), each sentence from column 0 on.
        return torch.cat([rows[:, None], output[:, 1:]], dim=1)

    handle = mapping.register_forward_hook(put)
    try:
        yield
    finally:
        handle.remove()


def build_detection(
    options: DetectionOptions,
    encoder,
    token_counts: Optional[Callable[[], Tensor]] = None,
    dtype: Optional[torch.dtype] = None,
) -> ReplacedTokenDetection:
    """Generator and discriminator for the encoder f, which still has its pretrained weights.

    Args:
        token_counts: () → (V,) how often each token occurs in the training data; for the unigram generator.
        dtype: what a generator that is a model computes in; None: float32.

    Raises:
        UserError: no such generator, or one of another vocabulary or with too few positions.
    """
    if encoder.perturb_at != "embedding":
        raise UserError(
            f"perturbation.perturb_at = {encoder.perturb_at}: expected embedding where "
            f"objective_options.rtd_generator is {options.generator}: eta is added to the discriminator's embeddings"
        )
    generator = make_generator(options.generator, encoder, token_counts, dtype)
    # The tokenizer holds no weights and need not be there twice.
    discriminator = copy.deepcopy(encoder, {id(encoder.tokenizer): encoder.tokenizer})
    return ReplacedTokenDetection(options, generator, discriminator.to(encoder.device))
