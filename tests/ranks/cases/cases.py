"""What the cases of `supervised`, `taichi` and `text_level` are put through alike, on one process and on several.

Each of those modules has ``CASES``; ``CUT_UP``, those that are run at every ZeRO stage and not at 0 alone; ``MUTANTS``,
name: the case it shows in, and owner, attribute and value of the patch; and ``make_ready(folder, case, rank, num_ranks,
dtype)``: the case's step, and the rank's share of the batch.
"""

from contextlib import contextmanager
from types import ModuleType
from unittest import mock

import torch


def of_one_process(cases: ModuleType, folder: str, case: str, dtype=torch.float32) -> dict:
    """Loss, gradients and what the step keeps, in plain torch on the whole batch."""
    step, batch = cases.make_ready(folder, case, 0, 1, dtype)
    loss = step(batch)
    loss.backward()
    step.commit()
    return {"loss": loss.detach(), **grads_of(step), **step.extra_state_dict()}


def grads_of(step) -> dict:
    """By name; zeros where no loss reaches a parameter: those of a network that no text of a batch is for."""
    none = torch.zeros_like
    return {n: none(p) if p.grad is None else p.grad.clone() for n, p in step.named_parameters()}


@contextmanager
def planted(cases: ModuleType, name: str):
    _, owner, attribute, mistake = cases.MUTANTS[name]
    with mock.patch.object(owner, attribute, mistake):
        yield
