"""Exact sums: against Python's integers, fractions and `math.fsum`."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compfed.errors import InputError
from compfed.federation.exact_sum import (
    _bit_length,
    add,
    check_total,
    decode,
    decode_pair,
    encode,
    encode_pair,
    frame,
    negate,
    subtract,
    unit_for,
)

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**127), 2**127 - 1)
UNITS = st.integers(-1300, 1100)
checked = settings(max_examples=400, deadline=None)


def integers(words: np.ndarray) -> list[int]:
    """The words as Python's integers, by definition of two's complement."""
    found = [int(low) + 2**64 * int(high) for low, high in words]
    return [v - 2**128 if v >= 2**127 else v for v in found]


def words_of(values: list[int]) -> np.ndarray:
    return np.array([[v % 2**64, v // 2**64 % 2**64] for v in values], np.uint64).reshape(-1, 2)


def multiple(x: float, unit: int) -> int:
    """x / 2**unit rounded to a whole number, half to even: Python rounds fractions so."""
    return round(Fraction(x) / Fraction(2) ** unit)


def nearest(x: Fraction) -> float:
    """The nearest double, half to even: Python's division of integers is correctly rounded."""
    try:
        return x.numerator / x.denominator
    except OverflowError:
        return math.inf if x > 0 else -math.inf


def same(got: np.ndarray, expected: list[float]) -> bool:
    return got.dtype == np.float64 and got.tolist() == expected  # == has no tolerance; -0.0 is 0.0


def total(arrays, unit, sites: int = 2**16) -> np.ndarray:
    """The decoded sum of arrays, all in range."""
    words, out_of_range = encode(arrays[0], unit, sites)
    for array in arrays[1:]:
        more, out = encode(array, unit, sites)
        words, out_of_range = add(words, more), out_of_range + out
    assert out_of_range == 0
    return decode(words, unit)


# --- encoding ---


@checked
@given(st.lists(FLOATS, max_size=8), UNITS)
def test_a_number_is_its_nearest_multiple_and_what_is_too_large_is_counted(values, unit):
    words, out_of_range = encode(np.array(values), unit)
    expected = [multiple(x, unit) for x in values]
    inside = [abs(v) < 2**111 for v in expected]
    assert integers(words) == [v if fits else 0 for v, fits in zip(expected, inside, strict=True)]
    assert out_of_range == inside.count(False)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("unit", [-1000, -300, -1, 0, 7, 300])
def test_half_of_a_unit_rounds_to_even(unit, sign):
    below, above = math.nextafter(0.5, 0), math.nextafter(0.5, 1)
    halves = [0.5, 1.5, 2.5, 3.5, below, above, math.nextafter(2.5, 0), 2.0**51 + 0.5, 2.0**51 + 1.5]
    words, _ = encode(sign * np.ldexp(halves, unit), unit)
    assert integers(words) == [sign * v for v in (0, 2, 2, 4, 0, 1, 2, 2**51, 2**51 + 2)]


def test_range_ends_where_many_sites_could_overflow():
    largest = math.nextafter(2.0**111, 0)
    words, out_of_range = encode(np.array([largest, -largest, 2.0**111, -(2.0**111), math.inf, -math.inf, math.nan]), 0)
    assert out_of_range == 5
    assert integers(words) == [int(largest), -int(largest), 0, 0, 0, 0, 0]
    assert abs(2**16 * int(largest)) < 2**127  # the largest sum of 2**16 sites
    for sites, bits in [(1, 127), (2, 126), (3, 125), (4, 125), (5, 124), (128, 120), (2**16, 111)]:
        below = math.nextafter(2.0**bits, 0)
        assert encode(np.array([below, -below]), 0, sites)[1] == 0
        assert encode(np.array([2.0**bits, -(2.0**bits)]), 0, sites)[1] == 2
        assert sites * 2**bits <= 2**127


def test_the_largest_words_of_many_sites_do_not_overflow():
    largest = math.nextafter(2.0**111, 0)
    words, _ = encode(np.array([largest, -largest]), 0)
    for _ in range(16):
        words = add(words, words)
    assert integers(words) == [2**16 * int(largest), -(2**16) * int(largest)]


@checked
@given(st.lists(st.tuples(FLOATS, FLOATS), max_size=6), st.integers(-1100, 900), st.sampled_from([2, 16, 2**16]))
@example(
    [(2.0**110, 2.0**110), (-(2.0**110), -(2.0**110)), (2.0**111, 0.0), (0.0, 2.0**111), (2.0**110, -1.0)], 0, 2**16
)
def test_a_pair_is_the_sum_of_its_parts(pairs, unit, sites):
    limit = 2 ** (127 - math.ceil(math.log2(sites)))
    parts = [(multiple(high, unit), multiple(low, unit)) for high, low in pairs]
    inside = [max(abs(a), abs(b), abs(a + b)) < limit for a, b in parts]
    words, out_of_range = encode_pair(np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs]), unit, sites)
    assert integers(words) == [a + b if fits else 0 for (a, b), fits in zip(parts, inside, strict=True)]
    assert out_of_range == inside.count(False)


@given(st.integers(-900, 900), st.integers(0, 32), st.sampled_from([1, 2, 4, 5, 2**16]))
def test_the_unit_leaves_room_for_the_slack(bits, slack, sites):
    x = 2.0 ** (bits + slack)
    unit = unit_for(bits, slack, sites)
    assert encode(np.array([x, -x, math.nextafter(2 * x, 0)]), unit, sites)[1] == 0
    assert encode(np.array([2 * x]), unit, sites)[1] == 1  # no bit is wasted
    units = unit_for(np.array([bits, bits + 5]), slack, sites)
    assert np.array_equal(units, [unit, unit + 5])


# --- adding ---


@checked
@given(st.lists(st.tuples(INTEGERS, INTEGERS), max_size=8))
@example([(-(2**127), -(2**127)), (2**127 - 1, 1), (2**64 - 1, 1), (-1, 1), (0, 0), (0, -(2**64)), (0, 2**64)])
def test_words_add_like_integers_modulo_two_to_the_128(pairs):
    a, b = words_of([p[0] for p in pairs]), words_of([p[1] for p in pairs])
    wrapped = lambda v: (v + 2**127) % 2**128 - 2**127  # noqa: E731
    assert integers(add(a, b)) == [wrapped(x + y) for x, y in pairs]
    assert integers(subtract(a, b)) == [wrapped(x - y) for x, y in pairs]
    assert integers(negate(a)) == [wrapped(-x) for x, _ in pairs]


def test_words_of_other_lengths_are_refused_and_not_broadcast():
    one, three = words_of([1]), words_of([1, 2, 3])
    for combine in (add, subtract):
        with pytest.raises(InputError, match="shapes"):
            combine(one, three)
    with pytest.raises(InputError, match="one for each of 3"):
        decode(three, np.array([1, 2]))
    with pytest.raises(InputError, match="whole number"):
        decode(three, 0.5)  # pyright: ignore[reportArgumentType]  # on purpose


# --- decoding ---


@checked
@given(st.lists(INTEGERS | st.integers(-(2**70), 2**70), max_size=8), UNITS)
@example([0, 1, -1, 2**127 - 1, -(2**127), 2**64, 2**64 - 1, 2**63, 2**53 + 1, 2**54 + 2, 2**54 + 6], 0)
@example([1, 2, 3, -3, 5, 6, 7], -1075)  # halves of the smallest double
@example([2**63, 2**64, 2**127 - 1, -(2**127), 2**126 + 1, 1], -1074 - 64)
@example([2**127 - 1, -(2**127), 2**126, 2**126 + 1], -1074 - 127)
@example([2**127 - 1, -(2**127), 2**126, 2**126 + 1], -1074 - 128)
# about the largest
@example([2**53 - 1, 2**54 - 1, 2**127 - 1, 2**127 - 2**73, 2**127 - 2**73 - 1, 2**127 - 2**72], 1024 - 127)
@example([1, -1, 0], 5000)
@example([2**126, -1, 0], -5000)
@example([2**126, -1, 0], -(10**9))
@example([2**126, -1, 0], 10**9)
def test_decoding_rounds_once_to_the_nearest(values, unit):
    scale = Fraction(2) ** max(min(unit, 6000), -6000)
    expected = [nearest(v * scale) for v in values]
    assert same(decode(words_of(values), unit), expected)
    high, low = decode_pair(words_of(values), unit)
    assert same(high, expected)
    assert same(
        low,
        [nearest(v * scale - Fraction(h)) if math.isfinite(h) else 0.0 for v, h in zip(values, expected, strict=True)],
    )


@pytest.mark.parametrize("unit", [0, -40, -1074, -1100, -1126])
def test_half_way_cases_and_their_neighbours_decode_to_even(unit):
    cases = [
        sign * (((m << 1) + 1) * 2 ** (shift - 1) + nudge)
        for shift in (1, 2, 11, 12, 52, 63, 64, 65, 73)
        for m in (2**52, 2**52 + 1, 2**53 - 1, 2**53 - 2)
        for nudge in ((-1, 0, 1) if shift > 1 else (0,))
        for sign in (1, -1)
    ]
    assert same(decode(words_of(cases), unit), [nearest(v * Fraction(2) ** unit) for v in cases])


def test_every_power_of_two_and_its_neighbours_decode_at_every_border():
    values = [v for k in range(127) for v in (2**k - 1, 2**k, 2**k + 1, -(2**k) - 1)]
    for unit in (*range(-1075 - 128, -1060), -1022, 0, *range(1023 - 128, 1026)):
        assert same(decode(words_of(values), unit), [nearest(v * Fraction(2) ** unit) for v in values]), unit


def test_bit_lengths_are_those_of_integers():
    values = [v for k in range(64) for v in (2**k - 1, 2**k, 2**k + 1, 2**64 - 2**k)] + [2**64 - 1]
    assert _bit_length(np.array(values, np.uint64)).tolist() == [v.bit_length() for v in values]


def test_units_may_differ_number_by_number():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 4)) * 10.0 ** rng.integers(-100, 100, (50, 4))
    units = np.frexp(values)[1] - 60
    words, out_of_range = encode(values, units)
    assert out_of_range == 0
    assert integers(words) == [multiple(x, int(u)) for x, u in zip(values.flat, units.flat, strict=True)]
    assert same(decode(words, units), values.ravel().tolist())


# --- sums ---


def numbers(rng: np.random.Generator, sites: int, n: int, decades: float) -> np.ndarray:
    """Numbers of full precision, spread evenly over decades below 1, of both signs."""
    return (
        rng.choice([-1.0, 1.0], (sites, n))
        * rng.uniform(0.5, 1, (sites, n))
        * 10.0 ** -rng.uniform(0, decades, (sites, n))
    )


@pytest.mark.parametrize("scale", [-150, -75, 0, 75, 150])
def test_sums_of_a_hundred_thousand_numbers_over_20_decades_are_exact(scale):
    """With one unit: 20 decades and 53 bits take 120 bits, and the sum of 16 sites 4 more."""
    rng = np.random.default_rng(scale + 150)
    values = numbers(rng, 16, 100_000, 20) * 10.0**scale
    values[1::2] -= values[::2] * rng.choice([0, 1], (8, 100_000))  # half of the pairs nearly cancel in the sum
    size = np.abs(values)
    assert size.max() > 1e19 * size[size > 0].min()
    unit = unit_for(math.ceil(math.log2(size.max())), slack=0, sites=16)
    assert same(total(values, unit, sites=16), [math.fsum(column) for column in values.T.tolist()])


@pytest.mark.parametrize("seed", range(5))
def test_sums_with_the_default_room_are_exact_over_17_decades(seed):
    values = numbers(np.random.default_rng(seed), 5, 20_000, 17)
    assert same(total(values, unit_for(0, slack=0)), [math.fsum(column) for column in values.T.tolist()])


def test_sums_with_units_of_columns_are_exact_over_20_decades():
    """Units that are known to 16 bits and have a slack of 32, as a column's: exact if sites differ by two decades."""
    rng = np.random.default_rng(0)
    size = 10.0 ** -rng.uniform(0, 20, 20_000)
    values = size * numbers(rng, 5, 20_000, 2)
    bits = 16 * np.ceil(np.log2(size) / 16).astype(int)
    assert same(total(values, unit_for(bits)), [math.fsum(column) for column in values.T.tolist()])


def test_sums_below_the_unit_are_the_exact_sums_of_the_rounded_numbers():
    """One unit with all its slack: 20 decades are exact to the unit, which is 2**-78 of the bound."""
    values = numbers(np.random.default_rng(2), 5, 20_000, 20)
    got = total(values, unit_for(0))
    columns = values.T.tolist()
    assert same(got, [nearest(sum(multiple(x, -78) for x in column) * Fraction(2) ** -78) for column in columns])
    for found, column in zip(got[:2_000], columns[:2_000], strict=True):
        error = abs(sum(map(Fraction, column)) - Fraction(found))
        assert error <= Fraction(5, 2**79) + Fraction(abs(found)) / 2**53  # half a unit for each site, and one rounding


@checked
@given(st.lists(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=3), min_size=1, max_size=6), st.randoms())
def test_the_order_of_sites_changes_no_bit(sites, random):
    n = min(map(len, sites))
    words = [encode(np.array(site[:n]), -50)[0] for site in sites]
    shuffled = random.sample(words, len(words))
    a, b = words[0], shuffled[0]
    for more in words[1:]:
        a = add(a, more)
    for more in shuffled[1:]:
        b = add(b, more)
    assert np.array_equal(a, b)


@pytest.mark.parametrize("offset", [0, 20, 45])
def test_sums_of_subnormal_numbers_are_exact(offset):
    rng = np.random.default_rng(offset)
    values = rng.integers(-(2**52), 2**52, (7, 5_000)) * 5e-324 * 2.0**offset
    assert same(total(values, -1074), [math.fsum(column) for column in values.T.tolist()])


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_pairs_are_exact_to_both_doubles(seed):
    rng = np.random.default_rng(seed)
    high = rng.normal(size=(4, 500)) * 10.0 ** rng.uniform(-3, 3, (4, 500))
    low = high * 2.0**-54 * rng.uniform(-1, 1, high.shape)
    low = np.round(low * 2.0**100) * 2.0**-100  # to multiples of the unit, so that nothing is rounded on the way
    words = words_of([0] * 500)
    for a, b in zip(high, low, strict=True):
        more, out_of_range = encode_pair(a, b, -100, sites=4)
        assert out_of_range == 0
        words = add(words, more)
    exact = [sum(map(Fraction, [*a, *b]), Fraction(0)) for a, b in zip(high.T.tolist(), low.T.tolist(), strict=True)]
    got_high, got_low = decode_pair(words, -100)
    assert same(got_high, [nearest(x) for x in exact])
    assert same(got_low, [nearest(x - Fraction(nearest(x))) for x in exact])
    assert np.any(got_low != 0)


# --- counts, frames ---


@pytest.mark.parametrize("sites", [1, 2, 3, 16])
def test_the_total_of_frames_says_how_many_numbers_were_out_of_range(sites):
    frames = [frame(words_of([5, -7]), i % 2) for i in range(sites)]
    words = frames[0]
    for more in frames[1:]:
        words = add(words, more)
    assert check_total(words, sites) == sites // 2
    assert integers(words[2:]) == [5 * sites, -7 * sites]
    for wrong in (sites - 1, sites + 1):
        with pytest.raises(InputError, match="check word"):
            check_total(words, wrong)
    for bad in (words_of([sites + 2**64, 0]), words_of([sites]), words_of([])):
        with pytest.raises(InputError, match="check word"):
            check_total(bad, sites)
    with pytest.raises(InputError, match="out of range"):
        check_total(words_of([sites, 2 * sites + 1, 0, 0]), sites)
    with pytest.raises(InputError, match="out of range"):
        check_total(words_of([sites, -1, 0, 0]), sites)
