"""What is measured at a recorded round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compfed.errors import InputError
from compfed.problem.measures import objectives_and_mappings
from compfed.problem.problem import Problem
from compfed.tools.precision import precision
from compfed.tools.text import shortened
from compfed.trace import COLUMNS

BLOCK = 64  # models measured together


def measured(problem: Problem, X: np.ndarray) -> dict[str, np.ndarray]:
    """Objective and gradient mapping: two passes over the data for a whole block of rows."""
    step = 1.0 / problem.lipschitz
    parts = []
    with precision(problem.dtype):
        for start in range(0, len(X), BLOCK):
            rows = X[start : start + BLOCK]
            # two shapes only, one model or a whole block, so that nothing is compiled twice
            padded = rows if len(rows) == 1 else np.resize(rows, (BLOCK, X.shape[1]))
            values, mappings = objectives_and_mappings(problem.loss, problem.regulariser, problem.store, padded, step)
            parts.append((np.asarray(values)[: len(rows)], np.asarray(mappings, float)[: len(rows)]))
    with np.errstate(over="ignore"):  # a diverging run is reported by its engine, not by a warning here
        norms = np.linalg.norm(np.concatenate([m for _, m in parts]), axis=1)
    return {"objective": np.concatenate([values for values, _ in parts]), "gradient_mapping": norms}


def own_columns(found: Any) -> Mapping[str, Any]:
    """What a user's `measure` returned, if it is a dict of columns that a trace does not have already."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(f"measure must return a dict from names of columns to numbers; got {type(found).__name__}.")
    for name, value in found.items():
        if value is None or isinstance(value, (str, Mapping)):
            raise InputError(
                f"measure returns {shortened(repr(value), 40)} as column {name!r}; it must be a number or an array of JAX."
            )
        if name in COLUMNS:
            raise InputError(
                f"measure returns a column {name!r}, which is one of a trace's own ({COLUMNS[name]}); give it another name."
            )
    return found
