"""Regularisation paths at the server: the values of alpha, and the minimiser at each."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from compfed._utils.precision import precision
from compfed._utils.validation import check_int, check_numbers, is_number
from compfed.errors import InputError
from compfed.estimators.programs.fit import PreparedProblem
from compfed.federation.server.program import Federation, Program, gather
from compfed.solvers.auto import choose, solve
from compfed.solvers.base import FederatedSolution, SearchOptions, Start
from compfed.solvers.first_order import solve_all_by_rounds

STRIDES = (8, 1)  # every eighth alpha first, then the rest
SIDE_BY_SIDE = 25  # values of alpha that share their rounds; the next block starts where these ended


def alpha_max(name: str, prepared: PreparedProblem) -> float:
    """The least alpha at which all coefficients are zero: one gradient, summed over the sites."""
    g, null = prepared.at(1.0).regulariser, prepared.null.at
    assert null is not None
    with precision(np.dtype(float)):
        found = float(g.alpha_max(null.gradient))  # pyright: ignore[reportAttributeAccessIssue]  # every penalty here has it
    if not np.isfinite(found):
        raise InputError(
            f"{name}: no alpha makes all coefficients zero, because the penalty of some has no kink "
            "(l1_ratio=0, or a group of weight 0). Give alphas."
        )
    if found == 0:
        raise InputError(
            f"{name}: all coefficients are zero at every alpha: no feature helps to predict y, which may "
            "be constant. Give alphas, or other data."
        )
    return found


@dataclass(frozen=True)
class AlphaGrid:
    """The values of alpha from the largest down: given ones, or n_alphas from alpha_max to eps times that, in even ratios."""

    name: str  # of the caller, for messages
    alphas: npt.ArrayLike | None
    n_alphas: int
    eps: float

    def check(self) -> None:
        """Refuse parameters that cannot be used, before any work."""
        if self.alphas is not None:
            _checked_alphas(self.alphas)
        check_int(self.n_alphas, f"{self.name}: n_alphas", 1)
        if not is_number(self.eps) or not 0 < float(self.eps) < 1:
            raise InputError(f"{self.name}(eps={self.eps!r}): eps must be a number between 0 and 1.")

    def values(self, prepared: PreparedProblem) -> np.ndarray:
        if self.alphas is not None:
            return _checked_alphas(self.alphas)
        largest = alpha_max(self.name, prepared)
        return np.geomspace(largest, self.eps * largest, self.n_alphas)


def _checked_alphas(alphas: npt.ArrayLike) -> np.ndarray:
    try:
        values = check_numbers(alphas, "alphas")
    except InputError:
        values = np.empty(0)
    if values.ndim != 1 or not values.size or not (np.isfinite(values).all() and (values >= 0).all()):
        raise InputError(f"alphas={alphas!r} must be a list of finite numbers >= 0.")
    return np.sort(values)[::-1]


def solve_path(
    federation: Federation, prepared: PreparedProblem, alphas: Sequence[float] | np.ndarray
) -> Program[list[FederatedSolution]]:
    """The minimiser at each alpha; searches that are under way share their messages."""
    search = replace(prepared.options.search, progress=None)
    if choose(prepared.at(float(alphas[0])), search).second_order:
        return (yield from _coarse_to_fine(federation, prepared, alphas, search))
    return (yield from _in_blocks(federation, prepared, alphas, search))


def _coarse_to_fine(
    federation: Federation, prepared: PreparedProblem, alphas: Sequence[float] | np.ndarray, search: SearchOptions
) -> Program[list[FederatedSolution]]:
    """Every few alphas at first, from the null model; then those between, each from the nearest one found.

    An evaluation of f holds at every alpha: a search that starts from one needs no message before its first step, and its
    working set begins with that model's.
    """
    found: dict[int, FederatedSolution] = {}
    for stride in STRIDES:
        due = [k for k in range(0, len(alphas), stride) if k not in found]
        starts = [_nearest(prepared.null, found, k) for k in due]
        specs = [prepared.at(float(alphas[k])) for k in due]
        searches = [solve(federation, spec, search, start) for spec, start in zip(specs, starts, strict=True)]
        found |= dict(zip(due, (yield from gather(searches)), strict=True))
        if prepared.options.search.progress is not None:
            prepared.options.search.progress(len(found), len(alphas))
    return [found[k] for k in range(len(alphas))]


def _nearest(null: Start, found: Mapping[int, FederatedSolution], k: int) -> Start:
    """The minimum at the nearest alpha (of two the larger one, whose model is sparser), or else the null model."""
    known = [j for j, minimum in found.items() if minimum.kept is not None]  # from a second-order search
    if not known:
        return null
    nearest = found[min(known, key=lambda j: (abs(j - k), j))]
    return replace(null, x=nearest.x, at=nearest.at, kept=nearest.kept)


def _in_blocks(
    federation: Federation, prepared: PreparedProblem, alphas: Sequence[float] | np.ndarray, search: SearchOptions
) -> Program[list[FederatedSolution]]:
    """Blocks of alphas side by side, each block from the end of the one before.

    Side by side, a round serves a whole block, so that local work is the bottleneck: "auto" is FISTA here, which needs one
    gradient per round.
    """
    start = prepared.null
    search = replace(search, algorithm="FISTA" if search.algorithm == "auto" else search.algorithm)
    found: list[FederatedSolution] = []
    for first in range(0, len(alphas), SIDE_BY_SIDE):
        specs = [prepared.at(float(a)) for a in alphas[first : first + SIDE_BY_SIDE]]
        found += yield from solve_all_by_rounds(federation, specs, search, start)
        start = replace(start, x=found[-1].x)
        if prepared.options.search.progress is not None:
            prepared.options.search.progress(len(found), len(alphas))
    return found


def warn_if_not_converged(
    name: str, found: Sequence[FederatedSolution], tol: float, max_rounds: int, stacklevel: int = 3
) -> None:
    """One warning for all fits that did not converge."""
    short = [m.certificate.relative for m in found if not m.converged]
    if short:
        warnings.warn(
            f"{name}: {len(short)} of {len(found)} fits stopped at max_rounds={max_rounds} or before, with a gradient "
            f"mapping of up to {max(short):.1e} of its scale; tol is {tol:g}. Give more max_rounds, a larger tol, or "
            "an exact algorithm.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )
