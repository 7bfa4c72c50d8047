"""A disk that takes no more: one line, a non-zero status, and the checkpoints before it as they were."""

import errno
import os
import resource
from pathlib import Path

import pytest
import torch

from fastadv.config.schema import Config, to_yaml
from fastadv.engine.callbacks import Callback
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, fault_of
from fastadv.engine.checkpoints.manifest import write_file
from fastadv.engine.selection import Selection
from fastadv.errors import SaveFailed
from fastadv.files.disk import disk_errors_explained
from fastadv.train import main
from tests.quick_trainer import Trainer
from tests.ranks.workers.start import run_ranks

# Below the weights, above the log: what such a limit stops is the checkpoint.
LIMIT_BYTES = 100_000


class file_size_limit:
    """No file of this process grows beyond so many bytes: writes end with EFBIG, from the kernel."""

    def __enter__(self):
        self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, self.before[1]))

    def __exit__(self, *_):
        resource.setrlimit(resource.RLIMIT_FSIZE, self.before)


class FillsUp(Callback):
    """The disk, from the third step on."""

    def on_step(self, trainer, step, metrics):
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT_BYTES, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def lift_limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)


@pytest.fixture(autouse=True)
def limit_lifted():
    yield
    lift_limit()


def test_a_full_device_is_one_line():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with pytest.raises(SaveFailed, match=r"^/dev/full cannot be written: No space left on device \([0-9,]+ bytes free"):
        write_file(Path("/dev/full"), lambda stream: stream.write(b"some"))


@pytest.mark.parametrize("num_bytes", [10, LIMIT_BYTES, 5 * LIMIT_BYTES])
def test_a_file_is_whole_or_the_write_fails(tmp_path, num_bytes):
    def fill(stream):
        for _ in range(num_bytes // 10):
            stream.write(b"0123456789")

    with file_size_limit():
        if num_bytes <= LIMIT_BYTES:
            assert write_file(tmp_path / "x", fill).num_bytes == num_bytes == (tmp_path / "x").stat().st_size
        else:
            with pytest.raises(SaveFailed, match="x cannot be written: File too large"):
                write_file(tmp_path / "x", fill)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_checkpoint_that_finds_no_room_leaves_the_last_one(make_config, stage):
    config = make_config(**{"train.save_every": 1, "engine.zero_stage": stage})
    with pytest.raises(SaveFailed) as caught:
        Trainer(config, [FillsUp()]).fit()
    lift_limit()
    folder, said = Path(config.train.output_dir), str(caught.value)
    assert "\n" not in said and said.startswith("no checkpoint written: ")
    assert f"{folder}/checkpoints/partial-step-3/engine/" in said
    assert "File too large" in said and "bytes free there" in said
    assert f"can be gone on from {folder}/checkpoints/step-2" in said
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-1", "step-2"]
    assert [fault_of(checkpoint) for checkpoint in checkpoint_folders(folder)] == [None, None]
    trainer = Trainer(config)
    trainer.fit()
    assert trainer.is_finished


def test_the_command_ends_with_status_1_and_one_line(make_config, tmp_path, capfd):
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(make_config(**{"train.max_steps": 1})), encoding="utf-8")
    with file_size_limit():
        status = main(["--config", str(path)])
    err = capfd.readouterr().err.splitlines()
    assert status == 1 and err[-1].startswith("fastadv: no checkpoint written: ")
    assert "there is no earlier one" in err[-1] and not any("Traceback" in line for line in err)
    assert main(["--config", str(path)]) == 0


def test_a_place_that_cannot_be_written_is_one_line(make_config):
    """Root may write everywhere; where a folder should be, a file is in anybody's way."""

    class InTheWay(Callback):
        def on_step(self, trainer, step, metrics):
            (trainer.run_folder / "checkpoints").touch()

    with pytest.raises(SaveFailed, match="checkpoints/partial-step-4.* cannot be written: .*; there is no earlier one"):
        Trainer(make_config(), [InTheWay()]).fit()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_one_line(make_config):
    class Locked(Callback):
        def on_save(self, trainer, step, folder):
            folder.parent.chmod(0o500)

    config = make_config(**{"train.save_every": 2})
    with pytest.raises(SaveFailed, match="partial-step-4.* cannot be written: Permission denied .*step-2"):
        Trainer(config, [Locked()]).fit()
    checkpoints = Path(config.train.output_dir) / "checkpoints"
    checkpoints.chmod(0o700)
    assert fault_of(checkpoints / "step-2") is None


def test_best_weights_that_find_no_room_leave_those_before(tmp_path):
    best = Selection(Config(), tmp_path, None, None)
    best.save(1, {"w": torch.ones(10)})
    with file_size_limit(), pytest.raises(SaveFailed, match="best-step-2.*: File too large"):
        best.save(2, {"w": torch.ones(LIMIT_BYTES)})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["best-step-1.safetensors"]
    assert torch.equal(best.load(1)["w"], torch.ones(10))


def test_what_else_a_full_disk_breaks_is_one_line_too(tmp_path):
    with pytest.raises(SaveFailed, match="cannot be written: No space left on device"):
        with disk_errors_explained(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    # What failed first is said, not what failed while the run was being closed.
    with pytest.raises(SaveFailed, match="^first$"):
        with disk_errors_explained(tmp_path):
            try:
                raise SaveFailed("first")
            finally:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(FileNotFoundError):
        with disk_errors_explained(tmp_path):
            open(tmp_path / "nowhere")


@pytest.mark.several_processes
def test_two_ranks_agree_on_a_full_disk_on_damage_and_on_the_end(make_config, tmp_path):
    """What hits the second rank alone: the first neither waits for it nor goes on without it."""
    config = make_config(**{"engine.zero_stage": 2, "train.save_every": 2, "train.max_steps": 6})
    (tmp_path / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    run_ranks(2, "survival_worker.py", str(tmp_path / "config.yaml"))
    # SIGUSR2 came after the third step, of which no checkpoint was due, SIGTERM after the fourth.
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-3", "step-4"]
