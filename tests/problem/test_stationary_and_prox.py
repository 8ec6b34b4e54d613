"""A prox that belongs to another g is refused, and a loss that is not known to be convex gets no certificate of a minimum."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import compfed as cf
from compfed._utils.records import nonnegative, record
from compfed.regularisers import L1, MCP, Blocks, L2Ball, Scaled, Zero

SITES = cf.data.synthetic(clients=3, samples=20, features=4)


class Own:
    """A user's 0.5 ||x||_1 in NumPy, whose prox moves by `strength` times t: right for 0.5."""

    def __init__(self, strength: float):
        self.strength = strength

    def __call__(self, x):
        return 0.5 * np.abs(np.asarray(x)).sum()

    def prox(self, x, t):
        x = np.asarray(x)
        return np.sign(x) * np.maximum(np.abs(x) - self.strength * t, 0.0)


class Traced(Own):
    def __call__(self, x):
        return 0.5 * jnp.abs(x).sum()

    def prox(self, x, t):
        return jnp.sign(x) * jnp.maximum(jnp.abs(x) - self.strength * t, 0.0)


class Ball:
    """The unit ball by a strict test, outside of which projections round now and then."""

    def __call__(self, x):
        return 0.0 if np.linalg.norm(x) <= 1.0 else np.inf

    def prox(self, x, t):
        return np.asarray(x) / max(1.0, float(np.linalg.norm(x)))


class Outside(Ball):
    def prox(self, x, t):
        return 2.0 * super().prox(x, t) + 3.0


class Weak:
    """MCP of a user, who says for which steps its prox is defined."""

    largest_step = 3.0

    def __call__(self, x):
        return MCP(0.5)(jnp.asarray(x))

    def prox(self, x, t):
        return MCP(0.5).prox(jnp.asarray(x), t)


@record
class OwnRecord(Zero):
    """A user's record with the prox of twice its value."""

    lam: float = nonnegative()

    def __call__(self, x):
        return self.lam * jnp.abs(x).sum()

    def prox(self, x, t):
        return L1(self.lam).prox(x, 2.0 * t)


def problem(g: Any, dtype: str = "float64") -> cf.Problem:
    return cf.Problem(cf.losses.Squared(), g, SITES, dtype=dtype)


WRONG: list[Any] = [Own(0.25), Own(1.0), Own(-0.5), Own(0.0), Traced(0.25), OwnRecord(1e-3), OwnRecord(10.0)]
WRONG += [Scaled(Traced(0.25), 3.0), Blocks((Own(1.0), Zero()), (3, 1))]
RIGHT: list[Any] = [
    Own(0.5),
    Traced(0.5),
    Ball(),
    Weak(),
    Scaled(Traced(0.5), 1e-6),
    Scaled(Traced(0.5), 1e6),
    L2Ball(1.0),
]


@pytest.mark.parametrize("g", WRONG)
def test_a_prox_of_another_g_is_refused(g):
    with pytest.raises(cf.InputError, match=r"its prox does not belong to its value.*must be at least"):
        problem(g)
    with pytest.raises(cf.InputError, match="its prox does not belong to its value"):
        problem(Zero()).replace(regulariser=g)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("g", RIGHT)
def test_a_right_prox_is_taken(g, dtype):
    assert problem(g, dtype).d == 4


def test_a_prox_that_leaves_the_set_is_refused():
    with pytest.raises(cf.InputError, match=r"is not finite at any of 12 random x"):
        problem(Outside())


def test_a_loss_that_is_not_convex_gets_no_certificate_of_a_minimum():
    """(w^2 - 1)^2 / 4 has a stationary point at 0 that is a maximum: solvers that start there stay, and must not call it one."""
    well = cf.losses.from_function(lambda w, a, y: (w[0] ** 2 - 1.0) ** 2 / 4 + 0 * a.sum() * y, np.zeros(1))
    double_well = cf.Problem(well, Zero(), SITES)
    assert double_well.convex is None  # nobody said
    assert (
        cf.Problem(
            cf.losses.from_function(lambda w, a, y: w[0] ** 2 * a[0], np.zeros(1), convex=False), Zero(), SITES
        ).convex
        is False
    )
    found = cf.solve_federated(double_well)
    assert found.converged
    assert found.x[0] == 0.0
    assert found.certificate.claim == "stationary point"
    assert "stationary point" in repr(cf.solve_pooled(double_well))
    convex = problem(L1(0.1))
    assert convex.convex
    assert cf.solve_federated(convex).certificate.claim == "minimum"
    assert "stationary" not in repr(cf.solve_pooled(convex))
    assert problem(MCP(0.01, gamma=30.0)).convex is False  # the penalty is not


def test_a_function_that_is_said_to_be_convex_gets_second_order_steps_and_a_minimum():
    """The logistic loss, once as a function of JAX and once ours: one minimum."""
    ours = problem(L1(0.1))
    labels = [np.where(y > 0, 1.0, -1.0) for y in SITES.labels]
    sites = cf.data.from_arrays(SITES.features, labels)
    function = cf.losses.from_function(lambda w, a, y: jnp.logaddexp(0.0, -y * (a @ w)), np.zeros(4), 0.05, convex=True)
    theirs = cf.solve_federated(cf.Problem(function, L1(0.02), sites))
    known = cf.solve_pooled(cf.Problem(cf.losses.Logistic(ridge=0.05), L1(0.02), sites))
    assert ours.convex is True
    assert theirs.certificate.claim == "minimum"
    assert type(theirs.algorithm).__name__ == "ProximalNewton"
    np.testing.assert_allclose(theirs.x, known.x, atol=1e-10)
    with pytest.raises(cf.InputError, match="convex must be True, False or None"):
        cf.losses.from_function(lambda w, a, y: w @ a, np.zeros(4), convex="yes")  # pyright: ignore[reportArgumentType]  # the mistake
