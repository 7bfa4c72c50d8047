"""Trains a small run in a fraction of a second."""

from fastadv.engine import loop


class Trainer(loop.Trainer):
    """The trainer without report.html, whose curves would take four times as long to draw as such a run to train."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **{"writes_report": False, **options})
