"""Messages: what goes in comes out, by name, dtype and shape; what is not known is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.algorithms.bounds import Bounds
from compfed.federation import Curvature, Describe, Moments, Steepness, ValueAndGradient
from compfed.federation.messages import Packed, digest, from_bytes, named, pack, payload, to_bytes, unnamed, unpack
from compfed.federation.view import Fold, Frame, Job, View
from compfed.problem.regularisers import GroupL2, L2Ball, OnBlock, SumOf
from compfed.tools.records import describe

BOUNDS = Bounds(L=1.0, L_max=2.0, mu=0.1, tau=3, d=6)


def there_and_back(value, **options):
    return unpack(from_bytes(to_bytes(pack(value))), **options)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
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
    method = ALGORITHMS[name].suggested(BOUNDS, 1.0)
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
        {"record": "compfed.algorithms:find", "fields": {}},  # a function is no record
        {"record": "compfed.problem.losses:Squared", "fields": {"ridge": 0.0, "more": 1}},
        {
            "record": "compfed.problem.losses:Squared",
            "fields": {"ridge": {"float": "-0x1p0"}},
        },  # refused by its own check
        {"model": "os:system", "params": {"dict": {}}},
        {"lambda": "x"},
        {"told": "0" * 64},
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
    with pytest.raises(cf.InputError, match="dtype object; it cannot travel"):
        from_bytes(len(head).to_bytes(8, "little") + head + b"\x00" * 8)


@pytest.mark.parametrize("thing", [lambda x: x, object(), {1, 2}, np.array([object()]), 1j])
def test_what_cannot_travel_is_refused_before_it_leaves(thing):
    with pytest.raises(cf.InputError, match="cannot travel"):
        pack({"field": thing})


def test_words_in_an_object_array_travel_as_words():
    again = there_and_back(np.array(["ill", "well"], dtype=object))
    assert again.dtype.kind == "U"
    assert again.tolist() == ["ill", "well"]


def a_job(number: int = 0) -> Job:
    frame = Frame(np.arange(4.0), np.ones(4), intercept=True)
    view = View(cf.losses.Logistic(), frame, np.array(["a", "b"]), Fold(0, 3, 0, np.arange(2), True, held_out=False))
    return Job(
        number, ALGORITHMS["FISTA"].suggested(BOUNDS, 1.0), cf.regularisers.L1(0.1), view, np.zeros(5), 0, None, 9
    )


def test_what_was_told_once_is_referred_to():
    job = a_job()
    first = pack(job)
    told: dict = {}
    again = unpack(first, told=told)
    assert set(told) == {digest(job), digest(job.view)}
    assert digest(again) == digest(job)
    short = pack(job, told)
    assert short.arrays == []
    assert unpack(short, told=told) is again
    with pytest.raises(cf.InputError, match="was not told before; send it in full"):
        unpack(short)
    # another number is another job with the same view
    other = pack(a_job(1), told)
    assert other.head["fields"]["view"] == {"told": digest(job.view)}


def test_the_hash_is_of_the_content():
    assert digest(a_job()) == digest(a_job())
    assert digest(a_job(0)) != digest(a_job(1))
    view = View(cf.losses.Squared())
    assert digest(view) != digest(View(cf.losses.Squared(ridge=1e-300)))
    assert digest(view) != digest(View(cf.losses.Squared(), dtype="float32"))


def test_bytes_are_counted_by_hand():
    told: set[str] = set()
    assert payload(Describe(classes=True), told) == 0
    assert payload(Moments(), told) == 0
    job = a_job()
    # eta, lambda, frame (two vectors of 4), x0, first (two), two words of one letter, ridge
    words = np.array(["a", "b"]).nbytes
    assert payload(job, told) == 8 + 8 + 64 + 40 + 16 + words + 8
    assert payload(job, told) == 0
    assert payload(Steepness(job.view), told) == 0
    assert payload(ValueAndGradient(job.view, np.zeros((2, 5))), told) == 80
    assert payload(Curvature(job.view, np.zeros(5), np.arange(3, dtype=np.int32)), told) == 40 + 12
    assert payload(Curvature.Answer(np.zeros(6)), told) == 48  # the upper triangle of a 3 x 3 matrix
    assert payload(Moments.Answer(*np.zeros((3, 7))), told) == 3 * 56
    assert payload({"u": np.zeros(3, np.float32)}, told) == 12


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
