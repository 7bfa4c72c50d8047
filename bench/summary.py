"""One table and one picture of a benchmark: ``python -m bench.summary ops.json --table ops.md --figure ops.png``.

Reads JSON as pytest-benchmark writes it, ``python -m bench.ops`` among others. A row of the table is an op at one shape
and number of threads: the least and the median time of each form, and, where the benchmark took them, the bytes a
second and the share of a copy's. Without ``--table`` it is printed. Whole training steps and the attack alone have
tables and pictures of their own (``bench/steps/summary.py``).
"""

import argparse
import json
import sys
from pathlib import Path

from bench.steps import summary as step_summary

_ORDER = ("eager", "compiled", "native", "triton", "copy")


def read_rows(path: Path) -> dict[tuple, dict[str, dict]]:
    """(group, shape, dtype, device, threads) → form → benchmark."""
    rows: dict[tuple, dict[str, dict]] = {}
    for benchmark in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]:
        info = benchmark.get("extra_info", {})
        group = benchmark.get("group") or benchmark["name"].partition("[")[0]
        key = (group, *(info.get(name, "") for name in ("shape", "dtype", "device", "threads")))
        rows.setdefault(key, {})[info.get("backend", "native")] = benchmark
    return rows


def forms_of(rows: dict[tuple, dict[str, dict]]) -> list[str]:
    """The forms that were measured, the slow ones first."""
    found = {form for by_form in rows.values() for form in by_form}
    return [form for form in _ORDER if form in found] + sorted(found.difference(_ORDER))


def times(benchmark: dict) -> str:
    stats = benchmark["stats"]
    return f"{stats['min'] * 1e3:.3g} / {stats['median'] * 1e3:.3g}"


def table(path: Path) -> str:
    """Markdown."""
    rows = read_rows(path)
    forms = forms_of(rows)
    machine = json.loads(path.read_text(encoding="utf-8")).get("machine_info", {})
    described = ", ".join(f"{name} {value}" for name, value in machine.items() if isinstance(value, str))
    lines = [f"Least / median time in ms. {described}.", ""]
    heads = ["op", "shape", "dtype", "device", "threads", *forms, "GB/s", "of copy"]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for key, by_form in rows.items():
        cells = [str(cell) for cell in key] + [times(by_form[f]) if f in by_form else "" for f in forms]
        ours = by_form.get("native") or by_form.get("triton") or {}
        info = ours.get("extra_info", {})
        cells.append(f"{info['gb_per_s']:.1f}" if "gb_per_s" in info else "")
        cells.append(f"{info['share_of_copy']:.0%}" if "share_of_copy" in info else "")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(path: Path, figure: Path) -> None:
    """Least times of every form, a bar each, on one logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = read_rows(path)
    forms = forms_of(rows)
    fig, axis = plt.subplots(figsize=(8, 1.2 + 0.16 * len(rows) * len(forms)))
    height = 0.8 / len(forms)
    for i, form in enumerate(forms):
        bars = [(row, by_form[form]) for row, by_form in enumerate(rows.values()) if form in by_form]
        axis.barh(
            [row + (i - (len(forms) - 1) / 2) * height for row, _ in bars],
            [benchmark["stats"]["min"] * 1e3 for _, benchmark in bars],
            height,
            label=form,
        )
    axis.set_yticks(range(len(rows)), [f"{key[0]}, {key[4]} thr." if key[4] else key[0] for key in rows])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("least time, ms")
    axis.grid(axis="x", which="both", alpha=0.3)
    axis.legend()
    fig.tight_layout()
    fig.savefig(figure, dpi=120)
    plt.close(fig)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", type=Path)
    parser.add_argument("--table", type=Path, default=None)
    parser.add_argument("--figure", type=Path, default=None)
    arguments = parser.parse_args()
    found = json.loads(arguments.json.read_text(encoding="utf-8"))
    kind = found["benchmarks"][0].get("group", "").partition(" ")[0] if found["benchmarks"] else ""
    tables = {"training_step": step_summary.training_table, "attack_step": step_summary.attack_table}
    text = tables[kind](found) if kind in tables else table(arguments.json)
    if arguments.table is None:
        print(text, end="")
    else:
        arguments.table.write_text(text, encoding="utf-8")
    if arguments.figure is not None:
        figures = {"training_step": step_summary.draw_training, "attack_step": step_summary.draw_attack}
        if kind in figures:
            figures[kind](found, arguments.figure)
        else:
            draw(arguments.json, arguments.figure)
    return 0


if __name__ == "__main__":
    sys.exit(main())
