"""The export: a folder that opens with AutoModel, with SentenceTransformer, and with Encoder.from_pretrained.

Weights are safetensors. The folder is written aside and renamed when it is whole.
"""

import copy
import os
import re
import shutil
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, Optional

from safetensors import SafetensorError
from torch import Tensor

from fastadv.encoder.export.cards import default_card
from fastadv.encoder.sentence_files.write import write_sentence_files
from fastadv.encoder.weights.lora import merged_state_dict
from fastadv.encoder.weights.source import quiet_transformers
from fastadv.errors import UserError
from fastadv.files.atomic_file import naming

WriteModel = Callable[[Path, Optional[Dict[str, Tensor]]], None]
"""(folder, state_dict) → writes config.json and the weights"""


def export_encoder(
    encoder,
    folder: str | Path,
    card: Optional[str] = None,
    state_dict: Optional[Dict[str, Tensor]] = None,
    write_model: Optional[WriteModel] = None,
) -> Path:
    """Writes ``encoder`` to ``folder`` and returns its path.

    Args:
        card: the text of README.md; None writes a short one.
        state_dict: weights to write in place of the model's own; adapters (LoRA) are merged either way.
        write_model: writes the encoder with a head; None: without any.

    Raises:
        UserError: ``folder`` exists and is not an export.
        OSError: naming the file, where the disk takes no more. What was there before is there still.
    """
    target = Path(folder).expanduser()
    _check_target(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.writing-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with naming(target), _safetensors_as_os_errors():
            _write_export(encoder, aside, card, state_dict, write_model)
        _swap_in(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


@contextmanager
def _safetensors_as_os_errors():
    """What safetensors could not write is an OSError like any other; it has a kind of its own, with a number inside."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        raise OSError(int(found.group(1)), os.strerror(int(found.group(1)))) from error


def _check_target(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise UserError(f"export folder {target} is a file")
    if any(target.iterdir()) and not (target / "modules.json").is_file():
        raise UserError(f"export folder {target} holds something other than an export; give a new or empty folder")


def _swap_in(aside: Path, target: Path) -> None:
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    if target.exists():
        target.rename(old)
    aside.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _write_export(
    encoder,
    folder: Path,
    card: Optional[str],
    state_dict: Optional[Dict[str, Tensor]],
    write_model: Optional[WriteModel],
) -> None:
    folder.mkdir()
    # sentence-transformers averages over layers only where the model hands them all out.
    with _returns_all_layers(encoder.hf.config, encoder.pooling == "first_last"):
        if write_model is not None:
            write_model(folder, state_dict)
        else:
            with quiet_transformers():
                encoder.hf.save_pretrained(folder, state_dict=weights_of(encoder, state_dict))
    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.model_max_length = encoder.max_length
    _let_readers_pad(tokenizer, encoder.hf.config)
    if tokenizer.is_fast:
        # Left by the last call; a reader of tokenizer.json alone would cut texts by it.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
    tokenizer.save_pretrained(folder)
    write_sentence_files(encoder, folder)
    (folder / "README.md").write_text(default_card(encoder) if card is None else card, encoding="utf-8")
    _follow_umask(folder)


def weights_of(encoder, state_dict: Optional[Dict[str, Tensor]] = None) -> Dict[str, Tensor]:
    """The state dict of ``encoder.hf`` as an export has it: adapters merged, and the pooler's weights as they were."""
    return {**encoder.pooler, **merged_state_dict(encoder.hf, state_dict)}


def _follow_umask(folder: Path) -> None:
    """Gives all files the mode of one that was simply opened: safetensors lets nobody but their owner read its own."""
    mode = stat.S_IMODE((folder / "README.md").stat().st_mode)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def _let_readers_pad(tokenizer, config) -> None:
    """Readers of an export pad their batches, which we never do; where they do it must not change a vector."""
    # On the left it would move every absolute position, and the first token, which cls pooling takes.
    tokenizer.padding_side = "right"
    if tokenizer.pad_token_id is None:
        # Any token will do, for the mask hides it; RoBERTa alone wants the one its positions are counted by.
        pad_id = config.pad_token_id
        known = [tokenizer.eos_token, tokenizer.sep_token, tokenizer.unk_token, tokenizer.convert_ids_to_tokens(0)]
        if pad_id is not None and 0 <= pad_id < len(tokenizer):
            known.insert(0, tokenizer.convert_ids_to_tokens(pad_id))
        tokenizer.pad_token = next(token for token in known if token is not None)


@contextmanager
def _returns_all_layers(config, value: bool):
    """Sets ``output_hidden_states`` of a configuration for a while."""
    before = config.output_hidden_states
    config.output_hidden_states = value
    try:
        yield
    finally:
        config.output_hidden_states = before
