"""What values of a configuration must still satisfy before anything loads, each and together.

``check_config`` refuses values and combinations that cannot be meant, ``check_encoder`` what the named
encoder cannot do, and ``warn`` speaks of what can be meant but seldom is.
"""

import logging
import math
from typing import Iterator, NoReturn

from fastadv.config.schema import Config, field_types, value_of
from fastadv.config.values import MISFIT, conform, describe, kinds, show
from fastadv.errors import UserError
from fastadv.launch.checks_engine import engine_contradictions

logger = logging.getLogger(__name__)


def check_config(config: Config) -> None:
    """Refuses a value outside its type and bounds, and values that contradict each other.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    for key, hint in field_types().items():
        if conform(value_of(config, key), hint) is MISFIT:
            refuse(config, key, describe(hint))
    for contradictions in (_of_sizes, _of_encoder, engine_contradictions, _of_data):
        for key, expected in contradictions(config):
            refuse(config, key, expected)


def refuse(config: Config, key: str, expected: str) -> NoReturn:
    """Raises the UserError ``key = value: expected ...``; a choice is shown as a bare word, text in quotes."""
    value = value_of(config, key)
    is_choice = isinstance(value, str) and str not in kinds(field_types()[key])
    raise UserError(f"{key} = {value if is_choice else show(value)}: expected {expected}")


def rtd_generator_of(config: Config) -> str | None:
    """The generator of the objective's replaced token detection, or None where that is not run."""
    options = config.objective_options
    generator = options.get("rtd_generator", "none")
    return None if generator == "none" or options.get("weight_rtd") == 0 else generator


def _of_sizes(config: Config) -> Iterator[tuple[str, str]]:
    sizes, plan = config.perturbation, config.perturbation.resolve()
    is_one_step, is_relative = sizes.method in ("fgm", "fgsm"), sizes.epsilon_relative is not None
    if plan.reuse == "free" and plan.num_steps == 0:
        yield "perturbation.num_steps", "at least 1 where perturbation.reuse is free"
    if plan.reuse == "free" and plan.gradient == "separate":
        yield "perturbation.gradient", "shared where perturbation.reuse is free, whose passes train at one point"
    if is_one_step and sizes.epsilon is None and not is_relative:
        where = f"where perturbation.method is {sizes.method}: its one step is as long as the radius"
        yield "perturbation.epsilon", f"a number of at least 0, or perturbation.epsilon_relative, {where}"
    if is_relative:
        where = f"where perturbation.epsilon_relative (now {show(sizes.epsilon_relative)}) sets the radius"
        if sizes.epsilon is not None:
            yield "perturbation.epsilon", f"null {where}"
        if sizes.epsilon_token != "equal":
            yield "perturbation.epsilon_token", f"equal {where}"
    elif sizes.step_relative and not is_one_step:
        if sizes.epsilon is None:
            both = "both perturbation.epsilon and perturbation.epsilon_relative are null, for there is no radius then"
            yield "perturbation.step_relative", f"false or null where {both}"
        if plan.use_eta and sizes.epsilon_token is None:
            token = "perturbation.epsilon_token is null, for perturbation.gamma has no radius then"
            yield "perturbation.step_relative", f"false or null where {token}"


def _of_encoder(config: Config) -> Iterator[tuple[str, str]]:
    for name in ("lora_alpha", "lora_target_modules"):
        if config.encoder.lora_rank is None and getattr(config.encoder, name) is not None:
            yield f"encoder.{name}", "null where encoder.lora_rank is null"
    generator = rtd_generator_of(config)
    if generator is not None:
        where = f"where objective_options.rtd_generator is {show(generator)}"
        if config.perturbation.perturb_at != "embedding":
            yield "perturbation.perturb_at", f"embedding {where}: eta is added to the discriminator's embeddings"


def _of_data(config: Config) -> Iterator[tuple[str, str]]:
    data = config.data
    if data.negative_field is not None and data.positive_field is None:
        yield "data.negative_field", "null where data.positive_field is null"
    is_labelled = data.label_field is not None
    labelled = f"{show(data.label_field)}, for a text has given positives or a label" if is_labelled else "null"
    for key in ("positive_field", "negative_field") if is_labelled else ("pair_field", "label_names"):
        if getattr(data, key) is not None:
            yield f"data.{key}", f"null where data.label_field is {labelled}"
    if data.pairs is None and data.unpaired != "keep":
        yield "data.unpaired", "keep where data.pairs is null"
    columns: dict[str, str] = {}
    for key in ("field", "positive_field", "negative_field", "pair_field", "label_field"):
        column = getattr(data, key)
        if column in columns:
            yield f"data.{key}", f"a column other than that of data.{columns[column]}"
        if column is not None:
            columns[column] = key
    if config.evaluation.enabled and _is_measured_on_its_own_text(config):
        yield "evaluation.held_out", "sentences other than those of data.train, which has the same value"


def _is_measured_on_its_own_text(config: Config) -> bool:
    train, held_out = config.data.train, config.evaluation.held_out
    if held_out not in ([train] if isinstance(train, str) else [entry["path"] for entry in train]):
        return False
    from fastadv.data.sources.find import is_dataset_name

    # Only a named dataset has splits; of files and the demo's sentences the name says all.
    return not is_dataset_name(held_out) or config.data.split == config.evaluation.held_out_split


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
        size, most = show(sizes.alpha) + unit, show(diameter) + unit
        logger.warning(
            "perturbation.alpha = %s is above the ball's diameter (%s): PGD steps end on its surface", size, most
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
        refuse(config, "encoder.max_length", f"at most {num_positions}, the positions of {encoder.model}")
    generator = rtd_generator_of(config)
    if generator not in (None, "unigram"):
        from fastadv.objectives.sentences.rtd_generators import check_generator

        check_generator(generator, load_tokenizer(source), encoder.max_length)
    victim = config.objective_options.get("victim")
    if victim is not None:
        from fastadv.objectives.texts.victims import check_victim

        check_victim(victim, load_tokenizer(source), encoder.max_length, config.data.label_names)
