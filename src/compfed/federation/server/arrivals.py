"""What the server checks of what arrives from sites: enrolments, words, and totals that honest sites can give.

A site across a network may be another version, broken or hostile. Its enrolment and the number of its words are checked one
by one, so that the site at fault is named. A wrong masked reply has no author: there only the total is checked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from compfed._utils.text import is_printable, printable
from compfed.errors import InputError
from compfed.federation.enrolment import Enrolment
from compfed.federation.limits import MAX_CLASSES, MAX_NAME, MAX_OUTCOMES, MAX_REASON, MAX_ROWS, MAX_SCHEMA, MAX_WIDTH
from compfed.federation.query import NEW_RUN, FieldValues, Weighted
from compfed.schema import CategoricalColumn

MAX_BITS = 1100  # of a number that is finite


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
    _integer("width", e.width, 0, MAX_WIDTH + 1)  # a site without columns has an intercept to fit
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
    held = e.withholds
    if not isinstance(held, np.ndarray) or held.dtype.name != "int32" or held.ndim != 1 or held.size > e.width:
        raise InputError("withholds is not a list of columns")
    if held.size and not ((held[1:] > held[:-1]).all() and held[0] >= 0 and held[-1] < e.width):
        raise InputError("withholds does not name columns, each once")
    if e.not_kept != ():
        raise InputError("not_kept is decided by the run")
    for name in ("share_used", "share_by_rule", "max_share"):
        if type(value := getattr(e, name)) is not float or not value >= 0:
            raise InputError(f"{name} is {_shown(value)}; expected a number >= 0")
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
    named = (*(label.classes or ()), *(label.events or ())) if e.schema and label is not None else ()
    words += [c for c in named if type(c) is str]
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


def _columns(e: Enrolment) -> None:
    columns = e.columns
    if columns is None:
        return
    if type(columns) is not tuple or len(columns) != e.width:
        count = len(columns) if type(columns) is tuple else f"a {type(columns).__name__} of"
        raise InputError(f"it names {count} columns; its width is {e.width}")
    for name in columns:
        if type(name) is not str or not 1 <= len(name) <= MAX_NAME or not is_printable(name):
            raise InputError(f"a column is named {_shown(name)}; a name has 1 to {MAX_NAME} printable characters")
    if len(set(columns)) < len(columns):
        raise InputError("it names a column twice")


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


# --- words ---


def words_fault(words: object, count: int) -> str | None:
    """What is wrong with the words of one site's reply to a message; None if nothing is."""
    if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.shape != (count, 2):
        return f"it is not an array of {count} words of 128 bits"
    return None


# --- totals ---

COUNTED = (
    "factor", "weight", "rows", "sites", "class_weights", "low", "high", "confusion_low", "confusion_high", "brier",
)  # fmt: skip


def check_totals(
    weighted: Weighted, totals: FieldValues, enrolments: Sequence[Enrolment], always_there: Sequence[str]
) -> None:
    """Refuse sums that honest sites cannot give.

    Where a site hides a model, only the fields that are `always_there` are numbers; the others are noise.
    """
    kind, everything = type(weighted.query).__name__, sum(e.weight for e in enrolments)
    noise = bool(np.any(totals.get("outside", 0)))
    for name in COUNTED:
        if name not in totals or (noise and name not in always_there):
            continue
        value = totals[name]
        if (value < 0).any():
            raise InputError(f"{kind}: the sum of the field {name} is below 0; a site sent a wrong reply. {NEW_RUN}")
        if name == "sites" and ((value > len(enrolments)) | (value != np.rint(value))).any():
            raise InputError(f"{kind}: the field {name} does not count sites; a site sent a wrong reply. {NEW_RUN}")
    held = ("factor" if weighted.weighting == "rows" else "") if "factor" in totals else "weight"
    if held not in totals:
        return
    total = float(totals[held])
    if weighted.query.rows is None and abs(total - everything) > 1e-9 * everything:
        raise InputError(
            f"{kind}: the weight of all rows is not that of the enrolments; a site sent a wrong reply. {NEW_RUN}"
        )
    if total > everything * (1 + 1e-9):
        raise InputError(f"{kind}: rows weigh more than the enrolments say; a site sent a wrong reply. {NEW_RUN}")


# --- single values ---


def _array(name: str, value: object, shape: tuple[int, ...], dtypes: tuple[str, ...]) -> None:
    """An array of exactly this shape and one of these dtypes: checked before its numbers are."""
    if not isinstance(value, np.ndarray):
        raise InputError(f"{name} is not an array")
    if value.dtype.name not in dtypes:
        raise InputError(f"{name} is of {value.dtype.name}; expected {' or '.join(dtypes)}")
    if value.shape != shape:
        raise InputError(f"{name} has shape {value.shape}; expected {shape}")


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
