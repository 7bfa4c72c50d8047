"""A measurement of robustness to edits: what it would do, and the numbers of all models."""

from typing import Callable, Mapping, Sequence

from fastadv.config.robustness import RobustnessSettings
from fastadv.errors import UserError
from fastadv.evaluation.model_names import names_of
from fastadv.evaluation.robustness.edited import RobustnessData
from fastadv.evaluation.robustness.measure import Measured, measure_models
from fastadv.evaluation.robustness.result import record_of
from fastadv.files.json_file import json_ready


def describe_robustness(data: RobustnessData) -> str:
    """What would be measured, in words."""
    edits = list(dict.fromkeys(variant.edit for variant in data.curves))
    strengths = list(dict.fromkeys(variant.words for variant in data.curves))
    words = f"{len(data.sentences)} of {data.num_available} sentences of {data.name}, edited by {', '.join(edits)}"
    words += f" ({', '.join(strengths)}), flipped by {', '.join(variant.edit for variant in data.flips)}"
    pairs = ", ".join(f"{len(of_set)} pairs of {name}" for name, of_set in data.pairs.items())
    return f"{words}; {pairs}" if pairs else words


def measure_robustness(
    models: Mapping[str, Callable],
    data: RobustnessData,
    settings: RobustnessSettings,
    batch_size: int = 64,
    progress: bool = False,
    names: Sequence[str] | None = None,
    on_values: Callable[[str, Measured], None] | None = None,
    on_failure: Callable[[str, UserError], None] | None = None,
) -> dict:
    """The record of all models (`fastadv.evaluation.robustness.result`).

    Args:
        models: path → () → `fastadv.Encoder`; one is held at a time.
        names: what the models are called in tables; None: their paths without what all share.
        on_values: is given each model's path and its values, a sentence each.
        on_failure: is given the path of a model that cannot be measured, and why; the others go on without it. None:
            that ends all.

    Raises:
        UserError: an edit of the user's own fails, or a model cannot be measured, with ``on_failure`` all of them.
    """
    called = dict(zip(models, names_of(list(models), names)))
    drawn = data.draw(settings.seed)
    measured, facts = measure_models(models, data, drawn, batch_size, progress, on_failure)
    for model, values in measured.items() if on_values is not None else ():
        on_values(model, values)
    return json_ready(record_of(settings, data, drawn, measured, facts, called))
