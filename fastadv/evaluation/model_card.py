"""Measured scores in a model's card: a table between two marks, and ``model-index`` metadata as the Hub reads it.

What somebody else wrote into the card stays, text and metadata alike; what an earlier evaluation wrote is replaced.
"""

import re
from pathlib import Path
from typing import List

import yaml
from huggingface_hub import EvalResult, ModelCard

from fastadv.atomic_file import written_aside
from fastadv.errors import UserError

CARD = "README.md"
BEGIN = "<!-- fastadv scores: begin -->"
END = "<!-- fastadv scores: end -->"

_SOURCE = "fastadv evaluate all"
"""by which results of ours are known again in the metadata"""

_TASKS = {"sts": "semantic-similarity", "adv-sts": "semantic-similarity", "geometry": "feature-extraction"}
"""part → the Hub's task; the others classify"""


def write_cards(evaluation: dict) -> List[Path]:
    """`write_scores_into_card` of every model that is a folder; the cards written."""
    models = [model for system in evaluation["systems"] for model in system["models"]]
    folders = [model for model in models if Path(model).expanduser().is_dir()]
    return [write_scores_into_card(model, evaluation) for model in folders]


def write_scores_into_card(model_dir: str | Path, evaluation: dict) -> Path:
    """Writes the scores that an evaluation has of the model in ``model_dir`` into its ``README.md``.

    Args:
        evaluation: what is in ``evaluation.json``.

    Returns:
        the card. It is there whole or as it was.

    Raises:
        UserError: the evaluation is not of this model, or a card that cannot be read, has one mark without the other,
            or metadata that are no metadata.
    """
    folder = Path(model_dir).expanduser()
    path, numbers = folder / CARD, _numbers_of(folder, evaluation)
    old = _read(path)
    try:
        card = ModelCard(old, ignore_metadata_errors=False)
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: its metadata cannot be read ({' '.join(str(error).split())[:200]})") from error
    ours = [_eval_result(row, evaluation) for row in numbers if row["value"] is not None]
    others = [one for one in card.data.eval_results or [] if (one.metric_args or {}).get("source") != _SOURCE]
    card.data.model_name = card.data.model_name or folder.resolve().name
    card.data.eval_results = [*others, *ours] or None
    card.text = _with_section(card.text, _section(numbers, evaluation), path)
    with written_aside(path) as aside:
        aside.write_text(str(card), encoding="utf-8")
    return path


def _numbers_of(folder: Path, evaluation: dict) -> List[dict]:
    found = [
        row
        for row in evaluation["numbers"]
        if row["model"] is not None and Path(row["model"]).expanduser().resolve() == folder.resolve()
    ]
    if not found:
        raise UserError(f"the evaluation has no number of the model {str(folder)!r}; expected one of its models")
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _section(numbers: List[dict], evaluation: dict) -> str:
    lines = [BEGIN, "## Scores", "", "| | value | 95 % interval | rows |", "|---|---:|---:|---:|"]
    for row in numbers:
        if row["value"] is not None:
            interval = "" if row["low"] is None else f"[{row['low']:.4g}, {row['high']:.4g}]"
            lines.append(f"| {_label(row)} | {row['value']:.4g} | {interval} | {row['num']:,} |")
    missing = dict.fromkeys(f"{row['part']}, {row['set']}" for row in numbers if row["value"] is None)
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    versions = ", ".join(f"{name} {version}" for name, version in evaluation["versions"].items() if version)
    lines += ["", f"By `{_SOURCE}`, seed {evaluation['seed']}, with {versions}.", END]
    return "\n".join(lines)


def _label(row: dict) -> str:
    radius = "" if row["epsilon"] is None else f", ε {row['epsilon']:g}"
    unit = f", {row['unit']}" if row["unit"] else ""
    # A bar would end the cell.
    return f"{row['part']}, {row['set']}: {row['metric']}{radius}{unit}".replace("|", "\\|")


def _with_section(text: str, section: str, path: Path) -> str:
    num_begins, num_ends = text.count(BEGIN), text.count(END)
    if num_begins == num_ends == 0:
        return f"{text.rstrip()}\n\n{section}\n" if text.strip() else f"\n{section}\n"
    if (num_begins, num_ends) != (1, 1) or text.index(END) < text.index(BEGIN):
        raise UserError(f"{path}: expected the marks {BEGIN} and {END} once each and in this order, or neither")
    return text[: text.index(BEGIN)] + section + text[text.index(END) + len(END) :]


def _eval_result(row: dict, evaluation: dict) -> EvalResult:
    arguments = {"source": _SOURCE, "num_rows": row["num"], "seed": row["seed"], "unit": row["unit"]}
    arguments["data_sha256"] = evaluation["parts"][row["part"]]["protocol"]["data"]["sha256"]
    if row["epsilon"] is not None:
        arguments["epsilon"] = row["epsilon"]
    if row["low"] is not None:
        arguments["interval_95"] = [row["low"], row["high"]]
    return EvalResult(
        task_type=_TASKS.get(row["part"], "text-classification"),
        dataset_type=_slug(f"{row['part']}-{row['set']}"),
        dataset_name=f"{row['set']} ({row['part']})",
        metric_type=_slug(row["metric"]),
        metric_name=_label(row),
        metric_value=row["value"],
        metric_args=arguments,
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
