"""A method of one's own with a mistake in it: the refusal names the method, the stage, the field and the way out.

The oracle is the method itself without the mistake, which runs (first test), and a list of mistakes written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from problems import quadratic_oracle, quadratics, soft

import compfed as cf
from compfed._utils.records import with_leaf
from compfed.algorithms import ALGORITHMS, Algorithm, Sparse, count, fixed, positive, record
from compfed.algorithms.base import Bounds
from compfed.algorithms.contract import check_contract

PROBLEM = quadratics(0)
HERE = Path(__file__).name


class Global(NamedTuple):
    w: Array
    r: Array


class ClientState(NamedTuple):
    last: Array


class Update(NamedTuple):
    delta: Array


@record
class Plain(Algorithm[Global, ClientState, Global, Update]):
    """A correct method, of which each test changes one stage."""

    eta: float = positive(default=0.05)
    tau: int = count(default=2)
    changed: Any = fixed(default=())  # ((stage, function), ...): what is done instead

    def instead(self, stage: str, *given):
        return dict(self.changed)[stage](self, *given) if stage in dict(self.changed) else None

    def init(self, x0):
        return self.instead("init", x0) or (Global(w=x0, r=jnp.zeros((), jnp.int32)), ClientState(last=x0))

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        z = g.prox(d.w - self.eta * f.grad(d.w, key), self.eta)
        return self.instead("client_update", f, g, d, c, z, key) or (Update(delta=z - d.w), ClientState(last=z), z)

    def server_update(self, g, s, mean, weight):
        return self.instead("server_update", g, s, mean) or Global(w=s.w + mean.delta, r=s.r + 1)

    def solution(self, g, s):
        found = self.instead("solution", g, s)
        return s.w if found is None else found


def changed(stage: str, what: Callable[..., Any]) -> Plain:
    return Plain(changed=((stage, what),))


ENGINES = pytest.mark.parametrize("engine", [cf.simulate, cf.simulation.run_plain], ids=["simulate", "reference"])


@ENGINES
def test_without_a_mistake_it_is_its_formula(engine):
    """w+ = the mean of soft(w - eta grad f_i(w), eta lam), written out in NumPy."""
    (H, b), w, z = quadratic_oracle(PROBLEM), np.zeros(8), np.zeros((5, 8))
    for _ in range(10):
        z = soft(w - 0.05 * (H @ w - b), 0.05)
        w = z.mean(axis=0)
    trace = engine(PROBLEM, Plain(), 10)
    np.testing.assert_allclose(trace.x, w, rtol=1e-12)
    np.testing.assert_allclose(trace["drift"][-1], np.linalg.norm(z - w, axis=1).mean(), rtol=1e-12)


def update(u: Callable[..., Any]) -> Plain:
    """The correct method with another update."""
    return changed("client_update", lambda self, f, g, d, c, z, key: (u(z, d), c, z))


# What is run, and what the refusal must name: the stage, the field or the values, and the way out.
MISTAKES: dict[str, tuple[Plain, list[str]]] = {
    "a scalar update that would broadcast": (
        update(lambda z, d: Update(delta=(z - d.w).sum())),
        [r"Plain\.client_update", r"u\.delta is a single number", r"expected shape \(8,\)", r"scalars = \('delta',\)"],
    ),
    "an update of shape (1,)": (
        update(lambda z, d: Update(delta=(z - d.w).sum(keepdims=True))),
        [r"Plain\.client_update", r"u\.delta .*shape \(1,\)", r"expected shape \(8,\)"],
    ),
    "a misspelt field of the mean": (
        changed("server_update", lambda self, g, s, mean: Global(w=s.w + mean.dleta, r=s.r + 1)),
        [
            r"Plain\.server_update",
            r"no attribute 'dleta'",
            r"its fields are delta",
            rf"{HERE}:\d+",
            r"server_update\(self, g, s, mean",
        ],
    ),
    "two values instead of three": (
        changed("client_update", lambda self, f, g, d, c, z, key: (Update(delta=z - d.w), c)),
        [
            r"Plain\.client_update",
            r"returned 2 values; expected 3",
            r"the update u, the client state c, and the local model",
        ],
    ),
    "only the update": (
        changed("client_update", lambda self, f, g, d, c, z, key: Update(delta=z - d.w)),
        [r"Plain\.client_update", r"returned Update\(delta\); expected 3 values"],
    ),
    "a state of another structure": (
        changed("client_update", lambda self, f, g, d, c, z, key: (Update(delta=z - d.w), {"last": z}, z)),
        [r"Plain\.client_update", r"c became a dict; expected ClientState\(last\)", r"as `init` made it"],
    ),
    "a state of another shape": (
        changed("client_update", lambda self, f, g, d, c, z, key: (Update(delta=z - d.w), ClientState(last=z[:3]), z)),
        [r"Plain\.client_update", r"c\.last became float64 of shape \(3,\); expected float64 of shape \(8,\)"],
    ),
    "an update in single precision": (
        update(lambda z, d: Update(delta=(z - d.w).astype(jnp.float32))),
        [r"Plain\.client_update", r"u\.delta is float32 in a float64 problem", r"dtype of x0", r"dense\(d\)"],
    ),
    "a state in single precision": (
        changed(
            "init", lambda self, x0: (Global(x0, jnp.zeros((), jnp.int32)), ClientState(jnp.zeros(8, jnp.float32)))
        ),
        [r"Plain\.init", r"c\.last is float32 in a float64 problem", r"jnp\.zeros_like\(x0\)"],
    ),
    "a number that is no array": (
        changed("init", lambda self, x0: (Global(x0, r=0), ClientState(x0))),  # pyright: ignore[reportArgumentType]
        [r"Plain\.init", r"s\.r is 0, which is not an array", r"jnp\.zeros\(\(\), jnp\.int32\)"],
    ),
    "a server that changes a shape": (
        changed("server_update", lambda self, g, s, mean: Global(w=s.w[None] + mean.delta, r=s.r + 1)),
        [r"Plain\.server_update", r"s\.w became float64 of shape \(1, 8\); expected float64 of shape \(8,\)"],
    ),
    "a counter that becomes a float": (
        changed("server_update", lambda self, g, s, mean: Global(w=s.w + mean.delta, r=s.r + 0.5)),
        [r"Plain\.server_update", r"s\.r became float\d+ of shape \(\); expected int32"],
    ),
    "a model that is a number": (
        changed("solution", lambda self, g, s: s.w.sum()),
        [r"Plain\.solution", r"the model is float64 of shape \(\); expected an array of shape \(8,\)"],
    ),
    "a local model that is the state": (
        changed("client_update", lambda self, f, g, d, c, z, key: (Update(delta=z - d.w), c, d)),
        [r"Plain\.client_update", r"the local model is Global\(w, r\); expected an array of shape \(8,\)"],
    ),
    "a gradient at the message instead of the model": (
        changed("client_update", lambda self, f, g, d, c, z, key: (Update(delta=f.grad(z[:2], key)), c, z)),
        [r"Plain\.client_update", r"f\.grad was asked at an array of shape \(2,\)", r"shape \(8,\)", rf"{HERE}:\d+"],
    ),
    "an `if` on a number that is not known yet": (
        changed("server_update", lambda self, g, s, mean: s if mean.delta.sum() > 0 else Global(-s.w, s.r)),
        [r"Plain\.server_update", r"TracerBoolConversionError", rf"{HERE}:\d+", r"use jnp\.where"],
    ),
    "nothing sent": (update(lambda z, d: None), [r"Plain\.client_update", r"the update u is None; nothing is sent"]),
    "init without the clients": (
        changed("init", lambda self, x0: Global(x0, jnp.zeros((), jnp.int32))),
        [r"Plain\.init", r"returned Global\(w, r\); expected 2 values", r"None for none"],
    ),
}


@ENGINES
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_before_the_first_round(mistake, engine):
    algorithm, named = MISTAKES[mistake]
    with pytest.raises(cf.InputError) as refusal:
        engine(PROBLEM, algorithm, 1)
    for part in named:
        assert re.search(part, str(refusal.value)), f"{part!r} is not in: {refusal.value}"


def test_the_error_of_one_s_own_code_is_kept_with_its_line():
    def server_update(self, g, s, mean):
        return Global(w=s.w + mean.dleta, r=s.r + 1)

    with pytest.raises(cf.InputError) as refusal:
        cf.simulate(PROBLEM, changed("server_update", server_update), 1)
    assert isinstance(refusal.value.__cause__, AttributeError)
    assert f"{HERE}:{server_update.__code__.co_firstlineno + 1}" in str(refusal.value)


@ENGINES
def test_a_scalar_update_would_be_a_finite_wrong_model(engine, monkeypatch):
    """Why it is refused: once it is said to be meant, both engines run and move all coordinates alike."""
    monkeypatch.setattr(Plain, "scalars", ("delta",))
    x = engine(PROBLEM, update(lambda z, d: Update(delta=(z - d.w).sum())), 1).x
    assert np.isfinite(x).all()
    assert np.ptp(x) == 0.0 < abs(x[0])


class Counted(NamedTuple):
    delta: Array
    rows: Array


@record
class Counts(Algorithm[Array, None, Array, Counted]):
    """Sends one number on purpose."""

    scalars = ("rows",)
    eta: float = positive(default=0.05)

    def init(self, x0):
        return x0, None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        z = g.prox(d - self.eta * f.grad(d, key), self.eta)
        return Counted(delta=z - d, rows=jnp.ones((), d.dtype)), c, z

    def server_update(self, g, s, mean, weight):
        return s + mean.delta / mean.rows

    def solution(self, g, s):
        return s


def test_a_single_number_that_is_declared_is_accepted(monkeypatch):
    """mean.rows is 1, so the method is that of `Plain`."""
    np.testing.assert_allclose(cf.simulate(PROBLEM, Counts(), 5).x, cf.simulate(PROBLEM, Plain(), 5).x, rtol=1e-14)
    monkeypatch.setattr(Counts, "scalars", ())
    with pytest.raises(cf.InputError, match=r"Counts\.client_update: u\.rows is a single number"):
        check_contract(Counts(), 9, "float64")  # another d: the class has passed for 8


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_our_own_methods_keep_the_contract(name, dtype):
    check_contract(ALGORITHMS[name].from_bounds(Bounds(L=1.0, L_max=2.0, mu=0.1, tau=3, d=8), 1.0), 8, dtype)


def test_a_sparse_update_is_checked_in_its_dense_form():
    one = update(lambda z, d: Update(delta=Sparse(values=z[:1], indices=jnp.arange(1))))  # pyright: ignore[reportArgumentType]
    check_contract(one, 8, "float64")
    s = Sparse(values=jnp.array([3.0, 4.0]), indices=jnp.array([5, 0]))
    np.testing.assert_array_equal(s.dense(6), [4, 0, 0, 0, 0, 3])


def test_the_check_is_made_once():
    calls = []
    counting = changed("solution", lambda self, g, s: calls.append(1) or s.w)
    for eta in (0.1, 0.2, 0.3):  # numbers do not matter to shapes
        check_contract(with_leaf(counting, "eta", eta), 8, "float64")
    assert calls == [1]
    check_contract(counting, 9, "float64")
    assert calls == [1, 1]


def test_what_finish_round_and_correction_return_is_checked_too():
    @record
    class Closes(Plain):
        def finish_round(self, g, d, c):  # pyright: ignore[reportIncompatibleMethodOverride]  # the mistake
            return None

    @record
    class Corrects(Plain):
        def correction(self, s, c):
            return c.last.sum()

    with pytest.raises(cf.InputError, match=r"Closes\.finish_round: c became None; expected ClientState\(last\)"):
        cf.simulate(PROBLEM, Closes(), 1)
    with pytest.raises(cf.InputError, match=r"Corrects\.correction: the correction is float64 of shape \(\)"):
        cf.simulate(PROBLEM, Corrects(), 1)


def test_a_gradient_without_its_key():
    forgot = changed("client_update", lambda self, f, g, d, c, z, key: (Update(delta=f.grad(d.w)), c, z))
    with pytest.raises(
        cf.InputError, match=r"Plain\.client_update .*TypeError: .*missing 1 required positional argument: 'key'"
    ):
        cf.simulate(PROBLEM, forgot, 1)
