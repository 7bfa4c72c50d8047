"""Any AutoModel, padded, split into embed and encode by a forward hook.

The hook sits on the model's embeddings module (or, for ``perturb_at: word``, on its word embeddings): in
``embed`` it takes the output and ends the forward there; in ``encode`` it puts the perturbed X in the
output's place. The model is asked nothing else, so it need not know of either. Ending a forward early leaves
ZeRO stage 3's prefetching in the middle: that stage needs the packed path.

Some models look past the end of a text (MobileBERT at the next token, ConvBERT by its convolutions, FNet everywhere),
so that a text's vector depends on what else is in its batch. Whether a model does is measured when it is opened. Of one
that does, a batch is run in groups of one length, which have no padding.
"""

import inspect
import logging
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Callable, List, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.attention.layout import first_rows, pad, padding_of, unpad
from fastadv.encoder.positions import first_position, num_positions
from fastadv.errors import UserError

logger = logging.getLogger("fastadv")

# Tokens of the two texts on which it is measured whether a model looks past a text's end.
_MEASURED_LENGTHS = (7, 19)

_Groups = List[Tuple[PackedBatch, Tensor]]
"""sentences of one length each, and the places of their tokens in the batch"""


class _Embedded(Exception):
    """Carries X out of a forward that has nothing left to do."""

    def __init__(self, grid: Tensor):
        self.grid = grid


def find_embeddings(hf: nn.Module) -> Optional[nn.Module]:
    """The module called ``embeddings`` nearest to the root, or None."""
    named = [(name.count("."), module) for name, module in hf.named_modules() if name.split(".")[-1] == "embeddings"]
    return min(named, key=lambda pair: pair[0])[1] if named else None


class GenericModel:
    """Runs any AutoModel on padded batches behind the packed interface. Holds no parameters of its own.

    Raises:
        UserError: a model that cannot be split at its embeddings, or does not run on tokens alone.
    """

    name = "generic"
    attention = "auto"
    embedding_size: int
    """E, measured: some embeddings modules widen their word rows (DeBERTa-v2, MobileBERT)."""
    sees_padding: bool
    """Whether a text's states depend on the padding behind it, and so on the other texts of its batch."""

    def __init__(self, hf: nn.Module, perturb_at: str):
        self.hf = hf
        # Without a table of their own, token types mean something else: GPT-2 adds word embeddings.
        self.uses_token_types = getattr(hf.config, "type_vocab_size", 0) > 1
        try:
            hooked = hf.get_input_embeddings() if perturb_at == "word" else find_embeddings(hf)
        except NotImplementedError as error:
            raise UserError(f"{type(hf).__name__} has no word embeddings to perturb after") from error
        if hooked is None:
            raise UserError(
                f"{type(hf).__name__} has no module called embeddings to perturb after: "
                "perturb_at 'embedding' is not possible, 'word' is"
            )
        self.hooked = hooked
        parameters = inspect.signature(hf.forward).parameters
        self._takes_mask = "attention_mask" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        # What a layer that is run once more needs around it; set by `Encoder.computing_in`.
        self.recompute_inside: Optional[Callable[[], AbstractContextManager]] = None
        try:
            self._measure()
        except UserError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"model type {hf.config.model_type} cannot be run here: {reason}") from error

    def checkpoint_activations(self) -> None:
        """Has the model run its layers anew in the backward, in passes with dropout: transformers does it in those.

        Raises:
            UserError: a model that cannot.
        """
        if not self.hf.supports_gradient_checkpointing:
            raise UserError(f"{type(self.hf).__name__} does not support checkpoint_activations")

        self.hf.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": self._recompute_contexts})
        if getattr(self.hf, "_require_grads_hook", None) is not None:
            # Only recomputation that is reentrant needs these hooks, and they do not pickle.
            self.hf.disable_input_require_grads()

    def _recompute_contexts(self):
        # Of the pass, not of the time its backward runs.
        inside = self.recompute_inside
        return nullcontext(), nullcontext() if inside is None else inside()

    def prepare(self, batch: PackedBatch, dtype: torch.dtype) -> None:
        """The padded layout is all."""

    def embed(self, batch: PackedBatch, dropout: bool) -> Tensor:
        """X (T, E): the hooked module's output at real tokens."""
        groups = self._groups(batch)
        return _in_order([self._embed(part, dropout) for part, _ in groups], groups)

    def _embed(self, batch: PackedBatch, dropout: bool) -> Tensor:
        def stop(module, args, output):
            if not isinstance(output, Tensor):
                raise UserError(
                    f"{type(self.hf).__name__} has embeddings that are not one tensor: it cannot be split there"
                )
            raise _Embedded(output)

        handle = self.hooked.register_forward_hook(stop)
        try:
            with _mode(self.hf, dropout):
                self._run(batch)
        except _Embedded as embedded:
            grid = embedded.grid
        else:
            raise UserError(f"{type(self.hf).__name__} never ran its embeddings: it cannot be split there")
        finally:
            handle.remove()
        return unpad(grid[:, : batch.max_seqlen], padding_of(batch))

    def embedder(self, batch: PackedBatch, dropout: bool) -> Callable[[], Tensor]:
        """Gives X under a mask of its own at each call: the model's embeddings are run each time."""
        return partial(self.embed, batch, dropout)

    @staticmethod
    def is_behind_embeddings(name: str) -> bool:
        """True: a model that is run whole has one type."""
        return True

    def first_and_last(
        self,
        x: Tensor,
        batch: PackedBatch,
        dropout: bool,
        first_tokens_only: bool = False,
        dtype: Optional[torch.dtype] = None,
        needs_first: bool = True,
    ):
        """(embedding output (T, D), last hidden states (T, D), or (B, D) of the first tokens only).

        ``dtype`` has no effect: the model computes in that of its weights.

        Args:
            needs_first: False gives None in place of the embedding output, and no layer's states are kept for it.
        """
        groups = self._groups(batch)
        firsts, lasts = zip(*(self._first_and_last(x[tokens], part, dropout, needs_first) for part, tokens in groups))
        first, last = _in_order(firsts, groups) if needs_first else None, _in_order(lasts, groups)
        return first, first_rows(last, padding_of(batch)) if first_tokens_only else last

    def _first_and_last(
        self, x: Tensor, batch: PackedBatch, dropout: bool, needs_first: bool = False
    ) -> Tuple[Optional[Tensor], Tensor]:
        padding = padding_of(batch)

        def put(module, args, output):
            grid = pad(x, padding).to(output.dtype)
            # Some models pad further inside (Longformer, to whole windows).
            return nn.functional.pad(grid, (0, 0, 0, output.shape[1] - grid.shape[1]))

        handle = self.hooked.register_forward_hook(put)
        try:
            with _mode(self.hf, dropout):
                output = self._run(batch, output_hidden_states=needs_first)
        finally:
            handle.remove()
        if output.last_hidden_state.shape[1] < batch.max_seqlen:
            raise UserError(f"{type(self.hf).__name__} gives fewer states than it is given tokens")
        last = unpad(output.last_hidden_state[:, : batch.max_seqlen], padding)
        return unpad(output.hidden_states[0][:, : batch.max_seqlen], padding) if needs_first else None, last

    def _groups(self, batch: PackedBatch) -> _Groups:
        """The whole batch where its texts do not reach each other, else its sentences by their length."""
        whole = [(batch, slice(None))]
        if padding_of(batch).mask is None or not self.sees_padding:
            return whole
        groups = batch.remembered.get("of one length")
        if groups is None:
            groups = batch.remembered["of one length"] = batch.by_length()
        return groups

    @torch.no_grad()
    def _measure(self) -> None:
        """Runs two made-up texts, the shorter also alone."""
        self.sees_padding = False
        config, longest = self.hf.config, num_positions(self.hf.config)
        lengths = [n if longest is None else min(n, longest) for n in _MEASURED_LENGTHS]
        ids = [(7 * i + 5) % min(getattr(config, "vocab_size", 97), 97) for i in range(lengths[1])]
        # The padding's own id would move positions that are counted from it.
        ids = [max(i - 1, 0) if i == config.pad_token_id else i for i in ids]
        states = []
        for texts in ([ids[: lengths[0]]], [ids[: lengths[0]], ids]):
            specials = [[False] * len(text) for text in texts]
            batch = PackedBatch.from_token_lists(texts, specials, position_offset=first_position(config))
            batch = batch.to(self.hf.device)
            x = self._embed(batch, dropout=False)
            states.append(self._first_and_last(x, batch, dropout=False)[1][: lengths[0]])
        alone, beside = states
        self.embedding_size = x.shape[-1]
        # Far above rounding, and far below what padding does where it is seen.
        bound = torch.finfo(alone.dtype).eps ** 0.5 * alone.abs().max()
        # BigBird's attention is another one beside a long text.
        self.sees_padding = getattr(config, "attention_type", None) == "block_sparse"
        self.sees_padding |= bool((alone - beside).abs().max() > bound)
        if self.sees_padding:
            logger.warning(
                "model type %s: a text's vector would depend on the others of its batch; so batches are run in groups "
                "of one length",
                config.model_type,
            )

    def _run(self, batch: PackedBatch, **options):
        padding = padding_of(batch)
        shape = (padding.num_sentences, padding.max_seqlen)
        pad_id = self.hf.config.pad_token_id

        def grid(values: Tensor, fill: int) -> Tensor:
            filled = torch.full((shape[0] * shape[1],), fill, dtype=values.dtype, device=values.device)
            return filled.index_copy_(0, padding.index, values).view(shape)

        inputs = {"input_ids": grid(batch.input_ids, 0 if pad_id is None else pad_id)}
        if self._takes_mask:
            inputs["attention_mask"] = grid(torch.ones_like(batch.input_ids), 0)
        if self.uses_token_types:
            inputs["token_type_ids"] = grid(batch.token_type_ids, 0)
        return self.hf(**inputs, **options, return_dict=True)


def _in_order(parts: Sequence[Tensor], groups: _Groups) -> Tensor:
    """Rows of each group (t, D) → (T, D) in the order of the batch."""
    if len(parts) == 1:
        return parts[0]
    places = torch.cat([tokens for _, tokens in groups])
    return torch.cat(list(parts)).index_select(0, places.argsort())


@contextmanager
def _mode(hf: nn.Module, dropout: bool):
    """Train or eval mode for a while; afterwards every module is as it was."""
    if hf.training == dropout:
        yield
        return
    modes = [(module, module.training) for module in hf.modules()]
    hf.train(dropout)
    try:
        yield
    finally:
        for module, was_training in modes:
            module.training = was_training
