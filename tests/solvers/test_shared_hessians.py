"""Searches that share Hessians: when a fold asks for its own, the formulas of a step, and what travels along."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Lasso

import compfed as cf
from compfed.estimators.programs import path_and_cv
from compfed.federation import Evaluate, HeldOut, InProcess
from compfed.federation.queries.held_out import HeldOutSum
from compfed.federation.server.trial import Evaluated, evaluate_request, evaluation
from compfed.federation.spec import FederatedProblem
from compfed.losses import Squared
from compfed.regularisers import L1, ElasticNet
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.solvers.base import SearchOptions, SolverState, Start
from compfed.solvers.quadratic_model import by_sets_of_signs
from compfed.solvers.search import HessianSharing, Search
from compfed.solvers.second_order import ProximalNewton, corrected

pytestmark = pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")


class Watched(InProcess):
    """Sites whose requests are kept."""

    def exchange(self, requests: Any) -> Any:
        self.asked = [*getattr(self, "asked", []), [query for request in requests for query in request.queries]]
        return super().exchange(requests)

    def own_hessians(self) -> int:
        """Hessians of the rows of a fold."""
        queries = [query for message in self.asked for query in message if isinstance(query, Evaluate)]
        return sum(query.coords is not None and query.objective.subset is not None for query in queries)


def strong() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """600 rows whose folds differ as much as their curvature: a strong signal in 40 columns."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((600, 40))
    for j in range(1, 40):
        X[:, j] = 0.3 * X[:, j - 1] + np.sqrt(0.91) * X[:, j]
    w = np.where(np.arange(40) < 4, 3.0, 0.0) * np.where(np.arange(40) % 2, -1, 1)
    return X, (X @ w + rng.logistic(size=600) > 0).astype(int), np.arange(600) % 4


def watched(X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> Watched:
    parts = [np.flatnonzero(sites == k) for k in np.unique(sites)]
    return Watched(cf.data.from_arrays([X[rows] for rows in parts], [y[rows] for rows in parts]))


def test_a_fold_asks_for_its_own_hessian_where_shared_ones_do_not_converge(monkeypatch):
    table = strong()
    federation = watched(*table)
    model = cf.FederatedLogisticRegressionCV(n_alphas=12, cv=3, max_rounds=60).fit_federation(federation)
    assert model.n_fits_not_converged_ == 0
    assert federation.own_hessians() > 0
    for name in ("AT_ANCHORS", "BETWEEN"):
        monkeypatch.setattr(path_and_cv, name, np.inf)
    shared = watched(*table)
    with pytest.warns(match="fits stopped"):
        model = cf.FederatedLogisticRegressionCV(n_alphas=12, cv=3, max_rounds=60).fit_federation(shared)
    assert shared.own_hessians() == 0
    assert model.n_fits_not_converged_ > 0


def test_many_rows_need_few_hessians():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 6))
    y = (X[:, 0] - X[:, 1] + rng.logistic(size=6000) > 0).astype(int)
    federation = watched(X, y, np.arange(6000) % 3)
    model = cf.FederatedLogisticRegressionCV(n_alphas=17, cv=3).fit_federation(federation)
    assert model.n_fits_not_converged_ == 0
    # the loss of rows held out comes with the last trials: at most the losses of a few ends take a message of their own
    alone = [message for message in federation.asked if all(isinstance(query, HeldOut) for query in message)]
    assert sum(len(query.x) for message in alone for query in message) < 17
    hessians = [q for m in federation.asked for q in m if isinstance(q, Evaluate) and q.coords is not None]
    models = sum(len(q.x) for m in federation.asked for q in m if isinstance(q, Evaluate))
    assert sum(len(q.x) for q in hessians) < models / 3


def test_losses_that_come_with_a_trial_are_those_of_the_end():
    """The last trial of a search is its end: its loss is what a query about the coefficients of the fold says."""
    X, y, sites = strong()
    fold = np.arange(600) % 3
    alphas = np.geomspace(0.1, 0.01, 9)
    model = cf.FederatedLogisticRegressionCV(alphas, cv=fold).fit(X[:, :8], y, sites=sites)
    for k in range(3):
        out = fold == k
        for i in (0, 3, 8):
            one: Any = cf.FederatedLogisticRegression(model.alphas_[i], tol=1e-13).fit(
                X[~out, :8], y[~out], sites=sites[~out]
            )
            z = X[out, :8] @ one.coef_[0] + one.intercept_[0]
            loss = np.mean(np.logaddexp(0, z) - y[out] * z)
            np.testing.assert_allclose(model.cv_loss_[i, k], loss, rtol=1e-11)


def test_a_loss_that_came_with_a_trial_that_is_not_the_end_is_not_that_of_the_end():
    """At max_rounds the search ends at the best model, and the last trial was worse."""
    problem = cf.Problem(Squared(), L1(0.01), cf.data.from_arrays([np.eye(3) + 1], [np.arange(3.0)]))
    spec, loss = FederatedProblem.of(problem), HeldOutSum(1.0, np.ones(1), 1)
    for worse in (False, True):
        start = Start(np.zeros(3), 10.0, 10.0, 1.0)
        search = Search(spec, SearchOptions(max_rounds=2, tol=1e-12), ProximalNewton(), start)
        sites = InProcess(problem.sites)
        for last in (False, True):
            found: Any = sites.exchange([evaluate_request(spec, search.trial)])
            (sums,), cost = found
            at = evaluation(spec, search.trial, sums[0])
            at = at._replace(value=at.value + 1e3, gradient=at.gradient + 1) if worse and last else at
            search.observe(at, cost, loss if last else None)
        assert search.solution is not None
        assert (search.solution.held_out is None) == worse
        assert search.lacks_loss == worse


# --- formulas ---


@pytest.mark.parametrize("seed", range(3))
def test_a_corrected_matrix_has_the_secant_and_is_that_of_bfgs(seed):
    """H s = y, symmetric and positive; in the plane across, where neither s nor H s nor y reaches, it is H."""
    rng = np.random.default_rng(seed)
    d = 6
    R, T, s = rng.standard_normal((9, d)), rng.standard_normal((9, d)), rng.standard_normal(d)
    H, y = R.T @ R, T.T @ (T @ s)
    found = corrected(H, s, y)
    np.testing.assert_allclose(found @ s, y, rtol=1e-10)
    np.testing.assert_allclose(found, found.T, rtol=0, atol=1e-12 * np.abs(found).max())
    assert np.linalg.eigvalsh(found)[0] > 0
    across = np.linalg.svd(np.array([H @ s, y]))[2][2:]
    np.testing.assert_allclose(found @ across.T, H @ across.T, atol=1e-10)
    # the inverse of BFGS, from its product form
    rho = 1 / (y @ s)
    V = np.eye(d) - rho * np.outer(y, s)
    np.testing.assert_allclose(
        np.linalg.inv(found), V.T @ np.linalg.inv(H) @ V + rho * np.outer(s, s), rtol=1e-6, atol=1e-9
    )


def test_a_curvature_that_cancels_is_not_taken_away():
    """Rounding left an eigenvalue below zero, and along s it takes away all but a ten-millionth of the curvature."""
    H, s, y = np.diag([1.0, -1e-10]), np.array([1e-5 * (1 + 1e-7), 1.0]), np.array([1e-5, 0.0])
    old, Hs = s @ H @ s, H @ s
    assert old > 0
    assert np.linalg.eigvalsh(H - np.outer(Hs, Hs) / old)[0] < -1e6  # what BFGS would make of it
    assert np.linalg.eigvalsh(corrected(H, s, y))[0] > -1e-9


def test_a_gradient_that_does_not_grow_corrects_nothing():
    H, s = np.diag([1.0, 2.0]), np.array([1.0, 1.0])
    assert corrected(H, s, np.array([-1.0, 0.0])) is H
    assert corrected(H, s, np.array([np.nan, 1.0])) is H
    assert corrected(H, s, np.array([np.inf, 1.0])) is H


def cubic(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient and the Hessian of x'Qx / 2 + sum c x^3 / 6 - b'x."""
    Q, c, b = np.array([[2.0, 0.3], [0.3, 1.5]]), np.array([0.4, -0.2]), np.array([1.0, 2.0])
    return Q @ x + c * x**2 / 2 - b, Q + np.diag(c * x)


def test_between_two_anchors_a_cubic_is_known_exactly():
    """f is a cubic: its gradient on the line between two points follows from gradients and Hessians at both ends."""
    left, right = np.array([0.1, 0.2]), np.array([0.5, 0.9])
    states, share = [], 0.37
    for x in (left, right):
        gradient, H = cubic(x)
        at = Evaluated(x, 0.0, gradient, 1.0)
        states.append(SolverState(at, 0.0, None, {"W": np.arange(2), "H": H, "summed": H}))  # pyright: ignore[reportArgumentType]
    problem = cf.Problem(Squared(), L1(0.01), cf.data.from_arrays([np.eye(2)], [np.ones(2)]))
    found = path_and_cv.guess_between(FederatedProblem.of(problem), states[0], states[1], share, False).trial.x
    x = (1 - share) * left + share * right
    gradient, H = cubic(x)
    # the minimiser of the quadratic model there, with both coefficients positive
    np.testing.assert_allclose(found, x - np.linalg.solve(H, gradient + 0.01), rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_sets_of_signs_end_in_the_lasso_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((40, 12))
    b = A @ np.where(np.arange(12) < 4, 2.0, 0.0) + rng.standard_normal(40)
    H, x = A.T @ A / 40, rng.standard_normal(12) * (rng.random(12) < 0.5)
    found = by_sets_of_signs(coordinate_form(L1(0.2), 12), x, H @ x - A.T @ b / 40, H)  # pyright: ignore[reportArgumentType]
    star = Lasso(0.2, fit_intercept=False, tol=1e-15, max_iter=100_000).fit(A, b).coef_
    assert found is not None
    np.testing.assert_allclose(found, star, atol=1e-10)
    np.testing.assert_array_equal(found == 0, star == 0)
    ridged: Any = by_sets_of_signs(coordinate_form(ElasticNet(0.2, 0.5), 12), x, H @ x - A.T @ b / 40, H)  # pyright: ignore[reportArgumentType]
    r = H @ ridged - A.T @ b / 40 + 0.5 * ridged  # pyright: ignore[reportOperatorIssue]
    np.testing.assert_allclose(
        np.where(ridged != 0, r + 0.2 * np.sign(ridged), np.maximum(np.abs(r) - 0.2, 0)), 0, atol=1e-12
    )  # pyright: ignore[reportArgumentType,reportCallIssue]


def test_the_shift_of_all_rows_moves_the_matrix_of_a_fold():
    """By as much as the matrix of all rows moved from where both began, and then corrected by the fold's own last steps."""
    X, y, sites = strong()
    kept: list[float] = []
    original = HessianSharing.moved

    def moved(self: Any, search: Any, at: Any, H: np.ndarray) -> Any:
        mine, base, pairs = self.first[id(search)], self.first[id(self.leader)], search.pairs
        found = original(self, search, at, H)
        if found is not None and mine is not base and len(kept) < 50:
            expected = mine + H - base
            for s, change in [*pairs[-2:], (at.x - search.state.at.x, at.gradient - search.state.at.gradient)]:
                expected = corrected(expected, s, change)
            kept.append(float(np.abs(found - expected).max() / np.abs(H).max()))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HessianSharing, "moved", moved)
        cf.FederatedLogisticRegressionCV(n_alphas=12, cv=3).fit(X[:, :10], y, sites=sites)
    assert len(kept) > 5
    assert np.median(kept) < 1e-12
