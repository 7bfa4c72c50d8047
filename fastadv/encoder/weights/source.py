"""Where a model comes from: what its files say about it before any weight is read, then its weights."""

import inspect
import logging
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Optional

import torch
from torch import Tensor, nn

from fastadv.config.commands import POOLINGS, Encoding, check_pooling
from fastadv.encoder.pooling import num_modes
from fastadv.encoder.positions import num_positions
from fastadv.encoder.sentence_files.after_pooling import check_modules
from fastadv.encoder.sentence_files.read import SentenceFiles, find_file, read_sentence_files
from fastadv.encoder.weights.card import read_card
from fastadv.errors import UserError

logger = logging.getLogger("fastadv")

# Taken where neither the tokenizer nor the positions set a limit.
_DEFAULT_MAX_LENGTH = 512
_ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class ModelSource:
    """A model found, not yet loaded."""

    name: str
    """what the user called it"""
    location: str
    """a folder, or a name in the Hugging Face cache or on the Hub"""
    config: object
    """its transformers configuration"""
    num_positions: Optional[int]
    """tokens its position table can tell apart; None: no such limit"""
    files: SentenceFiles = SentenceFiles()
    """what its sentence-transformers files say"""
    card: Mapping[str, Any] = field(default_factory=dict)
    """the metadata of its own card that those of a model made of it take over: `base_model`, `license`, `language`"""

    def choose_pooling(self, pooling: Optional[str]) -> str:
        """``pooling`` where it is given, else the model's own, else cls.

        Raises:
            UserError: it is none, or none is given and the model's vectors are not computed here.
        """
        unsupported = self.files.unsupported
        if pooling is not None:
            check_pooling(pooling)
            if unsupported is not None:
                logger.warning("model %s: %s is left out for %s pooling", self.name, unsupported, pooling)
            return pooling
        if unsupported is not None:
            raise UserError(
                f"model {self.name!r} makes its vectors by {unsupported}, which is not supported; name a pooling (one "
                f"of {', '.join(POOLINGS)}) to use its token states all the same"
            )
        return self.files.pooling or "cls"

    def choose_prompt(self, prompt: Optional[str], prompt_name: Optional[str]) -> str:
        """What `SentenceFiles.choose_prompt` says; a UserError names the model."""
        try:
            return self.files.choose_prompt(prompt, prompt_name)
        except UserError as error:
            raise UserError(f"model {self.name!r}: {error}") from error

    def check_encoding(self, options: Encoding) -> None:
        """UserError for a pooling, a prompt or a length that this model cannot be opened with. Reads no weights."""
        self.check_max_length(options.max_length)
        self.choose_prompt(options.prompt, options.prompt_name)
        files = self.files.with_pooling(self.choose_pooling(options.pooling))
        try:
            check_modules(files, num_modes(files.pooling) * self.config.hidden_size)
        except UserError as error:
            raise UserError(f"model {self.name!r}: {error}") from error

    def check_max_length(self, max_length: Optional[int]) -> None:
        """UserError where the encoder has fewer positions than ``max_length``."""
        if max_length is not None and self.num_positions is not None and max_length > self.num_positions:
            raise UserError(
                f"max_length {max_length} is above the {self.num_positions} positions of encoder {self.name}"
            )

    def length_limit(self, tokenizer) -> int:
        """Tokens a text is cut to where nothing else is asked for: as the files say, within the model's positions."""
        saved = self.files.max_length
        if saved is None:
            return own_length(self.config, tokenizer)
        return saved if self.num_positions is None else min(saved, self.num_positions)


def own_length(config, tokenizer) -> int:
    """Tokens that a tokenizer and the positions of a model's configuration allow."""
    # transformers writes "no limit" as a huge number.
    stated = tokenizer.model_max_length if tokenizer.model_max_length < 10**9 else None
    limits = [limit for limit in (stated, num_positions(config)) if limit is not None]
    if not limits:
        logger.warning(
            "neither the tokenizer nor the positions of this %s set a limit: texts are cut to max_length %d tokens",
            config.model_type,
            _DEFAULT_MAX_LENGTH,
        )
    return min(limits, default=_DEFAULT_MAX_LENGTH)


def find_model(model: str) -> ModelSource:
    """Finds a model by folder, Hub name (in the local cache where HF_HUB_OFFLINE is set) or ``demo:minilm``.

    Raises:
        UserError: no such model, one that needs its own code run, one with an adapter, or one that is not an encoder.
    """
    from transformers import AutoConfig

    location = _locate(model)
    try:
        files = read_sentence_files(location, model)
        _check_no_adapter(location, model, files)
        _check_has_config(location, model, files)
        config = AutoConfig.from_pretrained(location, trust_remote_code=False, subfolder=files.subfolder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"model {model!r} cannot be opened: {_why_not_found(error, os.path.isdir(location))}"
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"model {model!r} is an encoder-decoder ({config.model_type}), expected an encoder alone")
    return ModelSource(model, location, config, num_positions(config), files, read_card(location, model))


def _check_no_adapter(location: str, model: str, files: SentenceFiles) -> None:
    """UserError where there is an adapter of peft, which transformers applies only where peft is installed."""
    path = f"{files.subfolder}/{_ADAPTER}".lstrip("/")
    if find_file(location, path) is not None:
        raise UserError(
            f"model {model!r} holds an adapter of peft ({path}), which is not applied; merge it into its base once: "
            "PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(new), and save the tokenizer"
        )


def _check_has_config(location: str, model: str, files: SentenceFiles) -> None:
    """UserError where a folder has no configuration of a transformers model."""
    if not os.path.isdir(location) or os.path.isfile(os.path.join(location, files.subfolder, "config.json")):
        return
    if files.unsupported is not None:
        raise UserError(f"model {model!r} makes its vectors by {files.unsupported}, which is not supported")
    inside = f" in {files.subfolder}" if files.subfolder else ""
    raise UserError(f"model folder {model!r} has no config.json{inside}")


def load_weights(source: ModelSource, dtype: torch.dtype) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model itself without its pooler, and the pooler's weights by name, where the files have them.

    They serve no vector, and whoever opens an export with transformers alone finds them as they were.

    Raises:
        UserError: weights that are pickled, cannot be read, or lack a part of the model.
    """
    from transformers import AutoModel

    _check_safetensors(source)
    options = {}
    if source.config.model_type == "modernbert":
        # Where flash-attn is installed it would choose that, and take the padding out before its embeddings.
        options["attn_implementation"] = "sdpa"
    try:
        # What transformers would print about unused and missing weights is judged below. A pooler that the files lack
        # is drawn, and nobody's generator moves for it.
        with quiet_transformers(), torch.random.fork_rng(devices=[]):
            hf_model, info = AutoModel.from_pretrained(
                source.location,
                config=source.config,
                subfolder=source.files.subfolder,
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
    return hf_model, _take_pooler(hf_model, is_known=not info["missing_keys"])


def _take_pooler(hf_model: nn.Module, is_known: bool) -> dict[str, Tensor]:
    """Takes off the pooler of a model that can do without, and gives its weights by name.

    Args:
        is_known: whether they were read; weights that torch has drawn are nobody's.
    """
    pooler = getattr(hf_model, "pooler", None)
    if pooler is None or "add_pooling_layer" not in inspect.signature(type(hf_model).__init__).parameters:
        return {}
    hf_model.pooler = None
    return {f"pooler.{name}": value for name, value in pooler.state_dict().items()} if is_known else {}


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
        tokenizer = AutoTokenizer.from_pretrained(
            source.location, trust_remote_code=False, subfolder=source.files.subfolder
        )
        knows_words = _knows_words(tokenizer)
    except Exception as error:
        raise UserError(f"model {source.name!r} has no tokenizer that opens: {_one_line(error)}") from error
    # Where the files are missing, transformers 5 raises nothing and makes up one for which every word is unknown.
    if not knows_words:
        raise UserError(
            f"model {source.name!r} has no tokenizer that opens: "
            f"no vocabulary for a {type(tokenizer).__name__}, such as tokenizer.json"
        )
    if source.files.is_lower_cased:
        _lower_case(tokenizer)
    return tokenizer


def _lower_case(tokenizer) -> None:
    """Has a tokenizer lower-case its texts first, as sentence-transformers does where its files ask for it."""
    from tokenizers.normalizers import Lowercase, Sequence

    if not tokenizer.is_fast:
        try:
            tokenizer.do_lower_case = True
        except AttributeError:
            # It may only be read here, and belongs to the tokenizer that splits at spaces.
            tokenizer.basic_tokenizer.do_lower_case = True
        return
    normalizer = tokenizer.backend_tokenizer.normalizer
    steps = [] if normalizer is None else list(normalizer) if isinstance(normalizer, Sequence) else [normalizer]
    if not any(isinstance(step, Lowercase) for step in steps):
        tokenizer.backend_tokenizer.normalizer = Sequence([Lowercase(), *steps])


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
    folder = Path(source.location, source.files.subfolder)
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
    if "should have a `model_type` key" in str(error).lower():
        # transformers lists all types that it knows: four thousand letters.
        return "its config.json names no model_type"
    # What a colon announces is on the next line.
    is_announced = len(lines) > 1 and lines[0].endswith(":")
    return " ".join(lines[: 1 + is_announced]) or type(error).__name__
