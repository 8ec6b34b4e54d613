"""The ledger of a table: every run that a site took part in, and how many numbers about which rows left.

One file per table, by the table's name, kept for ever. Each line is a JSON record with a checksum in front; lines are only
ever appended. Rows are remembered as hashes with a key of the site: nobody else can confirm a guess of a row. The service of a site
(`network/site.py`) charges it before a reply leaves; `federation/numbers.py` says what is counted.
"""

from __future__ import annotations

import csv
import datetime
import hashlib
import hmac
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import issparse

from compfed._utils.files import append_line, locked, read_checked, write_checked
from compfed._utils.plain import JsonObject, Record
from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.federation.numbers import About, Released, Table, largest_share

if TYPE_CHECKING:
    from compfed.federation.site.disclosure import DisclosurePolicy

HEADER = ("run", "began", "sites", "rows", "queries", "numbers", "bytes out", "share so far")
CHECKSUM = 16  # digits in front of a line


class Roster(NamedTuple):
    """The sites of a run: the fingerprint of their keys, and their names."""

    fingerprint: str
    names: tuple[str, ...]


@dataclass
class RunEntry:
    """One run in the ledger, with the sums of what it was told."""

    run: str
    time: str
    roster: Roster
    rows: int
    version: str  # of the table: the hash of its row hashes
    policy: Record
    queries: Counter[str] = field(default_factory=Counter)
    released: Counter[About] = field(default_factory=Counter)  # numbers, by what they are about
    bytes_out: int = 0
    table: Table | None = None  # what its numbers are counted against; None before its first sentence
    sentence: str = ""  # the statement under way, "" without one
    by: str = ""  # "rule" or "person", who approved it
    left: int = 0  # numbers that may leave under it
    asked: Counter[str] = field(default_factory=Counter)  # messages of each statement
    by_rule: list[tuple[str, int]] = field(default_factory=list)  # when, and how many, by rule
    allowed: dict[str, int] = field(
        default_factory=dict
    )  # what is left of each statement: one that comes back goes on with that
    answered: dict[int, str] = field(default_factory=dict)  # hashes of the queries, by the number of the message

    @property
    def numbers(self) -> int:
        """Numbers that left in this run."""
        return self.released.total()


class Ledger:
    """Runs, queries, models and rosters of one table.

    Parameters
    ----------
    folder : path
        Where ledgers are kept.
    table_name : str
        The name of the table. Another version of the same table continues its ledger.
    key : bytes
        A secret of the site, for the hashes of rows.

    Raises
    ------
    InputError
        If a line is damaged; the error names the file and the line. A last line that was cut off while it was written is
        left out.
    """

    def __init__(self, folder: Path, table_name: str, key: bytes):
        if not table_name or "/" in table_name or table_name.startswith("."):
            raise InputError(
                f"table name {table_name!r}: it names files; give a name without '/' and without a dot in front."
            )
        self.path, self.key = folder / f"{table_name}.ledger", key
        self.runs: dict[str, RunEntry] = {}
        self.rosters: dict[str, tuple[str, ...]] = {}  # allowed: by fingerprint
        self.versions: dict[str, int] = {}  # rows of every version of the table
        # of masked sums, over all runs: "rows" or "sites", and the columns of weights and offsets
        self.weightings: set[str] = set()
        for entry in self._read():
            self._apply(entry)

    @property
    def numbers(self) -> int:
        """Numbers released over the life of the table."""
        return sum(entry.numbers for entry in self.runs.values())

    def left_by_rule(self, since: datetime.datetime) -> int:
        """Numbers that left by rule since then, whenever their run began."""
        return sum(
            count
            for entry in self.runs.values()
            for time, count in entry.by_rule
            if datetime.datetime.fromisoformat(time) >= since
        )

    def share(self, more: tuple[Table, Released] | None = None, until: str | None = None) -> float:
        """The largest share of the numbers in a set of rows that left about it, with `more`; or up to the end of a run."""
        runs = list[tuple[Table, Released]]()
        for entry in self.runs.values():
            if entry.table is not None:
                runs.append((entry.table, entry.released))
            if entry.run == until:
                break
        return largest_share(runs if more is None else [*runs, more])

    # --- what happens ---

    def row_hashes(self, features: Any, labels: np.ndarray) -> np.ndarray:
        """The first 8 bytes of HMAC-SHA256 of every row, features and labels, sorted."""
        words = labels if labels.dtype.kind not in "biuf" else np.asarray(labels, float) + 0.0  # no -0.0
        found = np.empty(len(labels), np.uint64)
        for i in range(len(labels)):
            row = features[i].toarray() if issparse(features) else features[i]
            label = words[i].tobytes() if words.dtype.kind == "f" else str(words[i]).encode()
            text = (np.asarray(row, float).ravel() + 0.0).tobytes() + label
            found[i] = int.from_bytes(hmac.digest(self.key, b"compfed/row/1" + text, "sha256")[:8], "big")
        return np.sort(found)

    def check_run(self, run: str, roster: Roster, row_hashes: np.ndarray, policy: DisclosurePolicy) -> None:
        """Refuse a run whose rows or roster would reveal rows or totals by subtraction from an earlier one."""
        if run in self.runs:
            known = self.runs[run]
            if (known.roster, known.version) != (roster, _version(row_hashes)):
                raise InputError(f"run {run!r} began with another table or other sites. Start a new run.")
            return
        if not policy.min_rows <= len(row_hashes):
            raise InputError("the table has fewer rows than its min_rows. It takes part in no run.")
        for version in self.versions:
            apart = _apart(self._hashes(version), row_hashes)
            if 0 < apart < policy.min_rows:
                raise InputError(
                    "the rows of this table differ from those of an earlier run by fewer than its min_rows: the difference of "
                    "the two results would be these rows. Go back to the earlier table, or change more rows at once."
                )
        self._check_roster(roster)

    def open_run(self, run: str, roster: Roster, row_hashes: np.ndarray, policy: DisclosurePolicy) -> None:
        """Enter a run that is about to be answered, once it is checked."""
        self.check_run(run, roster, row_hashes, policy)
        if run in self.runs:
            return
        version = _version(row_hashes)
        if version not in self.versions:
            write_checked(self._rows_path(version), np.sort(row_hashes).astype("<u8").tobytes())
        self._append({
            "kind": "run", "run": run, "time": _now(), "fingerprint": roster.fingerprint, "names": list(roster.names),
            "rows": len(row_hashes), "version": version, "policy": asdict(policy),
        })  # fmt: skip

    def allow(self, roster: Roster) -> str:
        """Allow runs with another roster from now on; returns whose totals become known by subtraction."""
        self._append({"kind": "allow", "fingerprint": roster.fingerprint, "names": list(roster.names)})
        return self._subtraction(roster)

    def begin(self, run: str, sentence: str, by: str, most: int, table: Table) -> None:
        """Enter what a run states that it will compute, who approved it, and the most numbers that may leave."""
        self.run(run)
        self._append({
            "kind": "sentence", "run": run, "sentence": sentence, "by": by, "most": most, "table": list(table),
        })  # fmt: skip

    def record(
        self,
        run: str,
        number: int,
        hashed: str,
        queries: Mapping[str, int],
        released: Released,
        bytes_out: int,
        weightings: Iterable[str] = (),
    ) -> None:
        """Add what leaves with one message of a run. Written before the reply leaves; once, however often it is made again."""
        if self.run(run).answered.get(number) == hashed:
            return
        self._append({
            "kind": "message", "run": run, "number": number, "time": _now(), "hash": hashed, "queries": dict(queries),
            "bytes_out": bytes_out,
            "numbers": {about.text: count for about, count in released.items()},
            "weightings": sorted(set(weightings) - self.weightings),
        })  # fmt: skip

    def run(self, run: str) -> RunEntry:
        """The entry of a run."""
        if run not in self.runs:
            raise InputError(f"run {run!r} is not in the ledger {self.path.name}. Call open_run first.")
        return self.runs[run]

    # --- for people ---

    def table(self) -> list[tuple[str, ...]]:
        """One row per run, in the order of `HEADER`."""
        rows = list[tuple[str, ...]]()
        for entry in self.runs.values():
            asked = ", ".join(f"{name} {count}" for name, count in sorted(entry.queries.items()))
            numbers = str(entry.numbers), str(entry.bytes_out), f"{self.share(until=entry.run):.1%}"
            rows.append((entry.run, entry.time, join_names(entry.roster.names), str(entry.rows), asked, *numbers))
        return rows

    def to_csv(self) -> str:
        """The table as CSV, with a header."""
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([HEADER, *self.table()])
        return out.getvalue()

    # --- the file ---

    def _check_roster(self, roster: Roster) -> None:
        if self.rosters and roster.fingerprint not in self.rosters:
            raise InputError(
                f"the sites of this run ({join_names(roster.names)}) are not those of an earlier run of this table. "
                f"{self._subtraction(roster)} Allow it with `compfed site allow` if that may be."
            )

    def _subtraction(self, roster: Roster) -> str:
        """Whose totals become known by subtracting the sums of two rosters."""
        apart = [
            sorted(set(names) ^ set(roster.names))
            for fingerprint, names in self.rosters.items()
            if fingerprint != roster.fingerprint
        ]
        if not apart:
            return "No totals become known by subtraction."
        fewest = min(apart, key=len)
        if not fewest:
            return "The names are the same and the keys are not: a site has another key than before."
        return f"By subtraction the totals of {join_names(fewest)} become known."

    def _append(self, entry: Record) -> None:
        text = json.dumps(entry, sort_keys=True, ensure_ascii=True).encode()
        append_line(self.path, _checksum(text) + b" " + text, flush=True)
        self._apply(entry)

    def _read(self) -> list[JsonObject]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        *lines, last = content.split(b"\n")
        if last:  # it was cut off while it was written: the next line must not follow on it
            with locked(self.path) as handle:  # another process may be writing this very line
                content = self.path.read_bytes()
                *lines, last = content.split(b"\n")
                os.ftruncate(handle, len(content) - len(last))
        entries = []
        for number, line in enumerate(lines, 1):
            checksum, _, text = line.partition(b" ")
            if not hmac.compare_digest(checksum, _checksum(text)):
                raise InputError(
                    f"{self.path}, line {number} is damaged. Restore the file from a backup; without it nobody knows what "
                    "this table has revealed."
                )
            entries.append(json.loads(text))
        return entries

    def _apply(self, entry: Record) -> None:
        if entry["kind"] == "message":
            known = self.runs[entry["run"]]
            known.queries.update(entry["queries"])
            found = {About.parse(text): int(count) for text, count in entry.get("numbers", {}).items()}
            known.released.update(found)
            known.asked[known.sentence] += 1
            known.left -= sum(found.values())
            if known.by == "rule":
                known.by_rule.append((entry.get("time", known.time), sum(found.values())))
            known.allowed[known.sentence] = known.left
            known.bytes_out += entry["bytes_out"]
            self.weightings.update(entry.get("weightings", ()))
            known.answered[entry.get("number", 0)] = entry.get("hash", "")
            return
        if entry["kind"] == "sentence":
            known = self.runs[entry["run"]]
            known.sentence, known.by = entry["sentence"], entry["by"]
            # what a person approved is not allowed again when the run comes back to it; a rule decides by the share each time
            again = known.allowed.get(known.sentence) if known.by == "person" else None
            known.left = int(entry["most"]) if again is None else again
            known.allowed[known.sentence] = known.left
            known.table = Table(*map(int, entry["table"]))
            return
        roster = Roster(entry["fingerprint"], tuple(entry["names"]))
        self.rosters.setdefault(*roster)
        if entry["kind"] == "run":
            self.versions[entry["version"]] = entry["rows"]
            self.runs[entry["run"]] = RunEntry(
                entry["run"], entry["time"], roster, entry["rows"], entry["version"], entry["policy"]
            )

    def _rows_path(self, version: str) -> Path:
        return self.path.with_name(f"{self.path.stem}.{version}.rows")

    def _hashes(self, version: str) -> np.ndarray:
        data = read_checked(self._rows_path(version))
        if data is None:
            raise InputError(f"{self._rows_path(version)} is missing or damaged. Restore it from a backup.")
        return np.frombuffer(data, "<u8")


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:CHECKSUM].encode()


def _version(row_hashes: np.ndarray) -> str:
    return hashlib.sha256(np.sort(row_hashes).astype("<u8").tobytes()).hexdigest()[:16]


def _apart(a: np.ndarray, b: np.ndarray) -> int:
    """The size of the symmetric difference of two multisets."""
    values, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    signs = np.repeat([1, -1], [len(a), len(b)])
    return int(np.abs(np.bincount(where, signs, minlength=len(values))).sum())
