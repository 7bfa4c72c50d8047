"""One model before training and after it, on the same held-out sentences and the same random starts.

:func:`measure` runs a model once and keeps one value a sentence, so that the "before" half can be taken before
training starts; :func:`compare` puts two such measurements side by side with paired intervals and runs no model.

Shapes: ``N`` sentences, ``M`` labelled sentences that test the probe, ``D`` hidden size.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import torch
from torch import Tensor

from fastadv.config.schema import EvaluationConfig
from fastadv.data.packing import PackedBatch
from fastadv.errors import UserError
from fastadv.evaluation.before_after.batches import dropout_distances, in_batches
from fastadv.evaluation.before_after.embedding_attack import Loss, negative_cosine, pgd_attack
from fastadv.evaluation.before_after.held_out import HeldOut
from fastadv.evaluation.before_after.misspelling import misspell
from fastadv.evaluation.before_after.mistyped import measure_mistyped, mistyped_rows
from fastadv.evaluation.before_after.probe import fit_probe
from fastadv.evaluation.before_after.rows import table_row
from fastadv.evaluation.before_after.text_attack import attack_probe, attack_rows, attack_warnings, num_attacked
from fastadv.evaluation.intervals import (
    CONFIDENCE,
    NUM_RESAMPLES,
    log_pair_mean_statistic,
    mean_statistic,
    resample_counts,
)
from fastadv.evaluation.vectors.geometry import pair_kernel, unit_vectors
from fastadv.evaluation.vectors.vector_cache import options_of_h
from fastadv.files.atomic_file import written_aside
from fastadv.files.progress import Bar

Measurement = Dict[str, np.ndarray]
"""name -> one value a sentence; the radius of an attacked value follows an @, as in ``cosine@0.1``"""

PROBE_RADIUS_SHARES = (0.25, 0.5)
"""the probe is attacked at these shares of the smallest radius: a white-box attack needs far less to flip a label
than to move a vector past its neighbours (untrained MiniLM: 0.1 right at 0.05·RMS(X), where retrieval@1 is still 1)"""

_ATTACK_ROWS = {"retrieval": "retrieval@1", "centred_cosine": "centred cosine", "cosine": "cosine"}


def measure(
    encoder,
    cfg: EvaluationConfig,
    held_out: HeldOut,
    batch_size: int = 64,
    progress: bool = False,
    log: Path = Path(os.devnull),
) -> Measurement:
    """Runs ``encoder`` on the held-out sentences, clean, mistyped and attacked.

    Args:
        log: a file; what an attack on texts prints goes to its end.

    Returns:
        * ``vectors`` (N, D): clean vectors;
        * ``alignment`` (N,): ‖f(x) − f(x⁺)‖² where x⁺ is x under another dropout mask (0 without dropout);
        * for each radius r, under an attack on the cosine to the clean vector: ``retrieval@r`` (N,) whether the
          attacked vector is nearer to its own clean vector than to any other sentence's, ``cosine@r`` (N,),
          ``centred_cosine@r`` (N,) with this model's mean clean vector subtracted from both sides, and
          ``noise_retrieval@r`` (N,) at the random start;
        * with a probe: ``probe@0`` (M,) whether it is right on clean sentences, ``probe_misspelt`` (M,) whether it is
          on mistyped ones, and ``probe@r`` (M,) whether it is under an attack on its own cross-entropy, r from
          :func:`probe_radii`;
        * with ``cfg.num_attacked_texts`` what `text_attack.attack_probe` gives, with ``cfg.typo_shares`` what
          `mistyped.measure_mistyped` gives.

    Raises:
        UserError: the model's vectors are not finite, or an attack on texts cannot be run here
            (`text_attack.as_far_as_can_be`).
    """
    num_probe_texts = len(held_out.probe_test[0])
    num_attacks = len(held_out.sentences) * len(cfg.radii) + num_probe_texts * len(probe_radii(cfg))
    num_attacks += cfg.num_attacked_texts
    with Bar(total=num_attacks, desc="attack", unit=" sentences", disable=not progress) as bar:
        model = _Measured(encoder, cfg, batch_size, bar, log)
        vectors = model.clean_vectors(held_out.sentences)
        result: Measurement = {
            "vectors": vectors,
            "alignment": dropout_distances(encoder, held_out.sentences, batch_size, cfg.seed),
        }
        mean = vectors.mean(axis=0)
        for radius in cfg.radii:
            attacked, at_start = model.attack(
                held_out.sentences, lambda rows: negative_cosine(model.tensor(vectors[rows])), radius
            )
            result[_at("retrieval", radius)] = _is_nearest(attacked, vectors)
            result[_at("centred_cosine", radius)] = _cosines(attacked - mean, vectors - mean)
            result[_at("cosine", radius)] = _cosines(attacked, vectors)
            result[_at("noise_retrieval", radius)] = _is_nearest(at_start, vectors)
        result.update(measure_mistyped(encoder, cfg, held_out.sentences, batch_size))
        if num_probe_texts:
            result.update(model.probed(held_out))
    return result


def compare(
    before: Measurement, after: Measurement, cfg: EvaluationConfig, missing: Sequence[Mapping[str, str]] = ()
) -> dict:
    """The table as plain numbers, ready for JSON.

    Args:
        missing: of rows that could not be measured, the ``label`` and in one line ``why``.

    Returns:
        the settings; ``rows`` (`rows.table_row`): attacks on texts, mistyped sentences, attacks on the embeddings,
        clean vectors, the probe; ``missing``, as given and more; and ``warnings``, one line each.

    Raises:
        ValueError: the two measurements are not of the same sentences and radii.
    """
    for name in {*before, *after} - {"vectors"}:
        if name not in before or name not in after or before[name].shape != after[name].shape:
            raise ValueError(
                f"the measurements before and after do not match in {name!r}: measure both with one config"
            )
    num_sentences = len(before["alignment"])
    counts = resample_counts(num_sentences, seed=cfg.seed)

    def mean_row(name: str, label: str, better: str, counts: np.ndarray = counts, radius=None) -> dict:
        statistics = mean_statistic(before[name]), mean_statistic(after[name])
        return table_row(name, label, better, statistics, counts, radius)

    rows, not_known = attack_rows(before, after, cfg.seed)
    rows += mistyped_rows(before, after, cfg.seed)
    rows += [
        mean_row(_at(name, radius), label, "higher", radius=radius)
        for name, label in _ATTACK_ROWS.items()
        for radius in cfg.radii
    ]
    rows.append(mean_row("alignment", "alignment (two dropout masks)", "lower"))
    kernels = pair_kernel(before["vectors"]), pair_kernel(after["vectors"])
    statistics = tuple(map(log_pair_mean_statistic, kernels))
    rows.append(table_row("uniformity", "uniformity", "lower", statistics, counts))
    if "probe@0" in before:
        probe_counts = resample_counts(len(before["probe@0"]), seed=cfg.seed)
        names = {
            "probe@0": None,
            "probe_misspelt": None,
            **{_at("probe", radius): radius for radius in probe_radii(cfg)},
        }
        rows += [mean_row(name, "sentiment probe", "higher", probe_counts, at) for name, at in names.items()]
    return {
        "num_sentences": num_sentences,
        "num_probe_sentences": len(before.get("probe@0", [])),
        "num_attacked_texts": num_attacked(before),
        "radii": [float(radius) for radius in cfg.radii],
        "num_steps": cfg.num_steps,
        "held_out": cfg.held_out,
        "seed": cfg.seed,
        "confidence": CONFIDENCE,
        "num_resamples": NUM_RESAMPLES,
        "rows": rows,
        "missing": [*map(dict, missing), *not_known],
        "warnings": [
            warning
            for which, values in (("before", before), ("after", after))
            for warning in (*masking_warnings(which, values, cfg), *attack_warnings(which, values))
        ],
    }


def save_measurement(measurement: Measurement, path: str | Path) -> None:
    """Keeps a measurement as .npz, so that a resumed run need not measure its first model again."""
    with written_aside(path) as aside, aside.open("wb") as file:
        np.savez(file, **measurement)


def load_measurement(path: str | Path) -> Measurement:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def probe_radii(cfg: EvaluationConfig) -> List[float]:
    """The radii at which the probe is attacked."""
    return [share * min(cfg.radii) for share in PROBE_RADIUS_SHARES] if cfg.radii else []


def masking_warnings(which: str, measurement: Measurement, cfg: EvaluationConfig) -> Iterator[str]:
    """An attack that does less than noise has found no gradient: its numbers then say nothing of robustness."""
    for radius in cfg.radii:
        noise, attacked = (measurement[_at(name, radius)].mean() for name in ("noise_retrieval", "retrieval"))
        if attacked > noise:
            yield (
                f"{which}: at radius {radius:g} retrieval@1 is {attacked:.3f} under attack but {noise:.3f} under mere "
                "noise; the model may hide its gradients"
            )


@dataclass(frozen=True)
class _Measured:
    """A model that is measured, and how."""

    encoder: Any
    cfg: EvaluationConfig
    batch_size: int
    bar: Bar
    log: Path
    """of attacks on texts"""

    def clean_vectors(self, texts: Sequence[str]) -> np.ndarray:
        """h (N, D), which attacks move and probes read. UserError where one is not finite."""
        vectors = self.encoder.encode_texts(list(texts), batch_size=self.batch_size, **options_of_h(self.encoder))
        if not np.isfinite(vectors).all():
            raise UserError("the model gives vectors with NaN or infinity; there is nothing to evaluate")
        return vectors

    def attack(self, texts: Sequence[str], loss_of: Callable[[Sequence[int]], Loss], radius: float) -> tuple:
        """Attacked vectors and vectors at the random start, (N, D) each, in the order of ``texts``."""
        cfg = self.cfg

        def run(batch: PackedBatch, rows: Sequence[int]) -> Tuple[Tensor, Tensor]:
            result = pgd_attack(self.encoder, batch, loss_of(rows), radius, cfg.num_steps, draws=rows, seed=cfg.seed)
            self.bar.update(len(rows))
            return result.vectors, result.start_vectors

        return in_batches(self.encoder, texts, run, self.batch_size)

    def probed(self, held_out: HeldOut) -> Measurement:
        """Whether the probe is right (M,): on clean texts, on mistyped ones, and under attack on the embeddings; and
        what an attack on the first of the texts finds."""
        train_texts, train_labels = held_out.probe_train
        texts, labels = held_out.probe_test[0], np.asarray(held_out.probe_test[1])
        probe = fit_probe(self.clean_vectors(train_texts), train_labels)
        misspelt = [misspell(text, self.cfg.seed, number) for number, text in enumerate(texts)]
        vectors = {"probe@0": self.clean_vectors(texts), "probe_misspelt": self.clean_vectors(misspelt)}

        def loss_of(rows: Sequence[int]) -> Loss:
            return probe.cross_entropy(self.tensor(labels[rows]))

        for radius in probe_radii(self.cfg):
            vectors[_at("probe", radius)], _ = self.attack(texts, loss_of, radius)
        is_right = {name: probe.is_right(found, labels).astype(np.float64) for name, found in vectors.items()}
        num = self.cfg.num_attacked_texts
        if not num:
            return is_right
        attacked = texts[:num], labels[:num]
        return {**is_right, **attack_probe(self.encoder, probe, *attacked, self.cfg, self.log, self.bar.update)}

    def tensor(self, array: np.ndarray) -> Tensor:
        """On the encoder's device."""
        return torch.as_tensor(array, device=self.encoder.device)


def _is_nearest(vectors: np.ndarray, clean: np.ndarray) -> np.ndarray:
    """(N,) 1.0 where row i of ``vectors`` has a larger cosine to ``clean[i]`` than to every other row of ``clean``.

    A tie is a miss, so that a model that maps everything to one vector retrieves nothing.
    """
    similarity = unit_vectors(vectors) @ unit_vectors(clean).T
    own = similarity.diagonal().copy()
    np.fill_diagonal(similarity, -np.inf)
    return (own > similarity.max(axis=1)).astype(np.float64)


def _cosines(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(N,) cosine of row i of x and row i of y; 0 where one of them is zero."""
    return np.einsum("nd,nd->n", unit_vectors(x), unit_vectors(y))


def _at(name: str, radius: float) -> str:
    return f"{name}@{radius:g}"
