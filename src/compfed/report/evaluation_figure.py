"""The figures of an evaluation: ROC and calibration curves, with the bounds that counts leave, of all sites or of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.plain import Record
from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.report.draw import draw_plot
from compfed.report.plots import Plot, Series, thinned
from compfed.report.style import BLUE, GREY, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROC_AXES, CALIBRATION_AXES = ("1 - specificity", "sensitivity"), ("predicted risk", "share of events")
WIDE = 0.5


def draw_evaluation(evaluation: Any, axes: Any = None) -> Figure:
    """Draw the ROC curve (left) and the calibration curve (right) of an `Evaluation` of two classes."""
    if evaluation.roc is None or evaluation.calibration is None:
        raise InputError(
            f"an evaluation of {evaluation.kind} has no curves to draw; print it, or read its fields (to_dict)."
        )
    found = evaluation.to_dict()
    low, high = evaluation.bounds("auc")
    auc = f"AUC {evaluation.auc.value:.3f}"
    auc += f", rounding bounds {low:.3f} to {high:.3f}" if high - low > 0.002 else ""
    with styled():
        if axes is None:
            figure = blank(7.0, 3.3)
            axes = figure.subplots(1, 2)
        left, right = np.ravel(axes)
        draw_plot(roc_plot(found["roc"], ""), left)
        left.set_title(auc, fontsize=9)
        draw_plot(calibration_plot(found["calibration"], ""), right)
        return left.figure


def roc_plot(roc: Record, caption: str, key: str = "roc") -> Plot:
    """The ROC curve; where counts are known to blocks of rows, the best and the worst curve that fit them."""
    curves = {"best case": _roc_points(roc, "low", "high"), "worst case": _roc_points(roc, "high", "low")}
    if np.allclose(*(_on_grid(points) for points in curves.values()), atol=1e-9):
        curves = {"ROC curve": curves["best case"]}
    series = [_diagonal("chance")]
    for k, (label, (x, y)) in enumerate(curves.items()):
        series.append(Series(label, {"x": x, "y": y}, "line", k, legend=label if len(curves) > 1 else None))
    return _square(key, series, ROC_AXES, caption)


def calibration_plot(curve: Record, caption: str, key: str = "calibration") -> Plot:
    """Share of events against predicted risk, in groups of rows, with a band of rounding bounds."""
    x, low, high = _calibration_points(curve)
    points = {"x": x, "y": (low + high) / 2, "low": low, "high": high}
    series = [_diagonal("perfect"), Series("groups of rows", points, "dots", colour=BLUE)]
    if (high - low).max(initial=0.0) > WIDE:  # the middle of such bounds says nothing
        series = [_diagonal("perfect")]
    if (high - low).max(initial=0.0) > 1e-9:
        series.insert(1, Series("rounding bounds", {"x": x, "low": low, "high": high}, "band", colour=BLUE))
    return _square(key, series, CALIBRATION_AXES, caption)


def roc_by_site(evaluations: Mapping[str, Record], caption: str) -> Plot | None:
    """A curve for every site: the middle of the best and the worst case where counts are known to blocks of rows."""
    series = [_diagonal("chance")]
    for k, (site, one) in enumerate(evaluations.items()):
        if roc := one.get("roc"):
            best, worst = _roc_points(roc, "low", "high"), _roc_points(roc, "high", "low")
            points = {"x": best[0], "y": best[1]}
            if not np.allclose(_on_grid(best), _on_grid(worst), atol=1e-9):
                points = {"x": GRID, "y": (_on_grid(best) + _on_grid(worst)) / 2}
            name = shorten(site, 40)
            series.append(Series(name, points, "line", k, legend=name))
    return _square("roc-sites", series, ROC_AXES, caption) if len(series) > 1 else None


def calibration_by_site(evaluations: Mapping[str, Record], caption: str) -> Plot | None:
    """A line for every site through the middles of its groups of rows."""
    series = [_diagonal("perfect")]
    for k, (site, one) in enumerate(evaluations.items()):
        if curve := one.get("calibration"):
            x, low, high = _calibration_points(curve)
            name, points = shorten(site, 40), {"x": x, "y": (low + high) / 2}
            series.append(Series(name, points, "dots", k, legend=name))
    return _square("calibration-sites", series, CALIBRATION_AXES, caption) if len(series) > 1 else None


GRID = np.linspace(0, 1, 201)


def _roc_points(roc: Record, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """The curve from (0, 0) to (1, 1) with these ends of the bounds."""
    fp, tp = (np.asarray(roc[f"{kind}_positive_{end}"], float) for kind, end in (("false", x), ("true", y)))
    order = np.lexsort([tp, fp])
    fp, tp = np.concatenate([[0.0], fp[order], [1.0]]), np.concatenate([[0.0], tp[order], [1.0]])
    some = thinned(len(fp))
    return fp[some], tp[some]


def _on_grid(points: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.interp(GRID, *points)


def _calibration_points(curve: Record) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted risk, and the bounds on the share of events, in the order of the risk."""
    x = (np.asarray(curve["predicted_low"], float) + np.asarray(curve["predicted_high"], float)) / 2
    order = np.argsort(x, kind="stable")
    low, high = (np.asarray(curve[f"observed_{end}"], float)[order] for end in ("low", "high"))
    return x[order], low, high


def _diagonal(name: str) -> Series:
    return Series(name, {"x": [0, 1], "y": [0, 1]}, "ruler", colour=GREY)


def _square(key: str, series: list[Series], labels: tuple[str, str], caption: str) -> Plot:
    tips = [(label, f"@{axis}{{%.3f}}") for label, axis in zip(labels, "xy", strict=True)]
    return Plot(
        key, series, [("x", labels[0])], labels[1], caption, tooltips=tips, height=330, size=(3.5, 3.3), square=True,
        legend="lower right",
    )  # fmt: skip
