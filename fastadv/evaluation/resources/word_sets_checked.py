"""Word sets whose members stand in a word's place: WordNet's synonyms and antonyms, checked in texts.

A member has the word's part of speech and inflection, shares a frequent sense with it, is no rare word, and stands
between the same neighbours. An encoder that reads whole sentences then refuses synonyms that move them too far.
Function words have no sets, nor has a word of several parts of speech ("love"): a set is looked up by the word alone.
"""

import random
import re
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Collection, Iterator, Sequence

import numpy as np

from fastadv.data.variants.word_sets import WordSets, replaced, words_of
from fastadv.evaluation.resources.word_usage import WordUsage
from fastadv.evaluation.resources.word_vectors import WordVectors
from fastadv.files.progress import Bar

_UNIVERSAL = {"n": "NOUN", "v": "VERB", "a": "ADJ", "r": "ADV"}
# What "an" stands before, as far as spelling says: "an hour", but "a unique one".
_AFTER_AN = re.compile(r"(?!uni(?![mn])|us[eu]|eu|one)[aeiou]|hon[eo]|hour|heir")
_PRONOUN = re.compile("(some|any|every|no)(body|one|thing)")


@dataclass(frozen=True)
class Checks:
    """What a member of a set must fulfil."""

    min_per_million: float = 10
    """How often a member occurs in a million words of the texts, at least"""
    min_share_of_word: float = 0.2
    """How often a synonym occurs for each time that the word does: a much rarer word stands in fewer contexts"""
    min_sense_share: float = 0.4
    """Least share of a word's uses in WordNet's tagged texts that are of the sense it shares with the other; of both"""
    min_cosine: float = 0.55
    """Of the word vectors of synonyms"""
    max_lost_neighbours: float = 0.15
    """Share of a word's places where a synonym would stand beside a word that it hardly ever stands beside"""
    max_lost_by_antonym: float = 0.2
    """The same of an antonym"""
    num_sentences: int = 20
    """Sentences of each synonym that the encoder compares"""
    min_sentence_cosine: float = 0.93
    """Mean cosine of a sentence and the same with the synonym: half of all random words in its place reach this"""
    min_nearer_share: float = 0.7
    """Share of the sentences that the synonym moves less than a random word of the same form does"""


class CheckedSets:
    """Synonyms and antonyms of the words of texts.

    Args:
        wordnet: NLTK's reader (`open_wordnet`).
        vectors: plain ones, less what is common to all; near words occur in the same places.
        function_words: have no sets, besides pronouns.
    """

    def __init__(
        self,
        wordnet: Any,
        usage: WordUsage,
        vectors: WordVectors,
        function_words: Collection[str],
        checks: Checks = Checks(),
    ):
        self._wordnet, self._usage, self._vectors, self._checks = wordnet, usage, vectors, checks
        self._shares: dict[tuple[str, str], dict[Any, float]] = {}
        self._forms = {
            word: form
            for word in sorted(usage.counts)
            if word not in function_words and not _PRONOUN.fullmatch(word) and (form := usage.form(word))
        }
        self._lemmas = {word: _lemma(word, form.part) for word, form in self._forms.items()}
        self._words_of: dict[tuple[str, str], list[str]] = defaultdict(list)
        for word, lemma in self._lemmas.items():
            self._words_of[lemma, self._forms[word].part].append(word)

    def synonyms(self) -> dict[str, list[str]]:
        """Synonyms by word, nearest first."""
        checks, sets = self._checks, {}
        for word in self._forms:
            least = max(checks.min_per_million, checks.min_share_of_word * self._usage.per_million(word))
            near = [
                (-cosine, other)
                for other in self._in_form_of(word, self._related(word, antonyms=False), checks.max_lost_neighbours)
                if self._usage.per_million(other) >= least
                and (cosine := self._cosine(word, other)) >= checks.min_cosine
            ]
            if near:
                sets[word] = [other for _, other in sorted(near)]
        return sets

    def antonyms(self) -> dict[str, list[str]]:
        """Antonyms by word, the commonest first."""
        checks, sets = self._checks, {}
        for word in self._forms:
            others = self._in_form_of(word, self._related(word, antonyms=True), checks.max_lost_by_antonym)
            found = [other for other in others if self._usage.per_million(other) >= checks.min_per_million]
            if found:
                sets[word] = sorted(found, key=lambda other: (-self._usage.counts[other], other))
        return sets

    def _related(self, word: str, antonyms: bool) -> list[str]:
        """The lemmas that WordNet relates to a word, in senses that are frequent for both."""
        lemma, part = self._lemmas[word], self._forms[word].part
        senses = self._sense_shares(lemma, part)
        # The senses of the word and of the other that are related.
        own_senses: dict[str, set] = defaultdict(set)
        other_senses: dict[str, set] = defaultdict(set)
        for synset in senses:
            related = [other for near in (synset, *synset.similar_tos()) for other in near.lemmas()]
            if antonyms:
                related = [other for own in synset.lemmas() if own.name().lower() == lemma for other in own.antonyms()]
            for other in related:
                own_senses[other.name().lower()].add(synset)
                other_senses[other.name().lower()].add(other.synset())
        least, found = self._checks.min_sense_share, []
        for other, own in own_senses.items():
            if other != lemma and (other, part) in self._words_of and sum(senses[sense] for sense in own) >= least:
                others = self._sense_shares(other, part)
                if sum(others.get(sense, 0) for sense in other_senses[other]) >= least:
                    found.append(other)
        return found

    def _sense_shares(self, lemma: str, part: str) -> dict[Any, float]:
        """The share of a lemma's uses by synset; half a use more of each, as most senses occur in no tagged text."""
        if (lemma, part) not in self._shares:
            counts = {
                synset: sum(own.count() for own in synset.lemmas() if own.name().lower() == lemma) + 0.5
                for synset in self._wordnet.synsets(lemma, part)
            }
            total = sum(counts.values())
            self._shares[lemma, part] = {synset: count / total for synset, count in counts.items()}
        return self._shares[lemma, part]

    def _in_form_of(self, word: str, lemmas: Sequence[str], max_lost: float) -> Iterator[str]:
        """The words of some lemmas that can stand where ``word`` does."""
        from lemminflect import getInflection

        form = self._forms[word]
        for lemma in lemmas:
            for other in self._words_of[lemma, form.part]:
                if (
                    other != word
                    and set(form.tags) & set(self._forms[other].tags)
                    and all(other in getInflection(lemma, tag) for tag in form.tags)
                    # "a film" becomes "a movie", but not "a account".
                    and (form.part == "v" or bool(_AFTER_AN.match(word)) == bool(_AFTER_AN.match(other)))
                    and self._usage.lost_neighbours(word, other) <= max_lost
                ):
                    yield other

    def _cosine(self, word: str, other: str) -> float:
        index = self._vectors.index
        if word not in index or other not in index:
            return -1.0
        return float(self._vectors.directions[index[word]] @ self._vectors.directions[index[other]])

    def kept_in_sentences(
        self, synonyms: dict[str, list[str]], texts: Sequence[str], encoder: Any, seed: int = 0
    ) -> dict[str, list[str]]:
        """The synonyms that move a sentence little, and less than random words of the same form do.

        Args:
            texts: sentences; those of 6 to 25 words are taken, in a drawn order.
            encoder: with ``encode_texts``, as `fastadv.encoder.Encoder`.
        """
        checks, generator = self._checks, random.Random(seed)
        places: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for text in generator.sample(texts, len(texts)):
            words = words_of(text)
            if 6 <= len(words) <= 25:
                for index, word in enumerate(words):
                    if word.text in synonyms and len(places[word.text]) < checks.num_sentences:
                        places[word.text].append((text, index))
        of_form: dict[Any, list[str]] = defaultdict(list)
        for word, form in self._forms.items():
            of_form[form].append(word)
        random_words = {
            place: generator.choice(of_form[self._forms[word]]) for word in places for place in places[word]
        }
        changed = {
            (text, index, other): replaced(text, {index: other})
            for word in places
            for text, index in places[word]
            for other in (*synonyms[word], random_words[text, index])
        }
        if not changed:
            return {}
        distinct = list(dict.fromkeys([*changed.values(), *(text for text, _, _ in changed)]))
        vectors = encoder.encode_texts(distinct)
        rows = dict(zip(distinct, vectors / np.linalg.norm(vectors, axis=1, keepdims=True)))
        cosines = {place: float(rows[place[0]] @ rows[new]) for place, new in changed.items()}
        kept = {}
        for word, others in synonyms.items():
            found = []
            for other in others:
                own = np.array([cosines[text, index, other] for text, index in places[word]])
                of_random = np.array([cosines[place + (random_words[place],)] for place in places[word]])
                if (
                    len(own)
                    and own.mean() >= checks.min_sentence_cosine
                    and np.mean(own > of_random) >= checks.min_nearer_share
                ):
                    found.append(other)
            if found:
                kept[word] = found
        return kept


def _lemma(word: str, part: str) -> str:
    from lemminflect import getLemma

    lemmas = getLemma(word, _UNIVERSAL[part])
    return lemmas[0] if lemmas else word


def checked_word_sets(
    texts: Sequence[str],
    encoder: Any,
    vectors: WordVectors,
    wordnet: Any,
    attack_data: Path,
    progress: bool = False,
) -> WordSets:
    """Word sets of the words of ``texts``, with the checks in their source.

    Args:
        encoder: as `CheckedSets.kept_in_sentences`; None: synonyms are not compared in sentences.
        vectors: plain ones, less what is common to all.
        wordnet: of `open_wordnet`, which has NLTK find the folder's tagger too.
        attack_data: the folder with the tagger and the list of function words.
    """
    from nltk.tag.perceptron import PerceptronTagger

    stop_words = (attack_data / "nltk_data" / "corpora" / "stopwords" / "english").read_text(encoding="utf-8")
    with Bar(desc="tagging", unit="text", disable=not progress) as bar:
        usage = WordUsage(texts, PerceptronTagger().tag, on_text=bar.update)
    sets = CheckedSets(wordnet, usage, vectors, stop_words.split())
    synonyms = sets.synonyms()
    if encoder is not None:
        synonyms = sets.kept_in_sentences(synonyms, texts, encoder)
    return WordSets(synonyms, sets.antonyms(), {"checks": asdict(Checks())})
