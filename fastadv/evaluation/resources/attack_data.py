"""One local folder with all that TextAttack's recipes read: made once, checked by hashes, used without a network.

::

    attack-data/
      manifest.json                      the packages it was made from, SHA-256 and size of every file
      nltk_data/corpora/stopwords        English
      nltk_data/corpora/wordnet          WordNet 3.0
      nltk_data/tokenizers/punkt_tab     English
      nltk_data/taggers/averaged_perceptron_tagger_eng, universal_tagset

``prepare`` is the only function of the package that asks a network for attack data, and only through pip and apt.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional

from fastadv.errors import UserError
from fastadv.evaluation.resources.attack_data_nltk import (
    PARTS_OF_SPEECH,
    index_sense,
    lexnames,
    tagger_files,
    universal_tagset,
)
from fastadv.evaluation.resources.attack_data_sources import (
    SOURCES,
    fetch_packages,
    find_packages,
    opened_deb,
    opened_wheel,
)
from fastadv.files.hashes import sha256_of_file

FORMAT = "fastadv attack data 1"
VARIABLE = "FASTADV_ATTACK_DATA"
_MANIFEST = "manifest.json"
_PUNKT_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


def attack_data_folder(data_dir: Optional[str | Path] = None) -> Path:
    """``data_dir``, else what `VARIABLE` names, else ``~/.cache/fastadv/attack-data``."""
    return Path(data_dir or os.environ.get(VARIABLE) or "~/.cache/fastadv/attack-data").expanduser()


def check_attack_data(folder: Path) -> Mapping[str, Any]:
    """The manifest of a folder whose files are all as they were written.

    Raises:
        UserError: no attack data are there, or a file is damaged or missing: its name, and what to do.
    """
    manifest = _read_manifest(folder)
    if manifest is None:
        raise UserError(f"there are no attack data at {str(folder)!r}: make them by `fastadv prepare-attack-data`")
    faults = _faults(folder, manifest)
    if faults:
        raise UserError(
            f"attack data at {str(folder)!r}: {', '.join(faults)}; `fastadv prepare-attack-data` makes them anew"
        )
    return manifest


def prepare(
    out: Path,
    packages_dir: Optional[str | Path] = None,
    say: Callable[[str], None] = lambda line: None,
) -> str:
    """Makes the folder, unless it is there and sound.

    Args:
        packages_dir: a folder with the packages' files; None: they are fetched by pip and apt-get.
        say: is told each step.

    Returns:
        What was done, in one line.

    Raises:
        UserError: ``out`` holds something else, or a package cannot be had or read.
    """
    manifest = check_out(out)
    if manifest is not None:
        faults = _faults(out, manifest)
        if not faults:
            return f"{out}: already there, {len(manifest['files'])} files as they were written"
        say(f"{out}: {', '.join(faults)}; making all anew")
    with tempfile.TemporaryDirectory(prefix="fastadv-attack-data-") as aside:
        packages = find_packages(packages_dir) if packages_dir is not None else fetch_packages(Path(aside), say)
        say("reading the packages")
        files = _files(packages)
        sources = {name: {"file": path.name, "sha256": sha256_of_file(path)} for name, path in packages.items()}
    _write(out, files, sources)
    total = sum(len(content) for content in files.values())
    return f"{out}: {len(files)} files, {total / 1e6:.0f} MB, from {', '.join(s['file'] for s in sources.values())}"


def check_out(out: Path) -> Optional[Mapping[str, Any]]:
    """The manifest of attack data at ``out``; None: nothing is there yet.

    Raises:
        UserError: something else is there, which is not touched.
    """
    manifest = _read_manifest(out)
    if manifest is None and (out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise UserError(f"--out {str(out)!r}: expected a new or empty folder, or attack data; something else is there")
    return manifest


def _files(packages: Mapping[str, Path]) -> Dict[str, bytes]:
    """Every file of the folder but the manifest, by path."""
    llama_index, tagger, wordnet = (packages[source.name] for source in SOURCES)
    files: Dict[str, bytes] = {}
    with opened_wheel(llama_index) as read:
        cache = "llama_index/core/_static/nltk_cache"
        for name in ("README", "english"):
            files[f"corpora/stopwords/{name}"] = read(f"{cache}/corpora/stopwords/{name}")
        for name in ("README", *(f"english/{name}" for name in _PUNKT_FILES)):
            files[f"tokenizers/punkt_tab/{name}"] = read(f"{cache}/tokenizers/punkt_tab/{name}")
    with opened_wheel(tagger) as read:
        for name, content in tagger_files(read("textblob_aptagger/trontagger-0.1.0.pickle")).items():
            files[f"taggers/averaged_perceptron_tagger_eng/{name}"] = content
    files["taggers/universal_tagset/en-ptb.map"] = universal_tagset()
    with opened_deb(wordnet) as read:
        names = ["cntlist.rev", *(f"{kind}.{part}" for kind in ("data", "index") for part in PARTS_OF_SPEECH)]
        names += [f"{part}.exc" for part in PARTS_OF_SPEECH]
        found = {name: read(f"usr/share/wordnet/{name}") for name in names}
        found["LICENSE"] = read("usr/share/doc/wordnet-base/copyright")
    found.update({"lexnames": lexnames(), "index.sense": index_sense(found)})
    files.update({f"corpora/wordnet/{name}": content for name, content in found.items()})
    return {f"nltk_data/{path}": content for path, content in sorted(files.items())}


def _write(out: Path, files: Mapping[str, bytes], sources: Mapping[str, Mapping[str, str]]) -> None:
    """All of it beside ``out``, then in its place: a reader finds the old folder or the new one, whole."""
    out = out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise UserError(f"--out {str(out)!r}: {error.strerror or error}") from error
    try:
        entries = {}
        for name, content in files.items():
            path = aside / "new" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            entries[name] = {"num_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        manifest = {"format": FORMAT, "sources": sources, "files": entries}
        (aside / "new" / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if out.exists():
            os.rename(out, aside / "old")
        os.rename(aside / "new", out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _read_manifest(folder: Path) -> Optional[Mapping[str, Any]]:
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    except ValueError:
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or not _are_entries(manifest.get("files")):
        raise UserError(f"{path} is damaged or of another version: remove the folder and make it anew")
    return manifest


def _are_entries(files: Any) -> bool:
    return isinstance(files, dict) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("num_bytes"), int)
        and re.fullmatch("[0-9a-f]{64}", str(entry.get("sha256")))
        for entry in files.values()
    )


def _faults(folder: Path, manifest: Mapping[str, Any]) -> List[str]:
    faults = []
    for name, entry in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif path.stat().st_size != entry["num_bytes"] or sha256_of_file(path) != entry["sha256"]:
            faults.append(f"{name} is damaged")
    return faults
