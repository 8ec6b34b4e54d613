"""The table that `fit` was given, checked and cut into sites: the data's side of a fit in one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight

from compfed.data.sites import one_per_row
from compfed.engines.simulated_federation import Simulated
from compfed.errors import InputError
from compfed.federation.site import Site, room_for
from compfed.problem.sparse_rows import SMALL
from compfed.tools.grouping import as_run, rows_by

Split = tuple[np.ndarray, np.ndarray]  # (train, test): masks over the rows of the table


@dataclass(frozen=True)
class Table:
    """Rows with their labels, weights and sites; rows of weight 0 are no rows."""

    X: Any  # an array, or a large csr matrix
    y: np.ndarray
    weights: np.ndarray | None
    names: tuple[str, ...]
    rows: tuple[np.ndarray, ...]  # where each site's rows are in what was given
    length: int  # rows of what was given, those of weight 0 included
    columns: tuple[str, ...] | None

    def federation(self, splits: Sequence[Split] = ()) -> Simulated:
        """The sites, which know of the given splits what concerns their own rows."""
        place = np.zeros(self.length, int)
        place[np.concatenate(self.rows)] = np.concatenate([np.arange(len(r)) for r in self.rows])
        sites = []
        for i, (name, rows) in enumerate(zip(self.names, self.rows, strict=True)):
            sites.append(
                Site(
                    self.X[as_run(rows)],  # of rows that lie together no copy: the sites live no longer than a fit
                    self.y[rows],
                    name=name,
                    index=i,
                    row_weights=None if self.weights is None else self.weights[rows],
                    columns=self.columns,
                    splits=[(train[rows], test[rows]) for train, test in splits],
                    room=room_for(len(rows) / len(place)),
                )
            )
        return Simulated(sites)


def tabulated(name: str, X: Any, y: np.ndarray, sites: Any, sample_weight: Any, columns: Any) -> Table:
    """The table of checked X and y; `name` is the estimator's, for messages."""
    if issparse(X) and 8 * X.shape[0] * X.shape[1] <= SMALL:
        X = X.toarray()
    length = X.shape[0]
    where = (
        np.zeros(length, int) if sites is None else one_per_row(f"{name}: sites must be the site of every row", sites)
    )
    if len(where) != length:
        raise InputError(f"sites has {len(where)} entries; X has {length} rows: give the site of every row.")
    keep = np.arange(length)
    weights = None
    if sample_weight is not None:
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        keep = np.flatnonzero(weights)
        if not keep.size:
            raise InputError(f"{name}: all sample weights are zero; at least one row must count.")
    found, rows = rows_by(where[keep])
    return Table(
        X=X,
        y=y,
        weights=weights,
        names=tuple(str(site) for site in found),
        rows=tuple(keep[r] for r in rows),
        length=length,
        columns=None if columns is None else tuple(str(c) for c in columns),
    )
