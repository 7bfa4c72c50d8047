"""Which weights a run keeps: the last, or those with the best score on dev data."""

import math
import os
from pathlib import Path
from typing import Any, Callable

from safetensors.torch import load_file, save
from torch import Tensor

from fastadv.config.schema import Config
from fastadv.data.labelled.labels import LabelMap
from fastadv.distributed.processes import first_rank_only
from fastadv.engine.checkpoints.checkpoint import Position, best_steps
from fastadv.engine.checkpoints.manifest import Entry, hash_file, write_file
from fastadv.engine.whole_model import WholeModel
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside
from fastadv.files.disk import save_failed

DevScore = Callable[[Any], float]
"""what is exported (an encoder, or a classifier) → a score, higher is better"""


def dev_score(data: str, quoting: str = "auto") -> DevScore | None:
    """The score ``dev.data`` asks for: None for "none", STS-B dev for a folder, Spearman's correlation for a file.

    The data are read here once, so that a mistake in them ends the run before it trains.

    Args:
        quoting: of a table, see `fastadv.data.sources.tables.is_quoted`.

    Raises:
        UserError: no such file or folder, or one that is not in its layout.
    """
    if data == "none":
        return None
    from fastadv.evaluation.vectors.scored_pairs import read_scored_pairs, read_sts_benchmark
    from fastadv.evaluation.vectors.sts import pairs_spearman

    path = Path(data).expanduser()
    if os.path.isdir(path) or os.path.isfile(path):
        pairs = read_sts_benchmark(path, "dev") if os.path.isdir(path) else read_scored_pairs(path, quoting)
        # What is cut of the texts is said at their first score alone.
        names = iter([data])
        return lambda encoder: pairs_spearman(encoder, pairs, name=next(names, None))
    allowed = "none, a folder in SentEval layout, or scored pairs in .csv, .tsv or .jsonl, plain or .gz, or .parquet"
    raise UserError(f"dev.data: {data} is not there; give {allowed}")


def labelled_dev_score(config: Config, encoder, label_map: LabelMap, progress: bool) -> DevScore | None:
    """The score on labelled ``dev.data`` of a `fastadv.encoder.classifier.text_classifier.Classifier`; None for "none".

    Raises:
        UserError: data that cannot be read, or a label that training has not.
    """
    dev, data = config.dev, config.data
    if dev.data == "none":
        return None
    from fastadv.data.labelled.text import LabelledText
    from fastadv.evaluation.vectors.accuracy import classification_score, predict

    fields = data.label_field, data.field, data.pair_field
    limits = dev.split, data.cache_dir, dev.max_sentences, progress
    text = LabelledText.build(dev.data, encoder, *fields, *limits, **data.reading)
    text = text.with_labels(label_map)
    return lambda classifier: classification_score(predict(classifier, text), text.labels, dev.metric)


class Selection:
    """Scores the model on dev data, and keeps the best weights as ``checkpoints/best-step-<n>.safetensors``.

    The step stands in the name, so that a run resumed from before the best score does not find weights of its future
    under the name of its past.

    Args:
        score: of dev data; None where the last weights are exported.
        model: what is scored and exported.
    """

    def __init__(self, config: Config, run_folder: Path, score: DevScore | None, model: WholeModel):
        self._config, self._run_folder, self._score, self._model = config, run_folder, score, model
        self._entries: dict[int, Entry] = {}

    def is_due(self, step: int, is_last: bool) -> bool:
        """Whether the weights after ``step`` are scored."""
        every = self._config.train.eval_every
        return self._score is not None and (is_last or (every is not None and step % every == 0))

    def evaluate(self, position: Position) -> tuple[float, bool]:
        """The score of the weights of now, and whether it is the best so far; ``position`` notes both.

        All ranks call it.
        """
        model = self._model.as_it_is()
        score = first_rank_only(lambda: float(self._score(model)))
        # A NaN (all vectors alike) is no score: it is neither kept nor in the way of a later one.
        is_best = math.isfinite(score) and (position.best_score is None or score > position.best_score)
        position.num_scores_since_best = 0 if is_best else position.num_scores_since_best + 1
        if is_best:
            position.best_score, position.best_step = score, position.step
            weights = self._model.weights()
            first_rank_only(lambda: self.save(position.step, weights))
        return score, is_best

    def save(self, step: int, weights: dict[str, Tensor]) -> None:
        """Keeps ``weights`` beside those kept before; the first rank's.

        Raises:
            SaveFailed: the disk is full, or the folder cannot be written.
        """
        path = self.path(step)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside:
                self._entries[step] = write_file(aside, lambda stream: stream.write(save(weights)))
        except OSError as error:
            raise save_failed(path, error) from error

    def entries(self, step: int | None) -> dict[str, Entry]:
        """What a checkpoint's manifest says of the best weights, those of ``step``, by the name of their file."""
        if step is None:
            return {}
        if step not in self._entries:
            # Kept by the run that this one goes on from.
            self._entries[step] = hash_file(self.path(step))
        return {self.path(step).name: self._entries[step]}

    def load(self, step: int) -> dict[str, Tensor]:
        """The weights of ``step``."""
        return load_file(self.path(step))

    def forget_others(self, step: int | None) -> None:
        """Removes all kept weights but those of ``step``, and those a checkpoint needs as the best of its own past."""
        kept = {self.path(step) for step in {step, *best_steps(self._run_folder)} if step is not None}
        for path in (self._run_folder / "checkpoints").glob("best-step-*.safetensors"):
            if path not in kept:
                path.unlink()

    def path(self, step: int) -> Path:
        """The file of the weights of ``step``."""
        return self._run_folder / "checkpoints" / f"best-step-{step}.safetensors"
