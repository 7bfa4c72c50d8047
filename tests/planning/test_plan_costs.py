"""``--dry_run``: what a run would cost, from its config and its models' configurations alone; and the page about it."""

import re
from pathlib import Path

import pytest

from bench.pages.scaling_table import LARGE, TABLES, filled
from fastadv.dry_run import PlanOptions, num_steps, seconds_a_step
from fastadv.launch.load import load_config
from fastadv.planning.cards import CARDS
from fastadv.planning.costs import BatchSize, StepCosts
from fastadv.train import main

ROOT = Path(__file__).resolve().parents[2]
ROBERTA = ROOT / "configs" / "robustsentembed_roberta_large.yaml"


@pytest.fixture
def planned(tmp_path, capfd, monkeypatch):
    """Exit status and what a dry run of RoBERTa-large says, of a folder that holds a config.json and nothing else."""
    monkeypatch.setattr("fastadv.encoder.weights.source.load_weights", lambda *_: pytest.fail("weights were loaded"))
    monkeypatch.setattr("fastadv.encoder.Encoder.from_pretrained", lambda *_: pytest.fail("weights were loaded"))
    LARGE.save_pretrained(tmp_path / "large")
    (tmp_path / "text.txt").write_text("a film\nanother\n", encoding="utf-8")

    def plan(*arguments):
        given = {
            "config": ROBERTA,
            "encoder.model": tmp_path / "large",
            "data.train": tmp_path / "text.txt",
            "objective_options.rtd_generator": "unigram",
            "train.output_dir": tmp_path / "run",
        }
        status = main([*(f"--{key}={value}" for key, value in given.items()), "--dry_run", *arguments])
        out, err = capfd.readouterr()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "text.txt"]
        return status, out, err

    return plan


def test_roberta_large_is_planned_from_its_configuration_alone(planned):
    status, out, err = planned("--card", "h100", "--num_gpus", "8", "--num_sentences", "1000000")
    assert (status, err) == (0, "")
    # 354.31 M of f, 1.05 M of the head, 354.31 M + 2,050 of D.
    assert "709.67 M, of which 709.67 M are trained" in out
    assert "assumed: 0.69 of encoder.max_length" in out and "8 NVIDIA H100 SXM" in out
    marked = [line for line in out.splitlines() if re.match(r" {12}[* ] \d ", line)]
    assert [line.split()[-10] for line in marked] == list("0123")
    assert [line.split()[0] == "*" for line in marked] == [False, True, False, False]
    (hours,) = (line for line in out.splitlines() if line.startswith("hours"))
    assert "31,252 steps of" in hours and "35% of 989.4 TFLOP/s (bf16; assumed" in hours
    config = load_config(str(ROBERTA), ["--objective_options.rtd_generator=unigram"])
    seconds = seconds_a_step(StepCosts(config, LARGE), BatchSize.assumed(config), 8, CARDS["h100"], 0.35)
    assert f"hours       {31_252 * seconds / 3600:,.2f}: " in hours


def test_one_rank_prints_the_plan(planned, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert planned("--card", "h100") == (0, "", "")


def test_what_is_stated_changes_what_is_said(planned):
    _, out, _ = planned("--mean_length=16", "--card=t4")
    assert "128 sentences of 16.0 tokens (as given), 2,048 in all, on 1 Tesla T4" in out
    assert "hours       Tesla T4 has no units for bf16" in out and "wire        nothing, on one GPU" in out
    _, out, _ = planned("--card=l4", "--num_gpus=2", "--utilisation=0.5", "--link=pcie4", "--engine.zero_stage=3")
    assert "for each 1,000,000 sentences" in out and "at 50% of 121.0 TFLOP/s" in out and "PCIe 4.0 x16" in out
    assert "reduce_scatter" in out
    _, out, _ = planned()
    assert "no card is named" in out


@pytest.mark.parametrize(
    "argument, said",
    [
        ("--card=abacus", "--card = abacus: expected one of gh200, "),
        ("--link=string", "--link = string: expected one of nvlink4, "),
        ("--num_gpus=0", "--num_gpus = 0: expected a whole number of at least 1"),
        ("--num_gpus=many", "--num_gpus = many: expected a whole number of at least 1"),
        ("--num_gpus=200", "train.batch_size = 128: expected at least --num_gpus, 200"),
        ("--mean_length=nan", "--mean_length = nan: expected a number of tokens of at least 1"),
        ("--utilisation=35", "--utilisation = 35: expected a number above 0, at most 1"),
        ("--num_sentences=1", "--num_sentences = 1: expected a whole number of at least 2"),
    ],
)
def test_mistakes_in_what_is_stated_are_one_line(planned, argument, said):
    status, out, err = planned(argument)
    assert status == 2 and out == "" and err.startswith(f"fastadv: {said}") and err.count("\n") == 1


def test_an_attack_that_the_evaluation_cannot_run_is_said(planned):
    measured = ("--evaluation.enabled=true", "--evaluation.num_attacked_texts=16")
    _, out, _ = planned(*measured)
    assert "before and after; DeepWordBug n/a: a linear probe reads mean-pooled vectors" in out


def test_a_model_that_cannot_be_built_has_no_costs_and_a_plan_all_the_same(planned, monkeypatch):
    def refuse(*_, **__):
        raise ZeroDivisionError("it looks\nat its weights")

    monkeypatch.setattr("transformers.AutoModel.from_config", refuse)
    # Another dropout, another shape: what was measured before is remembered.
    status, out, _ = planned("--encoder.dropout=0.123")
    assert status == 0 and out.startswith("encoder ")
    assert out.endswith(
        "costs       not known: no model of type roberta can be made without weights: it looks at its weights\n"
    )


def test_options_of_a_dry_run_are_no_keys_of_a_run(capfd):
    assert main(["--card", "h100"]) == 2
    assert "no such key" in capfd.readouterr().err


def test_the_number_of_gpus_is_the_launchers(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert PlanOptions.parse({}).num_gpus == 4 and PlanOptions.parse({"num_gpus": "2"}).num_gpus == 2


def test_steps_of_a_run():
    config = load_config(str(ROBERTA))
    assert num_steps(config, None) is None
    # 4 passes of 8 batches, the last of which is not full, two a step.
    config.train.accumulation_steps = 2
    assert num_steps(config, 7 * 128 + 1) == 16
    config.train.max_steps = 3
    assert num_steps(config, None) == 3


def test_the_roberta_large_config_is_what_its_comments_say():
    config = load_config(str(ROBERTA))
    assert config.encoder.model == "roberta-large" and config.encoder.max_length == 32
    assert config.objective == "robustsentembed" and config.objective_options["rtd_generator"] == "distilroberta-base"
    assert config.train.batch_size in (64, 128) and config.train.num_epochs == 4
    assert config.optimizer.lr == 1e-5 and (config.engine.precision, config.engine.zero_stage) == ("bf16", 1)
    relative = load_config(str(ROOT / "configs" / "robustsentembed_relative.yaml"))
    assert config.perturbation == relative.perturbation


def test_the_tables_of_the_page_are_those_of_the_model():
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- table: (\w+) -->", page)) == set(TABLES)
    assert filled(page) == page, "run python -m bench.pages.scaling_table --write docs/scaling.md"
