"""What was asked of an engine, checked: one clear error before any work is done.

Does a trace fit the run that is to go on from it? What does not is refused; another order of the sites is put right.

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

from compfed._utils.precision import precision
from compfed._utils.records import describe
from compfed._utils.validation import check_int
from compfed.algorithms.base import Algorithm
from compfed.errors import InputError, RunWarning
from compfed.federation.server.rounds import ready
from compfed.monitor import Run
from compfed.problem.problem import LazyProblem, Problem
from compfed.sampling import SCHEMES, Scheme
from compfed.simulation.evaluation import measured
from compfed.trace import State, Trace


def checked(
    problem: Problem | LazyProblem,
    algorithm: Algorithm,
    rounds: int,
    *,
    batch_size: int | None,
    participants: int | None,
    record_every: int,
    seed: int,
    x0: Any,
    x_star: Any,
    resume: Trace | None,
    sampling: Scheme | None = None,
    kind: type[Problem | LazyProblem] = Problem,
) -> Run:
    """The request, or one clear error before any work is done."""
    check_kind(problem, kind)
    if not isinstance(algorithm, Algorithm):
        ready(algorithm, problem, problem.n)  # says what is wrong with it
    rounds = check_int(rounds, "rounds", 0)
    record_every = check_int(record_every, "record_every", 1)
    for name, value in (("rounds", rounds), ("record_every", record_every)):
        if value >= 2**31:
            raise InputError(f"{name}={value} must be below 2**31: rounds are counted in 32 bits.")
    seed = check_int(seed, "seed", 0)
    if seed >= 2**32:
        raise InputError(f"seed={seed} must be below 2**32: that is what a key is made from.")
    batch_size, k = _checked_batch(problem, batch_size), _checked_participants(problem, participants)
    prepared = ready(algorithm, problem, k, seed)
    return Run(
        problem=problem,
        algorithm=prepared,
        rounds=rounds,
        batch_size=batch_size,
        participants=k,
        record_every=record_every,
        seed=seed,
        x0=problem.start if x0 is None else problem.point(x0, "x0"),
        x_star=None if x_star is None else problem.point(x_star, "x_star"),
        resume=None if resume is None else fitting(resume, problem, prepared, x0),
        sampling=checked_sampling(sampling, type(prepared), problem.weights, k),
    )


def check_kind(problem: Any, kind: type[Problem | LazyProblem] = Problem) -> None:
    """Are the rows where the engine looks for them?"""
    if not isinstance(problem, kind):
        other = {LazyProblem: " Use simulate_out_of_core.", Problem: " Use simulate."}.get(type(problem), "")
        raise InputError(f"the first argument must be a compfed.{kind.__name__}; got {type(problem).__name__}.{other}")


def _checked_batch(problem: Problem | LazyProblem, batch_size: Any) -> int | None:
    """At most as many rows as the smallest site has; None for all of them."""
    if batch_size is None:
        return None
    batch_size = check_int(batch_size, "batch_size", 1, " Leave it out for full gradients.")
    smallest = int(problem.sites.sizes.argmin())
    if batch_size > problem.sites.sizes[smallest]:
        raise InputError(
            f"batch_size={batch_size} is larger than the smallest site, {problem.sites.names[smallest]!r} with "
            f"{problem.sites.sizes[smallest]} rows. Use at most that, or leave it out for full gradients."
        )
    return batch_size


def _checked_participants(problem: Problem | LazyProblem, participants: Any) -> int:
    """Clients per round: all of them unless told otherwise."""
    k = problem.n if participants is None else check_int(participants, "participants", 1)
    if k > problem.n:
        raise InputError(f"participants={k} is more than the {problem.n} clients there are.")
    idle = np.flatnonzero(problem.weights == 0)
    if idle.size and k < problem.n:
        raise InputError(
            f"site {problem.sites.names[idle[0]]!r} has weight 0, and a sample of participants={k} could consist of such "
            "sites only. Leave the site out."
        )
    return k


def checked_sampling(sampling: Any, method: type[Algorithm], weights: np.ndarray, k: int) -> Scheme | None:
    """How a sample of k clients stands for all: as asked for, or as the method prefers; None where all take part."""
    if sampling is not None and (not isinstance(sampling, str) or sampling not in SCHEMES):
        raise InputError(
            f"sampling={sampling!r} must be one of {', '.join(map(repr, SCHEMES))}, or None for the method's own."
        )
    if k == len(weights):
        return None
    own, name = method.schemes, method.__name__
    equal = np.ptp(weights) == 0  # then all schemes are the same
    if not own and sampling is None and not equal:
        raise InputError(
            f"{name} does not say how a sample of clients with unequal weights stands for all. Its server uses `mean` alone: "
            f"schemes = ('proportional', 'self-normalised') in the class, and 'uniform' too if answers are changes. It uses share * mean: "
            f"schemes = ('self-normalised',). For this run alone: sampling='proportional', 'uniform' or 'self-normalised'."
        )
    if own and sampling is not None and sampling not in own and not equal:
        raise InputError(
            f"sampling={sampling!r} does not suit {name}, whose weights or memory would no longer add up; it can run with "
            f"{' or '.join(map(repr, own))}. Leave sampling out for {own[0]!r}."
        )
    return sampling or (own[0] if own else "self-normalised")


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
        here, there = ("simulate", "simulate_out_of_core") if state.of is None else ("simulate_out_of_core", "simulate")
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
    if was.fingerprints is not None and now.fingerprints is not None:
        apart = np.abs(was.fingerprints - now.fingerprints)  # NaN where nobody looked at the rows
        other = apart > 1e-9 * np.nanmax(np.abs([was.fingerprints, now.fingerprints]), initial=0.0)
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
