"""What a value of the right type must still satisfy before anything loads.

``check_config`` refuses values and combinations that cannot be meant, ``check_encoder`` what the named
encoder cannot do, and ``warn`` speaks of what can be meant but seldom is.
"""

import logging
import math
import re
from typing import Any, Optional

from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.errors import UserError
from fastadv.launch.checks_engine import check_engine

logger = logging.getLogger(__name__)


def _at_least(low):
    return (lambda value: value >= low), f"a whole number of at least {low}"


def _from_to(low, high):
    return (lambda value: low <= value <= high), f"a whole number of at least {low}, at most {high}"


_COUNT_FROM_0, _COUNT_FROM_1 = _at_least(0), _at_least(1)
_NOT_NEGATIVE = (lambda value: value >= 0), "a number of at least 0"
_POSITIVE = (lambda value: value > 0), "a number above 0"
_SHARE = (lambda value: 0 <= value <= 1), "a number in [0, 1]"
_SHARE_BELOW_1 = (lambda value: 0 <= value < 1), "a number from 0 to below 1"
_SEED = (lambda value: 0 <= value < 2**32), "a whole number from 0 to 4294967295"
_NAMED = (lambda value: _is_name(value)), "text that is not empty, in UTF-8 and without NUL"

RULES = {
    "encoder.model": _NAMED,
    "encoder.max_length": (
        (lambda value: value >= 3),
        "a whole number of at least 3 (two special tokens and a word)",
    ),
    "encoder.dropout": _SHARE_BELOW_1,
    "encoder.num_frozen_layers": _COUNT_FROM_0,
    "encoder.lora_rank": _COUNT_FROM_1,
    "encoder.lora_alpha": _POSITIVE,
    "encoder.lora_target_modules": (
        (lambda value: bool(value) and all(name.strip() for name in value)),
        "a list of one or more names of modules",
    ),
    "data.train": (
        lambda value: _is_sources(value),
        "a path or name, or a list of {path: P, weight: W} with different P in UTF-8 and W above 0, at most 1000",
    ),
    "data.field": _NAMED,
    "data.positive_field": _NAMED,
    "data.negative_field": _NAMED,
    "data.label_field": _NAMED,
    "data.pair_field": _NAMED,
    "data.label_names": (
        (lambda value: len(value) == len(set(value)) > 1 and all(name and name == name.strip() for name in value)),
        "a list of two or more different names of classes",
    ),
    "data.word_sets": _NAMED,
    "data.pairs": _NAMED,
    "data.split": _NAMED,
    "data.cache_dir": _NAMED,
    "data.max_sentences": _at_least(2),
    "data.bucket_batches": _COUNT_FROM_0,
    "data.num_workers": _from_to(0, 1024),
    "objective": _NAMED,
    "perturbation.num_steps": _COUNT_FROM_0,
    "perturbation.num_pgd_steps": _COUNT_FROM_0,
    "perturbation.num_fgsm_steps": _COUNT_FROM_0,
    "perturbation.alpha": _NOT_NEGATIVE,
    "perturbation.beta": _NOT_NEGATIVE,
    "perturbation.gamma": _NOT_NEGATIVE,
    "perturbation.rho": _SHARE,
    "perturbation.epsilon": _NOT_NEGATIVE,
    "perturbation.epsilon_token": (
        (lambda value: value == "equal" or value >= 0),
        "a number of at least 0, or equal (the sentence's epsilon)",
    ),
    "perturbation.epsilon_relative": _NOT_NEGATIVE,
    "perturbation.sigma": _NOT_NEGATIVE,
    "perturbation.probe_every": _COUNT_FROM_1,
    "perturbation.agreement": ((lambda value: 0 < value <= 1), "a number above 0, at most 1"),
    "optimizer.lr": _NOT_NEGATIVE,
    "optimizer.weight_decay": _NOT_NEGATIVE,
    "optimizer.beta1": _SHARE_BELOW_1,
    "optimizer.beta2": _SHARE_BELOW_1,
    "optimizer.eps": _POSITIVE,
    "optimizer.warmup_ratio": _SHARE,
    "optimizer.max_grad_norm": _POSITIVE,
    "optimizer.layer_lr_decay": ((lambda value: 0 < value <= 1), "a number above 0, at most 1"),
    "train.output_dir": _NAMED,
    "train.batch_size": (
        (lambda value: value >= 2),
        "a whole number of at least 2 (a lone sentence has no negatives)",
    ),
    "train.micro_batch_size": _COUNT_FROM_1,
    "train.accumulation_steps": _from_to(1, 10**6),
    "train.num_epochs": _COUNT_FROM_1,
    "train.max_steps": _COUNT_FROM_1,
    "train.seed": _SEED,
    "train.max_nonfinite_steps": _COUNT_FROM_1,
    "train.trackers": (
        (lambda value: len(set(value)) == len(value)),
        "a list of any of wandb, mlflow, each once",
    ),
    "train.log_every": _COUNT_FROM_1,
    "train.eval_every": _COUNT_FROM_1,
    "train.save_every": _COUNT_FROM_1,
    "engine.num_threads": _from_to(1, 4096),
    "engine.timeout_minutes": ((lambda value: 0 < value <= 1e6), "a number above 0, at most 1000000"),
    "dev.data": (_NAMED[0], "none, a folder or a file"),
    "dev.split": _NAMED,
    "dev.max_sentences": _COUNT_FROM_1,
    "dev.patience": _COUNT_FROM_1,
    "evaluation.num_sentences": _at_least(16),
    "evaluation.radii": (
        (lambda value: bool(value) and min(value) >= 0 and len(set(value)) == len(value)),
        "a list of one or more different numbers of at least 0",
    ),
    "evaluation.num_steps": _COUNT_FROM_1,
    "evaluation.num_probe_sentences": (
        (lambda value: value == 0 or value >= 16),
        "a whole number of at least 16, or 0 for no probe",
    ),
    "evaluation.held_out": _NAMED,
    "evaluation.held_out_split": _NAMED,
    "evaluation.seed": _SEED,
}
"""dotted key -> (whether a value of its type is allowed, that in words); null is the type's business"""

OPTION_RULES = {
    "temperature": _POSITIVE,
    "weight_hard_negative": _POSITIVE,
    "weight": _NOT_NEGATIVE,
    "rtd_mask_ratio": _SHARE,
}
"""the same for objectives' options of these names, or that begin with one of them and an underscore"""


def check_config(config: Config) -> None:
    """Refuses a value outside its range, and values that contradict each other.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    for key, (is_allowed, allowed) in RULES.items():
        value = _read(config, key)
        if value is not None and not is_allowed(value):
            raise UserError(f"{key} = {show(value)}: expected {allowed}")
    for name, value in config.objective_options.items():
        rule = next((r for start, r in OPTION_RULES.items() if name == start or name.startswith(f"{start}_")), None)
        if rule is not None and type(value) in (int, float) and not rule[0](value):
            raise UserError(f"objective_options.{name} = {show(value)}: expected {rule[1]}")
    _check_sizes(config)
    _check_lora(config)
    generator = rtd_generator_of(config)
    if generator is not None and config.perturbation.perturb_at != "embedding":
        raise UserError(
            f"perturbation.perturb_at = {config.perturbation.perturb_at}: expected embedding where "
            f"objective_options.rtd_generator is {show(generator)}: eta is added to the discriminator's embeddings"
        )
    check_engine(config)
    _check_columns(config)
    if config.evaluation.enabled and _is_measured_on_its_own_text(config):
        raise UserError(
            f"evaluation.held_out = {show(config.evaluation.held_out)}: "
            "expected sentences other than those of data.train, which has the same value"
        )


def _is_measured_on_its_own_text(config: Config) -> bool:
    train, evaluation = config.data.train, config.evaluation
    held_out = evaluation.held_out
    if held_out not in ([train] if isinstance(train, str) else [entry["path"] for entry in train]):
        return False
    from fastadv.data.sources.find import is_dataset_name

    # Only a named dataset has splits; of files and the demo's sentences the name says all.
    return not is_dataset_name(held_out) or config.data.split == evaluation.held_out_split


def _is_name(value: str) -> bool:
    # A command line may hold bytes that are no UTF-8, and a model card, say, may not.
    return bool(value.strip()) and "\0" not in value and not re.search("[\ud800-\udfff]", value)


def _is_sources(value: Any) -> bool:
    """Whether ``data.train`` is one source, or one or more of them with weights."""
    if isinstance(value, str):
        return _NAMED[0](value)
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        return False
    for entry in value:
        path, weight = entry.get("path"), entry.get("weight", 1)
        if set(entry) - {"path", "weight"} or not isinstance(path, str) or not _NAMED[0](path):
            return False
        # The bound keeps a slip of the keyboard from filling the memory with copies.
        if type(weight) not in (int, float) or not 0 < weight <= 1000:
            return False
    return 0 < len(value) == len({entry["path"] for entry in value})


def _check_lora(config: Config) -> None:
    encoder = config.encoder
    for name in ("lora_alpha", "lora_target_modules"):
        value = getattr(encoder, name)
        if encoder.lora_rank is None and value is not None:
            raise UserError(f"encoder.{name} = {show(value)}: expected null where encoder.lora_rank is null")


def _check_columns(config: Config) -> None:
    data = config.data
    if data.negative_field is not None and data.positive_field is None:
        raise UserError(
            f"data.negative_field = {show(data.negative_field)}: expected null where data.positive_field is null"
        )
    for key in ("positive_field", "negative_field"):
        if data.label_field is not None and getattr(data, key) is not None:
            raise UserError(
                f"data.{key} = {show(getattr(data, key))}: expected null where data.label_field is "
                f"{show(data.label_field)}, for a text has given positives or a label"
            )
    for key in ("pair_field", "label_names"):
        if data.label_field is None and getattr(data, key) is not None:
            raise UserError(f"data.{key} = {show(getattr(data, key))}: expected null where data.label_field is null")
    if data.pairs is None and data.unpaired != "keep":
        raise UserError(f"data.unpaired = {data.unpaired}: expected keep where data.pairs is null")
    keys = ("field", "positive_field", "negative_field", "pair_field", "label_field")
    columns = [(key, getattr(data, key)) for key in keys]
    for i, (key, column) in enumerate(columns):
        for other, taken in columns[:i]:
            if column is not None and column == taken:
                raise UserError(f"data.{key} = {show(column)}: expected a column other than that of data.{other}")


def _read(config: Config, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def rtd_generator_of(config: Config) -> Optional[str]:
    """The generator of the objective's replaced token detection, or None where that is not run."""
    options = config.objective_options
    generator = options.get("rtd_generator", "none")
    return None if generator == "none" or options.get("weight_rtd") == 0 else generator


def _check_sizes(config: Config) -> None:
    sizes = config.perturbation
    if sizes.resolve().reuse == "free":
        if sizes.resolve().num_steps == 0:
            raise UserError("perturbation.num_steps = 0: expected at least 1 where perturbation.reuse is free")
        if sizes.resolve().gradient == "separate":
            raise UserError(
                "perturbation.gradient = separate: expected shared where perturbation.reuse is free, whose passes "
                "train at one point"
            )
    if sizes.method in ("fgm", "fgsm") and sizes.epsilon is None and sizes.epsilon_relative is None:
        raise UserError(
            f"perturbation.epsilon = null: expected a number of at least 0, or perturbation.epsilon_relative, where "
            f"perturbation.method is {sizes.method}: its one step is as long as the radius"
        )
    if sizes.epsilon_relative is not None:
        if sizes.epsilon is not None:
            raise UserError(
                f"perturbation.epsilon = {show(sizes.epsilon)}: expected null where "
                f"perturbation.epsilon_relative (now {show(sizes.epsilon_relative)}) sets the radius"
            )
        if sizes.epsilon_token != "equal":
            raise UserError(
                f"perturbation.epsilon_token = {show(sizes.epsilon_token)}: expected equal where "
                f"perturbation.epsilon_relative (now {show(sizes.epsilon_relative)}) sets the radius"
            )
        return
    if sizes.method not in ("fgm", "fgsm") and sizes.step_relative:
        if sizes.epsilon is None:
            raise UserError(
                "perturbation.step_relative = true: expected false or null where both "
                "perturbation.epsilon and perturbation.epsilon_relative are null, for there is no radius then"
            )
        if sizes.resolve().use_eta and sizes.epsilon_token is None:
            raise UserError(
                "perturbation.step_relative = true: expected false or null where "
                "perturbation.epsilon_token is null, for perturbation.gamma has no radius then"
            )


def warn(config: Config, is_searched: bool = True) -> None:
    """Says once in the log what is allowed and yet seldom meant.

    Args:
        is_searched: whether the objective searches a perturbation at all.
    """
    sizes = config.perturbation.resolve()
    # An absolute step in a relative ball meets its radius only once X is there.
    diameter = 2.0 if sizes.steps_are_relative else math.inf if sizes.epsilon is None else 2 * sizes.epsilon
    is_perturbed = is_searched and 0 not in (sizes.epsilon, sizes.epsilon_relative, sizes.num_pgd_steps)
    # A single step may well be meant to end there, as SMART's is.
    if is_perturbed and sizes.num_pgd_steps > 1 and sizes.alpha > diameter:
        unit = " epsilon" if sizes.steps_are_relative else ""
        logger.warning(
            "perturbation.alpha = %s%s is above the ball's diameter (%s%s): PGD steps end on its surface",
            show(sizes.alpha),
            unit,
            show(diameter),
            unit,
        )
    if config.train.eval_every is not None and config.dev.data == "none":
        logger.warning("train.eval_every = %d has no effect while dev.data is none", config.train.eval_every)


def check_encoder(config: Config) -> None:
    """Refuses an encoder that is not there, or has fewer positions or layers than are asked of it; LoRA without peft.

    Likewise the generator of replaced token detection and the victim of soft targets, which must also have the
    encoder's vocabulary. Reads the models' configurations (in a folder, ``demo:minilm`` or the Hub's cache), never
    their weights.

    Raises:
        UserError: one line.
    """
    from fastadv.encoder.weights.depth import check_num_frozen_layers
    from fastadv.encoder.weights.lora import check_lora_usable
    from fastadv.encoder.weights.source import find_model, load_tokenizer

    encoder = config.encoder
    if encoder.lora_rank is not None:
        check_lora_usable("encoder.lora_rank", encoder.lora_rank)
    source = find_model(encoder.model)
    if encoder.num_frozen_layers is not None:
        check_num_frozen_layers(encoder.num_frozen_layers, source.config, "encoder.num_frozen_layers")
    num_positions = source.num_positions
    if num_positions is not None and encoder.max_length > num_positions:
        raise UserError(
            f"encoder.max_length = {encoder.max_length}: expected at most {num_positions}, "
            f"the positions of {encoder.model}"
        )
    generator = rtd_generator_of(config)
    if generator not in (None, "unigram"):
        from fastadv.objectives.sentences.rtd_generators import check_generator

        check_generator(generator, load_tokenizer(source), encoder.max_length)
    victim = config.objective_options.get("victim")
    if victim is not None:
        from fastadv.objectives.texts.victims import check_victim

        check_victim(victim, load_tokenizer(source), encoder.max_length, config.data.label_names)
