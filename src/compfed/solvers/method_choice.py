"""Which method a search runs: the one whose rounds and bytes are expected to cost the least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import compfed.algorithms as alg
from compfed.algorithms.base import Bounds
from compfed.errors import InputError
from compfed.federation.spec import FederatedProblem
from compfed.problem_spec import ProblemSpec, check_lipschitz
from compfed.regularisers import Regulariser, largest_step
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.solvers.second_order import SOLVERS, ProximalBFGS, ProximalNewton, SecondOrder

BANDWIDTH = 10e6  # bytes a second between a site and the server
WHOLE = 256  # of a model with no more coefficients, the curvature of all is asked for
WIDTH = (64, 128)  # of a larger one, that of an eighth of its coordinates at least, within these bounds
WIDEST = 3000  # coordinates whose curvature is asked for at most: 36 MB a message

Method = type[alg.Algorithm] | type[SecondOrder]

# Rounds that a search typically takes, from the runs behind docs/few-rounds.md
ROUNDS = {"ProximalNewton": 12, "ProximalBFGS": 80, "first-order": 1000}


@dataclass(frozen=True)
class Choice:
    """A method, and why it was chosen."""

    method: Method
    why: str = ""


class Candidate(NamedTuple):
    """What a search with a method is expected to cost."""

    method: Method
    rounds: int
    bytes: float  # of one round, both ways

    def seconds(self, a_round: float) -> float:
        return self.rounds * (a_round + self.bytes / BANDWIDTH)

    def said(self, a_round: float) -> str:
        size = f"{self.bytes / 1e6:.3g} MB" if self.bytes > 1e6 else f"{self.bytes / 1e3:.3g} kB"
        return f"{self.method.__name__}: about {self.rounds} rounds of {size}, {self.seconds(a_round):.3g} s"


def working_width(g: Regulariser, d: int) -> int:
    """Coordinates whose curvature a second-order search asks for: all, where g couples them."""
    return d if d <= WHOLE or coordinate_form(g, d) is None else min(max(d // 8, WIDTH[0]), WIDTH[1])


def candidates(problem: ProblemSpec, first_order: type[alg.Algorithm]) -> list[Candidate]:
    """The methods that can solve a problem, and what they are expected to cost.

    Second-order steps are for convex problems: a model of one that is not need have no minimum. And they are for double
    precision, in which the server works.
    """
    loss, g, d = problem.loss, problem.regulariser, problem.d
    vectors = 16.0 * d
    found = [Candidate(first_order, ROUNDS["first-order"], vectors)]
    convex = getattr(loss, "convex", False) and largest_step(g) == np.inf
    if not convex or problem.dtype != np.float64:
        return found
    found.append(Candidate(ProximalBFGS, ROUNDS["ProximalBFGS"], vectors))
    w = working_width(g, d)
    if w <= WIDEST:
        message = vectors + 4 * w + 8.0 * loss.packed_size(w)
        found.append(Candidate(ProximalNewton, ROUNDS["ProximalNewton"], message))
    return found


def automatic(
    problem: ProblemSpec,
    seconds_per_round: float,
    first_order: type[alg.Algorithm] = alg.AcceleratedDecoupledProx,
    refused: str = "",
) -> Choice:
    """The method whose rounds and bytes are expected to cost the least; without curvature, where a site refuses it."""
    listed = sorted(candidates(problem, first_order), key=lambda c: c.seconds(seconds_per_round))
    if refused:
        listed = [c for c in listed if c.method is not ProximalNewton]
    price = f"at {seconds_per_round:g} s a round and {BANDWIDTH / 1e6:g} MB/s"
    said = "; ".join(c.said(seconds_per_round) for c in listed)
    return Choice(listed[0].method, f"expected {price}: {said}." + (f" {refused}" if refused else ""))


def named(asked: str | Method) -> Method:
    """The method of a name, or the class itself: a second-order solver, or a local-update algorithm."""
    plain = asked.lower().replace("-", "").replace("_", "") if isinstance(asked, str) else ""
    for name, solver in SOLVERS.items():
        if asked is solver or plain == name.lower():
            return solver
    cls = alg.find(asked) if isinstance(asked, str) else asked
    if not (isinstance(cls, type) and issubclass(cls, alg.Algorithm)):
        raise InputError(f"algorithm must be a name such as 'DecoupledProx' or a class of algorithms; got {cls!r}.")
    return cls


def of_first_order(bounds: Bounds, n: int) -> type[alg.Algorithm]:
    """Of the first-order methods, the one that takes the longer step per round over n sites.

    A round of AcceleratedDecoupledProx is a step of length min(tau, 4) / L_max, one of FISTA of length 1 / L: local
    steps are worth it unless one site is far steeper than f. With a single site there is no communication to save, and
    FISTA needs fewer gradients.
    """
    longer = bounds.corrected(1.0) * bounds.tau > 1.0 / bounds.L
    return alg.AcceleratedDecoupledProx if n > 1 and longer else alg.FISTA


def certificate_step(spec: FederatedProblem, L: float) -> float:
    """1 / sum_i p_i L_i: the step of the gradient mapping that certifies a model; refuses what allows none."""
    return 1.0 / check_lipschitz(L, spec.regulariser)
