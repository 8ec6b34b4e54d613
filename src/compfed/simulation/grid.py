"""Grids: many settings of one algorithm as one program, a vmap over everything that is a number."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils.compilation import keep_cores_awake
from compfed._utils.precision import precision
from compfed._utils.records import has_leaf, leaf_names, leaves_as_bytes, with_leaf
from compfed._utils.validation import check_callable
from compfed.algorithms.base import Algorithm
from compfed.errors import InputError
from compfed.federation.server.rounds import ready
from compfed.monitor import Progress, Recorder, Run
from compfed.problem.problem import Problem
from compfed.sampling import Scheme, run_key
from compfed.simulation.evaluation import measured_together
from compfed.simulation.run_spec import check_kind, checked
from compfed.simulation.sharding import OnMesh, cores_for, described
from compfed.simulation.simulate import drive, finished, first_carry, planned, rows_of, shares_cores
from compfed.simulation.xla import Carry, Measure, Plan, Setting, Stop, grid_program, one_round
from compfed.trace import Trace


def grid(
    problem: Problem,
    algorithm: Algorithm | Sequence[Algorithm],
    rounds: int,
    over: Mapping[str, Sequence[Any]] | None = None,
    *,
    batch_size: int | None = None,
    participants: int | None = None,
    sampling: Scheme | None = None,
    record_every: int = 1,
    seed: int = 0,
    x0: Any = None,
    x_star: Any = None,
    progress: Progress | None = None,
    measure: Measure | None = None,
) -> list[Trace]:
    """Every combination of the values in `over`, run as one program; one trace each, the last name varying fastest.

    `over` maps names to values: fields of the algorithm ("eta", "schedule.gamma"), of the regulariser ("lam"), of the
    loss ("ridge"), or "seed". Where two of them have a field of one name, say which: "algorithm.lam", "regulariser.lam",
    "loss.ridge", "run.seed". `algorithm` may be several of one kind that differ in their numbers only.
    `x_star` is one point for all, or a function from a member's problem to its x*. A member that diverges does not
    stop the others: its trace ends early and `provenance["diverged"]` says why.

    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> traces = cf.grid(problem, cf.algorithms.FedDA(eta=1.0), 5, {"eta": [0.5, 1.0], "seed": [0, 1]})
    >>> [t.provenance["grid"] for t in traces][1]
    {'eta': 0.5, 'seed': 1}
    """
    check_callable(progress, "progress")
    check_callable(measure, "measure")
    check_kind(problem)
    kinds: list[Any] = list(algorithm) if isinstance(algorithm, Iterable) else [algorithm]
    for kind in kinds:
        if not isinstance(kind, Algorithm):
            ready(kind, problem, problem.n)  # says what is wrong with it
    names = _listed(over)
    members = [(a, dict(zip(names, v, strict=True))) for a in kinds for v in itertools.product(*names.values())]
    if not members or (over is not None and not over):
        raise InputError(f"over={names!r} names no setting; give at least one name with at least one value.")
    runs: list[Run] = []
    for kind, values in members:
        a, p, s = _with_values(kind, problem, seed, values)
        star = x_star(p) if callable(x_star) else x_star
        runs.append(
            checked(
                p, a, rounds, batch_size=batch_size, participants=participants, record_every=record_every, seed=s,
                x0=x0, x_star=star, resume=None, sampling=sampling,
            )
        )  # fmt: skip
    return side_by_side(runs, [{"grid": values} for _, values in members], measure=measure, progress=progress)


def _listed(over: Any) -> dict[str, list[Any]]:
    """`over`, if it maps names to lists of values."""
    if not isinstance(over, (Mapping, type(None))):
        raise InputError(f"over={over!r:.80} must map names to lists of values, such as {{'eta': [0.1, 1.0]}}.")
    listed: dict[str, list[Any]] = {}
    for name, values in (over or {}).items():
        if not isinstance(name, str):
            raise InputError(f"grid over {name!r}: it is no name of a number, such as 'eta' or 'seed'.")
        if isinstance(values, str) or not hasattr(values, "__iter__"):
            raise InputError(f"grid over {name!r}: give a list of values; got {values!r}.")
        listed[name] = list(values)
        if len({np.shape(value) for value in listed[name]}) > 1:
            raise InputError(f"grid over {name!r}: its values differ in shape; give numbers, or arrays of one shape.")
    return listed


def side_by_side(
    runs: Sequence[Run],
    more: Sequence[Mapping[str, Any]],
    *,
    stop: Stop | None = None,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> list[Trace]:
    """Runs over the same data as one program; each stops by itself where `stop` says. `more` goes into their provenance."""
    if len({jax.tree.structure(run.algorithm) for run in runs}) > 1:
        raise InputError(
            "the algorithms of one grid must be of one class with equal tau and options; run one grid for each."
        )
    problem = rows_of(runs[0])
    plan, odds = planned(runs[0], measure)
    with precision(problem.dtype):
        keys = {seed: run_key(seed) for seed in {run.seed for run in runs}}
        settings = [
            Setting(r.algorithm, rows_of(r).loss, r.problem.regulariser, keys[r.seed], stop, odds) for r in runs
        ]
        alike = _alike(runs, settings, plan)
        # members of one seed beside each other
        order = sorted(set(alike), key=lambda i: runs[i].seed)
        setting, varies, shape = _stacked([settings[i] for i in order], [runs[i].seed for i in order])
        members = [runs[i] for i in order]
        recorders = [Recorder(run, "simulate") for run in members]
        carry = _worked_out(members, recorders, progress, setting, plan, varies, shape)
        place = {i: k for k, i in enumerate(order)}
        traces = []
        for run, i, said in zip(runs, alike, more, strict=True):
            recorder = recorders[place[i]].of(run)
            recorder.more.update(said)
            traces.append(finished(recorder, carry, place[i]))
        return traces


def _worked_out(
    members: Sequence[Run],
    recorders: Sequence[Recorder],
    progress: Progress | None,
    setting: Setting,
    plan: Plan,
    varies: Any,
    shape: tuple[int, int],
) -> Carry:
    """All rounds of the members, on this device or shared out over the cores."""
    look = partial(measured_together, [rows_of(run) for run in members])
    if plan.measure is None and shares_cores(members[0], len(members)):
        cores = cores_for(rows_of(members[0]))
        there = OnMesh(cores, members, setting, plan, (varies, shape))
        for recorder in recorders:
            recorder.more["mesh"] = described(cores)
        with keep_cores_awake():
            carry = there.collected(drive(there.rounds, there.first_carry(), recorders, progress, look))
    else:
        data = rows_of(members[0]).dataset

        def program(carry: Carry, records: int, every: int):
            return grid_program()(setting, data, plan, carry, records, every, varies, shape)

        carry = drive(program, first_carry(members), recorders, progress, look)
    return jax.tree.map(np.asarray, carry)


def _alike(runs: Sequence[Run], settings: Sequence[Setting], plan: Plan) -> list[int]:
    """For each run the first that is the same: where nothing is drawn, runs that differ in their seed alone are."""
    if len({run.seed for run in runs}) == 1 or plan.batch_size is not None or plan.participants < runs[0].problem.n:
        return list(range(len(runs)))
    first: dict[Any, int] = {}
    names = [
        leaves_as_bytes(setting._replace(run=None)) + leaves_as_bytes(run.x_star)
        for run, setting in zip(runs, settings, strict=True)
    ]
    if _draws(runs[0], settings[0], plan):
        return list(range(len(runs)))
    return [first.setdefault(name, i) for i, name in enumerate(names)]


_known: dict[Any, bool] = {}  # which programs draw: to find out takes as long as many a round


def _draws(run: Run, setting: Setting, plan: Plan) -> bool:
    """Does a round depend on the key of its run? JAX knows what depends on a mapped argument."""
    kind = jax.tree.structure(setting), plan
    if kind in _known:
        return _known[kind]
    start = jax.tree.map(lambda leaf: leaf[0], first_carry([run]))

    def one(key: Any) -> Carry:
        return one_round(setting._replace(run=key), rows_of(run).dataset, plan, [], start)

    try:
        jax.eval_shape(jax.vmap(one, out_axes=None), jax.eval_shape(lambda k: k[None], setting.run))
        _known[kind] = False
    except ValueError:  # an output that varies has no place outside the map
        _known[kind] = True
    return _known[kind]


def _with_values(algorithm: Algorithm, problem: Problem, seed: int, values: Mapping[str, Any]):
    """The algorithm, problem and seed of one member."""
    owners: dict[str, Any] = {"algorithm": algorithm, "regulariser": problem.regulariser, "loss": problem.loss}
    for name, value in values.items():
        owner, leaf = _whose(owners, name)
        if owner == "run":
            seed = value
        else:
            owners[owner] = with_leaf(owners[owner], leaf, value)
    return owners["algorithm"], problem.replace(owners["loss"], owners["regulariser"]), seed


def _whose(owners: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Who has the number of this name, and what it is called there; refuses a name that two of them have."""
    found = [owner for owner, record in owners.items() if has_leaf(record, name)] + ["run"] * (name == "seed")
    if len(found) > 1:
        whose = [f"{o}.{name}" + (f" (of {type(owners[o]).__name__})" if o in owners else "") for o in found]
        raise InputError(f"grid over {name!r}: there are {' and '.join(whose)}; say which one is meant.")
    if found:
        return found[0], name
    owner, _, leaf = name.partition(".")
    if (owner in owners and has_leaf(owners[owner], leaf)) or name == "run.seed":
        return owner, leaf
    known = ", ".join([*(f for record in owners.values() for f in leaf_names(record)), "seed"])
    raise InputError(f"grid over {name!r}: it is not a number of the algorithm, regulariser or loss. Known: {known}.")


def _stacked(settings: Sequence[Setting], seeds: Sequence[int]) -> tuple[Setting, Any, tuple[int, int]]:
    """One setting for all: leaves that vary have leading axes (seeds, members of each), or the one they vary along.

    Also says which axes a leaf varies along, and how long they are. Seeds that differ in how many members they have are no
    axis: then all members lie along the second.
    """
    count = len(set(seeds))
    shape = (count, len(settings) // count)
    if any(seeds.count(seed) != shape[1] for seed in seeds):
        shape = (1, len(settings))
    leaves, structures = zip(*(jax.tree.flatten(s) for s in settings), strict=True)
    out, varies = [], []
    for column in zip(*leaves, strict=True):
        keys = jnp.issubdtype(getattr(column[0], "dtype", float), jax.dtypes.prng_key)
        plain = np.stack([np.asarray(jax.random.key_data(v) if keys else v) for v in column])
        plain = plain.reshape(*shape, *plain.shape[1:])
        along = bool((plain != plain[:1]).any()), bool((plain != plain[:, :1]).any())
        cut = (slice(None) if along[0] else 0, slice(None) if along[1] else 0)
        # numbers in NumPy: moved to the device once
        out.append(
            jax.random.wrap_key_data(jnp.asarray(plain[cut]), impl=jax.random.key_impl(column[0]))
            if keys
            else plain[cut]
        )
        varies.append(along)
    return jax.tree.unflatten(structures[0], out), tuple(varies), shape
