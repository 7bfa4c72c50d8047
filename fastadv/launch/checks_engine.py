"""Which settings of ``engine`` and ``train`` go together."""

from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.launch.refuse import refuse_first


def check_engine(config: Config) -> None:
    """Refuses what cannot be carried out together.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    engine, encoder, plan = config.engine, config.encoder, config.perturbation.resolve()
    stage, reuse, is_generic = engine.zero_stage, plan.reuse, encoder.path == "generic"
    is_frozen = plan.inner_dropout == "frozen"
    frozen = "perturbation.inner_dropout is frozen (as in method fgm and fgsm, unless it is set)"
    contradictions = [
        (
            stage == 3 and reuse == "none",
            "perturbation.reuse",
            "exact, adaptive or free at engine.zero_stage 3, where no rank holds the parameters that its passes take "
            "gradients by",
        ),
        (
            stage == 3 and is_generic,
            "encoder.path",
            "auto or packed at engine.zero_stage 3, which needs whole passes",
        ),
        (
            stage == 3 and engine.checkpoint_activations,
            "engine.checkpoint_activations",
            "false at engine.zero_stage 3, which takes a layer's weights away before its second run is over; "
            "train.micro_batch_size saves memory there",
        ),
    ]
    for name, lowest, stages in (("offload_optimizer", 1, "1 to 3"), ("offload_parameters", 3, "3")):
        expected = f"none at engine.zero_stage {stage}, or zero_stage {stages}, where DeepSpeed holds what is moved"
        contradictions.append((getattr(engine, name) != "none" and stage < lowest, f"engine.{name}", expected))
    if config.train.micro_batch_size is not None:
        key = "train.micro_batch_size"
        contradictions += [
            (reuse in ("none", "free"), key, f"null where perturbation.reuse is {reuse}, or reuse exact or adaptive"),
            (engine.compile != "none", key, f"null where engine.compile is {engine.compile}, or compile none"),
        ]
    kind, key = engine.attention, "engine.attention"
    contradictions += [
        (
            kind in ("varlen", "flash_attn") and engine.precision == "fp32",
            key,
            "auto, sdpa or matmul at engine.precision fp32, or engine.precision bf16",
        ),
        (
            kind != "auto" and is_generic,
            key,
            "auto where encoder.path is generic, which runs the model's own",
        ),
        (
            kind == "varlen" and bool(encoder.dropout),
            key,
            f"auto, sdpa, flash_attn or matmul where encoder.dropout is {show(encoder.dropout)}, or encoder.dropout 0: "
            "it drops no attention weights",
        ),
    ]
    if engine.compile != "none":
        is_cast = stage == 0 and engine.precision == "bf16"
        contradictions += [
            (is_contradiction, "engine.compile", f"none {where}")
            for is_contradiction, where in (
                (reuse in ("none", "free"), f"where perturbation.reuse is {reuse}, or reuse exact or adaptive"),
                (is_frozen, f"where {frozen}, or inner_dropout off: the clean pass's masks fit no other size"),
                (stage == 3, "at engine.zero_stage 3, where parameters come and go, or zero_stage 0 to 2"),
                (is_cast, "at engine.zero_stage 0 with bf16, where each step copies the weights, or zero_stage 1 or 2"),
                (is_generic, "where encoder.path is generic, or path auto or packed"),
            )
        ]
    if engine.joint_views:
        positives = config.data.positive_field
        contradictions += [
            (is_contradiction, "engine.joint_views", f"false or null where {where}")
            for is_contradiction, where in (
                (positives is not None, f"data.positive_field is {show(positives)}"),
                (config.perturbation.reuse == "none", "perturbation.reuse is none"),
                (is_frozen, frozen),
            )
        ]
    refuse_first(config, contradictions)
