"""What values of a configuration must still satisfy before anything loads, each and together.

``check_config`` refuses values and combinations that cannot be meant, ``check_encoder`` what the named
encoder cannot do, and ``warn`` speaks of what can be meant but seldom is.
"""

import logging
import math

from fastadv.config.schema import Config, field_types, value_of
from fastadv.config.values import MISFIT, conform, describe, show
from fastadv.errors import UserError
from fastadv.launch.checks_engine import check_engine
from fastadv.launch.refuse import refuse, refuse_first

logger = logging.getLogger(__name__)


def check_config(config: Config) -> None:
    """Refuses a value outside its type and bounds, and values that contradict each other.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    for key, hint in field_types().items():
        if conform(value_of(config, key), hint) is MISFIT:
            refuse(config, key, describe(hint))
    _check_sizes(config)
    _check_lora(config)
    generator = rtd_generator_of(config)
    if generator is not None and config.perturbation.perturb_at != "embedding":
        refuse(
            config,
            "perturbation.perturb_at",
            f"embedding where objective_options.rtd_generator is {show(generator)}: eta is added to the "
            "discriminator's embeddings",
        )
    check_engine(config)
    _check_columns(config)
    if config.evaluation.enabled and _is_measured_on_its_own_text(config):
        refuse(config, "evaluation.held_out", "sentences other than those of data.train, which has the same value")


def _is_measured_on_its_own_text(config: Config) -> bool:
    train, evaluation = config.data.train, config.evaluation
    held_out = evaluation.held_out
    if held_out not in ([train] if isinstance(train, str) else [entry["path"] for entry in train]):
        return False
    from fastadv.data.sources.find import is_dataset_name

    # Only a named dataset has splits; of files and the demo's sentences the name says all.
    return not is_dataset_name(held_out) or config.data.split == evaluation.held_out_split


def _check_lora(config: Config) -> None:
    if config.encoder.lora_rank is None:
        for name in ("lora_alpha", "lora_target_modules"):
            if getattr(config.encoder, name) is not None:
                refuse(config, f"encoder.{name}", "null where encoder.lora_rank is null")


def _check_columns(config: Config) -> None:
    data = config.data
    is_labelled = data.label_field is not None
    labelled = f"data.label_field is {show(data.label_field)}, for a text has given positives or a label"
    contradictions = [
        (
            data.negative_field is not None and data.positive_field is None,
            "data.negative_field",
            "null where data.positive_field is null",
        ),
        (is_labelled and data.positive_field is not None, "data.positive_field", f"null where {labelled}"),
        (is_labelled and data.negative_field is not None, "data.negative_field", f"null where {labelled}"),
        (not is_labelled and data.pair_field is not None, "data.pair_field", "null where data.label_field is null"),
        (not is_labelled and data.label_names is not None, "data.label_names", "null where data.label_field is null"),
        (data.pairs is None and data.unpaired != "keep", "data.unpaired", "keep where data.pairs is null"),
    ]
    keys = ("field", "positive_field", "negative_field", "pair_field", "label_field")
    columns = [(key, getattr(data, key)) for key in keys]
    for i, (key, column) in enumerate(columns):
        for other, taken in columns[:i]:
            is_taken = column is not None and column == taken
            contradictions.append((is_taken, f"data.{key}", f"a column other than that of data.{other}"))
    refuse_first(config, contradictions)


def rtd_generator_of(config: Config) -> str | None:
    """The generator of the objective's replaced token detection, or None where that is not run."""
    options = config.objective_options
    generator = options.get("rtd_generator", "none")
    return None if generator == "none" or options.get("weight_rtd") == 0 else generator


def _check_sizes(config: Config) -> None:
    sizes, plan = config.perturbation, config.perturbation.resolve()
    is_one_step = sizes.method in ("fgm", "fgsm")
    is_free, is_relative = plan.reuse == "free", sizes.epsilon_relative is not None
    contradictions = [
        (
            is_free and plan.num_steps == 0,
            "perturbation.num_steps",
            "at least 1 where perturbation.reuse is free",
        ),
        (
            is_free and plan.gradient == "separate",
            "perturbation.gradient",
            "shared where perturbation.reuse is free, whose passes train at one point",
        ),
        (
            is_one_step and sizes.epsilon is None and not is_relative,
            "perturbation.epsilon",
            "a number of at least 0, or perturbation.epsilon_relative, where perturbation.method is "
            f"{sizes.method}: its one step is as long as the radius",
        ),
    ]
    radius = f"perturbation.epsilon_relative (now {show(sizes.epsilon_relative)}) sets the radius"
    if is_relative:
        contradictions += [
            (sizes.epsilon is not None, "perturbation.epsilon", f"null where {radius}"),
            (sizes.epsilon_token != "equal", "perturbation.epsilon_token", f"equal where {radius}"),
        ]
    elif sizes.step_relative and not is_one_step:
        contradictions += [
            (
                sizes.epsilon is None,
                "perturbation.step_relative",
                "false or null where both perturbation.epsilon and perturbation.epsilon_relative are null, for there "
                "is no radius then",
            ),
            (
                plan.use_eta and sizes.epsilon_token is None,
                "perturbation.step_relative",
                "false or null where perturbation.epsilon_token is null, for perturbation.gamma has no radius then",
            ),
        ]
    refuse_first(config, contradictions)


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
