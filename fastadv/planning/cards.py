"""What accelerators and links can do at most, as their makers' public data sheets say.

Rates are dense: figures "with sparsity" are halved. A matrix product in float32 is rounded as torch does by default,
so its rate is the card's float32 rate outside the tensor cores; ``tf32`` is what
``torch.backends.cuda.matmul.allow_tf32 = True`` makes of it. A run that is bound by anything else is slower.
"""

from dataclasses import dataclass
from typing import Optional, Union

import torch


@dataclass(frozen=True)
class Card:
    """One accelerator. Rates are in TFLOP/s, 1e12 floating-point operations a second."""

    name: str
    bf16: Optional[float]
    """None: it has no bfloat16 units; torch computes in something slower"""
    fp32: float
    tf32: Optional[float]
    memory_gb: int
    source: str
    """the data sheet"""

    def peak_flops(self, precision: str) -> Optional[float]:
        """FLOP/s in ``fp32``, ``tf32`` or ``bf16``; None where the card has none."""
        rate = getattr(self, precision)
        return None if rate is None else rate * 1e12


CARDS = {
    # What a card is called here -> the card. A longer name stands before the shorter one it contains.
    "gh200": Card("NVIDIA GH200 96GB", 989.4, 66.9, 494.7, 96, "NVIDIA GH200 Grace Hopper Superchip data sheet"),
    "h200": Card("NVIDIA H200 SXM", 989.4, 66.9, 494.7, 141, "NVIDIA H200 data sheet"),
    "h100-nvl": Card("NVIDIA H100 NVL", 835.5, 60.0, 417.5, 94, "NVIDIA H100 data sheet"),
    "h100-pcie": Card("NVIDIA H100 PCIe", 756.0, 51.2, 378.0, 80, "NVIDIA H100 data sheet"),
    "h100": Card("NVIDIA H100 SXM", 989.4, 66.9, 494.7, 80, "NVIDIA H100 data sheet"),
    "b200": Card("NVIDIA B200", 2250.0, 75.0, 1120.0, 180, "NVIDIA DGX B200 data sheet"),
    "a100-40gb": Card("NVIDIA A100 40GB", 312.0, 19.5, 156.0, 40, "NVIDIA A100 data sheet"),
    "a100": Card("NVIDIA A100 80GB", 312.0, 19.5, 156.0, 80, "NVIDIA A100 data sheet"),
    "a10": Card("NVIDIA A10", 125.0, 31.2, 62.5, 24, "NVIDIA A10 data sheet"),
    "a30": Card("NVIDIA A30", 165.0, 10.3, 82.0, 24, "NVIDIA A30 data sheet"),
    "a40": Card("NVIDIA A40", 149.7, 37.4, 74.8, 48, "NVIDIA A40 data sheet"),
    "a6000": Card("NVIDIA RTX A6000", 154.8, 38.7, 77.4, 48, "NVIDIA RTX A6000 data sheet, Ampere GA102 whitepaper"),
    "l40s": Card("NVIDIA L40S", 362.0, 91.6, 183.0, 48, "NVIDIA L40S data sheet"),
    "l40": Card("NVIDIA L40", 181.1, 90.5, 90.5, 48, "NVIDIA L40 data sheet"),
    "l4": Card("NVIDIA L4", 121.0, 30.3, 60.0, 24, "NVIDIA L4 data sheet"),
    "t4": Card("Tesla T4", None, 8.1, None, 16, "NVIDIA T4 data sheet"),
    "v100": Card("Tesla V100", None, 15.7, None, 32, "NVIDIA V100 data sheet"),
    "rtx4090": Card("NVIDIA GeForce RTX 4090", 165.2, 82.6, 82.6, 24, "NVIDIA Ada GPU architecture whitepaper"),
    "rtx3090": Card("NVIDIA GeForce RTX 3090", 71.0, 35.6, 35.6, 24, "NVIDIA Ampere GA102 whitepaper"),
    # A device of MI250X is one of its two dies.
    "mi250x": Card("AMD Instinct MI250X", 191.5, 47.9, None, 64, "AMD Instinct MI250X data sheet, one of two dies"),
    "mi300x": Card("AMD Instinct MI300X", 1307.4, 163.4, 653.7, 192, "AMD Instinct MI300X data sheet"),
}

LINKS = {
    # name -> (GB/s, 1e9 bytes a second, that one GPU can send while it receives as much; what it is)
    "nvlink4": (450.0, "NVLink 4 (H100, H200), 18 links of 25 GB/s each way"),
    "nvlink3": (300.0, "NVLink 3 (A100), 12 links of 25 GB/s each way"),
    "ib400": (50.0, "InfiniBand NDR, 400 Gbit/s a GPU"),
    "ib200": (25.0, "InfiniBand HDR, 200 Gbit/s a GPU"),
    "pcie4": (32.0, "PCIe 4.0 x16"),
    "eth100": (12.5, "Ethernet, 100 Gbit/s a GPU"),
    "eth25": (3.125, "Ethernet, 25 Gbit/s a GPU"),
}


def find_card(name: str) -> Optional[Card]:
    """The card of a short name (``h100``), or of what ``torch.cuda.get_device_name`` says; None for an unknown one."""
    short = name.strip().lower()
    if short in CARDS:
        return CARDS[short]
    words = short.replace("-", " ").replace("_", " ").split()
    joined = "".join(words)
    for key, card in CARDS.items():
        head, *rest = key.split("-")
        # "L4" must not be found in "L40S".
        is_named = head in words or (head.startswith("rtx") and head in joined)
        if is_named and all(part in joined for part in rest):
            return card
    return None


def peak_flops(device_name: str, dtype: Union[torch.dtype, str]) -> Optional[float]:
    """FLOP/s of dense matrix products, or None where the card or its rate in that type is not known.

    Args:
        device_name: as ``torch.cuda.get_device_name`` gives it, or a short name of ``CARDS``.
        dtype: ``torch.bfloat16``, ``torch.float32``, or fp32, tf32, bf16. With float32 the rate is TF32's where torch
            is allowed to use it.
    """
    card = find_card(device_name)
    if card is None:
        return None
    precision = {torch.bfloat16: "bf16", torch.float32: "fp32"}.get(dtype, dtype)
    if precision == "fp32" and card.tf32 is not None and _uses_tf32():
        precision = "tf32"
    return card.peak_flops(precision) if precision in ("bf16", "fp32", "tf32") else None


def _uses_tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"
