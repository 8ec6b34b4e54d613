"""One description of a figure, `Plot`, and its interactive form in a page, by bokeh.

`compfed.report.draw` draws the same description with matplotlib: for print, for readers without JavaScript, and for the functions
that return a figure. What a figure shows is written once, by whoever makes its `Plot`.

Bokeh, because it has its own wheel, draws offline from one inlined file of 1.3 MB (Plotly needs 4.6 MB), has log axes, hover and
zoom that work with a finger, and a figure is plain data that a short script can fill. Only its core is inlined: buttons and
legends are HTML, so the bundles for widgets, tables and formulas stay out.

A figure's numbers stand in the page once, as JSON. The script `page.js` fills them into bokeh's figure, whose horizontal axis
can change (rounds, bytes, seconds).
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed.report.html import text
from compfed.report.style import COLOURS, DASHES

if TYPE_CHECKING:
    from bokeh.plotting import figure as BokehFigure

MOST_POINTS = 250  # of a line
DIGITS = 6  # of a number in the page
# bokeh would read formulas there, and fetch MathJax
_MATHS = {
    "$$": "$\u200b$",
    "\\[": "\\\u200b[",
    "\\(": "\\\u200b(",
}
_BOKEH_MARKERS = {
    "o": "circle",
    "s": "square",
    "D": "diamond",
    "^": "triangle",
    "v": "inverted_triangle",
    "P": "plus",
    "X": "x",
    "*": "star",
}
_SIGNS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "P": "✚", "X": "✖", "*": "★"}


@dataclass(frozen=True)
class Series:
    """A line, points or a band: columns of numbers by name. `y` and `x` are columns, or a band from `low` to `high`.

    A ruler is dashed, a second style of it dotted; an axis is a thin line through zero.
    """

    name: str
    columns: Mapping[str, Any]
    kind: str = "line"  # "line", "dots" (a line with a marker at every point), "points", "band", "ruler", "axis"
    style: int = 0
    colour: str | None = None
    marker: str = "o"
    width: float = 2.0
    hollow: bool = False
    size: int = 9  # of points, in pixels
    legend: str | None = None  # name of its button; series with the same one share it; None: no button

    @property
    def paint(self) -> str:
        return self.colour or COLOURS[self.style % len(COLOURS)]


@dataclass(frozen=True)
class Plot:
    """A figure of series. The first of `x_choices` (column, label) is the horizontal axis; the reader may take another."""

    key: str
    series: Sequence[Series]
    x_choices: Sequence[tuple[str, str]]
    y_label: str
    caption: str
    x_log: bool = False
    y_log: bool = False
    flip_x: bool = False
    rows: Sequence[str] = ()  # names on the vertical axis, from above, in place of numbers
    tooltips: Sequence[tuple[str, str]] = ()  # (label, "@column{format}")
    height: int = 360  # pixels on a screen
    size: tuple[float, float] = (7.0, 3.4)  # inches on paper
    choose_log: bool = False
    square: bool = False  # both axes from 0 to 1
    legend: str = "free corner"  # on paper; or "right", "above", or a corner
    x_note: str = ""  # on paper below the horizontal axis
    faint: Collection[int] = ()  # rows whose names are grey
    above: Sequence[tuple[float, str]] = ()  # places on the axis above, with their texts
    above_label: str = ""


Part = str | Plot | tuple[Plot, ...]  # of a page: HTML, a figure, or figures side by side


def thinned(count: int, most: int = MOST_POINTS) -> np.ndarray:
    """Positions of at most `most` of so many points: half evenly spread, half dense at the start, as a log axis shows them."""
    if count <= most:
        return np.arange(count)
    even = np.linspace(0, count - 1, most // 2)
    dense = np.geomspace(1, count, most // 2) - 1
    return np.unique(np.concatenate([even, dense]).round().astype(int))


def rounded(values: Any) -> list[Any]:
    """Numbers with few digits, and None for what is not finite; words as they are."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        return [str(value) for value in values]
    return [float(f"{v:.{DIGITS}g}") if np.isfinite(v) else None for v in array.astype(float).ravel().tolist()]


# --- HTML ---


def figure_html(plot: Plot, static: str, live: bool) -> str:
    """The figure element: controls and canvas, which the script shows, and the static figure, as SVG."""
    controls = _controls(plot) if live else ""
    legend = _legend(plot) if live else ""
    canvas = f'<div class="live" id="live-{plot.key}" hidden></div>' if live else ""
    static = f'<div class="static scroll">{static}</div>' if static else ""
    return (
        f'<figure class="plot" data-plot="{plot.key}">{controls}{canvas}{static}{legend}'
        f"<figcaption>{text(plot.caption)}</figcaption></figure>"
    )


def _controls(plot: Plot) -> str:
    buttons = ""
    if len(plot.x_choices) > 1:
        each = "".join(
            f'<button type="button" data-x="{i}" aria-pressed="{"true" if i == 0 else "false"}">{text(label)}</button>'
            for i, (_, label) in enumerate(plot.x_choices)
        )
        buttons = f'<span class="choice" role="group" aria-label="horizontal axis">{each}</span>'
    log = ""
    if plot.choose_log:
        checked = " checked" if plot.x_log else ""
        log = f'<label><input type="checkbox" data-log{checked}> log axis</label>'
    return f'<div class="controls" hidden>{buttons}{log}</div>' if buttons or log else ""


def _legend(plot: Plot) -> str:
    """A button for every line that can be hidden."""
    first = {s.legend: s for s in reversed(plot.series) if s.legend is not None}
    names = list(dict.fromkeys(s.legend for s in plot.series if s.legend is not None))
    if len(names) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" data-line="{i}" aria-pressed="true">{_swatch(first[name])}{text(name)}</button>'
        for i, name in enumerate(names)
    )
    every = '<button type="button" data-every>hide all</button>' if len(names) > 5 else ""
    return f'<div class="legend" hidden role="group" aria-label="lines shown">{buttons}{every}</div>'


def _swatch(series: Series) -> str:
    """A sample of the line or the marker, as it is drawn."""
    if series.kind == "points":
        return f'<b style="color:{series.paint}">{_SIGNS.get(series.marker, "●")}</b>'
    dash = ([4, 3], [1, 3])[series.style % 2] if series.kind == "ruler" else _bokeh_dash(series)
    pattern = (
        {"solid": "", "dashed": "6", "dotted": "2 4", "dashdot": "2 4 6 4"}.get(dash)
        if isinstance(dash, str)
        else " ".join(map(str, dash))
    )
    return (
        f'<svg class="swatch" viewBox="0 0 30 8" aria-hidden="true"><path d="M0 4H30" stroke="{series.paint}" stroke-width="2.5" '
        f'stroke-dasharray="{pattern}"/></svg>'
    )


def _dash(style: int) -> int:
    return (style + style // len(COLOURS)) % len(DASHES)


# --- bokeh ---


def bokeh_script() -> str | None:
    """The core of BokehJS; None where bokeh is not installed."""
    try:
        found = importlib.resources.files("bokeh") / "server" / "static" / "js" / "bokeh.min.js"
        return found.read_text(encoding="utf-8")
    except (ImportError, OSError):
        return None


def plot_data(plot: Plot) -> dict[str, Any]:
    """All that the script needs: bokeh's figures, linear and log where there is a choice, and the numbers."""
    variants = [plot.x_log, not plot.x_log] if plot.choose_log else [plot.x_log]
    names = list(dict.fromkeys(s.legend for s in plot.series if s.legend is not None))
    return {
        "key": plot.key,
        "items": {("log" if log else "linear"): _item(replace(plot, x_log=log)) for log in variants},
        "first": "log" if plot.x_log else "linear",
        "x": [{"column": column, "label": label} for column, label in plot.x_choices],
        "rows": [_no_maths(name) for name in plot.rows],
        "series": [
            {
                "columns": {name: rounded(values) for name, values in s.columns.items()},
                "line": names.index(s.legend) if s.legend is not None else -1,
            }
            for s in plot.series
        ],
    }


def _item(plot: Plot) -> Any:
    from bokeh.embed import json_item

    return _renumbered(json_item(_bokeh_figure(plot)), {}, plot.key)


def _renumbered(part: Any, names: dict[str, str], prefix: str) -> Any:
    """Bokeh's names of objects, counted anew: the same result gives the same page."""
    if isinstance(part, list):
        return [_renumbered(each, names, prefix) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        key: names.setdefault(value, f"{prefix}-{len(names)}")
        if key in ("id", "root_id") and isinstance(value, str)
        else _renumbered(value, names, prefix)
        for key, value in part.items()
    }


def _bokeh_figure(plot: Plot) -> BokehFigure:
    """The figure without its numbers."""
    from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, NumeralTickFormatter
    from bokeh.plotting import figure

    made = figure(
        height=plot.height, sizing_mode="stretch_width", x_axis_type="log" if plot.x_log else "linear",
        y_axis_type="log" if plot.y_log else "linear", tools="pan,box_zoom,wheel_zoom,reset,save", toolbar_location="above",
        active_drag=None, active_scroll=None, active_tap=None, output_backend="canvas",
    )  # fmt: skip
    made.toolbar.logo = None
    hovered = []
    for number, series in enumerate(plot.series):
        columns: dict[str, Any] = {name: [] for name in (*series.columns, "x")}
        for renderer in _glyphs(made, series, ColumnDataSource(columns, tags=[number])):
            renderer.tags, renderer.name = [number], _no_maths(series.name)
            if series.kind in ("dots", "points", "line"):
                hovered.append(renderer)
    if hovered and plot.tooltips:
        tips = [("", "$name"), *plot.tooltips] if not plot.rows else list(plot.tooltips)
        printf: Any = {f"@{column}": "printf" for column in ("x", "y", "low", "high")}
        made.add_tools(
            HoverTool(renderers=hovered, tooltips=tips, formatters=printf, mode="mouse", point_policy="snap_to_data")
        )
    x_axis, y_axis = made.xaxis[0], made.yaxis[0]
    x_axis.axis_label, y_axis.axis_label = plot.x_choices[0][1], plot.y_label or None
    if not plot.x_log:
        x_axis.formatter = NumeralTickFormatter(format="0,0.[0000]")
        x_axis.ticker.desired_num_ticks = 5  # pyright: ignore[reportAttributeAccessIssue]  # of a BasicTicker
    if plot.rows:
        y_axis.ticker = FixedTicker(ticks=list(range(len(plot.rows))))
        made.ygrid.grid_line_color = None
    if plot.flip_x:
        made.x_range.flipped = True  # pyright: ignore[reportAttributeAccessIssue]  # of a DataRange1d
    if plot.rows:
        made.y_range.flipped = True  # pyright: ignore[reportAttributeAccessIssue]  # of a DataRange1d
    for axis in (x_axis, y_axis, *_above(made, plot)):
        axis.axis_label_text_font_style = "normal"
    return made


def _above(made: BokehFigure, plot: Plot) -> list[Any]:
    """The axis above, if there is one."""
    from bokeh.models import FixedTicker, LinearAxis

    if not plot.above:
        return []
    places = [x for x, _ in plot.above]
    axis = LinearAxis(axis_label=plot.above_label)
    axis.ticker = FixedTicker(ticks=places)  # pyright: ignore[reportAttributeAccessIssue]  # any ticker will do
    axis.major_label_overrides = dict(plot.above)  # pyright: ignore[reportAttributeAccessIssue]  # numbers are keys, too
    axis.axis_label_text_font_size = axis.major_label_text_font_size = "11px"
    made.add_layout(axis, "above")
    return [axis]


def _glyphs(made: BokehFigure, series: Series, source: Any) -> list[Any]:
    """The renderers of a series."""
    if series.kind == "band":
        return [made.varea(x="x", y1="low", y2="high", source=source, fill_color=series.paint, fill_alpha=0.2)]
    if series.kind in ("ruler", "axis"):
        dash = "solid" if series.kind == "axis" else ("dashed", "dotted")[series.style % 2]
        return [made.line(x="x", y="y", source=source, line_color=series.paint, line_width=1.2, line_dash=dash)]
    found = []
    if series.kind != "points":
        line = made.line(x="x", y="y", source=source, line_color=series.paint, line_width=series.width)
        line.glyph.line_dash = _bokeh_dash(series)
        found.append(line)
    if series.kind != "line":
        fill, size = "#ffffff" if series.hollow else series.paint, series.size if series.kind == "points" else 5
        found.append(
            made.scatter(
                x="x",
                y="y",
                source=source,
                marker=_BOKEH_MARKERS[series.marker],
                size=size,
                line_color=series.paint,
                line_width=1.5,
                fill_color=fill,
            )
        )
    return found


def _bokeh_dash(series: Series) -> str | list[int]:
    dash = "-" if series.colour is not None else DASHES[_dash(series.style)]
    if isinstance(dash, str):
        return {"-": "solid", "--": "dashed", "-.": "dashdot", ":": "dotted"}[dash]
    return [2 * length for length in dash[1]]


def _no_maths(name: str) -> str:
    """A name in which bokeh finds no formula."""
    for found, instead in _MATHS.items():
        name = name.replace(found, instead)
    return "".join(c if c.isprintable() or c == "\u200b" else " " for c in name)
