"""The search for the worst small perturbation of a batch's embeddings (METHODS 1)."""

from .adaptive import AdaptiveReuse
from .ball import Sizes, check_resolution, sentence_sizes
from .inner_loop import Adversary, NonFiniteGradient, Perturbation
from .token import EtaTable

__all__ = [
    "AdaptiveReuse",
    "Adversary",
    "EtaTable",
    "NonFiniteGradient",
    "Perturbation",
    "Sizes",
    "check_resolution",
    "sentence_sizes",
]
