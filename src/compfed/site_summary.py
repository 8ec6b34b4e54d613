"""Summary of a federation: sizes, labels, and how far the sites differ.

`summarise_site` computes the facts of one site from its rows; `combine_summaries` combines the facts of all sites and
reads no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from compfed._utils.text import join_names, text_table

SummaryRow: TypeAlias = dict[str, Any]  # numbers and words of one site, by column
MAX_COUNTED_CLASSES = 20  # more distinct labels than this are numbers to average, not classes to count
MAX_LINES = 40  # sites printed; `Summary.rows` has them all


class SiteFacts(NamedTuple):
    """Sums over the rows of one site. Labels are counted by class where they are few and whole, and averaged."""

    rows: int
    mean: np.ndarray  # (width,)
    square: np.ndarray  # (width,): mean squared distance from that
    varies: np.ndarray  # (width,)
    classes: np.ndarray  # empty where labels are not classes
    counts: np.ndarray
    label_mean: np.ndarray  # (outputs,)
    label_square: np.ndarray


def summarise_site(X: np.ndarray, y: np.ndarray) -> SiteFacts:
    """Compute the facts of one site from its features and labels."""
    X = np.asarray(X, float)  # small integers would overflow, and booleans cannot be subtracted
    classes, counts = np.unique(y, return_counts=True) if y.ndim == 1 else (np.empty(0), np.empty(0, int))
    numbers = y.dtype.kind in "biuf"
    if len(classes) > MAX_COUNTED_CLASSES or not numbers or (classes != np.rint(classes)).any():
        classes, counts = np.empty(0), np.empty(0, int)
    labels = y.reshape(len(y), -1).astype(float) if numbers else np.zeros((len(y), 1))
    mean, label_mean = (a[0] + (a - a[0]).mean(axis=0) for a in (X, labels))  # a constant is its own mean, exactly
    square, label_square = (((a - a_mean) ** 2).mean(axis=0) for a, a_mean in ((X, mean), (labels, label_mean)))
    return SiteFacts(len(y), mean, square, np.ptp(X, axis=0) > 0, classes, counts, label_mean, label_square)


@dataclass(frozen=True)
class Summary:
    """Summary of a federation; ``print`` shows it as a table. Rows are counted, not weighted.

    Attributes
    ----------
    rows : tuple of dict
        One per site: site, rows, share, constant (columns that do not vary there), and of the labels either classes
        (label: share) or mean and sd, one number per output.
    pooled : dict
        The same keys, of all rows together.
    features : int
        The number of columns.
    size_ratio : float
        Largest site / smallest site.
    label_distance : float
        How far the labels of the most distant site, ``label_site``, are from the pooled ones. With classes, the total
        variation max_i 1/2 sum_c |p_i(c) - p(c)|, from 0 to 1; with numbers, max_i |mean_i - mean| / sd.
    label_site : str
    feature_shift : float
        max_ij |mean_ij - mean_j| / sd_j over sites and columns.
    feature_shift_at : tuple of str
        The site and the column of that maximum.
    """

    rows: tuple[SummaryRow, ...]
    pooled: SummaryRow
    features: int
    size_ratio: float
    label_distance: float
    label_site: str
    feature_shift: float
    feature_shift_at: tuple[str, str]

    def __str__(self) -> str:
        classes, everywhere = self.pooled.get("classes"), self.pooled["constant"]
        measured = "shift of the label mean in pooled sd" if classes is None else "total variation of label shares"
        labels = ["mean y", "sd y"] if classes is None else [f"y={c}" for c in classes]
        cells = [_cells(row) for row in (*self.rows[:MAX_LINES], self.pooled)]
        table = text_table(["site", "rows", "share", *labels, "constant columns"], cells, numbers=True)
        more = f"({len(self.rows) - MAX_LINES} more sites)\n" if len(self.rows) > MAX_LINES else ""
        constant = f"\nconstant everywhere: column(s) {join_names(everywhere, ' ')}" if everywhere else ""
        shift = f"{self.feature_shift:.3g} (column {self.feature_shift_at[1]}, site {self.feature_shift_at[0]})"
        return (
            f"{len(self.rows)} site(s), {self.pooled['rows']} rows, {self.features} features\n\n{table}\n{more}\n"
            f"sizes: largest / smallest = {self.size_ratio:.3g}\n"
            f"labels: {measured}, site against all: at most {self.label_distance:.3g} (site {self.label_site})\n"
            f"features: shift of a column's mean in pooled sd: at most {shift}{constant}"
        )


def combine_summaries(names: Sequence[str], columns: Sequence[str] | None, facts: Sequence[SiteFacts]) -> Summary:
    """Combine the facts of all sites."""
    columns = tuple(str(j) for j in range(facts[0].mean.size)) if columns is None else tuple(columns)
    m = np.array([f.rows for f in facts])
    mean, sd, varies = _pool_moments(m, [f.mean for f in facts], [f.square for f in facts])
    of_all, counts = (np.concatenate([getattr(f, name) for f in facts]) for name in ("classes", "counts"))
    classes = np.unique(of_all)
    counted = all(f.classes.size for f in facts) and len(classes) <= MAX_COUNTED_CLASSES

    def row(name: str, f: SiteFacts) -> dict[str, Any]:
        constant = [column for column, moves in zip(columns, f.varies, strict=True) if not moves]
        found = {"site": name, "rows": f.rows, "share": f.rows / int(m.sum()), "constant": constant}
        if counted:
            return found | {"classes": {int(c): float(f.counts[f.classes == c].sum() / f.rows) for c in classes}}
        return found | {"mean": f.label_mean.tolist(), "sd": np.sqrt(f.label_square).tolist()}

    rows = [row(name, f) for name, f in zip(names, facts, strict=True)]
    label_mean, label_sd, _ = _pool_moments(m, [f.label_mean for f in facts], [f.label_square for f in facts])
    whole = row("all", SiteFacts(int(m.sum()), mean, sd**2, varies, of_all, counts, label_mean, label_sd**2))
    off = np.abs(np.array([_label_profile(row) for row in rows]) - _label_profile(whole))
    label = off.sum(axis=1) / 2 if counted else (off / np.where(label_sd > 0, label_sd, 1.0)).max(axis=1)
    shift = np.abs(np.array([f.mean for f in facts]) - mean) / np.where(varies, sd, 1.0)
    i, j = (int(k) for k in np.unravel_index(shift.argmax(), shift.shape))
    return Summary(
        rows=tuple(rows),
        pooled=whole,
        features=len(columns),
        size_ratio=float(m.max() / m.min()),
        label_distance=float(label.max()),
        label_site=names[int(label.argmax())],
        feature_shift=float(shift.max()),
        feature_shift_at=(names[i], columns[j]),
    )


def _pool_moments(m: np.ndarray, means: Sequence[np.ndarray], squares: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Mean, standard deviation, and whether it is positive, of the rows of all sites, m_i of them at each."""
    p, own = m / m.sum(), np.array(means)
    mean = own[0] + p @ (own - own[0])
    variance = p @ (np.array(squares) + (own - mean) ** 2)
    return mean, np.sqrt(variance), (variance > 0)


def _label_profile(row: dict[str, Any]) -> list[float]:
    return list(row["classes"].values()) if "classes" in row else row["mean"]


def _cells(row: dict[str, Any]) -> list[str]:
    if "classes" in row:
        labels = [f"{share:.1%}" for share in row["classes"].values()]
    else:
        labels = [join_names([f"{value:.3g}" for value in row[key]], " ") for key in ("mean", "sd")]
    return [row["site"], str(row["rows"]), f"{row['share']:.1%}", *labels, str(len(row["constant"]))]
