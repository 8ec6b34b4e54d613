"""The table that `fit` was given, checked and cut into sites: the data's side of a fit in one process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight

from compfed._utils.arrays import as_slice, group_rows
from compfed._utils.text import shapes_shown
from compfed._utils.validation import check_unmasked
from compfed.data.columns import (
    as_floats,
    as_site_labels,
    check_dataframe,
    check_same_index,
    is_dataframe,
    row_index,
)
from compfed.errors import InputError, OneSiteWarning
from compfed.federation.site.site import Site, room_for
from compfed.problem.local_dataset import DENSE_BYTES
from compfed.simulation.federation import Simulated
from compfed.splits import Masks, RowSubset


class _NotSaid:
    def __repr__(self) -> str:
        return "not said"


NOT_SAID = _NotSaid()  # `sites` of a call that does not speak of them; None says that there is one


@dataclass(frozen=True, repr=False)
class Table:
    """Rows with their labels, weights and sites; rows of weight 0 are no rows."""

    X: Any  # an array, or a large csr matrix
    y: np.ndarray
    weights: np.ndarray | None
    names: tuple[str, ...]
    rows: tuple[np.ndarray, ...]  # where each site's rows are in what was given
    length: int  # rows of what was given, those of weight 0 included
    columns: tuple[str, ...] | None
    __repr__ = shapes_shown

    @property
    def site_of_row(self) -> np.ndarray:
        """The number of the site of every row given; -1 for a row of weight 0."""
        site = np.full(self.length, -1)
        for i, rows in enumerate(self.rows):
            site[rows] = i
        return site

    def federation(self, splits: Sequence[Masks] = ()) -> Simulated:
        """The sites, which know of the given splits what concerns their own rows."""
        place = np.zeros(self.length, int)
        place[np.concatenate(self.rows)] = np.concatenate([np.arange(len(r)) for r in self.rows])
        sites = []
        for i, (name, rows) in enumerate(zip(self.names, self.rows, strict=True)):
            sites.append(
                Site(
                    self.X[as_slice(rows)],  # of rows that lie together no copy: the sites live no longer than a fit
                    self.y[rows],
                    name=name,
                    index=i,
                    row_weights=None if self.weights is None else self.weights[rows],
                    columns=self.columns,
                    splits=[(train[rows], test[rows]) for train, test in splits],
                    limits=None,
                    room=room_for(len(rows) / len(place)),
                )
            )
        return Simulated(sites)


def warn_of_one_site(name: str, sites: Any, stacklevel: int = 3) -> None:
    """After a fit that was not told of sites: it took all rows for those of one."""
    if sites is NOT_SAID:
        warnings.warn(
            f"{name}: no sites were given, so all rows were fitted as those of one site, and messages and bytes are those of "
            "one. Give sites=..., the site of every row or the name of a column of X; sites=None says that one is meant.",
            OneSiteWarning,
            stacklevel=stacklevel,
        )


def check_features(name: str, X: Any) -> None:
    """Refuse rows that would be read as something else; what is left to refuse, scikit-learn refuses."""
    check_unmasked(X, f"{name}: X")
    if is_dataframe(X):
        check_dataframe(X, f"{name}: X")
    elif _kind(X) in "USmM":
        as_floats(X, f"{name}: X")
    _check_real(name, "X", X)


def column_labels(X: Any) -> tuple[Any, ...] | None:
    """The names of a DataFrame's columns where they are not all words: scikit-learn takes no note of those."""
    if not is_dataframe(X) or all(isinstance(name, str) for name in X.columns):
        return None
    return tuple(X.columns)


def check_same_columns(name: str, X: Any, fitted: Sequence[Any] | None, width: int) -> None:
    """Refuse a DataFrame whose columns have other names than at fit, or another order; words are scikit-learn's to check.

    `fitted` are the names at fit; None for a fit to an array, whose columns are known by their numbers.
    """
    given = column_labels(X)
    if given is None or len(given) != width:
        return
    known = list(range(width)) if fitted is None else list(fitted)
    by_word = any(isinstance(label, str) for label in known)
    found: list[Any] = [str(label) for label in given] if by_word else list(given)
    if found == known or (
        (fitted is None or by_word) and set(found) != set(known)
    ):  # names that say nothing of the fit
        return
    at = next(j for j, (a, b) in enumerate(zip(found, known, strict=True)) if a != b)
    place = {label: j for j, label in enumerate(found)}
    by_name = f"X[{[given[place[k]] for k in known]}] to match by name, or " if set(found) == set(known) else ""
    raise InputError(
        f"{name}: column {at} of X is {given[at]!r} and was {known[at]!r} at fit: columns must have the names of the fit in "
        f"the same order. Give {by_name}X.to_numpy() to match by place."
    )


def check_table(name: str, X: Any, y: Any, sites: Any, sample_weight: Any) -> None:
    """The same of a table with labels, sites and weights."""
    check_features(name, X)
    check_unmasked(y, f"{name}: y")
    if issparse(y):
        raise InputError(f"{name}: y is a sparse matrix; give labels as an array: y.toarray().")
    _check_real(name, "y", y)
    if _kind(y) in "mM":
        raise InputError(
            f"{name}: y holds dates or times, which are no numbers. Give numbers, such as days since the first."
        )
    if sample_weight is not None:
        numbers_or_truths(sample_weight, f"{name}: sample_weight")
    given = {"X": X, "y": y, "sites": sites, "sample_weight": sample_weight}
    first = next((what for what, table in given.items() if row_index(table) is not None), "X")
    for what, table in given.items():
        check_same_index(given[first], table, what, first)


def _kind(values: Any) -> str:
    return getattr(getattr(values, "dtype", None), "kind", "f")


def _check_real(name: str, what: str, values: Any) -> None:
    if _kind(values) == "c":  # scikit-learn would say the same, and show the values
        raise InputError(f"{name}: Complex data not supported: {what} has complex numbers. Give {what}.real, say.")


def numbers_or_truths(values: Any, what: str) -> None:
    """Refuse weights that are words, dates or behind a mask."""
    check_unmasked(values, what)
    if np.asarray(values).dtype.kind not in "biufOc":  # the rest is scikit-learn's to refuse
        as_floats(np.asarray(values, object), what)
        raise InputError(f"{what} must be numbers, not text or dates.")


def tabulated(name: str, X: Any, y: np.ndarray, sites: Any, sample_weight: Any, columns: Any) -> Table:
    """The table of checked X and y; `name` is the estimator's, for messages."""
    if issparse(X) and 8 * X.shape[0] * X.shape[1] <= DENSE_BYTES:
        X = X.toarray()
    length = X.shape[0]
    one = sites is None or sites is NOT_SAID
    need = f"{name}: sites must be the site of every row"
    where = np.zeros(length, int) if one else as_site_labels(need, sites)
    if len(where) != length:
        raise InputError(f"sites has {len(where)} entries; X has {length} rows: give the site of every row.")
    keep = np.arange(length)
    weights = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        keep = np.flatnonzero(weights)
        if not keep.size:
            raise InputError(f"{name}: all sample weights are zero; at least one row must count.")
    found, rows = group_rows(where[keep])
    return Table(
        X=X,
        y=y,
        weights=weights,
        names=tuple(str(site) for site in found),
        rows=tuple(keep[r] for r in rows),
        length=length,
        columns=None if columns is None else tuple(str(c) for c in columns),
    )


def fold_column(table: Table, sites: Sequence[Any], subsets: Sequence[RowSubset]) -> np.ndarray:
    """The number of the split that holds each row of the table out; -1 for a row that none does."""
    fold = np.full(table.length, -1)
    for number, subset in enumerate(subsets):
        for rows, site in zip(table.rows, sites, strict=True):
            fold[rows[subset.mask(site)]] = number
    return fold
