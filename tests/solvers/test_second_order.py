"""ProximalNewton and ProximalBFGS: against Newton's method written out, other solvers, and the rounds that are promised."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import logistic, quadratic_oracle, quadratics
from sklearn.linear_model import Lasso

import compfed as cf
from compfed.algorithms.default_steps import lipschitz_bounds
from compfed.data import bundled
from compfed.federation import Evaluate, InProcess, ask, run_program
from compfed.federation.server.trial import evaluate_request, evaluation
from compfed.federation.spec import FederatedProblem
from compfed.losses import Huber, Logistic, MultiSquared, SmoothedQuantile, Softmax, from_function
from compfed.regularisers import L1, GroupL2, OnBlock, Zero
from compfed.simulation.local_federation import Simulated
from compfed.solvers.auto import evaluate_start, solve
from compfed.solvers.base import FederatedSolution, SearchOptions, Start
from compfed.solvers.search import Search, run_searches
from compfed.solvers.second_order import SOLVERS, ProximalBFGS, ProximalNewton

SMOOTH = quadratics(g=Zero())
D = SMOOTH.d


@pytest.fixture(scope="module")
def normal_equations() -> np.ndarray:
    H, b = quadratic_oracle(SMOOTH)
    return np.linalg.solve(H.mean(axis=0), b.mean(axis=0))


def accepted(problem: cf.Problem, solver: Any, evaluations: int, x0: Any = None) -> list[np.ndarray]:
    """The accepted model after each evaluation of a trial over the sites; the first trial is x0."""
    spec, sites = FederatedProblem.of(problem), InProcess(problem.sites)
    state, models = solver.init(np.zeros(problem.d) if x0 is None else x0), []
    for _ in range(evaluations):
        (summed,) = ask(sites, *evaluate_request(spec, state.trial).queries, weights=spec.weights)
        state = solver.update(problem.regulariser, state, evaluation(spec, state.trial, summed))
        models.append(state.at.x)
    return models


# --- ProximalNewton: special cases that are known ---


def test_one_step_solves_the_normal_equations(normal_equations):
    """The first evaluation is at the start, the second at the minimiser of the quadratic model, which is f itself."""
    start = np.linspace(-2.0, 3.0, D)
    one, two = accepted(SMOOTH, ProximalNewton(), 2, start)
    np.testing.assert_array_equal(one, start)
    np.testing.assert_allclose(two, normal_equations, rtol=0, atol=1e-12)


def newton(problem: cf.Problem, x: np.ndarray, rounds: int) -> tuple[list[np.ndarray], int]:
    """Newton's method with halved steps for logistic regression over all rows: x after each evaluation, and halvings."""
    (A, y), ridge = problem.sites.pooled(), float(problem.loss.ridge)

    def value(x):
        return np.logaddexp(0.0, -y * (A @ x)).mean() + ridge / 2 * x @ x

    def direction(x):
        chance = 1.0 / (1.0 + np.exp(y * (A @ x)))  # of the wrong label
        gradient = -A.T @ (y * chance) / len(y) + ridge * x
        H = (A.T * (chance * (1 - chance))) @ A / len(y) + ridge * np.eye(len(x))
        return -np.linalg.solve(H, gradient), gradient

    step, gradient = direction(x)
    models, t, halvings = [x], 1.0, 0
    for _ in range(rounds - 1):
        if value(x + t * step) <= value(x) + 1e-4 * t * (gradient @ step):
            x, t = x + t * step, 1.0
            step, gradient = direction(x)
        else:
            t, halvings = t / 2, halvings + 1
        models.append(x)
    return models, halvings


def test_without_a_penalty_it_is_the_method_of_newton():
    """From a start so far off that whole steps lead uphill."""
    sites = logistic(samples=[30, 6, 30, 6, 6]).sites
    problem = cf.Problem(Logistic(ridge=1e-3), Zero(), sites, weights=sites.shares)
    start = np.array([40.0, -30.0, 0.0, 25.0, 10.0, 0.0, -20.0, 5.0])
    expected, halvings = newton(problem, start, 20)
    assert halvings >= 2
    assert np.linalg.norm(expected[-1] - expected[-2]) < 1e-10 * np.linalg.norm(expected[-1])
    found = accepted(problem, ProximalNewton(), 20, start)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.abs(start).max())


@pytest.mark.thorough  # skglm compiles for ten seconds
def test_with_one_site_it_is_the_prox_newton_of_skglm():
    skglm = pytest.importorskip("skglm")
    rng = np.random.default_rng(0)
    A = np.asfortranarray(rng.standard_normal((60, 20)) * np.geomspace(0.3, 3.0, 20))
    y = np.sign(A @ np.where(np.arange(20) % 4 == 0, 1.0, 0.0) + rng.standard_normal(60))
    penalty = 0.02 * np.abs(A.T @ y).max() / 60
    solver = skglm.solvers.ProxNewton(tol=1e-13, max_iter=200, fit_intercept=False)
    model = skglm.GeneralizedLinearEstimator(skglm.datafits.Logistic(), skglm.penalties.L1(penalty), solver).fit(A, y)
    problem = cf.Problem(Logistic(), L1(penalty), cf.data.from_arrays([A], [y]))
    minimum = cf.solve_federated(problem, "ProximalNewton")
    assert minimum.converged
    assert 0 < np.count_nonzero(minimum.x) < 20
    np.testing.assert_allclose(minimum.x, np.ravel(model.coef_), rtol=0, atol=1e-8)
    np.testing.assert_array_equal(minimum.x == 0, np.ravel(model.coef_) == 0)


# --- what a federation adds: nothing ---


@pytest.mark.parametrize(
    "method", [ProximalNewton(width=5), ProximalBFGS(eta=0.5, memory=5)], ids=lambda m: type(m).__name__
)
def test_iterates_do_not_depend_on_the_split(method):
    """The same rows at one site, at two and at five; everything that is sent is a mean over rows."""
    A, y = logistic(samples=20).sites.pooled()
    cuts = ([], [13], [7, 8, 40, 71])
    traces = []
    for cut in cuts:
        sites = cf.data.from_arrays(np.split(A, cut), np.split(y, cut))
        problem = cf.Problem(Logistic(ridge=1e-3), L1(5e-3), sites, weights=sites.shares)
        traces.append(
            cf.solve_federated(problem, method, x0=np.linspace(-3, 3, 8), max_rounds=7, tol=0.0, scale=1.0).trace
        )
    assert np.ptp(traces[0]["nonzeros"]) > 0
    for other in traces[1:]:
        np.testing.assert_allclose(other.x, traces[0].x, rtol=0, atol=1e-10)
        np.testing.assert_allclose(other["objective"], traces[0]["objective"], rtol=1e-10)


# a gradient of exactly zero: see test_a_start_where_all_is_at_rest_is_left_alone
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 1e-3, 0.1]),
    st.sampled_from([0.0, 1e-6, 1e-2]),
    st.sampled_from([1e-2, 1.0, 1e2]),
    st.booleans(),
)
def test_no_step_goes_uphill(seed, lam, ridge, size, separable):
    """Whatever the labels: where two classes are separable and nothing is penalised, F falls without a minimum."""
    rng = np.random.default_rng(seed)
    A = size * rng.standard_normal((2, 6, 3))
    y = np.sign(A @ rng.standard_normal(3)) if separable else rng.choice([-1.0, 1.0], (2, 6))
    problem = cf.Problem(Logistic(ridge=ridge), L1(lam), cf.data.from_arrays(list(A), list(y)))
    models = accepted(problem, ProximalNewton(), 25, 3.0 * rng.standard_normal(3))
    F = np.array([problem.objective(x) for x in models])
    assert np.isfinite(F).all()
    assert (np.diff(F) <= 1e-13 * np.abs(F[:-1])).all()
    if (
        lam == 0 and ridge == 0 and separable and size <= 1
    ):  # from zero: far out there may be no curvature left to follow
        assert problem.objective(accepted(problem, ProximalNewton(), 25)[-1]) < 1e-3


def test_a_working_set_narrower_than_the_support_converges_too():
    problem = quadratics(g=L1(0.1))
    star = cf.solve_pooled(problem).x
    assert np.count_nonzero(star) > 4
    x = cf.solve_federated(problem, ProximalNewton(width=3)).x
    np.testing.assert_allclose(x, star, rtol=0, atol=1e-9)
    np.testing.assert_array_equal(x == 0, star == 0)


class Listening(InProcess):
    """Records the evaluations that it is asked for."""

    def __init__(self, sites):
        super().__init__(sites)
        self.queries: list[Evaluate] = []

    def _carry(self, messages):
        self.queries += [weighted.query for weighted in messages[0] if isinstance(weighted.query, Evaluate)]
        return super()._carry(messages)


def test_a_group_is_never_cut():
    """The working set holds all members of a group, or none."""
    member = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    problem = quadratics(g=GroupL2(0.8, tuple(member.tolist())))
    federation = Listening(problem.sites)
    found = cf.solve_federated(problem, ProximalNewton(width=3), federation=federation)
    np.testing.assert_allclose(found.x, cf.solve_pooled(problem).x, atol=1e-9)
    asked = [query.coords for query in federation.queries if query.coords is not None]
    assert asked
    for W in asked:
        groups = np.unique(member[W])
        np.testing.assert_array_equal(np.sort(W), np.flatnonzero(np.isin(member, groups)))


def test_bytes_by_hand():
    """Up: factor, two flags, value, size of the terms, gradient; down: a point. A quadratic needs no second Hessian."""
    minimum = cf.solve_federated(SMOOTH, ProximalNewton(), x0=np.ones(D), scale=1.0, tol=0.0, max_rounds=2)
    numbers = 3 + 2 + D
    assert minimum.trace["bytes_up"].tolist() == [8 * numbers * r for r in range(3)]
    assert minimum.trace["bytes_down"].tolist() == [8 * D * r for r in range(3)]
    assert minimum.trace["gradients"].tolist() == [0, 1, 2]


# --- ProximalBFGS ---


def test_bfgs_ends_in_the_minimiser_of_a_quadratic(normal_equations):
    solver = ProximalBFGS(eta=1 / SMOOTH.lipschitz)
    np.testing.assert_allclose(accepted(SMOOTH, solver, 40)[-1], normal_equations, rtol=0, atol=1e-10)
    assert solver.memory >= D


def test_bfgs_sends_one_vector_and_two_numbers():
    """Up: a gradient, the value of f, and the size of the gradient's terms, beside a factor and two flags; down: a point."""
    trace = cf.solve_federated(SMOOTH, ProximalBFGS(eta=1 / SMOOTH.lipschitz), tol=0.0, max_rounds=2).trace
    assert trace["bytes_up"].tolist() == [0, 8 * (D + 5), 16 * (D + 5)]
    assert trace["bytes_down"].tolist() == [0, 8 * D, 16 * D]


def test_the_first_step_of_bfgs_is_a_proximal_gradient_step():
    """Without a pair its matrix is I / eta."""
    problem = quadratics()
    H, b = (part.mean(axis=0) for part in quadratic_oracle(problem))
    eta, x = 0.9 / np.linalg.eigvalsh(H)[-1], np.linspace(-1.0, 1.0, D)
    v = x - eta * (H @ x - b)
    expected = np.sign(v) * np.maximum(np.abs(v) - eta, 0.0)  # lam is 1
    np.testing.assert_allclose(accepted(problem, ProximalBFGS(eta=eta), 2, x)[-1], expected, rtol=0, atol=1e-12)


def searched(problem: cf.Problem, solver: Any, tol: float, federation: Any = None, **start: Any) -> FederatedSolution:
    """A search by trials that has to evaluate its start itself, unless `at` is given."""
    at = {"x": np.zeros(problem.d), "L": problem.lipschitz, "L_max": problem.lipschitz, "scale": 1.0} | start
    search = Search(FederatedProblem.of(problem), SearchOptions(tol=tol, max_rounds=500), solver, Start(**at))
    run_program(federation or InProcess(problem.sites), run_searches([search]))
    assert search.solution is not None
    return search.solution


def test_memory_kept_along_alphas_does_not_change_where_it_ends():
    strong, weak = (logistic().replace(regulariser=L1(lam)) for lam in (2e-2, 2e-3))
    solver = ProximalBFGS(eta=1 / strong.lipschitz)
    first = searched(strong, solver, 1e-12)
    assert first.kept is not None
    assert set(first.kept) == {"S", "Y"}
    assert np.abs(first.kept["S"]).sum() > 0
    with_memory, without = (searched(weak, solver, 1e-12, kept=kept) for kept in (first.kept, None))
    expected = cf.solve_pooled(weak).x
    for found in (with_memory, without):
        assert found.converged
        np.testing.assert_allclose(found.x, expected, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(found.x == 0, expected == 0)
    assert with_memory.rounds < without.rounds


# --- a search by trials ---


def test_a_start_that_was_evaluated_is_not_evaluated_again():
    """With the evaluation of the start, a quadratic takes one more message."""
    spec, federation = FederatedProblem.of(SMOOTH), Simulated.of(SMOOTH)

    def program():
        start = yield from evaluate_start(spec, SearchOptions(), np.zeros(D))
        return (yield from solve(federation, spec, SearchOptions(), start))

    minimum, cost = run_program(federation, program())
    assert (minimum.rounds, cost.rounds) == (1, 2)
    assert minimum.trace["round"].tolist() == [0, 1]


def test_the_evaluation_of_a_wide_model_serves_the_next_penalty():
    """A search that begins where another ended, with the Hessian there, does not evaluate that point again."""
    problem = quadratics(d=20, g=L1(1.3))
    solver, federation = ProximalNewton(width=3), Listening(problem.sites)
    first = searched(problem, solver, 1e-10, federation)
    assert first.kept is not None
    assert 3 <= len(first.kept["W"]) < 20
    federation.queries.clear()
    weaker = problem.replace(regulariser=L1(1.0))
    second = searched(weaker, solver, 1e-10, federation, x=first.x, at=first.at, kept=first.kept)
    assert second.rounds == len(federation.queries) > 0
    assert not any(np.array_equal(query.x[0], first.x) for query in federation.queries)
    np.testing.assert_allclose(second.x, cf.solve_pooled(weaker).x, rtol=0, atol=1e-9)


def test_a_search_stops_at_max_rounds_and_says_so():
    minimum = cf.solve_federated(logistic(), "ProximalBFGS", max_rounds=5)
    assert (minimum.rounds, minimum.converged) == (5, False)
    assert minimum.notes == ["stopped at max_rounds=5"]
    assert minimum.trace["round"].tolist() == [0, 1, 2, 3, 4, 5]


# --- the matrix of a quadratic model ---

ROWS, WIDTH, OUTPUTS = 7, 4, 3


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, A, weights) of a model with several outputs."""
    rng = np.random.default_rng(seed)
    weights = rng.random(ROWS)
    return rng.standard_normal(WIDTH * OUTPUTS), rng.standard_normal((ROWS, WIDTH)), weights / weights.sum()


@pytest.mark.parametrize("W", [np.arange(12), np.array([0, 1, 2, 6, 7, 8]), np.array([1, 4, 5, 11])], ids=len)
@pytest.mark.parametrize("kind", ["softmax", "squares"])
def test_what_travels_of_several_outputs_is_their_hessian(kind, W):
    """There and back: sum_l q_l (a a^T) x (diag(p) - p p^T), a Kronecker product for each row; the identity for squares."""
    x, A, q = rows()
    rng = np.random.default_rng(1)
    loss: Any = Softmax(OUTPUTS) if kind == "softmax" else MultiSquared(OUTPUTS)
    y = rng.integers(0, OUTPUTS, ROWS) if kind == "softmax" else rng.standard_normal((ROWS, OUTPUTS))
    triangle = loss.packed_hessian(x, A, y, q, W)
    e = np.exp(A @ x.reshape(WIDTH, OUTPUTS))
    inner = [np.diag(p) - np.outer(p, p) for p in e / e.sum(axis=1, keepdims=True)]
    if kind == "squares":
        inner = [np.eye(OUTPUTS)] * ROWS
    whole = np.sum([w * np.kron(np.outer(a, a), K) for w, a, K in zip(q, A, inner, strict=True)], axis=0)
    for found in (loss.unpack_hessian(triangle, W), loss.hessian(x, A, y, q, W)):
        np.testing.assert_allclose(found, whole[np.ix_(W, W)], rtol=0, atol=1e-13)
    if len(W) % OUTPUTS == 0:  # whole features
        assert len(triangle) == loss.packed_size(len(W))
    if kind == "squares":  # one output speaks for all
        features = len(np.unique(W // OUTPUTS))
        assert len(triangle) == features * (features + 1) // 2


@pytest.mark.parametrize(
    ("loss", "inner"),
    [(Huber(delta=0.8), (-0.8, 0.8)), (SmoothedQuantile(0.5, 0.4), (-0.2, 0.2)), (SmoothedQuantile(0.8, 0.5), (-0.1, 0.4))],
    ids=["Huber", "median", "quantile"],
)  # fmt: skip
def test_losses_that_are_straight_far_out_are_given_some_curvature(loss, inner):
    """Between the second derivative and slope / (z - y); where the loss is a parabola these are the same."""
    r = np.linspace(-5.0, 5.0, 401)  # z - y; 0 is among them
    y = np.full_like(r, 2.0)
    weight, given = loss.second_derivative(y + r, y), loss.model_second_derivative(y + r, y)
    above = loss.derivative(y + r, y)[r != 0] / r[r != 0]
    assert (given >= weight).all() or np.allclose(given, weight, atol=1e-12)
    assert (given[r != 0] <= above + 1e-12).all()
    parabola = (r > -inner[1] + 1e-9) & (r < -inner[0] - 1e-9)  # u = -r / smoothing within its bounds
    np.testing.assert_allclose(given[parabola], weight[parabola], rtol=1e-12)
    assert (given[~parabola & (np.abs(r) > 1)] > 0).all()
    assert given[r == 0] == loss.curvature


def test_the_hessian_of_a_function_is_that_of_the_formula():
    x, A, q = rows()
    x, y = x[:WIDTH], np.sign(A[:, 0])
    own = from_function(lambda w, a, y: jnp.logaddexp(0.0, -y * (a @ w)), np.zeros(WIDTH))
    W = np.array([3, 1])
    np.testing.assert_allclose(own.hessian(x, A, y, q, W), Logistic().hessian(x, A, y, q, W), rtol=0, atol=1e-14)
    triangle = own.packed_hessian(x, A, y, q, W)
    np.testing.assert_allclose(triangle, Logistic().packed_hessian(x, A, y, q, W), rtol=0, atol=1e-14)


# --- rounds as promised ---


@pytest.fixture(scope="module")
def paper() -> tuple[cf.Problem, np.ndarray]:
    sites = cf.data.synthetic(alpha=10, beta=10, clients=30, samples=500, features=60, seed=0)
    problem = cf.Problem(Logistic(ridge=0.01), L1(1e-4), sites)
    return problem, cf.solve_pooled(problem).x


@pytest.mark.parametrize(("name", "rounds"), [("ProximalNewton", 6), ("ProximalBFGS", 20)])
def test_rounds_on_the_problem_of_the_paper(paper, name, rounds):
    """Every evaluation counts, the one at the start included."""
    problem, star = paper
    x = accepted(problem, SOLVERS[name].from_bounds(lipschitz_bounds(problem, 5)), rounds)[-1]
    assert np.linalg.norm(x - star) <= 1e-6 * np.linalg.norm(star)


@pytest.mark.parametrize("alpha", [0.1, 0.01, 1e-3])
@pytest.mark.parametrize(("name", "rounds"), [("ProximalNewton", 15), ("ProximalBFGS", 150)])
def test_rounds_on_raw_correlated_columns(name, rounds, alpha):
    """Thirty columns of sizes from 0.004 to 880, as they are, and a free intercept."""
    table = bundled.breast_cancer()
    sites = cf.data.from_table(np.column_stack([table.X, np.ones(len(table.y))]), table.y, table.sites)
    problem = cf.Problem(Logistic(), OnBlock(L1(alpha), 0, 30), sites, weights=sites.shares)
    minimum = cf.solve_federated(problem, name, tol=1e-10)
    assert minimum.certificate.holds
    assert minimum.rounds <= rounds
    # the certificate, from the rows: zero coefficients inside, the others and the intercept at rest
    (A, y), x = sites.pooled(), minimum.x
    y = np.where(y > 0, 1.0, -1.0)
    gradient = -A.T @ (y / (1 + np.exp(y * (A @ x)))) / len(y)
    on = x[:30] != 0
    start = np.linalg.norm(A.T @ y / 2 / len(y))
    assert np.abs(np.append(gradient[:30][on] + alpha * np.sign(x[:30][on]), gradient[30])).max() <= 1e-10 * start
    assert (np.abs(gradient[:30][~on]) <= alpha + 1e-10 * start).all()


@pytest.mark.parametrize("seed", [0, 1, 29])
def test_rounds_of_a_lasso_with_more_columns_than_rows(seed):
    """A quadratic is solved in one step, singular or not: set-up, start, minimiser, duality gap."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((8, 16)), rng.standard_normal(8)
    model = cf.FederatedLasso(alpha=0.01).fit(X, y, sites=None)
    expected: Any = Lasso(alpha=0.01, tol=1e-14, max_iter=1_000_000).fit(X, y)
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=1e-8)
    assert model.n_rounds_ <= 5


@pytest.mark.parametrize("solver", [ProximalNewton(), ProximalBFGS(eta=0.1)], ids=["Newton", "BFGS"])
def test_a_solver_counts_what_the_sites_are_asked_for(solver):
    """Each query asks for a value and a gradient, and some for a Hessian: every one of them is a pass over a site's rows."""
    sites = logistic(samples=[30, 6, 30, 6, 6]).sites
    problem = cf.Problem(Logistic(ridge=1e-3), Zero(), sites, weights=sites.shares)
    federation = Listening(problem.sites)
    trace = cf.solve_federated(
        problem, solver, x0=np.full(problem.d, 4.0), scale=1.0, tol=0.0, max_rounds=6, federation=federation
    ).trace
    asked = federation.queries[1:]  # the start is evaluated with the bounds, before the search
    hessians = sum(query.coords is not None and len(query.coords) > 0 for query in asked)
    counts = [trace[name][-1] for name in ("gradients", "values", "hessians", "exchanges", "hvps", "client_proxes")]
    assert counts == [len(asked), len(asked), hessians, len(asked), 0, 0]
    assert trace["rows"][-1] == (2 * len(asked) + hessians) * np.mean(problem.sizes)
    assert (hessians > 0) == isinstance(solver, ProximalNewton)
