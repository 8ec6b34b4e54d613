"""The style of all figures: colours, dashes and markers, sizes, and the files that a figure is written to.

The colours are those of Okabe and Ito, "Color Universal Design" (2008), which stay apart for colour-blind readers; see also
Wong, "Points of view: color blindness", Nature Methods 8, 441 (2011). Their yellow is too light for lines on paper and is
replaced by a brown. The first four differ in lightness by at least 10 of 100, so that they stay apart in greyscale. Every
style also has a dash and a marker of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compfed._utils.files import atomic_path
from compfed.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, BLACK, GREEN = "#0072B2", "#E69F00", "#000000", "#009E73"
PURPLE, VERMILLION, SKY, BROWN = "#CC79A7", "#D55E00", "#56B4E9", "#8C6D31"
COLOURS = (BLUE, ORANGE, BLACK, GREEN, PURPLE, VERMILLION, SKY, BROWN)
GREY, PALE = "#8C8C8C", "#B5B5B5"  # single sites; lines and names in the background
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)), (0, (1, 1)), (0, (3, 1)))
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
COLUMN, PAGE = 3.5, 7.2  # inches: one column and the full width of a paper's page
ENDINGS = ("svg", "png", "pdf")

AXES = {
    "round": "communication rounds",
    "bytes_up": "bytes sent per client",
    "bytes": "bytes per site, both ways",
    "gradients": "gradient evaluations per client",
    "rows": "rows read per client",
    "values": "evaluations of the loss per client",
    "hessians": "Hessians per client",
    "hvps": "Hessian-vector products per client",
    "client_proxes": "proximal steps per client",
    "exchanges": "round trips",
    "clock": "simulated seconds",
    "seconds": "seconds",
    "optimality": "optimality  ‖x - x*‖ / ‖x*‖",  # plain text: mathtext is slow to lay out
    "gradient_mapping": "gradient mapping",
    "relative_gradient_mapping": "gradient mapping, as a share of its scale",
    "objective": "objective F(x)",
    "nonzeros": "non-zero coefficients",
    "lyapunov": "Lyapunov function Ω",
}
STYLE: dict[str, object] = {
    "font.size": 9, "axes.titlesize": 10, "axes.labelsize": 9, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "axes.linewidth": 0.8,
    "lines.linewidth": 1.5, "lines.markersize": 4.0, "legend.frameon": False, "legend.fontsize": 8,
    "svg.hashsalt": "compfed", "svg.fonttype": "none", "pdf.fonttype": 42, "savefig.dpi": 160,
    "figure.constrained_layout.use": True, "text.usetex": False,
}  # fmt: skip


def check_matplotlib() -> None:
    """Raise an error with the command that installs matplotlib, if it is missing: before minutes of work, not after."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise MissingExtra("matplotlib", "report", "Drawing figures") from None


def styled() -> AbstractContextManager[None]:
    """The style of all figures, as a context."""
    check_matplotlib()
    import matplotlib

    return matplotlib.rc_context(STYLE)  # pyright: ignore[reportArgumentType]  # keys of matplotlib


_ours: weakref.WeakSet[Figure] = weakref.WeakSet()


def blank(width: float, height: float) -> Figure:
    """An empty figure without window or global state. Draw on it in `with styled():`."""
    check_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    _ours.add(figure)
    return figure


def is_ours(figure: Figure) -> bool:
    """Whether a figure was made by `blank`, and not by the user."""
    return figure in _ours


def figure_and_axes(ax: Axes | None, width: float, height: float) -> tuple[Figure, Axes]:
    """The axes to draw on and their figure: those given, or new ones. Call it in `with styled():`."""
    if ax is None:
        figure = blank(width, height)
        return figure, figure.subplots()
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure, ax


def line_style(k: int) -> dict[str, Any]:
    """Colour and dash of style k, for `Axes.plot`."""
    return {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[(k + k // len(COLOURS)) % len(DASHES)]}


def plain(name: str) -> str:
    """A user's name, printed literally: no formula between two $, no line break, not hidden from a legend by a leading _."""
    shown = "".join(letter if letter.isprintable() else " " for letter in name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def save_figure(figure: Figure, stem: str | Path, endings: Sequence[str] = ENDINGS) -> list[Path]:
    """Write a figure as vector graphics and as a bitmap: stem.svg, stem.png and stem.pdf.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
    stem : path
        The name of the files without their ending. With one of these endings, such as "path.png", that file alone. Missing
        folders are made.
    endings : sequence of str, default=("svg", "png", "pdf")
        The formats.

    Returns
    -------
    list of path
        The files, in the order of `endings`.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import compfed as cf
    >>> figure = cf.plot_coefficients({"federated": np.array([1.5, 0.0]), "pooled": np.array([1.5, 0.0])})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in cf.save_figure(figure, f"{folder}/coefficients")]
    ['coefficients.svg', 'coefficients.png', 'coefficients.pdf']
    """
    stem, written = Path(stem), []
    if (ending := stem.suffix[1:].lower()) in ENDINGS:
        stem, endings = stem.with_suffix(""), (ending,)
    stem.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        for ending in endings:
            written.append(stem.with_name(f"{stem.name}.{ending}"))
            # Without a date inside, the same numbers give the same files.
            metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(ending)
            with atomic_path(written[-1]) as unfinished:
                figure.savefig(unfinished, format=ending, metadata=metadata)
            figure.set_layout_engine("none")  # one layout serves all formats
    return written
