"""The closed list of queries: what a server may ask, and what each site adds to the sum. Nothing else crosses the wall.

A query is a record of arrays; `Query.Reply` is the part of one site. A server program receives the weighted sum of the
replies (`federation.server.sums`), never a list of them; rows, columns and label types are the only facts known site by
site. Several queries share a message, and several models (the rows of x) share a query. How a site computes its reply is in
`federation.site.answers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from compfed.errors import InputError
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.site_summary import SiteFacts
from compfed.splits import RowSubset

Replies: TypeAlias = tuple[Any, ...]  # one reply, or one sum of replies, to each query of a message


class Refusal(NamedTuple):
    """The reply of a site that will not, or cannot, answer a query."""

    reason: str  # for a person: names the site, the query and why


class SiteRefusal(InputError):
    """A site refused a query; `sums` holds the sums of the other queries of the same message."""

    def __init__(self, reason: str, sums: list[Replies] | None = None):
        super().__init__(reason)
        self.sums = sums


class Query(Protocol):
    """One of `QUERIES`."""

    Reply: type


@dataclass(frozen=True, eq=False)
class Describe:
    """Rows, columns and labels. With `classes`, labels are names to list; otherwise numbers to add.

    `subset` asks for some of the rows only: which labels a fold trains with, and how much its rows weigh. With `detail`
    also means and spreads of columns and labels, for a person to read.
    """

    classes: bool = False
    subset: RowSubset | None = None
    detail: bool = False

    class Reply(NamedTuple):
        rows: int
        weight: float  # of the rows together; their number unless rows are weighted
        width: int
        columns: tuple[str, ...] | None
        classes: np.ndarray  # the labels found; none where labels are numbers
        class_weights: np.ndarray  # how much the rows of each weigh
        label_mean: np.ndarray  # sum_l q_l y_l: a number, or one per outcome; NaN where labels are names
        facts: SiteFacts | None = None


@dataclass(frozen=True, eq=False)
class Moments:
    """The first two moments of every column: the mean, and the mean square.

    Each is a pair of doubles, a number and what its rounding lost: so the variance of a column whose mean is large is known
    to the last digits (`federation.server.moments`). A single double would lose them all.
    """

    subset: RowSubset | None = None

    class Reply(NamedTuple):
        weight: float  # of the rows together
        mean: np.ndarray
        mean_low: np.ndarray
        square: np.ndarray
        square_low: np.ndarray


@dataclass(frozen=True, eq=False)
class Lipschitz:
    """L_i, the Lipschitz constant of grad f_i; for a loss whose curvature has no bound, its curvature at x.

    `counts` has a 1 at the eighth of an octave that L_i is in: from the sum of these the server knows max_i L_i within 9 %.
    Where sums are exact, L_i^4 is added in its place, which bounds max_i L_i within a factor of n^(1/4).
    With `upper_bound` the reply is a bound that takes one pass over the rows, and no counts: too large for steps, good
    enough for a certificate.
    """

    objective: ObjectiveSpec
    x: np.ndarray | None = None
    upper_bound: bool = False

    class Reply(NamedTuple):
        L: float
        counts: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Evaluate:
    """f_i and grad f_i at every row of x; on the coordinates `coords` also the Hessian.

    `terms` is how large the terms of the gradient are before they cancel. `hessian` is the matrix of a quadratic model of
    f_i around x, without the ridge, which the server knows: the second derivative, or what the loss has in its place
    (`Loss.model_hessian`). Only its upper triangle travels.

    With `dual` = (shift, stretch, mix, z), one row per model, also the conjugate of the loss at a dual point, which bounds
    how far F(x) is from its minimum: sum_l q_l loss*(theta_l, y_l), where theta is made of the derivatives at x and of those
    at the constant prediction z, theta_l = stretch ((1 - mix) (derivative_l(x) - shift) + mix derivative_l(z)).
    """

    objective: ObjectiveSpec
    x: np.ndarray  # (models, d)
    coords: np.ndarray | None = None
    dual: np.ndarray | None = None  # (models, 4)

    class Reply(NamedTuple):
        value: np.ndarray  # (models,)
        gradient: np.ndarray  # (models, d)
        terms: np.ndarray  # (models,)
        hessian: np.ndarray | None = None  # (models, |coords| (|coords| + 1) / 2), or fewer where the loss says how
        conjugate: np.ndarray | None = None  # (models,)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The loss of the models in the rows of x on the rows of `subset`, scaled and encoded as in `objective`."""

    objective: ObjectiveSpec
    subset: RowSubset
    x: np.ndarray  # (models, d)

    class Reply(NamedTuple):
        weight: float  # of the rows held out
        loss: np.ndarray  # (models,): sum_l q_l loss_l, q_l the shares of those rows


@dataclass(frozen=True, eq=False)
class LocalUpdate:
    """Exchange `exchange` of round r of a run: the server's broadcast d, the site's update u.

    The site's client state moves on. A method with `finish_round` receives the result in the next broadcast.
    """

    run_spec: RunSpec
    r: int
    exchange: int
    d: Mapping[str, np.ndarray]

    class Reply(NamedTuple):
        u: Mapping[str, np.ndarray]
        finite: bool  # is the client state finite too?


@dataclass(frozen=True, eq=False)
class FinishRound:
    """The result of round r for its participants, where the next round may have others."""

    run_spec: RunSpec
    r: int
    d: Mapping[str, np.ndarray]

    class Reply(NamedTuple):
        finite: bool


LIFT = 32  # bits, where a number was too large for its field
LARGEST_LIFT = 2048  # beyond, a number is not finite
Weighting: TypeAlias = Literal["rows", "sites", "once", "given"]


@dataclass(frozen=True, eq=False)
class Weighted:
    """A query, and the factor that each site gives its reply where sums are exact.

    "rows" is the weight of the site's rows in the query, "sites" 1 for a site with rows, "once" 1 for every site. A "given"
    factor comes from the server; a site that masks its sums refuses it. `lift` is raised where numbers of an earlier
    reply were too large for their field.
    """

    query: Query
    weighting: Weighting
    lift: int = 0
    factor: float = 1.0


LIPSCHITZ_BINS = 4096  # eighths of an octave, from 2^-256 to 2^256


def lipschitz_bin(L: float) -> int:
    """The bin of a Lipschitz constant in `Lipschitz.Reply.counts`."""
    exponent = np.floor(8 * np.log2(L)) if L > 0 else -np.inf
    return int(np.clip(exponent + LIPSCHITZ_BINS // 2, 0, LIPSCHITZ_BINS - 1))


def largest_lipschitz(counts: np.ndarray) -> float:
    """An upper bound on max_i L_i from the sum of the counts, at most 9 % too large; inf beyond the last bin."""
    last = int(np.flatnonzero(counts)[-1])
    return np.inf if last == LIPSCHITZ_BINS - 1 else float(2.0 ** ((last + 1 - LIPSCHITZ_BINS // 2) / 8))


QUERIES: tuple[type, ...] = (Describe, Moments, Lipschitz, Evaluate, HeldOut, LocalUpdate, FinishRound)
