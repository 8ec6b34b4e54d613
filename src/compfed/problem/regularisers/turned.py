"""A regulariser of singular values in few dimensions.

Such a g does not change when all columns of the matrix X are turned in space, and grows with whatever a column has outside
a subspace. So the minimiser of g plus a quadratic lies in the span of the columns that the quadratic is made of: in a basis
of that span it is a search among as many rows as the basis has vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from compfed.problem.losses.arrays import Numbers, namespace
from compfed.problem.regularisers.algebra import OnBlock
from compfed.problem.regularisers.matrices import Nuclear, NuclearBall


class Turned(NamedTuple):
    g: Any
    given: Numbers  # what was given, in the basis
    back: Callable[[Numbers], Numbers]


def turned(g: Any, given: Numbers) -> Turned | None:
    """g and the rows of `given` in a basis of their span; None if g is of another kind, or the basis no smaller."""
    if isinstance(g, OnBlock):
        return _block_turned(g, given)
    if not isinstance(g, (Nuclear, NuclearBall)) or given[0].size <= len(given) * g.columns**2:
        return None
    xp = namespace(given)
    matrices = given.reshape(len(given), -1, g.columns)
    basis, few = xp.linalg.qr(xp.moveaxis(matrices, 0, 1).reshape(matrices.shape[1], -1))
    few = xp.moveaxis(few.reshape(len(few), len(given), g.columns), 1, 0)
    return Turned(g, few.reshape(len(given), -1), lambda u: (basis @ u.reshape(-1, g.columns)).ravel())


def _block_turned(g: OnBlock, given: Numbers) -> Turned | None:
    """The block in its basis, the free coefficients as they are."""
    block = turned(g.g, given[:, g.start : g.stop])
    if block is None:
        return None
    join, stop = namespace(given).concatenate, g.start + block.given.shape[1]
    few = join([given[:, : g.start], block.given, given[:, g.stop :]], axis=1)

    def back(u: Numbers) -> Numbers:
        return join([u[: g.start], block.back(u[g.start : stop]), u[stop:]])

    return Turned(replace(g, g=block.g, stop=stop), few, back)
