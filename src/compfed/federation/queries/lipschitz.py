"""`Lipschitz`: how steeply the gradient of each f_i can change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from compfed.errors import InputError
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import QueryChecks, check_boolean, check_finite_array
from compfed.federation.query import Field, FieldValues, Query, Sizes, Weighting, factor_field
from compfed.federation.spec import ObjectiveSpec
from compfed.splits import RowSubset

BINS = 4096  # eighths of an octave, from 2^-256 to 2^256
POWER = 4  # of the Lipschitz constants that are added, to bound the largest
UNIT, DIGITS = 2**512, 16  # of these powers: from 2^-512 to 2^512


@dataclass(frozen=True, eq=False)
class Lipschitz(Query):
    """L_i, the Lipschitz constant of grad f_i; for a loss whose curvature has no bound, its curvature at x.

    `counts` has a 1 at the eighth of an octave that L_i is in: where all sites are in one process, the sum of these bounds
    max_i L_i within 9 %. They do not travel: asked for in many units, they tell every site's L_i. In their place L_i^4 is
    added, which bounds max_i L_i within a factor of n^(1/4).
    With `upper_bound` the reply is a bound that takes one pass over the rows, and no counts: too large for steps, good
    enough for a certificate.
    """

    objective: ObjectiveSpec
    x: np.ndarray | None = None
    upper_bound: bool = False

    leaves = "one number, a bound on the curvature of its loss, and its fourth power"
    is_divided = True

    class Reply(NamedTuple):
        L: float
        counts: np.ndarray | None

    @property
    def rows(self) -> RowSubset | None:
        return self.objective.subset

    def check(self, checks: QueryChecks) -> None:
        d = checks.objective(self.objective)
        check_boolean("upper_bound", self.upper_bound)
        if self.x is not None:
            check_finite_array("x", self.x, (d,))

    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        x = np.zeros(1) if self.x is None else self.x
        size = Sizes(self.objective, x, agreement, agreement.factor_bits(weighting))

        def bits() -> np.ndarray:
            return np.max(size.hessian(), initial=0) + agreement.column_bits.size.bit_length()

        found = {"factor": factor_field(agreement, weighting)}
        found |= {"outside": Field((), agreement.site_bits, bounded=True), "L": Field((), bits)}
        return found if self.upper_bound else {**found, "power": Field((DIGITS,), digits=True)}

    def contribution(self, reply: Reply, factor: float, agreement: Agreement) -> FieldValues:
        if not np.isfinite(reply.L) or reply.L < 0:
            raise InputError(
                "its loss has no finite curvature at this model; use a stronger penalty, or columns in other units"
            )
        found = {"factor": np.array(factor), "outside": np.array(0.0), "L": np.array(factor * reply.L)}
        if reply.counts is None:
            return found
        return {**found, "power": _power_digits(reply.L if factor else 0.0), "counts": reply.counts.astype(float)}

    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> Reply | None:
        if totals["outside"].any():
            return None
        counts = totals.get("counts")
        if counts is None and "power" in totals:
            counts = _counts_of(totals["power"])
        return Lipschitz.Reply(float(totals["L"]) / divisor, counts)


def lipschitz_bin(L: float) -> int:
    """The bin of a Lipschitz constant in `Lipschitz.Reply.counts`."""
    exponent = np.floor(8 * np.log2(L)) if L > 0 else -np.inf
    return int(np.clip(exponent + BINS // 2, 0, BINS - 1))


def largest_lipschitz(counts: np.ndarray) -> float:
    """An upper bound on max_i L_i from the sum of the counts, at most 9 % too large; inf beyond the last bin."""
    last = int(np.flatnonzero(counts)[-1])
    return np.inf if last == BINS - 1 else float(2.0 ** ((last + 1 - BINS // 2) / 8))


def _power_digits(L: float) -> np.ndarray:
    """The fourth power of L in units of 2^-512, as digits in base 2^64; a number beyond 2^127 counts as 2^127."""
    power = int(Fraction(min(L, 2.0**127)) ** POWER * UNIT)
    return np.array([(power >> (64 * k)) & (2**64 - 1) for k in range(DIGITS)], np.uint64)


def _counts_of(digits: np.ndarray) -> np.ndarray:
    """Counts with a single entry: the root of a sum of powers, at most n^(1/4) times the largest L_i."""
    power = Fraction(sum((int(low) + (int(high) << 64)) << (64 * k) for k, (low, high) in enumerate(digits)), UNIT)
    counts = np.zeros(BINS, np.uint8)
    counts[lipschitz_bin(float(power) ** (1 / POWER))] = 1
    return counts
