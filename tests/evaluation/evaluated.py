"""What ``fastadv evaluate all`` is run on in tests, how it is called, and how what it leaves is read."""

import json

import torch
from threadpoolctl import threadpool_limits

from fastadv.data.variants.word_sets import WordSets
from fastadv.files.csv_file import read_csv as rows_in  # noqa: F401
from tests.evaluation.attacked import TEXTS, make_classifier, own_labels, run, write_table  # noqa: F401
from tests.evaluation.made_up_sets import write_sets, write_sts_benchmark

SETS = WordSets(
    synonyms={
        "film": ["movie", "story"],
        "dull": ["slow", "sad"],
        "wonderful": ["great", "good"],
        "music": ["scene", "camera"],
        "plot": ["story", "scene"],
        "good": ["bad", "great"],
        "never": ["always"],
    },
    antonyms={},
)


def write_models(folder, tiny_bert_dir):
    """Classifiers a, b, c, d, texts that a is right on, word sets, sentences, and data in SentEval's layout."""
    torch.set_num_threads(1)
    # Fits of a few rows take longer with threads than without.
    threadpool_limits(1)
    for seed, name in enumerate("abcd"):
        classifier = make_classifier(tiny_bert_dir, dtype=torch.float32, seed=seed)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in classifier.encoder.hf.parameters():
                parameter += 0.02 * seed * torch.randn_like(parameter)
        classifier.save_pretrained(folder / name)
        if name == "a":
            write_table(folder / "texts.csv", own_labels(classifier))
    SETS.save(folder / "sets.json")
    (folder / "held-out.txt").write_text("\n".join(f"{w} {t}" for t in TEXTS for w in ("good", "slow")) + "\n")
    write_sts_benchmark(folder / "senteval")
    write_sets(folder / "senteval", ["SST-2"], num_rows=12)
    return folder


def arguments(folder, out, *more, models=("one=a,b", "two=c,d"), data="senteval"):
    chosen = []
    for system in models:
        name, _, models_of = system.rpartition("=")
        paths = ",".join(str(folder / model) for model in models_of.split(","))
        chosen += ["--model", f"{name}={paths}" if name else paths]
    options = {
        "--data": folder / data,
        "--out": out,
        "--labelled": folder / "texts.csv",
        "--word_sets": folder / "sets.json",
        "--adv_sts_recipe": "synonym",
        "--max_pairs": 12,
        "--held_out": folder / "held-out.txt",
        "--num_sentences": 16,
        "--cache_dir": folder / "cache",
    }
    given = [text for option, value in options.items() for text in (option, str(value))]
    return ["evaluate", "all", *chosen, *given, "--recipes", "synonym", "--epsilons", "0.1", "1", *map(str, more)]


def evaluation_of(out):
    return json.loads((out / "evaluation.json").read_text(encoding="utf-8"))


def without_seconds(evaluation):
    for part in evaluation["parts"].values():
        assert part.pop("seconds") >= 0
    return evaluation


def number_of(evaluation, **wanted):
    rows = [row for row in evaluation["numbers"] if all(row[name] == value for name, value in wanted.items())]
    assert len(rows) == 1, (wanted, len(rows))
    return rows[0]
