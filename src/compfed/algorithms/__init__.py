"""One paper, one file. `find(name)` looks an algorithm up by its class name."""

from __future__ import annotations

import difflib

from compfed.algorithms import fast_fedda, fista, scaffnew
from compfed.algorithms.accelerated_decoupled_prox import AcceleratedDecoupledProx
from compfed.algorithms.base import Algorithm
from compfed.algorithms.compressed_decoupled_prox import CompressedDecoupledProx
from compfed.algorithms.coupled_control_variates import CoupledControlVariates
from compfed.algorithms.decoupled_prox import DecoupledProx
from compfed.algorithms.fast_fedda import FastFedDA
from compfed.algorithms.fedadmm import FedADMM
from compfed.algorithms.fedavg import FedAvg
from compfed.algorithms.fedda import FedDA
from compfed.algorithms.feddr import FedDR
from compfed.algorithms.fedmid import FedMid
from compfed.algorithms.fedpd import FedPD
from compfed.algorithms.fedplt import FedPLT
from compfed.algorithms.fedprox import FedProx
from compfed.algorithms.fedsplit import FedSplit
from compfed.algorithms.fista import FISTA
from compfed.algorithms.mime import Mime
from compfed.algorithms.mime_lite import MimeLite
from compfed.algorithms.naive_coupled import NaiveCoupled
from compfed.algorithms.normal_map import NormalMap
from compfed.algorithms.proximal_gradient import ProximalGradient
from compfed.algorithms.scaffnew import Scaffnew
from compfed.algorithms.scaffold import Scaffold
from compfed.algorithms.server_prox import ServerProx
from compfed.errors import InputError

# The order of the table: the paper and what it compares with, what it cites, what lies beyond.
ALGORITHMS: dict[str, type[Algorithm]] = {
    cls.__name__: cls
    for cls in (
        DecoupledProx, FedMid, FedDA, FastFedDA, ProximalGradient, FISTA,
        FedAvg, FedProx, Scaffold, Mime, MimeLite, FedSplit, FedPD, FedDR, FedADMM, NaiveCoupled, CoupledControlVariates,
        Scaffnew, FedPLT, NormalMap, ServerProx, CompressedDecoupledProx, AcceleratedDecoupledProx,
    )
}  # fmt: skip

__all__ = [
    "ALGORITHMS",
    "FISTA",
    "AcceleratedDecoupledProx",
    "Algorithm",
    "CompressedDecoupledProx",
    "CoupledControlVariates",
    "DecoupledProx",
    "FastFedDA",
    "FedADMM",
    "FedAvg",
    "FedDA",
    "FedDR",
    "FedMid",
    "FedPD",
    "FedPLT",
    "FedProx",
    "FedSplit",
    "Mime",
    "MimeLite",
    "NaiveCoupled",
    "NormalMap",
    "ProximalGradient",
    "Scaffnew",
    "Scaffold",
    "ServerProx",
    "fast_fedda",
    "find",
    "fista",
    "scaffnew",
]  # fmt: skip


def find(name: str) -> type[Algorithm]:
    """The algorithm class called `name`, in any spelling of case, '-' and '_'."""
    plain = {known.lower(): known for known in ALGORITHMS}
    asked = name.lower().replace("-", "").replace("_", "")
    if asked in plain:
        return ALGORITHMS[plain[asked]]
    near = difflib.get_close_matches(asked, plain, n=1, cutoff=0.0)[0]
    raise InputError(f"there is no algorithm {name!r}; the nearest is {plain[near]!r}. Known: {', '.join(ALGORITHMS)}.")
