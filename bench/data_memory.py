"""How much memory the data layer takes, by the number of lines: ``python -m bench.data_memory``.

Each size runs in a process of its own: the text is tokenised into the cache, mapped again as a second run would, and
one epoch's order is gone through, plain and bucketed, with a row of each batch read. What counts is RssAnon of
/proc/self/status (Linux): memory that nothing but the process itself can give back, unlike the pages of mapped files.
A thread reads it every 20 ms, and the highest reading is the process's. The tokenizer is a stand-in of one id a word,
so that its memory is not measured. Progress goes to stderr. The text and the cache lie in TMPDIR.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALLOWED_MIB = 300 * 1e6 / 2**20
_LINES_BETWEEN_REPORTS = 10**6
_WORDS = "the film was not very good a wonderful story it is dull actor great but plot slow never love this".split()


def rss_anon_mib() -> float:
    """Anonymous resident memory of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status has no RssAnon; this kernel is too old")


class HighestReading:
    """The highest `rss_anon_mib` of the process while the context is open: ``value_mib``."""

    def __enter__(self) -> "HighestReading":
        self.value_mib, self._is_closed = rss_anon_mib(), threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def _read(self) -> None:
        while not self._is_closed.wait(0.02):
            self.value_mib = max(self.value_mib, rss_anon_mib())

    def __exit__(self, *_) -> None:
        self._is_closed.set()
        self._thread.join()
        self.value_mib = max(self.value_mib, rss_anon_mib())


class Progress:
    """What a phase has done so far, a line on stderr for every million lines of text."""

    def __init__(self, num_lines: int):
        self._num_lines, self._started = num_lines, time.perf_counter()
        self.begin("")

    def begin(self, phase: str) -> None:
        self._phase, self._num_done = phase, 0

    def advance(self, num_done: int) -> None:
        before, self._num_done = self._num_done, self._num_done + num_done
        if self._num_done // _LINES_BETWEEN_REPORTS > before // _LINES_BETWEEN_REPORTS:
            print(
                f"{time.strftime('%H:%M:%S')}  {self._phase}: {self._num_done:,} of {self._num_lines:,} lines, "
                f"{time.perf_counter() - self._started:.0f} s, RssAnon {rss_anon_mib():.1f} MiB",
                file=sys.stderr,
                flush=True,
            )


def write_text(path: Path, num_lines: int) -> None:
    """Different lines of 5 to 12 words."""
    with open(path, "w", encoding="utf-8") as file:
        for i in range(num_lines):
            first, length = i % len(_WORDS), 5 + i % 8
            file.write(" ".join((_WORDS + _WORDS)[first : first + length]) + f" {i}\n")


def tokenize(texts):
    """One id a word, between two special tokens."""
    tokens = [[1, *(len(word) for word in text.split()), 2] for text in texts]
    return tokens, [[True] + [False] * (len(ids) - 2) + [True] for ids in tokens]


def measure(folder: Path, num_lines: int, batch_size: int) -> dict:
    """The numbers of one size, in the process that runs this."""
    from fastadv.data.batching import BatchOrder
    from fastadv.data.text import TokenizedText

    progress = Progress(num_lines)

    def tokenize_and_report(texts):
        progress.advance(len(texts))
        return tokenize(texts)

    started = time.perf_counter()
    before_mib = rss_anon_mib()
    with HighestReading() as reading:
        progress.begin("tokenised")
        for _ in range(2):
            text = TokenizedText.build(
                folder / "text.txt", tokenize_and_report, "words", 16, cache_dir=folder, progress=False
            )
        build_mib, build_s = rss_anon_mib(), time.perf_counter() - started
        for bucket_batches in (0, 100):
            progress.begin("bucketed epoch" if bucket_batches else "plain epoch")
            num_seen = 0
            for batch in BatchOrder(text.lengths, batch_size, 0, bucket_batches).iterate(0):
                text[int(batch[0])]
                num_seen += len(batch)
                progress.advance(len(batch))
            # A benchmark of an order that loses sentences would be worth nothing.
            assert num_seen == len(text) == num_lines, (num_seen, len(text), num_lines)
    return {
        "num_lines": len(text),
        "before_mib": before_mib,
        "after_build_mib": build_mib,
        "highest_mib": reading.value_mib,
        "build_s": build_s,
        "all_s": time.perf_counter() - started,
    }


def measure_in_process(num_lines: int, batch_size: int) -> dict:
    with tempfile.TemporaryDirectory(prefix="fastadv-memory-") as name:
        write_text(Path(name) / "text.txt", num_lines)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
        command = [sys.executable, "-m", "bench.data_memory", "--measure", name, str(num_lines)]
        command += ["--batch-size", str(batch_size)]
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs=2, default=[10**4, 10**7], metavar=("SMALL", "LARGE"))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        folder, num_lines = arguments.measure
        print(json.dumps(measure(Path(folder), int(num_lines), arguments.batch_size)))
        return 0
    results = []
    for num_lines in arguments.sizes:
        result = measure_in_process(num_lines, arguments.batch_size)
        results.append(result)
        print(
            f"{result['num_lines']:>10,} lines: RssAnon {result['before_mib']:.1f} MiB before, "
            f"{result['after_build_mib']:.1f} after the build ({result['build_s']:.0f} s), "
            f"{result['highest_mib']:.1f} at the highest ({result['all_s']:.0f} s in all)",
            flush=True,
        )
    difference = results[1]["highest_mib"] - results[0]["highest_mib"]
    is_met = difference <= ALLOWED_MIB
    print(f"difference  {difference:.1f} MiB of {ALLOWED_MIB:.1f} (300 MB) allowed: {'met' if is_met else 'NOT MET'}")
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
