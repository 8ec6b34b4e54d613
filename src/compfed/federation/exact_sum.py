"""Exact sums: doubles as whole multiples of a unit 2**unit, in words of 128 bits, added modulo 2**128 and rounded once.

A word is two's complement: a row (low, high) of an array of uint64 of shape (n, 2). Adding words is exact and does not
depend on the order, so every party gets the same bits. A number below the unit rounds to a multiple of it, and a number
that is too large is encoded as 0 and counted: the sum is valid only where the count is 0.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from compfed.errors import InputError

Words = npt.NDArray[np.uint64]  # (n, 2): low, high
Unit = int | npt.NDArray[np.integer]  # an exponent of two: one for all numbers, or one for each
UnitT = TypeVar("UnitT", int, npt.NDArray[np.integer])

ADDENDS = 2**16  # as many words add up without overflow, unless `sites` says fewer
_FURTHEST = 5_000  # beyond this exponent a multiple of the unit is 0 or infinite as a double, whatever the unit is


def unit_for(bits: UnitT, slack: int = 32, sites: int = ADDENDS) -> UnitT:
    """The unit at which numbers up to 2**bits * 2**slack in size are in range.

    The unit is 2**(bits + slack - 110): sums are exact to 2**(slack - 110) of 2**bits.

    Parameters
    ----------
    bits : int or array of ints
        The size that is expected, as a power of two.
    slack : int
        By how many bits a number may be larger than expected.
    sites : int
        The largest number of words that are added up. Fewer sites leave more bits to the numbers.

    Examples
    --------
    >>> unit_for(0)
    -78
    >>> unit_for(0, sites=4)  # 14 bits finer
    -92
    """
    return bits + (slack + 1 - _size_bits(sites))


def encode(values: npt.NDArray[np.floating], unit: Unit, sites: int = ADDENDS) -> tuple[Words, int]:
    """sign(x) * round(abs(x) / 2**unit) for each x, half to even, and how many numbers were out of range.

    Parameters
    ----------
    values : array of floats of any shape
        The numbers, taken in C order.
    unit : int or array of ints
        The exponent of the unit, one for all numbers or one for each.
    sites : int
        The largest number of words that are added up: a size below 2**127 / sites is in range (the power of two below).

    Returns
    -------
    words : array of uint64 of shape (n, 2)
    out_of_range : int
        How many numbers were infinite, NaN or too large, and are encoded as 0.

    Examples
    --------
    >>> a, _ = encode(np.array([1e16, 0.1]), -60)
    >>> b, _ = encode(np.array([-1e16, 0.2]), -60)
    >>> decode(add(a, b), -60)
    array([0. , 0.3])
    """
    words, outside = encode_each(values, unit, sites)
    return words, int(outside.sum())


def encode_pair(
    high: npt.NDArray[np.floating], low: npt.NDArray[np.floating], unit: Unit, sites: int = ADDENDS
) -> tuple[Words, int]:
    """The encoding of high plus the encoding of low, for numbers of two doubles; see `encode`.

    A number is out of range, and counted once, if one of its parts or their sum is.
    """
    (a, a_outside), (b, b_outside) = encode_each(high, unit, sites), encode_each(low, unit, sites)
    words = add(a, b)
    size = _negated(words, _negative(words))[:, 1]
    outside = a_outside | b_outside | (size >= np.uint64(1) << np.uint64(_size_bits(sites) - 64))
    words[outside] = 0
    return words, int(outside.sum())


def add(a: Words, b: Words) -> Words:
    """a + b modulo 2**128."""
    _check_shapes(a, b)
    low = a[:, 0] + b[:, 0]
    return _words(low, a[:, 1] + b[:, 1] + (low < a[:, 0]))


def negate(words: Words) -> Words:
    """-words modulo 2**128."""
    return _negated(words, np.ones(len(words), np.uint64))


def subtract(a: Words, b: Words) -> Words:
    """a - b modulo 2**128."""
    _check_shapes(a, b)
    return _words(a[:, 0] - b[:, 0], a[:, 1] - b[:, 1] - (a[:, 0] < b[:, 0]))


def decode(words: Words, unit: Unit) -> npt.NDArray[np.float64]:
    """The double nearest to word * 2**unit, half to even: subnormal or infinite where that is the nearest."""
    unit = _units(unit, len(words))
    negative = _negative(words)
    low, high = _negated(words, negative).T
    # The first 64 bits of the size. Where more were cut off, the last is set if one of those was: no rounding, half to even
    # included, that keeps at most 62 bits can tell the difference.
    cut = _bit_length(high)
    fill = (64 - cut).astype(np.uint64)
    bits = (high << fill) | (low >> cut.astype(np.uint64)) | (low << fill != 0)
    # A double has 53 bits, and no bit below 2**-1074.
    drop = np.maximum(np.maximum(_bit_length(bits) - 53, -1074 - cut - unit), 0)
    bits[drop > 64] = 0  # less than half of the smallest double
    shift = np.minimum(drop, 64).astype(np.uint64)
    kept = bits >> shift
    rest, half = bits - (kept << shift), np.uint64(1) << (shift - np.uint64(1))
    up = (rest > half) | ((rest == half) & (kept & np.uint64(1) == 1) & (drop > 0))
    with np.errstate(over="ignore"):
        size = np.ldexp((kept + up).astype(np.float64), drop + cut + unit)
    return np.where(negative == 1, -size, size)


def decode_pair(words: Words, unit: Unit) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """(high, low): the double nearest to word * 2**unit, and the double nearest to the rest.

    The rest of an infinite number is 0.
    """
    high = decode(words, unit)
    finite = np.isfinite(high)
    units = _units(unit, len(words))
    # a rounded multiple of the unit is one too
    counted = _multiples(np.ldexp(np.abs(np.where(finite, high, 0.0)), -units))
    rest = subtract(words, _negated(counted, (high < 0).astype(np.uint64)))
    rest[~finite] = 0
    return high, decode(rest, unit)


# --- the first two words of a reply ---

FRAME = 2  # words before those of the numbers


def frame(words: Words, out_of_range: int) -> Words:
    """A site's words behind a check word, which is 1, and its count of numbers out of range."""
    return np.concatenate((np.array([[1, 0], [out_of_range, 0]], np.uint64), words))


def check_total(words: Words, sites: int) -> int:
    """The total count of numbers out of range, from the sum of the framed words of all sites.

    Raises
    ------
    InputError
        Unless the check word is the number of sites. Masks that do not cancel make it random.
    """
    if len(words) < 2 or words[0].tolist() != [sites, 0]:
        raise InputError(
            f"the sum of {sites} replies is not valid: its check word is not {sites}. A reply is missing, was counted twice or "
            "was changed, or the sites answered different messages. Start a new run."
        )
    low, high = words[1].tolist()
    count = high * 2**64 + low
    most = sites * (len(words) - 2)
    if count > most:
        raise InputError(
            f"the sum of {sites} replies is not valid: it counts more numbers out of range than the {most} there are. A site "
            "sent a wrong reply. Start a new run."
        )
    return count


# --- parts ---


def _size_bits(sites: int) -> int:
    """b such that `sites` numbers below 2**b in size have a sum below 2**127."""
    return 127 - (sites - 1).bit_length()


def _check_shapes(a: Words, b: Words) -> None:
    if a.shape != b.shape:  # would broadcast
        raise InputError(f"words of shapes {a.shape} and {b.shape} do not add up. Add words of one length.")


def _words(low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]) -> Words:
    words = np.empty((len(low), 2), np.uint64)
    words[:, 0], words[:, 1] = low, high
    return words


def _units(unit: Unit, n: int) -> npt.NDArray[np.intc]:
    """The exponent of the unit, one for all numbers or one for each."""
    units = np.asarray(unit)
    if units.dtype.kind not in "iu" or units.size not in (1, n):
        raise InputError(
            f"unit must be one whole number, or one for each of {n} numbers; got shape {units.shape} of {units.dtype}."
        )
    return np.clip(units, -_FURTHEST, _FURTHEST).astype(np.intc).reshape(-1)  # the type that ldexp takes everywhere


def encode_each(values: npt.NDArray[np.floating], unit: Unit, sites: int) -> tuple[Words, npt.NDArray[np.bool_]]:
    """The words of `encode`, and which numbers are out of range."""
    values = np.asarray(values, np.float64).reshape(-1)
    # The size is encoded and negated as an integer. Scaling is exact, but for quotients that overflow (out of range) or that
    # become subnormal (they round to 0 anyway).
    with np.errstate(over="ignore", under="ignore"):
        multiples = np.rint(np.ldexp(np.abs(values), -_units(unit, values.size)))
    outside = ~(multiples < 2.0 ** _size_bits(sites))  # NaN too
    multiples[outside] = 0.0
    return _negated(_multiples(multiples), (values < 0).astype(np.uint64)), outside


def _multiples(integers: npt.NDArray[np.float64]) -> Words:
    """The words of doubles that are whole numbers from 0 to below 2**128."""
    high = (integers * 2.0**-64).astype(np.uint64)
    low = (integers - high * 2.0**64).astype(np.uint64)  # exact: the last bits of a double
    return _words(low, high)


def _negative(words: Words) -> npt.NDArray[np.uint64]:
    """1 where a word is negative, else 0."""
    return words[:, 1] >> np.uint64(63)


def _negated(words: Words, where: npt.NDArray[np.uint64]) -> Words:
    """-words modulo 2**128 where `where` is 1, and the words where it is 0."""
    flip = np.uint64(0) - where  # no bit, or all
    low = (words[:, 0] ^ flip) + where
    return _words(low, (words[:, 1] ^ flip) + (where & (low == 0)))


def _bit_length(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.intc]:
    """How many bits a number has; 0 for 0."""
    # Without the bit behind the first one, conversion to a double does not round up to the next power of two.
    return np.frexp((x & ~(x >> np.uint64(1))).astype(np.float64))[1]
