"""TextAttack imported where there is no network, and what the import leaves behind: nothing."""

import os
import subprocess
import sys

import pytest

from fastadv.errors import UserError
from fastadv.evaluation.recipes.textattack_offline import load_textattack
from tests.evaluation.packages import require_textattack, shared_attack_data

CODE = """
import logging, os, pathlib, socket, sys

def refuse(*arguments, **options):
    raise AssertionError("a network was asked for")

socket.socket.connect = socket.getaddrinfo = refuse
ours = logging.getLogger("fastadv")
before = {name: value for name, value in os.environ.items()}
from fastadv.evaluation.recipes.textattack_offline import load_textattack
textattack = load_textattack(sys.argv[1])
assert load_textattack(sys.argv[1]) is textattack
import nltk
assert nltk.download.__qualname__ != "no_nltk_download.<locals>.<lambda>"
changed = {name for name in {*before, *os.environ} if before.get(name) != os.environ.get(name)}
assert changed == {"NLTK_DATA"}, changed
assert not ours.disabled and ours.isEnabledFor(logging.INFO) == logging.getLogger().isEnabledFor(logging.INFO)
assert textattack.shared.utils.install.TEXTATTACK_CACHE_DIR == str(pathlib.Path.home() / ".cache/textattack")
assert not (pathlib.Path.home() / ".cache/textattack").exists()
from textattack.constraints.pre_transformation import StopwordModification
assert "the" in StopwordModification().stopwords
"""


def test_the_import_asks_no_network_and_leaves_nothing_behind(tmp_path):
    require_textattack()
    environment = {name: value for name, value in os.environ.items() if name not in ("NLTK_DATA", "TA_CACHE_DIR")}
    # flair and others set a few variables of their own on import.
    imported = "import datasets, transformers, flair\n"
    done = subprocess.run(
        [sys.executable, "-c", imported + CODE, str(shared_attack_data())],
        env={**environment, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and "textattack:" not in done.stderr


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "textattack", raising=False)
    monkeypatch.setitem(sys.modules, "flair", None)
    pytest.importorskip("nltk")
    with pytest.raises(UserError, match="cannot be imported .*pip install 'fastadv.attack.'"):
        load_textattack(shared_attack_data())


def test_without_data_the_command_is_named(tmp_path):
    with pytest.raises(UserError, match="fastadv prepare-attack-data"):
        load_textattack(tmp_path)
