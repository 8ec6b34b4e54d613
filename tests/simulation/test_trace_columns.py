"""What a run records: columns on request, metrics, schedules of step sizes, small clients, starts, and the clock."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import compfed as cf
from compfed.algorithms import FISTA, DecoupledProx, FedAvg, FedDA, FedProx, Scaffnew
from compfed.algorithms.scaffnew import Random
from compfed.losses import from_function
from compfed.simulation import CostModel, run_plain, simulate_out_of_core
from compfed.simulation.clock import PRESETS
from compfed.trace import COLUMNS, COUNTED

SIZES = [5, 12, 30]


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    sites = cf.data.synthetic(clients=3, samples=SIZES, features=4, seed=0)
    return cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)


def network(width: int = 4, scale: float = 0.5):
    rng = np.random.default_rng(0)
    params = {"in": scale * rng.normal(size=(width, 6)), "out": scale * rng.normal(size=6)}
    return from_function(lambda p, a, y: jnp.logaddexp(0.0, -y * (p["out"] @ jnp.tanh(a @ p["in"]))), params)


@pytest.fixture(scope="module")
def nonlinear(problem) -> cf.Problem:
    return cf.Problem(network(), cf.regularisers.Zero(), problem.sites)


# --- nothing that needs a Lipschitz constant, unless asked for ---


def test_a_network_starts_without_curvature(nonlinear, monkeypatch):
    def refuse(*_):
        raise AssertionError("the curvature was estimated")

    with monkeypatch.context() as patch:
        patch.setattr(cf.Problem, "curvature_at", refuse)
        trace = cf.simulate(nonlinear, FedAvg(eta=0.1), 2, columns=[..., "participants"])
        assert "gradient_mapping" not in trace
        assert cf.simulate(nonlinear, FedAvg(eta=0.1), 2, L=4.0)["gradient_mapping"].shape == (3,)
        with pytest.raises(cf.Divergence):
            cf.simulate(nonlinear, FedAvg(eta=1e12), 40)
    asked = cf.simulate(nonlinear, FedAvg(eta=0.1), 2, columns=["gradient_mapping"])
    L = nonlinear.curvature_at(nonlinear.start)[0]
    np.testing.assert_allclose(
        asked["gradient_mapping"], cf.simulate(nonlinear, FedAvg(eta=0.1), 2, L=L)["gradient_mapping"]
    )
    with jax.enable_x64(True):  # without a regulariser the mapping is the gradient
        here = jnp.concatenate([jnp.asarray(A) for A in nonlinear.sites.features])
        y, w = np.concatenate(nonlinear.sites.labels), np.repeat(1 / (3 * np.array(SIZES)), SIZES)
        value = lambda x: w @ nonlinear.loss.values(x, here, jnp.asarray(y))  # noqa: E731
        np.testing.assert_allclose(
            asked["gradient_mapping"][-1], np.linalg.norm(jax.grad(value)(jnp.asarray(asked.x))), rtol=1e-9
        )
        np.testing.assert_allclose(trace["objective"][-1], value(jnp.asarray(trace.x)), rtol=1e-12)


def test_a_loss_that_is_flat_at_the_start_is_no_error(problem):
    flat = from_function(lambda p, a, y: (a @ p - y) ** 4, np.zeros(4))
    still = cf.data.from_arrays(
        [np.eye(4), np.eye(4)], [np.zeros(4), np.zeros(4)]
    )  # the minimum, and no curvature there
    here = cf.Problem(flat, cf.regularisers.Zero(), still)
    assert len(cf.simulate(here, FedAvg(eta=0.1), 2)) == 3
    assert len(cf.simulate(here, FedAvg(eta=0.1), 2, x0=np.ones(4), tol=1e-9, L=1.0)) == 3
    with pytest.raises(cf.InputError, match=r"flat where it was looked at.*L="):
        cf.simulate(here, FedAvg(eta=0.1), 2, columns=["gradient_mapping"])


def test_default_steps_refuse_what_they_cannot_bound(nonlinear, problem):
    with pytest.raises(cf.InputError, match=r"FromFunction has no bound.*Give L=.*at=x"):
        cf.algorithms.default_steps("FedAvg", nonlinear)
    assert cf.algorithms.default_steps("FedAvg", nonlinear, L=4.0).eta == 0.25
    assert cf.algorithms.default_steps("FedAvg", nonlinear, L=[4.0, 8.0, 2.0]).eta == 1 / 8
    known = problem.client_lipschitz
    assert cf.algorithms.default_steps("FedDA", problem, L=known) == cf.algorithms.default_steps("FedDA", problem)
    for L in (0.0, np.inf, [1.0, 2.0], "four"):
        with pytest.raises(cf.InputError, match="L="):
            cf.algorithms.default_steps("FedAvg", nonlinear, L=L)


def test_columns_are_those_asked_for(problem):
    some = cf.simulate(problem, FedDA(eta=0.5), 3, columns=["bytes_up", "objective"])
    assert list(some) == ["round", "objective", "bytes_up", "seconds"]
    every = cf.simulate(problem, FedDA(eta=0.5), 3)
    for name in ("objective", "bytes_up"):
        np.testing.assert_array_equal(some[name], every[name])
    np.testing.assert_array_equal(some.x, every.x)
    for columns, said in (
        ("objective", "must be a list"),
        (["objektive"], "Known: round"),
        (["clock"], "needs clock="),
        (3, "list"),
    ):
        with pytest.raises(cf.InputError, match=said):
            cf.simulate(problem, FedDA(eta=0.5), 1, columns=columns)  # pyright: ignore[reportArgumentType]


# --- metrics, starts, schedules ---


def test_metrics_are_functions_of_the_model(nonlinear, problem):
    X, y = problem.sites.pooled()

    def accuracy(params):
        return (jnp.sign(jnp.tanh(X @ params["in"]) @ params["out"]) == y).mean()

    lazy = cf.LazyProblem(nonlinear.loss, nonlinear.regulariser, nonlinear.sites)
    options: Any = {"metrics": {"accuracy": accuracy}, "record_every": 2}
    trace = cf.simulate(nonlinear, FedAvg(eta=0.3), 4, **options)
    p = nonlinear.loss.unravel(trace.x)
    assert trace["accuracy"][-1] == pytest.approx((np.sign(np.tanh(X @ p["in"]) @ p["out"]) == y).mean(), rel=1e-6)
    same = [
        run_plain(nonlinear, FedAvg(eta=0.3), 4, **options),
        simulate_out_of_core(lazy, FedAvg(eta=0.3), 4, participants=3, columns=[..., "objective"], **options),
        cf.grid(nonlinear, FedAvg(eta=0.1), 4, {"eta": [0.1, 0.3]}, **options)[1],
    ]
    for other in same:
        np.testing.assert_array_equal(other["accuracy"], trace["accuracy"])
        np.testing.assert_allclose(other["objective"], trace["objective"], rtol=1e-12)
    linear = cf.simulate(problem, FedDA(eta=0.5), 2, metrics={"size": lambda x: jnp.abs(x).sum()})
    assert linear["size"][-1] == pytest.approx(np.abs(linear.x).sum(), rel=1e-14)
    for metrics, said in ({"rows": len}, "column of a trace already"), (["accuracy"], "must map names"):
        with pytest.raises(cf.InputError, match=said):
            cf.simulate(problem, FedDA(eta=0.5), 1, metrics=metrics)  # pyright: ignore[reportArgumentType]


def test_a_start_may_be_a_pytree_and_one_for_each_seed(nonlinear):
    flat = nonlinear.start + 0.1
    tree = nonlinear.loss.unravel(flat)
    method = FedAvg(eta=0.3)
    np.testing.assert_array_equal(
        cf.simulate(nonlinear, method, 2, x0=tree).x, cf.simulate(nonlinear, method, 2, x0=flat).x
    )
    draw = lambda seed: np.random.default_rng(seed).normal(size=nonlinear.d)  # noqa: E731
    traces = cf.grid(nonlinear, method, 2, {"seed": [1, 2]}, x0=draw)
    for seed, trace in zip((1, 2), traces, strict=True):
        np.testing.assert_allclose(trace.x, cf.simulate(nonlinear, method, 2, x0=draw(seed)).x, rtol=1e-12)
    with pytest.raises(cf.InputError, match=r"x0 is not a pytree of this loss's parameters.*\(4, 6\)"):
        cf.simulate(nonlinear, method, 1, x0={"in": np.zeros((4, 6))})


def test_own_losses_are_refused_in_our_words(problem):
    batched = from_function(lambda p, a, y: (a[:, 0] * p - y).sum(), np.zeros(1))
    with pytest.raises(cf.InputError, match="FromFunction does not work with one row of 4 features"):
        cf.Problem(batched, cf.regularisers.Zero(), problem.sites)
    module = {"weight": np.zeros(3), "activation": jnp.tanh}
    with pytest.raises(cf.InputError, match=r"eqx.partition\(model, eqx.is_array\)"):
        from_function(lambda p, a, y: y, module)


@pytest.mark.parametrize("method", [DecoupledProx(eta=0.4, tau=2), Scaffnew(eta=0.4)], ids=lambda m: type(m).__name__)
def test_a_schedule_is_a_chain_of_resumed_runs(problem, method):
    steps = lambda r: 0.4 / (1 + 0.5 * r)  # noqa: E731
    options: Any = {"participants": 2, "seed": 3} if method.sampling != "no" else {}
    scheduled = cf.simulate(problem, method, 4, schedules={"eta": steps}, **options)
    chain = None
    for r in range(4):
        chain = cf.simulate(problem, replace(method, eta=steps(r)), 1, resume=chain, **options)
    assert chain is not None
    np.testing.assert_allclose(scheduled.x, chain.x, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(scheduled["objective"], chain["objective"], rtol=1e-12)
    if options:
        lazy = cf.LazyProblem(problem.loss, problem.regulariser, problem.sites)
        other = simulate_out_of_core(lazy, method, 4, schedules={"eta": steps}, columns=[..., "objective"], **options)
        np.testing.assert_allclose(other["objective"], scheduled["objective"], rtol=1e-12)
    for schedules, said in (
        ({"step": steps}, "'step' is not a number"), ({"tau": steps}, "'tau' is not a number"), ({"eta": lambda r: -1.0}, "eta must be"),
        ({"eta": lambda r: [1.0, 2.0]}, "one finite number"), ([0.1], "must map names"),
    ):  # fmt: skip
        with pytest.raises(cf.InputError, match=said):
            cf.simulate(problem, method, 1, schedules=schedules, **options)  # pyright: ignore[reportArgumentType]


# --- small clients ---


@pytest.mark.thorough
def test_a_batch_larger_than_a_client_is_all_of_its_rows(problem):
    """As large as every client it is the full gradient; in between, clients that are large enough draw what they drew."""
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    method = FedAvg(eta=0.5, tau=3)
    for batch_size in (30, 100):
        found = cf.simulate(smooth, method, 4, batch_size=batch_size)
        np.testing.assert_allclose(found.x, cf.simulate(smooth, method, 4).x, rtol=1e-12)
        assert found["rows"][-1] == 12 * np.mean(SIZES)
    between = cf.simulate(smooth, method, 4, batch_size=12, seed=2)
    assert between["rows"][-1] == 12 * np.mean([5, 12, 12])
    lazy = cf.LazyProblem(smooth.loss, smooth.regulariser, smooth.sites)
    for other in (
        run_plain(smooth, method, 4, batch_size=12, seed=2),
        simulate_out_of_core(lazy, method, 4, participants=3, batch_size=12, seed=2),
        cf.grid(smooth, method, 4, {"batch_size": [2, 12], "tau": [2, 3]}, seed=2)[3],
    ):
        np.testing.assert_allclose(other.x, between.x, rtol=1e-12)
        assert other["rows"][-1] == between["rows"][-1]
    alone = cf.data.from_arrays(smooth.sites.features[2:], smooth.sites.labels[2:])
    large = cf.Problem(smooth.loss, smooth.regulariser, alone)
    assert not np.allclose(cf.simulate(large, method, 4, batch_size=12).x, cf.simulate(large, method, 4).x)


@pytest.mark.thorough
def test_a_grid_over_tau_and_batch_size_is_run_by_run(problem):
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    traces = cf.grid(smooth, FedAvg(eta=0.5), 3, {"tau": [1, 4], "batch_size": [3, None], "eta": [0.2, 0.5]}, seed=1)
    assert [t.provenance["grid"] for t in traces][:3] == [
        {"tau": 1, "batch_size": 3, "eta": 0.2}, {"tau": 1, "batch_size": 3, "eta": 0.5}, {"tau": 1, "batch_size": None, "eta": 0.2},
    ]  # fmt: skip
    for trace in traces:
        its = trace.provenance["grid"]
        alone = cf.simulate(smooth, FedAvg(eta=its["eta"], tau=its["tau"]), 3, batch_size=its["batch_size"], seed=1)
        np.testing.assert_allclose(trace.x, alone.x, rtol=1e-12)
        for name in ("rows", "gradients"):
            np.testing.assert_array_equal(trace[name], alone[name])
    with pytest.raises(cf.InputError, match=r"grid over 'taus'.*tau.*batch_size"):
        cf.grid(smooth, FedAvg(eta=0.5), 1, {"taus": [1]})


# --- the clock ---


@pytest.mark.thorough
def test_the_clock_by_hand(problem):
    """Every exchange waits for the slowest participant; a sampled round of Scaffnew ends with a message of its own."""
    latency, row = np.array([1.0, 2.0, 0.5]), np.array([0.5, 0.01, 0.1])
    model = CostModel(latency=latency, bandwidth_down=32.0, bandwidth_up=[16.0, 64.0, 64.0], row=row)
    bytes_seconds = 32 / 32 + 32 / np.array([16.0, 64.0, 64.0])
    for batch_size, rows in ((None, np.array(SIZES)), (10, np.minimum(SIZES, 10))):
        trace = cf.simulate(problem, DecoupledProx(eta=0.1, tau=2), 3, clock=model, batch_size=batch_size)
        each = latency + bytes_seconds + 2 * rows * row
        np.testing.assert_allclose(trace["clock"], np.arange(4) * each.max(), rtol=1e-12)
    lazy = cf.LazyProblem(problem.loss, problem.regulariser, problem.sites)
    options: Any = {"participants": 1, "seed": 5, "clock": model, "columns": [..., "participants"]}
    trace = cf.simulate(problem, DecoupledProx(eta=0.1, tau=2), 6, **options)
    who = np.diff(trace["participants"], axis=0).argmax(axis=1)
    assert len(set(who)) > 1
    closing = latency + 32 / 32  # the result of the round, and no reply
    expected = np.cumsum((latency + bytes_seconds + 2 * np.array(SIZES) * row + closing)[who])
    np.testing.assert_allclose(trace["clock"][1:], expected, rtol=1e-12)
    other = simulate_out_of_core(lazy, DecoupledProx(eta=0.1, tau=2), 6, **options)
    np.testing.assert_allclose(other["clock"], trace["clock"], rtol=1e-12)


def test_presets_and_speeds_are_the_same_in_every_run(problem):
    rounds = {name: cf.simulate(problem, FISTA(eta=0.5), 2, clock=name)["clock"][-1] for name in PRESETS}
    assert rounds["datacentre"] < rounds["hospital"] < rounds["phone"]
    assert cf.simulate(problem, FISTA(eta=0.5), 2, clock="phone", seed=9)["clock"][-1] == rounds["phone"]
    model = CostModel(latency=1.0, bandwidth_down=1.0, bandwidth_up=1.0, row=1.0, spread=0.5, seed=1)
    all_three = model.seconds(np.array(SIZES), (0, 1, 2)).latency
    np.testing.assert_array_equal(model.seconds(np.array(SIZES[1:]), (1, 2)).latency, all_three[1:])
    assert len(set(all_three)) == 3
    for clock, said in (("tablet", "not a known cost model"), (3.0, "must be")):
        with pytest.raises(cf.InputError, match=said):
            cf.simulate(problem, FISTA(eta=0.5), 1, clock=clock)  # pyright: ignore[reportArgumentType]
    with pytest.raises(cf.InputError, match="2 numbers, and there are 3 clients"):
        cf.simulate(problem, FISTA(eta=0.5), 1, clock=CostModel([1.0, 2.0], 1.0, 1.0, 1.0))
    with pytest.raises(cf.InputError, match="bandwidth_up must be numbers > 0"):
        CostModel(latency=1.0, bandwidth_down=1.0, bandwidth_up=0.0, row=1.0)


def test_a_trace_shows_in_one_line(problem):
    trace = cf.simulate(problem, FedDA(eta=0.5), 3)
    assert "\n" not in repr(trace)
    assert len(repr(trace)) < 200
    assert repr(trace).startswith("Trace(FedDA, 3 rounds, 4 rows of ")


# --- epochs ---


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(FedAvg(eta=0.2, epochs=2), id="FedAvg"),
        pytest.param(FedProx(eta=0.2, mu=0.5, epochs=2), id="FedProx", marks=pytest.mark.thorough),
    ],
)
def test_epochs_are_as_many_steps_as_a_client_has_mini_batches(problem, method):
    """Two epochs of 5, 12 and 30 rows in batches of 5 are 2, 6 and 12 steps; over all rows they are two steps."""
    smooth = problem.replace(regulariser=cf.regularisers.Zero())
    trace = cf.simulate(smooth, method, 3, batch_size=5, seed=1)
    assert trace["gradients"].tolist() == [r * np.mean([2, 6, 12]) for r in range(4)]
    assert trace["rows"].tolist() == [5 * gradients for gradients in trace["gradients"]]
    plain = run_plain(smooth, method, 3, batch_size=5, seed=1)
    np.testing.assert_allclose(plain.x, trace.x, rtol=1e-12)
    np.testing.assert_array_equal(plain["rows"], trace["rows"])
    whole = cf.simulate(smooth, method, 3)
    np.testing.assert_allclose(whole.x, cf.simulate(smooth, replace(method, tau=2, epochs=None), 3).x, rtol=1e-12)
    assert whole["gradients"][-1] == 6
    with pytest.raises(cf.InputError, match="epochs must be a whole number >= 1"):
        FedAvg(eta=0.1, epochs=0)


# --- the page ---


def test_the_page_of_columns_has_every_column():
    page = (Path(__file__).parents[2] / "docs/reference/trace.md").read_text()
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert {name.strip(" `") for cell in table for name in cell.split(",")} == set(COLUMNS)
    assert COLUMNS.keys() >= COUNTED


# --- budgets ---


@pytest.mark.thorough
def test_a_budget_ends_a_run_before_the_round_that_costs_more(problem):
    """The trace, and the state to go on from, are those of a run of as many rounds as the budget buys."""
    method = Scaffnew(eta=0.3, steps=Random(p=0.4))  # rounds of different lengths
    whole = cf.simulate(problem, method, 40, seed=2, record_every=2, clock="phone")
    for name in ("gradients", "rows", "bytes_up", "exchanges", "clock", "round"):
        amount = 0.51 * float(whole[name][-1])
        found = cf.simulate(problem, method, 40, seed=2, record_every=2, clock="phone", budget={name: amount})
        rows = int((whole[name] <= amount).sum())
        assert 1 < rows < len(whole)
        assert len(found) == rows
        for column in ("round", "objective", "rows", "clock"):
            np.testing.assert_array_equal(found[column], whole[column][:rows])
        on = cf.simulate(
            problem, method, 40 - int(found["round"][-1]), seed=2, record_every=2, clock="phone", resume=found
        )
        np.testing.assert_allclose(on.x, whole.x, rtol=1e-12)
    assert len(cf.simulate(problem, method, 40, seed=2, budget={"rows": 1.0})) == 1  # not even one round
    assert len(cf.simulate(problem, method, 4, seed=2, budget={"rows": 1e9})) == 5
    mistakes: Any = [
        ({"seconds": 1.0}, "Known: bytes_down"), ({"clock": 1.0}, "clock= is given"), ({"rows": -1}, "budget of rows"), ({}, "must map"),
    ]  # fmt: skip
    for budget, said in mistakes:
        with pytest.raises(cf.InputError, match=said):
            cf.simulate(problem, method, 1, budget=budget)
