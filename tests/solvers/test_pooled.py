"""solve: the centralised minimiser against cvxpy and scikit-learn, zeros included."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

import compfed as cf

SIZES = [25, 10, 15]
D = 8


def federation(binary: bool) -> cf.data.Sites:
    rng = np.random.default_rng(11)
    X = [rng.standard_normal((m, D)) + rng.standard_normal(D) for m in SIZES]
    truth = np.array([2.0, -1.5, 0, 0, 1.0, 0, 0, 0])
    scores = [x @ truth + 0.8 * rng.standard_normal(len(x)) for x in X]
    return cf.data.from_arrays(X, [np.where(s > 0, 1.0, -1.0) if binary else s for s in scores])


@pytest.fixture(scope="module")
def regression() -> cf.data.Sites:
    return federation(binary=False)


@pytest.fixture(scope="module")
def classification() -> cf.data.Sites:
    return federation(binary=True)


def by_cvxpy(problem: cf.Problem, penalty: Any, constraints: Any = ()) -> np.ndarray:
    """argmin of sum_i p_i f_i + penalty, written row by row, to the accuracy of an interior-point method."""
    x = cp.Variable(problem.d)
    terms = []
    for p, A, y in zip(problem.weights, problem.sites.features, problem.sites.labels, strict=True):
        rows = (
            cp.sum_squares(A @ x - y) / 2
            if isinstance(problem.loss, cf.losses.Squared)
            else cp.sum(cp.logistic(cp.multiply(-y, A @ x)))
        )
        terms.append(p / len(y) * rows)
    smooth = sum(terms) + float(problem.loss.ridge) / 2 * cp.sum_squares(x)
    tight = {"tol_gap_abs": 1e-9, "tol_gap_rel": 1e-9, "tol_feas": 1e-9}
    cp.Problem(cp.Minimize(smooth + penalty(x)), [c(x) for c in constraints]).solve(solver="CLARABEL", **tight)
    assert x.value is not None
    return x.value


def agree(solution: cf.PooledSolution, other: np.ndarray, some_zeros: bool = True) -> None:
    assert solution.converged
    np.testing.assert_allclose(solution.x, other, atol=2e-5)
    np.testing.assert_array_equal(solution.x == 0, np.abs(other) < 2e-5)
    if some_zeros:
        assert 0 < np.count_nonzero(solution.x) < D, "a case without zeros, or without anything else, shows little"


CASES: dict[str, Any] = {
    "lasso": (cf.losses.Squared(), cf.regularisers.L1(0.5), lambda x: 0.5 * cp.norm1(x), ()),
    "logistic-l1": (cf.losses.Logistic(), cf.regularisers.L1(0.05), lambda x: 0.05 * cp.norm1(x), ()),
    "elastic-net": (
        cf.losses.Squared(ridge=0.1),
        cf.regularisers.ElasticNet(0.5, 0.3),
        lambda x: 0.5 * cp.norm1(x) + 0.15 * cp.sum_squares(x),
        (),
    ),
    "box": (
        cf.losses.Squared(),
        cf.regularisers.Box(0.0, 0.9),
        lambda x: 0,
        (lambda x: x >= 0, lambda x: x <= 0.9),
    ),
    "non-negative": (cf.losses.Logistic(ridge=0.01), cf.regularisers.NonNegative(), lambda x: 0, (lambda x: x >= 0,)),
    "ball": (cf.losses.Logistic(), cf.regularisers.L2Ball(0.7), lambda x: 0, (lambda x: cp.norm2(x) <= 0.7,)),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_against_cvxpy(name, weighted, regression, classification):
    loss, g, penalty, constraints = CASES[name]
    sites = classification if isinstance(loss, cf.losses.Logistic) else regression
    problem = cf.Problem(loss, g, sites, weights=[0.6, 0.1, 0.3] if weighted else None)
    solution = cf.solve_pooled(problem)
    agree(solution, by_cvxpy(problem, penalty, constraints), some_zeros=name != "ball")
    # certified at rounding level, by a gradient mapping that test_problem checks on its own
    scale = problem.lipschitz * np.linalg.norm(solution.x) + np.linalg.norm(problem.gradient(solution.x))
    assert solution.gradient_mapping <= 100 * np.finfo(float).eps * scale
    np.testing.assert_allclose(np.linalg.norm(problem.gradient_mapping(solution.x)), solution.gradient_mapping)
    np.testing.assert_allclose(solution.objective, problem.objective(solution.x))
    if name == "box":
        assert (solution.x == 0.9).any(), "the upper bound is met exactly"
    if name == "ball":
        np.testing.assert_allclose(np.linalg.norm(solution.x), 0.7, rtol=1e-14)


# With weights = shares the problem is that of the pooled table, which is what scikit-learn is given.


def test_lasso_of_scikit_learn(regression):
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.5), regression, weights=regression.shares)
    model = Lasso(alpha=0.5, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(*regression.pooled())
    solution = cf.solve_pooled(problem)
    np.testing.assert_allclose(solution.x, model.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(solution.x == 0, model.coef_ == 0)
    assert 0 < np.count_nonzero(solution.x) < D


def test_elastic_net_of_scikit_learn(regression):
    alpha, ratio = 0.8, 0.6  # scikit-learn: alpha * ratio * ||x||_1 + alpha * (1 - ratio) / 2 * ||x||^2
    model = ElasticNet(alpha=alpha, l1_ratio=ratio, fit_intercept=False, tol=1e-14, max_iter=100_000)
    model.fit(*regression.pooled())
    l1, l2 = alpha * ratio, alpha * (1 - ratio)
    in_g = cf.Problem(cf.losses.Squared(), cf.regularisers.ElasticNet(l1, l2), regression, weights=regression.shares)
    in_f = cf.Problem(cf.losses.Squared(ridge=l2), cf.regularisers.L1(l1), regression, weights=regression.shares)
    for solution in map(cf.solve_pooled, (in_g, in_f)):
        np.testing.assert_allclose(solution.x, model.coef_, rtol=1e-6, atol=1e-9)
        np.testing.assert_array_equal(solution.x == 0, model.coef_ == 0)
        assert 0 < np.count_nonzero(solution.x) < D


def test_logistic_regression_of_scikit_learn(classification):
    lam = 0.05
    problem = cf.Problem(cf.losses.Logistic(), cf.regularisers.L1(lam), classification, weights=classification.shares)
    # scikit-learn: ||x||_1 + C * sum over rows; ours is lam ||x||_1 + mean over rows
    C = 1 / (lam * sum(SIZES))
    model = LogisticRegression(l1_ratio=1.0, C=C, solver="saga", fit_intercept=False, tol=1e-12, max_iter=100_000)
    model.fit(*classification.pooled())
    solution = cf.solve_pooled(problem)
    np.testing.assert_allclose(solution.x, model.coef_[0], rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal(solution.x == 0, model.coef_[0] == 0)
    assert 0 < np.count_nonzero(solution.x) < D


def test_least_squares_without_a_regulariser(regression):
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), regression, weights=regression.shares)
    A, y = regression.pooled()
    np.testing.assert_allclose(cf.solve_pooled(problem).x, np.linalg.lstsq(A, y)[0], rtol=1e-10)


def test_a_large_lambda_gives_exactly_zero(regression):
    """x* = 0 if and only if lambda >= max_j |grad_j f(0)|."""
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(1.0), regression)
    top = np.abs(problem.gradient(np.zeros(D))).max()
    for factor, nonzeros in ((1.001, 0), (0.999, 1)):
        solution = cf.solve_pooled(problem.replace(regulariser=cf.regularisers.L1(factor * top)))
        assert solution.converged
        assert np.count_nonzero(solution.x) == nonzeros


def test_a_float32_problem_is_solved_in_float64(regression):
    problem = cf.Problem(cf.losses.Squared(ridge=0.1), cf.regularisers.L1(0.5), regression)
    np.testing.assert_array_equal(cf.solve_pooled(problem.astype("float32")).x, cf.solve_pooled(problem).x)


def test_an_unfinished_solve_warns_and_says_what_it_reached():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, D)) * 10.0 ** -np.arange(D)  # condition number 1e14
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), cf.data.from_arrays([A], [A.sum(axis=1)]))
    message = r"stopped after 5 iterations with gradient mapping \d.*rounding level is .*max_iterations.*ridge"
    with pytest.warns(UserWarning, match=message):
        solution = cf.solve_pooled(problem, max_iterations=5)
    assert not solution.converged
    assert solution.iterations == 5
    assert "NOT converged" in repr(solution)
    assert f"{solution.gradient_mapping:.1e}" in repr(solution)
    np.testing.assert_allclose(solution.gradient_mapping, np.linalg.norm(problem.gradient_mapping(solution.x)))


def test_wherever_it_stops_the_constraints_hold():
    """The extrapolated points of FISTA leave the set; what is returned must not."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((30, D)) * 10.0 ** -np.linspace(0, 1.5, D) + rng.standard_normal((30, 1))
    sites = cf.data.from_arrays([A], [A @ (-1.0) ** np.arange(D)])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.NonNegative(), sites)
    for iterations in range(1, 60):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # not converged, of course
            solution = cf.solve_pooled(problem, max_iterations=iterations)
        assert (solution.x >= 0).all()
        assert np.isfinite(solution.objective)


def test_a_solution_works_as_an_array(regression):
    problem = cf.Problem(cf.losses.Squared(ridge=0.1), cf.regularisers.L1(0.5), regression)
    solution = cf.solve_pooled(problem)
    x = solution.x
    np.testing.assert_array_equal(np.asarray(solution), x)
    assert np.asarray(solution, dtype=np.float32).dtype == np.float32
    assert np.array(solution) is not x
    copied = np.array(solution)
    copied[:] = 7
    assert not (x == 7).any(), "a copy is a copy"
    np.testing.assert_array_equal(np.ones(D) - solution, 1 - x)
    np.testing.assert_allclose(np.linalg.norm(solution), np.sqrt((x**2).sum()))
    assert problem.objective(solution) == problem.objective(x) == solution.objective
    trace = cf.simulate(problem, cf.algorithms.ProximalGradient(eta=0.02), 1, x_star=solution, x0=solution)
    assert trace["optimality"].max() <= 1e-13
    assert f"{np.count_nonzero(x)} of {D}" in repr(solution)
