"""The reference engine: rounds as a Python loop over clients, each on its own rows. Short, slow, obviously right."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compfed.algorithms.base import Algorithm, correction
from compfed.engines.run import Progress, Recorder, checked, first_state
from compfed.problem.local import FullGradient, MiniBatch
from compfed.problem.problem import Problem
from compfed.tools.precision import precision
from compfed.tools.randomness import client_key, participation_scores, run_key
from compfed.trace import Trace

# Each stage of a round, compiled on its own.
_ask = jax.jit(lambda a, g, s: a.ask(g, s))
_digest = jax.jit(lambda a, g, s, mean, share: a.digest(g, s, mean, share))
_down = jax.jit(lambda a, g, s: a.down(g, s))
_server = jax.jit(lambda a, g, s, mean, share: a.server(g, s, mean, share))
_decode = jax.jit(lambda a, u, d: a.decode(u, d), static_argnums=2)
_close = jax.jit(lambda a, g, d, c: a.close(g, d, c))
_local = jax.jit(lambda a, g, d, u, c: a.local(g, d, u, c))
_solution = jax.jit(lambda a, g, s: a.solution(g, s))


@jax.jit(static_argnames=("stage", "batch_size", "capacity"))
def _client(stage, batch_size, capacity, a, loss, g, rows, d, c, key):
    A, y, q = rows
    f = FullGradient(loss, A, y, q)
    if batch_size is not None:
        f = MiniBatch(loss, A, y, q, jnp.int32(0), jnp.int32(len(A)), capacity, batch_size)
    return getattr(a, stage)(f, g, d, c, key)


def reference(
    problem: Problem,
    algorithm: Algorithm,
    rounds: int,
    *,
    batch_size: int | None = None,
    participants: int | None = None,
    record_every: int = 1,
    seed: int = 0,
    x0: Any = None,
    reference: Any = None,
    resume: Trace | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Run `rounds` rounds one client at a time. Takes and returns what `simulate` does.

    A stage that yields a number that is not finite stops the run and names round, client and stage.
    """
    run = checked(
        problem, algorithm, rounds, batch_size=batch_size, participants=participants, record_every=record_every,
        seed=seed, x0=x0, reference=reference, resume=resume,
    )  # fmt: skip
    recorder = Recorder(run, "reference")
    a, g, n = run.algorithm, problem.regulariser, problem.n
    p = problem.weights
    capacity = int(problem.sites.sizes.max())  # of the largest site, as in `simulate`: it decides how rows are drawn
    with precision(problem.dtype):
        sites = problem.sites
        labels = [problem.loss.encode(y) for y in sites.labels]
        rows = [
            tuple(jnp.asarray(array, problem.dtype) for array in site)
            for site in zip(sites.features, labels, sites.row_shares, strict=True)
        ]
        ids, key = np.array(problem.sites.ids), run_key(seed)
        server, stacked = first_state(run)
        clients = [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(n)]

        def stack() -> Any:
            return jax.tree.map(lambda *leaves: np.stack(leaves), *clients)

        def record(r: int, drift: float, seconds: float) -> None:
            seen = {"drift": np.array([drift])}
            c = [correction(client) for client in clients]
            if c[0] is not None:
                seen["correction"] = np.array([np.linalg.norm(p @ np.array(c))])
            model = np.asarray(_solution(a, g, server))[None]
            recorder.add(np.array([r]), model, seen, seconds)
            if recorder.blown:
                raise recorder.diverged(r)

        def at_clients(stage: str, d: Any, r: int, chosen: list[int]) -> list[Any]:
            """What the chosen clients answer to d; what they remember is stored."""
            ups = []
            for i in chosen:
                u, clients[i] = _client(
                    stage, batch_size, capacity, a, problem.loss, g, rows[i], d, clients[i], client_key(key, r, ids[i])
                )
                if not _finite((u, clients[i])):
                    raise recorder.diverged(r + 1, f", client {problem.sites.names[i]!r}, stage {stage}")
                ups.append(u)
            return ups

        marks = set(run.recorded())
        if run.resume is None:
            record(0, 0.0, 0.0)
        worked = 0.0
        for r in range(run.start, run.start + run.rounds):
            began = time.perf_counter()
            scores = np.asarray(participation_scores(key, r, jnp.asarray(ids)))
            chosen = sorted(int(i) for i in np.argsort(scores, kind="stable")[: run.participants])
            weight, share = p[chosen] / p[chosen].sum(), jnp.asarray(p[chosen].sum(), problem.dtype)
            if a.asks():
                answers = at_clients("answer", _ask(a, g, server), r, chosen)
                server = _digest(a, g, server, _mean(weight, answers), share)
            d = _down(a, g, server)
            ups = at_clients("client", d, r, chosen)
            local = [_local(a, g, d, u, clients[i]) for i, u in zip(chosen, ups, strict=True)]
            server = _server(a, g, server, _mean(weight, [_decode(a, u, problem.d) for u in ups]), share)
            if not _finite(server):
                raise recorder.diverged(r + 1, ", stage server")
            if a.closes():
                d = _down(a, g, server)
                for i in chosen:
                    clients[i] = _close(a, g, d, clients[i])
            worked += time.perf_counter() - began
            if r + 1 in marks:
                record(r + 1, _drift(local, weight), worked)
                worked = 0.0
            if progress is not None:
                progress(r + 1 - run.start, run.rounds)
    return recorder.trace(server, stack())


def _mean(weight: np.ndarray, trees: list[Any]) -> Any:
    def leaf_mean(*leaves):
        return sum(w * leaf for w, leaf in zip(weight.astype(leaves[0].dtype), leaves, strict=True))

    return jax.tree.map(leaf_mean, *trees)


def _finite(tree: Any) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def _drift(local: list[Any], weight: np.ndarray) -> float:
    if local[0] is None:
        return float("nan")
    z = np.array(local)
    return float(weight @ np.linalg.norm(z - weight @ z, axis=1))
