"""Sites with their rows in memory: one feature matrix and one label vector per site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.arrays import block_ranges, concatenate_rows, group_rows, readonly, set_readonly
from compfed._utils.text import join_names
from compfed._utils.validation import MAX_MAGNITUDE, MIN_MAGNITUDE, check_magnitudes, check_row_weights
from compfed.data.columns import (
    as_floats,
    as_site_labels,
    check_column_names,
    check_finite,
    check_same_index,
    is_dataframe,
)
from compfed.errors import InputError
from compfed.site_summary import Summary, combine_summaries, summarise_site

if TYPE_CHECKING:
    from compfed.data.columns import ColumnLike, TableLike


def fingerprint_weights(width: int, outputs: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the features and labels of a row in the mark of its site."""
    w = np.cos(1.0 + np.arange(width + int(np.prod(outputs))))
    return w[:width], w[width:]


@dataclass(frozen=True, repr=False)
class Sites:
    """The data of n sites. Build one with `from_arrays`, `from_table`, `from_files` or `synthetic`.

    Attributes
    ----------
    features : tuple of ndarray, each of shape (m_i, d)
    labels : tuple of ndarray, each of shape (m_i,) or (m_i, outputs)
    names : tuple of str
    ids : tuple of int
        Each site's identity. All its random draws follow from it, so that a site keeps them when the order of the sites
        changes.
    source : dict
        How the data were made, for provenance.
    row_weights : tuple of ndarray, each of shape (m_i,), or None
        How much each row counts within its site.
    columns : tuple of str or None
        The names of the features.

    Examples
    --------
    >>> sites = from_arrays([[[1.0], [2.0]], [[3.0]]], [[0, 1], [1]], names=["north", "south"])
    >>> sites
    Sites(2 site(s), 3 rows, 1 columns: 'north' (2), 'south' (1))
    """

    features: tuple[np.ndarray, ...]
    labels: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    ids: tuple[int, ...]
    source: dict[str, Any] = field(default_factory=dict)
    row_weights: tuple[np.ndarray, ...] | None = None
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Keep read-only arrays that the caller cannot change; whole numbers become floats."""
        for name in ("features", "labels", "row_weights"):
            arrays = getattr(self, name)
            if arrays is not None:
                object.__setattr__(self, name, tuple(readonly(integers_as_floats(a)) for a in arrays))

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """Names and sizes only: rows must not be printed. `compfed.data.describe(sites)` has more."""
        named = join_names([f"{name!r} ({m})" for name, m in zip(self.names, self.sizes, strict=True)])
        return f"Sites({len(self)} site(s), {self.sizes.sum()} rows, {self.width} columns: {named})"

    @property
    def sizes(self) -> np.ndarray:
        """m_i: rows at each site."""
        return np.array([len(y) for y in self.labels])

    @property
    def shares(self) -> np.ndarray:
        """m_i / sum_j m_j, or the shares of the row weights: with these p_i the loss is that of the pooled table."""
        total = self.sizes if self.row_weights is None else np.array([w.sum() for w in self.row_weights])
        return total / total.sum()

    @property
    def row_shares(self) -> list[np.ndarray]:
        """q_il: the share of each row in its site's loss, 1 / m_i unless rows are weighted."""
        if self.row_weights is None:
            sizes = self.sizes
            return np.split(np.repeat(1.0 / sizes, sizes), np.cumsum(sizes)[:-1])
        return [w / w.sum() for w in self.row_weights]

    @cached_property
    def fingerprints(self) -> np.ndarray:
        """One sum over the rows of each site, to know it by: sum_l q_l (<w, a_l> + <v, y_l>), with fixed w and v."""
        w, v = fingerprint_weights(self.width, self.labels[0].shape[1:])
        sizes, shares, found = self.sizes, self.row_shares, []
        for a, b in block_ranges(sizes, self.width):
            A, y, q = (concatenate_rows(arrays[a:b]) for arrays in (self.features, self.labels, shares))
            each = q * (A @ w + y.reshape(len(y), -1) @ v)
            found.append(np.add.reduceat(each, np.cumsum(sizes[a:b]) - sizes[a:b]))
        return np.concatenate(found)

    @property
    def width(self) -> int:
        """d: number of features."""
        return self.features[0].shape[1]

    def permuted(self, order: Sequence[int] | np.ndarray) -> Sites:
        """A copy with the sites in another order; each keeps its name and its id."""
        if sorted(order) != list(range(len(self))):
            raise InputError(f"permuted(order) needs each of 0..{len(self) - 1} once; got {list(order)}.")

        def reorder(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(values[i] for i in order)

        return replace(
            self,
            features=reorder(self.features),
            labels=reorder(self.labels),
            names=reorder(self.names),
            ids=reorder(self.ids),
            source={**self.source, "order": [int(i) for i in order]},
            row_weights=None if self.row_weights is None else reorder(self.row_weights),
        )

    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """All features and all labels in one table: only a simulation can do this."""
        return np.concatenate(self.features), np.concatenate(self.labels)


def integers_as_floats(array: np.ndarray) -> np.ndarray:
    """Whole numbers and truth values as float64, since sums of small integers overflow; other arrays unchanged."""
    return set_readonly(array.astype(np.float64)) if array.dtype.kind in "biu" else array


def from_arrays(
    features: Iterable[TableLike],
    labels: Iterable[TableLike],
    names: Sequence[str] | None = None,
    source: dict[str, Any] | None = None,
    *,
    row_weights: Iterable[ColumnLike] | None = None,
    columns: Sequence[str] | None = None,
) -> Sites:
    """Build a federation from one feature matrix and one label vector per site.

    Parameters
    ----------
    features : iterable of array-like, each of shape (m_i, d)
        Arrays, DataFrames or sparse matrices; all with the same columns.
    labels : iterable of array-like, each of shape (m_i,) or (m_i, outputs)
    names : sequence of str, optional
        The names of the sites; "0", "1", ... by default.
    source : dict, optional
        How the data were made, for provenance.
    row_weights : iterable of array-like, each of shape (m_i,), optional
        How much each row counts within its site.
    columns : sequence of str, optional
        The names of the features.

    Returns
    -------
    Sites

    Examples
    --------
    >>> import numpy as np
    >>> sites = from_arrays([np.ones((3, 2)), np.zeros((5, 2))], [[1, 0, 1], [0, 0, 1, 1, 0]])
    >>> len(sites), sites.sizes.tolist(), sites.width
    (2, [3, 5], 2)
    """
    feature_list, label_list = list(features), list(labels)
    if len(feature_list) != len(label_list):
        raise InputError(
            f"got {len(feature_list)} feature matrices and {len(label_list)} label vectors; one of each per site."
        )
    if not feature_list:
        raise InputError("a federation needs at least one site; got none.")
    names = _check_site_names(names, len(feature_list))
    row_weights = None if row_weights is None else list(row_weights)
    for i, name in enumerate(names):
        weights = None if row_weights is None or i >= len(row_weights) else row_weights[i]
        _check_index(name, feature_list[i], labels=label_list[i], row_weights=weights)
    checked = [_as_site(*site) for site in zip(names, feature_list, label_list, strict=True)]
    X, Y = zip(*checked, strict=True)
    _check_alike(names, X, Y)
    _check_numbers(names, X, Y)
    if columns is not None and len(columns) != X[0].shape[1]:
        raise InputError(f"got {len(columns)} names for {X[0].shape[1]} columns; give one name per column.")
    return Sites(
        features=X,
        labels=Y,
        names=tuple(names),
        ids=tuple(range(len(X))),
        source=source or {"name": "from_arrays"},
        row_weights=None if row_weights is None else _as_row_weights(row_weights, names, Y),
        columns=None if columns is None else tuple(str(c) for c in columns),
    )


def _check_site_names(names: Sequence[str] | None, sites: int) -> list[str]:
    names = [str(i) for i in range(sites)] if names is None else [str(name) for name in names]
    if len(names) != sites:
        raise InputError(f"got {len(names)} names for {sites} sites; give one name per site.")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"two sites are called {twice!r}; give each its own name, or put their rows into one.")
    return names


def _check_index(name: str, features: object, **given: object) -> None:
    """Refuse labels or weights of a site with another index than its features, if both have one."""
    for what, values in given.items():
        try:
            check_same_index(features, values, what, "features")
        except InputError as error:
            raise InputError(f"site {name!r}: {error}") from None


def _as_site(name: str, features: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """The features and labels of one site as floats, checked without the other sites."""
    x, y = as_floats(features, f"features of site {name!r}"), as_floats(labels, f"labels of site {name!r}")
    if x.ndim != 2 or y.ndim not in (1, 2):
        raise InputError(
            f"site {name!r}: features must have shape (rows, columns) and labels (rows,) or (rows, outputs); "
            f"got {x.shape} and {y.shape}."
        )
    if len(x) == 0:
        raise InputError(f"site {name!r} is empty; every site needs at least one row. Leave it out.")
    if len(x) != len(y):
        raise InputError(f"site {name!r} has {len(x)} rows of features and {len(y)} labels; they must match.")
    if x.shape[1] == 0:
        raise InputError(f"site {name!r} has no feature columns; it needs at least one.")
    return x, y


def _check_numbers(names: Sequence[str], features: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
    """Refuse numbers that are not finite or whose squares overflow; a block of sites that passes is checked at once."""
    sizes = np.array([len(y) for y in labels])
    for a, b in block_ranges(sizes, features[0].shape[1]):
        starts = np.cumsum(sizes[a:b]) - sizes[a:b]
        if b - a > 1 and all(_usable(concatenate_rows(part[a:b]), starts) for part in (features, labels)):
            continue
        for name, x, y in zip(names[a:b], features[a:b], labels[a:b], strict=True):
            for what, values in (("features", x), ("labels", y)):
                check_finite(values, f"{what} of site {name!r}")
            for what, values in (("features", x), ("labels", y)):
                check_magnitudes(values, f"{what} of site {name!r}")


def _usable(values: np.ndarray, starts: np.ndarray) -> bool:
    """Whether the largest number of every column of every site is zero, or within the magnitudes allowed."""
    top = np.maximum.reduceat(np.abs(values), starts, axis=0)
    return bool(((top == 0) | ((top >= MIN_MAGNITUDE) & (top <= MAX_MAGNITUDE))).all())  # False for NaN


def _check_alike(names: Sequence[str], features: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
    """Refuse a site with other columns or outputs than the first one."""
    for name, x, y in zip(names, features, labels, strict=True):
        if y.shape[1:] != labels[0].shape[1:]:
            raise InputError(
                f"site {name!r} has labels of shape {y.shape}, site {names[0]!r} {labels[0].shape}; "
                "all sites need the same outputs."
            )
        if x.shape[1] != features[0].shape[1]:
            raise InputError(
                f"site {name!r} has {x.shape[1]} columns, site {names[0]!r} has {features[0].shape[1]}; "
                "all sites need the same columns in the same order."
            )


def _as_row_weights(weights: list[Any], names: list[str], labels: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    if len(weights) != len(names):
        raise InputError(f"got row weights for {len(weights)} sites; there are {len(names)}.")
    checked = []
    for name, raw, y in zip(names, weights, labels, strict=True):
        w = as_floats(raw, f"row weights of site {name!r}")
        if w.shape != (len(y),):
            raise InputError(f"site {name!r} has {len(y)} rows and row weights of shape {w.shape}; one weight per row.")
        check_finite(w, f"row weights of site {name!r}")
        if (w < 0).any() or not w.any():
            raise InputError(
                f"site {name!r}: row weights must be >= 0 and not all zero; the smallest is {w.min():g}, "
                f"the largest {w.max():g}. Leave out a site that should not count."
            )
        check_row_weights(w, name)
        checked.append(w)
    return tuple(checked)


def from_table(
    X: TableLike, y: TableLike | str, sites: ColumnLike | str, *, row_weights: ColumnLike | None = None
) -> Sites:
    """Build a federation from one table and the site of each row.

    Parameters
    ----------
    X : array-like of shape (n_rows, d)
        An array, a DataFrame or a sparse matrix.
    y : array-like of shape (n_rows,) or (n_rows, outputs), or str
        The labels, or the name of a column of the DataFrame X.
    sites : array-like of shape (n_rows,), or str
        The site of each row, or the name of a column of the DataFrame X. Sites are sorted by their name.
    row_weights : array-like of shape (n_rows,), optional
        How much each row counts within its site.

    Returns
    -------
    Sites

    Examples
    --------
    >>> import numpy as np
    >>> from_table(np.eye(4), [1, 0, 1, 0], ["north", "south", "north", "north"]).names
    ('north', 'south')
    """
    if is_dataframe(X):
        check_column_names("the table", X.columns)
        named = [c for c in (y, sites) if isinstance(c, str)]
        for c in named:
            if c not in X.columns:
                raise InputError(f"the table has no column {c!r}; it has {', '.join(map(str, X.columns))}.")
        y = X[y] if isinstance(y, str) else y
        sites = X[sites] if isinstance(sites, str) else sites
        X = X.drop(columns=named)
    for name, given in (("y", y), ("sites", sites), ("row_weights", row_weights)):
        check_same_index(X, given, name)
    columns = [str(c) for c in X.columns] if is_dataframe(X) else None
    features, labels = as_floats(X, "features"), as_floats(y, "labels")
    where = as_site_labels("sites: the site of every row is needed", sites)
    if labels.ndim not in (1, 2) or features.ndim != 2 or not len(features) == len(labels) == len(where):
        raise InputError(
            "features must have shape (rows, columns), labels and sites one entry per row; "
            f"got shapes {features.shape}, {labels.shape} and {where.shape}."
        )
    names, rows = group_rows(where)
    weights = None if row_weights is None else as_floats(row_weights, "row weights")
    if weights is not None and weights.shape != (len(where),):
        raise InputError(f"row_weights has shape {weights.shape}; there are {len(where)} rows: one for each.")
    return from_arrays(
        [set_readonly(features[r]) for r in rows],
        [set_readonly(labels[r]) for r in rows],
        names=[str(name) for name in names],
        source={"name": "from_table"},
        row_weights=None if weights is None else [set_readonly(weights[r]) for r in rows],
        columns=columns,
    )


def describe(sites: Sites) -> Summary:
    """Summarise a federation: sizes and labels per site, constant columns, and the distance of the sites from all rows.

    Parameters
    ----------
    sites : Sites

    Returns
    -------
    Summary
        ``print`` shows it as a table. Labels are counted as classes when there are at most 20 distinct ones, all of
        them whole numbers; otherwise their mean and standard deviation are given.

    Examples
    --------
    >>> from compfed.data import from_table
    >>> X = [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0]]
    >>> print(describe(from_table(X, [0, 0, 0, 1], ["north", "north", "north", "south"])))
    2 site(s), 4 rows, 2 features
    <BLANKLINE>
    site   rows   share     y=0     y=1  constant columns
    -----  ----  ------  ------  ------  ----------------
    north     3   75.0%  100.0%    0.0%                 1
    south     1   25.0%    0.0%  100.0%                 2
    all       4  100.0%   75.0%   25.0%                 1
    <BLANKLINE>
    sizes: largest / smallest = 3
    labels: total variation of label shares, site against all: at most 0.75 (site south)
    features: shift of a column's mean in pooled sd: at most 1.34 (column 0, site south)
    constant everywhere: column(s) 1
    """
    if not isinstance(sites, Sites):
        raise InputError(
            f"describe takes a federation from compfed.data, such as from_table(X, y, sites); got {type(sites).__name__}."
        )
    facts = [summarise_site(A, y) for A, y in zip(sites.features, sites.labels, strict=True)]
    return combine_summaries(sites.names, sites.columns, facts)
