"""The figure of Kaplan-Meier curves: steps with their intervals, and the numbers at risk below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed.report.style import COLOURS, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

APART = 0.07  # of the axis: numbers at risk do not touch


def risk_times(times: Sequence[float]) -> list[int]:
    """The places of the agreed times that stand at the ticks of an axis: those next to round numbers.

    Rows at risk are known at the agreed times alone.

    >>> risk_times([float(t) for t in range(1, 61)])
    [0, 9, 19, 29, 39, 49, 59]
    >>> risk_times([1.0, 2.0, 3.0, 60.0])
    [0, 3]
    """
    from matplotlib.ticker import MaxNLocator

    found, span = np.asarray(times, float), max(times) - min(0.0, min(times))
    kept: list[int] = []
    for tick in MaxNLocator(7, steps=[1, 2, 2.5, 3, 5, 10]).tick_values(min(0.0, found.min()), found.max()):
        place = int(np.argmin(np.abs(found - tick)))
        if not kept or found[place] - found[kept[-1]] >= APART * span:
            kept.append(place)
    return kept


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
        places = risk_times(curves.times)
        ticks = [float(curves.times[place]) for place in places]
        below.set_xticks(ticks, [f"{tick:g}" for tick in ticks])  # the axes share them
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
