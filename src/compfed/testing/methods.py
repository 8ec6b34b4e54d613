"""`check` of a method: run it on small problems and compare it with the claims of its class.

`simulate` and `run_plain` must agree, the limit must be the minimiser where the class claims that, with all clients and with
some, sampling must work or be refused, numbers must keep their precision, and the costs of a trace must be those that a plain
Python loop counts. Properties without a claim are measured and reported too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import compfed.algorithms as alg
from compfed._utils.compilation import precision
from compfed._utils.records import record
from compfed.algorithms import default_steps
from compfed.algorithms.base import dense
from compfed.algorithms.contract import check_contract
from compfed.algorithms.decoupled_prox import DriftCorrected
from compfed.algorithms.round import Message, array_bytes, drive_round, run_round
from compfed.data import from_arrays, synthetic
from compfed.errors import InputError
from compfed.federation.server.rounds import bind_algorithm
from compfed.losses import Logistic, Squared
from compfed.problem.local_loss import FullGradient
from compfed.problem.problem import Problem
from compfed.regularisers import L1, Zero
from compfed.sampling import client_key, run_key
from compfed.simulation import grid, run_plain, simulate
from compfed.solve import solve_pooled
from compfed.testing.report import Checked, Verdict, line, verdict
from compfed.trace import Trace

AGREE = 1e-10  # largest relative difference between simulate and run_plain
REACHED = 1e-9  # ||x - x*|| / ||x*|| at which the minimiser is reached
ROUNDS = 3000  # after which it should be reached
TAU = 3
SOME = 2  # of the five clients, where a sample takes part
COUNTED_ROUNDS = 3  # of the plain loop that counts
SLOW_ROUNDS, SLOW_SEEDS = 4800, 6  # of a method with an error like 1/t, whose noise falls like 1/sqrt(t) under sampling


def check_method(method: type[alg.Algorithm] | alg.Algorithm) -> Checked:
    """The report on a method."""
    case = _Case(method)
    lines = [line("contract", case.contract)]
    if lines[0].verdict == "holds":
        lines += [
            line("engines agree, full gradients", case.engines_agree),
            line("engines agree, mini-batches", lambda: case.engines_agree(batch_size=5)),
            *([line("uploads agree", case.uploads_agree)] if case.leaves_corrections_out else []),
            line("some of the clients", case.sampling),
            line("a regulariser", case.regulariser),
            *(line(f"limit, {which}", lambda which=which: case.limit(which)) for which in case.problems),
        ]
        if case.cls.sampling != "no":
            lines += [
                line(f"limit with {SOME} of 5 clients, {which}", lambda which=which: case.sampled_limit(which))
                for which in case.problems
            ]
        lines += [line(dtype, lambda dtype=dtype: case.keeps(dtype)) for dtype in ("float64", "float32")]
        lines += [line("costs", case.costs), line("known by name", case.registered)]
    return Checked(case.name, tuple(lines))


def _logistic() -> Problem:
    """A problem whose sites differ in size, weight, features and labels."""
    sites = synthetic(clients=5, samples=[30, 6, 30, 6, 6], features=8, seed=0)
    return Problem(Logistic(ridge=0.05), L1(2e-3), sites, weights=sites.shares)


def _quadratic() -> Problem:
    """A problem whose sites differ in curvature and minimiser."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((12, 8)) * (0.4 + rng.random(8)) for _ in range(5)]
    y = [a @ (2.0 * rng.standard_normal(8)) + rng.standard_normal(12) for a in A]
    return Problem(Squared(ridge=0.1), L1(1.0), from_arrays(A, y))


def _sending_models(algorithm: alg.Algorithm) -> alg.Algorithm:
    """The same variant of Algorithm 1 with the paper's upload, which is a hyper-parameter or a constant of its class."""
    cls, values = type(algorithm), {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}  # pyright: ignore[reportArgumentType]  # a record
    if "upload" in values:
        return cls(**values | {"upload": "model"})
    return record(type(cls.__name__, (cls,), {"upload": "model"}))(**values)


class _Case:
    """A method, and the problems it is run on: without a regulariser where it takes none."""

    def __init__(self, method: type[alg.Algorithm] | alg.Algorithm):
        self.cls: type[alg.Algorithm] = method if isinstance(method, type) else type(method)
        self.name, self.given = self.cls.__name__, method
        self.problems = {"logistic": _logistic(), "quadratic": _quadratic()}
        if self.cls.composite is False:
            self.problems = {n: p.replace(regulariser=Zero()) for n, p in self.problems.items()}

    def algorithm(self, problem: Problem) -> alg.Algorithm:
        return default_steps(self.cls, problem, TAU) if isinstance(self.given, type) else self.given

    def run(self, engine: Callable[..., Trace], which: str, rounds: int, **options: Any) -> Trace:
        problem = self.problems[which].astype(options.pop("dtype", "float64"))
        return engine(problem, self.algorithm(problem), rounds, record_every=max(1, rounds // 10), **options)

    # --- the properties ---

    def contract(self) -> tuple[Verdict, str]:
        problem = self.problems["logistic"]
        bound = self.algorithm(problem).bind(problem, problem.n)
        check_contract(bound, problem.d, problem.dtype, problem.regulariser)
        return "holds", "every stage returns what the next one needs"

    def engines_agree(self, **options: Any) -> tuple[Verdict, str]:
        fast, slow = (self.run(engine, "logistic", 30, seed=4, **options) for engine in (simulate, run_plain))
        apart = float(np.abs(fast.x - slow.x).max() / max(np.abs(slow.x).max(), 1e-300))
        return ("holds" if apart <= AGREE else "fails"), f"simulate and run_plain are {apart:.0e} apart after 30 rounds"

    @property
    def leaves_corrections_out(self) -> bool:
        """Whether a round of all clients sends sums of gradients, without the mean of the corrections."""
        problem = self.problems["logistic"]
        bound = self.algorithm(problem).bind(problem, problem.n)
        return isinstance(bound, DriftCorrected) and not bound.sends_model

    def uploads_agree(self) -> tuple[Verdict, str]:
        """The upload "gradient-sum" against the paper's zhat_tau: the same where sum_i p_i c_i = 0."""
        problem = self.problems["logistic"].astype("float64")
        short, paper = (
            simulate(problem, a, 10).x for a in (self.algorithm(problem), _sending_models(self.algorithm(problem)))
        )
        apart = float(np.abs(short - paper).max() / max(np.abs(paper).max(), 1e-300))
        found = f"upload 'gradient-sum' and 'model' are {apart:.0e} apart after 10 rounds"
        if apart <= AGREE:
            return "holds", found
        way_out = f"upload = 'model' in {self.name}"
        return (
            "fails",
            f"{found}: the corrections do not cancel, and 'gradient-sum' leaves their mean out; write {way_out}",
        )

    def sampling(self) -> tuple[Verdict, str]:
        if self.cls.sampling != "no":
            return self.engines_agree(participants=2)
        return self.refused("sampling = 'no'", self.problems["logistic"], participants=2)

    def regulariser(self) -> tuple[Verdict, str]:
        if self.cls.composite is not False:
            claim: Verdict = "not claimed" if self.cls.composite is None else "holds"
            return claim, "runs with an L1 norm; whether it minimises the sum is the limit below"
        return self.refused("composite = False", self.problems["logistic"].replace(regulariser=L1(1e-3)))

    def refused(self, claim: str, problem: Problem, **options: Any) -> tuple[Verdict, str]:
        try:
            simulate(problem, self.algorithm(problem), 1, **options)
        except InputError:
            return "holds", f"refused, as {claim} says"
        return "fails", f"{claim} is claimed, but such a run is not refused"

    def limit(self, which: str) -> tuple[Verdict, str]:
        errors = self.run(simulate, which, ROUNDS, x_star=solve_pooled(self.problems[which]))["optimality"]
        if self.cls.slow and errors[-1] > REACHED:
            halved = 0.35 < errors[-1] / errors[len(errors) // 2] < 0.65  # over the second half of the rounds
            falls = f"error {errors[-1]:.1e} after {ROUNDS} rounds, {'' if halved else 'not '}falling like 1/t"
            return verdict(bool(self.cls.exact and halved), falls)
        return _compared(errors, self.cls.exact, "exact")

    def sampled_limit(self, which: str) -> tuple[Verdict, str]:
        """The limit where some of the clients take part, with full gradients, under the method's own scheme."""
        star, claim = solve_pooled(self.problems[which]), self.cls.exact_sampled
        if not self.cls.slow:
            errors = self.run(simulate, which, ROUNDS, x_star=star, participants=SOME)["optimality"]
            return _compared(errors, claim, "exact_sampled")
        problem = self.problems[which]
        seeds: dict[str, Any] = {"over": {"seed": range(SLOW_SEEDS)}, "record_every": SLOW_ROUNDS // 16}
        traces = grid(problem, self.algorithm(problem), SLOW_ROUNDS, **seeds, x_star=star, participants=SOME)
        early, late = (float(np.sqrt(np.mean([t["optimality"][k] ** 2 for t in traces]))) for k in (1, 16))
        found = f"error {early:.1e} after {SLOW_ROUNDS // 16} rounds and {late:.1e} after {SLOW_ROUNDS}, over {SLOW_SEEDS} seeds"
        if claim is None:
            return "not claimed", found
        return verdict((late < 0.6 * early) == claim, found + f"; exact_sampled = {claim} is claimed")

    def keeps(self, dtype: str) -> tuple[Verdict, str]:
        trace = self.run(simulate, "logistic", 50, dtype=dtype)
        state = [] if trace.state is None else [*trace.state.server, *trace.state.clients]
        other = {a.dtype.name for a in [trace.x, *state] if np.issubdtype(a.dtype, np.floating)} - {dtype}
        return ("fails", f"became {', '.join(sorted(other))}") if other else ("holds", f"model and states stay {dtype}")

    def costs(self) -> tuple[Verdict, str]:
        """The columns of a trace against a plain Python loop that counts."""
        problem = self.problems["logistic"]
        trace = simulate(problem, self.algorithm(problem), COUNTED_ROUNDS)
        counted = counted_by_hand(problem, self.algorithm(problem), COUNTED_ROUNDS)
        wrong = [
            f"{name} {trace[name][-1] / COUNTED_ROUNDS:.4g} in the trace, {value / COUNTED_ROUNDS:.4g} counted"
            for name, value in counted.items()
            if name in trace and not np.isclose(trace[name][-1], value, rtol=1e-12)
        ]
        each = {name: value / COUNTED_ROUNDS for name, value in counted.items()}
        found = (
            f"a round: {each['bytes_up']:g} bytes up, {each['bytes_down']:g} down, {each['gradients']:.3g} gradients, "
            f"{each['client_proxes']:.3g} proxes"
        )
        return verdict(not wrong, found + "".join(f"; {name}" for name in wrong))

    def registered(self) -> tuple[Verdict, str]:
        known = alg.known().get(self.name) is self.cls
        return "not claimed", "registered" if known else f"not registered: cf.register({self.name})"


def _compared(errors: np.ndarray, claim: bool | None, name: str) -> tuple[Verdict, str]:
    """The verdict on a claim about the limit, from the errors of ten records of a run."""
    last, reached = float(errors[-1]), bool(errors[-1] <= REACHED)
    settled = abs(errors[-1] - errors[-4]) <= 1e-2 * errors[-1]
    if reached:
        found = f"exact: reaches {REACHED:.0e} ({last:.0e} after {ROUNDS} rounds)"
    elif settled:
        found = f"stops at a floor of {last:.1e}"
    else:
        found = f"not there after {ROUNDS} rounds, and still moving: {last:.1e}"
    if claim is None:
        return "not claimed", found
    return ("holds", found) if reached == claim else ("fails", f"{found}; {name} = {claim} is claimed")


# --- counting by hand ---


@dataclass
class _CountingLoss:
    """A loss that counts its calls."""

    f: FullGradient
    calls: dict[str, int] = field(default_factory=lambda: {"gradients": 0, "values": 0, "hessians": 0})

    def value(self, x: Any) -> Any:
        self.calls["values"] += 1
        return self.f.value(x)

    def grad(self, x: Any, key: Any) -> Any:
        return self.full_grad(x)

    def full_grad(self, x: Any) -> Any:
        self.calls["gradients"] += 1
        return self.f.full_grad(x)

    @property
    def steps_per_epoch(self) -> Any:
        return self.f.steps_per_epoch

    def hessian(self, x: Any, W: Any = None) -> Any:
        self.calls["hessians"] += 1
        return self.f.hessian(x, W)


@dataclass
class _CountingRegulariser:
    """A regulariser that counts its proxes."""

    g: Any
    proxes: int = 0

    def __call__(self, x: Any) -> Any:
        return self.g(x)

    def prox(self, x: Any, t: Any) -> Any:
        self.proxes += 1
        return self.g.prox(x, t)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.g, name)


def counted_by_hand(problem: Problem, algorithm: alg.Algorithm, rounds: int) -> dict[str, float]:
    """What a client sends, receives and computes in some rounds of all clients, on average: a loop without a compiler."""
    bound = bind_algorithm(algorithm, problem, problem.n, 0)
    total = {
        "bytes_up": 0.0,
        "bytes_down": 0.0,
        "gradients": 0.0,
        "client_proxes": 0.0,
        "values": 0.0,
        "hessians": 0.0,
        "rows": 0.0,
    }
    with precision(problem.dtype), jax.disable_jit():
        labels = np.split(problem.loss.encode(np.concatenate(problem.sites.labels)), np.cumsum(problem.sizes)[:-1])
        rows = zip(problem.sites.features, labels, problem.sites.row_shares, strict=True)
        losses = [_CountingLoss(FullGradient(problem.loss, *map(jnp.asarray, part))) for part in rows]
        g = _CountingRegulariser(problem.regulariser)
        server, client = bound.init(jnp.asarray(problem.start))
        clients = [client] * problem.n

        def reply_to(r: int, message: Message) -> Any:
            exchange, d = message
            if exchange is None:
                for i, state in enumerate(clients):
                    clients[i] = bound.finish_round(g, d, state)
                return None
            updates = []
            for i, f in enumerate(losses):
                key = client_key(run_key(0), r, problem.numbers[i])
                u, clients[i], _ = exchange.client_update(f, g, d, clients[i], key)
                updates.append(dense(u, problem.d))
                total["bytes_up"] += array_bytes([u])
                total["bytes_down"] += array_bytes([d])
            mean = jax.tree.map(
                lambda *parts: sum(p * v for p, v in zip(problem.weights, parts, strict=True)), *updates
            )
            return mean, jnp.ones((), problem.dtype)

        for r in range(rounds):
            # the broadcast of the next round closes this one: the server's half with the bare regulariser is not counted
            server = drive_round(run_round(bound, problem.regulariser, server), partial(reply_to, r))
    for f, size in zip(losses, problem.sizes, strict=True):
        for name, count in f.calls.items():
            total[name] += count
        total["rows"] += f.calls["gradients"] * int(size)
    total["client_proxes"] = float(g.proxes)
    return {name: value / problem.n for name, value in total.items()}
