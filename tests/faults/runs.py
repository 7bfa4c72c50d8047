"""A run folder, read without the code under test: which checkpoints are whole, what was logged, how it ended."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any, Optional

import torch
from safetensors.torch import load_file

# A field of metrics.jsonl that says how long something took, or what the machine was doing meanwhile.
_CLOCK = re.compile(r"(_per_s|_s|_ms|_mib|_gib|_bytes|mfu|flop_utilisation)$|^(time|memory|seconds)")
# What a run leaves beside its results: events and scores of the time it took.
_UNLIKE = re.compile(r"^(tensorboard/|report\.html$)")


def whole_checkpoints(run: Path) -> list[int]:
    """Steps of the checkpoints whose manifest fits every file, oldest first."""
    found = []
    for folder in (run / "checkpoints").glob("step-*"):
        try:
            manifest = json.loads((folder / "manifest.json").read_bytes())
            places = {folder / name: entry for name, entry in manifest["files"].items()}
            places |= {folder.parent / name: entry for name, entry in manifest["beside"].items()}
            if all(_fits(path, entry) for path, entry in places.items()):
                found.append(int(folder.name[5:]))
        except (OSError, ValueError, KeyError):
            continue
    return sorted(found)


def _fits(path: Path, entry: dict[str, Any]) -> bool:
    content = path.read_bytes()
    return len(content) == entry["num_bytes"] and hashlib.sha256(content).hexdigest() == entry["sha256"]


def logged(run: Path) -> list[dict[str, Any]]:
    """The whole lines of metrics.jsonl without what depends on the clock."""
    path = run / "metrics.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [{name: value for name, value in json.loads(line).items() if not _CLOCK.search(name)} for line in lines]


def last_logged_step(run: Path) -> int:
    return max((line["step"] for line in logged(run)), default=0)


def resumed_at(err: str) -> Optional[int]:
    """The step that a child went on from, by its own words; None where it began anew."""
    found = re.search(r"^going on from \S*/step-(\d+)$", err, re.MULTILINE)
    return int(found.group(1)) if found else None


def assert_equal_runs(run: Path, other: Path) -> None:
    """Both ended with the same weights, V, optimizer state, generators, place and log, to the last bit."""
    assert logged(run) == logged(other)
    assert _names(run) == _names(other)
    assert (run / "model" / "model.safetensors").read_bytes() == (other / "model" / "model.safetensors").read_bytes()
    checkpoints = whole_checkpoints(run)
    assert checkpoints and checkpoints == whole_checkpoints(other)
    for step in checkpoints:
        one, two = (folder / "checkpoints" / f"step-{step}" for folder in (run, other))
        states = [json.loads((folder / "trainer_state.json").read_text())["position"] for folder in (one, two)]
        assert states[0] == states[1]
        for path in one.rglob("*"):
            if path.suffix in (".safetensors", ".pt"):
                assert_equal_values(_loaded(path), _loaded(two / path.relative_to(one)), str(path))


def _names(run: Path) -> set[str]:
    names = (str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    return {name for name in names if not _UNLIKE.match(name)}


def _loaded(path: Path) -> Any:
    # Written by this very test.
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=False)


def assert_equal_values(one: Any, two: Any, where: str) -> None:
    """Equal tensors to the last bit, in equal containers; objects of classes by their attributes."""
    assert type(one) is type(two), where
    if isinstance(one, torch.Tensor):
        assert one.dtype == two.dtype and torch.equal(one, two), where
    elif isinstance(one, dict):
        assert one.keys() == two.keys(), where
        for key in one:
            assert_equal_values(one[key], two[key], f"{where}: {key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(two), where
        for i, pair in enumerate(zip(one, two)):
            assert_equal_values(*pair, f"{where}: {i}")
    elif hasattr(one, "__dict__") and not isinstance(one, type):
        assert_equal_values(vars(one), vars(two), where)
    else:
        assert one == two, where
