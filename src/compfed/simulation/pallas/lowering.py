"""Translation of JAX functions into operations that a GPU kernel supports.

A kernel supports elementwise operations, broadcasts and reductions of blocks whose sides are powers of two. An algorithm or a
loss is translated operation by operation: a product with a vector becomes a product and a sum, a scan becomes a loop, and inner
functions are inlined. `NoKernel` names an operation without a translation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import partial_eval

Rules = dict[str, Callable[..., Any]]


class NoKernel(Exception):
    """The reason why something cannot run in a kernel."""


class Numbered:
    """A sequence that only a loop can read, item by item; it is never an array."""

    def item(self, k: Any) -> Any:
        raise NoKernel(f"a loop over {type(self).__name__} has no translation")


class Counter(Numbered):
    """0, 1, 2, ...: as an array, its length would have to be a power of two."""

    def __init__(self, dtype: Any):
        self.dtype = dtype

    def item(self, k: Any) -> Any:
        return jnp.asarray(k, self.dtype)


def traced(f: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """(f as a jaxpr without dead code and unused constants, the structure of its result)."""
    closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    needed = {v for eqn in jaxpr.eqns for v in eqn.invars if not isinstance(v, core.Literal)} | set(
        v for v in jaxpr.outvars if not isinstance(v, core.Literal)
    )
    kept = [(v, c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True) if v in needed]
    return core.ClosedJaxpr(jaxpr.replace(constvars=[v for v, _ in kept]), [c for _, c in kept]), jax.tree.structure(
        shape
    )


def lowered(f: Callable[..., Any], *args: Any, rules: Rules | None = None) -> Any:
    """f(*args), with operations that a kernel supports; `rules` replace operations by name."""
    closed, form = traced(f, *args)
    return jax.tree.unflatten(form, run(closed.jaxpr, closed.consts, jax.tree.leaves(args), rules or {}))


def run(jaxpr: Any, consts: Any, args: Any, rules: Rules) -> list[Any]:
    env: dict[Any, Any] = {}

    def read(v: Any) -> Any:
        return v.val if isinstance(v, core.Literal) else env[v]

    env.update(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    for eqn in jaxpr.eqns:
        values, name = [read(v) for v in eqn.invars], eqn.primitive.name
        rule = rules.get(name) or _RULES.get(name)
        if rule is not None:
            results = rule(eqn, values, rules)
        elif name in _INNER:
            closed = _closed(eqn.params[_INNER[name]])
            results = run(closed.jaxpr, closed.consts, values, rules)
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


def _dot(eqn: Any, values: list[Any], rules: Rules) -> list[Any]:
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


def _iota(eqn: Any, values: list[Any], rules: Rules) -> list[Any]:
    shape = eqn.params["shape"]
    if len(shape) == 1 and shape[0] & (shape[0] - 1):
        return [Counter(eqn.params["dtype"])]
    return [eqn.primitive.bind(*values, **eqn.params)]


def _convert(eqn: Any, values: list[Any], rules: Rules) -> list[Any]:
    if isinstance(values[0], Counter):
        return [Counter(eqn.params["new_dtype"])]
    return [jax.lax.convert_element_type(values[0], eqn.params["new_dtype"])]


def _scan(eqn: Any, values: list[Any], rules: Rules) -> list[Any]:
    """A loop that goes over a counter, over arrays of numbers, or over nothing; it may not collect anything."""
    body, length, reverse = _closed(eqn.params["jaxpr"]), eqn.params["length"], eqn.params["reverse"]
    # A scanned input has one axis more outside than inside; JAX does not guarantee how `eqn.params` counts them.
    if any(o.aval.ndim != i.aval.ndim for o, i in zip(eqn.outvars, body.jaxpr.outvars, strict=True)):
        raise NoKernel("a loop that collects its steps has no translation")
    over = sum(o.aval.ndim != i.aval.ndim for o, i in zip(eqn.invars, body.jaxpr.invars, strict=True))
    fixed = len(values) - over - len(eqn.outvars)
    consts, carry, xs = values[:fixed], values[fixed : len(values) - over], values[len(values) - over :]

    def item(x: Any, k: Any) -> Any:
        if isinstance(x, Numbered):
            return x.item(k)
        if x.ndim != 1:
            raise NoKernel("a loop over rows has no translation")
        return jnp.sum(jnp.where(jnp.arange(x.size) == k, x, jnp.zeros_like(x)))

    def step(k: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        at = length - 1 - k if reverse else k
        return tuple(run(body.jaxpr, body.consts, [*consts, *carry, *(item(x, at) for x in xs)], rules))

    return list(jax.lax.fori_loop(0, length, step, tuple(carry)))


def jaxprs_within(jaxpr: Any) -> Iterator[Any]:
    """A jaxpr and the jaxprs of its operations."""
    yield jaxpr
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns") or hasattr(v, "jaxpr")
        ):
            if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
                yield from jaxprs_within(getattr(value, "jaxpr", value))


def _closed(jaxpr: Any) -> Any:
    return jaxpr if hasattr(jaxpr, "jaxpr") else core.ClosedJaxpr(jaxpr, ())


_RULES: Rules = {
    "dot_general": _dot,
    "iota": _iota,
    "convert_element_type": _convert,
    "scan": _scan,
    "copy": lambda eqn, values, rules: values,
    "copy_p": lambda eqn, values, rules: values,
    "stop_gradient": lambda eqn, values, rules: values,
}
