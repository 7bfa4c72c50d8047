"""Which settings of ``engine`` and ``train`` go together."""

from fastadv.config.schema import Config
from fastadv.config.values import show
from fastadv.errors import UserError


def check_engine(config: Config) -> None:
    """Refuses what cannot be carried out together.

    Raises:
        UserError: one line with the key, its value and what is allowed.
    """
    engine = config.engine
    reuse = config.perturbation.resolve().reuse
    if engine.zero_stage == 3 and reuse == "none":
        raise UserError(
            "perturbation.reuse = none: expected exact, adaptive or free at engine.zero_stage 3, where no rank holds "
            "the parameters that its passes take gradients by"
        )
    if engine.zero_stage == 3 and config.encoder.path == "generic":
        raise UserError(
            "encoder.path = generic: expected auto or packed at engine.zero_stage 3, which needs whole passes"
        )
    if engine.zero_stage == 3 and engine.checkpoint_activations:
        raise UserError(
            "engine.checkpoint_activations = true: expected false at engine.zero_stage 3, which takes a layer's "
            "weights away before its second run is over; train.micro_batch_size saves memory there"
        )
    _check_offload(config)
    if config.train.micro_batch_size is not None:
        _check_micro_batches(config)
    _check_attention(config)
    if engine.compile != "none":
        _check_compile(config)
    if engine.joint_views:
        _check_joint_views(config)


def _check_micro_batches(config: Config) -> None:
    size, reuse = config.train.micro_batch_size, config.perturbation.resolve().reuse
    obstacle = None
    if reuse in ("none", "free"):
        obstacle = f"perturbation.reuse is {reuse}, or reuse exact or adaptive"
    elif config.engine.compile != "none":
        obstacle = f"engine.compile is {config.engine.compile}, or compile none"
    if obstacle is not None:
        raise UserError(f"train.micro_batch_size = {size}: expected null where {obstacle}")


def _check_attention(config: Config) -> None:
    kind = config.engine.attention
    if kind in ("varlen", "flash_attn") and config.engine.precision == "fp32":
        raise UserError(
            f"engine.attention = {kind}: expected auto, sdpa or matmul at engine.precision fp32, "
            "or engine.precision bf16"
        )
    if kind != "auto" and config.encoder.path == "generic":
        raise UserError(
            f"engine.attention = {kind}: expected auto where encoder.path is generic, which runs the model's own"
        )
    dropout = config.encoder.dropout
    if kind == "varlen" and dropout is not None and dropout > 0:
        raise UserError(
            f"engine.attention = varlen: expected auto, sdpa, flash_attn or matmul where encoder.dropout is "
            f"{show(dropout)}, or encoder.dropout 0: it drops no attention weights"
        )


def _check_compile(config: Config) -> None:
    engine, perturbation = config.engine, config.perturbation.resolve()
    expected = None
    if perturbation.reuse in ("none", "free"):
        expected = f"none where perturbation.reuse is {perturbation.reuse}, or reuse exact or adaptive"
    elif perturbation.inner_dropout == "frozen":
        expected = (
            "none where perturbation.inner_dropout is frozen (as in method fgm and fgsm, unless it is set), or "
            "inner_dropout off: the clean pass's masks fit no other size"
        )
    elif engine.zero_stage == 3:
        expected = "none at engine.zero_stage 3, where parameters come and go, or zero_stage 0 to 2"
    elif engine.zero_stage == 0 and engine.precision == "bf16":
        expected = "none at engine.zero_stage 0 with bf16, where each step copies the weights, or zero_stage 1 or 2"
    elif config.encoder.path == "generic":
        expected = "none where encoder.path is generic, or path auto or packed"
    if expected is not None:
        raise UserError(f"engine.compile = {engine.compile}: expected {expected}")


def _check_joint_views(config: Config) -> None:
    perturbation = config.perturbation
    obstacle = None
    if config.data.positive_field is not None:
        obstacle = f"data.positive_field is {show(config.data.positive_field)}"
    elif perturbation.reuse == "none":
        obstacle = "perturbation.reuse is none"
    elif perturbation.resolve().inner_dropout == "frozen":
        obstacle = "perturbation.inner_dropout is frozen (as in method fgm and fgsm, unless it is set)"
    if obstacle is not None:
        raise UserError(f"engine.joint_views = true: expected false or null where {obstacle}")


def _check_offload(config: Config) -> None:
    engine = config.engine
    for name, lowest, stages in (("offload_optimizer", 1, "1 to 3"), ("offload_parameters", 3, "3")):
        value = getattr(engine, name)
        if value != "none" and engine.zero_stage < lowest:
            raise UserError(
                f"engine.{name} = {value}: expected none at engine.zero_stage {engine.zero_stage}, or zero_stage "
                f"{stages}, where DeepSpeed holds what is moved"
            )
