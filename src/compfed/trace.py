"""`Trace`: the record of a run as named columns, with the model, its provenance and the state to resume from."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from compfed._utils.files import atomic_path
from compfed._utils.html_table import html_table
from compfed._utils.plain import plain
from compfed._utils.text import shapes_shown, shorten
from compfed._utils.validation import is_int
from compfed.errors import InputError, MissingExtra

if TYPE_CHECKING:
    import pandas

JsonTable: TypeAlias = dict[str, Any]  # what JSON can hold: numbers, words, lists and tables
COLUMNS = {
    "round": "communication rounds done; row 0 is the start",
    "optimality": "||x - x*|| / ||x*||, with x the algorithm's output (only when x_star is given)",
    "objective": "F(x) = sum_i p_i f_i(x) + g(x)",
    "gradient_mapping": "||(x - prox(x - grad f(x)/L)) L||, zero exactly at stationary points: the minimisers, if F is convex",
    "nonzeros": "coefficients that are not exactly zero",
    "drift": "weighted mean distance of the participants' local models from their mean, at the end of the round",
    "correction": "||sum_i p_i c_i||, for algorithms with a drift correction c_i",
    "exchanges": "round trips between server and clients, cumulative; a round of some methods has two, or one more to end it",
    "vectors_up": "d-vectors sent by a client, cumulative, averaged over clients; scalars are not counted",
    "vectors_down": "d-vectors sent to a client, likewise",
    "bytes_up": "bytes sent by a client, cumulative, averaged over clients; everything in the message counts",
    "bytes_down": "bytes sent to a client, likewise",
    "gradients": "gradient evaluations of a client (full or mini-batch), cumulative, averaged over clients",
    "rows": "rows that a client reads for gradients, values, Hessians and Hessian-vector products, likewise",
    "values": "evaluations of f_i by a client, likewise",
    "hessians": "Hessians of f_i (or parts of one) worked out by a client, likewise",
    "hvps": "Hessian-vector products worked out by a client, likewise",
    "client_proxes": "prox evaluations of a client, likewise; that of its local model at the end of a round counts",
    "server_proxes": "prox evaluations of the server, cumulative",
    "participants": "rounds that each site has taken part in, cumulative: one number for each site (only on request)",
    "clock": "simulated seconds of the cost model, cumulative (only when `clock` is given)",
    "seconds": "wall-clock time of the rounds, without compilation and without measuring",
}

# Cumulative columns; all others, those of a user's own `measure` included, describe the model.
COUNTED = frozenset({
    "round", "exchanges", "vectors_up", "vectors_down", "bytes_up", "bytes_down", "gradients", "rows", "values", "hessians",
    "hvps", "client_proxes", "server_proxes", "participants", "clock", "seconds",
})  # fmt: skip
SHOWN_COLUMNS = ("round", "objective", "optimality", "gradient_mapping", "nonzeros", "gradients", "bytes_up", "seconds")
SHOWN_ROWS = 8  # of a trace in a notebook, evenly spread: the first and the last are there


@dataclass(frozen=True)
class Members:
    """The sites of a run, in their order, to recognise them when a run is resumed."""

    names: tuple[Any, ...] | range  # a range for sites without names
    rows: np.ndarray
    weights: np.ndarray  # p_i
    # one sum over the rows of each site, NaN where they were not read; None where the rows were elsewhere
    fingerprints: np.ndarray | None = None

    def __getitem__(self, order: list[int]) -> Members:
        """The sites in another order."""
        marks = None if self.fingerprints is None else self.fingerprints[order]
        return Members(tuple(self.names[i] for i in order), self.rows[order], self.weights[order], marks)


@dataclass(frozen=True)
class RunState:
    """The state to resume a run from: rounds done, and the leaves of the server's and the clients' states."""

    rounds: int
    server: list[np.ndarray]
    clients: list[np.ndarray]  # each with one row per site, in the order of the sites
    members: Members | None = None  # None where the sites are unknown
    # Where `clients` has rows of some clients only (`simulate_out_of_core`): their numbers, and -1 for all others, in the last row.
    of: np.ndarray | None = None

    __repr__ = shapes_shown


@dataclass(frozen=True)
class Trace:
    """The record of a run: one row per recorded round, row 0 the start.

    `trace["optimality"]` is a NumPy array. Costs (round trips, vectors, bytes, calls, rows) are cumulative, those of
    clients for one on average; `compfed.trace.COLUMNS` describes each column.

    Attributes
    ----------
    columns : dict from names to arrays
        One entry per recorded round.
    x : array of shape (d,)
        The model.
    provenance : dict
        Algorithm, problem, options, device and versions of the run.
    state : RunState or None
        The state to resume from; None if the run diverged.

    Examples
    --------
    >>> import compfed as cf
    >>> sites = cf.data.synthetic(clients=3, samples=20, features=4)
    >>> problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    >>> trace = cf.simulate(problem, cf.algorithms.FISTA(eta=0.5), 4, record_every=2)
    >>> trace["round"].tolist(), trace["bytes_up"].tolist()
    ([0, 2, 4], [0.0, 64.0, 128.0])
    """

    columns: dict[str, np.ndarray]
    x: np.ndarray
    provenance: JsonTable = field(default_factory=dict)
    state: RunState | None = None

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            hint = " Give x_star=x_star to record it." if column == "optimality" else ""
            raise InputError(f"this trace has no column {column!r}; it has {', '.join(self.columns)}.{hint}")
        return self.columns[column]

    def __repr__(self) -> str:
        name = self.provenance.get("algorithm", {}).get("name", "unknown method")
        last = {c: f"{self[c][-1]:.3g}" for c in ("objective", "optimality", "gradient_mapping") if c in self}
        ends = "".join(f", {name} {value}" for name, value in last.items()) if len(self) else ""
        diverged = ", diverged" if "diverged" in self.provenance else ""
        rounds = f"{int(self['round'][-1])} rounds" if len(self) else "no rounds"
        return f"Trace({name}, {rounds}, {len(self)} rows of {len(self.columns)} columns, {self.x.size} coefficients{ends}{diverged})"

    def _repr_html_(self) -> str:
        columns = [name for name in SHOWN_COLUMNS if name in self and self[name].ndim == 1]
        places = dict.fromkeys(np.linspace(0, len(self) - 1, min(len(self), SHOWN_ROWS)).round().astype(int).tolist())
        cells = [[f"{self[name][k]:.6g}" for name in columns] for k in places]
        return html_table(repr(self), cells, columns) if columns else html_table(repr(self), [])

    def __contains__(self, column: str) -> bool:
        return column in self.columns

    def __len__(self) -> int:
        return len(self.columns["round"])

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def first(self, column: str, below: float) -> int | None:
        """The first recorded round whose `column` is at most `below`, or None."""
        hits = np.flatnonzero(self[column] <= below)
        return int(self["round"][hits[0]]) if hits.size else None

    def then(self, later: Trace) -> Trace:
        """This trace, followed by one that started from its model; rounds and costs add up."""
        columns = {}
        for c in self:
            after = later.columns.get(c, np.full((len(later), *self[c].shape[1:]), np.nan))[1:]
            columns[c] = np.concatenate([self[c], after + self[c][-1] if c in COUNTED else after])
        return Trace(columns, later.x, later.provenance, None)

    def after(self, **spent: float) -> Trace:
        """This trace, with costs added before its first row: rounds, bytes_up, ..."""
        columns = {c: values + spent.get(c, 0) for c, values in self.columns.items()}
        return Trace(columns, self.x, self.provenance, self.state)

    def to_pandas(self) -> pandas.DataFrame:
        """The columns as a pandas DataFrame, indexed by round; vectors `v` as columns `v[0]`, `v[1]`, ..."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("pandas", "pandas", "Trace.to_pandas()") from None
        flat = {}
        for name, values in self.columns.items():
            for place in np.ndindex(values.shape[1:]):  # a single place, for a column of numbers
                flat[name + (str(list(place)) if place else "")] = values[(slice(None), *place)]
        return pandas.DataFrame(flat).set_index("round")

    def save(self, path: str | Path) -> Path:
        """Write one .npz file (the suffix is added if missing); `Trace.load` reads it back exactly."""
        target = _npz(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        arrays = {f"column/{name}": values for name, values in self.columns.items()} | {"x": self.x}
        head: dict[str, Any] = {"provenance": self.provenance, "columns": list(self.columns), "rounds": None}
        if self.state is not None:
            state, members = self.state, self.state.members
            head |= {"rounds": state.rounds, "leaves": [len(state.server), len(state.clients)]}
            arrays |= {f"server/{i:03d}": leaf for i, leaf in enumerate(state.server)}
            arrays |= {f"clients/{i:03d}": leaf for i, leaf in enumerate(state.clients)}
            if state.of is not None:
                arrays["of"] = state.of
            if members is not None:
                head["names"] = len(members.names) if isinstance(members.names, range) else list(members.names)
                facts = {"rows": members.rows, "weights": members.weights, "fingerprints": members.fingerprints}
                arrays |= {f"members/{name}": values for name, values in facts.items() if values is not None}
        with atomic_path(target) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, head=np.array(json.dumps(head, default=plain)), **arrays)
        return target

    @staticmethod
    def load(path: str | Path) -> Trace:
        """Read a trace that `save` wrote."""
        source = _npz(path)
        if not source.exists():
            raise InputError(f"there is no trace at {source}.")
        has_head = True
        try:
            with source.open("rb") as file:
                stored = np.load(file, allow_pickle=False)
                arrays = {name: stored[name] for name in getattr(stored, "files", ())}  # a single array has no files
            has_head = "head" in arrays
            return _read(json.loads(str(arrays.pop("head"))), arrays)
        except OSError as problem:
            raise InputError(f"{source} cannot be read: {problem.strerror or problem}.") from None
        except Exception as problem:  # damaged bytes may raise anything in the readers of NumPy, zip and JSON
            if not has_head or not zipfile.is_zipfile(source):
                raise InputError(f"{source} is not a trace: not written by Trace.save, or not to its end.") from None
            missing = isinstance(problem, KeyError)
            what = f"{problem.args[0]!r} is missing" if missing else str(problem) or type(problem).__name__
            damage = f"{source} is a damaged trace ({shorten(what, 200)})"
            raise InputError(f"{damage}. Write it again with Trace.save, or take another copy.") from None


def _npz(path: str | Path) -> Path:
    return Path(path) if Path(path).suffix == ".npz" else Path(f"{path}.npz")


def _read(head: object, arrays: dict[str, np.ndarray]) -> Trace:
    """The trace of a file's head and arrays; raises if a part is missing or does not fit the others."""
    if not isinstance(head, dict) or not isinstance(head["provenance"], dict):
        raise ValueError("its head is not a table")
    columns = {name: arrays[f"column/{name}"] for name in head["columns"]}
    if "round" not in columns:
        raise KeyError("round")
    own = [values for name, values in columns.items() if name in COLUMNS and name != "participants"]
    if any(values.ndim != 1 for values in own) or len({values.shape[:1] for values in columns.values()}) > 1:
        raise ValueError("its columns are of different lengths")
    return Trace(columns, arrays["x"], head["provenance"], None if head["rounds"] is None else _state(head, arrays))


def _state(head: dict[str, Any], arrays: dict[str, np.ndarray]) -> RunState:
    server, clients = (
        [arrays[f"{part}/{i:03d}"] for i in range(count)]
        for part, count in zip(("server", "clients"), head["leaves"], strict=True)
    )
    if len({len(leaf) for leaf in clients}) > 1:
        raise ValueError("its client states are of different numbers of clients")
    members = None
    if "names" in head:
        facts = [arrays[f"members/{name}"] for name in ("rows", "weights")]
        names = range(head["names"]) if isinstance(head["names"], int) else tuple(head["names"])
        members = Members(names, *facts, fingerprints=arrays.get("members/fingerprints"))
        if any(values.shape != (len(members.names),) for values in facts):
            raise ValueError("its sites are of different numbers")
    if not is_int(head["rounds"]) or head["rounds"] < 0:
        raise ValueError(f"it says that {head['rounds']} rounds were done")
    of = arrays.get("of")
    if of is not None and any(len(leaf) != len(of) for leaf in clients):
        raise ValueError("its client states are of other clients than it says")
    return RunState(int(head["rounds"]), server, clients, members, of)
