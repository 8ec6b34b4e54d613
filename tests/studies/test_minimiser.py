"""Every method marked exact reaches the minimiser with full gradients; every other one shows its floor."""

from __future__ import annotations

import numpy as np
import pytest
from problems import quadratics
from samples import WEIGHTS

import compfed as cf
import compfed.algorithms as alg
from compfed.algorithms import ALGORITHMS, default_steps
from compfed.regularisers import Zero
from compfed.studies.paper.experiments import paper_problem


@pytest.fixture(scope="module")
def problems() -> dict[tuple[str, bool], cf.Problem]:
    """(which, composite) -> problem; smooth-only methods get the same data without g."""
    made = {"paper": paper_problem(500), "quadratic": quadratics(0)}
    return {(n, c): p if c else p.replace(regulariser=Zero()) for n, p in made.items() for c in (True, False)}


@pytest.fixture(scope="module")
def stars(problems) -> dict[tuple[str, bool], cf.PooledSolution]:
    return {key: cf.solve_pooled(p) for key, p in problems.items()}


@pytest.mark.parametrize("which", ["quadratic", pytest.param("paper", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", [n for n, c in ALGORITHMS.items() if not c.slow])
def test_limit(problems, stars, name, which):
    cls = ALGORITHMS[name]
    problem, star = problems[which, cls.composite], stars[which, cls.composite]
    trace = cf.simulate(problem, default_steps(cls, problem), 600, x_star=star, record_every=200)
    if cls.exact:
        assert trace["optimality"][-1] <= 1e-10
        if (name, which) != ("ProxGIANT", "paper"):  # with steps t < 1 its zeros are approached only
            np.testing.assert_array_equal(trace.x == 0, star.x == 0)  # the zeros included
    else:
        assert trace["optimality"][-1] > 1e-4


def test_every_algorithm_has_a_rule_for_its_steps():
    assert [name for name, cls in ALGORITHMS.items() if not cls.has_default_steps()] == []


def test_suggested_steps_scale(problems):
    problem = problems["quadratic", True]
    for name in (alg.DecoupledProx, alg.FedMid, alg.ProximalGradient, alg.Scaffnew):
        assert default_steps(name, problem, scale=0.5).eta == pytest.approx(0.5 * default_steps(name, problem).eta)
    assert default_steps(alg.FedDR, problem, scale=2.0).lam == pytest.approx(
        2.0 * default_steps(alg.FedDR, problem).lam
    )
    bound = problem.weights @ problem.client_lipschitz  # sum_i p_i L_i, which a server can know, bounds that of f
    assert default_steps(alg.ProximalGradient, problem).eta == pytest.approx(1.0 / bound)


@pytest.mark.parametrize("name", [n for n, c in ALGORITHMS.items() if c.exact_sampled is not None and not c.slow])
def test_sampled_clients_reach_the_minimiser_too(problems, name):
    """With unequal weights, under each method's own scheme: SCAFFOLD, Algorithm 1 and the splitting methods do; Mime, whose
    mean gradient is over the sampled clients, moves about it."""
    cls = ALGORITHMS[name]
    equal = problems["quadratic", cls.composite]
    problem = cf.Problem(equal.loss, equal.regulariser, equal.sites, weights=WEIGHTS)
    trace = cf.simulate(
        problem,
        default_steps(cls, problem, scale=0.25),
        4000,
        participants=3,
        x_star=cf.solve_pooled(problem),
        record_every=1000,
    )
    if cls.exact_sampled:
        assert trace["optimality"][-1] <= 1e-9
    else:
        assert trace["optimality"][1:].min() > 1e-2


def test_fast_fedda_has_no_floor_but_an_error_that_falls_like_one_over_t(problems, stars):
    """Sixteen times the rounds, a sixteenth of the error: a floor would show, and so would a faster rate."""
    problem = problems["quadratic", True]
    trace = cf.simulate(
        problem, default_steps("FastFedDA", problem), 25_600, x_star=stars["quadratic", True], record_every=1600
    )
    error = dict(zip(trace["round"].tolist(), trace["optimality"], strict=True))
    assert error[25_600] / error[1600] == pytest.approx(1 / 16, rel=0.1)
    assert error[25_600] / error[12_800] == pytest.approx(1 / 2, rel=0.05)


@pytest.mark.thorough
def test_sampled_fast_fedda_goes_on_towards_the_minimiser(problems):
    """Sixteen times the rounds, a quarter of the error (root mean square over seeds): the noise of the draws, averaged."""
    equal = problems["quadratic", True]
    problem = cf.Problem(equal.loss, equal.regulariser, equal.sites, weights=WEIGHTS)
    traces = cf.grid(
        problem, default_steps("FastFedDA", problem), 25_600, {"seed": range(12)}, participants=2, x_star=cf.solve_pooled(problem),
        record_every=1600,
    )  # fmt: skip
    early, late = (np.sqrt(np.mean([t["optimality"][k] ** 2 for t in traces])) for k in (1, 16))
    assert 0.12 < late / early < 0.45
