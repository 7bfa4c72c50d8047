"""Where synonyms and antonyms move texts to: BAT's figure 5 as a map, and the distances that it stands for.

For each text x a fickle one (synonyms; the label stays) and an obstinate one (an antonym; the label flips) is drawn as
BAT draws them (`fastadv.data.variants.substitution`), and all are taken to the vectors before the model's head. t-SNE
lays them out on a plane for each model by itself: it keeps neighbours, not distances. So the cosine distances d(x,
fickle) and d(x, obstinate) stand beside it, with the share of texts whose obstinate text is the further one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np

from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.variants.substitution import antonym_draw, draw_seed, synonym_draw
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.evaluation.intervals import value_interval
from fastadv.evaluation.vectors.classifier_vectors import classified
from fastadv.evaluation.vectors.geometry import cosine_distances
from fastadv.evaluation.versions import versions
from fastadv.files.csv_file import write_csv
from fastadv.files.json_file import write_json
from fastadv.pages.png import png_figure
from fastadv.pages.style import PRINT
from fastadv.pages.text_table import interval_cell

KINDS = ("original", "fickle", "obstinate")
MAX_TEXTS = 500
MIN_TEXTS = 4
_PERPLEXITY = 30.0
_COLOURS = {"original": "#5c6675", "fickle": "#0b6e8a", "obstinate": "#b0493a"}
_MARKERS = {"original": "o", "fickle": "^", "obstinate": "x"}

Texts = Tuple[str, ...]


@dataclass(frozen=True)
class PerturbedTexts:
    """N texts with a fickle and an obstinate one each."""

    rows: List[int]
    """of the source, from 0"""
    labels: List[str]
    texts: Dict[str, List[Texts]]
    """by kind"""


def perturbed_texts(
    data: LabelledTexts,
    rows: Sequence[int],
    word_sets: WordSets,
    max_texts: int = MAX_TEXTS,
    leave_out: Sequence[str] = (),
    seed: int = 0,
) -> PerturbedTexts:
    """At most ``max_texts`` of ``data``, drawn by ``seed``, that have both a fickle and an obstinate text.

    Args:
        rows: (N,) the place of each text in its source.
        leave_out: names of classes without an obstinate text, such as neutral pairs of NLI.

    Raises:
        UserError: a class that is none, or too few texts.
    """
    names = data.label_map.names
    unknown = sorted(set(leave_out) - set(names))
    if unknown:
        raise UserError(f"--leave_out {unknown[0]!r} is no class of the data; they are {', '.join(names)}")
    kept: Dict[int, Tuple[Texts, Texts, Texts]] = {}
    # Not the first ones: a file may be sorted by class.
    for number in np.random.default_rng(seed).permutation(len(data)).tolist():
        if len(kept) == max_texts:
            break
        if names[data.labels[number]] in leave_out:
            continue
        texts = (data.first[number],) if data.second is None else (data.first[number], data.second[number])
        fickle = synonym_draw(texts, word_sets, draw_seed(seed, 0, texts, "fickle"))
        obstinate = antonym_draw(texts, word_sets, draw_seed(seed, 0, texts, "obstinate"))
        if fickle is not None and obstinate is not None:
            kept[number] = (texts, fickle, obstinate)
    if len(kept) < MIN_TEXTS:
        raise UserError(
            f"only {len(kept)} texts have both a synonym and an antonym in the word sets; "
            f"a map needs at least {MIN_TEXTS}"
        )
    order = sorted(kept)
    return PerturbedTexts(
        rows=[int(rows[number]) for number in order],
        labels=[names[data.labels[number]] for number in order],
        texts={kind: [kept[number][place] for number in order] for place, kind in enumerate(KINDS)},
    )


def project(vectors: np.ndarray, seed: int = 0) -> np.ndarray:
    """(N, 2) by t-SNE of (N, D), the same for the same vectors and seed."""
    from sklearn.manifold import TSNE

    # A perplexity is a number of neighbours, which the sample must hold.
    perplexity = min(_PERPLEXITY, (len(vectors) - 1) / 3)
    if not np.ptp(vectors, axis=0).any():
        # All vectors alike: t-SNE would divide by their spread.
        return np.zeros((len(vectors), 2))
    found = TSNE(2, perplexity=perplexity, init="pca", random_state=seed, n_jobs=1).fit_transform(vectors)
    return found.astype(np.float64)


def map_models(
    models: Dict[str, Callable],
    data: PerturbedTexts,
    seed: int = 0,
    batch_size: int = 64,
    progress: bool = False,
) -> Tuple[dict, Dict[str, np.ndarray]]:
    """The record of all models, ready for JSON, and each one's points (3, N, 2) in the order of `KINDS`.

    Args:
        models: name → () → `fastadv.encoder.classifier.text_classifier.Classifier`; one is held at a time.
        seed: of t-SNE.
    """
    entries, points = [], {}
    for name, load in models.items():
        classifier = load()
        vectors = []
        for kind in KINDS:
            parts = [list(part) for part in zip(*data.texts[kind])]
            parts += [None] * (2 - len(parts))
            vectors.append(classified(classifier, *parts, batch_size, progress, f"{name}, {kind}").vectors)
        fickle, obstinate = (cosine_distances(vectors[0], other) for other in vectors[1:])
        entries.append(
            {
                "name": name,
                "device": str(classifier.encoder.device),
                "distance_fickle": vars(value_interval(fickle)),
                "distance_obstinate": vars(value_interval(obstinate)),
                "share_obstinate_further": vars(value_interval(obstinate > fickle)),
            }
        )
        points[name] = project(np.concatenate(vectors), seed).reshape(len(KINDS), len(data.rows), 2)
    record = {"kind": "perturbation map", "versions": versions(), "num_texts": len(data.rows), "seed": seed}
    return {**record, "models": entries}, points


def map_table(record: dict) -> str:
    """A model a line."""
    lines = [f"1 − cos of {record['num_texts']:,} texts [95 % interval]"]
    for model in record["models"]:
        fickle, obstinate, share = (
            interval_cell(model[name], ".4f")
            for name in ("distance_fickle", "distance_obstinate", "share_obstinate_further")
        )
        lines.append(f"{model['name']}: fickle {fickle}, obstinate {obstinate}, obstinate further in {share} of texts")
    return "\n".join(lines)


def write_map(out: Path, record: dict, points: Dict[str, np.ndarray], data: PerturbedTexts) -> None:
    """``perturbation-map.json``, ``.csv`` (a point a line) and ``.png`` in the folder ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, of_model in points.items():
        for kind, of_kind in zip(KINDS, of_model):
            for number, (x, y) in enumerate(of_kind):
                place = [data.rows[number], data.labels[number], kind, f"{x:.6g}", f"{y:.6g}"]
                rows.append([name, *place, *(*data.texts[kind][number], "")[:2]])
    columns = ["model", "row", "label", "kind", "x", "y", "first", "second"]
    write_csv(out / "perturbation-map.csv", columns, rows)
    map_png(out / "perturbation-map.png", points)
    write_json(out / "perturbation-map.json", record)


def map_png(path: Path, points: Dict[str, np.ndarray]) -> None:
    """A panel a model."""
    columns = min(4, len(points))
    lines = -(-len(points) // columns)
    with png_figure(path, 3.4 * columns + 0.4, 3.5 * lines + 0.5) as figure:
        panels = figure.subplots(lines, columns, squeeze=False).ravel()
        for axes in panels[len(points) :]:
            axes.set_visible(False)
        for axes, (name, of_model) in zip(panels, points.items()):
            axes.set_title(name, color=PRINT.ink, fontweight="bold")
            axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
            for spine in axes.spines.values():
                spine.set(visible=True, color=PRINT.grid)
            # A thin line ties the obstinate text to its original: how far it moved.
            for start, end in zip(of_model[0], of_model[2]):
                axes.plot(*zip(start, end), color=PRINT.grid, linewidth=0.5, zorder=1)
            for kind, of_kind in zip(KINDS, of_model):
                look = {"facecolors": "none", "edgecolors": _COLOURS[kind]} if kind == "original" else {}
                look = look or {"color": _COLOURS[kind]}
                axes.scatter(*of_kind.T, s=9, linewidths=0.7, marker=_MARKERS[kind], label=kind, zorder=2, **look)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(KINDS), frameon=False)
