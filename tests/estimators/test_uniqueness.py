"""Is the minimiser the only one? The oracle moves the coefficients and evaluates the objective in NumPy."""

from __future__ import annotations

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

import compfed as cf
from compfed.federation import DisclosurePolicy, InProcess

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4))
Y = X[:, 0] - X[:, 1] + 0.1 * RNG.standard_normal(30)
SITES = np.arange(30) % 3
KINDS = np.eye(3)[RNG.integers(0, 3, 30)]


def fitted(model: Any, X: np.ndarray, y: np.ndarray = Y) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, sites=SITES)
    assert all(w.category is cf.NotUniqueWarning for w in caught)
    return model, [str(w.message) for w in caught]


def other_lasso_solution(X: np.ndarray, y: np.ndarray, coef: np.ndarray, positive: bool) -> float:
    """How far, in the sum of |changes|, another lasso solution is: those with the same predictions and l1 norm.

    All minimisers of the lasso have one Xw + b and one ||w||_1 (Tibshirani 2013, Lemma 1): w = p - m with p, m >= 0 is
    found by linear programming, for the sum of changes of each coefficient up and down.
    """
    Z, d = X - X.mean(axis=0), X.shape[1]
    equal = np.block([[Z, -Z], [np.ones((1, 2 * d))]])
    right = np.append(Z @ coef, np.abs(coef).sum())
    upper = [(0, None)] * d + [(0, 0 if positive else None)] * d
    ends = []
    for j in range(d):
        for sign in (1.0, -1.0):
            cost = np.zeros(2 * d)
            cost[[j, d + j]] = sign, -sign
            ends.append(abs(sign * linprog(cost, A_eq=equal, b_eq=right, bounds=upper).fun - coef[j]))
    return max(ends)


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(
    ("more", "alpha"),
    [
        (X[:, []], 0.1),
        (X[:, [0]], 0.1),
        (-X[:, [0]], 0.1),
        (2 * X[:, [0]], 0.1),  # cheaper per unit of prediction: it alone is used
        (X[:, [2]], 0.1),  # the copy of a coefficient that is zero
        ((X[:, [0]] - X[:, [1]]) / 2, 0.1),
        (X[:, [0]] + X[:, [1]], 0.1),
        (np.ones((30, 1)), 0.1),
        (KINDS, 0.01),
    ],
    ids=["none", "copy", "negative", "double", "idle", "half the sum", "sum", "constant", "one-hot"],
)
def test_lasso(more, alpha, positive):
    table = np.column_stack([X, more])
    model, messages = fitted(cf.FederatedLasso(alpha, positive=positive), table)
    unique = other_lasso_solution(table, Y, model.coef_, positive) < 1e-6
    assert model.certificate_.unique == unique
    assert len(messages) == int(not unique)


def test_the_columns_are_named():
    frame = pd.DataFrame(np.column_stack([X, X[:, 0]]), columns=["age", "dose", "weight", "height", "age in years"])
    model, (message,) = fitted(cf.FederatedLasso(0.1), frame)  # pyright: ignore[reportArgumentType]  # a table
    assert "those of 'age', 'age in years' can change together" in message
    assert model.certificate_.holds


@pytest.mark.parametrize(
    ("model", "y", "unique"),
    [
        (cf.FederatedLasso(0.0), Y, False),
        (cf.FederatedElasticNet(0.1), Y, True),  # a ridge has one minimiser
        (cf.FederatedHuber(0.01, delta=0.05), Y, False),
        (cf.FederatedPoissonRegressor(0.0), np.rint(np.exp(Y)), False),
        (cf.FederatedPoissonRegressor(0.1), np.rint(np.exp(Y)), True),
        (cf.FederatedLogisticRegression(0.01), Y + X[:, 2] ** 2 > 1, False),
        (cf.FederatedGroupLasso(0.05, groups=[0, 0, 1, 1, 2]), Y, True),  # a larger group is the cheaper one
        (cf.FederatedGroupLasso(0.05), Y, False),
        (cf.FederatedMultiTaskLasso(0.1), np.column_stack([Y, -Y]), False),
        (cf.FederatedLassoCV([0.1, 0.05], cv=2), Y, False),
        (cf.FederatedNuclearRegressor(0.1), np.column_stack([Y, -Y]), None),
        (cf.FederatedLasso(0.1, algorithm="ProximalBFGS"), Y, None),  # nobody was asked for curvature
    ],
    ids=lambda case: type(case).__name__,
)
def test_a_column_twice(model, y, unique):
    """Where it says no, moving the coefficients from one copy to the other keeps the objective."""
    table = np.column_stack([X, X[:, 0]])
    model, messages = fitted(model, table, y)
    assert model.certificate_.unique is unique
    assert bool(messages) == (unique is False)
    if unique is False:
        coef = np.atleast_2d(model.coef_)
        total = coef[:, 0] + coef[:, 4]
        penalties = [np.linalg.norm(total * share) + np.linalg.norm(total * (1 - share)) for share in (0.0, 0.3, 1.0)]
        np.testing.assert_allclose(penalties, penalties[0])  # as cheap, and predictions have the sum alone
        if getattr(model, "alpha", 1.0) > 0:  # else coefficients of opposite signs are as cheap
            np.testing.assert_allclose(np.linalg.norm(coef[:, 0]) + np.linalg.norm(coef[:, 4]), penalties[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "unique"),
    [
        (cf.FederatedPoissonRegressor(0.0), None),
        (cf.FederatedLogisticRegression(0.01), None),
        (cf.FederatedLasso(0.05), False),  # second derivatives of squared losses keep all digits
    ],
    ids=lambda case: type(case).__name__,
)
def test_a_column_twice_under_a_policy(model: Any, unique: bool | None):
    """The minimiser is not unique, as without a policy. A rounded Hessian has no zero eigenvalue: no site is asked for one."""
    rng = np.random.default_rng(3)
    table = rng.standard_normal((200, 4))
    y = table[:, 0] + 0.5 * rng.standard_normal(200)
    if isinstance(model, cf.FederatedPoissonRegressor):
        y = rng.poisson(np.exp(0.3 * y)).astype(float)
    elif isinstance(model, cf.FederatedLogisticRegression):
        y = (y > 0).astype(float)
    sites = cf.data.from_table(np.column_stack([table, table[:, 0]]), y, np.arange(200) % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cf.NotUniqueWarning)
        free, walled = (
            deepcopy(model).fit_federation(InProcess(sites, policy=policy)) for policy in (None, DisclosurePolicy())
        )
    assert free.certificate_.unique is False
    assert walled.certificate_.unique is unique
    assert walled.certificate_.holds


def test_without_a_copy_all_of_them_are_sure():
    for model, y in (
        (cf.FederatedLasso(0.0), Y),
        (cf.FederatedGroupLasso(0.05, groups=[0, 0, 1, 1]), Y),
        (cf.FederatedLasso(100.0), Y),
        (cf.FederatedMultiTaskLasso(0.1), np.column_stack([Y, -Y])),
    ):
        found, messages = fitted(model, X, y)
        assert found.certificate_.unique is True
        assert not messages


@pytest.mark.parametrize("alpha", [1e-300, 1e-30])
def test_a_penalty_below_rounding_pulls_at_no_group(alpha):
    """A group at zero without a slope has no direction to move in: an undefined one is not divided by."""
    on = (np.arange(12.0) % 2)[:, None]
    X = np.column_stack([on, 0 * on, 0 * on + 1 / 3, on])
    Y = np.column_stack([on, -0.5 * on])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", cf.NotUniqueWarning)
        model = cf.FederatedMultiTaskLasso(alpha=alpha, fit_intercept=False).fit(X, Y, sites=np.arange(12) % 3)
    np.testing.assert_allclose(model.predict(X), Y, atol=1e-12)
