"""Measured scores in a model's card: a table between two marks, and ``model-index`` metadata as the Hub reads it.

What somebody else wrote into the card stays, all text and the values of all metadata; what an earlier evaluation wrote
is replaced.
"""

import os
import re
from pathlib import Path
from typing import List, NamedTuple, Sequence, Tuple

import yaml
from huggingface_hub import EvalResult, ModelCard, RepoCard
from huggingface_hub.repocard_data import eval_results_to_model_index

from fastadv.errors import UserError
from fastadv.evaluation.suite.report import label, model_words
from fastadv.evaluation.suite.schema import Quantity, quantities_of, quantity_of
from fastadv.files.atomic_file import written_aside

CARD = "README.md"
BEGIN = "<!-- fastadv scores: begin -->"
END = "<!-- fastadv scores: end -->"

_SOURCE = "fastadv evaluate all"
"""by which results of ours are known again in the metadata"""

_INDEX = "model-index"


class Cards(NamedTuple):
    """What became of the cards of an evaluation."""

    written: List[Path]
    left: List[str]
    """a line a model that has no card to write, or nothing to write into it"""
    problems: List[str]
    """a line a card that could not be written"""


def check_cards(models: Sequence[str]) -> List[str]:
    """A line for each card, of models that are folders, that scores cannot be written into."""
    problems = []
    for folder in (Path(model).expanduser() for model in models):
        if not folder.is_dir():
            continue
        try:
            path = folder / CARD
            _with_scores(_read(path), "", [], path)
            if not os.access(folder, os.W_OK):
                raise UserError(f"{folder} cannot be written to")
        except UserError as error:
            problems.append(str(error))
    return problems


def write_cards(evaluation: dict) -> Cards:
    """`write_scores_into_card` of every model that is a folder and has a number."""
    cards = Cards([], [], [])
    for model in [model for system in evaluation["systems"] for model in system["models"]]:
        if not Path(model).expanduser().is_dir():
            cards.left.append(f"{model} is no folder, and has no card")
        elif not any(row["model"] == model and row["value"] is not None for row in evaluation["numbers"]):
            cards.left.append(f"{model} has no number; its card stays as it is")
        else:
            try:
                cards.written.append(write_scores_into_card(model, evaluation))
            except (UserError, OSError) as error:
                cards.problems.append(str(error))
    return cards


def write_scores_into_card(model_dir: str | Path, evaluation: dict) -> Path:
    """Writes the scores that an evaluation has of the model in ``model_dir`` into its ``README.md``, in place of those
    of any earlier evaluation.

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
    quantities = quantities_of(evaluation)
    known = [(row, quantity_of(row, quantities)) for row in numbers]
    ours = [_eval_result(row, quantity, evaluation) for row, quantity in known if row["value"] is not None]
    text = _with_scores(_read(path), _section(folder, known, evaluation), ours, path)
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
    return path


def _is_of(row: dict, folder: Path) -> bool:
    return row["model"] is not None and Path(row["model"]).expanduser().resolve() == folder.resolve()


def _numbers_of(folder: Path, evaluation: dict) -> List[dict]:
    found = [row for row in evaluation["numbers"] if _is_of(row, folder)]
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


def _with_scores(content: str, section: str, results: List[EvalResult], path: Path) -> str:
    """The card with a section between the marks, and with results of ours in place of earlier ones."""
    try:
        # It says what is no result; the plain card keeps what results of the other have no field for.
        ModelCard(content, ignore_metadata_errors=False)
        card = RepoCard(content)
    except (ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: its metadata cannot be read ({' '.join(str(error).split())[:200]})") from error
    card.data[_INDEX] = _with_results(card.data.get(_INDEX) or [], results, path.parent.resolve().name) or None
    card.text = _with_section(card.text, section, path)
    return str(card)


def _with_results(index: List[dict], results: List[EvalResult], name: str) -> List[dict]:
    """A ``model-index`` whose entries of others stay; ours stand where they stood, in the only entry, or in one of
    their own."""
    theirs = [_without_ours(entry) for entry in index]
    had_ours = [kept != entry for kept, entry in zip(theirs, index)]
    if not results:
        return [kept for kept, had in zip(theirs, had_ours) if kept["results"] or not had]
    at = had_ours.index(True) if any(had_ours) else 0 if len(theirs) == 1 else None
    if at is None:
        theirs, at = [*theirs, {"name": name, "results": []}], len(theirs)
    (ours,) = eval_results_to_model_index(theirs[at]["name"], results)
    theirs[at] = {**theirs[at], "results": [*theirs[at]["results"], *ours["results"]]}
    return theirs


def _without_ours(entry: dict) -> dict:
    kept = []
    for result in entry["results"]:
        metrics = [one for one in result["metrics"] if (one.get("args") or {}).get("source") != _SOURCE]
        if metrics:
            kept.append({**result, "metrics": metrics})
    return {**entry, "results": kept}


def _section(folder: Path, numbers: List[Tuple[dict, Quantity]], evaluation: dict) -> str:
    lines = [BEGIN, "## Scores", "", "| | value | 95 % interval | rows |", "|---|---:|---:|---:|"]
    for row, quantity in numbers:
        if row["value"] is not None:
            interval = "" if row["low"] is None else f"[{row['low']:.4g}, {row['high']:.4g}]"
            lines.append(f"| {_label(quantity)} | {row['value']:.4g} | {interval} | {row['num']:,} |")
    missing = dict.fromkeys(f"{row['part']}, {row['set']}" for row, _ in numbers if row["value"] is None)
    if missing:
        lines += ["", f"Not measured: {'; '.join(missing)}."]
    versions = ", ".join(f"{name} {version}" for name, version in evaluation["versions"].items() if version)
    models = [model_words(model) for model in evaluation["models"] if _is_of(model, folder)]
    lines += ["", *(f"{words}." for words in models)]
    lines += [f"By `{_SOURCE}`, seed {evaluation['seed']}, with {versions}.", END]
    return "\n".join(lines)


def _label(quantity: Quantity) -> str:
    # A bar would end the cell.
    return f"{quantity.part}, {label(quantity)}".replace("|", "\\|")


def _with_section(text: str, section: str, path: Path) -> str:
    num_begins, num_ends = text.count(BEGIN), text.count(END)
    if num_begins == num_ends == 0:
        return f"{text.rstrip()}\n\n{section}\n" if text.strip() else f"\n{section}\n"
    if (num_begins, num_ends) != (1, 1) or text.index(END) < text.index(BEGIN):
        raise UserError(f"{path}: expected the marks {BEGIN} and {END} once each and in this order, or neither")
    return text[: text.index(BEGIN)] + section + text[text.index(END) + len(END) :]


def _eval_result(row: dict, quantity: Quantity, evaluation: dict) -> EvalResult:
    arguments = {"source": _SOURCE, "num_rows": row["num"], "seed": row["seed"], "unit": row["unit"]}
    arguments["data_sha256"] = evaluation["parts"][row["part"]]["protocol"]["data"]["sha256"]
    if row["epsilon"] is not None:
        arguments.update(epsilon=row["epsilon"], radius=quantity.radius_words.removeprefix(", "))
    if row["low"] is not None:
        arguments["interval_95"] = [row["low"], row["high"]]
    return EvalResult(
        task_type=quantity.task,
        dataset_type=_slug(f"{row['part']}-{row['set']}"),
        dataset_name=f"{row['set']} ({row['part']})",
        metric_type=_slug(row["metric"]),
        metric_name=_label(quantity),
        metric_value=row["value"],
        metric_args=arguments,
    )


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
