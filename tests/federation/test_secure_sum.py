"""Masks: they cancel bit for bit, agree with a second implementation in plain integers, and turn lies into errors."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import itertools
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compfed.errors import InputError, MissingExtra
from compfed.federation import secure_sum
from compfed.federation.exact_sum import add, check_total, encode, frame
from compfed.federation.secure_sum import Masks, new_session_key, public_key, session_id

pytest.importorskip("cryptography")  # comes with the extra `flower`

VECTORS = json.loads(Path(__file__).with_name("mask_vectors.json").read_text())

# --- a second implementation: RFC 7748, RFC 5869 and RFC 8439 in plain integers ---

P = 2**255 - 19
BASE = (9).to_bytes(32, "little")


def x25519(scalar: bytes, point: bytes) -> bytes:
    """RFC 7748, section 5: the Montgomery ladder."""
    k = (int.from_bytes(scalar, "little") & ~7 & (2**255 - 1)) | 2**254
    u = int.from_bytes(point, "little") % 2**255
    x2, z2, x3, z3 = 1, 0, u, 1
    for t in reversed(range(255)):
        if k >> t & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a, b * b, d * a, c * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
        if k >> t & 1:
            x2, z2, x3, z3 = x3, z3, x2, z2
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def hkdf(secret: bytes, info: bytes, length: int = 32, salt: bytes = bytes(32)) -> bytes:
    """RFC 5869."""
    key = hmac.digest(salt, secret, "sha256")
    block = stream = b""
    for i in itertools.count(1):
        if len(stream) >= length:
            return stream[:length]
        block = hmac.digest(key, block + info + bytes([i]), "sha256")
        stream += block
    raise AssertionError


def chacha20(key: bytes, length: int) -> bytes:
    """RFC 8439, section 2.3: the stream from counter 0, with nonce 0."""

    def quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) % 2**32
            s[z] ^= s[x]
            s[z] = (s[z] << turn | s[z] >> 32 - turn) % 2**32

    stream = b""
    for counter in range(-(-length // 64)):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
        s = list(start)
        for _ in range(10):
            for i in range(4):
                quarter(s, i, 4 + i, 8 + i, 12 + i)
            for i in range(4):
                quarter(s, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
        stream += struct.pack("<16I", *((x + y) % 2**32 for x, y in zip(s, start, strict=True)))
    return stream[:length]


def parts(*items: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(item)) + item for item in items)


def plain_session(run: str, enrolments: list[bytes]) -> bytes:
    return hashlib.sha256(parts(b"compfed/session/1", run.encode(), *enrolments)).digest()


def plain_mask(
    privates: list[bytes], place: int, session: bytes, number: int, queries: str, last_sum: str, words: int
) -> list[int]:
    """The mask of a site as integers below 2**128, from the private keys of all."""
    total = [0] * words
    for other, private in enumerate(privates):
        if other == place:
            continue
        secret = x25519(privates[place], x25519(private, BASE))
        pair = [struct.pack(">Q", i) for i in sorted((place, other))]
        count, length = struct.pack(">Q", number), struct.pack(">Q", words)
        info = parts(b"compfed/mask/1", session, *pair, count, queries.encode(), last_sum.encode(), length)
        stream = chacha20(hkdf(secret, info), 16 * words)
        for w in range(words):
            word = int.from_bytes(stream[16 * w : 16 * w + 16], "little")
            total[w] = (total[w] + (word if place < other else -word)) % 2**128
    return total


def as_integers(words: np.ndarray) -> list[int]:
    return [int(low) + 2**64 * int(high) for low, high in words]


def test_the_second_implementation_gives_the_vectors_of_the_standards():
    # RFC 7748, 5.2
    assert (
        x25519(
            bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4"),
            bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c"),
        ).hex()
        == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    )
    okm = hkdf(b"\x0b" * 22, bytes(range(0xF0, 0xFA)), 42, bytes(range(13)))  # RFC 5869, A.1
    assert okm.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert chacha20(bytes(32), 64).hex() == (  # RFC 8439, A.1, 1
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert chacha20(bytes(32), 128)[64:].hex() == (  # RFC 8439, A.1, 2: the second block
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_both_implementations_give_the_test_vectors(case):
    privates = [bytes.fromhex(key) for key in case["private"]]
    enrolments = [bytes.fromhex(item) for item in case["enrolments"]]
    asked = (case["number"], case["queries"], case["last_sum"], case["words"])

    assert [x25519(key, BASE).hex() for key in privates] == case["public"]
    assert [public_key(key).hex() for key in privates] == case["public"]
    session = session_id(case["run"], enrolments)
    assert session.hex() == plain_session(case["run"], enrolments).hex() == case["session"]
    publics = [public_key(key) for key in privates]
    for place, key in enumerate(privates):
        expected = [int(word, 16) for word in case["masks"][place]]
        assert as_integers(Masks.agree(key, publics, place, session).mask(*asked)) == expected
        assert plain_mask(privates, place, session, *asked) == expected


# --- masks cancel ---


def agreed(n: int, session: bytes = b"s" * 32) -> list[Masks]:
    keys = [new_session_key() for _ in range(n)]
    publics = [public_key(key) for key in keys]
    return [Masks.agree(key, publics, place, session) for place, key in enumerate(keys)]


def summed(words: list[np.ndarray]) -> np.ndarray:
    """The sum in Python's integers, modulo 2**128."""
    totals = [sum(column) % 2**128 for column in zip(*map(as_integers, words), strict=True)]
    return np.array([[t % 2**64, t // 2**64] for t in totals], np.uint64)


ASKED = (4, "a" * 64, "b" * 64)


@pytest.mark.parametrize("n", [2, 3, 5, 16])
def test_masked_words_have_the_sum_of_the_plain_words(n):
    rng = np.random.default_rng(n)
    values = rng.normal(size=(n, 200)) * 10.0 ** rng.uniform(-9, 9, (n, 200))
    plain = [frame(*encode(v, -70)) for v in values]
    masked = [add(words, m.mask(*ASKED, len(words))) for words, m in zip(plain, agreed(n), strict=True)]
    assert np.array_equal(summed(masked), summed(plain))
    assert check_total(summed(masked), n) == 0
    for a, b in zip(plain, masked, strict=True):
        assert not np.any(a == b)  # no half of a word is left in the clear (by chance: 404 in 2**64)


def test_the_masked_words_of_a_site_look_uniform():
    words = add(frame(np.zeros((20_000, 2), np.uint64), 0), agreed(3)[1].mask(*ASKED, 20_002))
    counts = np.bincount(words.view(np.uint8).reshape(-1), minlength=256)
    expected = counts.sum() / 256
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi2 - 255) < 7 * np.sqrt(2 * 255)  # 7 standard deviations of chi squared with 255 degrees of freedom
    bits = np.unpackbits(words.view(np.uint8).reshape(len(words), 16), axis=1).mean(axis=0)
    assert np.all(np.abs(bits - 0.5) < 7 * 0.5 / np.sqrt(len(words)))
    assert len(np.unique(words, axis=0)) == len(words)


def test_all_but_two_colluding_sites_leave_a_mask_between_the_two():
    """What n - 2 sites know of a site's mask, taken away, leaves the stream it shares with the other honest site."""
    masks = agreed(5)
    plain = frame(np.zeros((50, 2), np.uint64), 0)
    seen = add(plain, masks[1].mask(*ASKED, 52))
    known = [dataclasses.replace(m, shared={1: m.shared[1]}).mask(*ASKED, 52) for m in (masks[0], masks[2], masks[4])]
    left = summed([seen, *known])
    stream = dataclasses.replace(masks[1], shared={3: masks[1].shared[3]}).mask(*ASKED, 52)
    assert np.array_equal(left, add(plain, stream))
    assert not np.any(left == plain)


# --- one key, one message ---


def test_every_key_of_the_cipher_is_used_once(monkeypatch):
    used: list[tuple[bytes, int]] = []
    keystream = secure_sum._keystream
    monkeypatch.setattr(secure_sum, "_keystream", lambda key, words: used.append((key, words)) or keystream(key, words))
    masks = agreed(4)
    for number, words in itertools.product((1, 2, 3), (5, 6)):
        for m in masks:
            m.mask(number, "q", "l", words)
    assert len(used) == 6 * 4 * 3
    assert len({key for key, _ in used}) == 6 * 6  # each pair, each message: a key of its own, which both sides use
    assert all(sum(key == other for other, _ in used) == 2 for key, _ in used)


@pytest.mark.parametrize("n", [2, 3])
def test_any_change_of_the_message_gives_another_stream(n):
    m = agreed(n)[0]
    base: dict[str, Any] = dict(number=1, queries="ab", last_sum="c", words=6)
    changes: list[dict[str, Any]] = [
        {}, {"number": 2}, {"number": 257}, {"queries": "ac"}, {"queries": "a", "last_sum": "bc"}, {"queries": "abc", "last_sum": ""},
        {"queries": "", "last_sum": "abc"}, {"last_sum": "d"}, {"words": 5}, {"words": 7}, {"number": 6, "words": 1},
    ]  # fmt: skip
    masks = [m.mask(**base | change) for change in changes]
    masks += [dataclasses.replace(m, session=session).mask(**base) for session in (b"t" * 32, b"s" * 31, b"")]
    assert len({mask[0].tobytes() for mask in masks}) == len(masks)
    assert np.array_equal(m.mask(**base), masks[0])  # nothing else enters


def test_sessions_differ_in_every_part():
    cases = [
        ("r", [b"a", b"b"]), ("r", [b"ab"]), ("r", [b"ab", b""]), ("r", [b"", b"ab"]), ("r", [b"b", b"a"]), ("ra", [b"b"]), ("r", []),
        ("", [b"r", b"a", b"b"]), ("s", [b"a", b"b"]), ("r", [b"a\0\0\0\0\0\0\0\1b"]), ("r", [b"a", b"b", b""]),
    ]  # fmt: skip
    assert len({session_id(*case) for case in cases}) == len(cases)
    assert all(session_id(*case) == plain_session(*case) for case in cases)


@pytest.mark.parametrize("change", [{"number": 2}, {"queries": "other"}, {"last_sum": "other"}, {"words": 12}])
@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_server_that_shows_one_site_another_message_gets_an_error(n, change):
    told: dict[str, Any] = dict(number=1, queries="one", last_sum="last", words=11)
    words = [frame(np.zeros((9, 2), np.uint64), 0) for _ in range(n)]
    masks = agreed(n)
    honest = [add(w, m.mask(**told)) for w, m in zip(words, masks, strict=True)]
    assert check_total(summed(honest), n) == 0
    lied = [*honest[:-1], add(words[-1], masks[-1].mask(**told | change)[:11])]
    with pytest.raises(InputError, match="different messages"):
        check_total(summed(lied), n)
    with pytest.raises(InputError, match="missing"):
        check_total(summed(honest[:-1]), n - 1)


def test_sites_of_different_sessions_do_not_add_up():
    one, two = agreed(3), agreed(3)
    other = [*one[:2], dataclasses.replace(one[2], session=b"t" * 32)]
    for masks in ([*one[:2], two[2]], other):
        words = [add(frame(np.zeros((3, 2), np.uint64), 0), m.mask(*ASKED, 5)) for m in masks]
        with pytest.raises(InputError, match="check word"):
            check_total(summed(words), 3)


# --- keys ---

LOW_ORDER = [  # of Curve25519: https://cr.yp.to/ecdh.html
    0,
    1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
    P - 1,
    P,
    P + 1,
]


@pytest.mark.parametrize("point", LOW_ORDER)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_points_of_low_order_are_refused(point, place):
    assert x25519(b"k" * 32, point.to_bytes(32, "little")) == bytes(32)  # the secret would be known to all
    keys = [new_session_key() for _ in range(3)]
    publics = [public_key(key) for key in keys]
    other = (place + 1) % 3
    publics[other] = point.to_bytes(32, "little")
    with pytest.raises(InputError, match=f"at place {other} .*low order"):
        Masks.agree(keys[place], publics, place, b"s")


def test_an_all_zero_secret_is_refused_whatever_the_library_does():
    class Key:
        def exchange(self, public: object) -> bytes:
            return bytes(32)

    with pytest.raises(InputError, match="low order"):
        secure_sum._exchanged(Key(), public_key(b"k" * 32), 1)  # pyright: ignore[reportArgumentType]  # a stand-in


def test_a_copied_session_key_is_refused_in_any_encoding():
    """A site between two copies of one key would add and subtract one stream: its reply would travel in the clear."""
    keys = [new_session_key() for _ in range(3)]
    publics = [public_key(key) for key in keys]
    copy = bytes([*publics[0][:31], publics[0][31] | 0x80])  # the first bit of a key is ignored
    assert x25519(keys[1], copy) == x25519(keys[1], publics[0])
    for stolen in (publics[0], copy):
        with pytest.raises(InputError, match="the same session key"):
            Masks.agree(keys[1], [*publics[:2], stolen], 1, b"s")
    with pytest.raises(InputError, match="the same session key"):
        Masks.agree(keys[0], [publics[0], publics[1], publics[0]], 0, b"s")
    secret = x25519(keys[1], publics[0])  # and if it were not refused:
    assert np.all(Masks(b"s", 1, {0: secret, 2: secret}).mask(*ASKED, 20) != 0)


def test_other_places_and_lengths_are_refused():
    keys = [new_session_key() for _ in range(2)]
    publics = [public_key(key) for key in keys]
    for place in (-1, 2):
        with pytest.raises(InputError, match="place"):
            Masks.agree(keys[0], publics, place, b"s")
    with pytest.raises(InputError, match="not this site's own"):
        Masks.agree(keys[0], publics, 1, b"s")
    with pytest.raises(InputError, match="at place 1 is not valid"):
        Masks.agree(keys[0], [publics[0], publics[1][:31]], 0, b"s")
    with pytest.raises(InputError, match="31 bytes"):
        public_key(keys[0][:31])


def test_secrets_are_not_printed():
    m = agreed(2)[0]
    assert m.shared[1].hex() not in repr(m)
    assert repr(m.shared[1]) not in repr(m)
    assert "place=0" in repr(m)


def test_without_cryptography_the_core_works_and_masks_say_what_to_install():
    script = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import compfed, compfed.federation.exact_sum\n"
        "assert 'compfed.federation.secure_sum' not in sys.modules\n"
        "import compfed.federation.secure_sum as masks\n"
        "try: masks.public_key(masks.new_session_key())\n"
        "except compfed.errors.MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "a masked sum needs cryptography" in done.stdout, done.stderr
    assert "pip install '.[flower]'" in done.stdout
    assert issubclass(MissingExtra, ImportError)
