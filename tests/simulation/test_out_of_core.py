"""Rounds with only their participants in memory: the models of the other engines, whatever the number of clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from problems import quadratics
from scipy.sparse import csr_array

import compfed as cf
from compfed.algorithms import DecoupledProx, FedAvg, Mime, Scaffold
from compfed.simulation import run_plain
from compfed.simulation.out_of_core import ClientStates

RNG = np.random.default_rng(3)
SIZES = [12, 5, 7, 5, 9, 12]


@pytest.fixture(scope="module")
def sites() -> cf.data.Sites:
    A = [RNG.standard_normal((m, 5)) for m in SIZES]
    return cf.data.from_arrays(A, [a @ RNG.standard_normal(5) + 0.1 * RNG.standard_normal(len(a)) for a in A])


def both(sites, g, weights=None) -> tuple[cf.Problem, cf.LazyProblem]:
    loss = cf.losses.Squared(ridge=0.1)
    return cf.Problem(loss, g, sites, weights), cf.LazyProblem(loss, g, sites, weights)


# The cohort is padded to its own largest client and not to the largest of all: sums of a zero more or less round alike or not.
@pytest.mark.parametrize(
    ("method", "batch", "weighted"),
    [
        (Scaffold(eta=0.05, tau=2), None, False),
        (DecoupledProx(eta=0.05, tau=2), 3, True),  # closes its rounds; the ratio
        # remembers nothing; drawn in proportion to the weights
        pytest.param(FedAvg(eta=0.05, tau=2), None, True, marks=pytest.mark.thorough),
        pytest.param(Mime(eta=0.05, tau=2), None, False, marks=pytest.mark.thorough),  # two exchanges
    ],
    ids=lambda v: type(v).__name__ if hasattr(v, "init") else None,
)
def test_a_federation_that_fits_has_the_models_of_the_other_engines(sites, method, batch, weighted):
    g = cf.regularisers.L1(0.02) if method.composite else cf.regularisers.Zero()
    problem, lazy = both(sites, g, sites.shares if weighted else None)
    how = {"participants": 3, "batch_size": batch, "seed": 4}
    found = cf.simulate_out_of_core(lazy, method, 9, **how)
    for engine in (cf.simulate, run_plain) if method.composite else (cf.simulate,):
        expected = engine(problem, method, 9, **how)
        np.testing.assert_allclose(found.x, expected.x, rtol=0, atol=1e-12)
        for column in ("drift", "nonzeros", "bytes_up", "rows"):
            np.testing.assert_allclose(found[column], expected[column], rtol=1e-10, atol=1e-12)
        memories, theirs_too = found.state, expected.state
        assert memories is not None
        assert memories.of is not None
        assert theirs_too is not None
        for mine, theirs in zip(memories.server, theirs_too.server, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
        everybody = [np.flatnonzero(memories.of == (i if i in memories.of else -1))[0] for i in range(6)]
        for mine, theirs in zip(memories.clients, theirs_too.clients, strict=True):
            np.testing.assert_allclose(mine[everybody], theirs, rtol=0, atol=1e-12)


def test_few_of_many_are_the_same_ones():
    problem = quadratics(n=1100, d=3, rows=2, g=cf.regularisers.Zero())
    lazy = cf.LazyProblem(problem.loss, problem.regulariser, problem.sites)
    method = Scaffold(eta=0.02, tau=1)
    found = cf.simulate_out_of_core(lazy, method, 3, participants=5, record_every=3)
    expected = cf.simulate(problem, method, 3, participants=5, record_every=3)
    np.testing.assert_allclose(found.x, expected.x, rtol=0, atol=1e-12)


def test_rows_and_memories_of_participants_and_of_no_others_are_fetched():
    asked = []

    def rows_of(i: int):
        asked.append(i)
        A = np.random.default_rng(i).standard_normal((4, 3))
        return A, A @ [1.0, 0.0, -1.0]

    problem = cf.LazyProblem(
        cf.losses.Squared(ridge=0.1), cf.regularisers.Zero(), cf.data.lazy_sites(rows_of, np.full(10**6, 4))
    )
    problem.members()  # looks at a few clients, to know the federation by
    before = len(asked)
    trace = cf.simulate_out_of_core(problem, Scaffold(eta=0.1, tau=2), 12, participants=7, record_every=4)
    taken = asked[before:]
    assert len(taken) == 12 * 7
    assert trace.state is not None
    assert trace.state.of is not None
    assert set(trace.state.of[:-1]) == set(taken)
    assert trace.state.of[-1] == -1
    assert trace.state.clients[0].shape == (len(set(taken)) + 1, 3)
    assert max(taken) > 10**5  # of all of them
    assert "objective" not in trace
    assert trace.provenance["measured_on"] is None
    assert trace["round"].tolist() == [0, 4, 8, 12]


def test_a_run_goes_on_where_it_stopped_and_where_it_can(sites, tmp_path):
    problem, lazy = both(sites, cf.regularisers.Zero())
    method, x0 = Scaffold(eta=0.05, tau=2), np.ones(5)
    whole = cf.simulate_out_of_core(lazy, method, 8, participants=3, x0=x0)
    part = cf.simulate_out_of_core(lazy, method, 3, participants=3, x0=x0)
    part = cf.Trace.load(part.save(tmp_path / "part"))
    again = cf.simulate_out_of_core(lazy, method, 5, participants=3, resume=part)
    np.testing.assert_array_equal(again.x, whole.x)
    np.testing.assert_array_equal(again["bytes_up"], whole["bytes_up"])
    with pytest.raises(cf.InputError, match="the trace is of simulate_out_of_core"):
        cf.simulate(problem, method, 1, resume=part)
    assert part.state is not None
    of_all = replace(part, state=replace(part.state, of=None))
    with pytest.raises(cf.InputError, match="the trace is of simulate;"):
        cf.simulate_out_of_core(lazy, method, 1, participants=3, resume=of_all)


# the same number of clients and columns, and yet another problem: (a factor of A, of y, a turn of the sizes, weights)
OTHERS: dict[str, Any] = {
    "weights": (
        1,
        1,
        0,
        [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
        r"weight of site 0 was 0\.166667 in the trace and is 0\.5 now",
    ),
    "sizes": (1, 1, 1, None, "site 1 had 5 rows in the trace and has 12 now"),
    "rows": (7, 1, 0, None, "site 0 has other rows than in the trace"),
    "labels": (1, 1.01, 0, None, "site 0 has other rows than in the trace"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_federation_is_no_place_to_go_on(sites, tmp_path, what):
    A, y = np.concatenate(sites.features), np.concatenate(sites.labels)

    def federation(of_A: float = 1, of_y: float = 1, turn: int = 0, weights: Any = None) -> cf.LazyProblem:
        mapped = cf.data.mapped_sites(of_A * A, of_y * y, np.roll(sites.sizes, turn))
        return cf.LazyProblem(cf.losses.Squared(ridge=0.1), cf.regularisers.Zero(), mapped, weights)

    method = Scaffold(eta=0.05, tau=2)
    part = cf.simulate_out_of_core(federation(), method, 3, participants=3)
    part = cf.Trace.load(part.save(tmp_path / "part"))
    *other, said = OTHERS[what]
    with pytest.raises(cf.InputError, match=said):
        cf.simulate_out_of_core(federation(*other), method, 1, participants=3, resume=part)
    again = cf.simulate_out_of_core(federation(), method, 1, participants=3, resume=part)
    np.testing.assert_array_equal(again.x, cf.simulate_out_of_core(federation(), method, 4, participants=3).x)


def test_what_is_measured_is_said_to_be_of_a_subset_and_all_can_be_measured_at_the_end(sites):
    problem, lazy = both(sites, cf.regularisers.L1(0.1), sites.shares)
    trace = cf.simulate_out_of_core(
        lazy, DecoupledProx(eta=0.05, tau=2), 4, participants=3, measure_on=lazy.subset([0, 4]), record_every=2
    )
    x, p = trace.x, sites.shares[[0, 4]]
    A, y = [sites.features[i] for i in (0, 4)], [sites.labels[i] for i in (0, 4)]
    values = [0.5 * np.mean((a @ x - b) ** 2) for a, b in zip(A, y, strict=True)]
    expected = p @ values / p.sum() + 0.05 * x @ x + 0.1 * np.abs(x).sum()
    assert trace["subset_objective"][-1] == pytest.approx(expected, rel=1e-12)
    assert "objective" not in trace
    assert trace.provenance["measured_on"]["clients"] == 2
    assert lazy.objective(x) == pytest.approx(problem.objective(x), rel=1e-13)
    np.testing.assert_allclose(lazy.gradient(x), problem.gradient(x), rtol=0, atol=1e-13)


def test_a_pass_over_all_clients_goes_block_by_block(sites, monkeypatch):
    problem, lazy = both(sites, cf.regularisers.L1(0.1), sites.shares)
    monkeypatch.setattr("compfed.problem.problem.BLOCK", 16 * 5 * 8)  # sixteen rows
    assert len(list(lazy._blocks())) > 2
    x = np.arange(5.0)
    assert lazy.objective(x) == pytest.approx(problem.objective(x), rel=1e-13)


def test_rows_may_stay_in_files(sites, tmp_path):
    X, y = sites.pooled()
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    mapped = cf.data.mapped_sites(
        np.load(tmp_path / "X.npy", mmap_mode="r"), np.load(tmp_path / "y.npy", mmap_mode="r"), SIZES
    )
    assert len(mapped) == 6
    assert mapped.width == 5
    for i in range(6):
        np.testing.assert_array_equal(mapped.rows(i)[0], sites.features[i])
        np.testing.assert_array_equal(mapped.rows(i)[1], sites.labels[i])
    problem = cf.LazyProblem(cf.losses.Squared(ridge=0.1), cf.regularisers.L1(0.1), mapped, mapped.shares)
    expected = cf.Problem(problem.loss, problem.regulariser, sites, sites.shares)
    assert problem.objective(np.ones(5)) == pytest.approx(expected.objective(np.ones(5)), rel=1e-13)


def test_memories_are_those_of_a_table_of_all_clients():
    rng, n = np.random.default_rng(0), 40
    table, memories = np.full((n, 2), 7.0), ClientStates({"c": np.full(2, 7.0)})
    for _ in range(30):
        who = rng.permutation(n)[: rng.integers(1, 6)]
        np.testing.assert_array_equal(memories.load(who)["c"], table[who])
        table[who] = rng.standard_normal((len(who), 2))
        memories.store(who, {"c": table[who]})
    again = ClientStates({"c": np.zeros(2)}, *memories.saved())
    np.testing.assert_array_equal(again.load(np.arange(n))["c"], table)


def test_a_run_that_blows_up_says_so_and_keeps_what_it_had(sites):
    _, lazy = both(sites, cf.regularisers.Zero())
    with pytest.raises(cf.Divergence, match="diverged in round") as caught:
        cf.simulate_out_of_core(lazy, FedAvg(eta=1e3, tau=2), 60, participants=2)
    assert 1 < len(caught.value.trace) < 60


def test_what_cannot_be_used_is_refused_by_name(sites):
    lazy: Any = both(sites, cf.regularisers.Zero())[1]
    none: Any = None
    problem: Any = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    array: Any = np.ones(3)
    rows: Any = [1]
    method, loss, g = FedAvg(eta=0.1), cf.losses.Squared(), cf.regularisers.Zero()
    refused = [
        (lambda: cf.simulate(lazy, method, 1), "simulate_out_of_core"),
        (lambda: cf.grid(lazy, method, 1, {"eta": [0.1]}), "simulate_out_of_core"),
        (lambda: cf.algorithms.default_steps("FedAvg", lazy), "problem.subset"),
        (lambda: cf.Problem(loss, g, lazy.sites), "LazyProblem"),
        (lambda: cf.LazyProblem(loss, g, rows), "lazy_sites"),
        (lambda: cf.simulate_out_of_core(problem, method, 1, participants=2), "Use simulate"),
        (lambda: cf.simulate_out_of_core(lazy, method, 1, participants=none), "participants=None"),
        (lambda: cf.simulate_out_of_core(lazy, method, 1, participants=7), "6 clients"),
        (lambda: cf.simulate_out_of_core(lazy, method, 1, participants=2, columns=[..., "gradient_mapping"]), "L=..."),
        (lambda: cf.simulate_out_of_core(lazy, method, 1, participants=2, measure_on=lazy), "measure_on"),
        (lambda: lazy.subset([6]), "0..5"),
        (lambda: cf.data.lazy_sites(none, [1]), "rows_of"),
        (lambda: cf.data.lazy_sites(lambda i: array, [3]), r"must return \(features, labels\)"),
        (lambda: cf.data.lazy_sites(lambda i: (np.ones((3, 2)), np.ones(3)), [4]), "its size is 4"),
        (lambda: cf.data.lazy_sites(lambda i: ([["a"]], [1]), [1]), "not numbers"),
        (lambda: cf.data.lazy_sites(lambda i: (np.ones((3, 2)), np.ones(3)), [3, 0]), "client 1 has 0 rows"),
        (lambda: cf.data.lazy_sites(lambda i: (np.ones((3, 2)), np.ones(3)), 5), "np.full"),
        (lambda: cf.data.mapped_sites(np.ones((3, 2)), np.ones(3), [1, 1]), "sum to 2"),
        (lambda: cf.data.mapped_sites([[1.0]], np.ones(1), [1]), "must be an array"),  # pyright: ignore  # the mistake
        (lambda: cf.data.mapped_sites(csr_array(np.eye(3)), np.ones(3), [2, 1]), "must be an array of rows.*got csr_array"),  # pyright: ignore  # the mistake
        (lambda: cf.data.lazy_sites(lambda i: (csr_array(np.eye(3)), np.ones(3)), [3]), r"are sparse.*toarray\(\)"),  # pyright: ignore  # the mistake
        (lambda: cf.data.mapped_sites(np.ma.masked_greater(np.eye(3), 0.5), np.ones(3), [2, 1]), "client 0.*2 masked"),
        (lambda: cf.LazyProblem(loss, g, sites, [0, 0.5, 0.5, 0, 0, 0]).subset([0, 3]), r"\[0, 3\] have weight 0"),
    ]  # fmt: skip
    for call, said in refused:
        with pytest.raises(cf.InputError, match=said):
            call()
    holes = cf.data.lazy_sites(lambda i: (np.full((2, 2), 1.0 if i < 2 else np.nan), np.ones(2)), [2] * 3)
    with pytest.raises(cf.InputError, match="client 2 has rows with NaN"):
        cf.simulate_out_of_core(cf.LazyProblem(cf.losses.Squared(ridge=1.0), g, holes), method, 9, participants=1)
