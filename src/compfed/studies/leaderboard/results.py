"""The results file of a leaderboard: written by a run, read with every number checked, and open to results of others.

    {"format": "compfed-leaderboard-1", "suite": "1", "mode": "full", "by": "Ada, Rome",
     "problems": {"paper": {"terms": {"rounds": 500, "settings": 5, ...}, ...}, ...},
     "entries": [{"problem": "paper", "method": "MyMethod", "status": "ran", "tried": 5, "setting": "eta = 0.1",
                  "to_accuracy": {"0.01": {"rounds": 12, "bytes": 11520, "rows": 18000, "seconds": 2.1}, ...},
                  "final": 3e-09, "spent": {"rounds": 500, "bytes": 480000, "rows": 750000, "seconds": 88.0}}, ...]}

Costs are per client, cumulative, the median over the seeds; bytes are those both ways. null in all costs of a level: it was not
reached. A cost that was not measured is left out. docs/explanation/leaderboard.md describes every field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from compfed._utils.plain import JsonObject, Record
from compfed._utils.text import is_printable, join_names, printable
from compfed.errors import InputError
from compfed.studies.leaderboard.suite import VERSION, suite

FORMAT = "compfed-leaderboard-1"
MODES = ("full", "quick")
UNITS = {"rounds": "round", "bytes": "bytes", "rows": "rows", "seconds": "clock"}  # unit: column of a trace
STATUSES = ("ran", "diverged", "does not apply", "stopped")
KINDS = ("ours", "baseline", "added")
MOST_BYTES, MOST_ENTRIES = 20_000_000, 10_000
LARGEST = 1e18  # of a cost
FIELDS = ("format", "suite", "mode", "by", "created", "versions", "work", "problems", "entries")
WORK = ("runs", "programs", "cpu_seconds")
REQUIRED, OPTIONAL = ("problem", "method", "status"), (
    "by", "kind", "reason", "tried", "setting", "at_edge", "to_accuracy", "range", "final", "finals", "spent",
)  # fmt: skip


class _Bad(Exception):
    """Where in a file something is wrong, and what."""


def read_results(path: str | Path) -> JsonObject:
    """Read a results file; `InputError` names the first thing in it that cannot be true, and what it must be.

    Examples
    --------
    >>> read_results("nowhere.json")
    Traceback (most recent call last):
        ...
    compfed.errors.InputError: nowhere.json does not exist; give the leaderboard.json of a run, or a file in its format.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} has {path.stat().st_size:,} bytes; a results file has at most {MOST_BYTES:,}.")
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
        check_results(found)
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; give the leaderboard.json of a run, or a file in its format."
        ) from None
    except OSError as problem:
        raise InputError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except _Bad as problem:
        raise InputError(f"{path}: {problem}") from None
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{path} is not JSON ({printable(str(problem), 120)}).") from None
    return found


def _no_constant(name: str) -> NoReturn:
    raise _Bad(f"JSON has no {name}; a cost that was never paid is null.")


def check_results(found: Any) -> None:
    """Refuse what is not a results file of this suite."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        given = _shown(found.get("format") if isinstance(found, dict) else type(found).__name__)
        raise _Bad(f"format={given} must be {FORMAT!r}.")
    if found.get("suite") != VERSION:
        raise _Bad(
            f"suite={_shown(found.get('suite'))} must be {VERSION!r}: numbers of two versions of the suite are not compared. Run it again."
        )
    if found.get("mode") not in MODES:
        raise _Bad(f"mode={_shown(found.get('mode'))} must be one of {join_names(MODES)}.")
    if unknown := [name for name in found if name not in FIELDS]:
        raise _Bad(f"{_shown(unknown[0])} is no field of a results file; there are {join_names(FIELDS, most=20)}.")
    _check_provenance(found)
    tasks, problems = suite(found["mode"] == "quick"), found.get("problems")
    if not isinstance(problems, dict) or not problems:
        raise _Bad("problems must map names of problems to their terms; copy them from a leaderboard.json.")
    for name, about in problems.items():
        if name not in tasks:
            raise _Bad(
                f"problems: there is no {_shown(name)} in the suite; there are {join_names(list(tasks), most=20)}."
            )
        if not isinstance(about, dict) or about.get("terms") != tasks[name].terms():
            raise _Bad(
                f"problems: the terms of {name!r} (rounds, settings, seeds, levels, ...) are not those of the suite, so its numbers "
                "cannot stand beside the others."
            )
        _check_about(about, name)
    entries = found.get("entries")
    if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
        raise _Bad(f"entries must be a list of at most {MOST_ENTRIES:,} results.")
    seen = set()
    for k, entry in enumerate(entries):
        where = f"entries[{k}]"
        _check_entry(entry, where, problems)
        key = (entry["problem"], entry["method"], entry.get("by"))
        if key in seen:
            raise _Bad(f"{where}: {entry['method']!r} has two results on {entry['problem']!r}; keep one.")
        seen.add(key)


def _check_provenance(found: Record) -> None:
    """Refuse a maker, a date, versions and work that are not texts and numbers."""
    _text(found.get("by", "compfed"), "by", 80)
    _text(found.get("created", "-"), "created", 80)
    for name, each in _table(found.get("versions", {}), "versions").items():
        _text(name, "a name in versions", 80)
        _text(each, f"versions: {name}", 80)
    for name, amount in _table(found.get("work", {}), "work", WORK).items():
        _number(amount, f"work: {name}")


def _check_about(about: Record, name: str) -> None:
    """Refuse descriptions of a problem that are not texts and numbers."""
    for field in ("words", "skipped", "reference"):
        if about.get(field) is not None:
            _text(about[field], f"problems: {field} of {name!r}", 500)
    for field in ("rows", "columns", "sites"):
        if field in about:
            _number(about[field], f"problems: {field} of {name!r}")


def _check_entry(entry: Any, where: str, problems: Mapping[str, Any]) -> None:
    if not isinstance(entry, dict):
        raise _Bad(f"{where} must be a result: a table with {join_names(REQUIRED)}.")
    if missing := [name for name in REQUIRED if name not in entry]:
        raise _Bad(f"{where} has no {missing[0]!r}.")
    if unknown := [name for name in entry if name not in (*REQUIRED, *OPTIONAL)]:
        raise _Bad(
            f"{where} has {_shown(unknown[0])}, which no result has; known: {join_names([*REQUIRED, *OPTIONAL], most=20)}."
        )
    if not isinstance(entry["problem"], str) or entry["problem"] not in problems:
        raise _Bad(f"{where}: problem={_shown(entry['problem'])} is not under problems.")
    where += f" ({entry['problem']})"
    _text(entry["method"], f"{where}: method", 80)
    for name, most in (("by", 80), ("reason", 500), ("setting", 300)):
        if entry.get(name) is not None:
            _text(entry[name], f"{where}: {name}", most)
    if entry["status"] not in STATUSES:
        raise _Bad(f"{where}: status={_shown(entry['status'])} must be one of {join_names(STATUSES)}.")
    if entry.get("kind", "added") not in KINDS:
        raise _Bad(f"{where}: kind={_shown(entry['kind'])} must be one of {join_names(KINDS)}.")
    edges = entry.get("at_edge", [])
    if not isinstance(edges, list):
        raise _Bad(f"{where}: at_edge must be a list of names.")
    for edge in edges:
        _text(edge, f"{where}: at_edge", 80)
    if entry["status"] in ("does not apply", "stopped"):
        if not entry.get("reason"):
            raise _Bad(f"{where}: a method that {entry['status']} needs a reason, in words.")
        return
    _check_costs(entry, where, problems[entry["problem"]]["terms"])


def _check_costs(entry: Record, where: str, terms: Record) -> None:
    """Refuse costs that no run within the budget can have."""
    tried = _number(entry.get("tried"), f"{where}: tried")
    if not 0 <= tried <= terms["settings"] or tried != int(tried):
        raise _Bad(
            f"{where}: tried={_shown(entry['tried'])} must be a whole number from 0 to {terms['settings']}, the settings that every "
            "method may try."
        )
    spent = _table(entry.get("spent"), f"{where}: spent", UNITS)
    for unit, amount in spent.items():
        _number(amount, f"{where}: spent {unit}")
    if spent.get("rounds", 0) > terms["rounds"]:
        raise _Bad(f"{where}: spent {spent['rounds']} rounds; the budget is {terms['rounds']}.")
    levels, costs = list(terms["levels"]), entry.get("to_accuracy")
    if not isinstance(costs, dict) or list(costs) != levels:
        raise _Bad(f"{where}: to_accuracy must have the levels {join_names(levels)}, in this order.")
    before: dict[str, float | None] = dict.fromkeys(UNITS, 0.0)
    for level, each in costs.items():
        paid = _table(each, f"{where}: to_accuracy {level}", UNITS)
        if len({cost is None for cost in paid.values()}) > 1 or "rounds" not in paid:
            raise _Bad(f"{where}: at {level} every cost is a number, or every cost is null, and rounds are among them.")
        for unit, cost in paid.items():
            if cost is None:
                before[unit] = None
                continue
            _number(cost, f"{where}: {unit} to {level}")
            easier = before[unit]
            if easier is None or cost < easier:
                raise _Bad(
                    f"{where}: {cost:g} {unit} to {level} cannot be less than to the level before it, {_shown(easier)}."
                )
            if unit in spent and cost > spent[unit]:
                raise _Bad(f"{where}: {cost:g} {unit} to {level} are more than the run spent, {spent[unit]:g}.")
            before[unit] = cost
    if entry.get("final") is not None:
        _number(entry["final"], f"{where}: final")
    elif entry["status"] == "ran":
        raise _Bad(f"{where}: a method that ran has a final value; one that diverged has the status 'diverged'.")
    for value in entry.get("finals", []) if isinstance(entry.get("finals", []), list) else [None, "no list"]:
        if value is not None:
            _number(value, f"{where}: finals")
    _check_ranges(entry, where, levels)


def _check_ranges(entry: Record, where: str, levels: list[str]) -> None:
    ranges = entry.get("range")
    if ranges is None:
        return
    if not isinstance(ranges, dict) or not set(ranges) <= set(levels):
        raise _Bad(f"{where}: range must have levels among {join_names(levels)}.")
    for level, each in ranges.items():
        for unit, ends in _table(each, f"{where}: range {level}", UNITS).items():
            if not isinstance(ends, list) or len(ends) != 2:
                raise _Bad(
                    f"{where}: range of {unit} to {level} must be two numbers, the least and the largest over the seeds."
                )
            for end in ends:
                if end is not None:
                    _number(end, f"{where}: range of {unit} to {level}")


def _table(value: Any, where: str, known: Iterable[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict) or not (known is None or set(value) <= set(known)):
        raise _Bad(f"{where} must be a table{'' if known is None else f' of {join_names(list(known))}'}.")
    return value


def _number(value: Any, where: str) -> float:
    """A number from 0 to the largest; JSON's true is none, and an integer may be too long for a double."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 <= value <= LARGEST
        or not math.isfinite(value)
    ):
        raise _Bad(f"{where}={_shown(value)} must be a number from 0 to {LARGEST:g}.")
    return float(value)


def _text(value: Any, where: str, most: int) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= most or not is_printable(value):
        raise _Bad(f"{where}={_shown(value)} must be a text of 1 to {most} printable characters.")


def _shown(value: Any) -> str:
    """A value from a file, short and safe for a terminal."""
    return printable(
        repr(value) if not isinstance(value, int) or abs(value) < 10**20 else "a number of many digits", 60
    )


def added(board: Record, others: list[JsonObject]) -> JsonObject:
    """A board with the results of other files, whose methods carry the name of who made them."""
    entries, problems = list(board["entries"]), dict(board["problems"])
    labels = {(entry["problem"], label_of(entry)) for entry in entries}
    for other in others:
        if other["mode"] != board["mode"]:
            raise InputError(
                f"a file of mode {other['mode']!r} cannot be added to a board of mode {board['mode']!r}: its budgets differ."
            )
        for entry in other["entries"]:
            theirs = {**entry, "kind": "added", "by": entry.get("by") or other.get("by") or "somebody else"}
            key = (theirs["problem"], label_of(theirs))
            if key in labels:
                raise InputError(
                    f'{key[1]} already has a result on {key[0]!r}; name its maker ("by"), or leave one out.'
                )
            labels.add(key)
            entries.append(theirs)
        for name, about in other["problems"].items():
            if name not in problems or problems[name].get("skipped"):
                problems[name] = about
    return {**board, "entries": entries, "problems": problems}


def label_of(entry: Record) -> str:
    """The name of a method on the page; who made a result that was added stands behind it."""
    return (
        f"{entry['method']} (by {entry['by']})" if entry.get("kind") == "added" and entry.get("by") else entry["method"]
    )
