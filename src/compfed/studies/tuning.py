"""Settings of a method, and the search for the best: the same number of candidates for every method, on tuning seeds.

A contender is a class whose default steps are scaled, a class or an instance with values to try (`tune=`), or an instance that
runs as it is. Every method may try `candidates` settings; where more are possible, so many are drawn at random. While the best
setting is the largest or the smallest tried of a step or another positive number, settings beyond it are tried, up to as many
again. With a total (`Tries.total`), every method with a step tries exactly so many: beyond an edge, or else beside the best one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from compfed._utils.records import describe, has_leaf, leaves_as_bytes, with_leaf
from compfed._utils.text import join_names
from compfed._utils.validation import is_number
from compfed.algorithms import Algorithm, default_steps
from compfed.errors import InputError
from compfed.problem.problem import Problem
from compfed.simulation import grid
from compfed.solvers.auto import find_method
from compfed.solvers.base import Method, SecondOrder
from compfed.trace import Trace

SCALE = "scale"  # multiplies the default steps
BATCH = "batch_size"  # an option of the run that can be tuned beside the fields of a method
BEYOND = 2  # settings tried beyond an edge at a time

Values = dict[str, Any]  # of the hyper-parameters of one setting


@dataclass(frozen=True)
class Tries:
    """How many settings a method may try: those at first, the ratio between multiples of default steps, and how many in all."""

    first: int
    ratio: float = 2.0
    total: int | None = None  # None: up to `first` more, and only beyond an edge


Given = str | Method | Algorithm | SecondOrder


@dataclass(frozen=True)
class Contender:
    """A method under its label: a class, or an instance as it was given, and the values to try by name."""

    label: str
    method: Method
    given: Algorithm | SecondOrder | None = None
    axes: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    every_step: bool = (
        False  # whether a scale multiplies the gradient step `eta` too, where the method's own rule keeps it
    )

    @property
    def is_solver(self) -> bool:
        """Is this one of the second-order solvers, which run once?"""
        return issubclass(self.method, SecondOrder)

    def algorithm(self, problem: Problem, tau: int, values: Values, L: Any = None) -> Algorithm:
        """The method with these values, steps that are not among them by its own rule."""
        assert issubclass(self.method, Algorithm)
        own = {name: value for name, value in values.items() if name not in (SCALE, BATCH) or self._has(name)}
        base = self.given
        if base is None:
            fields = {f.name: f.default is dataclasses.MISSING for f in _fields(self.method)}
            given = ({"tau": tau} if "tau" in fields else {}) | {n: v for n, v in own.items() if n in fields}
            if own and all(name in given for name, required in fields.items() if required):
                base = self.method(**given)
            else:
                # a loss without a bound on its curvature: steps that suit the start, of which multiples are tried
                at = problem.start if L is None and problem.loss.curvature is None else None
                scale = values.get(SCALE, 1.0)
                base = default_steps(self.method, problem, tau, scale, at, L)
                if self.every_step and has_leaf(base, "eta"):
                    unscaled: Any = default_steps(self.method, problem, tau, 1.0, at, L)
                    base = with_leaf(base, "eta", unscaled.eta * scale)
        for name, value in own.items():
            base = with_leaf(base, name, value)
        assert isinstance(base, Algorithm)
        return base

    def _has(self, name: str) -> bool:
        return name in {f.name for f in _fields(self.method)}


def _fields(method: Any) -> tuple[dataclasses.Field[Any], ...]:
    """The hyper-parameters of a method; none of a class that is no record, which is refused when it is bound."""
    return dataclasses.fields(method) if dataclasses.is_dataclass(method) else ()


def contenders(methods: Sequence[Given] | Mapping[str, Given], tune: Mapping[str, Any]) -> list[Contender]:
    """The methods asked for, by label: names, classes and instances, with the values to try."""
    named: list[tuple[str | None, Given]]
    if isinstance(methods, Mapping):
        named = [(str(label), method) for label, method in methods.items()]
    elif isinstance(methods, (str, type, Algorithm, SecondOrder)) or not hasattr(methods, "__iter__"):
        raise InputError(
            f"methods={methods!r}: give a list of names, classes or instances, such as ['FedDA', MyMethod, "
            "DecoupledProx(eta=1.0)], or a dict from labels to these."
        )
    else:
        named = [(None, method) for method in methods]
    found = [(label, *_found(method)) for label, method in named]
    labels = _labels(found)
    repeated = [label for label, times in Counter(labels).items() if times > 1]
    if not found or repeated:
        what = f"{repeated[0]} is asked for twice" if repeated else "the list is empty"
        raise InputError(f"methods: {what}; results are kept by labels. Give a dict from labels to methods.")
    chosen = [Contender(label, cls, given) for label, (_, cls, given) in zip(labels, found, strict=True)]
    return [dataclasses.replace(each, axes=_axes(each, tune)) for each in _check_tune(chosen, tune)]


def _found(method: Given) -> tuple[Method, Algorithm | SecondOrder | None]:
    if isinstance(method, (Algorithm, SecondOrder)):
        return type(method), method
    return find_method(method), None


def _labels(found: Sequence[tuple[str | None, Method, Any]]) -> list[str]:
    """The given labels, or names of classes; instances of one class differ in the fields that do."""
    names = Counter(cls.__name__ for label, cls, _ in found if label is None)
    labels = []
    for label, cls, given in found:
        if label is None:
            label, twins = cls.__name__, [g for lb, c, g in found if lb is None and c is cls]
            if names[label] > 1 and given is not None:
                mine, others = describe(given), [describe(g) for g in twins if g is not None and g is not given]
                differing = [k for k in mine if any(o.get(k) != mine[k] for o in others)] or list(mine)[1:]
                label += f"({', '.join(f'{k}={_short(mine[k])}' for k in differing)})"
        labels.append(label)
    return labels


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{k}={_short(v)}" for k, v in value.items() if k != "name")
        return f"{value['name']}({inside})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_tune(chosen: list[Contender], tune: Mapping[str, Any]) -> list[Contender]:
    """Refuse values for a method that is not there, or under a name that no method has."""
    if not isinstance(tune, Mapping):
        raise InputError(f"tune={tune!r:.80} must map names of hyper-parameters, or labels of methods, to what to try.")
    labels = {each.label: each for each in chosen}
    for name, values in tune.items():
        owners = [labels[name]] if name in labels else chosen
        for field_name, tried in values.items() if isinstance(values, Mapping) else [(name, values)]:
            if isinstance(values, Mapping) and name not in labels:
                raise InputError(f"tune: there is no method {name!r}; there are {join_names(list(labels))}.")
            if isinstance(tried, str) or not hasattr(tried, "__len__") or not len(tried):
                raise InputError(f"tune: give a list of values for {field_name!r}; got {tried!r:.60}.")
            if not any(_takes(owner, field_name) for owner in owners):
                known = sorted({n for owner in owners for n in _names(owner)})
                raise InputError(f"tune: no method has {field_name!r}; known: {join_names(known, most=20)}.")
    return chosen


def _names(each: Contender) -> list[str]:
    return [] if each.is_solver else [*(f.name for f in _fields(each.method)), SCALE, BATCH]


def _takes(each: Contender, name: str) -> bool:
    if each.is_solver or (name == SCALE and each.given is not None):
        return False
    return name in _names(each) or (each.given is not None and has_leaf(each.given, name)) or "." in name


def _axes(each: Contender, tune: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """The values to try for one method: those for all methods that have the field, then its own."""
    shared: dict[str, Sequence[Any]] = {
        n: list(v) for n, v in tune.items() if not isinstance(v, Mapping) and "." not in n and _takes(each, n)
    }
    own = tune.get(each.label, {})
    return shared | ({n: list(v) for n, v in own.items()} if isinstance(own, Mapping) else {})


# --- the search ---


@dataclass(frozen=True)
class Tuned:
    """The setting that was chosen, and all that were tried: values and score, the less the better, inf for a divergence."""

    values: Values
    tried: list[tuple[Values, float]]
    at_edge: list[str]

    def describe(self, seeds: Sequence[int]) -> dict[str, Any]:
        """As plain data."""
        tried = [values | {"score": score if np.isfinite(score) else None} for values, score in self.tried]
        return {"tried": tried, "chosen": self.values, "at_edge": self.at_edge, "seeds": list(seeds)}


Run = Callable[[Sequence[Values]], Sequence[float]]  # the scores of some settings


def search(each: Contender, problem: Problem, tau: int, tries: Tries, seed: int, run: Run, L: Any = None) -> Tuned:
    """Try the first settings of a method, then settings beyond the edges where the best one lies, or beside it."""
    candidates = tries.first
    first = settings(each, problem, tau, tries, seed, L)
    tried = list(zip(first, run(first), strict=True))
    most = len(tried) + candidates if tries.total is None else tries.total
    while True:
        best = min(tried, key=lambda pair: pair[1])[0]
        wider = beyond(each, problem, tau, best, [values for values, _ in tried], L)
        further = wider if wider or tries.total is None else beside(each, problem, tau, best, [v for v, _ in tried], L)
        new = [values for values in further if values not in [v for v, _ in tried]][: max(0, most - len(tried))]
        if candidates == 1 or not new:
            edges = {name for values in wider for name in values if values[name] != best[name]}
            return Tuned(best, tried, sorted(edges) if candidates > 1 else [])
        tried += zip(new, run(new), strict=True)


def settings(each: Contender, problem: Problem, tau: int, tries: Tries, seed: int, L: Any = None) -> list[Values]:
    """The first settings to try: all combinations, or so many of them drawn at random."""
    axes, candidates = dict(each.axes), tries.first
    if not axes:
        if each.given is not None or _is_free_of_steps(each, problem, tau, L):
            return [{}]
        axes = {SCALE: (tries.ratio ** (np.arange(candidates) - candidates // 2)).tolist()}
    every = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if len(every) <= candidates:
        return every
    drawn = np.random.default_rng(seed).choice(len(every), candidates, replace=False)
    return [every[i] for i in sorted(drawn.tolist())]


def _is_free_of_steps(each: Contender, problem: Problem, tau: int, L: Any) -> bool:
    """Whether the method has no number that the scale of its steps changes."""
    once, twice = (each.algorithm(problem, tau, {SCALE: scale}, L) for scale in (1.0, 2.0))
    return leaves_as_bytes(once) == leaves_as_bytes(twice)


def beyond(
    each: Contender, problem: Problem, tau: int, best: Values, tried: Sequence[Values], L: Any = None
) -> list[Values]:
    """The best setting with one number beyond all that were tried, for every number whose best value is an edge."""
    found: list[Values] = []
    for name, value in best.items():
        along = sorted({v[name] for v in tried if is_number(v[name])})
        if len(along) < 2 or along[0] <= 0 or value not in (along[0], along[-1]):
            continue
        inner = along[1] if value == along[0] else along[-2]
        further = [float(value * (value / inner) ** (k + 1)) for k in range(BEYOND)]
        for new in [best | {name: v} for v in further] if _is_leaf(each, problem, tau, best, name, L) else []:
            try:
                each.algorithm(problem, tau, new, L)
            except InputError:  # the field does not take so large or small a value
                break
            found.append(new)
    return found


def beside(
    each: Contender, problem: Problem, tau: int, best: Values, tried: Sequence[Values], L: Any = None
) -> list[Values]:
    """The best setting with one number halfway, on a log scale, to the next ones that were tried."""
    found: list[Values] = []
    for name, value in best.items():
        along = sorted({v[name] for v in tried if is_number(v[name])})
        if len(along) < 2 or along[0] <= 0 or value not in along or not _is_leaf(each, problem, tau, best, name, L):
            continue
        k = along.index(value)
        found += [
            best | {name: float(np.sqrt(value * near))} for near in (*along[k + 1 : k + 2], *along[max(0, k - 1) : k])
        ]
    return found


def _is_leaf(each: Contender, problem: Problem, tau: int, values: Values, name: str, L: Any) -> bool:
    """Whether a name is that of a number, rather than of a count or a choice that shapes the program."""
    return (name == SCALE and not each._has(SCALE)) or has_leaf(each.algorithm(problem, tau, values, L), name)


def run_settings(
    each: Contender,
    problem: Problem,
    tau: int,
    chosen: Sequence[Values],
    seeds: Sequence[int],
    rounds: Callable[[Algorithm, int | None], int],
    **options: Any,
) -> list[list[Trace]]:
    """The traces of some settings, one per seed; settings that need one program run as one."""
    groups: dict[Any, list[tuple[int, Algorithm]]] = {}
    for i, values in enumerate(chosen):
        algorithm = each.algorithm(problem, tau, values, options.get("L"))
        batch = values.get(BATCH, options.get(BATCH)) if not each._has(BATCH) else options.get(BATCH)
        groups.setdefault((jax.tree.structure(algorithm), rounds(algorithm, batch), batch), []).append((i, algorithm))
    traces: list[list[Trace]] = [[] for _ in chosen]
    for (_, count, batch), members in groups.items():
        found = grid(
            problem, [a for _, a in members], count, {"seed": list(seeds)}, record_every=max(1, count // 1000),
            **options | {BATCH: batch},
        )  # fmt: skip
        for k, (i, _) in enumerate(members):
            traces[i] = found[k * len(seeds) : (k + 1) * len(seeds)]
    return traces
