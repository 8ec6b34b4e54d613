"""Convergence curves as figures: the median over seeds, and a band; and the style of all figures."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from compfed._utils.files import atomic_path
from compfed.errors import MissingExtra
from compfed.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which stay apart for colour-blind readers; dashes keep them apart in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (1, 1)), (0, (3, 1)))
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
STYLE: dict[str, object] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25,
    "legend.frameon": False, "legend.fontsize": 8, "svg.hashsalt": "compfed", "svg.fonttype": "none",
    "figure.constrained_layout.use": True, "text.usetex": False,
}  # fmt: skip


Place = Literal["upper right", "lower left", "lower right", "center right"]


@dataclass(frozen=True)
class Line:
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
    lines: Sequence[Line]
    x: str = "round"
    y: str = "optimality"
    floor: float = 1e-14  # smaller values are rounding and are drawn here
    legend: Place | None = "upper right"  # where falling curves are not; matplotlib's "best" is slow
    log: bool = True
    log_x: bool = False


def check_matplotlib() -> None:
    """Raise an error with the command that installs matplotlib, if it is missing: before minutes of work, not after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtra("matplotlib", "report", "Drawing figures") from None


def blank(width: float, height: float) -> Figure:
    """An empty figure without window or global state. Draw on it in `with styled():`."""
    check_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def styled() -> AbstractContextManager[None]:
    """The style of all figures, as a context."""
    import matplotlib

    return matplotlib.rc_context(STYLE)  # pyright: ignore[reportArgumentType]  # keys of matplotlib


def draw(panels: Sequence[Panel], path: Path, rows: int = 1) -> list[Path]:
    """Draw panels side by side and write path.svg, path.png and path.pdf. Several rows share a y scale and a legend above."""
    columns, shared = len(panels) // rows, rows > 1
    figure = blank(3.4 * columns, 2.7 * rows + 0.4) if shared else blank(4.4 * columns, 3.4)
    with styled():
        axes = figure.subplots(rows, columns, sharey=shared, squeeze=False)
        for panel, ax in zip(panels, axes.flat, strict=True):
            _panel(replace(panel, legend=None) if shared else panel, ax)
        if shared:
            for ax in axes[:, 1:].flat:
                ax.set_ylabel("")
            handles, labels = axes[0, 0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return write(figure, path, ("svg", "png", "pdf"))


def plain(name: str) -> str:
    """A user's name, printed literally: no formula between two $, no line break, not hidden from a legend by a leading _."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def write(figure: Figure, path: Path, endings: Sequence[str]) -> list[Path]:
    """Write a figure once per ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = []
    with styled():
        for ending in endings:
            written.append(path.with_suffix(f".{ending}"))
            # Without a date inside, the same numbers give the same files.
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
            with atomic_path(written[-1]) as unfinished:
                figure.savefig(unfinished, format=ending, dpi=160, metadata=metadata)
            figure.set_layout_engine("none")  # one layout serves all formats
    return written


def _panel(panel: Panel, ax: Axes) -> None:
    """Draw the lines of a panel, its axes and its legend."""
    from matplotlib.ticker import EngFormatter

    for line in panel.lines:
        x = line.traces[0][panel.x]
        values = np.maximum(np.array([t[line.y or panel.y] for t in line.traces]), panel.floor if panel.log else 0.0)
        colour, dash = COLOURS[line.style % 8], DASHES[line.style % 8]
        ax.plot(
            x, np.median(values, axis=0), label=plain(line.label), color=colour, linestyle=dash, linewidth=line.width,
            marker="o" if line.dots else "", markersize=3.0,
        )  # fmt: skip
        if len(values) > 1:
            low, high = np.quantile(values, [0.1, 0.9], axis=0)
            ax.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
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
    ax.set_title(panel.title, fontsize=10)
    if len(panel.lines) > 1 and panel.legend is not None:
        ax.legend(loc=panel.legend)
