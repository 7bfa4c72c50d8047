"""The measurements before and after training, around the loop."""

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path

from fastadv.config.schema import DataConfig, EvaluationConfig
from fastadv.files.json_file import write_json

logger = logging.getLogger(__name__)


class Comparison:
    """Measures the encoder before and after training; does nothing where ``evaluation.enabled`` is false.

    One process measures: it is the first rank that is asked.

    The first measurement is kept in the run folder, under a name made of the evaluation's settings: a resumed run takes
    it from there, and one with other settings measures again (the weights are still those before training then).
    An attack that cannot be run on this machine is left out, and the table says why.
    """

    def __init__(self, config: EvaluationConfig, run_folder: Path, data: DataConfig):
        self._config, self._run_folder, self._data = config, run_folder, data
        self._missing: list[dict] = []

    def measure_before(self, encoder) -> None:
        """Measures the untrained ``encoder``, unless an earlier part of this run has."""
        if not self._config.enabled:
            return
        from fastadv.evaluation.before_after.before_after import load_measurement, save_measurement
        from fastadv.evaluation.before_after.held_out import load_held_out
        from fastadv.evaluation.before_after.results_table import reasons
        from fastadv.evaluation.before_after.text_attack import as_far_as_can_be

        self._config, self._missing = as_far_as_can_be(self._config, encoder.pooling)
        for reason in reasons({"missing": self._missing}):
            logger.warning("%s", reason)
        self._held_out = load_held_out(self._config, encoder, self._data.field, self._data.quoting)
        # Of the settings as far as they can be measured here: what was missing and is there now is measured.
        settings = json.dumps(asdict(self._config), sort_keys=True)
        path = self._run_folder / f"before-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.npz"
        if path.exists():
            self._before = load_measurement(path)
            return
        self._before = self._measure(encoder)
        save_measurement(self._before, path)

    def measure_after(self, encoder) -> str:
        """Measures the trained ``encoder``, writes results.json, prints the table, and returns it as Markdown."""
        if not self._config.enabled:
            return ""
        from fastadv.evaluation.before_after.before_after import compare
        from fastadv.evaluation.before_after.results_table import markdown_table, text_table

        results = compare(self._before, self._measure(encoder), self._config, self._missing)
        write_json(self._run_folder / "results.json", results)
        print(text_table(results), flush=True)
        return markdown_table(results)

    def _measure(self, encoder) -> dict:
        from fastadv.evaluation.before_after.before_after import measure
        from fastadv.evaluation.before_after.text_attack import LOG

        return measure(encoder, self._config, self._held_out, progress=True, log=self._run_folder / LOG)
