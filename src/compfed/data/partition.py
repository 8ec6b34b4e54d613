"""Partitions of one table into sites: each function returns the site of every row, for `from_table` and for `fit`.

Every row goes to exactly one site, and the same seed gives the same sites. `by_column` uses a column that records where a
row comes from; the other functions simulate sites.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from compfed._utils.validation import as_row_labels, check_int, check_nonnegative, check_positive, is_int
from compfed.errors import InputError
from compfed.splits import apportion

if TYPE_CHECKING:
    from compfed.data.columns import ColumnLike, TableLike


def iid(rows: int | TableLike, sites: int, seed: int = 0) -> np.ndarray:
    """Assign rows at random to sites of equal size, up to one row.

    Parameters
    ----------
    rows : int or array-like
        The number of rows, or anything with that many rows, such as the labels.
    sites : int
        The number of sites.
    seed : int, default=0

    Returns
    -------
    ndarray of int, shape (n_rows,)
        The site of every row, from 0 to ``sites - 1``.

    Examples
    --------
    >>> np.bincount(iid(11, sites=3)).tolist()
    [4, 4, 3]
    """
    return size_skewed(rows, sites, exponent=0.0, seed=seed)


def size_skewed(
    rows: int | TableLike, sites: int, exponent: float = 1.0, seed: int = 0, min_rows: int = 1
) -> np.ndarray:
    """Assign rows at random to sites of sizes m_i proportional to (i + 1)^-exponent, to the nearest row.

    Parameters
    ----------
    rows : int or array-like
        The number of rows, or anything with that many rows, such as the labels.
    sites : int
        The number of sites; site 0 is the largest.
    exponent : float, default=1.0
        0 gives equal sizes.
    seed : int, default=0
    min_rows : int, default=1
        A smaller site takes rows, one at a time and at random, from the site that is then the largest.

    Returns
    -------
    ndarray of int, shape (n_rows,)
        The site of every row.

    Examples
    --------
    >>> np.bincount(size_skewed(110, sites=3)).tolist()
    [60, 30, 20]
    """
    total, rng = _count(rows), _generator(seed)
    _check_sites(total, sites, min_rows)
    power = check_nonnegative(exponent, "exponent", " 0 is for equal sizes, 1 for m_i ~ 1 / i.")
    law = np.arange(1, sites + 1) ** -power
    where = np.repeat(np.arange(sites), apportion(total, law / law.sum()))
    return _fill_small_sites(min_rows, rng.permutation(where), sites, rng)


def dirichlet(y: ColumnLike, sites: int, alpha: float, seed: int = 0, min_rows: int = 1) -> np.ndarray:
    """Assign the rows of each class to the sites in proportions drawn from Dirichlet(alpha, ..., alpha): label skew.

    Sizes are skewed too.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        The class of every row.
    sites : int
        The number of sites.
    alpha : float
        A large alpha gives every site the class shares of the table; a small one puts nearly all rows of a class at one
        site.
    seed : int, default=0
    min_rows : int, default=1
        A smaller site takes rows, one at a time and at random, from the site that is then the largest. The proportions
        of all other sites stay as drawn.

    Returns
    -------
    ndarray of int, shape (n_rows,)
        The site of every row.

    References
    ----------
    Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual classification", 2019;
    the proportions per class are those of Yurochkin et al., ICML 2019.

    Examples
    --------
    >>> where = dirichlet([0, 1] * 50, sites=5, alpha=0.3, min_rows=4)
    >>> len(where), np.bincount(where).min() >= 4
    (100, np.True_)
    """
    labels, rng = _classes("dirichlet", y), _generator(seed)
    _check_sites(len(labels), sites, min_rows)
    evenness = check_positive(alpha, "alpha", " 0.1 is for strong label skew, 100 for almost none.")
    where = np.empty(len(labels), int)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        share = rng.dirichlet(np.full(sites, evenness))
        cuts = np.rint(np.cumsum(share)[:-1] * len(rows)).astype(int)
        for site, part in enumerate(np.split(rows, cuts)):
            where[part] = site
    return _fill_small_sites(min_rows, where, sites, rng)


def shards(y: ColumnLike, sites: int, shards_per_site: int = 2, seed: int = 0) -> np.ndarray:
    """Sort rows by class, cut them into shards of one class each, and assign the shards at random to the sites.

    A site has at most ``shards_per_site`` classes. A class gets shards in proportion to its rows, and at least one.

    Parameters
    ----------
    y : array-like of shape (n_rows,)
        The class of every row.
    sites : int
        The number of sites.
    shards_per_site : int, default=2
        1 gives sites of a single class.
    seed : int, default=0

    Returns
    -------
    ndarray of int, shape (n_rows,)
        The site of every row.

    Notes
    -----
    In the paper all shards have one size and may contain two classes. Both agree where the classes have one size and
    their shards divide them evenly.

    References
    ----------
    McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017.

    Examples
    --------
    >>> where = shards([0, 0, 0, 0, 1, 1, 1, 1], sites=4, shards_per_site=1)
    >>> np.bincount(where).tolist()
    [2, 2, 2, 2]
    """
    labels, rng = _classes("shards", y), _generator(seed)
    _check_sites(len(labels), sites, 1)
    check_int(shards_per_site, "shards_per_site", 1)
    classes, counts = np.unique(labels, return_counts=True)
    total = sites * shards_per_site
    if not len(classes) <= total <= len(labels):
        given = f"{sites} sites of {shards_per_site} shard(s), {len(classes)} classes and {len(labels)} rows"
        raise InputError(f"{given}: every shard needs a row and every class a shard. Change sites or shards_per_site.")
    pieces = np.ones(len(classes), int)
    for _ in range(total - len(classes)):
        pieces[np.argmax(counts / pieces)] += 1  # the class whose shards are the largest
    shard_sites = iter(rng.permutation(np.repeat(np.arange(sites), shards_per_site)))
    where = np.empty(len(labels), int)
    for label, k in zip(classes, pieces, strict=True):
        for part in np.array_split(rng.permutation(np.flatnonzero(labels == label)), k):
            where[part] = next(shard_sites)
    return where


def by_column(column: ColumnLike, bins: int | None = None, min_rows: int = 1, rest: str | None = None) -> np.ndarray:
    """Use the values of a column as sites, or quantile bins of its numbers.

    Parameters
    ----------
    column : array-like of shape (n_rows,)
    bins : int, optional
        The number of quantile bins. Sites are then 0 (smallest values), ..., bins - 1, of equal size except for ties:
        equal values stay together.
    min_rows : int, default=1
        Refuse a site with fewer rows, unless ``rest`` is given.
    rest : str, optional
        The name of one site for the rows of all sites with fewer than ``min_rows``.

    Returns
    -------
    ndarray of shape (n_rows,)
        The site of every row.

    Examples
    --------
    >>> by_column(["north", "south", "west", "north"], min_rows=2, rest="elsewhere").tolist()
    ['north', 'elsewhere', 'elsewhere', 'north']
    >>> by_column([1.0, 7.5, 3.2, 9.9], bins=2).tolist()
    [0, 1, 0, 1]
    """
    values = as_row_labels("by_column needs one value per row", column)
    check_int(min_rows, "min_rows", 1)
    where = values if bins is None else _quantile_bins(values, bins)
    names, index, counts = np.unique(where, return_inverse=True, return_counts=True)
    if rest is not None and (counts < min_rows).any():
        where = np.where((counts < min_rows)[index], rest, where.astype(str))
        names, counts = np.unique(where, return_counts=True)
    if (counts < min_rows).any():
        small = ", ".join(f"{name} ({m})" for name, m in zip(names, counts, strict=True) if m < min_rows)
        way_out = "or drop these rows" if rest else "or give these rows to one site with rest='other'"
        raise InputError(f"site(s) with fewer rows than min_rows={min_rows}: {small}. Lower min_rows, {way_out}.")
    return where


def _quantile_bins(values: np.ndarray, bins: int) -> np.ndarray:
    check_int(bins, "bins", 1)
    odd = ~np.isfinite(values) if values.dtype.kind in "biuf" else np.ones(len(values), bool)
    if odd.any():
        first = int(odd.argmax())
        raise InputError(f"bins={bins} needs finite numbers; row {first} has {values[first]}. Leave bins out.")
    edges = np.quantile(values.astype(float), np.arange(1, bins) / bins)
    where = np.searchsorted(edges, values, side="left")  # a value equal to an edge goes to the bin below it
    filled = len(np.unique(where))
    if filled < bins:
        empty = f"bins={bins} leaves {bins - filled} bin(s) empty: equal values stay together, and the column has"
        raise InputError(f"{empty} {len(np.unique(values))} distinct ones. Use fewer bins, or none: a site for each.")
    return where


def _fill_small_sites(min_rows: int, where: np.ndarray, sites: int, rng: np.random.Generator) -> np.ndarray:
    """Move random rows from the largest site to sites with fewer than `min_rows`, one at a time."""
    sizes = np.bincount(where, minlength=sites)
    given: dict[int, list[int]] = {}
    while sizes.min() < min_rows:
        taker, giver = int(sizes.argmin()), int(sizes.argmax())
        # a giver keeps min_rows, so it never becomes a taker: its rows are shuffled once
        if giver not in given:
            given[giver] = rng.permutation(np.flatnonzero(where == giver)).tolist()
        where[given[giver].pop()] = taker
        sizes[taker] += 1
        sizes[giver] -= 1
    return where


def _count(rows: int | TableLike) -> int:
    if is_int(rows):
        return check_int(rows, "rows", 1)
    shape = np.shape(rows)  # pyright: ignore[reportArgumentType, reportCallIssue]  # of sparse matrices too
    if not shape or not shape[0]:
        raise InputError(f"rows={rows!r} must be a number of rows >= 1, or something with rows such as the labels.")
    return int(shape[0])


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(check_int(seed, "seed", 0))


def _check_sites(rows: int, sites: int, min_rows: int) -> None:
    check_int(sites, "sites", 1)
    check_int(min_rows, "min_rows", 1)
    if sites * min_rows > rows:
        need = f"sites={sites} with at least {min_rows} row(s) each need {sites * min_rows} rows; there are {rows}"
        raise InputError(f"{need}. Use fewer sites{' or a smaller min_rows' if min_rows > 1 else ''}.")


def _classes(name: str, y: ColumnLike) -> np.ndarray:
    labels = as_row_labels(f"{name} needs one class label per row", y)
    if labels.dtype.kind == "f" and (odd := labels != np.rint(labels)).any():
        found = f"got {labels[odd][0]:g} in row {int(odd.argmax())}"
        raise InputError(f"{name} needs class labels; {found}. Make some: {name}(partition.by_column(y, bins=5), ...).")
    return labels
