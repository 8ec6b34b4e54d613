"""VarianceReducedDecoupledProx is DecoupledProx with full gradients where it must be, and has no noise at the solution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import quadratics

import compfed as cf
from compfed.algorithms import DecoupledProx, VarianceReducedDecoupledProx

ROWS, BATCH = 12, 3  # of every site; of a mini-batch
X0 = np.linspace(-1.0, 2.0, 8)
AT = {"rounds": 40, "record_every": 5, "x0": X0}


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    made = quadratics(2, rows=ROWS)
    return cf.Problem(made.loss, made.regulariser, made.sites, weights=np.arange(1.0, 6.0) / 15.0)


def steps(problem: cf.Problem, tau: int) -> dict[str, Any]:
    return {"eta": 1.0 / (tau * float(problem.client_lipschitz.max())), "eta_g": 0.8, "tau": tau}


def assert_same_run(ours: cf.Trace, theirs: cf.Trace) -> None:
    """The same models, and the same memory at server and clients."""
    for column in ("objective", "gradient_mapping", "drift"):
        assert_allclose(ours[column], theirs[column], rtol=1e-12, atol=1e-12, err_msg=column)
    assert ours.state is not None
    assert theirs.state is not None
    pairs = zip(ours.state.server + ours.state.clients, theirs.state.server + theirs.state.clients, strict=True)
    for mine, other in pairs:
        assert_allclose(mine, other, rtol=1e-12, atol=1e-12)


def test_with_all_rows_in_a_mini_batch_it_is_decoupled_prox(problem):
    how = steps(problem, tau=5)
    ours = cf.simulate(problem, VarianceReducedDecoupledProx(**how), **AT, batch_size=ROWS)
    assert_same_run(ours, cf.simulate(problem, DecoupledProx(**how), **AT))


@pytest.mark.parametrize("seed", [0, 1])
def test_with_one_step_any_mini_batch_is_the_full_gradient(problem, seed):
    how = steps(problem, tau=1)
    ours = cf.simulate(problem, VarianceReducedDecoupledProx(**how), **AT, batch_size=BATCH, seed=seed)
    assert_same_run(ours, cf.simulate(problem, DecoupledProx(**how), **AT))


@pytest.mark.thorough
def test_both_uploads_are_the_same_run_with_all_clients(problem):
    auto, model = (VarianceReducedDecoupledProx(**steps(problem, tau=5), upload=u) for u in ("auto", "model"))
    assert_same_run(*(cf.simulate(problem, a, **AT, batch_size=BATCH) for a in (auto, model)))


@pytest.mark.parametrize(("method", "stays"), [(VarianceReducedDecoupledProx, True), (DecoupledProx, False)])
def test_mini_batches_make_no_noise_at_the_fixed_point(problem, method, stays):
    """x = x* - eta~ grad f(x*), c_i = grad f(x*) - grad f_i(x*), and mini-batches of three rows."""
    algorithm, star = method(**steps(problem, tau=5)), cf.solve_pooled(problem)
    gradient = problem.gradient(star.x)
    start = cf.simulate(problem, algorithm, 0)
    assert start.state is not None
    _, p, S = start.state.clients
    c = gradient - problem.client_gradients(star.x)
    state = replace(start.state, server=[star.x - algorithm.eta_tilde * gradient], clients=[c, p, S])
    there = replace(start, state=state)
    trace = cf.simulate(problem, algorithm, 20, batch_size=BATCH, x_star=star, resume=there)
    worst = trace["optimality"][1:].max()
    assert (worst < 1e-12) if stays else (worst > 1e-2)


def test_mini_batches_reach_the_minimiser(problem):
    star = cf.solve_pooled(problem)
    algorithm = VarianceReducedDecoupledProx(**steps(problem, tau=5))
    trace = cf.simulate(problem, algorithm, 400, batch_size=BATCH, x_star=star, record_every=400)
    assert trace["optimality"][-1] < 1e-12
    np.testing.assert_array_equal(trace.x == 0, star.x == 0)
