"""Pairs of sentences that say the same or not, made from the demo's reviews: a paraphrase task without a download.

    python -m bench.studies.paraphrase_pairs --word_sets word_sets.json --out paraphrases

writes train.csv, dev.csv and test.csv with the columns first, second, label (duplicate or different) and made:

| made | label | first | second |
|---|---|---|---|
| rewritten | duplicate | a sentence | its words replaced by synonyms here and there, and lightly rewritten |
| near | different | a sentence | of all others of the split the one with the most similar words |
| antonym | different | a sentence | as rewritten, and one word replaced by an antonym |

Half of the pairs are duplicates. Sentences are those of `demo:imdb-train`, `-dev` and `-test`, so that no review is in
two of the files. All is drawn by the seed and the sentence. Nobody has judged the pairs: a synonym may change what is
said, and two reviewers may have said the same by chance; the sample that is printed shows how often. The words come
from the sets that BAT and SAFER train with, so that a plain classifier has seen synonyms in duplicates (`--replace`
says how many), and antonyms in different pairs (`--flips`).
"""

import argparse
import csv
import re
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import List, Optional, Sequence

import numpy as np
from tqdm.auto import tqdm

from fastadv.data.sources.demo import demo_sentences
from fastadv.data.variants.substitution import antonym_draw, draw_seed
from fastadv.data.variants.word_sets import WordSets, replaced, words_of
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

SPLITS = ("train", "dev", "test")
MIN_WORDS, MAX_WORDS = 8, 24
NEAREST, FARTHEST = 0.9, 0.4
"""cosines of TF-IDF vectors: above the first a near sentence may be the same, below the other it is no near one"""
NUM_NEAREST = 10
"""synonyms of a word that are taken: those far down a set are the doubtful ones"""
# Only before another word, for nobody writes "how good it's."; and "have" may be a verb of its own.
_SHORTENED = [
    *[(f"{verb}n't", f"{verb} not") for verb in "is are was were do does did has have had would should could".split()],
    ("can't", "cannot"),
    ("it's", "it is"),
    ("that's", "that is"),
    ("i'm", "i am"),
    ("you're", "you are"),
    ("they're", "they are"),
]
_WRITTEN_OUT = [*_SHORTENED, ("i've", "i have"), ("you've", "you have"), ("we've", "we have"), ("they've", "they have")]
_STRENGTH = re.compile(r"\b(?:very|really|quite|simply|truly|just) (?=[a-z])")
_OPENING = re.compile(r"^(?:And|But|So|Well,|Also,|Anyway,|Now,) (?=\w)")
_ADVERB = re.compile(r"^([A-Z][a-z]+ly|However), (\w)(.*?)([.!?]*)$")


@dataclass(frozen=True)
class Pair:
    first: str
    second: str
    label: str
    made: str


def with_synonyms(text: str, word_sets: WordSets, rng: np.random.Generator, share: float) -> str:
    """Each word that has synonyms replaced by one of them with a chance of ``share``; one word at least, if any has."""
    words = words_of(text)
    known = [[s for s in word_sets.synonyms.get(word.key, ()) if s != word.key][:NUM_NEAREST] for word in words]
    places = [i for i, synonyms in enumerate(known) if synonyms]
    if not places:
        return text
    chosen = [i for i in places if rng.random() < share] or [places[int(rng.integers(len(places)))]]
    return replaced(text, {i: known[i][int(rng.integers(len(known[i])))] for i in chosen})


def rewritten(text: str, rng: np.random.Generator) -> str:
    """Each with a chance of a half: short forms written out or the other way round, an adverb of strength or an opening
    word left out, an opening adverb moved to the end."""
    if rng.random() < 0.5:
        text = _with_other_forms(text)
    if rng.random() < 0.5:
        text = _STRENGTH.sub("", text, count=1)
    if rng.random() < 0.5:
        without = _OPENING.sub("", text)
        text = without[:1].upper() + without[1:]
    match = _ADVERB.match(text)
    if match is not None and rng.random() < 0.5:
        adverb, letter, rest, mark = match.groups()
        text = f"{letter.upper()}{rest}, {adverb.lower()}{mark}"
    return text


def _with_other_forms(text: str) -> str:
    forms = [(rf"\b{short}\b", long) for short, long in _WRITTEN_OUT]
    forms += [(rf"\b{long}\b(?= [a-z])", short) for short, long in _SHORTENED]
    for old, new in forms:
        found = re.search(old, text, re.IGNORECASE)
        if found is not None:
            word = new[:1].upper() + new[1:] if found[0][:1].isupper() else new
            return text[: found.start()] + word + text[found.end() :]
    return text


def eligible(sentences: Sequence[str]) -> List[str]:
    """Sentences of `MIN_WORDS` to `MAX_WORDS` words, each once, in their order."""
    return [s for s in dict.fromkeys(sentences) if MIN_WORDS <= len(words_of(s)) <= MAX_WORDS]


def near_sentences(sentences: Sequence[str], pool: Sequence[str]) -> List[Optional[str]]:
    """Of each sentence the most similar one of ``pool`` that is not too similar; None where none is near."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neighbors import NearestNeighbors

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    vectors = vectorizer.fit_transform(pool)
    search = NearestNeighbors(n_neighbors=min(10, len(pool)), metric="cosine", algorithm="brute").fit(vectors)
    found: List[Optional[str]] = []
    for at in tqdm(range(0, len(sentences), 256), desc="near sentences", disable=None):
        distances, indices = search.kneighbors(vectorizer.transform(sentences[at : at + 256]))
        for row, places in zip(1 - distances, indices, strict=True):
            near = (pool[i] for cosine, i in zip(row, places) if FARTHEST <= cosine <= NEAREST)
            found.append(next(near, None))
    return found


def make_pairs(
    sentences: Sequence[str], num_pairs: int, word_sets: WordSets, seed: int, flips: float, share: float
) -> List[Pair]:
    """``num_pairs`` pairs in random order, half of them duplicates; each sentence opens one pair at most.

    Args:
        flips: share of antonyms among the different pairs.
        share: chance of a word that has synonyms to be replaced.

    Raises:
        UserError: too few sentences that serve.
    """
    pool, rng = eligible(sentences), np.random.default_rng(seed)
    left = iter([pool[i] for i in rng.permutation(len(pool))])
    num_flips = round(flips * (num_pairs // 2))
    counts = {"rewritten": num_pairs - num_pairs // 2, "antonym": num_flips, "near": num_pairs // 2 - num_flips}
    makers = {
        "rewritten": lambda some: [_duplicate(text, word_sets, seed, share) for text in some],
        "antonym": lambda some: [_with_antonym(text, word_sets, seed, share) for text in some],
        "near": lambda some: near_sentences(some, pool),
    }
    pairs: List[Pair] = []
    for made, count in counts.items():
        label = "duplicate" if made == "rewritten" else "different"
        found: List[Pair] = []
        while len(found) < count:
            # Some give nothing; a few more are asked than are wanted.
            some = list(islice(left, 64 + (count - len(found)) * 5 // 4))
            if not some:
                raise UserError(f"{num_pairs:,} pairs: only {len(found):,} of {count:,} could be made by {made}")
            found += [Pair(text, other, label, made) for text, other in zip(some, makers[made](some)) if other]
        pairs += found[:count]
    # Which of the two is the older must not be told by its place.
    pairs = [Pair(p.second, p.first, p.label, p.made) if rng.random() < 0.5 else p for p in pairs]
    return [pairs[i] for i in rng.permutation(len(pairs))]


def _duplicate(text: str, word_sets: WordSets, seed: int, share: float) -> Optional[str]:
    rng = draw_seed(seed, 0, (text,), "paraphrase")
    other = with_synonyms(text, word_sets, rng, share)
    return None if other == text else rewritten(other, rng)


def _with_antonym(text: str, word_sets: WordSets, seed: int, share: float) -> Optional[str]:
    other = _duplicate(text, word_sets, seed, share)
    flipped = other and antonym_draw((other,), word_sets, draw_seed(seed, 0, (text,), "antonym"))
    return flipped[0] if flipped else None


def main(argv: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--word_sets", required=True, help="a file of fastadv word-sets")
    parser.add_argument("--out", required=True, type=Path)
    for split, count in zip(SPLITS, (4000, 400, 400), strict=True):
        parser.add_argument(f"--{split}", type=int, default=count, help=f"pairs of {split}.csv (%(default)s)")
    parser.add_argument("--flips", type=float, default=0.25, help="share of antonyms in different pairs (%(default)s)")
    parser.add_argument("--replace", type=float, default=0.3, help="chance of a word to be replaced (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    for name in ("flips", "replace"):
        if not 0 <= getattr(given, name) <= 1:
            raise UserError(f"--{name} = {getattr(given, name)}: expected a number in [0, 1]")
    word_sets = WordSets.load(given.word_sets)
    given.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        sentences = demo_sentences(f"demo:imdb-{split}")
        pairs = make_pairs(sentences, getattr(given, split), word_sets, given.seed, given.flips, given.replace)
        with written_aside(given.out / f"{split}.csv") as aside:
            with open(aside, "w", encoding="utf-8", newline="") as file:
                rows = csv.writer(file)
                rows.writerow(("first", "second", "label", "made"))
                rows.writerows((p.first, p.second, p.label, p.made) for p in pairs)
        counts = Counter(pair.made for pair in pairs)
        print(f"{split}: {', '.join(f'{made} {count:,}' for made, count in sorted(counts.items()))}")
    for pair in pairs[:10]:
        print(f"\n{pair.label} ({pair.made})\n  {pair.first}\n  {pair.second}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"paraphrase_pairs: {error}")
