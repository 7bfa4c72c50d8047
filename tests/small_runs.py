"""Runs that take a second: a tiny BERT, a dozen sentences, a few steps."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from fastadv.config.schema import Config
from fastadv.engine.callbacks import Callback

# What depends on the machine and its load: no two runs have the same.
OF_THE_MACHINE = re.compile(r"time/|memory_gib|mfu|\w+_per_s")

SENTENCES = (
    "the film was not very good .",
    "a wonderful story !",
    "it is dull",
    "the actor was great , but the plot was slow .",
    "never",
    "love this camera and this music .",
    "every scene was sad and slow",
    "an almost terrible ending",
    "the music is good",
    "hate it",
    "a sharp and funny plot !",
    "the story is with this actor",
)

SCORED_PAIRS = (
    "sentence1,sentence2,score\na film,a movie,4\nvery good,very bad,1\nnever,always,0\nit is dull,the plot,2\n"
)


@pytest.fixture(scope="session")
def make_config_in(tiny_bert_dir):
    """``make_config_in(folder, "name", **changes)``: `make_config` in a folder of the caller's.

    ``scored.csv`` there holds pairs for dev scores.
    """

    def make(folder: Path, name: str = "run", **changes) -> Config:
        (folder / "scored.csv").write_text(SCORED_PAIRS, encoding="utf-8")
        text = folder / "sentences.txt"
        text.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
        config = Config()
        config.encoder.model = str(tiny_bert_dir)
        config.encoder.dropout = 0.1
        config.data.train, config.data.cache_dir = str(text), str(folder / "cache")
        config.perturbation.epsilon_relative = 0.2
        config.perturbation.alpha, config.perturbation.beta, config.perturbation.gamma = 1.0, 0.4, 0.7
        config.perturbation.num_steps = 2
        config.optimizer.lr, config.optimizer.warmup_ratio, config.optimizer.weight_decay = 1e-3, 0.25, 0.01
        config.train.output_dir, config.train.batch_size, config.train.max_steps = str(folder / name), 8, 4
        config.engine.num_threads = 1
        for key, value in changes.items():
            owner = config
            *path, last = key.split(".")
            for part in path:
                owner = getattr(owner, part)
            assert hasattr(owner, last), key
            setattr(owner, last, value)
        return config

    return make


@pytest.fixture
def make_config(make_config_in, tmp_path):
    """``make_config("name", **{"train.max_steps": 2})``: 2 batches an epoch, the second not full; dropout on."""
    return partial(make_config_in, tmp_path)


@pytest.fixture
def scored_pairs(tmp_path):
    """The file of pairs for dev scores that `make_config` leaves."""
    return str(tmp_path / "scored.csv")


def lines_of(run_folder: Path) -> list[dict]:
    """The lines of metrics.jsonl."""
    return [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def step_lines():
    """The lines of metrics.jsonl, without what depends on the machine."""

    def read(run_folder: Path) -> list[dict]:
        return [{k: v for k, v in line.items() if not OF_THE_MACHINE.match(k)} for line in lines_of(run_folder)]

    return read


class StopAfter(Callback):
    """Asks for the end, which other ranks learn from the first."""

    def __init__(self, last_step: int):
        self._last_step = last_step

    def on_step(self, trainer, step, metrics):
        if step == self._last_step:
            trainer.request_stop()


@pytest.fixture
def stop_after():
    """``stop_after(2)``: a callback that asks a run to stop after its second step."""
    return StopAfter
