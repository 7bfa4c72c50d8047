"""Checkpoints of a run, from which it goes on bit for bit.

A checkpoint is a folder ``checkpoints/step-<n>``: DeepSpeed's files (weights, optimizer, schedule), and ours: the place
in the data, the generators, the eta table, the config that all of it belongs to, and a manifest of sizes and hashes. It
is written under another name, to the disk itself, and renamed when whole
(`fastadv.engine.checkpoints.checkpoint_folders`).
"""

import json
import pickle
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, Mapping

import torch
from safetensors.torch import load_file
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from fastadv.config.schema import Config, with_new_names
from fastadv.config.values import flat_values
from fastadv.data.mixture import describe_sources, weighted_sources
from fastadv.distributed.devices import gpus_in_use
from fastadv.distributed.processes import first_rank_only, from_all_ranks, is_first_rank, world_size
from fastadv.engine.checkpoints.checkpoint_folders import begin_writing, checkpoint_folders, complete, not_saved
from fastadv.engine.checkpoints.manifest import (
    CheckpointFault,
    Entry,
    Manifest,
    check_contents,
    read_manifest,
    write_file,
)
from fastadv.errors import SaveFailed, UserError
from fastadv.objectives.base import resolve_objective
from fastadv.objectives.options import constructor_options

STATE = "trainer_state.json"
EXTRA_STATE = "extra_state.safetensors"
ENGINE = "engine"
_FORMAT = 2

_MAY_CHANGE = (
    "data.cache_dir",
    "data.num_workers",
    "engine.timeout_minutes",
    "evaluation.",
    "train.output_dir",
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.resume",
    "train.collapse",
    "train.trackers",
    # These two count through the total number of steps, which the schedule depends on and which is compared itself.
    "train.max_steps",
    "train.num_epochs",
)
"""Fields (or stages, by a final dot) that have no effect on the numbers of a step."""

_BY_CONTENT = ("data.train", "data.word_sets", "data.pairs")
"""Fields that name files, of which the fingerprint of the data tells whether they hold what they held."""


@dataclass
class Position:
    """Where a run stands between two steps."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Passes over the data that are complete."""
    batch: int = 0
    """Batches of this epoch already taken."""
    num_skipped: int = 0
    """Batches skipped because something in them was not finite."""
    num_skipped_in_a_row: int = 0
    """Skipped batches since the last one that was kept."""
    best_score: float | None = None
    """Highest dev score so far."""
    best_step: int | None = None
    """Step whose weights have the highest dev score."""
    num_scores_since_best: int = 0
    """Dev scores since the highest one."""

    def is_out_of_patience(self, patience: int | None) -> bool:
        """Whether ``patience`` dev scores (``dev.patience``) were no better than the best."""
        return patience is not None and self.num_scores_since_best >= patience


@dataclass
class RunIdentity:
    """What must be equal for a checkpoint to be gone on from, and what is only recorded."""

    config: dict[str, Any]
    total_steps: int
    data: str
    """fingerprint of the tokenised sentences"""
    torch_version: str
    num_threads: int
    world_size: int

    @classmethod
    def of(cls, config: Config, total_steps: int, data: str) -> "RunIdentity":
        # Through JSON and back, so that it compares equal with what a file holds.
        plain = json.loads(json.dumps(asdict(config)))
        return cls(plain, total_steps, data, torch.__version__, torch.get_num_threads(), world_size())


class CheckpointWriter:
    """Writes one rank's files of a checkpoint, and remembers sizes, hashes, and the first failure.

    A failure raises nothing yet: the other ranks are still writing, and DeepSpeed waits for them in between.
    """

    def __init__(self, aside: Path):
        self.folder = aside
        self.entries: dict[str, Entry] = {}
        self.failure: str | None = None

    def write(self, name: str, fill: Callable[[BinaryIO], None]) -> None:
        """One file: ``fill`` writes its content to the stream it is given."""
        if self.failure is not None:
            return
        try:
            self.entries[name] = write_file(self.folder / name, fill)
        except SaveFailed as error:
            self.failure = str(error)

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        on_cpu = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        self.write(name, lambda stream: stream.write(tensor_bytes(on_cpu)))

    def write_state(self, position: Position, identity: RunIdentity) -> None:
        state = {"format": _FORMAT, "position": asdict(position), "identity": asdict(identity)}
        text = json.dumps(state, indent=1) + "\n"
        self.write(STATE, lambda stream: stream.write(text.encode()))

    def write_pickle(self, name: str, state: Any) -> None:
        """In torch's format, as DeepSpeed keeps its own."""
        self.write(name, lambda stream: torch.save(state, stream))

    @contextmanager
    def writing_for(self, engine) -> Iterator[None]:
        """DeepSpeed's files go through here, too."""

        def save(state_dict, path):
            self.write_pickle(str(Path(path).relative_to(self.folder)), state_dict)

        engine.checkpoint_engine.save = save
        # Scripts that load what they find, of which no checkpoint needs a copy.
        engine._copy_recovery_script = lambda folder: None
        try:
            yield
        finally:
            del engine.checkpoint_engine.save, engine._copy_recovery_script

    def finish(self, beside: Mapping[str, Entry], run_folder: Path) -> Path:
        """Completes the checkpoint once every rank has written its part. All ranks call it.

        Each rank has hashed what it wrote while it wrote it, so that no byte is read back, however many ranks there
        are; the first rank collects the list.

        Raises:
            SaveFailed: on every rank, where any could not write.
        """
        parts = from_all_ranks((self.entries, self.failure))
        failures = [failure for _, failure in parts if failure is not None]
        files = {name: entry for entries, _ in parts for name, entry in entries.items()}

        def complete_or_clear() -> Path:
            try:
                if failures:
                    raise SaveFailed(failures[0])
                return complete(self.folder, Manifest(files, dict(beside)))
            except SaveFailed as error:
                shutil.rmtree(self.folder, ignore_errors=True)
                raise not_saved(run_folder, error) from error

        return first_rank_only(complete_or_clear)


def save_checkpoint(
    run_folder: Path,
    engine,
    extra_state: dict[str, Tensor],
    position: Position,
    identity: RunIdentity,
    beside: Mapping[str, Entry] | None = None,
) -> Path:
    """Writes ``checkpoints/step-<n>`` and removes all but the two newest. Every rank calls it.

    Args:
        engine: the DeepSpeed engine, between two steps.
        extra_state: tensors equal on all ranks that no module holds (the eta table).
        beside: files in ``checkpoints/`` that this checkpoint needs; the first rank's counts.

    Raises:
        SaveFailed: on every rank, where any could not write. The checkpoints before it are as they were.
    """
    writer = CheckpointWriter(first_rank_only(lambda: begin_writing(run_folder, position.step)))
    with writer.writing_for(engine):
        engine.save_checkpoint(str(writer.folder), tag=ENGINE, save_latest=False)
    writer.write_tensors(generators_name(engine.global_rank), _generator_states())
    if is_first_rank():
        writer.write_tensors(EXTRA_STATE, extra_state)
        writer.write_state(position, identity)
    return writer.finish(beside or {}, run_folder)


def generators_name(rank: int) -> str:
    """The file that holds the states of a rank's random generators."""
    return f"generators-rank{rank}.safetensors"


def load_checkpoint(folder: Path, engine, identity: RunIdentity) -> tuple[Position, dict[str, Tensor], list[str]]:
    """Puts weights, optimizer, schedule and generators back as they were.

    Args:
        folder: a checkpoint of which `newest_checkpoint` says that it is whole.

    Returns:
        the place in the run; the extra state; and remarks on what may keep the run from going on bit for bit.

    Raises:
        UserError: the checkpoint belongs to a run with another config, other data or another length.
    """
    position, saved = read_state(folder)
    require_same_run(folder, saved, identity)
    # Nothing but tensors, numbers and DeepSpeed's own three classes may come out of its files: a run folder can be a
    # stranger's. The one file of weights is this rank's, not whatever else bears such a name.
    engine.checkpoint_engine.load = load_plain
    engine._get_all_ckpt_names = lambda place, tag: [engine._get_ckpt_name(place, tag)]
    try:
        engine.load_checkpoint(str(folder), tag=ENGINE)
    finally:
        del engine.checkpoint_engine.load, engine._get_all_ckpt_names
    remarks = [
        f"checkpoint of {name} {old}, now {new}: the last bits may differ"
        for name, old, new in (
            ("torch", saved.torch_version, identity.torch_version),
            ("threads", saved.num_threads, identity.num_threads),
        )
        if old != new
    ]
    remarks += [f"{move}, with the same content" for move in describe_moves(saved.config, identity.config)]
    remarks += _restore_generators(load_file(folder / generators_name(engine.global_rank)))
    return position, load_file(folder / EXTRA_STATE), remarks


def read_state(folder: Path) -> tuple[Position, RunIdentity]:
    """A checkpoint's place in its run, and the run it belongs to.

    Raises:
        UserError: the folder is not a checkpoint of this version.
    """
    path = folder / STATE
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if state["format"] != _FORMAT:
            raise ValueError(f"format {state['format']}, this version reads {_FORMAT}")
        identity = RunIdentity(**state["identity"])
        return Position(**state["position"]), replace(identity, config=with_new_names(identity.config))
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a checkpoint that this version can go on from ({error})") from error


def newest_state(run_folder: Path) -> tuple[Path, RunIdentity] | None:
    """The newest checkpoint whose own account of its run is unharmed, and that account; cheap, for early checks.

    The rest of the checkpoint is not looked at, and no other rank is waited for.
    """
    for folder in reversed(checkpoint_folders(run_folder)):
        try:
            path = folder / STATE
            check_contents(folder, [(path, read_manifest(folder).files[STATE])], is_told=False)
            return folder, read_state(folder)[1]
        except (CheckpointFault, KeyError, UserError):
            continue
    return None


def best_steps(run_folder: Path) -> set[int]:
    """The steps whose weights the checkpoints on disk need as the best of their own past."""
    steps = set()
    for folder in checkpoint_folders(run_folder):
        try:
            steps.add(read_state(folder)[0].best_step)
        except UserError:
            # Not whole, and passed over; it goes with the next save.
            continue
    return steps - {None}


_ADVICE = "give the old value, name another train.output_dir, or delete the run folder to start anew"


def require_same_config(folder: Path, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises UserError naming the first field that differs and matters. Needs no data and no weights.

    A field that an earlier version did not have counts as its default: it had no effect then. Files of training data
    may lie elsewhere: what they hold is compared by `require_same_run`.
    """
    old, new = flat_values(saved), flat_values(json.loads(json.dumps(now)))
    if saved.get("objective") == now["objective"]:
        defaults = _defaults(now["objective"])
        old, new = defaults | old, defaults | new
    for name in sorted(old.keys() | new.keys()):
        is_other = old.get(name) != new.get(name) and not _is_moved(name, old.get(name), new.get(name))
        if is_other and not name.startswith(_MAY_CHANGE):
            raise UserError(f"{name}: {new.get(name)!r}, but {folder} was made with {old.get(name)!r}; {_ADVICE}")


def _is_moved(name: str, old: Any, new: Any) -> bool:
    """Whether two values of a field can name the same content: as many files, drawn from with equal weights."""
    if name != "data.train":
        return name in _BY_CONTENT and None not in (old, new)
    return [source.weight for source in weighted_sources(old)] == [source.weight for source in weighted_sources(new)]


def describe_moves(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """``data.train: b.txt in place of a.txt`` for each field of training data that names other files than it did."""
    old, new = flat_values(saved), flat_values(json.loads(json.dumps(now)))
    shown = {"data.train": describe_sources}
    return [
        f"{name}: {shown.get(name, str)(new[name])} in place of {shown.get(name, str)(old[name])}"
        for name in _BY_CONTENT
        if old.get(name) != new.get(name)
    ]


def _defaults(objective: str) -> dict[str, Any]:
    """Defaults of all fields by dotted name, and of the options of an objective."""
    options = constructor_options(resolve_objective(objective)).values()
    of_options = {f"objective_options.{o.name}": o.default for o in options if o.default is not o.empty}
    return flat_values(json.loads(json.dumps(asdict(Config())))) | of_options


def require_same_run(folder: Path, saved: RunIdentity, now: RunIdentity) -> None:
    """Raises UserError naming what differs and matters, be it a field, the data or the number of steps."""
    require_same_config(folder, saved.config, now.config)
    # First of the rest: the number of steps may follow from it.
    if saved.world_size != now.world_size:
        raise UserError(
            f"the number of processes is {now.world_size}, but {folder} was made with {saved.world_size}; "
            f"`fastadv reshape-checkpoint {folder.parent.parent} --num_ranks {now.world_size}` makes it one of "
            f"{now.world_size}"
        )
    moves = describe_moves(saved.config, now.config)
    if moves and saved.data != now.data:
        raise UserError(f"{'; '.join(moves)}: the content is not that which {folder} was made with; {_ADVICE}")
    for name, was, is_now in (
        ("train.max_steps and num_epochs: the total number of steps", saved.total_steps, now.total_steps),
        ("data.train: the fingerprint of the sentences", saved.data, now.data),
    ):
        if was != is_now:
            raise UserError(f"{name} is {is_now}, but {folder} was made with {was}; {_ADVICE}")


def _generator_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    for device in gpus_in_use():
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _restore_generators(states: dict[str, Tensor]) -> list[str]:
    """Returns a remark where the streams are not those of the run that wrote the checkpoint."""
    if "seed" in states:
        torch.manual_seed(int(states["seed"]))
        return ["the checkpoint was made for another number of processes: dropout and random starts are drawn anew"]
    torch.set_rng_state(states["cpu"])
    for device in gpus_in_use():
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], device)
    return []


def load_plain(path: str, map_location=None, mmap: bool = False) -> Any:
    """A file in torch's format that holds nothing but tensors, numbers and DeepSpeed's own three classes.

    Raises:
        UserError: it holds anything else; nothing of it was called.
    """
    try:
        with torch.serialization.safe_globals(_deepspeed_classes()):
            return torch.load(path, map_location=map_location, weights_only=True, mmap=mmap)
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} holds more than tensors and numbers; it is not loaded") from error


def _deepspeed_classes() -> list[type]:
    from deepspeed.runtime.fp16.loss_scaler import LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    return [LossScaler, ZeroStageEnum, fragment_address]
