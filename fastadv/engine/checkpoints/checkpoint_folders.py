"""The checkpoints of a run folder: their names, which of them is whole, and how a new one takes its place.

    checkpoints/partial-step-<n>     being written, or left behind by a run that was killed: never read
    checkpoints/step-<n>             written, verified on the disk, and renamed
    checkpoints/replaced-step-<n>    what ``step-<n>`` was, for the moment in which another takes its name; it counts
                                     as step n where there is no ``step-<n>``

So at every moment the disk holds, whole, the newest checkpoint or the one before it.
"""

import logging
import re
import shutil
from pathlib import Path

from fastadv.distributed.processes import first_rank_only, from_all_ranks, is_first_rank, rank, world_size
from fastadv.engine.checkpoints.manifest import (
    CheckpointFault,
    Manifest,
    check_contents,
    check_sizes,
    read_manifest,
    sync_folder,
    write_manifest,
)
from fastadv.errors import SaveFailed, UserError
from fastadv.files.disk import free_space, save_failed

log = logging.getLogger(__name__)

_NAME = re.compile(r"(replaced-)?step-(0|[1-9][0-9]*)")
_KEPT = 2


def checkpoint_folders(run_folder: Path) -> list[Path]:
    """The complete checkpoints by their names, oldest step first. Whether they are whole, `newest_checkpoint` says."""
    found: dict[int, Path] = {}
    # "replaced-" sorts before "step-", which takes its place here, too.
    for path in sorted((run_folder / "checkpoints").glob("*step-*")):
        if _NAME.fullmatch(path.name) and (path.is_dir() or path.is_symlink()):
            found[step_of(path)] = path
    return [found[step] for step in sorted(found)]


def step_of(folder: Path) -> int:
    """The step in a checkpoint's name."""
    return int(folder.name.rpartition("-")[2])


def newest_checkpoint(run_folder: Path) -> Path | None:
    """The newest checkpoint that is whole, every byte of it compared with its manifest; None if there is none at all.

    All ranks call it and get the same: each reads its share of the bytes, and the first rank decides. A checkpoint
    that is not whole is passed over with a warning that says what is wrong.

    Raises:
        UserError: there are checkpoints, and none is whole.
    """
    faults = []
    for folder in first_rank_only(lambda: checkpoint_folders(run_folder))[::-1]:
        fault = fault_of(folder)
        if fault is None:
            return folder
        faults.append(f"{folder.name} ({fault})")
        if is_first_rank():
            log.warning(f"{folder} is passed over: {fault}")
    if faults:
        raise UserError(
            f"{run_folder / 'checkpoints'}: no checkpoint is whole: {'; '.join(faults)}; restore one from a copy, "
            f"or delete {run_folder} to start anew"
        )
    return None


def fault_of(folder: Path) -> str | None:
    """What is wrong with a checkpoint, None if it is whole; the same on all ranks, all of which call it."""
    manifest, fault = first_rank_only(lambda: _listed(folder))
    if fault is not None:
        return fault
    # The largest files first, dealt out in turn: shares of about equal size.
    entries = sorted(manifest.paths(folder).items(), key=lambda item: (-item[1].num_bytes, item[0]))
    own = None
    try:
        check_contents(folder, entries[rank() :: world_size()], is_told=is_first_rank())
    except CheckpointFault as error:
        own = str(error)
    return next((fault for fault in from_all_ranks(own) if fault is not None), None)


def _listed(folder: Path) -> tuple[Manifest | None, str | None]:
    try:
        manifest = read_manifest(folder)
        check_sizes(folder, manifest)
    except CheckpointFault as error:
        return None, str(error)
    return manifest, None


def begin_writing(run_folder: Path, step: int) -> Path:
    """An empty folder aside to write the checkpoint of ``step`` to; the first rank's.

    Raises:
        SaveFailed: the folder cannot be made.
    """
    aside = run_folder / "checkpoints" / f"partial-step-{step}"
    try:
        clear_leftovers(run_folder)
        (aside / "engine").mkdir(parents=True)
    except OSError as error:
        raise not_saved(run_folder, save_failed(aside, error)) from error
    return aside


def not_saved(run_folder: Path, reason: object) -> SaveFailed:
    """The error of a checkpoint that could not be written, with what is left to go on from."""
    folders = checkpoint_folders(run_folder)
    left = f"the run can be gone on from {folders[-1]}" if folders else "there is no earlier one"
    return SaveFailed(f"no checkpoint written: {reason}; {left}")


def complete(aside: Path, manifest: Manifest) -> Path:
    """Gives a checkpoint that all ranks have written its manifest and its name, and removes older ones; the first
    rank's.

    Returns:
        the folder under its new name.

    Raises:
        SaveFailed: the disk is full, or the folder cannot be written. What was there before is there still.
    """
    folder = aside.with_name(aside.name.removeprefix("partial-"))
    replaced = aside.with_name(f"replaced-{folder.name}")
    try:
        write_manifest(aside, manifest)
        if folder.exists():
            folder.rename(replaced)
        aside.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise save_failed(folder, error) from error
    _remove(replaced)
    _forget_others(folder)
    return folder


def _forget_others(newest: Path) -> None:
    """Keeps ``newest`` and the checkpoint before it. What claims to be newer was passed over, or is not this run's."""
    step = step_of(newest)
    folders = checkpoint_folders(newest.parent.parent)
    kept = [folder for folder in folders if step_of(folder) <= step][-_KEPT:]
    for folder in folders:
        if folder not in kept:
            _remove(folder)


def clear_leftovers(run_folder: Path) -> None:
    """Removes what a killed run left half written or half replaced. No run may be writing to the folder."""
    checkpoints = run_folder / "checkpoints"
    for path in [*checkpoints.glob("partial-step-*"), *checkpoints.glob(".best-step-*.partial")]:
        _remove(path)
    for path in checkpoints.glob("replaced-step-*"):
        if path.with_name(path.name.removeprefix("replaced-")).exists():
            _remove(path)


def _remove(path: Path) -> None:
    """Removes a folder, or what bears its name. A checkpoint loses its name first, lest half of it keeps it."""
    try:
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.exists():
            aside = path.with_name(f"partial-{path.name.removeprefix('replaced-').removeprefix('partial-')}")
            shutil.rmtree(path.rename(aside))
    except OSError as error:
        log.warning(f"{path} cannot be removed: {error.strerror} ({free_space(path)})")
