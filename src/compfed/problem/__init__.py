"""The problem: min_x sum_i p_i f_i(x) + g(x). Losses, regularisers, and what can be measured at a point."""

from compfed import losses, regularisers
from compfed.problem.lazy import LazyProblem
from compfed.problem.problem import Problem

__all__ = ["LazyProblem", "Problem", "losses", "regularisers"]
