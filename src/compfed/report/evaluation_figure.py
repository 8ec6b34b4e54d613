"""The figure of an evaluation: ROC and calibration curves, with the bounds that counts leave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compfed.errors import InputError
from compfed.report.style import COLOURS, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_evaluation(evaluation: Any, axes: Any = None) -> Figure:
    """Draw the ROC curve (left) and the calibration curve (right) of an `Evaluation` of two classes."""
    if evaluation.roc is None or evaluation.calibration is None:
        raise InputError(
            f"an evaluation of {evaluation.kind} has no curves to draw; print it, or read its fields (to_dict)."
        )
    with styled():
        if axes is None:
            figure = blank(7.0, 3.3)
            axes = figure.subplots(1, 2)
        left, right = np.ravel(axes)
        _draw_roc(left, evaluation)
        _draw_calibration(right, evaluation.calibration)
        return left.figure


def _draw_roc(ax: Any, evaluation: Any) -> None:
    roc = evaluation.roc
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    best = np.lexsort([roc.true_positive_high, roc.false_positive_low])
    worst = np.lexsort([roc.true_positive_low, roc.false_positive_high])
    low, high = evaluation.bounds("auc")
    label = f"AUC {evaluation.auc.value:.3f}"
    label += f", rounding bounds {low:.3f} to {high:.3f}" if high - low > 0.002 else ""
    for order, x, y in (
        (best, roc.false_positive_low, roc.true_positive_high),
        (worst, roc.false_positive_high, roc.true_positive_low),
    ):
        ax.plot([0, *x[order], 1], [0, *y[order], 1], color=COLOURS[0], linewidth=1.2, label=label)
        label = None
    ax.set(xlabel="1 - specificity", ylabel="sensitivity", xlim=(0, 1), ylim=(0, 1.01))
    ax.legend(loc="lower right")


def _draw_calibration(ax: Any, curve: Any) -> None:
    predicted = (curve.predicted_low + curve.predicted_high) / 2
    observed = (curve.observed_low + curve.observed_high) / 2
    ax.plot([0, 1], [0, 1], color="0.7", linewidth=0.8)
    errors = [np.abs(observed - curve.observed_low), np.abs(curve.observed_high - observed)]
    ax.errorbar(predicted, observed, yerr=errors, fmt="o", color=COLOURS[1], markersize=4, linewidth=1)
    ax.set(xlabel="predicted risk", ylabel="share of events", xlim=(0, 1), ylim=(0, 1))
