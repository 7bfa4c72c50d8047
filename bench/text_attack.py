"""How fast attacks ask the packed victim, beside TextAttack's own wrapper: ``python -m bench.text_attack --data MR``.

Every text is attacked twice by each recipe: through `fastadv.evaluation.victims.text.TextVictim`, and through
TextAttack's ``HuggingFaceModelWrapper`` on ``AutoModelForSequenceClassification``, both of the same weights, cut and
seeds; who begins changes from text to text. Recipes and searches are TextAttack's in both cases. Queries are
TextAttack's count. The rates get no ratio unless every text has the same outcome both ways.

TextAttack's wrapper pads every text to the tokenizer's longest. That is set to ``--max-length`` here, in its favour.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np
import torch
from torch.nn import functional as F

from bench.ops import machine_info
from bench.turns import say, write_json
from fastadv.data.labelled.find import LabelledTexts
from fastadv.encoder import Encoder
from fastadv.encoder.classifier.classification_head import draw_head
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.evaluation.embeddings.classifier_attack import labels_of, with_rows
from fastadv.evaluation.recipes.recipe_attack import RecipeAttack
from fastadv.evaluation.recipes.text_recipes import build_recipe
from fastadv.evaluation.text.attack import LabelledText, TextAttackSettings, attack_text, resources_of, seed_by
from fastadv.evaluation.text.attacked_data import AttackedData, hash_of_texts
from fastadv.evaluation.victims.text import TextVictim

OURS, THEIRS = "packed victim", "HuggingFaceModelWrapper"
TARGET = 3.0
_NUM_TRAINING = 1000


class Attacked(NamedTuple):
    """One text under one recipe through one wrapper."""

    outcome: str
    text: str
    num_queries: int
    cpu_s: float
    wall_s: float


def train_victim(folder: Path, data: LabelledTexts, model: str, max_length: int) -> None:
    """A head on the frozen encoder's first tokens, saved as a classifier: what an attack finds something to do with."""
    torch.manual_seed(0)
    encoder = Encoder.from_pretrained(model, "cls", max_length)
    classifier = Classifier(encoder, draw_head(encoder.hf.config, data.label_map), data.label_map).eval()
    vectors, labels = torch.from_numpy(encoder.encode_texts(data.first)), torch.tensor(data.labels)
    optimizer = torch.optim.Adam(classifier.head.parameters(), lr=1e-3, weight_decay=1e-4)
    for _ in range(300):
        optimizer.zero_grad()
        F.cross_entropy(classifier.head(vectors), labels).backward()
        optimizer.step()
    right = (classifier.head(vectors).argmax(dim=1) == labels).float().mean().item()
    say(f"a head on {model}, trained on {len(labels):,} texts, right on {right:.0%} of them")
    classifier.save_pretrained(folder)


def ours(folder: Path, recipe: str, max_length: int) -> Callable[[LabelledText], Tuple[str, str, int]]:
    """An attack through the packed victim."""
    victim = TextVictim(Classifier.from_pretrained(str(folder), max_length=max_length), model_folder=str(folder))
    settings = TextAttackSettings(recipe, max_seconds=None)
    attacker = RecipeAttack.build(recipe, victim, resources_of(settings))

    def attack(text: LabelledText) -> Tuple[str, str, int]:
        row = attack_text(attacker, victim, settings, text)
        return row.outcome, row.first_adversarial, row.num_queries

    return attack


def theirs(folder: Path, recipe: str, max_length: int) -> Callable[[LabelledText], Tuple[str, str, int]]:
    """The same attack through TextAttack's own wrapper."""
    from textattack.attack_results import FailedAttackResult, SkippedAttackResult
    from textattack.models.wrappers import HuggingFaceModelWrapper
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    wrapper = HuggingFaceModelWrapper(model, AutoTokenizer.from_pretrained(folder, model_max_length=max_length))
    built = build_recipe(recipe, wrapper)

    def attack(text: LabelledText) -> Tuple[str, str, int]:
        seed_by(0, text.texts)
        result = built.attack(text.texts[0], text.label)
        kinds = {SkippedAttackResult: "skipped", FailedAttackResult: "failed"}
        outcome = kinds.get(type(result), "succeeded")
        changed = result.perturbed_result.attacked_text.text if outcome == "succeeded" else text.texts[0]
        return outcome, changed, result.num_queries

    return attack


def interleaved(
    attacks: Dict[str, Callable[[LabelledText], Tuple[str, str, int]]], texts: List[LabelledText]
) -> Dict[str, List[Attacked]]:
    """Name → one result a text."""
    found: Dict[str, List[Attacked]] = {name: [] for name in attacks}
    said = time.perf_counter()
    for number, text in enumerate(texts):
        names = list(attacks)
        for name in names if number % 2 == 0 else names[::-1]:
            wall, cpu = time.perf_counter(), time.process_time()
            outcome = attacks[name](text)
            found[name].append(Attacked(*outcome, time.process_time() - cpu, time.perf_counter() - wall))
        if time.perf_counter() - said > 20:
            said = time.perf_counter()
            say(f"  {number + 1} of {len(texts)} texts")
    return found


def summarise(recipe: str, found: Dict[str, List[Attacked]], texts: List[LabelledText], info: dict) -> List[dict]:
    """Benchmarks as pytest-benchmark has them. SystemExit where outcomes differ: one of the two is wrong."""
    differ = [text.row for text, *both in zip(texts, *found.values()) if len({one.outcome for one in both}) > 1]
    if differ:
        raise SystemExit(f"{recipe}: other outcomes through {' and '.join(found)} for rows {differ}: no speed to tell")
    same = np.mean([a.text == b.text and a.num_queries == b.num_queries for a, b in zip(*found.values())])
    benchmarks, rates = [], {}
    for name, results in found.items():
        queries, cpu = sum(one.num_queries for one in results), sum(one.cpu_s for one in results)
        rates[name] = queries / cpu
        extra = {
            **info,
            "recipe": recipe,
            "wrapper": name,
            "num_texts": len(results),
            "num_queries": queries,
            "queries_per_s": rates[name],
            "queries_per_s_wall": queries / sum(one.wall_s for one in results),
            "outcomes": dict(Counter(one.outcome for one in results)),
            "share_equal_in_text_and_queries": float(same),
            "clock": "process CPU time",
        }
        stats = {"total": cpu, "data": [one.cpu_s for one in results]}
        group = f"text_attack {recipe}"
        benchmarks.append({"name": f"{group}[{name}]", "group": group, "stats": stats, "extra_info": extra})
        say(f"  {recipe:12} {name:24} {queries:6,} queries, {cpu:7.1f} s, {rates[name]:7.1f} queries/s")
    ratio = rates[OURS] / rates[THEIRS]
    is_met = "met" if ratio >= TARGET else "not met"
    say(f"  {recipe:12} ratio {ratio:.2f} (target {TARGET:g}, {is_met}); {same:.0%} equal to the letter and query")
    for benchmark in benchmarks:
        benchmark["extra_info"]["ratio"] = ratio
    return benchmarks


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="labelled texts, as fastadv attack takes them")
    parser.add_argument("--split", default="train")
    parser.add_argument("--label-field", default="label")
    parser.add_argument("--model", default=None, help="a classifier's folder (default: a head on --encoder)")
    parser.add_argument("--encoder", default="demo:minilm")
    parser.add_argument("--recipes", nargs="+", default=["deepwordbug", "pwws"])
    parser.add_argument("--texts", type=int, default=100)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None, help="where the measurements go")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    # Texts that the head was trained on are not attacked.
    source = AttackedData(options.data, options.split, label_field=options.label_field, max_texts=None)
    everything, rows = source.read()
    order = np.random.default_rng(0).permutation(len(everything)).tolist()
    chosen, others = sorted(order[: options.texts]), order[options.texts :][:_NUM_TRAINING]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.model or scratch)
        if options.model is None:
            train_victim(folder, with_rows(everything, others), options.encoder, options.max_length)
        classifier = Classifier.from_pretrained(str(folder), max_length=options.max_length)
        data = with_rows(everything, chosen)
        labels = labels_of(classifier, data)
        texts = [LabelledText(int(rows[i]), (everything.first[i],), int(y)) for i, y in zip(chosen, labels)]
        info = {"max_length": options.max_length, "threads": options.threads, "data": hash_of_texts(data)}
        benchmarks = []
        for recipe in options.recipes:
            attacks = {OURS: ours, THEIRS: theirs}
            built = {name: make(folder, recipe, options.max_length) for name, make in attacks.items()}
            # The first question of a process pays for what all share.
            for attack in built.values():
                attack(LabelledText(-1, ("a film of no importance",), 0))
            benchmarks += summarise(recipe, interleaved(built, texts), texts, info)
    if options.json is not None:
        settings = {name: str(value) for name, value in vars(options).items() if name != "json"}
        write_json(options.json, settings, benchmarks)
    else:
        say(f"on {machine_info()['cpu']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
