"""What a GPU kernel supports: JAX functions, rows, vectors and group penalties translated into its form.

A kernel supports elementwise operations, broadcasts and reductions of blocks whose sides are powers of two. An algorithm or a
loss is translated operation by operation: a product with a vector becomes a product and a sum, a scan becomes a loop, and inner
functions are inlined. `NoKernel` names an operation without a translation.

PaddedRows, vectors and penalties are padded so that their sides are powers of two, and group norms are taken without gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core
from jax.interpreters import partial_eval

from compfed._utils.array_namespace import cast_like
from compfed._utils.text import shapes_shown
from compfed.algorithms.base import PyTree
from compfed.problem.padded_dataset import PaddedDataset
from compfed.prox import group_shrinkage, soft_threshold
from compfed.regularisers import GroupL2, Regulariser, SparseGroup

MAX_GROUPED = 128  # coefficients of a group penalty: its matrix is held on chip beside the rows
Value: TypeAlias = Any  # inside a kernel: an array, a number, or a `Numbered`
Rule = Callable[[core.JaxprEqn, list[Value], "Rules"], list[Value]]  # (operation, its arguments, all rules) -> results
Rules: TypeAlias = dict[str, Rule]


# --- functions ---


class NoKernel(Exception):
    """The reason why something cannot run in a kernel."""


class Numbered:
    """A sequence that only a loop can read, item by item; it is never an array."""

    def item(self, k: Value) -> Value:
        raise NoKernel(f"a loop over {type(self).__name__} has no translation")


class Counter(Numbered):
    """0, 1, 2, ...: as an array, its length would have to be a power of two."""

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype

    def item(self, k: Value) -> Array:
        return jnp.asarray(k, self.dtype)


def traced(f: Callable[..., Value], *args: Value) -> tuple[core.ClosedJaxpr, PyTree]:
    """(f as a jaxpr without dead code and unused constants, the structure of its result)."""
    closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    read = [*jaxpr.outvars, *(v for eqn in jaxpr.eqns for v in eqn.invars)]
    needed = {v for v in read if not isinstance(v, core.Literal)}
    kept = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in needed]
    jaxpr = jaxpr.replace(constvars=[v for v, _ in kept])
    return core.ClosedJaxpr(jaxpr, [c for _, c in kept]), jax.tree.structure(shape)


def lowered(f: Callable[..., Value], *args: Value) -> Value:
    """f(*args), with operations that a kernel supports."""
    closed, form = traced(f, *args)
    return jax.tree.unflatten(form, run(closed, jax.tree.leaves(args), {}))


def run(closed: core.ClosedJaxpr, args: list[Value], rules: Rules, consts: list[Value] | None = None) -> list[Value]:
    """The results of a jaxpr, operation by operation; `rules` replace operations by name, `consts` its own constants."""
    jaxpr = closed.jaxpr
    known = [*(closed.consts if consts is None else consts), *args]
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], known, strict=True))

    def read(v: core.Var | core.Literal) -> Value:
        return v.val if isinstance(v, core.Literal) else env[v]

    for eqn in jaxpr.eqns:
        values, name = [read(v) for v in eqn.invars], eqn.primitive.name
        rule = rules.get(name) or _RULES.get(name)
        if rule is not None:
            results = rule(eqn, values, rules)
        elif name in _INNER:
            results = run(_closed(eqn.params[_INNER[name]]), values, rules)
        elif name in _NOT_IN_KERNELS or any(isinstance(v, Numbered) for v in values):
            raise NoKernel(f"{name} has no translation")
        else:
            bound = eqn.primitive.bind(*values, **eqn.params)
            results = bound if eqn.primitive.multiple_results else [bound]
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


_INNER = {
    "pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
    "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip
_NOT_IN_KERNELS = {
    "gather", "scatter", "scatter-add", "sort", "top_k", "svd", "eigh", "qr", "cholesky", "while", "cond", "random_bits",
    "random_split", "random_fold_in", "random_wrap", "random_unwrap", "threefry2x32", "dynamic_slice", "cumsum", "concatenate",
    "pure_callback", "triangular_solve", "argsort", "slice",
}  # fmt: skip


def _dot(eqn: core.JaxprEqn, values: list[Value], rules: Rules) -> list[Value]:
    """A product with a vector: multiply and add up."""
    a, b = values
    (da, db), batch = eqn.params["dimension_numbers"]
    if batch != ((), ()) or len(da) != 1 or min(a.ndim, b.ndim) != 1:
        raise NoKernel("a product of matrices has no translation")
    if a.ndim == b.ndim == 1:
        return [jnp.sum(a * b)]
    matrix, vector, axis = (a, b, da[0]) if a.ndim > 1 else (b, a, db[0])
    side = vector[None, :] if axis == 1 else vector[:, None]
    return [jnp.sum(matrix * side, axis=axis)]


def _iota(eqn: core.JaxprEqn, values: list[Value], rules: Rules) -> list[Value]:
    shape = eqn.params["shape"]
    if len(shape) == 1 and shape[0] & (shape[0] - 1):
        return [Counter(eqn.params["dtype"])]
    return [eqn.primitive.bind(*values, **eqn.params)]


def _convert(eqn: core.JaxprEqn, values: list[Value], rules: Rules) -> list[Value]:
    if isinstance(values[0], Counter):
        return [Counter(eqn.params["new_dtype"])]
    return [jax.lax.convert_element_type(values[0], eqn.params["new_dtype"])]


def _scan(eqn: core.JaxprEqn, values: list[Value], rules: Rules) -> list[Value]:
    """A loop that goes over a counter, over arrays of numbers, or over nothing; it may not collect anything."""
    body, length, reverse = _closed(eqn.params["jaxpr"]), eqn.params["length"], eqn.params["reverse"]

    def with_one_axis_more(outside: list[Value], inside: list[Value]) -> int:
        # A scanned array has one axis more outside than inside; JAX does not guarantee how `eqn.params` counts them.
        return sum(o.aval.ndim != i.aval.ndim for o, i in zip(outside, inside, strict=True))

    if with_one_axis_more(eqn.outvars, body.jaxpr.outvars):
        raise NoKernel("a loop that collects its steps has no translation")
    over = with_one_axis_more(eqn.invars, body.jaxpr.invars)
    fixed = len(values) - over - len(eqn.outvars)
    consts, carry, xs = values[:fixed], values[fixed : len(values) - over], values[len(values) - over :]

    def item(x: Value, k: Value) -> Value:
        if isinstance(x, Numbered):
            return x.item(k)
        if x.ndim != 1:
            raise NoKernel("a loop over rows has no translation")
        return jnp.sum(jnp.where(jnp.arange(x.size) == k, x, jnp.zeros_like(x)))

    def step(k: Array, carry: tuple[Value, ...]) -> tuple[Value, ...]:
        at = length - 1 - k if reverse else k
        return tuple(run(body, [*consts, *carry, *(item(x, at) for x in xs)], rules))

    return list(jax.lax.fori_loop(0, length, step, tuple(carry)))


def jaxprs_within(jaxpr: core.Jaxpr) -> Iterator[core.Jaxpr]:
    """A jaxpr and the jaxprs of its operations."""
    yield jaxpr
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_jaxpr):
            if _is_jaxpr(value):
                yield from jaxprs_within(getattr(value, "jaxpr", value))


def _is_jaxpr(value: object) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _closed(jaxpr: core.Jaxpr | core.ClosedJaxpr) -> core.ClosedJaxpr:
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())


def _unchanged(eqn: core.JaxprEqn, values: list[Value], rules: Rules) -> list[Value]:
    return values


_RULES: Rules = {
    "dot_general": _dot, "iota": _iota, "convert_element_type": _convert, "scan": _scan,
    "copy": _unchanged, "copy_p": _unchanged, "stop_gradient": _unchanged,
}  # fmt: skip


# --- rows, vectors and penalties ---


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


class PaddedRows(NamedTuple):
    """Rows with columns padded to a power of two.

    Of clients of one size: A is (clients, rows, width), and padding rows have weight 0. Or of all clients, one after
    another: A is (rows, width).
    """

    A: Array
    y: Array
    q: Array
    __repr__ = shapes_shown


def in_buckets(data: PaddedDataset, pad_rows: bool) -> list[PaddedRows]:
    """The data set bucket by bucket, columns padded to a power of two, and rows too if `pad_rows`."""
    width = power(data.A.shape[1]) - data.A.shape[1]
    found = []
    for A, y, q in zip(*(data.blocks(a) for a in (data.A, data.y, data.q)), strict=True):
        more = power(A.shape[1]) - A.shape[1] if pad_rows else 0
        # padding repeats the last label: a loss may not be defined at a made-up label
        y = jnp.pad(y, ((0, 0), (0, more), *[(0, 0)] * (y.ndim - 2)), mode="edge") if more else y
        found.append(PaddedRows(jnp.pad(A, ((0, 0), (0, more), (0, width))), y, jnp.pad(q, ((0, 0), (0, more)))))
    return found


def in_one_piece(data: PaddedDataset) -> PaddedRows:
    """The data set with columns padded to a power of two."""
    width = power(data.A.shape[1]) - data.A.shape[1]
    return PaddedRows(jnp.pad(data.A, ((0, 0), (0, width))), data.y, data.q)


def widened(tree: PyTree, d: int) -> PyTree:
    """The tree with every vector of length d padded with zeros to a power of two."""

    def one(leaf: Value) -> Value:
        if jnp.ndim(leaf) == 0 or leaf.shape[-1] != d:
            return leaf
        return jnp.pad(leaf, [*[(0, 0)] * (leaf.ndim - 1), (0, power(d) - d)])

    return jax.tree.map(one, tree)


def narrowed(tree: PyTree, d: int) -> PyTree:
    """The tree without the padding of `widened`."""
    return jax.tree.map(lambda leaf: leaf[..., :d] if jnp.ndim(leaf) and leaf.shape[-1] == power(d) else leaf, tree)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Groups:
    """The prox of GroupL2 and SparseGroup, with group norms by a product with a matrix: kernels cannot gather."""

    same: Array  # 1 where row and column are in one group
    threshold: Array  # lam w_g of each coefficient's group
    l1: Array

    def prox(self, x: Array, t: Array | float) -> Array:
        x = soft_threshold(x, t * self.l1)
        norm = jnp.sqrt(self.same @ (x * x))
        return x * group_shrinkage(norm, cast_like(t, x) * self.threshold)


def for_kernels(g: Regulariser, d: int) -> Regulariser:
    """g with d coefficients padded to a power of two, in a form that kernels can run if there is one."""
    if not isinstance(g, GroupL2 | SparseGroup) or d > MAX_GROUPED:
        return widened(g, d)
    blank = jnp.zeros(d, jnp.float32)
    member, more = g.group_of(blank), (0, power(d) - d)
    same = np.pad((member[:, None] == member[None, :]).astype(np.float32), (more, more))
    l1 = jnp.broadcast_to(cast_like(g.l1 if isinstance(g, SparseGroup) else 0.0, blank), d)
    made = Groups(jnp.asarray(same), jnp.pad(g.thresholds(blank)[member], more), jnp.pad(l1, more))
    return made  # pyright: ignore[reportReturnType]  # a client takes its prox only
