"""The sentence-transformers files of an export: what its base's files said, and what is known of the encoder.

They have their oldest form, which every release reads.
"""

import json
from pathlib import Path
from typing import Any

import torch

from fastadv.encoder.sentence_files.after_pooling import WEIGHTS
from fastadv.encoder.sentence_files.read import NEWER_NAMES, POOLING_FLAGS, SETTINGS_FILE, TRANSFORMER_FILES

# Written for every pooling; releases that are older than the others do not know them.
_OLDEST_FLAGS = tuple(POOLING_FLAGS)[:4]


def write_sentence_files(encoder, folder: Path) -> None:
    """Makes a folder of transformers one that SentenceTransformer opens, with the vectors of ``encoder``."""
    after, is_first_last = encoder.after, encoder.pooling == "first_last"
    kinds = ["Transformer", *["WeightedLayerPooling"] * is_first_last, "Pooling", *(file.kind for file in after.files)]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths))
    ]
    _write_json(folder / "modules.json", modules)
    limits = {"max_seq_length": encoder.max_length, "do_lower_case": encoder.files.is_lower_cased}
    _write_json(folder / TRANSFORMER_FILES[0], limits)
    if is_first_last:
        _write_first_last(encoder, folder / paths[1])
    _write_json(folder / paths[1 + is_first_last] / "config.json", _pooling_config(encoder))
    for file, layer, path in zip(after.files, after.layers, paths[2 + is_first_last :], strict=True):
        if file.kind != "Normalize":
            _write_json(folder / path / "config.json", dict(file.config))
        if state := layer.state_dict():
            _save(state, folder / path / WEIGHTS)
    _write_json(folder / SETTINGS_FILE, _settings(encoder))


def _pooling_config(encoder) -> dict[str, Any]:
    modes = ["mean"] if encoder.pooling == "first_last" else encoder.pooling.split("+")
    config: dict[str, Any] = {"word_embedding_dimension": encoder.hidden_size}
    in_order = [mode for mode in POOLING_FLAGS.values() if mode in modes]
    if modes == in_order:
        config |= {
            flag: mode in modes for flag, mode in POOLING_FLAGS.items() if mode in modes or flag in _OLDEST_FLAGS
        }
    else:
        # Flags have an order of their own.
        names = {ours: newer for newer, ours in NEWER_NAMES.items()}
        config["pooling_mode"] = [names.get(mode, mode) for mode in modes]
    return config if encoder.files.pools_prompt else {**config, "include_prompt": False}


def _settings(encoder) -> dict[str, Any]:
    """What the base's file holds, with the encoder's prompt as the default."""
    import transformers

    versions = {"transformers": transformers.__version__, "pytorch": torch.__version__}
    usual = {"__version__": versions, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    settings, files = {**usual, **encoder.files.settings}, encoder.files
    if encoder.prompt != files.choose_prompt(None, None):
        known = {text: name for name, text in files.prompts.items() if text}
        name = known.get(encoder.prompt)
        if encoder.prompt and name is None:
            name = next(free for free in ("default", "fastadv", "fastadv_prompt") if free not in files.prompts)
            settings["prompts"] = {**(settings["prompts"] or {}), name: encoder.prompt}
        settings["default_prompt_name"] = name
    return settings


def _write_first_last(encoder, folder: Path) -> None:
    """first_last as a weighted mean over layers: 1 for the embedding output and the last layer, 0 between."""
    num_layers = encoder.hf.config.num_hidden_layers
    sizes = {"word_embedding_dimension": encoder.hidden_size, "layer_start": 0, "num_hidden_layers": num_layers}
    _write_json(folder / "config.json", sizes)
    weights = torch.zeros(num_layers + 1)
    weights[0] = weights[-1] = 1
    _save({"layer_weights": weights}, folder / WEIGHTS)


def _save(state: dict[str, torch.Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(exist_ok=True)
    save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, path)


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
