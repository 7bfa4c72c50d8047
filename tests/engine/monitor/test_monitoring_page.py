"""docs/monitoring.md lists the keys of metrics.jsonl: all that runs write, and no others."""

import json
import re
from pathlib import Path

import pytest

from fastadv.objectives.terms import TERMS
from tests.quick_trainer import Trainer
from tests.small_runs import SENTENCES

PAGE = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text(encoding="utf-8")


def documented():
    """The names in the first column of the page's first table."""
    rows = [line for line in PAGE.split("\n## ")[1].splitlines() if line.startswith("| `")]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row.split("|")[1])]


@pytest.fixture
def written(make_config, scored_pairs, tmp_path):
    skipping = {
        "objective": "tests.ranks.cases.planted:Planted",
        "objective_options": {"fault": "loss", "at": [2], "rtd_generator": "unigram"},
        "train.on_nonfinite": "skip",
        "perturbation.reuse": "adaptive",
        "dev.data": scored_pairs,
        "train.eval_every": 2,
        "train.save_every": 2,
    }
    texts = tmp_path / "texts.tsv"
    rows = [f"{text}\t{'abcd'[i % 4]}" for i, text in enumerate(SENTENCES)]
    texts.write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    supervised = [
        {"objective": "scal", "perturbation.method": "fgm"},
        {"objective": "smart", "perturbation.method": "pgd"},
        {"objective": "carl", "perturbation.method": "freelb", "objective_options": {"num_negatives": 5}},
        {"objective": "rar", "perturbation.method": "freelb"},
    ]
    runs = [{"objective": "simcse"}, {"objective": "uscal", "perturbation.method": "fgsm"}, {}, skipping]
    runs.append(
        {
            "objective": "simcse",
            "objective_options": {"text_positive": "instead", "weight_flip": 0.1, "weight_keep": 1.0},
            "perturbation.text.edits": ["typos"],
            "perturbation.text.flips": ["negation"],
        }
    )
    runs += [{**changes, "data.train": str(texts), "data.label_field": "label"} for changes in supervised]
    keys = set()
    for number, changes in enumerate(runs):
        options = changes.pop("objective_options", {})
        config = make_config(f"run-{number}", objective_options=options, **changes)
        log = Trainer(config).fit() / "metrics.jsonl"
        keys |= {key for line in log.read_text().splitlines() for key in json.loads(line)}
    return keys


def test_the_page_lists_what_runs_write(written):
    keys = documented()
    assert len(set(keys)) == len(keys)
    # Nothing runs on a GPU here, and not every objective.
    assert set(keys) == written | TERMS | {"mfu"}


def test_every_key_says_what_it_is():
    for row in PAGE.split("\n## ")[1].splitlines():
        if row.startswith("| `"):
            _, keys, unit, what, _ = row.split("|")
            assert len(what.strip()) > 10, keys
