"""What a federation looks like: sizes, labels and how far its sites differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compfed.data.sites import Sites
from compfed.errors import InputError
from compfed.tools.text import number_table

MOST_CLASSES = 20  # more distinct labels than this are numbers to average, not classes to count
MOST_LINES = 40  # sites printed; `Summary.rows` has them all


@dataclass(frozen=True)
class Summary:
    """A federation in figures; `str` gives the table. Rows are counted, not weighted.

    - `rows`: one dictionary per site: site, rows, share, constant (columns that do not vary there), and of the labels
      either classes (label: share) or mean and sd, one number per output.
    - `pooled`: the same of all rows together.
    - `size_ratio`: largest site / smallest site.
    - `label_distance`: how far the labels of the worst site, `label_site`, are from the pooled ones. With classes, the
      total variation max_i 1/2 sum_c |p_i(c) - p(c)|, from 0 to 1; with numbers, max_i |mean_i - mean| / sd.
    - `feature_shift`: max_ij |mean_ij - mean_j| / sd_j over sites and columns, at (site, column) `feature_shift_at`.
    """

    rows: tuple[dict[str, Any], ...]
    pooled: dict[str, Any]
    features: int
    size_ratio: float
    label_distance: float
    label_site: str
    feature_shift: float
    feature_shift_at: tuple[str, str]

    def __str__(self) -> str:
        lines = [_cells(row) for row in (*self.rows[:MOST_LINES], self.pooled)]
        by_class = "classes" in self.pooled
        measured = "total variation of label shares" if by_class else "shift of the label mean in pooled sd"
        site, column = self.feature_shift_at
        everywhere = self.pooled["constant"]
        return "\n".join(
            [
                f"{len(self.rows)} site(s), {self.pooled['rows']} rows, {self.features} features",
                "",
                number_table(_header(self.pooled), lines),
                *([f"({len(self.rows) - MOST_LINES} more sites)"] if len(self.rows) > MOST_LINES else []),
                "",
                f"sizes: largest / smallest = {self.size_ratio:.3g}",
                f"labels: {measured}, site against all: at most {self.label_distance:.3g} (site {self.label_site})",
                f"features: shift of a column's mean in pooled sd: at most {self.feature_shift:.3g} "
                f"(column {column}, site {site})",
                *([f"constant everywhere: column(s) {_some(everywhere)}"] if everywhere else []),
            ]
        )


def describe(sites: Sites) -> Summary:
    """Sizes and labels per site, columns that do not vary, and how far the sites are from the pooled table.

    Labels count as classes when there are at most 20 distinct ones, all whole numbers.

    >>> from compfed.data import from_table
    >>> X = [[1.0, 5.0], [2.0, 5.0], [3.0, 5.0], [4.0, 5.0]]
    >>> print(describe(from_table(X, [0, 0, 0, 1], ["north", "north", "north", "south"])))
    2 site(s), 4 rows, 2 features
    <BLANKLINE>
    site   rows   share     y=0     y=1  constant columns
    -----  ----  ------  ------  ------  ----------------
    north     3   75.0%  100.0%    0.0%                 1
    south     1   25.0%    0.0%  100.0%                 2
    all       4  100.0%   75.0%   25.0%                 1
    <BLANKLINE>
    sizes: largest / smallest = 3
    labels: total variation of label shares, site against all: at most 0.75 (site south)
    features: shift of a column's mean in pooled sd: at most 1.34 (column 0, site south)
    constant everywhere: column(s) 1
    """
    if not isinstance(sites, Sites):
        raise InputError(
            f"describe takes a federation from compfed.data, such as from_table(X, y, sites); got {type(sites).__name__}."
        )
    X, y = sites.pooled()
    names = sites.columns or tuple(str(j) for j in range(sites.width))
    classes = np.unique(y)
    counted = y.ndim == 1 and len(classes) <= MOST_CLASSES and bool((classes == np.rint(classes)).all())
    kinds = classes if counted else None
    total = len(y)
    pooled = _row("all", X, y, kinds, names, total)
    rows = [_row(*site, kinds, names, total) for site in zip(sites.names, sites.features, sites.labels, strict=True)]

    off = np.abs(np.array([_label_profile(row) for row in rows]) - _label_profile(pooled))
    label = off.sum(axis=1) / 2 if counted else (off / _spread(y)).max(axis=1)
    shift = np.abs(np.array([x.mean(axis=0) for x in sites.features]) - X.mean(axis=0)) / _spread(X)
    i, j = np.unravel_index(shift.argmax(), shift.shape)
    return Summary(
        rows=tuple(rows),
        pooled=pooled,
        features=sites.width,
        size_ratio=float(sites.sizes.max() / sites.sizes.min()),
        label_distance=float(label.max()),
        label_site=sites.names[int(label.argmax())],
        feature_shift=float(shift.max()),
        feature_shift_at=(sites.names[i], names[j]),
    )


def _spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation of each column; 1 where nothing varies, since a mean then has nowhere to shift."""
    varies = np.ptp(values, axis=0) > 0
    return np.where(varies, values.std(axis=0), 1.0)


def _row(
    name: str, X: np.ndarray, y: np.ndarray, classes: np.ndarray | None, columns: Sequence[str], total: int
) -> dict[str, Any]:
    constant = [column for column, varies in zip(columns, np.ptp(X, axis=0) > 0, strict=True) if not varies]
    row = {"site": name, "rows": len(y), "share": len(y) / total, "constant": constant}
    if classes is not None:
        return row | {"classes": {int(c): float(np.mean(y == c)) for c in classes}}
    return row | {"mean": np.atleast_1d(y.mean(axis=0)).tolist(), "sd": np.atleast_1d(y.std(axis=0)).tolist()}


def _label_profile(row: dict[str, Any]) -> list[float]:
    return list(row["classes"].values()) if "classes" in row else row["mean"]


def _header(pooled: dict[str, Any]) -> list[str]:
    labels = [f"y={c}" for c in pooled["classes"]] if "classes" in pooled else ["mean y", "sd y"]
    return ["site", "rows", "share", *labels, "constant columns"]


def _cells(row: dict[str, Any]) -> list[str]:
    if "classes" in row:
        labels = [f"{share:.1%}" for share in row["classes"].values()]
    else:
        labels = [_some([f"{value:.3g}" for value in row[key]]) for key in ("mean", "sd")]
    return [row["site"], str(row["rows"]), f"{row['share']:.1%}", *labels, str(len(row["constant"]))]


def _some(words: Sequence[str], most: int = 5) -> str:
    return " ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
