"""DeepSpeed around one module: process group, optimizer, schedule, engine, and the guarded update.

The engine wraps the whole training step (``engine/step.py``), so that ``loss = engine(batch)`` is the only forward it
sees. DeepSpeed is imported on first use: the import takes seconds, and encoding or evaluating never needs it.
"""

import atexit
import logging
import math
import os
from typing import Optional

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fastadv.config import Config, OptimizerConfig
from fastadv.errors import UserError

# What launchers (deepspeed, torchrun) set. Port 0 lets the operating system choose a free one, which only works because
# a lone process has nobody to tell it to.
_ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


class NonFiniteUpdate(RuntimeError):
    """A loss or a gradient norm is NaN or infinite. The weights are those of the step before."""


def import_deepspeed():
    """The deepspeed package, told to keep to the CPU where there is no GPU, and to keep quiet."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger

    # Its warnings go to stdout and tear the progress bar; what matters among them (a skipped step) is raised here.
    logger.setLevel(logging.ERROR)
    # Compiling the shared-memory reduction takes 40 s and a compiler, and gains nothing below several ranks.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def init_distributed() -> torch.device:
    """Joins or starts the process group, once a process, and returns this rank's device.

    Works under ``deepspeed``, under ``torchrun``, and in a bare Python process, whose missing variables are set here.

    Raises:
        UserError: a launcher set some of its variables and not others, or started more than one process.
    """
    missing = [name for name in _ALONE if name not in os.environ]
    if "RANK" in missing and "WORLD_SIZE" in missing:
        os.environ.update(_ALONE)
    elif missing:
        raise UserError(f"the launcher left {', '.join(missing)} unset; start with deepspeed, torchrun or plain python")
    if int(os.environ["WORLD_SIZE"]) != 1:
        raise UserError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}: training runs in one process for now "
            "(deepspeed --num_accelerators 1, torchrun --nproc_per_node 1)"
        )
    deepspeed = import_deepspeed()
    use_cuda = torch.cuda.is_available() and os.environ.get("DS_ACCELERATOR", "cuda") == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if use_cuda else torch.device("cpu")
    if use_cuda:
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        deepspeed.init_distributed(dist_backend="nccl" if use_cuda else "gloo", auto_mpi_discovery=False)
        # Without a barrier: at exit another rank may be gone already.
        atexit.register(shutdown, wait=False)
    return device


def shutdown(wait: bool = True) -> None:
    """Leaves the process group; ``wait`` for the other ranks unless this one ends by an error."""
    if not dist.is_initialized():
        return
    import deepspeed.comm

    if wait:
        dist.barrier()
    deepspeed.comm.destroy_process_group()


def is_first_rank() -> bool:
    """Whether this process writes files and speaks to the user; known before the process group exists."""
    return int(os.environ.get("RANK", "0")) == 0


def build_optimizer(module: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Fused AdamW; biases and LayerNorm weights are not decayed, as is the custom with BERT.

    With ``layer_lr_decay`` below 1, layer i of n takes lr * layer_lr_decay^(n + 1 - i), the embeddings as layer 0;
    what is no part of ``module.encoder``'s layers takes lr. The group of the highest rate comes first: it is the one
    that is logged.

    Raises:
        UserError: every parameter is frozen.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    if not trained:
        raise UserError("nothing is left to train: encoder.num_frozen_layers freezes all there is")
    levels = _levels_below_head(module) if config.layer_lr_decay < 1 else {}
    groups = []
    for level in sorted({levels.get(id(p), 0) for p in trained}):
        here = [p for p in trained if levels.get(id(p), 0) == level]
        lr = config.lr * config.layer_lr_decay**level
        groups.append({"params": [p for p in here if p.ndim > 1], "weight_decay": config.weight_decay, "lr": lr})
        groups.append({"params": [p for p in here if p.ndim <= 1], "weight_decay": 0.0, "lr": lr})
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def _levels_below_head(module: nn.Module) -> dict[int, int]:
    """id of a parameter of ``module.encoder`` -> how many layers it lies below the head: 1 in the last layer."""
    encoder = module.encoder
    depths = encoder.parameter_depths()
    return {id(p): encoder.num_layers + 1 - depths[name] for name, p in encoder.hf.named_parameters()}


def linear_schedule(optimizer, warmup_ratio: float, total_steps: int) -> torch.optim.lr_scheduler.LambdaLR:
    """The rate climbs from 0 over the first ``ceil(warmup_ratio * total_steps)`` steps, then falls to 0 at the end.

    Step k, counted from 0, takes k/w of the rate while k < w, and (total - k)/(total - w) of it afterwards.
    """
    warmup_steps = math.ceil(warmup_ratio * total_steps)

    def share(step: int) -> float:
        if step < warmup_steps:
            return step / warmup_steps
        return max(0.0, (total_steps - step) / max(1, total_steps - warmup_steps))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def deepspeed_config(config: Config) -> dict:
    """DeepSpeed's own configuration, made of ours."""
    stage = config.engine.zero_stage
    return {
        "train_micro_batch_size_per_gpu": config.train.batch_size,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": config.engine.precision == "bf16"},
        # At stage 0 `update` clips by the norm that its guard has computed anyway.
        "gradient_clipping": (config.optimizer.max_grad_norm or 0.0) if stage > 0 else 0.0,
        "steps_per_print": None,
        "wall_clock_breakdown": False,
    }


def initialise(module: nn.Module, config: Config, total_steps: int):
    """The DeepSpeed engine around ``module``, with optimizer and schedule. ``init_distributed`` comes first."""
    deepspeed = import_deepspeed()
    optimizer = build_optimizer(module, config.optimizer)
    schedule = linear_schedule(optimizer, config.optimizer.warmup_ratio, total_steps)
    if config.engine.precision != "fp32":
        # ZeRO keeps master copies of what it trains alone; the rest of the encoder would leave the run rounded.
        for parameter in getattr(module, "encoder", module).parameters():
            if not parameter.requires_grad:
                parameter.before_rounding = parameter.detach().cpu().clone()
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, lr_scheduler=schedule, config=deepspeed_config(config)
    )
    if config.engine.zero_stage == 0 and dist.get_world_size() == 1:
        # The mean over one rank is the gradient itself; DeepSpeed would copy it into a bucket and back for it.
        engine.enable_backward_allreduce = False
    return engine


def update(engine, loss: Tensor, max_grad_norm: Optional[float], step: int) -> tuple[float, float]:
    """One backward pass and optimizer step, unless the loss or the gradient is not finite.

    DeepSpeed silently skips a non-finite gradient at ZeRO 1 and above, and applies it in float32 at stage 0. Here both
    raise, and neither touches weights or optimizer.

    Returns:
        the loss and the global gradient norm before clipping.

    Raises:
        NonFiniteUpdate: naming the step.
    """
    if engine.zero_optimization():
        value = loss.item()
        _require_finite("loss", value, step)
        engine.backward(loss)
        engine.step()
        norm = float(engine.get_global_grad_norm())
        if not engine.was_step_applied():
            _require_finite("gradient norm", math.inf if math.isfinite(norm) else norm, step)
        return value, norm
    engine.backward(loss)
    grads = [p.grad for p in engine.module.parameters() if p.grad is not None]
    total_norm = torch.nn.utils.get_total_norm(grads)
    # One synchronisation for both; the guard needs them before the step.
    value, norm = torch.stack([loss.detach().float(), total_norm.float()]).tolist()
    try:
        _require_finite("loss", value, step)
        _require_finite("gradient norm", norm, step)
    except NonFiniteUpdate:
        engine.zero_grad()
        raise
    if max_grad_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(engine.module.parameters(), max_grad_norm, total_norm)
    engine.step()
    return value, norm


def _require_finite(name: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise NonFiniteUpdate(f"step {step}: the {name} is {value}; the weights are those of step {step - 1}")


def full_precision_weights(module: nn.Module) -> dict[str, Tensor]:
    """``module``'s state dict on the CPU, with ZeRO's float32 master copy in place of each bfloat16 parameter.

    A frozen parameter, of which ZeRO has none, is what it was before ``initialise``.
    """
    state = {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
    low_precision = {n: p for n, p in module.named_parameters() if p.dtype in (torch.bfloat16, torch.float16)}
    if low_precision:
        from deepspeed.utils import safe_get_full_fp32_param

        for name, parameter in low_precision.items():
            master = getattr(parameter, "before_rounding", None)
            if master is None:
                master = safe_get_full_fp32_param(parameter)
            state[name] = (parameter if master is None else master).detach().float().cpu().clone()
    return state
