"""Which settings of ``engine`` and ``train`` go together."""

from typing import Iterator

from fastadv.config.schema import Config
from fastadv.config.values import show


def engine_contradictions(config: Config) -> Iterator[tuple[str, str]]:
    """What cannot be carried out together: the key to blame, and what is expected of it."""
    engine, encoder, plan = config.engine, config.encoder, config.perturbation.resolve()
    stage, reuse, kind = engine.zero_stage, plan.reuse, engine.attention
    is_generic = encoder.path == "generic"
    needs_exact = f"where perturbation.reuse is {reuse}, or reuse exact or adaptive"
    frozen = "perturbation.inner_dropout is frozen (as in method fgm and fgsm, unless it is set)"
    if stage == 3:
        if reuse == "none":
            where = "where no rank holds the parameters that its passes take gradients by"
            yield "perturbation.reuse", f"exact, adaptive or free at engine.zero_stage 3, {where}"
        if is_generic:
            yield "encoder.path", "auto or packed at engine.zero_stage 3, which needs whole passes"
        if engine.checkpoint_activations:
            why = "which takes a layer's weights away before its second run is over"
            expected = f"false at engine.zero_stage 3, {why}; train.micro_batch_size saves memory there"
            yield "engine.checkpoint_activations", expected
    for name, lowest, stages in (("offload_optimizer", 1, "1 to 3"), ("offload_parameters", 3, "3")):
        if getattr(engine, name) != "none" and stage < lowest:
            where = f"at engine.zero_stage {stage}, or zero_stage {stages}, where DeepSpeed holds what is moved"
            yield f"engine.{name}", f"none {where}"
    if config.train.micro_batch_size is not None:
        if reuse in ("none", "free"):
            yield "train.micro_batch_size", f"null {needs_exact}"
        if engine.compile != "none":
            yield "train.micro_batch_size", f"null where engine.compile is {engine.compile}, or compile none"
    if kind in ("varlen", "flash_attn") and engine.precision == "fp32":
        yield "engine.attention", "auto, sdpa or matmul at engine.precision fp32, or engine.precision bf16"
    if kind != "auto" and is_generic:
        yield "engine.attention", "auto where encoder.path is generic, which runs the model's own"
    if kind == "varlen" and encoder.dropout:
        where = f"where encoder.dropout is {show(encoder.dropout)}, or encoder.dropout 0: it drops no attention weights"
        yield "engine.attention", f"auto, sdpa, flash_attn or matmul {where}"
    if engine.compile != "none":
        if reuse in ("none", "free"):
            yield "engine.compile", f"none {needs_exact}"
        if plan.inner_dropout == "frozen":
            why = "the clean pass's masks fit no other size"
            yield "engine.compile", f"none where {frozen}, or inner_dropout off: {why}"
        if stage == 3:
            yield "engine.compile", "none at engine.zero_stage 3, where parameters come and go, or zero_stage 0 to 2"
        if stage == 0 and engine.precision == "bf16":
            where = "at engine.zero_stage 0 with bf16, where each step copies the weights, or zero_stage 1 or 2"
            yield "engine.compile", f"none {where}"
        if is_generic:
            yield "engine.compile", "none where encoder.path is generic, or path auto or packed"
    if engine.joint_views:
        positives = config.data.positive_field
        if positives is not None:
            yield "engine.joint_views", f"false or null where data.positive_field is {show(positives)}"
        if config.perturbation.reuse == "none":
            yield "engine.joint_views", "false or null where perturbation.reuse is none"
        if plan.inner_dropout == "frozen":
            yield "engine.joint_views", f"false or null where {frozen}"
