"""Regularisation paths: the coefficients at many values of alpha, from the value at which all are zero."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from compfed.errors import InputError
from compfed.estimators.base import FederatedModel, Prepared
from compfed.minimise import Minimum, minimise_all
from compfed.problem import Problem

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
            f"{type(model).__name__}: no alpha makes all coefficients zero (l1_ratio=0 has no l1 part). Give alphas."
        )
    return found


def at_alpha(model: FederatedModel, prepared: Prepared, alpha: float) -> Problem:
    """The problem with another alpha: same data, same compiled program."""
    at = copy.copy(model)
    at.alpha = alpha
    return prepared.problem.replace(regulariser=at._regulariser(prepared.frame))


def alpha_grid(largest: float, n_alphas: int, eps: float) -> np.ndarray:
    """n_alphas values from `largest` down to eps * largest, evenly spaced in the logarithm."""
    return np.geomspace(largest, eps * largest, n_alphas)


def checked_alphas(alphas: Any) -> np.ndarray:
    """Given alphas, from the largest down."""
    values = np.asarray(alphas, dtype=float)
    if values.ndim != 1 or not values.size or not (np.isfinite(values).all() and (values >= 0).all()):
        raise InputError(f"alphas={alphas!r} must be a list of finite numbers >= 0.")
    return np.sort(values)[::-1]


def follow(model: FederatedModel, prepared: Prepared, alphas: Sequence[float] | np.ndarray) -> list[Minimum]:
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
    return found


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
    model = copy.copy(model)
    prepared = model._prepare(model._federation(X, y, sites, sample_weight))
    values = checked_alphas(alphas) if alphas is not None else alpha_grid(alpha_max(model, prepared), n_alphas, eps)
    found = follow(model, prepared, values)
    coefs, intercepts = zip(*(published(model, prepared, m.x) for m in found), strict=True)
    return Path(values, np.array(coefs), np.array(intercepts), rounds_of(found), all(m.converged for m in found))


def published(model: FederatedModel, prepared: Prepared, x: np.ndarray) -> tuple[np.ndarray, Any]:
    """coef_ and intercept_ of a flat model."""
    model._publish(*prepared.frame.coefficients(x))
    return model.coef_, model.intercept_
