"""A process group that is called nccl: gloo, behind what NCCL would refuse."""

import collections

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from tests.gpu.device.library import library

COLLECTIVES: collections.Counter[tuple[str, int]] = collections.Counter()
"""(collective, bytes of this rank's tensors) → calls"""


class Done(dist.Work):
    """Work that was over when it was begun."""

    def wait(self, timeout=None):
        return True

    def is_completed(self):
        return True

    def get_future(self):
        future = torch.futures.Future()
        future.set_result(None)
        return future


class Options:
    """What `init_process_group` sets on a backend's options."""

    is_high_priority_stream = False
    _timeout = None
    split_from = None
    global_ranks_in_group = None
    group_name = None


class PretendedNCCL(dist.ProcessGroup):
    """Takes contiguous tensors on this rank's device, and no others.

    Every collective has ended when it returns. Gloo has no means and no reduction into shares; both are an all-reduce.
    """

    Options = Options
    bound_device_id = None
    supports_splitting = False

    def __init__(self, store, rank, size, options):
        super().__init__(rank, size)
        timeout = () if options._timeout is None else (options._timeout,)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, *timeout)
        # Under the name by which torch reads it.
        self._opts = options

    def getBackendName(self):
        return "nccl"

    def name(self):
        return "nccl"

    @property
    def _device_types(self):
        return [torch.device("cuda")]

    def _get_backend(self, device):
        if torch.device(device).type != "cuda":
            raise RuntimeError(f"No backend type associated with device type {torch.device(device).type}")
        return self

    def _set_sequence_number_for_group(self):
        pass

    def _get_sequence_number_for_group(self):
        return 0

    def _has_hooks(self):
        return False

    def eager_connect_single_device(self, device):
        pass

    def perform_nocolor_split(self, device):
        pass

    def _start_coalescing(self, device=None):
        pass

    def _end_coalescing(self, device=None):
        return Done()

    def shutdown(self):
        pass

    def abort(self):
        pass

    def _bytes(self, name, tensors):
        """The same bytes for gloo, of tensors that NCCL would take."""
        own = library().get_device()
        for t in tensors:
            if not t.is_cuda:
                given = f"{name} of {tuple(t.shape)} {t.dtype}"
                raise RuntimeError(f"No backend type associated with device type {t.device.type} ({given})")
            if t.device.index != own:
                raise RuntimeError(f"{name}: tensor on {t.device}, this rank's device is cuda:{own}")
            if not t.is_contiguous():
                raise RuntimeError(f"Tensors must be contiguous ({name})")
        COLLECTIVES[name, sum(t.numel() * t.element_size() for t in tensors)] += 1
        return [torch.ops.pretended_gpu.bytes(t) for t in tensors]

    def _all_reduce(self, tensors, reduce_op):
        options = c10d.AllreduceOptions()
        is_mean = reduce_op == dist.ReduceOp.AVG
        options.reduceOp = dist.ReduceOp.SUM if is_mean else reduce_op
        self._gloo.allreduce(tensors, options).wait()
        if is_mean:
            for t in tensors:
                t.div_(self.size())

    def allreduce(self, tensors, opts=None):
        self._all_reduce(self._bytes("allreduce", tensors), opts.reduceOp if opts else dist.ReduceOp.SUM)
        return Done()

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        of_root = self._bytes("reduce", tensors)
        whole = [t.clone() for t in of_root]
        self._all_reduce(whole, opts.reduceOp)
        if self.rank() == opts.rootRank:
            for t, total in zip(of_root, whole):
                t.copy_(total)
        return Done()

    def broadcast(self, tensors, opts):
        self._gloo.broadcast(self._bytes("broadcast", tensors), opts).wait()
        return Done()

    def allgather(self, outputs, inputs, opts=None):
        gathered = [self._bytes("allgather", tensors) for tensors in outputs]
        self._gloo.allgather(gathered, self._bytes("allgather", inputs), c10d.AllgatherOptions()).wait()
        return Done()

    def _allgather_base(self, output, input, opts=None):
        whole, own = self._bytes("all_gather_into_tensor", [output, input])
        gathered = [torch.empty_like(own.reshape(-1)) for _ in range(self.size())]
        self._gloo.allgather([gathered], [own.reshape(-1)], c10d.AllgatherOptions()).wait()
        if whole.numel() > 0:
            whole.view(self.size(), -1).copy_(torch.stack(gathered))
        return Done()

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        for output, input in zip(outputs, inputs):
            self._allgather_base(output, input)
        return Done()

    def _reduce_scatter_base(self, output, input, opts=None):
        share, own = self._bytes("reduce_scatter_tensor", [output, input])
        whole = own.clone()
        self._all_reduce([whole], opts.reduceOp if opts else dist.ReduceOp.SUM)
        share.copy_(whole.view(self.size(), -1)[self.rank()].view_as(share))
        return Done()

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        for output, input in zip(outputs, inputs):
            self._reduce_scatter_base(output, input, opts)
        return Done()

    def barrier(self, opts=None):
        self._gloo.barrier(c10d.BarrierOptions()).wait()
        return Done()

    def __getattr__(self, name):
        raise AttributeError(f"{type(self).__name__} has no {name}")


def install() -> None:
    """Makes it the backend nccl, for the rest of the process."""
    c10d._NCCL_AVAILABLE = True
    c10d.ProcessGroupNCCL = PretendedNCCL
    dist.is_nccl_available = c10d.is_nccl_available = lambda: True
    torch.cuda.nccl.version = lambda: (2, 27, 3)
    c10d._get_default_timeout = lambda backend: c10d.default_pg_timeout
