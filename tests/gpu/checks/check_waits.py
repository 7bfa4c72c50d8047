"""What a run leaves to the GPU without standing still for it."""

import pytest
import torch

from fastadv.distributed.processes import import_deepspeed
from fastadv.engine.callbacks import Callback
from tests.gpu.device.watching import watching
from tests.quick_trainer import Trainer


def test_a_batch_is_copied_from_pinned_memory_without_a_wait(tiny_encoder, sentences):
    batch = tiny_encoder().pack(sentences)
    with watching() as seen:
        moved = batch.to("cuda")
    assert not seen.waits() and {kind for kind, _, _ in seen.places} == {"h2d-async"}
    for name in ("input_ids", "cu_seqlens", "is_special"):
        assert torch.equal(getattr(moved, name).cpu(), getattr(batch, name))


class OneStep(Callback):
    """Watches from the end of step 4 to that of step 5: DeepSpeed's timer leaves the first steps alone."""

    def on_step(self, trainer, step, metrics):
        if step == 4:
            self.watch = watching()
            self.seen = self.watch.__enter__()
        elif step == 5:
            self.watch.__exit__(None, None, None)


@pytest.mark.parametrize("stage", [0, 1])
def test_no_timer_of_deepspeed_s_makes_a_step_wait(stage, make_config):
    watcher = OneStep()
    Trainer(make_config(**{"engine.zero_stage": stage, "train.max_steps": 6}), [watcher]).fit()
    assert watcher.seen.waits() and not [place for place in watcher.seen.waits() if "torch.cuda.synchronize" in place]


def test_deepspeed_is_not_asked_which_ops_it_could_compile():
    """It would warn of each of them."""
    assert "__compatible_ops__" not in vars(import_deepspeed().ops)
