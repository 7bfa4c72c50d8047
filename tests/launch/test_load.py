"""Configurations that are right: what the file, the overrides and the defaults make of each other."""

import logging
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fastadv import UserError, load_config
from fastadv.config.schema import Config, to_yaml
from fastadv.config.yaml import read_yaml, write_yaml
from fastadv.launch.load import split_overrides
from fastadv.train import read_arguments

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "configs").rglob("*.yaml"))


NO_AUTO = [f"--perturbation.{step}=0.1" for step in ("alpha", "beta", "gamma")]


@pytest.fixture
def write(tmp_path):
    def write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def without_options(config):
    return {key: value for key, value in asdict(config).items() if key != "objective_options"}


def test_no_file_and_no_override_give_the_defaults():
    config = load_config()
    assert without_options(config) == without_options(Config())
    assert all(type(getattr(config, f.name)) is type(getattr(Config(), f.name)) for f in fields(Config))


def test_objective_options_are_completed_with_the_class_defaults():
    assert load_config().objective_options == {
        "temperature": 0.05,
        "head": "mlp",
        "multi_positive": "sum",
        "mask_duplicates": True,
        "weight_hard_negative": 1.0,
        "text_positive": "none",
        "weight_text": 0.0,
        "weight_flip": 0.0,
        "flip_margin": 0.0,
        "weight_keep": 0.0,
        "weight_adversarial": 1 / 128,
        "weight_rtd": 0.005,
        "rtd_generator": "none",
        "rtd_mask_ratio": 0.3,
        "rtd_fill": "sample",
        "rtd_reduction": "mean",
        "rtd_input": "h",
    }


def test_overrides_win_over_the_file_and_the_last_one_holds(write):
    path = write("train: {seed: 1, batch_size: 8, max_steps: 7}\nperturbation.num_steps: 9\n")
    config = load_config(path, ["--train.batch_size", "16", "--train.max_steps=1", "--train.max_steps", "null"])
    assert (config.train.seed, config.train.batch_size, config.train.max_steps) == (1, 16, None)
    assert config.perturbation.num_steps == 9


def test_several_files_are_composed_in_their_order(write):
    first = write("objective: simcse\ntrain: {seed: 1, batch_size: 8}\nobjective_options: {temperature: 0.1}\n")
    second = write("train.seed: 2\ntrain: {max_steps: 3}\ndata: {train: [{path: a.txt}]}\n", "second.yaml")
    config = load_config([first, second], ["--train.max_steps", "4"])
    assert (config.objective, config.objective_options["temperature"]) == ("simcse", 0.1)
    assert (config.train.seed, config.train.batch_size, config.train.max_steps) == (2, 8, 4)
    assert load_config([second, first]).train.seed == 1
    typed = ["--config", first, "--train.max_steps=4", f"--config={second}"]
    assert read_arguments(typed)[0] == config


@pytest.mark.parametrize(
    "text, fault",
    [
        ("train: {seed: one}\n", 'train.seed = "one" in {}: expected'),
        ("train: {sead: 1}\n", "train.sead = 1 in {}: no such key"),
        ("objective_options: {temprature: 1}\n", "objective_options.temprature = 1 in {}: no such key"),
        ("train: {seed: 1\n", "{}, line 2"),
    ],
)
def test_a_fault_is_its_own_files_wherever_that_stands(write, text, fault):
    """Also where the later file sets the very key right."""
    wrong, right = write(text, "wrong.yaml"), write("train: {seed: 1}\n", "right.yaml")
    for paths in ([wrong, right], [right, wrong]):
        with pytest.raises(UserError) as caught:
            load_config(paths, ["--train.seed=1"])
        assert fault.format(wrong) in str(caught.value)


@pytest.mark.parametrize(
    "line, section, key, value",
    [
        ("perturbation: {inner_dropout: off}", "perturbation", "inner_dropout", "off"),
        ("perturbation: {reuse: none}", "perturbation", "reuse", "none"),
        ("perturbation: {eta_scaling: none}", "perturbation", "eta_scaling", "none"),
        ("dev: {data: none}", "dev", "data", "none"),
        ("dev: {data: no}", "dev", "data", "no"),
        ("data: {field: on}", "data", "field", "on"),
        ("data: {train: [{path: a.txt}]}", "data", "train", [{"path": "a.txt"}]),
        ("data: {positive_field: null}", "data", "positive_field", None),
        ("perturbation: {alpha: 1e-5}", "perturbation", "alpha", 1e-5),
        ("perturbation: {alpha: 2E-3}", "perturbation", "alpha", 2e-3),
        ("perturbation: {alpha: .5}", "perturbation", "alpha", 0.5),
        ("perturbation: {alpha: 0}", "perturbation", "alpha", 0.0),
        ("optimizer: {lr: 0}", "optimizer", "lr", 0.0),
        ("optimizer: {max_grad_norm: null}", "optimizer", "max_grad_norm", None),
        ("optimizer: {max_grad_norm: ~}", "optimizer", "max_grad_norm", None),
        ("perturbation: {epsilon: 0.1, epsilon_token: null, gamma: 0.1}", "perturbation", "epsilon_token", None),
        ("perturbation: {epsilon_token: equal}", "perturbation", "epsilon_token", "equal"),
        ("perturbation: {epsilon: 0.1, epsilon_token: 1e-2}", "perturbation", "epsilon_token", 1e-2),
        ("train: {seed: 012}", "train", "seed", 12),
        ("train: {output_dir: '2024'}", "train", "output_dir", "2024"),
        ("evaluation: {radii: [1, 1e-1]}", "evaluation", "radii", [1.0, 0.1]),
    ],
)
def test_yaml_words_mean_what_they_say(write, line, section, key, value):
    got = getattr(getattr(load_config(write(line)), section), key)
    assert got == value and type(got) is type(value)


@pytest.mark.parametrize(
    "overrides, section, key, value",
    [
        (["--perturbation.inner_dropout", "off"], "perturbation", "inner_dropout", "off"),
        (["--perturbation.reuse=none"], "perturbation", "reuse", "none"),
        (["--dev.data", "none"], "dev", "data", "none"),
        (["--train.output_dir", "2024"], "train", "output_dir", "2024"),
        (["--data.train", "a: [b"], "data", "train", "a: [b"),
        (["--data.train=x=y"], "data", "train", "x=y"),
        (["--data.train", "[a, b]"], "data", "train", "[a, b]"),
        (["--data.train", "[{path: a.txt, weight: 2.5}]"], "data", "train", [{"path": "a.txt", "weight": 2.5}]),
        (["--data.positive_field", "pos"], "data", "positive_field", "pos"),
        (["--data.positive_field", "null"], "data", "positive_field", None),
        (["--perturbation.alpha", "1e-5"], "perturbation", "alpha", 1e-5),
        (["--perturbation.epsilon", "null", *NO_AUTO], "perturbation", "epsilon", None),
        (["--perturbation.epsilon_token", "equal"], "perturbation", "epsilon_token", "equal"),
        (["--perturbation.use_eta", "false"], "perturbation", "use_eta", False),
        (["--evaluation.radii", "[0.1, 0.2]"], "evaluation", "radii", [0.1, 0.2]),
    ],
)
def test_overrides_mean_what_they_say(overrides, section, key, value):
    got = getattr(getattr(load_config(overrides=overrides), section), key)
    assert got == value and type(got) is type(value)


def test_objective_options_by_override_take_the_class_types():
    config = load_config(overrides=["--objective_options.temperature", "1", "--objective_options.head", "none"])
    assert config.objective_options["temperature"] == 1.0 and type(config.objective_options["temperature"]) is float
    assert config.objective_options["head"] == "none"


@pytest.mark.parametrize("is_nested", [True, False])
def test_the_old_names_of_keys_still_load_with_one_line(write, is_nested, log_records):
    old = "perturbation: {on_nonfinite: skip, max_nonfinite_steps: 3, num_steps: 2}\n"
    if not is_nested:
        old = "perturbation.on_nonfinite: skip\nperturbation.max_nonfinite_steps: 3\nperturbation.num_steps: 2\n"
    config = load_config(write(old), ["--train.max_nonfinite_steps", "5"])
    assert (config.train.on_nonfinite, config.train.max_nonfinite_steps, config.perturbation.num_steps) == (
        "skip",
        5,
        2,
    )
    (line,) = [record.getMessage() for record in log_records]
    assert "perturbation.on_nonfinite is now train.on_nonfinite" in line and "run.yaml" in line
    assert load_config(overrides=["--perturbation.on_nonfinite=skip"]).train.on_nonfinite == "skip"


def test_a_key_by_both_its_names_is_refused(write):
    with pytest.raises(UserError, match="perturbation.on_nonfinite = .*expected train.on_nonfinite alone"):
        load_config(write("perturbation: {on_nonfinite: skip}\ntrain: {on_nonfinite: raise}"))


def test_negative_numbers_are_values_not_keys():
    assert split_overrides(["--a.b", "-1e-3", "--c=--d", "--flag"], flags=("flag",)) == [
        ("a.b", "-1e-3"),
        ("c", "--d"),
        ("flag", None),
    ]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_config_loads_quietly_and_survives_its_own_yaml(path, tmp_path, log_records):
    config = load_config(str(path))
    assert not log_records
    copy = tmp_path / "config.yaml"
    copy.write_text(to_yaml(config), encoding="utf-8")
    assert load_config(str(copy)) == config


def test_the_shipped_configs_are_what_their_comments_say():
    assert {path.stem for path in SHIPPED} >= {
        "quickstart",
        "simcse",
        "robustsentembed_printed",
        "robustsentembed_relative",
    }
    quickstart = load_config(str(ROOT / "configs/quickstart.yaml"))
    assert quickstart.encoder.model == "demo:minilm" and quickstart.data.train == "demo:imdb-train"
    assert quickstart.evaluation.enabled and quickstart.evaluation.num_sentences >= 256
    printed = load_config(str(ROOT / "configs/robustsentembed_printed.yaml"))
    sizes = printed.perturbation.resolve()
    assert (sizes.alpha, sizes.beta, sizes.rho, sizes.num_pgd_steps, sizes.num_fgsm_steps) == (
        1e-5,
        1e-3,
        0.5,
        5,
        5,
    )
    assert sizes.eta_scaling == "before" and not sizes.steps_are_relative
    relative = load_config(str(ROOT / "configs/robustsentembed_relative.yaml"))
    sizes = relative.perturbation.resolve()
    assert sizes.steps_are_relative and sizes.eta_scaling == "after"
    assert load_config(str(ROOT / "configs/simcse.yaml")).objective == "simcse"
    uscal = load_config(str(ROOT / "configs/uscal.yaml"))
    assert (uscal.objective, uscal.perturbation.method) == ("uscal", "fgm") and 0.1 <= uscal.perturbation.epsilon <= 0.5
    for options in (printed.objective_options, relative.objective_options):
        assert (options["weight_rtd"], options["rtd_mask_ratio"]) == (0.005, 0.3)


@pytest.fixture
def log_records():
    """What loading a configuration logs, whatever other tests did to the log's handlers."""
    records = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append
    log = logging.getLogger("fastadv.launch")
    log.addHandler(handler)
    yield records
    log.removeHandler(handler)


@pytest.mark.parametrize(
    "sizes, is_warned",
    [
        ({"alpha": 2.1, "epsilon_relative": 0.1}, True),
        ({"alpha": 2.0, "epsilon_relative": 0.1}, False),
        ({"alpha": 0.3, "epsilon": 0.1}, True),
        ({"alpha": 0.2, "epsilon": 0.1}, False),
        ({"alpha": 2.1, "epsilon": 0.1, "step_relative": "true"}, True),
        ({"alpha": 9.0, "beta": 1.0, "gamma": 1.0, "epsilon": "null"}, False),
        ({"alpha": 9.0, "epsilon": 0}, False),
        ({"alpha": 9.0, "epsilon_relative": 0.1, "rho": 0}, False),
        ({"alpha": 9.0, "epsilon_relative": 0.1, "num_pgd_steps": 0}, False),
    ],
)
def test_a_pgd_step_beyond_the_ball_is_warned_of_once(log_records, sizes, is_warned):
    load_config(overrides=[f"--perturbation.{key}={value}" for key, value in sizes.items()])
    assert [record.getMessage().startswith("perturbation.alpha") for record in log_records] == [True] * is_warned


def test_an_objective_without_an_adversary_is_not_warned_of_its_steps(log_records):
    load_config(overrides=["--objective=simcse", "--perturbation.alpha=9", "--perturbation.epsilon=1"])
    assert not log_records


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=8,
)
words = st.sampled_from("off No y 1e-5 1E5 0o7 012 1:30 null ~ .inf << = 2020-01-01".split() + ["- x"])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.dictionaries(st.text(min_size=1) | words, plain | words, max_size=4))
def test_yaml_comes_back_equal_from_our_reader_and_from_pyyaml(data):
    text = write_yaml(data)
    assert read_yaml(text, "t") == data
    assert yaml.safe_load(text) == data
