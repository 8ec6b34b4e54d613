"""When a fit may stop: the certificate of a model, and the judgement of the rounds that led to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from compfed.federation.server.rounds import CHECK, Segment
from compfed.trace import Trace

OUT_OF_REACH = (
    "rounding hides what is left: columns or labels are far larger than they vary, or columns nearly the same. Subtract "
    "what they have in common, leave one of them out, or ask for less with a larger tol"
)


@dataclass(frozen=True)
class Certificate:
    """How far a model is from stationary, computed without knowing a solution.

    For a convex problem a stationary point is a minimiser. Otherwise the certificate says no more than "stationary".
    """

    gradient_mapping: float  # norm of (x - prox(x - grad f(x) / L)) L
    scale: float  # what it is compared with
    tol: float
    duality_gap: float | None = None  # F(x) - F(x*) is at most this, where a dual point is known
    minimiser_exists: bool = True  # False where the objective only falls as the model grows without end
    unique: bool | None = None  # is it the only minimiser? None where that is not known
    rounding: float = 0.0  # what rounding may hide of the gradient mapping, about
    convex: bool = True  # False if the loss or the penalty is not known to be convex

    @property
    def relative(self) -> float:
        """The gradient mapping as a share of `scale`."""
        if not (np.isfinite(self.gradient_mapping) and np.isfinite(self.scale)):
            return float("nan")
        return self.gradient_mapping / self.scale if self.scale > 0 else self.gradient_mapping

    @property
    def holds(self) -> bool:
        """Is the gradient mapping at most tol * scale, is there a minimiser, and could rounding hide no more than that?"""
        return self.relative <= self.tol and self.minimiser_exists and self.within_reach

    @property
    def claim(self) -> str:
        """What the certificate shows if it holds: "minimum", or "stationary point" without known convexity."""
        return "minimum" if self.convex else "stationary point"

    @property
    def within_reach(self) -> bool:
        """Can the numbers be told apart that finely?"""
        return bool(self.rounding <= self.tol * self.scale)


class Verdict(Enum):
    """What a segment of rounds came to."""

    ARRIVED = "the certificate holds"
    GOING_ON = "it is getting there"
    STALLED = "rounds brought the objective no lower"
    BLEW_UP = "the model blew up"

    @property
    def is_trouble(self) -> bool:
        return self in (Verdict.STALLED, Verdict.BLEW_UP)


def judged(segment: Segment, rounds: int, done: int, certificate: Certificate) -> Verdict:
    """The verdict on `rounds` rounds that were allowed, of which `done` were done."""
    if segment.at is None:
        return Verdict.BLEW_UP
    # a run that took no round has arrived, even where the certificate, in other precision, misses by the last bit
    if certificate.holds or done == 0:
        return Verdict.ARRIVED
    return Verdict.STALLED if _stalled(segment.trace, rounds) else Verdict.GOING_ON


def hidden(x: np.ndarray, L: float, terms: float, rows: float) -> float:
    """What rounding may hide of a gradient mapping, about: errors of u L ||x|| from each row's prediction, of random sign,
    and of u times the gradient's terms from their sum, with u the rounding of one number."""
    unit = 0.5 * float(np.finfo(float).eps)
    return unit * (float(L) * float(np.linalg.norm(x)) / float(np.sqrt(max(rows, 1.0))) + terms)


def rounding_level(x: np.ndarray, L: float, terms: float) -> float:
    """100 eps (L ||x|| + size of the gradient's terms): rounding lets a gradient mapping be no smaller.

    The terms count before they cancel: at the minimiser rounding in them is all that is left.
    """
    return 100 * float(np.finfo(x.dtype).eps * (L * np.linalg.norm(x) + terms))


def at_rounding_level(segment: Segment, L: float) -> bool:
    """Is the gradient mapping as small as rounding lets it be?"""
    if segment.at is None:
        return False
    return bool(segment.trace["gradient_mapping"][-1] <= rounding_level(segment.trace.x, L, segment.at.terms))


def _stalled(trace: Trace, rounds: int) -> bool:
    """Did the last `rounds` rounds bring nothing: neither a lower objective nor a smaller gradient mapping?"""
    rows = rounds // CHECK + 1
    F, mapping = trace["objective"], trace["gradient_mapping"]
    if len(F) <= rows:
        return False
    return bool(F[-1] >= F[-rows] - 1e-12 * abs(F[-1]) and mapping[-rows:].min() >= mapping[:-rows].min())
