"""Engines run the rounds: `reference` message by message, `simulate` as one XLA program, `grid` as many at once,
`simulate_cohorts` with the participants of a round in memory and no others.

`Simulated` is a federation in this process whose rounds are compiled.
"""

from compfed.engines.cohorts import simulate_cohorts
from compfed.engines.grids import grid
from compfed.engines.reference_engine import reference
from compfed.engines.simulated_federation import Simulated
from compfed.engines.simulator import simulate

__all__ = ["Simulated", "grid", "reference", "simulate", "simulate_cohorts"]
