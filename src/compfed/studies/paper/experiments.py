"""Every run behind the paper's figures and claims, and a few beyond the paper. Runs become traces, by `Key`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import compfed.algorithms as alg
from compfed import regularisers
from compfed.data import from_arrays, synthetic
from compfed.losses import Logistic
from compfed.monitor import Progress
from compfed.problem.local_loss import client_gradients
from compfed.problem.problem import Problem
from compfed.simulation import simulate
from compfed.solve import PooledSolution, solve_pooled
from compfed.studies.ablation import AblatedProx
from compfed.trace import Trace

# --- the problem ---

RIDGE = 0.01


@dataclass(frozen=True)
class Size:
    """How large the reproduction is. The full size is the paper's."""

    clients: int = 30
    samples: int = 2000
    rounds: int = 600  # with full gradients, for methods that converge; methods with a floor get half
    stochastic_rounds: int = 400  # Figure 1, right
    etas: tuple[float, float, float] = (1.0, 0.2, 0.02)  # Figure 2, left
    long_rounds: int = 2000  # Figure 2: until the slower settings reach their floor
    slowest_rounds: int = 4000  # Figure 2, left, the smallest eta
    batches: tuple[int, int, int] = (10, 40, 160)  # how the floor depends on the mini-batch
    draws: int = 5  # of the data, for claims that depend on it
    theory_rounds: int = 3000
    seeds: int = 5
    everything: bool = True  # also the runs that repeat a point in another setting


QUICK = Size(
    clients=10, samples=200, stochastic_rounds=200, etas=(1.0, 0.2, 0.05), long_rounds=1800, slowest_rounds=1600, draws=1,
    batches=(5, 10, 20), theory_rounds=600, seeds=2, everything=False,
)  # fmt: skip


def paper_problem(samples: int, clients: int = 30, seed: int = 0) -> Problem:
    """(alpha, beta) = (10, 10), d = 60, ridge 0.01 inside every f_i, l1 1e-4; n = 30 in the paper.

    The paper does not state the dimension, the label rule or the scaling of the rows; `compfed.data.synthetic` lists the
    inferred values and the reasons.
    """
    sites = synthetic(alpha=10, beta=10, clients=clients, samples=samples, features=60, seed=seed)
    return Problem(Logistic(ridge=RIDGE), regularisers.L1(1e-4), sites)


# --- the names of runs ---


class Group(StrEnum):
    """A comparison: the runs of a group differ in one thing, which their name states."""

    FULL = "full"  # methods with full gradients; Figure 1, left
    STOCHASTIC = "stochastic"  # methods with mini-batches; Figure 1, right
    WITHOUT_FLOOR = "stochastic, without floor"  # variance reduction; beyond the paper
    ABLATION = "ablation: local prox"  # rules for the parameter of the local prox
    SPARSE = "sparse"  # methods where the solution is sparse
    SPARSE_ABLATION = "sparse: local prox"
    ETA = "impact of eta"  # Figure 2, left
    TAU = "impact of tau"  # Figure 2, right
    BATCH = "impact of b"  # the floor against the size of the mini-batches
    CLIENTS = "impact of n"  # the floor against the number of clients
    SPLITTING = "FedDR"  # with a fixed number of local steps
    COUPLED = "coupled"  # the prox between gradients and the mean
    DRAWS = "draws"  # methods on other draws of the data
    THEOREM = "theorem 1"
    COROLLARY = "corollary 1"
    BOUNDARY = "corollary 1, x* on the boundary"  # which it leaves out
    EQUATION_2 = "equation 2"
    FIXED_POINT = "fixed point"


class Key(NamedTuple):
    """The name of one line of a figure, under which its traces are kept.

    >>> str(Key(Group.FULL, "FedDA")), str(Key(Group.ETA, "eta", 0.2))
    ('full: FedDA', 'impact of eta: eta = 0.2')
    """

    group: Group
    name: str  # of a method, a rule, a setting, or of the number that varies
    value: float | None = None  # of that number

    def __str__(self) -> str:
        return f"{self.group}: {self.name}" + ("" if self.value is None else f" = {self.value:g}")


Traces = dict[Key, list[Trace]]  # one trace per seed

ALGORITHM_1 = Key(Group.FULL, "DecoupledProx")
PAPERS_PROBLEM = Key(Group.THEOREM, "the paper's problem")
FAST_FEDDA = "FastFedDA (constant)"  # the schedule of its authors' code
FAST_FEDDAS = (FAST_FEDDA, "FastFedDA (linear)", "FastFedDA (quadratic)")
METHODS = ("DecoupledProx", "FedMid", "FedDA", FAST_FEDDA)  # of the paper


def keys(traces: Traces, group: Group) -> list[Key]:
    """The keys of a group, in the order of the runs."""
    return [key for key in traces if key.group is group]


# --- the experiments ---

A1 = alg.DecoupledProx(eta=1.0, eta_g=1.0, tau=5)
FEDMID, FEDDA = alg.FedMid(eta=1.0, tau=5), alg.FedDA(eta=1.0, tau=5)


@dataclass(frozen=True)
class Experiment:
    """Runs that belong together: `run(progress)` gives one list of traces (one per seed) for each line of a figure."""

    name: str
    run: Callable[[Progress], Traces]


class Solved(NamedTuple):
    """A problem and its minimiser."""

    problem: Problem
    star: PooledSolution


def experiments(size: Size) -> Iterator[Experiment]:
    """All experiments, in the order of the report. They share problems and minimisers, and can run in any order."""
    problem = paper_problem(size.samples, size.clients)
    paper = Solved(problem, solve_pooled(problem))
    yield from methods_compared(paper, size)
    yield from local_prox_rules(Group.ABLATION, paper, size)
    yield from sparse_methods(problem.replace(regulariser=regularisers.L1(1e-3)), size)
    yield from steps_varied(paper, size)
    yield from residual_varied(paper, size)
    yield from remarks(paper, size)
    yield from theorem_experiments(size)
    zhat = Key(Group.EQUATION_2, "DecoupledProx, upload zhat")
    yield _one(zhat, paper, replace(A1, upload="model"), 60, measure=eq2_gap)
    yield Experiment("draws", lambda progress: other_draws(size, progress))
    yield Experiment("fixed point", lambda progress: fixed_points(paper, progress))


def _one(key: Key, case: Solved, algorithm: alg.Algorithm, rounds: int, seeds: int = 1, **options: Any) -> Experiment:
    """An experiment that is a single line of a figure: one run per seed."""
    return Experiment(str(key), lambda progress: {key: over_seeds(case, algorithm, rounds, seeds, progress, **options)})


def over_seeds(
    case: Solved, algorithm: alg.Algorithm, rounds: int, seeds: int, progress: Progress, **options: Any
) -> list[Trace]:
    """One run per seed. `grid` would compile all of them as one program, which takes longer than these runs."""

    def run(k: int) -> Trace:
        def show(done: int, total: int) -> None:
            progress(k * total + done, seeds * total)

        return simulate(case.problem, algorithm, rounds, x_star=case.star, seed=k, progress=show, **options)

    return [run(k) for k in range(seeds)]


def methods_compared(paper: Solved, size: Size) -> Iterator[Experiment]:
    """Figure 1: the methods of the paper with full gradients and with mini-batches; others beside them."""
    L = paper.problem.lipschitz
    schedules = (alg.fast_fedda.Constant(L), alg.fast_fedda.Linear(L), alg.fast_fedda.Quadratic(L))
    full: dict[str, alg.Algorithm] = {
        "DecoupledProx": A1,
        "FedMid": FEDMID,
        "FedMid (no server prox)": alg.FedMid(eta=1.0, tau=5, server_prox="none"),
        "FedDA": FEDDA,
        **{name: alg.FastFedDA(RIDGE, rule, tau=5) for name, rule in zip(FAST_FEDDAS, schedules, strict=True)},
        "ProximalGradient": alg.ProximalGradient(eta=1.0 / L),
        "FISTA": alg.FISTA(eta=1.0 / L),
    }
    for name, a in full.items():
        if size.everything or name not in ("FedMid (no server prox)", *FAST_FEDDAS[1:]):
            rounds = size.rounds if name in ("DecoupledProx", "ProximalGradient", "FISTA") else size.rounds // 2
            yield _one(Key(Group.FULL, name), paper, a, rounds)
    batches = {Key(Group.STOCHASTIC, name): full[name] for name in METHODS}
    reduced = alg.VarianceReducedDecoupledProx(eta=1.0, eta_g=1.0, tau=5)
    batches[Key(Group.WITHOUT_FLOOR, "VarianceReducedDecoupledProx")] = reduced
    for key, a in batches.items():
        yield _one(key, paper, a, size.stochastic_rounds, size.seeds, batch_size=20, record_every=2)


def local_prox_rules(group: Group, case: Solved, size: Size) -> Iterator[Experiment]:
    """Algorithm 1 with another parameter in the local prox (line 11)."""
    for rule in ("eta", "eta-tilde", "none") if size.everything else ("eta", "none"):
        yield _one(Key(group, rule), case, AblatedProx(eta=1.0, rule=rule), size.rounds // 2)


def sparse_methods(problem: Problem, size: Size) -> Iterator[Experiment]:
    """A setting in which the solution is sparse."""
    case = Solved(problem, solve_pooled(problem))
    for a, rounds in ((A1, size.rounds), (FEDMID, size.rounds // 2), (FEDDA, size.rounds // 2)):
        yield _one(Key(Group.SPARSE, type(a).__name__), case, a, rounds)
    yield from local_prox_rules(Group.SPARSE_ABLATION, case, size)


def steps_varied(paper: Solved, size: Size) -> Iterator[Experiment]:
    """Figure 2: the step size, and the number of local steps (of which tau = 10 is eta = 0.2)."""

    def line(key: Key, algorithm: alg.Algorithm, rounds: int) -> Experiment:
        return _one(key, paper, algorithm, rounds, size.seeds, batch_size=50, record_every=rounds // 250)

    lengths = (size.long_rounds // 2, size.long_rounds // 2, size.slowest_rounds)
    first, *others = [
        line(Key(Group.ETA, "eta", eta), alg.DecoupledProx(eta=eta, tau=10), rounds)
        for eta, rounds in zip(size.etas, lengths, strict=True)
    ]
    yield first  # compiles for the other etas, so that another experiment should run beside it
    for tau in (2, 5) if size.everything else (2,):
        yield line(Key(Group.TAU, "tau", tau), alg.DecoupledProx(eta=0.2, tau=tau), size.long_rounds)
    yield from others


def residual_varied(paper: Solved, size: Size) -> Iterator[Experiment]:
    """The floor with mini-batches against their size, and against the number of clients.

    For the second every client is there once, twice or four times: objective, minimiser and noise of a gradient stay the same.
    """

    def line(key: Key, case: Solved, batch: int) -> Experiment:
        return _one(key, case, A1, size.stochastic_rounds, size.seeds, batch_size=batch, record_every=4)

    for batch in size.batches:
        yield line(Key(Group.BATCH, "b", batch), paper, batch)
    small = paper_problem(min(size.samples, 500), size.clients)
    star = solve_pooled(small)
    for copies in (1, 4):
        features, labels = (list(rows) * copies for rows in (small.sites.features, small.sites.labels))
        many = Problem(small.loss, small.regulariser, from_arrays(features, labels))
        yield line(Key(Group.CLIENTS, "n", many.n), Solved(many, star), size.batches[0])


def remarks(paper: Solved, size: Size) -> Iterator[Experiment]:
    """What the paper says of other methods in passing: FedDR (and FedADMM) with a fixed number of local steps, and coupling."""
    lam, rounds = 30.0, size.rounds // 2
    eta = 1.0 / (float(paper.problem.client_lipschitz.max()) + 1.0 / lam)
    for start in ("centre", "previous"):
        yield _one(Key(Group.SPLITTING, start), paper, alg.FedDR(eta=eta, lam=lam, tau=5, start=start), rounds)
    yield _one(Key(Group.COUPLED, "NaiveCoupled"), paper, alg.NaiveCoupled(eta=1.0, tau=5), rounds)


def eq2_gap(loss, g, data, algorithm, server, clients):
    """||x - (p - eta_g eta sum_i p_i S_i)||: how far a round is from the averaged-gradient form of equation (2)."""
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


def fixed_points(paper: Solved, progress: Progress) -> Traces:
    """Algorithm 1 started at its fixed point, for one worker with tau = 2 (the appendix) and for all of them."""
    problem, star = paper
    sites = from_arrays(problem.sites.features[:1], problem.sites.labels[:1])
    alone = Problem(problem.loss, problem.regulariser, sites)
    cases = {
        "n = 1, tau = 2": (alone, solve_pooled(alone), alg.DecoupledProx(eta=1.0, tau=2)),
        "all clients, tau = 5": (problem, star, A1),
        "all clients, tau = 5, eta_g = 2": (problem, star, alg.DecoupledProx(eta=0.5, eta_g=2.0, tau=5)),
    }
    found: Traces = {}
    for name, case in cases.items():
        found[Key(Group.FIXED_POINT, name)] = [from_fixed_point(*case, rounds=30)]
        progress(len(found), len(cases))
    return found


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
    # The first row belongs to the run whose state was replaced.
    return replace(trace, columns={name: column[1:] for name, column in trace.columns.items()})


# --- Theorem 1 and Corollary 1 ---


def theorem_experiments(size: Size) -> Iterator[Experiment]:
    """Runs with Theorem 1's own step sizes, with the Lyapunov function as a column.

    With ridge 0.01 the theorem's step is so small that its bound does not move in any affordable run. So a second,
    well-conditioned problem (ridge 1) shows the bound down to its residual.
    """
    paper = paper_problem(200, size.clients)
    well = paper.replace(loss=Logistic(ridge=1.0), regulariser=regularisers.L1(1e-3))
    ball = well.replace(regulariser=regularisers.L2Ball(1.0))  # far larger than x*: the minimiser is inside
    yield _theorem_runs(Key(Group.THEOREM, "ridge 1"), well, size.theory_rounds)
    yield _theorem_runs(Key(Group.COROLLARY, "ball, ridge 1"), ball, size.theory_rounds)
    yield _theorem_runs(PAPERS_PROBLEM, paper, 500)
    small_ball = well.replace(regulariser=regularisers.L2Ball(0.01))  # cuts the minimiser of f off
    yield _theorem_runs(Key(Group.BOUNDARY, "ball, ridge 1"), small_ball, size.theory_rounds)
    if size.everything:
        yield _theorem_runs(Key(Group.THEOREM, "ridge 1, b = 20"), well, size.theory_rounds, 20, size.seeds)
        yield _theorem_runs(Key(Group.COROLLARY, "ball, ridge 1, b = 20"), ball, size.theory_rounds, 20, size.seeds)


def _theorem_runs(key: Key, problem: Problem, rounds: int, batch: int | None = None, seeds: int = 1) -> Experiment:
    """Runs with eta~ = mu / (150 L^2), and the bound beside the Lyapunov function."""

    def run(progress: Progress) -> Traces:
        star, mu, largest = solve_pooled(problem), problem.strong_convexity, float(problem.client_lipschitz.max())
        eta_tilde, eta_g, tau = mu / (150 * largest**2), np.sqrt(problem.n), 5
        algorithm = alg.DecoupledProx(eta=eta_tilde / (eta_g * tau), eta_g=eta_g, tau=tau)
        options = {"batch_size": batch, "measure": lyapunov(star.x)}
        traces = over_seeds(Solved(problem, star), algorithm, rounds, seeds, progress, **options)
        points = [np.zeros(problem.d), star.x, traces[0].x]
        sigma2 = 0.0 if batch is None else gradient_variance(problem, points)
        B_g = float(getattr(problem.regulariser, "lam", 0.0)) * np.sqrt(problem.d)
        constants = {"mu": mu, "L": largest, "eta_tilde": eta_tilde, "sigma2": sigma2, "B_g": B_g}
        more, bound = {"theorem": constants}, {"bound": theorem_bound(traces, constants)}
        return {key: [replace(t, columns=t.columns | bound, provenance=t.provenance | more) for t in traces]}

    return Experiment(str(key), run)


def theorem_bound(traces: list[Trace], constants: dict[str, float]) -> np.ndarray:
    """(1 - mu eta~ / 3)^r Omega^0 + 30 eta eta_g sigma^2 / (mu n b) + 21 tau eta eta_g B_g^2 / (mu n) at every round.

    Omega^0 is the mean over seeds. For an indicator B_g is 0, which is Corollary 1.
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
