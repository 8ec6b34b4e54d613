"""Group penalties for kernels, which cannot gather: a group's norm by a matrix that says who is in whose group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.array_namespace import cast_like
from compfed.prox import group_shrinkage, soft_threshold
from compfed.regularisers import GroupL2, Regulariser, SparseGroup
from compfed.simulation.pallas.one_pass import power
from compfed.simulation.pallas.rows import widened

WIDEST = 128  # the matrix is held on chip beside the rows


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """GroupL2 and SparseGroup, their prox only."""

    same: Array  # 1 where row and column are in one group
    threshold: Array  # lam w_g of each coefficient's group
    l1: Array

    def prox(self, x: Array, t: Array | float) -> Array:
        x = soft_threshold(x, t * self.l1)
        norm = jnp.sqrt(self.same @ (x * x))
        return x * group_shrinkage(norm, cast_like(t, x) * self.threshold)


def for_kernels(g: Regulariser, d: int) -> Any:
    """g with d coefficients filled up to a power of two, in a form that kernels know if there is one."""
    if not isinstance(g, GroupL2 | SparseGroup) or d > WIDEST:
        return widened(g, d)
    blank = jnp.zeros(d, jnp.float32)
    member, more = g.group_of(blank), (0, power(d) - d)
    same = np.pad((member[:, None] == member[None, :]).astype(np.float32), (more, more))
    l1 = jnp.broadcast_to(cast_like(g.l1 if isinstance(g, SparseGroup) else 0.0, blank), d)
    return Groups(jnp.asarray(same), jnp.pad(g.thresholds(blank)[member], more), jnp.pad(l1, more))
