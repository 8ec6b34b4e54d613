"""Text for people: short numbers, tables, text from outside made safe to print, versions, progress."""

from __future__ import annotations

import bisect
import functools
import html
import itertools
import logging
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from compfed import __version__

# What a network keeps: the same words on the pages, at a site and in reports (tests/docs/test_readme.py).
PROMISE = (
    "Rows stay at their site; no code comes in. What leaves are numbers added over rows and, from three sites on, over sites before "
    "anybody sees them. How many numbers leave is counted against the numbers in the table, for life, and shown before a run. Up to half "
    "of them a rule may approve; beyond that a person at the site decides, and is told what it means. Whoever takes part must be allowed "
    "to: a participant who lies can choose what is asked, within what was approved. There is no differential privacy."
)

# C0, DEL, C1; marks, overrides and isolates of bidirectional text; line and paragraph separators; surrogates.
_NOT_PRINTED = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def short(value: object) -> str:
    """A value in a few characters: 3.2e-13, 0.301, 258, yes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "never"
    if isinstance(value, float):
        if value == int(value) and abs(value) < 1e6:
            return str(int(value))
        return f"{value:.3g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.1e}"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {short(v)}" for key, v in value.items())
    if isinstance(value, (list, tuple)):
        return " to ".join(short(v) for v in value)
    return str(value)


def shorten(name: str, most: int) -> str:
    """A long name without its middle: names often differ at their ends.

    >>> shorten("fractal dimension error, worst", 20)
    'fractal di…or, worst'
    """
    tail = (most - 1) // 2
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[-tail:]}"


def join_names(words: Sequence[str], between: str = ", ", most: int = 5) -> str:
    """The first few of many names, and how many more there are."""
    return between.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def printable(text: str, most: int = 500) -> str:
    """Text from outside, safe for a terminal or a log: control characters as visible escapes, at most `most` characters.

    >>> printable("ok\\x1b[2J" + "a" * 20, most=16)
    'ok\\\\x1b[2Jaaaa...'
    """
    pieces = list(map(_escaped, text[: most + 1]))  # an escape is longer than its character, never shorter
    ends = list(itertools.accumulate(map(len, pieces), initial=0))
    if ends[-1] <= most:
        return "".join(pieces)
    return "".join(pieces[: bisect.bisect_right(ends, most - 3) - 1]) + "..."  # no escape is cut in two


def is_printable(text: str) -> bool:
    """Whether a text has no control character, so that `printable` keeps it as it is."""
    return _NOT_PRINTED.search(text) is None


def _escaped(character: str) -> str:
    if is_printable(character):
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def shapes_shown(self: Any) -> str:
    """A record in one line with the shapes of its arrays, for `__repr__`: rows do not belong on a screen or in a log."""
    named = self._asdict() if hasattr(self, "_asdict") else vars(self)
    return f"{type(self).__name__}({', '.join(f'{name}={_shape_shown(value)}' for name, value in named.items())})"


def _shape_shown(value: object) -> str:
    if (shape := getattr(value, "shape", None)) is not None:
        return f"<{'x'.join(map(str, shape)) or 'number'}>"
    if isinstance(value, (tuple, list)):
        return f"<{len(value)} entries>"
    return repr(value)


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """Columns as wide as their widest cell, a rule under the header; all but the first to the right if they are numbers."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in [header, ["-" * w for w in widths], *rows]:
        first, *others = zip(row, widths, strict=True)
        cells = [str.ljust(*first), *(cell.rjust(w) if numbers else cell.ljust(w) for cell, w in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def latex_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as a LaTeX tabular with the rules of booktabs; 1.2e-07 becomes a power of ten."""
    lines = [" & ".join(map(_latex, row)) + r" \\" for row in (header, *rows)]
    columns = "l" + "r" * (len(header) - 1)
    top, *rest = lines
    return "\n".join(
        [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", top, r"\midrule", *rest, r"\bottomrule", r"\end{tabular}"]
    )


def _latex(cell: str) -> str:
    """A cell with the characters escaped that LaTeX reads, and powers of ten set as such; "--" for nothing."""
    if cell == "-":
        return "--"
    signs = {c: "\\" + c for c in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    escaped = "".join(signs.get(character, character) for character in cell)

    def power(found: re.Match[str]) -> str:
        mantissa, exponent = found.groups()
        head = "" if float(mantissa) == 1 else rf"{mantissa} \cdot "
        return f"${head}10^{{{int(exponent)}}}$"

    return re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d+)", power, escaped)


@functools.cache  # reads the files of four packages
def versions() -> dict[str, str]:
    """The versions of compfed, Python and the packages that compute."""
    found = {name: version(name) for name in ("jax", "jaxlib", "numpy")}
    return {"compfed": __version__} | found | {"python": platform.python_version()}


@functools.cache
def commit() -> str | None:
    """The commit of a clone that compfed runs from, with "-dirty" where files differ from it; None of an installed package."""
    clone = Path(__file__).parents[3]
    if not (clone / ".git").exists():
        return None
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return found or None


# --- progress: lines of the logger `compfed` where somebody listens; otherwise on the error stream, a bar on a terminal ---

LOGGER = logging.getLogger("compfed")


def log(text: str) -> None:
    """A line of what `verbose` reports: to the logger `compfed` where somebody listens, otherwise to the error stream."""
    if listens():
        LOGGER.info(text)
    else:
        sys.stderr.write(f"{text}\n")


def listens() -> bool:
    """Whether the logger `compfed` has a handler, or one above it, and is open at level INFO."""
    return LOGGER.hasHandlers() and LOGGER.isEnabledFor(logging.INFO)


QUIET_SECONDS = 2.0  # shorter work has no bar
FIRST_SECONDS = 0.8  # shorter steps of a command have no line
LINE_SECONDS = 10.0  # without a terminal, at most one line in this time
BAR_WIDTH = 30


def progress_bar(
    label: str = "", stream: TextIO | None = None, *, quiet: float = QUIET_SECONDS
) -> Callable[[int, int], None]:
    """Make a function of (done, total) that shows progress; pass it as ``progress=``.

    It draws a bar on a terminal and in a notebook, and writes plain lines into a pipe or a file. Where the logger `compfed` is
    open at level INFO, the lines go there instead.

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
    logged = stream is None and listens()
    notebook = _notebook_display() if stream is None and not logged else None

    def show(done: int, total: int) -> None:
        nonlocal last_line, shown
        now = time.monotonic()
        finished = done >= total
        if now - began < quiet:
            return
        left = (now - began) * (total - done) / max(done, 1)
        early = now - began < QUIET_SECONDS  # too early for an estimate
        when = f"{now - began:.0f} s" if finished or early else f"about {left:.0f} s left"
        if notebook is not None:
            notebook(label, done, total, when)
        elif terminal and not logged:
            out.write(f"\r{label:<28.28} {_bar(done, total)} {done}/{total}, {when}   ")
            out.write("\n" if finished else "")
            out.flush()
        elif (finished and shown) or now - last_line >= LINE_SECONDS or (quiet == 0 and not shown):
            last_line, shown = now, True
            if logged:
                LOGGER.info(f"{label}: {done}/{total}, {when}")
            else:
                out.write(f"{label}: {done}/{total}, {when}\n")
                out.flush()

    return show


def notebook_shell() -> Any:
    """The shell of the Jupyter notebook that this process works for; None anywhere else."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell if "ZMQInteractiveShell" in [base.__name__ for base in type(shell).__mro__] else None


def _notebook_display() -> Callable[[str, int, int, str], None] | None:
    """A function that draws a bar below the cell of a Jupyter notebook and moves it; None anywhere else."""
    if notebook_shell() is None:
        return None
    from IPython.display import HTML, display  # pyright: ignore[reportMissingImports]  # of the notebook

    handle = None

    def draw(label: str, done: int, total: int, when: str) -> None:
        nonlocal handle
        bar = f'<progress value="{done}" max="{max(total, 1)}"></progress>'
        page = HTML(f"<div>{html.escape(label)} {bar} {done}/{total}, {when}</div>")
        if handle is None:
            handle = display(page, display_id=True)
        else:
            handle.update(page)

    return draw


@contextmanager
def working(label: str, stream: TextIO | None = None) -> Iterator[Callable[[int, int], None]]:
    """Say on the error stream what goes on inside, from a second after its start: a line now and then, or one that counts.

    Yields a function of (done, total): from then on the line has the share and the time that is left, too.

    >>> with working("reading"):
    ...     pass
    """
    out, began, finished = sys.stderr if stream is None else stream, time.monotonic(), threading.Event()
    terminal, reached, shown = out.isatty(), [0, 0], threading.Event()

    def progress(done: int, total: int) -> None:
        reached[:] = done, total

    def report() -> None:
        wait = FIRST_SECONDS
        while not finished.wait(wait):
            wait = 1.0 if terminal else LINE_SECONDS
            text = f"{label} ... {_reached(time.monotonic() - began, *reached)}"
            out.write(f"\r\033[K{text}" if terminal else f"{text}\n")
            out.flush()
            shown.set()

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        finished.set()
        thread.join()
        if terminal and shown.is_set():
            out.write("\r\033[K")
            out.flush()


def _reached(seconds: float, done: int, total: int) -> str:
    """How far a step is: the seconds; with a share, what is left.

    >>> _reached(12.0, 0, 0), _reached(12.0, 10, 50), _reached(12.0, 7, 7)
    ('12 s', '12 s, 10 of 50 (20%), about 48 s left', '12 s, 7 done')
    """
    if not total:
        return f"{seconds:.0f} s"
    if done >= total:
        return f"{seconds:.0f} s, {done} done"
    left = f", about {seconds * (total - done) / done:.0f} s left" if done else ""
    return f"{seconds:.0f} s, {done} of {total} ({done / total:.0%}){left}"


def _bar(done: int, total: int) -> str:
    full = BAR_WIDTH * done // max(total, 1)
    return f"[{'#' * full}{'.' * (BAR_WIDTH - full)}]"


class NamedSteps:
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
