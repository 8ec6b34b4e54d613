"""The problem min_x sum_i p_i f_i(x) + g(x) with its rows in this process.

problem.py        Problem and LazyProblem
padded_dataset.py rows as computations take them: padded for the device (`pad_sites`), of one site, sparse
evaluation.py     f_i as an algorithm sees it; F, its gradient and the gradient mapping, compiled
"""

from compfed import losses, regularisers
from compfed.problem.problem import LazyProblem, Problem

__all__ = ["LazyProblem", "Problem", "losses", "regularisers"]
