"""A user's JAX settings neither crash a run nor change its answer, and are as they were afterwards."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import compfed as cf

SETTINGS = {
    "jax_default_prng_impl": "rbg",
    "jax_numpy_dtype_promotion": "strict",
    "jax_numpy_rank_promotion": "raise",
    "jax_transfer_guard": "disallow",
    "jax_threefry_partitionable": False,
    "jax_debug_nans": True,
    "jax_enable_custom_prng": True,
    "jax_default_matmul_precision": "bfloat16",
}
SITES = cf.data.synthetic(clients=3, samples=12, features=4, seed=1)


def answers() -> dict[str, np.ndarray]:
    """What every way to run something gives; problems are built anew, as a user would."""
    cf.Problem(cf.losses.Logistic(), cf.regularisers.Nuclear(0.01, 2), SITES)  # whose prox is tried on the way
    problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(0.01), SITES)
    sampled: dict[str, Any] = {"batch_size": 3, "participants": 2}
    algorithm = cf.algorithms.DecoupledProx(eta=0.5)
    (X, y), where = SITES.pooled(), np.repeat(np.arange(3), 12)
    return {
        "solve": cf.solve_pooled(problem).x,
        "minimise": cf.solve_federated(problem).x,
        "simulate": cf.simulate(problem, algorithm, 3, **sampled).x,
        "reference": cf.simulation.run_plain(problem, algorithm, 3, **sampled).x,
        "path": cf.regularisation_path(cf.FederatedLasso(), X, y, where, n_alphas=3).coefs,
    }


@pytest.fixture(scope="module")
def expected():
    return answers()


@pytest.fixture
def changed():
    """The settings changed, and put back."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    for name, value in SETTINGS.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_answers_do_not_depend_on_the_caller_s_settings(expected, changed):
    found = answers()
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x, err_msg=name)
    assert {name: getattr(jax.config, name) for name in SETTINGS} == SETTINGS  # still the caller's


def test_settings_are_put_back_when_a_run_fails():
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), SITES)
    with pytest.raises(cf.Divergence):
        cf.simulate(problem, cf.algorithms.DecoupledProx(eta=1e6), 200)
    assert jax.config.values["jax_transfer_guard"] is None
    assert not jax.config.values["jax_enable_x64"]
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="broadcast"):
        _ = jax.numpy.ones((2, 2)) + jax.numpy.ones(2)
