"""Regularisers g: a value and its proximal operator, from one formula.

`g(x)` is a number (0 or inf for the indicator of a set); `g.prox(x, t)` = argmin_u t g(u) + ||u - x||^2 / 2. x is one
flat vector; a model matrix with K columns is `x.reshape(-1, K)`. NumPy arrays give NumPy arrays, JAX arrays JAX arrays.

base.py             the protocol, the base class, and `from_object` for regularisers written elsewhere
penalties.py        each coefficient by itself: Zero, L1, ElasticNet, Ridge, MCP, SCAD;
                    coupled coefficients: GroupL2, SparseGroup, LinfNorm, SortedL1, TotalVariation1D, Nuclear;
                    constraints: Box, NonNegative, L1Ball, L2Ball, Simplex, NuclearBall
combinations.py     Scaled, Shifted, Rescaled, OnBlock, Blocks, SumOf
coordinate_form.py  the structure that second-order solvers use

The soft threshold and the other elementary proximal operators are in `compfed.prox`.
"""

from compfed.regularisers.base import Regulariser, from_object, largest_step
from compfed.regularisers.combinations import Blocks, OnBlock, Rescaled, Scaled, Shifted, SumOf
from compfed.regularisers.penalties import L1, MCP, SCAD, ElasticNet, Ridge, Zero

# isort: split
from compfed.regularisers.penalties import GroupL2, LinfNorm, Nuclear, SortedL1, SparseGroup, TotalVariation1D

# isort: split
from compfed.regularisers.penalties import Box, L1Ball, L2Ball, NonNegative, NuclearBall, Simplex

__all__ = [
    "L1", "MCP", "SCAD", "Blocks", "Box", "ElasticNet", "GroupL2", "L1Ball", "L2Ball", "LinfNorm", "NonNegative",
    "Nuclear", "NuclearBall", "OnBlock", "Regulariser", "Rescaled", "Ridge", "Scaled", "Shifted", "Simplex",
    "SortedL1", "SparseGroup", "SumOf", "TotalVariation1D", "Zero", "from_object", "largest_step",
]  # fmt: skip
