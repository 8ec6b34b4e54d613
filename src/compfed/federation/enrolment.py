"""Enrolments: the only facts about a site that the server knows site by site, and what all of them agree on.

A site enrols before the first query: how many rows it has, its columns, the classes of its labels, the order of magnitude of
its numbers, and the rules that it will enforce. Everything else that the server learns is a sum over the sites.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.schema import Label, NumericColumn, Schema

if TYPE_CHECKING:
    from compfed.federation.query import Query

T = TypeVar("T")

MAX_WEIGHT_RATIO = 1000.0  # of the mean weight of a row at one site and at all others
DWARFED_BITS = 64  # by which the numbers of one site may exceed those of all others
RARE_LEVELS = "(rare)"  # the only level of a column all of whose levels have too few rows to be named
EMPTY_COLUMN = "(no value)"  # the only level of a column without a value, which is neither of numbers nor of words
LABEL = "label"  # the name of the labels of a table without names
MAX_COUNTED = 20  # classes; more distinct labels than this are numbers to average
MAGNITUDE_BITS = 16  # a site tells the size of its numbers to a factor of 2**16: their unit, and no value


@dataclass(frozen=True, eq=False)
class Enrolment:
    """The facts of one site, and the rules of its disclosure policy that a run has to know before it begins.

    Parameters
    ----------
    rows : int
    weight : float
        Of all rows together; their number unless rows are weighted.
    width : int
        Columns of a row.
    columns : tuple of str, optional
    label_kind : str
        NumPy's letter for the type of the labels.
    label_shape : tuple of int
        () for one number per row, (k,) for k outcomes.
    classes : array, optional
        The labels found, sorted; None where they are not classes, or the policy does not list them.
    no_classes : str
        Why there are none, for a person.
    column_bits : array of int
        The numbers of a column are below 2**bits in size; a multiple of 16.
    label_bits : int
        The same of the labels.
    min_rows : int
        Of the disclosure policy; 1 without one.
    buckets : int
        Units of rows that folds and hold-outs are made of.
    max_hessian_share : float
        A Hessian is given on at most this share of the rows, as a number of columns.
    varies : array of bool
        Of every column, and of labels that are numbers: at least `min_level_rows` rows are off its most common value. Empty
        without a policy.
    secure_sum : bool
        Whether the site sends masked numbers only.
    schema : str
        The public part of the schema of the table, as TOML: kinds, and the levels and classes that at least `min_level_rows`
        rows have. "" for a table of numbers without missing values.
    agreed : bool
        Whether the site encodes its table with a schema that it was given, rather than one of its own.
    label_classes : array, optional
        Words or numbers that at least `min_level_rows` rows of the column of labels have; None for many different numbers.
    table_bits : array of int
        As `column_bits`, of every column of the schema, the columns of labels last; 0 for words.
    has_missing, has_rare : array of bool
        Which of them have missing values, and levels that too few rows have to be named.
    not_encoded : str
        Why the site answers nothing but `Tabulate`: its table needs a schema that all sites agree on.
    table : str
        A keyed hash of the table, which names it and says nothing about it; "" in one process.
    version : str
        Of compfed at the site.
    offset : bool
        Whether its rows have offsets.
    weighted : bool
        Whether its rows have weights; `weight` is the number of rows otherwise.
    withholds : array of int
        Positions of columns that the site gives no sums of, as these would be about one row.
    not_kept : tuple of str
        The columns that the run leaves out, at this and all other sites; it does not travel.
    share_used, share_by_rule, max_share : float
        How many numbers have left about its table, as a share of those in it; up to which share a rule may approve a run, and a
        person.
    """

    rows: int
    weight: float
    width: int
    columns: tuple[str, ...] | None
    label_kind: str
    label_shape: tuple[int, ...]
    classes: np.ndarray | None
    no_classes: str
    column_bits: np.ndarray
    label_bits: int
    min_rows: int = 1
    buckets: int = 0
    max_hessian_share: float = np.inf
    varies: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    secure_sum: bool = False
    schema: str = ""
    agreed: bool = False
    label_classes: np.ndarray | None = None
    table_bits: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    has_missing: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    has_rare: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    not_encoded: str = ""
    table: str = ""
    version: str = ""
    offset: bool = False
    weighted: bool = False
    withholds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    not_kept: tuple[str, ...] = ()
    share_used: float = 0.0
    share_by_rule: float = np.inf
    max_share: float = np.inf

    @cached_property
    def table_schema(self) -> Schema:
        """The schema of the table; that of a table of numbers without missing values where the site gives none."""
        if self.schema:
            return Schema.from_toml(self.schema)
        names = self.columns or tuple(map(str, range(self.width)))
        label = LABEL
        while label in names:
            label += "_"
        labels = tuple(f"{label} {k + 1}" for k in range(self.label_shape[0])) if self.label_shape else label
        return Schema({name: NumericColumn() for name in names}, Label(labels))

    @property
    def found_classes(self) -> np.ndarray | None:
        """The classes of the labels as they are in the table; None where labels are numbers to average."""
        if self.schema:
            return self.label_classes
        return None if self.classes is None or len(self.classes) > MAX_COUNTED else self.classes

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of the schema, those of labels last: the order of `table_bits`, `has_missing` and `has_rare`."""
        schema = self.table_schema
        labels = () if schema.label is None else schema.label.column
        return (*schema.columns, *((labels,) if isinstance(labels, str) else labels))

    @property
    def rare_columns(self) -> set[str]:
        """The columns with levels that too few rows have to be named."""
        return {name for name, rare in zip(self.table_columns, self.has_rare, strict=False) if rare}

    @cached_property
    def bits_by_column(self) -> dict[str, int]:
        """`table_bits` by the name of the column."""
        names = self.table_columns
        bits = self.table_bits if self.schema else [*self.column_bits, *[self.label_bits] * (len(names) - self.width)]
        return {name: int(b) for name, b in zip(names, bits, strict=True)}


def max_hessian_columns(enrolments: Sequence[Enrolment], folds: int = 0, jumps: bool = False) -> float:
    """The number of columns on which every site gives a Hessian: of all rows, or of those that one of the folds leaves.

    None of a loss whose second derivative `jumps`, where a site has a rule for Hessians.
    """
    least = np.inf
    for e in enrolments:
        if jumps and e.min_rows > 1:
            return 0.0
        if e.max_hessian_share == np.inf:
            continue
        held_out = -(-e.buckets // folds) * (-(-e.rows // e.buckets) + 1) if folds else 0
        least = min(least, e.max_hessian_share * max(e.rows - held_out, 0))
    return least


def has_policy(enrolments: Sequence[Enrolment]) -> bool:
    """Whether a site has a disclosure policy that protects rows: it rounds its Hessians, and refuses models that rest on few rows."""
    return any(e.min_rows > 1 or e.max_hessian_share < np.inf for e in enrolments)


ENOUGH_SITES = 2  # have to vary in a column, where sums are masked and it does not vary at another site


def left_out(enrolments: Sequence[Enrolment]) -> np.ndarray:
    """Positions of the columns that a run leaves out: those that a site withholds, and rare values of too few masked sites.

    A site with a column that does not vary may have the value of one or two rows, and does not say. Where sums are masked, two
    other sites have to have more of them.
    """
    widths = {e.width for e in enrolments}
    if len(widths) > 1:
        return np.empty(0, int)  # sites with other columns are refused elsewhere, by name
    out = np.zeros(widths.pop(), bool)
    for e in enrolments:
        out[e.withholds] = True
    if enrolments[0].secure_sum and all(e.varies.size >= len(out) for e in enrolments):
        vary = np.array([e.varies[: len(out)] for e in enrolments], int).sum(axis=0)
        out |= (vary < ENOUGH_SITES) & (vary < len(enrolments))
    return np.flatnonzero(out)


def kept_columns(enrolments: Sequence[Enrolment]) -> tuple[Enrolment, ...]:
    """The enrolments without the columns that a run leaves out: what its sums are about."""
    out = left_out(enrolments)
    if not out.size:
        return tuple(enrolments)

    def without(e: Enrolment) -> Enrolment:
        columns = None if e.columns is None else tuple(c for j, c in enumerate(e.columns) if j not in out)
        varies = np.delete(e.varies, out) if e.varies.size else e.varies
        bits = np.delete(e.column_bits, out)
        return replace(
            e, width=len(bits), columns=columns, column_bits=bits, varies=varies, withholds=np.empty(0, np.int32),
            not_kept=tuple(e.columns[j] if e.columns is not None else str(j) for j in out.tolist()),
        )  # fmt: skip

    return tuple(map(without, enrolments))


def left_out_note(enrolments: Sequence[Enrolment]) -> str:
    """For a person, before a run: the columns that it leaves out; "" for none."""
    names = join_names(enrolments[0].not_kept)
    return names and (
        f"left out at all sites: {names}. A site gives no sums of it, because one row has most of its variance or too few rows "
        "have another value. Its logarithm, wider levels or limits may do (schema); drop it at every site to say nothing."
    )


def hessian_note(names: Sequence[str], enrolments: Sequence[Enrolment]) -> str:
    """For a person, before a fit: which sites allow second derivatives on some columns only, what follows, and what helps."""
    width = enrolments[0].width
    least = {name: e.max_hessian_share * e.rows for name, e in zip(names, enrolments, strict=True)}
    few = sorted((int(most), name) for name, most in least.items() if most < width)
    if not few:
        return ""
    shown = join_names([f"{name} on {most}" for most, name in few], ", ", 3)
    fit, folds = ("about 20", "about 30") if 2 * few[0][0] >= width else ("30 to 80", "150 to 400")
    return (
        f"Second derivatives are allowed on fewer than the {width} columns (max_hessian_share): {shown}. So a fit takes {fit} "
        f"messages and a cross-validation {folds}, instead of about 10 and 20. What helps: at most {few[0][0]} columns, or more rows."
    )


def magnitude_bits(values: np.ndarray | float) -> np.ndarray:
    """b such that numbers of this size are below 2**b; a multiple of `MAGNITUDE_BITS`. Of zero, the least there is."""
    exponent = np.frexp(np.abs(np.asarray(values, float)))[1]
    exponent = np.where(np.asarray(values) == 0, 0, exponent)
    return (-(-exponent // MAGNITUDE_BITS) * MAGNITUDE_BITS).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Agreement:
    """What the enrolments of all sites together say: how a sum over the sites is laid out.

    Both sides of the wall derive it from the same enrolments, so that they mean the same numbers by the same words.
    """

    names: tuple[str, ...]
    enrolments: tuple[Enrolment, ...]

    @cached_property
    def _kept(self) -> WeakKeyDictionary[Query, dict[object, Any]]:
        return WeakKeyDictionary()

    def once(self, query: Query, key: object, make: Callable[[], T]) -> T:
        """What follows from a query and these enrolments, worked out once for all sites, the server and the count of bytes."""
        known = self._kept.setdefault(query, {})
        if key not in known:
            known[key] = make()
        return known[key]

    def check_encoded(self) -> None:
        """Refuse sites whose encoded columns or labels differ, or that have none."""
        if self.encoded_problem:
            raise InputError(self.encoded_problem)

    @cached_property
    def encoded_problem(self) -> str:
        """Why the rows of these sites cannot be used together; "" if they can."""
        try:
            self._check_encoded()
        except InputError as problem:
            return str(problem)
        return ""

    def _check_encoded(self) -> None:
        for name, enrolment in zip(self.names, self.enrolments, strict=True):
            if enrolment.not_encoded:
                raise InputError(f"site {name!r} {enrolment.not_encoded}")
        first = self.enrolments[0]
        check_columns(self.names, [e.width for e in self.enrolments], [e.columns for e in self.enrolments])
        if any(e.label_shape != first.label_shape for e in self.enrolments):
            shapes = sorted({e.label_shape for e in self.enrolments})
            raise InputError(f"the sites have labels of different shapes, {shapes}; all need the same outcomes.")
        offsets = [e.offset for e in self.enrolments]
        if any(offsets) and not all(offsets):
            one, other = self.names[offsets.index(True)], self.names[offsets.index(False)]
            way_out = "Name a column of offsets at every site, or at none (0 where there is nothing to add)."
            raise InputError(f"the rows of site {one!r} have an offset, those of site {other!r} have none. {way_out}")

    @cached_property
    def exact_problem(self) -> str:
        """Why the numbers of these sites cannot be added exactly: fields are as large as the largest site needs; "" if they can."""
        try:
            self._check_magnitudes()
            self._check_weights()
        except InputError as problem:
            return str(problem)
        return ""

    def _check_weights(self) -> None:
        """Refuse sites of which some have row weights, and a site whose rows weigh far more than those of all others."""
        weighted = [e.weighted for e in self.enrolments]
        if any(weighted) and not all(weighted):
            one, other = self.names[weighted.index(True)], self.names[weighted.index(False)]
            way_out = "Name a column of weights at every site, or at none."
            raise InputError(f"the rows of site {one!r} have weights, those of site {other!r} have none. {way_out}")
        for k, name in enumerate(self.names if self.n > 1 and all(weighted) else ()):
            mine, others = self.enrolments[k], [e for i, e in enumerate(self.enrolments) if i != k]
            if mine.weight / mine.rows > MAX_WEIGHT_RATIO * sum(e.weight for e in others) / sum(e.rows for e in others):
                way_out = "Compare the units of the weights there with those of the other sites."
                raise InputError(
                    f"the rows of site {name!r} weigh over {MAX_WEIGHT_RATIO:g} times those of all other sites. {way_out}"
                )

    def _check_magnitudes(self) -> None:
        """Refuse a site whose numbers dwarf those of all others: their digits would be lost, and sums would round to zero."""
        for k, name in enumerate(self.names if self.n > 1 else ()):
            mine, others = self.enrolments[k], [e for i, e in enumerate(self.enrolments) if i != k]
            columns = mine.column_bits - np.max([e.column_bits for e in others], axis=0)
            if max(int(columns.max(initial=0)), mine.label_bits - max(e.label_bits for e in others)) > DWARFED_BITS:
                way_out = "Compare the units of the columns and of the labels there with those of the other sites."
                raise InputError(
                    f"site {name!r} has numbers over 2**{DWARFED_BITS} times those of all other sites. {way_out}"
                )

    @cached_property
    def n(self) -> int:
        """Number of sites."""
        return len(self.names)

    @cached_property
    def classes(self) -> np.ndarray:
        """The classes of all sites, sorted; raises an error that names a site whose labels are no classes."""
        for name, enrolment in zip(self.names, self.enrolments, strict=True):
            if enrolment.classes is None:
                raise InputError(f"site {name!r}: {enrolment.no_classes}")
        words = [e.classes.dtype.kind in "UO" for e in self.enrolments if e.classes is not None]
        if any(words) and not all(words):  # as words, 1 and "1.0" would be two classes
            one, other = self.names[words.index(True)], self.names[words.index(False)]
            way_out = "write them in the same way at every site."
            raise InputError(f"the classes are words at site {one!r} and numbers at site {other!r}; {way_out}")
        return np.unique(np.concatenate([e.classes for e in self.enrolments if e.classes is not None]))

    @cached_property
    def column_bits(self) -> np.ndarray:
        return np.max([e.column_bits for e in self.enrolments], axis=0)

    @cached_property
    def label_bits(self) -> int:
        return max(e.label_bits for e in self.enrolments)

    @cached_property
    def weight_bits(self) -> int:
        """The weight of all rows is below 2**bits."""
        return int(np.frexp(sum(e.weight for e in self.enrolments))[1])

    @cached_property
    def row_bits(self) -> int:
        """The number of all rows is below 2**bits."""
        return int(np.frexp(float(sum(e.rows for e in self.enrolments)))[1])

    def table_bits(self, names: Sequence[str]) -> np.ndarray:
        """The values of columns of the table, as it is in its file, are below 2**bits; at least 2**0."""
        found = [0] * len(names)
        for j, name in enumerate(names):
            *others, largest = [0, *sorted(e.bits_by_column.get(name, 0) for e in self.enrolments)]
            if len(self.names) > 1 and largest - others[-1] > DWARFED_BITS:
                raise InputError(
                    f"column {name!r} has numbers at one site that are over 2**{DWARFED_BITS} times those at all others. Compare "
                    "its units."
                )
            found[j] = largest
        return np.array(found, int)

    @cached_property
    def site_bits(self) -> int:
        """The number of sites is below 2**bits."""
        return self.n.bit_length()

    def factor_bits(self, weighting: str) -> int:
        """The factors of all sites together are below 2**bits."""
        if weighting == "rows":
            return self.weight_bits
        return self.site_bits if weighting in ("sites", "once") else max(self.weight_bits, self.site_bits)


def check_columns(names: Sequence[str], widths: Sequence[int], columns: Sequence[tuple[str, ...] | None]) -> None:
    """Refuse sites with different columns, and say where they differ."""
    one, first, first_width = names[0], columns[0], widths[0]
    for other, width, named in zip(names, widths, columns, strict=True):
        if width == first_width and named == first:
            continue
        if first is None or named is None:
            apart = f"site {other!r} has {width} columns, site {one!r} has {first_width} columns."
        elif set(first) == set(named):
            at = next(j for j, (a, b) in enumerate(zip(first, named, strict=True)) if a != b)
            apart = f"column {at} is {named[at]!r} at site {other!r} and {first[at]!r} at site {one!r}."
        else:
            missing, extra = ([repr(c) for c in a if c not in b] for a, b in ((first, named), (named, first)))
            lacks = f"site {other!r} has no column {join_names(missing)}, which site {one!r} has. " if missing else ""
            adds = f"site {other!r} has a column {join_names(extra)} that site {one!r} has not." if extra else ""
            apart = f"{lacks}{adds}".strip()
        raise InputError(
            f"{apart} All sites need the same columns in the same order: over a network, `features` in site.toml names "
            "them and their order."
        )
