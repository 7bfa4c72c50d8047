"""Runs that take a second: a tiny BERT, a dozen sentences, a few steps."""

import json
from pathlib import Path

import pytest

from fastadv.config import Config

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


@pytest.fixture
def make_config(tiny_bert_dir, tmp_path):
    """``make_config("name", **{"train.max_steps": 2})``: 2 batches an epoch, the second not full; dropout on."""
    text = tmp_path / "sentences.txt"
    text.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")

    def make(name: str = "run", **changes) -> Config:
        config = Config()
        config.encoder.model = str(tiny_bert_dir)
        config.encoder.dropout = 0.1
        config.data.train, config.data.cache_dir = str(text), str(tmp_path / "cache")
        config.perturbation.epsilon_relative = 0.2
        config.perturbation.alpha, config.perturbation.beta, config.perturbation.gamma = 1.0, 0.4, 0.7
        config.perturbation.num_steps = 2
        config.optimizer.lr, config.optimizer.warmup_ratio, config.optimizer.weight_decay = 1e-3, 0.25, 0.01
        config.train.output_dir, config.train.batch_size, config.train.max_steps = str(tmp_path / name), 8, 4
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
def step_lines():
    """The lines of metrics.jsonl that hold a step, without what depends on the clock."""

    def read(run_folder: Path) -> list[dict]:
        lines = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
        return [{k: v for k, v in line.items() if k != "sentences_per_s"} for line in lines]

    return read
