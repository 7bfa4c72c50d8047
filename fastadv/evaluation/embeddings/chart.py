"""Accuracy and distance against the radius of an attack, several models side by side, as one PNG."""

from pathlib import Path

from fastadv.files.atomic_file import written_aside
from fastadv.pages.chart import Chart, Point, Series
from fastadv.pages.drawing import charts_png
from fastadv.pages.table import Estimate


def attack_curves_png(results: dict, path: Path) -> None:
    """Draws what `fastadv.evaluation.embeddings.report.report` gives."""
    charts = [_chart(results, "accuracy", "accuracy under attack", "accuracy", 1.03)]
    if all("distance_cosine" in row for model in results["models"] for row in model["epsilons"]):
        charts.append(_chart(results, "distance_cosine", "distance of the vectors", "1 − cos", None))
    with written_aside(path) as aside:
        charts_png(charts, aside)


def _chart(results: dict, key: str, title: str, y_label: str, top: float | None) -> Chart:
    """A quantity from radius 0 on, at which nothing is attacked; what is not finite has no point."""
    series = []
    for look, model in enumerate(results["models"]):
        rows = [(0.0, model.get(key, {"value": 0.0, "low": 0.0, "high": 0.0}))]
        rows += [(row["epsilon"], row[key]) for row in model["epsilons"] if row["epsilon"] > 0]
        points = (Point(Estimate(at), Estimate(one["value"], one["low"], one["high"])) for at, one in rows)
        known = tuple(point for point in points if point.y.value is not None)
        series.append(Series(model["name"], known, look))
    x_label = f"epsilon, {results['settings']['norm']} norm of the perturbation of a text"
    return Chart(key, title, x_label, y_label, tuple(series), has_root_scale=True, y_range=(0.0, top))
