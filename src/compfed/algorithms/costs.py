"""Costs of a run: what its messages and its clients' calls add up to, for one client on average.

Messages are those of one round of the algorithm itself, run on shapes. Calls of the losses and regularisers are constants where
every loop has a fixed length; otherwise a loop counts them as they are made (`counting`), and hands over its `Counts`.
What a message of a federation costs is in `federation/accounting.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import precision
from compfed.algorithms.base import Algorithm
from compfed.algorithms.counting import (
    GRADIENTS,
    HESSIANS,
    HVPS,
    PROXES,
    VALUES,
    Marked,
    SmoothStandIn,
    fixed_calls,
    rows_read,
)  # fmt: skip
from compfed.algorithms.round import ZeroLoss, array_bytes, round_of_one_client
from compfed.regularisers import Regulariser, Zero

MESSAGES = ("exchanges", "vectors_up", "vectors_down", "bytes_up", "bytes_down")
WORK = ("gradients", "rows", "values", "hessians", "hvps", "client_proxes", "server_proxes")


@dataclass(frozen=True)
class Cost:
    """The cost of one round for one participating client (and for the server, in `server_proxes`).

    Calls that depend on data are not known before a run: they are NaN, and `calls` is None.
    """

    exchanges: float  # round trips
    vectors_up: float
    vectors_down: float
    bytes_up: float
    bytes_down: float
    calls: tuple[int, ...] | None  # of each of `counting.KINDS`
    server_proxes: float

    @property
    def gradients(self) -> float:
        """Evaluations of a gradient, over a mini-batch or over all rows."""
        return np.nan if self.calls is None else float(np.array(self.calls)[GRADIENTS].sum())

    @property
    def client_proxes(self) -> float:
        """Proximal steps of a client."""
        return np.nan if self.calls is None else float(self.calls[PROXES])

    @property
    def depends_on_data(self) -> bool:
        """Whether a loop has to count."""
        return self.calls is None or bool(np.isnan(self.server_proxes))


def cost_of_a_round(
    algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool, g: Regulariser | None = None, calls: bool = True
) -> Cost:
    """The cost of a round.

    `everyone` says whether all clients take part in every round. Then no message is spent on the end of a round. Without `calls`
    those of the losses and regularisers are left unknown.
    """
    g, dtype = Zero() if g is None else g, np.dtype(dtype)
    leaves, structure = jax.tree.flatten((algorithm, g))
    case = (structure, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves), d, dtype, everyone, calls)
    if case in _known:
        return _known[case]
    x0 = jax.ShapeDtypeStruct((d,), dtype)

    def shapes(algorithm: Algorithm, g: Regulariser, x0: Array) -> Any:
        return round_of_one_client(algorithm, SmoothStandIn(), g, g, x0)[:2]

    def client(algorithm: Algorithm, g: Regulariser, x0: Array) -> Any:
        return round_of_one_client(algorithm, Marked(SmoothStandIn()), Marked(g), g, x0)

    def server(algorithm: Algorithm, g: Regulariser, x0: Array) -> Any:
        # the message that ends a round opens the next one too
        return round_of_one_client(algorithm, SmoothStandIn(), g, Marked(g), x0, finish=False)

    with precision(dtype), jax.disable_jit(False):  # loops must be loops in the jaxpr
        exchanges, closing = jax.eval_shape(shapes, algorithm, g, x0)
        jaxprs = [jax.make_jaxpr(run)(algorithm, g, x0) for run in (client, server) if calls]
    of_client, of_server = map(fixed_calls, jaxprs) if calls else (None, None)
    up, down = [e.update for e in exchanges], [e.broadcast for e in exchanges]
    if closing is not None and not everyone:
        down.append(closing)
    _known[case] = cost = Cost(
        len(down), *(_vectors(up, d), _vectors(down, d), float(array_bytes(up)), float(array_bytes(down))),
        calls=None if of_client is None else tuple(of_client.tolist()),
        server_proxes=np.nan if of_server is None else float(of_server[PROXES]),
    )  # fmt: skip
    return cost


_known: dict[object, Cost] = {}


def _vectors(messages: list[object], d: int) -> float:
    """How many d-vectors some messages hold; scalars and counters are not counted."""
    return sum(leaf.size for leaf in jax.tree.leaves(messages) if leaf.ndim) / d


# --- a run ---


class Counts(NamedTuple):
    """What a loop has counted since it began, at each record; None for what it need not count."""

    taken: Any = None  # (records, clients): rounds that each client took part in
    calls: Any = None  # (records, clients, kinds)
    server: Any = None  # (records, kinds): calls of the server
    clock: Any = None  # (records,): simulated seconds


class CumulativeCost:
    """The cost of the first rounds of a run, averaged over all clients.

    Parameters
    ----------
    cost : Cost
        Of a round, for a client that takes part.
    sizes : array of shape (n,)
        Rows of each client.
    batch_size : int or None
    participants : int
        Clients that take part in a round.
    start : int
        Rounds done before this run, which it does not count.
    """

    def __init__(self, cost: Cost, sizes: np.ndarray, batch_size: int | None, participants: int, start: int):
        self.cost, self.start, self.n = cost, start, len(sizes)
        self.participants, self.share = participants, participants / self.n
        self.rows = np.asarray(sizes, np.int64)
        self.batch_rows = self.rows if batch_size is None else np.minimum(self.rows, batch_size)
        self._seen = Counts()
        self._total = Counts()

    @property
    def needs_participants(self) -> bool:
        """Whether the rows that a round reads depend on who takes part in it."""
        if self.share == 1 or self.cost.calls is None:
            return False
        return bool(np.ptp(rows_read(np.array(self.cost.calls), self.batch_rows, self.rows)) > 0)

    def after(self, rounds: np.ndarray, counts: Counts | None = None) -> dict[str, np.ndarray]:
        """The columns of a trace after `rounds`, which count from the very first round."""
        done = (
            np.asarray(rounds, np.int64) - self.start
        )  # the rows of all clients together are soon more than 32 bits hold
        counts = Counts() if counts is None else counts
        columns = {name: done * (getattr(self.cost, name) * self.share) for name in MESSAGES}
        columns["exchanges"] = done * float(self.cost.exchanges)  # of the federation
        columns |= self._work(done, counts)
        if counts.clock is not None:
            columns["clock"] = np.asarray(counts.clock, float)
        return columns

    def _work(self, done: np.ndarray, counts: Counts) -> dict[str, np.ndarray]:
        """Calls and rows. What the clients counted themselves and keep is left out."""
        cost, found = self.cost, {}
        taken, calls, server = (self._added_up(name, getattr(counts, name)) for name in ("taken", "calls", "server"))
        if cost.calls is not None:
            each = np.array(cost.calls)
            rows = rows_read(each, self.batch_rows, self.rows)
            of_all = (done * self.share)[:, None] * each  # for one client on average
            if taken is None:  # Python's whole numbers: rounds, rows and clients multiplied can exceed 64 bits
                whole = int(rows.sum()) * self.participants
                mean_rows = np.array([rounds * whole / self.n**2 for rounds in done.tolist()])
            else:
                mean_rows = taken @ rows / self.n
        elif calls is not None:
            of_all = calls.sum(axis=1) / self.n
            mean_rows = rows_read(calls, self.batch_rows, self.rows).sum(axis=1) / self.n
        else:
            of_all = mean_rows = None
        if of_all is not None and mean_rows is not None:
            found = {"gradients": of_all[:, GRADIENTS].sum(1), "rows": mean_rows, "values": of_all[:, VALUES]}
            found |= {
                "hessians": of_all[:, HESSIANS],
                "hvps": of_all[:, HVPS].sum(1),
                "client_proxes": of_all[:, PROXES],
            }
        if not np.isnan(cost.server_proxes):
            found["server_proxes"] = done * cost.server_proxes
        elif server is not None:
            found["server_proxes"] = server[:, PROXES].astype(float)
        return found

    def _added_up(self, name: str, counts: Any) -> np.ndarray | None:
        """Counts of 32 bits, which start again at 0, as whole numbers of 64 bits."""
        if counts is None:
            return None
        counts = np.asarray(counts).astype(np.uint32)
        seen, total = getattr(self._seen, name), getattr(self._total, name)
        before = np.zeros_like(counts[:1]) if seen is None else seen
        more = np.diff(counts, axis=0, prepend=before).astype(np.int64)  # modulo 2**32
        totals = np.cumsum(more, axis=0) + (0 if total is None else total)
        if len(counts):
            self._seen, self._total = (
                self._seen._replace(**{name: counts[-1:]}),
                self._total._replace(**{name: totals[-1]}),
            )
        return totals


# --- the prox of a weakly convex regulariser ---


class _Steps:
    """A zero regulariser that keeps the parameter t of every prox."""

    def __init__(self) -> None:
        self.steps: list[Array | float] = []

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        self.steps.append(t)
        return x


def largest_prox_step(algorithm: Algorithm) -> float:
    """The largest t in a prox_{t g} of the first round, which a weakly convex g bounds."""
    g = _Steps()
    with precision(np.dtype(float)), jax.disable_jit():
        round_of_one_client(algorithm, ZeroLoss(), g, g, jnp.zeros(1))
    return max((float(t) for t in g.steps), default=0.0)
