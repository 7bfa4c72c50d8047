"""The data of a run: tokenised sentences, other texts of them where an objective asks, and the order they come in."""

import logging
from functools import partial
from typing import Any, Iterator

import numpy as np
import torch
from torch import Tensor

from fastadv.config.schema import Config
from fastadv.data.batching import BatchOrder, make_loader
from fastadv.data.labelled.find import roles_of
from fastadv.data.labelled.labels import LabelMap, describe_classes
from fastadv.data.labelled.text import LabelledText, agree
from fastadv.data.mixture import TrainingRows, describe_sources, weighted_sources
from fastadv.data.packing import PackedBatch
from fastadv.data.raw_texts import raw_texts
from fastadv.data.text import TokenizedText, collate
from fastadv.data.variants.text_variants import TextVariants, VariantData
from fastadv.distributed.processes import first_rank_first, rank, world_size
from fastadv.engine.step.gather import AllRanks
from fastadv.errors import UserError
from fastadv.objectives.base import Objective, RunFacts, resolve_objective
from fastadv.objectives.sentences.contrastive import ContrastiveObjective

logger = logging.getLogger(__name__)


class TrainingData:
    """Tokenised sentences, with their classes where the config names a column of labels, and the order they come in.

    Batches have ``labels`` (B,), int64, or None.

    Args:
        encoder: gives the tokenizer, ``max_length`` and ``position_offset``.
        progress: show a bar while text is tokenised for the first time.

    Attributes:
        text: the rows that are trained on.
        label_map: the classes, or None.
        order: of the rows, by epoch.
        total_steps: optimizer steps of the whole run.
        variants: other texts of each row, for an objective that asks for them, else None.
    """

    def __init__(self, config: Config, encoder: Any, progress: bool):
        data, train = config.data, config.train
        sources = weighted_sources(data.train)
        # The first rank of a machine tokenises, the others map what it wrote.
        texts = first_rank_first(lambda: [_tokenised(source.path, config, encoder, progress) for source in sources])
        self.label_map: LabelMap | None = None
        if data.label_field is not None:
            texts = agree(texts, data.names_of_classes)
            self.label_map = texts[0].label_map
            counts = {name: sum(text.class_counts[name] for text in texts) for name in self.label_map.names}
            summary, warnings = describe_classes(counts)
            logger.info("%s", summary)
            for warning in warnings:
                logger.warning("%s", warning)
        _require_negatives(config, texts)
        self.text = texts[0] if len(texts) == 1 else TrainingRows(texts)
        self.variants: TextVariants | None = None
        self._config, self._collate = config, partial(collate, position_offset=encoder.position_offset)
        self._variant_data: VariantData | None = None
        counts = [len(text) for text in texts]
        self._encoder, self._tokenised = encoder, texts
        if data.word_sets is not None or data.pairs is not None:
            self._variant_data = self._read_variants()
            rows = self._variant_data.rows
            if rows is not None:
                self.text = TrainingRows(texts, rows)
                counts = np.diff(np.searchsorted(rows, np.cumsum(counts)), prepend=0).tolist()
        parts = [(count, source.weight) for count, source in zip(counts, sources, strict=True)]
        self.order = BatchOrder(
            self.text.lengths, train.batch_size, train.seed, data.bucket_batches, parts, world_size()
        )
        num_batches = train.num_epochs * self.order.batches_per_epoch
        self.total_steps = train.max_steps or num_batches // train.accumulation_steps
        if self.total_steps == 0:
            raise UserError(
                f"train.accumulation_steps = {train.accumulation_steps}: expected at most {num_batches}, "
                "the batches of train.num_epochs passes over the data"
            )

    @property
    def fingerprint(self) -> str:
        """Equal for equal sentences cut by equal tokenizers to equal lengths, with equal variants."""
        own = self.text.fingerprint
        return own if self._variant_data is None else f"{own}-{self._variant_data.fingerprint}"

    @property
    def roles(self) -> tuple[str, str]:
        """What the two texts of labelled pairs are to a recipe of attacks."""
        return roles_of(self._tokenised[0].text_columns)

    @property
    def description(self) -> str:
        """How much is trained on what, in a line."""
        train, num_ranks = self._config.train, world_size()
        batches = f"{train.accumulation_steps} x " if train.accumulation_steps > 1 else ""
        return (
            f"{self.total_steps} steps of {batches}{train.batch_size} of {len(self.text):,} sentences"
            + (f" on {num_ranks} processes" if num_ranks > 1 else "")
            + (f"; {self.order.num_left_out} an epoch are too few for a batch" if self.order.num_left_out else "")
        )

    @property
    def facts(self) -> RunFacts:
        """What an objective may know of the run."""
        train, labels = self._config.train, self.label_map
        return RunFacts(
            num_rows=len(self.text),
            batches_per_epoch=self.order.batches_per_epoch,
            total_steps=self.total_steps,
            seed=train.seed,
            row_labels=None if labels is None else self.text.labels,
            label_names=None if labels is None else list(labels.names),
            accumulation_steps=train.accumulation_steps,
            ranks=AllRanks(),
        )

    def use_variants(self, objective: Objective, encoder: Any) -> None:
        """Has batches bring the variants that ``objective`` asks for."""
        needs, config = objective.needs, self._config
        if not needs.variants and needs.text is None:
            return
        if self._variant_data is None:
            self._variant_data = self._read_variants()
        seed, text = config.train.seed, config.perturbation.text
        has_text = needs.text is not None
        self.variants = self._variant_data.variants(needs.variants, encoder, seed, text, has_text, needs.flip)

    def _read_variants(self) -> VariantData:
        data = self._config.data
        sources = [source.path for source in weighted_sources(data.train)]
        # The first rank of a machine reads, the others map what it wrote.
        texts = first_rank_first(lambda: raw_texts(sources, self._tokenised, data, self._encoder.tokenize))
        return VariantData.read(data, texts)

    def batches(self, epoch: int, start_batch: int) -> Iterator[PackedBatch]:
        """This rank's share of each batch that is left of an epoch after its first ``start_batch``."""
        collated = self._collate if self.variants is None else self.variants.collate(self._collate, epoch)
        num_workers, share = self._config.data.num_workers, (rank(), world_size())
        return make_loader(self.text, self.order, epoch, start_batch, num_workers, collated, share)

    def first_batch(self) -> PackedBatch:
        """The whole batch the run starts with, without starting loader processes."""
        return next(make_loader(self.text, self.order, 0, 0, 0, self._collate))


def _tokenised(source: str, config: Config, encoder: Any, progress: bool) -> TokenizedText | LabelledText:
    data = config.data
    cached = dict(split=data.split, cache_dir=data.cache_dir, max_sentences=data.max_sentences, progress=progress)
    if data.label_field is not None:
        return LabelledText.build(
            source, encoder, data.label_field, data.field, data.pair_field, **data.reading, **cached
        )
    tokens = encoder.tokenize, encoder.tokenizer_fingerprint, encoder.max_length
    given = dict(positive_field=data.positive_field, negative_field=data.negative_field, quoting=data.quoting)
    return TokenizedText.build(source, *tokens, data.field, **given, **cached)


def _require_negatives(config: Config, texts: list[TokenizedText | LabelledText]) -> None:
    """UserError where all sentences are equal: none is another's negative, and a contrastive loss is 0 forever."""
    if config.data.negative_field or not issubclass(resolve_objective(config.objective), ContrastiveObjective):
        return
    pieces = [piece for text in texts for piece in text.sentence_ids.pieces]
    # The first piece that holds another sentence ends it: that is nearly always the first.
    if any((piece != pieces[0][0]).any() for piece in pieces):
        return
    number = sum(map(len, texts))
    what = "holds 1 sentence" if number == 1 else f"holds {number:,} sentences, all equal"
    raise UserError(
        f"data.train: {describe_sources(config.data.train)} {what} after truncation to {config.encoder.max_length} "
        "tokens; expected two different ones or more, for a sentence's negatives are the others"
    )


def count_tokens(text: TokenizedText | TrainingRows, vocab_size: int) -> Tensor:
    """(vocab_size,) int64, how often each token occurs, special tokens among them."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    for tokens in text.token_pieces():
        counts += np.bincount(tokens, minlength=vocab_size)
    return torch.from_numpy(counts)
