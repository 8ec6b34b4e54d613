"""Rows that count differently, sites of any size, labels of several outcomes: sums by hand, and repeated rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.special
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

import compfed as cf
from compfed.losses import lipschitz as curvature
from compfed.problem.local_loss import FullGradient, MiniBatch
from compfed.sampling import sample_rows

D, RIDGE, LAM = 3, 0.1, 0.02
BIG = [3, 9, 40, 25, 5]  # some of them are padded to the size of others
SMALL = [6, 3, 5]
L1 = cf.regularisers.L1(LAM)
ALGORITHM = cf.algorithms.DecoupledProx(eta=0.3, tau=2)


def rows(sizes: list[int], seed: int = 0) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Features, labels -1 and +1, and whole numbers as weights, some of them zero."""
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((m, D)) + rng.standard_normal(D) for m in sizes]
    y = [np.where(a @ np.ones(D) + rng.standard_normal(len(a)) > 0, 1.0, -1.0) for a in A]
    w = [rng.integers(0, 4, m).astype(float) for m in sizes]
    for weight in w:
        weight[:2] = 0.0, 2.0
    return A, y, w


def problem(sites: cf.data.Sites, loss: Any = None, weights: Any = None) -> cf.Problem:
    return cf.Problem(cf.losses.Logistic(ridge=RIDGE) if loss is None else loss, L1, sites, weights=weights)


@pytest.fixture(scope="module")
def weighted() -> cf.Problem:
    A, y, w = rows(SMALL)
    return problem(cf.data.from_arrays(A, y, sample_weight=w), weights=[0.5, 0.2, 0.3])


@pytest.fixture(scope="module")
def repeated() -> cf.Problem:
    """The same with every row written down as often as it counts, and not at all if it does not."""
    A, y, w = rows(SMALL)
    times = [weight.astype(int) for weight in w]
    sites = cf.data.from_arrays(map(partial(np.repeat, axis=0), A, times), map(np.repeat, y, times))
    return problem(sites, weights=[0.5, 0.2, 0.3])


X = np.random.default_rng(9).standard_normal(D)


# --- weights are repetitions ---


def test_values_with_whole_weights_are_those_of_repeated_rows(weighted, repeated):
    np.testing.assert_allclose(weighted.objective(X), repeated.objective(X), rtol=1e-13)
    np.testing.assert_allclose(weighted.gradient(X), repeated.gradient(X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(weighted.client_gradients(X), repeated.client_gradients(X), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(weighted.lipschitz, repeated.lipschitz, rtol=1e-12)
    np.testing.assert_allclose(weighted.client_lipschitz, repeated.client_lipschitz, rtol=1e-12)
    np.testing.assert_allclose(weighted.sites.shares, repeated.sites.shares, rtol=1e-14)


def test_values_by_hand(weighted):
    total, gradient = 0.0, np.zeros(D)
    for p, A, y, w in zip([0.5, 0.2, 0.3], *rows(SMALL), strict=True):
        margin = y * (A @ X)
        total += p * np.average(np.log1p(np.exp(-margin)), weights=w)
        gradient += p * np.average(-(y * expit(-margin))[:, None] * A, weights=w, axis=0)
    np.testing.assert_allclose(weighted.objective(X), total + RIDGE / 2 * X @ X + LAM * np.abs(X).sum(), rtol=1e-13)
    np.testing.assert_allclose(weighted.gradient(X), gradient + RIDGE * X, rtol=1e-12)


def test_minimiser_with_whole_weights_is_that_of_repeated_rows(weighted, repeated):
    np.testing.assert_allclose(cf.solve_pooled(weighted).x, cf.solve_pooled(repeated).x, rtol=1e-10, atol=1e-13)


def test_a_run_with_whole_weights_is_that_of_repeated_rows(weighted, repeated):
    a, b = (cf.simulate(p, ALGORITHM, 20) for p in (weighted, repeated))
    np.testing.assert_allclose(a.x, b.x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(a["objective"], b["objective"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(a["drift"], b["drift"], rtol=0, atol=1e-12)
    assert a["gradient_mapping"][-1] < 0.1 * a["gradient_mapping"][0], "and it went somewhere"


@pytest.mark.parametrize("options", [{}, {"batch_size": 2, "participants": 2}])
def test_only_the_ratios_within_a_site_matter(weighted, options):
    A, y, w = rows(SMALL)
    scaled = cf.data.from_arrays(
        A, y, sample_weight=[c * weight for c, weight in zip([7.0, 0.01, 1e6], w, strict=True)]
    )
    other = problem(scaled, weights=weighted.weights)
    np.testing.assert_allclose(other.objective(X), weighted.objective(X), rtol=1e-14)
    runs = [cf.simulate(p, ALGORITHM, 5, seed=2, **options) for p in (weighted, other)]
    np.testing.assert_allclose(runs[0].x, runs[1].x, rtol=1e-12)


def test_equal_weights_are_no_weights():
    A, y, _ = rows(SMALL)
    plain, ones = (cf.data.from_arrays(A, y, sample_weight=w) for w in (None, [np.full(m, 3.0) for m in SMALL]))
    for a, b in zip(plain.row_shares, ones.row_shares, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-15)
    np.testing.assert_allclose(plain.shares, ones.shares, rtol=1e-15)


# --- shares: the pooled table ---


def test_shares_make_it_the_pooled_table_of_scikit_learn():
    """C counts a row as often as its weight; ours is a mean with weights."""
    A, y, w = rows(SMALL)
    sites = cf.data.from_arrays(A, y, sample_weight=w)
    weight = np.concatenate(w)
    np.testing.assert_allclose(sites.shares, [v.sum() / weight.sum() for v in w], rtol=1e-15)
    smooth = cf.Problem(cf.losses.Logistic(ridge=RIDGE), cf.regularisers.Zero(), sites, weights=sites.shares)
    model = LogisticRegression(C=1 / (RIDGE * weight.sum()), fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(*sites.pooled(), sample_weight=weight)
    np.testing.assert_allclose(cf.solve_pooled(smooth).x, model.coef_[0], rtol=1e-6)
    one_site = problem(cf.data.from_arrays([np.vstack(A)], [np.hstack(y)], sample_weight=[weight]))
    np.testing.assert_allclose(
        problem(sites, weights=sites.shares).gradient(X), one_site.gradient(X), rtol=1e-11, atol=1e-14
    )
    np.testing.assert_allclose(smooth.lipschitz, one_site.lipschitz, rtol=1e-12)


def test_from_table_keeps_weights_with_their_rows():
    A, y, w = rows([8])
    where = np.array(list("cabacaab"))
    for table in (A[0], pd.DataFrame(A[0], columns=list("pqr"))):
        sites = cf.data.from_table(table, y[0], where, sample_weight=pd.Series(w[0]))
        assert sites.sample_weight is not None
        for name, features, weights in zip("abc", sites.features, sites.sample_weight, strict=True):
            np.testing.assert_array_equal(features, A[0][where == name])
            np.testing.assert_array_equal(weights, w[0][where == name])


def test_permuted_sites_keep_their_weights(weighted):
    order = [2, 0, 1]
    turned = problem(weighted.sites.permuted(order), weights=weighted.weights[order])
    np.testing.assert_allclose(turned.objective(X), weighted.objective(X), rtol=1e-14)
    np.testing.assert_allclose(turned.client_gradients(X), weighted.client_gradients(X)[order], rtol=1e-12)


WRONG: dict[str, tuple[Any, str]] = {
    "for other sites": ([np.ones(4)], r"row weights for 1 sites; there are 2"),
    "for other rows": ([np.ones(4), np.ones(3)], r"site 'south' has 4 rows and row weights of shape \(3,\); one"),
    "negative": (
        [np.ones(4), [1, -1, 1, 1]],
        r"site 'south': row weights must be >= 0 .* smallest is -1, the largest 1",
    ),
    "all zero": ([np.zeros(4), np.ones(4)], r"site 'north': row weights .* not all zero.*Leave out a site"),
    "NaN": ([[1, np.nan, 1, 1], np.ones(4)], r"row weights of site 'north' has 1 value\(s\) .*row 1"),
    "words": ([list("abcd"), np.ones(4)], r"row weights of site 'north' must be numbers"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_row_weights(mistake):
    given, message = WRONG[mistake]
    with pytest.raises(cf.InputError, match=message):
        cf.data.from_arrays([np.ones((4, 2))] * 2, [np.ones(4)] * 2, names=["north", "south"], sample_weight=given)


def test_wrong_row_weights_of_a_table():
    with pytest.raises(cf.InputError, match=r"sample_weight has shape \(3,\); there are 4 rows: one for each"):
        cf.data.from_table(np.eye(4), np.ones(4), [0, 1, 0, 1], sample_weight=np.ones(3))


# --- what a client computes ---


@partial(jax.jit, static_argnames=("batch", "capacity"))
def batch_gradients(loss, store, i, batch, capacity, keys):
    """(rows, gradient) of client i for each key."""
    size = store.size[i].astype(jnp.int32)
    f = MiniBatch(loss, store.A, store.y, store.q, store.offset[i], size, capacity, batch)
    return jax.vmap(lambda k: (jnp.sort(sample_rows(k, size, capacity, batch)), f.grad(jnp.asarray(X), k)))(keys)


@partial(jax.jit, static_argnames="capacity")
def full_gradients(loss, store, capacity):
    """Of every client, out of the store of all of them."""

    def one(offset, size):
        return MiniBatch(loss, store.A, store.y, store.q, offset, size.astype(jnp.int32), capacity, 1).full_grad(
            jnp.asarray(X)
        )

    return jax.vmap(one)(store.offset, store.size)


@pytest.mark.parametrize(("site", "batch", "subsets"), [(0, 1, 6), (1, 1, 3), (1, 2, 3), (1, 3, 1), (2, 2, 10)])
def test_mini_batch_gradients_average_to_the_gradient(weighted, site, batch, subsets):
    """Exactly: the mean over all subsets of the rows, which are equally likely, is the gradient of the site."""
    position = int(np.flatnonzero(weighted.order == site)[0])
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(1), 300)
        found, gradients = map(
            np.asarray, batch_gradients(weighted.loss, weighted.dataset, position, batch, max(SMALL), keys)
        )
    _, first = np.unique(found, axis=0, return_index=True)
    assert len(first) == subsets, "all subsets have come up"
    A, y, w = (part[site] for part in rows(SMALL))
    exact = np.average(-(y * expit(-y * (A @ X)))[:, None] * A, weights=w, axis=0) + RIDGE * X
    np.testing.assert_allclose(gradients[first].mean(axis=0), exact, rtol=1e-11, atol=1e-14)


def test_full_gradients_out_of_the_store_of_all_clients():
    A, y, w = rows(BIG)
    big = problem(cf.data.from_arrays(A, y, sample_weight=w))
    with jax.enable_x64(True):
        found = np.asarray(full_gradients(big.loss, big.dataset, max(BIG)))[np.argsort(big.order)]
    by_hand = [
        np.average(-(s * expit(-s * (a @ X)))[:, None] * a, weights=v, axis=0) + RIDGE * X
        for a, s, v in zip(A, y, w, strict=True)
    ]
    np.testing.assert_allclose(found, by_hand, rtol=1e-11, atol=1e-14)
    np.testing.assert_allclose(big.client_gradients(X), by_hand, rtol=1e-11, atol=1e-14)


def test_full_gradient_by_hand():
    A, y, w = (part[0] for part in rows(SMALL))
    with jax.enable_x64(True):
        f = FullGradient(cf.losses.Squared(ridge=RIDGE), *map(jnp.asarray, (A, y, w / w.sum())))
        found = f.grad(jnp.asarray(X), jax.random.key(0))
    np.testing.assert_allclose(found, A.T @ (w * (A @ X - y)) / w.sum() + RIDGE * X, rtol=1e-12)


# --- both engines ---


def agree(p: cf.Problem, algorithm: cf.algorithms.Algorithm, **options: Any) -> None:
    a, b = (engine(p, algorithm, 8, seed=3, **options) for engine in (cf.simulate, cf.simulation.run_plain))
    scale = np.abs(b.x).max()
    np.testing.assert_allclose(a.x, b.x, rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(a["objective"], b["objective"], rtol=1e-12)
    np.testing.assert_allclose(a["gradient_mapping"], b["gradient_mapping"], rtol=1e-9)
    assert scale > 0.01


@pytest.mark.parametrize(("batch_size", "participants"), [(None, None), (2, 2)])
def test_engines_agree_with_row_weights(weighted, batch_size, participants):
    agree(weighted, ALGORITHM, batch_size=batch_size, participants=participants)


def test_engines_agree_with_labels_of_several_outcomes():
    A, _, w = rows(SMALL)
    y = [np.stack([a[:, 0] + 1, a[:, 1] ** 2], axis=1) for a in A]
    loss = cf.losses.MultiSquared(outputs=2, ridge=RIDGE)
    p = problem(cf.data.from_arrays(A, y, sample_weight=w), loss)
    assert p.dataset.y.shape == (len(p.dataset.A), 2)
    agree(p, cf.algorithms.ProximalGradient(eta=0.1), batch_size=2)


def test_engines_agree_with_several_classes():
    A, _, w = rows(SMALL)
    sites = cf.data.from_arrays(A, [np.digitize(a[:, 0], [0.0, 1.0]) for a in A], sample_weight=w)
    agree(problem(sites, cf.losses.Softmax(outputs=3, ridge=RIDGE)), cf.algorithms.ProximalGradient(eta=0.1))


# --- padding: sites of 3 to 40 rows, every loss, by hand ---


def by_hand(name: str) -> tuple[Any, Any, Any]:
    """(the loss, labels from the mean of a row's features, the loss of predictions z in NumPy)."""
    loss = cf.losses
    made: dict[str, tuple[Any, Any, Any]] = {
        "Squared": (loss.Squared(ridge=RIDGE), lambda s: s, lambda z, y: (z - y) ** 2 / 2),
        "Logistic": (loss.Logistic(ridge=RIDGE), np.sign, lambda z, y: np.log1p(np.exp(-y * z))),
        "SquaredHinge": (loss.SquaredHinge(ridge=RIDGE), np.sign, lambda z, y: np.maximum(0, 1 - y * z) ** 2),
        "Huber": (loss.Huber(0.7, ridge=RIDGE), lambda s: s, lambda z, y: scipy.special.huber(0.7, z - y)),
        "SmoothedQuantile": (
            loss.SmoothedQuantile(0.4, 1e-9, ridge=RIDGE),
            lambda s: s,
            lambda z, y: np.maximum(0.4 * (y - z), 0.6 * (z - y)),
        ),
        "Poisson": (loss.Poisson(ridge=RIDGE), lambda s: np.abs(s).round(), lambda z, y: np.exp(z) - y * z),
        "from_function": (
            # infinite where a label is zero, as it would be on padding rows of zeros
            loss.from_function(lambda w, a, y: jnp.abs(a @ w - jnp.log(y)), np.zeros(D), ridge=RIDGE),
            np.exp,
            lambda z, y: np.abs(z - np.log(y)),
        ),
    }
    return made[name]


@pytest.mark.parametrize(
    "name", ["Squared", "Logistic", "SquaredHinge", "Huber", "SmoothedQuantile", "Poisson", "from_function"]
)
def test_objective_of_unequal_sites_by_hand(name):
    A, _, w = rows(BIG)
    loss, labels, value = by_hand(name)
    y = [labels(a.mean(axis=1)) for a in A]
    p = np.array([0.3, 0.1, 0.2, 0.25, 0.15])
    made = problem(cf.data.from_arrays(A, y, sample_weight=w), loss, weights=p)
    assert len(made.dataset.A) > sum(BIG), "there is padding"
    smooth = sum(p_i * np.average(value(a @ X, y_i), weights=w_i) for p_i, a, y_i, w_i in zip(p, A, y, w, strict=True))
    np.testing.assert_allclose(
        made.objective(X),
        smooth + RIDGE / 2 * X @ X + LAM * np.abs(X).sum(),
        rtol=1e-8 if name == "SmoothedQuantile" else 1e-13,
    )
    assert np.isfinite(made.gradient(X)).all()


# --- curvature ---


def largest(H: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvalsh(H)).max())


def test_curvature_of_poisson_by_hand(weighted):
    A, _, w = rows(SMALL)
    sites = cf.data.from_arrays(A, [np.arange(float(m)) for m in SMALL], sample_weight=w)
    made = problem(sites, cf.losses.Poisson(ridge=RIDGE), weights=weighted.weights)
    for x in (X, np.zeros(D)):
        each = [
            a.T @ (a * (v * np.exp(a @ x))[:, None]) / v.sum() + RIDGE * np.eye(D) for a, v in zip(A, w, strict=True)
        ]
        total, clients = made.curvature_at(x)
        np.testing.assert_allclose(total, largest(np.tensordot(weighted.weights, each, 1)), rtol=1e-8)
        np.testing.assert_allclose(clients, list(map(largest, each)), rtol=1e-8)
    # and where there is no bound, the constants are those at the start
    np.testing.assert_allclose(made.lipschitz, total, rtol=1e-12)
    np.testing.assert_allclose(made.client_lipschitz, clients, rtol=1e-12)


def test_curvature_of_a_network_is_that_of_its_hessian():
    """Not convex: the eigenvalue of largest size may be negative."""
    A, y, _ = rows([7, 7])

    def network(w, a, label):
        return (jnp.tanh(a @ w["in"]) @ w["out"] - 3.0 * label) ** 2

    params = {"in": np.arange(6.0).reshape(D, 2) / 6, "out": np.array([1.0, -1.0])}
    loss = cf.losses.from_function(network, params)
    made = cf.Problem(loss, cf.regularisers.Zero(), cf.data.from_arrays(A, y))

    @jax.jit
    def hessians(x):
        def f(x, A, y):
            w = {"in": x[:6].reshape(D, 2), "out": x[6:]}
            return jax.vmap(network, (None, 0, 0))(w, A, y).mean()

        return jax.vmap(jax.hessian(f), (None, 0, 0))(x, jnp.asarray(A), jnp.asarray(y))

    signs = set()
    for seed in range(4):
        x = 2 * np.random.default_rng(seed).standard_normal(8)
        with jax.enable_x64(True):
            H = np.asarray(hessians(x))
        total, clients = made.curvature_at(x)
        np.testing.assert_allclose(total, largest(H.mean(axis=0)), rtol=1e-6)
        np.testing.assert_allclose(clients, list(map(largest, H)), rtol=1e-6)
        eigenvalues = np.linalg.eigvalsh(H.mean(axis=0))
        signs.add(bool(-eigenvalues[0] > eigenvalues[-1]))
    assert True in signs, "none of the points was dominated by a negative eigenvalue"


def test_softmax_constant_is_reached_with_two_classes_at_zero():
    """With two classes of probability 1/2 each the bound 1/2 on the curvature of the loss is attained."""
    A, y, w = rows(SMALL)
    sites = cf.data.from_arrays(A, [(label + 1) / 2 for label in y], sample_weight=w)
    made = problem(sites, cf.losses.Softmax(outputs=2, ridge=RIDGE))
    at_zero = made.curvature_at(np.zeros(2 * D))
    np.testing.assert_allclose(at_zero[0], made.lipschitz, rtol=1e-8)
    np.testing.assert_allclose(at_zero[1], made.client_lipschitz, rtol=1e-8)
    elsewhere = made.curvature_at(np.tile(X, 2))
    assert elsewhere[0] < made.lipschitz
    assert (elsewhere[1] < made.client_lipschitz).all()


@pytest.mark.parametrize("gram_width", [1000, 2])
@pytest.mark.parametrize("name", ["Squared", "Logistic", "SquaredHinge", "Huber", "SmoothedQuantile"])
def test_lipschitz_constants_with_row_weights(monkeypatch, name, gram_width):
    """By products with A^T A, and, for wide tables, by products with vectors only."""
    monkeypatch.setattr(curvature, "GRAM_WIDTH", gram_width)
    bound = {"Squared": 1.0, "Logistic": 0.25, "SquaredHinge": 2.0, "Huber": 1.0, "SmoothedQuantile": 10.0}[name]
    A, y, w = rows(BIG)
    p = np.array([0.3, 0.1, 0.2, 0.25, 0.15])
    made = problem(cf.data.from_arrays(A, y, sample_weight=w), getattr(cf.losses, name)(ridge=RIDGE), weights=p)
    each = [bound * a.T @ (v[:, None] * a) / v.sum() + RIDGE * np.eye(D) for a, v in zip(A, w, strict=True)]
    np.testing.assert_allclose(made.client_lipschitz, list(map(largest, each)), rtol=1e-10)
    np.testing.assert_allclose(made.lipschitz, largest(np.tensordot(p, each, 1)), rtol=1e-10)


def test_lipschitz_constant_of_the_pooled_table():
    A, y, w = rows(BIG)
    sites = cf.data.from_arrays(A, y, sample_weight=w)
    rows_, weight = np.vstack(A), np.concatenate(w)
    pooled = np.linalg.eigvalsh(rows_.T @ (weight[:, None] * rows_) / weight.sum())[-1]
    made = problem(sites, cf.losses.Squared(ridge=RIDGE), weights=sites.shares)
    np.testing.assert_allclose(made.lipschitz, pooled + RIDGE, rtol=1e-12)
