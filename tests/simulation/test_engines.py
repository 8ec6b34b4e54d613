"""Two engines, one algorithm: they must agree, whatever the order of the clients and the shape of the data."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from problems import logistic, quadratics

import compfed as cf
from compfed.algorithms import ALGORITHMS, Algorithm, DecoupledProx, FedAvg, FedDA, FedMid, default_steps
from compfed.federation import FinishRound, LocalUpdate
from compfed.federation.server.rounds import bind_algorithm
from compfed.federation.site.memory import ClientMemory
from compfed.simulation import run_plain

engine = importlib.import_module("compfed.simulation.simulate")  # the package exports the function of the same name

EQUAL, UNEQUAL = 20, [30, 6, 30, 6, 6]  # the unequal ones fill two buckets
# Columns that are pure rounding noise (a norm that is zero in exact arithmetic), or a clock.
NOT_COMPARED = {"seconds", "correction"}


@pytest.fixture(scope="module")
def problems() -> dict[str, cf.Problem]:
    return {"equal": logistic(samples=EQUAL), "unequal": logistic(samples=UNEQUAL, weights=True)}


def method(name: str, problem: cf.Problem) -> tuple[cf.Problem, Algorithm]:
    """The named method with three local steps, and the problem it can run on (without g for smooth-only methods)."""
    if not ALGORITHMS[name].composite:
        problem = problem.replace(regulariser=cf.regularisers.Zero())
    return problem, default_steps(name, problem, tau=3)


def assert_same(a: cf.Trace, b: cf.Trace, tol: float = 1e-10) -> None:
    assert np.abs(a.x - b.x).max() <= tol * np.abs(b.x).max()
    assert list(a) == list(b)
    for column in set(a) - NOT_COMPARED:
        scale = max(float(np.nanmax(np.abs(b[column]))), 1e-3)
        np.testing.assert_allclose(a[column], b[column], rtol=0, atol=tol * scale, err_msg=column)
    assert a.state is not None
    assert b.state is not None
    for mine, other in zip(a.state.server + a.state.clients, b.state.server + b.state.clients, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=tol * max(1.0, float(np.abs(other).max())))


PAPER = ("DecoupledProx", "FedMid", "FedDA", "FastFedDA", "ProximalGradient", "FISTA")
ENDS = [(None, None), (5, 2)]  # full gradients of everyone, mini-batches of a sample
BETWEEN = [(None, 2), (5, None)]


def cases() -> list[Any]:
    """Every method on unequal sites, the paper's on equal ones too (a special case of the same code).

    The short run has mini-batches of a sample, or of everyone where a method cannot sample. It has full gradients of everyone
    for the methods of the paper and those of second order.
    """
    found = []
    for name, cls in ALGORITHMS.items():
        quick = [(5, 2)] if cls.sampling != "no" else [(5, 2), (5, None)]
        quick += [(None, None)] if name in (*PAPER, "ProximalNewton", "ProximalBFGS") else []
        for batch, k in [*ENDS, *BETWEEN]:
            marks = () if (batch, k) in quick else pytest.mark.thorough
            found.append(pytest.param(name, "unequal", batch, k, marks=marks))
        found += [pytest.param(name, "equal", *ENDS[1], marks=pytest.mark.thorough)] if name in PAPER else []
    return found


@pytest.mark.parametrize(("name", "sites", "batch_size", "participants"), cases())
def test_reference_and_simulate_agree(monkeypatch, problems, name, sites, batch_size, participants):
    problem, algorithm = method(name, problems[sites])
    options = {"batch_size": batch_size, "participants": participants, "seed": 4, "record_every": 10}
    if participants is not None and algorithm.sampling == "no":
        for engine_ in (cf.simulate, run_plain):
            with pytest.raises(cf.InputError, match=f"{name} needs every client in every round; got participants=2"):
                engine_(problem, algorithm, 50, **options)
        return
    # by the messages of the plain loop, per site; closing replies are one bit
    carried = {
        "bytes_down": 0.0,
        "bytes_up": 0.0,
    }
    take_part, finish_round = ClientMemory.take_part, ClientMemory.finish_round

    def counted(memory: ClientMemory, query: LocalUpdate) -> LocalUpdate.Reply:
        reply = take_part(memory, query)
        carried["bytes_down"] += sum(array.nbytes for array in query.d.values()) / problem.n
        carried["bytes_up"] += sum(array.nbytes for array in reply.u.values()) / problem.n
        return reply

    def finished(memory: ClientMemory, query: FinishRound) -> FinishRound.Reply:
        carried["bytes_down"] += sum(array.nbytes for array in query.d.values()) / problem.n
        return finish_round(memory, query)

    monkeypatch.setattr(ClientMemory, "take_part", counted)
    monkeypatch.setattr(ClientMemory, "finish_round", finished)
    plain = run_plain(problem, algorithm, 50, **options)
    assert_same(cf.simulate(problem, algorithm, 50, **options), plain)
    # what is counted on shapes is what the messages carried
    for column, size in carried.items():
        assert plain[column][-1] == pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize("participants", [None, 2])
@pytest.mark.parametrize("batch_size", [None, 5])
def test_permuting_the_clients_permutes_nothing_else(problems, batch_size, participants):
    problem = problems["unequal"]
    order = [3, 0, 4, 2, 1]
    permuted = cf.Problem(
        problem.loss, problem.regulariser, problem.sites.permuted(order), weights=problem.weights[order]
    )
    algorithm = DecoupledProx(eta=1.0, tau=3)
    options = {"batch_size": batch_size, "participants": participants, "seed": 1}
    a, b = (cf.simulate(p, algorithm, 30, **options) for p in (problem, permuted))
    np.testing.assert_allclose(b.x, a.x, rtol=1e-10)
    assert a.state is not None
    assert b.state is not None
    for mine, other in zip(a.state.clients, b.state.clients, strict=True):
        np.testing.assert_allclose(other, mine[order], rtol=0, atol=1e-10)


@pytest.mark.parametrize("participants", [None, 2])
def test_visiting_clients_one_after_another_or_side_by_side_is_the_same(problems, monkeypatch, participants):
    problem, algorithm = problems["unequal"], DecoupledProx(eta=1.0, tau=3)
    side_by_side = cf.simulate(problem, algorithm, 20, participants=participants)
    for at_once in (1, 2):
        monkeypatch.setattr(engine, "clients_at_once", lambda nbytes, batch_size, k=at_once: k)
        assert_same(cf.simulate(problem, algorithm, 20, participants=participants), side_by_side)


def test_members_of_a_grid_may_draw_clients_of_several_buckets(problems, monkeypatch):
    problem, algorithm = problems["unequal"], DecoupledProx(eta=1.0, tau=3)
    alone = cf.simulate(problem, algorithm, 20, participants=2)
    monkeypatch.setattr(engine, "clients_at_once", lambda problem, nbytes, batch_size: 1)
    assert_same(cf.grid(problem, algorithm, 20, {"seed": [1, 0]}, participants=2)[1], alone)


def test_recording_less_often_changes_only_what_is_recorded(problems):
    problem, algorithm = problems["equal"], FedDA(eta=1.0, tau=3)
    often, seldom = (cf.simulate(problem, algorithm, 23, batch_size=5, record_every=k) for k in (1, 7))
    assert seldom["round"].tolist() == [0, 7, 14, 21, 23]
    np.testing.assert_array_equal(seldom.x, often.x)
    np.testing.assert_allclose(seldom["objective"], often["objective"][seldom["round"]], rtol=1e-14)


def test_step_sizes_lambda_and_rounds_do_not_recompile(problems, compilations):
    problem = problems["equal"]
    cf.simulate(problem, DecoupledProx(eta=1.0, tau=3), 10)
    assert compilations() == 1
    for eta, lam, ridge, rounds, every, seed in [(0.5, 1e-3, 0.05, 11, 2, 1), (0.3, 5e-3, 0.1, 40, 1, 2)]:
        other = problem.replace(cf.losses.Logistic(ridge), cf.regularisers.L1(lam))
        cf.simulate(other, DecoupledProx(eta=eta, eta_g=1.1, tau=3), rounds, record_every=every, seed=seed)
    assert compilations() == 1
    cf.simulate(problem, DecoupledProx(eta=1.0, tau=9), 10)  # tau shapes the program
    assert compilations() == 2


def test_a_grid_is_its_members_run_alone_and_one_program(problems, compilations):
    problem = problems["unequal"]
    over = {"eta": [0.5, 1.0], "lam": [1e-3, 1e-2], "seed": [0, 7]}
    traces = cf.grid(problem, DecoupledProx(eta=1.0, tau=3), 20, over, batch_size=5)
    assert compilations() == 1
    assert len(traces) == 8
    for trace in traces:
        values = trace.provenance["grid"]
        member = problem.replace(regulariser=cf.regularisers.L1(values["lam"]))
        alone = cf.simulate(member, DecoupledProx(eta=values["eta"], tau=3), 20, batch_size=5, seed=values["seed"])
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(trace["objective"], alone["objective"], rtol=1e-12)


def test_a_grid_gives_each_member_its_own_minimiser(problems):
    problem = problems["equal"]
    algorithm = DecoupledProx(eta=2.0, tau=3)
    for trace in cf.grid(problem, algorithm, 800, {"lam": [1e-3, 4e-3]}, x_star=cf.solve_pooled, record_every=800):
        assert trace["optimality"][-1] < 1e-10


def test_costs_follow_from_the_message_types(problems):
    problem, d = problems["equal"], 8
    # up, down (vectors); gradients; per client and round
    expected = {"DecoupledProx": (1, 1, 3), "FedMid": (1, 1, 3), "FedDA": (1, 1, 3), "FastFedDA": (2, 2, 3)}
    expected |= {"ProximalGradient": (1, 1, 1), "FISTA": (1, 1, 1)}
    for name, costs in expected.items():
        trace = cf.simulate(*method(name, problem), 10)
        per_round = [trace[c][-1] / 10 for c in ("vectors_up", "vectors_down", "gradients")]
        assert per_round == list(costs), name
        assert trace["bytes_up"][-1] >= 8 * d * trace["vectors_up"][-1]
    half = cf.simulate(problem, DecoupledProx(eta=1.0, tau=3), 10, participants=2)
    assert half["vectors_up"][-1] == pytest.approx(10 * 2 / 5)
    assert half["vectors_down"][-1] == pytest.approx(2 * 10 * 2 / 5)  # sampled clients hear the result as well


def test_float32_stays_float32_and_close_to_float64(problems):
    problem = problems["equal"]
    algorithm = FedDA(eta=1.0, tau=3)
    single, double = cf.simulate(problem.astype("float32"), algorithm, 50), cf.simulate(problem, algorithm, 50)
    assert single.x.dtype == np.float32
    assert single.provenance["dtype"] == "float32"
    np.testing.assert_allclose(single.x, double.x, rtol=0, atol=1e-5)


def test_progress_reports_every_round(problems):
    seen: list[tuple[int, int]] = []
    cf.simulate(problems["equal"], FedMid(eta=1.0, tau=3), 10, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (10, 10)
    assert [d for d, _ in seen] == sorted(d for d, _ in seen)


def test_a_smooth_method_refuses_a_regulariser_and_names_composite_ones(problems):
    with pytest.raises(cf.InputError, match=r"FedAvg is for smooth problems.*DecoupledProx"):
        cf.simulate(problems["equal"], FedAvg(eta=1.0), 1)


# --- what the caller gave ---


def test_what_the_caller_does_with_his_arrays_later_changes_nothing():
    """Rows, labels, weights, start, reference and the numbers of a penalty: all are spoilt after they were given."""
    rng = np.random.default_rng(0)
    A, y, q = [rng.standard_normal((6, 3)) for _ in range(2)], [rng.standard_normal(6) for _ in range(2)], np.ones(6)
    p, lam, x0, star = np.array([0.25, 0.75]), np.full(3, 0.1), np.ones(3), np.ones(3)
    mine = [*A, *y, q, p, lam, x0, star]
    kept = [a.copy() for a in mine]

    def made() -> tuple[cf.Problem, cf.Trace]:
        sites = cf.data.from_arrays(A, y, sample_weight=[q, q])
        problem = cf.Problem(cf.losses.Squared(ridge=0.1), cf.regularisers.L1(lam), sites, weights=p)
        return problem, cf.simulate(problem, DecoupledProx(eta=0.05, tau=2), 0, x0=x0, x_star=star)

    problem, start = made()
    for a in mine:
        a *= -7.0
    spoilt = [engine_(problem, DecoupledProx(eta=0.05, tau=2), 3, resume=start) for engine_ in (cf.simulate, run_plain)]
    for a, was in zip(mine, kept, strict=True):
        a[...] = was
    problem, start = made()
    expected = cf.simulate(problem, DecoupledProx(eta=0.05, tau=2), 3, resume=start)
    for trace in spoilt:
        np.testing.assert_allclose(trace.x, expected.x, rtol=1e-12)
        np.testing.assert_allclose(trace["objective"], expected["objective"], rtol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        problem.sites.features[0][0, 0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        problem.weights[0] = 1.0


def test_rows_are_copied_once_and_no_more():
    A, y = np.ones((4, 2)), np.zeros(4)
    sites = cf.data.from_arrays([A], [y])
    assert not np.shares_memory(sites.features[0], A)
    assert sites.permuted([0]).features[0] is sites.features[0]
    objective = A[:3]
    objective.setflags(write=False)  # read-only, and yet A can be written to
    assert not np.shares_memory(cf.data.from_arrays([objective], [y[:3]]).features[0], A)


# --- a measure of one's own, grids ---


@pytest.mark.parametrize("column", ["objective", "drift", "round", "optimality"])
def test_a_measure_cannot_take_the_name_of_a_column(problems, column):
    own: Any = lambda *_: {column: 0.0}  # noqa: E731  # its type is not the point
    with pytest.raises(cf.InputError, match=f"measure returns a column '{column}', which is one of a trace's own"):
        cf.simulate(problems["equal"], FedDA(eta=1.0), 1, measure=own)
    nothing: Any = lambda *_: 0.0  # noqa: E731
    no_number: Any = lambda *_: {"own": None}  # noqa: E731
    with pytest.raises(cf.InputError, match="measure returns None as column 'own'; it must be a number"):
        cf.simulate(problems["equal"], FedDA(eta=1.0), 1, measure=no_number)
    with pytest.raises(cf.InputError, match="measure must return a dict"):
        cf.simulate(problems["equal"], FedDA(eta=1.0), 1, measure=nothing)


def test_a_grid_over_a_name_that_two_have_asks_which(problems):
    problem, algorithm = problems["equal"], default_steps(cf.algorithms.FedDR, problems["equal"], tau=2)
    with pytest.raises(cf.InputError, match=r"algorithm\.lam \(of FedDR\) and regulariser\.lam \(of L1\); say which"):
        cf.grid(problem, algorithm, 1, {"lam": [1e-3, 1e-2]})
    penalties = cf.grid(problem, algorithm, 3, {"regulariser.lam": [1e-3, 1e-2]})
    for trace, lam in zip(penalties, (1e-3, 1e-2), strict=True):
        assert trace.provenance["grid"] == {"regulariser.lam": lam}
        assert trace.provenance["problem"]["regulariser"]["lam"] == lam
        assert trace.provenance["algorithm"]["lam"] == algorithm.lam
        alone = cf.simulate(problem.replace(regulariser=cf.regularisers.L1(lam)), algorithm, 3)
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-13)
    (steps,) = cf.grid(problem, algorithm, 1, {"algorithm.lam": [0.5], "run.seed": [3]})
    assert steps.provenance["algorithm"]["lam"] == 0.5
    assert steps.provenance["problem"]["regulariser"]["lam"] == problem.regulariser.lam
    assert steps.provenance["seed"] == 3
    with pytest.raises(cf.InputError, match=r"'regulariser\.eta': it is not a number"):
        cf.grid(problem, algorithm, 1, {"regulariser.eta": [1.0]})


# --- float32 ---


@pytest.mark.parametrize("name", ["DecoupledProx", "VarianceReducedDecoupledProx"])
def test_float32_with_the_paper_s_upload_is_warned_of(problems, name):
    cls: Any = ALGORITHMS[name]
    single, algorithm = problems["equal"].astype("float32"), cls(eta=0.5)
    with pytest.warns(cf.RunWarning, match=r"drifts away.*astype\('float64'\), or let every client take part"):
        bind_algorithm(algorithm, single, 2)
    bind_algorithm(algorithm, single, 5)  # with everyone there is nothing to say, and warnings are errors here
    bind_algorithm(algorithm, problems["equal"], 2)


@pytest.mark.thorough
def test_that_drift_is_there_and_grows():
    """What the warning says: sampled in float32 the error grows with the rounds, of everyone or in float64 it does not."""
    problem = quadratics(g=cf.regularisers.L1(0.3))
    algorithm, star = default_steps("DecoupledProx", problem), cf.solve_pooled(problem)
    options: dict[str, Any] = {"record_every": 2000, "x_star": star}
    single = problem.astype("float32")
    with pytest.warns(cf.RunWarning):
        drifts = cf.simulate(single, algorithm, 20_000, participants=3, **options)["optimality"]
    assert drifts[-1] > 2 * drifts[1] > 1e-5
    assert cf.simulate(single, algorithm, 20_000, **options)["optimality"][1:].max() < 1e-6
    assert cf.simulate(problem, algorithm, 20_000, participants=3, **options)["optimality"][1:].max() < 1e-11
