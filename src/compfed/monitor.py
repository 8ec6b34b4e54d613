"""From what an engine saw to a trace: the run, its costs, and where a model blew up. Reads no row.

What a round costs: messages and evaluations, counted on a round of the algorithm itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.precision import precision
from compfed._utils.records import describe
from compfed._utils.text import versions
from compfed.algorithms.base import Algorithm, dense
from compfed.algorithms.contract import FlatLoss
from compfed.errors import Divergence, InputError
from compfed.problem_spec import ProblemSpec
from compfed.sampling import Scheme
from compfed.trace import COLUMNS, State, Trace

Progress = Callable[[int, int], None]  # (rounds done, rounds in all)
Measure = Callable[[np.ndarray], Mapping[str, np.ndarray]]  # columns of the models in the rows of an array
# A model this much larger than where it started (or than the reference) has diverged, unless its objective is lower.
BLOW_UP = 1e10


@dataclass(frozen=True)
class Run:
    """A checked request: `algorithm` is ready to run, numbers are whole, arrays have the right shape."""

    problem: ProblemSpec
    algorithm: Algorithm
    rounds: int
    batch_size: int | None
    participants: int
    record_every: int
    seed: int
    x0: np.ndarray
    x_star: np.ndarray | None
    resume: Trace | None
    sampling: Scheme | None = None  # how a sample stands for all; None where all take part

    @property
    def start(self) -> int:
        """Rounds done before this run."""
        return 0 if self.resume is None or self.resume.state is None else self.resume.state.rounds

    def recorded(self) -> list[int]:
        """Rounds after which something is recorded: every k-th, and the last."""
        marks = list(range(self.start, self.start + self.rounds + 1, self.record_every))
        last = self.start + self.rounds
        return marks if marks[-1] == last else [*marks, last]


def first_state(run: Run) -> tuple[Any, Any]:
    """Server state, and client states stacked along a first axis in the order of the sites: fresh, or as saved."""
    n = run.problem.n
    server, client = jax.tree.map(np.asarray, run.algorithm.init(jnp.asarray(run.x0)))
    clients = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (n, *leaf.shape)), client)
    if run.resume is None or run.resume.state is None:
        return server, clients
    saved = run.resume.state
    return (
        jax.tree.unflatten(jax.tree.structure(server), saved.server),
        jax.tree.unflatten(jax.tree.structure(clients), saved.clients),
    )


class Recorder:
    """Collects what an engine saw and makes a trace of it."""

    def __init__(self, run: Run, engine: str, measure: Measure | None = None):
        self.run, self.engine, self.measure = run, engine, measure
        self.spending = _spending(run)
        self.before: dict[str, float] = {}  # spent by the run this one goes on from
        self.blocks: list[dict[str, np.ndarray]] = []
        self.x = run.x0
        self.size = np.linalg.norm(run.x0) + (0.0 if run.x_star is None else np.linalg.norm(run.x_star)) + 1.0
        self.seconds = 0.0
        self.blown: int | None = None  # the round in which the model blew up
        self.arrived = False  # did it stop because it was accurate enough?
        self.more: dict[str, Any] = {}  # further provenance
        if run.resume is not None:
            self.seconds = float(run.resume["seconds"][-1])
            self.before = {name: run.resume.columns.get(name, [np.nan])[-1] for name in self.spending.first}
            self.blocks.append(run.resume.columns)
            self.x = run.resume.x

    def of(self, run: Run) -> Recorder:
        """What was seen, said of another run: one that is bound to be the same."""
        other = copy.copy(self)
        other.run, other.more = run, dict(self.more)
        return other

    @property
    def last_round(self) -> int:
        return int(self.blocks[-1]["round"][-1]) if self.blocks else -1

    def add(self, rounds: np.ndarray, models: np.ndarray, seen: dict[str, np.ndarray], seconds: float) -> None:
        """Record `models` after `rounds`, worked out in `seconds`; stops recording at the first that blew up."""
        if self.blown or not len(rounds):
            return
        for name, values in seen.items():
            before = self.blocks[0].get(name, values) if self.blocks else values
            if before.shape[1:] != values.shape[1:]:
                raise InputError(
                    f"measure: column {name!r} has shape {values.shape[1:]} in a row and had {before.shape[1:]} in the run that "
                    "this one goes on from; give it another name."
                )
        good = self._good(models, seen)
        keep = len(rounds) if good.all() else int(good.argmin())
        if keep < len(rounds):
            self.blown = int(rounds[keep])
        start, span = max(self.last_round, 0), max(int(rounds[-1]) - max(self.last_round, 0), 1)
        if keep:
            block: dict[str, np.ndarray] = {"round": rounds[:keep]}
            known = {name: values[:keep] for name, values in seen.items()}
            block |= self._described(models[:keep], known)
            block |= {n: self.before.get(n, 0.0) + spent for n, spent in self.spending.after(rounds[:keep]).items()}
            block["seconds"] = self.seconds + seconds * (rounds[:keep] - start) / span
            self.blocks.append(block)
            self.x = models[keep - 1]
        self.seconds += seconds

    def _good(self, models: np.ndarray, seen: dict[str, np.ndarray]) -> np.ndarray:
        """Which models have not blown up: those of a usual size, and larger ones with an objective below the first."""
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = np.linalg.norm(models.astype(float), axis=1)
            good = sizes < BLOW_UP * self.size  # False for NaN
            large = ~good & np.isfinite(sizes)
            if not large.any() or not self.blocks:
                return good
            objective = seen.get("objective")
            if objective is None and self.measure is not None:
                objective = self.measure(models).get("objective")
            first = self.blocks[0].get("objective")
            if objective is None or first is None:
                return good
            return good | (large & (objective <= first[0]))

    def _described(self, X: np.ndarray, known: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The columns of models: what the engine knows of them, and what is left to measure."""
        out: dict[str, np.ndarray] = {"nonzeros": np.count_nonzero(X, axis=1), **known}
        if self.run.x_star is not None:
            scale = np.linalg.norm(self.run.x_star)
            out["optimality"] = np.linalg.norm(X - self.run.x_star, axis=1) / (scale if scale > 0 else 1.0)
        return out if "gradient_mapping" in known or self.measure is None else {**out, **self.measure(X)}

    def trace(self, server: Any, clients: Any, where: str = "") -> Trace:
        """The trace of everything recorded; one that blew up says so and has no state to go on from."""
        present = {c: None for block in self.blocks for c in block}
        names = [c for c in COLUMNS if c in present] + [c for c in present if c not in COLUMNS]
        columns = {c: _whole_column(self.blocks, c) for c in names}
        provenance = self.provenance() | self.more
        if self.blown:
            provenance["diverged"] = self._what_happened(where)
            return Trace(columns, np.array(self.x), provenance)
        leaves = [[np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (server, clients)]
        return Trace(
            columns, np.array(self.x), provenance, State(self.last_round, *leaves, members=self.run.problem.members())
        )

    def diverged(self, round_: int, where: str = "") -> Divergence:
        """The error for a run that blew up in `round_`."""
        self.blown = round_
        trace = self.trace(None, None, where)
        return Divergence(trace.provenance["diverged"], trace)

    def _what_happened(self, where: str) -> str:
        return (
            f"{type(self.run.algorithm).__name__} diverged in round {self.blown}{where}: the model is not finite or "
            f"grew {BLOW_UP:.0e}-fold. {likely_cause(self.run)} Rounds 0 to {self.last_round} are kept in the trace."
        )

    def provenance(self) -> dict[str, Any]:
        run = self.run
        return {
            "engine": self.engine,
            "algorithm": describe(run.algorithm),
            "problem": run.problem.describe(),
            "rounds": self.last_round,
            "batch_size": run.batch_size,
            "participants": run.participants,
            "sampling": run.sampling,
            "record_every": run.record_every,
            "seed": run.seed,
            "x_star": None
            if run.x_star is None
            else {"norm": float(np.linalg.norm(run.x_star)), "nonzeros": int(np.count_nonzero(run.x_star))},
            "dtype": run.problem.dtype.name,
            "device": str(jax.devices()[0].device_kind),
            "versions": dict(versions()),
        }


def _whole_column(blocks: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    """All of a column. What only one part of a resumed run measured is NaN in the other."""
    shape = next(block[name].shape[1:] for block in blocks if name in block)
    return np.concatenate(
        [block[name] if name in block else np.full((len(block["round"]), *shape), np.nan) for block in blocks]
    )


def _spending(run: Run) -> Spending:
    problem = run.problem
    return Spending(
        run.algorithm, problem.d, problem.dtype, share=run.participants / problem.n,
        rows=problem.describe()["samples"]["total"] / problem.n, batch_size=run.batch_size, start=run.start,
    )  # fmt: skip


def likely_cause(run: Run) -> str:
    """Compare the step with what the smoothness of the losses allows, where that is known."""
    eta = getattr(run.algorithm, "eta", None)
    with precision(run.problem.dtype):
        known = getattr(run.problem, "client_lipschitz", None)
    if eta is None or known is None:
        return "Likely cause: step sizes too large for this problem."
    safe = 1.0 / float(known.max())
    if eta > safe:
        return f"Likely cause: eta={eta:g} is {eta / safe:.3g} times 1/L_max={safe:.3g}; try eta <= {safe:.3g}."
    return (
        f"Likely cause: eta={eta:g} (1/L_max={safe:.3g}) together with eta_g and tau is too long a step; reduce them."
    )


DRAWN = 1024  # rounds whose lengths are drawn together


@dataclass(frozen=True)
class Cost:
    """One round of one participating client (and of the server, for server_proxes)."""

    vectors_up: float
    vectors_down: float
    bytes_up: float
    bytes_down: float
    gradients: float  # evaluations, over a mini-batch or over all rows
    full_gradients: float  # those of them that are over all rows whatever the batch size
    client_proxes: float
    server_proxes: float

    def columns(self, rows: float, batch_size: int | None) -> dict[str, float]:
        """What a trace counts, for clients with `rows` rows: their gradients are of different lengths, so rows too."""
        counted = asdict(self)
        full = counted.pop("full_gradients")
        each = rows if batch_size is None else batch_size
        return counted | {"gradient_rows": (self.gradients - full) * each + full * rows}


class _CountingLoss(FlatLoss):
    """A loss with zero gradient that counts how often it is asked, and how often for all rows."""

    def __init__(self) -> None:
        self.asked = self.asked_for_all = 0

    def grad(self, x: Array, key: Array) -> Array:
        self.asked += 1
        return super().full_grad(x)

    def full_grad(self, x: Array) -> Array:
        self.asked += 1
        self.asked_for_all += 1
        return super().full_grad(x)


class _CountingRegulariser:
    def __init__(self) -> None:
        self.steps: list[Any] = []  # the t of every prox

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        self.steps.append(t)
        return x


_counted: dict[Any, Cost] = {}


def cost_of_a_round(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    """Counted, not declared: a round is run on a zero loss with every loop as a Python loop.

    Where the length of a round is drawn, this is what one of average length would cost.
    """
    first, more = _prices(algorithm, d, dtype, everyone)
    if more is None:
        return first
    mean = float(_lengths(algorithm, 0, dtype).mean())
    return Cost(*(a + (mean - 1.0) * b for a, b in zip(astuple(first), astuple(more), strict=True)))


class Spending:
    """What a run has spent after some of its rounds: a client on average over all of them, and the server's proxes.

    `share` of the clients take part in a round, `rows` is what a client has on average, `start` the rounds done before.
    """

    def __init__(
        self, algorithm: Algorithm, d: int, dtype: np.dtype, *, share: float, rows: float, batch_size: int | None, start: int
    ):  # fmt: skip
        def priced(cost: Cost) -> dict[str, float]:
            counted = cost.columns(rows, batch_size)
            return {name: value * (1.0 if name == "server_proxes" else share) for name, value in counted.items()}

        first, more = _prices(algorithm, d, dtype, everyone=share == 1)
        self.first, self.more = priced(first), None if more is None else priced(more)
        self.algorithm, self.dtype, self.start = algorithm, dtype, start
        self._steps = np.zeros(1)  # after so many rounds of this run, beyond one in each

    def after(self, rounds: np.ndarray) -> dict[str, np.ndarray]:
        """After `rounds`, counted from the very first one, what the rounds since `start` cost."""
        done = rounds - self.start
        if self.more is None:
            return {name: done * price for name, price in self.first.items()}
        while len(self._steps) <= done.max():
            drawn = _lengths(self.algorithm, self.start + len(self._steps) - 1, self.dtype)
            self._steps = np.concatenate([self._steps, self._steps[-1] + np.cumsum(drawn - 1.0)])
        return {name: done * price + self._steps[done] * self.more[name] for name, price in self.first.items()}


_drawn = jax.jit(lambda algorithm, rounds: jax.vmap(algorithm.local_steps)(rounds))


def _lengths(algorithm: Algorithm, start: int, dtype: np.dtype) -> np.ndarray:
    """Local steps of rounds start, start + 1, ...: the draws of the clients, made once more."""
    with precision(dtype):
        return np.asarray(_drawn(algorithm, jnp.arange(start, start + DRAWN, dtype=jnp.int32)))


def _prices(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> tuple[Cost, Cost | None]:
    """A round, and None; where lengths are drawn, a round of one local step, and what each further step adds."""
    with precision(dtype):
        drawn = algorithm.local_steps(jnp.zeros((), jnp.int32)) is not None
    if not drawn:
        return _cost(algorithm, d, dtype, everyone), None
    one, two = (_cost(algorithm.with_local_steps(k), d, dtype, everyone) for k in (1, 2))
    return one, Cost(*(b - a for a, b in zip(astuple(one), astuple(two), strict=True)))


def _cost(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    case = (jax.tree.structure(algorithm), d, dtype, everyone)  # step sizes do not change the count
    if case not in _counted:
        _counted[case] = _count(algorithm, d, dtype, everyone)
    return _counted[case]


def largest_prox_step(algorithm: Algorithm) -> float:
    """The largest t in a prox_{t g} of the first round: what a weakly convex g puts a bound on."""
    g = _CountingRegulariser()
    with precision(np.dtype(float)), jax.disable_jit():
        _messages(algorithm, jnp.zeros(1), _CountingLoss(), g, g, everyone=True)
    return max((float(t) for t in g.steps), default=0.0)


def _count(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    f, g, server_g = _CountingLoss(), _CountingRegulariser(), _CountingRegulariser()
    with precision(dtype), jax.disable_jit():
        x0 = jax.ShapeDtypeStruct((d,), dtype)
        up, down = jax.eval_shape(lambda x0: _messages(algorithm, x0, f, g, server_g, everyone), x0)
    totals = (*_size(up, d), *_size(down, d), f.asked, f.asked_for_all, len(g.steps), len(server_g.steps))
    vectors_up, bytes_up, vectors_down, bytes_down, *calls = map(float, totals)
    return Cost(vectors_up, vectors_down, bytes_up, bytes_down, *calls)


def _messages(
    algorithm: Algorithm,
    x0: Array,
    f: _CountingLoss,
    g: _CountingRegulariser,
    server_g: _CountingRegulariser,
    everyone: bool,
) -> tuple[list[Any], list[Any]]:
    """Every message up and every message down of a round."""
    up, down = [], []
    share, key = jnp.ones((), x0.dtype), jax.random.key(0)
    s, c = algorithm.init(x0)
    for exchange in algorithm.exchanges:
        d = exchange.broadcast(server_g, s)
        u, c, _ = exchange.client_update(f, g, d, c, key)
        s = exchange.server_update(server_g, s, dense(u, x0.size), share)
        up.append(u)
        down.append(d)
    if algorithm.finishes_rounds():
        result = algorithm.exchanges[0].broadcast(_CountingRegulariser(), s)
        if not everyone:  # with everyone present the closing message is the next round's opening one
            down.append(result)
        c = algorithm.finish_round(g, result, c)
    return up, down


def _size(messages: list[Any], d: int) -> tuple[float, int]:
    """(d-vectors, bytes) of some messages. Scalars and counters are bytes, but not vectors."""
    leaves = jax.tree.leaves(messages)
    return sum(leaf.size for leaf in leaves if leaf.ndim) / d, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
