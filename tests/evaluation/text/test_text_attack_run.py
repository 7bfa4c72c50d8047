"""``fastadv attack --recipe`` by BAT's attacks: rows, resuming, processes, pairs, mistakes. TextAttack's recipes have a
file of their own.
"""

import csv
import html
import json
import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fastadv.data.labelled.find import LabelledTexts, read_labelled
from fastadv.data.labelled.labels import LabelMap
from fastadv.data.variants.word_sets import WordSets
from fastadv.encoder.classifier.text_classifier import Classifier
from fastadv.evaluation.text import attack as text_attack
from fastadv.evaluation.text import workers as text_attack_workers
from fastadv.evaluation.text.attack import TextAttackSettings
from fastadv.evaluation.text.kept_rows import locked_writer
from fastadv.evaluation.text.rows import read_rows
from fastadv.evaluation.victims.text import TextVictim
from tests.evaluation.attacked import CLASSES, SETS, TEXTS, own_labels, run, write_table
from tests.evaluation.hostile_texts import HOSTILE


@pytest.fixture(scope="module")
def folder(attacked_folder):
    return attacked_folder


def arguments(folder, out, *more, recipe="synonym", models=("a",), data="mistaken.csv"):
    chosen = [argument for name in models for argument in ("--model", str(folder / name / "model"))]
    sets = [] if recipe == "negation" else ["--word_sets", str(folder / "sets.json")]
    given = ["attack", *chosen, "--data", str(folder / data), "--out", str(out), "--recipe", recipe, *sets]
    return [*given, *map(str, more)]


def plain(rows):
    """Rows but for the time they took."""
    return [
        replace(row, seconds=0.0, score=repr(row.score), score_adversarial=repr(row.score_adversarial)) for row in rows
    ]


def test_rows_say_what_the_model_says(folder, tmp_path, capsys):
    out = tmp_path / "out"
    printed = run(arguments(folder, out), capsys)
    rows = read_rows(out / "rows.csv")
    classifier = Classifier.from_pretrained(str(folder / "a/model"))

    def said(texts):
        logits = torch.from_numpy(classifier.classify_texts(texts)).double()
        return logits.softmax(dim=1), [CLASSES[i] for i in logits.argmax(dim=1)]

    before, predicted = said(TEXTS)
    after, predicted_after = said([row.first_adversarial for row in rows])
    assert [row.row for row in rows] == list(range(12)) and [row.first for row in rows] == TEXTS
    assert [row.predicted for row in rows] == predicted
    assert [row.predicted_adversarial for row in rows] == predicted_after
    for number, row in enumerate(rows):
        label = CLASSES.index(row.label)
        assert row.score == pytest.approx(before[number, label].item(), abs=1e-5)
        assert row.score_adversarial == pytest.approx(after[number, label].item(), abs=1e-5)
        assert (row.outcome == "skipped") == (row.label != row.predicted) == (number in (2, 5))
        assert (row.outcome == "succeeded") == (row.label == row.predicted != row.predicted_adversarial)
        differ = sum(a != b for a, b in zip(row.first.split(), row.first_adversarial.split()))
        assert (row.num_words, row.num_words_changed) == (len(row.first.split()), differ)
        assert (differ > 0) == (row.outcome == "succeeded")
        for a, b in zip(row.first.split(), row.first_adversarial.split()):
            assert a == b or b in SETS.synonyms[a]
    assert {row.outcome for row in rows} == {"succeeded", "failed", "skipped"}
    results = json.loads((out / "text-attack.json").read_text(encoding="utf-8"))
    (model,) = results["models"]
    assert model["rates"]["num_succeeded"] == sum(row.outcome == "succeeded" for row in rows)
    assert model["rates"]["num_skipped"] == 2 and model["labels"] == list(CLASSES)
    assert results["protocol"]["settings"]["recipe"] == "synonym" and results["protocol"]["data"]["num_texts"] == 12
    assert "text-attack.html" in printed.out and not printed.err


@pytest.mark.parametrize("recipe", ["antonym", "negation", "synonym"])
def test_pairs_of_texts_are_attacked_at_either_text(folder, tmp_path, capsys, recipe):
    run(arguments(folder, tmp_path / "out", "--pair_field", "other", recipe=recipe, data="pairs.csv"), capsys)
    rows = read_rows(tmp_path / "out" / "rows.csv")
    succeeded = [row for row in rows if row.outcome == "succeeded"]
    assert succeeded and all(row.second is not None for row in rows)
    changed = {(row.first != row.first_adversarial, row.second != row.second_adversarial) for row in succeeded}
    assert {(True, False), (False, True)} & changed
    assert all((row.predicted_adversarial == row.label) == (recipe != "synonym") for row in succeeded)
    assert recipe != "antonym" or all(row.num_words_changed == 1 for row in succeeded)


@pytest.mark.parametrize(
    "columns, more, expected",
    [
        (("Premise", "hypothesis"), (), ("premise", "hypothesis")),
        (("hypothesis", "premise"), (), ("hypothesis", "premise")),
        (("sentence1", "sentence2"), ("--pair_roles", "premise", "hypothesis"), ("premise", "hypothesis")),
    ],
)
def test_the_columns_of_pairs_are_their_roles(folder, tmp_path, capsys, monkeypatch, columns, more, expected):
    asked, build = [], text_attack_workers.build_attacker

    def asking(settings, victim, roles):
        asked.append(roles)
        return build(settings, victim, roles)

    monkeypatch.setattr(text_attack_workers, "build_attacker", asking)
    lines = (folder / "pairs.csv").read_text(encoding="utf-8").split("\n", 1)
    names = dict(zip(("text", "other"), columns))
    head = ",".join(names.get(name, name) for name in lines[0].strip().split(","))
    (tmp_path / "pairs.csv").write_text(f"{head}\n{lines[1]}", encoding="utf-8")
    given = ("--field", columns[0], "--pair_field", columns[1], "--max_texts", 1, *more)
    run(arguments(folder, tmp_path / "out", *given, data=tmp_path / "pairs.csv"), capsys)
    assert asked and set(asked) == {expected}
    results = json.loads((tmp_path / "out/text-attack.json").read_text(encoding="utf-8"))
    assert results["protocol"]["roles"] == list(expected)


def test_roles_are_two_names_of_pairs(folder, tmp_path, capsys):
    given = arguments(folder, tmp_path / "out", "--pair_roles", "premise", "hypothesis")
    assert "expected two names, of pairs" in run(given, capsys, status=2).err
    given = arguments(folder, tmp_path / "out", "--pair_field", "other", "--pair_roles", "x", "x", data="pairs.csv")
    assert "expected two names, of pairs" in run(given, capsys, status=2).err


def count_attacks(monkeypatch):
    attacked, real = [], text_attack.attack_text

    def counted(attacker, victim, settings, text):
        attacked.append(text.row)
        return real(attacker, victim, settings, text)

    monkeypatch.setattr(text_attack_workers, "attack_text", counted)
    return attacked


def test_a_stopped_run_goes_on_and_settings_do_not_mix(folder, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    attacked = count_attacks(monkeypatch)
    run(arguments(folder, out, "--max_texts", 4), capsys)
    few = read_rows(out / "rows.csv")
    assert len(attacked) == 4 == len(few)
    # More texts find those that are done.
    run(arguments(folder, out), capsys)
    whole = read_rows(out / "rows.csv")
    assert sorted(attacked) == list(range(12)) == [row.row for row in whole] and set(few) <= set(whole)
    attacked.clear()
    run(arguments(folder, out), capsys)
    assert attacked == [] and read_rows(out / "rows.csv") == whole
    # Cut in the middle of the sixth row, as by a kill.
    (part,) = (out / "parts").glob("*.csv")
    lines = part.read_bytes().split(b"\n")
    part.write_bytes(b"\n".join(lines[:6]) + b"\n" + lines[6][:20])
    kept = [row.row for row in read_rows(part)]
    run(arguments(folder, out), capsys)
    assert len(kept) == 5 and sorted(attacked + kept) == list(range(12))
    assert plain(read_rows(out / "rows.csv")) == plain(whole)
    with locked_writer(part, is_pair=False):
        assert "another run writes to" in run(arguments(folder, out), capsys, status=2).err
    # What lies in a file counts, not its name.
    moved, changed = tmp_path / "moved.json", tmp_path / "changed.json"
    SETS.save(moved)
    WordSets({**SETS.synonyms, "actor": ["one"]}, SETS.antonyms).save(changed)
    others = [["--seed", 1], ["--max_queries", 3], ["--max_length", 9], ["--batch_size", 2], ["--word_sets", changed]]
    given = [arguments(folder, out, *more) for more in others] + [arguments(folder, out, models=("b",))]
    for number, more in enumerate([arguments(folder, out, "--word_sets", moved), *given]):
        attacked.clear()
        run(more, capsys)
        assert attacked == (list(range(12)) if number else [])


def test_the_order_of_the_texts_has_no_say(folder, tmp_path, capsys):
    data = LabelledTexts(LabelMap(CLASSES), TEXTS[::-1], None, [CLASSES.index(name) for name in labels(folder)][::-1])
    write_table(tmp_path / "reversed.csv", data)
    run(arguments(folder, tmp_path / "a"), capsys)
    run(arguments(folder, tmp_path / "b", data=tmp_path / "reversed.csv"), capsys)
    forward, backward = (plain(read_rows(tmp_path / name / "rows.csv")) for name in "ab")
    assert forward == [replace(row, row=11 - row.row) for row in backward[::-1]]


def labels(folder):
    data = read_labelled(str(folder / "mistaken.csv"))
    return [data.label_map.names[label] for label in data.labels]


def test_hostile_texts_are_a_row_each(folder, tmp_path, capsys):
    classifier = Classifier.from_pretrained(str(folder / "a/model"))
    data = own_labels(classifier, list(HOSTILE.values()))
    write_table(tmp_path / "hostile.csv", data)
    for recipe in ("synonym", "antonym", "negation"):
        # 5,000 words are many questions, whose answers nobody needs here.
        limits = ("--max_seconds", 2)
        run(arguments(folder, tmp_path / recipe, *limits, recipe=recipe, data=tmp_path / "hostile.csv"), capsys)
        rows = read_rows(tmp_path / recipe / "rows.csv")
        assert [row.first for row in rows] == data.first
        assert all(row.outcome in ("failed", "succeeded") and row.predicted == row.label for row in rows)


def test_a_failing_text_is_a_row_and_the_run_goes_on(folder, tmp_path, capsys, monkeypatch):
    real = text_attack.SynonymAttack.__call__

    def fails(self, search):
        if search.texts[0] in (TEXTS[1], TEXTS[4]):
            print("about to fail")
            raise RuntimeError("two\nlines " + "long " * 100)
        real(self, search)

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(text_attack.SynonymAttack, "__call__", fails)
        printed = run(arguments(folder, out), capsys)
    rows = read_rows(out / "rows.csv")
    assert [row.row for row in rows if row.outcome == "error"] == [1, 4]
    assert rows[1].note.startswith("RuntimeError: two lines long") and len(rows[1].note) <= 300
    assert "about to fail" not in printed.out + printed.err
    log = (out / "attack.log").read_text(encoding="utf-8")
    assert log.count("about to fail") == 2 and "Traceback" in log
    # Another try takes them up again, and them alone.
    attacked = count_attacks(monkeypatch)
    run(arguments(folder, out), capsys)
    assert attacked == [1, 4] and not [row for row in read_rows(out / "rows.csv") if row.outcome == "error"]


def test_limits_are_noted(folder, tmp_path, capsys, monkeypatch):
    run(arguments(folder, tmp_path / "a", "--max_queries", 2), capsys)
    rows = read_rows(tmp_path / "a" / "rows.csv")
    ended = [row for row in rows if row.note == "queries"]
    assert ended and all(row.outcome == "failed" and row.num_queries == 2 for row in ended)
    assert all(row.note == "" for row in rows if row.outcome != "failed")

    def endless(self, search):
        search.before = self.victim([search.texts[0]])[0].numpy()
        while True:
            try:
                self.victim([f"{search.texts[0]} {os.urandom(4).hex()}"])
            except Exception:
                pass

    monkeypatch.setattr(text_attack.SynonymAttack, "__call__", endless)
    run(arguments(folder, tmp_path / "b", "--max_seconds", 0.05, "--max_texts", 3), capsys)
    for row in read_rows(tmp_path / "b" / "rows.csv"):
        assert row.outcome in ("failed", "skipped")
        assert row.note == ("time" if row.outcome == "failed" else "")
        assert row.first_adversarial == row.first


def test_pairs_to_train_on_are_what_succeeded(folder, tmp_path, capsys):
    path = tmp_path / "pairs.csv"
    printed = run(arguments(folder, tmp_path / "out", "--write-pairs", path), capsys)
    succeeded = [row for row in read_rows(tmp_path / "out" / "rows.csv") if row.outcome == "succeeded"]
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert list(found[0]) == ["first", "label", "first_adversarial"] and len(found) == len(succeeded)
    assert all(pair == {name: getattr(row, name) for name in found[0]} for pair, row in zip(found, succeeded))
    assert f"{len(succeeded)} pairs" in printed.out
    more = ("--pair_field", "other", "--write_pairs", path)
    run(arguments(folder, tmp_path / "other", *more, data="pairs.csv"), capsys)
    with path.open(encoding="utf-8", newline="") as file:
        assert next(csv.reader(file)) == ["first", "second", "label", "first_adversarial", "second_adversarial"]


def test_only_the_classes_asked_for_are_attacked(folder, tmp_path, capsys):
    all_labels = labels(folder)
    chosen = sorted(set(all_labels))[:2]
    run(arguments(folder, tmp_path / "out", "--labels", *chosen), capsys)
    rows = read_rows(tmp_path / "out" / "rows.csv")
    assert [row.row for row in rows] == [i for i, label in enumerate(all_labels) if label in chosen]
    error = run(arguments(folder, tmp_path / "no", "--labels", "fine"), capsys, status=2).err
    assert "--labels 'fine' is no class of" in error and error.count("\n") == 1


def test_the_callers_random_numbers_go_on_as_without_an_attack(folder):
    def drawn():
        return random.random(), np.random.rand(), torch.rand(3).tolist()

    victim = TextVictim(Classifier.from_pretrained(str(folder / "a/model")))
    settings = TextAttackSettings("synonym", word_sets=str(folder / "sets.json"))
    attacker = text_attack.build_attacker(settings, victim)
    expected = []
    for is_attacked in (False, True):
        text_attack.seed_by(7, ("any",))
        first = drawn()
        if is_attacked:
            text_attack.attack_text(attacker, victim, settings, text_attack.LabelledText(0, (TEXTS[0],), 0))
        expected.append((first, drawn()))
    assert expected[0] == expected[1]


def test_a_second_model_is_set_beside_its_control(folder, tmp_path, capsys):
    printed = run(arguments(folder, tmp_path / "out", models=("a", "b")), capsys)
    assert "a, bias of b" in printed.out
    names = {path.name for path in (tmp_path / "out").glob("rows-*.csv")}
    assert names == {"rows-a.csv", "rows-b.csv", "rows-a--bias-of-b.csv"}
    results = json.loads((tmp_path / "out" / "text-attack.json").read_text(encoding="utf-8"))
    control = next(model for model in results["models"] if model["name"] == "a, bias of b")["control"]
    # The control is the baseline with its logits moved: its predictions before are those shares.
    rows = read_rows(tmp_path / "out" / "rows-a--bias-of-b.csv")
    for name, share in control["share_reached"].items():
        assert sum(row.predicted == name for row in rows) / 12 == pytest.approx(share)


def test_dry_run_checks_and_does_nothing(folder, tmp_path, capsys):
    printed = run(arguments(folder, tmp_path / "out", "--dry_run", "--processes", 2, "--max_queries", 1000), capsys)
    assert "synonym, goal untargeted, 1,000 queries and 120 s a text, in 2 processes" in printed.out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--recipe", "negation", "--goal", "remain"], "word_sets is read by antonym, synonym"),
        (["--goal", "remain"], "synonym keeps the true class"),
        (["--max_seconds", "-1"], "max_seconds -1.0: expected more than 0"),
        (["--max_seconds", "nan"], "max_seconds nan: expected more than 0"),
        (["--mlm", "x"], "mlm is read by bae, bert-attack"),
        (["--attack_data", "x"], "attack_data is read by deepwordbug"),
        (["--word_sets", "missing.json"], "word sets 'missing.json'"),
        (["--epsilons", "1"], "--epsilons belongs to an attack on embeddings"),
        (["--method", "pgd"], "--method belongs to an attack on embeddings"),
        (["--write-pairs", "pairs.txt"], "expected a file that ends in .csv"),
        (["--write-pairs", "no/such/pairs.csv"], "expected a file in a folder that exists"),
        (["--max_queries", "0"], "expected a whole number of at least 1"),
        (["--write-pairs", "p.csv", "--model", "b"], "--write-pairs takes the pairs of one model"),
        # Without --recipe and --word_sets.
        (["none", "--recipe", "antonym"], "antonym needs --word_sets"),
        (["none", "--recipe", "bae"], "bae needs --mlm"),
        (["none", "--max_queries", "5"], "--max_queries belongs to an attack on text; expected it with --recipe"),
        (["none", "--write-pairs", "p.csv"], "--write_pairs belongs to an attack on text"),
    ],
)
def test_mistakes_end_in_one_line(folder, tmp_path, capsys, change, message):
    given = arguments(folder, tmp_path / "out")
    if change[0] == "none":
        given, change = given[: given.index("--recipe")], change[1:]
    printed = run([*given, *change, "--dry_run"], capsys, status=2)
    assert message in printed.err and printed.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_prompt_that_the_model_brings_is_told(folder, tmp_path, capsys):
    shutil.copytree(folder / "a/model", tmp_path / "a/model")
    said = {"prompts": {"film": "a film : "}, "default_prompt_name": "film"}
    (tmp_path / "a/model/config_sentence_transformers.json").write_text(json.dumps(said), encoding="utf-8")
    given = arguments(folder, tmp_path / "out", "--max_texts", 2)
    given[given.index("--model") + 1] = str(tmp_path / "a/model")
    run(given, capsys)
    (model,) = json.loads((tmp_path / "out/text-attack.json").read_text(encoding="utf-8"))["models"]
    assert model["prompt"] == "a film : "
    page = html.unescape((tmp_path / "out/text-attack.html").read_text(encoding="utf-8"))
    assert "before every text</dt><dd>'a film : '</dd>" in page
