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
    Lipschitz,
    LocalUpdate,
    Moments,
    QueryLimits,
    Refusal,
    Score,
    Site,
    Tabulate,
)
from compfed.federation.codec import REPLY_RECORDS, from_bytes, pack, to_bytes, unpack
from compfed.federation.server.replies import fault
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.splits import Fold, Holdout, SiteFold

SECONDS, BYTES = 1.0, 200e6
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
    return Site(A, y, name="north", index=0, columns=["age", "bmi", "bp", "sex"])


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
    {"record": "compfed.federation.queries:Refusal", "fields": {"reason": "a" * 2000}},
    {"record": "compfed.federation.queries:Refusal", "fields": {"reason": None}},
    {"record": "compfed.federation.queries:Moments", "fields": {"subset": None}},
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
    made = [mutate(rng, data) for mutate, count in MUTATIONS for _ in range(count)]
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


# --- replies ---


def looks_honest(honest: Any, reply: Any, field: str = "") -> bool:
    """Whether a reply has the form of the honest one: types, dtypes and shapes; only numbers and words differ.

    An oracle of its own: of non-finite numbers it lets through what a diverging run or a model far out gives.
    """
    if isinstance(reply, Refusal):
        return isinstance(reply.reason, str) and len(reply.reason) <= 1000
    if type(reply) is not type(honest):
        return False
    if isinstance(honest, tuple) and hasattr(honest, "_fields"):
        names = honest._fields  # pyright: ignore[reportAttributeAccessIssue]  # a NamedTuple
        return all(looks_honest(getattr(honest, n), getattr(reply, n), n) for n in names)
    if isinstance(honest, tuple):
        return len(reply) == len(honest) and all(map(looks_honest, honest, reply, [field] * len(honest)))
    if isinstance(honest, dict):
        return reply.keys() == honest.keys() and all(looks_honest(honest[k], reply[k], "u") for k in honest)
    if isinstance(honest, np.ndarray):
        same = reply.shape == honest.shape and reply.dtype.kind == honest.dtype.kind
        if honest.dtype.kind != "f" or field == "u":
            return same
        same = same and reply.dtype == honest.dtype
        if field in ("value", "conjugate", "loss"):
            return same and not np.isnan(reply).any() and not (reply == -np.inf).any()
        if field == "moments":
            return same and not np.isnan(reply).any()
        if field in (
            "gradient",
            "terms",
            "hessian",
        ):  # finite unless the value is not, which the check of faults knows
            return same
        return same and bool((np.isfinite(reply) | np.isnan(honest)).all())
    if isinstance(honest, float) and field in ("loss", "saturated"):
        return not np.isnan(reply)
    if isinstance(honest, float):
        return bool(np.isfinite(reply)) and reply >= 0
    if isinstance(honest, str):
        return 1 <= len(reply) <= 200 and reply.isprintable()
    return True


def replies() -> list[tuple[tuple[Any, ...], bytes]]:
    """Queries and the bytes of the honest replies."""
    return [
        (queries, to_bytes(pack(site(kind).reply(queries))))
        for queries, kind in ((NUMBERS, "numbers"), (WORDS, "words"))
    ]


def test_hostile_replies():
    results: dict[str, int] = {"unreadable": 0, "at fault": 0, "like an honest one": 0}
    seen = 0
    for k, (queries, data) in enumerate(replies()):
        honest = unpack(from_bytes(data), records=REPLY_RECORDS)
        assert fault(queries, honest) is None
        assert looks_honest(honest, honest)
        for hostile in mutants(data, seed=k):
            seen += 1
            reply = outcome(lambda hostile=hostile: unpack(from_bytes(hostile), records=REPLY_RECORDS))
            if isinstance(reply, cf.InputError):
                results["unreadable"] += 1
                continue
            wrong = outcome(lambda queries=queries, reply=reply: fault(queries, reply))
            if wrong is None:
                assert looks_honest(honest, reply), reply
                results["like an honest one"] += 1
            else:
                assert isinstance(wrong, str)
                assert len(wrong) < 700
                assert wrong.isprintable()
                assert "cannot be checked" not in wrong  # every fault has a check of its own
                results["at fault"] += 1
    assert seen >= 300
    assert min(results.values()) >= 20, results


def test_infinities_in_every_field_of_a_reply():
    """Each number of each array in turn: what passes is +inf in a value, or any number in a round, which may diverge."""
    for queries, data in replies():
        names = named_arrays(from_bytes(data).head)
        for k, name in names.items():
            for number in (NAN, INF, -INF):
                packed = from_bytes(data)
                if packed.arrays[k].dtype.kind != "f" or not packed.arrays[k].size:
                    continue
                packed.arrays[k].reshape(-1)[-1] = number
                wrong = fault(queries, unpack(packed, records=REPLY_RECORDS))
                passes = (number == INF and name in ("value", "conjugate", "loss")) or name == "u.gradient"
                passes = passes or (np.isnan(number) and name == "label_mean" and queries is WORDS)
                passes = passes or (np.isinf(number) and name == "moments")
                passes = passes or (np.isnan(number) and name == "lines")  # a recalibration that a policy refuses
                assert (wrong is None) == passes, (name, number, wrong)


def named_arrays(head: Any, path: str = "") -> dict[int, str]:
    """The field of every array in a head."""
    if isinstance(head, list):
        return {k: v for item in head for k, v in named_arrays(item, path).items()}
    if not isinstance(head, dict):
        return {}
    if "array" in head:
        return {head["array"]: path}
    found: dict[int, str] = {}
    for key, value in head.items():
        step = path if key in ("tuple", "fields", "dict") else (f"u.{key}" if path == "u" else key)
        found |= named_arrays(value, step)
    return found


def large_replies() -> dict[str, bytes]:
    """Replies that are large, deep or many."""
    many, query = np.arange(10**6), Tabulate(("age",), (np.zeros(1),))
    tabulated = site("numbers").reply([query])[0]
    described = site("words").reply([Describe(classes=True)])[0]
    deep = b'{"head": ' + b'{"tuple": [' * 10**5 + b"1" + b"]}" * 10**5 + b', "arrays": []}'
    return {
        "a million classes": to_bytes(pack((described._replace(classes=many, class_weights=np.ones(10**6)),))),
        "classes of two dimensions": to_bytes(pack((described._replace(classes=many.reshape(1000, 1000)),))),
        "many columns": to_bytes(pack((described._replace(columns=tuple(["a"] * 90_000), width=90_000),))),
        "a moment of 32 MB": to_bytes(pack((Moments.Reply(12.0, *np.zeros((4, 10**6))),))),
        "junk table": to_bytes(pack((tabulated._replace(below=np.zeros((10**6, 2))),))),
        "many replies": to_bytes(pack(tuple([Refusal("")] * 10_000))),
        "deep": len(deep).to_bytes(8, "little") + deep,
        "many floats": bytes_of({"head": {"tuple": [{"float": "0x0.0p+0"}] * 50_000}, "arrays": []}, b""),
        "arrays without end": bytes_of({"head": 1, "arrays": [{"dtype": "<f8", "shape": [0]}] * 40_000}, b""),
    }


def test_large_replies():
    for name, data in large_replies().items():
        queries = [Tabulate(("age",), (np.zeros(1),)) if name == "junk table" else Describe(classes=True)]
        reply = outcome(lambda data=data: unpack(from_bytes(data), records=REPLY_RECORDS))
        if not isinstance(reply, cf.InputError):
            assert isinstance(outcome(lambda queries=queries, reply=reply: fault(queries, reply)), str), name


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
