"""A run on the operator's screen: a line per message and per problem, and what is awaited right now."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import Any, TextIO

import numpy as np

from compfed._utils.text import printable, text_table
from compfed.network.server.run_log import RunLog

REFRESH = 0.5  # seconds between two looks, on a terminal
SILENCE = 8.0  # seconds without a line after which a piped run says what it waits for


class Display:
    """Shows a run while it goes on. On a terminal a table is redrawn below the lines; elsewhere there are plain lines.

    A `brief` display shows problems, and what is awaited when nothing has happened for some seconds.
    """

    def __init__(self, log: RunLog, out: TextIO | None = None, brief: bool = False):
        self.log, self.out, self.brief = log, sys.stdout if out is None else out, brief
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True, name="compfed-display")
        self._drawn, self._said_at = 0, time.monotonic()

    def __enter__(self) -> Display:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stopped.set()
        self._thread.join()
        self._refresh(last=True)

    def _loop(self) -> None:
        while not self._stopped.wait(REFRESH):
            self._refresh()

    def _refresh(self, last: bool = False) -> None:
        screen, text = self.out.isatty() and not self.brief, ""
        if self._drawn:
            text += f"\x1b[{self._drawn}F\x1b[J"  # up to where the table began, and clear from there
            self._drawn = 0
        lines = self.log.take_lines()
        if self.brief:  # a script has output of its own: problems only
            lines = [line for line in lines if line.lstrip().startswith("!")]
        text += "".join(f"{line}\n" for line in lines)
        now = time.monotonic()
        if lines:
            self._said_at = now
        if screen and not last:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps would be two
            table = [line[:width] for line in site_table(self.log.snapshot(), self.log.sites).splitlines()]
            text += "\n".join(table) + "\n"
            self._drawn = len(table)
        elif not last and now - self._said_at >= SILENCE and (not self.brief or is_stalled(self.log.snapshot())):
            text += happening(self.log.snapshot()) + "\n"
            self._said_at = now
        if text:
            self.out.write(text)
            self.out.flush()


def is_stalled(state: dict[str, Any]) -> bool:
    """Has the current message been awaited for some seconds?"""
    now = time.time()
    return bool(state["link"]) or any(now - at >= SILENCE for at in state["waiting"].values())


def happening(state: dict[str, Any]) -> str:
    """What happens now, in one sentence."""
    if state["link"]:
        return f"Waiting for the SuperLink: {state['link']}."
    if not state["message"]:
        return "Connecting to the SuperLink."
    if not state["waiting"]:
        return f"Message {state['message']} is answered; the fit computes the next one."
    since = max(time.time() - at for at in state["waiting"].values())
    absent = [name for name in state["waiting"] if state["connected"] is not None and name not in state["connected"]]
    words = f"Message {state['message']} ({', '.join(state['queries'])}): waiting for {', '.join(state['waiting'])} since {since:.0f} s"
    return words + (f"; not connected: {', '.join(absent)}." if absent else ".")


def site_table(state: dict[str, Any], sites: tuple[str, ...]) -> str:
    """A line per site: is it connected, when was it last heard, what is it doing."""
    rows, now = [], time.time()
    for name in sites:
        last = state["last"].get(name)
        connected = "?" if state["connected"] is None else "yes" if name in state["connected"] else "NO"
        seen = "-" if last is None else f"{max(now - last['time'], 0):.0f} s ago"
        took = "-" if last is None else f"{last['seconds']:.1f} s"
        waiting = state["waiting"].get(name)
        doing = f"awaited since {now - waiting:.0f} s" if waiting else "answered" if last else "-"
        rows.append([name, connected, seen, took, doing])
    return text_table(["site", "connected", "last reply", "took", "now"], rows) + "\n" + happening(state)


def result_text(model: Any) -> str:
    """The end of a run: alpha, the coefficients that are not zero, and one sentence about the certificate."""
    coef = np.atleast_2d(np.asarray(model.coef_))
    names = getattr(model, "feature_names_in_", None)
    names = [f"column {j}" for j in range(coef.shape[1])] if names is None else list(names)
    lines = []
    alpha = getattr(model, "alpha_", getattr(model, "alpha", None))
    if isinstance(alpha, (int, float)):
        lines.append(f"alpha = {alpha:.6g}")
    used = [j for j in range(coef.shape[1]) if (coef[:, j] != 0).any()]
    lines.append(f"{len(used)} of {coef.shape[1]} coefficients are not zero:" if used else "All coefficients are zero.")
    rows = [[printable(str(names[j]), 60), *(f"{value: .6g}" for value in coef[:, j])] for j in used[:200]]
    if rows:
        classes = [printable(str(c), 20) for c in getattr(model, "classes_", ())]
        heads = classes if len(classes) == len(coef) > 1 else ["coefficient"] * len(coef)
        lines.append(text_table(["column", *heads], rows))
    if len(used) > 200:
        lines.append(f"... and {len(used) - 200} more")
    intercept = np.ravel(getattr(model, "intercept_", ()))
    if intercept.size:
        lines.append(f"intercept: {', '.join(f'{value:.6g}' for value in intercept[:20])}")
    lines.append(certificate_text(model.certificate_))
    return "\n".join(lines)


def certificate_text(certificate: Any) -> str:
    """A certificate in one sentence."""
    if not certificate.holds:
        return f"NOT certified: the gradient mapping is {certificate.relative:.1e} of its scale; tol = {certificate.tol:.1e}."
    gap = certificate.duality_gap
    within = (
        f"the objective is within {gap:.1e} of its minimum"
        if gap is not None
        else f"relative optimality {certificate.relative:.1e}"
    )
    unique = "; no other model reaches it" if certificate.unique else ""
    return f"Certified: {within}{unique}."
