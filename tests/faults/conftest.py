"""Runs of a second or two to be hurt: a tiny encoder with a table V, adaptive reuse, dropout and dev scores."""

import os

# Before anything else reads them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import random
from functools import partial
from pathlib import Path

import pytest

from fastadv.config.schema import Config, to_yaml
from tests.conftest import WORDS, write_tiny_bert
from tests.faults.forkserver import ForkServer
from tests.small_runs import SCORED_PAIRS


def pytest_addoption(parser):
    group = parser.getgroup("faults")
    group.addoption("--fault-seed", type=int, default=6, help="of the moments at which runs are killed")
    group.addoption(
        "--first-round", type=int, default=0, help="the number of the first of them; each has its own draws"
    )
    group.addoption("--kill-rounds", type=int, default=20, help="how many times a run is killed")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = ForkServer(tmp_path_factory.mktemp("children"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory):
    return write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert", num_layers=1)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """36 different sentences, of which a batch of 8 is not full once an epoch."""
    folder = tmp_path_factory.mktemp("text")
    draw = random.Random(0)
    sentences = dict.fromkeys(" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) + f" {i}" for i in range(36))
    path = folder / "sentences.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    (folder / "pairs.csv").write_text(SCORED_PAIRS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    """Shared: of most texts only the first run makes tokens."""
    return tmp_path_factory.mktemp("cache")


def config_of(folder: Path, name: str = "run", *, model_dir, text_file, cache_dir, **changes) -> Path:
    """See ``write_config``."""
    config = Config()
    config.encoder.model, config.encoder.dropout = str(model_dir), 0.1
    config.data.train, config.data.cache_dir = str(text_file), str(cache_dir)
    sizes = config.perturbation
    sizes.epsilon_relative, sizes.alpha, sizes.beta, sizes.gamma = 0.2, 1.0, 0.4, 0.7
    sizes.num_steps, sizes.reuse, sizes.probe_every, sizes.agreement = 3, "adaptive", 4, 0.2
    config.optimizer.lr, config.optimizer.warmup_ratio, config.optimizer.weight_decay = 1e-3, 0.25, 0.01
    config.train.output_dir, config.train.batch_size = str(folder / name), 8
    config.train.max_steps, config.train.save_every, config.train.eval_every = 6, 2, 3
    config.dev.data = str(text_file.with_name("pairs.csv"))
    config.engine.num_threads = 1
    for key, value in changes.items():
        *path, last = key.split(".")
        owner = config
        for part in path:
            owner = getattr(owner, part)
        assert hasattr(owner, last), key
        setattr(owner, last, value)
    file = folder / f"{name.replace('/', '-')}.yaml"
    file.write_text(to_yaml(config), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def write_config_in(model_dir, text_file, cache_dir):
    """``write_config_in(folder, "name", **changes)``: `write_config` in a folder of the caller's."""
    return partial(config_of, model_dir=model_dir, text_file=text_file, cache_dir=cache_dir)


@pytest.fixture
def write_config(write_config_in, tmp_path):
    """``write_config("name", **{"train.max_steps": 9})``: a config's file; the run goes to the folder ``name``."""
    return partial(write_config_in, tmp_path)


@pytest.fixture(scope="session")
def untouched(server, tmp_path_factory, write_config_in):
    """The folder of a run of the config that ``write_config`` writes, which nobody touched."""
    folder = tmp_path_factory.mktemp("untouched")
    ended = server.run(["--config", write_config_in(folder, "run")])
    assert ended.status == 0, ended.err
    return folder / "run"
