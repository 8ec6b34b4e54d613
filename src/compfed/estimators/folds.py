"""Folds for cross-validation over sites: every site splits its own rows, or one whole site is left out.

The server says which; the sites find their rows (`federation.view`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compfed.errors import InputError
from compfed.federation.view import Fold, Listed, Part, WholeSite
from compfed.tools.checks import is_whole

LEAVE_ONE_SITE_OUT = "leave-one-site-out"
WHAT_CV_MAY_BE = (
    f"it must be a whole number >= 2, {LEAVE_ONE_SITE_OUT!r}, an array with the fold of every row, or what scikit-learn "
    "takes: a splitter (its groups are the sites) or pairs (train, test)."
)
Parts = Callable[[bool], Part]  # the training rows of a split (False), or those it holds out (True)


def parts_of(cv: Any, seed: int, rows: Sequence[int], by_class: bool, listed: int = 0) -> list[Parts]:
    """The parts of every split, from what the sites said of their rows; `listed` splits are known to the sites."""
    if listed:
        return [lambda held_out, k=k: Listed(k, held_out) for k in range(listed)]
    if isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT:
        if len(rows) < 2:
            raise InputError("cv='leave-one-site-out' needs at least two sites; there is one. Give sites=, or cv=5.")
        return [lambda held_out, k=k: WholeSite(k, held_out) for k in range(len(rows))]
    folds = int(cv) if is_whole(cv) else 0
    if folds < 2:
        hint = (
            ""
            if isinstance(cv, (str, int, float, bool))
            else " Over a federation the sites split their own rows: give a number."
        )
        raise InputError(f"cv={cv!r}: {WHAT_CV_MAY_BE}{hint}")
    if sum(rows) < folds:
        raise InputError(f"cv={cv} folds need at least {cv} rows; got n_samples={sum(rows)}.")
    # each site goes on where the last one stopped: no fold stays empty
    first = np.concatenate([[0], np.cumsum(rows)[:-1]])
    return [lambda held_out, k=k: Fold(k, folds, seed, first, by_class, held_out) for k in range(folds)]
