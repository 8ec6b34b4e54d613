"""Engines run the rounds: `reference` message by message, `simulate` as one XLA program, `grid` as many at once,
`simulate_out_of_core` with the participants of a round in memory and no others.

`Simulated` is a federation in this process whose rounds are compiled.
"""

from compfed.simulation.federation import Simulated
from compfed.simulation.grid import grid
from compfed.simulation.out_of_core import simulate_out_of_core
from compfed.simulation.plain import run_plain
from compfed.simulation.simulate import simulate

__all__ = ["Simulated", "grid", "run_plain", "simulate", "simulate_out_of_core"]
