"""The measurements before and after training, around the loop."""

import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from fastadv.config.schema import DataConfig, EvaluationConfig
from fastadv.files.json_file import write_json


class Comparison:
    """Measures the encoder before and after training; does nothing where ``evaluation.enabled`` is false.

    One process measures: it is the first rank that is asked.

    The first measurement is kept in the run folder, under a name made of the evaluation's settings: a resumed run takes
    it from there, and one with other settings measures again (the weights are still those before training then).
    """

    def __init__(self, config: EvaluationConfig, run_folder: Path, data: DataConfig):
        self._config, self._run_folder, self._data = config, run_folder, data
        settings = json.dumps(asdict(config), sort_keys=True)
        self._before_file = run_folder / f"before-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.npz"

    def measure_before(self, encoder) -> None:
        """Measures the untrained ``encoder``, unless an earlier part of this run has."""
        if not self._config.enabled:
            return
        from fastadv.evaluation.before_after.before_after import load_measurement, measure, save_measurement
        from fastadv.evaluation.before_after.held_out import load_held_out

        self._held_out = load_held_out(self._config, encoder, self._data.field, self._data.quoting)
        if self._before_file.exists():
            self._before = load_measurement(self._before_file)
            return
        self._before = measure(encoder, self._config, self._held_out, progress=sys.stderr.isatty())
        save_measurement(self._before, self._before_file)

    def measure_after(self, encoder) -> str:
        """Measures the trained ``encoder``, writes results.json, prints the table, and returns it as Markdown."""
        if not self._config.enabled:
            return ""
        from fastadv.evaluation.before_after.before_after import compare, measure
        from fastadv.evaluation.before_after.results_table import markdown_table, text_table

        after = measure(encoder, self._config, self._held_out, progress=sys.stderr.isatty())
        results = compare(self._before, after, self._config)
        write_json(self._run_folder / "results.json", results)
        print(text_table(results), flush=True)
        return markdown_table(results)
