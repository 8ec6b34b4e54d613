"""Limits on queries: what a site checks, from shapes alone, before it allocates anything for a reply.

The server is not trusted by a site. A query of a few hundred bytes can ask for terabytes (`Softmax(outputs=10**9)`) or for
work without end (`tau=2 * 10**9`). `QueryLimits.reason` refuses these with Python's whole numbers, which do not overflow,
and every field whose type, shape or range does not fit the site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.text import printable
from compfed._utils.validation import is_int
from compfed.algorithms.base import Algorithm
from compfed.algorithms.scaffnew import Random
from compfed.errors import InputError
from compfed.federation.query import Query
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.losses import OneOutput, SiteLoss, WithOffset
from compfed.losses.base import whole_site
from compfed.splits import Fold, Holdout, PredefinedSplit, SiteFold

if TYPE_CHECKING:
    from compfed.federation.site.guard import Guard

MAX_ROWS = 2**48
MAX_WIDTH = 10_000_000
MAX_CLASSES = 1_000
MAX_OUTCOMES = 10_000  # labels of a row
MAX_NAME = 200  # characters of a class or a column
MAX_REASON = 1_000  # characters of a refusal
MAX_SITES = 100_000
MAX_SCHEMA = 2**20  # characters of a schema in an enrolment
MAX_NESTED = 10  # records within records
MAX_ROUNDS = 2**31  # JAX counts rounds in 32 bits
MAX_SEED = 2**63

LOSS_METHODS = ("size", "values", "gradient", "encode", "evaluate")


@dataclasses.dataclass(frozen=True)
class QueryLimits:
    """Limits of a site on one message and on each query in it.

    Parameters
    ----------
    max_message_bytes : int, default=2**26
        Bytes of a message. The network service checks this before it decodes the message.
    max_reply_bytes : int, default=2**26
        Bytes of numbers in the reply to one message; further queries in it are refused.
    max_numbers : int, default=2**27
        Numbers to allocate for one query, beside a few copies of the site's own rows.
    max_models : int, default=10_000
        Models evaluated by one query.
    max_local_steps : int, default=100_000
        Local steps of one round.
    max_folds : int, default=10_000
        Folds of a cross-validation.

    Examples
    --------
    >>> import compfed as cf
    >>> cf.federation.QueryLimits(max_models=100).max_models
    100
    """

    max_message_bytes: int = 2**26
    max_reply_bytes: int = 2**26
    max_numbers: int = 2**27
    max_models: int = 10_000
    max_local_steps: int = 100_000
    max_folds: int = 10_000

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if type(value) is not int or value < 1:
                raise InputError(f"QueryLimits({f.name}={value!r}): {f.name} must be a whole number >= 1.")

    def reason(self, query: Query, checks: QueryChecks) -> str | None:
        """Why a site refuses a query; None if it fits. Allocates nothing of the size that a query asks for.

        A query that is not of the closed list is left to the site's other refusals.
        """
        try:
            query.check(checks)
        except InputError as problem:
            return printable(str(problem)).removesuffix(".")
        except Exception as problem:  # a field of another type than a check expects
            return f"a field of the query cannot be used ({type(problem).__name__})"
        return None


class QueryChecks:
    """What the checks of queries (`Query.check`) share, at one site. Each raises `InputError`."""

    def __init__(self, limits: QueryLimits, guard: Guard):
        self.limits, self.guard, self.site = limits, guard, guard.rows
        self.rows = len(self.site.labels)
        self.most = limits.max_numbers + 2 * self.rows * (self.site.width + 1)

    def numbers(self, count: int, what: str) -> None:
        if count > self.most:
            # how many would say how many rows there are
            raise InputError(
                f"{what} would take more numbers than its max_numbers allow. Ask for less at a time, or let the site raise it"
            )

    # --- the objective ---

    def objective(self, objective: object) -> int:
        """d, the size of a model of an objective that fits this site."""
        if type(objective) is not ObjectiveSpec:
            raise InputError(f"objective must be an ObjectiveSpec; got a {type(objective).__name__}")
        if objective.dtype not in ("float64", "float32"):
            raise InputError("dtype must be 'float64' or 'float32'")
        self.subset(objective.subset)
        self.classes(objective.classes)
        width = self.columns(objective.columns)
        if objective.scaling is not None:
            width = self.scaling(objective.scaling, width)
        check_boolean("profile", objective.profile)
        if objective.profile and not isinstance(objective.loss, OneOutput):
            raise InputError("the profile of an intercept is for losses with one prediction per row")
        return self.loss(objective.loss, width)

    def loss(self, loss: Any, width: int) -> int:
        if isinstance(loss, type) or not all(callable(getattr(loss, name, None)) for name in LOSS_METHODS):
            raise InputError(f"loss must be a loss; got a {type(loss).__name__}")
        if np.ndim(loss.ridge) or not np.isfinite(loss.ridge):
            raise InputError("the ridge of a loss must be one finite number")
        if isinstance(loss, WithOffset) and self.site.offset is None:
            raise InputError("its rows have no offset")
        outputs, d = getattr(loss, "outputs", 1), loss.size(width)
        if type(outputs) is not int or type(d) is not int:
            raise InputError("the size of a model must be a whole number")
        self.numbers(outputs, f"{outputs} outputs")
        self.numbers(self.rows * outputs, f"{outputs} predictions for each row")
        self.numbers(d, f"a model of {d} coefficients")
        return d

    def row_wise(self, objective: ObjectiveSpec, asked: str) -> None:
        """Refuse a loss of a whole site where losses of rows are asked for."""
        if isinstance(objective.loss, SiteLoss):
            raise InputError(whole_site(objective.loss, asked))

    def columns(self, columns: object) -> int:
        """The number of columns that are used."""
        if columns is None:
            return self.site.width
        return _indices("columns", columns, self.site.width).size

    def scaling(self, scaling: object, width: int) -> int:
        """The number of columns after scaling."""
        if type(scaling) is not FeatureScaling:
            raise InputError(f"scaling must be a FeatureScaling; got a {type(scaling).__name__}")
        check_finite_array("centre", scaling.centre, (width,))
        check_finite_array("scale", scaling.scale, (width,))
        check_boolean("intercept", scaling.intercept)
        check_integer("outputs", scaling.outputs, 1, self.limits.max_numbers)
        if not (scaling.scale > 0).all():
            raise InputError("scale must be > 0")
        return width + int(scaling.intercept)

    def classes(self, classes: object) -> None:
        if classes is None:
            return
        self.guard.check_classes()  # first and always: refusals by label would give the labels away
        if not isinstance(classes, np.ndarray) or classes.ndim != 1 or not 1 <= classes.size <= MAX_CLASSES:
            raise InputError(f"classes must be a list of 1 to {MAX_CLASSES} words or numbers")
        words = self.site.labels.dtype.kind not in "biuf"
        if classes.dtype.kind not in ("UO" if words else "biuf"):
            raise InputError("classes must be words where labels are words, and numbers where they are numbers")
        if (classes[1:] <= classes[:-1]).any() or (classes.dtype.kind == "f" and not np.isfinite(classes).all()):
            raise InputError("classes must be sorted, each once")

    def subset(self, subset: Any, needed: bool = False) -> None:
        """Some of the rows, which this site can find."""
        if subset is None:
            if needed:
                raise InputError("subset is missing")
            return
        if type(subset) not in (Fold, SiteFold, PredefinedSplit, Holdout):
            raise InputError(f"subset must be a subset of the rows; got a {type(subset).__name__}")
        check_boolean("held_out", subset.held_out)
        match subset:
            case Fold():
                check_integer("folds", subset.folds, 1, self.limits.max_folds)
                check_integer("number", subset.number, 0, subset.folds - 1)
                first = subset.first
                if not isinstance(first, np.ndarray) or first.ndim != 1 or first.dtype.kind not in "iu":
                    raise InputError("first must be a list of whole numbers")
                if not self.site.index < first.size <= MAX_SITES:
                    raise InputError(f"first has {first.size} entries; it must have one for each site")
                check_integer("first", int(first[self.site.index]), 0, MAX_ROWS)
            case SiteFold():
                check_integer("number", subset.number, -1, MAX_SITES)
            case PredefinedSplit():
                check_integer("number", subset.number, 0, len(self.site.splits) - 1)
            case Holdout():
                if not isinstance(subset.share, float) or not 0 < subset.share < 1:
                    raise InputError("share must be a number between 0 and 1")
        if isinstance(subset, (Fold, Holdout)):
            check_integer("seed", subset.seed, 0, MAX_SEED - 1)
            check_boolean("by_class", subset.by_class)
            if subset.by_class and self.site.labels.ndim != 1:
                raise InputError("by_class needs one label per row")

    def models(self, x: object, d: int) -> int:
        """The number of models in the rows of x."""
        if not isinstance(x, np.ndarray) or x.ndim != 2 or not 1 <= len(x) <= self.limits.max_models:
            raise InputError(f"x must be an array with a model in each row, at most {self.limits.max_models} of them")
        check_finite_array("x", x, (len(x), d))
        self.numbers(len(x) * max(self.rows, d), f"{len(x)} models")
        return len(x)

    def hessian(self, coords: object, models: int, d: int) -> None:
        w = _indices("coords", coords, d).size
        # the matrices, where their triangles are in them and back, and the columns of the rows
        self.numbers(4 * models * w * w, f"Hessians on {w} coordinates")
        self.numbers(2 * self.rows * w, f"a Hessian on {w} coordinates")

    # --- a run ---

    def run_spec(self, run_spec: object) -> None:
        if type(run_spec) is not RunSpec:
            raise InputError(f"run_spec must be a RunSpec; got a {type(run_spec).__name__}")
        d = self.objective(run_spec.objective)
        if run_spec.objective.profile:
            raise InputError("local steps know no profile of an intercept")
        self.row_wise(run_spec.objective, "local steps")
        check_finite_array("x0", run_spec.x0, (d,))
        if run_spec.x0.dtype.name != run_spec.objective.dtype:
            raise InputError(f"x0 is of {run_spec.x0.dtype.name}; the objective is in {run_spec.objective.dtype}")
        check_integer("number", run_spec.number, 0, 2**63 - 1)
        check_integer("seed", run_spec.seed, 0, MAX_SEED - 1)
        check_integer("capacity", run_spec.capacity, 1, MAX_ROWS - 1)
        check_boolean("everyone", run_spec.everyone)
        if run_spec.batch_size is not None:
            check_integer("batch_size", run_spec.batch_size, 1, run_spec.capacity)
            if not self.rows <= run_spec.capacity:
                raise InputError("capacity must be at least the number of its rows")
            # a random number for each may be drawn
            self.numbers(run_spec.capacity, f"a capacity of {run_spec.capacity} rows")
        if not isinstance(run_spec.algorithm, Algorithm):
            raise InputError(f"algorithm must be an Algorithm; got a {type(run_spec.algorithm).__name__}")
        batch = self.rows if run_spec.batch_size is None else run_spec.batch_size
        self.algorithm(run_spec.algorithm, d, steps_per_epoch=-(-self.rows // batch))
        self.regulariser(run_spec.regulariser, d)

    def algorithm(self, algorithm: Algorithm, d: int, steps_per_epoch: int = 1) -> None:
        steps, most = 1, self.limits.max_local_steps
        for record, name, value in _fields(algorithm):
            if name == "tau" and getattr(record, "epochs", None) is not None:
                continue  # epochs stand in its place
            if name == "keep":
                check_integer(name, value, 1, d)
            elif type(value) is int:  # numbers of steps within steps multiply
                steps *= max(value, 1) * (steps_per_epoch if name == "epochs" else 1)
            elif isinstance(record, Random) and name == "p" and value * most < 1:
                raise InputError(
                    f"p={value:g} makes rounds of {1 / value:.3g} local steps; its max_local_steps is {most}"
                )
            elif np.ndim(value) > 0:
                raise InputError(f"{name} must be one number")
            if steps > most:
                raise InputError(
                    f"{name}={value} makes rounds of {steps} local steps; its max_local_steps is {most}. Use fewer steps, or "
                    "let the site raise it"
                )

    def regulariser(self, g: Any, d: int) -> None:
        if isinstance(g, type) or not callable(g) or not callable(getattr(g, "prox", None)):
            raise InputError(f"regulariser must be a regulariser; got a {type(g).__name__}")
        for _, name, value in _fields(g):
            if np.ndim(value) > 1 or np.size(value) > max(d, 1):
                raise InputError(
                    f"{name} has shape {np.shape(value)}; it must be a number, or one for each of {d} coefficients"
                )

    def message(self, arrays: object) -> None:
        """The message of a round: its names, shapes and dtypes are compared with the algorithm's own later."""
        if not isinstance(arrays, Mapping) or not all(isinstance(a, np.ndarray) for a in arrays.values()):
            raise InputError("d must be a table of arrays")


# --- single values ---


def _fields(record: Any, depth: int = 0) -> Iterator[tuple[Any, str, Any]]:
    """(record, field, value) of a record and of the records and tuples of records in it; None is left out."""
    if depth > MAX_NESTED:
        raise InputError(f"records are nested more than {MAX_NESTED} deep")
    for f in dataclasses.fields(record):
        value = getattr(record, f.name)
        several = isinstance(value, tuple) and any(dataclasses.is_dataclass(item) for item in value)
        for item in value if several else (value,):
            if dataclasses.is_dataclass(item):
                yield from _fields(item, depth + 1)
            elif item is not None and not isinstance(item, (str, bool)):
                yield record, f.name, item


def check_floats(name: str, value: object, shape: tuple[int, ...]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype.name not in ("float64", "float32"):
        raise InputError(f"{name} must be an array of float64 or float32")
    if value.shape != shape:
        raise InputError(f"{name} has shape {value.shape}; expected {shape}")


def check_finite_array(name: str, value: Any, shape: tuple[int, ...]) -> None:
    check_floats(name, value, shape)
    if not np.isfinite(value).all():
        raise InputError(f"{name} has numbers that are NaN or infinite")


def _indices(name: str, value: object, below: int) -> np.ndarray:
    """An array of different whole numbers from 0 to below - 1; at most `below` of them."""
    if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype.kind not in "iu":
        raise InputError(f"{name} must be a list of whole numbers")
    if value.size > below:
        raise InputError(f"{name} has {value.size} entries; there are {below} to choose from, each once")
    if value.size and not (int(value.min()) >= 0 and int(value.max()) < below and len(np.unique(value)) == value.size):
        raise InputError(f"{name} must have different whole numbers from 0 to {below - 1}")
    return value


def check_integer(name: str, value: Any, least: int, most: int) -> None:
    if not is_int(value) or not least <= value <= most:
        shown = value if is_int(value) else f"a {type(value).__name__}"
        raise InputError(f"{name}={shown} must be a whole number from {least} to {most}")


def check_boolean(name: str, value: object) -> None:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} must be True or False")
