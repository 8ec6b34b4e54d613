"""The server loop: who takes part, what they are asked, the mean of their answers, the server's step.

This is the round written plainly. Over sites in this process it is the `reference` engine; over a network it is the real
federation. `engines.simulator` has the same round for XLA.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compfed.algorithms.base import dense
from compfed.algorithms.shapes import message_shapes
from compfed.federation.conversation import Request, Talk
from compfed.federation.messages import named, unnamed
from compfed.federation.questions import Result, Round
from compfed.federation.task import Task
from compfed.federation.view import Job
from compfed.tools.precision import precision
from compfed.tools.programs import compiled
from compfed.tools.randomness import run_key
from compfed.tools.sampling import Scheme, averaging, odds, participants, scheme_in_use
from compfed.trace import State

# Each stage of a round at the server, compiled on its own.
_down = compiled(lambda a, g, s, k: a.exchanges[k].down(g, s), static_argnums=3)
_server = compiled(lambda a, g, s, mean, share, k: a.exchanges[k].server(g, s, mean, share), static_argnums=5)
_dense = compiled(dense, static_argnums=1)
_solution = compiled(lambda a, g, s: a.solution(g, s))


class NotFinite(ArithmeticError):
    """A stage gave a number that is not finite."""

    def __init__(self, r: int, where: str):
        super().__init__(f"round {r}{where}")
        self.r, self.where = r, where


class ServerLoop:
    """The server's half of one job: its state, and the rounds done.

    `checkpoint` is called with the state after every round, before the next message leaves: a server that is killed goes
    on from there with `restore`.
    """

    def __init__(
        self,
        job: Job,
        task: Task,
        participants: int | None = None,
        checkpoint: Callable[[State], None] | None = None,
        sampling: Scheme | None = None,
    ):
        self.job, self.task = job, task
        self.participants = task.n if participants is None else participants
        self.scheme: Scheme = scheme_in_use(sampling, task.weights, self.participants)
        self.odds = odds(task.weights, self.participants) if self.scheme == "proportional" else None
        self.checkpoint = checkpoint
        self.shapes = message_shapes(job.algorithm, job.regulariser, job.x0.size, job.x0.dtype)
        self.r = 0  # rounds done
        with precision(task.dtype):
            self.state, _ = job.algorithm.init(jnp.asarray(job.x0))

    def restore(self, saved: State) -> None:
        """Go on after the rounds of a checkpoint."""
        with precision(self.task.dtype):
            leaves = [jnp.asarray(leaf) for leaf in saved.server]
            self.state = jax.tree.unflatten(jax.tree.structure(self.state), leaves)
        self.r = saved.rounds

    def model(self) -> np.ndarray:
        """The model after the rounds done."""
        with precision(self.task.dtype):
            return np.asarray(_solution(self.job.algorithm, self.job.regulariser, self.state))

    def chosen(self, r: int) -> list[int]:
        """Who takes part in round r, in the order of the sites."""
        with precision(self.task.dtype):
            numbers = jnp.asarray(self.task.numbers)
            who = participants(self.scheme, self.odds, run_key(self.job.seed), r, numbers, self.participants)
        return [int(i) for i in who]

    def round(self, beside: Sequence[Request] = ()) -> Talk[list[Any]]:
        """One round. What is asked `beside` it travels in its first message; those answers are returned."""
        a, g, task, r = self.job.algorithm, self.job.regulariser, self.task, self.r
        everyone = self.participants == task.n
        who = list(range(task.n)) if everyone else self.chosen(r)
        weight, share = averaging(self.scheme, self.odds, task.weights, who)
        of = None if everyone else tuple(who)
        others: list[Any] = []
        for k, _ in enumerate(a.exchanges):
            question = Round(self.job, r, k, self._message(k))
            answers, *more = yield [Request((question,), of), *(beside if k == 0 else ())]
            others += more
            ups = [self._checked(answer, i, k) for i, (answer,) in zip(who, answers, strict=True)]
            with precision(task.dtype):
                mean = weighted_mean(weight, [_dense(u, task.d) for u in ups])
                self.state = _server(a, g, self.state, mean, jnp.asarray(share, task.dtype), k)
                if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(self.state)):
                    raise NotFinite(r + 1, ", stage server")
        if a.closes() and not everyone:  # else they hear the result with the message that opens the next round
            yield [Request((Result(self.job, r, self._message(0)),), of)]
        self.r += 1
        if self.checkpoint is not None:
            self.checkpoint(State(self.r, [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)], []))
        return others

    def _message(self, k: int) -> dict[str, np.ndarray]:
        with precision(self.task.dtype):
            return named(_down(self.job.algorithm, self.job.regulariser, self.state, k))

    def _checked(self, answer: Round.Answer, site: int, k: int) -> Any:
        u = unnamed(answer.u, self.shapes[k].up)
        if not answer.finite or not all(np.isfinite(leaf).all() for leaf in answer.u.values()):
            raise NotFinite(self.r + 1, f", client {self.task.names[site]!r}, stage client")
        return u


def weighted_mean(weight: np.ndarray, trees: Sequence[Any]) -> Any:
    """sum_i weight_i tree_i, in the order given: the same sum over any transport, to the last bit."""

    def leaf_mean(*leaves):
        return sum(w * leaf for w, leaf in zip(weight.astype(leaves[0].dtype), leaves, strict=True))

    return jax.tree.map(leaf_mean, *trees)
