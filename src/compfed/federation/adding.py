"""How contributions of sites are added: in doubles, or exactly as whole numbers. The two ways differ here and nowhere else.

    site      part = adder.encode(asked, contributions)     what a site sends for one message
    server    adder.sums(asked, sites, parts)               the sum of every query, as the server program receives it

`InDoubles` serves sites in the process of their server: fast, in the order of the sites. `Exactly` serves networks, and a
rehearsal of one: words of 128 bits are added modulo 2^128 and rounded once, so that neither the order of the sites matters nor
whether the words are masked.
"""

from __future__ import annotations

import operator
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Protocol, TypeAlias

import numpy as np

from compfed._utils.arrays import add_pairs
from compfed.errors import InputError
from compfed.federation import exact_sum
from compfed.federation.enrolment import Agreement
from compfed.federation.query import Field, FieldValues, Layout, Query, Refusal, SiteRefusal, Weighted, flag, hidden
from compfed.federation.server.arrivals import check_totals

WORD_BYTES, DOUBLE_BYTES = 16, 8
SLACK = 32  # bits by which a number may be larger than expected
# fields that are no noise where a model of the query is hidden
ALWAYS_THERE = ("factor", "weight", "sites", "infinite", "outside", "no_conjugate", "no_line", "not_finite", "power")

Contribution = FieldValues | Refusal
Part: TypeAlias = Any  # what one site sends for a message: contributions, or words
Noise: TypeAlias = Callable[[int], np.ndarray]  # so many words
Sum: TypeAlias = Any  # of a query, as a server program receives it


class Adder(Protocol):
    """A way to add the contributions of sites."""

    def bytes_of(self, layout: Layout) -> int:
        """What the numbers of a contribution take in a message."""
        ...

    def encode(self, asked: Sequence[Weighted], given: Sequence[Contribution], agreement: Agreement) -> Part:
        """What one site sends for its contributions to the queries of a message."""
        ...

    def sums(
        self, asked: Sequence[Weighted], sites: Sequence[Sequence[int]], parts: Mapping[int, Part], agreement: Agreement
    ) -> list[Sum]:
        """The sum of every query over its sites, from what each site sent; a refusal is the sum where the run goes on."""
        ...


class InDoubles:
    """Adds in double precision, in the order of the sites."""

    def bytes_of(self, layout: Layout) -> int:
        return DOUBLE_BYTES * (layout.words + layout.pairs)

    def encode(self, asked: Sequence[Weighted], given: Sequence[Contribution], agreement: Agreement) -> Part:
        return given

    def sums(
        self, asked: Sequence[Weighted], sites: Sequence[Sequence[int]], parts: Mapping[int, Part], agreement: Agreement
    ) -> list[Sum]:
        rest, sums = {i: iter(part) for i, part in parts.items()}, list[Any]()
        for weighted, places in zip(asked, sites, strict=True):
            each: list[Contribution] = [next(rest[i]) for i in places]
            refused = next((part for part in each if isinstance(part, Refusal)), None)
            if refused is not None:
                sums.append(refused)
                continue
            totals = _added([part for part in each if not isinstance(part, Refusal)])
            sums.append(weighted.assemble(totals, [agreement.enrolments[i] for i in places], agreement))
        return sums


def _added(parts: Sequence[FieldValues]) -> FieldValues:
    first, *others = parts
    total: FieldValues = {}
    for name, value in first.items():
        # of a pair, which is added with its first double; digits of exact sums
        if name.removesuffix("_low") in first.keys() - {name} or value.dtype == np.uint64:
            continue
        if (low := f"{name}_low") in first:
            pair = value, first[low]
            for part in others:
                pair = add_pairs(pair, (part[name], part[low]))
            total[name], total[low] = pair
            continue
        summed = np.array(value)
        for part in others:  # one at a time: a Hessian may be large
            summed += part[name]
        total[name] = summed
    return total


class Exactly:
    """Adds words of 128 bits. A refusal ends the run, because a sum without one site would not be the sum.

    Parameters
    ----------
    noise : callable, optional
        Makes so many words that stand for numbers which are not told; random unless given.
    """

    def __init__(self, noise: Noise | None = None):
        self.noise = noise or _random_words

    _last: MessageLayout | None = None  # the layout of the message under way, the same for all sites and the server

    def bytes_of(self, layout: Layout) -> int:
        return WORD_BYTES * layout.words

    def encode(self, asked: Sequence[Weighted], given: Sequence[Contribution], agreement: Agreement) -> np.ndarray:
        refused = next((part for part in given if isinstance(part, Refusal)), None)
        if refused is not None:
            raise SiteRefusal(refused.reason)
        contributions = [part for part in given if not isinstance(part, Refusal)]
        words, outside = encode(self._layout(asked, agreement), contributions, self.noise)
        return exact_sum.frame(words, outside)

    def sums(
        self, asked: Sequence[Weighted], sites: Sequence[Sequence[int]], parts: Mapping[int, Part], agreement: Agreement
    ) -> list[Sum]:
        everyone = all(len(places) == agreement.n for places in sites)
        # one total where all sites got the same queries, which is all that masks allow
        framed = {-1: reduce(exact_sum.add, [parts[i] for i in sorted(parts)])} if everyone else parts
        for words in framed.values():
            exact_sum.check_total(words, agreement.n if everyone else 1)
        totals = {i: words[exact_sum.FRAME :] for i, words in framed.items()}
        message = self._layout(asked, agreement)
        return decode(message, totals[-1] if everyone else _add_slices(message, sites, totals), sites)

    def _layout(self, asked: Sequence[Weighted], agreement: Agreement) -> MessageLayout:
        if self._last is None or not self._last.is_of(asked, agreement):
            self._last = MessageLayout(asked, agreement)
        return self._last


def _add_slices(message: MessageLayout, sites: Sequence[Sequence[int]], parts: Mapping[int, np.ndarray]) -> np.ndarray:
    """The sums of queries that went to different sites: each over the words of its own."""
    at, sums = dict.fromkeys(parts, 0), [np.empty((0, 2), np.uint64)]
    for layout, places in zip(message.layouts, sites, strict=True):
        count = layout.words
        sums.append(reduce(exact_sum.add, [parts[i][at[i] : at[i] + count] for i in places]))
        for i in places:
            at[i] += count
    return np.concatenate(sums)


# --- words ---


class MessageLayout:
    """Where the words of the contributions to a message are, and their units. It may have thousands of fields."""

    def __init__(self, asked: Sequence[Weighted], agreement: Agreement):
        if agreement.exact_problem:
            raise InputError(agreement.exact_problem)
        self.asked, self.agreement = tuple(asked), agreement
        self.layouts = [weighted.layout(agreement) for weighted in asked]
        each = [_units(*of, agreement) for of in zip(asked, self.layouts, strict=True)]
        self.units = np.concatenate([np.empty(0, int), *each])
        self.places, at = list[list[tuple[str, Field, slice]]](), 0
        for layout in self.layouts:
            self.places.append([])
            for name, field in layout.items():
                self.places[-1].append((name, field, slice(at, at + (words := field.words))))
                at += words

    def is_of(self, asked: Sequence[Weighted], agreement: Agreement) -> bool:
        """Whether it is of these very queries."""
        same = agreement is self.agreement and len(asked) == len(self.asked)
        return same and all(map(operator.is_, asked, self.asked))


def _units(weighted: Weighted, layout: Layout, agreement: Agreement) -> np.ndarray:
    """The units of the words of a contribution; worked out once for all sites and the server."""

    def units() -> np.ndarray:
        found = [np.empty(0, int)]
        for field in layout.values():
            bits = field.bits() if callable(field.bits) else field.bits
            slack, lift = (1, 0) if field.bounded else (SLACK, weighted.lift)
            found.append(np.broadcast_to(bits, field.shape).ravel() + (slack + lift))
        return exact_sum.unit_for(np.concatenate(found), slack=0, sites=agreement.n)

    return agreement.once(weighted.query, (weighted.weighting, weighted.lift), units)


def _random_words(count: int) -> np.ndarray:
    return np.frombuffer(secrets.token_bytes(WORD_BYTES * count), np.uint64).reshape(-1, 2)


def encode(
    message: MessageLayout, given: Sequence[FieldValues], noise: Noise = _random_words
) -> tuple[np.ndarray, int]:
    """The words of the contributions to one message, and 1 if one of their numbers is too large for its field, else 0.

    The numbers of a model that has such a number are noise, as NaN is, and so is a flag that says it: the server asks again.
    With 0 in their place the total would be that of the other sites, and the part of this one known by subtraction from the
    total of the repeated message. A round cannot be repeated: there a number that is too large counts as not finite.
    """
    given = list(given)
    words, wrong = _encoded(message, given, noise)
    if not wrong.any():
        return words, 0
    for k, (weighted, layout, places) in enumerate(zip(message.asked, message.layouts, message.places, strict=True)):
        outside = {name: wrong[here] for name, _, here in places if wrong[here].any()}
        if outside:
            given[k] = _hide_models(weighted.query, layout, given[k], outside)
    return _encoded(message, given, noise)[0], 1


def _hide_models(query: Query, layout: Layout, given: FieldValues, outside: dict[str, np.ndarray]) -> FieldValues:
    """A contribution without the models that have a number too large for its field, and with a flag that says so."""
    if any(layout[name].bounded for name in outside):
        raise InputError("its rows weigh more, or are larger, than its enrolment says. Start a new run.")
    if query.moves_on:
        wrong, name = np.array(True), "not_finite"
    else:
        wrong, name = np.zeros(np.shape(given["outside"]), bool), "outside"
    for mask in outside.values():
        wrong |= mask.reshape(*wrong.shape, -1).any(axis=-1)
    shown = {field: hidden(value, wrong) for field, value in given.items() if field not in ALWAYS_THERE}
    return {**given, **shown, name: flag(wrong)}


def _encoded(message: MessageLayout, given: Sequence[FieldValues], make_noise: Noise) -> tuple[np.ndarray, np.ndarray]:
    """The words of all fields, and which numbers are too large. NaN becomes noise."""
    size, n = len(message.units), message.agreement.n
    numbers, lows, digits = np.zeros(size), np.zeros(size), np.zeros(size, np.uint64)
    pairs = False
    for places, values in zip(message.places, given, strict=True):
        for name, field, here in places:
            if values[name].shape != field.shape:
                raise InputError(f"it computed a field {name} of shape {values[name].shape}; expected {field.shape}.")
            if field.digits:
                digits[here] = values[name]
            else:
                numbers[here] = np.ravel(values[name])
            if field.pair:
                lows[here], pairs = np.ravel(values[f"{name}_low"]), True
    noise = np.isnan(numbers)
    numbers[noise] = 0.0
    words, wrong = exact_sum.encode_each(numbers, message.units, n)
    if pairs:
        low, low_wrong = exact_sum.encode_each(lows, message.units, n)
        words, wrong = exact_sum.add(words, low), wrong | low_wrong
    words[:, 0] += digits  # elsewhere both are 0
    words[noise] = make_noise(int(noise.sum()))
    return words, wrong


def decode(message: MessageLayout, words: np.ndarray, sites: Sequence[Sequence[int]]) -> list[Sum]:
    """The result of every query, from the sum of the words of the sites that each went to."""
    agreement, results = message.agreement, list[Any]()
    numbers = exact_sum.decode(words, message.units)
    for weighted, fields, places in zip(message.asked, message.places, sites, strict=True):
        totals = dict[str, np.ndarray]()
        for name, field, here in fields:
            if field.digits:
                totals[name] = words[here]
            elif field.pair:
                pair = exact_sum.decode_pair(words[here], message.units[here])
                totals[name], totals[f"{name}_low"] = (part.reshape(field.shape) for part in pair)
            else:
                totals[name] = numbers[here].reshape(field.shape)
        enrolments = [agreement.enrolments[i] for i in places]
        check_totals(weighted, totals, enrolments, ALWAYS_THERE)
        results.append(weighted.assemble(totals, enrolments, agreement))
    return results
