"""Regularisation paths: the coefficients at many values of alpha, from the least alpha at which all are zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.estimators.programs.fit import PreparedProblem, describe_and_prepare
from compfed.estimators.programs.path import AlphaGrid, solve_path, warn_if_not_converged
from compfed.estimators.table import UNSPECIFIED, Features, RowWeights, SiteOfRows, warn_of_one_site
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, Program, run_program
from compfed.solvers.base import FederatedSolution


@dataclass(frozen=True)
class Path:
    """Coefficients of an estimator at falling values of alpha.

    Attributes
    ----------
    alphas : ndarray of shape (n_alphas,)
        The values of alpha, the largest first.
    coefs : ndarray of shape (n_alphas, ...)
        `coef_` at each alpha.
    intercepts : ndarray of shape (n_alphas, ...)
        `intercept_` at each alpha.
    rounds : int
        Messages to each site for the whole path, set-up included.
    converged : bool
        Whether every fit reached its tolerance.
    communication : Communication
        Messages and bytes, by query.
    """

    alphas: np.ndarray
    coefs: np.ndarray
    intercepts: np.ndarray
    rounds: int
    converged: bool
    communication: Communication


def regularisation_path(
    model: FederatedModel,
    X: Features,
    y: npt.ArrayLike,
    sites: SiteOfRows = UNSPECIFIED,
    *,
    sample_weight: RowWeights = None,
    alphas: npt.ArrayLike | None = None,
    n_alphas: int = 50,
    eps: float = 1e-3,
) -> Path:
    """The minimisers w(alpha), b(alpha) of an estimator's objective at many values of alpha.

    Each fit starts from the model at the nearest alpha, and fits share their messages.

    Parameters
    ----------
    model : FederatedModel
        An estimator with a given alpha, such as ``FederatedLasso()``; the value of its alpha does not matter.
    X : array, DataFrame or sparse matrix of shape (n_rows, n_features)
    y : array of shape (n_rows,), or (n_rows, n_outcomes) where the estimator takes several
    sites : array of shape (n_rows,), str or None
        The site of every row, or the name of a column of X; None if all rows are at one site.
    sample_weight : array of shape (n_rows,), optional
        How much each row counts.
    alphas : array, optional
        Values of alpha.
    n_alphas : int, default=50
        Without `alphas`: how many values, from alpha_max, the least alpha at which all coefficients are zero.
    eps : float, default=0.001
        Without `alphas`: the smallest value is ``eps * alpha_max``.

    Returns
    -------
    Path

    See Also
    --------
    FederatedLassoCV : chooses one alpha by cross-validation.

    Examples
    --------
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((60, 5))
    >>> y = 3 * X[:, 0] - X[:, 3]
    >>> path = cf.regularisation_path(cf.FederatedLasso(), X, y, sites=np.arange(60) % 3, n_alphas=5)
    >>> (path.coefs != 0).sum(axis=1)[[0, -1]]
    array([0, 2])
    """
    if not isinstance(model, FederatedModel) or hasattr(model, "cv"):
        raise InputError(
            f"regularisation_path needs an estimator with an alpha, such as FederatedLasso(); got {type(model).__name__}"
            + (", which has its own path after fit: coef_path_." if hasattr(model, "cv") else ".")
        )
    AlphaGrid("regularisation_path", alphas, n_alphas, eps).check()
    federation = model.make_table(X, y, sites, sample_weight).federation()
    path = path_over(federation, model, alphas=alphas, n_alphas=n_alphas, eps=eps)
    warn_of_one_site("regularisation_path", sites)
    return path


def path_over(
    federation: Federation,
    model: FederatedModel,
    *,
    alphas: npt.ArrayLike | None = None,
    n_alphas: int = 50,
    eps: float = 1e-3,
) -> Path:
    """`regularisation_path` over a federation: sites in this process, or sites across a network."""
    grid, options = AlphaGrid("regularisation_path", alphas, n_alphas, eps), model.fit_options()
    grid.check()

    def program() -> Program[tuple[PreparedProblem, np.ndarray, list[FederatedSolution]]]:
        prepared = yield from describe_and_prepare(federation, options)
        values = grid.values(prepared)
        return prepared, values, (yield from solve_path(federation, prepared, values))

    (prepared, values, found), cost = run_program(federation, program())
    warn_if_not_converged("regularisation_path", found, model.tol, model.max_rounds)
    coefs, intercepts = zip(*(prepared.coef_and_intercept(m.x) for m in found), strict=True)
    return Path(values, np.array(coefs), np.array(intercepts), cost.rounds, all(m.converged for m in found), cost)
