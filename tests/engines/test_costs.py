"""Rows that gradients read: counted by hand, and against what the losses of the plain loop were asked for."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import compfed as cf
from compfed.algorithms import FISTA, DecoupledProx, Mime, MimeLite, Scaffold, VarianceReducedDecoupledProx
from compfed.engines import reference
from compfed.problem.local_loss import FullGradient, MiniBatch

ROWS = [10, 20, 60]  # of the sites: 30 on average
BATCH, TAU = 4, 3


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    sites = cf.data.synthetic(clients=3, samples=ROWS, features=4, seed=0)
    # the share of a site in the problem is not its share in the work
    return cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.Zero(), sites, weights=sites.shares)


# a round of one client with 30 rows: gradients; rows with full gradients; rows with mini-batches of 4
BY_HAND = {
    "DecoupledProx": (DecoupledProx(eta=0.1, tau=TAU), 3, 3 * 30, 3 * 4),
    "FISTA": (FISTA(eta=0.1), 1, 30, 4),
    "VarianceReducedDecoupledProx": (VarianceReducedDecoupledProx(eta=0.1, tau=TAU), 7, 7 * 30, 6 * 4 + 30),
    "Mime": (Mime(eta=0.1, tau=TAU), 7, 7 * 30, 6 * 4 + 30),
    "MimeLite": (MimeLite(eta=0.1, tau=TAU), 4, 4 * 30, 3 * 4 + 30),
    "Scaffold I": (Scaffold(eta=0.1, tau=TAU, option="I"), 4, 4 * 30, 3 * 4 + 30),
    "Scaffold II": (Scaffold(eta=0.1, tau=TAU, option="II"), 3, 3 * 30, 3 * 4),
}


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """The rows of every gradient, as the losses of the clients are asked for it; to be watched without compilation."""
    read: list[int] = []
    full_grad, grad = FullGradient.full_grad, MiniBatch.grad

    def watched_full_grad(f, x):
        read.append(int(np.count_nonzero(f.q)))  # padding has weight 0
        return full_grad(f, x)

    def watched_grad(f, x, key):
        read.append(f.batch)
        return grad(f, x, key)

    monkeypatch.setattr(FullGradient, "full_grad", watched_full_grad)
    monkeypatch.setattr(MiniBatch, "grad", watched_grad)
    return read


@pytest.mark.parametrize("name", BY_HAND)
def test_rows_by_hand_are_those_counted_and_those_read(problem, read, name):
    algorithm, gradients, full, batches = BY_HAND[name]
    for batch_size, rows in ((None, full), (BATCH, batches)):
        read.clear()
        with jax.disable_jit():
            trace = reference(problem, algorithm, 2, batch_size=batch_size)
        assert trace["gradients"].tolist() == [0, gradients, 2 * gradients]
        assert trace["gradient_rows"].tolist() == [0, rows, 2 * rows]
        assert (len(read) / 3, sum(read) / 3) == (2 * gradients, 2 * rows)


def test_absent_clients_read_nothing(problem, read):
    algorithm, _, _, batches = BY_HAND["DecoupledProx"]
    with jax.disable_jit():
        trace = reference(problem, algorithm, 2, batch_size=BATCH, participants=2)
    assert trace["gradient_rows"][-1] == pytest.approx(2 * batches * 2 / 3)
    assert sum(read) / 3 == pytest.approx(2 * batches * 2 / 3)


def test_a_resumed_run_goes_on_counting_at_its_own_price(problem):
    algorithm = BY_HAND["Mime"][0]
    with jax.disable_jit():
        first = reference(problem, algorithm, 4, batch_size=BATCH, record_every=2)
        both = reference(problem, algorithm, 2, resume=first)
    assert both["round"].tolist() == [0, 2, 4, 5, 6]
    assert both["gradients"].tolist() == [0, 14, 28, 35, 42]
    assert both["gradient_rows"].tolist() == [0, 108, 216, 216 + 210, 216 + 420]  # 54 a round, then 210
