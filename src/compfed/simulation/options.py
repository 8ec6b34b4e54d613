"""Checks of what a caller asks for, before any work is done: the options of a run, and the trace that it resumes.

A run resumes with the same problem: the same sites, weights, loss and regulariser. The number of rounds, participants, batch
size, seed and steps may change, except those fields of the algorithm that its state depends on. Sites in another order are put
in the order of the trace.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import jax
import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.compilation import precision
from compfed._utils.records import describe, has_leaf, leaf_names, with_leaf
from compfed._utils.validation import check_int, check_positive, is_number
from compfed.algorithms.base import Algorithm
from compfed.errors import InputError, RunWarning
from compfed.federation.server.rounds import bind_algorithm
from compfed.monitor import Metric, RunOptions, Schedule
from compfed.problem.problem import LazyProblem, Problem
from compfed.problem_spec import check_lipschitz
from compfed.sampling import SCHEMES, Scheme
from compfed.simulation.clock import check_clock
from compfed.simulation.columns import evaluate_models
from compfed.stopping import check_certified
from compfed.trace import COLUMNS, COUNTED, RunState, Trace

T = TypeVar("T")


def check_options(
    problem: Problem | LazyProblem, algorithm: Algorithm, rounds: int, *, batch_size: int | None = None,
    participants: int | None = None, record_every: int = 1, seed: int = 0, x0: object = None,
    x_star: ArrayLike | None = None, resume: Trace | None = None, sampling: Scheme | None = None, tol: float | None = None,
    L: float | None = None, columns: Iterable[object] | None = None, metrics: Mapping[str, Metric] | None = None,
    schedules: Mapping[str, Schedule] | None = None, clock: object = None, budget: Mapping[str, float] | None = None,
    kind: type[Problem | LazyProblem] = Problem,
) -> RunOptions:  # fmt: skip
    """The options of a run, or one clear error."""
    check_problem(problem, kind)
    if not isinstance(algorithm, Algorithm):
        bind_algorithm(algorithm, problem, problem.n)  # raises
    numbers = {"rounds": (rounds, 0, 31), "record_every": (record_every, 1, 31), "seed": (seed, 0, 32)}
    for name, (value, least, bits) in numbers.items():
        if check_int(value, name, least) >= 2**bits:
            raise InputError(f"{name}={value} must be below 2**{bits}: it is kept in 32 bits.")
    if batch_size is not None:
        batch_size = check_int(batch_size, "batch_size", 1, " Leave it out for full gradients.")
    k = _check_participants(problem, participants)
    bound = bind_algorithm(algorithm, problem, k, int(seed))
    tol, L = None if tol is None else check_tol(tol), None if L is None else check_positive(L, "L")
    given = {"tol": tol, "L": L, "x_star": x_star, "clock": clock, "metrics": metrics}
    wanted = check_columns(columns, problem, **given)
    if callable(x0):
        x0 = x0(int(seed))
    return RunOptions(
        problem, bound, int(rounds), batch_size, k, int(record_every), int(seed),
        x0=problem.start if x0 is None else problem.point(x0, "x0"),
        x_star=None if x_star is None else problem.point(check_certified(x_star), "x_star"),
        resume=None if resume is None else check_resume(resume, problem, bound, x0),
        sampling=check_sampling(sampling, type(bound), problem.weights, k),
        tol=tol,
        step=_step(problem, L) if "gradient_mapping" in wanted else 0.0,
        columns=wanted,
        metrics=check_metrics(metrics),
        schedules=check_schedules(schedules, bound),
        clock=check_clock(clock, problem.sizes, problem.numbers),
        budget=check_budget(budget, clock),
    )  # fmt: skip


def _step(problem: Problem | LazyProblem, L: float | None) -> float:
    """The step 1/L of the gradient mapping."""
    if L is None and isinstance(problem, LazyProblem):
        raise InputError(
            "the gradient mapping needs a Lipschitz constant of the gradient, which would take many passes over all clients; "
            "give one: L=..., such as problem.subset(range(100)).lipschitz."
        )
    if L is None:
        assert isinstance(problem, Problem)
        return 1.0 / problem.lipschitz
    return 1.0 / check_lipschitz(L, problem.regulariser)


ON_REQUEST = {"participants", "objective", "gradient_mapping"}  # of these, a loop records some by default


def check_columns(columns: Iterable[object] | None, problem: Problem | LazyProblem, **given: object) -> frozenset[str]:
    """The columns to record, of those that a trace has.

    By default all, but none that needs a Lipschitz constant that is not known already, or a pass over all clients out of core.
    """
    default = set(COLUMNS) - ON_REQUEST
    if not isinstance(problem, LazyProblem):
        default |= {"objective"}
        if problem.loss.curvature is not None or given["L"] is not None:  # a bound, or no work at all
            default |= {"gradient_mapping"}
    if given["tol"] is not None:
        default |= {"objective", "gradient_mapping"}
    if columns is None:
        return frozenset(default)
    wanted = [columns] if isinstance(columns, str) or not isinstance(columns, Iterable) else list(columns)
    unknown = [name for name in wanted if name is not ... and (not isinstance(name, str) or name not in COLUMNS)]
    if unknown or isinstance(columns, str) or not isinstance(columns, Iterable):
        raise InputError(
            f"columns={columns!r:.120} must be a list of names of columns, with ... for those recorded by default, such as "
            f"[..., 'gradient_mapping']. Known: {', '.join(COLUMNS)}."
        )
    for name, argument in (("optimality", "x_star"), ("clock", "clock")):
        if name in wanted and given[argument] is None:
            raise InputError(f"columns asks for {name!r}, which needs {argument}=...; give it, or leave the name out.")
    named = {str(name) for name in wanted if name is not ...} | (default if ... in wanted else {"round", "seconds"})
    return frozenset(named | ({"gradient_mapping"} if given["tol"] is not None else set()))


def check_metrics(metrics: object) -> dict[str, Metric]:
    """The caller's metrics of a model, by name."""
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping) or not all(isinstance(n, str) and callable(f) for n, f in metrics.items()):
        raise InputError(
            f"metrics={metrics!r:.80} must map names to functions of the parameters of a model, such as "
            "{'accuracy': lambda params: (predict(params, X) == y).mean()}."
        )
    for name in metrics:
        if name in COLUMNS:
            raise InputError(
                f"metrics: {name!r} is a column of a trace already ({COLUMNS[name]}); give it another name."
            )
    return dict(metrics)


def check_budget(budget: object, clock: object) -> dict[str, float]:
    """What a run may cost, by columns of its trace."""
    if budget is None:
        return {}
    known = sorted(COUNTED - {"seconds", "participants"} - ({"clock"} if clock is None else set()))
    if not isinstance(budget, Mapping) or not budget or not set(budget) <= set(known):
        way_out = "" if clock is not None else " (and 'clock', if clock= is given)"
        raise InputError(
            f"budget={budget!r:.80} must map costs to numbers, such as {{'rows': 1e6}}. Known: {', '.join(known)}{way_out}."
        )
    return {str(name): check_positive(amount, f"budget of {name} ") for name, amount in budget.items()}


def check_schedules(schedules: object, algorithm: Algorithm) -> tuple[tuple[str, Schedule], ...]:
    """The schedules of step sizes, by the name of the number they replace."""
    if schedules is None:
        return ()
    if not isinstance(schedules, Mapping) or not all(isinstance(n, str) and callable(f) for n, f in schedules.items()):
        raise InputError(
            f"schedules={schedules!r:.80} must map names of numbers to functions of the round, such as "
            "{'eta': lambda r: 0.1 / (1 + r)}."
        )
    name = type(algorithm).__name__
    for field, value in schedules.items():
        if not has_leaf(algorithm, field):
            known = ", ".join(leaf_names(algorithm))
            raise InputError(
                f"schedules: {field!r} is not a number of {name} that may change between rounds. It has {known}."
            )
        if algorithm.state_depends_on is None or field.partition(".")[0] in algorithm.state_depends_on:
            raise InputError(
                f"schedules: the state of {name} depends on {field}, so it cannot change between rounds. If it does not, say so "
                "in the class: state_depends_on = ()."
            )
        first = np.asarray(value(0), float)
        if first.shape or not np.isfinite(first):
            raise InputError(f"schedules: {field!r} gives {first!r:.60} in round 0; it must give one finite number.")
        with_leaf(algorithm, field, float(first))  # refuses a number that the field does not accept
    return tuple(schedules.items())


def check_problem(problem: object, kind: type[Problem | LazyProblem] = Problem) -> None:
    """Refuse a problem whose rows are not where the loop reads them."""
    if not isinstance(problem, kind):
        other = {LazyProblem: " Use simulate_out_of_core.", Problem: " Use simulate."}.get(type(problem), "")
        raise InputError(f"the first argument must be a compfed.{kind.__name__}; got {type(problem).__name__}.{other}")


def _check_participants(problem: Problem | LazyProblem, participants: object) -> int:
    """Clients per round: all of them by default."""
    k = problem.n if participants is None else check_int(participants, "participants", 1)
    if k > problem.n:
        raise InputError(f"participants={k} is more than the {problem.n} clients there are.")
    idle = np.flatnonzero(problem.weights == 0)
    if idle.size and k < problem.n:
        raise InputError(
            f"site {problem.names[idle[0]]!r} has weight 0, and a sample of participants={k} could consist of such "
            "sites only. Leave the site out."
        )
    return k


def check_sampling(sampling: object, method: type[Algorithm], weights: np.ndarray, k: int) -> Scheme | None:
    """The sampling scheme: as asked for, or the method's first; None where all take part."""
    schemes = ", ".join(map(repr, SCHEMES))
    if sampling is not None and (not isinstance(sampling, str) or sampling not in SCHEMES):
        raise InputError(f"sampling={sampling!r} must be one of {schemes}, or None for the method's own.")
    if k == len(weights):
        return None
    own, name = method.schemes, method.__name__
    equal = np.ptp(weights) == 0  # then all schemes are the same
    if not own and sampling is None and not equal:
        raise InputError(
            f"{name} does not say how a sample of clients with unequal weights stands for all. If its server uses `mean` alone, "
            f"write schemes = ('proportional', 'self-normalised') in the class, and 'uniform' too if updates are changes; if it "
            f"uses weight * mean, schemes = ('self-normalised',). For this run alone: sampling= one of {schemes}."
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


def _refusal(what: str, way_out: str = "Go on with the same problem,") -> InputError:
    return InputError(f"resume: {what}. {way_out} {ANEW}")


def check_resume(trace: object, problem: Problem | LazyProblem, algorithm: Algorithm, x0: object) -> Trace:
    """The trace with its client states in the order of the problem's sites, or one clear error."""
    if not isinstance(trace, Trace):
        raise InputError(f"resume must be a Trace (Trace.load reads a saved one); got {type(trace).__name__}.")
    if trace.state is None:
        raise InputError("resume: this trace has no state to go on from.")
    if x0 is not None:
        raise InputError("give x0 (a new start) or resume (going on), not both.")
    method, name = _provenance(trace, "algorithm", dict), type(algorithm).__name__
    if method.get("name") != name:
        raise InputError(
            f"resume: the trace is of {method.get('name')}, the algorithm is {name}; they must be the same."
        )
    dtype = _provenance(trace, "dtype", str)
    if dtype != problem.dtype.name:
        raise InputError(
            f"resume: the trace is {dtype}, the problem is {problem.dtype.name}; use problem.astype({dtype!r})."
        )
    of = _provenance(trace, "problem", dict)
    if trace.x.shape != (problem.d,) or of.get("clients") != problem.n:
        shape = f"{problem.n} x {problem.d}"
        raise InputError(f"resume: the trace belongs to a problem of another shape than this one ({shape}).")
    order = _order(trace.state, problem)
    for part in ("loss", "regulariser"):
        was, now = of.get(part), describe(getattr(problem, part))
        if _as_saved(was) != _as_saved(now):
            raise _refusal(f"the {part} was {_short(was)} in the trace and is {_short(now)} now")
    _check_fields(method, algorithm)
    _check_state(trace, trace.state, problem, algorithm)
    _check_objective(trace, problem)
    if isinstance(order, range):
        return trace
    return replace(trace, state=replace(trace.state, clients=[leaf[order] for leaf in trace.state.clients]))


def _provenance(trace: Trace, entry: str, kind: type[T]) -> T:
    """An entry of the provenance; a trace made by hand, or damaged, may lack it."""
    found = trace.provenance.get(entry)
    if not isinstance(found, kind):
        raise InputError(f"resume: the trace does not say of what run it is: its provenance has no {entry!r}.")
    return found


def _order(state: RunState, problem: Problem | LazyProblem) -> list[int] | range:
    """The position in the trace of each site of the problem; refuses other sites and other weights."""
    was, now, sites = state.members, problem.members(), "Go on with the same sites,"
    if isinstance(problem, LazyProblem) != (state.of is not None):
        here, there = ("simulate", "simulate_out_of_core") if state.of is None else ("simulate_out_of_core", "simulate")
        raise _refusal(f"the trace is of {here}; {there} keeps client states in another way", f"Go on with {here},")
    if was is None:
        warnings.warn(
            "resume: this trace does not say of which sites and weights it is (it was written by an earlier version, or made "
            "by hand), so they cannot be checked. If they, or the order of the sites, are others than before, the result "
            f"is wrong for ever: go on only if you know, {ANEW}",
            RunWarning,
            stacklevel=5,
        )
        return range(problem.n)
    order: list[int] | range = range(problem.n)
    if was.names != now.names:
        place = {name: i for i, name in enumerate(was.names)}
        strangers = [name for name in now.names if name not in place]
        if strangers:
            some = ", ".join(map(repr, was.names[:5])) + ", ..." * (len(was.names) > 5)
            raise _refusal(f"the trace knows no site {strangers[0]!r}; it has {some}", sites)
        order = [place[name] for name in now.names]
        was = was[order]
    if (was.rows != now.rows).any():
        i = int((was.rows != now.rows).argmax())
        raise _refusal(f"site {now.names[i]!r} had {was.rows[i]} rows in the trace and has {now.rows[i]} now", sites)
    if was.fingerprints is not None and now.fingerprints is not None:
        apart = np.abs(was.fingerprints - now.fingerprints)  # NaN where the rows were not read
        differs = apart > 1e-9 * np.nanmax(np.abs([was.fingerprints, now.fingerprints]), initial=0.0)
        if differs.any():
            renamed = "Give each site the name it had there (names=...), if only their order changed; else"
            raise _refusal(f"site {now.names[int(differs.argmax())]!r} has other rows than in the trace", renamed)
    if not np.allclose(was.weights, now.weights, rtol=1e-9, atol=1e-15):
        i = int(np.abs(was.weights - now.weights).argmax())
        changed = f"was {was.weights[i]:.6g} in the trace and is {now.weights[i]:.6g} now"
        raise _refusal(f"the weight of site {now.names[i]!r} {changed}", "Go on with the same weights,")
    return order


def _check_fields(was: Mapping[str, object], algorithm: Algorithm) -> None:
    """The hyper-parameters that the state depends on must be those of the trace."""
    now, name, listed = describe(algorithm), type(algorithm).__name__, algorithm.state_depends_on
    for field in now if listed is None else listed:
        if field in was and _as_saved(was[field]) != _as_saved(now[field]):
            changed = f"which was {_short(was[field])} in the trace and is {_short(now[field])} now"
            way_out = f"Go on with the same {field},"
            if listed is None:
                way_out = f"If it does not, say so in the class: state_depends_on = (). {way_out}"
            raise _refusal(f"the state of {name} depends on {field}, {changed}", way_out)


def _check_state(trace: Trace, state: RunState, problem: Problem | LazyProblem, algorithm: Algorithm) -> None:
    """Every leaf of the state must be there, of the right shape, and finite."""
    last = int(trace["round"][-1]) if {"round", "seconds"} <= set(trace.columns) and len(trace) else "none"
    if last != state.rounds:
        raise InputError(
            f"resume: the trace is damaged: its state is that after round {state.rounds}, its last row that of round {last}."
        )
    with precision(problem.dtype):
        server, client = jax.eval_shape(algorithm.init, jax.ShapeDtypeStruct((problem.d,), problem.dtype))
    lead = problem.n if state.of is None else len(state.of)
    for part, leaves, like, axes in (("server", state.server, server, ()), ("clients", state.clients, client, (lead,))):
        named = jax.tree_util.tree_leaves_with_path(like)
        if len(leaves) != len(named):
            incomplete = f"the state of the {part} is incomplete: {len(leaves)} arrays of {len(named)}"
            raise _refusal(f"{incomplete}. A run over a network leaves it at the sites", "Else take another copy,")
        for (path, needed), leaf in zip(named, leaves, strict=True):
            name, shape = f"in the state of the trace, {part}{jax.tree_util.keystr(path)}", (*axes, *needed.shape)
            if leaf.shape != shape or leaf.dtype != needed.dtype:
                raise _refusal(
                    f"{name} is {leaf.dtype} of shape {leaf.shape}; this run needs {needed.dtype} of shape {shape}",
                    "Go on with the algorithm and the problem of the trace,",
                )
            if not np.isfinite(leaf).all():
                raise _refusal(f"{name} is not finite", "Take another copy,")


def _check_objective(trace: Trace, problem: Problem | LazyProblem) -> None:
    """Compare objectives: a user's loss function, or labels in another order, show in no other way."""
    was = trace.columns.get("objective")
    if was is None or isinstance(problem, LazyProblem):  # the objective would take a pass over all clients
        return
    now = evaluate_models(problem, trace.x[None])["objective"][0]
    rounding = (1e-8 if problem.dtype == np.float64 else 1e-4) * np.abs(was[[0, -1]]).max()
    if not np.abs(now - was[-1]) <= rounding and np.isfinite([now, was[-1], rounding]).all():
        raise _refusal(
            f"the objective at the trace's model was {was[-1]:.9g} in the trace and is {now:.9g} now: the loss, the regulariser "
            "or the rows are others"
        )


def _as_saved(value: object) -> object:
    """The value as a file returns it."""
    return json.loads(json.dumps(value, default=str))


def _short(described: object) -> str:
    """{"name": "L1", "lam": 0.1} as L1(lam=0.1)."""
    if not isinstance(described, dict):
        return str(described)[:60]
    inside = ", ".join(f"{k}={_short(v)}" for k, v in described.items() if k != "name")
    return f"{described.get('name')}({inside[:120]})"
