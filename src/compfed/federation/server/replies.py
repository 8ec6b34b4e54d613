"""Checks of replies: kind, fields, dtypes, shapes, and values that an honest site can give.

Sites in this process cannot get this wrong. A site across a network may be another version, broken or hostile: its reply
is checked before it enters any sum, so that the site which is at fault is the one that is named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from compfed._utils.text import is_printable, printable
from compfed.algorithms.round import message_shapes
from compfed.errors import InputError
from compfed.federation.codec import unnamed
from compfed.federation.enrolment import Enrolment
from compfed.federation.limits import MAX_CLASSES, MAX_NAME, MAX_OUTCOMES, MAX_REASON, MAX_ROWS, MAX_SCHEMA, MAX_WIDTH
from compfed.federation.queries import (
    LIPSCHITZ_BINS,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Query,
    Refusal,
    Score,
    Tabulate,
    lipschitz_bin,
)
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import MultiSquared
from compfed.schema import CategoricalColumn

DOUBLE = ("float64",)
EITHER = ("float64", "float32")
MAX_BITS = 1100  # of a number that is finite


def fault(queries: Sequence[Query], replies: object, *, weighted: bool = False, width: int | None = None) -> str | None:
    """What is wrong with the replies to a message, in a sentence for a person; None if nothing is.

    Parameters
    ----------
    queries : the queries that were sent, which this side made and trusts.
    replies : the unpacked reply; any value at all.
    weighted : whether rows may have weights; without them a weight is a number of rows.
    width : columns of the site, where known from an earlier reply to `Describe`.

    Never raises: a reply that makes a check fail is at fault.
    """
    try:
        return _fault(queries, replies, weighted, width)
    except Exception as problem:  # whatever a reply provokes is its fault
        return f"the reply cannot be checked: {type(problem).__name__}"


def enrolment_fault(enrolment: object) -> str | None:
    """What is wrong with the enrolment of a site; None if nothing is. Never raises."""
    try:
        _enrolment(enrolment)
    except InputError as wrong:
        return printable(str(wrong))
    except Exception as problem:  # whatever an enrolment provokes is its fault
        return f"the enrolment cannot be checked: {type(problem).__name__}"
    return None


def _enrolment(e: object) -> None:
    if type(e) is not Enrolment:
        raise InputError("it is not an enrolment")
    _integer("rows", e.rows, 1, MAX_ROWS)
    for name in ("offset", "weighted"):
        _boolean(name, getattr(e, name))
    _weight("weight", e.weight, weighted=e.weighted)
    if e.weighted and not e.weight > 0:
        raise InputError(f"weight is {e.weight:g}; expected a number > 0")
    if not e.weighted and e.weight != float(e.rows):
        raise InputError(f"weight is {e.weight:g} for {e.rows} rows; over a network it is their number")
    _width(e.width, None)
    _columns(e)
    if type(e.label_kind) is not str or e.label_kind not in tuple("biufUO"):
        raise InputError("label_kind is not a letter for numbers or words")
    if type(e.label_shape) is not tuple or len(e.label_shape) > 1:
        raise InputError("label_shape is not that of one label per row, or of several outcomes")
    for outcomes in e.label_shape:
        _integer("outcomes", outcomes, 1, MAX_OUTCOMES + 1)
    if e.classes is not None:
        _sorted_classes(e.classes, MAX_CLASSES, "biufU")
    for name in ("no_classes", "table", "version"):
        if type(value := getattr(e, name)) is not str or len(value) > MAX_REASON or not is_printable(value):
            raise InputError(f"{name} is not a text of at most {MAX_REASON} printable characters")
    _array("column_bits", e.column_bits, (e.width,), ("int32",))
    if ((e.column_bits > MAX_BITS) | (e.column_bits < -MAX_BITS)).any():  # the size of -2**31 is no int32
        raise InputError(f"column_bits has numbers beyond {MAX_BITS}")
    _integer("label_bits", e.label_bits, -MAX_BITS, MAX_BITS + 1)
    for name in ("min_rows", "buckets"):
        _integer(name, getattr(e, name), 1, MAX_ROWS)
    if type(e.max_hessian_share) is not float or not e.max_hessian_share >= 0:
        raise InputError(f"max_hessian_share is {_shown(e.max_hessian_share)}; expected a number >= 0")
    outcomes = e.label_shape[0] if e.label_shape else 1
    sizes = (0, e.width, e.width + outcomes)  # without a policy, with words as labels, with numbers
    if not isinstance(e.varies, np.ndarray) or e.varies.size not in sizes:
        raise InputError("varies has not one entry for every column")
    _array("varies", e.varies, (e.varies.size,), ("bool",))
    _boolean("secure_sum", e.secure_sum)
    _boolean("agreed", e.agreed)
    _table_facts(e)


def _table_facts(e: Enrolment) -> None:
    """The schema of a site is text from outside: its size comes first, then TOML, then its names."""
    for name, most in (("schema", MAX_SCHEMA), ("not_encoded", MAX_REASON)):
        if type(value := getattr(e, name)) is not str or len(value) > most:
            raise InputError(f"{name} is not a text of at most {most} characters")
        if not is_printable(value.replace("\n", " ")):
            raise InputError(f"{name} has characters that cannot be printed")
    _schema_lines(e.schema)
    width = len(e.table_columns) if e.schema else 0
    _array("table_bits", e.table_bits, (width,), ("int32",))
    if ((e.table_bits > MAX_BITS) | (e.table_bits < -MAX_BITS)).any():
        raise InputError(f"table_bits has numbers beyond {MAX_BITS}")
    for name in ("has_missing", "has_rare"):
        _array(name, getattr(e, name), (width,), ("bool",))
    if e.label_classes is not None:
        _sorted_classes(e.label_classes, MAX_CLASSES, "biufU")
    words = [*e.table_columns] if e.schema else []
    for column in e.table_schema.columns.values() if e.schema else ():
        words += column.levels if isinstance(column, CategoricalColumn) else ()
    label = e.table_schema.label
    words += [c for c in (label.classes or () if e.schema and label is not None else ()) if type(c) is str]
    rows = (e.table_schema.weight, e.table_schema.offset, e.table_schema.stratum) if e.schema else ()
    for word in [*words, *(name for name in rows if name is not None)]:
        if not 1 <= len(word) <= MAX_NAME or not is_printable(word):
            raise InputError(f"its schema names {_shown(word)}; a name has 1 to {MAX_NAME} printable characters")


STRING, NUMBER = r'"(?:[^"\\]|\\.){0,2000}"', r"[-+.\w]{1,40}"
ITEM = f"(?:{STRING}|{NUMBER})"
SCHEMA_LINE = re.compile(
    rf"(?:|#.*|\[(?:columns\.{STRING}|label|rows)\]|\w{{1,20}} = (?:{ITEM}|\[(?:{ITEM}(?:, {ITEM})*)?\]))"
)


def _schema_lines(schema: str) -> None:
    """Only lines as `Schema.to_toml` writes them: nested and dotted keys take time without end to read as TOML."""
    for line in schema.split("\n"):
        if SCHEMA_LINE.fullmatch(line) is None:
            raise InputError("schema has a line that no site writes")


def _fault(queries: Sequence[Query], replies: object, weighted: bool, width: int | None) -> str | None:
    if type(replies) is not tuple or len(replies) != len(queries):
        count = f"{len(replies)} replies" if type(replies) is tuple else f"a {type(replies).__name__}"
        return f"{count} to {len(queries)} queries"
    for query, reply in zip(queries, replies, strict=True):
        kind = type(query).__name__
        try:
            if type(reply) is Refusal:
                _reason(reply)
                continue
            if type(reply) is not type(query).Reply:  # pyright: ignore[reportAttributeAccessIssue]  # every query has one
                return f"the reply to {kind} is a {printable(type(reply).__qualname__, 100)}"
            if isinstance(reply, Describe.Reply):
                width = _width(reply.width, width)
            _check(query, reply, weighted, width)
        except InputError as wrong:
            return f"{kind}: {printable(str(wrong))}"
    return None


def _check(query: Query, reply: Any, weighted: bool, width: int | None) -> None:
    match query:
        case Describe():
            _described(query, reply, weighted)
        case Moments():
            _moments(reply, width, weighted)
        case Lipschitz():
            _lipschitz(query, reply)
        case Evaluate():
            _evaluated(query, reply)
        case HeldOut():
            _weight("weight", reply.weight, weighted)
            _array("loss", reply.loss, (len(query.x),), _dtypes(query.objective, DOUBLE))
            _at_most_infinite("loss", reply.loss)
        case Score():
            _scored(query, reply, weighted)
        case LocalUpdate():
            run_spec = query.run_spec  # the server loop checks that its numbers are finite: a run may diverge
            shapes = message_shapes(run_spec.algorithm, run_spec.regulariser, run_spec.x0.size, run_spec.x0.dtype)
            if type(reply.u) is not dict or not all(isinstance(a, np.ndarray) for a in reply.u.values()):
                raise InputError("u is not a table of arrays")
            unnamed(reply.u, shapes[query.exchange].update)
            _boolean("finite", reply.finite)
        case FinishRound():
            _boolean("finite", reply.finite)
        case Tabulate():
            _tabulated(query, reply)


# --- each kind of reply ---


def _reason(reply: Refusal) -> None:
    if type(reply.reason) is not str or len(reply.reason) > MAX_REASON:
        raise InputError(f"the reason of a refusal must be a text of at most {MAX_REASON} characters")


def _described(query: Describe, reply: Describe.Reply, weighted: bool) -> None:
    rows, least = reply.rows, 0 if query.subset is not None else 1
    _integer("rows", rows, least, MAX_ROWS)
    _weight("weight", reply.weight, weighted)
    if not weighted and reply.weight != float(rows):
        raise InputError(f"weight is {reply.weight:g} for {rows} rows; without row weights it is their number")
    if (reply.weight > 0) != (rows > 0):
        raise InputError(f"weight is {reply.weight:g} for {rows} rows")
    _columns(reply)
    if query.classes:
        _classes(reply)
        _array("label_mean", reply.label_mean, (), DOUBLE)
        if not np.isnan(reply.label_mean):
            raise InputError("label_mean must be NaN where labels are classes")
    else:
        _array("classes", reply.classes, (0,), DOUBLE)
        _array("class_weights", reply.class_weights, (0,), DOUBLE)
        _vector("label_mean", reply.label_mean, (0, 1))
    _boolean("offset", reply.offset)


def _width(value: Any, known: int | None) -> int:
    _integer("width", value, 0, MAX_WIDTH + 1)  # a site without columns has an intercept to fit
    if known is not None and value != known:
        raise InputError(f"width is {value}; it was {known}")
    return value


def _columns(reply: Describe.Reply | Enrolment) -> None:
    columns = reply.columns
    if columns is None:
        return
    if type(columns) is not tuple or len(columns) != reply.width:
        count = len(columns) if type(columns) is tuple else f"a {type(columns).__name__} of"
        raise InputError(f"it names {count} columns; its width is {reply.width}")
    for name in columns:
        if type(name) is not str or not 1 <= len(name) <= MAX_NAME or not is_printable(name):
            raise InputError(f"a column is named {_shown(name)}; a name has 1 to {MAX_NAME} printable characters")
    if len(set(columns)) < len(columns):
        raise InputError("it names a column twice")


def _classes(reply: Describe.Reply) -> None:
    classes, weights = reply.classes, reply.class_weights
    _sorted_classes(classes, MAX_CLASSES, "biufU")
    _array("class_weights", weights, classes.shape, DOUBLE)
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InputError("class_weights must be finite and >= 0")
    if not np.isclose(weights.sum(), reply.weight, rtol=1e-9, atol=0):
        raise InputError(f"class_weights add up to {weights.sum():g}; weight is {reply.weight:g}")


def _sorted_classes(classes: object, most: int, kinds: str) -> None:
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or classes.dtype.kind not in kinds:
        raise InputError("classes must be a list of words or numbers")
    if classes.size > most:
        raise InputError(f"it lists {classes.size} classes; at most {most} are taken")
    if classes.dtype.kind == "f" and not (np.isfinite(classes).all() and (classes == np.rint(classes)).all()):
        raise InputError("classes that are numbers must be whole")
    if (classes[1:] <= classes[:-1]).any():
        raise InputError("classes must be sorted, each once")
    for word in classes.tolist() if classes.dtype.kind == "U" else ():
        if len(word) > MAX_NAME or not is_printable(word):
            raise InputError(f"a class is named {_shown(word)}; a name has at most {MAX_NAME} printable characters")


def _tabulated(query: Tabulate, reply: Tabulate.Reply) -> None:
    _integer("rows", reply.rows, 1, MAX_ROWS)
    width = len(query.numeric)
    shapes = {"missing": width + len(query.categorical), "below": sum(map(len, query.thresholds))}
    shapes["levels"] = sum(map(len, query.levels))
    for name, count in shapes.items():
        _array(name, value := getattr(reply, name), (count, 2), DOUBLE)
        _finite(name, value, nonnegative=True)
        if (value[:, 0] > value[:, 1]).any() or (value[:, 0] > reply.rows).any() or (value != np.rint(value)).any():
            raise InputError(f"{name} does not count its rows")
    _array("values", reply.values, (width,), DOUBLE)
    if not ((reply.values >= 0) & (reply.values <= reply.rows) & (reply.values == np.rint(reply.values))).all():
        raise InputError("values does not count its rows")
    withheld = np.isnan(reply.mean)
    for name in ("mean", "mean_low", "square", "square_low"):
        _array(name, value := getattr(reply, name), (width,), DOUBLE)
        if (np.isnan(value) != withheld).any():
            raise InputError(f"{name} is NaN where another moment of the column is not")
        _finite(name, value[~withheld], nonnegative=name == "square")


def _moments(reply: Moments.Reply, width: int | None, weighted: bool) -> None:
    if not isinstance(reply.mean, np.ndarray) or reply.mean.ndim != 1 or reply.mean.size > MAX_WIDTH:
        raise InputError("mean must be one number per column")
    _weight("weight", reply.weight, weighted)
    for name in ("mean", "mean_low", "square", "square_low"):
        _array(name, value := getattr(reply, name), (reply.mean.size if width is None else width,), DOUBLE)
        _finite(name, value, nonnegative=name == "square")
    # both are what rounding lost of the number before: at most half a unit of its last place, with a margin
    for name, high in (("mean_low", np.sqrt(reply.square)), ("square_low", reply.square)):
        if (np.abs(getattr(reply, name)) > 1e-10 * np.abs(high) + np.finfo(float).tiny).any():
            raise InputError(f"{name} is larger than what rounding can lose")


def _evaluated(query: Evaluate, reply: Evaluate.Reply) -> None:
    models, d = np.shape(query.x)
    dtypes = _dtypes(query.objective, DOUBLE)
    _array("value", reply.value, (models,), dtypes)
    _array("gradient", reply.gradient, (models, d), dtypes)
    _array("terms", reply.terms, (models,), dtypes)
    _at_most_infinite("value", reply.value)
    # far from the minimum a loss may be infinite, and its gradient NaN
    usual = np.isfinite(reply.value)
    everywhere = bool(usual.all())
    _finite("gradient", reply.gradient if everywhere else reply.gradient[usual])
    _finite("terms", reply.terms if everywhere else reply.terms[usual], nonnegative=True)
    _hessian(query, reply)
    if (reply.conjugate is None) != (query.dual is None):
        raise InputError("a conjugate is there without being asked for, or missing")
    if reply.conjugate is not None:
        _array("conjugate", reply.conjugate, (models,), DOUBLE)
        _at_most_infinite("conjugate", reply.conjugate)


def _hessian(query: Evaluate, reply: Evaluate.Reply) -> None:
    if (reply.hessian is None) != (query.coords is None):
        raise InputError("a hessian is there without being asked for, or missing")
    if reply.hessian is None or query.coords is None:
        return
    loss, w = query.objective.loss, len(query.coords)
    size = loss.packed_size(w)
    if isinstance(loss, MultiSquared):  # one matrix for all outputs, on the features that the coordinates speak of
        features = len(np.unique(np.asarray(query.coords) // loss.outputs))
        size = features * (features + 1) // 2
    _array("hessian", reply.hessian, (len(query.x), size), _dtypes(query.objective, DOUBLE))
    _finite("hessian", reply.hessian[np.isfinite(reply.value)])  # far out a loss is infinite, and has no Hessian


def _scored(query: Score, reply: Score.Reply, weighted: bool) -> None:
    """Bounds are in order, and within the weight of the rows."""
    _weight("weight", reply.weight, weighted)
    _number("brier", reply.brier)
    for name in ("loss", "saturated"):
        if type(value := getattr(reply, name)) is not float or np.isnan(value):
            raise InputError(f"{name} is {_shown(value)}; expected a number")
    for name, shape in query.shapes().items():
        _array(name, getattr(reply, name), shape, DOUBLE)
    _at_most_infinite("moments", np.abs(reply.moments))
    refused = np.isnan(reply.lines).any(axis=1)
    _finite("lines", reply.lines[~refused])
    most = reply.weight * (1 + 1e-9)
    for name in ("class_weights", "low", "high", "confusion_low", "confusion_high"):
        _finite(name, getattr(reply, name), nonnegative=True)
    for low, high in ((reply.low, reply.high), (reply.confusion_low, reply.confusion_high)):
        if (low > high).any() or (high > most).any():
            raise InputError("a lower bound is above its upper bound, or above the weight of the rows")
    if (np.diff(reply.low) < 0).any() or (np.diff(reply.high) < 0).any():
        raise InputError("sums below thresholds must not fall")
    if reply.class_weights.size and not np.isclose(reply.class_weights.sum(), reply.weight, rtol=1e-9, atol=0):
        raise InputError("class_weights do not add up to weight")


def _lipschitz(query: Lipschitz, reply: Lipschitz.Reply) -> None:
    _number("L", reply.L)
    if query.upper_bound:
        if reply.counts is not None:
            raise InputError("counts are there without being asked for")
        return
    _array("counts", reply.counts, (LIPSCHITZ_BINS,), ("uint8",))
    expected = np.zeros(LIPSCHITZ_BINS, np.uint8)
    expected[lipschitz_bin(reply.L)] = 1
    if not np.array_equal(reply.counts, expected):  # pyright: ignore[reportArgumentType]  # an array, as checked
        raise InputError("counts must have a single 1, in the bin of L")


# --- single values ---


def _dtypes(objective: ObjectiveSpec, double: tuple[str, ...]) -> tuple[str, ...]:
    """The dtypes that replies about an objective may have."""
    return EITHER if objective.dtype == "float32" else double


def _array(name: str, value: object, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """An array of exactly this shape and one of these dtypes: checked before its numbers are."""
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name} is not an array")
    if value.dtype.name not in dtypes:
        raise InputError(f"{name} is of {value.dtype.name}; expected {' or '.join(dtypes)}")
    if value.shape != shape:
        raise InputError(f"{name} has shape {value.shape}; expected {shape}")


def _vector(name: str, value: object, dimensions: tuple[int, ...]) -> None:
    if not isinstance(value, np.ndarray) or value.ndim not in dimensions or value.size > MAX_OUTCOMES:
        raise InputError(f"{name} must be one number per outcome, at most {MAX_OUTCOMES}")
    _array(name, value, value.shape, DOUBLE)
    _finite(name, value)


def _finite(name: str, value: np.ndarray, nonnegative: bool = False) -> None:
    wrong = value.size - int(np.count_nonzero(np.isfinite(value)))
    if wrong:
        raise InputError(f"{name} has {wrong} number(s) that are NaN or infinite")
    if nonnegative and (value < 0).any():
        raise InputError(f"{name} has numbers below 0")


def _at_most_infinite(name: str, value: np.ndarray) -> None:
    """Finite, or plus infinity where a model is far out."""
    if np.isnan(value).any() or (value == -np.inf).any():
        raise InputError(f"{name} has numbers that are NaN or minus infinity")


def _number(name: str, value: object) -> None:
    if type(value) is not float or not 0 <= value < np.inf:
        raise InputError(f"{name} is {_shown(value)}; expected a finite number >= 0")


def _weight(name: str, value: Any, weighted: bool) -> None:
    _number(name, value)
    if not weighted and not (value < MAX_ROWS and value == np.rint(value)):
        raise InputError(f"{name} is {value:g}; without row weights it is a number of rows")


def _integer(name: str, value: object, least: int, below: int) -> None:
    if type(value) is not int or not least <= value < below:
        raise InputError(f"{name} is {_shown(value)}; expected a whole number from {least} to {below - 1}")


def _boolean(name: str, value: object) -> None:
    if type(value) is not bool:
        raise InputError(f"{name} is {_shown(value)}; expected true or false")


def _shown(value: object) -> str:
    """A value from outside in a few characters; of arrays and tables their type."""
    if type(value) is str:
        return repr(printable(value, 50))
    return printable(repr(value), 50) if type(value) in (int, float, bool, type(None)) else f"a {type(value).__name__}"
