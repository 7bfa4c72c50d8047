"""What the card of a base model says, as far as cards of models made of it take it over."""

from pathlib import Path
from typing import Any, Mapping

import yaml

from fastadv.encoder.sentence_files.read import find_file

_INHERITED = ("base_model", "license", "license_name", "license_link", "language")

_OF_THE_HUB = {"demo:minilm": "sentence-transformers/all-MiniLM-L6-v2"}
"""name here → the Hub's"""


def read_card(location: str, name: str) -> dict[str, Any]:
    """Licence, language and Hub name of a model, as far as they are known; empty for a card that is no YAML.

    ``base_model`` is the model itself where it has a name on the Hub, else what its own card calls its base: a folder
    means nothing to others.

    Args:
        name: what the user calls it.
    """
    metadata = _metadata(location)
    known = {key: metadata[key] for key in _INHERITED if metadata.get(key)}
    if name in _OF_THE_HUB or location == name and not Path(name).exists():
        known["base_model"] = _OF_THE_HUB.get(name, name)
    return known


def _metadata(location: str) -> Mapping[str, Any]:
    """The YAML block that a README.md begins with."""
    try:
        path = find_file(location, "README.md")
        text = "" if path is None else Path(path).read_text(encoding="utf-8")
        begin, metadata, *_ = [*text.split("---\n", 2), ""]
        found = yaml.safe_load(metadata) if not begin.strip("\ufeff") else None
    # A card that others wrote by hand: nothing depends on it.
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
