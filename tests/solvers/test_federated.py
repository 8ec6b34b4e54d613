"""solve_federated reaches the minimiser with nothing to tune, certifies it, and halves steps that are too long."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from problems import logistic, quadratic_oracle, quadratics, soft
from sklearn.linear_model import PoissonRegressor

import compfed as cf
from compfed.algorithms import (
    FISTA,
    AcceleratedDecoupledProx,
    Algorithm,
    DecoupledProx,
    FedMid,
    ProximalGradient,
)
from compfed.algorithms.default_steps import default_steps
from compfed.algorithms.default_steps import lipschitz_bounds as bounds
from compfed.federation import Evaluate, InProcess, Lipschitz, run_program
from compfed.federation.queries.lipschitz import BINS, lipschitz_bin
from compfed.federation.server.rounds import Order, Segment, evaluation_of
from compfed.federation.server.trial import Evaluated
from compfed.federation.spec import FederatedProblem
from compfed.solvers.auto import solve
from compfed.solvers.base import SearchOptions, Start
from compfed.solvers.first_order import faster_method
from compfed.solvers.second_order import ProximalBFGS, ProximalNewton

# one problem for all, so that a method compiles once
PROBLEM = quadratics()
PROBLEM_SPEC = FederatedProblem.of(PROBLEM)
LAM, D, TAU = 1.0, 8, 3


def first_order(problem: cf.Problem, tau: int = 5, at: Any = None) -> type[Algorithm]:
    """The automatic choice among the first-order methods."""
    return faster_method(bounds(problem, tau, at), problem.n)


@pytest.fixture(scope="module")
def star() -> np.ndarray:
    x = cf.solve_pooled(PROBLEM).x
    assert 0 < np.count_nonzero(x) < D
    return x


@pytest.fixture(scope="module")
def minimum() -> cf.FederatedSolution:
    return cf.solve_federated(PROBLEM)


# --- the minimiser ---


def test_it_reaches_the_minimiser_by_default(minimum, star):
    assert minimum.converged
    assert minimum.notes == []
    np.testing.assert_allclose(minimum.x, star, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(minimum.x == 0, star == 0)
    np.testing.assert_array_equal(np.asarray(minimum), minimum.x)
    assert isinstance(minimum.algorithm, ProximalNewton)


def test_it_reaches_the_minimiser_of_a_logistic_problem_too():
    problem = logistic(samples=[20, 12, 20, 12, 20], weights=True)
    minimum = cf.solve_federated(problem)
    assert minimum.converged
    np.testing.assert_allclose(minimum.x, cf.solve_pooled(problem).x, rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["DecoupledProx", "FISTA", "FedDR", "Scaffnew", "ProximalBFGS"])
def test_exact_methods_by_name(name, star):
    """Steps are those of `default_steps`, but for L_max, of which the server has a bound that is at most 9 % too large."""
    minimum = cf.solve_federated(PROBLEM, name, tau=TAU)
    if isinstance(minimum.algorithm, ProximalBFGS):  # its first step is from an upper bound on L
        assert 0 < minimum.algorithm.eta < 1 / PROBLEM.lipschitz
    else:
        assert isinstance(minimum.algorithm, Algorithm)
        exact = bounds(PROBLEM, TAU)
        rules = [
            type(minimum.algorithm).from_bounds(replace(exact, L_max=share * exact.L_max), 1.0)
            for share in (1, 2**0.125)
        ]
        for field, value in vars(minimum.algorithm).items():
            ends = [getattr(rule, field) for rule in rules]
            assert value in ends or min(ends) * (1 - 1e-12) <= value <= max(ends) * (1 + 1e-12), field
    assert minimum.converged
    assert minimum.certificate.holds
    np.testing.assert_allclose(minimum.x, star, rtol=0, atol=1e-7)


# --- the certificate ---


def mapping_by_hand(x: np.ndarray) -> float:
    """Norm of L (x - prox(x - grad f(x) / L)) in NumPy, L the mean of the sites', for the squared loss with L1."""
    H, b = quadratic_oracle(PROBLEM)
    L = np.linalg.eigvalsh(H)[:, -1].mean()
    H, b = H.mean(axis=0), b.mean(axis=0)
    return float(np.linalg.norm(L * (x - soft(x - (H @ x - b) / L, LAM / L))))


@pytest.mark.parametrize("name", ["FISTA", "ProximalBFGS"])
@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_certificate_by_hand(tol, name):
    """The gradient mapping of a search by rounds, and of one by trials, against NumPy."""
    minimum = cf.solve_federated(PROBLEM, name, tol=tol)
    certificate = minimum.certificate
    scale = np.linalg.norm(quadratic_oracle(PROBLEM)[1].mean(axis=0))  # of grad f(0) = -b
    np.testing.assert_allclose(certificate.gradient_mapping, mapping_by_hand(minimum.x), rtol=1e-6)
    np.testing.assert_allclose(certificate.scale, scale, rtol=1e-12)
    np.testing.assert_allclose(certificate.relative, mapping_by_hand(minimum.x) / scale, rtol=1e-6)
    assert certificate.holds
    assert mapping_by_hand(minimum.x) <= tol * scale
    assert minimum.trace["gradient_mapping"][-2] > tol * scale, (
        "it stopped at the first evaluation that met the tolerance"
    )
    np.testing.assert_array_equal(minimum.trace.x, minimum.x)
    assert minimum.trace["round"][-1] == minimum.rounds


def test_a_scale_of_ones_own():
    minimum = cf.solve_federated(PROBLEM, tol=1e-3, scale=0.5)
    assert minimum.certificate.scale == 0.5
    assert mapping_by_hand(minimum.x) <= 1e-3 * 0.5 < minimum.trace["gradient_mapping"][-2]


def test_starting_at_the_minimiser_takes_no_rounds(star):
    minimum = cf.solve_federated(PROBLEM, x0=star)
    assert (minimum.converged, minimum.rounds) == (True, 0)
    np.testing.assert_array_equal(minimum.x, star)


@pytest.mark.parametrize("method", ["auto", "FISTA", "DecoupledProx"])
def test_a_problem_in_single_precision_is_minimised_in_double(method):
    """In single precision the gradient mapping of a short column is lost beside the model: zero, wherever the model is."""
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 2)) * np.array([1.0, 1e-3])
    y = A @ np.array([1.0, 0.99])
    sites = cf.data.from_arrays(np.split(A, 3), np.split(y, 3))
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites, dtype="float32")
    minimum = cf.solve_federated(problem, method, max_rounds=500)
    assert minimum.converged == minimum.certificate.holds == bool(np.abs(minimum.x - [1.0, 0.99]).max() < 1e-3)
    assert minimum.converged == (method == "auto")


@pytest.mark.parametrize("method", ["auto", "FISTA", "DecoupledProx"])
def test_a_large_model_has_not_diverged(method):
    """The minimiser grows with the labels, and so does every step: 1e11 times the labels, 1e11 times the model."""
    scaled = cf.data.from_arrays(PROBLEM.sites.features, [1e11 * y for y in PROBLEM.sites.labels])
    problem = cf.Problem(PROBLEM.loss, cf.regularisers.Zero(), scaled)
    minimum = cf.solve_federated(problem, method, max_rounds=2000)
    assert minimum.certificate.holds
    assert minimum.notes == []
    least = np.linalg.norm(minimum.x)
    assert least > 1e10
    with pytest.raises(cf.Divergence):
        cf.simulate(problem, cf.algorithms.ProximalGradient(eta=1e3), rounds=300)


# --- simulate(tol=...) ---

RUN: dict[str, Any] = {"problem": PROBLEM, "algorithm": DecoupledProx(eta=0.05, tau=TAU)}
ROUNDS = 40


@pytest.fixture(scope="module")
def whole() -> cf.Trace:
    return cf.simulate(**RUN, rounds=ROUNDS)


@pytest.mark.parametrize("every", [1, 3])
def test_tol_stops_at_the_first_recorded_round_that_is_close_enough(whole, every):
    recorded = sorted({*range(0, ROUNDS, every), ROUNDS})
    mapping = whole["gradient_mapping"][recorded]
    first = [k for k in range(len(recorded)) if mapping[k] < mapping[:k].min(initial=np.inf)]  # a new smallest
    assert len(first) > 8
    for k in first:
        stopped = cf.simulate(**RUN, rounds=ROUNDS, record_every=every, tol=mapping[k] * (1 + 1e-9))
        assert stopped["round"].tolist() == recorded[: k + 1]
        assert stopped.state is not None
        assert stopped.state.rounds == stopped.provenance["rounds"] == recorded[k]
        np.testing.assert_allclose(stopped["gradient_mapping"], mapping[: k + 1], rtol=1e-10)


def test_tol_that_is_not_reached_runs_all_rounds(whole):
    never = cf.simulate(**RUN, rounds=ROUNDS, tol=0.0)
    assert never["round"][-1] == ROUNDS
    np.testing.assert_array_equal(never.x, whole.x)


def test_a_stopped_run_goes_on(whole):
    tol = whole["gradient_mapping"][20]
    stopped = cf.simulate(**RUN, rounds=ROUNDS, tol=tol * (1 + 1e-9))
    done = int(stopped["round"][-1])
    assert 0 < done < ROUNDS
    np.testing.assert_array_equal(stopped.x, cf.simulate(**RUN, rounds=done).x)
    again = cf.simulate(**RUN, rounds=ROUNDS - done, resume=stopped)
    np.testing.assert_array_equal(again.x, whole.x)
    np.testing.assert_array_equal(again["round"], whole["round"])
    closer = cf.simulate(**RUN, rounds=ROUNDS - done, resume=stopped, tol=tol / 2)
    assert done < closer["round"][-1] == whole.first("gradient_mapping", tol / 2)
    there = cf.simulate(**RUN, rounds=5, resume=stopped, tol=tol * (1 + 1e-9))
    assert there["round"][-1] == done, "it is close enough already"
    np.testing.assert_array_equal(there.x, stopped.x)


# --- step backtracking ---


@pytest.mark.parametrize("name", ["FISTA", "DecoupledProx"])
def test_a_step_far_too_long_is_halved_until_it_is_not(name, star):
    asked = default_steps(name, PROBLEM, tau=TAU, scale=50.0)
    with pytest.warns(
        cf.StepSizeWarning, match=rf"{name}: .*; step halved to eta=.*continuing from the last good model\."
    ):
        minimum = cf.solve_federated(PROBLEM, asked)
    assert minimum.converged
    np.testing.assert_allclose(minimum.x, star, rtol=0, atol=1e-7)
    halvings = [note for note in minimum.notes if "step halved to eta=" in note]
    assert minimum.algorithm.eta == asked.eta * 0.5 ** len(halvings)  # pyright: ignore[reportAttributeAccessIssue]  # it has one
    assert f"eta={minimum.algorithm.eta:.3g}" in halvings[-1]  # pyright: ignore[reportAttributeAccessIssue]  # it has one
    assert any("the model diverged" in note for note in halvings)
    assert minimum.algorithm == cf.algorithms.find(name)(**{**vars(asked), "eta": minimum.algorithm.eta})  # pyright: ignore[reportAttributeAccessIssue]  # it has one
    # all pieces are in one trace, whose rounds go on counting
    assert minimum.trace["round"][0] == 0
    assert (np.diff(minimum.trace["round"]) > 0).all()
    assert minimum.trace["round"][-1] == minimum.rounds
    assert (np.diff(minimum.trace["gradients"]) > 0).all()


def test_proximal_gradient_ends_below_the_longest_stable_step(star):
    """Gradient steps on a quadratic are stable below 2 / L and at no step beyond."""
    with pytest.warns(cf.StepSizeWarning):
        minimum = cf.solve_federated(PROBLEM, ProximalGradient(eta=50 / PROBLEM.lipschitz))
    assert minimum.converged
    eta: float = minimum.algorithm.eta  # pyright: ignore[reportAttributeAccessIssue]  # it has one
    assert 1 / PROBLEM.lipschitz < eta < 2 / PROBLEM.lipschitz
    np.testing.assert_allclose(minimum.x, star, rtol=0, atol=1e-7)


def test_a_step_that_is_right_is_left_alone(star):
    asked = default_steps("DecoupledProx", PROBLEM, tau=TAU, scale=0.7)
    minimum = cf.solve_federated(PROBLEM, asked)
    assert minimum.algorithm is asked
    assert minimum.notes == []
    np.testing.assert_allclose(minimum.x, star, rtol=0, atol=1e-7)


@pytest.mark.parametrize(("algorithm", "trouble"), [("FedMid", "no lower"), (FedMid(eta=50.0, tau=TAU), "diverged")])
def test_an_inexact_method_stops_where_it_gets_no_further(star, algorithm, trouble):
    minimum = cf.solve_federated(PROBLEM, algorithm, tau=TAU, max_rounds=4000)
    assert not minimum.converged
    assert not minimum.certificate.holds
    assert trouble in minimum.notes[-1]
    assert minimum.notes[-1].endswith("; stopped")
    assert minimum.rounds < 4000
    assert np.isfinite(minimum.x).all()
    assert np.linalg.norm(minimum.x - star) > 1e-4 * np.linalg.norm(star)


# --- limits ---


def test_max_rounds():
    minimum = cf.solve_federated(PROBLEM, "DecoupledProx", tau=TAU, max_rounds=25)
    assert minimum.rounds == 25
    assert not minimum.converged
    assert minimum.certificate.relative > minimum.certificate.tol
    np.testing.assert_array_equal(minimum.trace["round"], [0, 10, 20, 25])
    assert isinstance(minimum.algorithm, DecoupledProx)
    np.testing.assert_array_equal(minimum.x, cf.simulate(PROBLEM, minimum.algorithm, 25).x)


def test_max_rounds_counts_the_rounds_of_all_steps():
    with pytest.warns(cf.StepSizeWarning):
        minimum = cf.solve_federated(PROBLEM, default_steps(FISTA, PROBLEM, scale=5.0), max_rounds=33)
    assert minimum.rounds <= 33
    assert minimum.trace["round"][-1] == minimum.rounds
    assert len(minimum.notes) > 0


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "negative tol": ({"tol": -1}, r"tol=-1 must be a number >= 0"),
    "tol NaN": ({"tol": np.nan}, r"tol=nan must be a number >= 0"),
    "tol in words": ({"tol": "1e-3"}, r"tol='1e-3' must be a number >= 0"),
    "no rounds": ({"max_rounds": 0}, r"max_rounds=0 must be a whole number >= 1"),
    "half a round": ({"max_rounds": 2.5}, r"max_rounds=2\.5 must be a whole number >= 1"),
    "no local steps": ({"tau": 0}, r"tau=0 must be a whole number >= 1"),
    "a name misspelt": ({"algorithm": "DecupledProx"}, r"no algorithm 'DecupledProx'; the nearest is 'DecoupledProx'"),
    "no algorithm": (
        {"algorithm": 3},
        r"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got 3",
    ),
    "a smooth method": ({"algorithm": "FedAvg"}, r"FedAvg is for smooth problems.*Use regularisers\.Zero"),
    "a start of other length": ({"x0": np.zeros(3)}, r"x0 has shape \(3,\); this problem has 8 coefficients"),
    "negative scale": ({"scale": -1.0}, r"scale=-1\.0 must be a finite number >= 0"),
    "scale NaN": ({"scale": np.nan}, r"scale=nan must be a finite number >= 0"),
    "no problem": ({"problem": PROBLEM.sites}, r"solve_federated needs a compfed\.Problem; got Sites"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake(mistake):
    given, message = MISTAKES[mistake]
    with pytest.raises(cf.InputError, match=message):
        cf.solve_federated(**{"problem": PROBLEM, **given})


@pytest.mark.parametrize("tol", [-1.0, np.nan, True, "small"])
def test_simulate_refuses_the_same_tol(tol):
    with pytest.raises(cf.InputError, match=r"tol=.* must be a number >= 0, or None to run all rounds"):
        cf.simulate(**RUN, rounds=1, tol=tol)


# --- a curvature without bound ---


@pytest.fixture(scope="module")
def large_counts() -> tuple[cf.Problem, np.ndarray]:
    """Counts around 400, and what scikit-learn makes of the pooled rows."""
    rng = np.random.default_rng(0)
    A = [np.column_stack([rng.standard_normal((m, 2)), np.ones(m)]) for m in (40, 25, 30)]
    y = [rng.poisson(np.exp(a @ [0.5, -0.3, 6.0])).astype(float) for a in A]
    sites = cf.data.from_arrays(A, y)
    model = PoissonRegressor(alpha=0.01, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    model.fit(*sites.pooled())
    loss = cf.losses.Poisson(ridge=0.01)
    return cf.Problem(loss, cf.regularisers.Zero(), sites, weights=sites.shares), model.coef_


def test_poisson_with_large_counts_is_that_of_scikit_learn(large_counts):
    """Newton's step from zero goes to exp(400): refused, and halved until it helps. No warning is due for that."""
    problem, expected = large_counts
    minimum = cf.solve_federated(problem)
    assert minimum.converged
    np.testing.assert_allclose(minimum.x, expected, rtol=1e-6)
    assert minimum.trace["objective"][1] > minimum.trace["objective"][0]
    assert minimum.rounds < 40


def test_first_order_steps_follow_the_curvature(large_counts):
    """The curvature at the start is 1/400 of that at the minimiser: steps begin far too long, then follow the model."""
    problem, expected = large_counts
    with pytest.warns(cf.StepSizeWarning, match="the model diverged; step halved"):
        minimum = cf.solve_federated(problem, "AcceleratedDecoupledProx")
    assert minimum.converged
    np.testing.assert_allclose(minimum.x, expected, rtol=1e-6)
    assert any("the curvature at the model is now" in note for note in minimum.notes)
    # the step it ended with is that of the minimiser, not one cut down at the start
    assert isinstance(minimum.algorithm, Algorithm)
    fitting: Any = default_steps(type(minimum.algorithm), problem, at=minimum.x)
    assert 0.5 < minimum.algorithm.eta / fitting.eta < 2  # pyright: ignore[reportAttributeAccessIssue]  # it has one


# --- starts that are the minimiser ---


def test_labels_all_zero_are_done_at_once():
    sites = cf.data.from_arrays(PROBLEM.sites.features, [np.zeros(12)] * 5)
    minimum = cf.solve_federated(cf.Problem(PROBLEM.loss, PROBLEM.regulariser, sites))
    assert (minimum.converged, minimum.rounds, minimum.certificate.gradient_mapping) == (True, 0, 0.0)
    assert minimum.certificate.relative == 0.0
    np.testing.assert_array_equal(minimum.x, np.zeros(D))


def test_a_start_that_is_the_minimiser_but_for_rounding():
    """Constant labels and centred features: grad f(0) is zero in exact arithmetic, and only there."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((12, D)) for _ in range(5)]
    A = [a - np.mean(A, axis=(0, 1)) for a in A]
    problem = cf.Problem(PROBLEM.loss, cf.regularisers.L1(0.0), cf.data.from_arrays(A, [np.full(12, 3.0)] * 5))
    minimum = cf.solve_federated(problem)  # a warning would be an error
    assert 0 < minimum.certificate.scale < 1e-14
    assert minimum.converged
    assert minimum.notes == []
    assert np.abs(minimum.x).max() < 1e-14


# --- which method ---


def orthonormal(*curvatures: float) -> cf.Problem:
    """Sites with A_i^T A_i / m = curvature_i times the identity: L_i = curvature_i, L their mean."""
    rng = np.random.default_rng(0)
    Q = [np.linalg.qr(rng.standard_normal((6, 4)))[0] * np.sqrt(6 * c) for c in curvatures]
    return cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), cf.data.from_arrays(Q, [np.ones(6)] * len(Q)))


@pytest.mark.parametrize(("tau", "limit"), [(5, 6.0), (4, 6.0), (2, 2.25), (1, 1.0)])
def test_local_steps_unless_one_site_is_far_steeper(tau, limit):
    """min(tau, 4) / L_max > 1 / L, with nine sites of curvature 1 and one of curvature k: L = (9 + k) / 10."""
    below, above = (orthonormal(*[1.0] * 9, k) for k in (0.99 * limit, 1.01 * limit))
    if tau > 1:
        assert first_order(below, tau) is AcceleratedDecoupledProx
    assert first_order(above, tau) is FISTA


def test_one_site_needs_no_local_steps():
    assert first_order(orthonormal(1.0)) is FISTA
    assert first_order(orthonormal(1.0, 1.0)) is AcceleratedDecoupledProx


def test_where_the_curvature_has_no_bound_it_is_that_at_the_model():
    """exp(x) at a site whose only feature is 1: the site that starts flattest is the largest_hessian_eigenvalue elsewhere."""
    features = [[[1.0]], [[0.3]], [[0.3]], [[0.3]], [[0.3]]]
    sites = cf.data.from_arrays(features, [[1.0]] * 5)
    problem = cf.Problem(cf.losses.Poisson(), cf.regularisers.Zero(), sites)
    for x in (-3.0, 0.0, 3.0):
        steep, flat = np.exp(x), 0.09 * np.exp(0.3 * x)
        L, L_max = (steep + 4 * flat) / 5, max(steep, flat)
        expected = AcceleratedDecoupledProx if 4 / L_max > 1 / L else FISTA
        assert first_order(problem, 5, at=[x]) is expected
        np.testing.assert_allclose(default_steps(FISTA, problem, at=[x]).eta, 1 / L, rtol=1e-8)
        np.testing.assert_allclose(
            default_steps(cf.algorithms.DecoupledProx, problem, tau=5, at=[x]).eta, 4 / (5 * L_max), rtol=1e-8
        )
    assert {first_order(problem, 5, at=[x]) for x in (-3.0, 3.0)} == {AcceleratedDecoupledProx, FISTA}


# --- traces one after another ---


def piece(rounds: list[int], objective: list[float], **more: list[float]) -> cf.Trace:
    r = np.array(rounds)
    columns = {"round": r, "objective": np.array(objective), "gradient_mapping": np.array(objective) ** 2}
    columns |= {"vectors_up": 2.0 * r, "gradients": 5.0 * r, "seconds": 0.1 * r}
    return cf.Trace(
        columns | {k: np.array(v) for k, v in more.items()}, np.full(2, objective[-1]), {"seed": rounds[-1]}
    )


def test_then_adds_up_what_is_counted_and_nothing_else():
    joined = piece([0, 10, 20], [9.0, 8.0, 7.0]).then(piece([0, 10, 15], [7.0, 6.0, 5.0]))
    np.testing.assert_array_equal(joined["round"], [0, 10, 20, 30, 35])
    np.testing.assert_array_equal(joined["objective"], [9, 8, 7, 6, 5])  # the second's start is the first's end
    np.testing.assert_array_equal(joined["gradient_mapping"], [81, 64, 49, 36, 25])
    np.testing.assert_array_equal(joined["vectors_up"], [0, 20, 40, 60, 70])
    np.testing.assert_array_equal(joined["gradients"], [0, 50, 100, 150, 175])
    np.testing.assert_allclose(joined["seconds"], [0, 1, 2, 3, 3.5])
    np.testing.assert_array_equal(joined.x, [5, 5])
    assert joined.provenance == {"seed": 15}
    assert joined.state is None, "the memory of the second began anew: there is nothing to resume from round 0"


def test_then_leaves_measures_of_ones_own_as_they_are():
    joined = piece([0, 1], [2.0, 1.0], accuracy=[0.5, 0.6]).then(piece([0, 1], [1.0, 0.0], accuracy=[0.6, 0.9]))
    np.testing.assert_array_equal(joined["accuracy"], [0.5, 0.6, 0.9])
    half = piece([0, 1], [2.0, 1.0], accuracy=[0.5, 0.6]).then(piece([0, 1], [1.0, 0.0]))
    np.testing.assert_array_equal(half["accuracy"], [0.5, 0.6, np.nan])


def test_then_of_two_runs_is_the_longer_run():
    """Proximal gradient has no memory, so a second run from the end of the first is its continuation."""
    algorithm = ProximalGradient(eta=1 / PROBLEM.lipschitz)
    whole, first = (cf.simulate(PROBLEM, algorithm, r) for r in (6, 2))
    joined = first.then(cf.simulate(PROBLEM, algorithm, 4, x0=first.x))
    assert list(joined) == list(whole)
    for column in set(whole) - {"seconds"}:
        np.testing.assert_allclose(joined[column], whole[column], rtol=1e-10, atol=1e-13, err_msg=column)
    assert (np.diff(joined["seconds"]) >= 0).all()
    np.testing.assert_array_equal(joined.x, whole.x)


# --- step backtracking, on segments made up by hand ---


def segment(x: float, rounds: list[int], objective: list[float], diverged: bool = False) -> Segment:
    trace = piece(rounds, objective)
    trace = cf.Trace(trace.columns, np.full(D, x), {"diverged": "yes"} if diverged else {})
    at = Evaluated(np.full(D, x), value=objective[-1], gradient=np.zeros(D), terms=0.0)
    return Segment(trace, None if diverged else at)


@pytest.mark.parametrize("diverged", [False, True])
def test_after_a_failure_it_continues_from_the_last_good_model_with_half_the_step(diverged):
    """500 rounds that help, then 500 that do not: the next run starts where the first 500 ended, not the second."""
    falling = [*np.linspace(9.0, 5.0, 50), 5.0]
    helped = segment(1.0, list(range(0, 501, 10)), falling)
    stuck = segment(2.0, list(range(0, 1001, 10)), [*falling, *np.full(50, 6.0)], diverged)
    done = segment(3.0, [0, 10], [5.0, 0.0])
    orders: list[Order] = []

    def runner(order: Order) -> Any:
        orders.append(order)
        script = iter([helped, stuck] if len(orders) == 1 else [done])

        def advance(_):
            return [next(script)]
            yield  # a program that asks nothing

        return SimpleNamespace(advance=advance)

    search = SearchOptions("FISTA", rounds=lambda _: runner)
    start = Start(np.zeros(D), L=1.0, L_max=1.0, scale=1.0)
    with pytest.warns(
        cf.StepSizeWarning, match="diverged" if diverged else "500 rounds brought the objective no lower"
    ):
        minimum, _ = run_program(InProcess(PROBLEM.sites), solve(InProcess(PROBLEM.sites), PROBLEM_SPEC, search, start))
    first, second = (order.algorithm.eta for order in orders)  # pyright: ignore[reportAttributeAccessIssue]  # FISTA's
    assert second == first / 2
    np.testing.assert_array_equal(orders[1].x0, np.full(D, 1.0))
    np.testing.assert_array_equal(minimum.x, np.full(D, 3.0))
    assert minimum.rounds == 1010
    assert len(minimum.notes) == 1


def test_the_bounds_of_an_evaluation():
    """Two sites of weights 1/4 and 3/4, L_i of 4 and 8; L is a sum, L_max a bound on the largest within an eighth of an octave."""
    spec, x = SimpleNamespace(weights=np.array([0.25, 0.75])), np.zeros(2)
    value = Evaluate.Reply(np.array([7.0]), np.array([[7.0, 0.0]]), np.array([70.0]))
    counts = np.bincount([lipschitz_bin(4.0), lipschitz_bin(8.0)], minlength=BINS)
    sums = value, Lipschitz.Reply(0.25 * 4.0 + 0.75 * 8.0, counts)
    found = evaluation_of(spec, sums, x)  # pyright: ignore[reportArgumentType]  # stands in
    assert (found.value, found.terms, found.L) == (7.0, 70.0, 7.0)
    assert found.gradient.tolist() == [7.0, 0.0]
    assert found.L_max is not None
    assert 8.0 <= found.L_max <= 8.0 * 2**0.125


def test_what_is_returned_is_the_point_that_met_the_tolerance():
    """Objectives whose terms cancel may round to a lower number at a point before."""
    X = np.random.default_rng(184).standard_normal((9, 3))
    sites = cf.data.from_table(X, np.round(np.exp(X[:, 0])), np.arange(9) % 3)
    problem = cf.Problem(cf.losses.Poisson(ridge=1e-9), cf.regularisers.NonNegative(), sites)
    found = cf.solve_federated(problem)
    assert found.converged
    assert found.certificate.holds
    gradient = X.T @ (np.exp(X @ found.x) - np.round(np.exp(X[:, 0]))) / 9 + 1e-9 * found.x
    assert np.abs(np.where(found.x > 0, gradient, np.minimum(gradient, 0.0))).max() < 1e-11
