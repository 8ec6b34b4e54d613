"""Rows to fit and rows to judge, chosen inside every site."""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed._utils.arrays import group_rows
from compfed._utils.validation import check_int, is_number
from compfed.data.columns import as_row_labels, check_same_index
from compfed.data.partition import apportioned
from compfed.errors import InputError


def held_out(sites: Any, share: float = 0.3, seed: int = 0, classes: Any = None) -> np.ndarray:
    """Which rows to hold out: `share` of every site's rows, to the nearest row, at least one and never all.

    A site with a single row keeps it for fitting. With `classes`, the label of every row, each class of a site gives
    its share, and its last row stays for fitting.

    >>> held_out(["north"] * 4 + ["south"], share=0.5).tolist()
    [True, False, True, False, False]
    """
    if not (is_number(share) and 0 < share < 1):
        raise InputError(f"the share of held-out rows is {share!r}; it must be between 0 and 1.")
    check_int(seed, "seed", 0)
    where = as_row_labels("held_out: the site of every row is needed", sites)
    check_same_index(sites, classes, "classes", "sites")
    classes = None if classes is None else np.asarray(classes)
    out = np.zeros(len(where), bool)
    for i, own in enumerate(group_rows(where)[1]):
        rows = np.random.default_rng([seed, i]).permutation(own)
        kinds = np.zeros(len(rows), int) if classes is None else np.unique(classes[rows], return_inverse=True)[1]
        counts = np.bincount(kinds)
        if counts.max() == 1:  # no two rows of a class: nothing to stratify
            kinds, counts = np.zeros(len(rows), int), np.array([len(rows)])
        for kind, k in enumerate(_shares(counts, share)):
            out[rows[kinds == kind][:k]] = True
    return out


def _shares(counts: np.ndarray, share: float) -> np.ndarray:
    """How many of each class to hold out."""
    total = max(1, round(share * int(counts.sum())))
    assign_folds = np.minimum(apportioned(total, counts / counts.sum()), counts - 1)
    if not assign_folds.any():
        assign_folds[counts.argmax()] = min(1, int(counts.max()) - 1)
    return assign_folds
