"""The objective that CONTRIBUTING.md adds, TRADES, lives outside the package here: trained, gone on from, planned."""

import importlib
import re
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastadv import UserError, load_config
from fastadv.objectives.base import SHIPPED, Views
from fastadv.train import main
from tests.quick_trainer import Trainer
from tests.small_runs import SENTENCES

SECTION = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## A new objective")[1]
PYTHON, YAML = (re.search(rf"```{kind}\n(.*?)```", SECTION, re.S)[1] for kind in ("python", "yaml"))


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A user's module with what the page shows, and its config."""
    (tmp_path / "own_trades.py").write_text(PYTHON, encoding="utf-8")
    (tmp_path / "trades.yaml").write_text(YAML, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_trades")
    del sys.modules["own_trades"]


@pytest.fixture
def given(tmp_path, tiny_bert_dir, module):
    """Command-line arguments of a run of a second."""
    rows = [f"{text}\t{'ab'[i % 2]}" for i, text in enumerate(SENTENCES)]
    (tmp_path / "texts.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    values = {
        "objective": "own_trades:TRADES",
        "encoder.model": tiny_bert_dir,
        "data.train": tmp_path / "texts.tsv",
        "data.cache_dir": tmp_path / "cache",
        "train.output_dir": tmp_path / "run",
        "train.batch_size": 8,
        "train.max_steps": 4,
        "engine.num_threads": 1,
    }
    return [f"--{key}={value}" for key, value in values.items()]


@pytest.fixture
def make(tmp_path, given):
    return lambda name, *more: load_config(
        str(tmp_path / "trades.yaml"), [*given, f"--train.output_dir={tmp_path / name}", *more]
    )


def test_the_loss_is_the_papers(module):
    torch.manual_seed(0)
    objective = module.TRADES(8, nn.Linear(8, 3).double(), beta=2.0)
    clean, adversarial = torch.randn(2, 5, 8, dtype=torch.float64)
    labels = torch.tensor([0, 2, 1, 1, 0])
    views = Views(clean, torch.arange(5), pooled=clean, adversarial_pooled=adversarial, labels=labels, anchor=clean)
    logits, others = objective.classifier(clean), objective.classifier(adversarial)
    kl = F.kl_div(others.log_softmax(1), logits.softmax(1), reduction="sum")
    loss, terms = objective.loss(views)
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels) + 2 * kl / 5)
    assert terms.keys() == {"loss_clean", "kl"}
    inner = Views(adversarial, torch.arange(5), pooled=adversarial, anchor=clean, labels=labels)
    torch.testing.assert_close(objective.inner_loss(inner), kl)


@pytest.mark.parametrize(
    "more", [(), ("--engine.compile=default", "--encoder.max_length=16")], ids=["plain", "compiled"]
)
def test_stopped_and_gone_on_from_is_the_run_that_was_never_stopped(make, more, stop_after, step_lines, monkeypatch):
    compiled = torch.compile
    # Tracing is the question; inductor's code would take a minute and a half to generate.
    monkeypatch.setattr(
        torch, "compile", lambda *args, **options: compiled(*args, **{**options, "backend": "aot_eager"})
    )
    whole = step_lines(Trainer(make("whole", *more)).fit())
    Trainer(make("cut", *more), [stop_after(2)]).fit()
    cut = step_lines(Trainer(make("cut", *more)).fit())
    assert cut == whole and {"loss_clean", "own/kl"} <= whole[-1].keys() and "kl" not in whole[-1]


def test_its_option_of_the_search_is_used(make, step_lines):
    norms = [
        step_lines(Trainer(make(name, f"--objective_options.step_decay={decay}")).fit())[0]["delta_norm"]
        for name, decay in (("constant", 1.0), ("first", 0.0))
    ]
    assert norms[0] > norms[1] > 0


def test_a_dry_run_plans_it(given, tmp_path, capfd):
    assert main(["--config", str(tmp_path / "trades.yaml"), *given, "--dry_run"]) == 0
    out, err = capfd.readouterr()
    assert "own_trades:TRADES" in out and err == "" and not (tmp_path / "run").exists()


@pytest.mark.parametrize("option", ["beta=-1", "step_decay=1.5", "weight_kl=1"])
def test_a_mistake_in_its_options_is_one_line(make, option):
    name = option.partition("=")[0]
    with pytest.raises(UserError, match=f"^objective_options.{name} = [^\n]*(expected|no such key)[^\n]*$"):
        make("run", f"--objective_options.{option}")


def test_an_option_is_bounded_by_its_annotation_and_not_by_its_name(tmp_path, make, module):
    """Those of shipped objectives that are called weight_... are at least 0."""
    (tmp_path / "own_names.py").write_text(
        "from own_trades import TRADES\n\n\nclass Signed(TRADES):\n"
        "    def __init__(self, *given, weight_of_mine: float = 1.0, temperature_of_mine: float = 1.0, **options):\n"
        "        super().__init__(*given, **options)\n"
    )
    options = ("--objective_options.weight_of_mine=-1", "--objective_options.temperature_of_mine=0")
    config = make("run", "--objective=own_names:Signed", *options)
    assert (config.objective_options["weight_of_mine"], config.objective_options["temperature_of_mine"]) == (-1, 0)


def test_the_line_that_ships_it_fits_the_list():
    context, added = re.search(r"```diff\n {5}(.*)\n\+ {4}(.*)\n```", SECTION).groups()
    assert context == f'"smart": "{SHIPPED["smart"]}",' and re.fullmatch(r'"trades": "[\w.]+:TRADES",', added)
