"""Hostile configs, models and run folders: one line, status 2, before anything is trained, and in little memory."""

import json
import math
import os
import pickle
import shutil

import pytest

from fastadv.config.schema import field_types, value_of
from fastadv.config.values import MISFIT, conform
from fastadv.errors import UserError
from fastadv.launch.load import load_config

ALLOCATED_MIB = 60
LIMIT_MIB = 1000
"""of all memory, torch's own too, beside what a run shares with its parent"""


@pytest.fixture
def refuse(server):
    """``refuse(argument, ...)`` asserts one line and status 2, and returns the line."""

    def run(*arguments):
        ended = server.run(arguments, limits={"AS": LIMIT_MIB << 20}, counts_memory=True)
        assert ended.status == 2 and len(ended.err.splitlines()) == 1 and len(ended.said) == 1, ended
        assert len(ended.said[0]) < 2000
        assert 0 < ended.allocated_mib < ALLOCATED_MIB, ended.allocated_mib
        return ended.said[0]

    return run


def laughs(num_levels):
    """Lists of lists, each ten times the one before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, num_levels)]
    return "\n".join(lines) + "\n"


CONTENTS = {
    "open brace": b"{",
    "open bracket": b"train: [",
    "bytes": b"\x00\x01\x02\xff",
    "utf-16": b"\xff\xfe" + "train:\n  seed: 1\n".encode("utf-16-le"),
    "noise": os.urandom(4096),
    "words": b"just words",
    "list": b"- 1\n- 2\n",
    "nothing": b"",
    "two documents": b"train: {seed: 1}\n---\ntrain: {seed: 1}\n",
    "a key twice": b"train: {seed: 1}\ntrain: {seed: 2}\n",
    "code": b"!!python/object/apply:os.system ['true']",
    "a tag": b"objective: !!binary aGk=\n",
    "a value in itself": b"train: &a\n  seed: *a\n",
    "billion laughs": laughs(12).encode(),
    "braces in braces": b"{a: " * 5000 + b"1" + b"}" * 5000,
    "10 MB of brackets": b"[" * 5_000_000 + b"]" * 5_000_000,
    "indents in indents": ("a:\n" + "".join(f"{' ' * i}b:\n" for i in range(1, 600))).encode(),
    "10 MB of one key": b"train:\n" + b"  seed: 1\n" * 1_000_000,
    "10 MB of comment": b"# " + b"x" * 10_000_000 + b"\n",
    "a pickle": pickle.dumps({"train": {"seed": 1}}),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_what_is_no_config(refuse, tmp_path, name):
    path = tmp_path / "some.yaml"
    path.write_bytes(CONTENTS[name])
    assert "some.yaml" in refuse("--config", path, "--dry_run")


@pytest.mark.parametrize(
    "content, named",
    [
        ("objective: " + "x" * 200_000, "objective"),
        ("objective_options: {temperature: " + "9" * 10_000 + "}", "too many digits"),
        ("objective: [" + "x, " * 50_000 + "x]", "objective"),
        ("objective: os:system", "objective"),
        ("objective: tests.faults.nowhere:Objective", "objective"),
        ("train: 5", "train"),
        ("train: {max_stepz: 5}", "train.max_steps"),
        ("train.max_steps: 5\ntrain: {max_steps: 6}", "train.max_steps"),
        ("? [a, b]\n: 5", "a key must be one word"),
        ("5: 6", "5"),
        ('train: {output_dir: "a\\0b"}', "train.output_dir"),
        ('data: {train: "a\\0b.txt"}', "data.train"),
        ('encoder: {model: "a\\0b"}', "encoder.model"),
    ],
    ids=lambda value: value[:20],
)
def test_values_that_are_none(refuse, tmp_path, content, named):
    path = tmp_path / "some.yaml"
    path.write_text(content, encoding="utf-8")
    assert named in refuse("--config", path, "--dry_run")


def test_what_is_no_file(refuse, tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    names = "nowhere.yaml", "pipe.yaml", "loop.yaml", "", "a" * 300
    for path in (*(tmp_path / name for name in names), "/dev/zero", "/proc/self/mem"):
        assert str(path) in refuse("--config", path)


def test_a_config_from_a_pipe(server, write_config, tmp_path):
    """As the shell's <(...) gives it."""
    config = write_config("run")
    os.mkfifo(tmp_path / "pipe.yaml")
    child = server.start(["--config", tmp_path / "pipe.yaml", "--print_config"])
    with open(tmp_path / "pipe.yaml", "w") as pipe:
        pipe.write(config.read_text())
    ended = child.wait()
    assert ended.status == 0 and ended.out == server.run(["--config", config, "--print_config"]).out, ended


WORDS = (".nan", ".inf", "-.inf", "-1", "1e400", "1" + "0" * 30, "9" * 5000, "[1]", "{a: 1}", "words", "true", "")


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word[:8])
def test_numbers_that_are_none(word):
    """Every key in turn: refused in one line, or a value that is finite and in its range."""
    for key, hint in field_types().items():
        try:
            config = load_config(None, [f"--{key}={word}"])
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000
            continue
        value = value_of(config, key)
        assert not isinstance(value, float) or math.isfinite(value), key
        assert value is None or conform(value, hint) is not MISFIT, key


HUGE = (
    "train.batch_size train.max_steps train.num_epochs train.seed train.accumulation_steps train.log_every "
    "train.save_every encoder.max_length encoder.num_frozen_layers engine.num_threads engine.timeout_minutes "
    "data.num_workers data.max_sentences data.bucket_batches perturbation.probe_every"
).split()


@pytest.mark.parametrize("key", HUGE)
@pytest.mark.parametrize("digits", [18, 30])
def test_numbers_without_measure(server, write_config, key, digits):
    """Refused, or as good as any other number: the run ends at the NaN that is planted in its second batch."""
    changes = {"objective": "tests.faults.objectives:Planted", "dev.data": "none", "train.eval_every": None}
    config = write_config("run", **{**changes, "train.max_steps": None if key == "train.num_epochs" else 2})
    fault = {"FAULT_BATCH": "1", "FAULT_ROW": "0", "FAULT_IN": "loss"}
    limits = {"AS": 2000 << 20}
    ended = server.run(["--config", config, f"--{key}", "1" + "0" * digits], env=fault, limits=limits)
    assert "Traceback" not in ended.err and len(ended.said) == 1, ended
    if ended.status == 2:
        assert key.rpartition(".")[2] in ended.said[0], ended
    else:
        assert ended.status == 1 and ": the loss is nan" in ended.said[0], ended


def without_weights(model):
    (model / "model.safetensors").unlink()


def pickled(model):
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def cut(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:5000])


def cut_in_its_head(model):
    (model / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


def empty_weights(model):
    (model / "model.safetensors").write_bytes(b"")


def weights_of_text(model):
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")


def no_json(model):
    (model / "config.json").write_text("{model_type: bert")


def json_of_another_kind(model):
    (model / "config.json").write_text("[1, 2]")


def binary_json(model):
    (model / "config.json").write_bytes(os.urandom(1000))


def folder_for_json(model):
    (model / "config.json").unlink()
    (model / "config.json").mkdir()


def _changed(model, **changes):
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def unknown_kind(model):
    _changed(model, model_type="no-such-model")


def other_size(model):
    _changed(model, hidden_size=64)


def endless_vocabulary(model):
    _changed(model, vocab_size=10**12)


def own_code(model):
    _changed(model, model_type="mine", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    (model / "code.py").write_text("open('was-here', 'w')\n")


def no_tokenizer(model):
    for path in model.glob("*"):
        if "token" in path.name or path.name == "vocab.txt":
            path.unlink()


def cut_tokenizer(model):
    for path in model.glob("tokenizer*.json"):
        path.write_text(path.read_text()[:100])


def no_modules(model):
    (model / "modules.json").write_text("{nothing")


def modules_of_another_kind(model):
    (model / "modules.json").write_text('["Transformer", "Pooling"]')


_MODULES = {"Transformer": "", "Pooling": "1_Pooling"}


def endless_length(model):
    # Without modules.json no other file of sentence-transformers counts.
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in _MODULES.items()]
    (model / "modules.json").write_text(json.dumps(modules))
    (model / "1_Pooling").mkdir(exist_ok=True)
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (model / "sentence_bert_config.json").write_text('{"max_seq_length": "endless"}')


DAMAGES = (
    without_weights,
    pickled,
    cut,
    cut_in_its_head,
    empty_weights,
    weights_of_text,
    no_json,
    json_of_another_kind,
    binary_json,
    folder_for_json,
    unknown_kind,
    other_size,
    endless_vocabulary,
    own_code,
    no_tokenizer,
    cut_tokenizer,
    no_modules,
    modules_of_another_kind,
    endless_length,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model(refuse, write_config, model_dir, tmp_path, damage):
    model = tmp_path / "hurt-model"
    shutil.copytree(model_dir, model)
    damage(model)
    assert "hurt-model" in refuse("--config", write_config("run", **{"encoder.model": str(model)}))
    assert not (tmp_path / "run" / "checkpoints").exists() and not (model / "was-here").exists()


def test_run_folders_that_cannot_be(refuse, server, write_config, model_dir, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    nested = write_config("run")
    assert server.run(["--config", nested]).status == 0
    refused = [
        file,
        file / "below",
        tmp_path / "mine",
        model_dir,
        tmp_path / "loop",
        tmp_path / ("a" * 300),
        "/proc/run",
        "/dev/null",
        # Inside the run's own folder, and what lies there.
        tmp_path / "run" / "checkpoints",
        tmp_path / "run" / "checkpoints" / "step-6",
        tmp_path / "run" / "model",
    ]
    for folder in refused:
        assert "train.output_dir" in refuse("--config", nested, "--train.output_dir", folder), folder
    assert file.read_text() == "mine" and [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
