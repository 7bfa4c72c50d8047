"""The modules of a sentence-transformers folder that come after its pooling: Dense, LayerNorm, Normalize.

The last ones may only scale or cut a vector: a Normalize, a Dropout, and ``truncate_dim``. Losses and heads are of h,
the vector before these (`AfterPooling.forward`); `AfterPooling.finish` gives that of sentence-transformers.
"""

from typing import Optional, Sequence

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from fastadv.encoder.sentence_files.read import ModuleFile, SentenceFiles, find_file
from fastadv.errors import UserError

WEIGHTS = "model.safetensors"

# Of one number each, without parameters of their own.
_ACTIVATIONS = (
    "Identity Tanh ReLU ReLU6 GELU SiLU Sigmoid LogSigmoid LeakyReLU ELU CELU SELU Mish Softplus Softsign Tanhshrink "
    "Hardtanh Hardswish Hardsigmoid"
).split()
_OF_DENSE = "sentence_embedding"


class Dense(nn.Module):
    """activation(W h + b), with h, or a linear map of it, added where the module is residual. (B, D) -> (B, D')"""

    def __init__(self, size: int, out_size: int, has_bias: bool, activation: nn.Module, is_residual: bool):
        super().__init__()
        self.linear, self.activation = nn.Linear(size, out_size, bias=has_bias), activation
        self.is_residual = is_residual
        if is_residual and size != out_size:
            self.residual = nn.Linear(size, out_size, bias=False)

    def forward(self, pooled: Tensor) -> Tensor:
        mapped = self.activation(self.linear(pooled))
        if not self.is_residual:
            return mapped
        return mapped + (self.residual(pooled) if hasattr(self, "residual") else pooled)


class Normalize(nn.Module):
    """h over its length. (B, D) -> (B, D)"""

    def forward(self, pooled: Tensor) -> Tensor:
        return F.normalize(pooled, dim=-1)


class LayerNorm(nn.Module):
    """LayerNorm over the numbers of a vector. (B, D) -> (B, D)"""

    def __init__(self, size: int):
        super().__init__()
        self.norm = nn.LayerNorm(size)

    def forward(self, pooled: Tensor) -> Tensor:
        return self.norm(pooled)


class AfterPooling(nn.Module):
    """What becomes of a pooled vector (B, P).

    Args:
        size: P.
        modules: in their order, as `ModuleFile` has them.
        truncate_dim: the numbers of the finished vector that are kept; None: all.

    Raises:
        UserError: a module that cannot be computed, or one of another size.
    """

    def __init__(self, size: int, modules: Sequence[ModuleFile] = (), truncate_dim: Optional[int] = None):
        super().__init__()
        self.files, self._truncate_dim = tuple(modules), truncate_dim
        built = []
        for file in self.files:
            module, size = _build(file, size)
            built.append(module)
        self.layers = nn.ModuleList(built)
        self.size = size
        """numbers of a vector that `forward` gives"""
        self._num_trained = len(built)
        while self._num_trained and isinstance(built[self._num_trained - 1], (Normalize, nn.Identity)):
            self._num_trained -= 1

    @property
    def vector_size(self) -> int:
        """Numbers of a finished vector."""
        return self.size if self._truncate_dim is None else min(self.size, self._truncate_dim)

    @property
    def is_unit_length(self) -> bool:
        """Whether a finished vector has length 1."""
        is_last = any(isinstance(layer, Normalize) for layer in self.layers[self._num_trained :])
        return is_last and self.vector_size == self.size

    @property
    def has_parameters(self) -> bool:
        return next(self.parameters(), None) is not None

    def forward(self, pooled: Tensor) -> Tensor:
        """h (B, `size`)."""
        for i, layer in enumerate(self.layers):
            pooled = layer(pooled) if i < self._num_trained else pooled
        return pooled

    def finish(self, h: Tensor) -> Tensor:
        """The vector of h."""
        for i, layer in enumerate(self.layers):
            h = h if i < self._num_trained else layer(h)
        return h[:, : self.vector_size]

    def load(self, location: str, name: str) -> None:
        """Reads the weights of each module that has any.

        Raises:
            UserError: weights that are missing, pickled, or of another shape.
        """
        for file, layer in zip(self.files, self.layers, strict=True):
            expected = layer.state_dict()
            if not expected:
                continue
            path = find_file(location, f"{file.path}/{WEIGHTS}")
            if path is None:
                raise UserError(
                    f"model {name!r}: its module {file.kind} has no {file.path}/{WEIGHTS}; pickled weights are not "
                    "opened"
                )
            try:
                state = load_file(path)
            except (OSError, SafetensorError) as error:
                reason = str(error).strip().partition("\n")[0]
                raise UserError(f"model {name!r}: {file.path}/{WEIGHTS} cannot be read: {reason}") from error
            shapes, found = ({key: tuple(v.shape) for key, v in values.items()} for values in (expected, state))
            if shapes != found:
                raise UserError(f"model {name!r}: {file.path}/{WEIGHTS} holds {found}, expected {shapes}")
            layer.load_state_dict(state)


def after_pooling_of(files: SentenceFiles, size: int, location: str, name: str, dtype: torch.dtype) -> AfterPooling:
    """The modules of a folder with their weights, after a pooling to ``size`` numbers."""
    try:
        after = AfterPooling(size, files.modules, files.truncate_dim)
    except UserError as error:
        raise UserError(f"model {name!r}: {error}") from error
    after.load(location, name)
    return after.to(dtype)


def check_modules(files: SentenceFiles, size: int) -> None:
    """UserError where a module cannot be computed, or does not fit a pooled vector of ``size`` numbers."""
    with torch.device("meta"):
        AfterPooling(size, files.modules, files.truncate_dim)


def _build(file: ModuleFile, size: int) -> tuple[nn.Module, int]:
    """The module, its weights as torch draws them, and the size of what it gives."""
    config = file.config
    if file.kind == "Normalize":
        return Normalize(), size
    if file.kind == "Dropout":
        return nn.Identity(), size
    if file.kind == "LayerNorm":
        _check_size(file, "dimension", size)
        return LayerNorm(size), size
    _check_size(file, "in_features", size)
    out_size = config.get("out_features")
    if type(out_size) is not int or out_size < 1:
        raise UserError(f"out_features of its module {file.path} is {out_size!r}, expected a whole number above 0")
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _OF_DENSE):
            raise UserError(f"its module {file.path} is of {config[key]}, which is not supported; {_OF_DENSE} is")
    is_residual = bool(config.get("use_residual", False))
    return Dense(size, out_size, bool(config.get("bias", True)), _activation(file), is_residual), out_size


def _check_size(file: ModuleFile, key: str, size: int) -> None:
    if file.config.get(key) != size:
        raise UserError(
            f"its module {file.path} reads vectors of {file.config.get(key)} numbers, and it is given {size}"
        )


def _activation(file: ModuleFile) -> nn.Module:
    name = file.config.get("activation_function", "torch.nn.modules.activation.Tanh")
    last = name.rpartition(".")[2] if isinstance(name, str) else ""
    if last not in _ACTIVATIONS or not name.startswith("torch.nn."):
        raise UserError(
            f"activation_function of its module {file.path} is {name}, which is not supported; expected one of "
            f"torch.nn: {', '.join(_ACTIVATIONS)}"
        )
    return getattr(nn, last)()
