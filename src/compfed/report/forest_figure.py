"""A forest plot: the estimates of a fit with their confidence intervals, one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.plain import Record
from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.report.style import BLUE, GREY, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERCEPT = "(intercept)"
MOST = 80  # lines
LARGEST_RATIO = 1e4  # of an axis


def forest_rows(summary: Record) -> tuple[list[str], np.ndarray, str]:
    """The labels, (estimate, low, high) of every term but the intercepts, and what they are: ratios where they have a name."""
    ratio = summary.get("ratio_name")
    names = ("ratios", "ratio_low", "ratio_high") if ratio else ("coefficients", "low", "high")
    values = np.array([summary[name] for name in names], float).T
    classes = summary.get("classes") or [""] * len(values)
    some = [k for k, term in enumerate(summary["terms"]) if term != INTERCEPT and np.isfinite(values[k]).all()]
    labels = [
        f"{shorten(summary['terms'][k], 40)}{f' ({shorten(classes[k], 20)})' if classes[k] else ''}" for k in some
    ]
    return labels[:MOST], values[some][:MOST], ratio or "coefficient"


def draw_forest(summary: Record, ax: Any = None) -> Figure:
    """Draw a summary as plain data (`Summary.to_dict`)."""
    labels, values, what = forest_rows(summary)
    if not labels:
        why = summary.get("why_no_errors") or "the model has no coefficient but its intercept"
        raise InputError(f"there is no interval to draw: {why}.")
    with styled():
        if ax is None:
            ax = blank(6.4, 1.0 + 0.28 * len(labels)).subplots()
        y = np.arange(len(labels))[::-1]
        ratio = bool(summary.get("ratio_name"))
        limits = (1 / LARGEST_RATIO, LARGEST_RATIO) if ratio else (-np.inf, np.inf)
        value, low, high = np.clip(values, *limits).T
        ax.axvline(1.0 if ratio else 0.0, color=GREY, linewidth=0.8)
        ax.errorbar(value, y, xerr=[value - low, high - value], fmt="s", color=BLUE, markersize=4, linewidth=1.2)
        ax.set_yticks(y, labels)
        ax.set_ylim(-0.6, len(labels) - 0.4)
        if ratio:
            ax.set_xscale("log")
        ax.set_xlabel(f"{what} with {summary['level']:.0%} confidence interval")
        return ax.figure
