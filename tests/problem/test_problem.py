"""Problem: sums written out by hand in NumPy, with unequal sites and unequal weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import quadratics, soft
from scipy.special import expit

import compfed as cf
from compfed.problem import local_loss as measures

# by importlib, because the package's own name `simulate` is the function

SIZES = [9, 300, 1, 40, 8]
P = np.array([0.1, 0.4, 0.15, 0.05, 0.3])
D, LAM, RIDGE = 8, 0.03, 0.2


def federation() -> cf.data.Sites:
    rng = np.random.default_rng(5)
    X = [rng.standard_normal((m, D)) * (1 + i) for i, m in enumerate(SIZES)]
    return cf.data.from_arrays(X, [(x[:, 0] + rng.standard_normal(len(x)) > 0).astype(float) for x in X])


@pytest.fixture(scope="module")
def sites() -> cf.data.Sites:
    return federation()


@pytest.fixture(scope="module", params=["Logistic", "Squared"])
def problem(request, sites) -> cf.Problem:
    loss = getattr(cf.losses, request.param)(ridge=RIDGE)
    return cf.Problem(loss, cf.regularisers.L1(LAM), sites, weights=P)


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(D) * (np.arange(D) != 3)


# --- the same by hand: labels here are 0 and 1, which the logistic loss reads as -1 and +1 ---


def site_value(problem: cf.Problem, i: int, x: np.ndarray) -> float:
    A, y = problem.sites.features[i], problem.sites.labels[i]
    rows = (
        (A @ x - y) ** 2 / 2
        if isinstance(problem.loss, cf.losses.Squared)
        else np.log1p(np.exp(-(2 * y - 1) * (A @ x)))
    )
    return rows.sum() / len(y) + RIDGE / 2 * x @ x


def site_gradient(problem: cf.Problem, i: int, x: np.ndarray) -> np.ndarray:
    A, y = problem.sites.features[i], problem.sites.labels[i]
    s = 2 * y - 1
    slopes = A @ x - y if isinstance(problem.loss, cf.losses.Squared) else -s * expit(-s * (A @ x))
    return A.T @ slopes / len(y) + RIDGE * x


def by_hand_gradient(problem: cf.Problem, x: np.ndarray) -> np.ndarray:
    return sum((p * site_gradient(problem, i, x) for i, p in enumerate(problem.weights)), np.zeros(D))


def by_hand_objective(problem: cf.Problem, x: np.ndarray) -> float:
    smooth = sum(p * site_value(problem, i, x) for i, p in enumerate(problem.weights))
    return float(smooth + LAM * np.abs(x).sum())


def hessian(A: np.ndarray, curvature: float) -> np.ndarray:
    return curvature * A.T @ A / len(A) + RIDGE * np.eye(D)


# --- values ---


def test_objective(problem, x):
    np.testing.assert_allclose(problem.objective(x), by_hand_objective(problem, x), rtol=1e-13)
    assert isinstance(problem.objective(x), float)


def test_gradients(problem, x):
    sites = [site_gradient(problem, i, x) for i in range(5)]
    np.testing.assert_allclose(problem.client_gradients(x), sites, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(problem.gradient(x), by_hand_gradient(problem, x), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(problem.gradient(x), P @ problem.client_gradients(x), rtol=1e-11, atol=1e-12)


def test_gradient_is_the_derivative_of_the_objective(problem, x):
    smooth, h = problem.replace(regulariser=cf.regularisers.Zero()), 1e-5
    difference = [(smooth.objective(x + h * e) - smooth.objective(x - h * e)) / (2 * h) for e in np.eye(D)]
    np.testing.assert_allclose(problem.gradient(x), difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("step", [0.3, None])
def test_gradient_mapping(problem, x, step):
    t = 1 / problem.lipschitz if step is None else step
    expected = (x - soft(x - t * by_hand_gradient(problem, x), t * LAM)) / t
    np.testing.assert_allclose(problem.gradient_mapping(x, step), expected, rtol=1e-10, atol=1e-11)


def test_lipschitz_constants(problem):
    curvature = 1.0 if isinstance(problem.loss, cf.losses.Squared) else 0.25
    each = [hessian(A, curvature) for A in problem.sites.features]
    mean = sum((p * H for p, H in zip(P, each, strict=True)), np.zeros((D, D)))
    np.testing.assert_allclose(problem.client_lipschitz, [np.linalg.eigvalsh(H)[-1] for H in each], rtol=1e-6)
    np.testing.assert_allclose(problem.lipschitz, np.linalg.eigvalsh(mean)[-1], rtol=1e-6)
    assert problem.strong_convexity == RIDGE


def test_lipschitz_follows_the_ridge_and_keeps_the_data(problem):
    other = problem.replace(loss=dataclasses.replace(problem.loss, ridge=1.5))
    np.testing.assert_allclose(other.lipschitz - problem.lipschitz, 1.5 - RIDGE, rtol=1e-12)
    np.testing.assert_allclose(other.client_lipschitz - problem.client_lipschitz, 1.5 - RIDGE, rtol=1e-12)


# --- how the data lie in memory ---


def test_very_unequal_sites_are_bucketed(problem):
    rows = problem.dataset.A.shape[0]
    assert rows <= 1.5 * sum(SIZES) < 5 * max(SIZES)
    assert problem.dataset.buckets == ((1, 300), (4, 40))  # 460 rows for 358; one bucket would be 1500
    np.testing.assert_array_equal(problem.order, [1, 3, 0, 4, 2])
    np.testing.assert_array_equal(problem.dataset.ids, problem.order)
    np.testing.assert_array_equal(problem.dataset.size, [300, 40, 9, 8, 1])


@pytest.mark.parametrize("seed", range(5))
def test_memory_is_at_most_half_again_the_data_whatever_the_sizes(seed):
    sizes = np.random.default_rng(seed).lognormal(3, 2, 30).astype(int) + 1
    sites = cf.data.from_arrays([np.ones((m, 1)) for m in sizes], [np.ones(m) for m in sizes])
    store = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites).dataset
    assert sizes.sum() <= store.A.shape[0] <= 1.5 * sizes.sum()
    assert sum(k for k, _ in store.buckets) == 30
    assert store.A.shape[0] == sum(k * m for k, m in store.buckets)


def test_padding_changes_nothing(problem, x):
    store = problem.dataset
    padding = np.asarray(store.row_weight) == 0
    assert padding.sum() == 31 + 32 + 39  # sites of 9, 8 and 1 rows share a bucket with that of 40
    with jax.enable_x64(True):
        spoiled = dataclasses.replace(store, y=jnp.where(padding, 1e6, store.y))
        before = measures.objectives_and_mappings(problem.loss, problem.regulariser, store, x[None], 0.1)
        after = measures.objectives_and_mappings(problem.loss, problem.regulariser, spoiled, x[None], 0.1)
        np.testing.assert_array_equal(before[0], after[0])
        np.testing.assert_array_equal(before[1], after[1])
        np.testing.assert_array_equal(
            measures.client_gradients(problem.loss, store, x),
            measures.client_gradients(problem.loss, spoiled, x),
        )


def test_runs_are_the_same_with_sites_in_any_order(sites):
    """Full gradients: what a site computes follows it wherever the store puts it."""
    order = [4, 2, 0, 1, 3]
    runs = []
    for s, p in ((sites, P), (sites.permuted(order), P[order])):
        problem = cf.Problem(cf.losses.Logistic(ridge=RIDGE), cf.regularisers.L1(LAM), s, weights=p)
        runs.append(cf.simulate(problem, cf.algorithms.DecoupledProx(eta=0.02, tau=3), 4))
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-12)
    assert runs[0].state is not None
    assert runs[1].state is not None
    for a, b in zip(runs[0].state.clients, runs[1].state.clients, strict=True):
        np.testing.assert_allclose(a[order], b, rtol=1e-9, atol=1e-12)


# --- weights ---


def test_weights_equal_to_shares_give_the_pooled_problem(sites, x):
    loss, g = cf.losses.Logistic(ridge=RIDGE), cf.regularisers.L1(LAM)
    split = cf.Problem(loss, g, sites, weights=sites.shares)
    A, y = sites.pooled()
    pooled = cf.Problem(loss, g, cf.data.from_arrays([A], [y]))
    np.testing.assert_allclose(split.objective(x), pooled.objective(x), rtol=1e-13)
    np.testing.assert_allclose(split.gradient(x), pooled.gradient(x), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(split.lipschitz, pooled.lipschitz, rtol=1e-8)
    np.testing.assert_allclose(cf.solve_pooled(split).x, cf.solve_pooled(pooled).x, rtol=1e-9, atol=1e-12)


def test_weights_are_uniform_unless_given(sites, x):
    uniform = cf.Problem(cf.losses.Squared(ridge=RIDGE), cf.regularisers.L1(LAM), sites)
    np.testing.assert_array_equal(uniform.weights, np.full(5, 0.2))
    np.testing.assert_allclose(uniform.objective(x), by_hand_objective(uniform, x), rtol=1e-13)
    assert uniform.describe()["uniform_weights"] is True


# --- replace, astype ---


def test_replace_keeps_the_data(problem, x):
    other = problem.replace(regulariser=cf.regularisers.L1(2 * LAM))
    assert other.dataset is problem.dataset
    assert other.sites is problem.sites
    assert problem.regulariser.lam == LAM, "the original must not change"
    np.testing.assert_allclose(other.objective(x) - problem.objective(x), LAM * np.abs(x).sum(), rtol=1e-9)


def test_replace_by_another_kind_of_loss_reads_the_labels_again(sites, x):
    logistic = cf.Problem(cf.losses.Logistic(ridge=RIDGE), cf.regularisers.L1(LAM), sites, weights=P)
    squared = logistic.replace(loss=cf.losses.Squared(ridge=RIDGE))
    np.testing.assert_allclose(squared.gradient(x), by_hand_gradient(squared, x), rtol=1e-11, atol=1e-12)
    back = squared.replace(loss=cf.losses.Logistic(ridge=RIDGE))
    np.testing.assert_allclose(back.gradient(x), logistic.gradient(x), rtol=1e-14)
    np.testing.assert_array_equal(back.weights, P)


def test_numbers_do_not_recompile(compilations):
    problem = quadratics()
    algorithm = cf.algorithms.DecoupledProx(eta=0.02)
    cf.simulate(problem, algorithm, 2)
    assert compilations() == 1
    models = []
    for lam, ridge, eta in ((1.0, 0.1, 0.02), (3.0, 0.1, 0.02), (1.0, 0.4, 0.02), (1.0, 0.1, 0.01)):
        changed = problem.replace(cf.losses.Squared(ridge=ridge), cf.regularisers.L1(lam))
        models.append(cf.simulate(changed, cf.algorithms.DecoupledProx(eta=eta), 3, seed=1).x)
    assert compilations() == 1
    assert len({model.tobytes() for model in models}) == 4, "and yet each number matters"
    cf.simulate(problem, cf.algorithms.DecoupledProx(eta=0.02, tau=2), 2)
    assert compilations() == 2, "the count shows a compilation"


def test_astype(problem, x):
    single = problem.astype("float32")
    assert problem.astype("float64") is problem
    assert problem.astype(np.float64) is problem
    assert single.dtype == np.float32
    assert single.dataset.A.dtype == single.gradient(x).dtype == np.float32
    np.testing.assert_array_equal(single.weights, P)
    np.testing.assert_allclose(single.gradient(x), by_hand_gradient(problem, x), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(single.objective(x), by_hand_objective(problem, x), rtol=1e-5)
    np.testing.assert_allclose(single.lipschitz, problem.lipschitz, rtol=1e-4)
    np.testing.assert_array_equal(single.astype("float64").gradient(x), problem.gradient(x))


def test_describe_is_plain_data(problem):
    cached = problem.describe()
    assert cached["loss"] == {"name": type(problem.loss).__name__, "ridge": RIDGE}
    assert cached["regulariser"] == {"name": "L1", "lam": LAM}
    assert cached["samples"] == {"total": sum(SIZES), "smallest": 1, "largest": 300}
    assert (cached["clients"], cached["features"], cached["uniform_weights"]) == (5, D, False)


# --- the caller's precision ---

ALGORITHM = cf.algorithms.DecoupledProx(eta=0.02)


def refused(act: Any) -> None:
    with pytest.raises((cf.InputError, cf.Divergence)):
        act()


PUBLIC_CALLS: dict[str, Any] = {
    "objective": lambda p: p.objective(np.ones(8)),
    "gradient": lambda p: p.gradient(np.ones(8)),
    "client_gradients": lambda p: p.client_gradients(np.ones(8)),
    "gradient_mapping": lambda p: p.gradient_mapping(np.ones(8)),
    "lipschitz": lambda p: (p.lipschitz, p.client_lipschitz),
    "astype": lambda p: p.astype("float32").gradient(np.ones(8)),
    "solve": lambda p: cf.solve_pooled(p),
    "simulate": lambda p: cf.simulate(p, ALGORITHM, 2).x,
    "reference": lambda p: cf.simulation.run_plain(p, ALGORITHM, 2).x,
    "grid": lambda p: cf.grid(p, ALGORITHM, 2, {"eta": [0.01, 0.02]})[0].x,
    "a refusal": lambda p: refused(lambda: p.objective(np.ones(3))),
    "a divergence": lambda p: refused(lambda: cf.simulate(p, cf.algorithms.DecoupledProx(eta=1e4), 60)),
}


@pytest.mark.parametrize("x64", [False, True])
def test_the_callers_precision_is_untouched(x64):
    with jax.enable_x64(x64):
        problem = quadratics()
        for name, call in PUBLIC_CALLS.items():
            out = call(problem)
            assert jax.config.jax_enable_x64 is x64, name  # pyright: ignore[reportAttributeAccessIssue]  # dynamic
            assert jnp.asarray(np.zeros(1)).dtype == (np.float64 if x64 else np.float32), name
            if isinstance(out, np.ndarray):
                assert out.dtype == (np.float32 if name == "astype" else np.float64), name


def test_results_do_not_depend_on_the_callers_precision():
    def outcome(x64: bool, dtype: str) -> tuple[np.ndarray, np.ndarray]:
        with jax.enable_x64(x64):
            problem = quadratics().astype(dtype)
            trace = cf.simulate(problem, ALGORITHM, 3)
            return trace.x, problem.gradient(np.ones(8))

    for dtype in ("float32", "float64"):
        (x, gradient), (other_x, other_gradient) = outcome(False, dtype), outcome(True, dtype)
        assert x.dtype == other_x.dtype == dtype
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(gradient, other_gradient)


def test_a_weakly_convex_penalty_needs_short_steps():
    """MCP with gamma is convex only beside a quadratic of curvature 1 / gamma: a prox of length gamma or more is refused."""
    g = cf.regularisers.MCP(lam=0.1, gamma=3.0)
    flat = cf.Problem(cf.losses.Squared(), g, cf.data.from_arrays([0.1 * np.eye(4)], [np.ones(4)]))  # 1/L = 400
    with pytest.raises(cf.InputError, match=r"MCP is weakly convex: its prox needs steps below 3, and here 1/L = 400"):
        _ = flat.lipschitz
    with pytest.raises(cf.InputError, match="MCP is weakly convex"):
        cf.solve_federated(flat)
    steep = cf.Problem(cf.losses.Squared(), g, cf.data.from_arrays([2.0 * np.eye(4)], [np.ones(4)]))  # 1/L = 1
    assert steep.lipschitz == pytest.approx(1.0)
    with pytest.raises(cf.InputError, match=r"DecoupledProx takes the prox of MCP with steps up to 4; .* below 3"):
        cf.simulate(steep, cf.algorithms.DecoupledProx(eta=0.8, tau=5), 1)
