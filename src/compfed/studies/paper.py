"""Every run behind the paper's figures and claims, and a few beyond the paper. Runs become traces; nothing is judged here.

Reference: Zhang, Hu, Johansson, "Composite federated learning with heterogeneous data", ICASSP 2024, section 4.
The paper does not state the dimension, the label rule or the scaling of the rows; `compfed.data.generator` says what
was inferred and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import compfed.algorithms as alg
from compfed.data import synthetic
from compfed.engines import simulate
from compfed.engines.run import Progress
from compfed.problem import regularisers
from compfed.problem.losses import Logistic
from compfed.problem.measures import client_gradients
from compfed.problem.problem import Problem
from compfed.solvers.pooled import Solution, solve
from compfed.studies.ablation import AblatedProx
from compfed.trace import State, Trace

RIDGE, L1, SPARSE_L1 = 0.01, 1e-4, 1e-3


@dataclass(frozen=True)
class Size:
    """How large the reproduction is. The full size is the paper's."""

    clients: int = 30
    samples: int = 2000
    rounds: int = 600  # full gradients, for what converges; what stops at a floor gets half
    stochastic_rounds: int = 400  # Figure 1, right
    etas: tuple[float, float, float] = (1.0, 0.2, 0.02)  # Figure 2, left
    long_rounds: int = 2000  # Figure 2: until the slower settings reach their floor
    slowest_rounds: int = 4000  # Figure 2, left, the smallest eta
    draws: int = 5  # of the data, for claims that depend on it
    theory_rounds: int = 3000
    seeds: int = 5
    everything: bool = True  # also the runs that repeat a point in another setting


QUICK = Size(
    clients=10, samples=200, stochastic_rounds=200, etas=(1.0, 0.2, 0.05), long_rounds=1800, slowest_rounds=1600, draws=1,
    theory_rounds=600, seeds=2, everything=False,
)  # fmt: skip


def paper_problem(samples: int, clients: int = 30, lam: float = L1, seed: int = 0) -> Problem:
    """(alpha, beta) = (10, 10), d = 60, ridge 0.01 inside every f_i; n = 30 in the paper."""
    sites = synthetic(alpha=10, beta=10, clients=clients, samples=samples, features=60, seed=seed)
    return Problem(Logistic(ridge=RIDGE), regularisers.L1(lam), sites)


@dataclass(frozen=True)
class Experiment:
    """A named group of runs: `run(progress)` gives one list of traces (one per seed) for each line of a figure."""

    name: str
    run: Callable[[Progress], dict[str, list[Trace]]]


def experiments(size: Size) -> Iterator[Experiment]:
    """All of them, in the order of the report. They share problems and minimisers, and do not depend on each other."""
    problem = paper_problem(size.samples, size.clients)
    sparse = problem.replace(regulariser=regularisers.L1(SPARSE_L1))
    stars = {"paper": solve(problem), "sparse": solve(sparse)}

    def one(p: Problem, star: str, algorithm: alg.Algorithm, rounds: int, **options: Any):
        return lambda progress: [simulate(p, algorithm, rounds, reference=stars[star], progress=progress, **options)]

    def seeds(algorithm: alg.Algorithm, rounds: int, batch_size: int, every: int = 2):
        return lambda progress: over_seeds(
            size.seeds, progress, problem, algorithm, rounds, batch_size=batch_size, record_every=every,
            reference=stars["paper"],
        )  # fmt: skip

    A1 = alg.DecoupledProx(eta=1.0, eta_g=1.0, tau=5)
    L = problem.lipschitz
    fast = {
        "FastFedDA (quadratic)": alg.FastFedDA(RIDGE, alg.fast_fedda.Quadratic(L), tau=5),
        "FastFedDA (linear)": alg.FastFedDA(RIDGE, alg.fast_fedda.Linear(L), tau=5),
        "FastFedDA (constant)": alg.FastFedDA(RIDGE, alg.fast_fedda.Constant(L), tau=5),
    }
    full = {
        "DecoupledProx": A1,
        "FedMid": alg.FedMid(eta=1.0, tau=5),
        "FedMid (no server prox)": alg.FedMid(eta=1.0, tau=5, server_prox="none"),
        "FedDA": alg.FedDA(eta=1.0, tau=5),
        **fast,
        "ProximalGradient": alg.ProximalGradient(eta=1.0 / L),
        "FISTA": alg.FISTA(eta=1.0 / L),
    }
    if not size.everything:
        for name in ("FastFedDA (linear)", "FastFedDA (constant)", "FedMid (no server prox)"):
            del full[name]
    half = size.rounds // 2
    for name, a in full.items():
        rounds = size.rounds if name in ("DecoupledProx", "ProximalGradient", "FISTA") else half
        yield _group("full", name, one(problem, "paper", a, rounds))
    for name in ("DecoupledProx", "FedMid", "FedDA", "FastFedDA (quadratic)"):
        yield _group("stochastic", name, seeds(full[name], size.stochastic_rounds, 20))

    rules = ("eta", "eta-tilde", "none") if size.everything else ("eta", "none")
    for rule in rules:
        yield _group("ablation", f"local prox: {rule}", one(problem, "paper", AblatedProx(eta=1.0, rule=rule), half))
    for name, a in [("DecoupledProx", A1), ("FedMid", full["FedMid"]), ("FedDA", full["FedDA"])]:
        yield _group("sparse", name, one(sparse, "sparse", a, size.rounds if a is A1 else half))
    for rule in rules:
        yield _group("sparse", f"local prox: {rule}", one(sparse, "sparse", AblatedProx(eta=1.0, rule=rule), half))

    # the first of these compiles for the other etas, so something else is put beside it
    lengths = zip(size.etas, (size.long_rounds // 2, size.long_rounds // 2, size.slowest_rounds), strict=True)
    eta_runs = [
        _group("impact of eta", f"eta = {eta:g}", seeds(alg.DecoupledProx(eta=eta, tau=10), r, 50, every=r // 250))
        for eta, r in lengths
    ]
    yield eta_runs[0]
    for tau in (2, 5) if size.everything else (2,):  # tau = 10 is eta = 0.2
        a = alg.DecoupledProx(eta=0.2, tau=tau)
        yield _group("impact of tau", f"tau = {tau}", seeds(a, size.long_rounds, 50, every=size.long_rounds // 250))
    yield from eta_runs[1:]

    yield from theory(size)
    yield _group(
        "equation 2",
        "DecoupledProx, upload zhat",
        one(problem, "paper", replace(A1, upload="model"), 60, measure=eq2_gap),
    )
    yield Experiment("draws", lambda progress: other_draws(size, progress))
    yield Experiment("fixed point", lambda progress: fixed_points(problem, stars["paper"], progress))


def over_seeds(seeds: int, progress: Progress, *run: Any, **options: Any) -> list[Trace]:
    """One run per seed. `grid` would do them as one program, which takes longer to compile than these take to run."""
    return [
        simulate(*run, **options, seed=k, progress=lambda done, total, k=k: progress(k * total + done, seeds * total))
        for k in range(seeds)
    ]


def _group(group: str, name: str, run: Callable[[Progress], list[Trace]]) -> Experiment:
    return Experiment(f"{group}: {name}", lambda progress: {f"{group}: {name}": run(progress)})


def eq2_gap(loss, g, data, algorithm, server, clients):
    """||x - (p - eta_g eta sum_i p_i S_i)||: how far a round was from the averaged-gradient form of equation (2)."""
    mean_sum = jnp.tensordot(data.weight, clients.S, 1)
    moved = clients.p[0] - algorithm.eta_g * algorithm.eta * mean_sum
    return {"eq2_gap": jnp.linalg.norm(server.x - moved)}


def other_draws(size: Size, progress: Progress) -> dict[str, list[Trace]]:
    """FedMid and FedDA on other draws of the data: which of the two is better depends on the draw."""
    found: dict[str, list[Trace]] = {"draws: FedMid": [], "draws: FedDA": []}
    for draw in range(1, size.draws + 1):
        problem = paper_problem(min(size.samples, 500), size.clients, seed=draw)
        star = solve(problem)
        for name, a in (("FedMid", alg.FedMid(eta=1.0, tau=5)), ("FedDA", alg.FedDA(eta=1.0, tau=5))):
            found[f"draws: {name}"].append(simulate(problem, a, 200, reference=star, record_every=50))
        progress(draw, size.draws)
    return found


def fixed_points(problem: Problem, star: Solution, progress: Progress) -> dict[str, list[Trace]]:
    """Algorithm 1 started at its fixed point, for one worker with tau = 2 (the appendix) and for all of them."""
    alone = _first_client(problem)
    cases = {
        "fixed point: n = 1, tau = 2": (alone, solve(alone), alg.DecoupledProx(eta=1.0, tau=2)),
        "fixed point: all clients, tau = 5": (problem, star, alg.DecoupledProx(eta=1.0, tau=5)),
        "fixed point: all clients, tau = 5, eta_g = 2": (problem, star, alg.DecoupledProx(eta=0.5, eta_g=2.0, tau=5)),
    }
    found = {}
    for name, (p, x, a) in cases.items():
        found[name] = [from_fixed_point(p, x, a, rounds=30)]
        progress(len(found), len(cases))
    return found


def _first_client(problem: Problem) -> Problem:
    from compfed.data import from_arrays

    sites = problem.sites
    return Problem(problem.loss, problem.regulariser, from_arrays(sites.features[:1], sites.labels[:1]))


def from_fixed_point(
    problem: Problem, star: Solution, algorithm: alg.DecoupledProx | AblatedProx, rounds: int
) -> Trace:
    """Run from x = x* - eta~ grad f(x*), c_i = grad f(x*) - grad f_i(x*)."""
    gradient = problem.gradient(star.x)
    start = simulate(problem, algorithm, 0, reference=star)
    assert start.state is not None
    c = gradient - problem.client_gradients(star.x)
    _, p, S = start.state.clients
    state = State(0, [star.x - algorithm.eta_tilde * gradient], [c, p, S])
    trace = simulate(problem, algorithm, rounds, reference=star, resume=replace(start, state=state))
    # the first row is that of the run whose state was replaced
    return replace(trace, columns={name: column[1:] for name, column in trace.columns.items()})


def theory(size: Size) -> Iterator[Experiment]:
    """Runs with Theorem 1's own step sizes, with the Lyapunov function as a column.

    With ridge 0.01 the theorem's step is so small that its bound does not move in any run one can wait for, so a
    second, well-conditioned problem (ridge 1) shows the bound at work down to its residual.
    """
    paper = paper_problem(200, size.clients)
    well = paper.replace(loss=Logistic(ridge=1.0), regulariser=regularisers.L1(1e-3))
    ball = well.replace(regulariser=regularisers.L2Ball(1.0))  # far larger than x*: the minimiser is inside
    yield _group("theorem 1", "ridge 1", _theorem_runs(well, size.theory_rounds, None, size))
    yield _group("corollary 1", "ball, ridge 1", _theorem_runs(ball, size.theory_rounds, None, size))
    if size.everything:
        yield _group("theorem 1", "ridge 1, b = 20", _theorem_runs(well, size.theory_rounds, 20, size))
        yield _group("corollary 1", "ball, ridge 1, b = 20", _theorem_runs(ball, size.theory_rounds, 20, size))
        yield _group("theorem 1", "the paper's problem", _theorem_runs(paper, 500, None, size))


def _theorem_runs(problem: Problem, rounds: int, batch: int | None, size: Size):
    def run(progress: Progress) -> list[Trace]:
        star = solve(problem)
        largest = float(problem.client_lipschitz.max())
        eta_tilde, eta_g, tau = problem.strong_convexity / (150 * largest**2), np.sqrt(problem.n), 5
        algorithm = alg.DecoupledProx(eta=eta_tilde / (eta_g * tau), eta_g=eta_g, tau=tau)
        traces = over_seeds(
            1 if batch is None else size.seeds, progress, problem, algorithm, rounds, batch_size=batch, reference=star,
            measure=lyapunov(star.x),
        )  # fmt: skip
        constants = {
            "mu": problem.strong_convexity,
            "L": largest,
            "eta_tilde": eta_tilde,
            "sigma2": 0.0 if batch is None else gradient_variance(problem, [np.zeros(problem.d), star.x, traces[0].x]),
            "B_g": float(getattr(problem.regulariser, "lam", 0.0)) * np.sqrt(problem.d),
        }
        bound = theorem_bound(traces, constants)
        return [
            replace(t, columns={**t.columns, "bound": bound}, provenance={**t.provenance, "theorem": constants})
            for t in traces
        ]

    return run


def theorem_bound(traces: list[Trace], constants: dict[str, float]) -> np.ndarray:
    """(1 - mu eta~ / 3)^r Omega^0 + 30 eta eta_g sigma^2 / (mu n b) + 21 tau eta eta_g B_g^2 / (mu n) at every round.

    Omega^0 is the mean over seeds. For an indicator B_g is 0: that is Corollary 1.
    """
    how = traces[0].provenance
    mu, steps = constants["mu"], how["algorithm"]["eta"] * how["algorithm"]["eta_g"]
    start = np.mean([t["lyapunov"][0] for t in traces])
    noise = 30 * steps / mu * constants["sigma2"] / (how["participants"] * (how["batch_size"] or 1))
    subgradient = 21 * how["algorithm"]["tau"] * steps / (mu * how["participants"]) * constants["B_g"] ** 2
    return (1 - mu * constants["eta_tilde"] / 3) ** traces[0]["round"] * start + noise + subgradient


def lyapunov(star: np.ndarray):
    """Omega = ||p - x*||^2 + (1/n) sum_i ||Lambda_i - mean Lambda||^2, Lambda_i = eta tau (grad f_i(p) + c_i)."""

    def measure(loss, g, data, algorithm, server, clients):
        p = algorithm.solution(g, server)
        Lambda = algorithm.eta * algorithm.tau * (client_gradients(loss, data, p) + clients.c)
        spread = Lambda - Lambda.mean(axis=0)
        return {"lyapunov": ((p - star) ** 2).sum() + (spread**2).sum(axis=1).mean()}

    return measure


def gradient_variance(problem: Problem, points: list[np.ndarray]) -> float:
    """sigma^2: the largest, over clients and the given points, variance of one example's gradient."""
    worst = 0.0
    for x in points:
        for A, y in zip(problem.sites.features, problem.sites.labels, strict=True):
            gradients = (-y / (1.0 + np.exp(y * (A @ x))))[:, None] * A
            worst = max(worst, float(((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1).mean()))
    return worst
