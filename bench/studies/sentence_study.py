"""Sentence encoders over three seeds, in two parts: searches over embeddings, and searches over texts.

    fastadv prepare-attack-data
    python -m bench.studies.sentence_study --out runs/study --senteval senteval/
    python -m bench.studies.sentence_study --part variants --out runs/study-variants --senteval senteval/ \
        --word_sets sets.json --word_vectors vectors.npz
    python -m bench.studies.sentence_study --part variants --report --out runs/study-variants \
        --write docs/study-variants.md

MiniLM trains on the sentences of IMDb reviews, at equal steps and at equal training time, and is measured on sentences
that nothing trained on: STS, the geometry of its vectors, PGD on its embeddings, attacks on its texts
(`bench/studies/sentence/arm.py`). The arms, their order and their cost: `bench/studies/sentence/arms.py`, those that
train on a text's own variants `bench/studies/sentence/variants.py`. Without ``--senteval``, a folder of your own in
SentEval layout, STS is n/a and positives are two dropout masks; without ``--word_vectors`` so is TextBugger.

Arms run in processes of their own, one thread each. What an arm has finished is not done again, so the study can be
stopped and gone on with; ``--report`` writes the report from what is there. It ends in ``study.md``, ``study.png`` and
``study.json``. Arms of several machines are put together by copying their folders, of which ``measured.json`` and
``measured.npz`` are enough.
"""

import argparse
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from bench.studies.sentence import variants_page
from bench.studies.sentence.arm import DESIGNS, Files, add_file_flags, given_files
from bench.studies.sentence.arms import (
    EMBEDDINGS,
    TIME,
    Arm,
    Design,
    Job,
    Sizes,
    guessed_seconds,
    jobs_of,
    needed_by,
)
from bench.studies.sentence.plots import plot
from bench.studies.sentence.read import stands_for_itself
from bench.studies.sentence.records import read_record, read_records
from bench.studies.sentence.report import report, tables_of
from bench.studies.sentence.variants import uses_word_sets
from bench.studies.study_runs import in_order, run_logged, write_study
from fastadv.errors import UserError


class Progress:
    """Says what is done and how long the rest will take, by how the guesses have held so far."""

    def __init__(self, jobs: Sequence[Job], sizes: Sizes, has_sts: bool, processes: int):
        self._guess = {job.key: guessed_seconds(job, sizes, has_sts) for job in jobs}
        self._left = dict(self._guess)
        self._processes, self._lock = processes, threading.Lock()
        self._guessed = self._taken = 0.0

    def skip(self, job: Job) -> None:
        with self._lock:
            self._left.pop(job.key, None)

    def done(self, job: Job, seconds: float) -> None:
        with self._lock:
            self._left.pop(job.key, None)
            self._guessed += self._guess[job.key]
            self._taken += seconds
            left = sum(self._left.values()) * self._taken / self._guessed / self._processes
            print(f"{len(self._left)} arms left, about {left / 60:.0f} minutes", flush=True)


class Study:
    """Runs jobs that are not done.

    Args:
        jobs: in their order.
        arguments: of `bench.studies.sentence.arm`, for every arm.
    """

    def __init__(self, jobs: Sequence[Job], out: Path, sizes: Sizes, arguments: Sequence[str], processes: int):
        self.jobs, self.out, self.sizes, self.processes = list(jobs), out, sizes, processes
        self.arguments = list(arguments)
        self._ended: Dict[str, threading.Event] = {job.key: threading.Event() for job in jobs}
        self._progress = Progress(jobs, sizes, "--senteval" in self.arguments, processes)

    def run(self) -> None:
        """Runs them.

        Raises:
            UserError: the folder has arms of other sizes.
            SystemExit: an arm failed, or needs one that is neither done nor among the jobs.
        """
        done = read_records(self.out)
        if any(record.facts["sizes"] != self.sizes.as_dict() for record in done.values()):
            raise UserError(f"--out {self.out}: its arms were measured with other sizes; give another folder")
        for job in self.jobs:
            if (job.arm.name, job.seed) in done:
                self._progress.skip(job)
        if "--senteval" in self.arguments:
            without = [record.model for record in done.values() if "sts" in record.facts["missing"]]
            if without:
                print(
                    f"done without STS, and left so until their folders are removed: {', '.join(without)}", flush=True
                )
        in_order(self.jobs, self._run, self.processes)

    def _run(self, job: Job) -> None:
        try:
            self._run_or_wait(job)
        finally:
            self._ended[job.key].set()

    def _run_or_wait(self, job: Job) -> None:
        if read_record(self.out / job.key) is not None:
            return
        for needed in needed_by(job):
            if needed.key in self._ended:
                self._ended[needed.key].wait()
            if read_record(self.out / needed.key) is None:
                raise SystemExit(f"{job.key} needs {needed.key}, which is not done; add it to --arms, with seed 0")
        if job.arm.group == TIME and stands_for_itself(read_records(self.out), job):
            print(f"{job.key}: {job.arm.system} itself is at equal time", flush=True)
            self._progress.skip(job)
            return
        log = self.out / "logs" / f"{job.key}.txt"
        own = ["--out", str(self.out), "--part", job.design.name, "--arm", job.arm.name, "--seed", str(job.seed)]
        seconds = run_logged("bench.studies.sentence.arm", [*own, *self.arguments], log, job.key, threads=1)
        self._progress.done(job, seconds)


def plan(jobs: Sequence[Job], out: Path, sizes: Sizes, has_sts: bool, processes: int) -> str:
    """What would be run, in order, with guessed minutes of one thread."""
    lines, total = [], 0.0
    for job in jobs:
        is_done = (out / job.key / "measured.json").exists()
        seconds = 0.0 if is_done else guessed_seconds(job, sizes, has_sts)
        total += seconds
        about = f" ({job.arm.about})" if job.arm.about else ""
        lines.append(f"{job.key:<32} {'done' if is_done else f'{seconds / 60:4.1f} min'}{about}")
    minutes = total / 60
    lines.append(f"{len(jobs)} arms, {minutes:.0f} minutes of one thread, {minutes / processes:.0f} of {processes}")
    lines.append("guessed from times on two hyperthreads of one core with other work on them; into " + str(out))
    return "\n".join(lines)


def write_report(out: Path, jobs: Sequence[Job], design: Design = EMBEDDINGS) -> str:
    """The three files, from what is done; gives the text.

    Raises:
        UserError: no arm is done.
    """
    records = read_records(out)
    if not records:
        raise UserError(f"{out} has no finished arm to report")
    if design is EMBEDDINGS:
        text, numbers = report(records, jobs)
        write_study(out, text, numbers, lambda path: plot(records, tables_of(records), path))
    else:
        text, numbers = variants_page.report(records, jobs)
        write_study(out, text, numbers, lambda path: variants_page.plot(records, path))
    return text


def hand_made_word_sets(out: Path) -> str:
    """A file of few words, for ``--smoke``."""
    from bench.studies.text_study import SMOKE_ANTONYMS, SMOKE_SYNONYMS
    from fastadv.data.variants.word_sets import WordSets

    out.mkdir(parents=True, exist_ok=True)
    WordSets(SMOKE_SYNONYMS, SMOKE_ANTONYMS, {"made": "by hand, for --smoke"}).save(out / "word_sets.json")
    return str(out / "word_sets.json")


def check_files(arms: Sequence[Arm], files: Files) -> None:
    """UserError where an arm needs a file that is not given."""
    needing = [arm.name for arm in arms if uses_word_sets(arm)]
    if needing and files.word_sets is None:
        raise UserError(f"{needing[0]} trains with synonyms or antonyms: give --word_sets, of fastadv word-sets")


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=list(DESIGNS), default=EMBEDDINGS.name, help="which searches")
    parser.add_argument("--out", type=Path, help="by default runs/study, of variants runs/study-variants")
    add_file_flags(parser)
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="some of them; explorations then run with every seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="arms at a time")
    parser.add_argument("--smoke", action="store_true", help="a few steps and rows of few arms: whether all of it runs")
    parser.add_argument("--dry_run", action="store_true", help="print the arms in their order, and what they cost")
    parser.add_argument("--report", action="store_true", help="run nothing; write the report from what is done")
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="of variants: the page of docs/ with its picture, from what is done"
    )
    options = parser.parse_args(arguments)
    design = DESIGNS[options.part]
    out = options.out or Path("runs/study" if design is EMBEDDINGS else f"runs/study-{design.name}")
    names: List[str] = options.arms or list(design.smoke_arms if options.smoke else design.by_name)
    unknown = [name for name in names if name not in design.by_name]
    if unknown:
        parser.error(f"--arms {unknown[0]!r}: expected some of {', '.join(map(repr, design.by_name))}")
    if options.write is not None and design is EMBEDDINGS:
        parser.error("--write: docs/study.md is written by hand; it takes --part variants")
    # An exploration that was named is one to be sure of.
    seeds = [0] if options.smoke else options.seeds
    jobs = jobs_of(names, seeds, repeat_explorations=options.arms is not None, design=design)
    sizes, files = design.sizes_of(options.smoke), given_files(options)
    if options.dry_run:
        print(plan(jobs, out, sizes, files.senteval is not None, options.processes))
        return
    try:
        if not options.report:
            if options.smoke and design is not EMBEDDINGS and files.word_sets is None:
                files = replace(files, word_sets=hand_made_word_sets(out))
            check_files([job.arm for job in jobs], files)
            of_arms = [*(["--smoke"] if options.smoke else []), *files.arguments]
            if design is not EMBEDDINGS:
                print(plan(jobs, out, sizes, files.senteval is not None, options.processes), flush=True)
            started = time.monotonic()
            Study(jobs, out, sizes, of_arms, options.processes).run()
            print(f"{(time.monotonic() - started) / 60:.1f} minutes")
        text = write_report(out, jobs, design)
        if options.write is not None:
            variants_page.write_page(read_records(out), jobs, options.write)
    except UserError as error:
        raise SystemExit(f"{error}") from error
    print(f"{text}\n{out / 'study.png'}")


if __name__ == "__main__":
    main()
