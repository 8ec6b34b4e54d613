"""What one site adds to a sum, as numbers that can be added; and the sum as a server program receives it.

    site      contribution(query, reply, factor)   the fields of a reply, times the factor of the site
    server    assemble(query, totals)              the result, from the sums of these fields over the sites

`fields` lays them out: the name, shape and size of every field follow from the query and the enrolments, which both sides
know. So a contribution travels as numbers alone, and a sum of them means the same whoever adds it up (`exact_sum`).

The factor of a site is its own affair: the weight of its rows, or 1. A server that could choose it would read one site's
part of a sum.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from compfed._utils.arrays import multiply_pairs
from compfed._utils.compilation import precision
from compfed.algorithms.base import PyTree, dense
from compfed.algorithms.round import message_shapes
from compfed.errors import InputError
from compfed.federation import exact_sum
from compfed.federation.codec import unnamed
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.queries import (
    LIPSCHITZ_BINS,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Query,
    Weighted,
    lipschitz_bin,
)
from compfed.federation.spec import ObjectiveSpec
from compfed.federation.sums import Description, HeldOutSum, MomentsSum, UpdateSum
from compfed.losses import Loss
from compfed.splits import RowSubset

WORD_BYTES = 16
POWER = 4  # of the Lipschitz constants that are added, to bound the largest
UNIT, DIGITS = 2**512, 16  # of these powers: from 2^-512 to 2^512
SLACK = 32  # bits by which a number may be larger than expected
SCALED_BITS = 4  # of a column in units of its standard deviation
LARGEST_BITS = 32  # of a prediction
ALWAYS_THERE = ("factor", "weight", "sites", "infinite", "outside", "no_conjugate", "not_finite", "power")
UPDATE_BITS = 16  # of an update: its fields may be models, gradients or both


FieldValues: TypeAlias = dict[str, np.ndarray]  # by field; of a pair, the second double is under the name + "_low"


class Field(NamedTuple):
    """One field of a contribution: its shape, and that its numbers are expected to be below 2**bits in size."""

    shape: tuple[int, ...]
    bits: int | np.ndarray = 0
    pair: bool = False  # a pair of doubles for every number
    digits: bool = False  # of one whole number in base 2**64: its sum is exact whatever its size
    bounded: bool = False  # by the enrolments: it is never too large, and keeps its unit when others are lifted

    @property
    def words(self) -> int:
        return math.prod(self.shape)


# --- the layout of a sum ---


def fields(weighted: Weighted, agreement: Agreement) -> dict[str, Field]:
    """The fields of a contribution, in the order in which they travel."""
    query, R, n = weighted.query, agreement.factor_bits(weighted.weighting), agreement.site_bits
    own = weighted.weighting != "given"  # the enrolments bound the factor
    match query:
        case Describe():
            return _described_fields(query, agreement)
        case Moments():
            columns, width = agreement.column_bits, (agreement.column_bits.size,)
            return {
                "factor": Field((), R, pair=True, bounded=own),
                "mean": Field(width, R + columns, pair=True, bounded=own),
                "square": Field(width, R + 2 * columns, pair=True, bounded=own),
            }
        case Lipschitz():
            size = _Sizes(query.objective, np.zeros(1) if query.x is None else query.x, agreement, R)
            bits = int(np.max(size.hessian, initial=0)) + agreement.column_bits.size.bit_length()
            found = {"factor": Field((), R, bounded=own), "outside": Field((), n, bounded=True), "L": Field((), bits)}
            return found if query.upper_bound else {**found, "power": Field((DIGITS,), digits=True)}
        case Evaluate():
            return {"factor": Field((), R, bounded=own), **_evaluated_fields(query, agreement, R)}
        case HeldOut():
            models = (len(query.x),)
            bits = _Sizes(query.objective, query.x, agreement, 0).value
            whole = {"weight": Field((), agreement.weight_bits, bounded=True), "sites": Field((), n, bounded=True)}
            sums = {"loss": Field(models, agreement.weight_bits + bits), "means": Field(models, n + bits)}
            counts = Field(models, n, bounded=True)
            return {**whole, "infinite": counts, "outside": counts, **sums}
        case LocalUpdate():
            largest = max((_bits(array) for array in query.d.values()), default=0)
            size = _Sizes(query.run_spec.objective, query.run_spec.x0, agreement, R)
            bits = R + max(largest, min(int(np.max(size.gradient, initial=0)) - R, UPDATE_BITS))
            counts = Field((), n, bounded=True)
            found = {"factor": Field((), R, bounded=own), "not_finite": counts, "outside": counts}
            leaves = jax.tree.leaves(dense_update(query))
            return {**found, **{f"u.{k}": Field(leaf.shape, bits) for k, leaf in enumerate(leaves)}}
        case FinishRound():
            return {"not_finite": Field((), n, bounded=True)}
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def word_count(weighted: Weighted, agreement: Agreement) -> int:
    """The number of 128-bit words of a contribution."""
    return sum(field.words for field in fields(weighted, agreement).values())


def _described_fields(query: Describe, agreement: Agreement) -> dict[str, Field]:
    R, n, y = agreement.weight_bits, agreement.site_bits, agreement.label_bits
    rows = int(np.frexp(float(sum(e.rows for e in agreement.enrolments)))[1])
    found = {name: Field((), bits, bounded=True) for name, bits in {"weight": R, "rows": rows, "sites": n}.items()}
    if query.classes:
        each = (len(agreement.classes),)
        return {**found, "class_weights": Field(each, R, bounded=True), "class_shares": Field(each, n, bounded=True)}
    shape = agreement.enrolments[0].label_shape
    return {**found, "label_sum": Field(shape, R + y, bounded=True), "label_means": Field(shape, n + y, bounded=True)}


def _evaluated_fields(query: Evaluate, agreement: Agreement, R: int) -> dict[str, Field]:
    models, d = query.x.shape
    size = _Sizes(query.objective, query.x, agreement, R)
    counts = Field((models,), agreement.site_bits, bounded=True)
    found = {
        "infinite": counts,
        "outside": counts,
        "value": Field((models,), size.value),
        "gradient": Field((models, d), size.gradient),
        "terms": Field((models,), size.gradient.max(axis=1, initial=0) + d.bit_length()),
    }
    if query.coords is not None:
        entries = hessian_size(query.objective.loss, query.coords)
        found["hessian"] = Field((models, entries), size.hessian_of(query.coords, entries))
    if query.dual is not None:
        found["conjugate"], found["no_conjugate"] = Field((models,), size.value), counts
    return found


def hessian_size(loss: Loss, coords: np.ndarray) -> int:
    """The numbers of a packed Hessian on these coordinates."""
    outputs = getattr(loss, "outputs", 1)
    if outputs > 1 and loss.packed_size(outputs) == 1:  # one matrix for all outputs, on the features that they are of
        return loss.packed_size(outputs * len(np.unique(np.asarray(coords) // outputs)))
    return loss.packed_size(len(coords))


def dense_update(query: LocalUpdate) -> PyTree:
    """The shapes of an update in dense form."""
    run = query.run_spec
    shapes = message_shapes(run.algorithm, run.regulariser, run.x0.size, run.x0.dtype)[query.exchange]
    with precision(run.x0.dtype):
        return jax.eval_shape(lambda u: dense(u, run.x0.size), shapes.update)


class _Sizes:
    """How large the numbers of an evaluation usually are: powers of two, from the enrolments and the models asked about.

    R is that of the factors together.

    A guess on the small side leaves more digits. Numbers that are 2**32 times as large still fit, and beyond that the message
    is repeated.
    """

    def __init__(self, objective: ObjectiveSpec, x: np.ndarray, agreement: Agreement, R: int):
        columns = agreement.column_bits if objective.columns is None else agreement.column_bits[objective.columns]
        x = np.atleast_2d(x)
        d = x.shape[1]
        if objective.scaling is not None:
            columns = np.full(d, SCALED_BITS)
        elif columns.size and d % columns.size == 0:
            columns = np.repeat(columns, d // columns.size)  # several outputs
        else:
            columns = np.full(d, max(int(columns.max(initial=0)), 0))
        exponents = np.where(x == 0, -LARGEST_BITS, np.frexp(x)[1])
        largest = exponents.max(axis=1, initial=-LARGEST_BITS)
        predictions = np.clip((exponents + columns).max(axis=1, initial=0), agreement.label_bits, None)
        predictions = np.minimum(predictions, max(LARGEST_BITS, agreement.label_bits))
        ridge, curvature = _bits(np.asarray(objective.loss.ridge)), objective.loss.curvature
        second = predictions if curvature is None else np.full(len(x), _bits(np.asarray(curvature, float)))
        self.value = R + np.maximum(2 * predictions, ridge + 2 * largest)
        self.gradient = R + np.maximum(predictions[:, None] + columns, ridge + largest[:, None])
        self.columns, self.second = columns, R + second[:, None]
        self.hessian = self.second + 2 * columns

    def hessian_of(self, coords: np.ndarray, entries: int) -> np.ndarray:
        """Of the upper triangle of the Hessian on these coordinates."""
        c = self.columns[np.asarray(coords)]
        if (c == c[:1]).all():
            return self.second + 2 * c[:1]
        if entries != len(c) * (len(c) + 1) // 2:  # packed in another way
            return self.hessian.max(axis=1, keepdims=True, initial=0)
        i, j = np.triu_indices(len(c))
        return self.second + c[i] + c[j]


def _bits(values: np.ndarray) -> int:
    """b such that all finite values are below 2**b; 0 for none."""
    finite = np.abs(np.asarray(values, float).ravel())
    largest = float(np.max(finite, initial=0.0, where=np.isfinite(finite)))
    return int(np.frexp(largest)[1]) if largest > 0 else 0


# --- at a site ---


def row_subset(query: Query) -> RowSubset | None:
    """The rows that a query is about."""
    match query:
        case Describe() | Moments() | HeldOut():
            return query.subset
        case Lipschitz() | Evaluate():
            return query.objective.subset
        case LocalUpdate() | FinishRound():
            return query.run_spec.objective.subset
    return None


def factor(weighted: Weighted, weight: float) -> float:
    """The factor of a site whose rows in a query weigh so much."""
    match weighted.weighting:
        case "rows":
            return weight
        case "sites":
            return float(weight > 0)
        case "given":
            return float(weighted.factor)
    return 1.0


def contribution(weighted: Weighted, reply: object, weight: float, agreement: Agreement) -> FieldValues:
    """The fields of a site's reply, times its factor. `weight` is that of its rows in the query."""
    query: Query = weighted.query
    w, r, found = factor(weighted, weight), reply, dict[str, np.ndarray]()
    match query:
        case Describe():
            assert isinstance(r, Describe.Reply)
            found = {
                "weight": np.array(r.weight),
                "rows": np.array(float(r.rows)),
                "sites": np.array(float(r.weight > 0)),
            }
            if not query.classes:
                return {**found, "label_sum": r.weight * r.label_mean, "label_means": (r.weight > 0) * r.label_mean}
            place = np.searchsorted(agreement.classes, r.classes)
            each, share = np.zeros(len(agreement.classes)), np.zeros(len(agreement.classes))
            each[place], share[place] = r.class_weights, r.class_weights / (r.weight or 1.0)
            return {**found, "class_weights": each, "class_shares": share}
        case Moments():
            assert isinstance(r, Moments.Reply)
            w = w if r.weight > 0 else 0.0
            scaled = (np.broadcast_to(w, r.mean.shape), np.zeros(r.mean.shape))
            found = {"factor": np.array(w), "factor_low": np.array(0.0)}
            found["mean"], found["mean_low"] = multiply_pairs(scaled, (r.mean, r.mean_low))
            found["square"], found["square_low"] = multiply_pairs(scaled, (r.square, r.square_low))
            return found
        case Lipschitz():
            assert isinstance(r, Lipschitz.Reply)
            found |= {"factor": np.array(w), "outside": np.array(0.0), "L": np.array(w * r.L)}
            return found if r.counts is None else {**found, "power": _power_digits(r.L if w else 0.0)}
        case Evaluate():
            assert isinstance(r, Evaluate.Reply)
            return _evaluated(r, w)
        case HeldOut():
            assert isinstance(r, HeldOut.Reply)
            there = float(r.weight > 0)
            loss = _hidden(r.loss, ~np.isfinite(r.weight * r.loss)) if there else np.zeros(r.loss.shape)
            whole = {"weight": np.array(r.weight), "sites": np.array(there), "infinite": _flag(np.isnan(loss))}
            return {**whole, "outside": np.zeros(loss.shape), "loss": r.weight * loss, "means": loss}
        case LocalUpdate():
            assert isinstance(r, LocalUpdate.Reply)
            return _updated(query, r, w)
        case FinishRound():
            assert isinstance(r, FinishRound.Reply)
            return {"not_finite": _flag(not r.finite)}
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def _evaluated(r: Evaluate.Reply, w: float) -> FieldValues:
    """Where a model is far out, a number is infinite: a flag tells it, and nothing else of the model is told."""
    names = [name for name in ("value", "gradient", "terms", "hessian") if getattr(r, name) is not None]
    with np.errstate(over="ignore", invalid="ignore"):
        terms = {name: w * np.asarray(getattr(r, name), float) for name in names}
    far_out = np.any([~np.isfinite(t).reshape(len(t), -1).all(axis=1) for t in terms.values()], axis=0) & (w != 0)
    found: FieldValues = {"factor": np.array(w), "infinite": _flag(far_out)}
    found["outside"] = np.zeros(len(far_out))
    found |= {name: _hidden(t, far_out) if w != 0 else np.zeros(t.shape) for name, t in terms.items()}
    if r.conjugate is not None:
        term = w * r.conjugate if w != 0 else np.zeros(r.conjugate.shape)
        found["conjugate"] = _hidden(term, ~np.isfinite(term))
        found["no_conjugate"] = _flag(~np.isfinite(term))
    return found


def _power_digits(L: float) -> np.ndarray:
    """The fourth power of L in units of 2^-512, as digits in base 2^64; a number beyond 2^127 counts as 2^127."""
    power = int(Fraction(min(L, 2.0**127)) ** POWER * UNIT)
    return np.array([(power >> (64 * k)) & (2**64 - 1) for k in range(DIGITS)], np.uint64)


def _flag(where: np.ndarray | bool) -> np.ndarray:
    """0 for no, noise (`encode`) for yes: the server learns whether it is so at any site, and not at how many."""
    return np.where(where, np.nan, 0.0)


def _hidden(values: np.ndarray, where: np.ndarray) -> np.ndarray:
    """The values, NaN where they are to be hidden (`encode`). 0 would not do: the total would be that of the other sites."""
    return np.where(where.reshape(where.shape + (1,) * (values.ndim - where.ndim)), np.nan, values)


def _updated(query: LocalUpdate, r: LocalUpdate.Reply, w: float) -> FieldValues:
    run = query.run_spec
    shapes = message_shapes(run.algorithm, run.regulariser, run.x0.size, run.x0.dtype)[query.exchange]
    with precision(run.x0.dtype):
        leaves = jax.tree.leaves(dense(unnamed(r.u, shapes.update), run.x0.size))
    finite = r.finite and all(np.isfinite(leaf).all() for leaf in leaves)
    found: FieldValues = {"factor": np.array(w), "not_finite": _flag(not finite)}
    found["outside"], kept = np.array(0.0), w if finite else np.nan
    found |= {f"u.{k}": kept * np.asarray(leaf, float) for k, leaf in enumerate(leaves)}
    return found


def encode(
    asked: Sequence[Weighted], replies: Sequence[object], weights: Sequence[float], agreement: Agreement
) -> tuple[np.ndarray, int]:
    """The words of the contributions to one message, and 1 if one of their numbers is too large for its field, else 0.

    The numbers of a model that has such a number are noise, as NaN is, and so is a flag that says it: the server asks again.
    With 0 in their place the total would be that of the other sites, and the part of this one known by subtraction from the
    total of the repeated message. A round cannot be repeated: there a number that is too large counts as not finite.
    """
    layout = _Layout(asked, agreement)
    given = [contribution(*one, agreement) for one in zip(asked, replies, weights, strict=True)]
    words, wrong = _encoded(layout, given, agreement.n)
    if not wrong.any():
        return words, 0
    at = 0
    for k, (weighted, found) in enumerate(zip(asked, layout.fields, strict=True)):
        outside = dict[str, np.ndarray]()
        for name, field in found.items():
            if (here := wrong[at : at + field.words]).any():
                outside[name] = here
            at += field.words
        if outside:
            given[k] = _hide_models(weighted, found, given[k], outside)
    return _encoded(layout, given, agreement.n)[0], 1


def _hide_models(
    weighted: Weighted, layout: dict[str, Field], given: FieldValues, outside: dict[str, np.ndarray]
) -> FieldValues:
    """A contribution without the models that have a number too large for its field, and with a flag that says so."""
    if any(layout[name].bounded for name in outside):
        raise InputError("its rows weigh more, or are larger, than its enrolment says. Start a new run.")
    if moves_on(weighted.query):
        wrong, flag = np.array(True), "not_finite"
    else:
        wrong, flag = np.zeros(np.shape(given["outside"]), bool), "outside"
    for mask in outside.values():
        wrong |= mask.reshape(*wrong.shape, -1).any(axis=-1)
    hidden = {name: _hidden(value, wrong) for name, value in given.items() if name not in ALWAYS_THERE}
    return {**given, **hidden, flag: _flag(wrong)}


class _Layout:
    """Where the fields of a message are in its words, and the unit of every word. A message may have thousands of fields."""

    def __init__(self, asked: Sequence[Weighted], agreement: Agreement):
        self.fields = [fields(weighted, agreement) for weighted in asked]
        units = [np.empty(0, int)]
        for weighted, found in zip(asked, self.fields, strict=True):
            for field in found.values():
                bits = np.broadcast_to(field.bits, field.shape).ravel()
                slack, lift = (1, 0) if field.bounded else (SLACK, weighted.lift)
                units.append(bits + (slack + lift))
        self.units = exact_sum.unit_for(np.concatenate(units), slack=0, sites=agreement.n)


def _encoded(layout: _Layout, given: Sequence[FieldValues], n: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of all fields, and which numbers are too large. NaN becomes noise."""
    size = len(layout.units)
    numbers, lows, digits = np.zeros(size), np.zeros(size), np.zeros(size, np.uint64)
    at, pairs = 0, False
    for found, values in zip(layout.fields, given, strict=True):
        for name, field in found.items():
            here = slice(at, at + field.words)
            at += field.words
            if field.digits:
                digits[here] = values[name]
            else:
                numbers[here] = np.ravel(values[name])
            if field.pair:
                lows[here], pairs = np.ravel(values[f"{name}_low"]), True
    hidden = np.isnan(numbers)
    numbers[hidden] = 0.0
    words, wrong = exact_sum.encode_each(numbers, layout.units, n)
    if pairs:
        low, low_wrong = exact_sum.encode_each(lows, layout.units, n)
        words, wrong = exact_sum.add(words, low), wrong | low_wrong
    words[:, 0] += digits  # elsewhere both are 0
    words[hidden] = _noise(int(hidden.sum()))
    return words, wrong


def _noise(words: int) -> np.ndarray:
    return np.frombuffer(secrets.token_bytes(WORD_BYTES * words), np.uint64).reshape(-1, 2)


def moves_on(query: Query) -> bool:
    """Whether the client state moves on with each answer, so that a repeated query would find another one."""
    return isinstance(query, FinishRound) or (isinstance(query, LocalUpdate) and (query.r, query.exchange) != (0, 0))


# --- at the server ---


def decode(
    asked: Sequence[Weighted], words: np.ndarray, agreement: Agreement, sites: Sequence[Sequence[int]]
) -> list[object]:
    """The result of every query, from the sum of the words of the sites that each went to."""
    layout, results, at = _Layout(asked, agreement), list[object](), 0
    numbers = exact_sum.decode(words, layout.units)
    for weighted, found, places in zip(asked, layout.fields, sites, strict=True):
        totals = dict[str, np.ndarray]()
        for name, field in found.items():
            here = slice(at, at + field.words)
            at += field.words
            if field.digits:
                totals[name] = words[here]
            elif field.pair:
                pair = exact_sum.decode_pair(words[here], layout.units[here])
                totals[name], totals[f"{name}_low"] = (part.reshape(field.shape) for part in pair)
            else:
                totals[name] = numbers[here].reshape(field.shape)
        results.append(assemble(weighted, totals, [agreement.enrolments[i] for i in places], agreement))
    return results


def assemble(weighted: Weighted, totals: FieldValues, enrolments: Sequence[Enrolment], agreement: Agreement) -> object:
    """The sum as a server program receives it; a mean over the sites where they were weighted. None to ask again."""
    query, t = weighted.query, totals
    _check_totals(weighted, t, enrolments)
    weighs = weighted.weighting in ("rows", "sites") and not isinstance(
        query, (Describe, Moments, HeldOut, FinishRound)
    )
    divisor = float(t["factor"]) if weighs else 1.0
    match query:
        case Describe():
            return _description(query, t, enrolments, agreement)
        case Moments():
            return MomentsSum(
                *((np.atleast_1d(t[name]), np.atleast_1d(t[f"{name}_low"])) for name in ("factor", "mean", "square"))
            )
        case Lipschitz() | LocalUpdate() if t["outside"].any():
            return None
        case Lipschitz():
            return Lipschitz.Reply(float(t["L"]) / divisor, _lipschitz_counts(t["power"]) if "power" in t else None)
        case Evaluate():
            return _evaluation(query, t, divisor)
        case HeldOut():
            there = _there(t)
            loss, means = (np.where(np.isfinite(there), t[name], there) for name in ("loss", "means"))
            return HeldOutSum(float(t["weight"]), loss, round(float(t["sites"])), means)
        case LocalUpdate():
            return _update_sum(query, t, divisor)
        case FinishRound():
            return FinishRound.Reply(finite=not t["not_finite"].any())
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def _check_totals(weighted: Weighted, t: FieldValues, enrolments: Sequence[Enrolment]) -> None:
    """Refuse sums that honest sites cannot give. A wrong masked reply has no author: only the total is checked."""
    kind, everything = type(weighted.query).__name__, sum(e.weight for e in enrolments)
    wrong = "Start a new run; if it happens again, compare versions and ask every site for its log."
    for name in ("factor", "weight", "rows", "sites", "class_weights"):
        value = t.get(name, np.zeros(()))
        if (value < 0).any():
            raise InputError(f"{kind}: the sum of the field {name} is below 0; a site sent a wrong reply. {wrong}")
        if name == "sites" and ((value > len(enrolments)) | (value != np.rint(value))).any():
            raise InputError(f"{kind}: the field {name} does not count sites; a site sent a wrong reply. {wrong}")
    held = {"rows": "factor", "sites": "", "once": "", "given": ""}[weighted.weighting] if "factor" in t else "weight"
    total = t.get(held)
    if total is None:
        return
    total = float(total)
    if row_subset(weighted.query) is None and abs(total - everything) > 1e-9 * everything:
        raise InputError(
            f"{kind}: the weight of all rows is not that of the enrolments; a site sent a wrong reply. {wrong}"
        )
    if total > everything * (1 + 1e-9):
        raise InputError(f"{kind}: rows weigh more than the enrolments say; a site sent a wrong reply. {wrong}")


def _lipschitz_counts(digits: np.ndarray) -> np.ndarray:
    """Counts (`Lipschitz`) with a single entry: the root of a sum of powers, at most n^(1/4) times the largest L_i.

    The counts of the sites themselves would undo the masks: asked for in many units, they tell every site's L_i.
    """
    power = Fraction(sum((int(low) + (int(high) << 64)) << (64 * k) for k, (low, high) in enumerate(digits)), UNIT)
    root = float(power) ** (1 / POWER)
    counts = np.zeros(LIPSCHITZ_BINS, np.uint8)
    counts[lipschitz_bin(root)] = 1
    return counts


def _evaluation(query: Evaluate, t: FieldValues, divisor: float) -> Evaluate.Reply:
    dtype = np.float64 if query.objective.dtype == "float64" else np.float32
    there = _there(t)

    def mean(name: str) -> np.ndarray | None:
        if name not in t:
            return None
        values = t[name] / divisor
        value = there.reshape((-1,) + (1,) * (values.ndim - 1))
        return np.where(np.isfinite(value), values, value if name == "value" else np.nan)

    conjugate = None
    if "conjugate" in t:
        conjugate = np.where(t["no_conjugate"] != 0, np.inf, t["conjugate"] / divisor)
    value, gradient, terms = (mean(name) for name in ("value", "gradient", "terms"))
    assert value is not None
    assert gradient is not None
    assert terms is not None
    return Evaluate.Reply(value.astype(dtype), gradient.astype(dtype), terms.astype(dtype), mean("hessian"), conjugate)


def _there(t: FieldValues) -> np.ndarray:
    """0 for each model, inf where it is infinite at a site, NaN where a site has a number too large for its field."""
    return np.where(t["outside"] != 0, np.nan, np.where(t["infinite"] != 0, np.inf, 0.0))


def outside_models(summed: object) -> np.ndarray | None:
    """Which models of a sum have to be asked for again, with larger fields; None if there are none."""
    if summed is None:
        return np.ones(1, bool)
    values = (
        summed.value if isinstance(summed, Evaluate.Reply) else summed.loss if isinstance(summed, HeldOutSum) else 0.0
    )
    return np.isnan(values) if np.isnan(values).any() else None


def merged(first: Any, again: Any) -> Any:
    """A sum, with the models that were too large for their fields from its repetition."""
    wrong = outside_models(first)
    if wrong is None:
        return first

    def field(old: Any, new: Any) -> Any:
        if np.ndim(old) == 0:  # no field, or one for all models
            return new
        return np.where(wrong.reshape((-1,) + (1,) * (np.ndim(old) - 1)), new, old)

    return type(first)(*map(field, first, again))


def _update_sum(query: LocalUpdate, t: FieldValues, divisor: float) -> UpdateSum:
    if t["not_finite"].any():
        return UpdateSum(None, ("unknown",))  # masks hide which
    shapes = dense_update(query)
    leaves, structure = jax.tree.flatten(shapes)
    found = [(np.asarray(t[f"u.{k}"]) / divisor).astype(leaf.dtype) for k, leaf in enumerate(leaves)]
    return UpdateSum(jax.tree.unflatten(structure, found), ())


def _description(query: Describe, t: FieldValues, every: Sequence[Enrolment], agreement: Agreement) -> Description:
    """Facts of single sites are those of the enrolments; of a subset of the rows only the total is known."""
    weight = float(t["weight"])
    rows, weights = np.array([e.rows for e in every]), np.array([e.weight for e in every])
    if query.subset is not None:
        rows = np.rint(rows * (float(t["rows"]) / rows.sum())).astype(int)
        weights = weights * (weight / weights.sum())
    nothing = np.empty(0)
    return Description(
        rows=rows, weights=weights, weight=weight, sites=round(float(t["sites"])),
        widths=tuple(e.width for e in every), columns=tuple(e.columns for e in every),
        label_kinds=tuple(e.label_kind for e in every), label_shapes=tuple(e.label_shape for e in every),
        classes=agreement.classes[t["class_weights"] > 0] if query.classes else nothing,
        class_weights=_positive(t, "class_weights"), class_shares=_positive(t, "class_shares"),
        label_sum=t.get("label_sum"), label_means=t.get("label_means"), facts=None,
        site_classes=tuple(e.classes for e in every),
    )  # fmt: skip


def _positive(t: FieldValues, name: str) -> np.ndarray:
    """The entries of the classes that have rows in the sum."""
    return t[name][t["class_weights"] > 0] if name in t else np.empty(0)
