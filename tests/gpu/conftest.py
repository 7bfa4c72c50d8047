"""Fixtures that the checks on a pretended GPU share with the tests of runs."""

from tests.engine.systems import attack, make_system, victim  # noqa: F401
