"""The sentence study's ``study.md``: a table a question, from whatever arms are done."""

from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from bench.studies.sentence.arms import ARMS, BASELINE, BY_NAME, REFERENCE, Arm, Job
from bench.studies.sentence.read import (
    Cell,
    Records,
    Table,
    explored,
    missing,
    repeated,
    seed_zero,
    systems_at_equal_steps,
    systems_at_equal_time,
    table,
)
from bench.studies.sentence.records import AT_TWO_WORDS
from fastadv.evaluation.suite.numbers import Quantity


class Line(NamedTuple):
    """A quantity of a table."""

    label: str
    part: str
    metric: str
    epsilon: Optional[float] = None
    of_set: Optional[str] = None
    digits: int = 3

    def of(self, found: Table) -> Dict[str, Cell]:
        return found.find(self.part, self.metric, self.epsilon, self.of_set)


def lines_of(radii: Sequence[float], probe_radii: Sequence[float]) -> List[Line]:
    """All quantities in their order; ε are radii of attacks, multiples of RMS(X)."""
    sts = [Line(name, "sts", "spearman", None, name, 2) for name in ("STS-B", "SICK-R", "mean of seven")]
    sts[-1] = sts[-1]._replace(label="mean of the seven sets")
    attacked = [Line(f"retrieval@1, ε {e:g}, %", "embeddings", "retrieval@1", e, digits=1) for e in radii]
    attacked += [Line(f"centred cosine, ε {e:g}", "embeddings", "centred cosine", e) for e in radii]
    probe = [Line("probe, clean, %", "embeddings", "probe accuracy", digits=1)]
    probe.append(Line("probe, mistyped, %", "embeddings", "probe accuracy, misspelt", digits=1))
    probe += [Line(f"probe, ε {e:g}, %", "embeddings", "probe accuracy", e, digits=1) for e in probe_radii]
    text = [
        Line("clean accuracy of the attacked probe, %", "text-deepwordbug", "accuracy", digits=1),
        Line("DeepWordBug succeeds, %", "text-deepwordbug", "attack success", digits=1),
        Line("DeepWordBug, at ≤ 2 words, %", "text-deepwordbug", AT_TWO_WORDS, digits=1),
        Line("queries of DeepWordBug", "text-deepwordbug", "queries", digits=1),
        Line("PWWS succeeds, %", "text-pwws", "attack success", digits=1),
        Line("PWWS, at ≤ 2 words, %", "text-pwws", AT_TWO_WORDS, digits=1),
    ]
    geometry = [
        Line(words, "geometry", metric, digits=digits)
        for words, metric, digits in (
            ("alignment", "alignment", 3),
            ("uniformity", "uniformity", 3),
            ("mean cosine", "mean_cosine", 3),
            ("effective rank", "effective_rank", 1),
        )
    ]
    return [*sts, *attacked, *probe, *text, *geometry]


def report(records: Records, jobs: Sequence[Job]) -> Tuple[str, dict]:
    """Markdown, and all its numbers.

    Args:
        jobs: of the whole study; those that are not among the records are named.
    """
    sizes = next(iter(records.values())).facts["sizes"]
    radii = sizes["radii"]
    tables = tables_of(records)
    lines = lines_of(radii, _probe_radii(tables))
    absent = missing(records, jobs)
    text = [
        f"{len(records)} arms are done; {len(absent)} of the study's are missing"
        + (f": {', '.join(job.key for job in absent)}." if absent else "."),
        "",
        f"Main arms train for {sizes['steps']} steps of {sizes['batch_size']} sentences; "
        f"{sizes['num_sentences']} held-out sentences and {sizes['num_probe_sentences']} of the probe's are attacked "
        f"in {sizes['num_attack_steps']} steps, {sizes['num_texts']} texts by DeepWordBug. A cell is the mean over "
        "seeds ± their standard deviation [the 95 % interval of the change, over rows, paired by row and seed]; * "
        "where it leaves out 0 and every seed moved the same way. Of quantities that only some seeds have, those.",
    ]
    text += [f"* n/a: {line}" for line in reasons(records)]
    text += ["", f"## At equal steps, beside {BASELINE}", "", *_by_quantity(tables["steps"], lines)]
    text += ["", f"## At equal training time, that of {REFERENCE}, beside {BASELINE} of that time", ""]
    text += [*steps_of(records, tables["time"]), *_by_quantity(tables["time"], lines)]
    text += ["", f"## Reuse and replaced token detection, beside {REFERENCE}", ""]
    text += _by_quantity(tables["reuse"], lines)
    text += ["", f"## Explorations, beside {REFERENCE}, seed 0", ""]
    text += _by_system(tables["explorations"], lines, radii)
    if tables["repeated"].systems:
        text += ["", f"## Explorations over seeds, beside {BASELINE}", "", *_by_quantity(tables["repeated"], lines)]
    text += ["", "## Attacks on text beside their control, seed 0", "", *controls(records, ARMS)]
    text += ["", "## Cost", "", *costs(records, ARMS)]
    numbers = {
        "num_arms": len(records),
        "missing": [job.key for job in absent],
        "sizes": sizes,
        "tables": {name: list(rows_of(found)) for name, found in tables.items()},
        "facts": {record.model: record.facts for record in records.values()},
    }
    return "\n".join(text) + "\n", numbers


def rows_of(found: Table) -> Iterator[dict]:
    """Every cell, for JSON."""
    for quantity, cells in found.cells.items():
        for label, cell in cells.items():
            place = dict(zip(Quantity._fields, quantity))
            yield {**place, "system": label, "arm": found.systems[label], **cell.as_dict()}


def tables_of(records: Records) -> Dict[str, Table]:
    """``steps``, ``time``, ``repeated``: SimCSE first; ``reuse``, and ``explorations`` of seed 0 alone: exact first."""
    return {
        "steps": table(records, systems_at_equal_steps(records)),
        "time": table(records, systems_at_equal_time(records)),
        "reuse": table(records, {name: name for name in (REFERENCE, "adaptive", "exact+rtd", "adaptive+rtd")}),
        "explorations": table(seed_zero(records), explored(records)),
        "repeated": table(records, repeated(records)),
    }


def _probe_radii(tables: Dict[str, Table]) -> List[float]:
    found = {
        quantity.epsilon for of_table in tables.values() for quantity in of_table.cells if _is_attacked_probe(quantity)
    }
    return sorted(found)


def _is_attacked_probe(quantity: Quantity) -> bool:
    return quantity.metric == "probe accuracy" and quantity.epsilon is not None


def cell_text(cell: Optional[Cell], digits: int) -> str:
    """``mean ± spread [low, high]*``."""
    if cell is None:
        return "n/a"
    text = f"{cell.mean:.{digits}f}"
    if cell.spread is not None:
        text += f" ± {cell.spread:.{digits}f}"
    if cell.change is not None:
        low, high = (f"{bound:+.{digits}f}" for bound in (cell.change.low, cell.change.high))
        text += f" [{low}, {high}]" + "*" * cell.change.is_clear
    return text


def _by_quantity(found: Table, lines: Sequence[Line]) -> List[str]:
    """A line a quantity, a column a system."""
    labels = [label for label in found.systems if any(label in cells for cells in found.cells.values())]
    rows = [["", *labels]]
    for line in lines:
        cells = line.of(found)
        if cells:
            rows.append([line.label, *(cell_text(cells.get(label), line.digits) for label in labels)])
    return markdown(rows) if len(rows) > 1 else ["Nothing of it is done."]


def _by_system(found: Table, lines: Sequence[Line], radii: Sequence[float]) -> List[str]:
    """A line an exploration, with the quantities that tell most."""
    left_out = {
        "PWWS succeeds, %",
        "PWWS, at ≤ 2 words, %",
        "mean of the seven sets",
        "probe, mistyped, %",
        "mean cosine",
    }
    left_out |= {
        f"{name}, ε {e:g}{u}" for e in radii[:-1] for name, u in (("retrieval@1", ", %"), ("centred cosine", ""))
    }
    chosen = [(line, cells) for line in lines if line.label not in left_out for cells in [line.of(found)] if cells]
    if not chosen:
        return ["Nothing of it is done."]
    rows = [["", "", *(line.label for line, _ in chosen)]]
    for label in found.systems:
        if any(label in cells for _, cells in chosen):
            values = [cell_text(cells.get(label), line.digits) for line, cells in chosen]
            rows.append([label, BY_NAME[label].about, *values])
    return markdown(rows)


def controls(records: Records, arms: Sequence[Arm]) -> List[str]:
    """Success, the control's, and the verdict by McNemar's tests (`fastadv.evaluation.text_report.findings`)."""
    rows = [["arm", "attack", "succeeds", "at ≤ 2 words", "beside", "its control", "verdict", "at ≤ 2 words"]]
    for arm in arms:
        record = records.get((arm.name, 0))
        for recipe, facts in (record.facts["text"] if record else {}).items():
            success = [_percent(facts["success"][cap]) for cap in ("any", "words_2")]
            control = ["", "", "", ""]
            if facts.get("no_control") is None:
                control = [facts["baseline"], _percent(facts["control"]["any"])]
                control += [facts["verdict"], facts["verdict_at_2_words"]]
            rows.append([arm.name, recipe, *success, *control])
    if len(rows) == 1:
        return ["No text was attacked."]
    legend = (
        "The control is the arm it stands beside, its logits shifted to this arm's class shares. A gain is fewer "
        "successes than both, on texts that both get right (McNemar, exact, 5 %, not corrected for their number); lean "
        "is fewer than the first alone."
    )
    return [legend, "", *markdown(rows)]


def costs(records: Records, arms: Sequence[Arm]) -> List[str]:
    rows = [["arm", "seeds", "steps", "ms a step (CPU)", "gradients a step", "training, CPU s", "measuring, CPU s"]]
    for arm in arms:
        of_arm = [record for (name, _), record in sorted(records.items()) if name == arm.name]
        if of_arm:
            facts = [record.facts for record in of_arm]
            a_step = [1000 * f["cpu_s_a_step"] for f in facts if "cpu_s_a_step" in f]
            train = [f["train_cpu_s"] for f in facts if "train_cpu_s" in f]
            rows.append(
                [
                    arm.name,
                    str(len(of_arm)),
                    str(facts[0].get("steps", "")),
                    _mean(a_step),
                    # What the last probe of `reuse: adaptive` found to be enough.
                    _mean([f["metrics"]["num_gradients"] for f in facts if "num_gradients" in f.get("metrics", {})]),
                    _mean(train),
                    f"{sum(sum(f['measure_cpu_s'].values()) for f in facts) / len(facts):.0f}",
                ]
            )
    return markdown(rows)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0f}" if values else ""


def steps_of(records: Records, found: Table) -> List[str]:
    said = []
    for label, name in found.systems.items():
        record = records.get((name, 0)) or next((r for (n, _), r in records.items() if n == name), None)
        if record is not None:
            seconds = record.facts.get("cpu_s_a_step", 0) * record.facts["steps"]
            said.append(f"{label} {record.facts['steps']} steps ({seconds:.0f} s)")
    return [f"Steps, and CPU seconds of seed 0: {', '.join(said)}.", ""] if said else []


def reasons(records: Records) -> List[str]:
    """What kept parts from being measured, each once with its arms."""
    arms_of: Dict[str, List[str]] = {}
    for record in records.values():
        for part, why in record.facts["missing"].items():
            arms_of.setdefault(f"{part}: {why}", []).append(f"{record.name}, seed {record.seed}")
    return [f"{why} ({'every arm' if len(arms) == len(records) else '; '.join(arms)})" for why, arms in arms_of.items()]


def _percent(share: dict) -> str:
    return "n/a" if share["value"] is None else f"{100 * share['value']:.1f} %"


def markdown(rows: Sequence[Sequence[str]]) -> List[str]:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return [head, "|---" + "|---:" * (len(rows[0]) - 1) + "|", *body]
