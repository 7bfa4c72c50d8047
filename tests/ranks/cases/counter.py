"""Which collectives run, and how many bytes they are given, by wrapping ``torch.distributed``'s functions."""

from collections import Counter
from contextlib import contextmanager

import torch.distributed as dist
from torch import Tensor

NAMES = (
    "all_gather _all_gather_base all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list "
    "gather gather_object irecv isend monitored_barrier recv reduce reduce_scatter _reduce_scatter_base "
    "reduce_scatter_tensor scatter scatter_object_list send"
).split()
# Where a result has more bytes than what a rank gives, or the other way round, the larger of the two is the payload.
WHOLE = {
    "all_gather": 0,
    "_all_gather_base": 0,
    "all_gather_into_tensor": 0,
    "all_reduce": 0,
    "reduce": 0,
    "reduce_scatter": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_tensor": 1,
    "broadcast": 0,
}
KEYWORDS = ("tensor", "tensor_list", "output_tensor", "input_tensor", "input_list", "output", "input")


class CountedCollectives:
    """Made before DeepSpeed is imported, which keeps some of the functions for itself.

    Attributes:
        payload: (tag, function) -> bytes of the whole tensors: what is gathered, reduced, or scattered, of all ranks
            together, once.
    """

    def __init__(self):
        self.names_inside, self.names_outside = [], []
        self.payload = Counter()
        self._is_inside = False
        self._tags = ["other"]
        for name in NAMES:
            if hasattr(dist, name):
                setattr(dist, name, self._counted(name, getattr(dist, name)))

    def _counted(self, name, function):
        def call(*arguments, **options):
            (self.names_inside if self._is_inside else self.names_outside).append(name)
            if name in WHOLE:
                given = [*arguments, *(options[key] for key in KEYWORDS if key in options)]
                self.payload[self._tags[-1], name] += bytes_of(given[WHOLE[name]])
            return function(*arguments, **options)

        return call

    @contextmanager
    def inside(self):
        """What runs in the block counts as inside."""
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False

    @contextmanager
    def tagged(self, tag):
        """The payload of what runs in the block counts under ``tag``, but for blocks inside it."""
        self._tags.append(tag)
        try:
            yield
        finally:
            self._tags.pop()

    def tagging(self, tag, function):
        """``function``, whose payload counts under ``tag``."""

        def call(*arguments, **options):
            with self.tagged(tag):
                return function(*arguments, **options)

        return call

    def clear(self):
        self.names_inside, self.names_outside = [], []
        self.payload.clear()


def bytes_of(given) -> int:
    tensors = [given] if isinstance(given, Tensor) else given
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
