"""Does a trace fit the run that is to go on from it? What does not is refused; another order of the sites is put right.

A run goes on with the same problem: the same sites, weights, loss and regulariser. The number of rounds, participants,
batch size, seed and steps may change, except those fields of the algorithm that what it remembers depends on.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np

from compfed.algorithms.base import Algorithm
from compfed.engines.columns import measured
from compfed.errors import InputError, RunWarning
from compfed.problem.lazy_problem import LazyProblem
from compfed.problem.problem import Problem
from compfed.tools.precision import precision
from compfed.tools.records import describe
from compfed.trace import State, Trace

ANEW = "or start anew from its model: x0=trace.x."


def fitting(trace: Any, problem: Problem | LazyProblem, algorithm: Algorithm, x0: Any) -> Trace:
    """The trace with its clients in the order of the problem's sites, or one clear error."""
    if not isinstance(trace, Trace):
        raise InputError(f"resume must be a Trace (Trace.load reads a saved one); got {type(trace).__name__}.")
    if trace.state is None:
        raise InputError("resume: this trace has no state to go on from.")
    if x0 is not None:
        raise InputError("give x0 (a new start) or resume (going on), not both.")
    told = trace.provenance
    before, now = _said(told, "algorithm", dict).get("name"), type(algorithm).__name__
    if before != now:
        raise InputError(f"resume: the trace is of {before}, the algorithm is {now}; they must be the same.")
    if (was := _said(told, "dtype", str)) != problem.dtype.name:
        raise InputError(
            f"resume: the trace is {was}, the problem is {problem.dtype.name}; use problem.astype({was!r})."
        )
    of = _said(told, "problem", dict)
    if trace.x.shape != (problem.d,) or of.get("clients") != problem.n:
        raise InputError(
            f"resume: the trace belongs to a problem of another shape than this one ({problem.n} x {problem.d})."
        )
    order = _order(trace.state, problem)
    _check_same("loss", of.get("loss"), describe(problem.loss))
    _check_same("regulariser", of.get("regulariser"), describe(problem.regulariser))
    _check_fields(told["algorithm"], algorithm)
    _check_memory(trace, problem, algorithm)
    _check_objective(trace, problem)
    if isinstance(order, range):
        return trace
    return replace(trace, state=replace(trace.state, clients=[leaf[order] for leaf in trace.state.clients]))


def _said(told: dict[str, Any], name: str, kind: type) -> Any:
    """What the provenance says of the run; a trace made by hand, or damaged, may not."""
    if not isinstance(told.get(name), kind):
        raise InputError(f"resume: the trace does not say of what run it is: its provenance has no {name!r}.")
    return told[name]


def _order(state: State, problem: Problem | LazyProblem) -> list[int] | range:
    """Where each site of the problem is in the trace; refuses other sites and other weights."""
    was = state.members
    if isinstance(problem, LazyProblem) != (state.of is not None):
        here, there = ("simulate", "simulate_cohorts") if state.of is None else ("simulate_cohorts", "simulate")
        raise InputError(
            f"resume: the trace is of {here}; {there} keeps memories in another way. Go on with {here}, {ANEW}"
        )
    if was is None:
        warnings.warn(
            "resume: this trace does not say of which sites and weights it is (it was written by an earlier version, or made "
            "by hand), so they cannot be checked. If they, or the order of the sites, are others than before, the result "
            f"is wrong for ever: go on only if you know, {ANEW}",
            RunWarning,
            stacklevel=5,
        )
        return range(problem.n)
    now, sites = problem.members(), "Go on with the same sites,"
    order: list[int] | range = range(problem.n)
    if was.names != now.names:
        place = {name: i for i, name in enumerate(was.names)}
        strangers = [name for name in now.names if name not in place]
        if strangers:
            raise InputError(
                f"resume: the trace knows no site {strangers[0]!r}; it has {_listed(was.names)}. {sites} {ANEW}"
            )
        order = [place[name] for name in now.names]
        was = was[order]
    if (was.rows != now.rows).any():
        i = int((was.rows != now.rows).argmax())
        raise InputError(
            f"resume: site {now.names[i]!r} had {was.rows[i]} rows in the trace and has {now.rows[i]} now. {sites} {ANEW}"
        )
    if was.marks is not None and now.marks is not None:
        apart = np.abs(was.marks - now.marks)  # NaN where nobody looked at the rows
        other = apart > 1e-9 * np.nanmax(np.abs([was.marks, now.marks]), initial=0.0)
        if other.any():
            raise InputError(
                f"resume: site {now.names[int(other.argmax())]!r} has other rows than in the trace. Give each site the name "
                f"it had there (names=...), if only their order changed; {sites[0].lower()}{sites[1:]} {ANEW}"
            )
    if not np.allclose(was.weights, now.weights, rtol=1e-9, atol=1e-15):
        i = int(np.abs(was.weights - now.weights).argmax())
        raise InputError(
            f"resume: the weight of site {now.names[i]!r} was {was.weights[i]:.6g} in the trace and is {now.weights[i]:.6g} "
            f"now. Go on with the same weights, {ANEW}"
        )
    return order


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _plain(value: Any) -> Any:
    """As it comes back from a file."""
    return json.loads(json.dumps(value, default=str))


def _check_same(what: str, was: Any, now: Any) -> None:
    if _plain(was) != _plain(now):
        raise InputError(
            f"resume: the {what} was {_short(was)} in the trace and is {_short(now)} now. Go on with the same problem, {ANEW}"
        )


def _check_objective(trace: Trace, problem: Problem | LazyProblem) -> None:
    """What has no name to tell it by, a user's function or which label goes with which row, shows in the objective."""
    was = trace.columns.get("objective")
    if was is None or isinstance(problem, LazyProblem):  # for which it would cost a pass over all clients
        return
    now = measured(problem, trace.x[None])["objective"][0]
    rounding = (1e-8 if problem.dtype == np.float64 else 1e-4) * np.abs(was[[0, -1]]).max()
    if not np.abs(now - was[-1]) <= rounding and np.isfinite([now, was[-1], rounding]).all():
        raise InputError(
            f"resume: the objective at the trace's model was {was[-1]:.9g} in the trace and is {now:.9g} now: the loss, the "
            f"regulariser or the rows are others. Go on with the same problem, {ANEW}"
        )


def _short(described: Any) -> str:
    """{"name": "L1", "lam": 0.1} as L1(lam=0.1)."""
    if not isinstance(described, dict):
        return str(described)[:60]
    inside = ", ".join(f"{k}={_short(v)}" for k, v in described.items() if k != "name")
    return f"{described.get('name')}({inside[:120]})"


def _check_fields(was: dict[str, Any], algorithm: Algorithm) -> None:
    """The hyper-parameters that the memory depends on are those it was made with."""
    listed, name = algorithm.state_depends_on, type(algorithm).__name__
    hint = "" if listed is not None else (
        f" If what {name} remembers does not depend on it, say so in the class: state_depends_on = ()."
    )  # fmt: skip
    now = describe(algorithm)
    for field in [f.name for f in fields(algorithm)] if listed is None else listed:  # pyright: ignore[reportArgumentType]  # a record
        if field in was and _plain(was[field]) != _plain(now[field]):
            raise InputError(
                f"resume: what {name} remembers depends on {field}, which was {_short(was[field])} in the trace and is "
                f"{_short(now[field])} now. Go on with the same {field}, {ANEW}{hint}"
            )


def _check_memory(trace: Trace, problem: Problem | LazyProblem, algorithm: Algorithm) -> None:
    """Every leaf is there, of the right shape and finite: else the file was damaged, or made by hand."""
    state = trace.state
    assert state is not None
    if "round" not in trace or "seconds" not in trace or not len(trace) or int(trace["round"][-1]) != state.rounds:
        last = int(trace["round"][-1]) if "round" in trace and len(trace) else "none"
        raise InputError(
            f"resume: the trace is damaged: its state is that after round {state.rounds}, its last row that of round {last}."
        )
    with precision(problem.dtype):
        server, client = jax.eval_shape(algorithm.init, jax.ShapeDtypeStruct((problem.d,), problem.dtype))
    for part, leaves, like, lead in (
        ("server", state.server, server, ()),
        ("clients", state.clients, client, (problem.n if state.of is None else len(state.of),)),
    ):
        named = jax.tree_util.tree_leaves_with_path(like)
        if len(leaves) != len(named):
            raise InputError(
                f"resume: the memory of the {part} is incomplete: {len(leaves)} arrays of {len(named)}. A run over a network "
                f"leaves it at the sites; else the trace is damaged. Take another copy, {ANEW}"
            )
        for (path, expected), leaf in zip(named, leaves, strict=True):
            _check_leaf(f"{part}{jax.tree_util.keystr(path)}", leaf, (*lead, *expected.shape), expected.dtype)


def _check_leaf(name: str, leaf: np.ndarray, shape: tuple[int, ...], dtype: Any) -> None:
    if leaf.shape != shape or leaf.dtype != dtype:
        raise InputError(
            f"resume: in the memory of the trace, {name} is {leaf.dtype} of shape {leaf.shape}; this run needs {dtype} of "
            f"shape {shape}. Go on with the algorithm and the problem of the trace, {ANEW}"
        )
    if not np.isfinite(leaf).all():
        raise InputError(f"resume: in the memory of the trace, {name} is not finite. Take another copy, {ANEW}")
