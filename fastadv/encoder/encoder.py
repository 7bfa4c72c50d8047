"""The text encoder f of the papers: a Hugging Face model, its tokenizer and a pooling."""

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor, nn

from fastadv.config.commands import check_pooling
from fastadv.data.packing import PackedBatch
from fastadv.data.tokenize_texts import checked_texts
from fastadv.distributed.devices import named_device
from fastadv.encoder.attention.kinds import KINDS as ATTENTION
from fastadv.encoder.attention.layout import padding_of
from fastadv.encoder.cast import CastWeights
from fastadv.encoder.dropout import set_dropout
from fastadv.encoder.generic import GenericModel
from fastadv.encoder.packed import PackedModel, why_not_packed
from fastadv.encoder.pooling import num_modes, pool
from fastadv.encoder.positions import first_position, num_positions
from fastadv.encoder.sentence_files.after_pooling import AfterPooling, after_pooling_of
from fastadv.encoder.sentence_files.read import SentenceFiles
from fastadv.encoder.text_reader import TextReader
from fastadv.encoder.weights.depth import freeze_layers, layer_modules, parameter_depths
from fastadv.encoder.weights.lora import add_lora
from fastadv.encoder.weights.source import find_model, load_tokenizer, load_weights, own_length
from fastadv.errors import UserError

logger = logging.getLogger("fastadv")

PATHS = ("auto", "packed", "generic")
PERTURB_AT = ("embedding", "word")

# Texts tokenised and sorted together by encode_texts: enough for even batches, few enough to hold.
_BATCHES_SORTED_TOGETHER = 64


class Encoder(TextReader, nn.Module):
    """Texts to vectors in two halves: ``embed`` (ids to X (T, E)) and ``encode`` (X to h (B, D)).

    ``hf`` is the Hugging Face model itself, and ``after`` what a sentence-transformers folder has after its pooling;
    both hold parameters. The packed path runs ``hf`` on packed tokens (``packed.py``), the generic path padded, through
    a hook (``generic.py``); which one was taken is logged once, here.

    Args:
        hf_model: an encoder of transformers, without its pooler where it can be left out.
        tokenizer: its tokenizer.
        pooling: one of `fastadv.config.commands.POOLINGS`, or several joined by ``+``; special tokens count.
        max_length: tokens a text is cut to, special ones included. None: what tokenizer and positions allow.
        dropout: probability of every dropout in the model, attention included. None: as configured.
        path: ``packed``, ``generic``, or ``auto``, which is packed where that can run the model.
        perturb_at: what X is: ``embedding``, the embedding layer's output, or ``word``, the word embeddings.
        attention: which attention the packed path runs (``attention_kinds.py``); the generic path runs the model's
            own and takes ``auto`` alone.
        checkpoint_activations: keep each layer's input alone, and run the layer once more in the backward. On the
            generic path the model's own checkpointing does, in passes with dropout alone.
        prompt: text put before every text, of a pair before the first.
        files: what the model's folder says, for exports.
        after: the modules of ``files`` that come after the pooling; None: there are none.
        card: what the card of the model says, for those of exports (`fastadv.encoder.weights.card`).

    Raises:
        UserError: a value that is not allowed, or a path or attention that cannot run this model.
    """

    after: AfterPooling
    """What becomes of a pooled vector."""
    pooler: Dict[str, Tensor]
    """Weights that serve no vector, by their name in ``hf``: an export holds them as they were."""
    card: Dict[str, Any]
    """What the card of the model's base says, as far as others take it over."""

    def __init__(
        self,
        hf_model: nn.Module,
        tokenizer,
        pooling: str = "cls",
        max_length: Optional[int] = None,
        dropout: Optional[float] = None,
        path: str = "auto",
        perturb_at: str = "embedding",
        attention: str = "auto",
        checkpoint_activations: bool = False,
        prompt: str = "",
        files: Optional[SentenceFiles] = None,
        after: Optional[AfterPooling] = None,
        card: Optional[Dict[str, Any]] = None,
    ):
        super().__init__()
        check_pooling(pooling)
        _check_choice("path", path, PATHS)
        _check_choice("perturb_at", perturb_at, PERTURB_AT)
        _check_choice("attention", attention, ATTENTION)
        if not isinstance(getattr(hf_model.config, "hidden_size", None), int):
            raise UserError(f"model type {hf_model.config.model_type} has no hidden_size: it is no encoder of texts")
        if dropout is not None:
            set_dropout(hf_model, dropout)
        self.pooler = {}
        self.hf = hf_model
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.perturb_at = perturb_at
        self.max_length = _length_limit(hf_model.config, tokenizer, max_length)
        self.files, self.card = files or SentenceFiles(), dict(card or {})
        self.after = AfterPooling(num_modes(pooling) * self.hidden_size) if after is None else after
        self.set_prompt(prompt)
        # Set inside `computing_in`: what passes compute in, and what goes in and out.
        self._narrow: Optional[torch.dtype] = None
        self._wide: Optional[torch.dtype] = None
        self._model = _choose_path(hf_model, path, perturb_at, attention)
        self.keeps_activations = not checkpoint_activations
        if checkpoint_activations:
            self._model.checkpoint_activations()

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        pooling: Optional[str] = None,
        max_length: Optional[int] = None,
        dropout: Optional[float] = None,
        path: str = "auto",
        perturb_at: str = "embedding",
        dtype: torch.dtype = torch.float32,
        num_frozen_layers: Optional[int] = None,
        lora_rank: Optional[int] = None,
        lora_alpha: Optional[float] = None,
        lora_target_modules: Optional[Sequence[str]] = None,
        attention: str = "auto",
        checkpoint_activations: bool = False,
        prompt: Optional[str] = None,
        prompt_name: Optional[str] = None,
        device: str | torch.device = "cpu",
    ) -> "Encoder":
        """Loads a folder, a Hub name or ``demo:minilm``, from safetensors and without running a model's code.

        Vectors are those of sentence-transformers, where that opens the model: of its pooling and the modules after it,
        its lengths, prompts and lower-casing.

        Args:
            pooling: None takes what the model's sentence-transformers files say, else ``cls``.
            max_length: None likewise, else what tokenizer and positions allow.
            prompt: text put before every text; "": none; None: ``prompt_name``, else the model's default prompt.
            prompt_name: which of the model's own prompts.
            device: where it computes, by a name of `fastadv.distributed.devices.named_device`.
            num_frozen_layers: embeddings and so many first layers are not trained (``depth.py``); None: all are.
            lora_rank: train low-rank adapters in place of the weights (``lora.py``, which has the other two); None:
                no adapters. They draw from torch's generator.

        Raises:
            UserError: no such model or device, pickled or missing weights, or a value that is not allowed.
        """
        device = named_device(device)
        source = find_model(model)
        source.check_max_length(max_length)
        prompt = source.choose_prompt(prompt, prompt_name)
        files = source.files.with_pooling(source.choose_pooling(pooling))
        hf_model, pooler = load_weights(source, dtype)
        tokenizer = load_tokenizer(source)
        if max_length is None:
            max_length = source.length_limit(tokenizer)
            if files.max_length is not None and max_length < files.max_length:
                logger.warning(
                    "model %s: max_seq_length %d is above its %d positions: texts are cut to %d tokens",
                    *(model, files.max_length, max_length, max_length),
                )
        size = num_modes(files.pooling) * hf_model.config.hidden_size
        encoder = cls(
            hf_model,
            tokenizer,
            pooling=files.pooling,
            max_length=max_length,
            dropout=dropout,
            path=path,
            perturb_at=perturb_at,
            attention=attention,
            checkpoint_activations=checkpoint_activations,
            prompt=prompt,
            files=files,
            after=after_pooling_of(files, size, source.location, model, dtype),
            card=source.card,
        )
        encoder.pooler = pooler
        if num_frozen_layers is not None:
            freeze_layers(encoder.hf, num_frozen_layers)
        if lora_rank is not None:
            add_lora(encoder.hf, lora_rank, lora_alpha, lora_target_modules)
            encoder.after.requires_grad_(False)
        return encoder.to(device)

    @property
    def settings(self) -> Dict[str, Any]:
        """What makes its vectors, besides weights, and where: for the records of what was measured on them."""
        return {
            "pooling": self.pooling,
            "max_length": self.max_length,
            "prompt": self.prompt,
            "modules": [file.kind for file in self.after.files],
            "truncate_dim": self.files.truncate_dim,
            "similarity": self.files.similarity,
            "device": str(self.device),
        }

    @property
    def path(self) -> str:
        """``packed`` or ``generic``."""
        return self._model.name

    @property
    def attention(self) -> str:
        """Which attention the packed path runs; ``auto`` on the generic one, which has its own."""
        return self._model.attention

    @attention.setter
    def attention(self, kind: str) -> None:
        _check_choice("attention", kind, ATTENTION)
        if self.path == "generic":
            _check_choice("attention on the generic path", kind, ("auto",))
        self._model.attention = kind

    @property
    def hidden_size(self) -> int:
        """D, the size of a token's last state."""
        return self.hf.config.hidden_size

    @property
    def pooled_size(self) -> int:
        """The size of h, what `encode` gives: D, unless the model's files say otherwise."""
        return self.after.size

    @property
    def vector_size(self) -> int:
        """The size of a vector of `encode_texts`."""
        return self.after.vector_size

    @property
    def embedding_size(self) -> int:
        """E, the size of a row of X; D but for factorised embeddings (ALBERT, ELECTRA)."""
        return self._model.embedding_size

    @property
    def vocab_size(self) -> int:
        """Rows of the word embedding."""
        return self.hf.get_input_embeddings().num_embeddings

    @property
    def word_embeddings(self) -> Tensor:
        """(V, E) the word embeddings themselves, a parameter; inside `computing_in` it may be a copy."""
        return self.hf.get_input_embeddings().weight

    @property
    def num_token_types(self) -> int:
        """How many kinds of token the model tells apart; below 2 it does not tell the texts of a pair apart by them."""
        return getattr(self.hf.config, "type_vocab_size", 0)

    @property
    def num_layers(self) -> int:
        """Layers a token passes through, shared ones counted each time."""
        return len(layer_modules(self.hf))

    def parameter_depths(self) -> Dict[str, int]:
        """Name in ``hf`` -> 0 in the embeddings, i in layer i, number of layers + 1 behind them; see ``depth.py``."""
        return parameter_depths(self.hf)

    @property
    def position_offset(self) -> int:
        """The position id of a sentence's first token: 0, or the padding id + 1 in RoBERTa and its kin."""
        return first_position(self.hf.config)

    @property
    def device(self) -> torch.device:
        return self.hf.device

    @property
    def dtype(self) -> torch.dtype:
        """The compute type."""
        return self.hf.dtype if self._narrow is None else self._narrow

    @contextmanager
    def computing_in(self, dtype: torch.dtype):
        """Inside the block passes compute in ``dtype``, on copies of the weights that are made here, once.

        What goes in and comes out keeps its own type: X and vectors are float32 where the weights are. On the packed
        path the embedding layer stays in that type too; only what follows it is narrow.

        Gives () → a context in which passes compute on the same copies, for what the backward computes anew. Inside the
        block it does nothing.
        """
        cast = CastWeights(self.hf, dtype, self._model.is_behind_embeddings)
        types = dtype, self.hf.dtype

        @contextmanager
        def again():
            if self._narrow is not None:
                yield
                return
            with cast.applied():
                self._narrow, self._wide = types
                try:
                    yield
                finally:
                    self._narrow = self._wide = None

        before, self._model.recompute_inside = self._model.recompute_inside, again
        try:
            with again():
                yield again
        finally:
            self._model.recompute_inside = before

    def embed(self, batch: PackedBatch, dropout: Optional[bool] = None) -> Tensor:
        """X (T, E). ``dropout``: None follows ``self.training``; True or False decides."""
        return self.embedder(batch, dropout)()

    def embedder(self, batch: PackedBatch, dropout: Optional[bool] = None) -> Callable[[], Tensor]:
        """() → X (T, E), under another dropout mask at each call: several views share what they can."""
        embed = self._model.embedder(batch, self.training if dropout is None else dropout)
        return lambda: self._widened(embed())

    def encode(self, x: Tensor, batch: PackedBatch, dropout: Optional[bool] = None) -> Tensor:
        """h (B, D), the pooled vectors of X (T, E), which is rounded to the compute type once, in here.

        Where the model's files have a Dense or a LayerNorm after the pooling, h is what these give (B, `pooled_size`).
        """
        is_first_alone = self.pooling == "cls" and not self._num_skipped
        first, last = self._first_and_last(x, batch, dropout, first_tokens_only=is_first_alone)
        return self.after(self._widened(last if is_first_alone else self.pool(first, last, batch)))

    def encode_with_tokens(
        self, x: Tensor, batch: PackedBatch, dropout: Optional[bool] = None
    ) -> Tuple[Tensor, Tensor]:
        """h (B, D) of X (T, E), and the last hidden states (T, D) that it is pooled from."""
        first, last = self._first_and_last(x, batch, dropout)
        return self.after(self._widened(self.pool(first, last, batch))), self._widened(last)

    def finish(self, h: Tensor) -> Tensor:
        """The vectors (B, `vector_size`) of h: of length 1, or cut, where the model's files say so."""
        return self.after.finish(h)

    def prepare(self, batch: PackedBatch) -> None:
        """Works out what every pass of a batch shares, as the first pass otherwise does."""
        padding_of(batch)
        self._model.prepare(batch, self.dtype)

    def token_states(self, x: Tensor, batch: PackedBatch, dropout: Optional[bool] = None) -> Tensor:
        """The last hidden states (T, D) of X (T, E)."""
        return self._widened(self._first_and_last(x, batch, dropout)[1])

    def pool(self, first: Tensor, last: Tensor, batch: PackedBatch) -> Tensor:
        """(B, k * D) of the embedding output and the last hidden states (T, D) by the encoder's pooling, of k modes."""
        return pool(self.pooling, first, last, batch.lengths, padding_of(batch), self._num_skipped)

    def _first_and_last(self, x, batch, dropout, first_tokens_only=False):
        is_on = self.training if dropout is None else dropout
        needs_first = self.pooling == "first_last"
        return self._model.first_and_last(x, batch, is_on, first_tokens_only, dtype=self.dtype, needs_first=needs_first)

    def _widened(self, states: Tensor) -> Tensor:
        return states if self._wide is None else states.to(self._wide)

    def forward(self, batch: PackedBatch) -> Tensor:
        """h (B, D) of a clean pass."""
        return self.encode(self.embed(batch), batch)

    @torch.no_grad()
    def encode_texts(
        self,
        texts: Sequence[str],
        batch_size: int = 64,
        progress: bool = False,
        on_batch: Optional[Callable[[int], None]] = None,
        is_finished: bool = True,
    ) -> np.ndarray:
        """Vectors (num_texts, `vector_size`) in float32, in the order of the texts, without dropout.

        Args:
            progress: show a bar.
            on_batch: called after each batch with its number of texts.
            is_finished: False gives h (num_texts, `pooled_size`), which losses and heads are of; see `finish`.

        Raises:
            TypeError: one text in the place of a list, or something that is no text.
        """
        from fastadv.files.progress import Bar

        texts, size = checked_texts(texts), self.vector_size if is_finished else self.pooled_size
        vectors = np.empty((len(texts), size), dtype=np.float32)
        chunk_size = batch_size * _BATCHES_SORTED_TOGETHER
        with Bar(total=len(texts), unit="text", desc="encode", disable=not progress) as bar:
            for start in range(0, len(texts), chunk_size):
                for rows, batch in self.batches_of(texts[start : start + chunk_size], batch_size=batch_size):
                    h = self.encode(self.embed(batch, dropout=False), batch, dropout=False)
                    vectors[[start + i for i in rows]] = (self.finish(h) if is_finished else h).float().cpu().numpy()
                    bar.update(len(rows))
                    if on_batch is not None:
                        on_batch(len(rows))
        return vectors

    def save_pretrained(
        self, folder: str | Path, card: Optional[str] = None, state_dict: Optional[Dict[str, Tensor]] = None
    ) -> Path:
        """Writes an export that AutoModel and SentenceTransformer open; see ``export/write.py``.

        Args:
            card: README.md; None writes a short one.
            state_dict: weights of ``hf`` to write in place of its own, where an engine keeps finer ones.
        """
        from fastadv.encoder.export.write import export_encoder

        return export_encoder(self, folder, card, state_dict)


def _check_choice(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"{name} {value!r} is not one of {', '.join(allowed)}")


def _length_limit(config, tokenizer, max_length: Optional[int]) -> int:
    positions = num_positions(config)
    if max_length is None:
        return own_length(config, tokenizer)
    if positions is not None and max_length > positions:
        raise UserError(f"max_length {max_length} is above the {positions} positions of the encoder")
    num_special = tokenizer.num_special_tokens_to_add()
    if max_length <= num_special:
        raise UserError(f"max_length {max_length} leaves no room beside the tokenizer's {num_special} special tokens")
    return max_length


def _choose_path(hf_model: nn.Module, path: str, perturb_at: str, attention: str):
    reason = why_not_packed(hf_model.config)
    if path == "packed" and reason is not None:
        raise UserError(f"path 'packed' cannot run this model: {reason}; 'generic' can")
    if path == "generic" or reason is not None:
        why = "as asked" if path == "generic" else reason
        if attention != "auto":
            raise UserError(f"attention {attention!r} is not possible on the generic path ({why}); 'auto' is")
        logger.info("%s runs padded through the generic path (%s)", type(hf_model).__name__, why)
        return GenericModel(hf_model, perturb_at)
    logger.info("%s runs on packed tokens", type(hf_model).__name__)
    return PackedModel(hf_model, perturb_at, attention)
