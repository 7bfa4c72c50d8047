"""Labelled data sets by the names that the Hub has for them: which columns, which classes, which splits.

A name is known with or without its owner (``stanfordnlp/snli``, ``snli``, ``nyu-mll/glue:sst2``), and so is a folder
called like it (``snli``, ``glue/sst2``). What is written here fills in what the config leaves at its defaults.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Optional, Tuple

_NLI = ("entailment", "neutral", "contradiction")
_POLARITY = ("negative", "positive")
_HAS_IT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class KnownDataset:
    """A data set's layout."""

    texts: Tuple[str, ...]
    """the column of the text, the two of a pair, or, where `is_joined`, those that make up one text"""
    names: Tuple[str, ...] = ()
    """the classes in their order, where the label column holds their numbers; empty: a score, not a class"""
    label: str = "label"
    splits: Dict[str, str] = field(default_factory=lambda: {"dev": "validation"})
    """what ``data.split`` may say -> what the data set says"""
    is_joined: bool = False
    skips_unlabelled: bool = False
    """rows of label -1, on which the annotators did not agree, are left out, as everyone does"""


_NO_DEV: Dict[str, str] = {}
_MATCHED = {"dev": "validation_matched", "validation": "validation_matched", "test": "test_matched"}
_ROUNDS = {
    split: "+".join(f"{written}_r{i}" for i in (1, 2, 3))
    for split, written in {"train": "train", "dev": "dev", "validation": "dev", "test": "test"}.items()
}
_YAHOO = (
    "Society & Culture",
    "Science & Mathematics",
    "Health",
    "Education & Reference",
    "Computers & Internet",
    "Sports",
    "Business & Finance",
    "Entertainment & Music",
    "Family & Relationships",
    "Politics & Government",
)

_MNLI = KnownDataset(("premise", "hypothesis"), _NLI, splits=_MATCHED)
_SST2 = KnownDataset(("sentence",), _POLARITY)

KNOWN = {
    "glue:cola": KnownDataset(("sentence",), ("unacceptable", "acceptable")),
    "glue:sst2": _SST2,
    "glue:mrpc": KnownDataset(("sentence1", "sentence2"), ("not_equivalent", "equivalent")),
    "glue:qqp": KnownDataset(("question1", "question2"), ("not_duplicate", "duplicate")),
    "glue:stsb": KnownDataset(("sentence1", "sentence2")),
    "glue:mnli": _MNLI,
    "glue:qnli": KnownDataset(("question", "sentence"), _HAS_IT),
    "glue:rte": KnownDataset(("sentence1", "sentence2"), _HAS_IT),
    "glue:wnli": KnownDataset(("sentence1", "sentence2"), _HAS_IT[::-1]),
    "sst2": _SST2,
    "snli": KnownDataset(("premise", "hypothesis"), _NLI, skips_unlabelled=True),
    "multi_nli": _MNLI,
    "mnli": _MNLI,
    "anli": KnownDataset(("premise", "hypothesis"), _NLI, splits=_ROUNDS),
    "ag_news": KnownDataset(("text",), ("World", "Sports", "Business", "Sci/Tech"), splits=_NO_DEV),
    "trec": KnownDataset(
        ("text",), ("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"), label="coarse_label", splits=_NO_DEV
    ),
    "yelp_polarity": KnownDataset(("text",), _POLARITY, splits=_NO_DEV),
    "yelp_review_full": KnownDataset(("text",), ("1 star", "2 star", "3 stars", "4 stars", "5 stars"), splits=_NO_DEV),
    "yahoo_answers_topics": KnownDataset(
        ("question_title", "question_content", "best_answer"), _YAHOO, label="topic", splits=_NO_DEV, is_joined=True
    ),
    "imdb": KnownDataset(("text",), ("neg", "pos"), splits=_NO_DEV),
    "rotten_tomatoes": KnownDataset(("text",), ("neg", "pos")),
}


def known_dataset(name: str) -> Optional[KnownDataset]:
    """The layout of the data set or folder called ``name``, or None."""
    path = Path(name).expanduser()
    if path.is_dir():
        path = path.resolve()
        keys = [f"{path.parent.name}:{path.name}", path.name]
    else:
        keys = [name.rpartition("/")[2]]
    found = (KNOWN.get(key.lower().replace("-", "_")) for key in keys)
    return next((known for known in found if known is not None), None)
