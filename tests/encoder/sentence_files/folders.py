"""Folders as sentence-transformers writes and wrote them, by hand: nothing of the package has a part in them."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import torch
from safetensors.torch import save_file

FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
OLDER = "sentence_transformers.models."
NEWER = {
    "Transformer": "sentence_transformers.base.modules.transformer.Transformer",
    "Dense": "sentence_transformers.base.modules.dense.Dense",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
    "Normalize": "sentence_transformers.sentence_transformer.modules.normalize.Normalize",
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm",
    "Dropout": "sentence_transformers.sentence_transformer.modules.dropout.Dropout",
}

TEXTS = [
    "the film was not very good .",
    "A Wonderful Story!",
    "It is DULL",
    "the actor was great , but the plot was slow and the ending was almost terrible .",
    "never",
    "Love this camera and this music. " * 6,
]


@dataclass
class Folder:
    """What a folder says."""

    modes: tuple[str, ...] = ("mean",)
    after: tuple[str, ...] = ()
    """modules after the pooling, in order"""
    activation: Optional[str] = "torch.nn.modules.activation.Tanh"
    """of a Dense; None: its configuration names none"""
    max_length: Optional[int] = None
    lower_case: bool = False
    settings: dict = field(default_factory=dict)
    """of config_sentence_transformers.json"""
    subfolder: str = ""
    config_name: str = "sentence_bert_config.json"
    has_new_names: bool = False
    include_prompt: bool = True
    transformer: dict = field(default_factory=dict)
    """more of the Transformer's configuration"""

    def write(self, model_dir: Path, folder: Path, hidden_size: int = 32) -> Path:
        """The model of ``model_dir`` as such a folder."""
        own = folder / self.subfolder
        shutil.copytree(model_dir, own)
        kinds = ["Transformer", "Pooling", *self.after]
        paths = [self.subfolder, *(f"{i}_{kind}" for i, kind in enumerate(kinds) if i)]
        types = NEWER if self.has_new_names else {kind: OLDER + kind for kind in kinds}
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": types[kind]}
            for i, (kind, path) in enumerate(zip(kinds, paths))
        ]
        write_json(folder / "modules.json", modules)
        limits = {"max_seq_length": self.max_length, "do_lower_case": self.lower_case, **self.transformer}
        if self.has_new_names:
            limits |= {
                "transformer_task": "feature-extraction",
                "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
                "module_output_name": "token_embeddings",
            }
        write_json(own / self.config_name, limits)
        write_json(folder / paths[1] / "config.json", self._pooling(hidden_size))
        size = hidden_size * len(self.modes)
        for kind, path in zip(self.after, paths[2:]):
            size = self._write_module(kind, folder / path, size)
        if self.settings:
            write_json(folder / "config_sentence_transformers.json", self.settings)
        return folder

    def _pooling(self, hidden_size: int) -> dict:
        if self.has_new_names:
            names = ["mean_sqrt_len_tokens" if mode == "mean_sqrt_len" else mode for mode in self.modes]
            config = {"embedding_dimension": hidden_size, "pooling_mode": names[0] if len(names) == 1 else names}
        else:
            flags = {flag: mode in self.modes for mode, flag in FLAGS.items()}
            config = {"word_embedding_dimension": hidden_size, **flags}
        return config if self.include_prompt else {**config, "include_prompt": False}

    def _write_module(self, kind: str, path: Path, size: int) -> int:
        path.mkdir()
        generator = torch.Generator().manual_seed(size)

        def drawn(*shape):
            return torch.randn(*shape, generator=generator) / 4

        if kind == "Dense":
            config = {"in_features": size, "out_features": 24, "bias": True, "activation_function": self.activation}
            write_json(path / "config.json", {k: v for k, v in config.items() if v is not None})
            weights = {"linear.weight": drawn(24, size), "linear.bias": drawn(24)}
            save_file(weights, path / "model.safetensors")
            return 24
        if kind == "LayerNorm":
            write_json(path / "config.json", {"dimension": size})
            save_file({"norm.weight": 1 + drawn(size), "norm.bias": drawn(size)}, path / "model.safetensors")
        if kind == "Dropout":
            write_json(path / "config.json", {"dropout": 0.5})
        return size


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def read_json(path: Path):
    return json.loads(path.read_text(encoding="utf-8"))
