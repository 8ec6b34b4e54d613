"""What one site adds to a sum, as numbers that can be added; and the sum as a server program receives it.

    site      contribution(query, reply, factor)   the fields of a reply, times the factor of the site
    server    assemble(query, totals)              the result, from the sums of these fields over the sites

`fields` lays them out: the name, shape and size of every field follow from the query and the enrolments, which both sides
know. So a contribution travels as numbers alone, and a sum of them means the same whoever adds it up (`exact_sum`).

The factor of a site is its own affair: the weight of its rows, or 1. A server that could choose it would read one site's
part of a sum. For the same reason a number that cannot be added (infinite, or too large for its field) travels as a random
word: if it were left out, the sum would be that of the other sites.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from compfed._utils.arrays import Pair, multiply_pairs
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
)
from compfed.federation.spec import ObjectiveSpec
from compfed.federation.sums import Description, HeldOutSum, MomentsSum, UpdateSum
from compfed.losses import Loss
from compfed.splits import RowSubset

WORD_BYTES = 16
SCALED_BITS = 4  # of a column in units of its standard deviation
LARGEST_BITS = 32  # of a prediction
NO_NUMBER = np.nan  # in a contribution: counted in another field, and sent as a random word


class Field(NamedTuple):
    """One field of a contribution: its shape, and that its numbers are expected to be below 2**bits in size."""

    shape: tuple[int, ...]
    bits: int | np.ndarray = 0
    pair: bool = False  # a pair of doubles for every number
    counts: bool = False  # small whole numbers, several to a word

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        return -(-self.size // 8) if self.counts else self.size


# --- the layout of a sum ---


def fields(weighted: Weighted, agreement: Agreement) -> dict[str, Field]:
    """The fields of a contribution, in the order in which they travel."""
    query, R = weighted.query, agreement.weight_bits
    match query:
        case Describe():
            return _described_fields(query, agreement)
        case Moments():
            columns, width = agreement.column_bits, (agreement.column_bits.size,)
            return {
                "factor": Field((), R, pair=True),
                "mean": Field(width, R + columns, pair=True),
                "square": Field(width, R + 2 * columns, pair=True),
            }
        case Lipschitz():
            size = _Sizes(query.objective, np.zeros(1) if query.x is None else query.x, agreement)
            found = {"factor": Field((), R), "L": Field((), size.hessian + agreement.column_bits.size.bit_length())}
            return found if query.upper_bound else {**found, "counts": Field((LIPSCHITZ_BINS,), counts=True)}
        case Evaluate():
            return _evaluated_fields(query, agreement)
        case HeldOut():
            models = (len(query.x),)
            bits = _Sizes(query.objective, query.x, agreement).value
            whole = {"weight": Field((), R), "sites": Field((), R), "infinite": Field(models, R)}
            return {**whole, "loss": Field(models, bits), "means": Field(models, bits)}
        case LocalUpdate():
            largest = max((_bits(array) for array in query.d.values()), default=0)
            size = _Sizes(query.run_spec.objective, np.concatenate([a.ravel() for a in query.d.values()]), agreement)
            bits = max(R + largest, size.gradient)
            found = {"factor": Field((), R), "not_finite": Field((), R)}
            leaves = jax.tree.leaves(dense_update(query))
            return {**found, **{f"u.{k}": Field(leaf.shape, bits) for k, leaf in enumerate(leaves)}}
        case FinishRound():
            return {"not_finite": Field((), R)}
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def word_count(weighted: Weighted, agreement: Agreement) -> int:
    """The number of 128-bit words of a contribution."""
    return sum(field.words for field in fields(weighted, agreement).values())


def _described_fields(query: Describe, agreement: Agreement) -> dict[str, Field]:
    R, y = agreement.weight_bits, agreement.label_bits
    found = {"weight": Field((), R), "rows": Field((), R), "sites": Field((), R)}
    if query.classes:
        classes = (len(agreement.classes),)
        return {**found, "class_weights": Field(classes, R), "class_shares": Field(classes, R)}
    shape = agreement.enrolments[0].label_shape
    return {**found, "label_sum": Field(shape, R + y), "label_means": Field(shape, R + y)}


def _evaluated_fields(query: Evaluate, agreement: Agreement) -> dict[str, Field]:
    models, d = query.x.shape
    size = _Sizes(query.objective, query.x, agreement)
    found = {
        "factor": Field((), agreement.weight_bits),
        "infinite": Field((models,), agreement.weight_bits),
        "value": Field((models,), size.value),
        "gradient": Field((models, d), size.gradient),
        "terms": Field((models,), size.gradient + d.bit_length()),
    }
    if query.coords is not None:
        found["hessian"] = Field((models, hessian_size(query.objective.loss, query.coords)), size.hessian)
    if query.dual is not None:
        found["conjugate"] = Field((models,), size.value)
        found["no_conjugate"] = Field((models,), agreement.weight_bits)
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

    A guess on the small side leaves more digits. Numbers that are 2**32 times as large still fit, and beyond that the message
    is repeated.
    """

    def __init__(self, objective: ObjectiveSpec, x: np.ndarray, agreement: Agreement):
        columns = agreement.column_bits if objective.columns is None else agreement.column_bits[objective.columns]
        features = max(int(columns.max(initial=0)), 0) if objective.scaling is None else SCALED_BITS
        largest = _bits(x)
        predictions = max(agreement.label_bits, min(max(largest + features, 0), LARGEST_BITS))
        R, ridge, curvature = agreement.weight_bits, _bits(np.asarray(objective.loss.ridge)), objective.loss.curvature
        self.value = R + max(2 * predictions, ridge + 2 * largest)
        self.gradient = R + max(predictions + features, ridge + largest)
        self.hessian = R + 2 * features + (predictions if curvature is None else _bits(np.asarray(curvature, float)))


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


def contribution(
    weighted: Weighted, reply: object, weight: float, agreement: Agreement
) -> dict[str, np.ndarray | Pair]:
    """The fields of a site's reply, times its factor. `weight` is that of its rows in the query."""
    query: Query = weighted.query
    w, r = factor(weighted, weight), reply
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
            mean, square = (
                multiply_pairs(scaled, (r.mean, r.mean_low)),
                multiply_pairs(scaled, (r.square, r.square_low)),
            )
            return {"factor": (np.array(w), np.array(0.0)), "mean": mean, "square": square}
        case Lipschitz():
            assert isinstance(r, Lipschitz.Reply)
            found = {"factor": np.array(w), "L": np.array(w * r.L)}
            return found if r.counts is None else {**found, "counts": r.counts}
        case Evaluate():
            assert isinstance(r, Evaluate.Reply)
            return _evaluated(r, w)
        case HeldOut():
            assert isinstance(r, HeldOut.Reply)
            there, infinite = float(r.weight > 0), ~np.isfinite(r.loss) & (r.weight > 0)
            loss = np.where(infinite, NO_NUMBER, r.loss if there else 0.0)
            whole = {"weight": np.array(r.weight), "sites": np.array(there), "infinite": infinite.astype(float)}
            return {**whole, "loss": r.weight * loss, "means": there * loss}
        case LocalUpdate():
            assert isinstance(r, LocalUpdate.Reply)
            return _updated(query, r, w)
        case FinishRound():
            assert isinstance(r, FinishRound.Reply)
            return {"not_finite": np.array(float(not r.finite))}
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def _evaluated(r: Evaluate.Reply, w: float) -> dict[str, np.ndarray | Pair]:
    """Where a model is far out, the loss is infinite and has no gradient: that is counted, and there is no number to add."""
    usual = np.isfinite(r.value)

    def term(values: np.ndarray) -> np.ndarray:
        if w == 0:
            return np.zeros(values.shape)
        keep = usual.reshape((-1,) + (1,) * (values.ndim - 1))
        with np.errstate(over="ignore"):
            return np.where(keep, w * np.where(np.isnan(values), np.inf, values), NO_NUMBER).astype(float)

    found: dict[str, np.ndarray | Pair] = {"factor": np.array(w), "infinite": (~usual & (w != 0)).astype(float)}
    found |= {name: term(getattr(r, name)) for name in ("value", "gradient", "terms")}
    if r.hessian is not None:
        found["hessian"] = term(r.hessian)
    if r.conjugate is not None:
        there = np.isfinite(r.conjugate)
        found["conjugate"] = np.where(there, w * r.conjugate, NO_NUMBER) if w != 0 else np.zeros(len(there))
        found["no_conjugate"] = (~there & (w != 0)).astype(float)
    return found


def _updated(query: LocalUpdate, r: LocalUpdate.Reply, w: float) -> dict[str, np.ndarray | Pair]:
    run = query.run_spec
    shapes = message_shapes(run.algorithm, run.regulariser, run.x0.size, run.x0.dtype)[query.exchange]
    with precision(run.x0.dtype):
        leaves = jax.tree.leaves(dense(unnamed(r.u, shapes.update), run.x0.size))
    finite = r.finite and all(np.isfinite(leaf).all() for leaf in leaves)
    found: dict[str, np.ndarray | Pair] = {"factor": np.array(w), "not_finite": np.array(float(not finite))}
    kept = w if finite else NO_NUMBER
    return found | {f"u.{k}": kept * np.nan_to_num(np.asarray(leaf, float)) for k, leaf in enumerate(leaves)}


def encode(
    asked: Sequence[Weighted], replies: Sequence[object], weights: Sequence[float], agreement: Agreement
) -> tuple[np.ndarray, int]:
    """The words of the contributions to one message, and how many of their numbers are too large for their field.

    All numbers of a message are encoded at once: it may have thousands of small fields.
    """
    layout = _Layout(asked, agreement)
    numbers, lows, words = np.empty(layout.size), np.zeros(layout.size), np.zeros((layout.size, 2), np.uint64)
    at = 0
    for weighted, reply, weight, found in zip(asked, replies, weights, layout.fields, strict=True):
        given = contribution(weighted, reply, weight, agreement)
        for name, field in found.items():
            here, value = slice(at, at + field.words), given[name]
            if field.counts:
                words[here], numbers[here] = exact_sum.pack_counts(np.asarray(value, np.int64)), 0.0
            elif isinstance(value, tuple):
                numbers[here], lows[here] = np.ravel(value[0]), np.ravel(value[1])
            else:
                numbers[here] = np.ravel(value)
            at += field.words
    missing = np.isnan(numbers)
    numbers[missing] = 0.0
    if lows.any():
        encoded, outside = exact_sum.encode_pair(numbers, lows, layout.units, agreement.n)
    else:
        encoded, outside = exact_sum.encode_each(numbers, layout.units, agreement.n)
    encoded[missing | outside] = _random_words(int((missing | outside).sum()))
    return np.where(layout.counts[:, None], words, encoded), int(outside.sum())


def _random_words(number: int) -> np.ndarray:
    return np.frombuffer(secrets.token_bytes(WORD_BYTES * number), np.uint64).reshape(number, 2)


class _Layout:
    """Where the fields of a message are in its words, and the unit of every word."""

    def __init__(self, asked: Sequence[Weighted], agreement: Agreement):
        self.fields = [fields(weighted, agreement) for weighted in asked]
        every = [
            (field, weighted.lift)
            for weighted, found in zip(asked, self.fields, strict=True)
            for field in found.values()
        ]
        sizes = [field.words for field, _ in every]
        self.size = sum(sizes)
        each = [
            np.asarray(field.bits) if np.ndim(field.bits) else np.full(size, field.bits)
            for (field, _), size in zip(every, sizes, strict=True)
        ]
        bits = np.concatenate([np.empty(0, int), *each]) + np.repeat([lift for _, lift in every], sizes)
        self.units = exact_sum.unit_for(bits, sites=agreement.n)
        self.counts = np.repeat([field.counts for field, _ in every], sizes).astype(bool)


# --- at the server ---


def decode(
    asked: Sequence[Weighted], words: np.ndarray, agreement: Agreement, sites: Sequence[Sequence[int]]
) -> list[object]:
    """The result of every query, from the sum of the words of the sites that each went to."""
    layout, results, at = _Layout(asked, agreement), list[object](), 0
    numbers = exact_sum.decode(words, layout.units)
    for weighted, found, places in zip(asked, layout.fields, sites, strict=True):
        totals: dict[str, np.ndarray | Pair] = {}
        for name, field in found.items():
            here = slice(at, at + field.words)
            at += field.words
            if field.counts:
                totals[name] = exact_sum.unpack_counts(words[here], field.size).reshape(field.shape)
            elif field.pair:
                high, low = exact_sum.decode_pair(words[here], layout.units[here])
                totals[name] = high.reshape(field.shape), low.reshape(field.shape)
            else:
                totals[name] = numbers[here].reshape(field.shape)
        results.append(assemble(weighted, totals, [agreement.enrolments[i] for i in places], agreement))
    return results


def assemble(
    weighted: Weighted, totals: dict[str, np.ndarray | Pair], enrolments: Sequence[Enrolment], agreement: Agreement
) -> object:
    """The sum as a server program receives it; a mean over the sites where they were weighted."""
    query, t = weighted.query, totals
    _check_totals(weighted, t, enrolments)
    weighs = weighted.weighting in ("rows", "sites") and not isinstance(
        query, (Describe, Moments, HeldOut, FinishRound)
    )
    divisor = float(np.asarray(t["factor"])) if weighs else 1.0
    match query:
        case Describe():
            return _description(query, t, enrolments, agreement)
        case Moments():
            return MomentsSum(*(_pair(t[name]) for name in ("factor", "mean", "square")))
        case Lipschitz():
            return Lipschitz.Reply(float(t["L"]) / divisor, t.get("counts"))  # pyright: ignore[reportArgumentType]
        case Evaluate():
            return _evaluation(query, t, divisor)
        case HeldOut():
            infinite = np.where(np.asarray(t["infinite"]) > 0, np.inf, 0.0)
            return HeldOutSum(
                float(t["weight"]),
                t["loss"] + infinite,
                round(float(t["sites"])),
                t["means"] + infinite,  # pyright: ignore
            )
        case LocalUpdate():
            return _update_sum(query, t, divisor)
        case FinishRound():
            return FinishRound.Reply(finite=not np.asarray(t["not_finite"]).any())
    raise InputError(f"{type(query).__name__} is not a query it knows.")


def _check_totals(weighted: Weighted, t: dict[str, np.ndarray | Pair], enrolments: Sequence[Enrolment]) -> None:
    """Refuse sums that honest sites cannot give. A wrong masked reply has no author: only the total is checked."""
    kind, everything = type(weighted.query).__name__, sum(e.weight for e in enrolments)
    wrong = "Start a new run; if it happens again, compare versions and ask every site for its log."
    for name in ("factor", "weight", "rows", "sites", "infinite", "no_conjugate", "not_finite", "class_weights"):
        value = t.get(name, np.zeros(()))
        value = value[0] if isinstance(value, tuple) else value
        if (value < 0).any():
            raise InputError(f"{kind}: the sum of the field {name} is below 0; a site sent a wrong reply. {wrong}")
        counts = name in ("sites", "infinite", "no_conjugate", "not_finite")
        if counts and ((value > len(enrolments)) | (value != np.rint(value))).any():
            raise InputError(f"{kind}: the field {name} does not count sites; a site sent a wrong reply. {wrong}")
    held = {"rows": "factor", "sites": "", "once": "", "given": ""}[weighted.weighting] if "factor" in t else "weight"
    total = t.get(held)
    if total is None:
        return
    total = float(np.asarray(total[0] if isinstance(total, tuple) else total))
    if row_subset(weighted.query) is None and abs(total - everything) > 1e-9 * everything:
        raise InputError(
            f"{kind}: the weight of all rows is not that of the enrolments; a site sent a wrong reply. {wrong}"
        )
    if total > everything * (1 + 1e-9):
        raise InputError(f"{kind}: rows weigh more than the enrolments say; a site sent a wrong reply. {wrong}")


def _pair(value: np.ndarray | Pair) -> Pair:
    assert isinstance(value, tuple)
    return np.atleast_1d(value[0]), np.atleast_1d(value[1])


def _evaluation(query: Evaluate, t: dict[str, np.ndarray | Pair], divisor: float) -> Evaluate.Reply:
    dtype = np.float64 if query.objective.dtype == "float64" else np.float32
    infinite = np.asarray(t["infinite"]) > 0

    def mean(name: str) -> np.ndarray | None:
        if name not in t:
            return None
        values = np.asarray(t[name]) / divisor
        far_out = infinite.reshape((-1,) + (1,) * (values.ndim - 1))
        return np.where(far_out, np.inf if name == "value" else np.nan, values)

    conjugate = None
    if "conjugate" in t:
        conjugate = np.where(np.asarray(t["no_conjugate"]) > 0, np.inf, np.asarray(t["conjugate"]) / divisor)
    value, gradient, terms = (mean(name) for name in ("value", "gradient", "terms"))
    assert value is not None
    assert gradient is not None
    assert terms is not None
    return Evaluate.Reply(value.astype(dtype), gradient.astype(dtype), terms.astype(dtype), mean("hessian"), conjugate)


def _update_sum(query: LocalUpdate, t: dict[str, np.ndarray | Pair], divisor: float) -> UpdateSum:
    if np.asarray(t["not_finite"]).any():
        return UpdateSum(None, ("of one or more sites",))
    shapes = dense_update(query)
    leaves, structure = jax.tree.flatten(shapes)
    found = [(np.asarray(t[f"u.{k}"]) / divisor).astype(leaf.dtype) for k, leaf in enumerate(leaves)]
    return UpdateSum(jax.tree.unflatten(structure, found), ())


def _description(
    query: Describe, t: dict[str, np.ndarray | Pair], every: Sequence[Enrolment], agreement: Agreement
) -> Description:
    """Facts of single sites are those of the enrolments; of a subset of the rows only the total is known."""
    weight = float(np.asarray(t["weight"]))
    rows, weights = np.array([e.rows for e in every]), np.array([e.weight for e in every])
    if query.subset is not None:
        rows = np.rint(rows * (float(np.asarray(t["rows"])) / rows.sum())).astype(int)
        weights = weights * (weight / weights.sum())
    nothing = np.empty(0)
    return Description(
        rows=rows, weights=weights, weight=weight, sites=round(float(np.asarray(t["sites"]))),
        widths=tuple(e.width for e in every), columns=tuple(e.columns for e in every),
        label_kinds=tuple(e.label_kind for e in every), label_shapes=tuple(e.label_shape for e in every),
        classes=agreement.classes[np.asarray(t["class_weights"]) > 0] if query.classes else nothing,
        class_weights=_positive(t, "class_weights"), class_shares=_positive(t, "class_shares"),
        label_sum=t.get("label_sum"), label_means=t.get("label_means"), facts=None,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def _positive(t: dict[str, np.ndarray | Pair], name: str) -> np.ndarray:
    """The entries of the classes that have rows in the sum."""
    return np.asarray(t[name])[np.asarray(t["class_weights"]) > 0] if name in t else np.empty(0)
