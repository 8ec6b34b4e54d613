"""The figure of Kaplan-Meier curves: steps with their intervals, and the numbers at risk below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compfed.report.style import COLOURS, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 6  # times of the table below


def draw_survival(curves: Any, axes: Any = None) -> Figure:
    """Draw the curves (above) and the numbers at risk (below) of a `KaplanMeier`."""
    with styled():
        if axes is None:
            figure = blank(5.0, 3.2 + 0.25 * len(curves.groups))
            axes = figure.subplots(2, 1, sharex=True, height_ratios=[5, 0.4 + 0.35 * len(curves.groups)])
        top, below = np.ravel(axes)
        times = np.concatenate([[min(0.0, float(curves.times[0]))], curves.times])
        for k, group in enumerate(curves.groups):
            colour = COLOURS[k % len(COLOURS)]
            steps = [np.concatenate([[1.0], part[k]]) for part in (curves.survival, curves.low, curves.high)]
            top.step(times, steps[0], where="post", color=colour, linewidth=1.4, label=group)
            top.fill_between(times, steps[1], steps[2], step="post", color=colour, alpha=0.15, linewidth=0)
        top.set(ylabel="survival", ylim=(0, 1.02))
        top.legend(loc="lower left")
        places = np.unique(np.linspace(0, len(curves.times) - 1, min(SHOWN, len(curves.times))).round().astype(int))
        for k in range(len(curves.groups)):
            for place in places:
                below.text(
                    curves.times[place], -k, f"{curves.at_risk[k, place]:.0f}", ha="center", va="center", fontsize=7
                )
        below.set_yticks([-k for k in range(len(curves.groups))], list(curves.groups))
        below.set(ylim=(-len(curves.groups) + 0.4, 0.6), xlabel="time (numbers at risk)")
        below.grid(visible=False)
        below.tick_params(length=0)
        for side in ("top", "right", "left"):
            below.spines[side].set_visible(False)
        return top.figure
