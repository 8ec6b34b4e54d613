"""Group penalties for kernels, which cannot gather: a group's norm by a matrix that says who is in whose group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.regularisers import GroupL2, Regulariser, SparseGroup
from compfed.regularisers.base import like, soft
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
        x, threshold = soft(x, t * self.l1), like(x, t) * self.threshold
        norm = jnp.sqrt(self.same @ (x * x))
        return x * jnp.where(norm > threshold, 1.0 - threshold / jnp.where(norm > 0, norm, 1.0), 0.0)


def for_kernels(g: Regulariser, d: int) -> Any:
    """g with d coefficients filled up to a power of two, in a form that kernels know if there is one."""
    if not isinstance(g, GroupL2 | SparseGroup) or d > WIDEST:
        return widened(g, d)
    blank = jnp.zeros(d, jnp.float32)
    member, more = g.members(blank), (0, power(d) - d)
    same = np.pad((member[:, None] == member[None, :]).astype(np.float32), (more, more))
    l1 = jnp.broadcast_to(like(blank, g.l1 if isinstance(g, SparseGroup) else 0.0), d)
    return Groups(jnp.asarray(same), jnp.pad(g.thresholds(blank)[member], more), jnp.pad(l1, more))
