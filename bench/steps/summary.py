"""What ``bench.training_step`` and ``bench.attack_step`` measured: tables, targets, and cost against N.

Ratios of CPU time are medians over turns of two rows' times in the same turn; so are differences of two rows, in units
of stock SimCSE in fp32.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Callable, Optional

PROBE_EVERY = 100
"""steps between the probes of ``adaptive``"""
STOCK, EXACT = "simcse stock", "exact"
ALLOWED_ENGINE_OVERHEAD = 0.02


class Steps:
    """The rows of one encoder and batch size."""

    def __init__(self, benchmarks: list[dict]):
        self.benchmarks = benchmarks
        self.stock = self.find(STOCK, "fp32")
        if self.stock is None:
            raise ValueError("there is no row of stock SimCSE in fp32 to compare with")

    def find(self, row: str, dtype: str, num_steps: Optional[int] = None, via: Optional[str] = None) -> Optional[dict]:
        """The row, the fastest where there are several ways to run it; through the engine if there is that way."""
        found = [
            b
            for b in self.benchmarks
            if (b["extra_info"]["row"], b["extra_info"]["dtype"], b["extra_info"]["num_steps"])
            == (row, dtype, num_steps)
            and via in (None, b["extra_info"]["via"])
        ]
        through_engine = [b for b in found if b["extra_info"]["via"] == "engine"]
        return min(through_engine or found, key=lambda b: b["stats"]["median"], default=None)

    def ratio(self, benchmark: dict, base: dict) -> float:
        """Of CPU times, turn by turn."""
        ours, others = cpu_by_turn(benchmark), cpu_by_turn(base)
        return median(ours[turn] / others[turn] for turn in ours if turn in others)

    def added(self, benchmark: dict, to: dict) -> float:
        """What a row costs more than another, in stock steps."""
        more, less, stock = cpu_by_turn(benchmark), cpu_by_turn(to), cpu_by_turn(self.stock)
        return median((more[t] - less[t]) / stock[t] for t in more if t in less and t in stock)

    def of_stock(self, benchmark: dict) -> float:
        """In stock fp32 steps; ``adaptive`` with its probes spread over the steps between them."""
        info = benchmark["extra_info"]
        ratio = self.ratio(benchmark, self.stock)
        probe = self.find("adaptive probe", info["dtype"], info["num_steps"]) if info["row"] == "adaptive" else None
        return ratio if probe is None else ratio + self.added(probe, benchmark) / PROBE_EVERY


def cpu_by_turn(benchmark: dict) -> dict[int, float]:
    return dict(zip(benchmark["extra_info"]["turns"], benchmark["stats"]["data"], strict=True))


def groups_of(benchmarks: list[dict]) -> dict[str, Steps]:
    """Name of a group → its rows."""
    found: dict[str, list[dict]] = {}
    for benchmark in benchmarks:
        found.setdefault(benchmark["group"].removeprefix("training_step "), []).append(benchmark)
    return {name: Steps(rows) for name, rows in found.items()}


def markdown(heads: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def training_table(found: dict) -> str:
    """Markdown: every row of every group, then the targets."""
    machine = ", ".join(f"{name} {value}" for name, value in found.get("machine_info", {}).items())
    lines = [
        f"{machine}.",
        "CPU and wall are medians of process and wall time in s, quartiles in brackets. Ratios are medians over turns, "
        "of CPU time over that of stock SimCSE in fp32 and in the row's own dtype (the faster of its ways), of wall "
        "time, and of the peak of live tensors, in all and beside parameters, gradients and optimizer state.",
    ]
    groups = groups_of(found["benchmarks"])
    for name, steps in groups.items():
        info = steps.stock["extra_info"]
        lines += ["", f"**{name}**, {info['threads']} thread(s), sentences of {describe_lengths(info)}", ""]
        heads = ["step", "N", "dtype", "via", "CPU", "of stock fp32", "of stock, same dtype", "wall", "of stock, wall"]
        heads += ["GFLOP", "GFLOP/s", "live MiB", "of stock", "beside, MiB", "of stock"]
        lines += markdown(heads, [cells_of(steps, benchmark) for benchmark in steps.benchmarks])
    lines += ["", "Targets:", ""]
    rows = [[name, *target.cells()] for name, steps in groups.items() for target in targets(name, steps)]
    lines += markdown(["rows", "what", "at most", "measured", ""], rows)
    return "\n".join(lines) + "\n"


def describe_lengths(info: dict) -> str:
    return (
        f"{info['length_mean']} tokens (sd {info['length_sd']}, quartiles {info['length_q1']:g}, "
        f"{info['length_median']:g}, {info['length_q3']:g}), padded to {info['padded_length']} in stock and public"
    )


def cells_of(steps: Steps, benchmark: dict) -> list[str]:
    info, stats, stock = benchmark["extra_info"], benchmark["stats"], steps.stock["extra_info"]
    same_dtype = steps.find(STOCK, info["dtype"])
    wall = info["wall"]
    return [
        info["row"],
        "" if info["num_steps"] is None else str(info["num_steps"]),
        info["dtype"],
        info["via"],
        f"{stats['median']:.3f} ({stats['q1']:.3f} to {stats['q3']:.3f})",
        f"{steps.ratio(benchmark, steps.stock):.3f}",
        "" if same_dtype is None else f"{steps.ratio(benchmark, same_dtype):.3f}",
        f"{wall['median']:.3f}",
        f"{info['ratio_wall']['median']:.3f}",
        f"{info['flops'] / 1e9:.1f}",
        f"{info['gflop_per_s']:.1f}",
        f"{info['total_mib']:.0f}",
        f"{info['total_mib'] / stock['total_mib']:.2f}",
        f"{info['working_mib']:.0f}",
        f"{info['working_mib'] / stock['working_mib']:.2f}",
    ]


@dataclass(frozen=True)
class Target:
    """One line of what must hold. ``measured`` None: the rows it needs were not run."""

    what: str
    limit: Optional[float]
    measured: Optional[float]
    beside: str = ""
    is_least: bool = False

    @property
    def verdict(self) -> str:
        """``PASS``, ``short``, ``measured`` where there is no limit, ``not run``."""
        if self.measured is None:
            return "not run"
        if self.limit is None:
            return "measured"
        holds = self.measured >= self.limit if self.is_least else self.measured <= self.limit
        return "PASS" if holds else "short"

    def cells(self) -> list[str]:
        limit = "" if self.limit is None else f"{'at least ' if self.is_least else ''}{self.limit:g}"
        measured = "" if self.measured is None else f"{self.measured:.3f}{self.beside}"
        return [self.what, limit, measured, self.verdict]


def targets(name: str, steps: Steps) -> list[Target]:
    """Those of the 6-layer encoder at N = 5; none for another."""
    if not name.startswith("minilm"):
        return []

    def cost(row: str, dtype: str, num_steps: Optional[int] = 5) -> Optional[float]:
        found = steps.find(row, dtype, num_steps)
        return None if found is None else steps.of_stock(found)

    def of_two(what: Callable[[dict, dict], float], first: Optional[dict], second: Optional[dict]) -> Optional[float]:
        return None if first is None or second is None else what(first, second)

    exact = steps.find(EXACT, "fp32", 5)
    # The more steps more, the less the noise of two rows counts.
    longest = max(
        (b["extra_info"]["num_steps"] for b in steps.benchmarks if b["extra_info"]["row"] == EXACT), default=5
    )
    longer = steps.find(EXACT, "fp32", longest) if longest > 5 else None
    one_more = of_two(lambda more, less: steps.added(more, less) / (longest - 5), longer, exact)
    adaptive = steps.find("adaptive", "fp32", 5)
    gain = None if adaptive is None else adaptive["extra_info"]["first_metrics"].get("reuse_gain_share")
    found = [
        Target("exact, fp32, no RTD", 2.0, cost(EXACT, "fp32")),
        Target("exact, bf16, no RTD", 0.72, cost(EXACT, "bf16")),
        Target("adaptive, fp32, probes amortised", 1.2, cost("adaptive", "fp32")),
        Target("adaptive, bf16, probes amortised", 0.48, cost("adaptive", "bf16")),
        Target("adaptive, fp32, share of the gain", 0.98, gain, is_least=True),
        Target("USCAL, fp32", 1.15, cost("uscal", "fp32", None)),
        Target(
            "SCAL, fp32, of its textbook form",
            0.75,
            of_two(steps.ratio, steps.find("scal", "fp32"), steps.find("scal textbook", "fp32")),
        ),
    ]
    for row, limit in (("rtd unigram", 0.45), ("rtd generator", 0.55)):
        found.append(Target(f"{row} adds, fp32", limit, of_two(steps.added, steps.find(row, "fp32", 5), exact)))
    stock = steps.stock["extra_info"]
    memory = None if exact is None else exact["extra_info"]["total_mib"] / stock["total_mib"]
    beside = (
        "" if exact is None else f" (beside the state {exact['extra_info']['working_mib'] / stock['working_mib']:.3f})"
    )
    overheads = []
    for dtype in ("fp32", "bf16"):
        in_engine, in_torch = (steps.find(EXACT, dtype, 5, via) for via in ("engine", "torch"))
        overhead = of_two(lambda a, b: steps.ratio(a, b) - 1, in_engine, in_torch)
        shown = "" if in_torch is None else f" (exact in plain torch: {steps.of_stock(in_torch):.3f} of stock)"
        overheads.append(Target(f"the engine adds to exact, {dtype}", ALLOWED_ENGINE_OVERHEAD, overhead, shown))
    return found + [
        Target("peak live memory, exact, fp32, of SimCSE's", 1.0, memory, beside),
        Target("one more inner step, exact, fp32", 0.22, one_more),
        Target("the public code's structure, fp32", None, cost("public", "fp32")),
        Target(
            "stock's GFLOP/s over exact's, fp32",
            0.8,
            None if exact is None else stock["gflop_per_s"] / exact["extra_info"]["gflop_per_s"],
            is_least=True,
        ),
        *overheads,
    ]


def draw_training(found: dict, figure: Path) -> None:
    """Cost in stock fp32 steps against N, a line a mode, a panel a group and dtype."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    panels = [
        (name, steps, dtype)
        for name, steps in groups_of(found["benchmarks"]).items()
        for dtype in dict.fromkeys(b["extra_info"]["dtype"] for b in steps.benchmarks)
    ]
    columns = min(2, len(panels))
    num_lines = -(-len(panels) // columns)
    fig, axes = plt.subplots(num_lines, columns, figsize=(4.8 * columns, 4.2 * num_lines + 0.8), squeeze=False)
    # A row looks alike in all panels.
    rows = dict.fromkeys(row for _, steps, dtype in panels for row in lines_of(steps, dtype))
    color_of = {row: plt.get_cmap("tab20")(i) for i, row in enumerate(rows)}
    shown = {}
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (name, steps, dtype) in zip(axes.flat, panels):
        for row, points in lines_of(steps, dtype).items():
            if None in points:
                shown[row] = axis.axhline(points[None], linestyle=":", color=color_of[row])
            else:
                (shown[row],) = axis.plot(list(points), list(points.values()), marker="o", color=color_of[row])
        axis.set_title(f"{name}, {dtype}")
        axis.set_xlabel("inner steps N")
        axis.set_xlim(left=0)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(which="minor", labelsize=6)
        axis.set_ylabel("CPU time, stock SimCSE in fp32 = 1")
        axis.grid(which="both", alpha=0.3)
    fig.legend(shown.values(), shown, fontsize=8, ncols=5, loc="lower center")
    fig.tight_layout(rect=(0, 0.7 / fig.get_figheight(), 1, 1))
    fig.savefig(figure, dpi=120)
    plt.close(fig)


def lines_of(steps: Steps, dtype: str) -> dict[str, dict[Optional[int], float]]:
    """Row → N → cost in stock fp32 steps; N is None for steps without a search of N."""
    found: dict[str, dict[Optional[int], float]] = {}
    for benchmark in steps.benchmarks:
        info = benchmark["extra_info"]
        if info["dtype"] == dtype and info["row"] != "adaptive probe":
            best = steps.find(info["row"], dtype, info["num_steps"])
            found.setdefault(info["row"], {})[info["num_steps"]] = steps.of_stock(best)
    return {row: dict(sorted(points.items(), key=lambda p: p[0] or 0)) for row, points in found.items()}


def attack_table(found: dict) -> str:
    """Markdown: speeds of the search alone."""
    machine = ", ".join(f"{name} {value}" for name, value in found.get("machine_info", {}).items())
    heads = ["reuse", "norm", "kernels", "shape", "dtype", "threads", "CPU s (quartiles)", "wall s"]
    rows = []
    for benchmark in found["benchmarks"]:
        info, stats = benchmark["extra_info"], benchmark["stats"]
        names = ("reuse", "norm", "backend", "shape", "dtype", "threads")
        rows.append(
            [
                *(str(info[name]) for name in names),
                f"{stats['median']:.3f} ({stats['q1']:.3f} to {stats['q3']:.3f})",
                f"{info['wall']['median']:.3f}",
                f"{info['sentences_per_s']:.1f}",
                f"{info['tokens_per_s']:.0f}",
            ]
        )
    lines = [
        f"{machine}.",
        "A call is the search alone: N inner steps on a batch that is embedded, against constant keys.",
    ]
    return "\n".join([*lines, "", *markdown([*heads, "sentences/s", "tokens/s"], rows)]) + "\n"


def draw_attack(found: dict, figure: Path) -> None:
    """Sentences a second, a bar each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [
        f"{b['extra_info']['reuse']} {b['extra_info']['norm']}, {b['extra_info']['backend']}"
        for b in found["benchmarks"]
    ]
    fig, axis = plt.subplots(figsize=(7, 1.2 + 0.24 * len(names)))
    axis.barh(names, [b["extra_info"]["sentences_per_s"] for b in found["benchmarks"]])
    axis.invert_yaxis()
    axis.set_xlabel("sentences a second of CPU time")
    axis.grid(axis="x", alpha=0.3)
    fig.tight_layout()
    fig.savefig(figure, dpi=120)
    plt.close(fig)
