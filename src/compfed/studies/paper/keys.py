"""What a line of a figure is called: a key, composed once and never parsed. Traces are kept by key."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from compfed.trace import Trace


class Group(StrEnum):
    """What is compared with what: the runs of a group differ in one thing, which their name says."""

    FULL = "full"  # methods with full gradients; Figure 1, left
    STOCHASTIC = "stochastic"  # methods with mini-batches; Figure 1, right
    WITHOUT_FLOOR = "stochastic, without floor"  # what they could be; beyond the paper
    ABLATION = "ablation: local prox"  # rules for the parameter of the local prox
    SPARSE = "sparse"  # methods where the solution is sparse
    SPARSE_ABLATION = "sparse: local prox"
    ETA = "impact of eta"  # Figure 2, left
    TAU = "impact of tau"  # Figure 2, right
    DRAWS = "draws"  # methods on other draws of the data
    THEOREM = "theorem 1"
    COROLLARY = "corollary 1"
    EQUATION_2 = "equation 2"
    FIXED_POINT = "fixed point"


class Key(NamedTuple):
    """One line of a figure.

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
RIDGE_1, RIDGE_1_BATCHES = Key(Group.THEOREM, "ridge 1"), Key(Group.THEOREM, "ridge 1, b = 20")
PAPERS_PROBLEM = Key(Group.THEOREM, "the paper's problem")
VARIANCE_REDUCED = Key(Group.WITHOUT_FLOOR, "VarianceReducedDecoupledProx")
UPLOAD_ZHAT = Key(Group.EQUATION_2, "DecoupledProx, upload zhat")
ONE_WORKER = Key(Group.FIXED_POINT, "n = 1, tau = 2")  # the appendix
FAST_FEDDA = "FastFedDA (quadratic)"  # the schedule the figures show ...
FAST_FEDDAS = (FAST_FEDDA, "FastFedDA (linear)", "FastFedDA (constant)")  # ... and all there are


def keys(traces: Traces, group: Group) -> list[Key]:
    """The keys of a group, in the order of the runs."""
    return [key for key in traces if key.group is group]
