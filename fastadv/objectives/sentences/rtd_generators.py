"""What refills masked tokens for replaced token detection: corpus frequencies, or a frozen masked language model.

A generator is no module on purpose: DeepSpeed silently drops frozen parameters from its checkpoints, and these need
none. They are read again from their source when a run goes on.
"""

from typing import Callable, Literal, Optional, Protocol

import torch
from torch import Tensor, nn

from fastadv.data.packing import PackedBatch
from fastadv.encoder.attention.layout import padding_of
from fastadv.encoder.packed import PackedModel, why_not_packed, with_tokens
from fastadv.encoder.positions import first_position
from fastadv.encoder.weights.source import ModelSource, find_model, load_tokenizer, quiet_transformers
from fastadv.errors import UserError
from fastadv.objectives.sentences.rtd_sampling import draw_tokens

Fill = Literal["sample", "argmax"]
KEY = "objective_options.rtd_generator"


class Generator(Protocol):
    def fill(self, batch: PackedBatch, masked: Tensor, how: Fill) -> Tensor:
        """(T,) token ids, of meaning where ``masked`` (T,) is true; never a special token."""


class UnigramGenerator:
    """Draws tokens by their frequency in the training data, whatever stands around them.

    Args:
        counts: (V,) int64 occurrences of each token.
        special_ids: tokens that are never filled in.
    """

    def __init__(self, counts: Tensor, special_ids: list[int]):
        counts = counts.to(torch.int64).clone()
        counts[special_ids] = 0
        if not bool((counts > 0).any()):
            raise UserError(f"{KEY} = unigram: the training data holds special tokens alone")
        self._cumulative = counts.cumsum(0)
        self._total = int(self._cumulative[-1])
        self._commonest = int(counts.argmax())

    def fill(self, batch: PackedBatch, masked: Tensor, how: Fill) -> Tensor:
        if how == "argmax":
            return torch.full_like(batch.input_ids, self._commonest)
        self._cumulative = self._cumulative.to(batch.input_ids.device)
        # Of whole numbers, so that a token that never occurs is never drawn, whatever the rounding.
        drawn = torch.randint(self._total, batch.input_ids.shape, device=batch.input_ids.device)
        return torch.searchsorted(self._cumulative, drawn, right=True)


# model_type of a packed family -> (model, states (M, D)) -> logits (M, V).
_HEADS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "bert": lambda model, states: model.cls(states),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert", "data2vec-text"), lambda model, states: model.lm_head(states)
    ),
    "electra": lambda model, states: model.generator_lm_head(model.generator_predictions(states)),
    "albert": lambda model, states: model.predictions(states),
}


class MaskedLanguageModelGenerator:
    """Refills by a masked language model, in eval mode and without a gradient.

    A model of the packed families runs on packed tokens, and its last layer asks at the masked ones alone; any other
    runs padded. Both ways the head, the vocabulary's matrix above all, runs at the masked tokens alone. ``no_grad`` and
    not ``inference_mode``: what is worked out about the batch's layout here serves passes with a gradient later.

    Args:
        model: one of transformers' ...ForMaskedLM.
        mask_id: the token that masked ones become.
        special_ids: tokens that are never filled in.
        vocab_size: of f; rows of the model's table beyond it are never filled in either.
    """

    def __init__(self, model: nn.Module, mask_id: int, special_ids: list[int], vocab_size: int):
        self.model = model.eval().requires_grad_(False)
        self.mask_id = mask_id
        self._special_ids = special_ids
        self._vocab_size = vocab_size
        self._head = _HEADS.get(model.config.model_type)
        has_packed = self._head is not None and why_not_packed(model.config) is None
        self._packed = PackedModel(model.base_model, "embedding") if has_packed else None

    @property
    def path(self) -> Literal["packed", "padded"]:
        return "padded" if self._packed is None else "packed"

    @torch.no_grad()
    def fill(self, batch: PackedBatch, masked: Tensor, how: Fill) -> Tensor:
        # How many there are is asked of the device here, and once.
        rows = masked.nonzero().squeeze(1)
        if len(rows) == 0:
            return batch.input_ids
        logits = self._logits_at(batch, masked, rows).float()[:, : self._vocab_size]
        logits[:, self._special_ids] = -torch.inf
        chosen = logits.argmax(1) if how == "argmax" else draw_tokens(logits)
        return batch.input_ids.index_copy(0, rows, chosen)

    @torch.no_grad()
    def logits(self, batch: PackedBatch, masked: Tensor) -> Tensor:
        """(M, V) at the masked tokens, in their order."""
        return self._logits_at(batch, masked, masked.nonzero().squeeze(1))

    def _logits_at(self, batch: PackedBatch, masked: Tensor, rows: Tensor) -> Tensor:
        if self.model.device != batch.input_ids.device:
            self.model.to(batch.input_ids.device)
        return self._of_padded(batch, masked, rows) if self._packed is None else self._of_packed(batch, masked, rows)

    def _of_packed(self, batch: PackedBatch, masked: Tensor, rows: Tensor) -> Tensor:
        padding = padding_of(batch)
        masked_batch = with_tokens(
            batch,
            input_ids=batch.input_ids.masked_fill(masked, self.mask_id),
            # As the model has them where it is given none.
            token_type_ids=torch.zeros_like(batch.token_type_ids),
            # The batch's are counted from f's first position, which need not be this model's.
            position_ids=padding.index % padding.max_seqlen + first_position(self.model.config),
        )
        x = self._packed.embed(masked_batch, dropout=False)
        _, states = self._packed.first_and_last(x, masked_batch, dropout=False, rows=rows)
        return self._head(self.model, states)

    def _of_padded(self, batch: PackedBatch, masked: Tensor, rows: Tensor) -> Tensor:
        model, padding = self.model, padding_of(batch)
        pad_id = model.config.pad_token_id
        shape = (padding.num_sentences, padding.max_seqlen)

        def grid(values: Tensor, fill: int) -> Tensor:
            return values.new_full((shape[0] * shape[1],), fill).index_copy_(0, padding.index, values).view(shape)

        def at_masked(module, args, output):
            output.last_hidden_state = output.last_hidden_state.flatten(0, 1)[padding.index[rows]][None]
            return output

        handle = model.base_model.register_forward_hook(at_masked)
        try:
            output = model(
                input_ids=grid(batch.input_ids.masked_fill(masked, self.mask_id), 0 if pad_id is None else pad_id),
                attention_mask=grid(torch.ones_like(batch.input_ids), 0),
                return_dict=True,
            )
        finally:
            handle.remove()
        return output.logits[0]


def make_generator(
    name: str,
    encoder,
    token_counts: Optional[Callable[[], Tensor]] = None,
    dtype: Optional[torch.dtype] = None,
) -> Generator:
    """The generator of a name, for the encoder f; a model computes in ``dtype``, by default float32.

    Raises:
        UserError: no such model, or one that cannot serve f.
    """
    tokenizer = encoder.tokenizer
    special_ids = sorted(set(tokenizer.all_special_ids) - {tokenizer.unk_token_id})
    if name == "unigram":
        if token_counts is None:
            raise UserError(f"{KEY} = unigram: needs the tokens' counts in the training data, and none are given")
        return UnigramGenerator(token_counts(), special_ids)
    source = check_generator(name, tokenizer, encoder.max_length)
    model = _load_masked_lm(source).to(encoder.device, dtype)
    return MaskedLanguageModelGenerator(model, tokenizer.mask_token_id, special_ids, encoder.vocab_size)


def check_generator(name: str, tokenizer, max_length: int) -> ModelSource:
    """Finds a masked language model and refuses one that cannot read or write f's tokens. Reads no weights.

    Args:
        tokenizer, max_length: of f.

    Raises:
        UserError: one line.
    """
    try:
        source = find_model(name)
        theirs = load_tokenizer(source).get_vocab()
    except UserError as error:
        raise UserError(f"{KEY}: {error}") from error
    ours = tokenizer.get_vocab()
    if ours != theirs:
        raise UserError(
            f"{KEY} = {name}: its vocabulary of {len(theirs)} tokens is not the encoder's of {len(ours)}; "
            "expected a masked language model of the same vocabulary, or unigram"
        )
    if tokenizer.mask_token_id is None:
        raise UserError(f"{KEY} = {name}: the encoder's tokenizer has no mask token; expected unigram")
    if source.num_positions is not None and source.num_positions < max_length:
        raise UserError(
            f"{KEY} = {name}: it has {source.num_positions} positions, fewer than encoder.max_length = {max_length}"
        )
    return source


def _load_masked_lm(source: ModelSource) -> nn.Module:
    from transformers import AutoModelForMaskedLM

    try:
        # What it would print about missing weights is judged below.
        with quiet_transformers():
            model, info = AutoModelForMaskedLM.from_pretrained(
                source.location, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{KEY} = {source.name}: cannot be loaded as a masked language model: {reason}") from error
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(f"{KEY} = {source.name}: no masked language model, {len(missing)} weights lack ({missing[0]})")
    return model
