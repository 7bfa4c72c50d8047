"""Texts attacked one after another: in this process, or in several, each with a model and a recipe of its own.

Whatever a recipe prints (and TextAttack, flair, NLTK and transformers do) goes to a log file.
"""

import logging
import os
import sys
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Deque, Dict, Iterator, List, Optional, Sequence, Tuple

import torch

from fastadv.config.text_attack import PAIR_ROLES, TextAttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.recipes.recipe_attack import RecipeAttack
from fastadv.evaluation.text.attack import (
    LabelledText,
    attack_text,
    build_attacker,
    error_row,
    generators_aside,
    seed_by,
)
from fastadv.evaluation.text.rows import TextAttackRow
from fastadv.evaluation.text.search import TextAttacker
from fastadv.evaluation.victims.text import TextVictim

_NOISY = ("textattack", "flair")
"""packages whose loggers write to the stream that was stdout or stderr when they were imported"""


@dataclass(frozen=True)
class AttackJob:
    """One model under one attack: what a process needs to know."""

    model: str
    settings: TextAttackSettings
    log: Path
    max_length: Optional[int] = None
    bias: Optional[Tuple[float, ...]] = None
    num_threads: int = 1
    """of every process; the sums of another number may round otherwise"""
    label_names: Optional[Tuple[str, ...]] = None
    """of the classes in their order; None: as the model says"""
    roles: Tuple[str, str] = PAIR_ROLES
    """of the two texts of a pair (`fastadv.evaluation.recipes.recipe_attack.RecipeAttack`)"""
    device: str = "auto"
    """of the classifier, and of what else a recipe runs"""

    def load(self):
        """The classifier. UserError where there is none."""
        from fastadv.encoder.classifier.text_classifier import Classifier

        options = {"label_names": self.label_names, "device": self.device}
        return Classifier.from_pretrained(self.model, max_length=self.max_length, **options)


def attack_here(
    job: AttackJob, texts: Sequence[LabelledText], classifier=None, facts: Optional[dict] = None
) -> Iterator[TextAttackRow]:
    """The rows of ``texts``, each as it is finished.

    Args:
        classifier: what ``job.load()`` gives, where it is loaded already.
        facts: filled with what the recipe says of itself.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(job.num_threads)
    try:
        with output_to(job.log):
            attacker, victim = _build(job, classifier)
            if facts is not None and not facts:
                facts.update(facts_of(attacker, texts, job.settings.max_seconds))
        for text in texts:
            with output_to(job.log):
                row = attack_text(attacker, victim, job.settings, text)
            yield row
    finally:
        torch.set_num_threads(before)


def attack_in_processes(
    job: AttackJob,
    texts: Sequence[LabelledText],
    names: Tuple[str, ...],
    num_processes: int,
    facts: Optional[dict] = None,
) -> Iterator[TextAttackRow]:
    """Likewise in ``num_processes`` others, in the order in which they finish.

    A text that ends the process which attacks it (out of memory, a fault in native code) is an error like others.

    Args:
        names: of the model's classes.
    """
    waiting: Deque[LabelledText] = deque(texts)
    while waiting:
        running: Dict[Future, LabelledText] = {}
        pool = ProcessPoolExecutor(num_processes, get_context("spawn"), initializer=_start, initargs=(job,))
        try:
            if facts is not None and not facts:
                try:
                    facts.update(pool.submit(_facts, texts).result())
                except BrokenProcessPool:
                    raise UserError(
                        f"the process that attacks {job.model} ended before its first text; see {job.log}"
                    ) from None
            while waiting or running:
                while waiting and len(running) < num_processes:
                    running[pool.submit(_attack, waiting[0])] = waiting[0]
                    waiting.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    row = future.result()
                    del running[future]
                    yield row
        except BrokenProcessPool:
            yield from _rows_of_suspects(job, list(running.values()), names, num_processes)
            running = {}
        finally:
            # Nobody waits for a text that nobody asks for any more.
            pool.shutdown(wait=not running, cancel_futures=True)


def _rows_of_suspects(
    job: AttackJob, texts: List[LabelledText], names: Tuple[str, ...], num_processes: int
) -> Iterator[TextAttackRow]:
    """Rows of the texts that were attacked when a process ended; one of them ended it."""
    if num_processes == 1:
        yield from (error_row(text, names, "the process that attacked it ended") for text in texts)
    else:
        # Which one it was shows when each has a process of its own.
        for text in texts:
            yield from attack_in_processes(job, [text], names, 1)


def facts_of(attacker: TextAttacker, texts: Sequence[LabelledText], max_seconds: Optional[float] = None) -> dict:
    """What the recipe says of itself, counted for at most ``max_seconds``."""
    if isinstance(attacker, RecipeAttack):
        with generators_aside():
            seed_by(0, ())
            return attacker.facts([text.texts for text in texts], max_seconds)
    return {"name": type(attacker).__name__}


def _build(job: AttackJob, classifier=None) -> Tuple[TextAttacker, TextVictim]:
    classifier = job.load() if classifier is None else classifier
    victim = TextVictim(classifier, job.settings.batch_size, job.bias, model_folder=job.model)
    return build_attacker(job.settings, victim, job.roles), victim


# What a process that attacks holds; a pool's tasks reach it by no other way.
_here: dict = {}


def _start(job: AttackJob) -> None:
    """Makes this process one that attacks. A mistake is kept for the first task, which can tell of it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with job.log.open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log.fileno(), stream.fileno())
    torch.set_num_threads(job.num_threads)
    _here["job"] = job
    try:
        _here["attacker"], _here["victim"] = _build(job)
    except Exception as error:
        _here["error"] = error


def _end_with_parent() -> None:
    # Nobody would ever end a process whose parent was killed: it waits for work.
    parent_process().join()
    os._exit(1)


def _attacker() -> TextAttacker:
    """Of this process. Raises what kept it from being built."""
    if "error" in _here:
        raise _here["error"]
    return _here["attacker"]


def _attack(text: LabelledText) -> TextAttackRow:
    return attack_text(_attacker(), _here["victim"], _here["job"].settings, text)


def _facts(texts: Sequence[LabelledText]) -> dict:
    return facts_of(_attacker(), texts, _here["job"].settings.max_seconds)


@contextmanager
def output_to(log: Path) -> Iterator[None]:
    """What Python writes to stdout and stderr inside the block goes to the end of ``log``."""
    with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
        with redirect_stdout(file), redirect_stderr(file):
            _point_handlers_at(file)
            try:
                yield
            finally:
                # Those that the block has made point at the file, which is closed now.
                _point_handlers_at(sys.__stderr__)


def _point_handlers_at(stream) -> None:
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] in _NOISY and isinstance(logger, logging.Logger):
            for handler in logger.handlers:
                if type(handler) is logging.StreamHandler:
                    handler.setStream(stream)
