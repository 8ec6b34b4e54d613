"""Splits of a table's rows: hold-outs by site, and folds that were given row by row. The formulas are in `compfed.splits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from compfed._utils.arrays import group_rows
from compfed._utils.validation import check_int, check_unmasked, is_number
from compfed.data.columns import as_row_labels, check_same_index, row_index
from compfed.errors import InputError
from compfed.splits import CV_REQUIREMENT, Masks, holdout_mask


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


# --- cv given as rows of one table ---


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
        fold = _fold_of_every_row(entries, len(y))
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
        raise InputError(
            f"cv is a {type(cv).__name__}, whose entries are in no order of the rows. Give a list with the fold of every row, "
            "such as [cv[row] for row in X.index]."
        )
    try:
        entries = list(cv)
    except TypeError:
        entries = []
    if not entries:
        raise InputError(f"cv={cv!r}: {CV_REQUIREMENT}")
    return entries


def _fold_of_every_row(entries: Sequence[object], rows: int) -> np.ndarray:
    folds = as_row_labels("cv: the fold of every row is needed", list(entries))
    different = len(np.unique(folds))
    if len(folds) != rows or different < 2:
        raise InputError(
            f"cv as an array needs one fold per row and at least two folds; got {len(folds)} entries for {rows} rows "
            f"with {different} different folds."
        )
    return folds


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
            f"cv has a pair (train, test) with {rows} whole numbers 0 and 1 for {rows} rows: they may be a mask or row "
            "numbers. Give np.asarray(part, dtype=bool) for a mask, np.flatnonzero(part) for its row numbers."
        )
    numbers = chosen.astype(np.int64)  # adding the length would overflow an int8
    found, counts = np.unique(np.where(numbers < 0, numbers + rows, numbers), return_counts=True)
    if (counts > 1).any():
        raise InputError(
            f"cv has a pair (train, test) with row {int(found[counts.argmax()])} {int(counts.max())} times; every row may be "
            "in a part once. Give np.unique(part) to count it once, or fit(..., sample_weight=...) to count a row more."
        )
