"""What the studies share: arms in processes of their own, and the three files in which a study ends.

A study starts a process an arm or a command, so many at a time, its output in a log; the first that fails ends the
study, with the last line of its log. What is done is told by what an arm has left, which its study looks for.
"""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable, List, Mapping, Optional, Sequence, TypeVar

from fastadv.files.atomic_file import written_aside

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_logged(module: str, arguments: Sequence[str], log: Path, what: str, threads: Optional[int] = None) -> float:
    """Runs ``python -m MODULE ARGUMENTS`` with its output added to ``log``; says when it starts and when it is done.

    Args:
        what: the command in words.
        threads: of OpenMP in the process; None: as it chooses.

    Returns:
        seconds of wall time.

    Raises:
        SystemExit: it failed; names ``what``, the last line of its log, and the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"{what}: running ({log})", flush=True)
    environment = None if threads is None else {**os.environ, "OMP_NUM_THREADS": str(threads)}
    started = time.monotonic()
    with log.open("a") as file:
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False, env=environment)
    if done.returncode != 0:
        last = log.read_text(errors="replace").strip().splitlines()[-1:]
        raise SystemExit(f"{what} failed: {' '.join(last)} ({log})")
    seconds = time.monotonic() - started
    print(f"{what}: done in {seconds:.0f} s", flush=True)
    return seconds


def in_order(jobs: Sequence[Job], run: Callable[[Job], Result], processes: int) -> List[Result]:
    """``run`` of every job, ``processes`` at a time, begun in their order; once one fails no other is begun.

    A job may wait for one before it, which has begun by then.
    """
    has_failed = threading.Event()

    def run_unless_failed(job: Job) -> Optional[Result]:
        if has_failed.is_set():
            return None
        try:
            return run(job)
        except BaseException:
            has_failed.set()
            raise

    with ThreadPoolExecutor(processes) as pool:
        waiting = [pool.submit(run_unless_failed, job) for job in jobs]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            has_failed.set()
            raise


def write_study(out: Path, text: str, numbers: Mapping, draw: Callable[[Path], None]) -> None:
    """``study.md``, ``study.json`` and, by ``draw``, ``study.png``, each whole or not at all."""
    with written_aside(out / "study.md") as aside:
        aside.write_text(text, encoding="utf-8")
    with written_aside(out / "study.json") as aside:
        aside.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    with written_aside(out / "study.png") as aside:
        draw(aside)
