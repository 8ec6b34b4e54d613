"""Every run behind the paper's figures and claims, and a few beyond the paper. Runs become traces; nothing is judged here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

import compfed.algorithms as alg
from compfed import regularisers
from compfed.data import from_arrays
from compfed.monitor import Progress
from compfed.problem.problem import Problem
from compfed.simulation import simulate
from compfed.solve import PooledSolution, solve_pooled
from compfed.studies.ablation import AblatedProx
from compfed.studies.paper.keys import (
    FAST_FEDDA,
    FAST_FEDDAS,
    ONE_WORKER,
    UPLOAD_ZHAT,
    VARIANCE_REDUCED,
    Group,
    Key,
    Traces,
)
from compfed.studies.paper.runs import Experiment, Run, one_line, over_seeds
from compfed.studies.paper.setting import RIDGE, SPARSE_L1, Size, paper_problem
from compfed.studies.paper.theorem import theorem_experiments
from compfed.trace import Trace

A1 = alg.DecoupledProx(eta=1.0, eta_g=1.0, tau=5)
FEDMID, FEDDA = alg.FedMid(eta=1.0, tau=5), alg.FedDA(eta=1.0, tau=5)


def experiments(size: Size) -> Iterator[Experiment]:
    """All of them, in the order of the report. They share problems and minimisers, and do not depend on each other."""
    problem = paper_problem(size.samples, size.clients)
    star = solve_pooled(problem)
    sparse = problem.replace(regulariser=regularisers.L1(SPARSE_L1))
    yield from methods_compared(problem, star, size)
    yield from local_prox_rules(Group.ABLATION, problem, star, size)
    yield from sparse_methods(sparse, solve_pooled(sparse), size)
    yield from steps_varied(problem, star, size)
    yield from theorem_experiments(size)
    yield one_line(UPLOAD_ZHAT, _one(problem, star, replace(A1, upload="model"), 60, measure=eq2_gap))
    yield Experiment("draws", lambda progress: other_draws(size, progress))
    yield Experiment("fixed point", lambda progress: fixed_points(problem, star, progress))


def _one(problem: Problem, star: PooledSolution, algorithm: alg.Algorithm, rounds: int, **options: Any) -> Run:
    return lambda progress: [simulate(problem, algorithm, rounds, x_star=star, progress=progress, **options)]


def _seeds(
    problem: Problem, star: PooledSolution, algorithm: alg.Algorithm, rounds: int, size: Size, **options: Any
) -> Run:
    return lambda progress: over_seeds(size.seeds, progress, problem, algorithm, rounds, x_star=star, **options)


def methods_compared(problem: Problem, star: PooledSolution, size: Size) -> Iterator[Experiment]:
    """Figure 1: the methods of the paper with full gradients and with mini-batches; others beside them."""
    L = problem.lipschitz
    schedules = (alg.fast_fedda.Quadratic(L), alg.fast_fedda.Linear(L), alg.fast_fedda.Constant(L))
    full: dict[str, alg.Algorithm] = {
        "DecoupledProx": A1,
        "FedMid": FEDMID,
        "FedMid (no server prox)": alg.FedMid(eta=1.0, tau=5, server_prox="none"),
        "FedDA": FEDDA,
        **{name: alg.FastFedDA(RIDGE, rule, tau=5) for name, rule in zip(FAST_FEDDAS, schedules, strict=True)},
        "ProximalGradient": alg.ProximalGradient(eta=1.0 / L),
        "FISTA": alg.FISTA(eta=1.0 / L),
    }
    if not size.everything:
        for name in (*FAST_FEDDAS[1:], "FedMid (no server prox)"):
            del full[name]
    for name, a in full.items():
        rounds = size.rounds if name in ("DecoupledProx", "ProximalGradient", "FISTA") else size.rounds // 2
        yield one_line(Key(Group.FULL, name), _one(problem, star, a, rounds))
    batches = {Key(Group.STOCHASTIC, name): full[name] for name in ("DecoupledProx", "FedMid", "FedDA", FAST_FEDDA)}
    batches[VARIANCE_REDUCED] = alg.VarianceReducedDecoupledProx(eta=1.0, eta_g=1.0, tau=5)
    for key, a in batches.items():
        yield one_line(key, _seeds(problem, star, a, size.stochastic_rounds, size, batch_size=20, record_every=2))


def local_prox_rules(group: Group, problem: Problem, star: PooledSolution, size: Size) -> Iterator[Experiment]:
    """Algorithm 1 with another parameter in the local prox (line 11)."""
    for rule in ("eta", "eta-tilde", "none") if size.everything else ("eta", "none"):
        yield one_line(Key(group, rule), _one(problem, star, AblatedProx(eta=1.0, rule=rule), size.rounds // 2))


def sparse_methods(problem: Problem, star: PooledSolution, size: Size) -> Iterator[Experiment]:
    """A setting in which the solution is sparse."""
    for name, a, rounds in (
        ("DecoupledProx", A1, size.rounds),
        ("FedMid", FEDMID, size.rounds // 2),
        ("FedDA", FEDDA, size.rounds // 2),
    ):
        yield one_line(Key(Group.SPARSE, name), _one(problem, star, a, rounds))
    yield from local_prox_rules(Group.SPARSE_ABLATION, problem, star, size)


def steps_varied(problem: Problem, star: PooledSolution, size: Size) -> Iterator[Experiment]:
    """Figure 2: the step size, and the number of local steps (of which tau = 10 is eta = 0.2)."""

    def line(key: Key, algorithm: alg.Algorithm, rounds: int) -> Experiment:
        options = {"batch_size": 50, "record_every": rounds // 250}
        return one_line(key, _seeds(problem, star, algorithm, rounds, size, **options))

    lengths = (size.long_rounds // 2, size.long_rounds // 2, size.slowest_rounds)
    first, *others = [
        line(Key(Group.ETA, "eta", eta), alg.DecoupledProx(eta=eta, tau=10), rounds)
        for eta, rounds in zip(size.etas, lengths, strict=True)
    ]
    yield first  # compiles for the other etas, so something else is put beside it
    for tau in (2, 5) if size.everything else (2,):
        yield line(Key(Group.TAU, "tau", tau), alg.DecoupledProx(eta=0.2, tau=tau), size.long_rounds)
    yield from others


def eq2_gap(loss, g, data, algorithm, server, clients):
    """||x - (p - eta_g eta sum_i p_i S_i)||: how far a round was from the averaged-gradient form of equation (2)."""
    mean_sum = jnp.tensordot(data.weight, clients.S, 1)
    moved = clients.p[0] - algorithm.eta_g * algorithm.eta * mean_sum
    return {"eq2_gap": jnp.linalg.norm(server.x - moved)}


def other_draws(size: Size, progress: Progress) -> Traces:
    """FedMid and FedDA on other draws of the data: which of the two is better depends on the draw."""
    methods = {Key(Group.DRAWS, "FedMid"): FEDMID, Key(Group.DRAWS, "FedDA"): FEDDA}
    found: Traces = {key: [] for key in methods}
    for draw in range(1, size.draws + 1):
        problem = paper_problem(min(size.samples, 500), size.clients, seed=draw)
        star = solve_pooled(problem)
        for key, a in methods.items():
            found[key].append(simulate(problem, a, 200, x_star=star, record_every=50))
        progress(draw, size.draws)
    return found


def fixed_points(problem: Problem, star: PooledSolution, progress: Progress) -> Traces:
    """Algorithm 1 started at its fixed point, for one worker with tau = 2 (the appendix) and for all of them."""
    alone = _first_client(problem)
    cases = {
        ONE_WORKER: (alone, solve_pooled(alone), alg.DecoupledProx(eta=1.0, tau=2)),
        Key(Group.FIXED_POINT, "all clients, tau = 5"): (problem, star, A1),
        Key(Group.FIXED_POINT, "all clients, tau = 5, eta_g = 2"): (
            problem, star, alg.DecoupledProx(eta=0.5, eta_g=2.0, tau=5),
        ),
    }  # fmt: skip
    found: Traces = {}
    for key, (p, x, a) in cases.items():
        found[key] = [from_fixed_point(p, x, a, rounds=30)]
        progress(len(found), len(cases))
    return found


def _first_client(problem: Problem) -> Problem:
    sites = problem.sites
    return Problem(problem.loss, problem.regulariser, from_arrays(sites.features[:1], sites.labels[:1]))


def from_fixed_point(
    problem: Problem, star: PooledSolution, algorithm: alg.DecoupledProx | AblatedProx, rounds: int
) -> Trace:
    """Run from x = x* - eta~ grad f(x*), c_i = grad f(x*) - grad f_i(x*)."""
    gradient = problem.gradient(star.x)
    start = simulate(problem, algorithm, 0, x_star=star)
    assert start.state is not None
    c = gradient - problem.client_gradients(star.x)
    _, p, S = start.state.clients
    state = replace(start.state, server=[star.x - algorithm.eta_tilde * gradient], clients=[c, p, S])
    trace = simulate(problem, algorithm, rounds, x_star=star, resume=replace(start, state=state))
    # the first row is that of the run whose state was replaced
    return replace(trace, columns={name: column[1:] for name, column in trace.columns.items()})
