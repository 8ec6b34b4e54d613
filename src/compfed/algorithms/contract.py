"""The messages of a round, by their shapes: what travels, without running anything.

The contract, checked: one round on shapes alone, before the first real one.

Nothing is computed: every stage is traced once with a loss and a regulariser that know shapes only. What a stage
returns must have the number of values, the fields, the shapes and the dtypes that the next one relies on. Without this
a mistake in a method of one's own would surface as an error deep inside JAX, or as a finite wrong model.
"""

from __future__ import annotations

import traceback
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.precision import precision
from compfed.algorithms.base import Algorithm, dense
from compfed.errors import InputError
from compfed.regularisers import Regulariser


class Shapes(NamedTuple):
    """Trees of shapes and dtypes of one exchange."""

    broadcast: Any
    update: Any


class FlatLoss:
    """A loss that is zero everywhere: enough to trace what an algorithm does with a gradient."""

    def value(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        return jnp.zeros_like(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        size = len(x) if W is None else len(W)
        return jnp.zeros((size, size), x.dtype)


_known: dict[Any, list[Shapes]] = {}
KEPT = 1024  # cases; a server that is not trusted chooses them at a site


def message_shapes(algorithm: Algorithm, g: Regulariser, d: int, dtype: Any) -> list[Shapes]:
    """The messages of every exchange of a round, for a model of d coefficients."""
    dtype = np.dtype(dtype)
    case = (jax.tree.structure(algorithm), jax.tree.structure(g), d, dtype)
    if case not in _known:
        if len(_known) >= KEPT:
            _known.clear()
        with precision(dtype):
            _known[case] = jax.eval_shape(lambda x0: _exchanged(algorithm, g, x0), jax.ShapeDtypeStruct((d,), dtype))
    return _known[case]


def _exchanged(algorithm: Algorithm, g: Regulariser, x0: Array) -> list[Shapes]:
    share, key = jnp.ones((), x0.dtype), jax.random.key(0)
    s, c = algorithm.init(x0)
    found = []
    for exchange in algorithm.exchanges:
        down = exchange.broadcast(g, s)
        up, c, _ = exchange.client_update(FlatLoss(), g, down, c, key)  # pyright: ignore[reportArgumentType]  # stands in
        found.append(Shapes(down, up))
        if exchange is not algorithm:
            s = exchange.server_update(g, s, up, share)
    return found


# What each stage is given and returns; every refusal ends with it.
STAGES = {
    "init": "init(self, x0) returns a pair: what the server remembers, and what a client remembers (None for nothing)",
    "broadcast": "broadcast(self, g, s) returns the message that opens a round",
    "client_update": "client_update(self, f, g, d, c, key) returns three values: the answer u, the memory c, and the local model",
    "server_update": "server_update(self, g, s, mean, weight) returns what the server remembers from now on",
    "solution": "solution(self, g, s) returns the model, a vector of d numbers",
    "finish_round": "finish_round(self, g, d, c) returns the memory of a client",
    "correction": "correction(self, s, c) returns a vector of d numbers, or None",
    "dense": "dense(self, d) of a part of a message returns it as a vector of d numbers",
}

_passed: set[Any] = set()


def check_contract(algorithm: Algorithm, d: int, dtype: Any, g: Any = None) -> None:
    """Refuse an algorithm whose stages do not fit together; costs nothing the second time.

    `g` is asked for nothing but attributes that only the regulariser itself has.
    """
    name = type(algorithm).__name__
    if jax.tree_util.all_leaves([algorithm]):
        raise InputError(
            f"{name} is not a record, so its numbers are invisible to the engines. Put @record above the class "
            "(from compfed._utils.records import record) and make its fields with positive(), count(), ..."
        )
    leaves, structure = jax.tree.flatten(algorithm)
    case = (structure, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves), d, np.dtype(dtype))
    if case in _passed:
        return
    with precision(np.dtype(dtype)):
        x0 = jax.ShapeDtypeStruct((d,), dtype)
        try:
            jax.eval_shape(lambda x0: _Walk(name, x0.shape, x0.dtype).round(algorithm, g, x0), x0)
        except InputError as refusal:  # anew, without the frames of the tracing and JAX's note about them
            raise InputError(str(refusal)) from refusal.__cause__
    _passed.add(case)


class _Loss(FlatLoss):
    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    def full_grad(self, x: Array) -> Array:
        _must_be_a_model("f.grad", x, self.shape)
        return super().full_grad(x)


class _Prox:
    """A regulariser of which only shapes are known; everything else is asked of the real one."""

    def __init__(self, real: Any, shape: tuple[int, ...]):
        self.real, self.shape = real, shape

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        _must_be_a_model("g.prox", x, self.shape)
        return x

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


def _must_be_a_model(asked: str, x: Any, shape: tuple[int, ...]) -> None:
    if jnp.shape(x) != shape:
        raise TypeError(f"{asked} was asked at an array of shape {jnp.shape(x)}, and a model has shape {shape}")


class _Walk:
    """One round of one algorithm, stage by stage."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: Any):
        self.name, self.shape, self.dtype = name, shape, dtype

    def round(self, a: Algorithm, real_g: Any, x0: Array) -> None:
        g, f, key = _Prox(real_g, self.shape), _Loss(self.shape), jax.random.key(0)
        s, c = self.parts("init", self.call(a, "init", x0), 2)
        self.state("init", "s", s)
        self.state("init", "c", c)
        for exchange in a.exchanges:
            d = self.call(exchange, "broadcast", g, s)
            if d is None:
                raise self.refusal("broadcast", "it returned None")
            u, memory, z = self.parts("client_update", self.call(exchange, "client_update", f, g, d, c, key), 3)
            self.kept("client_update", "c", c, memory)
            self.vector("client_update", "the local model", z)
            mean = self.mean(u, a.scalars)
            after = self.call(exchange, "server_update", g, s, mean, jnp.ones((), self.dtype))
            self.kept("server_update", "s", s, after)
            s, c = after, memory
        self.vector("solution", "the model", self.call(a, "solution", g, s))
        if a.finishes_rounds():
            self.kept(
                "finish_round", "c", c, self.call(a, "finish_round", g, self.call(a.exchanges[0], "broadcast", g, s), c)
            )
        correction = self.call(a, "correction", s, c)
        if correction is not None:
            self.vector("correction", "the correction", correction)

    # --- calling ---

    def call(self, owner: Any, stage: str, *given: Any) -> Any:
        """What a stage returns; an error inside it is reported with the line of the method where it happened."""
        method = getattr(owner, stage, None)
        if method is None or (stage not in ("finish_round", "correction") and _inherited(owner, stage)):
            raise InputError(f"{type(owner).__name__} defines no `{stage}`: {STAGES[stage]}.")
        try:
            return method(*given)
        except Exception as error:
            raise self.refusal(stage, _said(error), _line(error, method)) from error

    def refusal(self, stage: str, what: str, line: str = "") -> InputError:
        return InputError(f"{self.name}.{stage}{line}: {what}. {STAGES[stage]}.")

    # --- checking ---

    def parts(self, stage: str, returned: Any, number: int) -> tuple[Any, ...]:
        plain = isinstance(returned, tuple) and not hasattr(returned, "_fields")
        if plain and len(returned) == number:
            return returned
        got = f"{len(returned)} values" if plain else _shown(returned)
        raise self.refusal(stage, f"it returned {got}; expected {number} values")

    def state(self, stage: str, what: str, tree: Any) -> None:
        """Everything remembered is an array, and numbers are in the precision of the problem."""
        for name, leaf in _named(what, tree):
            if not isinstance(leaf, (jax.Array, np.ndarray)):
                way_out = "make it an array: jnp.zeros((), x0.dtype), or jnp.zeros((), jnp.int32) for a counter"
                raise self.refusal(stage, f"{name} is {leaf!r}, which is no array; {way_out}")
            self.precise(stage, name, leaf)

    def precise(self, stage: str, name: str, leaf: Any) -> None:
        dtype = _dtype(leaf)
        if jnp.issubdtype(dtype, jnp.inexact) and dtype != self.dtype:
            raise self.refusal(
                stage,
                f"{name} is {dtype} in a {self.dtype} problem; use the dtype of x0 or of the message (jnp.zeros_like(x0), "
                "x0.dtype), or give its class a method dense(d) if it is meant to travel in another",
            )

    def kept(self, stage: str, what: str, before: Any, now: Any) -> None:
        """What is remembered keeps its type, fields, shapes and dtypes from round to round."""
        if jax.tree.structure(before) != jax.tree.structure(now):
            raise self.refusal(stage, f"{what} became {_shown(now)}; expected {_shown(before)}, as `init` made it")
        for (name, old), (_, new) in zip(_named(what, before), _named(what, now), strict=True):
            was, came = (_array_shown(leaf) for leaf in (old, new))
            if was != came:
                raise self.refusal(stage, f"{name} became {came}; expected {was}, as `init` made it")

    def vector(self, stage: str, what: str, x: Any) -> None:
        if _shape(x) != self.shape:
            raise self.refusal(stage, f"{what} is {_shown(x)}; expected an array of shape {self.shape}")
        self.precise(stage, what, x)

    def mean(self, u: Any, scalars: tuple[str, ...]) -> Any:
        """The mean as an engine would form it, if nothing in the answer would broadcast by mistake."""
        try:
            full = dense(u, *self.shape)
        except Exception as error:
            raise self.refusal("dense", _said(error)) from error
        if not jax.tree.leaves(full):
            raise self.refusal("client_update", f"the answer u is {_shown(u)}; nothing is sent")
        for name, leaf in _named("u", full):
            single = np.prod(_shape(leaf) or (), dtype=int) == 1 and _shape(leaf) != self.shape
            if single and name.removeprefix("u.") not in scalars:
                field = name.removeprefix("u.")
                raise self.refusal(
                    "client_update",
                    f"{name} is a single number ({_array_shown(leaf)}), which would broadcast over the whole model; "
                    f"expected shape {self.shape}. If one number is meant, say so in the class: scalars = ({field!r},)",
                )
            self.precise("client_update", name, leaf)
        weight = jnp.ones(1, self.dtype)
        return jax.tree.map(lambda leaf: jnp.tensordot(weight, jnp.asarray(leaf)[None], 1), full)


# --- words ---


def _inherited(owner: Any, stage: str) -> bool:
    return getattr(type(owner), stage, None) is getattr(Algorithm, stage)


def _named(root: str, tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths: ("u.news.values", ...)."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(".".join([root, *map(_key, path)]), leaf) for path, leaf in leaves]


def _key(entry: Any) -> str:
    return jax.tree_util.keystr((entry,), simple=True)


def _shape(value: Any) -> tuple[int, ...] | None:
    return value.shape if hasattr(value, "shape") else () if isinstance(value, (bool, int, float)) else None


def _dtype(value: Any) -> Any:
    return jnp.result_type(value)


def _array_shown(leaf: Any) -> str:
    return f"{_dtype(leaf)} of shape {_shape(leaf)}"


def _shown(tree: Any) -> str:
    """A tree in a few words: Client(c, S), (Up, None), None, float64 of shape (8,)."""
    if hasattr(tree, "_fields"):
        return f"{type(tree).__name__}({', '.join(tree._fields)})"
    if isinstance(tree, (tuple, list)):
        return "(" + ", ".join(map(_shown, tree)) + ")"
    return _array_shown(tree) if _shape(tree) is not None else "None" if tree is None else f"a {type(tree).__name__}"


def _said(error: Exception) -> str:
    """The error in one line; a field that is not there comes with those that are."""
    first = str(error).strip().split("\n")[0].rstrip(".")
    fields = getattr(getattr(error, "obj", None), "_fields", None)
    hint = f"; its fields are {', '.join(fields)}" if fields else ""
    if isinstance(error, jax.errors.ConcretizationTypeError):  # `if`, float() or a loop over a number
        hint = "; numbers are not known yet when a stage is compiled, so use jnp.where or jax.lax.cond"
    return f"{type(error).__name__}: {first}{hint}"


def _line(error: Exception, method: Any) -> str:
    """Where in the file of the method it happened: the last frame there, or the head of the method."""
    code = getattr(method, "__code__", None)
    if code is None:
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == code.co_filename]
    return f" ({code.co_filename}:{lines[-1] if lines else code.co_firstlineno})"
