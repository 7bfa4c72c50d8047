"""A setting of attacks on text that lives outside the package: a field with a `Flag`, and no second list."""

import json
from dataclasses import dataclass
from typing import Annotated

import pytest

from fastadv.cli.attack import add_attack, check_kind
from fastadv.cli.parts import Parser
from fastadv.config.flag import Flag
from fastadv.config.text_attack import TextAttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.text.attack import key_of
from tests.evaluation.attacked import save_two_classifiers


@dataclass(frozen=True)
class PatientSettings(TextAttackSettings):
    """Settings with one more."""

    patience: Annotated[int, Flag("words tried in vain before an attack gives up", least=1)] = 5
    with_names: Annotated[bool, Flag("change names too")] = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_bert_dir):
    folder = tmp_path_factory.mktemp("flag")
    save_two_classifiers(folder, tiny_bert_dir)
    return folder


@pytest.fixture
def parse(folder, tmp_path):
    parser = Parser(prog="fastadv", allow_abbrev=False)
    add_attack(parser.add_subparsers(parser_class=Parser), text_settings=PatientSettings)
    given = ["attack", "--model", f"{folder}/a/model", "--data", f"{folder}/texts.csv", "--out", str(tmp_path / "out")]
    return lambda *more: parser.parse_args([*given, *more])


def settings_of(out):
    return json.loads((out / "text-attack.json").read_text(encoding="utf-8"))["protocol"]["settings"]


def test_its_value_reaches_the_attack_and_the_report(parse, tmp_path, capsys):
    arguments = parse("--recipe", "negation", "--patience", "2", "--with_names")
    arguments.run(arguments)
    assert settings_of(tmp_path / "out")["patience"] == 2 and settings_of(tmp_path / "out")["with_names"] is True
    (kept,) = (tmp_path / "out" / "parts").glob("*.csv")
    # Another value is another attack: its rows are kept apart.
    arguments = parse("--recipe", "negation")
    arguments.run(arguments)
    assert settings_of(tmp_path / "out")["patience"] == 5
    assert len(list((tmp_path / "out" / "parts").glob("*.csv"))) == 2 and kept.is_file()


def test_it_belongs_to_attacks_on_text(parse):
    with pytest.raises(UserError, match="--patience belongs to an attack on text; expected it with --recipe"):
        check_kind(parse("--patience", "2"))


def test_its_bounds_are_checked_and_its_help_is_shown(parse, capsys):
    with pytest.raises(UserError, match="--patience: '0' given, expected a whole number of at least 1"):
        parse("--recipe", "negation", "--patience", "0")
    with pytest.raises(SystemExit):
        parse("--help")
    assert "words tried in vain before an attack gives up (default: 5)" in " ".join(capsys.readouterr().out.split())


def test_it_has_an_effect_on_what_is_kept():
    assert key_of(PatientSettings("negation")) != key_of(PatientSettings("negation", patience=3))
