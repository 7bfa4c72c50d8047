"""Runs of every system on twelve sentences, of four classes where it takes labels; fixtures of `tests/engine`."""

import pytest

from fastadv.data.variants.text_pairs import write_pairs
from fastadv.data.variants.word_sets import WordSets
from tests.quick_trainer import Trainer
from tests.small_runs import SENTENCES

CLASSES = ("bad", "fair", "good", "great")
LABELS = [CLASSES[i % 4] for i in range(len(SENTENCES))]
# Row → its text under an attack; the other five have none.
ATTACKED = {
    0: "the film was not veery good .",
    1: "a wondrful story !",
    3: "the acter was great , but the plot was slow .",
    5: "love this camera and thiss music .",
    6: "evry scene was sad and slow",
    9: "hatte it",
    11: "the storyy is with this actor",
}
SETS = WordSets(
    {"good": ("fine", "great"), "film": ("movie",), "slow": ("dull", "sad"), "plot": ("story",), "it": ("this",)},
    {"good": ("bad",), "slow": ("sharp",), "wonderful": ("terrible",), "always": ("never",), "love": ("hate",)},
)
# Adaptive makes a probe of the first step and of the fourth.
REUSED = {"perturbation.num_steps": 3, "perturbation.probe_every": 3, "perturbation.agreement": 0.2}
FGM = {"perturbation.method": "fgm", "perturbation.epsilon": 0.5}
FREELB = {"perturbation.method": "freelb", "perturbation.alpha": 0.1, "perturbation.sigma": 0.3}
PGD = {"perturbation.method": "pgd", "perturbation.norm": "l2", "perturbation.epsilon": 0.5, "perturbation.alpha": 0.3}
SMART = {"perturbation.method": "pgd", "perturbation.start": "normal", "perturbation.sigma": 0.02}
SMART |= {"perturbation.num_steps": 1, "perturbation.inner_dropout": "frozen", "perturbation.epsilon_relative": 0.2}

SENTENCE_SYSTEMS = {
    "robustsentembed": {},
    "exact": {"perturbation.reuse": "none"},
    "adaptive": {"perturbation.reuse": "adaptive", **REUSED},
    "free": {"perturbation.reuse": "free", **REUSED},
    "rtd": {"objective_options": {"rtd_generator": "unigram", "weight_rtd": 0.5}},
    "uscal": {"objective": "uscal", "perturbation.method": "fgm"},
    "simcse": {"objective": "simcse"},
}
CLASS_SYSTEMS = {
    "fine_tuning": {"objective": "fine_tuning"},
    "fgsm": {"objective": "adversarial_training", "perturbation.method": "fgsm", "perturbation.epsilon": 0.02},
    "fgm": {"objective": "adversarial_training", **FGM},
    "pgd": {"objective": "adversarial_training", **PGD, "perturbation.sigma": 0.1},
    "freelb": {"objective": "adversarial_training", "objective_options": {"weight_clean": 0.0}, **FREELB},
    "scal": {"objective": "scal", **FGM},
    "smart": {"objective": "smart", **SMART},
    "carl": {"objective": "carl", "objective_options": {"num_negatives": 9}, **FREELB},
    "rar": {"objective": "rar", **FREELB},
    "taichi": {"objective": "taichi", "encoder.pooling": "mean"},
    "safer": {"objective": "safer"},
    "ada": {"objective": "ada"},
    "ada_soft": {"objective": "ada", "objective_options": {"targets": "soft"}},
    "base_adv": {"objective": "base_adv"},
    "base_adv_soft": {"objective": "base_adv", "objective_options": {"targets": "soft"}},
    "a2t": {"objective": "a2t", "objective_options": {"share": 0.25, "num_clean_epochs": 1}},
    "bat_pairwise": {"objective": "bat_pairwise", "objective_options": {"obstinate_labels": ["good", "great"]}},
    "bat_triplet": {"objective": "bat_triplet", "objective_options": {"distance_of": "max"}},
    "two networks": {"objective": "tests.engine.runs.toy_variants:TwoNetworks"},
}
READS_PAIRS = ("taichi", "ada", "ada_soft", "base_adv", "base_adv_soft")
READS_WORD_SETS = ("safer", "bat_pairwise", "bat_triplet", "two networks")


@pytest.fixture
def make_system(make_config, tmp_path, request):
    """``make_system("freelb", "run", **changes)``: the config of a run, as `make_config` gives it.

    ``dev.tsv`` in the folder of ``train.tsv`` holds the first eight texts; dev scores are for who names it.
    """
    rows = [f"{text}\t{SENTENCES[-1 - i]}\t{LABELS[i]}" for i, text in enumerate(SENTENCES)]
    for name, end in (("train", None), ("dev", 8)):
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tother\tlabel", *rows[:end]]) + "\n", encoding="utf-8")
    SETS.save(tmp_path / "sets.json")
    pairs = {(SENTENCES[row],): (text,) for row, text in ATTACKED.items()}
    write_pairs(tmp_path / "pairs.csv", pairs, {(SENTENCES[row],): LABELS[row] for row in ATTACKED})

    def make(system, name="run", **changes):
        own = {"objective_options": {}, **SENTENCE_SYSTEMS.get(system, {}), **CLASS_SYSTEMS.get(system, {})}
        own["objective_options"] = dict(own["objective_options"])
        if system in SENTENCE_SYSTEMS:
            return make_config(name, **{**own, **changes})
        own = {
            "data.train": str(tmp_path / "train.tsv"),
            "data.label_field": "label",
            "perturbation.epsilon_relative": None,
            **own,
        }
        if own["objective_options"].get("targets") == "soft":
            own["objective_options"]["victim"] = request.getfixturevalue("victim")
        if system in READS_PAIRS:
            own["data.pairs"] = str(tmp_path / "pairs.csv")
        if system in READS_WORD_SETS:
            own["data.word_sets"] = str(tmp_path / "sets.json")
        if system.startswith("bat"):
            own["data.pair_field"] = "other"
        return make_config(name, **{**own, **changes})

    return make


@pytest.fixture
def victim(make_config, tmp_path):
    """A trained classifier of the same texts, as fine-tuning exports it."""
    config = make_config("victim", **{"objective": "fine_tuning", "data.label_field": "label", "train.max_steps": 2})
    config.data.train, config.perturbation.epsilon_relative = str(tmp_path / "train.tsv"), None
    return str(Trainer(config).fit() / "model")


@pytest.fixture
def attack(monkeypatch):
    """Stands for the attack at epochs' starts; the rows it was asked for, in their order, each time."""
    asked = []

    def find_texts(plan, model, texts, labels, order, seed, log, roles):
        assert not model.training and len(texts) == len(labels) == len(SENTENCES)
        asked.append(list(order))
        return {
            texts[row]: (f"{texts[row][0]} {model.classify_texts([texts[row][0]]).argmax()}",) for row in order[::3]
        }

    monkeypatch.setattr("fastadv.engine.epoch_attack.find_texts", find_texts)
    monkeypatch.setattr("fastadv.engine.build.check_attack", lambda plan: None)
    return asked
