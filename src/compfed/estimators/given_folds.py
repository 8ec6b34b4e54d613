"""Folds that speak of the rows of one table: an array, a splitter of scikit-learn, pairs of train and test rows.

They are worked out where the table is, and the sites are built with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np

from compfed.data.reading import check_same_order, one_per_row, row_index
from compfed.errors import InputError
from compfed.estimators.folds import WHAT_CV_MAY_BE, Parts
from compfed.estimators.table import Split, Table
from compfed.tools.checks import unmasked


def speaks_of_rows(cv: Any) -> bool:
    """Whether `cv` is about the rows of one particular table."""
    return not isinstance(cv, (str, int, np.integer)) and not hasattr(cv, "split")


def splits_of(table: Table, cv: Any, given_to_fit: Sequence[Any] = ()) -> list[Split]:
    """Masks (train, test) over the rows of a table, for folds that speak of them; none for those the sites make.

    `given_to_fit` are X, y, ...: folds with an index of pandas need theirs.
    """
    if isinstance(cv, (str, int, np.integer)):
        return []
    rows = next((given_table for given_table in given_to_fit if row_index(given_table) is not None), None)
    check_same_order(rows, cv, "cv")
    given = _listed(table, cv)
    if all(isinstance(entry, str) or not hasattr(entry, "__len__") for entry in given):
        fold = _fold_of_each(given, table.length)
        there = np.concatenate(table.rows)
        return [(fold != k, fold == k) for k in np.unique(fold[there])]
    return [_masks(pair, table.length, rows) for pair in given]


def _listed(table: Table, cv: Any) -> list[Any]:
    """The folds of the rows, or pairs (train, test)."""
    if hasattr(cv, "split"):
        X, y = np.zeros((table.length, 1)), table.y if table.y.ndim == 1 else np.zeros(table.length)
        try:
            return list(cv.split(X, y))
        except ValueError:  # one that keeps groups together: they are the sites
            groups = np.full(table.length, -1)
            for i, rows in enumerate(table.rows):
                groups[rows] = i
            return list(cv.split(X, y, groups))
    unmasked(cv, "cv")
    if isinstance(cv, (Mapping, Set)):
        raise InputError(
            f"cv is a {type(cv).__name__}, whose entries are in no order of the rows. Give a list with the fold of every row, "
            "such as [cv[row] for row in X.index]."
        )
    try:
        given = list(cv)
    except TypeError:
        given = []
    if not given:
        raise InputError(f"cv={cv!r}: {WHAT_CV_MAY_BE}")
    return given


def _fold_of_each(given: Sequence[Any], length: int) -> np.ndarray:
    folds = one_per_row("cv: the fold of every row is needed", list(given))
    if len(folds) != length or len(np.unique(folds)) < 2:
        raise InputError(
            f"cv as an array needs one fold per row and at least two folds; got {len(folds)} entries for {length} rows "
            f"with {len(np.unique(folds))} different folds."
        )
    return folds


def _masks(pair: Any, length: int, rows: Any) -> Split:
    """A pair of row numbers, or of masks, as masks; a mask with an index needs that of `rows`, if they have one."""
    if len(pair) != 2:
        raise InputError(f"cv has an entry that is no pair (train, test): {WHAT_CV_MAY_BE}")
    masks = []
    for part in pair:
        mask, chosen = np.zeros(length, bool), np.asarray(part)
        _check_row_numbers(chosen, length)
        if chosen.dtype.kind == "b":
            check_same_order(rows, part, "mask")
        try:
            mask[chosen.astype(int) if chosen.size == 0 else chosen] = True
        except IndexError as problem:
            raise InputError(f"cv speaks of rows that are not there: {problem}. The table has {length} rows.") from None
        masks.append(mask)
    return masks[0], masks[1]


def _check_row_numbers(chosen: np.ndarray, length: int) -> None:
    """Refuse whole numbers that may be a mask, and row numbers that come twice: a mask has every row once."""
    if chosen.dtype.kind not in "iu":
        return
    if chosen.shape == (length,) and length > 1 and np.isin(chosen, (0, 1)).all():
        raise InputError(
            f"cv has a pair (train, test) with {length} whole numbers 0 and 1 for {length} rows: they may be a mask or row "
            "numbers. Give np.asarray(part, dtype=bool) for a mask, np.flatnonzero(part) for its row numbers."
        )
    numbers = chosen.astype(np.int64)  # to an int8 no length can be added
    rows, counts = np.unique(np.where(numbers < 0, numbers + length, numbers), return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"cv has a pair (train, test) with row {int(rows[counts.argmax()])} {int(counts.max())} times; every row may be "
            "in a part once. Give np.unique(part) to count it once, or fit(..., sample_weight=...) to count a row more."
        )


def fold_column(table: Table, sites: Sequence[Any], parts: Sequence[Parts]) -> np.ndarray:
    """The number of the split that holds each row of the table out; -1 for a row that none does."""
    fold = np.full(table.length, -1)
    for number, part in enumerate(parts):
        for rows, site in zip(table.rows, sites, strict=True):
            fold[rows[part(True).mask(site)]] = number
    return fold
