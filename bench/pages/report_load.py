"""How large the report of ten runs is, and how soon a browser shows it: ``python -m bench.pages.report_load``.

Made-up runs of a real size: 2,000 logged steps each with every curve, before and after training, and beside them an
evaluation of four systems with two seeds, attacks on embeddings and on texts of 230 words, and a geometry. The page is
loaded from the disk, each time in a new browser with an empty profile; the clock is the browser's own, from the
start of the navigation to its load event, and to the second frame after it, when the first has been shown. The status
is 1 where the page is larger than 5 MB, or the median of the second is over 2 s. A browser is needed (``browser.py``).
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.ops import machine_info, statistics
from bench.pages.browser import NAMES, VARIABLE, find_browser, open_page
from bench.turns import say
from fastadv.report.write import write_whole_report
from tests.evaluation.attacked_rows import LABELS, made_row
from tests.report import made

MAX_BYTES = 5_000_000
MAX_SECONDS = 2.0

_NUM_WORDS, _CHANGED_EVERY = 230, 12
_CLOCK = """<script>
addEventListener("load", () => {
  const loaded = performance.now();
  const shown = () => console.log("shown " + JSON.stringify([loaded, performance.now()]));
  requestAnimationFrame(() => requestAnimationFrame(shown));
});
</script>"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_folders(root: Path, num_runs: int, num_lines: int) -> list[Path]:
    """The runs, and what was measured of four of them."""
    runs = [made.make_run(root / f"run-{i}", num_lines, i, f"objective-{i}") for i in range(num_runs)]
    names = [run.name for run in runs[:4]]
    folders = [made.make_evaluation(root / "evaluation", names, num_rows=100)]
    folders += [made.make_embedding_attack(root / "attack", names), made.make_geometry(root / "geometry", names)]
    return [*runs, *folders, write_text_attack(root / "texts", names)]


def write_text_attack(folder: Path, names: list[str]) -> Path:
    """An attack that changed every twelfth word."""
    words = [f"word{i % 97}" for i in range(_NUM_WORDS)]
    changed = [f"other{i}" if i % _CHANGED_EVERY == 0 else word for i, word in enumerate(words)]
    before, after = " ".join(words), " ".join(changed)
    rows = []
    for i in range(100):
        is_fooled = bool(i % 2)
        values = {"first": before, "first_adversarial": after if is_fooled else before, "num_words": _NUM_WORDS}
        num_changed = -(-_NUM_WORDS // _CHANGED_EVERY) if is_fooled else 0
        outcome = "succeeded" if is_fooled else "failed"
        rows.append(made_row(i, outcome, LABELS[i % 4], num_words_changed=num_changed, num_queries=90 + i, **values))
    return made.write_text_rows(folder, {name: rows for name in names}, "textfooler")


def load_times(browser: str, page: Path) -> tuple[float, float]:
    """Seconds to the load event and to the first frame after it, of a copy of the page that a clock is added to."""
    text = page.read_text(encoding="utf-8")
    if _POLICY not in text:
        raise SystemExit(
            "bench.pages.report_load: the page has another policy than the one that the clock is let through by"
        )
    timed = page.with_name("timed.html")
    timed.write_text(
        text.replace(_POLICY, f"{_POLICY}; script-src 'unsafe-inline'", 1).replace("</body>", f"{_CLOCK}</body>"),
        encoding="utf-8",
    )
    # A picture is taken, since a browser without a window draws no frame otherwise.
    picture = page.with_name("timed.png")
    seen = open_page(browser, timed, (f"--screenshot={picture}", "--window-size=1280,900"))
    (line,) = (line for line in seen.console if "shown [" in line)
    loaded, shown = json.loads(line[line.index("[") : line.rindex("]") + 1])
    return loaded / 1e3, shown / 1e3


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.pages.report_load", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--lines", type=int, default=2000, help="logged steps of a run")
    parser.add_argument("--repeats", type=int, default=5, help="browsers started")
    options = parser.parse_args(arguments)
    browser = find_browser()
    if browser is None:
        print(
            f"bench.pages.report_load: none of {', '.join(NAMES)} is on the PATH; {VARIABLE} can name one",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as folder:
        folders = write_folders(Path(folder), options.runs, options.lines)
        say(f"{len(folders)} folders are made")
        wall, cpu = time.perf_counter(), time.process_time()
        page, _ = write_whole_report(folders, str(Path(folder) / "report"))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        num_bytes = page.stat().st_size
        num_charts = len(list((page.parent / "figures").iterdir()))
        say(f"written in {wall:.1f} s ({cpu:.1f} s of CPU): {num_charts} charts")
        times = []
        for number in range(options.repeats):
            times.append(load_times(browser, page))
            say(f"load {number + 1} of {options.repeats}: {times[-1][0]:.2f} s, shown {times[-1][1]:.2f} s")
    loaded, shown = (statistics([one[i] for one in times]) for i in (0, 1))
    is_small, is_quick = num_bytes < MAX_BYTES, shown["median"] < MAX_SECONDS
    machine = ", ".join(f"{name} {value}" for name, value in machine_info().items() if isinstance(value, str))
    print(f"{machine}. Load {os.getloadavg()[0]:.1f}.\n")
    rows = [
        (f"the report of {options.runs} runs of {options.lines:,} lines, and 4 more folders", "", "allowed", ""),
        ("---", "---:", "---:", "---"),
        ("size of report.html, MB", f"{num_bytes / 1e6:.2f}", f"{MAX_BYTES / 1e6:g}", _verdict(is_small)),
        (f"load event, s, least / median of {len(times)}", f"{loaded['min']:.2f} / {loaded['median']:.2f}", "", ""),
        ("shown, s", f"{shown['min']:.2f} / {shown['median']:.2f}", f"{MAX_SECONDS:g}", _verdict(is_quick)),
        (f"writing it with {num_charts} pictures, s, wall / CPU", f"{wall:.1f} / {cpu:.1f}", "", ""),
    ]
    print("\n".join(f"| {' | '.join(row)} |" for row in rows))
    return 0 if is_small and is_quick else 1


def _verdict(is_right: bool) -> str:
    return "within" if is_right else "OVER"


if __name__ == "__main__":
    raise SystemExit(main())
