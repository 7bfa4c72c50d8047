"""What is trained: one file a system. `base.py` says what an objective must offer."""

from fastadv.objectives.base import Keys, Objective, Views, resolve_objective

__all__ = ["Keys", "Objective", "Views", "resolve_objective"]
