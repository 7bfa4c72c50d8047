"""The search for the worst small perturbation of a batch's embeddings (METHODS 1)."""

from fastadv.perturbation.adaptive import AdaptiveReuse
from fastadv.perturbation.ball import Sizes, check_resolution, sentence_sizes
from fastadv.perturbation.inner_loop import Adversary, NonFiniteGradient, Perturbation
from fastadv.perturbation.search import Search
from fastadv.perturbation.token import EtaTable

__all__ = [
    "AdaptiveReuse",
    "Adversary",
    "EtaTable",
    "NonFiniteGradient",
    "Perturbation",
    "Search",
    "Sizes",
    "check_resolution",
    "sentence_sizes",
]
