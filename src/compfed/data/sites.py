"""Sites: their rows in memory (`Sites`), or fetched when a client takes part (`LazySites`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from compfed._utils.arrays import block_ranges, concatenate_rows, group_rows, readonly, set_readonly
from compfed._utils.text import join_names
from compfed._utils.validation import (
    MAX_MAGNITUDE,
    MIN_MAGNITUDE,
    as_site_labels,
    check_callable,
    check_distinct_names,
    check_magnitudes,
    check_numbers,
    check_same_index,
    check_sample_weight,
    check_unmasked,
)
from compfed.data.adapter import as_column
from compfed.data.columns import as_floats, check_finite, check_roles, read_frame, take_column
from compfed.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from compfed.data.columns import ColumnLike, TableLike
    from compfed.data.raw_table import RawTable
    from compfed.schema import Schema


SHAPES = "features must have shape (rows, columns) and labels (rows,) or (rows, outputs)"


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
    sample_weight : tuple of ndarray, each of shape (m_i,), or None
        How much each row counts within its site.
    columns : tuple of str or None
        The names of the features.
    offsets : tuple of ndarray, each of shape (m_i,), or None
        Added to the linear predictor of each row.
    strata : tuple of ndarray, each of shape (m_i,), or None
        The stratum of each row of survival data.
    schema : Schema or None
        How the features and labels were encoded.
    raw : tuple of RawTable or None
        The tables before they were encoded.
    notes : tuple of str
        What was left out in reading: columns, and rows without a label.

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
    source: dict[str, object] = field(default_factory=dict)
    sample_weight: tuple[np.ndarray, ...] | None = None
    columns: tuple[str, ...] | None = None
    offsets: tuple[np.ndarray, ...] | None = None
    schema: Schema | None = None
    raw: tuple[RawTable, ...] | None = None
    notes: tuple[str, ...] = ()
    strata: tuple[np.ndarray, ...] | None = None

    def __post_init__(self) -> None:
        """Keep read-only arrays that the caller cannot change; whole numbers become floats."""
        for name in ("features", "labels", "sample_weight", "offsets"):
            arrays = getattr(self, name)
            if arrays is not None:
                object.__setattr__(self, name, tuple(readonly(integers_as_floats(a)) for a in arrays))

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """Names and sizes only: rows must not be printed. `cf.describe(sites)` has more."""
        named = join_names([f"{name!r} ({m})" for name, m in zip(self.names, self.sizes, strict=True)])
        return f"Sites({len(self)} site(s), {self.sizes.sum()} rows, {self.width} columns: {named})"

    @property
    def sizes(self) -> np.ndarray:
        """m_i: rows at each site."""
        return np.array([len(y) for y in self.labels])

    @property
    def shares(self) -> np.ndarray:
        """m_i / sum_j m_j, or the shares of the row weights: with these p_i the loss is that of the pooled table."""
        total = self.sizes if self.sample_weight is None else np.array([w.sum() for w in self.sample_weight])
        return total / total.sum()

    @property
    def row_shares(self) -> list[np.ndarray]:
        """q_il: the share of each row in its site's loss, 1 / m_i unless rows are weighted."""
        if self.sample_weight is None:
            sizes = self.sizes
            return np.split(np.repeat(1.0 / sizes, sizes), np.cumsum(sizes)[:-1])
        return [w / w.sum() for w in self.sample_weight]

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
        """The number of features, d."""
        return self.features[0].shape[1]

    def permuted(self, order: Sequence[int] | np.ndarray) -> Sites:
        """A copy with the sites in another order; each keeps its name and its id."""
        if sorted(order) != list(range(len(self))):
            raise InputError(f"permuted(order) needs each of 0..{len(self) - 1} once; got {list(order)}.")
        fields = ("features", "labels", "names", "ids", "sample_weight", "offsets", "raw", "strata")
        given = {name: values for name in fields if (values := getattr(self, name)) is not None}
        moved: dict[str, Any] = {name: tuple(values[i] for i in order) for name, values in given.items()}
        return replace(self, **moved, source={**self.source, "order": [int(i) for i in order]})

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
    source: dict[str, object] | None = None,
    *,
    sample_weight: Iterable[ColumnLike] | None = None,
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
    sample_weight : iterable of array-like, each of shape (m_i,), optional
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
        found = f"{len(feature_list)} feature matrices and {len(label_list)} label vectors"
        raise InputError(f"got {found}; give one of each per site.")
    if not feature_list:
        raise InputError("a federation needs at least one site; got none.")
    names = _check_site_names(names, len(feature_list))
    X, Y = zip(*map(_as_site, names, feature_list, label_list), strict=True)
    _check_alike(names, X, Y)
    _check_numbers(names, X, Y)
    if columns is not None and len(columns) != X[0].shape[1]:
        raise InputError(f"got {len(columns)} names for {X[0].shape[1]} columns; give one name per column.")
    weights = None if sample_weight is None else _as_sample_weight(list(sample_weight), names, feature_list)
    named = None if columns is None else tuple(str(c) for c in columns)
    return Sites(X, Y, tuple(names), tuple(range(len(X))), source or {"name": "from_arrays"}, weights, named)


def _check_site_names(names: Sequence[str] | None, sites: int) -> list[str]:
    names = [str(i) for i in range(sites)] if names is None else [str(name) for name in names]
    if len(names) != sites:
        raise InputError(f"got {len(names)} names for {sites} sites; give one name per site.")
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"two sites are called {twice!r}; give each its own name, or put their rows into one.")
    check_distinct_names("the sites need different names", np.array(names))
    return names


def _check_index(name: str, features: object, other: object, what: str) -> None:
    """Refuse labels or weights of a site with another index than its features, if both have one."""
    try:
        check_same_index(features, other, what, "features")
    except InputError as error:
        raise InputError(f"site {name!r}: {error}") from None


def _as_site(name: str, features: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """The features and labels of one site as floats, checked without the other sites."""
    _check_index(name, features, labels, "labels")
    x, y = as_floats(features, f"features of site {name!r}"), as_floats(labels, f"labels of site {name!r}")
    if x.ndim != 2 or y.ndim not in (1, 2):
        raise InputError(f"site {name!r}: {SHAPES}; got {x.shape} and {y.shape}.")
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
            for check in (check_finite, check_magnitudes):
                check(x, f"features of site {name!r}")
                check(y, f"labels of site {name!r}")


def _usable(values: np.ndarray, starts: np.ndarray) -> bool:
    """Whether the largest number of every column of every site is zero, or within the magnitudes allowed."""
    top = np.maximum.reduceat(np.abs(values), starts, axis=0)
    return bool(((top == 0) | ((top >= MIN_MAGNITUDE) & (top <= MAX_MAGNITUDE))).all())  # False for NaN


def _check_alike(names: Sequence[str], features: Sequence[np.ndarray], labels: Sequence[np.ndarray]) -> None:
    """Refuse a site with other columns or outputs than the first one."""
    for name, x, y in zip(names, features, labels, strict=True):
        if y.shape[1:] != labels[0].shape[1:]:
            shapes = f"labels of shape {y.shape}, site {names[0]!r} {labels[0].shape}"
            raise InputError(f"site {name!r} has {shapes}; all sites need the same outputs.")
        if x.shape[1] != features[0].shape[1]:
            widths = f"{x.shape[1]} columns, site {names[0]!r} has {features[0].shape[1]}"
            raise InputError(f"site {name!r} has {widths}; all sites need the same columns in the same order.")


def _as_sample_weight(weights: list[Any], names: list[str], features: Sequence[Any]) -> tuple[np.ndarray, ...]:
    if len(weights) != len(names):
        raise InputError(f"got row weights for {len(weights)} sites; there are {len(names)}.")
    checked = []
    for name, raw, x in zip(names, weights, features, strict=True):
        _check_index(name, x, raw, "sample_weight")
        w = as_floats(raw, f"row weights of site {name!r}")
        if w.shape != (np.shape(x)[0],):
            raise InputError(
                f"site {name!r} has {np.shape(x)[0]} rows and row weights of shape {w.shape}; one per row."
            )
        check_finite(w, f"row weights of site {name!r}")
        if (w < 0).any() or not w.any():
            found = f"the smallest is {w.min():g}, the largest {w.max():g}. Leave out a site that should not count."
            raise InputError(f"site {name!r}: row weights must be >= 0 and not all zero; {found}")
        check_sample_weight(w, name)
        checked.append(w)
    return tuple(checked)


def from_table(
    X: TableLike,
    y: TableLike | str,
    sites: ColumnLike | str,
    *,
    sample_weight: ColumnLike | None = None,
    schema: Schema | str | Path | None = None,
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
    sample_weight : array-like of shape (n_rows,), optional
        How much each row counts within its site.
    schema : "auto", Schema or path, optional
        How words and missing values of a DataFrame become numbers; without one all values must be numbers.

    Returns
    -------
    Sites

    Examples
    --------
    >>> import numpy as np
    >>> from_table(np.eye(4), [1, 0, 1, 0], ["north", "south", "north", "north"]).names
    ('north', 'south')
    """
    frame = read_frame(X, "the table")
    if frame is not None:
        check_roles(**{role: c for role, c in (("y", y), ("sites", sites)) if isinstance(c, str)})
        if isinstance(sites, str):
            frame, sites = take_column(frame, "sites", sites)
        if schema is not None:
            return _encoded_sites(frame, y, sites, sample_weight, schema)
        if isinstance(y, str):
            frame, y = take_column(frame, "y", y)
        X = cast(Any, frame)
    elif schema is not None:
        raise InputError(f"schema= is for a DataFrame, whose columns have names; got {type(X).__name__}.")
    for name, given in (("y", y), ("sites", sites), ("sample_weight", sample_weight)):
        check_same_index(X, given, name)
    columns = None if frame is None else [str(c) for c in frame.columns]
    features, labels = as_floats(X, "features"), as_floats(y, "labels")
    where = _site_labels(sites)
    if labels.ndim not in (1, 2) or features.ndim != 2 or not len(features) == len(labels) == len(where):
        found = f"got shapes {features.shape}, {labels.shape} and {where.shape}"
        raise InputError(f"features must have shape (rows, columns), labels and sites one entry per row; {found}.")
    names, rows = group_rows(where)
    weights = None if sample_weight is None else as_floats(sample_weight, "row weights")
    if weights is not None and weights.shape != (len(where),):
        raise InputError(f"sample_weight has shape {weights.shape}; there are {len(where)} rows: one for each.")
    X, Y = ([set_readonly(a[r]) for r in rows] for a in (features, labels))
    Q = None if weights is None else [set_readonly(weights[r]) for r in rows]
    return from_arrays(X, Y, [str(name) for name in names], {"name": "from_table"}, sample_weight=Q, columns=columns)


def _site_labels(sites: Any) -> np.ndarray:
    column = as_column(sites)
    return as_site_labels("sites: the site of every row is needed", sites if column is None else column.values)


def _encoded_sites(X: Any, y: Any, sites: Any, sample_weight: Any, schema: Schema | str | Path) -> Sites:
    """`from_table` with a schema."""
    from compfed.data.frames import encode_frame

    for name, given in (("y", y), ("sites", sites), ("sample_weight", sample_weight)):
        check_same_index(X, given, name)
    where = _site_labels(sites)
    if len(where) != len(X):
        raise InputError(f"sites has {len(where)} entries; the table has {len(X)} rows: give the site of every row.")
    found = encode_frame(X, y, where, schema, name="the table")
    names, rows = group_rows(where)
    part, named = found.encoded, [str(name) for name in names]
    weights = part.weights if sample_weight is None else as_floats(sample_weight, "row weights")
    if weights is not None and weights.shape != (len(where),):
        raise InputError(f"sample_weight has shape {weights.shape}; there are {len(where)} rows: one for each.")
    labels: Any = part.y
    made = from_arrays(
        [part.A[r] for r in rows], [labels[r] for r in rows], named, {"name": "from_table"},
        sample_weight=None if weights is None else [weights[r] for r in rows], columns=part.columns,
    )  # fmt: skip
    offsets = None if part.offset is None else tuple(part.offset[r] for r in rows)
    strata = None if part.strata is None else tuple(part.strata[r] for r in rows)
    raw = tuple(found.raw.take(r, name) for r, name in zip(rows, named, strict=True))
    return replace(made, schema=found.schema, raw=raw, offsets=offsets, strata=strata, notes=found.schema.notes)


# --- rows that are fetched when a client takes part: from a function, or from arrays on disk ---

RowsOf = Callable[[int], tuple[npt.ArrayLike, npt.ArrayLike]]
MAX_COUNT = 2**31 - 1  # of clients, and of rows of one: both are 32-bit integers
MARKED_CLIENTS = 8  # clients whose rows identify a federation


@dataclass(frozen=True, repr=False)
class LazySites:
    """n clients whose rows are fetched when needed; build one with `lazy_sites` or `mapped_sites`.

    Clients are numbered 0..n-1: the number is the name of a client, and its random draws follow from it.

    Attributes
    ----------
    rows_of : callable
        Returns the features and labels of a client.
    sizes : ndarray of shape (n,)
        Rows of each client.
    width : int
        The number of features.
    outputs : tuple of int
        The shape of a label.
    source : dict
        How the data were made, for provenance.
    """

    rows_of: RowsOf
    sizes: np.ndarray
    width: int
    outputs: tuple[int, ...]
    source: dict[str, object] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sizes)

    def __repr__(self) -> str:
        return f"LazySites({len(self)} clients, {self.sizes.sum()} rows, {self.width} columns, fetched when needed)"

    @cached_property
    def largest(self) -> int:
        """Rows of the largest client."""
        return int(self.sizes.max())

    @property
    def names(self) -> range:
        """The numbers of the clients."""
        return range(len(self))

    @property
    def shares(self) -> np.ndarray:
        """m_i / sum_j m_j: with these p_i the loss is that of the pooled table."""
        return self.sizes / self.sizes.sum()

    @cached_property
    def fingerprints(self) -> np.ndarray:
        """One sum over the rows of each of a few clients, to recognise them (as `Sites.fingerprints`); NaN for the others."""
        found = np.full(len(self), np.nan)
        w, v = fingerprint_weights(self.width, self.outputs)
        for i in np.unique(np.linspace(0, len(self) - 1, MARKED_CLIENTS).astype(int)).tolist():
            A, y = self.rows(i)
            with np.errstate(over="ignore", invalid="ignore"):  # checked when a client participates
                found[i] = (A @ w + y.reshape(len(y), -1) @ v).mean()
        return found

    def rows(self, client: int) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels of one client; their shapes are checked, their values are not."""
        A, y = _fetch(self.rows_of, client)
        m = int(self.sizes[client])
        if A.shape != (m, self.width) or y.shape != (m, *self.outputs):
            raise InputError(
                f"client {client} has features of shape {A.shape} and labels of shape {y.shape}; its size is {m}, so they must be "
                f"{(m, self.width)} and {(m, *self.outputs)}. Give its true size, and all clients the same columns."
            )
        return A, y

    def loaded(self, clients: Sequence[int] | np.ndarray) -> Sites:
        """Some of the clients with their rows in memory, named by their numbers."""
        features, labels = zip(*(self.rows(int(i)) for i in clients), strict=True)
        return from_arrays(features, labels, names=[str(int(i)) for i in clients], source=self.source)


def _fetch(rows_of: RowsOf, client: int) -> tuple[np.ndarray, np.ndarray]:
    found = rows_of(client)
    if not isinstance(found, tuple) or len(found) != 2:
        size = f" of {len(found)}" if isinstance(found, tuple) else ""
        raise InputError(f"rows_of({client}) must return (features, labels); got {type(found).__name__}{size}.")
    for what, part in zip(("features", "labels"), found, strict=True):
        check_unmasked(part, f"client {client}: its array of {what}")
        if issparse(part):
            raise InputError(f"client {client}: its {what} are sparse; give an array: toarray() in rows_of.")
        if (dtype := np.asarray(part).dtype).kind not in "biuf":
            raise InputError(f"client {client}: its {what} are {dtype}, not numbers. Encode them in rows_of.")
    return np.asarray(found[0]), integers_as_floats(np.asarray(found[1]))  # features are cast where they are used


def lazy_sites(rows_of: RowsOf, sizes: npt.ArrayLike, *, source: dict[str, object] | None = None) -> LazySites:
    """Build a federation whose rows come from a function, called whenever a client participates.

    Parameters
    ----------
    rows_of : callable
        ``rows_of(i)`` returns the features, of shape (sizes[i], d), and the labels of client i. It must return the same
        rows each time.
    sizes : array-like of int, shape (n,)
        Rows of each client.
    source : dict, optional
        How the data were made, for provenance.

    Returns
    -------
    LazySites

    Examples
    --------
    >>> import numpy as np
    >>> def rows_of(i):
    ...     A = np.random.default_rng(i).standard_normal((20, 3))
    ...     return A, A @ [1.0, 0.0, -1.0]
    >>> lazy_sites(rows_of, np.full(10**6, 20))
    LazySites(1000000 clients, 20000000 rows, 3 columns, fetched when needed)
    """
    check_callable("" if rows_of is None else rows_of, "rows_of")
    counts = _check_client_sizes(sizes)
    A, y = _fetch(rows_of, 0)
    if A.ndim != 2 or not A.shape[1] or y.ndim not in (1, 2):
        raise InputError(f"client 0: {SHAPES}; got {A.shape} and {y.shape}.")
    sites = LazySites(rows_of, counts, A.shape[1], y.shape[1:], source or {"name": "lazy_sites"})
    sites.rows(0)
    return sites


def mapped_sites(
    features: np.ndarray, labels: np.ndarray, sizes: npt.ArrayLike, *, source: dict[str, object] | None = None
) -> LazySites:
    """Build a federation from two long arrays, in memory or on disk, with the rows of one client after another.

    Parameters
    ----------
    features : array of shape (sum of sizes, d)
        For example ``np.load(path, mmap_mode="r")``, ``np.memmap``, or any object with a ``shape`` and slices.
    labels : array of shape (sum of sizes,) or (sum of sizes, outputs)
    sizes : array-like of int, shape (n,)
        Rows of each client.
    source : dict, optional
        How the data were made, for provenance.

    Returns
    -------
    LazySites

    Examples
    --------
    >>> import numpy as np
    >>> mapped_sites(np.ones((5, 2)), np.zeros(5), [3, 2]).rows(1)[0].shape
    (2, 2)
    """
    counts = _check_client_sizes(sizes)
    ends = np.cumsum(counts)
    for what, array in (("features", features), ("labels", labels)):
        if not getattr(array, "shape", ()) or issparse(array):
            raise InputError(f"{what} must be an array of rows, in memory or on disk; got {type(array).__name__}.")
        if array.shape[0] != ends[-1]:
            raise InputError(f"{what} has {array.shape[0]} rows; the sizes sum to {ends[-1]}. They must match.")

    def rows_of(client: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(int(ends[client] - counts[client]), int(ends[client]))
        return features[rows], labels[rows]

    return lazy_sites(rows_of, counts, source=source or {"name": "mapped_sites"})


def _check_client_sizes(sizes: npt.ArrayLike) -> np.ndarray:
    m = check_numbers(sizes, "sizes")
    if m.ndim != 1 or not len(m):
        raise InputError(f"sizes lists the rows of every client; got shape {m.shape}. For n alike: np.full(n, rows).")
    odd = (m != np.rint(m)) | (m < 1) | (m > MAX_COUNT)
    if odd.any() or len(m) > MAX_COUNT:
        i = int(odd.argmax())
        raise InputError(f"sizes: client {i} has {m[i]:g} rows; rows are whole, >= 1 and, like clients, below 2**31.")
    return readonly(m.astype(np.int64))
