"""compfed: composite federated learning, min_x sum_i p_i f_i(x) + g(x) over data that stays at n sites."""

from importlib.metadata import version

from compfed import algorithms, data, engines, losses, regularisers, steps
from compfed.engines import grid, simulate
from compfed.errors import Divergence, InputError, StepSizeWarning
from compfed.minimise import Minimum, minimise
from compfed.problem import Problem
from compfed.progress import progress_bar
from compfed.solve import Solution, solve
from compfed.trace import Trace

__version__ = version("compfed")
__all__ = [
    "Divergence", "InputError", "Minimum", "Problem", "Solution", "StepSizeWarning", "Trace", "algorithms", "data",
    "engines", "grid", "losses", "minimise", "progress_bar", "regularisers", "simulate", "solve", "steps",
]  # fmt: skip
