"""What left a site, for people: log.jsonl and the ledger of the table, in words. Nothing here reads a row or sends anything."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from compfed._utils.text import join_names, printable, text_table
from compfed.errors import InputError
from compfed.federation.numbers import percent
from compfed.federation.queries import LEAVES
from compfed.federation.site.ledger import HEADER, Ledger, Roster, RunEntry
from compfed.network import keys
from compfed.network.roster import revealed, roster_fingerprint
from compfed.network.site_settings import ENROLMENT, SiteSettings

WORDS = {"Enrol": ENROLMENT, **LEAVES}
LONGEST_LINE = 2**20  # bytes of a line of the log; longer ones are not the site's own


class LogLine(NamedTuple):
    """One message in log.jsonl: a reply that left, or a problem in its place."""

    time: float
    run: str
    number: int
    queries: dict[str, int]  # how many of each kind
    bytes_out: int
    refused: list[str]  # reasons
    repeated: bool
    problem: str  # why there was no reply; empty if there was

    @classmethod
    def parse(cls, text: bytes) -> LogLine | None:
        """A line of the log; None if it is not about a message. Raises ValueError if it is damaged."""
        given = json.loads(text)
        if not isinstance(given, dict) or "run" not in given:
            return None
        try:
            refused, kind = given.get("refused", {}), given.get("kind", "")
            problem = f"{kind}: {given['reason']}" if "reason" in given else str(kind)
            queries = {str(name): int(count) for name, count in dict(given.get("queries", {})).items()}
            return cls(
                float(given.get("time", 0.0)), str(given["run"]), int(given["number"]), queries,
                int(given.get("bytes_out", 0)), [str(reason) for reason in refused.get("first", [])],
                bool(given.get("repeated", False)), "" if "bytes_out" in given else problem,
            )  # fmt: skip
        except (TypeError, KeyError, AttributeError, OverflowError) as wrong:
            raise ValueError("not a line of the log") from wrong


class SiteLog:
    """The lines of all logs of a site, the oldest first. `damaged` counts those that cannot be read, once all were."""

    def __init__(self, state: Path):
        self.paths = [*sorted(state.glob("log-*.jsonl")), *state.glob("log.jsonl")]
        self.damaged = 0

    def __iter__(self) -> Iterator[LogLine]:
        self.damaged = 0
        for path in self.paths:
            with path.open("rb") as file:
                while text := file.readline(LONGEST_LINE):
                    try:
                        line = LogLine.parse(text) if text.strip() else None
                    except (ValueError, RecursionError):
                        self.damaged += 1
                    else:
                        if line is not None:
                            yield line


# --- explain ---


def explain_text(settings: SiteSettings, run: str) -> str:
    """What left this site in a run, message by message, in words.

    Raises
    ------
    InputError
        If the log does not have the run.
    """
    log, found, others = SiteLog(settings.state), list[LogLine](), dict[str, None]()
    for line in log:
        if line.run == run:
            found.append(line)
        others[line.run] = None
    if not found:
        there = join_names([printable(name, 100) for name in list(others)[::-1] if name]) or "none yet"
        raise InputError(
            f"{settings.state / 'log.jsonl'} has no run {run!r}. The runs there, the latest first: {there}."
        )
    sent = [line for line in found if line.bytes_out]
    lines = [
        f"Run {run} at site {settings.name!r}: {len(sent)} replies left, {sum(s.bytes_out for s in sent):,} bytes."
    ]
    entry = settings.ledger().runs.get(run)
    if entry is not None:
        lines.append(
            f"It began {entry.time} with the sites {join_names(entry.roster.names, most=12)}, and used {entry.rows} rows of the "
            f"table {settings.table!r}. {entry.numbers:,} numbers left in it{_approved(entry)}."
        )
    rows = [[str(line.number), _when(line.time), f"{line.bytes_out:,}", _happened(line)] for line in found]
    lines += ["", text_table(["message", "time", "bytes out", "what left"], rows), ""]
    kinds = sum((Counter(line.queries) for line in sent), Counter[str]())
    lines += [f"{name}: {WORDS.get(name, 'a query that this version does not know')}." for name in kinds]
    if log.damaged:
        lines.append(f"NOTE: {log.damaged} lines of the log cannot be read.")
    return "\n".join(lines)


def _approved(entry: RunEntry) -> str:
    """Who let them, and against what they are counted."""
    if entry.table is None:
        return ""
    who = {"rule": "by rule", "person": "approved by a person"}.get(entry.by, "")
    return f", {entry.numbers / entry.table.cells:.1%} of {entry.table.rows:,} x {entry.table.columns:,} ({who})"


def _when(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "?"


def _happened(line: LogLine) -> str:
    if line.problem or not line.bytes_out:
        return f"nothing of the rows. {printable(line.problem) or 'no reply'}"
    counts = ", ".join(f"{printable(name, 40)} x {count}" for name, count in line.queries.items())
    again = " (the same bytes as before, sent again)" if line.repeated else ""
    return f"{counts or 'no reply to a query'}{again}{''.join(f'; refused: {printable(r)}' for r in line.refused)}"


# --- ledger ---


def ledger_text(settings: SiteSettings) -> str:
    """The ledger of the table: a line per run, and the share that has left."""
    ledger = settings.ledger()
    if not ledger.runs:
        return f"No run of the table {settings.table!r} yet. {_budget(ledger, settings)}"
    rows = [[printable(cell) for cell in row] for row in ledger.table()]
    return f"{text_table(HEADER, rows)}\n\n{_budget(ledger, settings)}"


def _budget(ledger: Ledger, settings: SiteSettings) -> str:
    rules, share = settings.disclosure, ledger.share()
    return (
        f"Table {settings.table!r}: {ledger.numbers:,} numbers released, {share:.1%} of those in the rows whose sums are seen. Here "
        f"a rule may approve a run up to {percent(rules.share_by_rule)} (share_by_rule), a person up to {percent(rules.max_share)} "
        "(max_share)."
    )


# --- another roster ---


def allow_roster(settings: SiteSettings, confirm: Callable[[], bool], say: Callable[[str], object] = print) -> bool:
    """Allow runs with the roster as it is now, after saying whose totals become known; return whether it is allowed."""
    roster = settings.read_roster()
    fingerprint, ledger = roster_fingerprint(roster), settings.ledger()
    say(f"{settings.roster}: {join_names(list(roster), most=12)}. Fingerprint: {fingerprint}")
    if fingerprint in ledger.rosters:
        say("This roster is allowed already.")
        return True
    if not ledger.rosters:
        say(f"No run of the table {settings.table!r} yet: its first run may have any roster. Nothing to allow.")
        return True
    for line in _differences(ledger, roster):
        say(line)
    if not confirm():
        say("Nothing was changed: runs with this roster are refused.")
        return False
    ledger.allow(Roster(fingerprint, tuple(roster)))
    say("Allowed. The ledger has it.")
    return True


def _differences(ledger: Ledger, roster: keys.Roster) -> Iterator[str]:
    """How a roster differs from each of those before, and whose totals become known by subtraction."""
    before = [set(names) for names in ledger.rosters.values()]
    for names in before:
        joined, left = sorted(set(roster) - names), sorted(names - set(roster))
        if not joined and not left:
            yield "An earlier roster has the same sites and another key or order. Ask by telephone whose key is new, and why."
            continue
        moved = " and ".join(
            f"{join_names(group)} {verb}" for group, verb in ((joined, "joined"), (left, "left")) if group
        )
        apart = join_names([*joined, *left], most=12)
        yield f"Since the roster {join_names(sorted(names), most=12)}: {moved}."
        yield f"  If both answer the same queries, the difference of their totals is that of {apart}."
    if alone := sorted(set(revealed([*before, set(roster)])) - set(revealed(before))):
        yield f"By subtraction the operator can then learn the totals of {join_names(alone, most=12)} alone."
