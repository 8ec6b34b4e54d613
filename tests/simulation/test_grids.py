"""Grids: what the members of one have in common is worked out once, and each is what it is alone."""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np
import pytest
from problems import logistic

import compfed as cf
from compfed.algorithms import DecoupledProx
from compfed.simulation import xla as xla_program
from compfed.simulation.grid import run_together
from compfed.simulation.options import check_options
from compfed.simulation.xla import grid_rounds

CLIENTS, BATCH, D = 5, 4, 8


@pytest.fixture
def calls(monkeypatch) -> list[tuple[Any, ...]]:
    """The arguments with which the program of a grid was called."""
    seen: list[tuple[Any, ...]] = []

    def compiled(function: Any, *static: str, grid: bool = False) -> Any:
        def program(*args: Any, **members: Any) -> Any:
            seen.append((*args, *members.values()))
            return xla_program.compiled(function, *static, grid=grid)(*args, **members)

        return program

    monkeypatch.setattr(sys.modules["compfed.simulation.simulate"], "compiled", compiled)
    return seen


def gathered(jaxpr: Any) -> list[int]:
    """How many numbers each gather of a program takes, loops included."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "gather":
            found.append(equation.outvars[0].aval.size)
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr")):
            inner = getattr(inner, "jaxpr", inner)
            found += gathered(inner) if hasattr(inner, "eqns") else []
    return found


def test_members_of_one_seed_share_the_rows_they_draw(calls):
    problem = logistic(samples=20)
    over = {"eta": [0.2, 0.4, 0.6, 0.8, 1.0, 1.2], "seed": [3, 1]}
    traces = cf.grid(problem, DecoupledProx(eta=1.0, tau=2), 6, over, batch_size=BATCH)
    for trace in (traces[0], traces[7], traces[-1]):
        values = trace.provenance["grid"]
        assert trace.provenance["seed"] == values["seed"]
        alone = cf.simulate(problem, DecoupledProx(values["eta"], tau=2), 6, batch_size=BATCH, seed=values["seed"])
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-12)
    params, data, options, carry, records, every, varies, shape = calls[0]
    assert shape == (2, 6)
    with jax.enable_x64(True):
        program = jax.make_jaxpr(grid_rounds, static_argnums=(2, 6, 7))(
            params, data, options, carry, records, every, varies, shape
        )
    sizes = gathered(program.jaxpr)
    assert 2 * CLIENTS * BATCH * D in sizes  # rows of two seeds
    assert max(sizes) < 12 * CLIENTS * BATCH * D  # not of twelve members


def test_a_member_that_diverges_leaves_the_others_and_their_draws_alone():
    problem = logistic(samples=20)
    algorithms = [DecoupledProx(eta=eta, tau=2) for eta in (1.0, 1e200, 0.5)]
    good, bad, other = cf.grid(problem, algorithms, 80, batch_size=BATCH, record_every=2, seed=5)
    assert "diverged" in bad.provenance
    for trace, eta in ((good, 1.0), (other, 0.5)):
        alone = cf.simulate(problem, DecoupledProx(eta=eta, tau=2), 80, batch_size=BATCH, record_every=2, seed=5)
        assert len(trace) == 41
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-10)


def test_seeds_with_different_numbers_of_members():
    problem = logistic(samples=20)
    runs = [
        check_options(
            problem, DecoupledProx(eta=eta, tau=2), 5, batch_size=BATCH, record_every=5, seed=seed
        )
        for eta, seed in ((1.0, 2), (0.5, 1), (0.8, 2))
    ]  # fmt: skip
    for run, trace in zip(runs, run_together(runs, [{}] * 3), strict=True):
        alone = cf.simulate(problem, run.algorithm, 5, batch_size=BATCH, record_every=5, seed=run.seed)
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-12)


def test_members_that_converge_stop_by_themselves():
    problem = logistic(samples=20)
    algorithm = DecoupledProx(eta=1.0, tau=2)
    problems = [problem.replace(regulariser=cf.regularisers.L1(lam)) for lam in (1e-3, 4e-2)]
    runs = [
        check_options(p, algorithm, 400, record_every=10, tol=1e-5)
        for p in problems
    ]  # fmt: skip
    rounds = []
    for p, trace in zip(problems, run_together(runs, [{}] * 2), strict=True):
        alone = cf.simulate(p, algorithm, 400, record_every=10, tol=1e-5)
        assert trace["round"].tolist() == alone["round"].tolist()
        np.testing.assert_allclose(trace.x, alone.x, rtol=0, atol=1e-12)
        assert trace.state is not None
        assert trace.state.rounds == alone["round"][-1]
        rounds.append(int(trace["round"][-1]))
    assert 0 < min(rounds) < max(rounds) < 400, "they end at different rounds"
