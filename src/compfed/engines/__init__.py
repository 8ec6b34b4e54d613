"""Engines run the rounds: `reference` as a Python loop, `simulate` as one XLA program, `grid` as many at once."""

from compfed.engines.grid import grid
from compfed.engines.reference import reference
from compfed.engines.simulate import simulate

__all__ = ["grid", "reference", "simulate"]
