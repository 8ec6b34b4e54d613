"""Figures that show wherever they are made: below the cell of a notebook, and in a script with pyplot's `plt.show()`.

A figure of ours is no figure of pyplot: nothing is drawn behind the user's back, and reports make many of them. So the functions
that return a figure to the user hand it on here.
"""

from __future__ import annotations

import functools
import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec

from compfed._utils.text import notebook_shell
from compfed.report.style import is_ours, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
DPI, ZOOM = 96, 2  # a picture of twice the size, which a screen with fine pixels needs
NO_WINDOW = {"agg", "cairo", "pdf", "pgf", "ps", "svg", "template"}  # matplotlib's backends that draw into files
_waiting: list[Figure] = []  # made in this cell, and not shown yet
_for_a_page: ContextVar[bool] = ContextVar("_for_a_page", default=False)


@contextmanager
def unshown() -> Iterator[None]:
    """Inside, figures are made for a page or a file, and show nowhere."""
    before = _for_a_page.set(True)
    try:
        yield
    finally:
        _for_a_page.reset(before)


def shown(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorator of a function that draws for the user: its new figures show at the end of the cell, or with `plt.show()`."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        figure = draw(*args, **kwargs)
        if is_ours(figure) and not _for_a_page.get():  # not one that the user gave axes of
            _hand_on(figure)
        return figure

    return drawn


def _hand_on(figure: Any) -> None:
    if (shell := notebook_shell()) is not None:
        if not any(each is figure for each in _waiting):
            _waiting.append(figure)
        figure._ipython_display_ = functools.partial(
            _show, figure
        )  # the last expression of a cell, and display(figure)
        if show_waiting not in shell.events.callbacks["post_run_cell"]:
            shell.events.register("post_run_cell", show_waiting)
        return
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None and pyplot.get_backend().lower() not in NO_WINDOW and figure.canvas.manager is None:
        with pyplot.rc_context({"figure.max_open_warning": 0}):
            pyplot.figure(figure)  # from now on pyplot's: plt.show() opens its window


def show_waiting(*_: object) -> None:
    """Show the figures of a cell that has ended, in the order in which they were made."""
    while _waiting:
        _show(_waiting[0])


def _show(figure: Any) -> None:
    """Show one figure below the cell."""
    from IPython.display import Image, display  # pyright: ignore[reportMissingImports]  # of the notebook

    _waiting[:] = [each for each in _waiting if each is not figure]
    picture = io.BytesIO()
    with styled():
        figure.savefig(picture, format="png", dpi=DPI * ZOOM)
    display(Image(picture.getvalue(), width=round(figure.get_figwidth() * DPI)))
