"""A run's weights and moments in one piece by name, as DeepSpeed itself puts them together; every rank calls it."""

import torch
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

from tests.quick_trainer import Trainer

MOMENTS = ("exp_avg", "exp_avg_sq")


def whole_state(trainer):
    engine = trainer.engine
    if hasattr(engine.optimizer, "_lazy_init_hp_params_optimizer_state"):
        # Stages 1 and 2 look moments up by name only after this, which they do themselves in the next step.
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    state = dict(trainer.run.step.extra_state_dict())
    for name, parameter in engine.module.named_parameters():
        if not parameter.requires_grad:
            continue
        if engine.zero_optimization():
            state[name] = safe_get_full_fp32_param(parameter)
            state.update({f"{m} {name}": safe_get_full_optimizer_state(parameter, m) for m in MOMENTS})
        else:
            state[name] = parameter
            state.update({f"{m} {name}": engine.optimizer.state[parameter][m] for m in MOMENTS})
    optimizer = engine.optimizer.optimizer if engine.zero_optimization() else engine.optimizer
    steps = {float(held["step"]) for held in optimizer.state.values()}
    assert len(steps) == 1
    state["optimizer steps"] = torch.tensor(steps.pop())
    state["rate"] = torch.tensor(engine.get_lr()[0], dtype=torch.float64)
    return {name: value.detach().reshape(-1).clone() for name, value in state.items()}


class Observed(Trainer):
    """Keeps the whole state at the start of training and at each save, and this rank's generator at both."""

    def _train(self):
        if self.position.step:
            self.at_start, self.generator_at_start = whole_state(self), torch.get_rng_state()
        super()._train()

    def _save(self):
        super()._save()
        self.at_save, self.generator_at_save = whole_state(self), torch.get_rng_state()
