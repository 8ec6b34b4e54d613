"""Rounds of a local-update algorithm over a federation: the server's half, and rounds until a certificate holds.

`ServerLoop` runs one round after another by messages. Over sites in this process it is `simulation.run_plain`; over a network it
is the real federation. `Order` and `Runner` run models side by side, evaluated every few rounds. A federation whose rounds
are compiled has another runner (`simulation.local_federation`); the caller chooses, and both count the same messages.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils.compilation import jit, precision
from compfed.algorithms.base import Algorithm, PyTree
from compfed.algorithms.contract import check_contract
from compfed.algorithms.costs import largest_prox_step
from compfed.algorithms.round import run_round
from compfed.errors import InputError, RunWarning
from compfed.federation.codec import named
from compfed.federation.queries import Evaluate, FinishRound, Lipschitz, LocalUpdate, UpdateSum
from compfed.federation.server.program import Federation, Program, Request, Sums, gather
from compfed.federation.server.trial import Evaluated, Trial, evaluation, lipschitz_bounds
from compfed.federation.spec import FederatedProblem, RunSpec
from compfed.monitor import Monitor, Progress, RunOptions
from compfed.problem_spec import ProblemSpec, optimality_at
from compfed.regularisers import Regulariser, largest_step
from compfed.sampling import Scheme, inclusion_probabilities, mean_weights, participants, run_key, scheme_in_use
from compfed.trace import RunState, Trace

# Each stage of a round at the server, compiled on its own.
_broadcast = jit(lambda a, g, s, k: a.exchanges[k].broadcast(g, s), static_argnums=3)
_server_update = jit(
    lambda a, g, s, mean, weight, k: a.exchanges[k].server_update(g, s, mean, weight), static_argnums=5
)
_solution = jit(lambda a, g, s: a.solution(g, s))


class NotFinite(ArithmeticError):
    """A stage gave a number that is not finite."""

    def __init__(self, r: int, where: str, client: bool = False):
        super().__init__(f"round {r}{where}")
        self.r, self.where, self.client = r, where, client  # is it at a client? A sum does not say at which


class ServerLoop:
    """The server's half of one run: its state, and the rounds done.

    `checkpoint` is called with the state after every round, before the next message leaves: a server that is killed goes
    on from there with `restore`.
    """

    def __init__(
        self,
        run_spec: RunSpec,
        spec: FederatedProblem,
        participants: int | None = None,
        checkpoint: Callable[[RunState], None] | None = None,
        sampling: Scheme | None = None,
    ):
        self.run_spec, self.spec = run_spec, spec
        self.participants = spec.n if participants is None else participants
        self.scheme: Scheme = scheme_in_use(sampling, spec.weights, self.participants)
        proportional = self.scheme == "proportional"
        self.probabilities = inclusion_probabilities(spec.weights, self.participants) if proportional else None
        self.checkpoint = checkpoint
        self.r = 0  # rounds done
        with precision(spec.dtype):
            self.state, _ = run_spec.algorithm.init(jnp.asarray(run_spec.x0))

    def restore(self, saved: RunState) -> None:
        """Continue after the rounds of a checkpoint."""
        with precision(self.spec.dtype):
            leaves = [jnp.asarray(leaf) for leaf in saved.server]
            self.state = jax.tree.unflatten(jax.tree.structure(self.state), leaves)
        self.r = saved.rounds

    def model(self) -> np.ndarray:
        """The model after the rounds done."""
        with precision(self.spec.dtype):
            return np.asarray(_solution(self.run_spec.algorithm, self.run_spec.regulariser, self.state))

    def chosen(self, r: int) -> list[int]:
        """The participants of round r, in the order of the sites."""
        with precision(self.spec.dtype):
            numbers = jnp.asarray(self.spec.numbers)
            who = participants(
                self.scheme, self.probabilities, run_key(self.run_spec.seed), r, numbers, self.participants
            )
        return [int(i) for i in who]

    def round(self, extra: Sequence[Request] = ()) -> Program[Sums]:
        """Run one round by messages; the `extra` requests share its first message, and their sums are returned.

        `run_round` says what the server sends next. This program sends it to the participants and hands back the mean.
        """
        everyone = self.participants == self.spec.n
        participants = list(range(self.spec.n)) if everyone else self.chosen(self.r)
        weights, total_weight = mean_weights(self.scheme, self.probabilities, self.spec.weights, participants)
        sites = None if everyone else tuple(participants)
        stages: Any = _CompiledStages(self.run_spec.algorithm, self.r, self.spec.dtype)
        # where everyone takes part, the first broadcast of the next round is the message that ends this one
        messages: Any = run_round(stages, self.run_spec.regulariser, self.state, finish=not everyone)
        reply, extra_sums = None, list[Any]()
        while True:  # as `drive_round`, but each message leaves by a `yield`
            try:
                exchange, broadcast = messages.send(reply)
            except StopIteration as end:
                self._end_round(end.value)
                return extra_sums
            if exchange is None:  # the message that ends the round
                yield [Request((FinishRound(self.run_spec, self.r, named(broadcast)),), sites)]
                reply = None
            else:
                query = LocalUpdate(self.run_spec, self.r, exchange.k, named(broadcast))
                weighting = self.spec.weighting if everyone else None
                (updates,), *others = yield [Request((query,), sites, weights, weighting), *extra]
                extra, extra_sums = (), extra_sums + others
                reply = self._mean(updates, total_weight)

    def _mean(self, updates: UpdateSum, total_weight: float) -> tuple[PyTree, jax.Array]:
        """The weighted mean of the updates and the weight of the participants, if every update is finite."""
        if not updates.finite:
            raise NotFinite(self.r + 1, ", stage client_update", client=True)
        with precision(self.spec.dtype):
            return updates.u, jnp.asarray(total_weight, self.spec.dtype)

    def _end_round(self, state: PyTree) -> None:
        self.state, self.r = state, self.r + 1
        if self.checkpoint is not None:
            self.checkpoint(RunState(self.r, [np.asarray(leaf) for leaf in jax.tree.leaves(state)], []))


class _CompiledStages:
    """The server's stages of an algorithm in one round: each compiled on its own, and checked to be finite.

    It stands for the algorithm in `run_round`, which asks an algorithm for these two members only.
    """

    def __init__(self, algorithm: Algorithm, r: int, dtype: np.dtype):
        self.algorithm, self.r, self.dtype = algorithm, r, dtype
        self.exchanges = [_CompiledExchange(self, k) for k in range(len(algorithm.exchanges))]

    def finishes_rounds(self) -> bool:
        return self.algorithm.finishes_rounds()


class _CompiledExchange:
    def __init__(self, stages: _CompiledStages, k: int):
        self.stages, self.k = stages, k

    def broadcast(self, g: Regulariser, s: PyTree) -> PyTree:
        with precision(self.stages.dtype):
            return _broadcast(self.stages.algorithm, g, s, self.k)

    def server_update(self, g: Regulariser, s: PyTree, mean: PyTree, weight: jax.Array) -> PyTree:
        with precision(self.stages.dtype):
            state = _server_update(self.stages.algorithm, g, s, mean, weight, self.k)
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)):
            raise NotFinite(self.stages.r + 1, ", stage server_update")
        return state


CHECK = 10  # rounds between two evaluations of the certificate


@dataclass(frozen=True)
class Order:
    """Models to run: they share objective, algorithm and start, and differ in their regularisers."""

    specs: Sequence[FederatedProblem]
    algorithm: Algorithm
    x0: np.ndarray
    tol: float  # on the norm of the gradient mapping
    step: float  # of that mapping
    seed: int = 0
    progress: Progress | None = None
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of the runs

    @property
    def objective(self):
        return self.specs[0].objective

    def run_spec(self, spec: FederatedProblem) -> RunSpec:
        return RunSpec(
            number=next(self.numbers),
            algorithm=bind_algorithm(self.algorithm, spec, spec.n, self.seed),
            regulariser=spec.regulariser,
            objective=spec.objective,
            x0=np.asarray(self.x0, spec.dtype),
            seed=self.seed,
            batch_size=None,
            capacity=int(spec.sizes.max()),
        )

    def run(self, spec: ProblemSpec, rounds: int, resume: Trace | None = None) -> RunOptions:
        return RunOptions(
            spec, bind_algorithm(self.algorithm, spec, spec.n, self.seed), rounds, None, spec.n, CHECK, self.seed,
            np.asarray(self.x0, spec.dtype), None, resume, tol=self.tol, step=self.step,
        )  # fmt: skip


class Segment(NamedTuple):
    """One model after some rounds: its trace so far, and f at the model."""

    trace: Trace
    at: Evaluated | None  # None if the model diverged


class Runner(Protocol):
    def advance(self, rounds: int) -> Program[list[Segment]]:
        """Run so many more rounds for every model; each stops when its certificate holds."""
        ...


Rounds = Callable[[Order], Runner]
_numbers_of: WeakKeyDictionary[Federation, Iterator[int]] = WeakKeyDictionary()


def by_messages(federation: Federation) -> Rounds:
    """Rounds message by message. A federation numbers its own runs, from 0: one that is resumed sends the same queries."""
    numbers = _numbers_of.setdefault(federation, itertools.count())
    return lambda order: ByMessages(replace(order, numbers=numbers))


def evaluation_request(spec: FederatedProblem, X: np.ndarray, last: bool) -> Request:
    """Value and gradient at the models in X; in the last one, the curvature too where the step depends on it."""
    queries: tuple[Any, ...] = (Evaluate(spec.objective, X),)
    if last and spec.loss.curvature is None and len(X) == 1:
        queries += (Lipschitz(spec.objective, X[0]),)
    # it mostly travels with a round
    return Request(queries, weights=spec.weights, weighting=spec.weighting, models=len(X), counts=False)


def evaluation_of(spec: FederatedProblem, sums: tuple[Any, ...], x: np.ndarray, model: int = 0) -> Evaluated:
    """The sums of `evaluation_request` at one of its models."""
    found = evaluation(spec, Trial(x), sums[0], model)
    if len(sums) == 1:
        return found
    L, L_max = lipschitz_bounds(spec, sums[1])
    return found._replace(L=L, L_max=L_max)


class ByMessages:
    """Rounds by messages, over any federation. An evaluation travels with the message that opens the next round."""

    def __init__(self, order: Order):
        self.order = order
        self.models = [_ModelUnderWay(order, spec) for spec in order.specs]

    def advance(self, rounds: int) -> Program[list[Segment]]:
        return (yield from gather([model.advance(rounds) for model in self.models]))


class _ModelUnderWay:
    def __init__(self, order: Order, spec: FederatedProblem):
        self.order, self.spec = order, spec
        self.loop = ServerLoop(order.run_spec(spec), spec)
        self.monitor = Monitor(order.run(spec, 0), "messages")

    def advance(self, rounds: int) -> Program[Segment]:
        loop, last = self.loop, self.loop.r + rounds
        evaluated = self.monitor.last_round
        began = time.perf_counter()
        while True:
            r, x = loop.r, loop.model()
            due = r > evaluated and (r == last or r % CHECK == 0)
            query = [evaluation_request(self.spec, x[None], r == last)] if due else []
            try:
                sums = (yield from loop.round(query)) if r < last else (yield query)
            except NotFinite as problem:
                return Segment(self.monitor.divergence(problem.r, problem.where).trace, None)
            if due:
                at, evaluated = evaluation_of(self.spec, sums[0], x), r
                self._record(r, x, at, time.perf_counter() - began)
                began = time.perf_counter()
                if self.monitor.diverged:
                    return Segment(self.monitor.divergence(r).trace, None)
                if self.monitor.converged or r == last:
                    return Segment(self.monitor.trace(loop.state, None), at)
            if self.order.progress is not None:
                self.order.progress(r, last)

    def _record(self, r: int, x: np.ndarray, at: Evaluated, seconds: float) -> None:
        """Record the model after round r."""
        found = optimality_at(self.spec.regulariser, x, at.value, at.gradient.astype(x.dtype), self.order.step)
        columns = {"objective": np.array([found.objective]), "gradient_mapping": np.array([found.norm])}
        self.monitor.record(np.array([r]), x[None], columns, seconds)


def bind_algorithm(algorithm: Any, problem: ProblemSpec, participants: int, seed: int = 0) -> Algorithm:
    """The algorithm with its choices made for this run; its stages fit together, and its steps suit the prox."""
    if not isinstance(algorithm, Algorithm):
        got = f"{algorithm.__name__} (the class)" if isinstance(algorithm, type) else repr(algorithm)
        raise InputError(f"algorithm must be an instance such as cf.algorithms.DecoupledProx(eta=1.0); got {got}.")
    bound = algorithm.with_seed(seed).bind(problem, participants)
    check_contract(bound, problem.d, problem.dtype, problem.regulariser)
    limit = float(largest_step(problem.regulariser))
    if limit < np.inf and (used := largest_prox_step(bound)) >= limit:
        raise InputError(
            f"{type(algorithm).__name__} takes the prox of {type(problem.regulariser).__name__} with steps up to "
            f"{used:.3g}; a weakly convex regulariser needs steps below {limit:.3g}. Reduce eta (or tau, eta_g), or "
            "enlarge its gamma."
        )
    if problem.dtype == np.float32 and bound.integrates_rounding():
        text = _float32_drift_text(type(algorithm).__name__, participants < problem.n)
        warnings.warn(text, RunWarning, stacklevel=4)  # where simulate was called
    return bound


def _float32_drift_text(name: str, sampled: bool) -> str:
    way_out = "let every client take part (participants=None)" if sampled else "leave upload out where you set it"
    return (
        f"{name} in float32 with the upload 'model': rounding errors of the corrections are kept and add up, and the model "
        f"drifts away from the minimiser, in proportion to the rounds: 2e-4 to 2e-3 of its norm were measured after 20,000. Use "
        f"problem.astype('float64'), or {way_out}."
    )
