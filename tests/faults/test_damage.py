"""A byte that changed in a checkpoint: it is refused by the file's name, and the run goes on from the one before it."""

import random
import shutil

import pytest

from tests.faults.runs import assert_equal_runs, resumed_at, whole_checkpoints

FILES = (
    "engine/mp_rank_00_model_states.pt",
    "extra_state.safetensors",
    "generators-rank0.safetensors",
    "manifest.json",
    "trainer_state.json",
)


@pytest.fixture(scope="module")
def killed(server, tmp_path_factory, write_config_in):
    """A run killed before its export, with checkpoints of steps 4 and 6, to copy."""
    folder = tmp_path_factory.mktemp("killed")
    config = write_config_in(folder, "run")
    plant = {"event": "open", "path": r"\.model\.writing-"}
    child = server.start(["--config", config], plants=[("stop_before", plant)])
    assert child.is_stopped(60.0), child.err
    child.kill()
    child.wait()
    assert whole_checkpoints(folder / "run") == [4, 6]
    return folder / "run"


def flip(path, draw):
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(path, draw):
    path.write_bytes(path.read_bytes()[: draw.randrange(path.stat().st_size)])


def remove(path, draw):
    path.unlink()


@pytest.mark.parametrize(
    "file, hurt", [*((file, flip) for file in FILES), (FILES[0], cut), (FILES[1], remove), (FILES[3], remove)]
)
def test_one_file_of_the_newest_checkpoint(server, write_config, killed, untouched, tmp_path, pytestconfig, file, hurt):
    config, run = write_config("run"), tmp_path / "run"
    shutil.copytree(killed, run)
    seed = pytestconfig.getoption("--fault-seed")
    hurt(run / "checkpoints" / "step-6" / file, random.Random(f"{seed} {file}"))
    assert whole_checkpoints(run) == [4]
    ended = server.run(["--config", config])
    assert ended.status == 0 and resumed_at(ended.err) == 4, f"--fault-seed {seed}: {ended.err}"
    (refusal,) = [line for line in ended.err.splitlines() if "step-6 is passed over" in line]
    assert file.rpartition("/")[2] in refusal
    assert_equal_runs(run, untouched)


def test_files_that_all_checkpoints_need(server, write_config, killed, tmp_path):
    config, run = write_config("run"), tmp_path / "run"
    shutil.copytree(killed, run)
    (best,) = (run / "checkpoints").glob("best-step-*")
    flip(best, random.Random(0))
    ended = server.run(["--config", config])
    assert ended.status == 2 and "Traceback" not in ended.err, ended.err
    (line,) = ended.said
    assert "no checkpoint is whole" in line and best.name in line
