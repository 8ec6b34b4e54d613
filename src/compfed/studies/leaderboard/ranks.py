"""Who comes first: ranks by cost, what is said of a method that does not arrive, and the record that a page is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compfed._utils.plain import JsonObject, Record
from compfed._utils.text import join_names, text_table
from compfed.studies.leaderboard.results import UNITS, label_of
from compfed.studies.leaderboard.suite import DISTANCE

OURS = "DecoupledProx"  # Algorithm 1 of the paper, whose place is stated on every problem


def cost(entry: Record, level: str, unit: str) -> float | None:
    """What an entry paid to reach a level; None where it did not, or did not measure it."""
    return entry.get("to_accuracy", {}).get(level, {}).get(unit)


def ranks(entries: Sequence[Record], level: str, unit: str) -> dict[str, int]:
    """The place of every method that arrives: one more than the number of methods that arrive at a lower cost.

    >>> made = [{"method": m, "to_accuracy": {"0.1": {"rounds": c}}} for m, c in (("a", 7), ("b", 3), ("c", 7), ("d", None))]
    >>> ranks(made, "0.1", "rounds")
    {'b': 1, 'a': 2, 'c': 2}
    """
    paid = {label_of(entry): cost(entry, level, unit) for entry in entries}
    arrived = {label: value for label, value in paid.items() if value is not None}
    places = {label: 1 + sum(other < value for other in arrived.values()) for label, value in arrived.items()}
    return dict(sorted(places.items(), key=lambda pair: (pair[1], pair[0])))


def why_not(entry: Record, level: str, unit: str, entries: Sequence[Record]) -> str:
    """Why a method has no place by a cost, in words."""
    if entry["status"] == "does not apply":
        return "does not apply"
    if entry["status"] == "stopped":
        return "stopped"
    if entry["status"] == "diverged":
        return "diverged"
    if cost(entry, level, "rounds") is not None:
        return "not measured"
    first = [paid for other in entries if (paid := cost(other, level, unit)) is not None]
    spent = entry.get("spent", {}).get(unit)
    if first and spent is not None and spent < min(first):
        return "open"  # its rounds ended before it had spent what the first one paid
    return "not reached"


def standings(board: Record) -> list[JsonObject]:
    """By problem: the level of the ranking, the places by each cost, and a row for every method."""
    found = []
    for name, about in board["problems"].items():
        entries = [entry for entry in board["entries"] if entry["problem"] == name]
        levels = about["terms"]["levels"]
        middle = levels[len(levels) // 2]
        places = {unit: ranks(entries, middle, unit) for unit in UNITS}
        rows = []
        for entry in entries:
            label = label_of(entry)
            costs = {unit: cost(entry, middle, unit) for unit in UNITS}
            rows.append(
                {
                    "method": label, "kind": entry.get("kind", "added"), "status": entry["status"],
                    "reason": entry.get("reason"), "setting": entry.get("setting"), "at_edge": entry.get("at_edge", []),
                    "tried": entry.get("tried"), "final": entry.get("final"),
                    "rounds": {level: cost(entry, level, "rounds") for level in levels},
                    "costs": {
                        unit: {"cost": costs[unit], "rank": places[unit].get(label), "words": why_not(entry, middle, unit, entries)}
                        for unit in UNITS
                    },
                }
            )  # fmt: skip
        rows.sort(key=_order)
        found.append({"problem": name, **about, "level": middle, "methods": rows})
    return found


def _order(row: Record) -> tuple[Any, ...]:
    """First those that arrive, by rounds; then those that do not, by how near they end; then the rest."""
    rank, end = row["costs"]["rounds"]["rank"], row["final"]
    state = ("ran", "diverged", "stopped", "does not apply").index(row["status"])
    return (rank is None, rank or 0, state, np.inf if end is None else end, row["method"])


def totals(standing: Sequence[Record]) -> list[JsonObject]:
    """Over the convex problems, by method: to how many it applies, on how many it arrives, how often it is first, how far behind.

    On the others only some methods are run: counted here, they would arrive more often for that alone.
    """
    found: dict[str, JsonObject] = {}
    for problem in [each for each in standing if each["terms"]["criterion"] == DISTANCE]:
        best = {
            unit: min(
                [r["costs"][unit]["cost"] for r in problem["methods"] if r["costs"][unit]["cost"] is not None],
                default=None,
            )
            for unit in UNITS
        }
        for row in problem["methods"]:
            mine = found.setdefault(
                row["method"],
                {"method": row["method"], "kind": row["kind"], "applies": 0, "arrives": 0, "first": dict.fromkeys(UNITS, 0),
                 "behind": {unit: [] for unit in UNITS}},
            )  # fmt: skip
            mine["applies"] += row["status"] != "does not apply"
            mine["arrives"] += row["costs"]["rounds"]["cost"] is not None
            for unit in UNITS:
                paid, least = row["costs"][unit]["cost"], best[unit]
                mine["first"][unit] += row["costs"][unit]["rank"] == 1
                if paid is not None and least:
                    mine["behind"][unit].append(paid / least)
    for mine in found.values():
        mine["behind"] = {unit: float(np.median(of)) if of else None for unit, of in mine["behind"].items()}
    return sorted(found.values(), key=lambda m: (-m["arrives"], m["behind"]["rounds"] or np.inf, m["method"]))


def record_of(board: Record) -> JsonObject:
    """The board as plain data for a run folder and its page."""
    standing = standings(board)
    about = {name: board[name] for name in ("created", "versions", "suite", "mode", "by", "work") if name in board}
    added = sorted({label_of(entry) for entry in board["entries"] if entry.get("kind") == "added"})
    return {
        "kind": "leaderboard",
        **about,
        "standings": standing,
        "totals": totals(standing),
        "added": added,
        "paper": OURS,
    }


# --- the two tables that the command prints and the documentation has ---

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]


def firsts_table(record: Record, table: Table = text_table) -> str:
    """Who is first on each problem, and the place of Algorithm 1 by rounds of so many that arrive."""
    rows = []
    for problem in record["standings"]:
        if not problem["methods"]:
            rows.append([problem["problem"], "skipped", *[""] * (len(UNITS) + 1)])
            continue
        firsts = []
        for unit in UNITS:
            best = sorted((row["method"] for row in problem["methods"] if row["costs"][unit]["rank"] == 1), key=len)
            paid = [row["costs"][unit]["cost"] for row in problem["methods"] if row["costs"][unit]["rank"] == 1]
            firsts.append(f"{join_names(best, ' = ', most=2)}: {short_cost(unit, paid[0])}" if best else "nobody")
        mine = next((row["costs"]["rounds"] for row in problem["methods"] if row["method"] == record["paper"]), None)
        arrived = sum(row["costs"]["rounds"]["rank"] is not None for row in problem["methods"])
        place = (
            "-"
            if mine is None
            else mine["words"]
            if mine["rank"] is None
            else f"{mine['rank']} of {arrived}: {mine['cost']:g}"
        )
        rows.append([problem["problem"], problem["level"], *firsts, place])
    return table(["problem", "to", *UNITS, f"{record['paper']}, rounds"], rows)


def totals_table(record: Record, table: Table = text_table) -> str:
    """Over the convex problems, by method: applies, arrives, firsts, and the median cost as a multiple of the first one's."""
    rows = []
    for row in record["totals"]:
        behind = ["-" if row["behind"][unit] is None else f"{row['behind'][unit]:.3g}" for unit in UNITS]
        firsts = ", ".join(str(row["first"][unit]) for unit in UNITS)
        rows.append([row["method"], str(row["applies"]), str(row["arrives"]), firsts, *behind])
    return table(["method", "applies", "arrives", "firsts", *(f"{unit} x" for unit in UNITS)], rows)


def short_cost(unit: str, value: float) -> str:
    """A cost in a few characters.

    >>> short_cost("bytes", 13512.0), short_cost("rounds", 4.0), short_cost("seconds", 0.5136)
    ('13.5 kB', '4', '0.514 s')
    """
    if unit == "bytes":
        return f"{value / 1e6:.3g} MB" if value >= 999_500 else f"{value / 1e3:.3g} kB"
    return f"{value:.3g} s" if unit == "seconds" else f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
