"""TextAttack's recipes on the packed victim: the attacks of TextAttack's own wrapper, and none of its noise.

The data are those of $FASTADV_ATTACK_DATA, or else a WordNet of a dozen words made on the spot.
"""

import csv
import importlib.util
import json
import os

import pytest
import torch

if importlib.util.find_spec("textattack") is None:
    pytest.skip("the extra `attack` is not installed", allow_module_level=True)

from fastadv.data.labelled.find import LabelledTexts
from fastadv.data.labelled.labels import LabelMap
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.evaluation.recipes.recipe_attack import RecipeAttack
from fastadv.evaluation.recipes.text_recipes import build_recipe
from fastadv.evaluation.recipes.textattack_offline import load_textattack
from fastadv.evaluation.resources.attack_data import VARIABLE
from fastadv.evaluation.text.attack import LabelledText, TextAttackSettings, attack_text, resources_of, seed_by
from fastadv.evaluation.text.rows import read_rows
from fastadv.evaluation.text.workers import AttackJob, attack_in_processes
from fastadv.evaluation.victims.text import TextVictim
from tests.evaluation.attacked import CLASSES, TEXTS, make_classifier, own_labels, run, write_table
from tests.evaluation.hostile_texts import HOSTILE
from tests.evaluation.packages import shared_attack_data

# Words that the small WordNet knows beside those of the other tests.
ATTACKED = [
    *TEXTS,
    "a fine film and a good dog",
    "the dog is well and the movie is bad",
    "a gain and a loss of the film",
]
RECIPES = ("deepwordbug", "pwws")


@pytest.fixture(scope="module", autouse=True)
def attack_data():
    """The folder of data; in this process and in those that a run starts."""
    if VARIABLE in os.environ:
        load_textattack()
        yield
        return
    os.environ[VARIABLE] = str(shared_attack_data())
    load_textattack()
    yield
    del os.environ[VARIABLE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    """A classifier, texts labelled by it but for one, and pairs."""
    folder = tmp_path_factory.mktemp("recipes")
    torch.set_num_threads(1)
    classifier = make_classifier(tiny_bert_dir, dtype=torch.float32)
    classifier.save_pretrained(folder / "model")
    data = own_labels(classifier, ATTACKED)
    data.labels[4] = (data.labels[4] + 1) % 4
    write_table(folder / "texts.csv", data)
    second = ATTACKED[3:] + ATTACKED[:3]
    # Centred on pairs, it says different things of them.
    logits = classifier.classify_texts(ATTACKED, second)
    with torch.no_grad():
        classifier.head.out.bias -= torch.from_numpy(logits.mean(axis=0))
    classifier.save_pretrained(folder / "pair-model")
    labels = (logits - logits.mean(axis=0)).argmax(axis=1)
    with (folder / "pairs.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "other", "label"])
        writer.writerows(zip(ATTACKED, second, (CLASSES[label] for label in labels)))
    return folder


def arguments(folder, out, recipe, *more, data="texts.csv", model="model"):
    given = ["attack", "--model", folder / model, "--data", folder / data, "--out", out, "--recipe", recipe, *more]
    return [str(argument) for argument in given]


def plain(rows):
    return [{**vars(row), "seconds": None} for row in rows]


@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_are_what_textattacks_own_wrapper_finds(folder, tmp_path, capfd, recipe):
    from textattack.attack_results import FailedAttackResult, SkippedAttackResult, SuccessfulAttackResult
    from textattack.models.wrappers import HuggingFaceModelWrapper
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    printed = run(arguments(folder, tmp_path / "out", recipe), capfd)
    rows = read_rows(tmp_path / "out" / "rows.csv")
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model").eval()
    attack = build_recipe(recipe, HuggingFaceModelWrapper(model, AutoTokenizer.from_pretrained(folder / "model")))
    kinds = {SuccessfulAttackResult: "succeeded", FailedAttackResult: "failed", SkippedAttackResult: "skipped"}
    for row in rows:
        seed_by(0, (row.first,))
        result = attack.attack(row.first, CLASSES.index(row.label))
        after = result.perturbed_result
        assert row.outcome == kinds[type(result)]
        if row.outcome == "succeeded":
            assert row.first_adversarial == after.attacked_text.text
            assert row.num_words_changed == result.original_result.attacked_text.words_diff_num(after.attacked_text)
            assert row.predicted_adversarial == CLASSES[after.output]
            assert 1 - row.score_adversarial == pytest.approx(after.score, abs=1e-5)
        if row.outcome != "skipped":
            assert row.num_queries == result.num_queries
    assert {row.outcome for row in rows} >= {"succeeded", "skipped"} and rows[4].outcome == "skipped"
    # Nothing of TextAttack's reaches the terminal.
    assert not printed.err and "textattack:" not in printed.out
    assert "textattack:" in (tmp_path / "out" / "attack.log").read_text(encoding="utf-8")


@pytest.mark.several_processes
def test_two_processes_give_the_rows_of_one(folder, tmp_path, capfd, recipe="deepwordbug"):
    run(arguments(folder, tmp_path / "one", recipe), capfd)
    printed = run(arguments(folder, tmp_path / "two", recipe, "--processes", 2), capfd)
    one, two = (read_rows(tmp_path / name / "rows.csv") for name in ("one", "two"))
    assert plain(one) == plain(two) and not printed.err
    # Each process has hashes of its own, so what depends on the order of a set would differ here.
    facts = [
        json.loads((tmp_path / name / "text-attack.json").read_text())["protocol"]["recipe"] for name in ("one", "two")
    ]
    assert facts[0] == facts[1] and facts[0]["candidates"]["num_words"] > 0 and facts[0]["textattack"]


def test_the_order_of_the_texts_has_no_say(folder):
    victim = TextVictim(Classifier.from_pretrained(str(folder / "model")))
    settings = TextAttackSettings("deepwordbug")
    attacker = RecipeAttack.build("deepwordbug", victim, resources_of(settings))
    labels = victim(ATTACKED).argmax(dim=1).tolist()
    texts = [LabelledText(row, (text,), label) for row, (text, label) in enumerate(zip(ATTACKED, labels))]

    def attacked(texts):
        return sorted(
            (vars(attack_text(attacker, victim, settings, text)) for text in texts), key=lambda row: row["row"]
        )

    forward, backward = attacked(texts), attacked(texts[::-1])
    assert [{**row, "seconds": 0} for row in forward] == [{**row, "seconds": 0} for row in backward]
    other = TextAttackSettings("deepwordbug", seed=1)
    assert [vars(attack_text(attacker, victim, other, text))["first_adversarial"] for text in texts] != [
        row["first_adversarial"] for row in forward
    ]


@pytest.mark.parametrize("recipe", RECIPES)
def test_hostile_texts_are_a_row_each(folder, tmp_path, capfd, recipe):
    classifier = Classifier.from_pretrained(str(folder / "model"))
    # The last text is one that TextAttack would cut.
    data = write_table(tmp_path / "hostile.csv", own_labels(classifier, [*HOSTILE.values(), "a <SPLIT> film"]))
    run(arguments(folder, tmp_path / "out", recipe, "--max_seconds", 2, data=data), capfd)
    *rows, split = read_rows(tmp_path / "out" / "rows.csv")
    assert split.outcome == "error" and split.note.startswith("ValueError: the text holds <SPLIT>")
    assert [row.first for row in rows] == list(HOSTILE.values())
    assert all(row.outcome in ("failed", "succeeded") and row.predicted == row.label for row in rows)
    many = rows[list(HOSTILE).index("many words")]
    assert many.num_words == 5000 and many.note in ("", "time")


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("texts", [("",), (" ",), ("", ""), ("a film", "")])
def test_empty_texts_are_attacked_to_an_end(folder, recipe, texts):
    victim = TextVictim(Classifier.from_pretrained(str(folder / "model")))
    settings = TextAttackSettings(recipe)
    label = int(victim([texts[0] if len(texts) == 1 else texts]).argmax())
    attacker = RecipeAttack.build(recipe, victim, resources_of(settings))
    row = attack_text(attacker, victim, settings, LabelledText(0, texts, label))
    assert row.outcome in ("failed", "succeeded") and (row.first, row.second) == (*texts, None)[:2]


@pytest.mark.parametrize("recipe", RECIPES)
def test_pairs_are_attacked_at_either_text(folder, tmp_path, capfd, recipe):
    of_pairs = {"data": "pairs.csv", "model": "pair-model"}
    run(arguments(folder, tmp_path / "out", recipe, "--pair_field", "other", **of_pairs), capfd)
    rows = read_rows(tmp_path / "out" / "rows.csv")
    succeeded = [row for row in rows if row.outcome == "succeeded"]
    assert len({row.label for row in succeeded}) > 1
    classifier = Classifier.from_pretrained(str(folder / "pair-model"))
    changed = [(row.first_adversarial, row.second_adversarial) for row in succeeded]
    said = classifier.classify_texts(*map(list, zip(*changed))).argmax(axis=1)
    assert [CLASSES[label] for label in said] == [row.predicted_adversarial for row in succeeded]
    assert any(row.second != row.second_adversarial for row in succeeded)
    assert all(row.label != row.predicted_adversarial for row in succeeded)


@pytest.mark.parametrize("recipe", RECIPES)
def test_queries_are_limited(folder, tmp_path, capfd, recipe):
    run(arguments(folder, tmp_path / "out", recipe, "--max_queries", 6), capfd)
    rows = read_rows(tmp_path / "out" / "rows.csv")
    assert max(row.num_queries for row in rows) == 6
    ended = [row for row in rows if row.note == "queries"]
    assert ended and all(row.outcome == "failed" and row.num_queries == 6 for row in ended)


def test_the_classifier_is_asked_for_gradients_by_a2t(folder, tmp_path):
    """A2T ranks words by get_grad and tokenize: aligned with TextAttack's words, with no gradient left behind."""
    from textattack.search_methods import GreedyWordSwapWIR
    from textattack.shared import AttackedText

    victim = TextVictim(Classifier.from_pretrained(str(folder / "model")))
    text = AttackedText("The film was dull zoo .")
    gradient = victim.get_grad(text.tokenizer_input)["gradient"]
    tokens_of = text.align_with_model_tokens(victim)
    # [CLS] the film was dull z ##o ##o . [SEP]
    assert tokens_of == {0: [1], 1: [2], 2: [3], 3: [4], 4: [5, 6, 7]} and len(gradient) == 10
    search = GreedyWordSwapWIR(wir_method="gradient")
    attack = build_recipe("deepwordbug", victim)
    attack.search_method = search
    search.get_indices_to_order = lambda text, **more: (5, [0, 1, 2, 3, 4])
    search.goal_function = attack.goal_function
    order, _ = search._get_index_order(text)
    sizes = [abs(gradient[tokens_of[word]].mean(axis=0)).sum() for word in range(5)]
    assert list(order) == sorted(range(5), key=lambda word: -sizes[word])


@pytest.mark.several_processes
def test_a_process_that_ends_is_an_error_of_its_text_alone(folder, tmp_path, capfd, monkeypatch):
    classifier = Classifier.from_pretrained(str(folder / "model"))
    labels = classifier.classify_texts(ATTACKED).argmax(axis=1).tolist()
    texts = [LabelledText(row, (text,), label) for row, (text, label) in enumerate(zip(ATTACKED[:2], labels))]
    texts[1] = LabelledText(1, ("a text to die of",), 0)
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "from fastadv.evaluation.text import attack as text_attack\n"
        "real = text_attack.seed_by\n"
        "def ends(seed, texts):\n"
        "    if texts[0] == 'a text to die of':\n"
        "        os._exit(1)\n"
        "    real(seed, texts)\n"
        "text_attack.seed_by = ends\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", ""), ".", "kernels"]))
    job = AttackJob(str(folder / "model"), TextAttackSettings("negation"), tmp_path / "log")
    rows = list(attack_in_processes(job, texts, CLASSES, 2))
    assert sorted(row.row for row in rows) == [0, 1]
    ended = [row for row in rows if row.outcome == "error"]
    assert [row.row for row in ended] == [1] and ended[0].note == "the process that attacked it ended"


def test_labels_that_the_model_does_not_know_are_named(folder, tmp_path, capfd):
    data = LabelledTexts(LabelMap(("bad", "awful")), TEXTS[:2], None, [0, 1])
    write_table(tmp_path / "texts.csv", data)
    error = run(arguments(folder, tmp_path / "out", "pwws", data=tmp_path / "texts.csv"), capfd, status=2).err
    assert "awful" in error and error.count("\n") == 1
