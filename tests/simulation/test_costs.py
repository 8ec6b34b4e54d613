"""Rows that gradients read: counted by hand, and against what the losses of the plain loop were asked for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import quadratic_oracle, quadratics, soft

import compfed as cf
from compfed.algorithms import FISTA, DecoupledProx, Mime, MimeLite, Scaffnew, Scaffold, VarianceReducedDecoupledProx
from compfed.algorithms.costs import CumulativeCost, cost_of_a_round
from compfed.algorithms.counting import KINDS
from compfed.algorithms.scaffnew import Random
from compfed.monitor import ClientSeconds
from compfed.problem.local_loss import FullGradient, MiniBatch
from compfed.simulation import run_plain, xla
from compfed.studies.ablation import AblatedProx

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
            trace = run_plain(problem, algorithm, 2, batch_size=batch_size)
        assert trace["gradients"].tolist() == [0, gradients, 2 * gradients]
        assert trace["rows"].tolist() == [0, rows, 2 * rows]
        assert (len(read) / 3, sum(read) / 3) == (2 * gradients, 2 * rows)


def test_absent_clients_read_nothing(problem, read):
    algorithm, _, _, batches = BY_HAND["DecoupledProx"]
    with jax.disable_jit():
        trace = run_plain(problem, algorithm, 2, batch_size=BATCH, participants=2)
    assert trace["rows"][-1] == pytest.approx(2 * batches * 2 / 3)
    assert sum(read) / 3 == pytest.approx(2 * batches * 2 / 3)


def test_a_resumed_run_goes_on_counting_at_its_own_price(problem):
    algorithm = BY_HAND["Mime"][0]
    with jax.disable_jit():
        first = run_plain(problem, algorithm, 4, batch_size=BATCH, record_every=2)
        both = run_plain(problem, algorithm, 2, resume=first)
    assert both["round"].tolist() == [0, 2, 4, 5, 6]
    assert both["gradients"].tolist() == [0, 14, 28, 35, 42]
    assert both["rows"].tolist() == [0, 108, 216, 216 + 210, 216 + 420]  # 54 a round, then 210


RANDOM = Scaffnew(eta=0.1, steps=Random(p=0.5))


def test_rounds_of_random_length_count_what_was_done(problem):
    """Every round by itself, not on average: the lengths that all clients draw."""
    trace = run_plain(problem, RANDOM, 4, batch_size=BATCH, seed=3)
    lengths = [int(RANDOM.with_seed(3).steps.drawn(np.int32(r))) for r in range(4)]
    assert len(set(lengths)) > 1
    assert np.diff(trace["gradients"]).tolist() == lengths
    assert trace["rows"].tolist() == (BATCH * trace["gradients"]).tolist()
    assert np.diff(trace["vectors_up"]).tolist() == [1.0] * 4  # messages are as long as ever


def test_random_lengths_are_counted_between_records_and_after_a_resume(problem):
    whole = cf.simulate(problem, RANDOM, 7, seed=3)
    assert cf.simulate(problem, RANDOM, 7, seed=3, record_every=4)["gradients"].tolist() == [
        whole["gradients"][r] for r in (0, 4, 7)
    ]
    half = cf.simulate(problem, RANDOM, 3, seed=3)
    assert cf.simulate(problem, RANDOM, 4, seed=3, resume=half)["gradients"].tolist() == whole["gradients"].tolist()


@pytest.mark.thorough
def test_random_lengths_follow_from_the_seed_of_the_run(problem):
    """With full gradients of everyone nothing else is drawn."""
    first, again, other = (cf.simulate(problem, RANDOM, 12, seed=s, record_every=12) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.x, again.x)
    assert first["gradients"][-1] != other["gradients"][-1]
    assert not np.array_equal(first.x, other.x)
    assert first.provenance["algorithm"]["steps"]["seed"] == 1
    for member, alone in zip(cf.grid(problem, RANDOM, 12, {"seed": [1, 2]}), (first, other), strict=True):
        np.testing.assert_allclose(member.x, alone.x, rtol=0, atol=1e-14)
        assert member["gradients"][-1] == alone["gradients"][-1]
    own = Scaffnew(eta=0.1, steps=Random(p=0.5, seed=1))  # for lengths that stay when mini-batches change
    np.testing.assert_array_equal(cf.simulate(problem, own, 12, seed=2, record_every=12).x, first.x)


def test_neighbouring_large_seeds_differ_in_float32():
    """2**24 + 1 is no float32: a seed must not pass through one."""
    sites = cf.data.synthetic(clients=3, samples=ROWS, features=4, seed=0)
    single = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.Zero(), sites, dtype="float32")
    steps = [Scaffnew(eta=0.1, steps=Random(p=0.05, seed=s)) for s in (2**24, 2**24 + 1)]
    a, b = (cf.simulate(single, algorithm, 3) for algorithm in steps)
    assert a["gradients"].tolist() != b["gradients"].tolist()
    assert not np.array_equal(a.x, b.x)


COSTS = ("vectors_up", "vectors_down", "bytes_up", "bytes_down", "gradients", "rows", "client_proxes")


@pytest.mark.parametrize("change", [{"tau": 1}, {"participants": 1}], ids=["tau", "participants"])
def test_costs_never_fall_when_a_run_goes_on_cheaper(problem, change):
    first = cf.simulate(problem, DecoupledProx(eta=0.1, tau=TAU), 5)
    algorithm, participants = DecoupledProx(eta=0.1, tau=change.get("tau", TAU)), change.get("participants")
    both = cf.simulate(problem, algorithm, 4, participants=participants, resume=first)
    share = 1 / 3 if participants else 1.0
    for name in COSTS:
        steps = np.diff(both[name])
        assert (steps > 0).all(), name
        if name == "rows" and participants:
            continue  # those of the participants' own sites: see below
        np.testing.assert_allclose(steps[:5], steps[0], rtol=1e-12)
        np.testing.assert_allclose(steps[5:], steps[5], rtol=1e-12)
    assert np.diff(both["gradients"])[-1] == pytest.approx(share * algorithm.tau)


@pytest.mark.parametrize("rule", ["eta", "eta-tilde", "none"])
def test_drift_of_an_ablation_is_that_of_its_own_local_models(rule):
    """Algorithm 1 with another local prox, in NumPy."""
    problem = quadratics(g=cf.regularisers.L1(0.3))
    H, b = quadratic_oracle(problem)
    eta, eta_g, tau, lam = 0.05, 0.8, 3, 0.3
    length = eta * eta_g * tau
    inner = {"eta": eta, "eta-tilde": length, "none": 0.0}[rule]
    x, c, drift = np.zeros(problem.d), np.zeros((5, problem.d)), []
    for _ in range(3):
        p = soft(x, length * lam)
        zhat, z, S = np.tile(p, (5, 1)), np.tile(p, (5, 1)), np.zeros((5, problem.d))
        for _ in range(tau):
            q = np.einsum("ijk,ik->ij", H, z) - b
            zhat, S = zhat - eta * (q + c), S + q
            z = soft(zhat, inner * lam)
        x = p - length * S.mean(0) / tau
        c = (p - x) / length - S / tau
        drift.append(np.linalg.norm(z - z.mean(0), axis=1).mean())
    for run in (cf.simulate, run_plain):
        found = run(problem, AblatedProx(eta=eta, rule=rule, eta_g=eta_g, tau=tau), 3)["drift"]
        np.testing.assert_allclose(found, [0.0, *drift], rtol=1e-10)


def test_rows_of_very_many_clients_do_not_overflow():
    """300,000 clients with 50,000 rows: 10,000 rounds of 20 gradients touch 3e15 rows, which times the clients is 9e20."""
    cost = cost_of_a_round(DecoupledProx(eta=0.01, tau=20), 2, np.dtype(float), True)
    cumulative = CumulativeCost(cost, np.full(300_000, 50_000, np.int32), None, 300_000, 0)
    rounds = np.array([1, 10_000], np.int32)
    assert cumulative.after(rounds)["rows"].tolist() == [20 * 50_000, 20 * 50_000 * 10_000]


def test_the_clock_of_many_gradients_of_many_rows_does_not_overflow():
    """3,000 gradients of a million rows, at a microsecond a row: 3,000 s; the rows are more than 32 bits hold."""
    each = np.zeros((1, len(KINDS)), np.int32)
    each[0, KINDS.index("full_grad")] = 3000
    clock = ClientSeconds(*(np.array([value]) for value in (0.0, 0.0, 0.0, 1e-6)))
    params: Any = SimpleNamespace(clock=clock)
    data: Any = SimpleNamespace(weight=np.ones(1), size=jnp.array([1_000_000], jnp.int32))
    options: Any = SimpleNamespace(calls=True, everyone=True, batch_size=None)
    sample: Any = SimpleNamespace(who=None)
    count = xla._Count(options, params, data, sample)
    count.exchange(each, np.zeros(1), np.zeros((1, 1)))
    assert float(count.seconds) == pytest.approx(3000.0, rel=1e-6)


def test_rows_of_many_clients_do_not_overflow():
    """All clients together read 24,000 rows a round; times the clients and the rounds that is more than 32 bits hold."""
    sites = cf.data.synthetic(clients=600, samples=2, features=1, seed=0)
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    trace = cf.simulate(problem, DecoupledProx(eta=0.01, tau=20), 200, columns=["rows"])
    assert trace["rows"].tolist() == [2 * 20 * rounds for rounds in trace["round"].tolist()]
