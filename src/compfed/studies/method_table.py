"""The table of algorithms: what each one is, what it costs, and what verifies it. Computed, not typed.

Costs are counted on a round (`compfed.engines.measures`), the paper and the word "reconstruction" are read off the docstring,
and `verified.json` is generated from the marks on the tests (`python tests/marks.py`).
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from compfed.algorithms import ALGORITHMS
from compfed.data import from_arrays
from compfed.engines.measures import cost_of_a_round
from compfed.problem.losses import Squared
from compfed.problem.problem import Problem
from compfed.problem.regularisers import Zero
from compfed.solvers.steps import suggest

TAU = 5
HEADER = (
    "method", "paper", "file", "composite", "up / down", "gradients", "prox client / server", "some clients",
    "exact", "verified by",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One row of the table; numbers are per participating client and round, with tau = 5 local steps."""

    name: str
    paper: str
    file: str
    composite: bool
    vectors_up: float
    vectors_down: float
    gradients: float
    client_proxes: float
    server_proxes: float
    sampling: str
    exact: bool
    verified_by: str

    def cells(self) -> list[str]:
        yes_no = {True: "yes", False: "no"}
        return [
            self.name, self.paper, self.file, yes_no[self.composite], f"{self.vectors_up:.3g} / {self.vectors_down:.3g}",
            f"{self.gradients:.3g}", f"{self.client_proxes:.3g} / {self.server_proxes:.3g}", self.sampling,
            yes_no[self.exact], self.verified_by,
        ]  # fmt: skip


def entries() -> list[Entry]:
    """All algorithms, in the order of `ALGORITHMS`."""
    verified = json.loads(files("compfed").joinpath("verified.json").read_text())
    problem = _unit_problem()
    found = []
    for name, cls in ALGORITHMS.items():
        algorithm = suggest(cls, problem, TAU).prepared(problem, problem.n)
        cost = cost_of_a_round(algorithm, problem.d, problem.dtype, everyone=True)
        document = inspect.getmodule(cls).__doc__ or ""  # pyright: ignore[reportOptionalMemberAccess]  # a class has one
        found.append(
            Entry(
                name=name,
                paper=_paper(document),
                file=Path(inspect.getfile(cls)).name,
                composite=cls.composite,
                vectors_up=cost.vectors_up,
                vectors_down=cost.vectors_down,
                gradients=cost.gradients,
                client_proxes=cost.client_proxes,
                server_proxes=cost.server_proxes,
                sampling=cls.sampling,
                exact=cls.exact,
                verified_by=_verified(verified.get(name, []), cls.exact),
            )
        )
    return found


def _unit_problem() -> Problem:
    """Costs do not depend on the problem; this is the smallest one with 20 coefficients."""
    return Problem(Squared(ridge=1.0), Zero(), from_arrays([np.eye(20)], [np.ones(20)]))


def _paper(document: str) -> str:
    """First author, venue and year from the "Reference:" paragraph; a reconstruction says so."""
    text = " ".join(document.split())
    match = re.search(r"Reference: (.*?)(?: Deviations:|$)", text)
    reference = match.group(1) if match else "ours"
    author = re.match(r"[\w' -]+", reference)
    year = re.search(r"\b(19|20)\d\d\b(?!\.)", reference)
    short = f"{author.group(0).strip() if author else reference} {year.group(0) if year else ''}".strip()
    return short + (" (reconstruction)" if "reconstruction" in text.lower() else "")


def _verified(rows: list[int], exact: bool) -> str:
    identities = "identities " + ", ".join(map(str, rows)) + "; " if rows else ""
    return identities + ("minimiser" if exact else "floor")
