"""What WordNet knows of the words of a vocabulary: synonyms, antonyms, and inflected forms.

NLTK's reader reads the files of the attack data folder.
"""

import re
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Set, Tuple

from fastadv.errors import UserError
from fastadv.evaluation.attack_data import check_attack_data

_PARTS_OF_SPEECH = ("n", "v", "a", "r")
# What an inflected form ends in says which form it is; irregular ones are left alone.
_ENDING = re.compile("(ing|ed|est|er|s)$")


def open_wordnet(folder: Path) -> Any:
    """NLTK's reader of WordNet in an attack data folder.

    Raises:
        UserError: NLTK is not installed, or the folder is not there or damaged.
    """
    check_attack_data(folder)
    try:
        import nltk.data
        from nltk.corpus.reader.wordnet import WordNetCorpusReader
    except ImportError as error:
        raise UserError(
            "WordNet is read by the package nltk, which is not installed: pip install 'fastadv[attack]'"
        ) from (error)
    data = str(folder.absolute() / "nltk_data")
    if data not in nltk.data.path:
        # NLTK reads files below its own path only.
        nltk.data.path.insert(0, data)
    with warnings.catch_warnings():
        # Other languages' wordnets are not wanted.
        warnings.simplefilter("ignore")
        return WordNetCorpusReader(nltk.data.find("corpora/wordnet", [data]), None)


class Lexicon:
    """The words of a vocabulary as WordNet sees them.

    Args:
        words: the vocabulary; only these are ever returned.
    """

    def __init__(self, wordnet, words: Sequence[str]):
        self._wordnet = wordnet
        self._words = frozenset(words)
        self._lemmas: Dict[str, List[Tuple[str, str]]] = {}
        self._forms: Dict[Tuple[str, str], List[str]] = defaultdict(list)
        for word in words:
            self._lemmas[word] = self._lemmas_of(word)
            for lemma in self._lemmas[word]:
                self._forms[lemma].append(word)

    def _lemmas_of(self, word: str) -> List[Tuple[str, str]]:
        found = []
        for part in _PARTS_OF_SPEECH:
            lemma = self._wordnet.morphy(word, part)
            if lemma is not None:
                found.append((lemma, part))
        return found

    def knows(self, word: str) -> bool:
        return bool(self._lemmas.get(word))

    def synonym_pairs(self, max_sense: int) -> Set[Tuple[str, str]]:
        """Pairs of words of one synset, or forms of one lemma, or derived from one another, in order of letters.

        Args:
            max_sense: for both words the synset must be among so many of its commonest senses of that part of speech.
        """
        pairs: Set[Tuple[str, str]] = set()
        for (lemma, part), forms in self._forms.items():
            pairs.update(_ordered(forms))
            for synset in self._wordnet.synsets(lemma, part)[:max_sense]:
                for other in synset.lemmas():
                    name = other.name().lower()
                    if name == lemma:
                        pairs.update(self._derived(forms, other, part))
                    elif synset in self._wordnet.synsets(name, part)[:max_sense]:
                        pairs.update(self._alike(lemma, name, part))
        return pairs

    def _alike(self, lemma: str, other: str, part: str) -> Set[Tuple[str, str]]:
        """Pairs of forms of two lemmas that are the same form: both plural, both -ing, or both neither."""
        return {
            pair
            for a in self._forms.get((lemma, part), [])
            for b in self._forms.get((other, part), [])
            if _form(a, lemma) == _form(b, other)
            for pair in _ordered([a, b])
        }

    def _derived(self, forms: Sequence[str], lemma, part: str) -> Set[Tuple[str, str]]:
        pairs: Set[Tuple[str, str]] = set()
        for other in lemma.derivationally_related_forms():
            name = other.name().lower()
            other_part = other.synset().pos().replace("s", "a")
            if other_part != part and name in self._words and lemma.name().lower() in forms:
                pairs.update(_ordered([lemma.name().lower(), name]))
        return pairs

    def antonyms(self, word: str) -> List[str]:
        """Antonyms in the order of the word's senses, in the word's own form where the vocabulary has that."""
        found: Dict[str, None] = {}
        for lemma, part in self._lemmas[word]:
            for synset in self._wordnet.synsets(lemma, part):
                for own in synset.lemmas():
                    if own.name().lower() == lemma:
                        for other in own.antonyms():
                            found.update(dict.fromkeys(self._inflected(other.name().lower(), part, word, lemma)))
        return [antonym for antonym in found if antonym != word]

    def _inflected(self, antonym: str, part: str, word: str, lemma: str) -> List[str]:
        """The antonym in the form that ``word`` has of ``lemma``, else as it is, else none."""
        forms = [form for form in self._forms.get((antonym, part), []) if _form(form, antonym) == _form(word, lemma)]
        return sorted(forms) or ([antonym] if antonym in self._words else [])


def _form(word: str, lemma: str) -> str:
    """The ending that inflects a lemma; "?" for an irregular form, nothing for the lemma itself."""
    match = _ENDING.search(word)
    return "" if word == lemma else match.group() if match else "?"


def _ordered(words: Sequence[str]) -> Set[Tuple[str, str]]:
    distinct = sorted(set(words))
    return {(a, b) for i, a in enumerate(distinct) for b in distinct[i + 1 :]}


def pair_rows(pairs: Iterable[Tuple[str, str]], index: Mapping[str, int]) -> List[Tuple[int, int]]:
    """Rows of the pairs' words, in order."""
    return sorted((index[a], index[b]) for a, b in pairs)
