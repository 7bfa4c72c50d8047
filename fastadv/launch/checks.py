"""What values of a configuration must still satisfy before anything loads, each and together.

``check_config`` refuses values and combinations that cannot be meant, ``check_encoder`` what the named
encoder cannot do, and ``warn`` speaks of what can be meant but seldom is.
"""

import logging
import math
from itertools import chain
from typing import Iterable, Iterator, NoReturn

from fastadv.config.commands import Encoding
from fastadv.config.schema import Config, field_types, value_of
from fastadv.config.values import MISFIT, conform, describe, kinds, show
from fastadv.errors import UserError

logger = logging.getLogger(__name__)

Rule = tuple[bool, str, str]
"""whether it is broken, the key to blame, and what is expected of it"""


def check_config(config: Config) -> None:
    """Refuses a value outside its type and bounds, and values that contradict each other.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    for key, hint in field_types().items():
        if conform(value_of(config, key), hint) is MISFIT:
            refuse(config, key, describe(hint))
    refuse_first(config, chain(*(rules(config) for rules in _RULES)))


def refuse_first(config: Config, rules: Iterable[Rule]) -> None:
    """`refuse` of the first rule that is broken."""
    for is_broken, key, expected in rules:
        if is_broken:
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


def _of_sizes(config: Config) -> Iterator[Rule]:
    sizes, plan = config.perturbation, config.perturbation.resolve()
    is_one_step, is_relative = sizes.method in ("fgm", "fgsm"), plan.epsilon_relative is not None
    is_free, has_no_radius = plan.reuse == "free", plan.epsilon is None and not is_relative
    yield is_free and plan.num_steps == 0, "perturbation.num_steps", "at least 1 where perturbation.reuse is free"
    expected = "shared where perturbation.reuse is free, whose passes train at one point"
    yield is_free and plan.gradient == "separate", "perturbation.gradient", expected
    where = f"where perturbation.method is {sizes.method}: its one step is as long as the radius"
    expected = f"a number of at least 0, or perturbation.epsilon_relative, {where}"
    yield is_one_step and has_no_radius, "perturbation.epsilon", expected
    where = f"where perturbation.epsilon_relative (now {show(plan.epsilon_relative)}) sets the radius"
    yield is_relative and plan.epsilon is not None, "perturbation.epsilon", f"auto or null {where}"
    yield is_relative and sizes.epsilon_token != "equal", "perturbation.epsilon_token", f"equal {where}"
    has_units = not is_relative and sizes.step_relative and not is_one_step
    both = "both perturbation.epsilon and perturbation.epsilon_relative are null, for there is no radius then"
    yield has_units and has_no_radius, "perturbation.step_relative", f"false or null where {both}"
    token = "perturbation.epsilon_token is null, for perturbation.gamma has no radius then"
    has_no_token_radius = plan.use_eta and sizes.epsilon_token is None
    yield has_units and has_no_token_radius, "perturbation.step_relative", f"false or null where {token}"


def _of_encoder(config: Config) -> Iterator[Rule]:
    for name in ("lora_alpha", "lora_target_modules"):
        is_idle = config.encoder.lora_rank is None and getattr(config.encoder, name) is not None
        yield is_idle, f"encoder.{name}", "null where encoder.lora_rank is null"
    generator, place = rtd_generator_of(config), config.perturbation.perturb_at
    where = (
        f"where objective_options.rtd_generator is {show(generator)}: eta is added to the discriminator's embeddings"
    )
    yield generator is not None and place != "embedding", "perturbation.perturb_at", f"embedding {where}"


def _of_engine(config: Config) -> Iterator[Rule]:
    engine, encoder, plan = config.engine, config.encoder, config.perturbation.resolve()
    stage, reuse, kind, positives = engine.zero_stage, plan.reuse, engine.attention, config.data.positive_field
    is_generic, is_stage_3, is_micro = encoder.path == "generic", stage == 3, config.train.micro_batch_size is not None
    is_compiled, is_frozen = engine.compile != "none", plan.inner_dropout == "frozen"
    needs_exact = f"where perturbation.reuse is {reuse}, or reuse exact or adaptive"
    frozen = "perturbation.inner_dropout is frozen (as in method fgm and fgsm, unless it is set)"
    why = "where no rank holds the parameters that its passes take gradients by"
    yield is_stage_3 and reuse == "none", "perturbation.reuse", f"exact, adaptive or free at engine.zero_stage 3, {why}"
    expected = "auto or packed at engine.zero_stage 3, which needs whole passes"
    yield is_stage_3 and is_generic, "encoder.path", expected
    why = "which takes a layer's weights away before its second run is over; train.micro_batch_size saves memory there"
    expected = f"false at engine.zero_stage 3, {why}"
    yield is_stage_3 and engine.checkpoint_activations, "engine.checkpoint_activations", expected
    for name, lowest, stages in (("offload_optimizer", 1, "1 to 3"), ("offload_parameters", 3, "3")):
        where = f"at engine.zero_stage {stage}, or zero_stage {stages}, where DeepSpeed holds what is moved"
        yield getattr(engine, name) != "none" and stage < lowest, f"engine.{name}", f"none {where}"
    yield is_micro and reuse in ("none", "free"), "train.micro_batch_size", f"null {needs_exact}"
    where = f"where engine.compile is {engine.compile}, or compile none"
    yield is_micro and is_compiled, "train.micro_batch_size", f"null {where}"
    expected = "auto, sdpa or matmul at engine.precision fp32, or engine.precision bf16"
    yield kind in ("varlen", "flash_attn") and engine.precision == "fp32", "engine.attention", expected
    expected = "auto where encoder.path is generic, which runs the model's own"
    yield kind != "auto" and is_generic, "engine.attention", expected
    where = f"where encoder.dropout is {show(encoder.dropout)}, or encoder.dropout 0: it drops no attention weights"
    expected = f"auto, sdpa, flash_attn or matmul {where}"
    yield kind == "varlen" and bool(encoder.dropout), "engine.attention", expected
    yield is_compiled and reuse in ("none", "free"), "engine.compile", f"none {needs_exact}"
    expected = f"none where {frozen}, or inner_dropout off: the clean pass's masks fit no other size"
    yield is_compiled and is_frozen, "engine.compile", expected
    expected = "none at engine.zero_stage 3, where parameters come and go, or zero_stage 0 to 2"
    yield is_compiled and is_stage_3, "engine.compile", expected
    expected = "none at engine.zero_stage 0 with bf16, where each step copies the weights, or zero_stage 1 or 2"
    yield is_compiled and stage == 0 and engine.precision == "bf16", "engine.compile", expected
    expected = "none where encoder.path is generic, or path auto or packed"
    yield is_compiled and is_generic, "engine.compile", expected
    for is_apart, where in (
        (positives is not None, f"data.positive_field is {show(positives)}"),
        (config.perturbation.reuse == "none", "perturbation.reuse is none"),
        (is_frozen, frozen),
    ):
        yield bool(engine.joint_views) and is_apart, "engine.joint_views", f"false or null where {where}"


def _of_data(config: Config) -> Iterator[Rule]:
    data = config.data
    is_alone = data.negative_field is not None and data.positive_field is None
    yield is_alone, "data.negative_field", "null where data.positive_field is null"
    is_labelled = data.label_field is not None
    labelled = f"{show(data.label_field)}, for a text has given positives or a label" if is_labelled else "null"
    for key in ("positive_field", "negative_field") if is_labelled else ("pair_field", "label_names", "skip_labels"):
        yield getattr(data, key) is not None, f"data.{key}", f"null where data.label_field is {labelled}"
    yield data.pairs is None and data.unpaired != "keep", "data.unpaired", "keep where data.pairs is null"
    columns: dict[str | None, str] = {}
    for key in ("field", "positive_field", "negative_field", "pair_field", "label_field"):
        column = getattr(data, key)
        first = columns.setdefault(column, key)
        is_twice = column is not None and first != key
        yield is_twice, f"data.{key}", f"a column other than that of data.{first}"


def _of_evaluation(config: Config) -> Iterator[Rule]:
    evaluation = config.evaluation
    expected = "sentences other than those of data.train, which has the same value"
    yield evaluation.enabled and _is_measured_on_its_own_text(config), "evaluation.held_out", expected
    most = evaluation.num_probe_sentences
    expected = f"at most {most}, the value of evaluation.num_probe_sentences, some of which they are"
    yield evaluation.num_attacked_texts > most, "evaluation.num_attacked_texts", expected
    is_idle = evaluation.word_sets is not None and not evaluation.typo_shares
    yield is_idle, "evaluation.word_sets", "null where evaluation.typo_shares is empty"


_RULES = (_of_sizes, _of_encoder, _of_engine, _of_data, _of_evaluation)


def _is_measured_on_its_own_text(config: Config) -> bool:
    train, held_out = config.data.train, config.evaluation.held_out
    if held_out not in ([train] if isinstance(train, str) else [entry["path"] for entry in train]):
        return False
    from fastadv.data.sources.find import has_splits

    # Of a file and of the demo's sentences the name says all.
    return not has_splits(held_out) or config.data.split == config.evaluation.held_out_split


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

    What ``config.encoder`` leaves to the model is filled in: its pooling, length and prompt.

    Likewise the generator of replaced token detection and the victim of soft targets, which must also have the
    encoder's vocabulary. Reads the models' configurations (in a folder, ``demo:minilm`` or the Hub's cache), never
    their weights.

    Raises:
        UserError: one line.
    """
    from fastadv.encoder.classifier.classification_head import check_classifiable, check_pooled
    from fastadv.encoder.weights.depth import check_num_frozen_layers
    from fastadv.encoder.weights.lora import check_lora_usable
    from fastadv.encoder.weights.source import find_model, load_tokenizer
    from fastadv.objectives.base import resolve_objective

    encoder = config.encoder
    if encoder.lora_rank is not None:
        check_lora_usable("encoder.lora_rank", encoder.lora_rank)
    source = find_model(encoder.model)
    if encoder.num_frozen_layers is not None:
        check_num_frozen_layers(encoder.num_frozen_layers, source.config, "encoder.num_frozen_layers")
    num_positions = source.num_positions
    if num_positions is not None and encoder.max_length is not None and encoder.max_length > num_positions:
        refuse(config, "encoder.max_length", f"at most {num_positions}, the positions of {encoder.model}")
    names = "pooling", "max_length", "prompt", "prompt_name"
    source.check_encoding(Encoding(**{name: getattr(encoder, name) for name in names}))
    encoder.pooling = source.choose_pooling(encoder.pooling)
    # No prompt is written only where it was asked for: most models have none.
    encoder.prompt = source.choose_prompt(encoder.prompt, encoder.prompt_name) or encoder.prompt
    encoder.prompt_name = None
    if encoder.max_length is None:
        encoder.max_length = source.length_limit(load_tokenizer(source))
    if resolve_objective(config.objective).needs.labels:
        check_classifiable(source.config, encoder.pooling, encoder.model)
        check_pooled(source.files.modules, encoder.model)
    dropout = getattr(source.config, "attention_probs_dropout_prob", 0.0)
    if config.engine.attention == "varlen" and encoder.dropout is None and dropout > 0:
        why = f"it drops no attention weights, and {encoder.model} drops {dropout:g} of them where nothing is said"
        refuse(config, "encoder.dropout", f"0 where engine.attention is varlen: {why}")
    generator = rtd_generator_of(config)
    if generator not in (None, "unigram"):
        from fastadv.objectives.sentences.rtd_generators import check_generator

        check_generator(generator, load_tokenizer(source), encoder.max_length)
    victim = config.objective_options.get("victim")
    if victim is not None:
        from fastadv.objectives.texts.victims import check_victim

        check_victim(victim, load_tokenizer(source), encoder.max_length, config.data.names_of_classes)
