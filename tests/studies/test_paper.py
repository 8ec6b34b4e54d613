"""The paper's problem: reference numbers, exactness, float32 over thousands of rounds."""

from __future__ import annotations

import numpy as np
import pytest

import compfed as cf
from compfed.algorithms import (
    FISTA,
    DecoupledProx,
    FastFedDA,
    FedDA,
    FedMid,
    ProximalGradient,
    VarianceReducedDecoupledProx,
)
from compfed.algorithms.fast_fedda import Constant, Linear, Quadratic
from compfed.algorithms.fista import Plain, Restart, StronglyConvex


def test_the_problem_is_the_documented_one(problem, star):
    assert problem.lipschitz == pytest.approx(0.238, rel=0.02)
    assert problem.client_lipschitz.max() == pytest.approx(0.260, rel=0.01)
    assert np.linalg.norm(star.x) == pytest.approx(1.86, rel=0.15)
    assert 56 <= np.count_nonzero(star.x) <= 60
    assert all(len(np.unique(y)) == 1 for y in problem.sites.labels)  # every client has a single class


def at(trace: cf.Trace, rounds: list[int]) -> np.ndarray:
    return trace["optimality"][np.isin(trace["round"], rounds)]


# Relative error with full gradients, eta = eta_g = 1, tau = 5: round -> value, from an independent NumPy study of this
# setting (other seeds), met within 15 %.
CURVES = {
    "DecoupledProx": (DecoupledProx(eta=1.0), {10: 0.57, 50: 0.059, 100: 4.0e-3, 200: 2.0e-5}),
    "FedMid full": (FedMid(eta=1.0), {10: 0.70, 50: 0.38, 100: 0.34, 200: 0.34}),
    "FedMid none": (FedMid(eta=1.0, server_prox="none"), {10: 0.69, 50: 0.35, 100: 0.31, 200: 0.31}),
    "FedDA": (FedDA(eta=1.0), {10: 0.70, 50: 0.36, 100: 0.31, 200: 0.30}),
    "FastFedDA const": (FastFedDA(0.01, Constant(0.238)), {10: 0.65, 50: 0.33, 100: 0.21, 200: 0.12}),
    "FastFedDA linear": (FastFedDA(0.01, Linear(0.238)), {10: 0.76, 50: 0.46, 100: 0.31, 200: 0.19}),
    "FastFedDA quadratic": (FastFedDA(0.01, Quadratic(0.238)), {10: 0.82, 50: 0.54, 100: 0.39, 200: 0.25}),
    "PGD": (ProximalGradient(1 / 0.238), {10: 0.59, 50: 0.085, 100: 8.3e-3, 200: 8.9e-5}),
}


@pytest.mark.parametrize("name", CURVES)
def test_convergence_curves(problem, star, name):
    algorithm, expected = CURVES[name]
    trace = cf.simulate(problem, algorithm, 200, x_star=star, record_every=10)
    np.testing.assert_allclose(at(trace, list(expected)), list(expected.values()), rtol=0.15)


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (ProximalGradient(1 / 0.2376), 301),
        (ProximalGradient(1.9 / 0.2376), 155),
        (FISTA(1 / 0.2376, Plain()), 318),
        (FISTA(1 / 0.2376, Restart()), 72),
        (FISTA(1 / 0.2376, StronglyConvex(0.01 / 0.2376)), 66),
        (DecoupledProx(eta=1.0, tau=5), 258),
        (DecoupledProx(eta=1.0, tau=10), 130),
        (DecoupledProx(eta=1.0, tau=20), 72),
        (DecoupledProx(eta=2.0, tau=5), 129),
        (DecoupledProx(eta=3.85, tau=5), 72),
    ],
    ids=str,
)
def test_rounds_to_six_digits(problem, star, algorithm, rounds):
    trace = cf.simulate(problem, algorithm, int(1.3 * rounds), x_star=star)
    assert trace.first("optimality", 1e-6) == pytest.approx(rounds, rel=0.15)


@pytest.mark.thorough
def test_exact_in_double_precision_and_stable_in_single(problem, star):
    double = cf.simulate(problem, DecoupledProx(eta=1.0, tau=5), 600, x_star=star, record_every=100)
    assert double["optimality"][-1] <= 1e-12
    single = cf.simulate(problem.astype("float32"), DecoupledProx(eta=1.0, tau=5), 3000, x_star=star, record_every=500)
    assert single["optimality"][single["round"] >= 500].max() < 1e-5


@pytest.mark.thorough
def test_the_paper_s_own_upload_drifts_in_single_precision(problem, star):
    """Why the gradient sum is the default: zhat integrates rounding errors."""
    algorithm = DecoupledProx(eta=1.0, tau=5, upload="model")
    with pytest.warns(cf.RunWarning, match="drifts away from the minimiser.*leave upload out"):
        trace = cf.simulate(problem.astype("float32"), algorithm, 2000, x_star=star, record_every=500)
    assert trace["optimality"][-1] > 3e-5
    assert trace["optimality"][-1] > trace["optimality"][-3]


@pytest.mark.thorough
def test_floors_with_mini_batches(problem, star):
    expected = {"DecoupledProx": 3.7e-3, "FedMid": 0.34, "FedDA": 0.30}
    for algorithm in (DecoupledProx(eta=1.0), FedMid(eta=1.0), FedDA(eta=1.0)):
        traces = cf.grid(problem, algorithm, 300, {"seed": range(5)}, batch_size=20, record_every=10, x_star=star)
        floor = np.median([t["optimality"][-10:].mean() for t in traces])
        assert floor == pytest.approx(expected[type(algorithm).__name__], rel=0.15)


def test_sampled_clients_still_converge(problem, star):
    """Not covered by the theory; observed: 10 of 30 clients a round, full gradients."""
    trace = cf.simulate(problem, DecoupledProx(eta=1.0, tau=5), 500, participants=10, x_star=star, record_every=500)
    assert trace["optimality"][-1] < 1e-7


@pytest.mark.thorough
def test_variance_reduction_has_the_rate_of_full_gradients_and_no_floor(problem, star):
    """Beyond the paper: mini-batches of 20, where Algorithm 1 stops at 3.7e-3."""
    algorithm = VarianceReducedDecoupledProx(eta=1.0, tau=10)
    options = {"record_every": 50, "x_star": star}
    traces = cf.grid(problem, algorithm, 300, {"seed": range(5)}, batch_size=20, **options)
    full = cf.simulate(problem, DecoupledProx(eta=1.0, tau=10), 300, **options)
    for trace in traces:
        assert trace["optimality"][-1] <= 1e-10
        np.testing.assert_allclose(at(trace, [50, 100, 150, 200]), at(full, [50, 100, 150, 200]), rtol=0.02)
    # per round one gradient of 500 rows and 2 * 10 of 20, where full gradients read 10 * 500
    assert (traces[0]["rows"][-1], full["rows"][-1]) == (300 * 900, 300 * 5000)
    assert traces[0]["bytes_up"][-1] == full["bytes_up"][-1]


@pytest.mark.thorough
def test_variance_reduction_with_sampled_clients(problem, star):
    """Observed, as for Algorithm 1: 10 of 30 clients a round, and mini-batches as well."""
    algorithm = VarianceReducedDecoupledProx(eta=1.0, tau=5)
    options = {"batch_size": 20, "participants": 10, "x_star": star, "record_every": 500}
    assert cf.simulate(problem, algorithm, 500, **options)["optimality"][-1] < 1e-10
    assert cf.simulate(problem, DecoupledProx(eta=1.0, tau=5), 500, **options)["optimality"][-1] > 1e-3


@pytest.mark.parametrize(("spread", "fedmid", "fedda"), [(0, 0.24, 0.22), (1, 0.28, 0.25), (10, 0.34, 0.30)])
def test_floors_grow_with_heterogeneity(spread, fedmid, fedda):
    sites = cf.data.synthetic(alpha=spread, beta=spread, samples=500, seed=0)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.01), cf.regularisers.L1(1e-4), sites)
    star = cf.solve_pooled(problem)
    for algorithm, floor in ((FedMid(eta=1.0), fedmid), (FedDA(eta=1.0), fedda)):
        trace = cf.simulate(problem, algorithm, 150, x_star=star, record_every=150)
        assert trace["optimality"][-1] == pytest.approx(floor, rel=0.15)
