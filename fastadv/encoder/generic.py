"""Any AutoModel, padded, split into embed and encode by a forward hook.

The hook sits on the model's embeddings module (or, for ``perturb_at: word``, on its word embeddings): in
``embed`` it takes the output and ends the forward there; in ``encode`` it puts the perturbed X in the
output's place. The model is asked nothing else, so it need not know of either. Ending a forward early leaves
ZeRO stage 3's prefetching in the middle: that stage needs the packed path.
"""

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Callable, Optional

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.attention.layout import first_rows, pad, padding_of, unpad
from fastadv.errors import UserError


class _Embedded(Exception):
    """Carries X out of a forward that has nothing left to do."""

    def __init__(self, grid: Tensor):
        self.grid = grid


def find_embeddings(hf: nn.Module) -> Optional[nn.Module]:
    """The module called ``embeddings`` nearest to the root, or None."""
    named = [(name.count("."), module) for name, module in hf.named_modules() if name.split(".")[-1] == "embeddings"]
    return min(named, key=lambda pair: pair[0])[1] if named else None


class GenericModel:
    """Runs any AutoModel on padded batches behind the packed interface. Holds no parameters of its own."""

    name = "generic"

    def __init__(self, hf: nn.Module, perturb_at: str):
        self.hf = hf
        # Without a table of their own, token types mean something else: GPT-2 adds word embeddings.
        self.uses_token_types = getattr(hf.config, "type_vocab_size", 0) > 1
        hooked = hf.get_input_embeddings() if perturb_at == "word" else find_embeddings(hf)
        if hooked is None:
            raise UserError(
                f"{type(hf).__name__} has no module called embeddings to perturb after: "
                "perturb_at 'embedding' is not possible, 'word' is"
            )
        self.hooked = hooked
        self._embedding_size: Optional[int] = None
        # What a layer that is run once more needs around it; set by `Encoder.computing_in`.
        self.recompute_inside: Optional[Callable[[], AbstractContextManager]] = None

    def checkpoint_activations(self) -> None:
        """Has the model run its layers anew in the backward, in passes with dropout: transformers does it in those.

        Raises:
            UserError: a model that cannot.
        """
        if not self.hf.supports_gradient_checkpointing:
            raise UserError(f"{type(self.hf).__name__} does not support checkpoint_activations")

        self.hf.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": self._recompute_contexts})

    def _recompute_contexts(self):
        # Of the pass, not of the time its backward runs.
        inside = self.recompute_inside
        return nullcontext(), nullcontext() if inside is None else inside()

    @property
    def embedding_size(self) -> int:
        """E, measured once on one token: some embeddings modules widen their word rows (DeBERTa-v2, MobileBERT)."""
        if self._embedding_size is None:
            token = PackedBatch.from_token_lists([[0]], [[False]]).to(self.hf.device)
            with torch.no_grad():
                self._embedding_size = self.embed(token, dropout=False).shape[-1]
        return self._embedding_size

    def prepare(self, batch: PackedBatch, dtype: torch.dtype) -> None:
        """The padded layout is all."""

    def embed(self, batch: PackedBatch, dropout: bool) -> Tensor:
        """X (T, E): the hooked module's output at real tokens."""

        def stop(module, args, output):
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
    ):
        """(embedding output (T, D), last hidden states (T, D), or (B, D) of the first tokens only).

        ``dtype`` has no say: the model computes in that of its weights.
        """
        padding = padding_of(batch)

        def put(module, args, output):
            grid = pad(x, padding).to(output.dtype)
            # Some models pad further inside (Longformer, to whole windows).
            return nn.functional.pad(grid, (0, 0, 0, output.shape[1] - grid.shape[1]))

        handle = self.hooked.register_forward_hook(put)
        try:
            with _mode(self.hf, dropout):
                output = self._run(batch, output_hidden_states=True)
        finally:
            handle.remove()
        first, last = output.hidden_states[0], output.last_hidden_state
        first, last = (unpad(grid[:, : batch.max_seqlen], padding) for grid in (first, last))
        return first, first_rows(last, padding) if first_tokens_only else last

    def _run(self, batch: PackedBatch, **options):
        padding = padding_of(batch)
        shape = (padding.num_sentences, padding.max_seqlen)
        pad_id = self.hf.config.pad_token_id

        def grid(values: Tensor, fill: int) -> Tensor:
            filled = torch.full((shape[0] * shape[1],), fill, dtype=values.dtype, device=values.device)
            return filled.index_copy_(0, padding.index, values).view(shape)

        inputs = {
            "input_ids": grid(batch.input_ids, 0 if pad_id is None else pad_id),
            "attention_mask": grid(torch.ones_like(batch.input_ids), 0),
        }
        if self.uses_token_types:
            inputs["token_type_ids"] = grid(batch.token_type_ids, 0)
        return self.hf(**inputs, **options, return_dict=True)


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
