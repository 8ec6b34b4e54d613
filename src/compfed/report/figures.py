"""Convergence curves as figures: the median over seeds, and a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.report.style import AXES, COLUMN, PAGE, blank, figure_and_axes, line_style, plain, save_figure, styled
from compfed.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-14  # smaller values are rounding
MOST_INSIDE = 8  # lines whose names fit into the axes; those of more stand beside them
MEASURES = ("optimality", "gradient_mapping", "objective")  # on the vertical axis: the first that all runs have
Place = Literal["upper right", "lower left", "lower right", "center right"]


@dataclass(frozen=True)
class Curve:
    """One curve: a label and one trace per seed. `style` picks colour and dash, so that a method has one style in all figures."""

    label: str
    traces: Sequence[Trace]
    style: int
    y: str | None = None  # another column than the panel's
    width: float = 1.6  # a wide line shows below a narrow one that lies on it
    dots: bool = False  # mark every row: for a run of few rounds


@dataclass(frozen=True)
class Panel:
    """One set of axes."""

    title: str
    lines: Sequence[Curve]
    x: str = "round"
    y: str = "optimality"
    floor: float = FLOOR  # smaller values are rounding and are drawn here
    legend: Place | None = "upper right"  # where falling curves are not; matplotlib's "best" is slow
    log: bool = True
    log_x: bool = False


def draw(panels: Sequence[Panel], path: Path, rows: int = 1) -> list[Path]:
    """Draw panels side by side and write path.svg, path.png and path.pdf. Several rows share a y scale and a legend above."""
    columns, shared = len(panels) // rows, rows > 1
    figure = blank(3.4 * columns, 2.7 * rows + 0.4) if shared else blank(4.4 * columns, 3.4)
    with styled():
        axes = figure.subplots(rows, columns, sharey=shared, squeeze=False)
        for panel, ax in zip(panels, axes.flat, strict=True):
            draw_panel(replace(panel, legend=None) if shared else panel, ax)
        if shared:
            for ax in axes[:, 1:].flat:
                ax.set_ylabel("")
            handles, labels = axes[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return save_figure(figure, path)


def draw_panel(panel: Panel, ax: Axes) -> None:
    """Draw the lines of a panel, its axes and its legend."""
    from matplotlib.ticker import EngFormatter

    for line in panel.lines:
        x = line.traces[0][panel.x]
        values = np.maximum(
            np.array([t[line.y or panel.y] for t in line.traces]), panel.floor if panel.log else -np.inf
        )
        style = line_style(line.style)
        ax.plot(
            x, np.median(values, axis=0), label=plain(line.label), linewidth=line.width, marker="o" if line.dots else "",
            markersize=3.0, **style,
        )  # fmt: skip
        if len(values) > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=0)
            ax.fill_between(x, low, high, color=style["color"], alpha=0.2, linewidth=0)
    if panel.log:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # plain text, far quicker to draw than mathtext
        ax.yaxis.set_minor_formatter(lambda value, _: "")
    if panel.log_x:
        ax.set_xscale("log")
        size = EngFormatter("B")  # 300 B, 20 kB, 1 MB
        ax.xaxis.set_major_formatter(size if panel.x == "bytes" else lambda value, _: f"{value:,.0f}")
        ax.xaxis.set_minor_formatter(lambda value, _: "")
    ax.set_xlabel(AXES.get(panel.x) or plain(panel.x))
    ax.set_ylabel(AXES.get(panel.y) or plain(panel.y))
    if panel.title:
        ax.set_title(panel.title)
    if len(panel.lines) > MOST_INSIDE and panel.legend is not None:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    elif len(panel.lines) > 1 and panel.legend is not None:
        ax.legend(loc=panel.legend)


# --- the public figures ---


def plot_convergence(runs: Any, x: str = "round", y: str | None = None, *, ax: Axes | None = None) -> Figure:
    """Draw how fast runs converge: a measure of the error against its cost, on a log axis.

    Parameters
    ----------
    runs : Trace, fitted estimator, comparison of methods, or dict
        One run; the result of `compare_methods`; or runs by name. Several traces under one name are seeds: the median and
        the band from the 10 % to the 90 % quantile are drawn.
    x : str, default="round"
        A column of the traces: "round", "bytes_up", "seconds", "gradients", ...
    y : str, optional
        Another column. Unless given, the first of "optimality", "gradient_mapping" and "objective" that all runs have.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of `ax`, or the new one.

    Raises
    ------
    InputError
        If `runs` has no trace, or a column is missing.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedLasso(alpha=1.0).fit(table.X, table.y, sites=table.sites)
    >>> cf.plot_convergence(model).axes[0].get_ylabel()
    'gradient mapping'
    """
    named = runs_by_name(runs)
    every = [trace for traces in named.values() for trace in traces]
    if y is None:
        y = next((name for name in MEASURES if all(name in trace for trace in every)), MEASURES[-1])
    for column in (x, y):
        for trace in every:
            trace[column]  # raises an error with the columns that there are
    log = y != "objective"
    lines = [Curve(name, traces, i, dots=len(traces[0]) < 15) for i, (name, traces) in enumerate(named.items())]
    with styled():
        figure, ax = figure_and_axes(ax, COLUMN * 1.3 if len(lines) <= MOST_INSIDE else PAGE, 3.2)
        draw_panel(Panel("", lines, x=x, y=y, log=log), ax)
    return figure


def runs_by_name(runs: Any) -> dict[str, Sequence[Trace]]:
    """Traces by name, one for each seed, from all that `plot_convergence` takes."""
    found = getattr(runs, "traces", getattr(runs, "trace_", runs))
    if isinstance(found, Trace):
        algorithm = found.provenance.get("algorithm")
        return {str(algorithm["name"]) if isinstance(algorithm, dict) and "name" in algorithm else "run": [found]}
    named: dict[str, Sequence[Trace]] = {}
    for name, each in found.items() if isinstance(found, Mapping) else ():
        each = getattr(each, "trace_", each)
        named[str(name)] = [each] if isinstance(each, Trace) else list(each)
    wrong = [name for name, traces in named.items() if not traces or not all(isinstance(t, Trace) for t in traces)]
    if wrong or not named:
        what = f"no trace under {join_names(wrong)}" if wrong else f"got {type(runs).__name__}"
        raise InputError(
            f"plot_convergence takes a trace, a fitted estimator, a comparison of methods or a dict of these; {what}."
        )
    return named
