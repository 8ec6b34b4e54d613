"""Messages: what goes in comes out, by name, dtype and shape; what is not known is refused."""

from __future__ import annotations

import dataclasses
import importlib
import json
import pkgutil
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import compfed as cf
from compfed._utils.records import describe
from compfed.algorithms import ALGORITHMS
from compfed.algorithms.base import Bounds
from compfed.federation import QUERIES, Describe, Evaluate, Lipschitz, Moments, Rows, Site
from compfed.federation.accounting import payload
from compfed.federation.codec import (
    MAX_ARRAYS,
    MAX_RECORDS,
    REPLY_RECORDS,
    Packed,
    digest,
    from_bytes,
    known_records,
    named,
    pack,
    to_bytes,
    unnamed,
    unpack,
)
from compfed.federation.enrolment import Enrolment
from compfed.federation.query import Weighted
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.regularisers import GroupL2, L2Ball, OnBlock, SumOf
from compfed.splits import Fold

BOUNDS = Bounds(L=1.0, L_max=2.0, mu=0.1, tau=3, d=6)


def there_and_back(value, **options):
    return unpack(from_bytes(to_bytes(pack(value))), **options)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.floats(allow_nan=False)
        | arrays(st.sampled_from([np.float64, np.float32, np.int32, np.bool_]), array_shapes(min_dims=0, max_dims=3), fill=st.nothing()),
        lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
        max_leaves=8,
    )
)  # fmt: skip
def test_plain_values_and_arrays_survive(value):
    def same(a, b) -> bool:
        if isinstance(a, np.ndarray):
            return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        if isinstance(a, tuple):
            return type(b) is tuple and len(a) == len(b) and all(map(same, a, b))
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
        return type(a) is type(b) and a == b

    assert same(value, there_and_back(value))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_registry_travels(name):
    method = ALGORITHMS[name].from_bounds(BOUNDS, 1.0)
    again = there_and_back(method)
    assert type(again) is type(method)
    assert describe(again) == describe(method)


@pytest.mark.parametrize(
    "g",
    [
        cf.regularisers.L1(0.1),
        OnBlock(cf.regularisers.ElasticNet(np.arange(3.0), 0.5), 0, 3),
        SumOf(cf.regularisers.L1(0.1), cf.regularisers.NonNegative()),
        GroupL2(0.3, groups=(0, 0, 1), weights=np.array([1.0, 2.0])),
        L2Ball(2.0),
    ],
)
def test_regularisers_travel(g):
    assert describe(there_and_back(g)) == describe(g)


def my_model(params, a, y):
    return (a @ params["w"] - y) ** 2


def test_a_function_of_ones_own_is_named_and_must_be_accepted():
    loss = cf.losses.from_function(my_model, {"w": np.ones(3)})
    name = f"{my_model.__module__}:my_model"
    with pytest.raises(cf.InputError, match=r"which is not of compfed\. Install it at the site and list it"):
        there_and_back(loss)
    again = there_and_back(loss, accepts={name})
    np.testing.assert_array_equal(again.start, np.ones(3))
    assert again.model.function is my_model
    with pytest.raises(cf.InputError, match="is not installed here"):
        unpack(Packed({"record": "not_there:Thing", "fields": {}}, []), accepts={"not_there:Thing"})


@pytest.mark.parametrize(
    "head",
    [
        {"record": "os:system", "fields": {}},
        {"record": "subprocess:Popen", "fields": {"args": "ls"}},
        {"record": "compfed.trace:Trace", "fields": {}},  # of ours, and nothing that travels
        {"record": "compfed.algorithms:find", "fields": {}},  # a function is not a record
        {"record": "compfed.losses:Squared", "fields": {"ridge": 0.0, "more": 1}},
        # refused by its own check
        {
            "record": "compfed.losses:Squared",
            "fields": {"ridge": {"float": "-0x1p0"}},
        },
        {"model": "os:system", "params": {"dict": {}}},
        {"lambda": "x"},
        {"cached": "0" * 64},
    ],
)
def test_what_is_not_known_is_refused(head):
    with pytest.raises(cf.InputError):
        unpack(Packed(head, []))


def test_bytes_that_are_no_message_are_refused():
    good = to_bytes(pack((np.arange(3.0), "word")))
    for bad in (b"", b"\x00" * 4, good[:-1], good + b"x", good[:20], b"\xff" * 40):
        with pytest.raises(cf.InputError, match="are not a message of compfed"):
            from_bytes(bad)
    head = json.dumps({"head": None, "arrays": [{"dtype": "|O", "shape": [1]}]}).encode()
    with pytest.raises(cf.InputError, match=r"dtype \|O; it cannot travel"):
        from_bytes(len(head).to_bytes(8, "little") + head + b"\x00" * 8)


@pytest.mark.parametrize("thing", [lambda x: x, object(), {1, 2}, np.array([object()]), 1j])
def test_what_cannot_travel_is_refused_before_it_leaves(thing):
    with pytest.raises(cf.InputError, match="cannot travel"):
        pack({"field": thing})


def test_words_in_an_object_array_travel_as_words():
    again = there_and_back(np.array(["ill", "well"], dtype=object))
    assert again.dtype.kind == "U"
    assert again.tolist() == ["ill", "well"]


def a_run(number: int = 0) -> RunSpec:
    scaling = FeatureScaling(np.arange(4.0), np.ones(4), intercept=True)
    objective = ObjectiveSpec(
        cf.losses.Logistic(), scaling, np.array(["a", "b"]), Fold(0, 3, 0, np.arange(2), True, held_out=False)
    )
    return RunSpec(
        number,
        ALGORITHMS["FISTA"].from_bounds(BOUNDS, 1.0),
        cf.regularisers.L1(0.1),
        objective,
        np.zeros(5),
        0,
        None,
        9,
    )


def test_a_record_sent_before_travels_as_its_hash():
    run_spec = a_run()
    first = pack(run_spec)
    cached: dict = {}
    again = unpack(first, cached=cached)
    assert set(cached) == {digest(run_spec), digest(run_spec.objective)}
    assert digest(again) == digest(run_spec)
    short = pack(run_spec, cached)
    assert short.arrays == []
    assert unpack(short, cached=cached) is again
    with pytest.raises(cf.InputError, match="was not sent before; send it in full"):
        unpack(short)
    # another number is another run with the same objective
    head: Any = pack(a_run(1), cached).head
    assert head["fields"]["objective"] == {"cached": digest(run_spec.objective)}


def test_the_hash_is_of_the_content():
    assert digest(a_run()) == digest(a_run())
    assert digest(a_run(0)) != digest(a_run(1))
    objective = ObjectiveSpec(cf.losses.Squared())
    assert digest(objective) != digest(ObjectiveSpec(cf.losses.Squared(ridge=1e-300)))
    assert digest(objective) != digest(ObjectiveSpec(cf.losses.Squared(), dtype="float32"))


def test_bytes_are_counted_by_hand():
    cached: set[str] = set()
    assert payload(Describe(classes=True), cached) == 0
    assert payload(Moments(), cached) == 0
    run_spec = a_run()
    # eta, lambda, scaling (two vectors of 4), x0, first (two), two words of one letter, ridge
    words = np.array(["a", "b"]).nbytes
    assert payload(run_spec, cached) == 8 + 8 + 64 + 40 + 16 + words + 8
    assert payload(run_spec, cached) == 0
    assert payload(Lipschitz(run_spec.objective), cached) == 0
    assert payload(Evaluate(run_spec.objective, np.zeros((2, 5))), cached) == 80
    coords = np.arange(3, dtype=np.int32)
    assert payload(Evaluate(run_spec.objective, np.zeros((1, 5)), coords), cached) == 40 + 12
    # of one model: value, gradient, size of its terms, and the upper triangle of a 3 x 3 matrix
    reply = Evaluate.Reply(np.zeros(1), np.zeros((1, 5)), np.zeros(1), np.zeros((1, 6)))
    assert payload(reply, cached) == 8 + 40 + 8 + 48
    assert payload(Moments.Reply(7.0, *np.zeros((4, 7))), cached) == 8 + 4 * 56
    assert payload({"u": np.zeros(3, np.float32)}, cached) == 12


def test_trees_by_name():
    tree = {"a": np.arange(3.0), "b": (np.ones(2), np.zeros(()))}
    arrays = named(tree)
    assert list(arrays) == ["a", "b.0", "b.1"]
    again = unnamed(arrays, tree)
    np.testing.assert_array_equal(again["b"][0], np.ones(2))
    with pytest.raises(cf.InputError, match=r"has the fields \['a', 'c'\]; expected"):
        unnamed({"a": np.zeros(3), "c": np.zeros(1)}, tree)
    with pytest.raises(cf.InputError, match=r"field 'a' of a message has shape \(4,\)"):
        unnamed({**arrays, "a": np.zeros(4)}, tree)
    with pytest.raises(cf.InputError, match=r"float32; expected .* float64"):
        unnamed({**arrays, "a": np.zeros(3, np.float32)}, tree)


# --- bytes and heads that nobody honest writes ---


def framed(head: Any, arrays: Any = (), data: bytes = b"") -> bytes:
    """The bytes of a message, written by hand."""
    text = head if isinstance(head, bytes) else json.dumps({"head": head, "arrays": list(arrays)}).encode()
    return len(text).to_bytes(8, "little") + text + data


def described(dtype: Any = "<f8", shape: Any = (1,)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape) if isinstance(shape, tuple) else shape}


ONE = {"array": 0}
BAD_BYTES = {
    "overflow": framed(ONE, [described(shape=(2**32, 2**32))], b"\x00" * 8),  # 2^67 bytes, 0 modulo 2^64
    "negative": framed(ONE, [described(shape=(-1,))], b"\x00" * 8),
    "two negatives": framed(ONE, [described(shape=(-1, -1))], b"\x00" * 8),
    "true as a size": framed(ONE, [described(shape=[True])], b"\x00" * 8),
    "a float as a size": framed(ONE, [described(shape=[1.0])], b"\x00" * 8),
    "a word as a shape": framed(ONE, [described(shape="1")], b"\x00" * 8),
    "nine dimensions": framed(ONE, [described(shape=(1,) * 9)], b"\x00" * 8),
    "too few bytes": framed(ONE, [described(shape=(2,))], b"\x00" * 8),
    "bytes left over": framed(ONE, [described()], b"\x00" * 9),
    "no shape": framed(ONE, [{"dtype": "<f8"}], b"\x00" * 8),
    "no description": framed(ONE, [7], b"\x00" * 8),
    **{f"dtype {d}": framed(ONE, [described(d)], b"\x00" * 8)
       for d in ("|O", "O", ">f8", "f8", "<f2", "<f16", "<c16", "<M8[s]", "|V8", "|S8", "<U0", "<U201", "<U100000000", "<U",
                 "<f8,<f8", "float64", None, 8, ["<f8"], {"a": 1})},
    "a truth value of 2": framed(ONE, [described("|b1")], b"\x02"),
    "a character beyond Unicode": framed(ONE, [described("<U1")], b"\xff\xff\xff\x7f"),
    "a surrogate": framed(ONE, [described("<U1")], b"\x00\xd8\x00\x00"),
    "a surrogate in a word": framed(b'{"head": "\\ud800", "arrays": []}'),
    "a surrogate in a key": framed(b'{"head": {"dict": {"\\ud800": 1}}, "arrays": []}'),
    "a thousand deep": framed(b'{"head": ' + b"[" * 1000 + b"]" * 1000 + b', "arrays": []}'),
    "a million deep": framed(b"[" * 10**6),
    "objects 500 deep": framed(b'{"head": ' + b'{"tuple": [' * 250 + b"1" + b"]}" * 250 + b', "arrays": []}'),
    "two million parts": framed(b'{"head": [' + b"0," * (2 * 10**6) + b'0], "arrays": []}'),
    "half a million objects": framed(b'{"head": [' + b"{}," * (5 * 10**5) + b'{}], "arrays": []}'),
    "a head of 20 MB": framed(b'{"head": "' + b"a" * (20 * 10**6) + b'", "arrays": []}'),
    "2**63": framed(2**63),
    "a whole number of 5,000 digits": framed(b'{"head": ' + b"9" * 5000 + b', "arrays": []}'),
    "NaN": framed(b'{"head": NaN, "arrays": []}'),
    "Infinity": framed(b'{"head": -Infinity, "arrays": []}'),
    "a decimal": framed(b'{"head": 1.5, "arrays": []}'),
    "a key twice": framed(b'{"head": 1, "head": 2, "arrays": []}'),
    "another part": framed(b'{"head": 1, "arrays": [], "more": 1}'),
    "no arrays": framed(b'{"head": 1}'),
    "arrays that are none": framed(b'{"head": 1, "arrays": {}}'),
    "a list": framed(b"[]"),
    "no JSON": framed(b"{"),
    "no UTF-8": framed(b'{"head": "\xff", "arrays": []}'),
    "many arrays": framed(1, [described(shape=(0,))] * (MAX_ARRAYS + 1)),
    "a head beyond the end": (2**63).to_bytes(8, "little") + b"{}",
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BYTES)
def test_malformed_bytes_are_refused(name):
    with pytest.raises(cf.InputError, match="are not a message of compfed") as refused:
        from_bytes(BAD_BYTES[name])
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "dtype", ["|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f4", "<f8", "<U1", "<U200"]
)
def test_every_dtype_that_travels_comes_back(dtype):
    array = np.array(["a" * 200, "\u4f60"] if dtype[1] == "U" else [0, 1]).astype(dtype)
    packed = from_bytes(to_bytes(pack(("odd", array, np.int8(3), array[:1]))))
    _, again, _, first = unpack(packed)
    assert again.dtype.str == dtype
    assert again.tobytes() == array.tobytes()
    assert again.flags.aligned
    assert again.flags.writeable
    again[0] = again[1]  # an array of its own
    assert first.tobytes() == array[:1].tobytes()


def test_big_endian_arrays_and_short_words_in_wide_arrays_are_rewritten():
    np.testing.assert_array_equal(there_and_back(np.arange(3, dtype=">f8")), np.arange(3.0))
    assert there_and_back(np.array(["ill"], dtype="<U500")).tolist() == ["ill"]
    for array in (np.zeros(1, np.float16), np.zeros(1, np.longdouble), np.array(["a" * 201]), np.zeros((1,) * 9)):
        with pytest.raises(cf.InputError, match="cannot travel"):
            pack(array)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, "\ud800", {"a" * 201: 1}, {"\ud800": 1}])
def test_what_the_reader_would_refuse_is_not_sent(value):
    with pytest.raises(cf.InputError, match="cannot travel"):
        pack((value,))


def nested(depth: int) -> Any:
    return 1 if depth == 0 else {"tuple": [nested(depth - 1)]}


SQUARED = "compfed.losses.linear:Squared"
BAD_HEADS: dict[str, Any] = {
    "a bare list": [1],
    "a bare float": 1.5,
    "an empty object": {},
    "two kinds": {"float": "0x0.0p+0", "array": 0},
    "a word for an array": {"array": "0"},
    "true for an array": {"array": True},
    "a negative array": {"array": -1},
    "an array that is not there": {"array": 1},
    "an array twice": {"tuple": [ONE, ONE]},
    "an array left over": {"tuple": []},
    **{f"float {text!r}": {"tuple": [ONE, {"float": text}]}
       for text in ("0x1p5000", "nonsense", "1.5", "0x", "", "NAN", 1, None, ["0x1p0"], "0x" + "1" * 10**6, "0x1p0")},
    "a tuple that is none": {"tuple": "abc"},
    "a dict that is none": {"dict": [1]},
    "a long key": {"dict": {"a" * 201: ONE}},
    "too deep": nested(40),
    "a whole number": 2**64,
    "a hash that is none": {"cached": 7},
    "a hash that is a list": {"cached": ["a"]},
    "a record that is a number": {"record": 7, "fields": {}},
    "fields that are none": {"record": SQUARED, "fields": None},
    "fields that are a list": {"record": SQUARED, "fields": ["ridge"]},
    "a field that is missing": {"record": SQUARED, "fields": {}},
    "a field that is a record": {"record": SQUARED, "fields": {"ridge": {"record": SQUARED, "fields": {"ridge": 0}}}},
    "a field that is a tuple": {"record": SQUARED, "fields": {"ridge": {"tuple": ["a"]}}},
    "a model without a function": {"model": 3, "params": None},
    "a regulariser of nothing": {
        "record": "compfed.regularisers.algebra:Shifted", "fields": {"g": None, "offset": 1}
    },
    "an object of another process": {"record": "compfed.regularisers.adapter:Adapted", "fields": {"source": 1}},
    "a tree of shapes": {"record": "compfed.algorithms.contract:Shapes", "fields": {"down": 1, "up": 1}},
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_HEADS)
def test_malformed_heads_are_refused(name):
    with pytest.raises(cf.InputError) as refused:
        unpack(Packed(BAD_HEADS[name], [np.zeros(1)]))
    assert len(str(refused.value)) < 700


def test_too_many_records_are_refused():
    record = {"record": SQUARED, "fields": {"ridge": 0}}
    with pytest.raises(cf.InputError, match=f"more than {MAX_RECORDS} records"):
        unpack(Packed({"tuple": [record] * (MAX_RECORDS + 1)}, []))


def test_a_message_that_fails_leaves_nothing_behind():
    """Records to keep are kept once the whole message is read."""
    cached: dict[str, Any] = {}
    packed = pack((a_run(),))
    with pytest.raises(cf.InputError):
        unpack(Packed({"tuple": [packed.head, {"float": "x"}]}, packed.arrays), cached=cached)
    assert cached == {}


# --- the closed list of classes ---


PLACES = (
    "compfed.federation.",
    "compfed.problem.",
    "compfed.algorithms.",
    "compfed.studies.ablation",
    "compfed._utils.",
)


def paths_through_modules() -> dict[str, Any]:
    """Every dotted path into a module of the library that leads to a class, as an import of a name would follow it."""
    found: dict[str, Any] = {}
    for info in pkgutil.walk_packages(cf.__path__, "compfed."):
        if not info.name.startswith(PLACES) or ".flower" in info.name:
            continue
        module = importlib.import_module(info.name)
        for name, thing in vars(module).items():
            if isinstance(thing, type):
                found[f"{info.name}:{name}"] = thing
            elif isinstance(thing, types.ModuleType):
                inner = {k: v for k, v in vars(thing).items() if isinstance(v, type)}
                found |= {f"{info.name}:{name}.{k}": v for k, v in inner.items()}
    return found


def test_no_path_leads_to_a_class_that_is_not_listed():
    """A name is that of the class where it was defined, or it is refused."""
    paths = paths_through_modules()
    data: dict[str, Any] = {p: c for p, c in paths.items() if dataclasses.is_dataclass(c) or hasattr(c, "_fields")}
    assert len(data) > 250
    foreign = {p: c for p, c in data.items() if p != f"{c.__module__}:{c.__qualname__}"}
    assert len(foreign) > 100
    for path in foreign:
        with pytest.raises(cf.InputError, match="is not of compfed"):
            unpack(Packed({"record": path, "fields": {}}, []))
    listed = {p: c for p, c in data.items() if p in known_records()}
    assert all(known_records()[p] is c for p, c in listed.items())


def test_the_closed_list_has_what_travels_and_nothing_else():
    records = known_records()
    every = [cls for cls in records.values()]
    assert all(cls.__module__.startswith("compfed.") for cls in every)
    for cls in (
        *QUERIES,
        *ALGORITHMS.values(),
        ObjectiveSpec,
        RunSpec,
        FeatureScaling,
        Fold,
        cf.losses.Softmax,
        GroupL2,
        SumOf,
        Enrolment,
        Weighted,
    ):
        assert f"{cls.__module__}:{cls.__qualname__}" in records
    assert {f"{Enrolment.__module__}:{Enrolment.__qualname__}"} == REPLY_RECORDS
    assert set(records) > REPLY_RECORDS


def test_a_server_reads_replies_only():
    enrolled = Site(Rows(np.ones((3, 2)), np.arange(3.0), name="a", index=0)).enrol()
    again = there_and_back(enrolled, records=REPLY_RECORDS)
    assert (again.rows, again.width, again.column_bits.tolist()) == (3, 2, enrolled.column_bits.tolist())
    for value in (Moments(), Weighted(Moments(), "rows"), cf.losses.Squared(), a_run(), cf.regularisers.L1(0.1)):
        with pytest.raises(cf.InputError, match="is not allowed here"):
            there_and_back((value,), records=REPLY_RECORDS)
    name = f"{my_model.__module__}:my_model"
    with pytest.raises(cf.InputError, match="is not of compfed"):
        unpack(Packed({"model": name, "params": 1}, []), accepts={name}, records=REPLY_RECORDS)


def test_exactly_the_accepted_names_are_imported():
    for name in ("os:system", "compfed.federation.codec:os.system", "json:JSONDecoder.decode"):
        with pytest.raises(cf.InputError, match="is not of compfed"):
            unpack(Packed({"record": name, "fields": {}}, []), accepts={"json:JSONDecoder"})
    with pytest.raises(cf.InputError, match="is not a record"):
        unpack(Packed({"record": "json:JSONDecoder", "fields": {}}, []), accepts={"json:JSONDecoder"})
    mine = f"{__name__}:Mine"
    made = unpack(Packed({"record": mine, "fields": {"a": 1}}, []), accepts={mine})
    assert made == Mine(1)
    with pytest.raises(cf.InputError, match=r"Mine that cannot be built: ZeroDivisionError\.$"):
        unpack(Packed({"record": mine, "fields": {"a": 0}}, []), accepts={mine})


@dataclasses.dataclass(frozen=True)
class Mine:
    a: int

    def __post_init__(self):
        _ = 1 / self.a
