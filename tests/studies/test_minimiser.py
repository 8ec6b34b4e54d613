"""Every method marked exact reaches the minimiser with full gradients; every other one shows its floor."""

from __future__ import annotations

import numpy as np
import pytest
from problems import quadratics

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.problem.regularisers import Zero
from compfed.solvers.steps import suggest
from compfed.studies.paper.setting import paper_problem


@pytest.fixture(scope="module")
def problems() -> dict[tuple[str, bool], cf.Problem]:
    """(which, composite) -> problem; smooth-only methods get the same data without g."""
    made = {"paper": paper_problem(500), "quadratic": quadratics(0)}
    return {(n, c): p if c else p.replace(regulariser=Zero()) for n, p in made.items() for c in (True, False)}


@pytest.fixture(scope="module")
def stars(problems) -> dict[tuple[str, bool], cf.Solution]:
    return {key: cf.solve(p) for key, p in problems.items()}


@pytest.mark.parametrize("which", ["paper", "quadratic"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_limit(problems, stars, name, which):
    cls = ALGORITHMS[name]
    problem, star = problems[which, cls.composite], stars[which, cls.composite]
    trace = cf.simulate(problem, suggest(cls, problem), 600, reference=star, record_every=200)
    if cls.exact:
        assert trace["optimality"][-1] <= 1e-10
        np.testing.assert_array_equal(trace.x == 0, star.x == 0)  # the zeros included
    else:
        assert trace["optimality"][-1] > 1e-4


def test_every_algorithm_has_a_rule_for_its_steps():
    assert [name for name, cls in ALGORITHMS.items() if not cls.has_rule()] == []


def test_suggested_steps_scale(problems):
    problem = problems["quadratic", True]
    for name in ("DecoupledProx", "FedMid", "ProximalGradient", "Scaffnew"):
        assert suggest(name, problem, scale=0.5).eta == pytest.approx(0.5 * suggest(name, problem).eta)
    assert suggest("FedDR", problem, scale=2.0).lam == pytest.approx(2.0 * suggest("FedDR", problem).lam)
    bound = problem.weights @ problem.client_lipschitz  # sum_i p_i L_i, which a server can know, bounds that of f
    assert suggest("ProximalGradient", problem).eta == pytest.approx(1.0 / bound)


@pytest.mark.parametrize("name", [n for n, c in ALGORITHMS.items() if c.sampling != "no" and c.exact])
def test_sampled_clients_reach_the_minimiser_too(problems, stars, name):
    """Proved for some of these, observed for the others; SCAFFOLD and the splitting methods do it exactly."""
    cls = ALGORITHMS[name]
    if name == "Mime":
        pytest.skip("Mime's mean gradient is over the sampled clients, so its noise stays")
    problem, star = problems["quadratic", cls.composite], stars["quadratic", cls.composite]
    trace = cf.simulate(
        problem, suggest(cls, problem, scale=0.25), 3000, participants=3, reference=star, record_every=3000
    )
    assert trace["optimality"][-1] <= 1e-9
