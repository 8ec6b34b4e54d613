"""A comparison in a terminal: a line per model, then a line per feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from compfed._utils.text import number_table, shorten

if TYPE_CHECKING:
    from compfed.studies.local_federated_pooled.result import Comparison

MOST_SITES = 8  # with columns of their own; more are summed up
MOST_FEATURES = 40  # shown whatever they are; of more, those that the pooled or the federated model uses
NAME = 22  # characters of a name


def text(c: Comparison) -> str:
    """Heading, summary, a table for every further measure, coefficients."""
    first, *others = c.scores
    parts = [_heading(c), f"{first} on held-out rows", _summary(c, first)]
    for measure in others:
        parts += [f"{measure} on held-out rows", _summary(c, measure, brief=True)]
    parts += ["coefficients (. is exactly zero, - is not there)", _coefficient_table(c)]
    return "\n\n".join([*parts, *(["\n".join(c.notes)] if c.notes else [])])


def _heading(c: Comparison) -> str:
    fitted, out = c.rows.sum(axis=0).tolist()
    each = ", ".join(f"{site} {a} + {b}" for site, (a, b) in zip(c.sites, c.rows.tolist(), strict=True))
    return (
        f"{c.estimator}\n{fitted} rows to fit + {out} held out at {len(c.sites)} sites"
        + (f": {each}" if len(c.sites) <= MOST_SITES else "")
        + f"\npooled model: {c.pooled_by}"
        + "\nzeros: same as in the pooled model, or +a -b: a coefficients used that are zero there, b the other way round"
        + "\ndistance: of the coefficients from the pooled ones, relative, per standard deviation of the feature"
    )


def _summary(c: Comparison, measure: str, brief: bool = False) -> str:
    sites = _score_columns(c.sites)
    header = ["model", *([] if brief else ["features", "zeros", "distance"]), *sites]
    n = len(c.sites)
    about = [(c.used[k], c.extra[k], c.missing[k], c.distance[k]) for k in range(len(c.models))]
    names = [f"{name} ({status})" if status else name for name, status in zip(c.models, c.status, strict=True)]
    rows = [
        [names[k], *([] if brief else _about(*about[k])), *_score_cells(c.scores[measure][k], measure)]
        for k in range(len(names))
    ]
    own = ["each site its own", *([] if brief else ["", "", ""]), *_score_cells(c.own[measure], measure)]
    local = rows[:n]
    if n > MOST_SITES:
        middle = [_median([a[j] for a in about[:n]]) for j in range(4)]
        scores = np.array([_median(column) for column in c.scores[measure][:n].T])
        local = [[f"local: median of {n}", *([] if brief else _about(*middle)), *_score_cells(scores, measure)]]
    return number_table(header, [*local, own, *rows[n:]])


def _about(used: float, extra: float, missing: float, distance: float) -> list[str]:
    if np.isnan(used):
        return ["-", "-", "-"]
    if np.isnan(extra):
        return [f"{used:.0f}", "-", "-"]
    return [f"{used:.0f}", "same" if extra == missing == 0 else f"+{extra:.0f} -{missing:.0f}", f"{distance:.2g}"]


def _score_columns(sites: Sequence[str]) -> list[str]:
    shown = [shorten(site, NAME) for site in sites] if len(sites) <= MOST_SITES else ["median site", "worst site"]
    return [*shown, "all"]


def _score_cells(scores: np.ndarray, measure: str) -> list[str]:
    sites, everyone = scores[:-1], scores[-1]
    if len(sites) > MOST_SITES:
        known = sites[~np.isnan(sites)]
        worst = np.nan if not known.size else known.max() if measure == "log loss" else known.min()
        sites = np.array([_median(sites), worst])
    return ["-" if np.isnan(value) else f"{round(value, 3) + 0.0:.3f}" for value in [*sites, everyone]]


def _coefficient_table(c: Comparison) -> str:
    n = len(c.sites)
    columns = np.arange(0 if n <= MOST_SITES else n, len(c.models))
    rows = np.arange(len(c.features))
    if len(rows) > MOST_FEATURES:
        used = rows[(c.coefficients[:, -2:] != 0).any(axis=1)]
        size = np.abs(c.coefficients[used, -1] * c.scale[used])
        rows = np.sort(used[np.argsort(-size, kind="stable")[:MOST_FEATURES]])
    cells = [[shorten(c.features[j], NAME), *(_number(v) for v in c.coefficients[j, columns])] for j in rows]
    for kind, values in zip(c.outputs, c.intercepts[:, columns], strict=True):
        cells.append([f"(intercept){kind}", *(_number(v) for v in values)])
    titles = [*c.sites, *c.models[n:]]
    header = ["feature", *(shorten(titles[k], NAME) for k in columns)]
    left = len(c.features) - len(rows)
    return number_table(header, cells) + (f"\n({left} more in .coefficients)" if left else "")


def _number(value: float, digits: int = 3) -> str:
    return "-" if np.isnan(value) else "." if value == 0 else f"{value:.{digits}g}"


def _median(values: Sequence[float] | np.ndarray) -> float:
    known = np.asarray(values)[~np.isnan(values)]
    return float(np.median(known)) if known.size else np.nan
