"""Checks of what a caller asks for, before any work is done: the options of a run, and the trace that it resumes.

A run resumes with the same problem: the same sites, weights, loss and regulariser. The number of rounds, participants, batch
size, seed and steps may change, except those fields of the algorithm that its state depends on. Sites in another order are put
in the order of the trace.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.compilation import precision
from compfed._utils.records import describe
from compfed._utils.validation import check_int, is_number
from compfed.algorithms.base import Algorithm
from compfed.errors import InputError, RunWarning
from compfed.federation.server.rounds import bind_algorithm
from compfed.monitor import RunOptions
from compfed.problem.problem import LazyProblem, Problem
from compfed.sampling import SCHEMES, Scheme
from compfed.simulation.evaluation import evaluate_models
from compfed.trace import State, Trace


def check_options(
    problem: Problem | LazyProblem,
    algorithm: Algorithm,
    rounds: int,
    *,
    batch_size: int | None = None,
    participants: int | None = None,
    record_every: int = 1,
    seed: int = 0,
    x0: ArrayLike | None = None,
    x_star: ArrayLike | None = None,
    resume: Trace | None = None,
    sampling: Scheme | None = None,
    tol: float | None = None,
    kind: type[Problem | LazyProblem] = Problem,
) -> RunOptions:
    """The options of a run, or one clear error."""
    check_problem(problem, kind)
    if not isinstance(algorithm, Algorithm):
        bind_algorithm(algorithm, problem, problem.n)  # raises
    rounds = check_int(rounds, "rounds", 0)
    record_every = check_int(record_every, "record_every", 1)
    for name, value in (("rounds", rounds), ("record_every", record_every)):
        if value >= 2**31:
            raise InputError(f"{name}={value} must be below 2**31: rounds are counted in 32 bits.")
    seed = check_int(seed, "seed", 0)
    if seed >= 2**32:
        raise InputError(f"seed={seed} must be below 2**32: that is what a key is made from.")
    batch_size, k = _check_batch_size(problem, batch_size), _check_participants(problem, participants)
    bound = bind_algorithm(algorithm, problem, k, seed)
    return RunOptions(
        problem=problem,
        algorithm=bound,
        rounds=rounds,
        batch_size=batch_size,
        participants=k,
        record_every=record_every,
        seed=seed,
        x0=problem.start if x0 is None else problem.point(x0, "x0"),
        x_star=None if x_star is None else problem.point(x_star, "x_star"),
        resume=None if resume is None else check_resume(resume, problem, bound, x0),
        sampling=check_sampling(sampling, type(bound), problem.weights, k),
        tol=tol,
        step=0.0 if tol is None or isinstance(problem, LazyProblem) else 1.0 / problem.lipschitz,
    )


def check_problem(problem: object, kind: type[Problem | LazyProblem] = Problem) -> None:
    """Refuse a problem whose rows are not where the loop reads them."""
    if not isinstance(problem, kind):
        other = {LazyProblem: " Use simulate_out_of_core.", Problem: " Use simulate."}.get(type(problem), "")
        raise InputError(f"the first argument must be a compfed.{kind.__name__}; got {type(problem).__name__}.{other}")


def _check_batch_size(problem: Problem | LazyProblem, batch_size: object) -> int | None:
    """Refuse more rows than the smallest site has; None is a full gradient."""
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


def _check_participants(problem: Problem | LazyProblem, participants: object) -> int:
    """Clients per round: all of them by default."""
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


def check_sampling(sampling: object, method: type[Algorithm], weights: np.ndarray, k: int) -> Scheme | None:
    """The sampling scheme: as asked for, or the method's first; None where all take part."""
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
            f"schemes = ('proportional', 'self-normalised') in the class, and 'uniform' too if updates are changes. It uses weight * mean: "
            f"schemes = ('self-normalised',). For this run alone: sampling='proportional', 'uniform' or 'self-normalised'."
        )
    if own and sampling is not None and sampling not in own and not equal:
        raise InputError(
            f"sampling={sampling!r} does not suit {name}, whose weights or state would no longer add up; it can run with "
            f"{' or '.join(map(repr, own))}. Leave sampling out for {own[0]!r}."
        )
    return sampling or (own[0] if own else "self-normalised")  # pyright: ignore[reportReturnType]  # one of SCHEMES


def check_tol(tol: float) -> float:
    """`tol` as a float, if it is a number >= 0."""
    if not is_number(tol) or not tol >= 0:
        raise InputError(f"tol={tol!r} must be a number >= 0, or None to run all rounds.")
    return float(tol)


# --- resuming ---

ANEW = "or start anew from its model: x0=trace.x."


def check_resume(trace: object, problem: Problem | LazyProblem, algorithm: Algorithm, x0: object) -> Trace:
    """The trace with its client states in the order of the problem's sites, or one clear error."""
    if not isinstance(trace, Trace):
        raise InputError(f"resume must be a Trace (Trace.load reads a saved one); got {type(trace).__name__}.")
    if trace.state is None:
        raise InputError("resume: this trace has no state to go on from.")
    if x0 is not None:
        raise InputError("give x0 (a new start) or resume (going on), not both.")
    provenance = trace.provenance
    before, now = _entry(provenance, "algorithm", dict).get("name"), type(algorithm).__name__
    if before != now:
        raise InputError(f"resume: the trace is of {before}, the algorithm is {now}; they must be the same.")
    if (was := _entry(provenance, "dtype", str)) != problem.dtype.name:
        raise InputError(
            f"resume: the trace is {was}, the problem is {problem.dtype.name}; use problem.astype({was!r})."
        )
    of = _entry(provenance, "problem", dict)
    if trace.x.shape != (problem.d,) or of.get("clients") != problem.n:
        raise InputError(
            f"resume: the trace belongs to a problem of another shape than this one ({problem.n} x {problem.d})."
        )
    order = _order(trace.state, problem)
    _check_same("loss", of.get("loss"), describe(problem.loss))
    _check_same("regulariser", of.get("regulariser"), describe(problem.regulariser))
    _check_fields(provenance["algorithm"], algorithm)
    _check_state(trace, problem, algorithm)
    _check_objective(trace, problem)
    if isinstance(order, range):
        return trace
    return replace(trace, state=replace(trace.state, clients=[leaf[order] for leaf in trace.state.clients]))


def _entry(provenance: Mapping[str, Any], name: str, kind: type) -> Any:
    """An entry of the provenance; a trace made by hand, or damaged, may lack it."""
    if not isinstance(provenance.get(name), kind):
        raise InputError(f"resume: the trace does not say of what run it is: its provenance has no {name!r}.")
    return provenance[name]


def _order(state: State, problem: Problem | LazyProblem) -> list[int] | range:
    """The position in the trace of each site of the problem; refuses other sites and other weights."""
    was = state.members
    if isinstance(problem, LazyProblem) != (state.of is not None):
        here, there = ("simulate", "simulate_out_of_core") if state.of is None else ("simulate_out_of_core", "simulate")
        raise InputError(
            f"resume: the trace is of {here}; {there} keeps client states in another way. Go on with {here}, {ANEW}"
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
        apart = np.abs(was.fingerprints - now.fingerprints)  # NaN where the rows were not read
        differs = apart > 1e-9 * np.nanmax(np.abs([was.fingerprints, now.fingerprints]), initial=0.0)
        if differs.any():
            raise InputError(
                f"resume: site {now.names[int(differs.argmax())]!r} has other rows than in the trace. Give each site the name "
                f"it had there (names=...), if only their order changed; {sites[0].lower()}{sites[1:]} {ANEW}"
            )
    if not np.allclose(was.weights, now.weights, rtol=1e-9, atol=1e-15):
        i = int(np.abs(was.weights - now.weights).argmax())
        raise InputError(
            f"resume: the weight of site {now.names[i]!r} was {was.weights[i]:.6g} in the trace and is {now.weights[i]:.6g} "
            f"now. Go on with the same weights, {ANEW}"
        )
    return order


def _listed(names: Sequence[object]) -> str:
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _plain(value: object) -> object:
    """The value as a file returns it."""
    return json.loads(json.dumps(value, default=str))


def _check_same(what: str, was: object, now: object) -> None:
    if _plain(was) != _plain(now):
        raise InputError(
            f"resume: the {what} was {_short(was)} in the trace and is {_short(now)} now. Go on with the same problem, {ANEW}"
        )


def _check_objective(trace: Trace, problem: Problem | LazyProblem) -> None:
    """Compare objectives: a user's loss function, or labels in another order, show in no other way."""
    was = trace.columns.get("objective")
    if was is None or isinstance(problem, LazyProblem):  # the objective would take a pass over all clients
        return
    now = evaluate_models(problem, trace.x[None])["objective"][0]
    rounding = (1e-8 if problem.dtype == np.float64 else 1e-4) * np.abs(was[[0, -1]]).max()
    if not np.abs(now - was[-1]) <= rounding and np.isfinite([now, was[-1], rounding]).all():
        raise InputError(
            f"resume: the objective at the trace's model was {was[-1]:.9g} in the trace and is {now:.9g} now: the loss, the "
            f"regulariser or the rows are others. Go on with the same problem, {ANEW}"
        )


def _short(described: object) -> str:
    """{"name": "L1", "lam": 0.1} as L1(lam=0.1)."""
    if not isinstance(described, dict):
        return str(described)[:60]
    inside = ", ".join(f"{k}={_short(v)}" for k, v in described.items() if k != "name")
    return f"{described.get('name')}({inside[:120]})"


def _check_fields(was: Mapping[str, Any], algorithm: Algorithm) -> None:
    """The hyper-parameters that the state depends on must be those of the trace."""
    listed, name = algorithm.state_depends_on, type(algorithm).__name__
    hint = "" if listed is not None else (
        f" If the state of {name} does not depend on it, say so in the class: state_depends_on = ()."
    )  # fmt: skip
    now = describe(algorithm)
    for field in [f.name for f in fields(algorithm)] if listed is None else listed:  # pyright: ignore[reportArgumentType]  # a record
        if field in was and _plain(was[field]) != _plain(now[field]):
            raise InputError(
                f"resume: the state of {name} depends on {field}, which was {_short(was[field])} in the trace and is "
                f"{_short(now[field])} now. Go on with the same {field}, {ANEW}{hint}"
            )


def _check_state(trace: Trace, problem: Problem | LazyProblem, algorithm: Algorithm) -> None:
    """Every leaf of the state must be there, of the right shape, and finite."""
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
                f"resume: the state of the {part} is incomplete: {len(leaves)} arrays of {len(named)}. A run over a network "
                f"leaves it at the sites; else the trace is damaged. Take another copy, {ANEW}"
            )
        for (path, expected), leaf in zip(named, leaves, strict=True):
            _check_leaf(f"{part}{jax.tree_util.keystr(path)}", leaf, (*lead, *expected.shape), expected.dtype)


def _check_leaf(name: str, leaf: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if leaf.shape != shape or leaf.dtype != dtype:
        raise InputError(
            f"resume: in the state of the trace, {name} is {leaf.dtype} of shape {leaf.shape}; this run needs {dtype} of "
            f"shape {shape}. Go on with the algorithm and the problem of the trace, {ANEW}"
        )
    if not np.isfinite(leaf).all():
        raise InputError(f"resume: in the state of the trace, {name} is not finite. Take another copy, {ANEW}")
