"""Simulation of a federation on one machine, or on several.

- `simulate`: all rounds as one XLA program.
- `grid`: many settings at once.
- `simulate_out_of_core`: only the participants of a round in memory.
- `run_plain`: message by message, the reference for the others.
- `CostModel`: simulated seconds of a round, for the column "clock".
- `Simulated`: a federation in this process whose rounds are compiled.
"""

from compfed.simulation.clock import CostModel
from compfed.simulation.grid import grid
from compfed.simulation.local_federation import Simulated, run_plain
from compfed.simulation.out_of_core import simulate_out_of_core
from compfed.simulation.simulate import simulate

__all__ = ["CostModel", "Simulated", "grid", "run_plain", "simulate", "simulate_out_of_core"]
