"""Watchers of every operation torch dispatches."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

# Their results' shapes, or what the program does next, depend on values: a GPU has to be waited for.
_DATA_DEPENDENT = {
    aten._local_scalar_dense,
    aten.item,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.nonzero_numpy,
    aten.argwhere,
    aten.masked_select,
    aten.unique_dim,
    aten.unique_consecutive,
    aten.unique_dim_consecutive,
    aten._unique,
    aten._unique2,
    aten.bincount,
    aten.allclose,
}


class DataDependence(RuntimeError):
    pass


class RefuseDataDependence(TorchDispatchMode):
    """Raises where an operation's shapes, or a number handed to Python, depend on a tensor's values."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket in _DATA_DEPENDENT:
            raise DataDependence(str(func))
        if func.overloadpacket in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
            if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
                raise DataDependence(f"{func} by a mask")
        if func.overloadpacket is aten.repeat_interleave and kwargs.get("output_size") is None:
            raise DataDependence(f"{func} of unknown size")
        if func.overloadpacket is aten.segment_reduce and not kwargs.get("unsafe", False):
            raise DataDependence(f"{func} that looks at its lengths")
        return func(*args, **kwargs)


_PRODUCTS = {aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.matmul, aten.dot, aten.mv, aten.sum}


class WeightGradients(TorchDispatchMode):
    """Lists the operations that make a gradient of a parameter.

    Args:
        parameters: whose shapes no matrix product and no sum may have; activations must have others.
    """

    def __init__(self, parameters):
        super().__init__()
        shapes = {tuple(p.shape) for p in parameters}
        self._shapes = shapes | {shape[::-1] for shape in shapes} | {(1, *shape) for shape in shapes}
        self.found = []
        self.num_products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in _PRODUCTS:
            self.num_products += 1
            shapes = [tuple(t.shape) for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
            if any(shape in self._shapes for shape in shapes):
                self.found.append(f"{func} -> {shapes}")
        elif packet in (aten.native_layer_norm_backward, aten.native_batch_norm_backward) and any(args[-1][1:]):
            self.found.append(f"{func}, mask {args[-1]}")
        elif packet in (aten.embedding_dense_backward, aten.embedding_backward):
            self.found.append(str(func))
        return result
