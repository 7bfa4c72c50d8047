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
from typing import Callable, Dict, List, Mapping, Optional, Sequence

import torch

from fastadv.config.schema import DataConfig
from fastadv.config.text_search import TextSearchConfig
from fastadv.data.edits.kinds import make_edits
from fastadv.data.edits.proposals import Proposer
from fastadv.data.edits.word_tokens import check_tokenizer, pack_words
from fastadv.data.packing import PackedBatch
from fastadv.data.variants.substitution import antonym_draw, draw_seed, synonym_draw
from fastadv.data.variants.text_packer import TextPacker
from fastadv.data.variants.text_pairs import Texts, read_pairs
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError

logger = logging.getLogger(__name__)

VariantOf = Callable[[Texts, int], Optional[Texts]]
"""(a row's texts, epoch) -> the variant, or None: a function of these and the run's seed alone; pickles, for loader
processes"""
_DRAWS = {"fickle": synonym_draw, "obstinate": antonym_draw}


def _drawn(name: str, word_sets: WordSets, seed: int, texts: Texts, epoch: int) -> Optional[Texts]:
    return _DRAWS[name](texts, word_sets, draw_seed(seed, epoch, texts, name))


def _found(pairs: Mapping[Texts, Texts], texts: Texts, epoch: int) -> Optional[Texts]:
    return pairs.get(texts)


class TextVariants:
    """The variants of a run's texts, as batches have them.

    Args:
        texts: of each training row.
        encoder: gives ``tokenizer``, ``max_length``, ``num_token_types``, ``position_offset`` and ``prompt``.
        sources: kind of variant -> what gives it.
        proposers: draw the proposals of each side of `PackedBatch.proposals`.
    """

    def __init__(
        self,
        texts: Sequence[Texts],
        encoder,
        sources: Mapping[str, VariantOf],
        proposers: Sequence[Proposer] = (),
    ):
        self.texts, self._sources, self._proposers = texts, dict(sources), tuple(proposers)
        # Without the encoder's weights, for loader processes.
        tokenizer, limits = encoder.tokenizer, (encoder.max_length, encoder.num_token_types, encoder.position_offset)
        self._pack = TextPacker(tokenizer, *limits, prompt=encoder.prompt)
        self._pack_words = partial(pack_words, tokenizer, *limits, prompt=encoder.prompt)

    def set_found(self, pairs: Mapping[Texts, Texts]) -> None:
        """From now on the variant adversarial is what ``pairs`` have; where they are empty there is none."""
        self._sources.pop("adversarial", None)
        if pairs:
            self._sources["adversarial"] = partial(_found, pairs)

    def collate(self, collate: Callable[[Sequence[Dict]], PackedBatch], epoch: int):
        """``collate``, its batches with their variants in ``epoch``."""
        packs = self._pack, self._pack_words
        return partial(_with_variants, collate, self.texts, dict(self._sources), self._proposers, packs, epoch)


def _with_variants(
    collate: Callable[[Sequence[Dict]], PackedBatch],
    texts: Sequence[Texts],
    sources: Mapping[str, VariantOf],
    proposers: Sequence[Proposer],
    packs: tuple[TextPacker, Callable[..., List[PackedBatch]]],
    epoch: int,
    rows: Sequence[Dict],
) -> PackedBatch:
    (pack, pack_words), own, variants = packs, [texts[row["row"]] for row in rows], {}
    for name, variant_of in sources.items():
        others = [variant_of(of_row, epoch) for of_row in own]
        filled = [of_row if other is None else other for of_row, other in zip(own, others)]
        variants[name] = replace(pack(filled), is_present=torch.tensor([other is not None for other in others]))
    batch, proposals = collate(rows), {}
    for proposer in proposers:
        draw = proposer.every_word if proposer.is_by_word else proposer.copies
        drawn = [draw(row["row"], of_row, epoch) for row, of_row in zip(rows, own)]
        side = pack_words(own, drawn) if proposer.is_by_word else pack.copies(drawn, batch.sentence_ids)
        if proposer.is_by_word and not torch.equal(side[0].input_ids, batch.input_ids):
            raise ValueError("the tokenizer gives other tokens than it gave when the text was read")
        proposals[proposer.side] = side
    return replace(batch, variants=variants, proposals=proposals)


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
            paired = [row for row, text in enumerate(texts) if text in pairs]
            if not paired:
                raise UserError(
                    f"data.pairs: none of the {len(pairs):,} pairs of {data.pairs} is of a training text; expected "
                    "pairs that an attack made of data.train"
                )
            logger.info("%s of %s training texts have a pair in %s", f"{len(paired):,}", f"{len(texts):,}", data.pairs)
            if data.unpaired == "drop":
                rows, texts = paired, [texts[row] for row in paired]
        digest = hashlib.blake2b(digest_size=8)
        if word_sets is not None:
            digest.update(repr((sorted(word_sets.synonyms.items()), sorted(word_sets.antonyms.items()))).encode())
        digest.update(repr((None if pairs is None else sorted(pairs.items()), data.unpaired)).encode())
        return cls(word_sets, pairs, texts, rows, digest.hexdigest())

    def variants(
        self, names: Sequence[str], encoder, seed: int, text: TextSearchConfig, has_text: bool, has_flips: bool
    ) -> TextVariants:
        """Those of ``names`` that these data give, and the proposals that ``text`` names, of the sides asked for.

        Raises:
            UserError: edits that need word sets, or functions of the user's own that do not import.
        """
        known: Dict[str, VariantOf] = {}
        if self.word_sets is not None:
            known = {name: partial(_drawn, name, self.word_sets, seed) for name in _DRAWS}
        if self.pairs is not None:
            known["adversarial"] = partial(_found, self.pairs)
        if has_text and text.choose == "gradient":
            check_tokenizer(encoder.tokenizer)
        # A random choice needs one proposal.
        num_proposals = 1 if text.choose == "random" else text.num_proposals
        sides = [("text", "edits", text.edits, num_proposals)] if has_text else []
        sides += [("flip", "flips", text.flips, text.num_flips)] if has_flips else []
        settings = tuple(text.word_share), tuple(text.protected), text.min_letters, seed
        proposers = []
        for side, key, names_of_edits, count in sides:
            edits = make_edits(names_of_edits, f"perturbation.text.{key}", self.word_sets, text.keyboard)
            is_by_word = side == "text" and text.choose == "gradient"
            proposers.append(Proposer(edits, count, *settings, side, is_by_word))
        return TextVariants(self.texts, encoder, {name: known[name] for name in names if name in known}, proposers)
