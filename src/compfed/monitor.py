"""The monitor of a run: what is recorded, whether the model has diverged, and whether it has converged.

Every loop (compiled, message by message, out of core) hands its models to a `Monitor` and asks it whether to go on. The rules are
`has_diverged` and `has_converged` in `stopping.py`. A monitor reads no row: the columns that need rows come from an `evaluate`
function of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils.compilation import jit, precision
from compfed._utils.records import describe
from compfed._utils.text import versions
from compfed.algorithms.base import Algorithm
from compfed.algorithms.costs import MESSAGES, WORK, Counts, CumulativeCost, cost_of_a_round
from compfed.errors import Divergence, InputError
from compfed.problem_spec import ProblemSpec
from compfed.sampling import Scheme
from compfed.stopping import GROWTH, has_converged, has_diverged
from compfed.trace import COLUMNS, RunState, Trace

Columns = Mapping[str, np.ndarray]
Progress = Callable[[int, int], None]  # (rounds done, rounds in all)
Evaluate = Callable[[np.ndarray], Columns]  # columns of the models in the rows of an array
Metric = Callable[[Any], Any]  # a number, or an array, from the parameters of a model
Schedule = Callable[[Any], Any]  # the value of a step size in round r


class ClientSeconds(NamedTuple):
    """The simulated seconds of each client, in the order of the sites: of a round trip, a byte each way, and a row."""

    latency: Any
    byte_down: Any
    byte_up: Any
    row: Any


@dataclass(frozen=True)
class RunOptions:
    """The options of one run, checked: the algorithm is bound to the problem, and arrays have the right shape."""

    problem: ProblemSpec
    algorithm: Algorithm
    rounds: int
    batch_size: int | None
    participants: int
    record_every: int
    seed: int
    x0: np.ndarray
    x_star: np.ndarray | None = None
    resume: Trace | None = None
    sampling: Scheme | None = None  # None where all clients take part
    tol: float | None = None  # stop at the first recorded round whose gradient mapping is at most this
    step: float = 0.0  # of the gradient mapping
    columns: frozenset[str] | None = None  # of a trace's own columns, those to record; None for all that the loop has
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    schedules: tuple[tuple[str, Schedule], ...] = ()
    clock: ClientSeconds | None = None
    budget: Mapping[str, float] = field(
        default_factory=dict
    )  # by cumulative columns; the run ends before a record that costs more

    @property
    def start(self) -> int:
        """Rounds done before this run."""
        return 0 if self.resume is None or self.resume.state is None else self.resume.state.rounds

    def records(self, column: str) -> bool:
        """Whether one of a trace's own columns is recorded, where the loop has it."""
        return self.columns is None or column in self.columns

    @property
    def counts_calls(self) -> bool:
        """Whether calls of losses and regularisers are recorded."""
        return self.clock is not None or any(self.records(column) or column in self.budget for column in WORK)

    @property
    def counts_participants(self) -> bool:
        """Whether the rounds of each client are recorded."""
        return self.participants < self.problem.n and self.columns is not None and "participants" in self.columns

    @property
    def evaluates(self) -> bool:
        """Whether recorded models are evaluated on the rows."""
        return self.records("objective") or self.records("gradient_mapping")

    @property
    def last(self) -> int:
        """The number of the last round."""
        return self.start + self.rounds

    def is_recorded(self, r: int) -> bool:
        """Whether the model after round r is recorded: every `record_every`-th is, and the last."""
        return (r - self.start) % self.record_every == 0 or r == self.last


def first_state(run: RunOptions) -> tuple[Any, Any]:
    """The server state, and the client states stacked in the order of the sites: fresh, or those of `resume`."""
    server, client = jax.tree.map(np.asarray, run.algorithm.init(jnp.asarray(run.x0)))
    clients = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (run.problem.n, *leaf.shape)), client)
    if run.resume is None or run.resume.state is None:
        return server, clients
    saved = (run.resume.state.server, run.resume.state.clients)
    server, clients = map(jax.tree.unflatten, map(jax.tree.structure, (server, clients)), saved)
    return server, clients


def cost_of(run: RunOptions) -> CumulativeCost:
    """The costs of a run."""
    problem, everyone = run.problem, run.participants == run.problem.n
    cost = cost_of_a_round(
        run.algorithm, problem.d, problem.dtype, everyone, problem.regulariser, calls=run.counts_calls
    )
    return CumulativeCost(cost, problem.sizes, run.batch_size, run.participants, run.start)


COSTS = (*MESSAGES, *WORK, "clock", "participants")  # cumulative columns that a run adds to those it resumes


class Monitor:
    """Records the models of one run and makes a trace of them.

    Parameters
    ----------
    run : RunOptions
    engine : str
        Name of the loop, for the provenance.
    evaluate : callable, optional
        Columns of models that the loop itself has not evaluated.

    Attributes
    ----------
    diverged : int or None
        The round in which the model diverged.
    converged : bool
        Whether a recorded gradient mapping is at most `run.tol`.
    provenance : dict
        Further entries for the provenance of the trace.
    """

    def __init__(self, run: RunOptions, engine: str, evaluate: Evaluate | None = None):
        self.run, self.engine, self.evaluate = run, engine, evaluate
        self.cost = cost_of(run)
        self.diverged: int | None = None
        self.provenance: dict[str, Any] = {}
        self.converged, self.seconds, self.x = False, 0.0, run.x0
        self.spent = False  # whether the budget does not buy another record
        self._blocks: list[Columns] = []
        self._cost_before: dict[str, float] = {}  # of the run that this one resumes
        self._size = np.linalg.norm(run.x0) + (0.0 if run.x_star is None else np.linalg.norm(run.x_star)) + 1.0
        if run.resume is not None:
            self.seconds = float(run.resume["seconds"][-1])
            self._cost_before = {name: run.resume[name][-1] for name in COSTS if name in run.resume}
            self._blocks.append(run.resume.columns)
            self.x = run.resume.x

    @property
    def done(self) -> bool:
        """Whether the run has ended before its last round."""
        return self.converged or self.spent or self.diverged is not None

    @property
    def last_round(self) -> int:
        """The last recorded round; -1 before the first record."""
        return int(self._blocks[-1]["round"][-1]) if self._blocks else -1

    def new_rounds(self, rounds: np.ndarray, not_finite: int = 0) -> np.ndarray:
        """Positions of the rounds to record: those after the last record, before the server state was not finite.

        After such a round (`not_finite`, 0 for none) no model counts, even a finite one: a bounded g can hide it.
        """
        if self.diverged:
            return np.zeros(0, int)
        return np.flatnonzero((rounds > self.last_round) & ((not_finite == 0) | (rounds < not_finite)))

    def record(
        self, rounds: np.ndarray, models: np.ndarray, columns: Columns, seconds: float, not_finite: int = 0,
        counts: Counts | None = None,
    ) -> None:  # fmt: skip
        """Record the models after `rounds`, up to the first that has diverged.

        Parameters
        ----------
        rounds : array of shape (k,)
        models : array of shape (k, d)
        columns : dict of arrays of length k
            Columns that the loop has evaluated itself.
        seconds : float
            Time of the rounds since the last record.
        not_finite : int
            The first round whose server state was not finite; 0 for none.
        counts : Counts, optional
            What the loop has counted after these rounds.
        """
        new = self.new_rounds(rounds, not_finite)
        if len(new):
            rounds, models, columns = rounds[new], models[new], {name: values[new] for name, values in columns.items()}
            counts = Counts() if counts is None else _rows_of_counts(counts, new)
            self._check_shapes(columns)
            good = self._not_diverged(models, columns)
            count = len(rounds) if good.all() else int(good.argmin())
            if count < len(rounds):
                self.diverged = int(rounds[count])
            if count:
                columns = {name: values[:count] for name, values in columns.items()}
                self._append(rounds, models[:count], columns, seconds, _rows_of_counts(counts, np.arange(count)))
            self.seconds += seconds
        self.diverged = self.diverged or not_finite or None

    def _append(self, rounds: np.ndarray, models: np.ndarray, columns: Columns, seconds: float, counts: Counts) -> None:
        count, before = len(models), max(self.last_round, 0)
        part_done = (rounds[:count] - before) / max(int(rounds[-1]) - before, 1)
        block = {"round": rounds[:count], "nonzeros": np.count_nonzero(models, axis=1), **columns}
        if self.run.x_star is not None:
            scale = np.linalg.norm(self.run.x_star)
            block["optimality"] = np.linalg.norm(models - self.run.x_star, axis=1) / (scale if scale > 0 else 1.0)
        if "objective" not in columns and self.evaluate is not None and self.run.evaluates:
            block |= self.evaluate(models)
        block |= self._metrics(models)
        costs = self.cost.after(rounds[:count], counts)
        if self.run.columns is not None and "participants" in self.run.columns:
            done = np.broadcast_to((rounds[:count] - self.run.start)[:, None], (count, self.run.problem.n))
            costs["participants"] = (done if counts.taken is None else counts.taken).astype(float)
        for name, cost in costs.items():
            unknown = np.nan if self.run.resume is not None else 0.0  # the run before did not count it
            block[name] = self._cost_before.get(name, unknown) + cost
        block["seconds"] = self.seconds + seconds * part_done
        kept = {"round", "seconds"}
        self._blocks.append({n: v for n, v in block.items() if n in kept or n not in COLUMNS or self.run.records(n)})
        self.x = models[-1]
        if self.run.tol is not None and "gradient_mapping" in block:
            self.converged = bool(has_converged(block["gradient_mapping"], self.run.tol).any())

    def affordable(self, rounds: np.ndarray, counts: Counts) -> int:
        """How many of the next records, after `rounds`, the budget pays for."""
        cost = copy(self.cost).after(rounds, counts) | {"round": rounds.astype(float)}
        over = np.zeros(len(rounds), bool)
        for name, amount in self.run.budget.items():
            over |= cost[name] + self._cost_before.get(name, 0.0) > amount
        return int(over.argmax()) if over.any() else len(rounds)

    def _metrics(self, models: np.ndarray) -> Columns:
        """The caller's own metrics of some models."""
        if not self.run.metrics:
            return {}
        unravel = getattr(self.run.problem.loss, "unravel", lambda x: x)
        found: dict[str, list[Any]] = {name: [] for name in self.run.metrics}
        with precision(self.run.problem.dtype):
            for x in models:
                values = _metric_values(tuple(self.run.metrics.values()), unravel(jnp.asarray(x)))
                for name, value in zip(found, values, strict=True):
                    found[name].append(np.asarray(value))
        return {name: np.array(values) for name, values in found.items()}

    def _check_shapes(self, columns: Columns) -> None:
        for name, values in columns.items():
            before = self._blocks[0].get(name, values) if self._blocks else values
            if before.shape[1:] != values.shape[1:]:
                shapes = f"shape {values.shape[1:]} in a row and had {before.shape[1:]} in the run that it continues"
                raise InputError(f"measure: column {name!r} has {shapes}; give it another name.")

    def _not_diverged(self, models: np.ndarray, columns: Columns) -> np.ndarray:
        """Which models have not diverged: those of a usual size, and larger ones with an objective below the first."""
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = np.linalg.norm(models.astype(float), axis=1)
            diverged = has_diverged(sizes, float(self._size), None, None)
            if not (diverged & np.isfinite(sizes)).any() or not self._blocks:
                return ~diverged
            objective = columns.get("objective")
            if objective is None and self.evaluate is not None:
                objective = self.evaluate(models).get("objective")
            first = self._blocks[0].get("objective")
            return ~has_diverged(sizes, float(self._size), objective, None if first is None else float(first[0]))

    def trace(self, server: Any, clients: Any, where: str = "") -> Trace:
        """The trace of everything recorded; that of a diverged run says so and has no state to resume from."""
        present = {c: None for block in self._blocks for c in block}
        names = [c for c in COLUMNS if c in present] + [c for c in present if c not in COLUMNS]
        columns = {c: _joined(self._blocks, c) for c in names}
        provenance = self._provenance() | self.provenance
        if self.diverged:
            provenance["diverged"] = (
                f"{type(self.run.algorithm).__name__} diverged in round {self.diverged}{where}: the model is not finite or "
                f"grew {GROWTH:.0e}-fold. {likely_cause(self.run)} Rounds 0 to {self.last_round} are kept in the trace."
            )
            return Trace(columns, np.array(self.x), provenance)
        leaves = [[np.asarray(leaf) for leaf in jax.tree.leaves(tree)] for tree in (server, clients)]
        state = RunState(self.last_round, *leaves, members=self.run.problem.members())
        return Trace(columns, np.array(self.x), provenance, state)

    def divergence(self, round_: int, where: str = "") -> Divergence:
        """The error for a run that diverged in `round_`."""
        self.diverged = round_
        trace = self.trace(None, None, where)
        return Divergence(trace.provenance["diverged"], trace)

    def _provenance(self) -> dict[str, Any]:
        run, star = self.run, self.run.x_star
        return {
            "engine": self.engine,
            "algorithm": describe(run.algorithm),
            "problem": run.problem.describe(),
            "rounds": self.last_round,
            **{name: getattr(run, name) for name in ("batch_size", "participants", "sampling", "record_every", "seed")},
            "x_star": star
            if star is None
            else {"norm": float(np.linalg.norm(star)), "nonzeros": int((star != 0).sum())},
            "dtype": run.problem.dtype.name,
            "device": str(jax.devices()[0].device_kind),
            "versions": dict(versions()),
        }


@partial(jit, static_argnames=("metrics",))
def _metric_values(metrics: tuple[Metric, ...], params: Any) -> list[Any]:
    return [jnp.asarray(metric(params)) for metric in metrics]


def _rows_of_counts(counts: Counts, rows: np.ndarray) -> Counts:
    """The counts of some records."""
    return Counts(*(None if of is None else np.asarray(of)[rows] for of in counts))


def _joined(blocks: list[Columns], name: str) -> np.ndarray:
    """A column of all blocks. Where only one part of a resumed run has it, the other is NaN."""
    shape = next(block[name].shape[1:] for block in blocks if name in block)
    return np.concatenate(
        [block[name] if name in block else np.full((len(block["round"]), *shape), np.nan) for block in blocks]
    )


def likely_cause(run: RunOptions) -> str:
    """Compare the step with 1/L_max, where the Lipschitz constants are known."""
    eta, problem = getattr(run.algorithm, "eta", None), run.problem
    known = None
    if problem.loss.curvature is not None and not run.schedules:  # else it is an estimate, which may take long
        with precision(problem.dtype):
            known = getattr(problem, "client_lipschitz", None)
    if eta is None or known is None:
        return "Likely cause: step sizes too large for this problem."
    safe = 1.0 / float(known.max())
    if eta > safe:
        return f"Likely cause: eta={eta:g} is {eta / safe:.3g} times 1/L_max={safe:.3g}; try eta <= {safe:.3g}."
    step = f"eta={eta:g} (1/L_max={safe:.3g}) together with eta_g and tau"
    return f"Likely cause: {step} is too long a step; reduce them."
