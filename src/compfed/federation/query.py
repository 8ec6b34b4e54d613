"""What every query has: its reply at a site, the layout of that reply in a message, and the sum as a program receives it.

    site      reply -> contribution(reply, factor)   numbers that can be added, times the site's factor
    anybody   add                                    in doubles, or exactly, or under masks: `federation.adding`
    server    assemble(totals)                       the sum that the server program receives

The layout of a contribution follows from the query and the enrolments, which both sides know: so it travels as numbers alone,
and a sum of them means the same whoever adds them up. The factor of a site is its own affair, the weight of its rows or 1:
a server that could choose it would read one site's part of a sum.

A query is one file in `federation/queries`. How a site computes its reply is in `federation.site.answers`.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from compfed.errors import InputError
from compfed.federation.spec import ObjectiveSpec
from compfed.splits import RowSubset

if TYPE_CHECKING:
    from compfed.federation.enrolment import Agreement, Enrolment
    from compfed.federation.limits import QueryChecks

Replies: TypeAlias = tuple[object, ...]  # one reply to each query of a message
FieldValues: TypeAlias = dict[str, np.ndarray]  # by field; of a pair, the second double is under the name + "_low"
Weighting: TypeAlias = Literal["rows", "sites", "once", "given"]
Bits: TypeAlias = int | np.ndarray | Callable[[], np.ndarray]

LIFT = 32  # bits, where a number was too large for its field
LARGEST_LIFT = 2048  # beyond, a number is not finite
SCALED_BITS = 4  # of a column in units of its standard deviation
LARGEST_BITS = 32  # of a prediction
NEW_RUN = "Start a new run; if it happens again, compare versions and ask every site for its log."


class Refusal(NamedTuple):
    """The reply of a site that will not, or cannot, answer a query."""

    reason: str  # for a person: names the site, the query and why


class SiteRefusal(InputError):
    """A site refused a query; `sums` holds the sums of the other queries of the same message."""

    def __init__(self, reason: str, sums: Sequence[tuple[Any, ...]] | None = None):
        super().__init__(reason)
        self.sums = sums


class Field(NamedTuple):
    """One field of a contribution: its shape, and that its numbers are expected to be below 2**bits in size.

    The bits are worked out where numbers are added exactly, and nowhere else: there they may be a function.
    """

    shape: tuple[int, ...]
    bits: Bits = 0
    pair: bool = False  # a pair of doubles for every number
    digits: bool = False  # of one whole number in base 2**64: its sum is exact whatever its size
    bounded: bool = False  # by the enrolments: it is never too large, and keeps its unit when others are lifted

    @property
    def words(self) -> int:
        return math.prod(self.shape)


class Layout(dict[str, Field]):
    """The fields of a contribution by name, in the order in which they travel."""

    @cached_property
    def words(self) -> int:
        """The numbers of all fields together; a pair is one."""
        return sum(field.words for field in self.values())

    @cached_property
    def pairs(self) -> int:
        """How many of them are pairs."""
        return sum(field.words for field in self.values() if field.pair)


class Query(abc.ABC):
    """A record of arrays that a server may ask, and all that follows from it. `QUERIES` lists those there are."""

    Reply: ClassVar[type]  # the part of one site
    leaves: ClassVar[str]  # what it makes leave a site, in words
    is_divided: ClassVar[bool] = False  # whether a sum weighted by rows or sites is divided by that of the factors
    is_encoded: ClassVar[bool] = True  # whether it is about encoded rows, rather than the table as it is in its file
    own_weighting: ClassVar[Weighting] = "once"  # of a request without weights

    def weighed_by(self, weighting: Weighting) -> str:
        """In which weighting its numbers are added: by "rows", by "sites", or "" where they say nothing about rows.

        A sum that is not weighted counts every site once, as "sites" does.
        """
        return "rows" if weighting == "rows" else "sites"

    @property
    def moves_on(self) -> bool:
        """Whether the client state moves on with each reply, so that a repeated query would find another one."""
        return False

    @property
    @abc.abstractmethod
    def rows(self) -> RowSubset | None:
        """The rows that it is about; None for all."""

    @property
    def subsets(self) -> tuple[RowSubset | None, ...]:
        """All rows that it depends on: also those that the intercept of a site is fitted to."""
        return (self.rows,)

    @property
    def told_of(self) -> tuple[tuple[RowSubset | None, ...], int]:
        """The rows that its numbers are about, and how many columns; 0 for all (`federation.numbers`).

        Those of a model without columns, of an intercept alone, are about the labels: one column.
        """
        run = getattr(self, "run_spec", None)
        objective = getattr(self, "objective", None) if run is None else run.objective
        if objective is None:
            return (self.rows,), 0
        columns = 0 if objective.columns is None else max(int(objective.columns.size), 1)
        return self.subsets if objective.profile else (self.rows,), columns

    @abc.abstractmethod
    def check(self, checks: QueryChecks) -> None:
        """Refuse, from shapes alone, what does not fit a site or would take too much of it."""

    @abc.abstractmethod
    def layout(self, agreement: Agreement, weighting: Weighting) -> dict[str, Field]:
        """The fields of a contribution, in the order in which they travel; worked out once for an agreement."""

    @abc.abstractmethod
    def contribution(self, reply: Any, factor: float, agreement: Agreement) -> FieldValues:
        """The fields of a site's reply, times its factor."""

    @abc.abstractmethod
    def assemble(
        self, totals: FieldValues, divisor: float, enrolments: Sequence[Enrolment], agreement: Agreement
    ) -> object:
        """The sum as a server program receives it, over the sites of these enrolments. None to ask again."""

    def outside(self, summed: Any) -> np.ndarray | None:
        """Which models of a sum have numbers too large for their fields, and are asked for again; None if there are none."""
        return np.ones(1, bool) if summed is None else None


@dataclass(frozen=True, eq=False)
class Weighted:
    """A query, and the factor that each site gives its reply.

    "rows" is the weight of the site's rows in the query, "sites" 1 for a site with rows, "once" 1 for every site. A "given"
    factor comes from the server; a site that masks its sums refuses it. `lift` is raised where numbers of an earlier
    reply were too large for their field.
    """

    query: Query
    weighting: Weighting
    lift: int = 0
    factor: float = 1.0

    def factor_at(self, weight: float) -> float:
        """The factor of a site whose rows in the query weigh so much."""
        match self.weighting:
            case "rows":
                return weight
            case "sites":
                return float(weight > 0)
            case "given":
                return float(self.factor)
        return 1.0

    def layout(self, agreement: Agreement) -> Layout:
        """The fields of a contribution; worked out once for each query and agreement."""
        known = self.__dict__.get("_layout")
        if known is None or known[0] is not agreement:
            found = agreement.once(self.query, self.weighting, lambda: self._laid_out(agreement))
            known = self.__dict__["_layout"] = agreement, found
        return known[1]

    def _laid_out(self, agreement: Agreement) -> Layout:
        if self.query.is_encoded:
            agreement.check_encoded()
        return Layout(self.query.layout(agreement, self.weighting))

    def assemble(self, totals: FieldValues, enrolments: Sequence[Enrolment], agreement: Agreement) -> object:
        """The sum as a server program receives it; a mean over the sites where they were weighted. None to ask again."""
        divided = self.query.is_divided and self.weighting in ("rows", "sites")
        return self.query.assemble(totals, float(totals["factor"]) if divided else 1.0, enrolments, agreement)


def merged(query: Query, first: Any, again: Any) -> Any:
    """A sum, with the models that were too large for their fields from its repetition."""
    wrong = query.outside(first)
    if first is None or wrong is None:
        return again if first is None else first

    def field(old: Any, new: Any) -> Any:
        if np.ndim(old) == 0:  # no field, or one for all models
            return new
        return np.where(wrong.reshape((-1,) + (1,) * (np.ndim(old) - 1)), new, old)

    return type(first)(*map(field, first, again))


# --- fields ---


def factor_field(agreement: Agreement, weighting: Weighting, pair: bool = False) -> Field:
    """The field of the factors. The enrolments bound them, unless the server gives them."""
    return Field((), agreement.factor_bits(weighting), pair=pair, bounded=weighting != "given")


def flag(where: np.ndarray | bool) -> np.ndarray:
    """0 for no, NaN for yes, which travels as noise: the server learns whether it is so at any site, and not at how many."""
    return np.where(where, np.nan, 0.0)


def hidden(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The values, NaN where they are to be hidden. With 0 in their place the total would be that of the other sites."""
    return np.where(where.reshape(where.shape + (1,) * (values.ndim - where.ndim)), np.nan, values)


def there(totals: FieldValues) -> np.ndarray:
    """0 for each model, inf where it is infinite at a site, NaN where a site has a number too large for its field."""
    return np.where(totals["outside"] != 0, np.nan, np.where(totals["infinite"] != 0, np.inf, 0.0))


def check_finite(kind: str, reply: Mapping[str, object]) -> None:
    """Refuse a reply of this site that has numbers which are not finite: they would be noise in the sum."""
    for name, value in reply.items():
        if value is not None and not np.isfinite(np.asarray(value, float)).all():
            raise InputError(
                f"it computed a reply to {kind} whose {name} is not finite; compare its table with the others"
            )


class Sizes:
    """How large the numbers of an evaluation usually are: powers of two, from the enrolments and the models asked about.

    `factors` are the bits of the factors together. A guess on the small side leaves more digits. Numbers that are 2**32 times as
    large still fit, and beyond that the message is repeated.
    """

    def __init__(self, objective: ObjectiveSpec, x: np.ndarray, agreement: Agreement, factors: int):
        self.objective, self.x, self.agreement, self.factors = objective, np.atleast_2d(x), agreement, factors

    @cached_property
    def columns(self) -> np.ndarray:
        objective, d = self.objective, self.x.shape[1]
        columns = self.agreement.column_bits
        columns = columns if objective.columns is None else columns[objective.columns]
        if objective.scaling is not None:
            return np.full(d, SCALED_BITS)
        if columns.size and d % columns.size == 0:
            return np.repeat(columns, d // columns.size)  # several outputs
        return np.full(d, max(int(columns.max(initial=0)), 0))

    @cached_property
    def _exponents(self) -> np.ndarray:
        return np.where(self.x == 0, -LARGEST_BITS, np.frexp(self.x)[1])

    @cached_property
    def _largest(self) -> np.ndarray:
        """Of the coefficients of each model."""
        return self._exponents.max(axis=1, initial=-LARGEST_BITS)

    @cached_property
    def _predictions(self) -> np.ndarray:
        labels = self.agreement.label_bits
        predictions = np.clip((self._exponents + self.columns).max(axis=1, initial=0), labels, None)
        return np.minimum(predictions, max(LARGEST_BITS, labels))

    @cached_property
    def _ridge(self) -> int:
        return largest_bits(np.asarray(self.objective.loss.ridge))

    @cached_property
    def second(self) -> np.ndarray:
        """Of the second derivatives in the prediction, one for each model."""
        curvature = self.objective.loss.curvature
        if curvature is None:
            return self.factors + self._predictions[:, None]
        return np.full((len(self.x), 1), self.factors + largest_bits(np.asarray(curvature, float)))

    def value(self) -> np.ndarray:
        return self.factors + np.maximum(2 * self._predictions, self._ridge + 2 * self._largest)

    def gradient(self) -> np.ndarray:
        return self.factors + np.maximum(
            self._predictions[:, None] + self.columns, self._ridge + self._largest[:, None]
        )

    def hessian(self) -> np.ndarray:
        """Of the diagonal of the Hessian."""
        return self.second + 2 * self.columns

    def hessian_of(self, coords: np.ndarray, entries: int) -> np.ndarray:
        """Of the upper triangle of the Hessian on these coordinates."""
        c = self.columns[np.asarray(coords)]
        if (c == c[:1]).all():
            return self.second + 2 * c[:1]
        if entries != len(c) * (len(c) + 1) // 2:  # packed in another way
            return self.hessian().max(axis=1, keepdims=True, initial=0)
        i, j = np.triu_indices(len(c))
        return self.second + c[i] + c[j]


def largest_bits(values: np.ndarray) -> int:
    """b such that all finite values are below 2**b; 0 for none."""
    finite = np.abs(np.asarray(values, float).ravel())
    largest = float(np.max(finite, initial=0.0, where=np.isfinite(finite)))
    return int(np.frexp(largest)[1]) if largest > 0 else 0
