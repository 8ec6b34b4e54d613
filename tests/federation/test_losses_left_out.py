"""`LeaveOneOut` at a site: what it refuses of a server that chooses the Hessian, and what the numbers that leave are rounded to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from federation.wired import replies

import compfed as cf
from compfed.federation import DisclosurePolicy, LeaveOneOut, Refusal, Rows, Site
from compfed.federation.site.leave_one_out import rounded
from compfed.federation.spec import ObjectiveSpec
from compfed.losses.base import upper_triangle

ROWS, WIDTH = 60, 3
A = np.random.default_rng(0).normal([2.0, 0.0, 0.0], 1.0, (ROWS, WIDTH))
Y = A @ [1.0, -1.0, 0.5] + np.random.default_rng(1).standard_normal(ROWS)
SQUARED = ObjectiveSpec(cf.losses.Squared())
W, OWN = np.arange(WIDTH), A.T @ A
MODELS = np.array([[0.5, -0.5, 0.0], [1.0, -1.0, 0.5]])


def site(policy: DisclosurePolicy | None = None, weights: np.ndarray | None = None) -> Site:
    return Site(Rows(A, Y, name="north", index=0, sample_weight=weights), policy=policy)


def query(H: np.ndarray, **changed: Any) -> LeaveOneOut:
    return LeaveOneOut(SQUARED, MODELS, W, np.array([upper_triangle(H)] * len(MODELS)), **changed)


def ask(asked: LeaveOneOut, policy: DisclosurePolicy | None = None, weights: np.ndarray | None = None) -> Any:
    (reply,) = replies(site(policy, weights), asked)
    return reply


def test_the_reply_is_the_formula_with_the_hessian_of_the_server():
    H = OWN + np.diag([3.0, 1.0, 40.0])
    reply = ask(query(H))
    h = np.array([a @ np.linalg.inv(H) @ a for a in A])
    for k, x in enumerate(MODELS):
        left = ((A @ x - Y) / (1 - h)) ** 2 / 2
        assert reply.loss[k] == pytest.approx(left.mean(), rel=1e-12)
        assert reply.squares[k] == pytest.approx((left**2).mean(), rel=1e-12)
    assert (reply.least == 0).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_a_site_with_a_policy_refuses_a_hessian_that_its_rows_are_not_part_of(weighted):
    """In any direction: 0.999 times its own second derivative along one vector, and as much as one likes along others."""
    weights = np.random.default_rng(2).uniform(0.5, 2.0, ROWS) if weighted else np.ones(ROWS)
    own, v = (A.T * weights) @ A, np.random.default_rng(3).standard_normal(WIDTH)
    v /= np.linalg.norm(v)
    along = np.outer(v, v) * (v @ own @ v) / (v @ v) ** 2
    others = 1e6 * (np.eye(WIDTH) - np.outer(v, v))
    policy = DisclosurePolicy()
    for H, refused in (
        (own, False),
        (0.999 * own, True),
        (1.01 * along + others, False),
        (0.99 * along + others, True),
    ):
        reply = ask(query(H), policy, weights)
        assert isinstance(reply, Refusal) == refused
        if refused:
            assert (
                reply.reason
                == "site 'north' refuses LeaveOneOut: the hessian is not one that its own rows are part of."
            )
        assert not isinstance(ask(query(H), None, weights), Refusal)


def test_with_shares_of_a_site_its_part_is_a_mean():
    reply = ask(query(OWN / ROWS * 1.5, equal_sites=True), DisclosurePolicy())
    assert np.isfinite(reply.loss).all()
    assert isinstance(ask(query(OWN / ROWS * 1.5), DisclosurePolicy()), Refusal)


def test_a_row_with_a_leverage_of_one_has_no_loss_left_out():
    alone = np.zeros((ROWS, WIDTH))
    alone[:, :2], alone[0, 2] = A[:, :2], 1.0  # the only row with the last column
    here = Site(Rows(alone, Y, name="n", index=0))
    H = alone.T @ alone
    (reply,) = replies(here, query(H))
    assert np.isinf(reply.loss).all()
    assert np.isinf(reply.squares).all()
    (reply,) = replies(here, query(H + np.diag([0.0, 0.0, 0.01])))
    assert np.isfinite(reply.loss).all()


@pytest.mark.parametrize("H", [np.diag([1.0, 1.0, -1.0]), np.zeros((WIDTH, WIDTH))])
def test_a_hessian_that_is_not_positive_definite_is_refused(H):
    reply = ask(query(H))
    assert isinstance(reply, Refusal)
    assert "must be positive definite" in reply.reason


def test_numbers_leave_a_site_with_a_policy_with_fourteen_bits():
    H = OWN + 5 * np.eye(WIDTH)
    plain, here = ask(query(H)), ask(query(H), DisclosurePolicy())
    for name in ("loss", "squares"):
        exact, seen = getattr(plain, name), getattr(here, name)
        fraction, _ = np.frexp(seen)
        assert (fraction * 2.0**14 == np.rint(fraction * 2.0**14)).all()
        np.testing.assert_allclose(seen, exact, rtol=2.0**-14)
        assert (seen != exact).all()
    assert rounded(np.array([0.0, np.inf, 3.0])).tolist() == [0.0, np.inf, 3.0]


def test_its_hessian_may_have_as_many_columns_as_one_that_leaves():
    here = site(DisclosurePolicy(max_hessian_share=2 / ROWS))
    asked = LeaveOneOut(SQUARED, MODELS, W[:2], np.array([upper_triangle(2 * OWN[:2, :2])] * 2))
    (reply,) = replies(here, asked)
    assert not isinstance(reply, Refusal)
    (reply,) = replies(here, LeaveOneOut(SQUARED, MODELS, W, np.array([upper_triangle(2 * OWN)] * 2)))
    assert "coordinates are more than" in reply.reason
    (reply,) = replies(site(DisclosurePolicy(queries=["LeaveOneOut"])), asked)
    assert "does not answer LeaveOneOut" in reply.reason
