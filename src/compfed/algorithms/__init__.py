"""One paper, one file. `find(name)` looks an algorithm up by its class name."""

from __future__ import annotations

import difflib

from compfed.algorithms import fast_fedda, fista
from compfed.algorithms.base import Algorithm
from compfed.algorithms.decoupled_prox import DecoupledProx
from compfed.algorithms.fast_fedda import FastFedDA
from compfed.algorithms.fedavg import FedAvg
from compfed.algorithms.fedda import FedDA
from compfed.algorithms.fedmid import FedMid
from compfed.algorithms.fista import FISTA
from compfed.algorithms.proximal_gradient import ProximalGradient
from compfed.errors import InputError

ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.__name__: cls for cls in (DecoupledProx, FedMid, FedDA, FastFedDA, FedAvg, ProximalGradient, FISTA)
}

__all__ = [
    "ALGORITHMS", "Algorithm", "DecoupledProx", "FISTA", "FastFedDA", "FedAvg", "FedDA", "FedMid", "ProximalGradient",
    "fast_fedda", "find", "fista",
]  # fmt: skip


def find(name: str) -> type[Algorithm]:
    """The algorithm class called `name`, in any spelling of case, '-' and '_'."""
    plain = {known.lower(): known for known in ALGORITHMS}
    asked = name.lower().replace("-", "").replace("_", "")
    if asked in plain:
        return ALGORITHMS[plain[asked]]
    near = difflib.get_close_matches(asked, plain, n=1, cutoff=0.0)[0]
    raise InputError(f"there is no algorithm {name!r}; the nearest is {plain[near]!r}. Known: {', '.join(ALGORITHMS)}.")
