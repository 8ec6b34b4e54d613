"""Splits of rows: the folds of a cross-validation, and hold-outs.

A split is a small record that contains no row. Each site applies it to its own rows: it shuffles them by
(seed, site number), sorts them by class where the split is stratified, and assigns them in that order. A simulation and a
network therefore split the same rows in the same way for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from compfed._utils.validation import is_int
from compfed.errors import InputError

LEAVE_ONE_SITE_OUT = "leave-one-site-out"
CV_REQUIREMENT = (
    f"it must be a whole number >= 2, {LEAVE_ONE_SITE_OUT!r}, an array with the fold of every row, or what scikit-learn "
    "takes: a splitter (its groups are the sites) or pairs (train, test)."
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
    before it stopped, so that no fold stays empty.
    """

    number: int
    folds: int
    seed: int
    first: np.ndarray
    by_class: bool
    held_out: bool

    def assign_folds(self, site: SiteRows) -> np.ndarray:
        """The fold of every row of a site."""
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
    """A share of every site's rows, stratified by class if `by_class`; the rule is `holdout_mask`."""

    share: float
    seed: int
    by_class: bool
    held_out: bool

    def mask(self, site: SiteRows) -> np.ndarray:
        """Rows of the site that belong to this subset."""
        return holdout_mask(site.labels, self.share, self.seed, site.number, self.by_class) == self.held_out


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
