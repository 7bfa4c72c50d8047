"""Texts to vectors, split where an adversary steps in: ``embed`` (ids to X) and ``encode`` (X to vectors)."""

from fastadv.encoder.encoder import Encoder
from fastadv.encoder.heads import make_head
from fastadv.encoder.weights.source import ModelSource, find_model

__all__ = ["Encoder", "ModelSource", "find_model", "make_head"]
