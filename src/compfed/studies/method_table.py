"""The tables of methods: local-update algorithms with their costs, and the second-order solvers. Computed, not typed.

Costs are counted on a round (`compfed.monitor`). The class of a method holds its citation and its claims, and
`verified.json` is generated from the marks on the tests (`python tests/marks.py`).
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
from compfed.solvers.base import Method
from compfed.solvers.second_order import SOLVERS, ProximalNewton

TAU = 5
HEADER = (
    "method", "paper", "file", "composite", "up / down", "gradients", "prox client / server", "some clients",
    "exact", "verified by",
)  # fmt: skip
SOLVER_HEADER = ("solver", "file", "a site sends per message", "citation")


@dataclass(frozen=True)
class Entry:
    """A row of the table; costs are per participating client and round, with tau = 5 local steps."""

    method: type[Algorithm]
    cost: Cost | None  # None: without a rule for its steps, the method cannot be built and counted
    identities: tuple[int, ...] = ()  # that our tests check

    @property
    def name(self) -> str:
        return self.method.__name__

    @property
    def is_built_in(self) -> bool:
        """Whether our tests run it."""
        return self.method.__module__.startswith("compfed.")

    @property
    def sampling(self) -> str:
        """Whether a round may use some of the clients, on what evidence, and the scheme of the sample."""
        cls = self.method
        if cls.sampling == "no":
            return "no"
        evidence = self._observed
        if cls.sampling == "proved":
            evidence = f"proved ({cls.proof or 'nowhere named'}), else {evidence}"
        return ", ".join([evidence, *cls.schemes[:1]])

    @property
    def limit(self) -> str:
        """Whether the limit is the minimiser, on what evidence, and in which setting."""
        cls = self.method
        if cls.exact is None:
            return "unknown"
        claim = "as 1/t" if cls.exact and cls.slow else _yes_no(cls.exact)
        if cls.exact and cls.sampling != "no" and cls.exact_sampled is False:
            claim = "all clients only"
        evidence = f"proved ({cls.exact_proof})" if cls.exact_proof else self._observed
        return f"{claim}, {evidence}" + (f"; {cls.setting}" if cls.setting else "")

    @property
    def _observed(self) -> str:
        """Observed by our tests; of a method of ours the claim is ours too, and of one from outside that of its author."""
        if not self.is_built_in:
            return "claimed"
        return "ours, observed" if self.method.citation is not None and self.method.citation.ours else "observed"

    @property
    def verified_by(self) -> str:
        """What our tests check; a method from outside the package has none."""
        if not self.is_built_in:
            return "not by us; compfed.testing.check(...)"
        listed = f"identities {', '.join(map(str, self.identities))}; " if self.identities else ""
        return listed + ("rate" if self.method.slow else "minimiser" if self.method.exact else "floor")

    def cells(self) -> list[str]:
        """The row as text, in the order of `HEADER`."""
        method, costs = self.method, ["unknown"] * 3
        if (c := self.cost) is not None:
            pairs = ((c.vectors_up, c.vectors_down), (c.gradients,), (c.client_proxes, c.server_proxes))
            costs = [" / ".join(f"{number:.3g}" for number in pair) for pair in pairs]
        paper = "unknown" if method.citation is None else method.citation.short
        facts = [self.name, paper, _file(method), _yes_no(method.composite)]
        return [*facts, *costs, self.sampling, self.limit, self.verified_by]


def entries(methods: Iterable[type[Algorithm]] | None = None) -> list[Entry]:
    """The given methods, or all known ones: those of the table in its order, then the registered ones."""
    verified = json.loads(files("compfed").joinpath("verified.json").read_text(encoding="utf-8"))
    # Costs do not depend on the problem; this is the smallest one with 20 coefficients.
    problem = Problem(Squared(ridge=1.0), Zero(), from_arrays([np.eye(20)], [np.ones(20)]))

    def entry(cls: type[Algorithm]) -> Entry:
        cost = None
        if cls.has_default_steps():
            algorithm = default_steps(cls, problem, TAU).bind(problem, problem.n)
            cost = cost_of_a_round(algorithm, problem.d, problem.dtype, everyone=True)
        return Entry(cls, cost, tuple(verified.get(cls.__name__, ())))

    return [entry(cls) for cls in (known().values() if methods is None else methods)]


def table_rows(listed: Iterable[Entry], link: str = "{name}") -> list[list[str]]:
    """The cells of every row; two names for one method share one. `link` shows a name."""
    rows: dict[str, list[str]] = {}
    for entry in listed:
        cells, same = entry.cells(), entry.method.same_as
        cells[0] = link.format(name=entry.name)
        if same is None or same[0] not in rows:
            rows[entry.name] = cells
            continue
        shared = rows[same[0]]
        shared[0] += f"; {cells[0]} is the same with {same[1]}"
        for k in (HEADER.index("paper"), HEADER.index("file")):
            shared[k] += f"; {cells[k]}"
    return list(rows.values())


def solver_rows() -> list[list[str]]:
    """The table of the second-order solvers, in the order of `SOLVER_HEADER`."""
    sends = {True: "value, gradient, Hessian on the working set", False: "value, gradient"}
    return [[name, _file(cls), sends[cls is ProximalNewton], str(cls.citation)] for name, cls in SOLVERS.items()]


def references(methods: Iterable[Method] | None = None) -> list[list[str]]:
    """Name and full citation of the given methods, or of all known ones, solvers included."""
    chosen = [*known().values(), *SOLVERS.values()] if methods is None else methods
    return [[cls.__name__, str(cls.citation or "unknown")] for cls in chosen]


def _file(cls: type) -> str:
    return Path(inspect.getfile(cls)).name


def _yes_no(value: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[value]
