"""How often one optimizer step makes the host wait for the GPU, and where. While it waits it launches nothing."""

import re

import pytest
import torch

from fastadv.distributed.processes import import_deepspeed
from fastadv.engine.callbacks import Callback
from tests.gpu.device.watching import watching
from tests.quick_trainer import Trainer

# Place → times, at most, in one step that is not logged. What grows them is a decision; what shrinks them changes them.
UPDATE = {
    # Loss and gradient norm, for the guard, which at stage 0 is this package's.
    "fastadv/distributed/zero.py _guarded_step": 1,
}
# Whether all inner gradients were finite, asked once a batch.
SEARCH = {"fastadv/engine/step/batch_search.py finish": 1}
# How many words a batch has, and all of a step's batches and ranks.
TABLE = {"fastadv/perturbation/token.py accumulate": 1, "fastadv/perturbation/token.py _added": 1}
BUDGETS = {
    "robustsentembed": {**UPDATE, **SEARCH, **TABLE},
    "exact": {**UPDATE, **SEARCH, **TABLE},
    "adaptive": {**UPDATE, **SEARCH, **TABLE},
    "free": {**UPDATE, **SEARCH, **TABLE},
    "rtd": {**UPDATE, **SEARCH, **TABLE},
    "uscal": {**UPDATE, **SEARCH},
    "freelb": {**UPDATE, **SEARCH},
    "smart": {**UPDATE, **SEARCH},
    "rar": {**UPDATE, **SEARCH},
    # Labels and rows of all ranks, of which the host draws negatives and notes what is written.
    "carl": {
        **UPDATE,
        **SEARCH,
        "fastadv/objectives/classes/carl.py _contrast": 1,
        "fastadv/objectives/classes/carl.py loss": 1,
    },
    "simcse": UPDATE,
    "fine_tuning": UPDATE,
    "taichi": UPDATE,
}


class WatchStep(Callback):
    """Watches one step in the midst of a run, from the end of the step before it to its own.

    Attributes:
        seen: what the step asked of the device.
        in_search: waits from the start to the end of a search, ``what at place`` → times.
    """

    def __init__(self, step: int):
        self._step, self.seen, self.in_search = step, None, {}

    def on_step(self, trainer, step, metrics):
        if step == self._step - 1:
            self._block = watching()
            self.seen = self._block.__enter__()
            if trainer.run.step.search is not None:
                self._watch(trainer.run.step.search.adversary)
        if step == self._step:
            self._block.__exit__(None, None, None)

    def _watch(self, adversary):
        search = adversary.search

        def watched(*arguments):
            before = self.seen.waits()
            result = search(*arguments)
            waits = {place: number - before.get(place, 0) for place, number in self.seen.waits().items()}
            self.in_search.update({place: number for place, number in waits.items() if number})
            return result

        adversary.search = watched


def watched_step(config) -> WatchStep:
    config.train.log_every, config.train.save_every, config.train.max_steps = 100, 100, 6
    watch = WatchStep(5)
    Trainer(config, [watch]).fit()
    assert watch.seen.num_operations() > 100
    return watch


def by_place(waits: dict[str, int]) -> dict[str, int]:
    """Times by file and function: a line's number changes with every line above it."""
    places = {}
    for place, number in waits.items():
        key = re.sub(r"\.py:\d+ ", ".py ", place.partition(" at ")[2])
        places[key] = places.get(key, 0) + number
    return places


def over(waits: dict[str, int], budget: dict[str, int]) -> list[str]:
    """What is above ``budget``, with its lines."""
    too_often = {place: number for place, number in by_place(waits).items() if number > budget.get(place, 0)}
    return [
        f"{number} x {place}" for place, number in waits.items() if by_place({place: number}).keys() & too_often.keys()
    ]


@pytest.mark.parametrize("system", BUDGETS)
def test_a_step_waits_no_more_often_than_this(make_system, system):
    watch = watched_step(make_system(system))
    assert over(watch.seen.waits(), BUDGETS[system]) == []
    assert watch.in_search == {}


def test_no_timer_of_deepspeed_s_makes_a_step_wait(make_config):
    """At stage 1, where the step is DeepSpeed's."""
    watch = watched_step(make_config(**{"engine.zero_stage": 1}))
    assert watch.seen.waits() and not [place for place in watch.seen.waits() if "synchronize" in place]


def test_deepspeed_is_not_asked_which_ops_it_could_compile():
    """It would warn of each of them."""
    assert "__compatible_ops__" not in vars(import_deepspeed().ops)


def test_a_batch_is_copied_from_pinned_memory_without_a_wait(tiny_encoder, sentences):
    batch = tiny_encoder().pack(sentences)
    with watching() as seen:
        moved = batch.to("cuda")
    assert not seen.waits() and {kind for kind, _, _ in seen.places} == {"h2d-async"}
    for name in ("input_ids", "cu_seqlens", "is_special"):
        assert torch.equal(getattr(moved, name).cpu(), getattr(batch, name))


def test_a_wait_planted_in_the_search_is_found(make_config):
    watch = watched_step(make_config(objective="tests.gpu.checks.planted:AsksInTheSearch"))
    (found,) = over(watch.seen.waits(), BUDGETS["robustsentembed"])
    # Once in each of the two inner steps, and once after them, at the clean pass, for dropout's share of the gain.
    number, _, place = found.partition(" x ")
    assert place.startswith("sync aten::_local_scalar_dense at fastadv/engine/step/inner_loss.py:") and number == "3"
    assert watch.in_search == {place: 2}


@pytest.mark.parametrize("objective", ["MixesDevicesInTheSearch", "MixesDevicesInTheStep"])
def test_a_tensor_on_the_host_ends_the_run(make_config, objective):
    with pytest.raises(RuntimeError, match="same device"):
        Trainer(make_config(objective=f"tests.gpu.checks.planted:{objective}")).fit()
