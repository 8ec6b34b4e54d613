"""The tables of this folder, and what R, lifelines and scikit-survival make of them."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

HERE = Path(__file__).parent
NAMES = ("plain", "ties", "truncated", "weighted", "everything", "lonely")
GRID = 0.15 * 0.6 ** np.arange(8)  # of alpha, as in benchmarks/peers/survival.R


class SurvivalTable(NamedTuple):
    X: np.ndarray
    y: np.ndarray  # (time, event), or (entry, time, event)
    site: np.ndarray
    stratum: np.ndarray
    weight: np.ndarray
    offset: np.ndarray
    fold: np.ndarray

    @property
    def entry(self) -> np.ndarray | None:
        return self.y[:, 0] if self.y.shape[1] == 3 else None

    @property
    def cell(self) -> np.ndarray:
        """Site and stratum together."""
        return self.site * 2 + self.stratum


@cache
def table(name: str) -> SurvivalTable:
    with (HERE / "tables" / f"{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    column = {key: np.array([float(row[key]) for row in rows]) for key in rows[0]}
    X = np.column_stack([column[f"x{k}"] for k in range(1, 5)])
    labels = [column["entry"]] * bool(column["entry"].any()) + [column["time"], column["event"]]
    y = np.column_stack(labels)
    return SurvivalTable(X, y, *(column[key] for key in ("site", "stratum", "weight", "offset", "fold")))


@cache
def reference(which: str) -> dict[str, Any]:
    """The stored values: "r" or "python"."""
    return json.loads((HERE / f"references_{which}.json").read_text())


def log_likelihood(
    beta: Any, t: SurvivalTable, ties: str, strata: np.ndarray, offset: Any = 0.0, kept: Any = None
) -> Any:
    """The log partial likelihood by its definition, one event time after another, in the precision of beta."""
    kind = np.asarray(beta).dtype.type
    kept = np.ones(len(t.X), bool) if kept is None else kept
    z = t.X.astype(kind) @ np.asarray(beta) + np.asarray(offset, kind)
    entry = np.full(len(z), -np.inf) if t.entry is None else t.entry
    time, event, w = t.y[:, -2], t.y[:, -1] > 0, t.weight.astype(kind)
    total = kind(0)
    for s in np.unique(strata[kept]):
        mine = kept & (strata == s)
        for at in np.unique(time[mine & event]):
            risk, died = mine & (entry < at) & (time >= at), mine & event & (time == at)
            S, D, n = (w[risk] * np.exp(z[risk])).sum(), (w[died] * np.exp(z[died])).sum(), int(died.sum())
            total += (w[died] * z[died]).sum()
            shares = np.zeros(n, kind) if ties == "breslow" else np.arange(n).astype(kind) / n
            total -= w[died].sum() / n * np.log(S - shares * D).sum()
    return total
