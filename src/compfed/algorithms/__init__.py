"""Local-update methods: one paper, one file. Each class says which paper, which steps, and what is proved.

A method of your own is a `record` that inherits from `Algorithm`; its fields are made with `positive`, `count`, `choice`, ...
"""

# ruff: noqa: F405  # names of the registry
from compfed._utils.records import (
    choice,
    count,
    fixed,
    index,
    labels,
    nonnegative,
    number,
    optional,
    part,
    positive,
    record,
    seed,
)
from compfed.algorithms import fast_fedda, fista, scaffnew
from compfed.algorithms.base import Algorithm, Citation, Sparse
from compfed.algorithms.default_steps import default_steps
from compfed.algorithms.registry import *  # noqa: F403  # the methods, and find, known, register

__all__ = [
    "ALGORITHMS", "FISTA", "AcceleratedDecoupledProx", "Algorithm", "Citation", "CompressedDecoupledProx",
    "CoupledControlVariates", "DecoupledProx", "FastFedDA", "FedADMM", "FedAvg", "FedDA", "FedDR", "FedMid",
    "FedPD", "FedPLT", "FedProx", "FedSplit", "Mime", "MimeLite", "NaiveCoupled", "NormalMap", "ProximalGradient",
    "Scaffnew", "Scaffold", "ServerProx", "Sparse", "VarianceReducedDecoupledProx", "choice", "count",
    "default_steps", "fast_fedda", "find", "fista", "fixed", "index", "known", "labels", "nonnegative", "number",
    "optional", "part", "positive", "record", "register", "scaffnew", "seed",
]  # fmt: skip
