"""Fixtures that the tests of runs share."""

from tests.engine.systems import attack, make_system, victim  # noqa: F401
