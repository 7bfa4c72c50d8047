"""Which units of the machine multiply matrices in bfloat16.

AMX and GPUs do so at several times the speed of float32. The vector instruction of AVX-512 does not everywhere: on a
Xeon (Emerald Rapids) without AMX, (755, 384) by (384, 1536) ran at 69 GFLOP/s a thread in bfloat16, and at 98 to 119
in float32.
"""

import torch


def bf16_units(device: torch.device | str = "cpu") -> str | None:
    """``amx``, ``avx512_bf16`` or ``cuda``: the units that multiply in bfloat16 on ``device``; None: it has none."""
    if torch.device(device).type == "cuda":
        return "cuda" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    if torch.cpu._is_amx_tile_supported():
        return "amx"
    return "avx512_bf16" if torch.cpu._is_avx512_bf16_supported() else None


def is_bf16_fast(device: torch.device | str = "cpu") -> bool:
    """Whether products in bfloat16 are sure to be faster on ``device`` than in float32."""
    return bf16_units(device) in ("amx", "cuda")
