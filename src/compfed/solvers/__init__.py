"""Minimisers: of the pooled rows (`solve`), and over sites, with a certificate (`minimise`)."""

from compfed.solvers import steps
from compfed.solvers.in_this_process import minimise
from compfed.solvers.pooled import Solution, solve
from compfed.solvers.search import Minimum

__all__ = ["Minimum", "Solution", "minimise", "solve", "steps"]
