"""Progress on the error stream: a bar on a terminal, plain lines elsewhere, nothing for work of less than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

QUIET_SECONDS = 2.0  # shorter work has no bar
LINE_SECONDS = 10.0  # without a terminal, at most one line in this time
BAR_WIDTH = 30


def progress_bar(
    label: str = "", stream: TextIO | None = None, *, quiet: float = QUIET_SECONDS
) -> Callable[[int, int], None]:
    """Make a function of (done, total) that shows progress; pass it as ``progress=``.

    It draws a bar on a terminal and writes plain lines into a pipe or a file.

    Parameters
    ----------
    label : str, default=""
        Text in front of the bar.
    stream : text file, optional
        Where to write; the error stream by default.
    quiet : float, default=2.0
        Seconds in which nothing is shown.

    Returns
    -------
    callable
        Takes the number of steps done and their total.

    Examples
    --------
    >>> import io
    >>> out = io.StringIO()
    >>> show = progress_bar("rounds", out, quiet=0)
    >>> show(5, 5)
    >>> out.getvalue()
    'rounds: 5/5, 0 s\\n'
    """
    out = sys.stderr if stream is None else stream
    began = last_line = time.monotonic()
    terminal = out.isatty()
    shown = False

    def show(done: int, total: int) -> None:
        nonlocal last_line, shown
        now = time.monotonic()
        finished = done >= total
        if now - began < quiet:
            return
        left = (now - began) * (total - done) / max(done, 1)
        early = now - began < QUIET_SECONDS  # too early for an estimate
        when = f"{now - began:.0f} s" if finished or early else f"about {left:.0f} s left"
        if terminal:
            out.write(f"\r{label:<28.28} {_bar(done, total)} {done}/{total}, {when}   ")
            out.write("\n" if finished else "")
            out.flush()
        elif (finished and shown) or now - last_line >= LINE_SECONDS or (quiet == 0 and not shown):
            last_line, shown = now, True
            out.write(f"{label}: {done}/{total}, {when}\n")
            out.flush()

    return show


def _bar(done: int, total: int) -> str:
    full = BAR_WIDTH * done // max(total, 1)
    return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}]"


class Steps:
    """A sequence of named steps, each with its own progress: "[ 3/12] name"."""

    def __init__(self, total: int, stream: TextIO | None = None):
        self.total, self.done = total, 0
        self.out = sys.stderr if stream is None else stream
        self.began = time.monotonic()

    def start(self, name: str) -> Callable[[int, int], None]:
        """Begin the next step; returns its progress function."""
        self.done += 1
        head = f"[{self.done:>2}/{self.total}] {name}"
        terminal = self.out.isatty()
        elapsed = time.monotonic() - self.began
        self._write(f"\r\033[K{head} " if terminal else f"{head} (after {elapsed:.0f} s)\n")

        def show(done: int, total: int) -> None:
            if terminal:
                self._write(f"\r\033[K{head:<48} {_bar(done, total)}")

        return show

    def finish(self) -> None:
        """Clear the line and write the time that all steps took."""
        clear = "\r\033[K" if self.out.isatty() else ""
        self._write(f"{clear}{self.done} steps in {time.monotonic() - self.began:.0f} s\n")

    def _write(self, text: str) -> None:
        self.out.write(text)
        self.out.flush()
