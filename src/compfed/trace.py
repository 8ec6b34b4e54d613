"""Trace: what a run measured, as named columns, with the model, its provenance and the state to go on from."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from compfed.errors import InputError, MissingExtra
from compfed.tools.files import whole_file

COLUMNS = {
    "round": "communication rounds done; row 0 is the start",
    "optimality": "||x - x*|| / ||x*||, with x the algorithm's output (only when a reference is given)",
    "objective": "F(x) = sum_i p_i f_i(x) + g(x)",
    "gradient_mapping": "||(x - prox(x - grad f(x)/L)) L||, zero exactly at the minimiser",
    "nonzeros": "coefficients that are not exactly zero",
    "drift": "weighted mean distance of the participants' local models from their mean, at the end of the round",
    "correction": "||sum_i p_i c_i||, for algorithms with a drift correction c_i",
    "vectors_up": "d-vectors sent by a client, cumulative, averaged over clients; scalars are not counted",
    "vectors_down": "d-vectors sent to a client, likewise",
    "bytes_up": "bytes sent by a client, cumulative, averaged over clients; everything in the message counts",
    "bytes_down": "bytes sent to a client, likewise",
    "gradients": "gradient evaluations of a client (full or mini-batch), cumulative, averaged over clients",
    "gradient_rows": "rows those gradients read, likewise: their mini-batch, or all rows of an average client",
    "client_proxes": "prox evaluations of a client, likewise; that of its local model at the end of a round counts",
    "server_proxes": "prox evaluations of the server, cumulative",
    "seconds": "wall-clock time of the rounds, without compilation and without measuring",
}

# Columns that count what was spent up to a model; all others, the measures of a user's own included, describe it.
COUNTED = frozenset(
    {
        "round",
        "vectors_up",
        "vectors_down",
        "bytes_up",
        "bytes_down",
        "gradients",
        "gradient_rows",
        "client_proxes",
        "server_proxes",
        "seconds",
    }
)


@dataclass(frozen=True)
class State:
    """Everything a run needs to go on: rounds done, and the leaves of the server's and the clients' memory."""

    rounds: int
    server: list[np.ndarray]
    clients: list[np.ndarray]  # each with one row per site, in the order of the sites


@dataclass(frozen=True)
class Trace:
    """One row per recorded round; row 0 is the start.

    `trace["optimality"]` is a NumPy array; `trace.x` is the model; `trace.provenance` says how it was made. Costs
    (vectors, bytes, gradients and their rows, proxes) are cumulative and per client; `COLUMNS` says what each column is.
    """

    columns: dict[str, np.ndarray]
    x: np.ndarray
    provenance: dict[str, Any] = field(default_factory=dict)
    state: State | None = None

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            hint = " Give reference=x_star to record it." if column == "optimality" else ""
            raise InputError(f"this trace has no column {column!r}; it has {', '.join(self.columns)}.{hint}")
        return self.columns[column]

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def __len__(self) -> int:
        return len(self.columns["round"])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def first(self, column: str, below: float) -> int | None:
        """The first recorded round whose `column` is at most `below`; None if there is none."""
        hits = np.flatnonzero(self[column] <= below)
        return int(self["round"][hits[0]]) if hits.size else None

    def then(self, later: Trace) -> Trace:
        """This trace followed by one that began at its model: rounds and costs go on counting."""
        columns = {}
        for c in self:
            after = later.columns.get(c, np.full(len(later), np.nan))[1:]
            columns[c] = np.concatenate([self[c], after + self[c][-1] if c in COUNTED else after])
        return Trace(columns, later.x, later.provenance, None)

    def after(self, **spent: float) -> Trace:
        """This trace, with so much more spent before its first row: rounds, bytes_up, ..."""
        columns = {c: values + spent.get(c, 0) for c, values in self.columns.items()}
        return Trace(columns, self.x, self.provenance, self.state)

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame, indexed by round."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "pandas", "Trace.to_pandas()") from None
        return pandas.DataFrame(self.columns).set_index("round")

    def save(self, path: str | Path) -> Path:
        """Write one .npz file (the suffix is added if missing); `Trace.load` reads it back exactly."""
        target = Path(path)
        target = target if target.suffix == ".npz" else target.with_name(target.name + ".npz")
        target.parent.mkdir(parents=True, exist_ok=True)
        arrays = {f"column/{name}": values for name, values in self.columns.items()} | {"x": self.x}
        head: dict[str, Any] = {"provenance": self.provenance, "columns": list(self.columns), "rounds": None}
        if self.state is not None:
            head["rounds"] = self.state.rounds
            arrays |= {f"server/{i:03d}": leaf for i, leaf in enumerate(self.state.server)}
            arrays |= {f"clients/{i:03d}": leaf for i, leaf in enumerate(self.state.clients)}
        with whole_file(target) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, head=np.array(json.dumps(head, default=_plain)), **arrays)
        return target

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read what `save` wrote."""
        source = Path(path)
        source = source if source.suffix == ".npz" else source.with_name(source.name + ".npz")
        if not source.exists():
            raise InputError(f"there is no trace at {source}.")
        try:
            stored = np.load(source, allow_pickle=False)
        except (ValueError, EOFError, zipfile.BadZipFile):
            stored = None
        if not isinstance(stored, np.lib.npyio.NpzFile) or "head" not in stored:
            raise InputError(f"{source} is not a trace: it was not written by Trace.save.")
        with stored:
            head = json.loads(str(stored["head"]))
            columns = {name: stored[f"column/{name}"] for name in head["columns"]}
            leaves = {
                part: [stored[k] for k in sorted(stored) if k.startswith(part)] for part in ("server/", "clients/")
            }
            state = None
            if head["rounds"] is not None:
                state = State(head["rounds"], leaves["server/"], leaves["clients/"])
            return Trace(columns, stored["x"], head["provenance"], state)


def _plain(value: Any) -> Any:
    """What JSON does not know, as something it does: NumPy numbers and arrays by value, the rest by name."""
    return value.tolist() if isinstance(value, (np.generic, np.ndarray)) else str(value)
