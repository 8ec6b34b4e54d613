"""The table that `fit` was given, checked and cut into sites in this process."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse, sparray, spmatrix
from sklearn.utils.validation import _check_sample_weight

from compfed._utils.arrays import as_slice, group_rows
from compfed._utils.text import join_names, shapes_shown
from compfed._utils.validation import as_site_labels, check_same_index, check_unmasked, is_missing, row_index
from compfed.data.adapter import Column, Frame, as_column
from compfed.data.columns import WAY_OUT, as_floats, check_finite, frame_as_floats, read_frame
from compfed.data.raw_table import RawTable
from compfed.errors import InputError, OneSiteWarning
from compfed.federation.site.rows import FileTable, Rows, room_for
from compfed.federation.site.site import Site
from compfed.problem.padded_dataset import DENSE_BYTES
from compfed.schema import Schema
from compfed.simulation.local_federation import Simulated
from compfed.splits import Masks


class Unspecified:
    """The type of `UNSPECIFIED`, the default of `sites`: unlike None, it leads to a `OneSiteWarning`."""

    def __repr__(self) -> str:
        return "unspecified"


UNSPECIFIED = Unspecified()
IMPUTE = 'Give fit a DataFrame and schema="auto", which imputes the mean over all sites, or drop these rows.'
AT_FIT = "Drop these rows, or impute as at the fit."
DATES = "y holds dates or times. Give numbers, such as days since the first."
AUTO_SCHEMA = 'Give fit schema="auto", which encodes words, or encode them as numbers.'
Features = npt.ArrayLike | spmatrix | sparray | Frame  # rows of features; frames of other libraries are array-like
SiteOfRows = npt.ArrayLike | Column | Unspecified | None  # the site of every row, or the name of a column
RowWeights = npt.ArrayLike | None  # of the rows
# one number per row, the name of a column, or a number for all rows of a prediction
Offset = npt.ArrayLike | Column | str | None
SchemaLike = Schema | str | Path | None  # "auto", a schema, or the path of one


@dataclass(frozen=True, repr=False)
class CheckedTable:
    """Rows with their labels, weights and sites. Rows of weight 0 belong to no site."""

    X: np.ndarray | Any  # an array, or a large csr matrix
    y: np.ndarray
    weights: np.ndarray | None
    names: tuple[str, ...]
    rows: tuple[np.ndarray, ...]  # positions of each site's rows in X
    length: int  # rows of X, those of weight 0 included
    columns: tuple[str, ...] | None
    offset: np.ndarray | None = None
    raw: RawTable | None = None  # the table before it was encoded, and the schema that encoded it
    schema: Schema | None = None
    labels: tuple[Any, ...] | None = None  # names of the columns of X that are not all words
    strata: np.ndarray | None = None
    __repr__ = shapes_shown

    @property
    def site_of_row(self) -> np.ndarray:
        """The number of the site of every row given; -1 for a row of weight 0."""
        site = np.full(self.length, -1)
        for i, rows in enumerate(self.rows):
            site[rows] = i
        return site

    def federation(self, splits: Sequence[Masks] = ()) -> Simulated:
        """The sites, each with its own rows of the splits."""
        sites = []
        for i, (name, rows) in enumerate(zip(self.names, self.rows, strict=True)):
            X = self.X[as_slice(rows)]  # contiguous rows are not copied: the sites live no longer than a fit
            weights = None if self.weights is None else self.weights[rows]
            offset = None if self.offset is None else self.offset[rows]
            masks = [(train[rows], test[rows]) for train, test in splits]
            mine = Rows(
                X, self.y[rows], name=name, index=i, sample_weight=weights, columns=self.columns, splits=masks, offset=offset,
                strata=None if self.strata is None else self.strata[rows],
                room=room_for(len(rows) / self.length),
                file=FileTable(None if self.raw is None else self.raw.take(rows, name), self.schema),
            )  # fmt: skip
            sites.append(Site(mine, limits=None))
        return Simulated(sites)


def warn_of_one_site(name: str, sites: object, stacklevel: int = 3) -> None:
    """Warn after a fit without `sites`, which took all rows for those of one site."""
    if sites is UNSPECIFIED:
        warnings.warn(
            f"{name}: no sites were given, so all rows were fitted as those of one site, and messages and bytes are those of "
            "one. Give sites=..., the site of every row or the name of a column of X; sites=None says that one is meant.",
            OneSiteWarning,
            stacklevel=stacklevel,
        )


def as_rows(name: str, X: Any) -> Any:
    """X as a `Frame`, where it is one of any library; anything else as it is."""
    frame = read_frame(X, f"{name}: X")
    return X if frame is None else frame


def as_array(name: str, X: Any, way_out: str = WAY_OUT) -> Any:
    """Features as an array or a sparse matrix; refuses what would be read as something else. scikit-learn refuses the rest."""
    check_unmasked(X, f"{name}: X")
    records: Any = X
    if (isinstance(X, Mapping) and not issparse(X)) or (
        isinstance(X, (list, tuple)) and isinstance(records[0] if X else None, Mapping)
    ):
        raise InputError(
            f"{name}: X is a {type(X).__name__} with names; give pandas.DataFrame(X), whose columns have them."
        )
    if isinstance(X, Frame):
        return frame_as_floats(X, f"{name}: X", way_out)
    if _kind(X) in "USmM":
        as_floats(X, f"{name}: X")
    _check_real(name, "X", X)
    return X


def as_labels(name: str, y: Any) -> Any:
    """Labels of a Series or a frame as an array of their kind: truth values, whole numbers, numbers or words; others as they are."""
    if (column := as_column(y)) is not None:
        return _labels_of(name, column)
    if (frame := read_frame(y, f"{name}: y")) is None:
        return y
    one = len(frame.columns) == 1
    return _labels_of(name, frame[frame.columns[0]])[:, None] if one else frame_as_floats(frame, f"{name}: y")


def _labels_of(name: str, column: Column) -> np.ndarray:
    values = column.values
    if column.missing.any():
        check_labels(name, np.where(column.missing, None, values.astype(object)))  # pyright: ignore[reportCallIssue, reportArgumentType]
    if values.dtype.kind == "O" and len(values) and all(isinstance(value, str) for value in values):
        return values.astype(str)
    if values.dtype.kind == "O" and any(isinstance(value, (datetime.date, datetime.timedelta)) for value in values):
        raise InputError(f"{name}: {DATES}")
    if values.dtype.kind == "O" and all(isinstance(value, (int, float, Decimal)) for value in values):
        return np.array(values.tolist(), None if all(isinstance(value, int) for value in values) else float)
    return values


def names_of(frame: Frame) -> tuple[str, ...] | None:
    """The names of the columns, where all are words; None otherwise: scikit-learn takes no other names."""
    words = all(isinstance(name, str) for name in frame.columns)
    return tuple(map(str, frame.columns)) if words and frame.columns else None


def columns_of_fit(name: str, X: Frame, fitted: Sequence[Any] | None, width: int, needed: np.ndarray) -> Frame | None:
    """The columns of a frame that a model needs, in the order of the fit, by name; None where names say nothing.

    `fitted` are the names at fit; None for a fit to an array, whose columns are known by their numbers. `needed` says which
    columns have a coefficient: the others may be absent.
    """
    given: list[Any] = list(X.columns)
    if fitted is None:
        _check_numbered(name, given, width)
        return None
    by_word = any(isinstance(label, str) for label in fitted)
    place = {str(label) if by_word else label: label for label in given}
    numbered = not any(isinstance(label, str) for label in given)
    if numbered == by_word and not set(fitted) <= set(place):  # names of another kind, which say nothing about these
        return None
    absent = [label for label, used in zip(fitted, needed, strict=True) if used and label not in place]
    if absent:
        has = join_names([repr(label) for label in given], most=12)
        raise InputError(
            f"{name}: X has no column {join_names([repr(label) for label in absent])}, which the model needs; it has {has}. Columns "
            "are found by the feature names of the fit; give X.to_numpy() to match by place."
        )
    return X.select([place[label] for label, used in zip(fitted, needed, strict=True) if used])


def _check_numbered(name: str, given: list[Any], width: int) -> None:
    """Refuse columns that are numbered in another order, for a model that was fitted to an array."""
    known = list(range(width))
    if given != known and set(given) == set(known):
        at = next(j for j, (a, b) in enumerate(zip(given, known, strict=True)) if a != b)
        raise InputError(
            f"{name}: column {at} of X is {given[at]!r} and was {known[at]!r} at fit, to an array. Give X[{known}] to match by name, "
            "or X.to_numpy() to match by place."
        )
    if given and all(isinstance(label, str) for label in given):
        warnings.warn(f"X has feature names, but {name} was fitted without feature names", UserWarning, stacklevel=5)


def as_offset(name: str, offset: Any, rows: int) -> np.ndarray:
    """An offset as one finite number per row."""
    check_unmasked(offset, f"{name}: offset")
    values = as_floats(offset, f"{name}: offset")
    if values.shape != (rows,) or not np.isfinite(values).all():
        raise InputError(
            f"{name}: offset has shape {values.shape}; it must be one finite number for each of {rows} rows."
        )
    return values


def refuse_missing(name: str, X: Any, columns: Sequence[str] | None, way_out: str = IMPUTE) -> None:
    """Refuse NaN and infinity in features, by column: scikit-learn's message recommends what cannot work over sites."""
    values = X.data if issparse(X) else np.asarray(X, float)
    what = "NaN" if np.isnan(values).any() else "infinity"
    where = ""
    if not issparse(X):
        bad = ~np.isfinite(values)
        place = [repr(columns[j]) if columns is not None else str(j) for j in np.flatnonzero(bad.any(axis=0)).tolist()]
        where = f" in column {join_names(place)}, the first in row {int(bad.any(axis=1).argmax())} (the first is 0)"
    raise InputError(f"{name}: X contains {what}{where}. {way_out}")


def check_rows(
    name: str, X: Features, y: npt.ArrayLike, sites: object, sample_weight: RowWeights, offset: Offset = None
) -> None:
    """Refuse labels, sites and weights that would be read as something else, or whose rows are in another order."""
    check_unmasked(y, f"{name}: y")
    if issparse(y):
        raise InputError(f"{name}: y is a sparse matrix; give labels as an array: y.toarray().")
    _check_real(name, "y", y)
    if _kind(y) in "mM":
        raise InputError(f"{name}: {DATES}")
    if sample_weight is not None:
        _check_weights(sample_weight, f"{name}: sample_weight")
    given = {"X": X, "y": y, "sites": sites, "sample_weight": sample_weight, "offset": offset}
    first = next((what for what, table in given.items() if row_index(table) is not None), "X")
    for what, table in given.items():
        check_same_index(given[first], table, what, first)


def check_labels(name: str, y: npt.ArrayLike) -> None:
    """Refuse labels that are missing, or words and numbers: NumPy would make words of both, and scikit-learn cannot sort them."""
    if _kind(y) not in "OTU" and not isinstance(y, (list, tuple)):
        return
    values = np.asarray(y, dtype=object)
    missing = np.array([is_missing(value) for value in values.flat], bool).reshape(values.shape)
    if missing.any():
        rows = missing.reshape(len(missing), -1).any(axis=1)
        found = f"{int(rows.sum())} row(s) have none, the first is row {int(rows.argmax())}"
        raise InputError(f"{name}: y must have a label in every row; {found}. Drop rows without a label.")
    words = [isinstance(value, str) for value in values.flat]
    if any(words) and not all(words):
        word, number = (values.flat[words.index(kind)] for kind in (True, False))
        raise InputError(
            f"{name}: y has words and numbers, such as {word!r} and {number!r}. Give all as text, or all as numbers."
        )


def _kind(values: object) -> str:
    return getattr(getattr(values, "dtype", None), "kind", "f")


def _check_real(name: str, what: str, values: object) -> None:
    if _kind(values) == "c":  # scikit-learn would say the same, and show the values
        raise InputError(f"{name}: Complex data not supported: {what} has complex numbers. Give {what}.real, say.")


def _check_weights(values: npt.ArrayLike, what: str) -> None:
    """Refuse weights that are text, dates or masked."""
    check_unmasked(values, what)
    column = as_column(values)
    if column is not None or np.asarray(values).dtype.kind not in "biufOc":  # scikit-learn refuses the rest
        found = as_floats(np.asarray(values, object) if column is None else column, what)
        if column is None:
            raise InputError(f"{what} must be numbers, not text or dates.")
        check_finite(found, what)


def site_of_rows(name: str, sites: object, length: int) -> np.ndarray:
    """The site of every row; all the same where none is given."""
    one = sites is None or sites is UNSPECIFIED
    column = as_column(sites)
    given = sites if column is None else column.values
    where = np.zeros(length, int) if one else as_site_labels(f"{name}: sites must be the site of every row", given)
    if len(where) != length:
        raise InputError(f"sites has {len(where)} entries; X has {length} rows: give the site of every row.")
    return where


def as_weights(X: Features, sample_weight: RowWeights) -> np.ndarray | None:
    """Row weights as numbers >= 0; None without any."""
    column = as_column(sample_weight)
    sample_weight = sample_weight if column is None else column.values
    return (
        None
        if sample_weight is None
        else _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    )


def make_table(
    name: str, X: Any, y: np.ndarray, sites: object, weights: np.ndarray | None, columns: Sequence[object] | None,
    offset: Offset = None, labels: tuple[Any, ...] | None = None,
) -> CheckedTable:  # fmt: skip
    """The table of checked X, y and weights; `name` is the estimator's, for messages."""
    if issparse(X) and 8 * X.shape[0] * X.shape[1] <= DENSE_BYTES:
        X = X.toarray()
    length = X.shape[0]
    where = site_of_rows(name, sites, length)
    keep = np.arange(length)
    if weights is not None:
        keep = np.flatnonzero(weights)
    found, rows = group_rows(where[keep])
    names = None if columns is None else tuple(map(str, columns))
    added = None if offset is None else as_offset(name, offset, length)
    return CheckedTable(
        X, y, weights, tuple(map(str, found)), tuple(keep[r] for r in rows), length, names, added, labels=labels
    )
