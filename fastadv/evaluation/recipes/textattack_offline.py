"""TextAttack without a network.

``import textattack`` downloads NLTK's data on its first run, into places of its own, and fails where that cannot be.
`load_textattack` has it find the data of an attack data folder instead. What is changed for the import is put back.
"""

import importlib
import logging
import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Iterator, Optional
from unittest import mock

from fastadv.errors import UserError
from fastadv.evaluation.resources.attack_data import attack_data_folder, check_attack_data
from fastadv.evaluation.resources.attack_data_sources import OF_STOP_WORDS

_ADVICE = "pip install 'fastadv[attack]'"


def load_textattack(data_dir: Optional[str | Path] = None) -> ModuleType:
    """The package textattack, imported with the data of a folder that ``fastadv prepare-attack-data`` made.

    Args:
        data_dir: the folder; None: what ``FASTADV_ATTACK_DATA`` names, else ``~/.cache/fastadv/attack-data``.

    Raises:
        UserError: textattack is not installed, or cannot be imported, or the data are not there or damaged.
    """
    folder = attack_data_folder(data_dir)
    # Whether they have what a recipe reads is asked where the recipe is known.
    check_attack_data(folder, OF_STOP_WORDS[0])
    use_nltk_data(folder)
    if "textattack" in sys.modules:
        return sys.modules["textattack"]
    try:
        # First, so that they take their settings from the user's environment and not from that of the import below.
        for name in ("datasets", "transformers", "flair"):
            importlib.import_module(name)
        with _loggers_as_they_were(), no_nltk_download(), _cache_aside():
            return importlib.import_module("textattack")
    except ImportError as error:
        raise UserError(f"attacks need TextAttack, which cannot be imported ({error}): {_ADVICE}") from error


def use_nltk_data(folder: Path) -> None:
    """Has NLTK, here and in processes started later, look into an attack data folder first.

    Raises:
        UserError: NLTK is not installed.
    """
    try:
        import nltk.data
    except ImportError as error:
        raise UserError(f"attack data are read by the package nltk, which is not installed: {_ADVICE}") from error
    data = str(folder.absolute() / "nltk_data")
    named = os.environ.get("NLTK_DATA", "")
    # NLTK reads files below its own path and this variable's only.
    if data not in named.split(os.pathsep):
        os.environ["NLTK_DATA"] = os.pathsep.join(filter(None, (data, named)))
    if data not in nltk.data.path:
        nltk.data.path.insert(0, data)


@contextmanager
def no_nltk_download() -> Iterator[None]:
    """Has ``nltk.download`` do nothing: TextAttack calls it for data whether they are there or not."""
    import nltk

    with mock.patch.object(nltk, "download", lambda *arguments, **options: True):
        yield


@contextmanager
def _loggers_as_they_were() -> Iterator[None]:
    """Importing TextAttack switches every existing logger off, and says at level INFO what it downloads."""
    loggers = [each for each in logging.root.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    states = [(each, each.disabled) for each in loggers]
    disabled_below = logging.root.manager.disable
    logging.disable(logging.INFO)
    try:
        yield
    finally:
        logging.disable(disabled_below)
        for each, disabled in states:
            each.disabled = disabled


@contextmanager
def _cache_aside() -> Iterator[None]:
    """A cache folder that is gone after the import.

    TextAttack writes there that it has downloaded everything, which a use of it without us would believe; and it takes
    a cache folder named in the environment for that of other libraries too.
    """
    environment = dict(os.environ)
    try:
        with tempfile.TemporaryDirectory(prefix="fastadv-textattack-") as folder:
            os.environ["TA_CACHE_DIR"] = folder
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
    install = sys.modules["textattack.shared.utils.install"]
    install.TEXTATTACK_CACHE_DIR = environment.get("TA_CACHE_DIR", os.path.expanduser("~/.cache/textattack"))
