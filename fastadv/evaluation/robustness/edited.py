"""Edited copies of sentences, drawn once for all models: by the seed, the sentence's number, the edit and its strength.

So a copy does not depend on which models, which other edits, or how many sentences are measured.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

from fastadv.config.robustness import MIN_SENTENCES, RobustnessSettings
from fastadv.data.edits.kinds import GROUPS, Edits, check_edits, expanded, make_edits
from fastadv.data.edits.proposals import generator_of, pieces_of
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.vectors.scored_pairs import ScoredPairs
from fastadv.files.hashes import sha256_of

STS_SETS = ("STS-B", "SICK-R")


class Variant(NamedTuple):
    """An edit at a strength."""

    edit: str
    share: float | None = None
    """Share of the editable words that is edited; None: one word, or one change of the whole text."""
    is_kept: bool = True
    """Whether what the text says stays; False for flips."""
    is_named: bool = True
    """Whether the settings name the edit; False for the edits of a group, which are measured at one word."""

    @property
    def words(self) -> str:
        """The strength."""
        if self.share is not None:
            return f"{100 * self.share:g} %"
        return "one word" if self.is_kept and ":" not in self.edit else "one change"

    @property
    def label(self) -> str:
        """The edit and its strength."""
        return f"{self.edit}, {self.words}{'' if self.share is None else ' of words'}"


UNCHANGED = Variant("unchanged", 0.0)
"""the sentence itself, beside which copies are seen"""


class Copy(NamedTuple):
    """A sentence after an edit."""

    text: str
    num_changes: int


Copies = list[Copy | None]
"""a copy of each sentence; None where the edit has no place in it"""


@dataclass(frozen=True)
class RobustnessData:
    """What is edited, read and checked."""

    name: str
    sentences: list[str]
    """drawn, and different from each other but for case and spaces"""
    num_available: int
    variants: tuple[Variant, ...]
    edits: Mapping[str, Edits]
    """the functions by the name of the edit"""
    pairs: Mapping[str, ScoredPairs]
    """STS set → its pairs; empty without ``senteval``"""

    @classmethod
    def read(cls, settings: RobustnessSettings) -> "RobustnessData":
        """Raises UserError for an edit that is not known, a file that is not right, or too few sentences."""
        data = cls.of(settings, "", [])
        name, every = _sentences(settings)
        first: dict[str, str] = {}
        for text in every:
            first.setdefault(" ".join(text.casefold().split()), text)
        distinct = list(first.values())
        if len(distinct) < MIN_SENTENCES:
            raise UserError(f"{name} has {len(distinct)} different sentences, at least {MIN_SENTENCES} are needed")
        order = random.Random(settings.seed).sample(range(len(distinct)), len(distinct))
        sentences = [distinct[number] for number in order[: settings.num_sentences]]
        return replace(data, name=name, sentences=sentences, num_available=len(distinct), pairs=_pairs(settings))

    @classmethod
    def of(cls, settings: RobustnessSettings, name: str, sentences: list[str]) -> "RobustnessData":
        """These ``sentences``, in place of those that ``settings`` name, and no pairs. UserError as `read`."""
        return cls(name, sentences, len(sentences), _variants(settings), _edits(settings), {})

    @property
    def sha256(self) -> str:
        pairs = [[name, of_set.first, of_set.second, of_set.scores] for name, of_set in self.pairs.items()]
        return sha256_of([self.sentences, pairs])

    @property
    def flips(self) -> list[Variant]:
        return [variant for variant in self.variants if not variant.is_kept]

    @property
    def curves(self) -> list[Variant]:
        """The named edits that keep the meaning, at each strength."""
        return [variant for variant in self.variants if variant.is_kept and variant.is_named]

    def draw(self, seed: int) -> "Drawn":
        """The copies of all sentences and pairs."""
        copies = {one: copies_of(self.sentences, one, self.edits[one.edit], seed) for one in self.variants}
        pairs = {(one, name): self._edited_pairs(one, name, seed) for one in self.curves for name in self.pairs}
        return Drawn(copies, pairs)

    def _edited_pairs(self, variant: Variant, name: str, seed: int) -> "EditedPairs":
        pairs, edits = self.pairs[name], self.edits[variant.edit]
        first, second = (
            copies_of(texts, variant, edits, seed, f"{name} {side}")
            for side, texts in (("first", pairs.first), ("second", pairs.second))
        )
        edited = ScoredPairs(_kept(first, pairs.first), _kept(second, pairs.second), pairs.scores)
        return EditedPairs(edited, first.count(None) + second.count(None))


class EditedPairs(NamedTuple):
    """Pairs with both sentences edited; a sentence that the edit has no place in stays as it is."""

    pairs: ScoredPairs
    num_unchanged: int
    """sentences"""


class Drawn(NamedTuple):
    """What all models are measured on."""

    copies: dict[Variant, Copies]
    pairs: dict[tuple[Variant, str], EditedPairs]
    """Edited pairs by variant and STS set."""


def copies_of(texts: Sequence[str], variant: Variant, edits: Edits, seed: int, of: str = "sentences") -> Copies:
    """A copy of each text.

    Args:
        of: what the texts are; sets draws for the first and the second texts of pairs apart.
    """
    side = f"robustness {of} {variant.edit} {variant.share}"
    draw = _with_words if edits.of_words else _whole
    return [draw(text, variant, edits, generator_of(seed, 0, row, side)) for row, text in enumerate(texts)]


def _kept(copies: Copies, texts: Sequence[str]) -> list[str]:
    return [text if copy is None else copy.text for copy, text in zip(copies, texts, strict=True)]


def _with_words(text: str, variant: Variant, edits: Edits, generator: random.Random) -> Copy | None:
    """With as many words edited as the strength asks for, or as can be; words come in a drawn order."""
    pieces = pieces_of(text)
    places = range(1, len(pieces), 2)
    wanted, num_changes = max(1, round((variant.share or 0) * len(places))), 0
    for place in generator.sample(places, len(places)):
        if num_changes == wanted:
            break
        # Not every edit of a group has a place in every word.
        for edit in generator.sample(edits.of_words, len(edits.of_words)):
            new = edit(pieces[place], generator)
            if new != pieces[place]:
                pieces[place], num_changes = new, num_changes + 1
                break
    return Copy("".join(pieces), num_changes) if num_changes else None


def _whole(text: str, variant: Variant, edits: Edits, generator: random.Random) -> Copy | None:
    """With one change of the whole text: a flip, or a function of the user's own."""
    (edit,) = edits.of_texts
    edited = edit(text, generator)
    return None if edited == text or not edited.strip() else Copy(edited, 1)


def _variants(settings: RobustnessSettings) -> tuple[Variant, ...]:
    """The named edits at each strength, each followed by the edits of its group at one word; and the flips."""
    kept, flips = settings.kept_edits, settings.flipping_edits
    check_edits(kept, "--edits")
    check_edits(flips, "--flips", keeps_meaning=False)
    both = next((name for name in expanded(flips) if name in kept), None)
    if both is not None:
        raise UserError(f"{both} is given under --edits and under --flips; expected it under one of them")
    variants = []
    for name in kept:
        shares = () if ":" in name else settings.shares
        variants += [Variant(name, share) for share in (None, *sorted(shares))]
        variants += [Variant(member, is_named=False) for member in GROUPS.get(name, ()) if member not in kept]
    return (*variants, *(Variant(name, is_kept=False) for name in expanded(flips)))


def _edits(settings: RobustnessSettings) -> dict[str, Edits]:
    word_sets = None if settings.word_sets is None else WordSets.load(settings.word_sets)
    kept, flips = settings.kept_edits, settings.flipping_edits
    edits = {}
    for key, names in (("--edits", [*kept, *expanded(kept)]), ("--flips", expanded(flips))):
        edits.update({name: make_edits([name], key, word_sets, settings.keyboard) for name in names})
    return edits


def _sentences(settings: RobustnessSettings) -> tuple[str, list[str]]:
    from fastadv.evaluation.vectors.geometry_of_models import find_geometry_data

    data = find_geometry_data(settings.texts, settings.field, settings.split, settings.quoting)
    return data.name, data.sentences


def _pairs(settings: RobustnessSettings) -> dict[str, ScoredPairs]:
    if settings.senteval is None:
        return {}
    from fastadv.evaluation.vectors.sts import read_sts_sets

    sets = read_sts_sets(Path(settings.senteval).expanduser(), STS_SETS)
    if settings.num_pairs is None:
        return sets
    drawn = {}
    for name, pairs in sets.items():
        rows = sorted(random.Random(settings.seed).sample(range(len(pairs)), min(settings.num_pairs, len(pairs))))
        columns = (pairs.first, pairs.second, pairs.scores)
        drawn[name] = ScoredPairs(*([column[row] for row in rows] for column in columns))
    return drawn
