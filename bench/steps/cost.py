"""What a step costs beside its time: floating-point operations, and the peak of live tensors."""

import weakref
from contextlib import contextmanager
from typing import Callable, Iterable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

import fastadv_kernels  # noqa: F401  (registers torch.ops.fastadv)


def _contrast_products(num_products: int, query_at: int):
    """FLOPs of products of all queries (N, D) with all keys (P, M, D)."""

    def count(*shapes, out_shape=None, **options) -> int:
        query, keys = shapes[query_at], shapes[query_at + 1]
        num_keys = 1
        for size in keys[:-1]:
            num_keys *= size
        return 2 * num_products * query[0] * query[1] * num_keys

    return count


def _attention(query, key, value, *rest, out_shape=None, **options) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(grad, query, key, value, *rest, out_shape=None, **options) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


# What torch's own table lacks: the CPU's fused attention, and the library's contrastive loss, whose sum over rows forms
# both gradients in its forward.
_FORMULAS = {
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: shape_wrapper(_attention),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: shape_wrapper(_attention_backward),
    torch.ops.fastadv.info_nce: shape_wrapper(_contrast_products(1, 0)),
    torch.ops.fastadv.info_nce_backward: shape_wrapper(_contrast_products(3, 2)),
    torch.ops.fastadv.info_nce_total: shape_wrapper(_contrast_products(3, 1)),
}


class StepCounter(TorchDispatchMode):
    """Counts floating-point operations of matrix products, and bytes of storages made inside the block and still alive.

    Torch's own FlopCounterMode watches modules too, which parameters frozen during the inner loop break.

    Attributes:
        flops: forward and backward.
        peak: the most at any time.
        peak_beside_gradients: likewise without storages that were then a parameter's gradient.
    """

    def __init__(self):
        super().__init__()
        self.flops = 0
        self.peak = self.peak_beside_gradients = 0
        self._live: dict[int, tuple[weakref.ref, int]] = {}
        self._gradients: set[int] = set()
        self._total = self._of_gradients = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        formula = _FORMULAS.get(function._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        given = {id(leaf.untyped_storage()) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                storage = leaf.untyped_storage()
                if id(storage) not in self._live and id(storage) not in given:
                    self._add(storage)
        return result

    def _add(self, storage) -> None:
        key, num_bytes = id(storage), storage.nbytes()
        # Autograd hands storages on without an op, so the storage itself says when it dies.
        self._live[key] = weakref.ref(storage, lambda _: self._remove(key)), num_bytes
        self._total += num_bytes
        self._note()

    def _remove(self, key: int) -> None:
        num_bytes = self._live.pop(key)[1]
        self._total -= num_bytes
        if key in self._gradients:
            self._gradients.discard(key)
            self._of_gradients -= num_bytes

    def _note(self) -> None:
        self.peak = max(self.peak, self._total)
        self.peak_beside_gradients = max(self.peak_beside_gradients, self._total - self._of_gradients)

    def mark_gradient(self, parameter: Tensor) -> None:
        key = id(parameter.grad.untyped_storage())
        if key in self._live and key not in self._gradients:
            self._gradients.add(key)
            self._of_gradients += self._live[key][1]


@contextmanager
def _told_of_gradients(parameters: Iterable[Tensor], tracker: StepCounter):
    handles = [p.register_post_accumulate_grad_hook(tracker.mark_gradient) for p in parameters if p.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measure_costs(run: Callable[[], object], parameters: list[Tensor], held_bytes: int) -> dict[str, float]:
    """FLOPs of ``run``, and MiB at its peak.

    Args:
        parameters: whose gradients count apart.
        held_bytes: parameters, optimizer state (which a first step makes) and whatever else stays; asked afterwards.

    Returns:
        ``flops``; ``working_mib``: beside parameters, gradients and optimizer state; ``total_mib``: with them.
    """
    with StepCounter() as tracker, _told_of_gradients(parameters, tracker):
        run()
    return {
        "flops": tracker.flops,
        "working_mib": tracker.peak_beside_gradients / 2**20,
        "total_mib": (tracker.peak + held_bytes) / 2**20,
    }


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Of distinct storages."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """State and parameters; at ZeRO's bf16 the latter are its float32 masters."""
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
    return state + [p for group in optimizer.param_groups for p in group["params"]]
