"""`LocalUpdate` and `FinishRound`: the rounds of a local-update algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from compfed._utils.compilation import precision
from compfed.algorithms.base import PyTree, dense
from compfed.algorithms.round import message_shapes
from compfed.federation.codec import unnamed
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import MAX_ROUNDS, QueryChecks, check_integer
from compfed.federation.query import Field, FieldValues, Query, Sizes, Weighting, factor_field, flag, largest_bits
from compfed.federation.spec import RunSpec
from compfed.splits import RowSubset

UPDATE_BITS = 16  # of an update: its fields may be models, gradients or both


class UpdateSum(NamedTuple):
    """The weighted sum of the updates of a round, in dense form."""

    u: PyTree  # None where a site has a number that is not finite
    finite: bool = True  # every update and every client state


def keeps_state(query: Query) -> bool:
    """Is it a round of a method that keeps state at a site?"""
    if not isinstance(query, (LocalUpdate, FinishRound)):
        return False
    run = query.run_spec
    x0 = jax.ShapeDtypeStruct(run.x0.shape, run.x0.dtype)
    return bool(jax.tree.leaves(jax.eval_shape(run.algorithm.init, x0)[1]))


@dataclass(frozen=True, eq=False)
class LocalUpdate(Query):
    """Exchange `exchange` of round r of a run: the server's broadcast d, the site's update u.

    The site's client state moves on. A method with `finish_round` receives the result in the next broadcast.
    """

    run_spec: RunSpec
    r: int
    exchange: int
    d: Mapping[str, np.ndarray]

    leaves = "the model after local steps, or its change"
    is_divided = True

    class Reply(NamedTuple):
        u: Mapping[str, np.ndarray]
        finite: bool  # is the client state finite too?

    @property
    def rows(self) -> RowSubset | None:
        return self.run_spec.objective.subset

    @property
    def moves_on(self) -> bool:  # the first one of a run can be repeated
        return (self.r, self.exchange) != (0, 0)

    def check(self, checks: QueryChecks) -> None:
        checks.run_spec(self.run_spec)
        check_integer("r", self.r, 0, MAX_ROUNDS - 1)
        check_integer("exchange", self.exchange, 0, len(self.run_spec.algorithm.exchanges) - 1)
        checks.message(self.d)

    def _update(self, run: RunSpec) -> PyTree:
        return message_shapes(run.algorithm, run.regulariser, run.x0.size, run.x0.dtype)[self.exchange].update

    def _dense(self) -> PyTree:
        """The shapes of an update in dense form."""
        run = self.run_spec
        with precision(run.x0.dtype):
            return jax.eval_shape(lambda u: dense(u, run.x0.size), self._update(run))

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        # `bits` is kept until the query is gone, and so must not hold it
        run, broadcast, R = self.run_spec, self.d, agreement.factor_bits(weighting)

        def bits() -> np.ndarray:
            largest = max((largest_bits(array) for array in broadcast.values()), default=0)
            gradient = int(np.max(Sizes(run.objective, run.x0, agreement, R).gradient(), initial=0))
            return np.asarray(R + max(largest, min(gradient - R, UPDATE_BITS)))

        counts = Field((), agreement.site_bits, bounded=True)
        found = {"factor": factor_field(agreement, weighting), "not_finite": counts, "outside": counts}
        leaves = jax.tree.leaves(self._dense())
        return {**found, **{f"u.{k}": Field(leaf.shape, bits) for k, leaf in enumerate(leaves)}}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        run = self.run_spec
        with precision(run.x0.dtype):
            leaves = jax.tree.leaves(dense(unnamed(reply.u, self._update(run)), run.x0.size))
        finite = reply.finite and all(np.isfinite(leaf).all() for leaf in leaves)
        found: FieldValues = {"factor": np.array(factor), "not_finite": flag(not finite), "outside": np.array(0.0)}
        kept = factor if finite else np.nan
        return {**found, **{f"u.{k}": kept * np.asarray(leaf, float) for k, leaf in enumerate(leaves)}}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> UpdateSum | None:
        if totals["outside"].any():
            return None
        if totals["not_finite"].any():
            return UpdateSum(None, finite=False)
        leaves, structure = jax.tree.flatten(self._dense())
        found = [(np.asarray(totals[f"u.{k}"]) / divisor).astype(leaf.dtype) for k, leaf in enumerate(leaves)]
        return UpdateSum(jax.tree.unflatten(structure, found))


@dataclass(frozen=True, eq=False)
class FinishRound(Query):
    """The result of round r for its participants, where the next round may have others."""

    run_spec: RunSpec
    r: int
    d: Mapping[str, np.ndarray]

    leaves = "only that the message was received"

    class Reply(NamedTuple):
        finite: bool

    def weighed_by(self, weighting: Weighting) -> str:
        return ""

    @property
    def moves_on(self) -> bool:
        return True

    @property
    def rows(self) -> RowSubset | None:
        return self.run_spec.objective.subset

    def check(self, checks: QueryChecks) -> None:
        checks.run_spec(self.run_spec)
        check_integer("r", self.r, 0, MAX_ROUNDS - 2)
        checks.message(self.d)

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        return {"not_finite": Field((), agreement.site_bits, bounded=True)}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        return {"not_finite": flag(not reply.finite)}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply:
        return FinishRound.Reply(finite=not totals["not_finite"].any())
