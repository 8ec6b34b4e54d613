"""f_i as an algorithm sees it: value and derivatives, out of its own rows and out of the store of all clients."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import compfed as cf
from compfed.problem.local_loss import FullGradient, MiniBatch

SIZES, D, RIDGE = [6, 40, 3, 17], 3, 0.3
W = np.array([2, 0])


@pytest.fixture(scope="module", params=["Logistic", "Softmax", "from_function"])
def problem(request) -> cf.Problem:
    rng = np.random.default_rng(6)
    A = [rng.standard_normal((m, D)) for m in SIZES]
    weights = [rng.random(m) + 0.1 for m in SIZES]
    loss: Any = {
        "Logistic": cf.losses.Logistic(ridge=RIDGE),
        "Softmax": cf.losses.Softmax(outputs=2, ridge=RIDGE),
        "from_function": cf.losses.from_function(
            lambda w, a, y: jnp.log1p(jnp.exp(-(2 * y - 1) * (a @ w))), np.zeros(D), ridge=RIDGE
        ),
    }[request.param]
    sites = cf.data.from_arrays(A, [(a[:, 0] > 0.2).astype(float) for a in A], sample_weight=weights)
    return cf.Problem(loss, cf.regularisers.Zero(), sites)


def by_hand(problem: cf.Problem, i: int, x: np.ndarray) -> tuple[float, np.ndarray]:
    """f_i and its Hessian with labels 0 and 1; two scores count by their difference."""
    A, y, q = problem.sites.features[i], problem.sites.labels[i], problem.sites.row_shares[i]
    maps = np.stack([-np.eye(D), np.eye(D)], axis=-1).reshape(D, -1) if x.size == 2 * D else np.eye(D)
    z = A @ maps @ x
    p = scipy.special.expit(z)
    value = q @ np.log1p(np.exp(-(2 * y - 1) * z)) + RIDGE / 2 * np.sum(x**2)
    rows = A @ maps
    return value, rows.T @ np.diag(q * p * (1 - p)) @ rows + RIDGE * np.eye(x.size)


def measured(f, x):
    return f.value(x), f.full_grad(x), f.hessian(x), f.hessian(x, W)


@partial(jax.jit, static_argnames="capacity")
def out_of_the_store(loss, store, x, capacity):
    def one(offset, size):
        f = MiniBatch(loss, store.A, store.y, store.q, offset, size.astype(jnp.int32), capacity, 1)
        return measured(f, x)

    return jax.vmap(one)(store.offset, store.size)


def test_value_and_hessian_by_hand(problem):
    x = np.random.default_rng(7).standard_normal(problem.d)
    with jax.enable_x64(True):
        values, gradients, hessians, parts = (
            np.asarray(a)[np.argsort(problem.order)]
            for a in out_of_the_store(problem.loss, problem.dataset, x, max(SIZES))
        )
    np.testing.assert_allclose(gradients, problem.client_gradients(x), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(problem.weights @ values, problem.objective(x), rtol=1e-13)
    for i, site in enumerate(zip(problem.sites.features, problem.sites.labels, problem.sites.row_shares, strict=True)):
        value, H = by_hand(problem, i, x)
        A, y, q = site
        alone = FullGradient(problem.loss, A, problem.loss.encode(y), q)  # pyright: ignore[reportArgumentType]  # NumPy
        of_numpy = measured(alone, x)
        for found in (values[i], gradients[i], hessians[i], parts[i]), of_numpy:
            np.testing.assert_allclose(found[0], value, rtol=1e-12)
            np.testing.assert_allclose(found[1], gradients[i], rtol=1e-11, atol=1e-14)
            np.testing.assert_allclose(found[2], H, rtol=1e-11, atol=1e-14)
            np.testing.assert_allclose(found[3], H[np.ix_(W, W)], rtol=1e-11, atol=1e-14)
        assert all(isinstance(found, (np.ndarray, np.floating)) for found in of_numpy)
