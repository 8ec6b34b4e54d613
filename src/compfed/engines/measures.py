"""What is measured at a recorded round, and what a round costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed.algorithms.base import Algorithm
from compfed.problem.problem import Problem, objectives_and_mappings
from compfed.tools.precision import precision

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
    "client_proxes": "prox evaluations of a client, likewise",
    "server_proxes": "prox evaluations of the server, cumulative",
    "seconds": "wall-clock time of the rounds, without compilation and without measuring",
}

BLOCK = 64  # models measured together


def at_models(
    problem: Problem, X: np.ndarray, reference: np.ndarray | None, known: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The columns of the models in the rows of X: what the engine knows of them, and what is left to measure."""
    out: dict[str, np.ndarray] = {"nonzeros": np.count_nonzero(X, axis=1), **known}
    if reference is not None:
        scale = np.linalg.norm(reference)
        out["optimality"] = np.linalg.norm(X - reference, axis=1) / (scale if scale > 0 else 1.0)
    return out if "gradient_mapping" in known else out | _measured(problem, X)


def _measured(problem: Problem, X: np.ndarray) -> dict[str, np.ndarray]:
    """Objective and gradient mapping: two passes over the data for a whole block of rows."""
    step = 1.0 / problem.lipschitz
    parts = []
    with precision(problem.dtype):
        for start in range(0, len(X), BLOCK):
            rows = X[start : start + BLOCK]
            # two shapes only, one model or a whole block, so that nothing is compiled twice
            padded = rows if len(rows) == 1 else np.resize(rows, (BLOCK, X.shape[1]))
            values, mappings = objectives_and_mappings(problem.loss, problem.regulariser, problem.store, padded, step)
            parts.append((np.asarray(values)[: len(rows)], np.asarray(mappings, float)[: len(rows)]))
    with np.errstate(over="ignore"):  # a diverging run is reported by its engine, not by a warning here
        norms = np.linalg.norm(np.concatenate([m for _, m in parts]), axis=1)
    return {"objective": np.concatenate([values for values, _ in parts]), "gradient_mapping": norms}


class _CountingLoss:
    """A loss with zero gradient that counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        self.calls += 1
        return jnp.zeros_like(x)


class _CountingRegulariser:
    def __init__(self) -> None:
        self.steps: list[Any] = []  # the t of every prox

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        self.steps.append(t)
        return x


@dataclass(frozen=True)
class Cost:
    """One round of one participating client (and of the server, for server_proxes)."""

    vectors_up: float
    vectors_down: float
    bytes_up: float
    bytes_down: float
    gradients: float
    client_proxes: float
    server_proxes: float


_counted: dict[Any, Cost] = {}


def cost_of_a_round(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    """Counted, not declared: rounds are run on a zero loss with every loop as a Python loop.

    One round is enough, unless the algorithm says that its rounds differ in length; then it is an average.
    """
    leaves, structure = jax.tree.flatten(algorithm)
    # step sizes do not change the count, except where they set the length of a round
    values = tuple(map(float, leaves)) if algorithm.rounds_to_count > 1 else ()
    case = (structure, values, d, dtype, everyone)
    if case not in _counted:
        _counted[case] = _count(algorithm, d, dtype, everyone)
    return _counted[case]


def largest_prox_step(algorithm: Algorithm) -> float:
    """The largest t in a prox_{t g} of the first rounds: what a weakly convex g puts a bound on."""
    g = _CountingRegulariser()
    with precision(np.dtype(float)), jax.disable_jit():
        _messages(algorithm, jnp.zeros(1), _CountingLoss(), g, g, everyone=True)
    return max(float(t) for t in g.steps)


def _count(algorithm: Algorithm, d: int, dtype: np.dtype, everyone: bool) -> Cost:
    def counted(run: Callable[..., Any]) -> Cost:
        f, g, server_g = _CountingLoss(), _CountingRegulariser(), _CountingRegulariser()
        up, down = run(lambda x0: _messages(algorithm, x0, f, g, server_g, everyone))
        totals = (*_size(up, d), *_size(down, d), f.calls, len(g.steps), len(server_g.steps))
        vectors_up, bytes_up, vectors_down, bytes_down, *calls = (t / algorithm.rounds_to_count for t in totals)
        return Cost(vectors_up, vectors_down, bytes_up, bytes_down, *calls)

    with precision(dtype), jax.disable_jit():
        if algorithm.rounds_to_count > 1:  # the length of a round is a number that has to be known
            return counted(lambda round_: round_(jnp.zeros(d, dtype)))
        return counted(lambda round_: jax.eval_shape(round_, jax.ShapeDtypeStruct((d,), dtype)))


def _messages(
    algorithm: Algorithm,
    x0: Array,
    f: _CountingLoss,
    g: _CountingRegulariser,
    server_g: _CountingRegulariser,
    everyone: bool,
) -> tuple[list[Any], list[Any]]:
    """Every message up and every message down of the rounds to count."""
    up, down = [], []
    share, key = jnp.ones((), x0.dtype), jax.random.key(0)
    s, c = algorithm.init(x0)
    for _ in range(algorithm.rounds_to_count):
        if algorithm.asks():
            down.append(algorithm.ask(server_g, s))
            u, c = algorithm.answer(f, g, down[-1], c, key)
            s = algorithm.digest(server_g, s, u, share)
            up.append(u)
        down.append(algorithm.down(server_g, s))
        u, c = algorithm.client(f, g, down[-1], c, key)
        up.append(u)
        s = algorithm.server(server_g, s, algorithm.decode(u, x0.size), share)
        if algorithm.closes():
            if not everyone:  # with everyone present the closing message is the next round's opening one
                down.append(algorithm.down(_CountingRegulariser(), s))
            c = algorithm.close(g, algorithm.down(_CountingRegulariser(), s), c)
    return up, down


def _size(messages: list[Any], d: int) -> tuple[float, int]:
    """(d-vectors, bytes) of some messages. Scalars and counters are bytes, but not vectors."""
    leaves = jax.tree.leaves(messages)
    return sum(leaf.size for leaf in leaves if leaf.ndim) / d, sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
