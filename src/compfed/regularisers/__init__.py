"""Regularisers g: a value and its proximal operator, from one formula.

`g(x)` is a number (0 or inf for the indicator of a set); `g.prox(x, t)` = argmin_u t g(u) + ||u - x||^2 / 2. x is one
flat vector; a model matrix with K columns is `x.reshape(-1, K)`.

separable.py    each coefficient by itself: Zero, L1, ElasticNet, Ridge, Box, NonNegative
groups.py       groups of coefficients: GroupL2, SparseGroup
ordered.py      by size: LinfNorm, SortedL1
sequences.py    neighbours: TotalVariation1D
matrices.py     singular values: Nuclear, NuclearBall
sets.py         L1Ball, L2Ball, Simplex
nonconvex.py    MCP, SCAD
algebra.py      Scaled, Shifted, Rescaled, OnBlock, Blocks
sums.py         SumOf, where the prox of a sum is known
form.py         form_of: coefficient by coefficient in NumPy, for those that can be written so
adapter.py      from_object, for regularisers written elsewhere
"""

from compfed.regularisers.adapter import from_object
from compfed.regularisers.algebra import Blocks, OnBlock, Rescaled, Scaled, Shifted
from compfed.regularisers.base import Regulariser, largest_step, soft
from compfed.regularisers.groups import GroupL2, SparseGroup
from compfed.regularisers.matrices import Nuclear, NuclearBall
from compfed.regularisers.ordered import LinfNorm, SortedL1, TotalVariation1D
from compfed.regularisers.separable import L1, MCP, SCAD, Box, ElasticNet, NonNegative, Ridge, Zero
from compfed.regularisers.sets import L1Ball, L2Ball, Simplex
from compfed.regularisers.sums import SumOf

__all__ = [
    "L1", "MCP", "SCAD", "Blocks", "Box", "ElasticNet", "GroupL2", "L1Ball", "L2Ball", "LinfNorm", "NonNegative",
    "Nuclear", "NuclearBall", "OnBlock", "Regulariser", "Rescaled", "Ridge", "Scaled", "Shifted", "Simplex",
    "SortedL1", "SparseGroup", "SumOf", "TotalVariation1D", "Zero", "from_object", "largest_step", "soft",
]  # fmt: skip
