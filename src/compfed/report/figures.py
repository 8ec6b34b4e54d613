"""Figures a person would put in a paper: convergence curves, with the median and a band over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from compfed._utils.files import atomic_path
from compfed.errors import MissingExtra
from compfed.trace import Trace

# Okabe and Ito's colours, which stay apart for colour-blind readers; dashes keep them apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (1, 1)), (0, (3, 1)))
FORMATS = ("svg", "png", "pdf")
AXES = {
    "round": "communication rounds",
    "bytes_up": "bytes sent per client",
    "bytes": "bytes per site, both ways",
    "gradients": "gradient evaluations per client",
    "gradient_rows": "rows read by gradients per client",
    "optimality": "optimality  ‖x - x*‖ / ‖x*‖",  # plain text: mathtext is slow to lay out
    "nonzeros": "non-zero coefficients",
    "lyapunov": "Lyapunov function Ω",
}
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "legend.frameon": False, "legend.fontsize": 8, "svg.hashsalt": "compfed", "svg.fonttype": "none",
    "figure.constrained_layout.use": True, "text.usetex": False,
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One curve: a label and one trace per seed. `style` picks colour and dash, so methods look alike everywhere."""

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
    lines: Sequence[Line]
    x: str = "round"
    y: str = "optimality"
    floor: float = 1e-14  # smaller values are rounding and are drawn here
    legend: str | None = "upper right"  # where falling curves are not; matplotlib's "best" looks at every point
    log: bool = True
    log_x: bool = False


def pyplot() -> Any:
    """matplotlib.pyplot without a screen, or a message that says how to get it."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra("matplotlib", "report", "Drawing figures") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def blank(width: float, height: float) -> Any:
    """A figure for the caller to keep: no window, no global state. Draw on it in `with styled():`."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib", "report", "Drawing figures") from None
    return Figure(figsize=(width, height), layout="constrained")


def styled() -> Any:
    """The look of all figures, as a context."""
    import matplotlib

    return matplotlib.rc_context(STYLE)


def draw(panels: Sequence[Panel], path: Path) -> list[Path]:
    """Draw panels side by side and write path.svg, path.png and path.pdf."""
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.4), squeeze=False)
        for panel, ax in zip(panels, axes[0], strict=True):
            _panel(panel, ax)
        written = write(figure, path, FORMATS)
        plt.close(figure)
    return written


def draw_rows(rows: Sequence[Sequence[Panel]], path: Path) -> list[Path]:
    """Draw rows of panels, all with one scale of y and one legend above, and write the same files as `draw`."""
    plt = pyplot()
    shape = len(rows), len(rows[0])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(*shape, figsize=(3.4 * shape[1], 2.7 * shape[0] + 0.4), sharey=True, squeeze=False)
        for panel, ax in zip((panel for row in rows for panel in row), axes.flat, strict=True):
            _panel(replace(panel, legend=None), ax)
        for ax in axes[:, 1:].flat:
            ax.set_ylabel("")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        written = write(figure, path, FORMATS)
        plt.close(figure)
    return written


def plain(name: str) -> str:
    """A name somebody gave, as it is: no formula between two $, no line break, and not hidden from a legend by a first _."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def write(figure: Any, path: Path, endings: Sequence[str]) -> list[Path]:
    """Write a figure once per ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with styled():
        for ending in endings:
            written.append(path.with_suffix(f".{ending}"))
            # no dates inside, so that the same numbers give the same files
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
            with atomic_path(written[-1]) as unfinished:
                figure.savefig(unfinished, format=ending, dpi=160, metadata=metadata)
            figure.set_layout_engine("none")  # laid out once is enough
    return written


def _panel(panel: Panel, ax: Any) -> None:
    for line in panel.lines:
        x = line.traces[0][panel.x]
        values = np.maximum(np.array([t[line.y or panel.y] for t in line.traces]), panel.floor if panel.log else 0.0)
        look = {"color": COLOURS[line.style % 8], "linestyle": DASHES[line.style % 8], "linewidth": line.width}
        look |= {"marker": "o", "markersize": 3.0} if line.dots else {}
        ax.plot(x, np.median(values, axis=0), label=plain(line.label), **look)
        if len(values) > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=0)
            ax.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
    if panel.log:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # plain text, far quicker to draw than mathtext
        ax.yaxis.set_minor_formatter(lambda value, _: "")
    if panel.log_x:
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(lambda value, _: _size(value) if panel.x == "bytes" else f"{value:,.0f}")
        ax.xaxis.set_minor_formatter(lambda value, _: "")
    ax.set_xlabel(AXES.get(panel.x) or plain(panel.x))
    ax.set_ylabel(AXES.get(panel.y) or plain(panel.y))
    ax.set_title(panel.title, fontsize=10)
    if len(panel.lines) > 1 and panel.legend is not None:
        ax.legend(loc=panel.legend)


def _size(value: float) -> str:
    """Bytes in a few characters: 300 B, 20 kB, 1 MB."""
    unit, each = next((u for u in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if value >= u[1]), ("B", 1.0))
    return f"{value / each:g} {unit}"
