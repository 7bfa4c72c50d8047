"""What the files of a sentence-transformers folder say of a model: read here, and asked by everyone else.

A folder has ``modules.json``: a Transformer, a Pooling, and what comes after. What cannot be computed here as
sentence-transformers does is named in `SentenceFiles.unsupported`, so that no other vector stands in its place.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Optional

from safetensors import SafetensorError

from fastadv.config.commands import is_pooling
from fastadv.errors import UserError

SETTINGS_FILE = "config_sentence_transformers.json"
"""prompts, the similarity function, versions"""
TRANSFORMER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""length and lower-casing; the first that is there and not empty counts"""

POOLING_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""how the older files name a way of pooling → ours, in the order their vectors stand in"""
NEWER_NAMES = {"mean_sqrt_len_tokens": "mean_sqrt_len"}
"""how the newer files name one, where it is not ours"""

AFTER_POOLING = ("Normalize", "Dense", "LayerNorm", "Dropout")
"""modules after the pooling that are computed here; a Dropout drops nothing outside of training"""
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")

# What a Transformer's configuration may say without another vector: of any other key or value it is named.
_USUAL = {
    "max_seq_length": None,
    "do_lower_case": None,
    "unpad_inputs": None,
    # Of a text that is said to be a query or a document.
    "query_length": None,
    "document_length": None,
    "query_expansion": None,
    "transformer_task": ("feature-extraction",),
    "module_output_name": ("token_embeddings",),
    "tokenizer_name_or_path": (),
    "processing_kwargs": (),
}
_USUAL_OUTPUT = {"method": "forward", "method_output_name": "last_hidden_state"}
_USUAL_ARGUMENTS = {
    "model": {"torch_dtype", "dtype", "attn_implementation", "add_pooling_layer", "use_safetensors", "device_map"},
    "tokenizer": {"model_max_length", "padding_side", "use_fast"},
    "config": {"output_hidden_states", "output_attentions", "use_cache"},
}
_ARGUMENT_KEYS = {
    "model": ("model_args", "model_kwargs"),
    "tokenizer": ("tokenizer_args", "processor_kwargs"),
    "config": ("config_args", "config_kwargs"),
}


@dataclass(frozen=True)
class ModuleFile:
    """A module after the pooling, as its folder describes it."""

    kind: str
    """one of `AFTER_POOLING`"""
    path: str
    """its folder"""
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SentenceFiles:
    """What a folder says; the defaults are of one that says nothing."""

    subfolder: str = ""
    """where the model itself lies: ``0_Transformer`` in older folders"""
    pooling: Optional[str] = None
    """how token states become one vector (`fastadv.encoder.pooling`)"""
    pools_prompt: bool = True
    """whether the tokens of a prompt count in the pooling"""
    modules: tuple[ModuleFile, ...] = ()
    """what comes after the pooling, in order"""
    max_length: Optional[int] = None
    """tokens a text is cut to"""
    is_lower_cased: bool = False
    """whether texts are lower-cased before the tokenizer's own rules"""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """what `SETTINGS_FILE` holds"""
    unsupported: Optional[str] = None
    """what makes the vectors that cannot be computed here; None: all of it can"""

    @property
    def prompts(self) -> dict[str, str]:
        """The texts that may be put before a sentence, by name."""
        return {name: text or "" for name, text in (self.settings.get("prompts") or {}).items()}

    @property
    def default_prompt_name(self) -> Optional[str]:
        """The prompt that is put before every sentence unless another is asked for."""
        return self.settings.get("default_prompt_name")

    @property
    def similarity(self) -> str:
        """How the model's vectors are compared: one of `SIMILARITIES`."""
        return self.settings.get("similarity_fn_name") or "cosine"

    @property
    def truncate_dim(self) -> Optional[int]:
        """The numbers of a vector that are kept, the first ones; None: all."""
        return self.settings.get("truncate_dim")

    def choose_prompt(self, prompt: Optional[str], prompt_name: Optional[str]) -> str:
        """The text to put before every sentence: ``prompt``, the model's own of that name, or its default; or "".

        Raises:
            UserError: both are given, or a name that the model has no prompt of.
        """
        if prompt is not None and prompt_name is not None:
            raise UserError(f"prompt {prompt!r} and prompt_name {prompt_name!r} are both given; expected one of them")
        if prompt is not None:
            return prompt
        if prompt_name is not None and prompt_name not in self.prompts:
            known = f"its prompts are {', '.join(self.prompts)}" if self.prompts else "it has no prompts"
            raise UserError(f"prompt_name {prompt_name!r}: the model has no such prompt; {known}")
        name = self.default_prompt_name if prompt_name is None else prompt_name
        return "" if name is None else self.prompts[name]

    def with_pooling(self, pooling: str) -> "SentenceFiles":
        """The same with another pooling, and without what is not supported."""
        if self.unsupported is None:
            return replace(self, pooling=pooling)
        settings = {key: value for key, value in self.settings.items() if key != "model_type"}
        return replace(self, pooling=pooling, modules=(), settings=settings, unsupported=None)


def read_sentence_files(location: str, name: str) -> SentenceFiles:
    """Reads a folder's files, or those of a name in the Hugging Face cache or on the Hub; no weights.

    Args:
        name: what the user calls the model.

    Raises:
        UserError: files that sentence-transformers does not write: no JSON, or values that it would not take.
        OSError: no such model, of a name.
    """
    try:
        return _read(location)
    # Files of another's making.
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        reason = " ".join(str(error).split()) or "not as sentence-transformers writes them"
        raise UserError(
            f"model {name!r}: its sentence-transformers files cannot be read: {type(error).__name__}: {reason}"
        ) from error


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


def _read(location: str) -> SentenceFiles:
    modules = _read_json(location, "modules.json")
    if modules is None:
        return SentenceFiles()
    settings = _read_json(location, SETTINGS_FILE) or {}
    _check_settings(settings)
    called = [module["name"] for module in modules if "name" in module]
    twice = sorted({name for name in called if called.count(name) > 1})
    if twice:
        # sentence-transformers keeps one of them, in the first one's place.
        raise ValueError(f"modules.json has more than one module called {twice[0]!r}")
    kinds = [module["type"].rsplit(".", 1)[-1] for module in modules]
    paths = [_inside(module["path"]) for module in modules]
    foreign = [module["type"] for module in modules if not module["type"].startswith("sentence_transformers.")]
    unusual = []
    if foreign:
        unusual.append(f"code of its own ({', '.join(foreign)}), which is never run")
    if settings.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        unusual.append(f"what makes it a {settings['model_type']}")
    if not modules or foreign or kinds[0] != "Transformer":
        unusual += [f"its sentence-transformers module {kind}" for kind in kinds[:1] if not foreign]
        return SentenceFiles(settings=settings, unsupported=" and ".join(unusual) or "an empty modules.json")
    subfolder = paths[0]
    transformer = _transformer_config(location, subfolder)
    arguments = {kind: _arguments(transformer, keys) for kind, keys in _ARGUMENT_KEYS.items()}
    unusual += _unusual(transformer, arguments)
    length = arguments["tokenizer"].get("model_max_length", transformer.get("max_seq_length"))
    if length is not None and (type(length) is not int or length < 1):
        raise ValueError(f"max_seq_length is {length!r}")
    rest = list(zip(kinds[1:], paths[1:], strict=True))
    layers = rest.pop(0)[1] if rest and rest[0][0] == "WeightedLayerPooling" else None
    pooling, pools_prompt = None, True
    if rest and rest[0][0] == "Pooling":
        path = f"{rest.pop(0)[1]}/config.json"
        config = _read_json(location, path)
        if not config:
            raise ValueError(f"the pooling has no {path}")
        pooling, pools_prompt = _pooling_of(config), config.get("include_prompt", True)
        if layers is not None and _has_all_layers(location, subfolder, arguments["config"]):
            is_ours = pooling == "mean" and _averages_first_and_last(location, layers)
            pooling = "first_last" if is_ours else f"WeightedLayerPooling and {pooling}"
        if not is_pooling(pooling):
            unusual.append(f"{pooling.replace('+', ' and ')} pooling")
    elif all(kind in AFTER_POOLING for kind, _ in rest):
        unusual.append("no pooling: it has no sentence-transformers module Pooling")
    unknown = sorted({kind for kind, _ in rest if kind not in AFTER_POOLING})
    if unknown:
        unusual.append(f"its sentence-transformers module {', '.join(unknown)}")
    after = [
        ModuleFile(kind, path, (_read_json(location, f"{path}/config.json") or {}) if kind != "Normalize" else {})
        for kind, path in rest
        if kind in AFTER_POOLING
    ]
    return SentenceFiles(
        subfolder=subfolder,
        pooling=pooling if not unusual else None,
        pools_prompt=bool(pools_prompt),
        modules=tuple(after),
        max_length=length,
        is_lower_cased=bool(transformer.get("do_lower_case")),
        settings=settings,
        unsupported=" and ".join(unusual) or None,
    )


def _check_settings(settings: Mapping[str, Any]) -> None:
    prompts, name = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not all(isinstance(text, (str, type(None))) for text in prompts.values()):
        raise ValueError("prompts are not all text")
    if name is not None and name not in prompts:
        raise ValueError(f"default_prompt_name is {name!r}, and the prompts are {', '.join(prompts) or 'none'}")
    similarity, size = settings.get("similarity_fn_name"), settings.get("truncate_dim")
    if similarity is not None and similarity not in SIMILARITIES:
        raise ValueError(f"similarity_fn_name is {similarity!r}")
    if size is not None and (type(size) is not int or size < 1):
        raise ValueError(f"truncate_dim is {size!r}")


def _inside(path: str) -> str:
    """A module's folder, without a slash at its end."""
    parts = Path(path).parts
    if Path(path).is_absolute() or ".." in parts:
        raise ValueError(f"path {path!r} lies outside of the model's folder")
    return "/".join(parts)


def _transformer_config(location: str, subfolder: str) -> dict[str, Any]:
    found = (_read_json(location, f"{subfolder}/{name}".lstrip("/")) for name in TRANSFORMER_FILES)
    return next((config for config in found if config), {})


def _arguments(transformer: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Keyword arguments under any of their names, without what sentence-transformers takes out itself."""
    given = [transformer[key] or {} for key in keys if key in transformer]
    return {name: value for each in given for name, value in each.items() if name != "trust_remote_code"}


def _unusual(transformer: Mapping[str, Any], arguments: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What a Transformer's configuration asks for and is not done here."""
    known = {key for keys in _ARGUMENT_KEYS.values() for key in keys}
    unusual = []
    for key, value in transformer.items():
        if key in known:
            continue
        if key == "modality_config":
            is_usual = value == {"text": _USUAL_OUTPUT}
        else:
            allowed = _USUAL.get(key, ())
            is_usual = allowed is None or not value or value in allowed
        if not is_usual:
            unusual.append(f"its {key} {json.dumps(value, ensure_ascii=False)}")
    for kind, given in arguments.items():
        others = sorted(set(given) - _USUAL_ARGUMENTS[kind])
        unusual += [f"its {kind} argument {name}" for name in others]
    return unusual


def _pooling_of(config: Mapping[str, Any]) -> str:
    """In our words, where there are any; several joined by ``+``."""
    modes = config.get("pooling_mode")
    if modes is None:
        # A flag that is not known is named, and is not ours.
        flags = {**dict.fromkeys(POOLING_FLAGS, False), **{k: v for k, v in config.items() if "pooling_mode_" in k}}
        names = {key: POOLING_FLAGS.get(key, key.removeprefix("pooling_mode_")) for key in flags}
        modes = [names[key] for key, is_on in flags.items() if is_on] or ["mean"]
    modes = [modes] if isinstance(modes, str) else list(modes)
    return "+".join(NEWER_NAMES.get(mode, mode) for mode in modes)


def _has_all_layers(location: str, subfolder: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the model hands out the states of all layers; without them a WeightedLayerPooling does nothing."""
    config = _read_json(location, f"{subfolder}/config.json".lstrip("/")) or {}
    return bool(arguments.get("output_hidden_states", config.get("output_hidden_states", False)))


def _averages_first_and_last(location: str, path: str) -> bool:
    """Whether a WeightedLayerPooling module is the one that our export writes for first_last."""
    from safetensors.torch import load_file

    config = _read_json(location, f"{path}/config.json") or {}
    weights = load_file(find_file(location, f"{path}/model.safetensors"))["layer_weights"].tolist()
    return config.get("layer_start") == 0 and weights == [1.0] + [0.0] * (len(weights) - 2) + [1.0]


def _read_json(location: str, filename: str) -> Any:
    path = find_file(location, filename)
    return None if path is None else json.loads(Path(path).read_text(encoding="utf-8"))
