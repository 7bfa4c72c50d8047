"""DeepSpeed around one module: engine, guarded update, and whole weights out of ZeRO's pieces.

The engine wraps the whole training step (``engine/step/step.py``), so that ``loss = engine(batch)`` is the only forward
it sees. DeepSpeed is imported on first use: the import takes seconds, and encoding or evaluating never needs it.
"""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastadv.config.schema import Config
from fastadv.distributed.devices import device_type
from fastadv.distributed.optimizer import build_optimizer, linear_schedule
from fastadv.distributed.processes import import_deepspeed, world_size
from fastadv.files.clock import TimesPhases, no_clock

# More elements than any model has: what is prefetched in one piece at stage 3.
_ALL = 10**12
MOST_REDUCED_AT_ONCE = 5 * 10**8
"""elements of DeepSpeed's reduction bucket, where the model has as many"""

FrozenWeights = dict[nn.Parameter, Tensor]
"""Values of parameters that are not trained, as they were before DeepSpeed rounded them."""


class NonFiniteUpdate(RuntimeError):
    """A loss or a gradient norm is NaN or infinite. The weights are those of the step before.

    Attributes:
        what: "loss" or "gradient norm".
    """

    def __init__(self, what: str, value: float, step: int):
        super().__init__(f"step {step}: the {what} is {value}; the weights are those of step {step - 1}")
        self.what = what


def deepspeed_config(config: Config) -> dict:
    """DeepSpeed's own configuration, made of ours."""
    stage, engine = config.engine.zero_stage, config.engine
    zero = {"stage": stage}
    # Only a GPU reads and writes pinned memory by itself.
    host = {"device": "cpu", "pin_memory": device_type() == "cuda"}
    if engine.offload_optimizer == "cpu":
        zero["offload_optimizer"] = host
    if engine.offload_parameters == "cpu":
        zero["offload_param"] = dict(host)
    if stage == 3:
        # A parameter that is fetched stays until its last use of the step, so the inner loop fetches nothing.
        # Prefetching all of them keeps them; the reuse distance would too, but is searched in quadratic time.
        zero.update(stage3_max_reuse_distance=0, stage3_prefetch_bucket_size=_ALL, stage3_max_live_parameters=_ALL)
    return {
        # Ranks may have a sentence more or less than this; DeepSpeed only counts with it.
        "train_micro_batch_size_per_gpu": max(1, config.train.batch_size // world_size()),
        "gradient_accumulation_steps": config.train.accumulation_steps,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # On the host, too, the update is torch's fused AdamW; DeepSpeed's own would be compiled on first use.
        "zero_force_ds_cpu_optimizer": False,
        # At stage 0 the step itself casts the weights; DeepSpeed's bfloat16 begins with stage 1.
        "bf16": {"enabled": config.engine.precision == "bf16" and stage > 0},
        # At stage 0 `update` clips by the norm that its guard has computed anyway.
        "gradient_clipping": (config.optimizer.max_grad_norm or 0.0) if stage > 0 else 0.0,
        "steps_per_print": None,
        # Its throughput timer, which nobody reads, waits for the GPU twice a step.
        "timers": {"throughput": {"enabled": False}},
        "wall_clock_breakdown": False,
    }


def initialise(module: nn.Module, config: Config, total_steps: int):
    """The DeepSpeed engine around ``module``, with optimizer and schedule. ``init_distributed`` comes first."""
    deepspeed = import_deepspeed()
    optimizer = build_optimizer(module, config.optimizer)
    schedule = linear_schedule(optimizer, config.optimizer.warmup_ratio, total_steps)
    settings = deepspeed_config(config)
    # DeepSpeed allots its bucket in full, 5e8 elements, however small the model.
    num_trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    settings["zero_optimization"]["reduce_bucket_size"] = min(MOST_REDUCED_AT_ONCE, max(1, num_trained))
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, lr_scheduler=schedule, config=settings)
    if config.engine.zero_stage == 0 and world_size() == 1:
        # The mean over one rank is the gradient itself; DeepSpeed would copy it into a bucket and back for it.
        engine.enable_backward_allreduce = False
    return engine


def frozen_in_full(module: nn.Module, config: Config) -> FrozenWeights:
    """Copies of what DeepSpeed will round: parameters that are not trained, of which ZeRO keeps no float32 masters.

    Called before ``initialise``; empty where nothing is rounded.
    """
    if config.engine.precision == "fp32" or config.engine.zero_stage == 0:
        return {}
    return {p: p.detach().cpu().clone() for p in module.parameters() if not p.requires_grad}


def is_cut_up(module: nn.Module) -> bool:
    """Whether stage 3 has cut ``module``'s parameters to pieces.

    DeepSpeed then counts forwards, and fetches a layer's weights for as many backwards: a graph serves one.
    """
    return hasattr(next(module.parameters()), "ds_id")


def destroy(engine) -> None:
    """Frees the engine, and gives torch its own linear layer back.

    DeepSpeed's stage 3 replaces ``torch.nn.functional.linear`` for the rest of the process, by one that keeps its input
    for the backward also where no weight asks for a gradient, as in the inner loop.
    """
    engine.destroy()
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses

    original = getattr(InsertPostInitMethodToModuleSubClasses, "linear_bk", None)
    if original is not None:
        torch.nn.functional.linear = original


def update(
    engine, loss: Tensor, max_grad_norm: float | None, step: int, clock: TimesPhases = no_clock
) -> tuple[float, float | None]:
    """One backward pass, and an optimizer step where it is the last of ``accumulation_steps``.

    DeepSpeed silently skips a non-finite gradient at ZeRO 1 and above, and applies it in float32 at stage 0. Here both
    raise on every rank, and neither touches weights or optimizer. Training may go on: a batch whose loss is not finite
    has left no trace in its step, and after a gradient that is not, all batches of the step are forgotten.

    Returns:
        the mean of the ranks' losses, and the global gradient norm before clipping, None where no step was taken.

    Raises:
        NonFiniteUpdate: naming the step.
    """
    is_last = engine.is_gradient_accumulation_boundary()
    mean_loss = loss.detach().float() / world_size()
    if world_size() > 1:
        dist.all_reduce(mean_loss)
    value = None
    if engine.zero_optimization() or engine.gradient_accumulation_steps() > 1:
        # Before it is added to the gradients of other batches.
        value = _require_finite("loss", mean_loss.item(), step)
    with clock("backward"):
        engine.backward(loss)
    with clock("optimizer"):
        if engine.zero_optimization() or not is_last:
            engine.step()
            return value, _norm_of_zero(engine, step) if is_last else None
        return _guarded_step(engine, mean_loss, max_grad_norm, step)


def _norm_of_zero(engine, step: int) -> float:
    """The gradient norm of a step that DeepSpeed has taken, or has skipped without a word."""
    norm = float(engine.get_global_grad_norm())
    if not engine.was_step_applied():
        _require_finite("gradient norm", math.inf if math.isfinite(norm) else norm, step)
    return norm


def _guarded_step(engine, mean_loss: Tensor, max_grad_norm: float | None, step: int) -> tuple[float, float]:
    """The step at stage 0, where DeepSpeed guards nothing."""
    grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
    total_norm = torch.nn.utils.get_total_norm(grads)
    # One synchronisation for both; the guard needs them before the step.
    value, norm = torch.stack([mean_loss, total_norm.float()]).tolist()
    try:
        _require_finite("loss", value, step)
        _require_finite("gradient norm", norm, step)
    except NonFiniteUpdate:
        engine.zero_grad()
        # The next batch is the first of a step, as after one that was taken.
        engine.micro_steps += 1
        raise
    if max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(engine.module.parameters(), max_grad_norm, total_norm)
    engine.step()
    return value, norm


def _require_finite(what: str, value: float, step: int) -> float:
    if not math.isfinite(value):
        raise NonFiniteUpdate(what, value, step)
    return value


def full_precision_weights(module: nn.Module, frozen: FrozenWeights | None = None) -> dict[str, Tensor]:
    """``module``'s whole state dict on the CPU, in float32 where ZeRO keeps float32 masters of bfloat16 parameters.

    All ranks call it and get all.

    Args:
        frozen: what `frozen_in_full` kept of parameters that are not trained.
    """
    frozen = frozen or {}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    state = {}
    for name, value in module.state_dict().items():
        parameter = parameters.get(name)
        whole = value if parameter is None else frozen.get(parameter)
        whole = whole_parameter(parameter) if whole is None else whole.float()
        state[name] = whole.detach().cpu().clone()
    return state


def whole_parameter(parameter: nn.Parameter) -> Tensor:
    """One parameter in full, and in full precision. All ranks call it."""
    if parameter.dtype in (torch.bfloat16, torch.float16):
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            from deepspeed.utils import safe_get_full_fp32_param

            master = safe_get_full_fp32_param(parameter)
            if master is not None:
                return master.float()
    if not hasattr(parameter, "ds_id"):
        return parameter.float() if parameter.dtype in (torch.bfloat16, torch.float16) else parameter
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


def make_whole(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Gives ``module``, whose parameters stage 3 has cut to pieces, new ones that hold ``weights``.

    The engine must have been destroyed. Parameters that were one stay one.
    """
    made: dict[int, nn.Parameter] = {}
    for prefix, owner in module.named_modules():
        for name, old in list(owner._parameters.items()):
            if old is None or not hasattr(old, "ds_id"):
                continue
            if id(old) not in made:
                whole = weights[f"{prefix}.{name}" if prefix else name]
                made[id(old)] = nn.Parameter(whole.to(old.device).clone(), requires_grad=old.requires_grad)
            owner._parameters[name] = made[id(old)]
        # DeepSpeed's own kind of dict would go on looking for pieces to fetch.
        owner._parameters = dict(owner._parameters)
        vars(owner).pop("_original_parameters", None)
