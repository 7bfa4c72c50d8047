"""Which collectives run, by wrapping ``torch.distributed``'s functions."""

from contextlib import contextmanager

import torch.distributed as dist

NAMES = (
    "all_gather _all_gather_base all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list "
    "gather gather_object irecv isend monitored_barrier recv reduce reduce_scatter _reduce_scatter_base "
    "reduce_scatter_tensor scatter scatter_object_list send"
).split()


class CountedCollectives:
    """Made before DeepSpeed is imported, which keeps some of the functions for itself."""

    def __init__(self):
        self.names_inside, self.names_outside = [], []
        self._is_inside = False
        for name in NAMES:
            if hasattr(dist, name):
                setattr(dist, name, self._counted(name, getattr(dist, name)))

    def _counted(self, name, function):
        def call(*arguments, **options):
            (self.names_inside if self._is_inside else self.names_outside).append(name)
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

    def clear(self):
        self.names_inside, self.names_outside = [], []
