"""The contract of an algorithm, checked before the first round.

`check_contract` runs one round on shapes (`round_of_one_client`) with an algorithm whose every stage is checked: the
number of values it returns, their fields, shapes and dtypes. Without this a mistake in a method of one's own would surface
as an error deep inside JAX, or as a finite wrong model.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from compfed._utils.compilation import precision
from compfed.algorithms.base import Algorithm, dense
from compfed.algorithms.round import ZeroLoss, round_of_one_client
from compfed.errors import InputError

# The signature of each stage, and its result; every refusal ends with it.
STAGES = {
    "init": "init(self, x0) returns a pair: the server state, and the state of a client (None for none)",
    "broadcast": "broadcast(self, g, s) returns the message that opens a round",
    "client_update": "client_update(self, f, g, d, c, key) returns three values: the update u, the client state c, and the local model",
    "server_update": "server_update(self, g, s, mean, weight) returns the new server state",
    "solution": "solution(self, g, s) returns the model, a vector of d numbers",
    "finish_round": "finish_round(self, g, d, c) returns the new state of a client",
    "correction": "correction(self, s, c) returns a vector of d numbers, or None",
    "dense": "dense(self, d) of a part of a message returns it as a vector of d numbers",
}

_passed: set[object] = set()


def check_contract(algorithm: Algorithm, d: int, dtype: np.dtype | type | str, g: object = None) -> None:
    """Refuse an algorithm whose stages do not fit together; the result is cached.

    `g` is the regulariser of the problem. Only attributes beyond its value and prox are read from it.
    """
    name = type(algorithm).__name__
    if jax.tree_util.all_leaves([algorithm]):
        raise InputError(
            f"{name} is not a record, so its numbers are invisible to JAX. Put @record above the class "
            "(from compfed.algorithms import record) and make its fields with positive(), count(), ..."
        )
    leaves, structure = jax.tree.flatten(algorithm)
    case = (structure, tuple((np.shape(leaf), np.result_type(leaf)) for leaf in leaves), d, np.dtype(dtype))
    if case in _passed:
        return
    with precision(np.dtype(dtype)):
        x0 = jax.ShapeDtypeStruct((d,), dtype)
        try:
            jax.eval_shape(lambda x0: _check_round(_Checked(algorithm, x0.shape, x0.dtype), g, x0), x0)
        except InputError as refusal:  # raised anew, without the frames of the tracing and JAX's note about them
            raise InputError(str(refusal)) from refusal.__cause__
    _passed.add(case)


def _check_round(checked: _Checked, real_g: object, x0: Array) -> None:
    g = _ShapeRegulariser(real_g, x0.shape)
    done = round_of_one_client(checked, _ShapeLoss(x0.shape), g, g, x0)
    checked.vector("solution", "the model", checked.call("solution", g, done.server))
    correction = checked.call("correction", done.server, done.client)
    if correction is not None:
        checked.vector("correction", "the correction", correction)


class _ShapeLoss(ZeroLoss):
    """A zero loss that refuses arguments of another shape than a model's."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    def full_grad(self, x: Array) -> Array:
        _check_model("f.grad", x, self.shape)
        return super().full_grad(x)


class _ShapeRegulariser:
    """A zero regulariser that refuses arguments of another shape; other attributes are the real one's."""

    def __init__(self, real: object, shape: tuple[int, ...]):
        self.real, self.shape = real, shape

    def __call__(self, x: Array) -> Array:
        return jnp.zeros((), x.dtype)

    def prox(self, x: Array, t: Array | float) -> Array:
        _check_model("g.prox", x, self.shape)
        return x

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)


def _check_model(asked: str, x: Any, shape: tuple[int, ...]) -> None:
    if jnp.shape(x) != shape:
        raise TypeError(f"{asked} was asked at an array of shape {jnp.shape(x)}, and a model has shape {shape}")


class _Checked:
    """An algorithm, or one exchange of it, whose stages are checked as they are called."""

    def __init__(self, algorithm: Algorithm, shape: tuple[int, ...], dtype: np.dtype | type | str, stages: Any = None):
        self.algorithm, self.shape, self.dtype = algorithm, shape, dtype
        self.stages = algorithm if stages is None else stages  # the exchange that has broadcast and the updates

    # --- the stages ---

    @property
    def exchanges(self) -> tuple[_Checked, ...]:
        given = self.algorithm.exchanges
        return tuple(_Checked(self.algorithm, self.shape, self.dtype, exchange) for exchange in given)

    def finishes_rounds(self) -> bool:
        return self.algorithm.finishes_rounds()

    def init(self, x0: Array) -> tuple[object, object]:
        s, c = self.parts("init", self.call("init", x0), 2)
        self.state("s", s)
        self.state("c", c)
        return s, c

    def broadcast(self, g: object, s: object) -> object:
        d = self.call("broadcast", g, s)
        if d is None:
            raise self.refusal("broadcast", "it returned None")
        return d

    def client_update(self, f: object, g: object, d: object, c: object, key: Array) -> tuple[object, object, object]:
        u, after, z = self.parts("client_update", self.call("client_update", f, g, d, c, key), 3)
        self.unchanged("client_update", "c", c, after)
        self.vector("client_update", "the local model", z)
        self.update(u)
        return u, after, z

    def server_update(self, g: object, s: object, mean: object, weight: object) -> object:
        mean = jax.tree.map(lambda leaf: jnp.tensordot(jnp.ones(1, self.dtype), jnp.asarray(leaf)[None], 1), mean)
        after = self.call("server_update", g, s, mean, weight)
        self.unchanged("server_update", "s", s, after)
        return after

    def finish_round(self, g: object, d: object, c: object) -> object:
        after = self.call("finish_round", g, d, c)
        self.unchanged("finish_round", "c", c, after)
        return after

    def call(self, stage: str, *given: object) -> Any:
        """Call a stage; an error inside it is reported with the line of the method where it happened."""
        owner = self.stages
        method = getattr(owner, stage, None)
        inherited = getattr(type(owner), stage, None) is getattr(Algorithm, stage)
        if method is None or (inherited and stage not in ("finish_round", "correction")):
            raise InputError(f"{type(owner).__name__} defines no `{stage}`: {STAGES[stage]}.")
        try:
            return method(*given)
        except Exception as error:
            raise self.refusal(stage, _in_one_line(error), _line(error, method)) from error

    def refusal(self, stage: str, what: str, line: str = "") -> InputError:
        return InputError(f"{type(self.algorithm).__name__}.{stage}{line}: {what}. {STAGES[stage]}.")

    # --- the checks ---

    def parts(self, stage: str, returned: Any, number: int) -> tuple[Any, ...]:
        plain = isinstance(returned, tuple) and not hasattr(returned, "_fields")
        if plain and len(returned) == number:
            return returned
        got = f"{len(returned)} values" if plain else _shown(returned)
        raise self.refusal(stage, f"it returned {got}; expected {number} values")

    def state(self, what: str, tree: object) -> None:
        """A state consists of arrays, with numbers in the precision of the problem."""
        for name, leaf in _named(what, tree):
            if not isinstance(leaf, (jax.Array, np.ndarray)):
                way_out = "make it an array: jnp.zeros((), x0.dtype), or jnp.zeros((), jnp.int32) for a counter"
                raise self.refusal("init", f"{name} is {leaf!r}, which is not an array; {way_out}")
            self.precise("init", name, leaf)

    def precise(self, stage: str, name: str, leaf: Any) -> None:
        dtype = jnp.result_type(leaf)
        if jnp.issubdtype(dtype, jnp.inexact) and dtype != self.dtype:
            raise self.refusal(
                stage,
                f"{name} is {dtype} in a {self.dtype} problem; use the dtype of x0 or of the message (jnp.zeros_like(x0), "
                "x0.dtype), or give its class a method dense(d) if it is meant to travel in another",
            )

    def unchanged(self, stage: str, what: str, before: object, now: object) -> None:
        """A state keeps its type, fields, shapes and dtypes from round to round."""
        if jax.tree.structure(before) != jax.tree.structure(now):
            raise self.refusal(stage, f"{what} became {_shown(now)}; expected {_shown(before)}, as `init` made it")
        for (name, old), (_, new) in zip(_named(what, before), _named(what, now), strict=True):
            was, came = (_array_shown(leaf) for leaf in (old, new))
            if was != came:
                raise self.refusal(stage, f"{name} became {came}; expected {was}, as `init` made it")

    def vector(self, stage: str, what: str, x: object) -> None:
        if _shape(x) != self.shape:
            raise self.refusal(stage, f"{what} is {_shown(x)}; expected an array of shape {self.shape}")
        self.precise(stage, what, x)

    def update(self, u: object) -> None:
        """An update has a dense form, and no part of it broadcasts by mistake."""
        try:
            full = dense(u, *self.shape)
        except Exception as error:
            raise self.refusal("dense", _in_one_line(error)) from error
        if not jax.tree.leaves(full):
            raise self.refusal("client_update", f"the update u is {_shown(u)}; nothing is sent")
        for name, leaf in _named("u", full):
            field = name.removeprefix("u.")
            single = np.prod(_shape(leaf) or (), dtype=int) == 1 and _shape(leaf) != self.shape
            if single and field not in self.algorithm.scalars:
                raise self.refusal(
                    "client_update",
                    f"{name} is a single number ({_array_shown(leaf)}), which would broadcast over the whole model; "
                    f"expected shape {self.shape}. If one number is meant, say so in the class: scalars = ({field!r},)",
                )
            self.precise("client_update", name, leaf)


# --- wording ---


def _named(root: str, tree: object) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths: ("u.news.values", ...)."""
    return [
        (".".join([root, *(jax.tree_util.keystr((entry,), simple=True) for entry in path)]), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _shape(value: Any) -> tuple[int, ...] | None:
    return value.shape if hasattr(value, "shape") else () if isinstance(value, (bool, int, float)) else None


def _array_shown(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)} of shape {_shape(leaf)}"


def _shown(tree: Any) -> str:
    """A tree in a few words: Client(c, S), (Update, None), None, float64 of shape (8,)."""
    if hasattr(tree, "_fields"):
        return f"{type(tree).__name__}({', '.join(tree._fields)})"
    if isinstance(tree, (tuple, list)):
        return "(" + ", ".join(map(_shown, tree)) + ")"
    return _array_shown(tree) if _shape(tree) is not None else "None" if tree is None else f"a {type(tree).__name__}"


def _in_one_line(error: Exception) -> str:
    """The error in one line, with a hint for the two most common mistakes."""
    first = str(error).strip().split("\n")[0].rstrip(".")
    fields = getattr(getattr(error, "obj", None), "_fields", None)
    hint = f"; its fields are {', '.join(fields)}" if fields else ""
    if isinstance(error, jax.errors.ConcretizationTypeError):  # `if`, float() or a loop over a number
        hint = "; numbers are not known yet when a stage is compiled, so use jnp.where or jax.lax.cond"
    return f"{type(error).__name__}: {first}{hint}"


def _line(error: Exception, method: Callable[..., object]) -> str:
    """The place in the method's file: the last frame there, or the head of the method."""
    code = getattr(method, "__code__", None)
    if code is None:
        return ""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == code.co_filename]
    return f" ({code.co_filename}:{lines[-1] if lines else code.co_firstlineno})"
