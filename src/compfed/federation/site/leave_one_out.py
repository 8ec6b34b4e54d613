"""The reply of a site to `LeaveOneOut`: the loss of each of its rows at the model that one step without the row leads to.

The server sends the Hessian H of the whole problem. A server that chose it freely could make the leverage of one row as large as
it likes and read that row by where its loss becomes infinite. So a site with a policy checks that H is one that its own rows can be
part of: H less the second derivative of its own rows has no negative eigenvalue. Then no row has a larger leverage than in a fit to
the rows of this site alone. The numbers only serve to choose among values of alpha, and leave with `BITS` bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import LinAlgError, cholesky, get_blas_funcs

from compfed._utils.array_namespace import product
from compfed.errors import InputError
from compfed.federation.queries import LeaveOneOut
from compfed.losses import ManyOutputs
from compfed.losses.base import symmetric_matrix
from compfed.losses.offset import WithOffset
from compfed.problem.padded_dataset import LocalDataset

if TYPE_CHECKING:
    from compfed.federation.site.site import Site

BLOCK = 1024  # rows whose numbers stay in the cache
EDGE = 1e-8  # a row with a leverage of over 1 - EDGE has no loss left out: there is no model without it
ROUNDING = 1e-9  # of an eigenvalue of H, its diagonal scaled to ones
BITS = 14  # of a sum that leaves a site with a policy

_trsm = get_blas_funcs(("trsm",), dtype=np.float64)[0]  # L^-1 B, without the copies and checks of solve_triangular


def left_out(query: LeaveOneOut, site: Site) -> LeaveOneOut.Reply:
    """Mean loss of the rows left out at every model, the mean of its squares, and the least mean loss of the labels."""
    data, rows = site.rows.dataset(query.objective), site.rows
    q = rows.shares_of(None)
    weights = q if query.equal_sites else np.asarray(rows.weights, float)
    loss: Any = query.objective.loss  # limits.py refuses losses without derivatives in the prediction
    inner, labels = (loss.loss, data.y[:, 0]) if isinstance(loss, WithOffset) else (loss, data.y)
    least = np.asarray(inner.saturated(labels), float)
    moved = _without_rows_of_several if isinstance(loss, ManyOutputs) else _without_rows
    found = np.empty((2, len(query.x)))
    for m, (x, packed) in enumerate(zip(query.x, query.hessian, strict=True)):
        H = symmetric_matrix(packed, query.coords.size)
        if site.policy is not None:
            _check_own_share(site.name, H, loss.hessian(x, data.A, data.y, weights, query.coords))
        z = loss.predictions(x, data.A) if isinstance(loss, ManyOutputs) else product(data.A, x)
        z, there = moved(loss, z, data, weights, query.coords, _factor(site.name, H))
        excess = np.asarray(loss.value(z, data.y), float) - least
        # of a row without a weight nothing is known, nor asked
        found[:, m] = [q[q > 0] @ (excess**power)[q > 0] if there else np.inf for power in (1, 2)]
    if site.policy is not None:
        found = rounded(found)
    return query.Reply(found[0], found[1], np.full(len(query.x), float(q @ least)))


def _factor(name: str, H: np.ndarray) -> np.ndarray:
    """The lower Cholesky factor of H."""
    try:
        return np.asfortranarray(cholesky(H, lower=True)) if H.size else H
    except LinAlgError:
        raise InputError(f"site {name!r}: the hessian of LeaveOneOut must be positive definite.") from None


def _check_own_share(name: str, H: np.ndarray, own: np.ndarray) -> None:
    """Refuse an H that has less curvature in some direction than the rows of this site."""
    if not H.size:
        return
    scale = np.sqrt(np.abs(np.diag(H)))
    scale = np.where(scale > 0, scale, 1.0)
    others = (H - own) / np.outer(scale, scale)
    if not np.isfinite(others).all() or np.linalg.eigvalsh(others)[0] < -ROUNDING * len(H):
        raise InputError(f"site {name!r} refuses LeaveOneOut: the hessian is not one that its own rows are part of.")


def rounded(values: np.ndarray) -> np.ndarray:
    """Numbers, rounded to `BITS` bits of their size; infinite ones stay."""
    size = np.where(np.isfinite(values), values, 0.0)
    unit = np.ldexp(1.0, np.frexp(size)[1] - BITS)
    return np.where(np.isfinite(values), np.rint(size / unit) * unit, values)


def _without_rows(
    loss: Any, z: np.ndarray, data: LocalDataset, weights: np.ndarray, W: np.ndarray, L: np.ndarray
) -> tuple[np.ndarray, bool]:
    """The prediction of each row by the model without it, and whether there is one for every row with a weight."""
    h = np.empty(len(z))
    for a, b, block in _blocks(data.A, W):
        V = _trsm(1.0, L, block.T, lower=1, overwrite_b=1) if len(W) else block.T
        h[a:b] = np.einsum("ij,ij->j", V, V)
    h *= weights
    leverage = h * loss.second_derivative(z, data.y)
    there = bool((leverage <= 1 - EDGE).all())
    return z + h * loss.derivative(z, data.y) / np.where(leverage < 1, 1 - leverage, 1.0), there


def _without_rows_of_several(
    loss: Any, z: np.ndarray, data: LocalDataset, weights: np.ndarray, W: np.ndarray, L: np.ndarray
) -> tuple[np.ndarray, bool]:
    """The same for several outputs: h_l = u_l J_l H^-1 J_l^T, J_l the derivative of the outputs in the coefficients W."""
    K, (j, k), there = loss.outputs, divmod(W, loss.outputs), True
    found = np.array(z, float)
    for a, b, block in _blocks(data.A, j):
        V = np.zeros((K, len(W), b - a))
        for output in range(K if len(W) else 0):
            only = np.where(k == output, block, 0.0)
            V[output] = _trsm(1.0, L, only.T, lower=1, overwrite_b=1)
        h = np.einsum("kwr,mwr->rkm", V, V) * weights[a:b, None, None]
        y = data.y[a:b]
        leverage = h @ loss.second_derivative(z[a:b], y)
        there = there and bool(np.isfinite(leverage).all() and (np.linalg.eigvals(leverage).real <= 1 - EDGE).all())
        if there:
            step = h @ np.asarray(loss.derivative(z[a:b], y))[..., None]
            found[a:b] += np.linalg.solve(np.eye(K) - leverage, step)[..., 0]
    return found, there


def _blocks(A: Any, columns: np.ndarray) -> Iterator[tuple[int, int, np.ndarray]]:
    """(first row, end, these columns of the rows between), dense and in double precision."""
    for a in range(0, len(A), BLOCK):
        b = min(a + BLOCK, len(A))
        if isinstance(A, np.ndarray):
            yield a, b, np.take(A[a:b], columns, axis=1)
        else:
            yield a, b, np.ascontiguousarray(replace(A, A=A.A[a:b])[:, columns])
