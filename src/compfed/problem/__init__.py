"""The problem: min_x sum_i p_i f_i(x) + g(x). Losses, regularisers, and what can be measured at a point."""

from compfed.problem import losses, regularisers
from compfed.problem.problem import Problem

__all__ = ["Problem", "losses", "regularisers"]
