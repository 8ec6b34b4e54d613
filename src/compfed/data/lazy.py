"""Federations whose rows are fetched when a client participates: from a function, or from arrays on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import issparse

from compfed._utils.arrays import readonly
from compfed._utils.validation import check_callable, check_numbers, check_unmasked
from compfed.data.sites import Sites, fingerprint_weights, from_arrays, integers_as_floats
from compfed.errors import InputError

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
    source: dict[str, Any] = field(default_factory=dict)

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
                f"client {client}: got features of shape {A.shape} and labels of shape {y.shape}; its size is {m}, so they "
                f"must be {(m, self.width)} and {(m, *self.outputs)}. Give its true size in sizes, and all clients the same "
                "columns."
            )
        return A, y

    def loaded(self, clients: Sequence[int] | np.ndarray) -> Sites:
        """Some of the clients with their rows in memory, named by their numbers."""
        rows = [self.rows(int(i)) for i in clients]
        return from_arrays(
            [A for A, _ in rows], [y for _, y in rows], names=[str(int(i)) for i in clients], source=self.source
        )


def _fetch(rows_of: RowsOf, client: int) -> tuple[np.ndarray, np.ndarray]:
    found = rows_of(client)
    if not isinstance(found, tuple) or len(found) != 2:
        raise InputError(
            f"rows_of({client}) must return (features, labels); got {type(found).__name__}"
            + (f" of {len(found)}." if isinstance(found, tuple) else ".")
        )
    for what, part in zip(("features", "labels"), found, strict=True):
        check_unmasked(part, f"client {client}: its array of {what}")
        if issparse(part):
            raise InputError(f"client {client}: its {what} are sparse; give an array: toarray() in rows_of.")
    A, y = (np.asarray(part) for part in found)
    for what, part in (("features", A), ("labels", y)):
        if part.dtype.kind not in "biuf":
            raise InputError(f"client {client}: its {what} are {part.dtype}, not numbers. Encode them in rows_of.")
    return A, integers_as_floats(y)  # features are cast where they are used


def lazy_sites(rows_of: RowsOf, sizes: npt.ArrayLike, *, source: dict[str, Any] | None = None) -> LazySites:
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
        raise InputError(
            f"client 0: features must have shape (rows, columns) and labels (rows,) or (rows, outputs); got {A.shape} and "
            f"{y.shape}."
        )
    sites = LazySites(rows_of, counts, A.shape[1], y.shape[1:], source or {"name": "lazy_sites"})
    sites.rows(0)
    return sites


def mapped_sites(
    features: np.ndarray, labels: np.ndarray, sizes: npt.ArrayLike, *, source: dict[str, Any] | None = None
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
            raise InputError(
                f"{what} has {array.shape[0]} rows; the sizes of all clients sum to {ends[-1]}. They must match."
            )

    def rows_of(client: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(int(ends[client] - counts[client]), int(ends[client]))
        return features[rows], labels[rows]

    return lazy_sites(rows_of, counts, source=source or {"name": "mapped_sites"})


def _check_client_sizes(sizes: npt.ArrayLike) -> np.ndarray:
    m = check_numbers(sizes, "sizes")
    if m.ndim != 1 or not len(m):
        raise InputError(
            f"sizes must list the rows of every client; got shape {m.shape}. For n alike: np.full(n, rows)."
        )
    odd = (m != np.rint(m)) | (m < 1) | (m > MAX_COUNT)
    if odd.any() or len(m) > MAX_COUNT:
        i = int(odd.argmax())
        raise InputError(
            f"sizes: client {i} has {m[i]:g} rows; every client needs a whole number of them, at least 1, and rows and clients "
            f"are fewer than 2**31."
        )
    return readonly(m.astype(np.int64))
