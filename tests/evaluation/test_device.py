"""``--device``: every command that opens models opens all of them there, says so, and refuses a device that is not."""

import json

import pytest
import torch

from fastadv.distributed.devices import named_device
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.errors import UserError
from fastadv.evaluation.text.rows import write_rows
from tests.cli.test_commands import SAYING
from tests.evaluation.attacked import SETS, make_classifier, own_labels, run, write_table
from tests.evaluation.made_up_sets import write_sets, write_sts_benchmark
from tests.evaluation.papers.test_pair_distances import attacked_rows

FEW = ["--num_steps", 1, "--epsilons", 1]
COMMANDS = {
    "encode": (["--input", "TEXTS", "--field", "text", "--output", "vectors.npy"], None),
    **{f"evaluate {kind}": ([*options, "--out", "OUT"], name) for kind, (options, name, _, _) in SAYING.items()},
    "evaluate pair-distances": (["--rows", "ROWS", "--out", "OUT"], "pair-distances.json"),
    "evaluate perturbation-map": (
        ["--data", "TEXTS", "--word_sets", "SETS", "--max_texts", 8, "--out", "OUT"],
        "perturbation-map.json",
    ),
    "attack": (["--data", "TEXTS", *FEW, "--transfer_from", "MODEL", "--out", "OUT"], "attack.json"),
    "attack --method reconstruct": (["--data", "TEXTS", *FEW, "--out", "OUT"], "reconstruct.json"),
    "attack --recipe synonym": (["--data", "TEXTS", "--word_sets", "SETS", "--out", "OUT"], "text-attack.json"),
}
"""command → its options besides the model, and the file whose models say where they computed"""


@pytest.fixture(scope="module")
def places(tmp_path_factory, tiny_bert_dir):
    folder = tmp_path_factory.mktemp("device")
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    classifier.save_pretrained(folder / "model")
    data = write_sts_benchmark(write_sets(folder / "senteval", ["SST-2"], num_rows=12), num_pairs=30)
    SETS.save(folder / "sets.json")
    write_rows(folder / "rows.csv", attacked_rows())
    table = write_table(folder / "texts.csv", own_labels(Classifier.from_pretrained(str(folder / "model"))))
    names = {"DATA": data, "CACHE": folder / "cache", "SETS": folder / "sets.json", "ROWS": folder / "rows.csv"}
    return {**names, "TEXTS": table, "MODEL": folder / "model"}


def arguments_of(command, places, out):
    options, name = COMMANDS[command]
    words = {**places, "OUT": out / name if str(name).startswith("out.") else out / "out", "vectors.npy": out / "v.npy"}
    options = [words.get(option, option) for option in options]
    return [*command.split(), "--model", places["MODEL"], *options], words["OUT"]


@pytest.mark.parametrize("command", COMMANDS)
def test_all_models_are_opened_on_the_device_that_was_named(command, places, tmp_path, capsys, monkeypatch):
    """As if ``cuda`` were another name of the CPU; whatever opens a model without it asks for ``cpu``."""
    asked = set()

    def stand_in(name):
        asked.add(str(name))
        return torch.device("cpu")

    # Where it is imported when the command runs, and where models are opened.
    monkeypatch.setattr("fastadv.distributed.devices.named_device", stand_in)
    monkeypatch.setattr("fastadv.encoder.encoder.named_device", stand_in)
    arguments, out = arguments_of(command, places, tmp_path)
    printed = run([*arguments, "--device", "cuda"], capsys).out
    # A model of the suite is asked for once more by the name that was found.
    assert asked == ({"cuda", "cpu"} if command == "evaluate all" else {"cuda"})
    name = COMMANDS[command][1]
    if name is not None:
        record = json.loads((out if out.is_file() else out / name).read_text())
        assert {model["device"] for model in record.get("models", [record.get("details")])} == {"cpu"}
    assert "on cpu" in printed or command in ("evaluate all", "evaluate robustness", "evaluate adv-sts")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_read(command, places, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments, out = arguments_of(command, places, tmp_path)
    printed = run([*arguments, "--device", "cuda:1", "--dry_run"], capsys, status=2)
    assert printed.err == "fastadv: device cuda:1: torch sees no GPU; allowed here: auto, cpu\n"
    assert not out.exists() and not printed.out


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CPU", "mps", ""])
def test_what_is_no_device_is_refused(name, places, tmp_path, capsys):
    arguments, _ = arguments_of("encode", places, tmp_path)
    printed = run([*arguments, "--device", name], capsys, status=2)
    assert f"device {name!r}: expected auto, cpu, cuda or cuda:N" in printed.err and printed.err.count("\n") == 1


def test_a_named_gpu_becomes_the_process_s_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    made = []
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    assert named_device("auto") == named_device("cpu") == torch.device("cpu") and not made
    monkeypatch.delenv("DS_ACCELERATOR")
    assert [named_device(name).index for name in ("auto", "cuda", "cuda:0")] == [1, 1, 0]
    assert [device.index for device in made] == [1, 1, 0]
    with pytest.raises(
        UserError, match="device cuda:2: torch sees no such GPU; allowed here: auto, cpu, cuda:0, cuda:1"
    ):
        named_device("cuda:2")
