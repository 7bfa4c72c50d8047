"""What WordNet knows of the words of a vocabulary: synonyms, antonyms, and inflected forms.

NLTK's reader reads the files of the attack data folder.
"""

import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from fastadv.evaluation.recipes.textattack_offline import use_nltk_data
from fastadv.evaluation.resources.attack_data import check_attack_data

_NUMBERS = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
_PARTS_OF_SPEECH = ("n", "v", "a", "r")
# What an inflected form ends in says which form it is. Comparatives are left out: WordNet takes "bader" for one.
_ENDING = re.compile("(ing|ed|s)$")
_COMPARATIVE = re.compile("(er|est)$")

Lemma = Tuple[str, str]
"""a dictionary form and its part of speech: n, v, a or r"""
Pair = Tuple[str, str]
"""two words, in order of letters"""


def open_wordnet(folder: Path) -> Any:
    """NLTK's reader of WordNet in an attack data folder.

    Raises:
        UserError: NLTK is not installed, or the folder is not there or damaged.
    """
    check_attack_data(folder)
    use_nltk_data(folder)
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    with warnings.catch_warnings():
        # Other languages' wordnets are not wanted.
        warnings.simplefilter("ignore")
        return WordNetCorpusReader(nltk.data.find("corpora/wordnet", [str(folder.absolute() / "nltk_data")]), None)


class Lexicon:
    """The words of a vocabulary as WordNet sees them.

    A word may be a form of several lemmas ("boring" of the verb and of the adjective). It counts as a form of the one
    that occurs most in WordNet's tagged texts: vectors are of words, and mostly of that sense.

    Args:
        words: the vocabulary; only these are ever returned.
    """

    def __init__(self, wordnet, words: Sequence[str]):
        self._wordnet = wordnet
        counts = _counts(wordnet)
        self._lemma: Dict[str, Lemma] = {}
        self._forms: Dict[Lemma, List[str]] = defaultdict(list)
        for word in words:
            lemmas = [(wordnet.morphy(word, part), part) for part in _PARTS_OF_SPEECH]
            known = [lemma for lemma in lemmas if lemma[0] is not None and not _is_odd_comparative(word, *lemma)]
            if known:
                # Of lemmas that occur as often, the word itself, then the order n, v, a, r.
                self._lemma[word] = max(known, key=lambda lemma: (counts[lemma], lemma[0] == word))
                self._forms[self._lemma[word]].append(word)

    def knows(self, word: str) -> bool:
        return word in self._lemma

    def synonym_pairs(self) -> Set[Pair]:
        """Pairs of words: forms of one lemma; the same form of two lemmas of one synset, whichever of their senses it
        is, or of two synsets that WordNet calls similar; and lemmas of which one is derived from the other."""
        pairs: Set[Pair] = set()
        for (lemma, part), forms in self._forms.items():
            pairs.update(_pairs(forms))
            for synset in self._wordnet.synsets(lemma, part):
                for other in [each for near in (synset, *synset.similar_tos()) for each in near.lemmas()]:
                    name = other.name().lower()
                    if name != lemma:
                        pairs.update(self._alike((lemma, part), (name, part)))
                    elif other.synset() == synset:
                        pairs.update(self._derived((lemma, part), other))
        return pairs

    def _alike(self, first: Lemma, second: Lemma) -> Set[Pair]:
        """Pairs of forms of two lemmas that are the same form: both plural, both -ing, or both neither."""
        return {
            tuple(sorted((a, b)))
            for a in self._forms.get(first, ())
            for b in self._forms.get(second, ())
            if a != b and _form(a, first) == _form(b, second)
        }

    def _derived(self, lemma: Lemma, sense) -> Set[Pair]:
        others = {other.name().lower() for other in sense.derivationally_related_forms()}
        return {
            tuple(sorted((lemma[0], other)))
            for other in others
            if other != lemma[0] and self._lemma.get(other, ("",))[0] == other and lemma[0] in self._forms[lemma]
        }

    def antonyms(self, word: str) -> List[str]:
        """Antonyms in the order of the word's senses, in the word's own form where the vocabulary has that."""
        found: Dict[str, None] = {}
        for part in _PARTS_OF_SPEECH:
            name = self._wordnet.morphy(word, part)
            for synset in self._wordnet.synsets(name, part) if name is not None else ():
                for own in synset.lemmas():
                    if own.name().lower() == name:
                        for other in own.antonyms():
                            antonym = (other.name().lower(), part)
                            found.update(dict.fromkeys(self._inflected(antonym, _form(word, (name, part)))))
        return [antonym for antonym in found if antonym != word]

    def _inflected(self, lemma: Lemma, form: str) -> List[str]:
        """The lemma in a form, else as it is, else none."""
        words = [word for word in self._forms.get(lemma, ()) if _form(word, lemma) == form]
        return sorted(words) or ([lemma[0]] if lemma[0] in self._lemma else [])


def _counts(wordnet) -> Dict[Lemma, int]:
    """How often each lemma occurs in the tagged texts, over all senses; a line has a sense key, number and count."""
    counts: Dict[Lemma, int] = defaultdict(int)
    with wordnet.open("cntlist.rev") as file:
        for line in file:
            key, _, count = line.split()
            name, _, sense = key.partition("%")
            counts[name, _NUMBERS[sense[0]]] += int(count)
    return counts


def _is_odd_comparative(word: str, lemma: str, part: str) -> bool:
    return part in "ar" and word != lemma and _COMPARATIVE.search(word) is not None


def _form(word: str, lemma: Lemma) -> str:
    """The ending that inflects a lemma; "?" for an irregular form, nothing for the lemma itself."""
    if word == lemma[0]:
        return ""
    match = _ENDING.search(word)
    return match.group() if match else "?"


def _pairs(words: Iterable[str]) -> Set[Pair]:
    distinct = sorted(set(words))
    return {(a, b) for i, a in enumerate(distinct) for b in distinct[i + 1 :]}


def pair_rows(pairs: Iterable[Pair], index: Mapping[str, int]) -> List[Tuple[int, int]]:
    """Rows of the pairs' words, in order."""
    return sorted((index[a], index[b]) for a, b in pairs)
