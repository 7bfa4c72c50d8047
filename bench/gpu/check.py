"""Every Triton kernel on this GPU against its reference in float64. See gpu.sh."""

from typing import Any

import torch
from torch import Tensor

from bench.gpu.kernel_calls import CALLS, Call, every_call
from bench.gpu.part import Part

SHAPES = ((64, 32, 768), (7, 61, 1000), (300, 5, 384))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DRY_SHAPES = ((3, 4, 40),)


def in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def outputs(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def excess(call: Call) -> float:
    """The error as a multiple of what is allowed: twice that of the reference in the same dtype, and a floor.

    The floor is a unit in the last place of the largest result, or in float32 what a sum of many terms loses. A
    result that is not finite counts as infinitely wrong.
    """
    exact = outputs(call.reference(*(in_float64(a) for a in call.arguments)))
    plain = outputs(call.reference(*call.arguments))
    worst = 0.0
    # Last, since it may work in place.
    for ours, theirs, gold in zip(outputs(call.run()), plain, exact, strict=True):
        if ours.shape != gold.shape or not torch.isfinite(ours).all():
            return float("inf")
        unit = max(torch.finfo(ours.dtype).eps, 4 * torch.finfo(torch.float32).eps)
        allowed = 2 * (theirs.double() - gold).abs().max() + unit * gold.abs().max()
        worst = max(worst, ((ours.double() - gold).abs().max() / allowed).item())
    return worst


def main() -> None:
    part = Part("check")
    # The interpreter does not round to bfloat16 as a GPU does.
    shapes, dtypes = (DRY_SHAPES, DTYPES[:1]) if part.dry else (SHAPES, DTYPES)
    worst = dict.fromkeys(CALLS, 0.0)
    for call, name in every_call(CALLS, shapes, dtypes, part.device):
        if part.is_late():
            break
        row = part.row(lambda call=call: _judged(excess(call)), **name)
        multiple = row.get("error_of_allowed", float("inf"))
        worst[call.op] = max(worst[call.op], multiple)
        if multiple > 1:
            print(f"{' '.join(map(str, name.values()))}: {multiple:.3g} times the allowed error")
    for op, multiple in worst.items():
        print(f"{op:22} largest error {multiple:.2f} of the allowed")
    part.end()


def _judged(multiple: float) -> dict[str, Any]:
    return {"error_of_allowed": multiple, "is_right": multiple <= 1}


if __name__ == "__main__":
    main()
