"""Configurations that are wrong: each gives one line with key, value, and what is allowed or nearest."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastadv import UserError, load_config
from fastadv.config.schema import Config, field_types
from fastadv.config.values import describe
from fastadv.launch.checks import check_config, check_encoder
from fastadv.objectives.base import SHIPPED, resolve_objective
from fastadv.objectives.options import constructor_options

ROOT = Path(__file__).parents[2]

FILES = {
    # id: (text of the file, words that the line must hold)
    "unknown key": (
        "perturbation: {num_step: 3}",
        ["perturbation.num_step = 3", "nearest is perturbation.num_steps"],
    ),
    "unknown section": ("optimiser: {lr: 1}", ["optimiser.lr = 1", "nearest is optimizer.lr"]),
    "key outside its section": ("batch_size: 3", ["batch_size = 3", "nearest is train.batch_size"]),
    "key in the wrong section": ("train: {lr: 1e-5}", ["train.lr = 1e-05", "nearest is optimizer.lr"]),
    "key below a key": ("train: {seed: {a: 1}}", ["train.seed = ", '"a"', "whole number"]),
    "section without keys": ("train:", ["train = null", "section"]),
    "section that is a list": ("train: [1]", ["train = [1]", "section"]),
    "number as key": ("3: 4", ["3 = 4", "no such key"]),
    "text for a count": (
        "train: {batch_size: many}",
        ['train.batch_size = "many"', "whole number of at least 2"],
    ),
    "quoted number": ("train: {seed: '3'}", ['train.seed = "3"', "whole number"]),
    "fraction for a count": (
        "perturbation: {num_steps: 3.0}",
        ["perturbation.num_steps = 3.0", "whole number"],
    ),
    "bool for a count": (
        "perturbation: {num_steps: true}",
        ["perturbation.num_steps = true", "whole number"],
    ),
    "bool for a number": ("optimizer: {lr: false}", ["optimizer.lr = false", "number"]),
    "list for a number": ("optimizer: {lr: [1]}", ["optimizer.lr = [1]", "number"]),
    "number for text": ("encoder: {model: 12}", ["encoder.model = 12", "text"]),
    "null for text": ("encoder: {model: null}", ["encoder.model = null", "text"]),
    "word for a bool": ("perturbation: {use_eta: yes}", ['perturbation.use_eta = "yes"', "true or false"]),
    "bool for a choice": (
        "perturbation: {inner_dropout: false}",
        ["perturbation.inner_dropout = false", "off, frozen"],
    ),
    "no such choice": ("perturbation: {norm: l3}", ['perturbation.norm = "l3"', "linf, l2, l1"]),
    "no such stage": ("engine: {zero_stage: 4}", ["engine.zero_stage = 4", "0, 1, 2, 3"]),
    "bool for a stage": ("engine: {zero_stage: true}", ["engine.zero_stage = true", "0, 1"]),
    "none for null": (
        "perturbation: {epsilon: none}",
        ['perturbation.epsilon = "none"', "at least 0, or auto", "or null"],
    ),
    "null for a number": ("optimizer: {lr: null}", ["optimizer.lr = null", "at least 0"]),
    "infinity": ("optimizer: {lr: .inf}", ["optimizer.lr = .inf", "number"]),
    "not a number": ("perturbation: {alpha: .nan}", ["perturbation.alpha = .nan", "number"]),
    "beyond floats": ("optimizer: {lr: 1" + "0" * 400 + "}", ["optimizer.lr = 1000", "number"]),
    "number for a list": ("evaluation: {radii: 0.1}", ["evaluation.radii = 0.1", "list"]),
    "text in a list": ("evaluation: {radii: [0.1, x]}", ["evaluation.radii = [0.1", "list"]),
    "no such tracker": ("train: {trackers: [comet]}", ['train.trackers = ["comet"]', "a list of any of wandb, mlflow"]),
    "tracker without brackets": ("train: {trackers: wandb}", ['train.trackers = "wandb"', "any of wandb, mlflow"]),
    "number for a source": ("data: {train: 3}", ["data.train = 3", "a path or name, or a list of"]),
    "source without a path": ("data: {train: [{weight: 1}]}", ['[{"weight": 1}]', "{path: P, weight: W}"]),
    "source twice": ("data: {train: [{path: a}, {path: a, weight: 2}]}", ["data.train = [", "different P"]),
    "source of no weight": ("data: {train: [{path: a, weight: 0}]}", ["data.train = [", "W above 0"]),
    "source of a wrong key": ("data: {train: [{path: a, wight: 1}]}", ['"wight": 1', "{path: P, weight: W}"]),
    "no source": ("data: {train: []}", ["data.train = []"]),
    "unknown option": (
        "objective_options: {temprature: 1}",
        ["objective_options.temprature = 1", "nearest is objective_options.temperature"],
    ),
    "option of a wrong type": (
        "objective_options: {mask_duplicates: 1}",
        ["objective_options.mask_duplicates = 1", "true or false"],
    ),
    "option of another objective": (
        "objective: simcse\nobjective_options: {weight_adversarial: 1}",
        ["weight_adversarial = 1", "SimCSE"],
    ),
    "options that are no section": ("objective_options: 3", ["objective_options = 3", "section"]),
    "unknown objective": ("objective: simsce", ["simsce", "simcse"]),
    "nested and dotted": ("train: {seed: 1}\ntrain.seed: 2", ["train.seed", "twice"]),
    "key twice": ("train:\n  seed: 1\n  seed: 2", ["'seed'", "twice", "line 3", "line 2"]),
    "section twice": ("train: {seed: 1}\ntrain: {seed: 2}", ["'train'", "twice", "line 2"]),
    "broken yaml": ("train: {seed: 1", ["run.yaml", "line 1", "not valid YAML"]),
    "tab": ("train:\n\tseed: 1", ["run.yaml", "line 2", "not valid YAML"]),
    "python tag": ("train: !!python/name:os.system", ["python/name:os.system", "line 1"]),
    "endless alias": ("train: &x [*x]", ["holds itself"]),
    "two documents": ("--- {}\n--- {}", ["another document"]),
    "empty file": ("", ["run.yaml", "none"]),
    "comments only": ("# nothing\n", ["run.yaml", "none"]),
    "a list": ("[1, 2]", ["run.yaml", "[1, 2]", "keys and values"]),
    "value over lines": (
        "encoder: {pooling: 'a\n\n  b'}",
        ['encoder.pooling = "a\\nb"', "cls, mean, first_last"],
    ),
}

IMPOSSIBLE = [
    ("encoder.model", " ", "not empty"),
    ("encoder.max_length", "2", "at least 3"),
    ("encoder.dropout", "1", "from 0 to below 1"),
    ("encoder.num_frozen_layers", "-1", "at least 0"),
    ("encoder.lora_rank", "0", "at least 1"),
    ("encoder.lora_alpha", "0", "above 0"),
    ("encoder.lora_target_modules", "[]", "one or more"),
    ("encoder.lora_target_modules", "['']", "one or more"),
    ("data.max_sentences", "1", "at least 2"),
    ("data.bucket_batches", "-1", "at least 0"),
    ("data.num_workers", "-1", "at least 0"),
    ("perturbation.num_steps", "-1", "at least 0"),
    ("perturbation.num_pgd_steps", "-1", "at least 0"),
    ("perturbation.num_fgsm_steps", "-1", "at least 0"),
    ("perturbation.alpha", "-1e-5", "at least 0"),
    ("perturbation.beta", "-1e-5", "at least 0"),
    ("perturbation.gamma", "-1", "at least 0"),
    ("perturbation.rho", "1.5", "[0, 1]"),
    ("perturbation.rho", "-0.5", "[0, 1]"),
    ("perturbation.epsilon", "-0.1", "at least 0"),
    ("perturbation.epsilon_token", "-0.1", "at least 0"),
    ("perturbation.epsilon_relative", "-0.1", "at least 0"),
    ("perturbation.sigma", "-0.1", "at least 0"),
    ("train.max_nonfinite_steps", "0", "at least 1"),
    ("optimizer.lr", "-1", "at least 0"),
    ("optimizer.weight_decay", "-1", "at least 0"),
    ("optimizer.beta1", "1", "from 0 to below 1"),
    ("optimizer.beta2", "-0.1", "from 0 to below 1"),
    ("optimizer.eps", "0", "above 0"),
    ("optimizer.warmup_ratio", "2", "[0, 1]"),
    ("optimizer.max_grad_norm", "0", "above 0"),
    ("optimizer.layer_lr_decay", "0", "above 0, at most 1"),
    ("optimizer.layer_lr_decay", "1.1", "above 0, at most 1"),
    ("train.batch_size", "1", "at least 2"),
    ("train.num_epochs", "0", "at least 1"),
    ("train.max_steps", "0", "at least 1"),
    ("train.trackers", "[wandb, wandb]", "each once"),
    ("train.seed", "-1", "from 0 to"),
    ("train.log_every", "0", "at least 1"),
    ("train.eval_every", "0", "at least 1"),
    ("train.save_every", "0", "at least 1"),
    ("engine.num_threads", "0", "at least 1"),
    ("dev.data", "", "none, a folder or a file"),
    ("evaluation.num_sentences", "15", "at least 16"),
    ("evaluation.num_steps", "0", "at least 1"),
    ("evaluation.num_probe_sentences", "15", "at least 16, or 0"),
    ("evaluation.num_attacked_texts", "15", "at least 16, or 0"),
    ("evaluation.typo_shares", "[0.3, 1.5]", "at most 1"),
    ("evaluation.typo_shares", "[0]", "more than 0"),
    ("evaluation.typo_shares", "[0.3, 0.3]", "different"),
    ("evaluation.radii", "[]", "one or more"),
    ("evaluation.radii", "[0.1, -0.2]", "at least 0"),
    ("evaluation.radii", "[0.1, 0.1]", "different"),
    ("evaluation.seed", "4294967296", "from 0 to"),
    ("objective_options.temperature", "0", "above 0"),
    ("objective_options.weight_adversarial", "-1", "at least 0"),
]

COMBINATIONS = [
    (
        {"engine.zero_stage": 3, "perturbation.reuse": "none"},
        ["perturbation.reuse = none", "exact, adaptive or free at engine.zero_stage 3"],
    ),
    ({"engine.compile": "default", "perturbation.reuse": "none"}, ["engine.compile = default", "exact or adaptive"]),
    ({"engine.compile": "default", "perturbation.reuse": "free"}, ["engine.compile = default", "exact or adaptive"]),
    (
        {"engine.compile": "cudagraphs", "perturbation.inner_dropout": "frozen"},
        ["engine.compile = cudagraphs", "inner_dropout off"],
    ),
    ({"engine.compile": "default", "engine.precision": "bf16"}, ["engine.compile = default", "zero_stage 1 or 2"]),
    ({"engine.compile": "default", "engine.zero_stage": 3}, ["engine.compile = default", "zero_stage 0 to 2"]),
    ({"engine.compile": "default", "encoder.path": "generic"}, ["engine.compile = default", "auto or packed"]),
    ({"train.micro_batch_size": 0}, ["train.micro_batch_size = 0", "at least 1"]),
    ({"train.micro_batch_size": 4, "perturbation.reuse": "none"}, ["train.micro_batch_size = 4", "exact or adaptive"]),
    ({"train.micro_batch_size": 4, "perturbation.reuse": "free"}, ["train.micro_batch_size = 4", "exact or adaptive"]),
    ({"train.micro_batch_size": 4, "engine.compile": "default"}, ["train.micro_batch_size = 4", "compile none"]),
    (
        {"engine.checkpoint_activations": "true", "engine.zero_stage": 3},
        ["engine.checkpoint_activations = true", "expected false", "train.micro_batch_size"],
    ),
    ({"engine.joint_views": "true", "perturbation.reuse": "none"}, ["engine.joint_views = true", "reuse is none"]),
    ({"engine.joint_views": "true", "data.positive_field": "b"}, ["engine.joint_views = true", "data.positive_field"]),
    (
        {"engine.joint_views": "true", "perturbation.inner_dropout": "frozen"},
        ["engine.joint_views = true", "inner_dropout is frozen"],
    ),
    ({"engine.attention": "varlen"}, ["engine.attention = varlen", "sdpa or matmul", "engine.precision fp32"]),
    ({"engine.attention": "flash_attn"}, ["engine.attention = flash_attn", "sdpa or matmul", "engine.precision bf16"]),
    ({"engine.attention": "matmul", "encoder.path": "generic"}, ["engine.attention = matmul", "expected auto"]),
    (
        {"engine.attention": "varlen", "engine.precision": "bf16", "engine.zero_stage": 1, "encoder.dropout": 0.1},
        ["engine.attention = varlen", "encoder.dropout is 0.1", "encoder.dropout 0"],
    ),
    ({"perturbation.reuse": "free", "perturbation.num_steps": 0}, ["perturbation.num_steps = 0", "at least 1"]),
    ({"perturbation.reuse": "free", "perturbation.gradient": "separate"}, ["gradient = separate", "reuse is free"]),
    ({"perturbation.probe_every": 0}, ["perturbation.probe_every = 0", "at least 1"]),
    ({"perturbation.agreement": 0.0}, ["perturbation.agreement = 0", "above 0"]),
    ({"perturbation.agreement": 1.5}, ["perturbation.agreement = 1.5", "at most 1"]),
    ({"engine.zero_stage": 3, "encoder.path": "generic"}, ["encoder.path = generic", "engine.zero_stage 3"]),
    (
        {"perturbation.step_relative": "true", "perturbation.epsilon": "null"},
        ["perturbation.step_relative = true", "epsilon_relative"],
    ),
    (
        {
            "perturbation.step_relative": "true",
            "perturbation.epsilon": "0.1",
            "perturbation.epsilon_token": "null",
        },
        ["perturbation.step_relative = true", "perturbation.epsilon_token"],
    ),
    (
        {"perturbation.epsilon": "0.1", "perturbation.epsilon_relative": "0.2"},
        ["perturbation.epsilon = 0.1", "expected auto or null", "0.2"],
    ),
    (
        {"perturbation.epsilon_token": "null", "perturbation.epsilon_relative": "0.2"},
        ["perturbation.epsilon_token = null", "expected equal"],
    ),
    (
        {"evaluation.enabled": "true", "evaluation.held_out": "a.txt", "data.train": "a.txt"},
        ["evaluation.held_out", "a.txt", "data.train"],
    ),
    (
        {"evaluation.enabled": "true", "evaluation.held_out": "a.txt", "data.train": "[{path: b}, {path: a.txt}]"},
        ["evaluation.held_out", "a.txt", "data.train"],
    ),
    (
        {
            "evaluation.enabled": "true",
            "evaluation.held_out": "a/b",
            "data.train": "[{path: a/b}]",
            "data.split": "test",
        },
        ["evaluation.held_out", "a/b", "data.train"],
    ),
    (
        {"evaluation.num_attacked_texts": 64, "evaluation.num_probe_sentences": 32},
        ["evaluation.num_attacked_texts = 64", "at most 32", "evaluation.num_probe_sentences"],
    ),
    (
        {"evaluation.word_sets": "s.json"},
        ['evaluation.word_sets = "s.json"', "null", "evaluation.typo_shares is empty"],
    ),
    (
        {"data.negative_field": "other"},
        ['data.negative_field = "other"', "expected null", "data.positive_field"],
    ),
    (
        {"data.positive_field": "text"},
        ['data.positive_field = "text"', "other than that of data.field"],
    ),
]


def refusal(path=None, overrides=()):
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    line = str(caught.value)
    assert line.isprintable(), "one line"
    assert len(line) < 300
    return line


@pytest.mark.parametrize("text, expected", FILES.values(), ids=FILES.keys())
def test_a_wrong_file_gives_one_line(tmp_path, text, expected):
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    line = refusal(str(path))
    assert all(words in line for words in expected), line


@pytest.mark.parametrize("key, value, allowed", IMPOSSIBLE)
def test_an_impossible_value_gives_one_line(key, value, allowed):
    line = refusal(overrides=[f"--{key}={value}"])
    assert line.startswith(f"{key} = ") and allowed in line, line
    if value.strip() and value[0] != "[":
        shown = line.removeprefix(f"{key} = ").partition(": expected")[0].removesuffix(" on the command line")
        assert float(shown) == float(value)


@pytest.mark.parametrize("values, expected", COMBINATIONS)
def test_values_that_contradict_each_other_give_one_line(values, expected):
    line = refusal(overrides=[f"--{key}={value}" for key, value in values.items()])
    assert all(words in line for words in expected), line


@pytest.mark.parametrize(
    "overrides, expected",
    [
        (["--train.max_step", "3"], ["train.max_step = 3 on the command line", "nearest is train.max_steps"]),
        (
            ["--train.max_steps", "ten"],
            ["train.max_steps = ten on the command line", "whole number of at least 1, or null"],
        ),
        (["--train.max_steps"], ["--train.max_steps has no value"]),
        (["--train.max_step"], ["--train.max_step: no such key", "nearest is --train.max_steps"]),
        (["--train.max_steps", "--train.seed", "1"], ["--train.max_steps has no value"]),
        (["train.max_steps", "3"], ['"train.max_steps"', "expected --key value"]),
        (["-x"], ['"-x"', "expected --key value"]),
        (["--"], ['"--"', "expected --key value"]),
        (["--train", "other.yaml"], ["train = other.yaml", "section"]),
        (["--evaluation.radii+", "0.3"], ["evaluation.radii+ = 0.3", "nearest is evaluation.radii"]),
        (["--perturbation.use_eta="], ['perturbation.use_eta = ""', "true or false"]),
        (["--objective", ""], ["objective"]),
    ],
)
def test_a_wrong_override_gives_one_line(overrides, expected):
    line = refusal(overrides=overrides)
    assert all(words in line for words in expected), line


def test_a_file_that_cannot_be_read_gives_one_line(tmp_path):
    missing = str(tmp_path / "missing.yaml")
    assert missing in refusal(missing) and "No such file" in refusal(missing)
    assert "Is a directory" in refusal(str(tmp_path))
    (tmp_path / "latin.yaml").write_bytes("data: {train: é}".encode("latin-1"))
    assert "UTF-8" in refusal(str(tmp_path / "latin.yaml"))


def test_every_number_of_the_configuration_has_a_rule():
    words = {key: describe(hint) for key, hint in field_types().items()}
    assert "perturbation.rho" in words
    assert not [key for key, said in words.items() if re.search(r"finite number|whole number($| or|,)", said)]


@pytest.mark.parametrize("name", SHIPPED)
def test_every_number_among_the_options_of_an_objective_has_bounds(name):
    words = {key: describe(option.annotation) for key, option in constructor_options(resolve_objective(name)).items()}
    assert not [key for key, said in words.items() if re.search(r"finite number|whole number($| or|,)", said)]


def test_a_config_made_in_python_is_checked_by_the_same_rules():
    config = Config()
    check_config(config)
    config.perturbation.rho = 2.0
    with pytest.raises(UserError, match=r"perturbation\.rho = 2\.0: expected a number in \[0, 1\]"):
        check_config(config)


def test_a_length_above_the_encoders_positions_is_refused_before_weights_load(tiny_bert_dir):
    settings = json.loads((tiny_bert_dir / "config.json").read_text())
    assert settings["max_position_embeddings"] == 64
    config = load_config(overrides=[f"--encoder.model={tiny_bert_dir}", "--encoder.max_length=64"])
    check_encoder(config)
    config.encoder.max_length = 65
    with pytest.raises(UserError, match="encoder.max_length = 65: expected at most 64") as caught:
        check_encoder(config)
    assert str(caught.value).isprintable()


def test_a_model_s_own_dropout_of_attention_is_refused_where_the_attention_has_none(tiny_bert_dir):
    config = load_config(overrides=[f"--encoder.model={tiny_bert_dir}", "--engine.precision=bf16"])
    config.engine.attention = "varlen"
    with pytest.raises(
        UserError, match="encoder.dropout = null: expected 0 where engine.attention is varlen.* 0.1 "
    ) as caught:
        check_encoder(config)
    assert "\n" not in str(caught.value)
    config.encoder.dropout = 0.0
    check_encoder(config)


def run_command(arguments, cwd=ROOT):
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")]),
    }
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize(
    "program, arguments, expected",
    [
        ([str(ROOT / "fastadv/train.py")], ["--config", "bad.yaml"], "nearest is perturbation.num_steps"),
        (
            ["-m", "fastadv", "train"],
            ["--objective_options.temprature", "1"],
            "nearest is objective_options.temperature",
        ),
        (["-m", "fastadv", "train"], ["--encoder.max_length=1000"], "expected at most 512"),
        (["-OO", "-m", "fastadv", "encode"], ["--help"], "python -OO"),
        (["-OO", str(ROOT / "fastadv/train.py")], [], "python -OO"),
    ],
)
def test_the_command_ends_with_one_line_on_stderr(tmp_path, program, arguments, expected):
    (tmp_path / "bad.yaml").write_text("perturbation: {num_step: 3}")
    done = run_command([*program, *arguments], cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("fastadv: ") and expected in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("train", ["owner/name", "[{path: b.txt}, {path: owner/name}]"])
def test_one_dataset_may_train_and_be_held_out_by_different_splits(train):
    overrides = ["--evaluation.enabled=true", "--evaluation.held_out=owner/name", f"--data.train={train}"]
    assert load_config(overrides=overrides).evaluation.held_out == "owner/name"
    assert "owner/name" in refusal(overrides=[*overrides, "--evaluation.held_out_split=train"])
