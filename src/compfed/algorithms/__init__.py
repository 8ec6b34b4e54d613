"""Local-update methods: one paper, one file. Each class says which paper, which steps, and what is proved.

A method of your own is a `record` that inherits from `Algorithm`; its fields are made with `positive`, `count`, `choice`, ...
"""

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
)  # fmt: skip
from compfed.algorithms import fast_fedda, fista, registry, scaffnew
from compfed.algorithms.base import Algorithm, Citation, Sparse
from compfed.algorithms.default_steps import default_steps
from compfed.algorithms.registry import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]  # the methods, find, known, register

__all__ = [
    "Algorithm", "Citation", "Sparse", "choice", "count", "default_steps", "fast_fedda", "fista", "fixed", "index", "labels", "nonnegative",
    "number", "optional", "part", "positive", "record", "scaffnew", "seed",
]  # fmt: skip
__all__ += registry.__all__
