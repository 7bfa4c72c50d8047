"""The page of the study's second part, docs/study-variants.md, and its picture: from whatever arms are done.

    python -m bench.studies.sentence_study --part variants --report --out runs/study-variants \
        --write docs/study-variants.md

The section `BY_HAND` says what the numbers mean; it is written by hand, and kept when the page is made again.
"""

from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from matplotlib.axes import Axes
from scipy.stats import norm

from bench.studies.sentence.arm import ADV_STS_RECIPE, SHARE_OF_WORDS, TYPING_EDITS
from bench.studies.sentence.arms import BASELINE, EXPLORATION, Job
from bench.studies.sentence.plots import dots, draw_panels, scatter
from bench.studies.sentence.probe_on_edits import CLEAN, EDITS, under
from bench.studies.sentence.read import (
    Change,
    Records,
    Table,
    has,
    missing,
    systems_at_equal_steps,
    systems_at_equal_time,
    table,
)
from bench.studies.sentence.records import at_words
from bench.studies.sentence.report import Line, cell_text, controls, costs, markdown, reasons, rows_of, steps_of
from bench.studies.sentence.variants import ARMS, SEARCHED, VARIANTS
from fastadv.errors import UserError
from fastadv.evaluation.intervals import CONFIDENCE
from fastadv.evaluation.suite.numbers import holm
from fastadv.files.atomic_file import written_aside

BY_HAND = "## What it says"
LEVEL = 1 - CONFIDENCE
RECIPES = {"deepwordbug": "DeepWordBug", "textbugger": "TextBugger", "pwws": "PWWS"}
_HALF = f"{100 * SHARE_OF_WORDS:g} % of words"


def _success(recipe: str, max_words: Optional[int] = None) -> Line:
    words = "" if max_words is None else f", {at_words(max_words).rpartition(', ')[2]}"
    metric = "attack success" if max_words is None else at_words(max_words)
    return Line(f"{RECIPES[recipe]}{words}, %", f"text-{recipe}", metric, digits=1)


def _robust(label: str, metric: str, digits: int = 1) -> Line:
    return Line(label, "robustness", metric, digits=digits)


def _probe(edits: Optional[str]) -> Line:
    words = "the probe, clean, %" if edits is None else f"{edits}, %"
    return Line(words, "probe", CLEAN if edits is None else under(edits), digits=1)


STS = Line("mean of STS-B and SICK-R", "sts", "spearman", None, "mean of two", 2)
ADV_STS = Line(f"AdvSTS, {RECIPES[ADV_STS_RECIPE]}, %", "adv-sts", "fooled", digits=1)
NEARER = {
    "typos": _robust("a typo nearer than an antonym, %", "typos nearer than antonym"),
    "synonyms": _robust("a synonym nearer than an antonym, %", "synonyms nearer than antonym"),
}

SUBJECTS: Dict[str, Tuple[Line, ...]] = {
    "Attacks on letters": tuple(_success(r, n) for r in ("deepwordbug", "textbugger") for n in (1, 2, None)),
    "Attacks on words, and on pairs": (
        *(_success("pwws", n) for n in (1, 2, None)),
        ADV_STS,
        *(Line(f"queries of {words}", f"text-{name}", "queries", digits=1) for name, words in RECIPES.items()),
    ),
    "What it costs": (
        Line("the attacked probe, clean, %", "text-deepwordbug", "accuracy", digits=1),
        _probe(None),
        Line("STS-B", "sts", "spearman", None, "STS-B", 2),
        Line("SICK-R", "sts", "spearman", None, "SICK-R", 2),
        STS,
        Line("uniformity", "geometry", "uniformity"),
    ),
    f"The probe on edited texts, {_HALF}": tuple(map(_probe, EDITS)),
    "How far vectors move, and what is still found": (
        _robust("cosine to one typo", "cosine, typos, one word", 3),
        _robust("to one synonym", "cosine, synonyms, one word", 3),
        _robust("to an antonym", "cosine, antonym, one change", 3),
        _robust("to a negation", "cosine, negation, one change", 3),
        _robust(f"retrieval@1, typos, {_HALF}, %", f"retrieval@1, typos, {_HALF}"),
        _robust(f"retrieval@1, synonyms, {_HALF}, %", f"retrieval@1, synonyms, {_HALF}"),
    ),
    "Which copy is nearer": (
        *NEARER.values(),
        _robust("a typo nearer than a negation, %", "typos nearer than negation"),
        _robust("a synonym nearer than a negation, %", "synonyms nearer than negation"),
    ),
}
"""heading → the quantities of its table, whose differences are tested together"""


class Transfer(NamedTuple):
    """Edits that an arm is measured on: one arm trained on them, and one on others."""

    line: Line
    trained: str
    others: str


_PROBED = f"the probe under {{}}, {_HALF}, %"
TRANSFERS = (
    Transfer(_success("deepwordbug", 2), "worst8-typos", "worst8-swap+insert"),
    Transfer(_success("textbugger", 2), "worst8-typos", "worst8-swap+insert"),
    *(
        Transfer(_probe(edits)._replace(label=_PROBED.format(edits)), "worst8-typos", "worst8-swap+insert")
        for edits in ("swap and insert", "drop, neighbour and double")
    ),
    *(
        Transfer(_robust(f"cosine to one {edit}", f"cosine, {edit}, one word", 3), "worst8-typos", "worst8-swap+insert")
        for edit in TYPING_EDITS
    ),
    Transfer(_success("pwws", 2), "worst8-synonyms", "worst8-typos"),
    Transfer(_probe("synonyms")._replace(label=_PROBED.format("synonyms")), "worst8-synonyms", "worst8-typos"),
    Transfer(_success("deepwordbug", 2), "worst8-typos", "worst8-synonyms"),
    Transfer(_probe("typos")._replace(label=_PROBED.format("typos")), "worst8-typos", "worst8-synonyms"),
)


class Aim(NamedTuple):
    """A bound that a quantity should reach."""

    words: str
    line: Line
    is_reached: Callable[[float, Optional[float]], bool]
    """of the arm's value and that of SimCSE in the time of `SEARCHED`"""
    is_relative: bool = False
    """Whether the bound is relative to SimCSE's value, so that an arm is n/a where that is missing."""


AIMS = (
    Aim("DeepWordBug ≤ 85 %", _success("deepwordbug"), lambda own, _: own <= 85),
    Aim("≤ 42 % at ≤ 2 words", _success("deepwordbug", 2), lambda own, _: own <= 42),
    Aim("PWWS ≤ 60 % at ≤ 2 words", _success("pwws", 2), lambda own, _: own <= 60),
    Aim("AdvSTS less by a third", ADV_STS, lambda own, before: own <= before * 2 / 3, True),
    Aim("typo nearer ≥ 80 %", NEARER["typos"], lambda own, _: own >= 80),
    Aim("synonym nearer ≥ 70 %", NEARER["synonyms"], lambda own, _: own >= 70),
    Aim("probe within 1", _probe(None), lambda own, before: own >= before - 1, True),
    Aim("STS within 0.5", STS, lambda own, before: own >= before - 0.5, True),
)


def tables_of(records: Records) -> Dict[str, Table]:
    """``steps``; and a table of the training time that is the equal one. SimCSE of the same time is first."""
    aside = {arm.name: arm.name for arm in ARMS if arm.group == EXPLORATION and has(records, arm.name)}
    return {
        "steps": table(records, {**systems_at_equal_steps(records, VARIANTS), **aside}),
        SEARCHED: table(records, systems_at_equal_time(records, VARIANTS, SEARCHED)),
    }


def p_value(change: Change) -> float:
    """Two-sided, of no difference: by a normal test whose standard error is the interval's.

    The resamples themselves give no p-value below 0.001, which Holm's correction for a whole table always takes above
    any level. Where no resample moves the difference, each row that moved is as likely to have moved the other way.
    """
    error = (change.high - change.low) / (2 * norm.ppf(0.5 + CONFIDENCE / 2))
    if error <= 0:
        return 1.0 if change.value == 0 else min(1.0, 2 * 0.5**change.num)
    return float(2 * norm.sf(abs(change.value) / error))


def by_system(found: Table, lines: Sequence[Line]) -> List[str]:
    """A line a system, a column a quantity; p-values are corrected for all changes of the table."""
    chosen = [(line, cells) for line in lines if (cells := line.of(found))]
    if not chosen:
        return ["Nothing of it is done."]
    changes = [(n, s, c.change) for n, (_, cells) in enumerate(chosen) for s, c in cells.items() if c.change]
    adjusted = holm([p_value(change) for *_, change in changes])
    is_sure = {(n, s): c.is_clear and p < LEVEL for (n, s, c), p in zip(changes, adjusted)}
    rows = [["", *(line.label for line, _ in chosen)]]
    for system in found.systems:
        if any(system in cells for _, cells in chosen):
            texts = [cell_text(cells.get(system), line.digits) for line, cells in chosen]
            marks = ["*" * is_sure.get((n, system), False) for n in range(len(chosen))]
            rows.append([system, *map("".join, zip(texts, marks))])
    return markdown(rows)


def transferred(found: Table) -> List[str]:
    """How much of what an arm gains on the edits that it trained on is left to an arm that trained on others."""
    rows = [["measured by", BASELINE, "trained on them", "", "trained on others", "", "of the gain is left, %"]]
    for line, trained, others in TRANSFERS:
        cells = line.of(found)
        if any(name not in cells for name in (BASELINE, trained, others)):
            continue
        before, after, other = (cells[name].mean for name in (BASELINE, trained, others))
        change = cells[trained].change
        left = f"{100 * (other - before) / (after - before):.0f}" if change and change.is_clear else "no clear gain"
        values = [cell_text(cells[name], line.digits) for name in (BASELINE, trained, others)]
        rows.append([line.label, values[0], trained, values[1], others, values[2], left])
    return markdown(rows) if len(rows) > 1 else ["Nothing of it is done."]


def aims(tables: Dict[str, Table]) -> List[str]:
    """Each arm's values, in bold where they reach the aim."""
    found, timed = tables["steps"], tables[SEARCHED]
    rows = [["", *(aim.words for aim in AIMS)]]
    for system in found.systems:
        texts = []
        for aim in AIMS:
            cell, before = aim.line.of(found).get(system), aim.line.of(timed).get(BASELINE)
            if cell is None or (aim.is_relative and before is None):
                texts.append("n/a")
                continue
            value = f"{cell.mean:.{aim.line.digits}f}"
            is_reached = aim.is_reached(cell.mean, None if before is None else before.mean)
            texts.append(f"**{value}**" if is_reached else value)
        if set(texts) != {"n/a"}:
            rows.append([system, *texts])
    return markdown(rows) if len(rows) > 1 else ["Nothing of it is done."]


def report(records: Records, jobs: Sequence[Job], picture: str = "study.png") -> Tuple[str, dict]:
    """Markdown, and all its numbers.

    Args:
        jobs: of the whole part; those that are not among the records are named.
        picture: the file of `plot`, as the page links it.
    """
    sizes = next(iter(records.values())).facts["sizes"]
    tables, absent = tables_of(records), missing(records, jobs)
    text = [*_head(records, sizes, absent), "", f"![what the study measured]({picture})"]
    text += ["", f"## At equal steps, beside {BASELINE}", *_by_subject(tables["steps"])]
    text += ["", f"## In the training time of {SEARCHED}, beside {BASELINE} of that time", ""]
    text += [*steps_of(records, tables[SEARCHED]), *_by_subject(tables[SEARCHED])]
    text += ["", "## Edits that were not trained on", ""]
    text += ["A gain is the change beside SimCSE at equal steps; * and ** as above."]
    text += ["", *transferred(tables["steps"])]
    text += ["", "## The aims", ""]
    text += [f"Bold where reached; *less* and *within* are of {BASELINE} in the time of {SEARCHED}.", ""]
    text += aims(tables)
    text += ["", "## Attacks on text beside their control, seed 0", "", *controls(records, ARMS)]
    text += ["", "## Through a classifier fine-tuned on top", "", "`make study-text-variants` measures it."]
    text += ["", "## Cost", "", *costs(records, ARMS)]
    numbers = {
        "num_arms": len(records),
        "missing": [job.key for job in absent],
        "sizes": sizes,
        "tables": {name: list(rows_of(found)) for name, found in tables.items()},
        "facts": {record.model: record.facts for record in records.values()},
    }
    return "\n".join(text) + "\n", numbers


def _head(records: Records, sizes: dict, absent: Sequence[Job]) -> Iterator[str]:
    yield "# Sentence encoders that train on a text's own variants"
    yield from ("", "    make study-variants SENTEVAL=senteval/", "")
    yield (
        f"{len(records)} arms are done; {len(absent)} are missing"
        + (f": {', '.join(job.key for job in absent)}." if absent else ".")
        + " Which arms, and which question each answers: `bench/studies/sentence/variants.py`."
    )
    yield ""
    counts = {
        "deepwordbug": sizes["num_texts"],
        "textbugger": sizes.get("num_texts_textbugger", 0),
        "pwws": sizes["num_texts_pwws"],
    }
    attacked = ", ".join(f"{count} by {RECIPES[recipe]}" for recipe, count in counts.items())
    yield (
        f"MiniLM trains for {sizes['steps']} steps of {sizes['batch_size']} IMDb sentences; `worstK-EDITS`: the "
        f"positive is the worst of K edited copies. Texts of Rotten Tomatoes are attacked through a probe on frozen "
        f"vectors: {attacked}. {sizes.get('num_edited', 0)} sentences are edited and compared, "
        f"{sizes.get('num_mistyped', 0)} classified after edits, {sizes.get('num_pairs', 0)} pairs of STS-B attacked. "
        "A cell is the mean over seeds ± their standard deviation [the 95 % interval of the change, over rows, paired "
        "by row and seed]; * where it leaves out 0 and every seed moved the same way, ** where Holm's correction for "
        f"all changes of the table leaves p below {LEVEL:.2g} too."
    )
    lines = [f"* n/a: {line}" for line in reasons(records)]
    yield from ["", *lines] if lines else []


def _by_subject(found: Table) -> Iterator[str]:
    for heading, lines in SUBJECTS.items():
        yield from ("", f"### {heading}", "", *by_system(found, lines))


def plot(records: Records, path: Path) -> None:
    """Four panels at equal steps: attacks on letters, on words, which copy is nearer, and what robustness costs."""
    found = tables_of(records)["steps"]

    def attacked(recipe: str) -> Callable[[Axes], bool]:
        lines = {"any words": _success(recipe), "≤ 2 words": _success(recipe, 2)}
        title = f"{RECIPES[recipe]} succeeds, %"
        return lambda axes: dots(axes, title, {words: line.of(found) for words, line in lines.items()})

    def nearer(axes: Axes) -> bool:
        series = {f"one of the {edits}": line.of(found) for edits, line in NEARER.items()}
        return dots(axes, "nearer than an antonym, % of sentences", series)

    def price(axes: Axes) -> bool:
        axes.set_title("DeepWordBug at ≤ 2 words, %, against STS", fontweight="bold")
        axes.set_xlabel(f"{STS.label}, Spearman × 100")
        return scatter(axes, found, STS.of(found), _success("deepwordbug", 2).of(found))

    draw_panels([attacked("deepwordbug"), attacked("pwws"), nearer, price], 2, path)


def write_page(records: Records, jobs: Sequence[Job], path: Path) -> None:
    """The page and, beside it, its picture; what stands under `BY_HAND` in the page of before is kept.

    Raises:
        UserError: no arm is done.
    """
    if not records:
        raise UserError("no arm is done; there is no page to write")
    picture = path.with_suffix(".png")
    text, _ = report(records, jobs, picture.name)
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    kept = before.partition(f"\n{BY_HAND}\n")[2].strip("\n")
    if kept:
        text += f"\n{BY_HAND}\n\n{kept}\n"
    with written_aside(picture) as aside:
        plot(records, aside)
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")
