"""The report of a check: a line for each claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from compfed._utils.text import text_table
from compfed.errors import Divergence, InputError

Verdict = Literal["holds", "fails", "not claimed"]
Examine = Callable[[], tuple[Verdict, str]]


@dataclass(frozen=True)
class CheckLine:
    """One property that was checked."""

    what: str
    verdict: Verdict
    found: str

    def __str__(self) -> str:
        return f"{self.what}: {self.verdict}"


@dataclass(frozen=True, repr=False)
class Checked:
    """The report of `check`; printing it gives a table."""

    name: str
    lines: tuple[CheckLine, ...]

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(line.verdict != "fails" for line in self.lines)

    def __str__(self) -> str:
        return text_table([self.name, "", ""], [[line.what, line.verdict, line.found] for line in self.lines])

    def __repr__(self) -> str:
        count = {v: sum(line.verdict == v for line in self.lines) for v in ("holds", "fails", "not claimed")}
        return f"Checked({self.name}: {', '.join(f'{n} {verdict}' for verdict, n in count.items() if n)})"


def line(what: str, examine: Examine) -> CheckLine:
    """Examine one property. An error of ours counts as a failure, and its message says why."""
    try:
        return CheckLine(what, *examine())
    except (InputError, Divergence) as error:
        return CheckLine(what, "fails", str(error))


def verdict(holds: bool, found: str) -> tuple[Verdict, str]:
    """The verdict on a claim."""
    return ("holds" if holds else "fails"), found
