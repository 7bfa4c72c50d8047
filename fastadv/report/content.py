"""All sections of a page, from all that its folders hold."""

from dataclasses import dataclass, replace
from typing import Dict, List, Sequence, Tuple

from fastadv.pages.chart import Chart
from fastadv.pages.table import Table
from fastadv.report.named import looks_of
from fastadv.report.run_record import RunRecord
from fastadv.report.sections.attack_sections import embedding_attack_sections, geometry_sections
from fastadv.report.sections.before_after_section import results_sections
from fastadv.report.sections.config_section import as_text, config_sections, get
from fastadv.report.sections.evaluation_sections import evaluation_sections
from fastadv.report.sections.section import Section
from fastadv.report.sections.seeds_section import seeds_section
from fastadv.report.sections.text_attack_sections import text_attack_sections
from fastadv.report.sections.trade_off_section import trade_off_section
from fastadv.report.sections.training_section import cost_section, training_section
from fastadv.report.sources import Source


@dataclass(frozen=True)
class Content:
    """What a page shows; charts and tables have keys that differ."""

    title: str
    lead: str
    sections: List[Section]
    notes: List[str]
    """what could not be read"""
    missing: List[str]
    """what was looked for and not found"""

    @property
    def charts(self) -> List[Chart]:
        return [chart for section in self.sections for chart in section.charts]

    @property
    def tables(self) -> List[Table]:
        return [table for section in self.sections for table in section.tables]


def content_of(sources: Sequence[Source]) -> Content:
    """The sections that there are data for."""
    runs = {one.name: one.run for one in sources if one.run is not None}
    looks = looks_of(sources)
    groups: List[Tuple[str, List[Section]]] = [
        ("a measurement before and after training (results.json)", results_sections(runs)),
        ("an evaluation (evaluation.json)", evaluation_sections(sources, looks)),
        ("accuracy against epsilon (attack.json)", embedding_attack_sections(sources, looks)),
        ("attacks on texts (text-attack.json)", text_attack_sections(sources, looks)),
        ("clean quality beside quality under attack (any of these)", trade_off_section(sources, looks)),
        ("alignment and uniformity (geometry.json)", geometry_sections(sources, looks)),
        ("training curves (metrics.jsonl)", training_section(runs)),
        ("costs (metrics.jsonl's times, rates and memory)", cost_section(runs)),
        ("a configuration (config.yaml)", config_sections(runs)),
    ]
    (_, first), *others = groups
    sections = [*first, *seeds_section(runs), *(section for _, found in others for section in found)]
    title = sources[0].name if len(sources) == 1 else f"{len(sources)} side by side"
    notes = [f"{one.name}: {note}" if len(sources) > 1 else note for one in sources for note in one.notes]
    return Content(
        title, _lead(sources, runs), _with_own_keys(sections), notes, [what for what, found in groups if not found]
    )


def _lead(sources: Sequence[Source], runs: Dict[str, RunRecord]) -> str:
    if len(sources) > 1:
        return " · ".join(one.name for one in sources)
    if not runs:
        return "evaluation and attacks"
    (run,) = runs.values()
    objective, model = get(run.config, ("objective",)), get(run.config, ("encoder", "model"))
    steps = max((steps[-1] for steps, _ in run.series.values()), default=None)
    parts = [
        f"{as_text(objective, 100)} on {as_text(model, 300)}" if objective and model else "",
        f"{steps:g} training steps" if steps is not None else "no training step logged",
        f"{run.results['num_sentences']} held-out sentences" if run.results else "not measured before and after",
    ]
    return " · ".join(part for part in parts if part)


def _with_own_keys(sections: List[Section]) -> List[Section]:
    """Equal keys, which come of names that differ in signs alone, are numbered: each is a file."""
    taken = set()

    def own(part):
        if not isinstance(part, (Chart, Table)):
            return part
        key, number = part.key, 1
        while (type(part), key) in taken:
            number += 1
            key = f"{part.key}-no{number}"
        taken.add((type(part), key))
        return part if key == part.key else replace(part, key=key)

    return [replace(section, parts=[own(part) for part in section.parts]) for section in sections]
