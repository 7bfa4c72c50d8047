"""Which weights a run keeps: the last, or those with the best score on dev data."""

import os
from pathlib import Path
from typing import Callable, Optional

from safetensors.torch import load_file, save
from torch import Tensor

from fastadv.config.schema import Config
from fastadv.data.labelled.labels import LabelMap
from fastadv.engine.checkpoints.manifest import Entry, hash_file, save_failed, write_file
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

DevScore = Callable[[object], float]
"""what is exported (an encoder, or a classifier) → a score, higher is better"""


def dev_score(data: str) -> Optional[DevScore]:
    """The score ``dev.data`` asks for: None for "none", STS-B dev for a folder, Spearman's correlation for a file.

    The data are read here once, so that a mistake in them ends the run before it trains.

    Raises:
        UserError: no such file or folder, or one that is not in its layout.
    """
    if data == "none":
        return None
    from fastadv.evaluation.vectors.scored_pairs import read_scored_pairs, read_sts_benchmark
    from fastadv.evaluation.vectors.sts import scored_pairs_spearman, sts_dev

    path = Path(data).expanduser()
    if os.path.isdir(path):
        read_sts_benchmark(path, "dev")
        return lambda encoder: sts_dev(encoder, path)
    if os.path.isfile(path):
        read_scored_pairs(path)
        return lambda encoder: scored_pairs_spearman(encoder, path)
    allowed = "none, a folder in SentEval layout, or scored pairs in .csv, .tsv or .jsonl, plain or .gz, or .parquet"
    raise UserError(f"dev.data: {data} is not there; give {allowed}")


def labelled_dev_score(config: Config, encoder, label_map: LabelMap, progress: bool) -> Optional[DevScore]:
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
    text = LabelledText.build(dev.data, encoder, *fields, dev.split, data.cache_dir, dev.max_sentences, progress)
    text = text.with_labels(label_map)
    return lambda classifier: classification_score(predict(classifier, text), text.labels, dev.metric)


class BestWeights:
    """The best weights so far, kept as ``checkpoints/best-step-<n>.safetensors``.

    The step stands in the name, so that a run resumed from before the best score does not find weights of its future
    under the name of its past.
    """

    def __init__(self, run_folder: Path):
        self._folder = run_folder / "checkpoints"
        self._entries: dict[int, Entry] = {}

    def save(self, step: int, weights: dict[str, Tensor]) -> None:
        """Keeps ``weights`` beside those kept before.

        Raises:
            SaveFailed: the disk is full, or the folder cannot be written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with written_aside(self._path(step)) as aside:
                self._entries[step] = write_file(aside, lambda stream: stream.write(save(weights)))
        except OSError as error:
            raise save_failed(self._path(step), error) from error

    def entries(self, step: Optional[int]) -> dict[str, Entry]:
        """What a checkpoint's manifest says of the weights of ``step``, by the name of their file."""
        if step is None:
            return {}
        if step not in self._entries:
            # Kept by the run that this one goes on from.
            self._entries[step] = hash_file(self._path(step))
        return {self._path(step).name: self._entries[step]}

    def load(self, step: int) -> dict[str, Tensor]:
        return load_file(self._path(step))

    def keep_only(self, steps: set[Optional[int]]) -> None:
        """Removes the weights of all other steps."""
        kept = {self._path(step) for step in steps if step is not None}
        for path in self._folder.glob("best-step-*.safetensors"):
            if path not in kept:
                path.unlink()

    def _path(self, step: int) -> Path:
        return self._folder / f"best-step-{step}.safetensors"
