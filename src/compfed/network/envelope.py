"""Messages between the operator and a site: queries one way, a signed reply the other.

Both are bytes of the one codec (`compfed.federation.codec`), behind a line that names the protocol:

    message   b"compfed query 6\n" + length of the header + header (run, number, after, names, ...) + body
    reply     b"compfed reply 6\n" + length of the signature + signature + fields (run, number, site, kind, ...)

A site signs its reply with its identity key, so that the operator can verify where the bytes come from. The first message of
a run asks every site to enrol. Its signed replies travel to all sites with the second message: the session is a hash of
them, so that all sites mean the same run, the same sites and the same keys.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from compfed._utils.plain import JsonObject
from compfed._utils.text import printable
from compfed.errors import InputError
from compfed.federation.accounting import payload
from compfed.federation.codec import REPLY_RECORDS, Cached, from_bytes, pack, to_bytes, unpack
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import QUERIES
from compfed.federation.queries.rounds import keeps_state
from compfed.federation.query import LARGEST_LIFT, LIFT, Query, Weighted
from compfed.network.keys import PrivateKey, PublicKey, Roster

PROTOCOL = 6
QUERY, REPLY = f"compfed query {PROTOCOL}\n".encode(), f"compfed reply {PROTOCOL}\n".encode()
LONGEST_HEADER, LONGEST_SIGNATURE = 2**20, 200  # bytes
MOST_SITES = 10_000
NEW_RUN = "Start a new run."
SIGNATURE, SIGNED = ec.ECDSA(hashes.SHA384()), b"compfed/reply/1\0"  # the second comes before what is signed


class Header(NamedTuple):
    """The header of a message."""

    run: str
    number: int
    after: int  # the last message of this run that the site replied to
    place: int  # of the site among the sites, counted from 0; it does not travel, so that all sites get the same bytes
    names: tuple[str, ...]  # of all sites
    queries: str  # hash of the queries
    last_sum: str = ""  # hash of the sum of the message before; "" for the first


class Body(NamedTuple):
    """The body of a message."""

    queries: tuple[Weighted, ...]  # none where a site is asked to enrol
    again: tuple[
        Query, ...
    ] = ()  # rounds whose state the site has lost: done once more, and their replies are not sent
    enrolments: tuple[np.ndarray, ...] = ()  # bytes of the signed enrolments of all sites, for a site that has none yet
    sentence: str = ""  # what the operator states about the run (`federation.sentence`); "" for nothing


ENROL = hashlib.sha256(b"compfed/enrol/1").hexdigest()  # in place of a hash of queries


def query_hash(queries: Sequence[Weighted], sentence: str = "") -> str:
    """The hash of the content of queries, whichever records of it travelled before, and of what is stated about the run."""
    if not queries:
        return ENROL
    records: set[str] = set()
    payload(queries, records)  # collects the hashes of all records that travel once
    made = hashlib.sha256(to_bytes(pack(queries, records)))
    if sentence:
        made.update(b"compfed/sentence/1" + hashlib.sha256(sentence.encode()).digest())
    return made.hexdigest()


def chained(before: str, *hashes: str) -> str:
    """A hash of all that came before and of these, in order."""
    for one in hashes:
        before = hashlib.sha256(f"compfed/chain/1 {before} {one}".encode()).hexdigest()
    return before


def rounds_chained(before: str, queries: Iterable[Query]) -> str:
    """`chained` with the rounds among the queries whose methods keep state at a site."""
    return chained(before, *(query_hash((Weighted(query, "once"),)) for query in queries if keeps_state(query)))


def query_counts(queries: Iterable[Weighted]) -> dict[str, int]:
    """How many queries of each kind there are, for a log."""
    return dict(Counter(type(weighted.query).__name__ for weighted in queries))


# --- messages ---


def message_bytes(header: Header, body: Body, known: Collection[str] = ()) -> bytes:
    """A message; records whose hash is in `known` travel as that hash."""
    head = to_bytes(pack({name: value for name, value in header._asdict().items() if name != "place"}))
    return QUERY + len(head).to_bytes(4, "little") + head + to_bytes(pack(body._asdict(), known))


def read_header(data: bytes, site: str) -> tuple[Header, bytes]:
    """The header of a message for the site with this name, and the bytes of its queries."""
    _check_protocol(data, QUERY)
    start = len(QUERY) + 4
    end = start + int.from_bytes(data[len(QUERY) : start], "little")
    if not start < end <= min(len(data), start + LONGEST_HEADER):
        raise InputError("a message whose header does not fit.")
    kinds = {"run": str, "number": int, "after": int, "names": tuple, "queries": str, "last_sum": str}
    fields = _checked(unpack(from_bytes(data[start:end]), records=()), kinds)
    names = fields["names"]
    if not all(type(name) is str for name in names) or not len(set(names)) == len(names) <= MOST_SITES:
        raise InputError("a message whose header does not name each site once.")
    if site not in names:
        raise InputError(
            f"a message for a run without this site, {site!r}; its sites are {printable(', '.join(names), 200)}."
        )
    header = Header(place=names.index(site), **{name: fields[name] for name in kinds})
    if not 0 <= header.after < header.number < 2**31:
        raise InputError(f"a message numbered {header.number}, after {header.after}.")
    return header, data[end:]


def read_body(body: bytes, accepts: Collection[str], records: Cached) -> Body:
    """The body of a message; `records` has those that travelled before and gains those that are new."""
    kinds = {**dict.fromkeys(Body._fields, tuple), "sentence": str}
    fields = _checked(unpack(from_bytes(body), accepts, records), kinds)
    found = Body(*(fields[name] for name in Body._fields))
    if not all(type(weighted) is Weighted for weighted in found.queries):
        raise InputError("a message whose queries have no weighting.")
    for query in (*found.again, *(weighted.query for weighted in found.queries)):
        if type(query) not in QUERIES:
            raise InputError(f"a message with {type(query).__name__}, which is not a query it knows.")
    for weighted in found.queries:
        if type(weighted.weighting) is not str or weighted.weighting not in ("rows", "sites", "once", "given"):
            raise InputError("a message with a weighting that is unknown.")
        if type(weighted.lift) is not int or not 0 <= weighted.lift <= LARGEST_LIFT or weighted.lift % LIFT:
            raise InputError("a message with fields of a size that is not used.")
        if type(weighted.factor) is not float or not np.isfinite(weighted.factor):
            raise InputError("a message with a factor that is not a finite number.")
    if not all(isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1 for data in found.enrolments):
        raise InputError("a message whose enrolments are not bytes.")
    return found


# --- replies ---


def reply_bytes(fields: JsonObject, key: PrivateKey) -> bytes:
    """A signed reply."""
    body = to_bytes(pack(fields))
    signature = key.sign(SIGNED + body, SIGNATURE)
    return REPLY + len(signature).to_bytes(2, "little") + signature + body


def read_reply(data: bytes, key: PublicKey | None) -> JsonObject:
    """The fields of a reply; raises `InputError` unless it is signed with this key. None: it was checked before."""
    _check_protocol(data, REPLY)
    start = len(REPLY) + 2
    length = int.from_bytes(data[len(REPLY) : start], "little")
    signature, body = data[start : start + length], data[start + length :]
    try:
        if key is not None:
            key.verify(signature if length <= LONGEST_SIGNATURE else b"", SIGNED + body, SIGNATURE)
    except InvalidSignature:
        raise InputError("its reply is not signed with its key; it was not used") from None
    kinds = {"run": str, "number": int, "site": str, "kind": str, "table": str, "queries": str}
    return _checked(unpack(from_bytes(body), records=REPLY_RECORDS), kinds)


def read_enrolment(data: bytes, header: Header, place: int, roster: Roster | None) -> tuple[Enrolment, np.ndarray]:
    """The enrolment and the public session key in a signed reply; with a roster, its signature is checked."""
    name = header.names[place]
    fields = read_reply(data, None if roster is None else roster[name])
    expected = {"run": header.run, "number": 1, "site": name, "kind": "enrolled", "queries": ENROL}
    wrong = [key for key, value in expected.items() if fields[key] != value]
    enrolment, public = fields.get("enrolment"), fields.get("session_key")
    if wrong or type(enrolment) is not Enrolment or not isinstance(public, np.ndarray):
        raise InputError(f"the enrolment of site {name!r} is not one of run {header.run}. {NEW_RUN}")
    if public.dtype != np.uint8 or public.shape != (32,):
        raise InputError(f"the session key of site {name!r} is not a key. {NEW_RUN}")
    return enrolment, public


def _check_protocol(data: bytes, kind: bytes) -> None:
    if not data.startswith(kind):
        line = printable(data[: len(kind) + 4].partition(b"\n")[0].decode("ascii", "replace"))
        way_out = f"where {kind.decode().strip()!r} is expected. Use one version of compfed everywhere."
        raise InputError(f"a message of {line!r} {way_out}")


def _checked(fields: object, kinds: dict[str, type]) -> JsonObject:
    if not isinstance(fields, dict):
        raise InputError("a message without fields.")
    for name, kind in kinds.items():
        if type(fields.get(name)) is not kind:
            raise InputError(f"the field {name!r} of a message is missing or is not {kind.__name__}.")
    return fields
