"""Splits of rows: the folds of a cross-validation, and hold-outs.

A split is a small record that contains no row. Each site applies it to its own rows: it shuffles them by
(seed, site number), sorts them by class where the split is stratified, and assigns them in that order. A simulation and a
network therefore split the same rows in the same way for the same seed.

A site with a disclosure policy deals its rows once into buckets (`deal_buckets`), of which all sites of a run use as many as the
site with the fewest has. A split then assigns whole buckets: every set of rows that a server can name is a union of buckets with
the same numbers at every site, and is empty or has at least `min_rows` rows at each. The server's seed is not used. A server that
could choose the order, or how a share is rounded, at one site would learn, by subtraction, the sum over one bucket of that site alone.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from compfed._utils.arrays import group_rows
from compfed._utils.validation import (
    as_row_labels,
    check_int,
    check_same_index,
    check_unmasked,
    is_int,
    is_number,
    row_index,
)
from compfed.errors import InputError

LEAVE_ONE_SITE_OUT = "leave-one-site-out"
LEAVE_ONE_OUT = "loo"  # approximately, from one path; no split of rows
BUCKETS = (10, 5, 4, 3, 2, 1)  # that a site with a policy deals its rows into: the first that its rows allow
CV_REQUIREMENT = (
    f"it must be a whole number >= 2, {LEAVE_ONE_SITE_OUT!r}, an array with the fold of every row, or what scikit-learn "
    f"takes: a splitter (its groups are the sites) or pairs (train, test). An estimator that chooses alpha takes {LEAVE_ONE_OUT!r} too."
)
Masks = tuple[np.ndarray, np.ndarray]  # (train, test), over rows


class SiteRows(Protocol):
    """The facts about a site that decide which of its rows belong to a subset."""

    @property
    def index(self) -> int: ...
    @property
    def number(self) -> int: ...  # of the site's random draws
    @property
    def labels(self) -> np.ndarray: ...
    @property
    def buckets_of_rows(self) -> np.ndarray | None: ...  # 0, 1, ...; None without a disclosure policy
    @property
    def agreed_buckets(self) -> int: ...  # of the sites of a run: its own, or fewer
    @property
    def splits(self) -> Sequence[Masks]: ...  # the predefined ones


# --- formulas ---


def shuffle_rows(labels: np.ndarray, seed: int, number: int, by_class: bool) -> np.ndarray:
    """Random order of a site's rows, drawn from (seed, site number); class by class if `by_class`."""
    order = np.random.default_rng([seed, number]).permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")] if by_class else order


def holdout_mask(labels: np.ndarray, share: float, seed: int, number: int, by_class: bool) -> np.ndarray:
    """Rows of a site to hold out: `share` of them to the nearest row, at least one and never all.

    A single row is kept for training. With `by_class` each class gives its share (largest remainders), and the last row
    of a class is kept for training. Classes of one row each cannot be stratified, and are ignored.
    """
    counts = np.unique(labels, return_counts=True)[1] if by_class else np.array([len(labels)])
    if counts.max() == 1:
        by_class, counts = False, np.array([len(labels)])
    total = max(1, round(share * len(labels)))
    quota = np.minimum(apportion(total, counts / counts.sum()), counts - 1)
    if not quota.any():
        quota[counts.argmax()] = min(1, int(counts.max()) - 1)
    place_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    out = np.empty(len(labels), bool)
    out[shuffle_rows(labels, seed, number, by_class)] = place_in_class < np.repeat(quota, counts)
    return out


def content_order(rows: Sequence[bytes], secret: bytes) -> np.ndarray:
    """An order of rows that follows from what is in them and from the secret of a site, and not from their order in a file."""
    hashes = [hmac.digest(secret, b"compfed/buckets/2" + row, "sha256") for row in rows]
    return np.array(sorted(range(len(rows)), key=hashes.__getitem__), int)


def deal_buckets(
    labels: np.ndarray, min_rows: int, order: np.ndarray, by_class: bool, min_level_rows: int = 1
) -> np.ndarray:
    """Deal the rows of a site, in this order, into buckets of at least `min_rows` rows: the bucket of every row.

    There are ten buckets, or the largest number in `BUCKETS` that the rows allow, and their sizes differ by one row at most. With
    `by_class` a bucket has `min_level_rows` rows of a class or none: a class is spread over as many buckets as that allows, and
    there are fewer and less equal buckets where many small classes need it.
    """
    codes = np.unique(labels, return_inverse=True)[1][order] if by_class else np.zeros(len(labels), int)
    least = max(min_level_rows, 1) if by_class else 1
    bucket = np.zeros(len(labels), int)
    for buckets in (b for b in BUCKETS if b * min_rows <= len(labels) or b == 1):
        dealt = _dealt(codes, buckets, least)
        counts = np.zeros((buckets, int(codes.max()) + 1), int)
        np.add.at(counts, (dealt, codes), 1)
        few = (counts > 0) & (counts < least)
        if buckets == 1 or not (few.any() or counts.sum(axis=1).min() < min_rows):
            bucket[order] = dealt
            break
    return bucket


def _dealt(codes: np.ndarray, buckets: int, least: int) -> np.ndarray:
    """The bucket of every row: each class in turn, the rarest first, to the buckets that have the fewest rows so far.

    A bucket gets `least` rows of a class or none. The largest class fills the buckets up, and may leave too few of itself.
    """
    dealt, load = np.empty(len(codes), int), np.zeros(buckets, int)
    counts = np.bincount(codes)
    for code in np.argsort(counts, kind="stable"):
        rows = np.flatnonzero(codes == code)
        if code != counts.argmax():  # this many buckets can have enough rows of the class
            few = np.argsort(load, kind="stable")[: max(min(len(rows) // least, buckets), 1)]
            each = few[np.arange(len(rows)) % len(few)]
        else:  # the largest class fills the buckets up
            full = apportion(load.sum() + len(rows), np.full(buckets, 1 / buckets))
            room = np.maximum(full[np.argsort(np.argsort(-load, kind="stable"), kind="stable")] - load, 0)
            each = np.repeat(np.arange(buckets), room)[: len(rows)]
            each = np.concatenate([each, np.arange(len(rows) - len(each)) % buckets])
        dealt[rows] = each
        load += np.bincount(each, minlength=buckets)
    return dealt


def check_folds(names: Sequence[str], buckets: Sequence[int], min_rows: Sequence[int], folds: int) -> None:
    """Refuse folds that are no unions of buckets, the same at every site, before the first query."""
    for name, has, rows in zip(names, buckets, min_rows, strict=True):
        if has < folds:
            way_out = f"use cv = {min(buckets)}, or leave the site out" if min(buckets) > 1 else "leave the site out"
            raise InputError(f"cv = {folds} needs {folds} buckets of {rows} rows at site {name!r}: {way_out}.")
    dealt = min((has for has, rows in zip(buckets, min_rows, strict=True) if rows > 1), default=0)
    if dealt and dealt % folds:
        ways = [str(k) for k in range(2, dealt + 1) if dealt % k == 0]
        raise InputError(
            f"cv = {folds} is no divisor of {dealt}, the number of buckets that all sites deal their rows into: use cv = "
            f"{' or '.join(ways)}."
        )


def apportion(total: int, shares: np.ndarray) -> np.ndarray:
    """Whole numbers that sum to `total` and differ from total * shares by less than one (largest remainders)."""
    exact = total * shares
    sizes = np.floor(exact).astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: total - sizes.sum()]] += 1
    return sizes


# --- subsets of rows, as a server names them ---


@dataclass(frozen=True, eq=False)
class Fold:
    """Fold `number` of `folds` inside every site, stratified by class if `by_class`.

    Each site shuffles its rows and assigns them in turn to the folds, starting at fold `first[site]`: where the site
    before it stopped, so that no fold stays empty. A site with a disclosure policy assigns its buckets in turn.
    """

    number: int
    folds: int
    seed: int
    first: np.ndarray
    by_class: bool
    held_out: bool

    def assign_folds(self, site: SiteRows) -> np.ndarray:
        """The fold of every row of a site."""
        if site.buckets_of_rows is not None:
            return site.buckets_of_rows % self.folds
        rows = len(site.labels)
        fold = np.empty(rows, int)
        order = shuffle_rows(site.labels, self.seed, site.number, self.by_class)
        fold[order] = (self.first[site.index] + np.arange(rows)) % self.folds
        return fold

    def mask(self, site: SiteRows) -> np.ndarray:
        """Rows of the site that belong to this subset."""
        return (self.assign_folds(site) == self.number) == self.held_out


@dataclass(frozen=True, eq=False)
class SiteFold:
    """All rows of site `number`; with `held_out=False`, those of all other sites."""

    number: int
    held_out: bool

    def mask(self, site: SiteRows) -> np.ndarray:
        """Rows of the site that belong to this subset: all or none."""
        return np.full(len(site.labels), (site.index == self.number) == self.held_out)


@dataclass(frozen=True, eq=False)
class PredefinedSplit:
    """Split `number` of those that the sites were built with: `cv` given as rows of one table."""

    number: int
    held_out: bool

    def mask(self, site: SiteRows) -> np.ndarray:
        """Rows of the site that belong to this subset."""
        return site.splits[self.number][1 if self.held_out else 0]


@dataclass(frozen=True, eq=False)
class Holdout:
    """A share of every site's rows, stratified by class if `by_class`; the rule is `holdout_mask`.

    A site with a disclosure policy holds out its first buckets, the same number as all other sites: at least one and never all,
    if it has two.
    """

    share: float
    seed: int
    by_class: bool
    held_out: bool

    def mask(self, site: SiteRows) -> np.ndarray:
        """Rows of the site that belong to this subset."""
        if site.buckets_of_rows is not None:
            buckets = site.agreed_buckets
            out = site.buckets_of_rows < min(max(round(self.share * buckets), 1), buckets - 1)
        else:
            out = holdout_mask(site.labels, self.share, self.seed, site.number, self.by_class)
        return out == self.held_out


RowSubset = Fold | SiteFold | PredefinedSplit | Holdout


def training_rows(held_out: RowSubset) -> RowSubset:
    """The rows to train with, of the split that holds out the given ones."""
    return replace(held_out, held_out=False)


def cv_splits(cv: object, seed: int, rows: Sequence[int], by_class: bool, predefined: int = 0) -> list[RowSubset]:
    """The held-out rows of every split of a cross-validation over sites with so many `rows`.

    `predefined` is the number of splits that the sites were built with; `cv` is not read then.
    """
    if predefined:
        return [PredefinedSplit(k, held_out=True) for k in range(predefined)]
    if isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT:
        if len(rows) < 2:
            raise InputError("cv='leave-one-site-out' needs at least two sites; there is one. Give sites=, or cv=5.")
        return [SiteFold(k, held_out=True) for k in range(len(rows))]
    if not is_int(cv) or cv < 2:
        plain = isinstance(cv, (str, int, float, bool))
        hint = "" if plain else " Over a federation the sites split their own rows: give a number."
        raise InputError(f"cv={cv!r}: {CV_REQUIREMENT}{hint}")
    folds = int(cv)
    if sum(rows) < folds:
        raise InputError(f"cv={cv} folds need at least {cv} rows; got n_samples={sum(rows)}.")
    first = np.concatenate([[0], np.cumsum(rows)[:-1]])
    return [Fold(k, folds, seed, first, by_class, held_out=True) for k in range(folds)]


# --- hold-outs and folds of one table ---


def held_out(
    sites: npt.ArrayLike, share: float = 0.3, seed: int = 0, classes: npt.ArrayLike | None = None
) -> np.ndarray:
    """Choose the rows to hold out: ``share`` of every site's rows, to the nearest row, at least one and never all.

    A site with a single row keeps it for training. These are the rows that ``compare_local_federated`` holds out over a
    federation of the same sites for the same seed.

    Parameters
    ----------
    sites : array-like of shape (n_rows,)
        The site of every row.
    share : float, default=0.3
        Between 0 and 1.
    seed : int, default=0
        Of the shuffle inside each site.
    classes : array-like of shape (n_rows,), optional
        The label of every row. Each class of a site then gives its share, and its last row stays for training.

    Returns
    -------
    ndarray of bool, shape (n_rows,)
        True for the rows held out.

    Examples
    --------
    >>> held_out(["north"] * 4 + ["south"], share=0.5).tolist()
    [True, False, True, False, False]
    """
    if not (is_number(share) and 0 < share < 1):
        raise InputError(f"the share of held-out rows is {share!r}; it must be between 0 and 1.")
    check_int(seed, "seed", 0)
    where = as_row_labels("held_out: the site of every row is needed", sites)
    check_same_index(sites, classes, "classes", "sites")
    labels = np.zeros(len(where), int) if classes is None else np.asarray(classes)
    out = np.zeros(len(where), bool)
    for number, rows in enumerate(group_rows(where)[1]):
        out[rows] = holdout_mask(labels[rows], share, seed, number, by_class=classes is not None)
    return out


def names_rows(cv: object) -> bool:
    """Whether `cv` names the rows of one particular table."""
    return not isinstance(cv, (str, int, np.integer)) and not hasattr(cv, "split")


def given_splits(cv: Any, y: np.ndarray, site: np.ndarray, tables: Sequence[object] = ()) -> list[Masks]:
    """Masks (train, test) of a `cv` given row by row or as a splitter; none for folds that the sites make themselves.

    `site` is the number of the site of every row, -1 for a row of weight 0. `tables` are X, y, ... as given: a `cv` with
    an index of pandas must have theirs.
    """
    if isinstance(cv, (str, int, np.integer)):
        return []
    table = next((t for t in tables if row_index(t) is not None), None)
    check_same_index(table, cv, "cv")
    entries = _entries(cv, y, site)
    if all(isinstance(entry, str) or not hasattr(entry, "__len__") for entry in entries):
        fold = as_row_labels("cv: the fold of every row is needed", entries)
        if len(fold) != len(y) or len(set(fold.tolist())) < 2:
            found = f"{len(fold)} entries for {len(y)} rows with {len(set(fold.tolist()))} different folds"
            raise InputError(f"cv as an array needs one fold per row and at least two folds; got {found}.")
        return [(fold != k, fold == k) for k in np.unique(fold[site >= 0])]
    return [_as_masks(pair, len(y), table) for pair in entries]


def _entries(cv: Any, y: np.ndarray, site: np.ndarray) -> list[Any]:
    """The fold of every row, or pairs (train, test)."""
    if hasattr(cv, "split"):
        X, labels = np.zeros((len(y), 1)), y if y.ndim == 1 else np.zeros(len(y))
        try:
            return list(cv.split(X, labels))
        except ValueError:  # a splitter that keeps groups together: they are the sites
            return list(cv.split(X, labels, site))
    check_unmasked(cv, "cv")
    if isinstance(cv, (Mapping, Set)):
        in_order = "Give the fold of every row in order, such as [cv[row] for row in X.index]."
        raise InputError(f"cv is a {type(cv).__name__}, whose entries are in no order of the rows. {in_order}")
    try:
        entries = list(cv)
    except TypeError:
        entries = []
    if not entries:
        raise InputError(f"cv={cv!r}: {CV_REQUIREMENT}")
    return entries


def _as_masks(pair: Any, rows: int, table: object) -> Masks:
    """A pair of row numbers, or of masks, as masks; a mask with an index needs that of `table`, if it has one."""
    if len(pair) != 2:
        raise InputError(f"cv has an entry that is not a pair (train, test): {CV_REQUIREMENT}")
    masks = []
    for part in pair:
        mask, chosen = np.zeros(rows, bool), np.asarray(part)
        _check_row_numbers(chosen, rows)
        if chosen.dtype.kind == "b":
            check_same_index(table, part, "mask")
        try:
            mask[chosen.astype(int) if chosen.size == 0 else chosen] = True
        except IndexError as problem:
            raise InputError(f"cv names rows that are not there: {problem}. The table has {rows} rows.") from None
        masks.append(mask)
    return masks[0], masks[1]


def _check_row_numbers(chosen: np.ndarray, rows: int) -> None:
    """Refuse whole numbers that may be a mask, and repeated row numbers: a mask has every row once."""
    if chosen.dtype.kind not in "iu":
        return
    if chosen.shape == (rows,) and rows > 1 and np.isin(chosen, (0, 1)).all():
        raise InputError(
            f"cv has a pair (train, test) with {rows} whole numbers 0 and 1 for {rows} rows: a mask or row numbers? Give "
            "np.asarray(part, dtype=bool) for a mask, np.flatnonzero(part) for its row numbers."
        )
    numbers = chosen.astype(np.int64)  # adding the length would overflow an int8
    found, counts = np.unique(np.where(numbers < 0, numbers + rows, numbers), return_counts=True)
    if (counts > 1).any():
        twice = f"row {int(found[counts.argmax()])} {int(counts.max())} times; a row may be in a part once"
        raise InputError(f"cv has a pair (train, test) with {twice}. Give np.unique(part), or a sample_weight.")
