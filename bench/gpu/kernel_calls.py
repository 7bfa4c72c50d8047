"""Calls of every op's Triton form, with what each should give: what is compiled ahead, checked and timed.

An op joins with a function of a ``Shape`` in ``CALLS``. Between its calls are all kernels that the op can launch for
a shape, so every option of an op that makes another kernel is there.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from typing import Any, Optional

import torch
from torch import Tensor

import fastadv_kernels
from bench.gpu import info_nce_calls as info_nce
from fastadv_kernels.project import project_reference
from fastadv_kernels.sentence_step import sentence_step_reference, sign_step_reference
from fastadv_kernels.token_update import SCALINGS, token_update_reference

NORMS = ("linf", "l2", "l1")


@dataclass(frozen=True)
class Shape:
    """B sentences of ``length`` tokens, more or less, of E entries."""

    num_sentences: int
    length: int
    embedding_size: int
    dtype: torch.dtype
    device: str = "cpu"

    def offsets(self) -> Tensor:
        """``cu_seqlens``: lengths alternate around ``length``, from a half to one and a half of it."""
        half = self.length // 2
        lengths = [self.length + (half if b % 2 else -half) * (b // 2 % 3) // 2 for b in range(self.num_sentences)]
        return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)

    def random(self, num_rows: int, seed: int, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(num_rows, self.embedding_size, generator=generator) * scale).to(self.dtype).to(self.device)


@dataclass(frozen=True)
class Call:
    """One launch."""

    op: str
    label: str
    launcher: str
    """as ``library.define_op`` takes it: "module:function" of fastadv_kernels"""
    arguments: tuple[Any, ...]
    """the launcher's"""
    reference: Callable
    """takes ``arguments`` as they are, or in float64, and gives what the launcher gives"""
    num_bytes: int = 0
    """what must be read and written, each once; 0 where bytes are not the limit"""
    num_flops: int = 0
    """what must be multiplied and added; 0 where it is not the limit"""
    launch: Optional[Callable] = None
    """runs on ``arguments`` in place of the launcher, around one or more of them"""
    public: Optional[Callable] = None
    """takes a backend and runs the public function on the same; None where that is called as the launcher is"""
    is_in_place: bool = False
    """whether the result is the first argument"""

    def run(self) -> Any:
        """Launches. Triton is imported here and not before."""
        if self.launch is not None:
            return self.launch(*self.arguments)
        module, _, function = self.launcher.partition(":")
        result = getattr(import_module(f"fastadv_kernels.{module}"), function)(*self.arguments)
        return self.arguments[0] if self.is_in_place else result

    def run_public(self, backend: str) -> Any:
        """The public function that may launch this."""
        if self.public is not None:
            return self.public(backend)
        return getattr(fastadv_kernels, self.op)(*self.arguments, backend=backend)


def on_device(shape: Shape, value: float) -> Tensor:
    return torch.tensor([value], device=shape.device)


def norm_of_noise(norm: str, scale: float, num_entries: int) -> float:
    """About the norm of so many normal entries of that scale. Of balls of this radius some are left and some not."""
    return scale * {"linf": 3.0, "l2": num_entries**0.5, "l1": 0.8 * num_entries}[norm]


def token_update_calls(shape: Shape) -> Iterator[Call]:
    offsets = shape.offsets().to(shape.device)
    eta, grad = (shape.random(int(offsets[-1]), seed, scale) for seed, scale in ((1, 0.02), (2, 1e-3)))
    for norm in NORMS:
        radius = norm_of_noise(norm, 0.02, shape.embedding_size)
        for scaling in SCALINGS:
            for epsilon in (on_device(shape, radius), None):
                yield Call(
                    "token_update",
                    f"{norm} {scaling}{'' if epsilon is not None else ' no ball'}",
                    "token_update_triton:launch",
                    (eta, grad, offsets, on_device(shape, radius / 4), epsilon, norm, scaling),
                    token_update_reference,
                    num_bytes=3 * eta.nbytes,
                )


def pair_reference(pgd, fgsm, grad, cu_seqlens, alpha, beta, epsilon, norm):
    return (
        sentence_step_reference(pgd, grad, cu_seqlens, alpha, epsilon, norm),
        sign_step_reference(fgsm, grad, cu_seqlens, beta, epsilon, norm),
    )


def sentence_calls(op: str, shape: Shape) -> Iterator[Call]:
    """Of "sentence_step", "sign_step" and "pair_step"."""
    offsets = shape.offsets().to(shape.device)
    delta, other, grad = (shape.random(int(offsets[-1]), seed, s) for seed, s in ((1, 0.02), (2, 0.02), (3, 1e-3)))
    for norm in NORMS:
        radius = norm_of_noise(norm, 0.02, shape.length * shape.embedding_size)
        step, sign = on_device(shape, radius / 4), on_device(shape, 0.01)
        for epsilon in (on_device(shape, radius), None):
            rest = (epsilon, norm)
            launch, arguments, reference, num_tensors = {
                "sentence_step": ("launch", (delta, grad, offsets, step, *rest), sentence_step_reference, 3),
                "sign_step": ("launch_sign", (delta, grad, offsets, sign, *rest), sign_step_reference, 3),
                "pair_step": ("launch_pair", (delta, other, grad, offsets, step, sign, *rest), pair_reference, 5),
            }[op]
            yield Call(
                op,
                f"{norm}{'' if epsilon is not None else ' no ball'}",
                f"sentence_step_triton:{launch}",
                arguments,
                reference,
                num_bytes=num_tensors * delta.nbytes,
            )


def mix_calls(shape: Shape) -> Iterator[Call]:
    num_tokens = int(shape.offsets()[-1])
    pgd, fgsm = (shape.random(num_tokens, seed, 0.02) for seed in (1, 2))
    yield Call(
        "mix_chains",
        "",
        "sentence_step_triton:launch_mix",
        (pgd, fgsm, 0.3),
        lambda pgd, fgsm, rho: rho * pgd + (1 - rho) * fgsm,
        num_bytes=3 * pgd.nbytes,
    )


def project_calls(shape: Shape) -> Iterator[Call]:
    offsets = shape.offsets().to(shape.device)
    x = shape.random(int(offsets[-1]), 1, 0.03)
    for norm in NORMS:
        for label, cu_seqlens, length in (("sentences", offsets, shape.length), ("rows", None, 1)):
            radius = norm_of_noise(norm, 0.03, length * shape.embedding_size)
            yield Call(
                "project",
                f"{norm} {label}",
                "project_triton:launch",
                (x, on_device(shape, radius), norm, cu_seqlens),
                project_reference,
                num_bytes=2 * x.nbytes,
            )


def _words(shape: Shape, vocabulary_size: int) -> Tensor:
    """(T,): one word begins every sentence, and the rest are as unequal as words are."""
    offsets = shape.offsets()
    generator = torch.Generator().manual_seed(4)
    words = (vocabulary_size * torch.rand(int(offsets[-1]), generator=generator) ** 4).long()
    words[offsets[:-1].long()] = vocabulary_size - 1
    return words


def read_calls(shape: Shape) -> Iterator[Call]:
    table = shape.random(30522 if shape.device == "cuda" else 50, 1)
    words = _words(shape, table.shape[0]).to(shape.device)
    yield Call(
        "eta_table_read",
        "",
        "eta_table_triton:launch_read",
        (table, words),
        lambda table, words: table[words],
        num_bytes=2 * words.shape[0] * table[0].nbytes + words.nbytes,
    )


def write_reference(table, ids, order, starts, eta):
    sums = torch.segment_reduce(eta[order], "sum", lengths=starts.diff(), axis=0, unsafe=True, initial=0)
    return table.index_copy(0, ids, sums / starts.diff().unsqueeze(1))


def write_calls(shape: Shape) -> Iterator[Call]:
    table = shape.random(30522 if shape.device == "cuda" else 50, 1)
    words = _words(shape, table.shape[0])
    ordered, order = torch.sort(words, stable=True)
    ids, counts = torch.unique_consecutive(ordered, return_counts=True)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    eta = shape.random(order.shape[0], 2)
    yield Call(
        "eta_table_write_mean",
        "",
        "eta_table_triton:launch_write",
        (table, ids.to(shape.device), order.to(shape.device), starts.to(shape.device), eta),
        write_reference,
        num_bytes=eta.nbytes + ids.shape[0] * table[0].nbytes + order.nbytes,
        public=lambda backend: fastadv_kernels.eta_table_write_mean(
            table, words.to(shape.device), eta, backend=backend
        ),
        is_in_place=True,
    )


def info_nce_calls(op: str, shape: Shape) -> Iterator[Call]:
    """As many queries as the shape has tokens on average, and 16 keys more."""
    num_rows = shape.num_sentences * shape.length
    for call in info_nce.calls(num_rows, num_rows + 16, shape.embedding_size, shape.dtype, shape.device):
        label, launch, arguments, reference, num_flops = call
        is_forward = label.startswith("forward")
        if is_forward == (op == "info_nce"):
            yield Call(
                op,
                label.partition(" ")[2],
                f"info_nce_triton:launch_{'forward' if is_forward else 'backward'}",
                arguments,
                reference,
                num_flops=num_flops,
                launch=launch,
                public=partial(info_nce.run_public, is_forward, arguments),
            )


CALLS: dict[str, Callable[[Shape], Iterator[Call]]] = {
    "token_update": token_update_calls,
    "sentence_step": partial(sentence_calls, "sentence_step"),
    "sign_step": partial(sentence_calls, "sign_step"),
    "pair_step": partial(sentence_calls, "pair_step"),
    "mix_chains": mix_calls,
    "project": project_calls,
    "eta_table_read": read_calls,
    "eta_table_write_mean": write_calls,
    "info_nce": partial(info_nce_calls, "info_nce"),
    "info_nce_backward": partial(info_nce_calls, "info_nce_backward"),
}
"""op -> its calls at a shape"""


def every_call(
    ops: Iterable[str], shapes: Iterable[tuple[int, ...]], dtypes: Iterable[torch.dtype], device: str
) -> Iterator[tuple[Call, dict[str, Any]]]:
    """Calls, and the names of their op, option, shape and dtype. All ops at a shape before any at the next one."""
    for shape, dtype in product(shapes, dtypes):
        for op in ops:
            for call in CALLS[op](Shape(*shape, dtype, device)):
                name = str(dtype).removeprefix("torch.")
                yield call, {"op": op, "label": call.label, "shape": shape, "dtype": name}
