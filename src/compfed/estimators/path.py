"""Regularisation paths: the coefficients at many values of alpha, from the value at which all are zero."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import jax
import numpy as np
from sklearn.exceptions import ConvergenceWarning

from compfed.engines.run import Progress, whole
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, Prepared
from compfed.problem.problem import Problem
from compfed.solvers.federated import Minimum, minimise_all
from compfed.tools.progress import progress_bar

SIDE_BY_SIDE = 25  # values of alpha that share their rounds; the next so many start where these ended


@dataclass(frozen=True)
class Path:
    """coef_(alpha) for falling alpha."""

    alphas: np.ndarray
    coefs: np.ndarray  # (alphas, *shape of coef_)
    intercepts: np.ndarray
    rounds: int  # communication rounds for the whole path
    converged: bool


def alpha_max(model: FederatedModel, prepared: Prepared) -> float:
    """The least alpha at which all coefficients are zero: one gradient, aggregated over the sites."""
    g: Any = at_alpha(model, prepared, 1.0).regulariser
    with jax.enable_x64(True):
        found = float(g.critical(prepared.null_gradient))
    if not np.isfinite(found):
        raise InputError(
            f"{type(model).__name__}: no alpha makes all coefficients zero, because the penalty of some has no kink "
            "(l1_ratio=0, or a group of weight 0). Give alphas."
        )
    if found == 0:
        raise InputError(
            f"{type(model).__name__}: all coefficients are zero at every alpha: no feature helps to predict y, which may "
            "be constant. Give alphas, or other data."
        )
    return found


def at_alpha(model: FederatedModel, prepared: Prepared, alpha: float) -> Problem:
    """The problem with another alpha: same data, same compiled program."""
    at = copy.copy(model)
    at.alpha = alpha
    return prepared.problem.replace(regulariser=at._regulariser(prepared.frame))


def alpha_grid(model: FederatedModel, prepared: Prepared, alphas: Any, n_alphas: int, eps: float) -> np.ndarray:
    """Given alphas from the largest down, or n_alphas from alpha_max to eps times that, even in the logarithm."""
    if alphas is not None:
        return checked_alphas(alphas)
    largest = alpha_max(model, prepared)
    return np.geomspace(largest, eps * largest, n_alphas)


def check_grid(name: str, alphas: Any, n_alphas: Any, eps: Any) -> None:
    """Refuse what alpha_grid cannot use, before any work."""
    if alphas is not None:
        checked_alphas(alphas)
    whole(n_alphas, f"{name}: n_alphas", 1)
    if isinstance(eps, bool) or not isinstance(eps, Real) or not 0 < float(eps) < 1:
        raise InputError(f"{name}(eps={eps!r}): eps must be a number between 0 and 1.")


def checked_alphas(alphas: Any) -> np.ndarray:
    """Given alphas, from the largest down."""
    try:
        values = np.asarray(alphas, dtype=float)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.ndim != 1 or not values.size or not (np.isfinite(values).all() and (values >= 0).all()):
        raise InputError(f"alphas={alphas!r} must be a list of finite numbers >= 0.")
    return np.sort(values)[::-1]


def follow(
    model: FederatedModel,
    prepared: Prepared,
    alphas: Sequence[float] | np.ndarray,
    progress: Progress | None = None,
) -> list[Minimum]:
    """The minimiser at each alpha: blocks of them side by side, each block from the end of the one before.

    Side by side, a round serves a whole block, so that what is scarce is local work: "auto" is FISTA here, which needs
    one gradient per round.
    """
    scale = float(np.linalg.norm(prepared.null_gradient))
    found: list[Minimum] = []
    for start in range(0, len(alphas), SIDE_BY_SIDE):
        found += minimise_all(
            [at_alpha(model, prepared, float(a)) for a in alphas[start : start + SIDE_BY_SIDE]],
            found[-1].x if found else prepared.null,
            algorithm="FISTA" if model.algorithm == "auto" else model.algorithm,
            tau=model.tau,
            tol=model.tol,
            max_rounds=model.max_rounds,
            scale=scale,
        )
        if progress is not None:
            progress(len(found), len(alphas))
    return found


def warn_if_short(name: str, found: Sequence[Minimum], model: FederatedModel, stacklevel: int = 3) -> None:
    """One warning for all minimisers that were not reached."""
    short = [m.certificate.relative for m in found if not m.converged]
    if short:
        warnings.warn(
            f"{name}: {len(short)} of {len(found)} fits stopped at max_rounds={model.max_rounds} or before, with a gradient "
            f"mapping of up to {max(short):.1e} of its scale; tol is {model.tol:g}. Give more max_rounds, a larger tol, or "
            "an exact algorithm.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


def rounds_of(found: Sequence[Minimum]) -> int:
    """Communication rounds of a path: those who run side by side share theirs."""
    blocks = [found[start : start + SIDE_BY_SIDE] for start in range(0, len(found), SIDE_BY_SIDE)]
    return sum(max(m.rounds for m in block) for block in blocks)


def regularisation_path(
    model: FederatedModel,
    X: Any,
    y: Any,
    sites: Any = None,
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
    check_grid("regularisation_path", alphas, n_alphas, eps)
    model = copy.copy(model)
    prepared = model._prepare(model._federation(X, y, sites, sample_weight))
    values = alpha_grid(model, prepared, alphas, n_alphas, eps)
    found = follow(model, prepared, values, progress_bar("path") if model.verbose else None)
    warn_if_short("regularisation_path", found, model)
    coefs, intercepts = zip(*(published(model, prepared, m.x) for m in found), strict=True)
    return Path(values, np.array(coefs), np.array(intercepts), rounds_of(found), all(m.converged for m in found))


def published(model: FederatedModel, prepared: Prepared, x: np.ndarray) -> tuple[np.ndarray, Any]:
    """coef_ and intercept_ of a flat model."""
    model._publish(*prepared.frame.coefficients(x))
    return model.coef_, model.intercept_
