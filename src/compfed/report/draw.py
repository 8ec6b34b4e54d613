"""A `Plot` drawn by matplotlib: the figures that functions return, and those of a page for print and without JavaScript."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from compfed._utils.text import shorten
from compfed.errors import MissingExtra
from compfed.report.html import inline_svg
from compfed.report.plots import Plot, Series
from compfed.report.showing import unshown
from compfed.report.style import BLACK, DASHES, GREY, blank, line_style, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_DECADES = 30.0  # where a log axis ends at so many times its beginning, 2 and 5 are labelled too
MOST_INSIDE = 8  # lines whose names fit into the axes; those of more stand beside them
LONGEST_NAME = 44  # of a line, in letters


def draw_plot(plot: Plot, ax: Axes, *, legend: bool = True) -> None:
    """Draw a plot on these axes, with the first of its horizontal axes. Call it in `with styled():`."""
    column, label = plot.x_choices[0]
    for series in plot.series:
        _draw_series(series, column, ax)
    _format_x(plot, column, ax)
    if plot.y_log:
        _format_log_y(ax)
    if plot.rows:
        _name_rows(plot, ax)
    if plot.above:
        _name_above(plot, ax)
    ax.set_xlabel(f"{label}\n({plot.x_note})" if plot.x_note else label)
    ax.set_ylabel(plot.y_label)
    if legend and sum(s.legend is not None for s in plot.series) > 1:
        _draw_legend(plot, ax)


def static_svg(plot: Plot) -> str:
    """A plot as a part of a page; empty where matplotlib is not installed."""
    return svg_of(lambda: figure_of(plot), plot.key)


def svg_of(make: Callable[[], Figure], key: str) -> str:
    """A figure of matplotlib as a part of a page; empty where matplotlib is not installed."""
    try:
        with styled(), unshown():
            target = io.StringIO()
            make().savefig(target, format="svg", metadata={"Date": None})
    except MissingExtra:
        return ""
    return inline_svg(target.getvalue(), key)


def figure_of(plot: Plot) -> Figure:
    """A new figure with this plot. Call it in `with styled():`."""
    figure = blank(*plot.size)
    draw_plot(plot, figure.subplots())
    return figure


def _draw_series(series: Series, column: str, ax: Axes) -> None:
    columns, label = series.columns, "_" if series.legend is None else plain(shorten(series.legend, LONGEST_NAME))
    x = columns.get(column, columns.get("x"))
    assert x is not None
    if series.kind == "band":
        ax.fill_between(x, columns["low"], columns["high"], color=series.paint, alpha=0.2, linewidth=0)
    elif series.kind == "axis":
        ax.plot(x, columns["y"], color=series.paint, linewidth=0.8, label=label)
    elif series.kind == "ruler":
        dash = ("--", ":")[series.style % 2]
        ax.plot(x, columns["y"], color=series.paint, linewidth=1.0, linestyle=dash, label=label)
    elif series.kind == "points":
        ax.scatter(
            x, columns["y"], s=(0.58 * series.size) ** 2, marker=series.marker, linewidth=1.0, zorder=3, label=label,
            facecolor="white" if series.hollow else series.paint, edgecolor=series.paint,
        )  # fmt: skip
    else:
        style = line_style(series.style) if series.colour is None else {"color": series.colour, "linestyle": DASHES[0]}
        marker = "o" if series.kind == "dots" else ""
        ax.plot(x, columns["y"], label=label, linewidth=0.75 * series.width, marker=marker, markersize=3.0, **style)


def _format_x(plot: Plot, column: str, ax: Axes) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    if plot.x_log:
        ax.set_xscale("log")
        size = EngFormatter("B")  # 300 B, 20 kB, 1 MB
        ax.xaxis.set_major_formatter(size if column.startswith("bytes") else lambda value, _: _power(value))
        ax.xaxis.set_minor_formatter(lambda value, _: "")
    elif column == "round":
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if plot.flip_x:
        x = np.concatenate([np.asarray(s.columns["x"], float) for s in plot.series])
        ax.set_xlim(1.05 * x.max(), x.min())
    if plot.square:
        ax.set(xlim=(0, 1), ylim=(0, 1.01))


def _power(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _format_log_y(ax: Axes) -> None:
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # plain text, far quicker to draw than mathtext
    low, high = ax.get_ylim()
    few = high < FEW_DECADES * low  # one power of ten, or none
    ax.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if few and f"{value:e}"[0] in "25" else "")


def _name_rows(plot: Plot, ax: Axes) -> None:
    """Names in place of numbers, from above."""
    ax.set_yticks(range(len(plot.rows)), [plain(shorten(name, 32)) for name in plot.rows])
    for k, text in enumerate(ax.get_yticklabels()):
        text.set_color(GREY if k in plot.faint else BLACK)
    ax.set_ylim(len(plot.rows) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")


def _name_above(plot: Plot, ax: Axes) -> None:
    """The axis above: places with a text."""
    above = ax.twiny()
    above.set_xscale(ax.get_xscale())
    above.set_xlim(ax.get_xlim())
    above.set_xticks([x for x, _ in plot.above], [text for _, text in plot.above], fontsize=7.5)
    above.set_xticks([], minor=True)
    above.tick_params(length=2)
    above.grid(visible=False)
    above.set_xlabel(plot.above_label, fontsize=8)


# --- legends ---

Corner = Literal["upper right", "lower left", "lower right", "upper left"]
CORNERS: dict[Corner, tuple[float, float]] = {
    "upper right": (0.55, 0.5),
    "lower left": (0.0, 0.0),
    "lower right": (0.55, 0.0),
    "upper left": (0.0, 0.5),
}


def _draw_legend(plot: Plot, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    first = dict(reversed(list(zip(labels, handles, strict=True))))  # series with one name share an entry
    names = list(dict.fromkeys(labels))
    entries: Any = {"handles": [first[name] for name in names], "labels": names}
    if plot.legend == "right" or (plot.legend == "free corner" and len(names) > MOST_INSIDE):
        ax.legend(**entries, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7 if len(names) > 12 else 8)
    elif plot.legend == "above":
        ax.legend(**entries, loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=min(len(names), 4), handletextpad=0.4)
    else:
        entries["loc"] = _free_corner(ax) if plot.legend == "free corner" else plot.legend
        ax.legend(**entries)


def _free_corner(ax: Axes) -> Corner:
    """The corner with the fewest points of the curves; matplotlib's "best" is slow."""
    ax.autoscale_view()
    to_axes = ax.transAxes.inverted()
    lines: Sequence[Any] = ax.get_lines()
    points = np.concatenate([to_axes.transform(ax.transData.transform(line.get_xydata())) for line in lines])
    inside: dict[Corner, int] = {
        corner: int(((points >= (x, y)) & (points <= (x + 0.45, y + 0.5))).all(axis=1).sum())
        for corner, (x, y) in CORNERS.items()
    }
    return min(inside, key=lambda corner: inside[corner])
