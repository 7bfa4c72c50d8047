"""Models under an attack on text: one whose logits are no numbers is refused by its name; names are those given."""

from dataclasses import replace

import pytest

from fastadv.errors import UserError
from fastadv.evaluation.text.attack import TextAttackSettings
from fastadv.evaluation.text.attacked_data import AttackedData
from fastadv.evaluation.text.rows import read_rows, write_rows
from fastadv.evaluation.text.run import TextAttackRun


@pytest.fixture(scope="module")
def folder(attacked_folder):
    return attacked_folder


def attack(folder, out, *names, **options):
    settings = TextAttackSettings("synonym", word_sets=str(folder / "sets.json"))
    data = AttackedData(str(folder / "texts.csv"), max_texts=5)
    return TextAttackRun([str(folder / name / "model") for name in names], data, settings, str(out), **options)


def test_a_model_whose_logits_are_nan_is_refused_by_its_name(folder, tmp_path):
    with pytest.raises(UserError, match="nan/model gave logits with NaN or infinity for 5 of 5 texts"):
        attack(folder, tmp_path, "nan").run()


def test_rows_of_nan_are_made_anew(folder, tmp_path):
    attack(folder, tmp_path, "a").run()
    (part,) = (tmp_path / "parts").glob("*.csv")
    whole = read_rows(part)
    write_rows(part, [replace(row, score=float("nan"), score_adversarial=float("nan")) for row in whole])
    attack(folder, tmp_path, "a").run()
    assert [row.score for row in read_rows(tmp_path / "rows.csv")] == pytest.approx([row.score for row in whole])


def test_names_are_those_given(folder, tmp_path):
    results = attack(folder, tmp_path, "a", "b", names=["base", "mine/0"]).run()
    assert [model["name"] for model in results["models"]] == ["base", "mine/0", "base, bias of mine/0"]
    assert (tmp_path / "rows-mine-0.csv").is_file() and results["findings"][0]["model"] == "mine/0"
    assert list(attack(folder, tmp_path, "a", "b").names) == ["a", "b"]
    for names in (["one"], ["one", "one"]):
        with pytest.raises(UserError, match="expected one for each of 2 models"):
            attack(folder, tmp_path, "a", "b", names=names)
