"""Columns of recorded models: objective and gradient mapping, and those of a user's own `measure`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from compfed._utils.compilation import jit, precision
from compfed._utils.records import leaves_as_bytes
from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.losses.from_function import FromFunction
from compfed.problem.local_loss import objectives, objectives_and_mappings, values_and_gradients, with_regulariser
from compfed.problem.problem import Problem
from compfed.trace import COLUMNS

# Models are evaluated in blocks of few sizes, so that few programs are compiled.
BLOCK = 64
MANY = 1024  # the block where there are so many models, on a CPU or with at most NUMBERS predictions in memory
NUMBERS = 2**27
FEW = 16  # the block for few models of at least MANY_ROWS rows, where another program is worth its compilation
MANY_ROWS = 2**15


def evaluate_models(problem: Problem, X: np.ndarray, step: float | None = None) -> dict[str, np.ndarray]:
    """Objective, and with a `step` the gradient mapping, of the models in the rows of X."""
    rows = _rows_of_data(problem)

    def evaluate(models: np.ndarray) -> Any:
        parts = problem.loss, problem.regulariser, problem.dataset, models
        return (objectives(*parts),) if step is None else objectives_and_mappings(*parts, step)

    with precision(problem.dtype):
        return _columns(*_in_blocks(evaluate, rows, X))


def _rows_of_data(problem: Problem) -> int | None:
    """The rows that models are evaluated on; None where it is done for one model at a time."""
    return None if isinstance(problem.loss, FromFunction) else len(problem.dataset.A)


def evaluate_together(
    problems: Sequence[Problem], steps: Sequence[float | None], models: Sequence[np.ndarray]
) -> list[dict[str, np.ndarray]]:
    """Objective, and with a step the gradient mapping, of some models of each of several problems over the same rows.

    Problems that differ in their regulariser alone share the pass over the rows, which costs far less than one for each.
    """
    found: list[dict[str, np.ndarray]] = [{}] * len(problems)
    first, rows = problems[0], _rows_of_data(problems[0])
    if any(step is None for step in steps):
        return [evaluate_models(*each) for each in zip(problems, models, steps, strict=True)]
    with precision(first.dtype):
        for members in _equal([problem.loss for problem in problems]):
            X = np.concatenate([models[i] for i in members])
            owner = np.repeat(members, [len(models[i]) for i in members])
            loss = problems[int(members[0])].loss
            f = _in_blocks(functools.partial(_values_and_gradients, loss, first.dataset), rows, X)
            for some in _equal([(problems[i].regulariser, steps[i]) for i in members]):
                like = int(members[some[0]])
                rest = functools.partial(with_regulariser, loss, problems[like].regulariser, step=steps[like])
                theirs = np.isin(owner, members[some])
                columns = _columns(*_in_blocks(rest, 0, *(part[theirs] for part in (X, *f))))
                for i in members[some].tolist():
                    found[i] = {name: values[owner[theirs] == i] for name, values in columns.items()}
    return found


def _equal(records: Sequence[object]) -> list[np.ndarray]:
    """The positions of records with equal numbers, group by group."""
    places: dict[tuple[bytes, ...], list[int]] = {}
    for i, record in enumerate(records):
        places.setdefault(leaves_as_bytes(record), []).append(i)
    return [np.array(of) for of in places.values()]


_values_and_gradients = jit(values_and_gradients)


def _in_blocks(evaluate: Callable[..., Any], rows: int | None, *arrays: np.ndarray) -> list[np.ndarray]:
    """Apply `evaluate`, which reads so many rows of data, to blocks of the rows of some arrays: one by one for None."""
    parts, start, end = [], 0, len(arrays[0])
    while start < end:
        size = BLOCK if rows is not None else 1
        if rows is None:
            pass
        elif end - start >= MANY and (rows * MANY <= NUMBERS or jax.default_backend() == "cpu"):
            size = MANY
        elif end - start <= BLOCK // 2 and rows >= MANY_ROWS:
            size = FEW
        some = [array[start : start + size] for array in arrays]
        count = len(some[0])
        padded = some if count == 1 else [np.resize(a, (size, *a.shape[1:])) for a in some]
        parts.append([np.asarray(result)[:count] for result in evaluate(*padded)])
        start += count
    return [np.concatenate(result) for result in zip(*parts, strict=True)] or [np.zeros(0), np.zeros((0, 1))]


def _columns(objectives: np.ndarray, mappings: np.ndarray | None = None) -> dict[str, np.ndarray]:
    found = {"objective": objectives}
    if mappings is not None:
        with np.errstate(over="ignore"):  # the monitor reports a diverging run, not a warning here
            found["gradient_mapping"] = np.linalg.norm(mappings.astype(float), axis=1)
    return found


def own_columns(found: object) -> Mapping[str, Any]:
    """The result of a user's `measure`, if it is a dict of columns that a trace does not have already."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise InputError(f"measure must return a dict from names of columns to numbers; got {type(found).__name__}.")
    for name, value in found.items():
        if value is None or isinstance(value, (str, Mapping)):
            raise InputError(
                f"measure returns {shorten(repr(value), 40)} as column {name!r}; it must be a number or an array of JAX."
            )
        if name in COLUMNS:
            raise InputError(
                f"measure returns a column {name!r}, which is one of a trace's own ({COLUMNS[name]}); give it another name."
            )
    return found
