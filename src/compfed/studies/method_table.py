"""The table of algorithms: what each one is, what it costs, and what verifies it. Computed, not typed.

Costs are counted on a round (`compfed.monitor`), the paper and what is claimed stand in the class of the method,
and `verified.json` is generated from the marks on the tests (`python tests/marks.py`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from compfed.algorithms import Algorithm, default_steps, known
from compfed.algorithms.costs import Cost, cost_of_a_round
from compfed.data import from_arrays
from compfed.losses import Squared
from compfed.problem.problem import Problem
from compfed.regularisers import Zero

TAU = 5
HEADER = (
    "method", "paper", "file", "composite", "up / down", "gradients", "prox client / server", "some clients",
    "exact", "verified by",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One row of the table; the cost is per participating client and round, with tau = 5 local steps."""

    name: str
    paper: str
    file: str
    composite: bool | None
    cost: Cost | None  # None: it has no rule for its steps, so it cannot be built to be counted
    sampling: str
    exact: bool | None
    limit: str  # `exact` in words
    verified_by: str

    def cells(self) -> list[str]:
        said = {True: "yes", False: "no", None: "unknown"}
        up_down = gradients = proxes = "unknown"
        if self.cost is not None:
            up_down = f"{self.cost.vectors_up:.3g} / {self.cost.vectors_down:.3g}"
            gradients = f"{self.cost.gradients:.3g}"
            proxes = f"{self.cost.client_proxes:.3g} / {self.cost.server_proxes:.3g}"
        return [
            self.name, self.paper, self.file, said[self.composite], up_down, gradients, proxes, self.sampling,
            self.limit, self.verified_by,
        ]  # fmt: skip


def entries(methods: Iterable[type[Algorithm]] | None = None) -> list[Entry]:
    """The given methods, or all that are known: those of the table in its order, then the registered ones."""
    verified = json.loads(files("compfed").joinpath("verified.json").read_text(encoding="utf-8"))
    problem = _unit_problem()
    return [_entry(cls, problem, verified) for cls in (known().values() if methods is None else methods)]


def _entry(cls: type[Algorithm], problem: Problem, verified: dict[str, list[int]]) -> Entry:
    cost = None
    if cls.has_default_steps():
        algorithm = default_steps(cls, problem, TAU).bind(problem, problem.n)
        cost = cost_of_a_round(algorithm, problem.d, problem.dtype, everyone=True)
    return Entry(
        name=cls.__name__,
        paper="unknown" if cls.citation is None else cls.citation.short,
        file=Path(inspect.getfile(cls)).name,
        composite=cls.composite,
        cost=cost,
        sampling=_sampling(cls),
        exact=cls.exact,
        limit=_limit(cls),
        verified_by=_verified(verified.get(cls.__name__, []), cls),
    )


def _sampling(cls: type[Algorithm]) -> str:
    """Who says that a sample of clients will do, and how it stands for all."""
    said = f"proved ({cls.proof or 'nowhere named'})" if cls.sampling == "proved" else cls.sampling
    return said if cls.sampling == "no" else ", ".join([said, *cls.schemes[:1]])


def _limit(cls: type[Algorithm]) -> str:
    if cls.exact is None:
        return "unknown"
    if cls.exact and cls.sampling != "no" and cls.exact_sampled is False:
        return "all clients only"
    return "as 1/t" if cls.exact and cls.slow else "yes" if cls.exact else "no"


def references(methods: Iterable[type[Algorithm]] | None = None) -> list[list[str]]:
    """Name and whole citation of the given methods, or of all that are known."""
    return [
        [cls.__name__, str(cls.citation or "unknown")] for cls in (known().values() if methods is None else methods)
    ]


def _unit_problem() -> Problem:
    """Costs do not depend on the problem; this is the smallest one with 20 coefficients."""
    return Problem(Squared(ridge=1.0), Zero(), from_arrays([np.eye(20)], [np.ones(20)]))


def _verified(rows: list[int], cls: type[Algorithm]) -> str:
    """What our tests say of it; of a method from outside they say nothing."""
    if not cls.__module__.startswith("compfed."):
        return "not by us; compfed.testing.check(...)"
    identities = "identities " + ", ".join(map(str, rows)) + "; " if rows else ""
    return identities + ("rate" if cls.slow else "minimiser" if cls.exact else "floor")
