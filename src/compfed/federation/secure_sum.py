"""Masks: random words that every pair of sites shares, that one adds and the other subtracts, so that only totals are readable.

For a session each site makes an X25519 key. Two sites i < j share the secret s_ij, and per message

    key_ij    = HKDF-SHA256(s_ij; "compfed/mask/1", session, i, j, message number, hash of all queries of the session, in order,
                            hash of the last sum, words)
    stream_ij = ChaCha20(key_ij), as words of 128 bits
    mask_i    = sum_{j > i} stream_ij - sum_{j < i} stream_ji   modulo 2**128

The masks of all sites add up to 0 if all sites answer the same message, and to noise otherwise, which the check word of
`exact_sum.frame` reveals. A key is used for one message, so the nonce is 0. Needs `cryptography`, of the extra `flower`.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from compfed.errors import InputError, MissingExtra
from compfed.federation.exact_sum import Words, add, subtract

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

SESSION, MASK, NOISE = "compfed/session/1", "compfed/mask/1", "compfed/noise/1"
KEY_BYTES = 32


def new_session_key() -> bytes:
    """A new private X25519 key, as 32 random bytes."""
    return secrets.token_bytes(KEY_BYTES)


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key, 32 bytes."""
    return _private_key(private).public_key().public_bytes_raw()


def session_id(run: str, enrolments: Sequence[bytes]) -> bytes:
    """SHA-256("compfed/session/1", run, all enrolments): each part behind its length.

    Parameters
    ----------
    run : str
        The name of the run.
    enrolments : sequence of bytes
        The signed enrolments of all sites in order, each with the site's public session key. They make a session unique
        even if the name of its run is not.
    """
    return hashlib.sha256(_framed(SESSION, run, *enrolments)).digest()


@dataclass(frozen=True)
class Masks:
    """A site's masks in one session.

    Parameters
    ----------
    session : bytes
        The session's name, from `session_id`.
    place : int
        The site's place among the sites, counted from 0.
    shared : mapping of int to bytes
        The secret shared with each other site, by its place. Never printed.
    """

    session: bytes
    place: int
    shared: Mapping[int, bytes] = field(repr=False)

    @classmethod
    def agree(cls, private: bytes, publics: Sequence[bytes], place: int, session: bytes) -> Masks:
        """The masks of the site at `place`, from its private key and the public keys of all sites in order.

        Raises
        ------
        InputError
            If a key is not 32 bytes, makes an all-zero secret or is another site's key, or if the key at `place` is not
            this site's own.
        """
        if not 0 <= place < len(publics):
            raise InputError(f"place={place} must be from 0 to {len(publics) - 1}, one of {len(publics)} session keys.")
        if publics[place] != public_key(private):
            raise InputError(
                f"the session key at place {place} is not this site's own: it was changed on its way, or the places were. "
                "Start a new run."
            )
        own = _private_key(private)
        shared = {j: _exchanged(own, public, j) for j, public in enumerate(publics) if j != place}
        # Two encodings of one key count as one: compare the secrets.
        if len({*shared.values()}) < len(shared) or publics[place] in [k for j, k in enumerate(publics) if j != place]:
            raise InputError("two sites have the same session key; each must make its own. Start a new run.")
        return cls(session, place, shared)

    def mask(self, number: int, queries: str, last_sum: str, words: int) -> Words:
        """sum_{j > place} stream_j - sum_{j < place} stream_j, modulo 2**128.

        Parameters
        ----------
        number : int
            The message's number in the session. **A number is used for one reply**: two replies under one mask differ by
            the difference of what they hide.
        queries : str
            The hash of the queries of all messages of the session up to this one: sites that were asked different things in any of them
            have masks that do not add up to 0.
        last_sum : str
            The hash of the sum that the sites were last shown.
        words : int
            How many words to mask.
        """
        total = np.zeros((words, 2), np.uint64)
        for j, secret in sorted(self.shared.items()):
            i, k = sorted((self.place, j))
            stream = _keystream(
                _mask_key(secret, _framed(MASK, self.session, i, k, number, queries, last_sum, words)), words
            )
            total = add(total, stream) if self.place < j else subtract(total, stream)
        return total


def noise_words(private: bytes, run: str, number: int, queries: str, words: int) -> Words:
    """Words in place of numbers that are not told. They follow from the session key and from what was asked: one message has one reply."""
    return _keystream(_mask_key(private, _framed(NOISE, run, number, queries)), words)


def _framed(*parts: bytes | str | int) -> bytes:
    """Each part behind its length in 8 bytes: no two different lists of parts give the same bytes."""
    framed = b""
    for part in parts:
        data = part.encode() if isinstance(part, str) else part.to_bytes(8, "big") if isinstance(part, int) else part
        framed += len(data).to_bytes(8, "big") + data
    return framed


# --- everything that calls `cryptography` ---


def _private_key(private: bytes) -> X25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    except ImportError:
        raise MissingExtra("cryptography", "flower", "a masked sum") from None
    if len(private) != KEY_BYTES:
        raise InputError(f"a private session key has {len(private)} bytes; it must have {KEY_BYTES}.")
    return X25519PrivateKey.from_private_bytes(private)


def _exchanged(own: X25519PrivateKey, public: bytes, place: int) -> bytes:
    """The secret shared with the site at `place`, if its key is one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # another length, or the secret would be all zero
        secret = bytes(KEY_BYTES)
    if secret == bytes(KEY_BYTES):  # anyone could compute its masks
        raise InputError(
            f"the session key at place {place} is not valid: it must be 32 bytes of X25519, and not a point of low order. "
            "That site must make a new key, with `compfed`, in a new run."
        )
    return secret


def _mask_key(secret: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY_BYTES, salt=None, info=info).derive(secret)


def _keystream(key: bytes, words: int) -> Words:
    """The first 16 * words bytes of ChaCha20's stream, as little-endian words. The only call of the cipher."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    # counter and nonce: 0
    stream = Cipher(ChaCha20(key, nonce=bytes(16)), mode=None).encryptor().update(bytes(16 * words))
    return np.frombuffer(stream, "<u8").reshape(words, 2).astype(np.uint64, copy=False)
