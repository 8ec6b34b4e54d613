"""`grid`: many settings of one algorithm as one program, a vmap over everything that is a number."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from compfed._utils.compilation import precision
from compfed._utils.records import has_leaf, leaf_names, with_leaf
from compfed._utils.validation import check_callable
from compfed.algorithms.base import Algorithm
from compfed.errors import InputError
from compfed.federation.server.rounds import bind_algorithm
from compfed.monitor import Metric, Monitor, Progress, RunOptions, Schedule
from compfed.problem.problem import Problem
from compfed.sampling import Scheme
from compfed.simulation.clock import CostModel
from compfed.simulation.columns import evaluate_together
from compfed.simulation.options import check_metrics, check_options, check_problem
from compfed.simulation.sharding import GridMembers
from compfed.simulation.simulate import (
    all_rounds,
    core_mesh,
    finish,
    mapping_step,
    parameters,
    program_options,
    rows_of,
)
from compfed.simulation.xla import Measure, Parameters
from compfed.trace import Trace


def grid(
    problem: Problem,
    algorithm: Algorithm | Sequence[Algorithm],
    rounds: int,
    over: Mapping[str, Sequence[object]] | None = None,
    *,
    batch_size: int | None = None,
    participants: int | None = None,
    sampling: Scheme | None = None,
    record_every: int = 1,
    seed: int = 0,
    x0: object = None,
    x_star: ArrayLike | Callable[[Problem], ArrayLike] | None = None,
    L: float | None = None,
    progress: Progress | None = None,
    columns: Iterable[object] | None = None,
    metrics: Mapping[str, Metric] | None = None,
    measure: Measure | None = None,
    schedules: Mapping[str, Schedule] | None = None,
    clock: CostModel | str | None = None,
) -> list[Trace]:
    """Simulate every combination of some values: those that differ in numbers only as one program.

    Parameters
    ----------
    problem : Problem
    algorithm : Algorithm or sequence of Algorithm
        Several must be of one class.
    rounds : int
        Number of communication rounds.
    over : dict from names to lists of values, optional
        Names are fields of the algorithm ("eta", "schedule.gamma"), of the regulariser ("lam"), of the loss ("ridge"),
        "seed" or "batch_size". Where two of them have a field of one name, say which: "algorithm.lam", "regulariser.lam",
        "loss.ridge", "run.seed". Fields that shape the program ("tau", "batch_size") make one program for each of their values.
    x_star : array of shape (d,) or callable, optional
        The minimiser, or a function from the problem of a member to its minimiser; adds the column "optimality".
    batch_size, participants, sampling, record_every, seed, x0, L, progress, columns, metrics, measure, schedules, clock
        As in `simulate`.

    Returns
    -------
    list of Trace
        One for each combination, the last name varying fastest. A member that diverges does not stop the others: its trace
        ends early, and `provenance["diverged"]` says why.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> traces = cf.grid(problem, cf.algorithms.FedDA(eta=1.0), 5, {"eta": [0.5, 1.0], "seed": [0, 1]})
    >>> [t.provenance["grid"] for t in traces][1]
    {'eta': 0.5, 'seed': 1}
    """
    check_callable(progress, "progress")
    check_callable(measure, "measure")
    check_problem(problem)
    algorithms: list[Any] = list(algorithm) if isinstance(algorithm, Iterable) else [algorithm]
    for each in algorithms:
        if not isinstance(each, Algorithm):
            bind_algorithm(each, problem, problem.n)  # raises
    names = _check_over(over)
    members = [(a, dict(zip(names, v, strict=True))) for a in algorithms for v in itertools.product(*names.values())]
    if not members or (over is not None and not over):
        raise InputError(f"over={names!r} names no setting; give at least one name with at least one value.")
    check_metrics(metrics)
    runs: list[RunOptions] = []
    for each, values in members:
        a, p, own = _with_values(each, problem, {"seed": seed, "batch_size": batch_size}, values)
        star: Any = x_star(p) if callable(x_star) else x_star
        runs.append(
            check_options(
                p, a, rounds, batch_size=own["batch_size"], participants=participants, record_every=record_every,
                seed=own["seed"], x0=x0, x_star=star, sampling=sampling, L=L, columns=columns, metrics=metrics,
                schedules=schedules, clock=clock,
            )
        )  # fmt: skip
    programs: dict[object, list[int]] = {}
    for i, run in enumerate(runs):
        programs.setdefault((type(run.algorithm), jax.tree.structure(run.algorithm), run.batch_size), []).append(i)
    if len({type(run.algorithm) for run in runs}) > 1:
        raise InputError("the algorithms of one grid must be of one class; run one grid for each.")
    traces: list[Any] = [None] * len(runs)
    done = 0

    def shown(now: int, _: int) -> None:
        if progress is not None:
            progress(done + now, rounds * len(programs))

    for chosen in programs.values():
        about = [{"grid": members[i][1]} for i in chosen]
        together = run_together([runs[i] for i in chosen], about, measure=measure, progress=shown)
        done += rounds
        for i, trace in zip(chosen, together, strict=True):
            traces[i] = trace
    return traces


def _check_over(over: object) -> dict[str, list[Any]]:
    """`over`, if it maps names to lists of values."""
    if not isinstance(over, (Mapping, type(None))):
        raise InputError(f"over={over!r:.80} must map names to lists of values, such as {{'eta': [0.1, 1.0]}}.")
    checked: dict[str, list[Any]] = {}
    for name, values in (over or {}).items():
        if not isinstance(name, str):
            raise InputError(f"grid over {name!r}: it is not the name of a number, such as 'eta' or 'seed'.")
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise InputError(f"grid over {name!r}: give a list of values; got {values!r}.")
        checked[name] = list(values)
        if len({np.shape(value) for value in checked[name]}) > 1:
            raise InputError(f"grid over {name!r}: its values differ in shape; give numbers, or arrays of one shape.")
    return checked


def run_together(
    runs: Sequence[RunOptions],
    provenance: Sequence[Mapping[str, object]],
    *,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> list[Trace]:
    """Run several runs over the same data as one program; each stops by itself. A diverged one has a short trace."""
    if len({jax.tree.structure(run.algorithm) for run in runs}) > 1:
        raise InputError("algorithms that run as one program must be of one class with equal tau and options.")
    order = sorted(range(len(runs)), key=lambda i: runs[i].seed)  # members of one seed beside each other
    sorted_runs = [runs[i] for i in order]
    monitors = [Monitor(run, "simulate") for run in sorted_runs]
    options, probabilities = program_options(runs[0], measure)
    mesh = None if measure is not None or runs[0].clock is not None else core_mesh(runs[0], len(runs))
    steps = [mapping_step(run) for run in sorted_runs]
    evaluate = partial(evaluate_together, [rows_of(run) for run in sorted_runs], steps)
    with precision(runs[0].problem.dtype):
        each = [parameters(run, probabilities) for run in sorted_runs]
        params, members = _stacked(each, [run.seed for run in sorted_runs])
        carry = all_rounds(
            sorted_runs, monitors, params, options, evaluate, members=members, progress=progress, mesh=mesh
        )
        carry = jax.tree.map(np.asarray, carry)
        traces: list[Any] = [None] * len(runs)
        for k, i in enumerate(order):
            monitors[k].provenance.update(provenance[i])
            traces[i] = finish(monitors[k], carry, k, raise_divergence=False)
        return traces


def _with_values(
    algorithm: Algorithm, problem: Problem, run: Mapping[str, Any], values: Mapping[str, Any]
) -> tuple[Algorithm, Problem, dict[str, Any]]:
    """The algorithm, problem, seed and batch size of one member."""
    owners: dict[str, Any] = {"algorithm": algorithm, "regulariser": problem.regulariser, "loss": problem.loss}
    own = dict(run)
    for name, value in values.items():
        owner, leaf = _owner(owners, name)
        if owner == "run":
            own[leaf] = value
        elif owner == "algorithm" and not has_leaf(algorithm, leaf):
            owners[owner] = replace(owners[owner], **{leaf: value})  # checked by the record
        else:
            owners[owner] = with_leaf(owners[owner], leaf, value)
    return owners["algorithm"], problem.replace(owners["loss"], owners["regulariser"]), own


OF_RUN = ("seed", "batch_size")


def _owner(owners: Mapping[str, object], name: str) -> tuple[str, str]:
    """The record that has the number of this name, and its name there; refuses a name that two of them have."""
    static = _static_fields(owners["algorithm"])

    def has(owner: str, field: str) -> bool:
        return has_leaf(owners[owner], field) or (owner == "algorithm" and field in static)

    found = [owner for owner in owners if has(owner, name)] + ["run"] * (name in OF_RUN)
    if len(found) > 1:
        full = [f"{o}.{name}" + (f" (of {type(owners[o]).__name__})" if o in owners else "") for o in found]
        raise InputError(f"grid over {name!r}: there are {' and '.join(full)}; say which one is meant.")
    if found:
        return found[0], name
    owner, _, leaf = name.partition(".")
    if (owner in owners and has(owner, leaf)) or (owner == "run" and leaf in OF_RUN):
        return owner, leaf
    known = ", ".join([*(f for record in owners.values() for f in leaf_names(record)), *static, *OF_RUN])
    raise InputError(f"grid over {name!r}: it is not a number of the algorithm, regulariser or loss. Known: {known}.")


def _static_fields(algorithm: Any) -> list[str]:
    """The fields of an algorithm that shape the program."""
    return [f.name for f in fields(algorithm) if f.metadata["static"]]


def _stacked(params: Sequence[Parameters], seeds: Sequence[int]) -> tuple[Parameters, GridMembers]:
    """The parameters of all members: a leaf has leading axes (seeds, members of each seed), or those it varies along.

    If seeds have different numbers of members, all members lie along the second axis.
    """
    count = len(set(seeds))
    shape = (count, len(params) // count)
    if any(seeds.count(seed) != shape[1] for seed in seeds):
        shape = (1, len(params))
    leaves, structures = zip(*(jax.tree.flatten(p) for p in params), strict=True)
    out, varies = [], []
    for column in zip(*leaves, strict=True):
        keys = jnp.issubdtype(getattr(column[0], "dtype", float), jax.dtypes.prng_key)
        plain = np.stack([np.asarray(jax.random.key_data(v) if keys else v) for v in column])
        plain = plain.reshape(*shape, *plain.shape[1:])
        along = bool((plain != plain[:1]).any()), bool((plain != plain[:, :1]).any())
        cut = (slice(None) if along[0] else 0, slice(None) if along[1] else 0)
        # numbers stay in NumPy, and move to the device once
        leaf = plain[cut]
        out.append(jax.random.wrap_key_data(jnp.asarray(leaf), impl=jax.random.key_impl(column[0])) if keys else leaf)
        varies.append(along)
    return jax.tree.unflatten(structures[0], out), GridMembers(tuple(varies), shape)
