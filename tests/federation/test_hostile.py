"""Hostile messages, made from honest ones by a seed: each is refused or at fault, or is one that an honest side could send.

Whatever the bytes, nothing but `InputError` is raised, nothing takes a second, and nothing takes 200 MB.
"""

from __future__ import annotations

import copy
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from federation.test_limits import HOSTILE
from federation.wired import sites_of, table

import compfed as cf
from compfed.federation import (
    Describe,
    Evaluate,
    HeldOut,
    Inference,
    InProcess,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    QueryLimits,
    Refusal,
    Rows,
    Score,
    Site,
    Tabulate,
)
from compfed.federation.adding import Exactly
from compfed.federation.codec import REPLY_RECORDS, from_bytes, pack, to_bytes, unpack
from compfed.federation.query import Weighted
from compfed.federation.server.arrivals import words_fault
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.splits import Fold, Holdout, SiteFold

SECONDS, BYTES = 3.0, 200e6
D = 5
NAN, INF = float("nan"), float("inf")
OBJECTIVE = ObjectiveSpec(cf.losses.Squared(ridge=0.1), FeatureScaling(np.arange(4.0), np.ones(4), intercept=True))
FOLD = Fold(1, 3, 7, np.array([0, 12]), by_class=False, held_out=True)
METHOD = cf.algorithms.FISTA(eta=0.1)
RUN = RunSpec(0, METHOD, cf.regularisers.L1(np.full(D, 0.1)), OBJECTIVE, np.zeros(D), 0, None, 20)
X = np.linspace(-1, 1, 2 * D).reshape(2, D)
NUMBERS: tuple[Any, ...] = (
    Tabulate(("age", "bmi"), (np.array([0.0, 1.0]), np.empty(0)), ("label",), (("0", "2"),)),
    Moments(subset=FOLD),
    Lipschitz(OBJECTIVE, X[0]),
    Evaluate(OBJECTIVE, X, dual=np.ones((2, 4))),
    Evaluate(OBJECTIVE, X[:1], np.arange(3)),
    HeldOut(OBJECTIVE, Holdout(0.3, 1, by_class=False, held_out=True), X),
    LeaveOneOut(OBJECTIVE, X, np.array([4, 0]), np.array([[9e4, 1.0, 9e4]] * 2)),
    Inference(OBJECTIVE, X[0], np.array([4, 0])),
    Score(OBJECTIVE, X[0], np.empty((0, 0)), np.zeros(1), np.empty((0, 2)), FOLD),
    LocalUpdate(RUN, 0, 0, {"y": np.zeros(D)}),
)
WORDS: tuple[Any, ...] = (
    Describe(classes=True),
    Evaluate(replace(OBJECTIVE, loss=cf.losses.Logistic(), classes=np.array(["ill", "well"])), X),
    HeldOut(
        replace(OBJECTIVE, loss=cf.losses.Logistic(), classes=np.array(["ill", "well"])), SiteFold(0, held_out=True), X
    ),
    Score(
        replace(OBJECTIVE, loss=cf.losses.Logistic(), classes=np.array(["ill", "well"])),
        X[0],
        np.array([[0.0, 1.0]]),
        np.empty(0),
        np.ones((1, 2)),
    ),
    Moments(subset=replace(FOLD, by_class=True)),
)


def site(kind: str) -> Site:
    A, y = table(kind)[0]
    return Site(Rows(A, y, name="north", index=0, columns=["age", "bmi", "bp", "sex"]))


def bytes_of(head: Any, data: bytes) -> bytes:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + data


def parts_of(data: bytes) -> tuple[Any, bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


# --- mutations ---


def flipped(rng: np.random.Generator, data: bytes) -> bytes:
    """A few bits the other way, anywhere."""
    out = bytearray(data)
    for at in rng.integers(0, len(data), rng.integers(1, 4)):
        out[at] ^= 1 << int(rng.integers(8))
    return bytes(out)


def cut(rng: np.random.Generator, data: bytes) -> bytes:
    """Too short, too long, or a piece missing."""
    a, b = sorted(int(i) for i in rng.integers(0, len(data), 2))
    return (data[:a], data + bytes(b - a + 1), data[:a] + data[b:])[int(rng.integers(3))]


JUNK: list[Any] = [
    2**63, -(2**63) - 1, 10**4000, -1, 0, 1, 2**31, 2**62, None, True, False, [], {}, [[]],
    "", "word", "\x1b]52;c;AAAA\x07", "\ud800", "a" * 10**5,
    {"float": "0x1p5000"}, {"float": "nan"}, {"float": "inf"}, {"float": "-inf"}, {"float": "1.5"}, {"float": 3},
    {"array": 0}, {"array": 1}, {"array": -1}, {"array": 10**9}, {"array": "0"}, {"tuple": []}, {"tuple": "abc"},
    {"dict": {}}, {"dict": {"a" * 300: 1}}, {"cached": "0" * 64}, {"cached": 3}, {"record": "os:system", "fields": {}},
    {"record": "compfed.federation.codec:json.JSONDecoder", "fields": {}},
    {"record": "compfed.federation.query:Refusal", "fields": {"reason": "a" * 2000}},
    {"record": "compfed.federation.query:Refusal", "fields": {"reason": None}},
    {"record": "compfed.federation.queries.moments:Moments", "fields": {"subset": None}},
    {"record": "compfed.losses.linear:Softmax", "fields": {"outputs": 10**9, "ridge": 0}},
    {"record": "compfed.regularisers.penalties:L1", "fields": {"lam": 1}},
    {"record": "compfed.algorithms.decoupled_prox:DecoupledProx",
     "fields": {"eta": 1, "eta_g": 1, "tau": 2 * 10**9, "upload": "auto"}},
    {"model": "os:system", "params": {"dict": {}}}, {"tuple": [{"float": "0x0.0p+0"}] * 2_000},
]  # fmt: skip


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    for key in list(node) if isinstance(node, dict) else range(len(node)):
        yield node, key
        if isinstance(node[key], (dict, list)):
            yield from places(node[key])


def replaced(rng: np.random.Generator, data: bytes) -> bytes:
    """One node of the head replaced by junk, or by another node, or left out."""
    head, arrays = parts_of(data)
    spots = list(places(head["head"]))
    node, key = spots[int(rng.integers(len(spots)))]
    kind = int(rng.integers(8))
    if kind == 0 and isinstance(node, dict):
        del node[key]
    elif kind == 1:
        other, at = spots[int(rng.integers(len(spots)))]
        node[key] = copy.deepcopy(other[at])
    else:
        node[key] = JUNK[int(rng.integers(len(JUNK)))]
    try:
        return bytes_of(head, arrays)
    except ValueError:  # a number of 4,000 digits
        return bytes_of(json.dumps(head, default=str).encode() if kind else b"{}", arrays)


DTYPES = [
    "<f4",
    "<f8",
    "<i8",
    "|b1",
    "|i1",
    "|O",
    ">f8",
    "<U2",
    "<U100000000",
    "<c16",
    "<M8[s]",
    "float64",
    "|V8",
    None,
    8,
]
SHAPES: list[Any] = [
    [-1],
    [2**32, 2**32],
    [2**63],
    [0],
    [],
    [1] * 9,
    [10**6],
    "5",
    None,
    [1.0],
    [True],
    [0, 2**62],
    [2, -3],
]


def reshaped(rng: np.random.Generator, data: bytes) -> bytes:
    """An array with another dtype or shape; at times with as many bytes as that takes."""
    head, arrays = parts_of(data)
    array = head["arrays"][int(rng.integers(len(head["arrays"])))]
    kind = int(rng.integers(4))
    if kind == 0:
        array["dtype"] = DTYPES[int(rng.integers(len(DTYPES)))]
    elif kind == 1:
        array["shape"] = SHAPES[int(rng.integers(len(SHAPES)))]
    elif kind == 2 and len(array["shape"]) == 1:
        array["shape"] = [*array["shape"], 1] if rng.integers(2) else [1, *array["shape"]]
    else:
        k = int(rng.integers(len(head["arrays"])))
        head["arrays"].insert(k, copy.deepcopy(head["arrays"][k]))
        arrays += bytes(int(rng.integers(200)))
    return bytes_of(head, arrays)


ODD = [NAN, INF, -INF, -1.0, 0.0, 1e308, -1e308, 5e-324, 2.0**53]


def renumbered(rng: np.random.Generator, data: bytes) -> bytes:
    """A number of an array that no honest side sends, or another one."""
    packed = from_bytes(data)
    floats = [a for a in packed.arrays if a.dtype.kind == "f" and a.size]
    array = floats[int(rng.integers(len(floats)))]
    array.reshape(-1)[int(rng.integers(array.size))] = ODD[int(rng.integers(len(ODD)))]
    return to_bytes(packed)


Mutation = Callable[[np.random.Generator, bytes], bytes]
MUTATIONS: list[tuple[Mutation, int]] = [(flipped, 35), (cut, 15), (replaced, 80), (reshaped, 40), (renumbered, 30)]


def mutants(data: bytes, seed: int) -> list[bytes]:
    """Different hostile messages from an honest one."""
    rng = np.random.default_rng(seed)
    has_floats = any(array.dtype.kind == "f" for array in from_bytes(data).arrays)
    usable = [each for each in MUTATIONS if has_floats or each[0] is not renumbered]
    made = [mutate(rng, data) for mutate, count in usable for _ in range(count)]
    return [m for m in dict.fromkeys(made) if m != data]


# --- what is measured ---


def outcome(work: Callable[[], Any]) -> Any:
    """The result, or the `InputError`; the test fails for any other exception, and for time or memory."""
    tracemalloc.start()
    result, seconds = timed(work)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < BYTES
    if seconds > SECONDS:  # tracing takes most of it
        _, seconds = timed(work)
    assert seconds < SECONDS
    return result


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.process_time()  # of this process: other work on the machine does not count
    try:
        result: Any = work()
    except cf.InputError as refused:
        result = refused
    seconds = time.process_time() - start
    assert not isinstance(result, cf.InputError) or len(str(result)) < 2000
    return result, seconds


# --- replies: words ---


def test_hostile_words():
    """Of bytes that were changed on the way a server reads words of the right number, or names what is wrong."""
    results: dict[str, int] = {"unreadable": 0, "at fault": 0, "words": 0}
    for k, (queries, kind) in enumerate(((NUMBERS, "numbers"), (WORDS, "words"))):
        federation = InProcess([site(kind)], exact=True)
        asked = [Weighted(query, "rows") for query in queries]
        agreement = federation.messages.agreement
        honest = Exactly().encode(asked, federation.sites[0].contributions(asked, agreement), agreement)
        for hostile in mutants(to_bytes(pack(honest)), seed=k):
            words = outcome(lambda hostile=hostile: unpack(from_bytes(hostile), records=REPLY_RECORDS))
            if isinstance(words, cf.InputError):
                results["unreadable"] += 1
                continue
            wrong = words_fault(words, len(honest))
            results["words" if wrong is None else "at fault"] += 1
            assert wrong is not None or (words.dtype == np.uint64 and words.shape == honest.shape)
    assert sum(results.values()) >= 200
    assert min(results["unreadable"], results["words"]) >= 20, results
    assert results["at fault"], results


def large_replies() -> dict[str, bytes]:
    """Replies that are large, deep or many."""
    deep = b'{"head": ' + b'{"tuple": [' * 10**5 + b"1" + b"]}" * 10**5 + b', "arrays": []}'
    return {
        "a million words": to_bytes(pack(np.zeros((10**6, 2), np.uint64))),
        "words of three dimensions": to_bytes(pack(np.zeros((10, 2, 2), np.uint64))),
        "many arrays": to_bytes(pack(tuple([np.zeros(1)] * 10_000))),
        "deep": len(deep).to_bytes(8, "little") + deep,
        "many floats": bytes_of({"head": {"tuple": [{"float": "0x0.0p+0"}] * 50_000}, "arrays": []}, b""),
        "arrays without end": bytes_of({"head": 1, "arrays": [{"dtype": "<f8", "shape": [0]}] * 40_000}, b""),
    }


def test_large_replies():
    for name, data in large_replies().items():
        words = outcome(lambda data=data: unpack(from_bytes(data), records=REPLY_RECORDS))
        if not isinstance(words, cf.InputError):
            assert isinstance(words_fault(words, 40), str), name


# --- queries ---


def answered(here: Site, data: bytes) -> Any:
    """The site's reply to bytes: the queries with their replies."""
    queries = unpack(from_bytes(data))
    if not isinstance(queries, tuple):
        raise cf.InputError("a message is a tuple of queries.")
    return queries, here.reply(queries)


def test_hostile_queries():
    results: dict[str, int] = {"unreadable": 0, "refused": 0, "answered": 0}
    seen = 0
    for k, (queries, kind) in enumerate(((NUMBERS, "numbers"), (WORDS, "words"))):
        here = site(kind)
        data = to_bytes(pack(queries))
        honest = here.reply(queries)
        assert not any(isinstance(reply, Refusal) for reply in honest)
        for hostile in mutants(data, seed=100 + k):
            seen += 1
            result = outcome(lambda here=here, hostile=hostile: answered(here, hostile))
            if isinstance(result, cf.InputError):
                results["unreadable"] += 1
                continue
            refused = [isinstance(reply, Refusal) for reply in result[1]]
            results["refused" if any(refused) else "answered"] += 1
            for query, reply in zip(*result, strict=True):
                assert isinstance(reply, (Refusal, getattr(type(query), "Reply", Refusal)))
                assert not isinstance(reply, Refusal) or len(reply.reason) <= 1000
        # the site is what it was
        for before, after in zip(honest, here.reply(queries), strict=True):
            assert to_bytes(pack(before)) == to_bytes(pack(after))
    assert seen >= 300
    assert min(results.values()) >= 20, results


def test_hostile_queries_through_bytes():
    """Those that ask for too much, as they would travel."""
    here = sites_of(table("numbers"), QueryLimits())[1]
    here.reply(NUMBERS)
    for name, (query, _) in HOSTILE.items():
        try:
            data = to_bytes(pack((query,)))
        except cf.InputError:  # cannot even be sent
            continue
        result = outcome(lambda data=data: answered(here, data))
        assert isinstance(result, cf.InputError) or isinstance(result[1][0], Refusal), name
    assert len(HOSTILE) > 60
