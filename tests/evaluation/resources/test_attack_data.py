"""Attack data from packages in miniature: what is laid, that NLTK reads it, and what each fault is called."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fastadv.cli.main import main
from fastadv.errors import UserError
from fastadv.evaluation.resources import attack_data_sources
from fastadv.evaluation.resources.attack_data import attack_data_folder, check_attack_data, prepare
from fastadv.evaluation.resources.attack_data_nltk import index_sense, lexnames, tagger_files, universal_tagset
from fastadv.evaluation.resources.attack_data_sources import SOURCES, find_packages, opened_deb
from tests.evaluation.packages import TAGGER, deb, wordnet_files, write_packages

WORDNET = "nltk_data/corpora/wordnet"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    return write_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture
def folder(packages, tmp_path):
    out = tmp_path / "attack-data"
    prepare(out, packages)
    return out


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_holds_what_the_packages_hold_bit_for_bit(folder):
    files, _ = wordnet_files()
    found = tree(folder)
    assert {name: found[f"{WORDNET}/{name}"] for name in files} == files
    assert found["nltk_data/corpora/stopwords/english"] == b"i\nme\nthe\nisn't\n"
    assert found["nltk_data/tokenizers/punkt_tab/english/abbrev_types.txt"] == b"dr\n"
    assert not any("french" in name or name.endswith((".py", ".pickle")) for name in found)
    manifest = json.loads(found["manifest.json"])
    assert set(manifest["files"]) == set(found) - {"manifest.json"}
    assert {source["file"][:9] for source in manifest["sources"].values()} == {"llama_ind", "textblob_", "wordnet-b"}


def test_it_is_made_once_and_made_anew_where_it_is_damaged(folder, packages):
    first, times = tree(folder), {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert "already there, 27 files" in prepare(folder, packages)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == times
    damaged, missing = folder / WORDNET / "data.noun", folder / "nltk_data/corpora/stopwords/english"
    content = bytearray(damaged.read_bytes())
    content[-20] ^= 1
    damaged.write_bytes(content)
    missing.unlink()
    with pytest.raises(UserError, match="stopwords/english is missing, .*data.noun is damaged; .*prepare-attack-data"):
        check_attack_data(folder)
    said = []
    prepare(folder, packages, said.append)
    assert "data.noun is damaged" in said[0] and tree(folder) == first
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_same_packages_give_the_same_bytes(folder, packages, tmp_path):
    prepare(tmp_path / "again", packages)
    assert tree(tmp_path / "again") == tree(folder)


def test_a_folder_of_something_else_is_left_alone(packages, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="something else is there"):
        prepare(tmp_path / "mine", packages)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    (tmp_path / "mine" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="damaged or of another version"):
        prepare(tmp_path / "mine", packages)
    with pytest.raises(UserError, match="there are no attack data at"):
        check_attack_data(tmp_path / "nowhere")


def test_packages_that_are_missing_are_named_with_the_command_that_gets_them(packages, tmp_path):
    some = tmp_path / "some"
    shutil.copytree(packages, some)
    for path in [*some.glob("*.deb"), *some.glob("textblob*")]:
        path.unlink()
    with pytest.raises(UserError) as raised:
        find_packages(some)
    assert "apt-get download wordnet-base" in str(raised.value) and "textblob-aptagger==0.2.0" in str(raised.value)
    assert "llama" not in str(raised.value)
    with pytest.raises(UserError, match="is no folder"):
        find_packages(tmp_path / "none")


@pytest.mark.parametrize(
    "name, message",
    [
        ("llama_index/core/_static/nltk_cache/corpora/stopwords/english", "llama_index_core-.* has no .*english"),
        ("usr/share/wordnet/verb.exc", "wordnet-base_.* has no usr/share/wordnet/verb.exc"),
        ("textblob_aptagger/trontagger-0.1.0.pickle", "textblob_aptagger-.* has no"),
    ],
)
def test_a_package_without_a_file_leaves_nothing_behind(tmp_path, name, message):
    write_packages(tmp_path / "packages", leave_out=(name,))
    with pytest.raises(UserError, match=message):
        prepare(tmp_path / "out", tmp_path / "packages")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pattern", [source.pattern for source in SOURCES])
@pytest.mark.parametrize("damage", ["empty", "other", "cut"])
def test_a_damaged_package_is_named_in_one_line(packages, tmp_path, pattern, damage):
    some = tmp_path / "some"
    shutil.copytree(packages, some)
    (path,) = some.glob(pattern)
    content = path.read_bytes()
    path.write_bytes({"empty": b"", "other": b"<html>" * 100, "cut": content[: len(content) // 2]}[damage])
    with pytest.raises(UserError) as raised:
        prepare(tmp_path / "out", some)
    assert path.name in str(raised.value) and "\n" not in str(raised.value)


def test_a_deb_is_read_wherever_its_members_lie(tmp_path):
    path = tmp_path / "a.deb"
    path.write_bytes(deb({"usr/share/one": b"1", "usr/share/two": b""}))
    with opened_deb(path) as read:
        assert read("usr/share/one") == b"1" and read("usr/share/two") == b""
        with pytest.raises(UserError, match="a.deb has no usr/share/three"):
            read("usr/share/three")


class _Calls:
    def __reduce__(self):
        return (print, ("a pickle ran this",))


@pytest.mark.parametrize(
    "content, message",
    [
        (pickle.dumps((_Calls(), {}, set())), "asks for builtins.print"),
        (pickle.dumps((Path("/"), {}, set())), "asks for pathlib"),
        (b"no pickle", "refused"),
        (pickle.dumps(({}, {}, ["NN"])), "not .weights, words, tags."),
        (pickle.dumps(({"bias": {"NN": float("nan")}}, {}, {"NN"})), "not .weights"),
        (pickle.dumps(({"bias": {"VB": 1.0}}, {}, {"NN"})), "not .weights"),
        (pickle.dumps(({}, {"the": "DT"}, {"NN"})), "not .weights"),
    ],
)
def test_a_tagger_of_anything_but_plain_data_is_refused(content, message, capsys):
    with pytest.raises(UserError, match=message):
        tagger_files(content)
    assert capsys.readouterr().out == ""


def test_sense_keys_lead_to_their_synsets():
    files, offsets = wordnet_files()
    lines = index_sense(files).decode().splitlines()
    # Written out by hand from senseidx(5WN): key, offset, number among the lemma's senses, count in tagged texts.
    assert lines == sorted(lines) and set(lines) == {
        f"dog%1:05:00:: {offsets['noun', 0]:08d} 1 3",
        f"hound%1:05:01:: {offsets['noun', 0]:08d} 1 0",
        f"a%1:15:00:: {offsets['noun', 1]:08d} 1 0",
        f"film%1:10:00:: {offsets['noun', 2]:08d} 1 4",
        f"movie%1:10:00:: {offsets['noun', 2]:08d} 1 0",
        f"gain%1:21:10:: {offsets['noun', 3]:08d} 1 0",
        f"loss%1:21:00:: {offsets['noun', 4]:08d} 1 0",
        f"rise%2:30:00:: {offsets['verb', 0]:08d} 1 0",
        f"climb%2:30:01:: {offsets['verb', 0]:08d} 2 2",
        f"climb%2:38:00:: {offsets['verb', 2]:08d} 1 5",
        f"fall%2:30:00:: {offsets['verb', 1]:08d} 1 0",
        f"good%3:00:00:: {offsets['adj', 0]:08d} 1 9",
        f"well_off%3:00:01:: {offsets['adj', 0]:08d} 1 0",
        f"bad%3:00:00:: {offsets['adj', 1]:08d} 1 0",
        f"fine%5:00:02:good:00 {offsets['adj', 2]:08d} 1 0",
        f"galore%5:00:00:good:00 {offsets['adj', 2]:08d} 1 0",
        f"well%4:02:00:: {offsets['adv', 0]:08d} 1 0",
    }
    with pytest.raises(UserError, match="damaged, or of another release"):
        index_sense({**files, "data.verb": files["data.verb"].replace(b"01 fall", b"09 fall")})


def test_lexicographer_files_and_universal_tags_are_the_published_ones():
    rows = [line.split("\t") for line in lexnames().decode().splitlines()]
    assert [int(number) for number, _, _ in rows] == list(range(45))
    by_name = {name: (number, category) for number, name, category in rows}
    assert by_name["noun.Tops"] == ("03", "1") and by_name["adj.ppl"] == ("44", "3")
    assert by_name["verb.weather"] == ("43", "2") and by_name["adv.all"] == ("02", "4")
    tags = dict(line.split("\t") for line in universal_tagset().decode().splitlines())
    expected = {"NNS": "NOUN", "VBG": "VERB", "IN": "ADP", "PRP$": "PRON", "WRB": "ADV", "TO": "PRT", "``": "."}
    assert {tag: tags[tag] for tag in expected} == expected and len(tags) == 45 + len("()")


@pytest.mark.parametrize("without", ["apt-get", "pip", "answer"])
def test_what_could_not_be_fetched_is_said_with_another_way(monkeypatch, tmp_path, capsys, without):
    def run(command, cwd, **options):
        tool = "apt-get" if command[0] == "apt-get" else "pip"
        if without == "answer":
            said = "W: a warning\nE: Unable to locate package" if tool == "apt-get" else "WARNING: x\nERROR: no match\n"
            return subprocess.CompletedProcess(command, 1, "", said)
        write_packages(Path(cwd))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(attack_data_sources.subprocess, "run", run)
    monkeypatch.setattr(attack_data_sources.shutil, "which", lambda name: None if without == name else f"/bin/{name}")
    distributions = [] if without == "pip" else [None]
    monkeypatch.setattr(attack_data_sources.metadata, "distributions", lambda name: distributions)
    assert main(["prepare-attack-data", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    expected = {"apt-get": "no apt-get on this machine", "pip": "no pip for", "answer": "apt-get said 'E: Unable"}[
        without
    ]
    assert expected in error and "given as --from" in error and not (tmp_path / "out").exists()


def test_the_command_fetches_only_when_asked(monkeypatch, packages, tmp_path, capsys):
    asked = []

    def run(command, cwd, **options):
        asked.append(command)
        for path in packages.iterdir():
            shutil.copy(path, cwd)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(attack_data_sources.subprocess, "run", run)
    monkeypatch.setattr(attack_data_sources.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setenv("FASTADV_ATTACK_DATA", str(tmp_path / "out"))
    assert attack_data_folder() == tmp_path / "out"
    for arguments in (["--dry_run"], ["--from", str(packages), "--dry_run"]):
        assert main(["prepare-attack-data", *arguments]) == 0
        assert "would make attack data at" in capsys.readouterr().out
    assert not asked and not (tmp_path / "out").exists()
    assert main(["prepare-attack-data"]) == 0
    assert [command[:4] for command in asked] == 2 * [[sys.executable, "-m", "pip", "-q"]] + [
        ["apt-get", "-q", "download", "wordnet-base"]
    ]
    assert "27 files" in capsys.readouterr().out
    assert main(["prepare-attack-data", "--from", str(packages)]) == 0
    assert "already there" in capsys.readouterr().out and len(asked) == 3


def test_setuptools_is_not_made_to_believe_that_pip_runs(tmp_path, monkeypatch):
    """It would hand out the standard library's distutils from then on, and torch.compile could not import it."""
    hack = pytest.importorskip("_distutils_hack")
    finder = hack.DistutilsMetaFinder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setattr(
        attack_data_sources.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "no")
    )
    assert main(["prepare-attack-data", "--out", str(tmp_path / "out")]) == 2
    assert "spec_for_distutils" not in vars(finder)


def test_nltk_reads_all_of_it(folder):
    """In a process of its own: NLTK keeps what it has once found."""
    pytest.importorskip("nltk")
    code = """
from pathlib import Path
import sys
from fastadv.evaluation.recipes.textattack_offline import use_nltk_data
use_nltk_data(Path(sys.argv[1]))
import nltk
from nltk.corpus import stopwords, wordnet
assert stopwords.words("english") == ["i", "me", "the", "isn't"]
assert nltk.word_tokenize("Dr. No left. So did I.") == ["Dr.", "No", "left", ".", "So", "did", "I", "."]
assert nltk.pos_tag(["the", "dog", "runs"], tagset="universal") == [("the", "DET"), ("dog", "NOUN"), ("runs", "VERB")]
assert wordnet.langs() == ["eng"]
dog, = wordnet.synsets("hounds")
assert dog.lemma_names() == ["dog", "Hound"] and dog.lexname() == "noun.animal"
assert [lemma.name() for lemma in wordnet.synsets("rose", "v")[0].lemmas()[0].antonyms()] == ["fall"]
for synset in wordnet.all_synsets():
    for lemma in synset.lemmas():
        if lemma.name() != "A":
            assert wordnet.lemma_from_key(lemma.key()).name().lower() == lemma.name().lower(), lemma.key()
assert wordnet.synset("climb.v.02").lemmas()[1].count() == 2
"""
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_tagger_is_written_as_nltk_has_it():
    files = tagger_files(pickle.dumps(TAGGER, 2))
    parts = {name.split(".")[1]: json.loads(content) for name, content in files.items()}
    assert parts == {"weights": TAGGER[0], "tagdict": TAGGER[1], "classes": sorted(TAGGER[2])}


@pytest.mark.skipif("FASTADV_ATTACK_DATA" not in os.environ, reason="FASTADV_ATTACK_DATA names no prepared folder")
def test_the_real_folder_is_what_nltk_documents():
    pytest.importorskip("nltk")
    code = """
import sys
from pathlib import Path
from fastadv.evaluation.resources.attack_data import check_attack_data
from fastadv.evaluation.recipes.textattack_offline import use_nltk_data
check_attack_data(Path(sys.argv[1]))
use_nltk_data(Path(sys.argv[1]))
import nltk
from nltk.corpus import stopwords, wordnet
assert {"the", "isn't", "yourselves"} <= set(stopwords.words("english"))
words = nltk.word_tokenize("John's big idea isn't all that bad.")
tags = ["NNP", "POS", "JJ", "NN", "VBZ", "RB", "PDT", "DT", "JJ", "."]
assert nltk.pos_tag(words) == list(zip(words, tags))
universal = ["NOUN", "PRT", "ADJ", "NOUN", "VERB", "ADV", "DET", "DET", "ADJ", "."]
assert nltk.pos_tag(words, tagset="universal") == list(zip(words, universal))
assert [len(nltk.sent_tokenize("Dr. Smith isn't here. He left at 3 p.m. on Monday."))] == [2]
good = wordnet.synset("good.a.01").lemmas()[0]
assert [lemma.name() for lemma in good.antonyms()] == ["bad"]
assert wordnet.synset("dog.n.01").lexname() == "noun.animal" and wordnet.morphy("mice", "n") == "mouse"
for key in ("fine%5:00:00:thin:01", "dog%1:05:00::", "able%3:00:00::", "quickly%4:02:00::", "run%2:38:00::"):
    assert wordnet.lemma_from_key(key).key() == key
"""
    folder = os.environ["FASTADV_ATTACK_DATA"]
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_recipe_that_reads_stop_words_alone_needs_one_package(packages, tmp_path, capsys):
    """And what is laid for it is no data for another recipe until the rest is added."""
    some, out = tmp_path / "some", tmp_path / "out"
    some.mkdir()
    for path in packages.glob("llama_index*"):
        shutil.copy(path, some)
    command = ["prepare-attack-data", "--out", str(out), "--from", str(some)]
    assert main([*command, "--recipe", "deepwordbug", "--dry_run"]) == 0
    assert "would make attack data at" in capsys.readouterr().out and not out.exists()
    assert main([*command, "--recipe", "deepwordbug"]) == 0
    assert list(check_attack_data(out, "deepwordbug")["sources"]) == ["llama-index-core"]
    assert "nltk_data/corpora/stopwords/english" in tree(out) and not (out / WORDNET).exists()
    for recipe in ("pwws", None):
        with pytest.raises(UserError, match="lack the weights of the perceptron tagger and WordNet 3.0: `fastadv"):
            check_attack_data(out, recipe)
    with pytest.raises(UserError, match="lacks .*apt-get download wordnet-base"):
        prepare(out, some)
    said = []
    prepare(out, packages, said.append)
    assert said[0].endswith("there is more to add; making all anew")
    prepare(tmp_path / "whole", packages)
    assert tree(out) == tree(tmp_path / "whole")
    # What is there stays, whatever is asked for.
    assert "already there, 27 files" in prepare(out, packages, recipe="deepwordbug")
