"""The one torch.library of this package, `torch.ops.fastadv`. Each op defines itself in its own file."""

import torch

LIBRARY = torch.library.Library("fastadv", "DEF")
