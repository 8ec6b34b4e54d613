"""`check`: run a method on small problems and compare it with the claims of its class.

`simulate` and `run_plain` must agree, the limit must be the minimiser where the class claims that, sampling must work or be
refused, and numbers must keep their precision. Properties without a claim are measured and reported too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import compfed.algorithms as alg
from compfed._utils.text import text_table
from compfed.algorithms import default_steps
from compfed.algorithms.contract import check_contract
from compfed.algorithms.costs import cost_of_a_round
from compfed.data import from_arrays, synthetic
from compfed.errors import Divergence, InputError
from compfed.losses import Logistic, Squared
from compfed.problem.problem import Problem
from compfed.regularisers import L1, Zero
from compfed.simulation import run_plain, simulate
from compfed.solve import solve_pooled
from compfed.trace import Trace

Verdict = Literal["holds", "fails", "not claimed"]
AGREE = 1e-10  # largest relative difference between simulate and run_plain
REACHED = 1e-9  # ||x - x*|| / ||x*|| at which the minimiser is reached
ROUNDS = 3000  # after which it should be reached
TAU = 3


@dataclass(frozen=True)
class CheckLine:
    """One property that was checked."""

    what: str
    verdict: Verdict
    found: str


@dataclass(frozen=True)
class Checked:
    """The report of `check`; printing it gives a table."""

    method: str
    lines: tuple[CheckLine, ...]

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(line.verdict != "fails" for line in self.lines)

    def __str__(self) -> str:
        return text_table([self.method, "", ""], [[line.what, line.verdict, line.found] for line in self.lines])


def check(method: type[alg.Algorithm] | alg.Algorithm, *, quiet: bool = False) -> Checked:
    """Compare a method with the claims of its class.

    Parameters
    ----------
    method : class or instance of Algorithm
        A class must have a rule for its steps (`from_bounds`).
    quiet : bool, default=False
        Do not print the report.

    Returns
    -------
    Checked
        `ok` says whether every claim holds, `lines` what was found for each. A claim that fails raises nothing.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.testing.check(cf.algorithms.FISTA, quiet=True).ok
    True
    """
    case = _Case(method)
    lines = [case.line("contract", case.contract)]
    if lines[0].verdict == "holds":
        lines += [
            case.line("engines agree, full gradients", case.engines_agree),
            case.line("engines agree, mini-batches", lambda: case.engines_agree(batch_size=5)),
            case.line("some of the clients", case.sampling),
            case.line("a regulariser", case.regulariser),
            *(case.line(f"limit, {which}", lambda which=which: case.limit(which)) for which in case.problems),
            *(case.line(dtype, lambda dtype=dtype: case.keeps(dtype)) for dtype in ("float64", "float32")),
            case.line("a round costs", case.costs),
            case.line("known by name", case.registered),
        ]
    report = Checked(case.name, tuple(lines))
    if not quiet:
        print(report)
    return report


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


class _Case:
    """A method, and the problems it is run on: without a regulariser where it takes none."""

    def __init__(self, method: type[alg.Algorithm] | alg.Algorithm):
        self.cls: type[alg.Algorithm] = method if isinstance(method, type) else type(method)
        if not issubclass(self.cls, alg.Algorithm):
            raise InputError(f"check takes a class of algorithms, or an instance of one; got {method!r}.")
        self.name, self.given = self.cls.__name__, method
        self.problems = {"logistic": _logistic(), "quadratic": _quadratic()}
        if self.cls.composite is False:
            self.problems = {n: p.replace(regulariser=Zero()) for n, p in self.problems.items()}

    def algorithm(self, problem: Problem) -> alg.Algorithm:
        return default_steps(self.cls, problem, TAU) if isinstance(self.given, type) else self.given

    def run(self, engine: Callable[..., Trace], which: str, rounds: int, **options: Any) -> Trace:
        problem = self.problems[which].astype(options.pop("dtype", "float64"))
        return engine(problem, self.algorithm(problem), rounds, record_every=max(1, rounds // 10), **options)

    def line(self, what: str, examine: Callable[[], tuple[Verdict, str]]) -> CheckLine:
        try:
            return CheckLine(what, *examine())
        except (InputError, Divergence) as error:
            return CheckLine(what, "fails", str(error))

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
        last, reached = float(errors[-1]), bool(errors[-1] <= REACHED)
        settled = abs(errors[-1] - errors[-4]) <= 1e-2 * errors[-1]
        halved = 0.35 < errors[-1] / errors[len(errors) // 2] < 0.65  # over the second half of the rounds
        if self.cls.slow and not reached:
            found = f"error {last:.1e} after {ROUNDS} rounds, {'' if halved else 'not '}falling like 1/t"
            return ("holds" if self.cls.exact and halved else "fails"), found
        if reached:
            found = f"exact: reaches {REACHED:.0e} ({last:.0e} after {ROUNDS} rounds)"
        elif settled:
            found = f"stops at a floor of {last:.1e}"
        else:
            found = f"not there after {ROUNDS} rounds, and still moving: {last:.1e}"
        if self.cls.exact is None:
            return "not claimed", found
        claimed = f"; exact = {self.cls.exact} is claimed"
        return ("holds", found) if reached == self.cls.exact else ("fails", found + claimed)

    def keeps(self, dtype: str) -> tuple[Verdict, str]:
        trace = self.run(simulate, "logistic", 50, dtype=dtype)
        state = [] if trace.state is None else [*trace.state.server, *trace.state.clients]
        other = {a.dtype.name for a in [trace.x, *state] if np.issubdtype(a.dtype, np.floating)} - {dtype}
        return ("fails", f"became {', '.join(sorted(other))}") if other else ("holds", f"model and states stay {dtype}")

    def costs(self) -> tuple[Verdict, str]:
        problem = self.problems["logistic"]
        bound = self.algorithm(problem).bind(problem, problem.n)
        c = cost_of_a_round(bound, problem.d, problem.dtype, everyone=True)
        return "not claimed", (
            f"{c.vectors_up:.3g} vectors up ({c.bytes_up:g} bytes), {c.vectors_down:.3g} down ({c.bytes_down:g} bytes), "
            f"{c.gradients:.3g} gradients, {c.client_proxes:.3g} proxes; {c.server_proxes:.3g} at the server"
        )

    def registered(self) -> tuple[Verdict, str]:
        known = alg.known().get(self.name) is self.cls
        return "not claimed", "registered" if known else f"not registered: cf.register({self.name})"
