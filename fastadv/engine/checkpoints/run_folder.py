"""The run folder: whose it is, and what a finished run leaves in it.

    run.lock         the process that writes to the folder, while it does (`fastadv.engine.checkpoints.run_lock`)
    config.yaml      the full resolved config
    metrics.jsonl    one line a logged step, one a dev score
    tensorboard/     the same numbers as events
    trackers.json    the run's names at the trackers of train.trackers
    checkpoints/     step-<n>/, and best-step-<n>.safetensors where dev scores choose the weights
    model/           the exported encoder and its card
    before-*.npz     the measurement before training, where evaluation.enabled, for a resumed run
    deepwordbug.log  what an attack on texts printed, where evaluation.num_attacked_texts
    results.json     both measurements compared
    report.html      all of it with curves (attack.png among them); `fastadv report` adds figures/, tables/, report.md

A file ``checkpoint-now`` that is put there while the run trains asks for a checkpoint after the step, and goes with it.
config.yaml and metrics.jsonl together mark a folder as a run's.
"""

import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastadv import __version__
from fastadv.config.commands import encoding_words
from fastadv.config.schema import Config
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.mixture import describe_sources, weighted_sources
from fastadv.data.sources.find import name_on_hub
from fastadv.encoder.classifier.classification_head import MEAN_HEAD_NOTE
from fastadv.encoder.export.cards import classes_in_words, front_matter
from fastadv.engine.checkpoints.checkpoint import newest_state, require_same_config
from fastadv.engine.checkpoints.checkpoint_folders import checkpoint_folders, clear_leftovers
from fastadv.engine.checkpoints.run_lock import LOCK
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside
from fastadv.objectives.base import resolve_objective
from fastadv.report.run_record import ATTACK, PICTURE
from fastadv.report.written_files import clear_written

_ASKED_FOR = "checkpoint-now"


def check_run_folder(config: Config) -> None:
    """Refuses a ``train.output_dir`` that this run must not write to. Cheap, and writes nothing.

    Which of the folder's checkpoints is gone on from, if any, says `newest_checkpoint`, which reads all of it.

    Raises:
        UserError: the folder is somebody else's, holds a checkpoint although ``train.resume`` is never, one made with
            another config, or a finished run whose checkpoints are gone.
    """
    folder, resume = Path(config.train.output_dir).expanduser(), config.train.resume
    try:
        is_empty = not folder.exists() or not any(not _is_of_a_beginning(path) for path in folder.iterdir())
    except OSError as error:
        raise UserError(f"train.output_dir: {folder} cannot be a run folder ({error.strerror})") from error
    if is_empty:
        return
    if not ((folder / "config.yaml").is_file() and (folder / "metrics.jsonl").is_file()):
        raise UserError(f"train.output_dir: {folder} is not empty and no run folder; name a new or an empty folder")
    checkpoints = checkpoint_folders(folder)
    if checkpoints and resume == "never":
        raise UserError(
            f"train.output_dir: {folder} holds {checkpoints[-1].name} and train.resume is never; "
            "name another folder, or resume with auto"
        )
    results = [name for name in ("model", "results.json") if (folder / name).exists()]
    if not checkpoints and results:
        raise UserError(
            f"train.output_dir: {folder} holds {' and '.join(results)} of a run without a checkpoint to go on from; "
            "name another folder, or delete this one"
        )
    readable = newest_state(folder)
    if readable is not None:
        require_same_config(readable[0], readable[1].config, asdict(config))


def _is_of_a_beginning(path: Path) -> bool:
    """Whether a run that has only begun, or was killed while `begin_run` made its folder, has left ``path``."""
    is_log = path.name == "metrics.jsonl" and path.is_file() and path.stat().st_size == 0
    return is_log or path.name == LOCK or re.fullmatch(r"\.config\.yaml\.[0-9]+\.partial", path.name) is not None


def claim_run_folder(config: Config) -> None:
    """Like `check_run_folder`, and makes the folder where it is not there yet."""
    check_run_folder(config)
    folder = Path(config.train.output_dir).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"train.output_dir: {folder} cannot be made ({error.strerror})") from error


def takes_request(folder: Path) -> bool:
    """Whether the user has put a file ``checkpoint-now`` there; it is removed. One call of the file system a step."""
    try:
        (folder / _ASKED_FOR).unlink()
    except OSError:
        return False
    return True


def begin_run(folder: Path, config_text: str, is_resumed: bool) -> None:
    """Writes config.yaml, and clears what an earlier run that was killed, or without a checkpoint, left behind."""
    clear_leftovers(folder)
    # Written aside by a process that was killed before it could rename them (`fastadv.files.atomic_file`, the export).
    for path in [*folder.glob(".*.partial"), *folder.glob(".model.writing-*"), *folder.glob(".model.old-*")]:
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if not is_resumed:
        for name in ("checkpoints", "tensorboard"):
            shutil.rmtree(folder / name, ignore_errors=True)
        # Beside an attack.json the picture is of that attack.
        pictures = [] if (folder / ATTACK).exists() else [PICTURE]
        for pattern in ("metrics.jsonl", "trackers.json", "report.html", *pictures, "before-*.npz", "deepwordbug.log"):
            for path in folder.glob(pattern):
                path.unlink()
        clear_written(folder)
    # First, since these two files are what marks a run folder.
    (folder / "metrics.jsonl").touch()
    # Replaced at once, so that a reader sees the old text or the new.
    with written_aside(folder / "config.yaml") as aside:
        aside.write_text(config_text, encoding="utf-8")


def model_card(
    config: Config,
    config_text: str,
    num_sentences: int,
    num_steps: int,
    scores: dict[str, float],
    table: str,
    encoder: Any,
    label_map: LabelMap | None = None,
) -> str:
    """Markdown of what the model was trained on, how, by which code, and what was measured.

    Args:
        encoder: that was trained.
        scores: dev scores by name, may be empty.
        table: the table before and after training in Markdown, or "".
        label_map: of a classifier.
    """
    train, model, settings = config.train, config.encoder.model, encoder.settings
    kind, rows = ("sentence encoder", "sentences") if label_map is None else ("text classifier", "texts")
    datasets = [name for source in weighted_sources(config.data.train) if (name := name_on_hub(source.path))]
    measured = [f"* {name}: {value:.2f}" for name, value in scores.items()]
    if table:
        measured += ["", "Before and after training, on sentences that neither trained nor chose a setting:", "", table]
    return "\n".join(
        [
            front_matter(encoder.pooling, label_map, encoder.card, datasets, _tags(config)),
            f"# {model} trained with {config.objective}",
            "",
            f"A {kind} started from `{model}`, trained by fastadv {__version__} ({code_version()}).",
            "",
            "## Training",
            f"* data: `{describe_sources(config.data.train)}`, {num_sentences:,} {rows}, "
            f"cut to {encoder.max_length} tokens",
            f"* objective: `{config.objective}`, {num_steps} steps of {train.batch_size} {rows}, "
            f"learning rate {config.optimizer.lr:g}, seed {train.seed}",
            f"* vectors: {encoding_words({**settings, 'similarity': None, 'device': None})}"
            + (f"; compared by {settings['similarity']} similarity" if label_map is None else ""),
            *([] if label_map is None else [f"* {classes_in_words(label_map)}"]),
            *([f"* classifier: {MEAN_HEAD_NOTE}"] if label_map is not None and encoder.pooling == "mean" else []),
            f"* adversary: {describe_adversary(config)}",
            "",
            "## Measured",
            *(measured or ["Nothing was measured in this run."]),
            "",
            "## Full configuration",
            "```yaml",
            config_text.rstrip(),
            "```",
            "",
        ]
    )


def _tags(config: Config) -> list[str]:
    has_adversary = resolve_objective(config.objective).needs.adversarial is not None
    # An objective of one's own is a path of modules.
    objective = [] if ":" in config.objective else [config.objective.replace("_", "-")]
    return [*objective, *["adversarial-training"] * has_adversary]


def describe_adversary(config: Config) -> str:
    """The search of the objective's adversary in a few words, or "none"."""
    if resolve_objective(config.objective).needs.adversarial is None:
        return "none"
    searched = config.perturbation.resolve()
    if config.perturbation.method in ("fgm", "fgsm"):
        return f"{config.perturbation.method}, one step to the {searched.norm} ball's surface, reuse {searched.reuse}"
    return f"{searched.norm} ball, {searched.num_steps} inner steps, reuse {searched.reuse}"


def code_version() -> str:
    """``commit <hash>``, ``+ changes`` for a dirty tree; ``no commit known`` outside a repository of this code."""
    root = Path(__file__).resolve().parents[3]

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed copy may lie inside somebody's repository; its commit says nothing of this code.
    if git("ls-files", "--error-unmatch", "fastadv/__init__.py") is None:
        return "no commit known"
    commit, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    if not commit:
        return "no commit known"
    return f"commit {commit}" + (" + changes" if changes else "")
