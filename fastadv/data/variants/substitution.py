"""Other texts of a sentence by word sets, redrawn every epoch (METHODS 4: BAT, SAFER).

| | what is replaced | by what |
|---|---|---|
| fickle, the label stays | every word of every text | a random member of its synonym set, the word itself included |
| obstinate, the label flips | one word of one text | a random one of its antonyms |

A pair of texts is one sentence with two parts. Both draws take a generator of `draw_seed`'s, which knows the sentence,
the seed and the epoch and nothing else: the order of a batch, ranks and loader processes have no say.
"""

import hashlib
from typing import Mapping, Optional, Sequence

import numpy as np

from fastadv.data.variants.word_sets import Word, WordSets, replaced, words_of


def draw_seed(seed: int, epoch: int, texts: Sequence[str], what: str = "") -> np.random.Generator:
    """The generator of one sentence's draws.

    Args:
        texts: one, or the two of a pair, in order.
        what: sets draws of several kinds of one sentence apart.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (str(seed), str(epoch), what, *texts):
        # Half a surrogate pair may stand in a text, and lengths keep ("ab", "c") and ("a", "bc") apart.
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return np.random.default_rng(int.from_bytes(digest.digest(), "little"))


def synonym_draw(texts: tuple[str, ...], word_sets: WordSets, rng: np.random.Generator) -> Optional[tuple[str, ...]]:
    """x_f: every word of every text replaced by a random member of its synonym set, the word itself included.

    Returns:
        the texts, as many as given; None where every word stayed what it was.
    """
    drawn = tuple(_with_synonyms(text, word_sets, rng) for text in texts)
    return None if drawn == tuple(texts) else drawn


def antonym_draw(texts: tuple[str, ...], word_sets: WordSets, rng: np.random.Generator) -> Optional[tuple[str, ...]]:
    """x_o: one word of one text replaced by a random one of its antonyms: of all words in random order, the first that
    has any.

    Returns:
        the texts, as many as given, of which one is another; None where no word has an antonym.
    """
    places = [(part, index, word) for part, text in enumerate(texts) for index, word in enumerate(words_of(text))]
    for place in rng.permutation(len(places)):
        part, index, word = places[place]
        antonyms = _others(word, word_sets.antonyms)
        if antonyms:
            chosen = antonyms[int(rng.integers(len(antonyms)))]
            flipped = replaced(texts[part], {index: chosen})
            if flipped != texts[part]:
                return (*texts[:part], flipped, *texts[part + 1 :])
    return None


def _with_synonyms(text: str, word_sets: WordSets, rng: np.random.Generator) -> str:
    words = words_of(text)
    substitutes = {}
    # One number a word, whether it has synonyms or not: a set that changes moves no other word's draw.
    for index, (word, number) in enumerate(zip(words, rng.random(len(words)), strict=True)):
        synonyms = _others(word, word_sets.synonyms)
        # Number 0 is the word itself.
        chosen = int(number * (1 + len(synonyms)))
        if chosen:
            substitutes[index] = synonyms[chosen - 1]
    return replaced(text, substitutes) if substitutes else text


def _others(word: Word, sets: Mapping[str, Sequence[str]]) -> list[str]:
    """The set of a word without the word itself, which some files have in it, and without repetitions."""
    return [other for other in dict.fromkeys(sets.get(word.key, ())) if other != word.key]
