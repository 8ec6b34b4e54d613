"""Ways to cut one table into sites: each gives the site of every row, for `from_table(X, y, sites)` and for `fit`.

Every row goes to exactly one site, and the same seed gives the same sites. A made split stands in for sites one does
not have; where the table has a column that says where a row was recorded, `by_column` is the honest one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed._utils.validation import check_int, check_nonnegative, check_positive, is_int
from compfed.data.columns import as_row_labels
from compfed.errors import InputError
from compfed.splits import apportion


def iid(rows: Any, sites: int, seed: int = 0) -> np.ndarray:
    """Rows dealt at random to sites 0, ..., sites - 1, whose sizes differ by at most one.

    - `rows`: how many, or anything with that many rows, such as the labels.

    >>> np.bincount(iid(11, sites=3)).tolist()
    [4, 4, 3]
    """
    return size_skewed(rows, sites, exponent=0.0, seed=seed)


def size_skewed(rows: Any, sites: int, exponent: float = 1.0, seed: int = 0, min_rows: int = 1) -> np.ndarray:
    """Rows dealt at random to sites whose sizes follow m_i proportional to (i + 1)^-exponent, to the nearest row.

    Site 0 is the largest. `exponent=0` gives equal sizes. A site that would have fewer than `min_rows` takes rows,
    one at a time and at random, from whichever site is then the largest.

    - `rows`: how many, or anything with that many rows, such as the labels.

    >>> np.bincount(size_skewed(110, sites=3)).tolist()
    [60, 30, 20]
    """
    total, rng = _count(rows), _generator(seed)
    _check_sites(total, sites, min_rows)
    power = check_nonnegative(exponent, "exponent", " 0 is for equal sizes, 1 for m_i ~ 1 / i.")
    law = np.arange(1, sites + 1) ** -power
    where = np.repeat(np.arange(sites), apportion(total, law / law.sum()))
    return _with_at_least(min_rows, rng.permutation(where), sites, rng)


def dirichlet(y: Any, sites: int, alpha: float, seed: int = 0, min_rows: int = 1) -> np.ndarray:
    """Label skew: the rows of each class are shared out over the sites in proportions ~ Dirichlet(alpha, ..., alpha).

    Large alpha gives every site the shares of the pooled table; small alpha puts nearly all rows of a class at one
    site. Sizes are skewed too. A site left with fewer than `min_rows` takes rows, one at a time and at random, from
    whichever site is then the largest: the proportions of all other sites stay as drawn.

    Reference: Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated visual
    classification", 2019, and Yurochkin et al., ICML 2019, whose proportions per class these are.

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
    return _with_at_least(min_rows, where, sites, rng)


def shards(y: Any, sites: int, shards_per_site: int = 2, seed: int = 0) -> np.ndarray:
    """Rows sorted by label and cut into sites * shards_per_site shards, which are dealt at random to the sites.

    Each shard holds one class, so a site has at most `shards_per_site` classes; 1 gives sites of a single class.
    A class gets shards in proportion to its rows, and at least one.

    Reference: McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017.
    Deviations: there all shards have one size and may straddle two classes; with classes of one size, whose shards
    divide them evenly, the two agree.

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
        raise InputError(
            f"{sites} sites of {shards_per_site} shard(s) make {total} shards for {len(classes)} classes and "
            f"{len(labels)} rows; every shard needs a row and every class a shard. Change sites or shards_per_site."
        )
    pieces = np.ones(len(classes), int)
    for _ in range(total - len(classes)):
        pieces[np.argmax(counts / pieces)] += 1  # the class whose shards are the largest
    assign_folds = iter(rng.permutation(np.repeat(np.arange(sites), shards_per_site)))
    where = np.empty(len(labels), int)
    for label, k in zip(classes, pieces, strict=True):
        for part in np.array_split(rng.permutation(np.flatnonzero(labels == label)), k):
            where[part] = next(assign_folds)
    return where


def by_column(column: Any, bins: int | None = None, min_rows: int = 1, rest: str | None = None) -> np.ndarray:
    """The values of a column as sites; with `bins`, that many quantile bins of a column of numbers.

    - `bins`: sites are 0 (smallest values), ..., bins - 1, of equal size but for ties: equal values stay together.
    - `min_rows`: refuse a site with fewer rows, or, with `rest`, put all such sites together under that name.

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
        raise InputError(
            f"site(s) with fewer rows than min_rows={min_rows}: {small}. Lower min_rows, "
            + ("or drop these rows." if rest else "or give these rows to one site with rest='other'.")
        )
    return where


def _quantile_bins(values: np.ndarray, bins: int) -> np.ndarray:
    check_int(bins, "bins", 1)
    number = values.dtype.kind in "biuf"
    odd = ~np.isfinite(values) if number else np.ones(len(values), bool)
    if odd.any():
        raise InputError(
            f"bins={bins} needs finite numbers; row {int(odd.argmax())} has {values[odd][0]}. Leave bins out."
        )
    edges = np.quantile(values.astype(float), np.arange(1, bins) / bins)
    where = np.searchsorted(edges, values, side="left")  # a value equal to an edge goes to the bin below it
    filled = len(np.unique(where))
    if filled < bins:
        raise InputError(
            f"bins={bins} leaves {bins - filled} bin(s) empty: the column has {len(np.unique(values))} distinct values, "
            "and equal values stay together. Use fewer bins, or none to make every value a site."
        )
    return where


def _with_at_least(min_rows: int, where: np.ndarray, sites: int, rng: np.random.Generator) -> np.ndarray:
    """`where` after sites with fewer than `min_rows` took random rows from the site that was then the largest."""
    sizes = np.bincount(where, minlength=sites)
    given: dict[int, list[int]] = {}
    while sizes.min() < min_rows:
        taker, giver = int(sizes.argmin()), int(sizes.argmax())
        # a giver has more than min_rows and keeps that many, so it never takes and its rows can be drawn once
        if giver not in given:
            given[giver] = rng.permutation(np.flatnonzero(where == giver)).tolist()
        where[given[giver].pop()] = taker
        sizes[taker] += 1
        sizes[giver] -= 1
    return where


def _count(rows: Any) -> int:
    if is_int(rows):
        return check_int(rows, "rows", 1)
    shape = np.shape(rows)
    if not shape or not shape[0]:
        raise InputError(f"rows={rows!r} must be a number of rows >= 1, or something with rows such as the labels.")
    return int(shape[0])


def _generator(seed: Any) -> np.random.Generator:
    return np.random.default_rng(check_int(seed, "seed", 0))


def _check_sites(rows: int, sites: Any, min_rows: Any) -> None:
    check_int(sites, "sites", 1)
    check_int(min_rows, "min_rows", 1)
    if sites * min_rows > rows:
        raise InputError(
            f"sites={sites} with at least {min_rows} row(s) each need {sites * min_rows} rows; there are {rows}. "
            "Use fewer sites" + (" or a smaller min_rows." if min_rows > 1 else ".")
        )


def _classes(name: str, y: Any) -> np.ndarray:
    labels = as_row_labels(f"{name} needs one class label per row", y)
    if labels.dtype.kind == "f":
        odd = labels != np.rint(labels)
        if odd.any():
            raise InputError(
                f"{name} needs class labels; got {labels[odd][0]:g} in row {int(odd.argmax())}. "
                f"For numbers, first make classes: {name}(partition.by_column(y, bins=5), ...)."
            )
    return labels
