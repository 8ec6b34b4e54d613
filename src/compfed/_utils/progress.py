"""Progress on the error stream: a bar on a terminal, plain lines elsewhere, nothing for what is done in two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

QUIET_SECONDS = 2.0  # work shorter than this is not worth a bar
LINE_SECONDS = 10.0  # without a terminal, at most one line in this time
WIDTH = 30


def progress_bar(
    label: str = "", stream: TextIO | None = None, *, quiet: float = QUIET_SECONDS
) -> Callable[[int, int], None]:
    """A function of (done, total) that shows how far a piece of work has come; pass it as `progress=`.

    A bar on a terminal, plain lines in a pipe or a file; nothing in the first `quiet` seconds.
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
        early = now - began < QUIET_SECONDS  # too early to say how long the rest takes
        when = f"{now - began:.0f} s" if finished or early else f"about {left:.0f} s left"
        if terminal:
            full = WIDTH * done // max(total, 1)
            out.write(f"\r{label:<28.28} [{'#' * full}{'.' * (WIDTH - full)}] {done}/{total}, {when}   ")
            out.write("\n" if finished else "")
            out.flush()
        elif (finished and shown) or now - last_line >= LINE_SECONDS or (quiet == 0 and not shown):
            last_line, shown = now, True
            out.write(f"{label}: {done}/{total}, {when}\n")
            out.flush()

    return show


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
        self.out.write(f"\r\033[K{head} " if terminal else f"{head} (after {elapsed:.0f} s)\n")
        self.out.flush()

        def show(done: int, total: int) -> None:
            if terminal:
                full = WIDTH * done // max(total, 1)
                self.out.write(f"\r\033[K{head:<48} [{'#' * full}{'.' * (WIDTH - full)}]")
                self.out.flush()

        return show

    def finish(self) -> None:
        """Clear the line, say how long it took."""
        clear = "\r\033[K" if self.out.isatty() else ""
        self.out.write(f"{clear}{self.done} steps in {time.monotonic() - self.began:.0f} s\n")
        self.out.flush()
