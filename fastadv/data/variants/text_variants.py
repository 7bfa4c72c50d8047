"""Other texts of each training text: drawn by word sets, or found by an attack.

| name | the text | comes from |
|---|---|---|
| ``fickle`` | every word a random one of its synonyms: the label stays | ``data.word_sets``, drawn anew each epoch |
| ``obstinate`` | one word replaced by an antonym: the label flips | likewise |
| ``adversarial`` | what an attack made of it | ``data.pairs``, or the attack at an epoch's start |

A text without such a variant stands in its place itself, and ``is_present`` says so: all ranks pass equally many texts.
Proposals of the search over texts (`fastadv.data.edits`) are given the same way, K of them for each text.
"""

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Dict, List, Mapping, Optional, Protocol, Sequence

import torch

from fastadv.config.schema import DataConfig
from fastadv.config.text_search import TextSearchConfig
from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.packing import PackedBatch
from fastadv.data.text import sentence_id
from fastadv.data.tokenize_texts import tokenize
from fastadv.data.variants.substitution import antonym_draw, draw_seed, synonym_draw
from fastadv.data.variants.text_pairs import Texts, read_pairs
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError

logger = logging.getLogger(__name__)

OF_WORD_SETS = ("fickle", "obstinate")
OF_ATTACKS = ("adversarial",)


class VariantSource(Protocol):
    """Gives one kind of variant; pickles, for loader processes."""

    name: str

    def of(self, row: int, texts: Texts, epoch: int) -> Optional[Texts]:
        """The variant of a row's texts in an epoch, or None: a function of these and the run's seed alone."""


@dataclass(frozen=True)
class Drawn:
    """A variant drawn by word sets, anew each epoch; equal texts have equal ones."""

    name: str
    word_sets: WordSets
    seed: int

    def of(self, row: int, texts: Texts, epoch: int) -> Optional[Texts]:
        draw = synonym_draw if self.name == "fickle" else antonym_draw
        return draw(texts, self.word_sets, draw_seed(self.seed, epoch, texts, self.name))


@dataclass(frozen=True)
class Found:
    """What an attack made of training texts."""

    pairs: Mapping[Texts, Texts]
    name: str = "adversarial"

    def of(self, row: int, texts: Texts, epoch: int) -> Optional[Texts]:
        return self.pairs.get(texts)


def paired_rows(texts: Sequence[Texts], pairs: Mapping[Texts, Texts], path: str) -> List[int]:
    """Rows of ``texts`` that have a pair.

    Raises:
        UserError: none has.
    """
    rows = [row for row, text in enumerate(texts) if text in pairs]
    if not rows:
        raise UserError(
            f"data.pairs: none of the {len(pairs):,} pairs of {path} is of a training text; expected pairs that an "
            "attack made of data.train"
        )
    return rows


class TextVariants:
    """The variants of a run's texts, as batches have them.

    Args:
        texts: of each training row.
        encoder: gives ``tokenizer``, ``max_length``, ``num_token_types`` and ``position_offset``.
        sources: one a kind of variant.
        proposers: draw the proposals of each side of `PackedBatch.proposals`.
    """

    def __init__(
        self,
        texts: Sequence[Texts],
        encoder,
        sources: Sequence[VariantSource] = (),
        proposers: Sequence[Proposer] = (),
    ):
        self._texts = texts
        self._cut = _Cut(encoder.tokenizer, encoder.max_length, encoder.num_token_types, encoder.position_offset)
        self._sources: Dict[str, VariantSource] = {source.name: source for source in sources}
        self._proposers = tuple(proposers)

    @property
    def texts(self) -> Sequence[Texts]:
        return self._texts

    def keep(self, names: Sequence[str]) -> None:
        """Leaves out the variants that are none of ``names``."""
        self._sources = {name: self._sources[name] for name in names if name in self._sources}

    def set_found(self, pairs: Mapping[Texts, Texts]) -> None:
        """From now on the variant adversarial is what ``pairs`` have; where they are empty there is none."""
        self._sources.pop("adversarial", None)
        if pairs:
            self._sources["adversarial"] = Found(pairs)

    def collate(self, collate: Callable[[Sequence[Dict]], PackedBatch], epoch: int):
        """``collate``, its batches with their variants in ``epoch``."""
        sources = list(self._sources.values())
        return partial(_with_variants, collate, self._texts, sources, self._proposers, self._cut, epoch)


@dataclass(frozen=True)
class _Cut:
    """Texts to a batch, as the encoder's tokenizer cuts them; without the encoder's weights, for loader processes."""

    tokenizer: object
    max_length: int
    num_token_types: int
    position_offset: int

    def __call__(self, texts: Sequence[Texts]) -> PackedBatch:
        columns = [list(column) for column in zip(*texts)]
        tokens, special, types = tokenize(self.tokenizer, self.max_length, *columns, num_types=self.num_token_types)
        ids = [sentence_id(of_text) for of_text in tokens]
        return PackedBatch.from_token_lists(
            tokens, special, ids, token_type_lists=types, position_offset=self.position_offset
        )


def _with_variants(
    collate: Callable[[Sequence[Dict]], PackedBatch],
    texts: Sequence[Texts],
    sources: Sequence[VariantSource],
    proposers: Sequence[Proposer],
    cut: _Cut,
    epoch: int,
    rows: Sequence[Dict],
) -> PackedBatch:
    batch, numbers, variants = collate(rows), [row["row"] for row in rows], {}
    for source in sources:
        found = [source.of(number, texts[number], epoch) for number in numbers]
        is_present = torch.tensor([text is not None for text in found])
        filled = [texts[number] if text is None else text for number, text in zip(numbers, found)]
        variants[source.name] = replace(cut(filled), is_present=is_present)
    proposals = {proposer.side: _proposals(proposer, texts, numbers, cut, epoch) for proposer in proposers}
    return replace(batch, variants=variants, proposals=proposals)


def _proposals(
    proposer: Proposer, texts: Sequence[Texts], numbers: Sequence[int], cut: _Cut, epoch: int
) -> List[PackedBatch]:
    """The K proposals of each row, as K batches in the rows' order."""
    drawn = [proposer.of(number, texts[number], epoch) for number in numbers]
    by_proposal = list(zip(*drawn, strict=True))
    # One call of the tokenizer for all.
    filled = [texts[number] if text is None else text for of_k in by_proposal for number, text in zip(numbers, of_k)]
    parts = cut(filled).split(len(by_proposal))
    is_present = [torch.tensor([text is not None for text in of_k]) for of_k in by_proposal]
    return [replace(part, is_present=present) for part, present in zip(parts, is_present)]


@dataclass(frozen=True)
class VariantData:
    """What the config names, read."""

    word_sets: Optional[WordSets]
    pairs: Optional[Dict[Texts, Texts]]
    texts: Sequence[Texts]
    """of each training row that is left"""
    rows: Optional[List[int]]
    """the training rows that are left; None: all"""
    fingerprint: str
    """equal for equal word sets and pairs"""

    @classmethod
    def read(cls, data: DataConfig, texts: Sequence[Texts]) -> "VariantData":
        """Reads ``data.word_sets`` and ``data.pairs``.

        Args:
            texts: of each training row, as they are.

        Raises:
            UserError: a file that cannot be read or is none of its kind, or pairs of other texts.
        """
        word_sets = None if data.word_sets is None else WordSets.load(data.word_sets)
        pairs = None if data.pairs is None else read_pairs(data.pairs)
        rows = None
        if pairs is not None:
            paired = paired_rows(texts, pairs, data.pairs)
            logger.info("%s of %s training texts have a pair in %s", f"{len(paired):,}", f"{len(texts):,}", data.pairs)
            if data.unpaired == "drop":
                rows, texts = paired, [texts[row] for row in paired]
        digest = hashlib.blake2b(digest_size=8)
        if word_sets is not None:
            digest.update(repr((sorted(word_sets.synonyms.items()), sorted(word_sets.antonyms.items()))).encode())
        digest.update(repr((None if pairs is None else sorted(pairs.items()), data.unpaired)).encode())
        return cls(word_sets, pairs, texts, rows, digest.hexdigest())

    def variants(self, encoder, seed: int, text: TextSearchConfig, needs_flips: bool) -> TextVariants:
        """All kinds that these data give, and the proposals that ``text`` names.

        Raises:
            UserError: edits that need word sets, or functions of the user's own that do not import.
        """
        proposers = []
        if text.edits:
            proposers.append(self._proposer(text, seed, "text", text.edits, text.num_proposals))
        if needs_flips:
            proposers.append(self._proposer(text, seed, "flip", text.flips, text.num_flips))
        kinds: List[VariantSource] = []
        if self.word_sets is not None:
            kinds += [Drawn(name, self.word_sets, seed) for name in OF_WORD_SETS]
        if self.pairs is not None:
            kinds.append(Found(self.pairs))
        return TextVariants(self.texts, encoder, kinds, proposers)

    def _proposer(self, text: TextSearchConfig, seed: int, side: str, names: Sequence[str], count: int) -> Proposer:
        key = "perturbation.text.edits" if side == "text" else "perturbation.text.flips"
        # A random choice needs no other proposal.
        count = 1 if side == "text" and text.choose == "random" else count
        edits = make_edits(names, key, self.word_sets, text.keyboard)
        share, protected = tuple(text.word_share), tuple(text.protected)
        return Proposer(edits, count, share, protected, text.min_letters, seed, side)
