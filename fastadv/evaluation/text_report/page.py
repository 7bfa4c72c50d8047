"""text-attack.html: what the attack found, and the texts with the words it changed; one file, no network."""

import base64
from html import escape
from typing import Any, Dict, List, Optional, Sequence

from fastadv.config.commands import encoding_words
from fastadv.evaluation.text.control import AttackedModel
from fastadv.evaluation.text.rows import ERROR, SUCCEEDED, TextAttackRow
from fastadv.evaluation.text_report.findings import sentence
from fastadv.evaluation.text_report.rates import CAPS
from fastadv.pages.html_page import html_page, html_table
from fastadv.pages.shown_text import marked, shown
from fastadv.pages.words import bullets

MAX_SHOWN = 200
"""texts of a model, those of the fewest changes first; the rows' file has all"""

_STYLE = """
.control td:first-child { font-style: italic; }
img { display: block; width: 100%; height: auto; background: #fff; border-radius: .5rem; }
li { margin: .4rem 0; max-width: 46rem; }
"""


def page(results: dict, runs: Sequence[AttackedModel], picture: bytes) -> str:
    """The whole page.

    Args:
        results: what ``text-attack.json`` holds.
        picture: the bytes of ``text-attack.png``.
    """
    title = _title(results["protocol"])
    image = base64.b64encode(picture).decode()
    sections = [
        f"<header><h1>{title}</h1>{_lead(results)}</header>\n",
        _findings(results),
        _rates(results),
        f'<figure><img alt="success rates at caps and by class; queries against lost accuracy" '
        f'src="data:image/png;base64,{image}"></figure>\n',
        _per_class(results),
        _protocol(results),
    ]
    sections += [_texts(run) for run in runs]
    return html_page(title, "".join(sections), _STYLE, has_images=True)


def recipe_name(protocol: Dict[str, Any]) -> Optional[str]:
    """What the attack of a report is called: its ``recipe``, or that of its ``settings``."""
    settings = protocol.get("settings")
    found = settings.get("recipe") if isinstance(settings, dict) else protocol.get("recipe")
    return found if isinstance(found, str) else None


def class_word(results: dict) -> str:
    """What the labels of a report are: a protocol may say something other than classes."""
    return str(results["protocol"].get("class_word", "class"))


def _title(protocol: Dict[str, Any]) -> str:
    title, recipe = protocol.get("title", "Text attack"), recipe_name(protocol)
    return shown(f"{title}: {recipe}" if recipe else title)


def _lead(results: dict) -> str:
    num_texts = max((model["rates"]["num_texts"] for model in results["models"]), default=0)
    data = results["protocol"].get("data")
    data = data if isinstance(data, dict) else {"source": data} if data else {}
    source = f" of {data['source']}" if data.get("source") else ""
    split = f" ({data['split']})" if data.get("split") else ""
    return f'<p class="lead">{num_texts:,} texts{shown(source)}{shown(split)}</p>'


def _findings(results: dict) -> str:
    controls = [model["control"] for model in results["models"] if model.get("control")]
    words = shown(controls[0].get("words", "class shares")) if controls else "class shares"
    items = bullets(map(sentence, results["findings"]))
    note = (
        f'<p class="note">A gain counts only beyond the control: the baseline with the robust model\'s {words}. '
        "Rates are of the texts that were right before; at a cap, a success that changed more "
        "counts as failed.</p>\n"
    )
    return f"{items}{note}" if items else ""


def _rates(results: dict) -> str:
    head = ["", "texts", "accuracy", "after the attack", "attacked", "success"]
    head += [cap.words for cap in CAPS[1:]] + ["queries", "words changed", "skipped", "errors"]
    lines = []
    for model in results["models"]:
        found = model["rates"]
        cells = [f"{found['num_texts']:,}", _share(found["accuracy"]), _share(found["robust_accuracy"])]
        cells += [f"{found['num_attacked']:,}", *(_share(found["success"][cap.name]) for cap in CAPS)]
        cells += [_mean(found["queries"]), _mean(found["words_changed"])]
        cells += [f"{found['num_skipped']:,}", f"{found['num_error']:,}"]
        lines.append(_line(model, cells))
    return f"<h2>Success</h2>\n{_table(head, lines)}"


def _per_class(results: dict) -> str:
    word = class_word(results)
    head = ["", word, "attacked", *(cap.words for cap in CAPS), "said before", "said after"]
    lines = []
    for model in results["models"]:
        for label in results["labels"]:
            found, said = model["per_class"].get(label), model["predicted"].get(label, {})
            attacked = "0" if found is None else f"{found['num_attacked']:,}"
            shares = ["n/a" if found is None else _share(found["success"][cap.name]) for cap in CAPS]
            said = [percent(said.get(when)) for when in ("before", "after")]
            lines.append(_line(model, [shown(label), attacked, *shares, *said]))
    note = (
        '<p class="note">Said before, after: the share of all texts that the model gives to this class. Where one '
        "class takes everything after the attack, the attack has destroyed texts rather than turned them.</p>\n"
    )
    return f"<h2>By {shown(word)}</h2>\n{note}{_table(head, lines)}"


def _protocol(results: dict) -> str:
    entries = {**results["protocol"], "versions": results["versions"]}
    for model in results["models"]:
        if model.get("control"):
            entries[model["name"]] = model["control"]
        elif "pooling" in model:
            # An encoder; a classifier has no choice.
            entries[model["name"]] = encoding_words(model)
        if model.get("prompt") and "pooling" not in model:
            entries[f"{model['name']}, before every text"] = repr(model["prompt"])
    lines = "".join(f"<dt>{shown(str(name))}</dt><dd>{shown(_words(value))}</dd>" for name, value in entries.items())
    return f"<h2>How</h2>\n<dl>{lines}</dl>\n"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_words(part)}" for name, part in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(_words(part) for part in value)
    return "none" if value is None else " ".join(str(value).split())


def _texts(run: AttackedModel) -> str:
    """The texts that fooled a model, and those on which the attack broke."""
    fooled = fooled_rows(run.rows)
    title = f"<h2>{shown(run.name)}: {len(fooled):,} texts</h2>\n"
    errors = [row for row in run.rows if row.outcome == ERROR]
    broken = "".join(f"<li>row {row.row}: {shown(row.note)}</li>" for row in errors[:MAX_SHOWN])
    broken = f"<details><summary>{len(errors):,} errors</summary><ul>{broken}</ul></details>\n" if errors else ""
    if not fooled:
        return f'{title}<p class="note">No text fooled it.</p>\n{broken}'
    more = f'<p class="note">The first {MAX_SHOWN} of them.</p>\n' if len(fooled) > MAX_SHOWN else ""
    table = html_table(("row", "label", "said", "changed", "text"), [_text(r) for r in fooled[:MAX_SHOWN]], "texts")
    return f"{title}{more}{table}{broken}"


def fooled_rows(rows: Sequence[TextAttackRow]) -> List[TextAttackRow]:
    """Those that fooled the model, of the fewest changes first."""
    return sorted((r for r in rows if r.outcome == SUCCEEDED), key=lambda r: (r.num_words_changed, r.row))


def marked_row(row: TextAttackRow, most: Optional[int] = None) -> str:
    """The text or pair with its changes (`fastadv.pages.shown_text.marked`)."""
    parts = [marked(row.first, row.first_adversarial, most)]
    if row.second is not None:
        parts.append(marked(row.second, row.second_adversarial or "", most))
    return "<br>".join(parts)


def _text(row: TextAttackRow) -> str:
    said = f"{shown(row.predicted)} → {shown(row.predicted_adversarial)}"
    changed = f"{row.num_words_changed} of {row.num_words}"
    cells = [str(row.row), shown(row.label), said, changed, marked_row(row)]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _line(model: dict, cells: List[str]) -> str:
    """Of a table; ``cells`` are escaped."""
    kind = ' class="control"' if model.get("control") else ""
    return f"<tr{kind}><td>{shown(model['name'])}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _table(head: List[str], lines: List[str]) -> str:
    return html_table([escape(cell) for cell in head], lines)


def _share(share: Dict[str, Any]) -> str:
    if share["value"] is None:
        return "n/a"
    bounds = f"{100 * share['low']:.1f} to {100 * share['high']:.1f} %, {share['count']:,} of {share['total']:,}"
    return f'<span title="{bounds}">{share["value"]:.1%}</span>'


def percent(share: Optional[float]) -> str:
    """A share of 1 in per cent."""
    return "n/a" if share is None else f"{share:.1%}"


def _mean(mean: Dict[str, Any]) -> str:
    if mean["value"] is None:
        return "n/a"
    return f'<span title="{mean["low"]:.1f} to {mean["high"]:.1f}">{mean["value"]:.1f}</span>'
