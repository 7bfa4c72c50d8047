"""Attacks on text of saved classifiers with their files: a row a text, going on from what is there, and a report.

Rows are kept in ``parts/``, a file for each model and setting, named by a hash of all that has a say in them: weights,
bias, recipe, limits, seed, and what lies in the files that the recipe reads. Within it a text is known by its row, its
words and its class. So a stopped attack goes on, more texts find those that are done, and another setting finds nothing
to mix with. Texts that ended in an error are tried again.
"""

import json
import sys
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np
from tqdm import tqdm

from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.variants.text_pairs import Texts, write_pairs
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import labels_of
from fastadv.evaluation.embeddings.parts import check_out, fingerprint, part_path
from fastadv.evaluation.embeddings.report import versions
from fastadv.evaluation.model_names import names_of
from fastadv.evaluation.text.attack import LabelledText, TextAttackSettings
from fastadv.evaluation.text.attacked_data import AttackedData, hash_of_texts, on_data
from fastadv.evaluation.text.control import AttackedModel, control_runs
from fastadv.evaluation.text.rows import ERROR, SUCCEEDED, RowWriter, TextAttackRow, write_rows
from fastadv.evaluation.text.workers import AttackJob, attack_here, attack_in_processes
from fastadv.evaluation.text_report.report import REPORT_FILES, write_report
from fastadv.evaluation.vectors.accuracy import check_finite
from fastadv.files.atomic_file import written_aside

# Part of every key: raise it when the same settings would give other rows.
ROWS_VERSION = 1

LOG = "attack.log"


@dataclass(frozen=True)
class TextAttackRun:
    """What ``fastadv attack --recipe`` runs."""

    models: Sequence[str]
    """folders of classifiers; with several the first is the baseline of the others"""
    data: AttackedData
    settings: TextAttackSettings
    out: str
    """a folder"""
    max_length: Optional[int] = None
    num_processes: int = 1
    num_threads: int = 1
    """of each process"""
    pairs: Optional[str] = None
    """a file for texts and what fools the model in their place"""
    names: Optional[Sequence[str]] = None
    """what the models are called in tables; None: `short_names`"""

    def __post_init__(self):
        twice = next((model for model in self.models if list(self.models).count(model) > 1), None)
        if twice is not None:
            raise UserError(f"the model {twice!r} is given twice")
        if self.pairs is not None and len(self.models) > 1:
            raise UserError("--write-pairs takes the pairs of one model; expected --model once")
        object.__setattr__(self, "names", names_of(self.models, self.names))

    def check(self) -> None:
        """UserError for what can be found wrong without reading weights or texts."""
        from fastadv.encoder.weights.source import find_model

        check_out(self.out)
        if self.pairs is not None:
            check_pairs(self.pairs)
        sources = [find_model(model) for model in self.models]
        for source in sources:
            source.check_max_length(self.max_length)
        self.settings.check([str(source.location) for source in sources])
        self.data.check()

    def describe(self) -> str:
        """What would be done, in a line."""
        settings, data = self.settings, self.data
        some = "all" if data.max_texts is None else f"at most {data.max_texts:,}"
        limits = [
            "" if settings.max_queries is None else f"{settings.max_queries:,} queries",
            "" if settings.max_seconds is None else f"{settings.max_seconds:g} s",
        ]
        limited = " and ".join(limit for limit in limits if limit) or "no limit"
        processes = f"{self.num_processes} process{'es' * (self.num_processes > 1)}"
        pairs = "" if self.pairs is None else f", and its pairs to {self.pairs}"
        return (
            f"would attack {', '.join(self.models)} on {some} texts of {data.source} ({data.split}) by "
            f"{settings.recipe}, goal {settings.goal}, {limited} a text, in {processes}; into {self.out}{pairs}"
        )

    @property
    def files(self) -> List[str]:
        """What `run` writes into the folder."""
        return [*REPORT_FILES, "rows.csv" if len(self.models) == 1 else "rows-*.csv", LOG]

    def run(self, progress: bool = False) -> dict:
        """Attacks all models, each model after the first also beside its control, and writes the files.

        Returns:
            what is in ``text-attack.json``, and ``num_pairs`` where pairs are written.

        Raises:
            UserError: what `check` finds, a model without a trained head, labels that it does not know, or another run
                that writes to the same folder.
        """
        self.check()
        data, rows = self.data.read()
        out = Path(self.out).expanduser()
        (out / "parts").mkdir(parents=True, exist_ok=True)
        runs = [
            AttackedModel(name, *self.attack(model, name, data, rows, progress=progress))
            for name, model in zip(self.names, self.models)
        ]
        if len(self.models) > 1:
            model_of = dict(zip(self.names, self.models))

            def attack(name: str, control: Any) -> List[TextAttackRow]:
                bias = tuple(control.bias.tolist())
                return self.attack(self.models[0], name, data, rows, bias, progress)[0]

            runs += control_runs(self.names, lambda name: self._job(model_of[name]).load(), data, attack)
        for run, path in zip(runs, rows_files(out, [run.name for run in runs])):
            write_rows(path, run.rows)
        results = write_report(out, runs)
        if self.pairs is not None:
            results["num_pairs"] = write_found(self.pairs, runs[0].rows)
        return results

    def attack(
        self,
        model: str,
        name: str,
        data: LabelledTexts,
        rows: np.ndarray,
        bias: Optional[Tuple[float, ...]] = None,
        progress: bool = False,
    ) -> Tuple[List[TextAttackRow], Dict[str, Any]]:
        """One model's rows in the order of the data, and what is told of it.

        Args:
            name: in the progress bar.
            rows: (N,) the place of each text in its source, from 0.
            bias: (C,) added to the model's logits.
        """
        job = self._job(model, bias)
        classifier = job.load()
        names, print_of_model = classifier.label_map.names, fingerprint(classifier)
        parts = [data.first] if data.second is None else [data.first, data.second]
        with on_data(model, self.data.source):
            labels = labels_of(classifier, data)
        texts = [
            LabelledText(int(row), tuple(of_text), int(label)) for row, label, *of_text in zip(rows, labels, *parts)
        ]
        key = ["text attack", ROWS_VERSION, print_of_model, bias, self.settings.as_key()]
        path = part_path(Path(self.out).expanduser() / "parts", key, "csv")
        recipe = _read_facts(path)
        with locked_writer(path, data.second is not None) as writer:
            done = {_key(row): row for row in writer.rows if _is_done(row)}
            waiting = [text for text in texts if _key_of(text, names) not in done]
            if waiting:
                self._check_logits(classifier, model, waiting)
            if not waiting:
                found: Iterator[TextAttackRow] = (row for row in ())
            elif self.num_processes > 1:
                found = attack_in_processes(job, waiting, names, min(self.num_processes, len(waiting)), recipe)
            else:
                found = attack_here(job, waiting, classifier, recipe)
            with _Progress(name, texts, len(waiting), list(done.values()), progress) as bar, closing(found):
                for row in found:
                    _keep_facts(path, recipe)
                    writer.write(row)
                    done[_key(row)] = row
                    bar.add(row)
        facts = {
            "model": model,
            "fingerprint": print_of_model,
            "max_length": classifier.encoder.max_length,
            "labels": list(names),
            "bias": None if bias is None else list(bias),
            "protocol": self._protocol(data, recipe),
        }
        return [done[_key_of(text, names)] for text in texts], facts

    def _check_logits(self, classifier, model: str, texts: Sequence[LabelledText]) -> None:
        first, *second = zip(*(text.texts for text in texts))
        logits = classifier.classify_texts(first, *second, batch_size=self.settings.batch_size)
        check_finite(logits, model)

    def _job(self, model: str, bias: Optional[Tuple[float, ...]] = None) -> AttackJob:
        log = Path(self.out).expanduser() / LOG
        return AttackJob(model, self.settings, log, self.max_length, bias, self.num_threads)

    def _protocol(self, data: LabelledTexts, recipe: Dict[str, Any]) -> Dict[str, Any]:
        return {
            "settings": vars(self.settings),
            "recipe": recipe,
            "versions": versions(),
            "data": {**vars(self.data), "num_texts": len(data), "hash": hash_of_texts(data)},
        }


class _Progress:
    """A bar with the success rate so far, of the texts that were right before."""

    def __init__(
        self, name: str, texts: Sequence[LabelledText], num_waiting: int, done: List[TextAttackRow], shown: bool
    ):
        self._num_attacked = self._num_succeeded = self._num_errors = 0
        total, initial = len(texts), len(texts) - num_waiting
        # Taken now: recipes write to another stderr.
        self._bar = tqdm(
            total=total, initial=initial, desc=name, unit="text", disable=not shown, file=sys.stderr, dynamic_ncols=True
        )
        for row in done:
            self._count(row)

    def add(self, row: TextAttackRow) -> None:
        self._count(row)
        said = f"{self._num_succeeded}/{self._num_attacked} succeeded"
        if self._num_attacked:
            said += f" ({self._num_succeeded / self._num_attacked:.0%})"
        if self._num_errors:
            said += f", {self._num_errors} errors"
        self._bar.set_postfix_str(said, refresh=False)
        self._bar.update()

    def _count(self, row: TextAttackRow) -> None:
        self._num_attacked += row.is_attacked
        self._num_succeeded += row.outcome == SUCCEEDED
        self._num_errors += row.outcome == ERROR

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()


def _is_done(row: TextAttackRow) -> bool:
    # Earlier versions took a model's NaN for an answer.
    return row.outcome != ERROR and np.isfinite([row.score, row.score_adversarial]).all()


def _key(row: TextAttackRow) -> tuple:
    return row.row, row.first, row.second, row.label


def _key_of(text: LabelledText, names: Sequence[str]) -> tuple:
    return text.row, text.texts[0], text.texts[1] if len(text.texts) == 2 else None, names[text.label]


@contextmanager
def locked_writer(path: Path, is_pair: bool) -> Iterator[RowWriter]:
    """The rows of a part, which nobody else writes to meanwhile."""
    with path.open("ab") as lock:
        if not _is_locked(lock):
            raise UserError(f"another run writes to {path}; wait for its end, or give another --out")
        with RowWriter(path, is_pair) as writer:
            yield writer


def _read_facts(path: Path) -> Dict[str, Any]:
    """What the recipe said of itself when the rows at ``path`` were begun; nothing before."""
    try:
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _keep_facts(path: Path, facts: Dict[str, Any]) -> None:
    path = path.with_suffix(".json")
    if not path.exists():
        with written_aside(path) as aside:
            aside.write_text(json.dumps(facts) + "\n", encoding="utf-8")


def _is_locked(file) -> bool:
    try:
        import fcntl
    except ImportError:
        # Windows has no such locks.
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:
        return False


def rows_files(out: Path, names: Sequence[str]) -> List[Path]:
    """Where the rows of each model are written: ``rows.csv`` of one, ``rows-NAME.csv`` of several."""
    if len(names) == 1:
        return [out / "rows.csv"]
    plain = ["".join(c if c.isalnum() or c in "._-" else "-" for c in name) for name in names]
    numbered = [f"{name}-{i}" if plain.count(name) > 1 else name for i, name in enumerate(plain)]
    return [out / f"rows-{name}.csv" for name in numbered]


def write_found(path: str | Path, rows: Sequence[TextAttackRow]) -> int:
    """Writes the texts that an attack succeeded on with what fooled the model, for ``data.pairs``.

    Returns:
        how many there are.
    """
    pairs: Dict[Texts, Texts] = {}
    labels: Dict[Texts, str] = {}
    for row in rows:
        if row.outcome == SUCCEEDED:
            is_pair = row.second is not None
            texts = (row.first, row.second) if is_pair else (row.first,)
            found = (row.first_adversarial, row.second_adversarial) if is_pair else (row.first_adversarial,)
            # Of a text that is there twice the first counts, as where it is read.
            pairs.setdefault(texts, found)
            labels.setdefault(texts, row.label)
    write_pairs(path, pairs, labels)
    return len(pairs)


def check_pairs(path: str) -> None:
    """UserError where the pairs cannot be written."""
    file = Path(path).expanduser()
    if file.suffix != ".csv" or file.is_dir():
        raise UserError(f"--write-pairs {path!r}: expected a file that ends in .csv")
    if not file.parent.is_dir():
        raise UserError(f"--write-pairs {path!r}: expected a file in a folder that exists")
