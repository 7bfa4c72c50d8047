"""A checkpoint that is not what was written is refused by name, before anything is loaded, and an older one is used."""

import json
import logging
import os
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file

from fastadv.config.schema import to_yaml
from fastadv.engine.checkpoints import manifest
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, fault_of, newest_checkpoint
from fastadv.engine.checkpoints.manifest import (
    MANIFEST,
    CheckpointFault,
    Entry,
    Manifest,
    read_manifest,
    write_manifest,
)
from fastadv.errors import UserError
from fastadv.launch.load import load_config
from fastadv.train import main
from tests.quick_trainer import Trainer


@pytest.fixture(scope="module")
def trained(make_config_in, tmp_path_factory):
    """A folder with a finished run of four steps at stage 2, a checkpoint and a dev score after each."""
    base = tmp_path_factory.mktemp("trained")
    options = {
        "engine.zero_stage": 2,
        "train.save_every": 1,
        "train.eval_every": 1,
        "dev.data": str(base / "scored.csv"),
    }
    (base / "config.yaml").write_text(to_yaml(make_config_in(base, **options)), encoding="utf-8")
    Trainer(load_config(str(base / "config.yaml"))).fit()
    return base


@pytest.fixture
def config(trained, run):
    """That of the copy."""
    return load_config(str(trained / "config.yaml"), [f"--train.output_dir={run}"])


@pytest.fixture
def run(trained, tmp_path):
    """A copy of its run folder to do harm to."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def newest(run):
    folders = checkpoint_folders(run)
    assert [folder.name for folder in folders] == ["step-3", "step-4"]
    return folders[-1]


def files_of(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def best_weights_of(folder):
    step = json.loads((folder / "trainer_state.json").read_text())["position"]["best_step"]
    return folder.parent / f"best-step-{step}.safetensors"


def flip(path, place, bits=0x01):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ bits]))


def test_the_checkpoint_lists_every_file_and_the_best_weights(newest):
    listed = read_manifest(newest)
    assert {newest / name for name in listed.files} == set(files_of(newest)) - {newest / MANIFEST}
    assert set(listed.paths(newest)) == set(files_of(newest)) - {newest / MANIFEST} | {best_weights_of(newest)}
    # DeepSpeed's scripts, which unpickle what they find, are not among them.
    assert not any(name.endswith(".py") for name in listed.files)
    assert fault_of(newest) is None


def test_a_flipped_bit_in_any_file_is_found_and_named(run, newest, caplog):
    older = checkpoint_folders(run)[0]
    draw = random.Random(6)
    paths = files_of(newest)
    assert len(paths) == 6
    for path in paths:
        place, bits = draw.randrange(path.stat().st_size), 1 << draw.randrange(8)
        flip(path, place, bits)
        caplog.clear()
        assert newest_checkpoint(run) == older, path
        (record,) = caplog.records
        assert record.levelno == logging.WARNING and "\n" not in record.message
        assert str(newest) in record.message and path.relative_to(newest).as_posix() in record.message
        flip(path, place, bits)
    assert newest_checkpoint(run) == newest


def test_no_bit_of_the_manifest_can_change_unnoticed(newest):
    path = newest / MANIFEST
    for place in range(path.stat().st_size):
        # 0x20 makes upper case of lower; 0x2a a line's end of a space.
        for bits in (0x01, 0x20, 0x2A):
            flip(path, place, bits)
            with pytest.raises(CheckpointFault, match=MANIFEST):
                read_manifest(newest)
            flip(path, place, bits)
    read_manifest(newest)
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(CheckpointFault, match="altered"):
        read_manifest(newest)


def test_flipped_best_weights_make_every_checkpoint_that_needs_them_unfit(run, newest):
    weights = best_weights_of(newest)
    flip(weights, weights.stat().st_size // 2)
    for folder in checkpoint_folders(run):
        fault = fault_of(folder)
        assert (fault is not None and weights.name in fault) if best_weights_of(folder) == weights else fault is None


def forge(folder, files=None, beside=None):
    """A manifest with a right digest over whatever it claims, as a stranger could write it."""
    (folder / MANIFEST).unlink()
    if files is None:
        write_manifest(folder, Manifest({}, beside or {}))
    else:
        (folder / MANIFEST).write_text(manifest._serialise(Manifest(files, beside or {})))


HARM = {
    "cut off": (lambda path: os.truncate(path, path.stat().st_size - 1), "bytes expected, found"),
    "empty": (lambda path: os.truncate(path, 0), "bytes expected, found 0"),
    "missing": (lambda path: path.unlink(), "is missing"),
    "a symlink": (
        lambda path: (path.rename(path.parents[2] / "moved"), path.symlink_to(path.parents[2] / "moved")),
        "found a symlink",
    ),
    "a pipe": (lambda path: (path.unlink(), os.mkfifo(path)), "found a pipe"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "found a folder"),
    "one too many": (lambda path: (path.parent / "more.pt").touch(), "more.pt does not belong to it"),
    "a link too many": (lambda path: (path.parent / "more").symlink_to("/etc"), "more does not belong to it"),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("name", ["extra_state.safetensors", "engine/mp_rank_00_model_states.pt"])
def test_what_is_torn_or_foreign_is_refused(run, newest, name, harm, caplog):
    do_harm, said = HARM[harm]
    do_harm(newest / name)
    assert newest_checkpoint(run).name == "step-3"
    assert said in caplog.text and (name in caplog.text or "more" in said)


@pytest.mark.parametrize(
    "name", ["/etc/hostname", "../step-3/trainer_state.json", "a/../b", "./a", "", ".", "a//b", "a\\b"]
)
def test_a_manifest_that_leads_elsewhere_is_refused(run, newest, name, caplog):
    files = read_manifest(newest).files
    forge(newest, {**files, name: Entry(1, "0" * 64)})
    assert newest_checkpoint(run).name == "step-3"
    assert "no path inside the checkpoint" in caplog.text


@pytest.mark.parametrize(
    "name, entry",
    [
        ("../x", Entry(1, "0" * 64)),
        ("/etc/hostname", Entry(1, "0" * 64)),
        ("step-3/trainer_state.json", Entry(1, "0" * 64)),
        ("best-step-1.safetensors", Entry(-1, "0" * 64)),
        ("best-step-1.safetensors", Entry("1", "0" * 64)),
        ("best-step-1.safetensors", Entry(1, "0")),
    ],
    ids=str,
)
def test_a_manifest_that_names_something_else_beside_it_is_refused(newest, name, entry):
    forge(newest, read_manifest(newest).files, {name: entry})
    assert fault_of(newest).startswith(MANIFEST)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"format": 1}', "\x00", "[" * 100_000], ids=lambda t: t[:9])
def test_a_manifest_that_is_none_is_refused(newest, text):
    (newest / MANIFEST).write_text(text)
    assert fault_of(newest).startswith(MANIFEST)


def test_a_checkpoint_without_a_manifest_or_of_another_format_is_refused(newest):
    content = json.loads((newest / MANIFEST).read_text())
    (newest / MANIFEST).write_text(json.dumps({**content, "format": 9}))
    assert fault_of(newest) == f"{MANIFEST}: format 1 expected, found 9"
    (newest / MANIFEST).unlink()
    assert fault_of(newest) == f"{MANIFEST} is missing"


def test_a_checkpoint_that_is_a_symlink_is_refused(run, newest):
    newest.rename(run / "elsewhere")
    newest.symlink_to(run / "elsewhere")
    assert "symlink" in fault_of(newest) and newest_checkpoint(run).name == "step-3"


def test_hidden_files_are_nobodys_business(newest):
    """What file systems and desktops leave; nothing reads it."""
    (newest / ".nfs0001").touch()
    (newest / "engine" / ".DS_Store").touch()
    assert fault_of(newest) is None


def test_no_whole_checkpoint_is_one_line_and_nothing_is_touched(config, run, monkeypatch):
    names = [folder.name for folder in checkpoint_folders(run)]
    flip(run / "checkpoints" / names[0] / "engine" / "mp_rank_00_model_states.pt", 1000)
    (run / "checkpoints" / names[1] / "extra_state.safetensors").unlink()
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    monkeypatch.setattr("fastadv.encoder.Encoder.from_pretrained", lambda *_: pytest.fail("weights were loaded"))
    monkeypatch.setattr(torch, "load", lambda *_: pytest.fail("a checkpoint was loaded"))
    with pytest.raises(UserError) as caught:
        Trainer(config).fit()
    said = str(caught.value)
    assert "\n" not in said and all(f"{name} (" in said for name in names)
    assert "mp_rank_00_model_states.pt: sha256" in said and "extra_state.safetensors is missing" in said
    assert "restore one from a copy, or delete" in said
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_run_goes_on_from_the_newest_that_is_whole(config, trained, run, newest, capfd):
    """And ends as it would have: the refused one is written again, bit for bit, leftovers of killed runs are gone."""
    flip(newest / "engine" / "zero_pp_rank_0_mp_rank_00_optim_states.pt", 2000)
    (run / "checkpoints" / "partial-step-4" / "engine").mkdir(parents=True)
    (run / "checkpoints" / ".best-step-9.safetensors.1.partial").touch()
    Trainer(config).fit()
    assert "going on from" in capfd.readouterr().err
    names = {path.name for path in (run / "checkpoints").iterdir() if path.is_dir() or path.name.startswith(".")}
    assert names == {"step-3", "step-4"}
    assert fault_of(newest) is None
    whole = load_file(trained / "run" / "model" / "model.safetensors")
    again = load_file(run / "model" / "model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    for name in ("extra_state.safetensors", "generators-rank0.safetensors"):
        assert (newest / name).read_bytes() == (trained / "run" / "checkpoints" / "step-4" / name).read_bytes()


def test_a_dry_run_says_which_checkpoint_is_whole_and_writes_nothing(trained, run, newest, capsys):
    flip(newest / "extra_state.safetensors", 500)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["--config", str(trained / "config.yaml"), f"--train.output_dir={run}", "--dry_run"]) == 0
    assert "going on from step-3" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_replaced_checkpoint_counts_until_its_place_is_taken(run, newest):
    """A kill between the two renames that put a checkpoint in the place of another of the same step."""
    old = newest.rename(newest.with_name("replaced-step-4"))
    assert newest_checkpoint(run) == old
    shutil.copytree(old, newest)
    assert newest_checkpoint(run) == newest


def test_every_byte_is_read_once_before_a_run_goes_on(config, newest, monkeypatch):
    hashed = []
    hash_file = manifest.hash_file
    monkeypatch.setattr(manifest, "hash_file", lambda path, **how: (hashed.append(path), hash_file(path, **how))[1])
    Trainer(config).fit()
    hashed.remove(newest / "trainer_state.json")  # once more, early, since the config is compared before anything else
    assert sorted(hashed) == sorted(read_manifest(newest).paths(newest))


class Payload:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_no_file_of_a_checkpoint_calls_anything(make_config, stop_after, stage, monkeypatch):
    """A stranger can forge manifests. Every file in torch's format holds tensors and numbers, or is not loaded."""
    config = make_config(**{"engine.zero_stage": stage})
    folder = newest_checkpoint(Trainer(config, [stop_after(1)]).fit())
    safely, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *a, **how: (safely.append(how["weights_only"]), load(*a, **how))[1])
    pickles = sorted((folder / "engine").iterdir())
    assert len(pickles) == (1 if stage == 0 else 2)
    for path in pickles:
        kept = path.read_bytes()
        state = torch.load(path, weights_only=False)
        state["extra"] = Payload(folder.parent / "was-here")
        torch.save(state, path)
        forge(folder)
        safely.clear()
        with pytest.raises(UserError, match=f"{path.name} holds more than tensors"):
            Trainer(config).fit()
        assert safely and all(safely) and not (folder.parent / "was-here").exists()
        path.write_bytes(kept)
    forge(folder)
    safely.clear()
    Trainer(config).fit()
    assert len(safely) >= len(pickles) and all(safely)
