"""What a site remembers of the runs of local-update algorithms, and its half of a round."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils.compilation import jit, precision
from compfed.algorithms.base import Algorithm, PyTree
from compfed.algorithms.costs import cost_of_a_round
from compfed.algorithms.counting import KINDS, Uncountable, counted
from compfed.algorithms.round import ExchangeMessages, message_shapes
from compfed.errors import InputError
from compfed.federation.codec import digest, named, unnamed
from compfed.federation.queries import FinishRound, LocalUpdate
from compfed.federation.site.disclosure import DIVERGED, DisclosurePolicy, EffectiveRows, GuardedLoss, secret_words
from compfed.federation.site.rows import Rows
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.problem.local_loss import FullGradient, MiniBatch
from compfed.sampling import client_key, run_key

RUNS_KEPT = 4096


class StateLost(InputError):
    """A site was asked to continue a run whose client state it does not have."""


class ClientState(NamedTuple):
    """The state of a client in one run, between its rounds."""

    c: Any
    pending: bool = False  # it sent an update and has not received the result of that round
    local: Any = None  # the local model at the end of its last round, for the record
    # calls of its loss and regulariser in this run, of each of `counting.KINDS`; kept at the site where they depend on its rows
    calls: np.ndarray = np.zeros(len(KINDS), np.int64)


class ClientMemory:
    """The client states of one site, by the hash of the run."""

    def __init__(self, rows: Rows, policy: DisclosurePolicy | None, secret: bytes):
        self.rows, self.policy, self.secret = rows, policy, secret
        self.states: OrderedDict[str, ClientState] = OrderedDict()

    def take_part(self, query: LocalUpdate) -> LocalUpdate.Reply:
        """The site's half of an exchange: its update, and whether its client state is finite."""
        run_spec, r, exchange = query.run_spec, query.r, query.exchange
        a, g = run_spec.algorithm, run_spec.regulariser
        with precision(np.dtype(run_spec.objective.dtype)):
            state = _first(run_spec) if r == exchange == 0 else self._recalled(run_spec, r)
            down, c = unnamed(query.d, _shapes(run_spec)[exchange].broadcast), state.c
            if exchange == 0 and state.pending and a.finishes_rounds():
                # this broadcast has the result of the last round
                c = close(a, g, down, c)
            key = client_key(run_key(run_spec.seed), r, self.rows.number)
            rows = self.rows.on_device(run_spec.objective)
            rule = None if self.policy is None else self._rule(run_spec.objective, self.policy)
            batch_size = run_spec.batch_size
            ragged = batch_size is not None and batch_size > len(self.rows.labels)
            counting = _has_to_count(run_spec)
            (u, c, z), calls = _client(
                exchange,
                batch_size,
                run_spec.capacity,
                ragged,
                counting,
                a,
                run_spec.objective.loss,
                g,
                rows,
                down,
                c,
                key,
                rule,
            )
            if rule is not None and not (finite(u) and finite(c)):
                raise InputError(f"site {self.rows.name!r} refuses LocalUpdate: {DIVERGED}.")
            calls = state.calls if calls is None else state.calls + np.asarray(calls)
            self._keep(run_spec, ClientState(c, pending=exchange == len(a.exchanges) - 1, local=z, calls=calls))
            return LocalUpdate.Reply(named(u), finite(c))

    def _rule(self, objective: ObjectiveSpec, policy: DisclosurePolicy) -> tuple[EffectiveRows, np.ndarray]:
        """The rule for every model inside the local steps, and the secret of the mini-batches."""
        _, y, q, _ = self.rows.on_device(objective)
        share = np.zeros(len(q), q.dtype)
        share[: len(self.rows.labels)] = self.rows.shares_of(None)
        return EffectiveRows.of(policy.min_rows, objective.loss, y, q, share), secret_words(self.secret)

    def finish_round(self, query: FinishRound) -> FinishRound.Reply:
        """Receive the result of a round that this site took part in; is the client state finite?"""
        run_spec = query.run_spec
        with precision(np.dtype(run_spec.objective.dtype)):
            state = self._recalled(run_spec, query.r + 1)
            down = unnamed(query.d, _shapes(run_spec)[0].broadcast)
            c = close(run_spec.algorithm, run_spec.regulariser, down, state.c)
            self._keep(run_spec, ClientState(c, False, state.local, state.calls))
            return FinishRound.Reply(finite(c))

    def remember(self, run_spec: RunSpec, c: PyTree, pending: bool = False) -> None:
        """Restore the client state of a run."""
        self._keep(run_spec, ClientState(c, pending))

    def recall(self, run_spec: RunSpec) -> ClientState:
        """The client state of a run; the initial one before its first round."""
        known = self.states.get(digest(run_spec))
        return _first(run_spec) if known is None else known

    def _recalled(self, run_spec: RunSpec, r: int) -> ClientState:
        """The client state after the rounds before r; a site that takes part in every round must have it."""
        state = self.recall(run_spec)
        if run_spec.everyone and r > 0 and digest(run_spec) not in self.states and jax.tree.leaves(state.c):
            raise StateLost(
                f"site {self.rows.name!r} was asked for round {r} of a run whose client state it does not have; start "
                "the run again."
            )
        return state

    def _keep(self, run_spec: RunSpec, state: ClientState) -> None:
        self.states[digest(run_spec)] = state
        self.states.move_to_end(digest(run_spec))
        if len(self.states) > RUNS_KEPT:
            self.states.popitem(last=False)


def _first(run_spec: RunSpec) -> ClientState:
    with precision(np.dtype(run_spec.objective.dtype)):
        return ClientState(run_spec.algorithm.init(jnp.asarray(run_spec.x0))[1])


def _shapes(run_spec: RunSpec) -> list[ExchangeMessages]:
    return message_shapes(run_spec.algorithm, run_spec.regulariser, run_spec.x0.size, run_spec.x0.dtype)


def finite(tree: Any) -> bool:
    return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(tree))


def _has_to_count(run_spec: RunSpec) -> bool:
    """Whether the calls of the algorithm depend on data, and can be counted."""
    x0 = run_spec.x0
    try:
        cost = cost_of_a_round(run_spec.algorithm, x0.size, x0.dtype, run_spec.everyone, run_spec.regulariser)
    except Uncountable:
        return False
    return cost.calls is None


# --- the stages of a round at a site, each compiled on its own ---

close = jit(lambda a, g, d, c: a.finish_round(g, d, c))


@jit(static_argnames=("exchange", "batch_size", "capacity", "ragged", "counting"))
def _client(exchange, batch_size, capacity, ragged, counting, a: Algorithm, loss, g, rows, d, c, key, guard=None):
    """(update, client state, local model), and the calls of loss and regulariser where they depend on data."""
    A, y, q, size = rows
    f = FullGradient(loss, A, y, q)
    if batch_size is not None:
        f = MiniBatch(loss, A, y, q, jnp.int32(0), size, capacity, batch_size, ragged)
    if guard is not None:
        f = GuardedLoss(f, loss, A, y, *guard)
    update = a.exchanges[exchange].client_update
    if not counting:
        return update(f, g, d, c, key), None
    return counted(lambda f, g, d, c, key: update(f, g, d, c, key))(f, g, d, c, key)
