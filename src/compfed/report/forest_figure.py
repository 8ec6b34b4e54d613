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
WIDE = 300  # an axis with ticks at powers of ten


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


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two ratios, for an axis in logarithms.

    >>> ratio_ticks(0.3, 2.6), ratio_ticks(0.96, 1.05), ratio_ticks(0.005, 300.0)
    ([0.5, 1.0, 2.0], [0.96, 0.98, 1.0, 1.02, 1.04], [0.01, 0.1, 1.0, 10.0, 100.0])
    """
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1,) if high > WIDE * low else (1, 2, 5)
    found = [tick for power in decades for step in steps if low <= (tick := float(f"{step}e{power}")) <= high]
    if len(found) >= 3:
        return found
    size = float(f"1e{int(np.floor(np.log10((high - low) / 3)))}")  # evenly spaced, as a narrow axis nearly is
    size *= next(step for step in (1, 2, 5, 10) if (high - low) / (step * size) < 6)
    places = np.arange(np.ceil(low / size - 1e-9), np.floor(high / size + 1e-9) + 1)
    return [float(f"{place * size:.10g}") for place in places]


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
            ax.set_xticks(found := ratio_ticks(*ax.get_xlim()), [f"{tick:.10g}" for tick in found])
            ax.set_xticks([], minor=True)
        ax.set_xlabel(f"{what} with {summary['level']:.0%} confidence interval")
        return ax.figure
