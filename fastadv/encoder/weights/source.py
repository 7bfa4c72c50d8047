"""Where a model comes from: what its files say about it before any weight is read, then its weights."""

import inspect
import json
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
from safetensors import SafetensorError
from torch import nn

from fastadv.encoder.pooling import POOLINGS
from fastadv.encoder.positions import num_positions
from fastadv.errors import UserError

logger = logging.getLogger("fastadv")

# Left out when a sentence-transformers model is opened: cosine does not see a vector's length.
_HARMLESS_MODULES = {"Transformer", "Pooling", "Normalize", "WeightedLayerPooling"}

# How the older of sentence-transformers' files name a pooling; the newer have one field pooling_mode.
_POOLING_OF_FLAG = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean"}


@dataclass(frozen=True)
class ModelSource:
    """A model found, not yet loaded."""

    name: str
    """what the user called it"""
    location: str
    """a folder, or a name in the Hugging Face cache or on the Hub"""
    config: object
    """its transformers configuration"""
    pooling: Optional[str]
    """what the model's own sentence-transformers files say; None where that is nothing, or not ours"""
    foreign_pooling: Optional[str]
    """what they say that is not ours: a way of pooling, or a module between tokens and vector; or None"""
    saved_max_length: Optional[int]
    """likewise"""
    num_positions: Optional[int]
    """tokens its position table can tell apart; None: no such limit"""

    def choose_pooling(self, pooling: Optional[str]) -> str:
        """``pooling`` where it is given, else the model's own, else cls.

        Raises:
            UserError: none is given, and the model's own is not one of ours: any other would give other vectors.
        """
        if pooling is not None:
            if self.foreign_pooling is not None:
                logger.warning("model %s: %s is left out for %s pooling", self.name, self.foreign_pooling, pooling)
            return pooling
        if self.foreign_pooling is not None:
            raise UserError(
                f"model {self.name!r} makes its vectors by {self.foreign_pooling}, which is not one of "
                f"{', '.join(POOLINGS)}; name one of these to use it all the same"
            )
        return self.pooling or "cls"

    def check_max_length(self, max_length: Optional[int]) -> None:
        """UserError where the encoder has fewer positions than ``max_length``."""
        if max_length is not None and self.num_positions is not None and max_length > self.num_positions:
            raise UserError(
                f"max_length {max_length} is above the {self.num_positions} positions of encoder {self.name}"
            )


def find_model(model: str) -> ModelSource:
    """Finds a model by folder, Hub name (in the local cache where HF_HUB_OFFLINE is set) or ``demo:minilm``.

    Raises:
        UserError: no such model, one that needs its own code run, or one that is not an encoder.
    """
    from transformers import AutoConfig

    location = _locate(model)
    try:
        config = AutoConfig.from_pretrained(location, trust_remote_code=False)
    except Exception as error:
        raise UserError(
            f"model {model!r} cannot be opened: {_why_not_found(error, os.path.isdir(location))}"
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"model {model!r} is an encoder-decoder ({config.model_type}), expected an encoder alone")
    try:
        saved_max_length = (_read_json(location, "sentence_bert_config.json") or {}).get("max_seq_length")
        pooling, foreign_pooling = _saved_pooling(location)
        if saved_max_length is not None and (type(saved_max_length) is not int or saved_max_length < 1):
            raise ValueError(f"max_seq_length is {saved_max_length!r}")
    # Files of another's making: no JSON, or other JSON than sentence-transformers writes.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(
            f"model {model!r}: its sentence-transformers files cannot be read: {type(error).__name__}: "
            f"{_one_line(error)}"
        ) from error
    return ModelSource(
        name=model,
        location=location,
        config=config,
        pooling=pooling,
        foreign_pooling=foreign_pooling,
        saved_max_length=saved_max_length,
        num_positions=num_positions(config),
    )


def load_weights(source: ModelSource, dtype: torch.dtype) -> nn.Module:
    """The model itself, without a pooler where it can be left out.

    Raises:
        UserError: weights that are pickled, cannot be read, or lack a part of the model.
    """
    from transformers import AutoModel

    _check_safetensors(source)
    options = without_pooler(AutoModel, source.config)
    if source.config.model_type == "modernbert":
        # Where flash-attn is installed it would choose that, and take the padding out before its embeddings.
        options["attn_implementation"] = "sdpa"
    try:
        # What transformers would print about unused and missing weights is judged below.
        with quiet_transformers():
            hf_model, info = AutoModel.from_pretrained(
                source.location,
                config=source.config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
    except Exception as error:
        raise UserError(f"model {source.name!r} cannot be loaded: {_one_line(error)}") from error
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        raise UserError(
            f"model {source.name!r} lacks {len(missing)} weights of {type(hf_model).__name__}: {missing[0]}"
        )
    return hf_model


def without_pooler(auto, config) -> dict[str, bool]:
    """The option that leaves out the pooler of a model which ``auto`` makes of ``config``, where it has that option."""
    model_class = auto._model_mapping.get(type(config), None)
    # Some types (Funnel) map to several classes.
    options = inspect.signature(model_class.__init__).parameters if inspect.isclass(model_class) else ()
    return {"add_pooling_layer": False} if "add_pooling_layer" in options else {}


def load_tokenizer(source: ModelSource):
    """The model's tokenizer. UserError where it has none."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(source.location, trust_remote_code=False)
        knows_words = _knows_words(tokenizer)
    except Exception as error:
        raise UserError(f"model {source.name!r} has no tokenizer that opens: {_one_line(error)}") from error
    # Where the files are missing, transformers 5 raises nothing and makes up one for which every word is unknown.
    if not knows_words:
        raise UserError(
            f"model {source.name!r} has no tokenizer that opens: "
            f"no vocabulary for a {type(tokenizer).__name__}, such as tokenizer.json"
        )
    return tokenizer


def _knows_words(tokenizer) -> bool:
    """Whether a letter or digit is in its vocabulary, apart from the special and the added tokens."""
    # Not every class has added tokens: Mistral's own has none.
    added = getattr(tokenizer, "get_added_vocab", dict)()
    apart = {*tokenizer.all_special_tokens, *added}
    return any(token not in apart and any(map(str.isalnum, token)) for token in tokenizer.get_vocab())


@contextmanager
def quiet_transformers():
    """Keeps transformers' warnings and its own progress bars off stderr for a while; a download still shows its bar."""
    from transformers.utils import logging as transformers_logging

    verbosity, has_bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    # disable_progress_bar() would switch huggingface_hub's bars too: a download of minutes would say nothing, and
    # where HF_HUB_DISABLE_PROGRESS_BARS is set, either switch warns.
    transformers_logging._tqdm_active = False
    try:
        yield
    finally:
        transformers_logging._tqdm_active = has_bars
        transformers_logging.set_verbosity(verbosity)


def _check_safetensors(source: ModelSource) -> None:
    """UserError where a model folder holds pickled weights only: opening a pickle runs whatever is in it."""
    folder = Path(source.location)
    if not folder.is_dir() or any(folder.glob("model*.safetensors*")):
        return
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled:
        # AutoModel would leave a head behind.
        has_head = any(name.endswith("ForSequenceClassification") for name in source.config.architectures or ())
        auto = "AutoModelForSequenceClassification" if has_head else "AutoModel"
        raise UserError(
            f"model {source.name!r} has pickled weights only ({pickled[0]}), which are not opened; where you "
            f"trust them, convert once: {auto}.from_pretrained(old).save_pretrained(new), and the same "
            "with AutoTokenizer"
        )
    raise UserError(f"model {source.name!r} has no weights: no model.safetensors in {folder}")


def _locate(model: str) -> str:
    if model.startswith("demo:"):
        from fastadv.data.sources.demo import resolve_model

        return str(resolve_model(model))
    expanded = os.path.expanduser(model)
    if os.path.isdir(expanded):
        if not os.path.isfile(os.path.join(expanded, "config.json")):
            raise UserError(f"model folder {model!r} has no config.json")
        return expanded
    # A Hub name is "name" or "owner/name"; anything else was meant as a path.
    if os.path.exists(expanded) or model.startswith((".", "/", "~")) or model.count("/") > 1 or not model:
        raise UserError(f"model folder {model!r} does not exist; give a folder, a Hub name or demo:minilm")
    return model


def _why_not_found(error: Exception, is_folder: bool) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", "")
    if is_folder or not isinstance(error, OSError):
        return _one_line(error)
    if offline:
        return "neither a folder here nor in the local Hugging Face cache (HF_HUB_OFFLINE is set)"
    return "neither a folder here nor on the Hub, or the Hub cannot be reached"


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "trust_remote_code" in str(error) or "custom code" in str(error):
        return "it brings code of its own, which is never run"
    # What a colon announces is on the next line.
    is_announced = len(lines) > 1 and lines[0].endswith(":")
    return " ".join(lines[: 1 + is_announced]) or type(error).__name__


def find_file(location: str, filename: str) -> Optional[str]:
    """The path of one of a model's files; None where it has no such file."""
    from transformers.utils import cached_file

    return cached_file(
        location,
        filename,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )


def _read_json(location: str, filename: str):
    path = find_file(location, filename)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))


def _saved_pooling(location: str) -> tuple[Optional[str], Optional[str]]:
    """Pooling by sentence-transformers' files: (one of ours, None), (None, what else), or (None, None) without them."""
    modules = _read_json(location, "modules.json") or []
    kinds = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in modules}
    unknown = sorted(set(kinds) - _HARMLESS_MODULES)
    if unknown:
        return None, f"its sentence-transformers module {', '.join(unknown)}"
    if "Pooling" not in kinds:
        return None, None
    config = _read_json(location, f"{kinds['Pooling']}/config.json") or {}
    mode = config.get("pooling_mode")
    if mode is None:
        modes = [key for key, is_on in config.items() if key.startswith("pooling_mode_") and is_on]
        mode = " and ".join(_POOLING_OF_FLAG.get(mode, mode.removeprefix("pooling_mode_")) for mode in modes)
    if "WeightedLayerPooling" in kinds:
        is_ours = mode == "mean" and _averages_first_and_last(location, kinds["WeightedLayerPooling"])
        mode = "first_last" if is_ours else f"WeightedLayerPooling and {mode}"
    return (mode, None) if mode in POOLINGS else (None, f"{mode} pooling")


def _averages_first_and_last(location: str, path: str) -> bool:
    """Whether a WeightedLayerPooling module is the one our export writes for first_last."""
    from safetensors.torch import load_file
    from transformers.utils import cached_file

    weights = load_file(cached_file(location, f"{path}/model.safetensors"))["layer_weights"].tolist()
    return weights == [1.0] + [0.0] * (len(weights) - 2) + [1.0]
