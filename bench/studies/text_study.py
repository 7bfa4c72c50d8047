"""Text-level systems beside fine-tuning: clean accuracy, and what falls to attacks on the text.

    fastadv prepare-attack-data
    python -m bench.studies.text_study --out runs/study-text
    python -m bench.studies.text_study --part variants --encoders runs/study-variants --out runs/study-text-variants

Two parts. ``systems``, the default:

Sentiment: sentences of Rotten Tomatoes, out of the demo's package; fine-tuning, SAFER, and ADA and TaiChi on the pairs
of either attack; attacked by DeepWordBug, PWWS and synonyms. Paraphrase: pairs made of the demo's reviews
(`bench.studies.paraphrase_pairs`); fine-tuning, BAT pairwise and triplet; attacked by synonyms and antonyms.

The pairs of texts that ADA and TaiChi train on are those that DeepWordBug and PWWS make of 400 training texts, with
fine-tuning as the victim. All systems of a task train on the same texts, in the same order, from the same weights, for
the same number of steps; every model is attacked on the same held-out texts, each beside its control
(`fastadv/evaluation/text/control.py`). Fine-tuning with another seed is not attacked: it says how many of the texts
that fool fine-tuning fool any other model (`bench/studies/text_study_transfer.py`).

``variants`` has the same sizes and the sentiment task alone: classifiers that train on each text and on the worst of
its own edited copies (``text_adversarial``), and classifiers fine-tuned on top of encoders of the sentence study's
second part, which ``--encoders`` names.

Every step is a fastadv command,
and finished ones are not done again: a stopped study goes on. It ends in ``study.md``, ``study.png`` and
``study.json``.
"""

import argparse
import csv
import time
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence

import numpy as np

from bench.studies.sentence.variants import VARIANTS as ENCODERS
from bench.studies.study_runs import in_order, run_logged, write_study
from bench.studies.text_study_report import Attacked, plot, report
from fastadv.data.variants.word_sets import WordSets
from fastadv.errors import UserError
from fastadv.files.atomic_file import written_aside

SENTIMENT_NAMES = ("negative", "positive")
MAX_QUERIES = {"deepwordbug": 400, "pwws": 400, "synonym": 400, "antonym": 400}

SHARED = {
    "data.label_field": "label",
    "data.max_sentences": "null",
    "train.batch_size": "16",
    "train.max_steps": "null",
    "train.log_every": "10",
    "train.eval_every": "null",
    "dev.data": "none",
    "dev.patience": "null",
    "optimizer.lr": "1.0e-4",
    "optimizer.warmup_ratio": "0.1",
    "optimizer.weight_decay": "0.01",
    "engine.precision": "bf16",
    "engine.num_threads": "1",
}
OF_TASK = {
    # TaiChi reads the mean of the states, and its baseline is to differ in nothing else.
    "sentiment": {"encoder.pooling": "mean", "encoder.max_length": "50"},
    "paraphrase": {"encoder.pooling": "cls", "encoder.max_length": "64"},
}


@dataclass(frozen=True)
class Arm:
    """A system on a task."""

    task: str
    name: str
    config: str
    pairs_of: Optional[str] = None
    """the attack whose pairs it trains on"""
    options: Dict[str, str] = field(default_factory=dict)
    encoder: Optional[str] = None
    """the folder of an arm of the sentence study whose encoder is fine-tuned; None: MiniLM as it is"""

    @property
    def key(self) -> str:
        return f"{self.task}/{self.name}"


AGAIN = tuple(Arm(task, "fine-tuning-seed1", "fine_tuning", options={"train.seed": "1"}) for task in OF_TASK)
"""fine-tuning with another seed: how many of the texts that fooled fine-tuning fool it, too"""

ARMS = (
    Arm("sentiment", "fine-tuning", "fine_tuning"),
    Arm("paraphrase", "fine-tuning", "fine_tuning"),
    Arm("sentiment", "safer", "safer"),
    Arm("paraphrase", "bat-pairwise", "bat_pairwise"),
    Arm("paraphrase", "bat-triplet", "bat_triplet"),
    Arm("sentiment", "ada-deepwordbug", "ada", "deepwordbug"),
    Arm("sentiment", "ada-pwws", "ada", "pwws"),
    Arm("sentiment", "taichi-deepwordbug", "taichi", "deepwordbug"),
    Arm("sentiment", "taichi-pwws", "taichi", "pwws"),
)
ATTACKS = {"sentiment": ("deepwordbug", "pwws", "synonym"), "paraphrase": ("synonym", "antonym")}


def _on_variants(name: str, edits: str = "[typos]", encoder: Optional[str] = None, **others: str) -> Arm:
    """Trained on each text and on the worst of four edited copies of it."""
    options = {"perturbation.text.edits": edits, "perturbation.text.num_proposals": "4"}
    options |= {key.replace("__", "."): value for key, value in others.items()}
    return Arm("sentiment", name, "text_adversarial", options=options, encoder=encoder)


SEARCHED, BALANCED = (f"{name}-seed0" for name in ENCODERS.trained_from)
VARIANT_ARMS = (
    Arm("sentiment", "fine-tuning", "fine_tuning"),
    _on_variants("text-typos"),
    Arm("sentiment", "fine-tuning on worst8-typos", "fine_tuning", encoder=SEARCHED),
    _on_variants("text-typos on worst8-typos", encoder=SEARCHED),
    _on_variants("text-both", "[typos, synonyms]"),
    Arm("sentiment", "fine-tuning on worst8-typos+keep+balance", "fine_tuning", encoder=BALANCED),
    _on_variants(
        "text-typos+freelb",
        objective_options__weight_adversarial="1.0",
        perturbation__method="freelb",
        perturbation__num_steps="2",
        perturbation__norm="l2",
        perturbation__epsilon_relative="0.2",
        perturbation__alpha="0.5",
        perturbation__sigma="0.1",
    ),
)
PARTS = {
    "systems": {},
    "variants": {"arms": VARIANT_ARMS, "again": (), "attacks": {"sentiment": ("deepwordbug", "pwws")}},
}
SMOKE_VARIANTS = {"arms": VARIANT_ARMS[:2], "attacks": {"sentiment": ("deepwordbug",)}}

SMALL = {
    "arms": [arm for arm in ARMS if arm.pairs_of != "pwws" and arm.name != "bat-triplet"],
    "again": [],
    "attacks": {"sentiment": ("deepwordbug",), "paraphrase": ("antonym",)},
}
SMOKE_SYNONYMS = {
    "film": ("movie", "picture"),
    "movie": ("film", "picture"),
    "good": ("fine", "decent"),
    "great": ("terrific", "wonderful"),
    "bad": ("poor", "awful"),
    "see": ("watch",),
    "story": ("tale", "plot"),
    "really": ("truly",),
    "think": ("believe",),
    "people": ("folks",),
}
SMOKE_ANTONYMS = {
    "good": ("bad",),
    "bad": ("good",),
    "great": ("small",),
    "best": ("worst",),
    "worst": ("best",),
    "first": ("last",),
    "never": ("always",),
    "more": ("less",),
    "old": ("new",),
    "new": ("old",),
}


@dataclass(frozen=True)
class Study:
    """Sizes and places."""

    out: Path
    word_sets: Path
    attack_data: Optional[Path]
    num_train: int = 1600
    num_attacked: int = 400
    """training texts that pairs are made of"""
    num_test: int = 200
    num_epochs: int = 4
    seed: int = 0
    processes: int = 2
    arms: Sequence[Arm] = ARMS
    """fine-tuning of sentiment, the victim, first; of every task fine-tuning before the others"""
    again: Sequence[Arm] = AGAIN
    encoders: Optional[Path] = None
    """the sentence study's folder, of arms on top of its encoders"""
    attacks: Mapping[str, Sequence[str]] = field(default_factory=lambda: ATTACKS)

    def check_encoders(self) -> None:
        """UserError where an arm's encoder is not there."""
        for arm in self.arms:
            if arm.encoder is not None and not (self.encoder(arm) / "config.json").exists():
                raise UserError(
                    f"{arm.name}: its encoder {arm.encoder} is not in --encoders {self.encoders}; expected the folder "
                    "of python -m bench.studies.sentence_study --part variants"
                )

    def encoder(self, arm: Arm) -> Path:
        """The model that an arm with an ``encoder`` is fine-tuned from."""
        return (self.encoders or Path()) / arm.encoder / "run" / "model"

    def data(self, task: str, split: str) -> Path:
        return self.out / "data" / task / f"{split}.csv"

    def folder(self, arm: Arm) -> Path:
        return self.out / arm.task / arm.name

    def model(self, arm: Arm) -> Path:
        return self.folder(arm) / "model"

    def pairs(self, recipe: str) -> Path:
        return self.out / "data" / f"pairs-{recipe}.csv"

    def log(self, name: str) -> Path:
        """Where a command's output goes: not into a run's own folder, which has to be empty at first."""
        folder = self.out / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.txt"

    def make_data(self) -> None:
        """Writes what both tasks train on and are tested on; the first ``num_attacked`` training texts are attacked."""
        from bench.studies.paraphrase_pairs import main as make_paraphrases
        from fastadv.data.sources.demo import demo_sentiment

        texts, labels = demo_sentiment()
        order = np.random.default_rng(self.seed).permutation(len(texts))
        parts = {"test": order[: self.num_test], "train": order[self.num_test :][: self.num_train]}
        parts["attacked"] = parts["train"][: self.num_attacked]
        for split, rows in parts.items():
            path = self.data("sentiment", split)
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_aside(path) as aside, aside.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(["text", "label"])
                writer.writerows([texts[row], SENTIMENT_NAMES[labels[row]]] for row in rows)
        if "paraphrase" in self.attacks and not self.data("paraphrase", "train").exists():
            sizes = ["--train", str(self.num_train), "--dev", "8", "--test", str(self.num_test)]
            folder = str(self.data("paraphrase", "train").parent)
            with self.log("paraphrases").open("w") as log, redirect_stdout(log):
                make_paraphrases(
                    ["--word_sets", str(self.word_sets), "--out", folder, *sizes, "--seed", str(self.seed)]
                )

    def training(self, arm: Arm) -> List[str]:
        """The command that trains an arm."""
        settings = {**SHARED, **OF_TASK[arm.task], "data.train": self.data(arm.task, "train")}
        settings |= {"train.num_epochs": self.num_epochs, "train.seed": self.seed, "train.output_dir": self.folder(arm)}
        if arm.task == "paraphrase":
            settings |= {"data.field": "first", "data.pair_field": "second"}
        if arm.config in ("safer", "bat_pairwise", "bat_triplet") or "synonyms" in str(arm.options):
            settings["data.word_sets"] = self.word_sets
        if arm.pairs_of is not None:
            settings["data.pairs"] = self.pairs(arm.pairs_of)
        if arm.encoder is not None:
            settings["encoder.model"] = self.encoder(arm)
        settings |= arm.options
        return ["train", "--config", f"configs/{arm.config}.yaml", *(f"--{key}={v}" for key, v in settings.items())]

    def attack(self, recipe: str, task: str, models: Sequence[Arm], split: str, out: Path) -> List[str]:
        """The command that attacks models on a split."""
        command = ["attack", "--recipe", recipe, "--data", str(self.data(task, split)), "--out", str(out)]
        command += [part for arm in models for part in ("--model", str(self.model(arm)))]
        command += ["--max_queries", str(MAX_QUERIES[recipe]), "--processes", str(self.processes)]
        command += ["--max_texts", str(max(self.num_test, self.num_attacked)), "--seed", str(self.seed)]
        if task == "paraphrase":
            command += ["--field", "first", "--pair_field", "second"]
        if recipe == "antonym":
            # An antonym in one of two different texts leaves them different.
            command += ["--labels", "duplicate"]
        if recipe in ("synonym", "antonym"):
            command += ["--word_sets", str(self.word_sets)]
        elif self.attack_data is not None:
            command += ["--attack_data", str(self.attack_data)]
        return command

    def train(self, arms: Sequence[Arm]) -> None:
        in_order(arms, self._train, self.processes)

    def _train(self, arm: Arm) -> None:
        if (self.model(arm) / "config.json").exists():
            return
        run_logged("fastadv", self.training(arm), self.log(f"train-{arm.task}-{arm.name}"), f"training {arm.key}")

    def run(self) -> Dict[str, Dict[str, Attacked]]:
        """All of it; task → attack → what it found."""
        self.make_data()
        first = [arm for arm in self.arms if arm.pairs_of is None]
        self.train(first)
        victim = self.arms[0]
        for recipe in sorted({arm.pairs_of for arm in self.arms if arm.pairs_of is not None}):
            if not self.pairs(recipe).exists():
                out = self.out / "pairs" / recipe
                command = self.attack(recipe, victim.task, [victim], "attacked", out)
                command += ["--write-pairs", str(self.pairs(recipe))]
                what = f"{recipe} on {self.num_attacked} training texts"
                run_logged("fastadv", command, self.log(f"pairs-{recipe}"), what)
        self.train([*(arm for arm in self.arms if arm.pairs_of is not None), *self.again])
        found: Dict[str, Dict[str, Attacked]] = {}
        for task, recipes in self.attacks.items():
            models = [arm for arm in self.arms if arm.task == task]
            for recipe in recipes:
                out = self.out / "attacks" / task / recipe
                command = self.attack(recipe, task, models, "test", out)
                run_logged("fastadv", command, self.log(f"{recipe}-{task}"), f"{recipe} on {task}")
                others = {arm.name: self.model(arm) for arm in [*models[1:], *self.again] if arm.task == task}
                found.setdefault(task, {})[recipe] = Attacked.read(out, others)
        return found


def main(arguments: Optional[Sequence[str]] = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=list(PARTS), default="systems")
    parser.add_argument("--out", type=Path, default=Path("runs/study-text"))
    parser.add_argument("--encoders", type=Path, metavar="DIR", help="of --part variants: the sentence study's folder")
    parser.add_argument("--word_sets", type=Path, default=Path("runs/word_sets.json"), help="of fastadv word-sets")
    parser.add_argument("--attack_data", type=Path, help="the folder of fastadv prepare-attack-data, where not its own")
    parser.add_argument("--smoke", action="store_true", help="a few texts and steps: whether all of it runs")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    sizes = dict(PARTS[options.part])
    if options.smoke:
        small = SMALL if options.part == "systems" else SMOKE_VARIANTS
        sizes |= {"num_train": 64, "num_attacked": 8, "num_test": 8, "num_epochs": 1, "processes": 1, **small}
        options.out.mkdir(parents=True, exist_ok=True)
        options.word_sets = options.out / "word_sets.json"
        WordSets(SMOKE_SYNONYMS, SMOKE_ANTONYMS, {"made": "by hand, for --smoke"}).save(options.word_sets)
    study = Study(
        options.out, options.word_sets, options.attack_data, seed=options.seed, encoders=options.encoders, **sizes
    )
    study.check_encoders()
    started = time.monotonic()
    found = study.run()
    text, numbers = report(found)
    numbers["minutes"] = (time.monotonic() - started) / 60
    write_study(study.out, text, numbers, lambda path: plot(numbers, path))
    print(f"{text}\n{numbers['minutes']:.1f} minutes; {study.out / 'study.png'}")


if __name__ == "__main__":
    main()
