"""Convergence curves as figures: the median over seeds, and a band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.report.draw import MOST_INSIDE, draw_plot
from compfed.report.plots import Plot, Series
from compfed.report.showing import shown
from compfed.report.style import AXES, COLUMN, PAGE, blank, figure_and_axes, plain, save_figure, styled
from compfed.trace import COUNTED, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FLOOR = 1e-14  # smaller values are rounding
PIXEL = 0.75  # points
ERRORS = (
    "optimality",
    "gradient_mapping",
    "relative_gradient_mapping",
    "drift",
    "correction",
    "lyapunov",
)  # on a log axis
MEASURES = ("optimality", "gradient_mapping", "objective")  # on the vertical axis: the first that all runs have
Place = Literal["upper right", "lower left", "lower right", "center right", "free corner"]


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
    """Draw the lines of a panel, its axes and its legend. Call it in `with styled():`."""
    draw_plot(panel_plot(panel), ax, legend=panel.legend is not None)
    if panel.title:
        ax.set_title(panel.title)


def panel_plot(panel: Panel) -> Plot:
    """A panel as the description of a figure: of several seeds the median, and the band from the 10 % to the 90 % quantile."""
    series = []
    for line in panel.lines:
        x, values = _over_seeds(line.traces, panel.x), _over_seeds(line.traces, line.y or panel.y)
        x, values = np.median(x, axis=0), np.maximum(values, panel.floor if panel.log else -np.inf)
        middle = np.quantile(values, 0.5, axis=0, method=_method(values))
        kind, width = "dots" if line.dots else "line", line.width / PIXEL
        series.append(Series(line.label, {"x": x, "y": middle}, kind, line.style, width=width, legend=line.label))
        if len(values) > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=0, method=_method(values))
            series.append(Series(line.label, {"x": x, "low": low, "high": high}, "band", line.style))
    x_label, y_label = (AXES.get(column) or plain(column) for column in (panel.x, panel.y))
    return Plot(
        panel.title, series, [(panel.x, x_label)], y_label, "", x_log=panel.log_x, y_log=panel.log,
        legend=panel.legend or "free corner",
    )  # fmt: skip


def _over_seeds(traces: Sequence[Trace], column: str) -> np.ndarray:
    """A column of several runs, one row per run. One that ended early diverged, and is infinite from there on."""
    longest = max(traces, key=len)
    rows = []
    for trace in traces:
        left = len(longest) - len(trace)
        rest = longest[column][len(trace) :] if column in COUNTED else np.full(left, np.inf)
        rows.append(np.concatenate([trace[column], rest]).astype(float))
    return np.array(rows)


def _method(values: np.ndarray) -> Any:
    """How a quantile is taken: between two values, or, where some are infinite, as one of them."""
    return "linear" if np.isfinite(values).all() else "higher"


# --- the public figures ---


@shown
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
    log = y in ERRORS
    lines = [Curve(name, traces, i, dots=len(traces[0]) < 15) for i, (name, traces) in enumerate(named.items())]
    with styled():
        figure, ax = figure_and_axes(ax, COLUMN * 1.3 if len(lines) <= MOST_INSIDE else PAGE, 3.2)
        draw_panel(Panel("", lines, x=x, y=y, log=log, legend="free corner"), ax)
    return figure


def runs_by_name(runs: Any, asked_by: str = "plot_convergence") -> dict[str, Sequence[Trace]]:
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
            f"{asked_by} takes a trace, a fitted estimator, a comparison of methods or a dict of these; {what}."
        )
    return named
