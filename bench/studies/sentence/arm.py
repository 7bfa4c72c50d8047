"""One arm of the sentence study in a process of its own: trains it, measures it, and writes its record last.

    python -m bench.studies.sentence.arm --out runs/study --arm exact --seed 0

`bench.studies.sentence_study` starts it. What is measured are parts of ``fastadv evaluate all``: sts, geometry,
embeddings, text-deepwordbug and other attacks on texts, adv-sts, robustness, as far as the sizes of the study's part
have a number for them; and a probe on edited texts (`bench.studies.sentence.probe_on_edits`). Texts are attacked
through a logistic regression on frozen vectors of Rotten Tomatoes' sentences, on which nothing trains.
"""

import argparse
import csv
import platform
import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from bench.studies.sentence.arms import EMBEDDINGS, SHARED, TIME, Job, Sizes, steps_at_equal_time
from bench.studies.sentence.records import Record, at_words, read_record, without_pairs, write_record
from bench.studies.sentence.variants import VARIANTS, uses_word_sets
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

STS_OF_EVERY_ARM = ("STS-B", "SICK-R")
DESIGNS = {design.name: design for design in (EMBEDDINGS, VARIANTS)}
FEW_WORDS = (1, 2)
"""caps on the words changed at which attacks on texts are counted too"""
ADV_STS_RECIPE = "pwws"
TYPING_EDITS = ("swap", "insert", "drop", "neighbour", "double")
SHARE_OF_WORDS = 0.5
"""of the words of a sentence or a query that are edited, besides one"""
MAX_QUERIES = 400
MAX_LENGTH = 64
"""of STS, geometry and texts under attack; embeddings are attacked at the length that is trained with"""
HELD_OUT = "demo:imdb-test"


@dataclass(frozen=True)
class Files:
    """What is not the study's own; None: not given."""

    senteval: Optional[str] = None
    attack_data: Optional[str] = None
    word_sets: Optional[str] = None
    word_vectors: Optional[str] = None

    @property
    def arguments(self) -> List[str]:
        """On a command line, with the ``FLAGS``."""
        return [word for name, value in vars(self).items() if value is not None for word in (f"--{name}", value)]


FLAGS = {
    "senteval": ("DIR", "a folder in SentEval layout, for STS and alignment"),
    "attack_data": ("DIR", "of fastadv prepare-attack-data, where not its own"),
    "word_sets": ("FILE", "of fastadv word-sets, for synonyms and antonyms"),
    "word_vectors": ("FILE", "of fastadv word-sets --vectors_out, for TextBugger"),
}


def add_file_flags(parser: argparse.ArgumentParser) -> None:
    for name, (metavar, words) in FLAGS.items():
        parser.add_argument(f"--{name}", metavar=metavar, help=words)


def given_files(options: argparse.Namespace) -> Files:
    return Files(**{name: getattr(options, name) for name in FLAGS})


def training_settings(job: Job, sizes: Sizes, num_steps: int, folder: Path) -> Dict[str, str]:
    """Every setting of an arm's training that is not a default."""
    own = {"train.max_steps": num_steps, "train.batch_size": sizes.batch_size, "train.seed": job.seed}
    own["train.output_dir"] = folder / "run"
    return {**SHARED, **(job.arm.settings or {}), **{key: str(value) for key, value in own.items()}}


def num_steps(job: Job, sizes: Sizes, out: Path) -> Optional[int]:
    """Optimizer steps of an arm; None where the system's own arm is at equal time already.

    Raises:
        UserError: of an arm at equal time, whose systems have not been timed.
    """
    if job.arm.group != TIME:
        return round(job.arm.steps * sizes.steps)

    def seconds_a_step(name: str) -> float:
        timed = read_record(out / job.other(name).key)
        if timed is None:
            raise UserError(f"{job.key}: its steps follow from the time of {name}, seed 0, which is not done")
        return timed.facts["cpu_s_a_step"]

    return steps_at_equal_time(job, sizes.steps, seconds_a_step)


def train(job: Job, sizes: Sizes, steps: int, folder: Path, word_sets: Optional[str] = None) -> Dict[str, Any]:
    """Trains into ``folder/run``; gives what it cost.

    Args:
        word_sets: of synonyms and antonyms, for arms that use them.

    A step's time is this process's processor time from the end of the first step to the end of the last, over the
    steps between; of a run that went on from a checkpoint, from its first step here.
    """
    from fastadv import Callback, Trainer, load_config

    class Times(Callback):
        def __init__(self):
            self.steps: List[int] = []
            self.cpu: List[float] = []
            self.wall: List[float] = []
            self.metrics: Dict[str, float] = {}

        def on_step(self, trainer, step, metrics):
            self.steps.append(step)
            self.cpu.append(time.process_time())
            self.wall.append(time.monotonic())
            self.metrics.update(metrics)

    times = Times()
    settings = training_settings(job, sizes, steps, folder)
    if uses_word_sets(job.arm):
        settings["data.word_sets"] = str(word_sets)
    config = load_config(None, [f"--{key}={value}" for key, value in settings.items()])
    started = time.process_time()
    Trainer(config, [times]).fit()
    metrics = {name: value for name, value in times.metrics.items() if "/" not in name}
    facts: Dict[str, Any] = {"train_cpu_s": time.process_time() - started, "metrics": metrics}
    if len(times.steps) > 1:
        between = times.steps[-1] - times.steps[0]
        facts["cpu_s_a_step"] = (times.cpu[-1] - times.cpu[0]) / between
        facts["wall_s_a_step"] = (times.wall[-1] - times.wall[0]) / between
    return facts


class Measuring:
    """All parts of one arm, each timed, and each that cannot be measured with its reason."""

    def __init__(self, job: Job, sizes: Sizes, out: Path, model: str, files: Files):
        self.job, self.sizes, self.out, self.model, self.files = job, sizes, out, model, files
        self.folder = out / job.key
        self.record = Record(job.arm.name, job.seed, {})
        self.cpu_s: Dict[str, float] = {}
        self.missing: Dict[str, str] = {}
        self.text: Dict[str, dict] = {}

    def run(self) -> None:
        """A part whose size is 0 is not measured. A classifier fine-tuned on top of the arm would be one more part,
        with the same attacks on it in place of the probe."""
        sizes = self.sizes
        parts: Dict[str, Tuple[int, Callable[[], None]]] = {
            "sts": (1, self._sts),
            "adv-sts": (sizes.num_pairs, self._adv_sts),
            "geometry": (sizes.num_geometry, self._geometry),
            "embeddings": (sizes.num_sentences, self._embeddings),
            "robustness": (sizes.num_edited, self._robustness),
            "probe": (sizes.num_mistyped, self._probe_on_edits),
        }
        for recipe, count in self.job.recipes(sizes).items():
            parts[f"text-{recipe}"] = (count, partial(self._text, recipe, count))
        for name, (count, measure) in parts.items():
            if count:
                with self._part(name):
                    measure()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        started = time.process_time()
        try:
            yield
        except UserError as error:
            self.missing[name] = " ".join(str(error).split())
        self.cpu_s[name] = time.process_time() - started
        print(f"{name}: {self.missing.get(name) or 'measured'} ({self.cpu_s[name]:.0f} s of CPU)", flush=True)

    def _suite_model(self, max_length: int, job: Optional[Job] = None):
        """The arm, or another whose model is kept, as ``fastadv evaluate all`` knows models."""
        from fastadv.evaluation.suite.models import SuiteModel, examine

        model = self.model if job is None else model_of(self.out, job)
        known = examine(SuiteModel(str(model), (job or self.job).key, "mean", max_length))
        if known.why is not None:
            raise UserError(known.why)
        return known

    def _keep(self, measured: Sequence, model: str) -> None:
        for one in measured:
            if one.model == model:
                self.record.measured[one.quantity] = replace(without_pairs(one), model=self.record.model)

    @property
    def _senteval(self) -> str:
        if self.files.senteval is None:
            raise UserError("no folder of SentEval was given")
        return self.files.senteval

    def _measured_by(self, part, model, folder: str) -> None:
        """Keeps what a part of ``fastadv evaluate all`` measures of the arm."""
        found = part.measure(part.read([model]), [model], self.folder / folder, progress=False)
        if found.whys:
            raise UserError(found.whys[model.model])
        self._keep(found.measured, model.model)

    def _sts(self) -> None:
        from fastadv.evaluation.suite.numbers import Measured, Quantity, spearman_measured
        from fastadv.evaluation.vectors.sts import STS_SETS, read_sts_sets, sts_cosines

        senteval = self._senteval
        names = STS_SETS if self.job.has_all_sets else STS_OF_EVERY_ARM
        pairs, model = read_sts_sets(senteval, names), self._suite_model(MAX_LENGTH)
        cosines = sts_cosines(model.load(), pairs)
        found = [
            spearman_measured(Quantity("sts", name, "spearman"), model.model, cosines[name], pairs[name].scores)
            for name in names
        ]
        means = {"mean of two": STS_OF_EVERY_ARM, **({"mean of seven": names} if self.job.has_all_sets else {})}
        by_set = {one.quantity.set: one for one in found}
        for words, over in means.items():
            some = [by_set[name] for name in over]
            if all(one.value is not None for one in some):
                mean, num_pairs = sum(one.value for one in some) / len(some), sum(one.num for one in some)
                quantity = Quantity("sts", words, "spearman")
                found.append(Measured(quantity, model.model, mean, num=num_pairs, over=tuple(over)))
        self._keep(found, model.model)

    def _adv_sts(self) -> None:
        from fastadv.evaluation.suite.adv_sts import AdvStsPart

        settings = self._attack(ADV_STS_RECIPE)
        part = AdvStsPart(self._senteval, settings, max_pairs=self.sizes.num_pairs, has_control=False)
        self._measured_by(part, self._suite_model(MAX_LENGTH), "adv-sts")

    def _geometry(self) -> None:
        from fastadv.evaluation.suite.parts import GeometryPart

        part = GeometryPart(self.files.senteval or HELD_OUT, num_sentences=self.sizes.num_geometry)
        self._measured_by(part, self._suite_model(MAX_LENGTH), "geometry")

    def _robustness(self) -> None:
        """Of the sentences that are attacked too; each edit also in half of the words."""
        from fastadv.config.robustness import RobustnessSettings
        from fastadv.evaluation.suite.robustness import RobustnessPart

        word_sets = self.files.word_sets
        edits = ("typos", *TYPING_EDITS, *(("synonyms",) if word_sets else ()))
        settings = RobustnessSettings(
            edits=edits,
            shares=(SHARE_OF_WORDS,),
            word_sets=word_sets,
            texts=str(sentiment_file(self.out)),
            num_sentences=self.sizes.num_edited,
        )
        self._measured_by(RobustnessPart(settings), self._suite_model(MAX_LENGTH), "robustness")

    def _probe_on_edits(self) -> None:
        from bench.studies.sentence.probe_on_edits import probe_on_edits

        model = self._suite_model(MAX_LENGTH)
        source, sizes = str(sentiment_file(self.out)), self.sizes
        measured = probe_on_edits(
            model.load(), source, sizes.num_mistyped, SHARE_OF_WORDS, self.files.word_sets, model.model
        )
        self._keep(measured, model.model)

    def _attack(self, recipe: str):
        """Settings of an attack on texts or pairs."""
        from fastadv.config.text_attack import USED_BY, TextAttackSettings

        files = {name: value for name, value in vars(self.files).items() if recipe in USED_BY.get(name, ()) and value}
        return TextAttackSettings(recipe, max_queries=MAX_QUERIES, max_seconds=None, **files)

    def _embeddings(self) -> None:
        from fastadv.config.embedding_attack import AttackSettings
        from fastadv.config.schema import EvaluationConfig
        from fastadv.evaluation.suite.attacks import EmbeddingPart
        from fastadv.evaluation.text.attacked_data import AttackedData

        sizes, model = self.sizes, self._suite_model(int(SHARED["encoder.max_length"]))
        settings = EvaluationConfig(
            num_sentences=sizes.num_sentences,
            radii=list(sizes.radii),
            num_steps=sizes.num_attack_steps,
            num_probe_sentences=sizes.num_probe_sentences,
            held_out=HELD_OUT,
        )
        part = EmbeddingPart(AttackedData("demo:imdb"), AttackSettings(), settings)
        self._measured_by(part, model, "embeddings")

    def _text(self, recipe: str, num_texts: int) -> None:
        """Attacks a probe on the arm, and beside it its control: the baseline with this arm's class shares."""
        from bench.studies.text_study_report import Attacked
        from fastadv.evaluation.suite.attacks import TextPart
        from fastadv.evaluation.text.attacked_data import AttackedData

        name, control = f"text-{recipe}", self.job.control
        models = [self._suite_model(MAX_LENGTH)]
        why = None if control is not None else "it is a baseline, or not of seed 0"
        if control is not None and not model_of(self.out, control).is_dir():
            why = f"the model of {control.key} is not here"
        if why is None:
            models.insert(0, self._suite_model(MAX_LENGTH, control))
            # Its own rows are taken from its own arm.
            done = self.out / control.key / name / "parts"
            if done.is_dir():
                shutil.copytree(done, self.folder / name / "parts", dirs_exist_ok=True)
        labelled = AttackedData(str(sentiment_file(self.out)), max_texts=num_texts)
        part = TextPart(labelled, self._attack(recipe), name, str(self.out / "victims"))
        found = part.measure(part.read(models), models, self.folder / name, progress=False)
        self._keep(found.measured, models[-1].model)
        attacked = Attacked.read(self.folder / name)
        own = attacked.models[-1]["name"]
        model = models[-1].model
        self._keep([at_few_words(found.measured, model, attacked.rows[own], n) for n in FEW_WORDS], model)
        facts: Dict[str, Any] = {"success": attacked.models[-1]["rates"]["success"], "no_control": why}
        if why is None:
            shifted = attacked.control_of(own)
            verdicts = {"verdict": attacked.verdict(own), "verdict_at_2_words": attacked.verdict(own, "words_2")}
            facts.update(baseline=control.arm.name, control=shifted["rates"]["success"], **verdicts)
        self.text[recipe] = facts


def at_few_words(measured: Sequence, model: str, rows: Sequence, max_words: int):
    """The success of changes of at most so many words, of an attack's rows in the order of the others."""
    from fastadv.config.text_attack import Cap
    from fastadv.evaluation.suite.numbers import Measured
    from fastadv.evaluation.text_report.rates import is_fooled

    cap = Cap(f"words_{max_words}", at_words(max_words), max_words=max_words)
    quantity = next(one.quantity for one in measured if one.quantity.metric == "attack success")
    quantity = quantity._replace(metric=at_words(max_words))
    values = np.array([100.0 * is_fooled(row, cap) if row.is_attacked else np.nan for row in rows])
    num = int(np.isfinite(values).sum())
    if not num:
        return Measured(quantity, model, None, why="no text counts")
    return Measured(quantity, model, float(np.nanmean(values)), num=num, rows=values, is_binary=True)


def model_of(out: Path, job: Job) -> Path:
    return out / job.key / "run" / "model"


def sentiment_file(out: Path) -> Path:
    return out / "data" / "sentiment.csv"


def write_sentiment(out: Path) -> None:
    """Rotten Tomatoes' sentences, each once, where they are not there yet: what the probe of text attacks reads."""
    from fastadv.data.sources.demo import SENTIMENTS, demo_sentiment

    path = sentiment_file(out)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows([text, SENTIMENTS[label]] for text, label in dict(zip(*demo_sentiment())).items())


def run_arm(job: Job, sizes: Sizes, out: Path, files: Files) -> None:
    """Trains and measures; the model stays where others are compared with it."""
    import torch
    import transformers

    from fastadv.evaluation.suite.attacks import plain_name

    torch.set_num_threads(1)
    folder, facts = out / job.key, {}
    if job.arm.settings is not None:
        facts["steps"] = num_steps(job, sizes, out)
        facts["settings"] = training_settings(job, sizes, facts["steps"], Path())
        facts.update(train(job, sizes, facts["steps"], folder, files.word_sets))
        shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
    model = SHARED["encoder.model"] if job.arm.settings is None else str(model_of(out, job))
    write_sentiment(out)
    measuring = Measuring(job, sizes, out, model, files)
    measuring.run()
    facts.update(sizes=sizes.as_dict(), measure_cpu_s=measuring.cpu_s, missing=measuring.missing, text=measuring.text)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    facts["machine"] = {"processor": platform.processor() or platform.machine(), **versions}
    write_record(folder, Record(job.arm.name, job.seed, measuring.record.measured, facts))
    if not job.keeps_model:
        shutil.rmtree(folder / "run" / "model", ignore_errors=True)
        for victim in (out / "victims").glob(f"{plain_name(job.key)}-????????????"):
            shutil.rmtree(victim)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", choices=list(DESIGNS), default=EMBEDDINGS.name)
    parser.add_argument("--arm", required=True)
    parser.add_argument("--seed", type=int, default=0)
    add_file_flags(parser)
    parser.add_argument("--smoke", action="store_true", help="a few steps and rows")
    given = parser.parse_args(arguments)
    design = DESIGNS[given.part]
    if given.arm not in design.by_name:
        parser.error(f"--arm {given.arm!r}: expected one of {', '.join(design.by_name)}")
    job = Job(design.by_name[given.arm], given.seed, design)
    run_arm(job, design.sizes_of(given.smoke), given.out, given_files(given))


if __name__ == "__main__":
    main()
