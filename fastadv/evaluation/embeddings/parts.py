"""Where attacks leave what is finished: files named by a hash of all that has an effect on them, and that hash."""

import hashlib
import json
import zipfile
import zlib
from pathlib import Path
from typing import Callable, Sequence

import numpy as np
import torch
from torch import nn

from fastadv.config.embedding_attack import AttackSettings
from fastadv.errors import UserError
from fastadv.evaluation.embeddings.classifier_attack import Part
from fastadv.files.atomic_file import written_aside
from fastadv.files.disk import check_folder
from fastadv.files.hashes import digest_of

# Part of every key: raise it when the same settings would give other numbers.
PARTS_VERSION = 1

FILES = ("attack.json", "attack.csv", "attack.png")
"""of an attack on embeddings"""
RECONSTRUCT_FILES = ("reconstruct.json", "reconstruct.csv", "reconstruct.html")
"""of one whose end is text, which may share the folder"""


DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)
"""what a file of arrays that is not there, or not whole, ends in: it is made again"""


def attack_part(folder: Path, inputs: Sequence[str | None], settings: AttackSettings, which: int | str) -> Path:
    """The file of radius ``which`` of an attack, of its clean pass (-1), or of its ``"checks"``.

    Args:
        inputs: hashes of what has an effect besides the settings.
    """
    if which == -1:
        # The clean pass is that of the texts and the model alone.
        return part_path(folder, ["clean", list(inputs)], "npz")
    values, is_checks = settings.as_dict(), which == "checks"
    if not is_checks:
        # A radius attacks what those before it have left.
        values["epsilons"] = values["epsilons"][: which + 1]
    key = ["checks" if is_checks else "radius", list(inputs), values]
    return part_path(folder, key, "json" if is_checks else "npz")


def kept_arrays(path: Path, make: Callable[[], Part]) -> Part:
    """The arrays at ``path``; made and kept where they are not there, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except DAMAGED:
        part = make()
        with written_aside(path) as aside, aside.open("wb") as file:
            np.savez(file, **part)
        return part


def part_path(folder: Path, key: list, ending: str) -> Path:
    """The file of the part that ``key``, plain values of all that has an effect on it, makes."""
    return folder / f"{digest_of([PARTS_VERSION, *key])}.{ending}"


def hash_of_weights(module: nn.Module) -> str:
    """Equal for modules of equal weights by name."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def fingerprint(classifier) -> str:
    """Equal for classifiers that say the same of every text, at every point around it."""
    encoder, digest = classifier.encoder, hashlib.blake2b(hash_of_weights(classifier).encode(), digest_size=16)
    of_no_weight = ("_name_or_path", "transformers_version")
    config = {name: value for name, value in encoder.hf.config.to_dict().items() if name not in of_no_weight}
    facts = [encoder.tokenizer_fingerprint, encoder.max_length, encoder.perturb_at, list(classifier.label_map.names)]
    digest.update(json.dumps([facts, config], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def check_out(out: str) -> Path:
    """The folder to write to. UserError where it is a file, or holds something that no attack has written."""
    folder, known = Path(out).expanduser(), (*FILES, *RECONSTRUCT_FILES, "parts")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {out!r} is a file; expected a folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / n).exists() for n in known):
        raise UserError(f"--out {out!r} holds something other than an attack; give a new or empty folder")
    check_folder(folder, f"--out {out!r}")
    return folder
