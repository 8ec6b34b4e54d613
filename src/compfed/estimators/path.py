"""Regularisation paths: the coefficients at many values of alpha, from the value at which all are zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.estimators.programs.fit import Prepared, prepared_of
from compfed.estimators.programs.path import AlphaGrid, following, warn_if_short
from compfed.estimators.table import NOT_SAID, warn_of_one_site
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, Program, run_program
from compfed.solvers.search import FederatedSolution


@dataclass(frozen=True)
class Path:
    """coef_(alpha) for falling alpha."""

    alphas: np.ndarray
    coefs: np.ndarray  # (alphas, *shape of coef_)
    intercepts: np.ndarray
    rounds: int  # messages for the whole path, set-up included
    converged: bool
    communication: Communication


def regularisation_path(
    model: FederatedModel,
    X: Any,
    y: Any,
    sites: Any = NOT_SAID,
    *,
    sample_weight: Any = None,
    alphas: Any = None,
    n_alphas: int = 50,
    eps: float = 1e-3,
) -> Path:
    """Coefficients of `model` at many alphas, warm-started; its own alpha does not matter.

    `alphas`, or `n_alphas` of them from alpha_max (the least at which all coefficients are zero) down to eps * alpha_max.

    >>> from compfed.estimators import FederatedLasso
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 5))
    >>> path = regularisation_path(FederatedLasso(), X, 3 * X[:, 0] - X[:, 3], sites=np.arange(60) % 3, n_alphas=5)
    >>> (path.coefs != 0).sum(axis=1)[[0, -1]]
    array([0, 2])
    """
    if not isinstance(model, FederatedModel) or hasattr(model, "cv"):
        raise InputError(
            f"regularisation_path needs an estimator with an alpha, such as FederatedLasso(); got {type(model).__name__}"
            + (", which has its own path after fit: coef_path_." if hasattr(model, "cv") else ".")
        )
    AlphaGrid("regularisation_path", alphas, n_alphas, eps).check()
    federation = model.tabulated(X, y, sites, sample_weight).federation()
    path = path_over(federation, model, alphas=alphas, n_alphas=n_alphas, eps=eps)
    warn_of_one_site("regularisation_path", sites)
    return path


def path_over(
    federation: Federation, model: FederatedModel, *, alphas: Any = None, n_alphas: int = 50, eps: float = 1e-3
) -> Path:
    """`regularisation_path` over whoever answers: sites in this process, or sites across a network."""
    grid, plan = AlphaGrid("regularisation_path", alphas, n_alphas, eps), model.plan()
    grid.check()

    def talk() -> Program[tuple[Prepared, np.ndarray, list[FederatedSolution]]]:
        prepared = yield from prepared_of(federation, plan)
        values = grid.values(prepared)
        return prepared, values, (yield from following(federation, prepared, values))

    (prepared, values, found), cost = run_program(federation, talk())
    warn_if_short("regularisation_path", found, model.tol, model.max_rounds)
    coefs, intercepts = zip(*(prepared.published(m.x) for m in found), strict=True)
    converged = all(m.converged for m in found)
    return Path(values, np.array(coefs), np.array(intercepts), cost.rounds, converged, cost)
