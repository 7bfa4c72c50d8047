"""report.html: one page of a run that opens anywhere, without a network and without a server."""

from html import escape
from pathlib import Path
from typing import Any, Iterable, List, Optional, Tuple

from fastadv.atomic_file import written_aside
from fastadv.evaluation.charts import AttackCurve, attack_curves, attack_png, attack_svg, training_svg
from fastadv.evaluation.results_table import caption, row_label, verdict
from fastadv.evaluation.run_record import RunRecord, list_files, read_run

_VERDICTS = {"better": "better", "worse": "worse", "unclear": "no clear change"}

_TABLE_HEAD = (
    '<tr><th scope="col"></th><th scope="col">before</th><th scope="col">after</th><th scope="col">change</th>'
    '<th scope="col" class="wide">95 % interval</th><th scope="col" class="wide"></th></tr>'
)

_GEOMETRY = ("alignment", "uniformity")

_TRAINING_PANELS = (
    ("loss", "loss", True, "The objective that training lowers, on the sentences of the step."),
    ("inner_gain", "inner gain", True, "How much the search raised the contrastive loss, its last step left out."),
    ("lr", "learning rate", False, "The rate of the optimizer at the step."),
    (
        "uniformity",
        "uniformity",
        True,
        "How far the vectors of a step spread: 0 if all coincide, lower is more.",
    ),
    ("sentences_per_s", "sentences a second", False, "Training speed since the start of the process."),
    ("dev/score", "dev score", False, "Spearman correlation × 100 on the dev data, by which weights are kept."),
)
"""metric, title, smoothed, what it is"""

_MEANINGS = (
    (
        "retrieval",
        "retrieval@1",
        "share of attacked sentences whose own clean vector is still the nearest of all held-out ones.",
    ),
    (
        "centred_cosine",
        "centred cosine",
        "mean cosine of attacked and clean vector after the model's own mean vector is subtracted from both; a model "
        "that maps everything to nearly one direction does not score here.",
    ),
    (
        "cosine",
        "cosine",
        "the same without subtracting; it rises also when all vectors draw together, so the centred one says more.",
    ),
    (
        "alignment",
        "alignment",
        "mean squared distance of one sentence's unit vectors under two dropout masks, lower is better; no labelled "
        "pairs are involved, so it compares these two models only.",
    ),
    (
        "uniformity",
        "uniformity",
        "log of the mean of exp(−2·squared distance) over pairs of sentences: 0 if all coincide, lower is more spread.",
    ),
    (
        "probe",
        "sentiment probe",
        "accuracy of a logistic regression on the frozen vectors, one fitted to each model; at a radius it is attacked "
        "through the probe itself, and a sentence counts only if it stays right. Mistyped words are noise, no attack.",
    ),
)
"""key, name, one sentence"""

_SUMMARY = (
    ("objective", ("objective",)),
    ("encoder", ("encoder", "model")),
    ("pooling", ("encoder", "pooling")),
    ("tokens a sentence, at most", ("encoder", "max_length")),
    ("training sentences", ("data", "train")),
    ("sentences a step", ("train", "batch_size")),
    ("learning rate", ("optimizer", "lr")),
    ("norm", ("perturbation", "norm")),
    ("inner steps", ("perturbation", "num_steps")),
    ("radius, multiple of RMS(X)", ("perturbation", "epsilon_relative")),
    ("radius", ("perturbation", "epsilon")),
    ("seed", ("train", "seed")),
    ("precision", ("engine", "precision")),
)
"""label, where in the config"""


def write_report(run_folder: str | Path) -> Path:
    """Writes ``report.html`` of a run folder, and ``attack.png`` where results are there; returns the page's path.

    Reads config.yaml, metrics.jsonl and results.json; whatever of them is missing is left out of the page. The page
    replaces the old one at once.
    """
    folder = Path(run_folder)
    run = read_run(folder)
    curves = attack_curves(run.results) if run.results else []
    if curves:
        with written_aside(folder / "attack.png") as aside:
            attack_png(curves, aside)
    text = _page(run, curves, list_files(folder))
    with written_aside(folder / "report.html") as aside:
        aside.write_text(text, encoding="utf-8")
    return folder / "report.html"


def _page(run: RunRecord, curves: List[AttackCurve], files: List[Tuple[str, str, int]]) -> str:
    sections = [_header(run), *_results(run, curves), *_training(run), *_configuration(run), _files(files)]
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(run.name)}: training report</title>
<style>
{style}</style>
</head>
<body>
{"".join(sections)}</body>
</html>
"""


def _header(run: RunRecord) -> str:
    objective, model = _get(run.config, ("objective",)), _get(run.config, ("encoder", "model"))
    steps = max((steps[-1] for steps, _ in run.series.values()), default=None)
    parts = [
        f"{objective} on {model}" if objective and model else "",
        f"{steps:g} training steps" if steps is not None else "no training step logged",
        f"{run.results['num_sentences']} held-out sentences" if run.results else "not measured before and after",
    ]
    lead = escape(" · ".join(part for part in parts if part))
    return f'<header><h1>{escape(run.name)}</h1><p class="lead">{lead}</p></header>\n'


def _results(run: RunRecord, curves: List[AttackCurve]) -> Iterable[str]:
    if not run.results:
        return
    yield _cards(run.results)
    yield "<h2>Before and after training</h2>\n"
    yield (
        f'<p class="note">{escape(caption(run.results))}. Text: {escape(str(run.results.get("held_out")))}. '
        "Intervals are 95 % by a paired bootstrap over sentences; where one holds 0 the change is not clear.</p>\n"
    )
    for warning in run.results.get("warnings", []):
        yield f'<p class="warning">{escape(warning)}</p>\n'
    yield _table(run.results["rows"])
    if curves:
        charts = [
            _figure(attack_svg(curve, f"attack{number}"), "Bands are 95 % intervals. At radius 0 nothing is attacked.")
            for number, curve in enumerate(curves)
        ]
        yield f'<h2>Under attack</h2>\n<div class="charts">{"".join(charts)}</div>\n'
    keys = {_base(row) for row in run.results["rows"]}
    meanings = [(name, text) for key, name, text in _MEANINGS if key in keys]
    yield f"<h2>What each number means</h2>\n{_definitions(meanings)}"


def _cards(results: dict) -> str:
    """A gain and a cost at a glance: attacked rows at the middle radius, and what holds without an attack."""
    radii = sorted(results["radii"])
    middle = radii[len(radii) // 2] if radii else None
    shown = []
    for row in results["rows"]:
        is_middle = row["radius"] == middle and _base(row) in ("retrieval", "centred_cosine")
        if is_middle or row["key"] in ("uniformity", "probe@0"):
            shown.append(row)
    cards = [
        f'<div class="card"><div class="name">{escape(row_label(row))}</div><div class="values">'
        f'<span class="before">{_number(row["before"], ".2f")}</span><span class="arrow">→</span>'
        f'<span class="after">{_number(row["after"], ".2f")}</span></div>{_verdict(row)}</div>'
        for row in shown
    ]
    return f'<div class="cards">{"".join(cards)}</div>\n'


def _table(rows: List[dict]) -> str:
    lines, group = [], None
    for row in rows:
        row_group = "geometry, clean" if _base(row) in _GEOMETRY else row["label"]
        if row_group != group:
            lines.append(f'<tr><th colspan="6" scope="rowgroup">{escape(row_group)}</th></tr>')
        group = row_group
        name = row_label(row).removeprefix(f"{row['label']}, ")
        interval = f"{_number(row['low'], '+.3f')} to {_number(row['high'], '+.3f')}"
        # On a phone the interval stands under the change, and the verdict is the colour of it.
        change = f'{_number(row["difference"], "+.3f")}<span class="narrow">{interval}</span>'
        lines.append(
            f'<tr><td>{escape(name)}</td><td class="before">{_number(row["before"])}</td>'
            f'<td class="after">{_number(row["after"])}</td><td class="{verdict(row)}">{change}</td>'
            f'<td class="wide">{interval}</td><td class="wide">{_verdict(row)}</td></tr>'
        )
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead>{_TABLE_HEAD}</thead><tbody>\n{body}\n</tbody></table></div>\n'


def _number(value: float, form: str = ".3f") -> str:
    """With a minus sign as wide as the plus."""
    return format(value, form).replace("-", "−")


def _verdict(row: dict) -> str:
    outcome = verdict(row)
    return f'<span class="verdict {outcome}">{_VERDICTS[outcome]}</span>'


def _training(run: RunRecord) -> Iterable[str]:
    charts = [
        _figure(training_svg(run.series[metric], title, f"training{number}", is_smoothed), text)
        for number, (metric, title, is_smoothed, text) in enumerate(_TRAINING_PANELS)
        if metric in run.series
    ]
    if charts:
        yield f'<h2>Training</h2>\n<div class="charts">{"".join(charts)}</div>\n'


def _configuration(run: RunRecord) -> Iterable[str]:
    if not run.config_text:
        return
    values = [(label, _get(run.config, path)) for label, path in _SUMMARY]
    yield f"<h2>Configuration</h2>\n{_definitions([(k, v) for k, v in values if v is not None], css='plain')}"
    yield f"<details><summary>all of config.yaml</summary><pre>{escape(run.config_text)}</pre></details>\n"


def _files(files: List[Tuple[str, str, int]]) -> str:
    rows = [(name, f"{what} ({_bytes(size)})") for name, what, size in files]
    return f"<h2>In this folder</h2>\n{_definitions([*rows, ('report.html', 'this page')])}"


def _definitions(pairs: List[Tuple[str, Any]], css: str = "") -> str:
    items = "\n".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(text))}</dd>" for name, text in pairs)
    return f'<dl class="{css}">\n{items}\n</dl>\n'


def _figure(svg: str, text: str) -> str:
    return f"<figure>{svg}<figcaption>{escape(text)}</figcaption></figure>"


def _base(row: dict) -> str:
    return row["key"].split("@")[0]


def _get(config: dict, path: Tuple[str, ...]) -> Optional[Any]:
    value: Any = config
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"
