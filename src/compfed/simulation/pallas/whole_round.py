"""A client's whole round as one kernel: its rows are read once and stay on chip for all local steps.

The kernel is the algorithm's own `client` method with a gradient over the rows at hand, one program per client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.extend import core

from compfed.simulation.pallas.lowering import NoKernel, lowered, run, traced

ON_CHIP = 32_768  # numbers of a client's rows that a program can hold in registers

_gradient_p = core.Primitive("local_gradient")
_gradient_p.def_abstract_eval(lambda x: x)


class Rows:
    """f_i inside a kernel: only its gradient, over all rows, can be asked for."""

    def __init__(self, ridge: Any):
        self.ridge = ridge

    def full_grad(self, x: Array) -> Array:
        return _gradient_p.bind(x) + self.ridge * x

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def __getattr__(self, name: str) -> Any:
        raise NoKernel(f"a client that asks for {name} of its loss")


Client = Callable[[Rows, Any], tuple[Any, Any, Array]]  # (f_i, c_i) -> (u_i, c_i, z_i)


def rounds_of_clients(client: Client, loss: Any, A: Array, y: Array, q: Array, c: Any, interpret: bool = False) -> Any:
    """client(f_i, c_i) of every client: A is (clients, rows, width), sides powers of two; c stacked along clients."""
    n, m, d = A.shape
    memory, form = jax.tree.flatten(c)
    first = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in memory]
    closed, answer = traced(lambda c: client(Rows(loss.ridge), c), jax.tree.unflatten(form, first))
    leaves, loss_form = jax.tree.flatten(loss)
    shared = [jnp.asarray(const) for const in (*closed.consts, *leaves)]
    out = [jax.ShapeDtypeStruct((n, *v.aval.shape), v.aval.dtype) for v in closed.jaxpr.outvars]
    counts = len(memory), len(closed.consts), len(leaves)

    def kernel(A_ref, y_ref, q_ref, *refs):
        read = [ref[0] if ref.shape == (1,) else ref[:] for ref in refs[: sum(counts)]]
        remembered, consts, numbers = read[: counts[0]], read[counts[0] : counts[0] + counts[1]], read[-counts[2] :]
        rows, labels, share = A_ref[:, :].astype(q_ref.dtype), y_ref[:], q_ref[:]
        here = jax.tree.unflatten(loss_form, numbers if counts[2] else [])

        def gradient(eqn, values, rules):
            return [lowered(here.gradient, values[0], rows, labels, share)]

        answers = run(closed.jaxpr, consts, remembered, {"local_gradient": gradient})
        for ref, value in zip(refs[sum(counts) :], answers, strict=True):
            ref[...] = jnp.reshape(value, ref.shape)

    found = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(s.shape if len(s.shape) > 1 else (n, 1), s.dtype) for s in out],
        grid=(n,),
        in_specs=[mine((m, d)), mine((m,)), mine((m,)), *[mine(s.shape) for s in first], *map(whole, shared)],
        out_specs=[mine(s.shape[1:]) for s in out],
        compiler_params=triton.CompilerParams(num_warps=4 if m * d <= 8192 else 8, num_stages=1),
        interpret=interpret,
    )(A, y, q, *[leaf if leaf.ndim > 1 else leaf[:, None] for leaf in memory], *map(at_least_one, shared))
    return jax.tree.unflatten(answer, [v.reshape(s.shape) for v, s in zip(found, out, strict=True)])


def mine(shape: tuple[int, ...]) -> pl.BlockSpec:
    """A client's part of a stacked array."""
    shape = shape or (1,)
    return pl.BlockSpec((None, *shape), lambda i: (i, *[0] * len(shape)))


def at_least_one(a: Array) -> Array:
    return a if a.ndim else a[None]


def whole(a: Array) -> pl.BlockSpec:
    shape = a.shape or (1,)
    return pl.BlockSpec(shape, lambda i: (0,) * len(shape))
