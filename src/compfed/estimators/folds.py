"""Folds for cross-validation over sites: every site splits its own rows, or one whole site is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from compfed.data import Sites
from compfed.errors import InputError

LEAVE_ONE_SITE_OUT = "leave-one-site-out"
WHAT_CV_MAY_BE = (
    f"it must be a whole number >= 2, {LEAVE_ONE_SITE_OUT!r}, an array with the fold of every row, or what scikit-learn "
    "takes: a splitter (its groups are the sites) or pairs (train, test)."
)


class Split(NamedTuple):
    """Masks over the rows of each site."""

    train: list[np.ndarray]
    test: list[np.ndarray]


def fold_of_rows(sites: Sites, cv: Any, seed: int, classes: bool) -> tuple[np.ndarray, ...]:
    """The fold in which each row is held out, one array per site.

    - a whole number K: every site shuffles its rows and deals them over K folds, class by class for a classifier;
    - "leave-one-site-out": fold i is site i.
    """
    if isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT:
        if len(sites) < 2:
            raise InputError("cv='leave-one-site-out' needs at least two sites; there is one. Give sites=, or cv=5.")
        return tuple(np.full(m, i) for i, m in enumerate(sites.sizes))
    if isinstance(cv, bool) or not isinstance(cv, (int, np.integer)) or cv < 2:
        raise InputError(f"cv={cv!r}: {WHAT_CV_MAY_BE}")
    if sites.sizes.sum() < cv:
        raise InputError(f"cv={cv} folds need at least {cv} rows; got n_samples={sites.sizes.sum()}.")
    folds, dealt = [], 0
    for i, y in zip(sites.ids, sites.labels, strict=True):
        order = np.random.default_rng([seed, i]).permutation(len(y))  # a site's own draw, whoever else is there
        if classes:
            order = order[np.argsort(y[order], kind="stable")]
        fold = np.empty(len(y), int)
        fold[order] = (dealt + np.arange(len(y))) % cv  # going on where the last site stopped: no fold stays empty
        folds.append(fold)
        dealt += len(y)
    return tuple(folds)


def splits(sites: Sites, rows: Sequence[np.ndarray], length: int, cv: Any, seed: int, classes: bool) -> list[Split]:
    """Which rows of each site train and which are held out, split by split.

    `rows` are the places of the sites' rows in the table, of `length` rows, that an array, a splitter or pairs (train,
    test) speak of.
    """
    if isinstance(cv, (str, int, np.integer)):
        folds: Sequence[np.ndarray] = fold_of_rows(sites, cv, seed, classes)
    else:
        given = _listed(sites, rows, length, cv)
        if all(isinstance(entry, str) or not hasattr(entry, "__len__") for entry in given):
            folds = [_fold_of_each(given, length)[r] for r in rows]
        else:
            pairs = [_masks(pair, length) for pair in given]
            return [Split([train[r] for r in rows], [test[r] for r in rows]) for train, test in pairs]
    names = np.unique(np.concatenate(folds))
    return [Split([fold != k for fold in folds], [fold == k for fold in folds]) for k in names]


def speaks_of_rows(cv: Any) -> bool:
    """Whether `cv` is about the rows of one particular table."""
    return not isinstance(cv, (str, int, np.integer)) and not hasattr(cv, "split")


def _listed(sites: Sites, rows: Sequence[np.ndarray], length: int, cv: Any) -> list[Any]:
    """The folds of the rows, or pairs (train, test)."""
    if hasattr(cv, "split"):
        X, y = np.zeros((length, 1)), _in_table(sites.labels, rows, length)
        try:
            return list(cv.split(X, y))
        except ValueError:  # one that keeps groups together: they are the sites
            return list(cv.split(X, y, _in_table([np.full(len(r), i) for i, r in enumerate(rows)], rows, length)))
    try:
        given = list(cv)
    except TypeError:
        given = []
    if not given:
        raise InputError(f"cv={cv!r}: {WHAT_CV_MAY_BE}")
    return given


def _fold_of_each(given: Sequence[Any], length: int) -> np.ndarray:
    folds = np.asarray(given)
    if len(folds) != length or len(np.unique(folds)) < 2:
        raise InputError(
            f"cv as an array needs one fold per row and at least two folds; got {len(folds)} entries for {length} rows "
            f"with {len(np.unique(folds))} different folds."
        )
    return folds


def _masks(pair: Any, length: int) -> list[np.ndarray]:
    """A pair of row numbers, or of masks, as masks."""
    masks = []
    for part in pair if len(pair) == 2 else ():
        mask, chosen = np.zeros(length, bool), np.asarray(part)
        try:
            mask[chosen.astype(int) if chosen.size == 0 else chosen] = True
        except IndexError as problem:
            raise InputError(f"cv speaks of rows that are not there: {problem}. The table has {length} rows.") from None
        masks.append(mask)
    if not masks:
        raise InputError(f"cv has an entry that is no pair (train, test): {WHAT_CV_MAY_BE}")
    return masks


def _in_table(parts: Sequence[np.ndarray], rows: Sequence[np.ndarray], length: int) -> np.ndarray:
    """Per-site values in the order of the table; rows of weight 0, which no site has, get -1."""
    table = np.full(length, -1.0)
    for part, r in zip(parts, rows, strict=True):
        table[r] = part if part.ndim == 1 else 0.0
    return table


def restricted(
    sites: Sites, keep: Sequence[np.ndarray], counts: Sequence[np.ndarray], equal: bool
) -> tuple[Sites, np.ndarray]:
    """The sites with weight 0 for rows that are not kept, and the p_i: same shapes, so every fold runs the same program.

    `counts` are the weights of all rows. A site of which nothing is kept has p_i = 0.
    """
    kept = [np.where(k, w, 0.0) for k, w in zip(keep, counts, strict=True)]
    total = np.array([w.sum() for w in kept])
    if not total.any():
        raise InputError("a fold holds out every row, or none; give other folds.")
    p = (total > 0) / (total > 0).sum() if equal else total / total.sum()
    weights = tuple(w if t > 0 else full for w, t, full in zip(kept, total, counts, strict=True))
    return replace(sites, row_weights=weights), p
