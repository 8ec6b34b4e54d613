"""solve: the centralised minimiser against cvxpy and scikit-learn, zeros included."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
from places import SHARED
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression

import compfed as cf
from compfed import solve

A9A = SHARED / "adult_a9a"

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
    message = r"stopped after 5 iterations with gradient mapping \d.*rounding level is .*spent: give more.*, or add a little ridge"
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


# --- long passes: second derivatives, the same certificate ---


def test_both_roads_end_at_the_same_certified_minimum(classification, monkeypatch):
    """Newton's method and FISTA share no step. The certificate is the gradient mapping in NumPy, row by row."""
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(0.02), classification)
    short = cf.solve_pooled(problem)
    monkeypatch.setattr(solve, "LONG", 1)
    long = cf.solve_pooled(problem)
    assert (short.method, long.method) == ("FISTA", "ProximalNewton")
    assert long.iterations < short.iterations / 3
    np.testing.assert_allclose(long.x, short.x, atol=1e-12)
    np.testing.assert_array_equal(long.x == 0, short.x == 0)
    for found in (short, long):
        gradient = 0.01 * found.x
        for A, y in zip(classification.features, classification.labels, strict=True):
            gradient -= A.T @ (y / (1.0 + np.exp(y * (A @ found.x)))) / len(y) / 3
        L = problem.lipschitz
        forward = found.x - gradient / L
        mapping = L * (found.x - np.sign(forward) * np.maximum(np.abs(forward) - 0.02 / L, 0.0))
        assert np.linalg.norm(mapping) < 1e-14


def test_fista_goes_on_where_second_derivatives_fall_short(classification, monkeypatch):
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(0.02), classification)
    monkeypatch.setattr(solve, "LONG", 1)
    newton = solve._by_newton(problem, 2, problem.lipschitz)
    assert newton is not None
    assert not newton.converged
    monkeypatch.setattr(solve, "_by_newton", lambda problem, most, L: newton)
    found = cf.solve_pooled(problem)
    assert (found.converged, found.method) == (True, "FISTA")


def test_a_problem_without_second_order_steps_takes_fista(classification, monkeypatch):
    monkeypatch.setattr(solve, "LONG", 1)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.3), cf.regularisers.MCP(0.05, gamma=30.0), classification)
    found = cf.solve_pooled(problem)
    assert (found.method, found.convex, found.claim) == ("FISTA", False, "stationary point")


@pytest.mark.skipif(not A9A.exists(), reason="the a9a data set is not part of the repository")
@pytest.mark.thorough
def test_a_hundred_clients_of_a9a_take_few_passes():
    """5,344 passes of FISTA were 27 s here."""
    table = cf.data.bundled.a9a(A9A)
    sites = cf.data.from_table(table.X, table.y, np.random.default_rng(0).integers(0, 100, len(table.y)))
    problem = cf.Problem(cf.losses.Logistic(ridge=1e-4), cf.regularisers.L1(1e-4), sites, weights=sites.shares)
    found = cf.solve_pooled(problem)
    assert (found.converged, found.method) == (True, "ProximalNewton")
    assert found.iterations < 20


# --- x* must be one ---


def test_a_solution_that_did_not_converge_is_no_reference(classification):
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(0.02), classification)
    with pytest.warns(UserWarning, match="stopped after 5 iterations"):
        early = cf.solve_pooled(problem, max_iterations=5)
    late = cf.solve_federated(problem, max_rounds=2)
    algorithm = cf.algorithms.FedDA(eta=0.5)
    for unfinished in (early, late):
        assert not unfinished.converged
        for run in (cf.simulate, cf.simulation.run_plain, cf.grid):
            with pytest.raises(cf.InputError, match="did not converge: distances to it mean nothing"):
                run(problem, algorithm, 2, x_star=unfinished)


def test_a_plain_vector_is_a_reference_if_it_is_stationary(classification):
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(0.02), classification)
    star = cf.solve_pooled(problem)
    np.testing.assert_array_equal(solve.check_reference(problem, star), star.x)
    np.testing.assert_array_equal(solve.check_reference(problem, star.x), star.x)
    with pytest.raises(
        cf.InputError, match=r"x_star has a gradient mapping of norm .* it must be at most 1e-10 of that"
    ):
        solve.check_reference(problem, star.x + 1e-6)


def test_a_loss_that_is_flat_at_its_start_takes_a_lipschitz_constant():
    """f(w) = 1/(1 + exp(-2 w)) + w^2/20 curves only through its ridge at 0. Its stationary point by bisection."""
    sites = cf.data.from_arrays([np.ones((1, 1))], [np.ones(1)])
    sigmoid = cf.losses.from_function(lambda w, a, y: jax.nn.sigmoid(2 * w[0] * a[0] * y), np.zeros(1))
    flat = cf.Problem(sigmoid, cf.regularisers.Ridge(0.1), sites)
    with pytest.raises(cf.InputError, match=r"flat where it was looked at.*L="):
        cf.solve_pooled(flat)
    found = cf.solve_pooled(flat, L=1.0)
    low, high = -10.0, 0.0
    for _ in range(100):
        w = 0.5 * (low + high)
        s = 1.0 / (1.0 + np.exp(-2 * w))
        low, high = (low, w) if 2 * s * (1 - s) + 0.1 * w > 0 else (w, high)
    assert found.converged
    assert found.x[0] == pytest.approx(low, rel=1e-9)


# --- why it stops ---


def of_a_function(function, sites: cf.data.Sites, ridge: float = 0.0) -> cf.Problem:
    loss = cf.losses.from_function(function, np.zeros(sites.width), ridge, convex=True)
    return cf.Problem(loss, cf.regularisers.Zero(), sites)


def by_bisection(slope) -> float:
    """The zero of an increasing function."""
    low, high = -100.0, 100.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return low


def test_curvature_that_grows_away_from_the_start_is_followed():
    """log(1 + exp(10 w - 12)) - w + w^2 / 200 curves 2,400 times as much at its bend as at 0, and w^4 / 4 - 10 w without a bound."""
    sites = cf.data.from_arrays([np.ones((1, 1))], [np.ones(1)])
    bent = of_a_function(lambda w, a, y: jax.numpy.logaddexp(0.0, 10.0 * w[0] - 12.0) - y * w[0], sites, ridge=0.01)
    power = of_a_function(lambda w, a, y: w[0] ** 4 / 4 - 10 * y * w[0], sites, ridge=0.01)
    for problem, slope in (
        (bent, lambda w: 10 / (1 + np.exp(12 - 10 * w)) - 1 + 0.01 * w),
        (power, lambda w: w**3 - 10 + 0.01 * w),
    ):
        found = cf.solve_pooled(problem)
        assert found.converged
        assert found.x[0] == pytest.approx(by_bisection(slope), rel=1e-9)


def test_idle_iterations_are_enough_for_features_of_very_different_sizes():
    """Least squares with condition number 1e6: 300 iterations without a better point are no end. Oracle: the normal equations."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((20, 30)) * np.logspace(0, -3, 30) for _ in range(3)]
    sites = cf.data.from_arrays(A, [rng.standard_normal(20) for _ in range(3)])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    found = cf.solve_pooled(problem)
    X, y = sites.pooled()
    assert found.converged
    assert found.objective == pytest.approx(0.5 * np.mean((X @ np.linalg.lstsq(X, y)[0] - y) ** 2), rel=1e-10)


@pytest.mark.parametrize(
    ("problem", "options", "message"),
    [
        ("kink", {"max_iterations": 5}, r"spent: more may help, unless the gradient of FromFunction jumps"),
        ("kink", {}, r"More of them will not help: either the gradient of FromFunction jumps .*take a smooth function"),
        (
            "single",
            {},
            r"More of them will not help: either the gradient .* less precise than float64 \(a cast to float32\)",
        ),
        ("short", {"L": 0.01}, r"L=0.01 is below the Lipschitz constant \d.*leave L out"),
        ("ridge", {"max_iterations": 5}, r"spent: give more max_iterations\.$"),
    ],
)
def test_the_reason_and_the_way_out_are_said(regression, problem, options, message):
    problems = {
        "kink": of_a_function(lambda w, a, y: jax.numpy.abs(a @ w - y), regression, ridge=0.01),
        "single": of_a_function(
            lambda w, a, y: ((a @ w - y) ** 2).astype("float32").astype(w.dtype), regression, ridge=0.01
        ),
        "short": cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), regression),
        "ridge": cf.Problem(cf.losses.Squared(ridge=0.01), cf.regularisers.Zero(), regression),
    }
    with pytest.warns(UserWarning, match=message):
        assert not cf.solve_pooled(problems[problem], **options).converged
