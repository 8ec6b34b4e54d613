"""`Moments`: the mean and the mean square of every column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from compfed._utils.arrays import Pair, multiply_pairs
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks
from compfed.federation.query import Field, FieldValues, Query, Weighting, check_finite
from compfed.splits import RowSubset

LARGE_BITS = 100  # of the weight of all rows


class MomentsSum(NamedTuple):
    """The sum of the replies to `Moments`, as pairs of doubles.

    The weight is a pair too: its rounding error, times the square of a large mean, would be the whole variance.
    """

    weight: Pair
    mean: Pair
    square: Pair


@dataclass(frozen=True, eq=False)
class Moments(Query):
    """The first two moments of every column: the mean, and the mean square.

    Each is a pair of doubles, a number and what its rounding lost: so the variance of a column whose mean is large is known
    to the last digits (`federation.server.moments`). A single double would lose them all.
    """

    subset: RowSubset | None = None

    leaves = "the mean and the mean square of every column, to about 32 digits"
    own_weighting = "rows"

    class Reply(NamedTuple):
        weight: float  # of the rows together
        mean: np.ndarray
        mean_low: np.ndarray
        square: np.ndarray
        square_low: np.ndarray

    @property
    def rows(self) -> RowSubset | None:
        return self.subset

    def check(self, checks: QueryChecks) -> None:
        checks.subset(self.subset)

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        columns, own = agreement.column_bits, weighting != "given"
        R, shift = agreement.factor_bits(weighting), _shift(agreement)
        return {
            "factor": Field((), R, pair=True, bounded=own),
            "mean": Field(columns.shape, R - shift + columns, pair=True, bounded=own),
            "square": Field(columns.shape, R - shift + 2 * columns, pair=True, bounded=own),
        }

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        check_finite("Moments", reply._asdict())
        w = factor if reply.weight > 0 else 0.0
        scaled = (np.broadcast_to(np.ldexp(w, -_shift(agreement)), reply.mean.shape), np.zeros(reply.mean.shape))
        found = {"factor": np.array(w), "factor_low": np.array(0.0)}
        found["mean"], found["mean_low"] = multiply_pairs(scaled, (reply.mean, reply.mean_low))
        found["square"], found["square_low"] = multiply_pairs(scaled, (reply.square, reply.square_low))
        return found

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> MomentsSum:
        weight, mean, square = ((totals[name], totals[f"{name}_low"]) for name in ("factor", "mean", "square"))
        weight = tuple(np.atleast_1d(np.ldexp(part, -_shift(agreement))) for part in weight)
        return MomentsSum(*((np.atleast_1d(high), np.atleast_1d(low)) for high, low in (weight, mean, square)))


def _shift(agreement: Agreement) -> int:
    """By which power of two all factors are divided: only their ratios count, and products of large ones overflow."""
    return agreement.weight_bits if agreement.weight_bits > LARGE_BITS else 0
