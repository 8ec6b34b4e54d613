"""Engines run the rounds: `reference` as a Python loop, `simulate` as one XLA program, `grid` as many at once."""

from compfed.engines.grids import grid
from compfed.engines.reference_engine import reference
from compfed.engines.simulator import simulate

__all__ = ["grid", "reference", "simulate"]
