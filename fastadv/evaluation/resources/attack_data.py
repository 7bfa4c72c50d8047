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
    sources_of,
)
from fastadv.files.hashes import sha256_of_file

FORMAT = "fastadv attack data 1"
VARIABLE = "FASTADV_ATTACK_DATA"
_MANIFEST = "manifest.json"
_PUNKT_FILES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")


def attack_data_folder(data_dir: Optional[str | Path] = None) -> Path:
    """``data_dir``, else what `VARIABLE` names, else ``~/.cache/fastadv/attack-data``."""
    return Path(data_dir or os.environ.get(VARIABLE) or "~/.cache/fastadv/attack-data").expanduser()


def check_attack_data(folder: Path, recipe: Optional[str] = None) -> Mapping[str, Any]:
    """The manifest of a folder whose files are all as they were written.

    Args:
        recipe: what it reads must be there; None: all that any recipe reads.

    Raises:
        UserError: no attack data are there, they lack some, or a file is damaged or missing: its name, and what to do.
    """
    manifest = _read_manifest(folder)
    if manifest is None:
        raise UserError(f"there are no attack data at {str(folder)!r}: make them by `fastadv prepare-attack-data`")
    faults = _faults(folder, manifest)
    if faults:
        raise UserError(
            f"attack data at {str(folder)!r}: {', '.join(faults)}; `fastadv prepare-attack-data` makes them anew"
        )
    lacking = [source.contents for source in sources_of(recipe) if source.name not in manifest["sources"]]
    if lacking:
        raise UserError(
            f"attack data at {str(folder)!r} lack {' and '.join(lacking)}: `fastadv prepare-attack-data` adds them"
        )
    return manifest


def prepare(
    out: Path,
    packages_dir: Optional[str | Path] = None,
    say: Callable[[str], None] = lambda line: None,
    recipe: Optional[str] = None,
) -> str:
    """Makes the folder, unless it is there and sound. What a sound folder already has stays in it.

    Args:
        packages_dir: a folder with the packages' files; None: they are fetched by pip and apt-get.
        say: is told each step.
        recipe: only what it reads; None: what any recipe reads.

    Returns:
        What was done, in one line.

    Raises:
        UserError: ``out`` holds something else, or a package cannot be had or read.
    """
    manifest, sources = check_out(out), sources_of(recipe)
    if manifest is not None:
        faults = _faults(out, manifest)
        if not faults and all(source.name in manifest["sources"] for source in sources):
            return f"{out}: already there, {len(manifest['files'])} files as they were written"
        say(f"{out}: {', '.join(faults) or 'there is more to add'}; making all anew")
        sources = tuple(source for source in SOURCES if source in sources or source.name in manifest["sources"])
    with tempfile.TemporaryDirectory(prefix="fastadv-attack-data-") as aside:
        if packages_dir is not None:
            packages = find_packages(packages_dir, sources)
        else:
            packages = fetch_packages(Path(aside), say, sources)
        say("reading the packages")
        files = _files(packages)
        origins = {name: {"file": path.name, "sha256": sha256_of_file(path)} for name, path in packages.items()}
    _write(out, files, origins)
    total = sum(len(content) for content in files.values())
    return f"{out}: {len(files)} files, {total / 1e6:.1f} MB, from {', '.join(o['file'] for o in origins.values())}"


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
    """Every file of the folder but the manifest, by path: what the ``packages`` hold, by name of the source."""
    files: Dict[str, bytes] = {}
    for source in SOURCES:
        if source.name in packages:
            files.update(_READERS[source.name](packages[source.name]))
    return {f"nltk_data/{path}": content for path, content in sorted(files.items())}


def _stop_words(package: Path) -> Dict[str, bytes]:
    cache, punkt = "llama_index/core/_static/nltk_cache", [f"english/{name}" for name in _PUNKT_FILES]
    names = [f"corpora/stopwords/{name}" for name in ("README", "english")]
    names += [f"tokenizers/punkt_tab/{name}" for name in ("README", *punkt)]
    with opened_wheel(package) as read:
        return {name: read(f"{cache}/{name}") for name in names}


def _tagger(package: Path) -> Dict[str, bytes]:
    with opened_wheel(package) as read:
        weights = tagger_files(read("textblob_aptagger/trontagger-0.1.0.pickle"))
    files = {f"taggers/averaged_perceptron_tagger_eng/{name}": content for name, content in weights.items()}
    return {**files, "taggers/universal_tagset/en-ptb.map": universal_tagset()}


def _wordnet(package: Path) -> Dict[str, bytes]:
    with opened_deb(package) as read:
        names = ["cntlist.rev", *(f"{kind}.{part}" for kind in ("data", "index") for part in PARTS_OF_SPEECH)]
        names += [f"{part}.exc" for part in PARTS_OF_SPEECH]
        found = {name: read(f"usr/share/wordnet/{name}") for name in names}
        found["LICENSE"] = read("usr/share/doc/wordnet-base/copyright")
    found.update({"lexnames": lexnames(), "index.sense": index_sense(found)})
    return {f"corpora/wordnet/{name}": content for name, content in found.items()}


_READERS: Mapping[str, Callable[[Path], Dict[str, bytes]]] = {
    "llama-index-core": _stop_words,
    "textblob-aptagger": _tagger,
    "wordnet-base": _wordnet,
}
"""name of a source → its files by path"""


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
    is_whole = isinstance(manifest, dict) and manifest.get("format") == FORMAT
    is_whole = is_whole and isinstance(manifest.get("sources"), dict) and _are_entries(manifest.get("files"))
    if not is_whole:
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
