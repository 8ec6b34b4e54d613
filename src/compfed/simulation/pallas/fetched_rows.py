"""A client's whole round as one kernel that fetches the rows it needs: mini-batches, and full gradients of sampled clients.

No chain of tiny steps, and no row is read that was not drawn. All draws of a round, of every client and local step, are made
at once before it: inside the kernel a key is a number, that of its mini-batch. Full gradients go over the client's rows in
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.extend import core

from compfed._utils.text import shapes_shown
from compfed.sampling import sample_rows
from compfed.simulation.pallas.lowering import NoKernel, Numbered, jaxprs_within, lowered, run, traced
from compfed.simulation.pallas.one_pass import power
from compfed.simulation.pallas.whole_round import at_least_one, mine, whole

BLOCK = 4096  # numbers of a block of rows

_batch_p = core.Primitive("local_mini_batch_gradient")
_batch_p.def_abstract_eval(lambda x, key: x)
_full_p = core.Primitive("local_full_gradient")
_full_p.def_abstract_eval(lambda x: x)


class Flat(NamedTuple):
    """The rows of all clients, one after another, columns filled up to a power of two."""

    A: Array
    y: Array
    q: Array
    __repr__ = shapes_shown


class Clients(NamedTuple):
    """Where the rows of some clients are. Stacked, but for `capacity`: no client has more rows."""

    keys: Array
    offset: Array  # the first row
    size: Array  # how many
    capacity: int
    __repr__ = shapes_shown


class FetchedRows:
    """f_i inside a kernel: only gradients can be asked for."""

    def __init__(self, ridge: Any, batch: int | None):
        self.ridge, self.batch = ridge, batch

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x) if self.batch is None else _batch_p.bind(x, key) + self.ridge * x

    def full_grad(self, x: Array) -> Array:
        return _full_p.bind(x) + self.ridge * x

    def __getattr__(self, name: str) -> Any:
        raise NoKernel(f"a client that asks for {name} of its loss")


class Keys(Numbered):
    """Keys that were split off a client's own: number `first`, `first` + 1, ..., in the shape they were asked for."""

    def __init__(self, shape: tuple[int, ...], first: Any):
        self.shape, self.first = shape, first

    def item(self, k: Any) -> Keys:
        return Keys(self.shape[1:], self.first + k * int(np.prod(self.shape[1:], dtype=int)))


class OwnKey(Keys):
    """A client's own key: it is split once, or used as it is."""


Client = Callable[[FetchedRows, Any, Array], tuple[Any, Any, Array]]  # (f_i, c_i, key) -> (u_i, c_i, z_i)


def in_one_piece(data: Any) -> Flat:
    width = power(data.A.shape[1]) - data.A.shape[1]
    return Flat(jnp.pad(data.A, ((0, 0), (0, width))), data.y, data.q)


def rounds_fetching_rows(
    client: Client, loss: Any, data: Flat, clients: Clients, batch: int | None, c: Any, interpret: bool = False
) -> Any:
    """client(f_i, c_i, key_i) of every client, c stacked along them; `batch` rows per gradient, or all."""
    n = len(clients.keys)
    memory, form = jax.tree.flatten(c)
    first = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in memory]
    own = jax.ShapeDtypeStruct((), clients.keys.dtype)
    f = FetchedRows(loss.ridge, batch)
    closed, answer = traced(lambda c, key: client(f, c, key), jax.tree.unflatten(form, first), own)
    shape = _split_into(closed.jaxpr)
    drawn = _draws(clients, shape, batch)
    leaves, loss_form = jax.tree.flatten(loss)
    shared = [jnp.asarray(const) for const in (*closed.consts, *leaves)]
    out = [jax.ShapeDtypeStruct((n, *v.aval.shape), v.aval.dtype) for v in closed.jaxpr.outvars]
    counts = len(memory), len(closed.consts), len(leaves)

    def kernel(A_ref, y_ref, q_ref, drawn_ref, offset_ref, size_ref, *refs):
        read = [ref[0] if ref.shape == (1,) else ref[:] for ref in refs[: sum(counts)]]
        remembered, consts, numbers = read[: counts[0]], read[counts[0] : counts[0] + counts[1]], read[-counts[2] :]
        here = jax.tree.unflatten(loss_form, numbers if counts[2] else [])
        m = size_ref[0]

        def over(x: Array, rows: Array, counted: Array) -> Array:
            A = A_ref[rows, :].astype(x.dtype)
            return lowered(here.gradient, x, A, y_ref[rows], q_ref[rows] * counted)

        def of_batch(eqn, values, rules):
            x, key = values
            assert batch is not None
            if shape and isinstance(key, OwnKey):
                raise NoKernel("a client that both splits its key and uses it")
            rows = drawn_ref[key.first, :]
            scale = m.astype(x.dtype) / batch
            return [over(x, rows, jnp.where(jnp.arange(rows.size) < batch, scale, 0.0))]

        def of_all(eqn, values, rules):
            x, width = values[0], max(16, min(power(clients.capacity), BLOCK // A_ref.shape[1]))

            def add(k, total):
                at = k * width + jnp.arange(width)
                inside = at < m
                return total + over(x, offset_ref[0] + jnp.where(inside, at, 0), jnp.where(inside, 1.0, 0.0))

            return [jax.lax.fori_loop(0, pl.cdiv(m, width), add, jnp.zeros_like(x))]

        rules = {
            "local_mini_batch_gradient": of_batch,
            "local_full_gradient": of_all,
            "random_split": lambda eqn, values, rules: [_split(values[0], shape)],
        }
        answers = run(closed.jaxpr, consts, [*remembered, OwnKey((), 0)], rules)
        for ref, value in zip(refs[sum(counts) :], answers, strict=True):
            ref[...] = jnp.reshape(value, ref.shape)

    ours = [drawn, clients.offset[:, None], clients.size.astype(jnp.int32)[:, None], *[_columns(a) for a in memory]]
    found = pl.pallas_call(
        kernel,
        out_shape=[jax.ShapeDtypeStruct(s.shape if len(s.shape) > 1 else (n, 1), s.dtype) for s in out],
        grid=(n,),
        in_specs=[*map(whole, data), *[mine(a.shape[1:]) for a in ours], *map(whole, shared)],
        out_specs=[mine(s.shape[1:]) for s in out],
        compiler_params=triton.CompilerParams(
            num_warps=1 if drawn.shape[2] * data.A.shape[1] <= 2048 else 4, num_stages=1
        ),
        interpret=interpret,
    )(*data, *ours, *map(at_least_one, shared))
    return jax.tree.unflatten(answer, [v.reshape(s.shape) for v, s in zip(found, out, strict=True)])


def _split(key: Any, shape: tuple[int, ...]) -> Keys:
    if not isinstance(key, OwnKey):
        raise NoKernel("a client that splits its key more than once")
    return Keys(shape, 0)


def _columns(a: Array) -> Array:
    return a if a.ndim > 1 else a[:, None]


def _draws(clients: Clients, shape: tuple[int, ...], batch: int | None) -> Array:
    """The rows of every client and mini-batch, filled up to a power of two with the first of them."""
    if batch is None:
        return jnp.zeros((len(clients.keys), 1, 1), jnp.int32)

    def of_client(key: Array, m: Array) -> Array:
        each = jax.random.split(key, shape).reshape(-1) if shape else key[None]
        return jax.vmap(lambda key: sample_rows(key, m, clients.capacity, batch))(each)

    rows = jax.vmap(of_client)(clients.keys, clients.size.astype(jnp.int32)) + clients.offset[:, None, None]
    more = jnp.broadcast_to(rows[..., :1], (*rows.shape[:2], power(batch) - batch))
    return jnp.concatenate([rows, more], axis=2).astype(jnp.int32)


def _split_into(jaxpr: Any) -> tuple[int, ...]:
    """The shape a client's key is split into; () if it is used as it is."""
    splits = [eqn for j in jaxprs_within(jaxpr) for eqn in j.eqns if eqn.primitive.name == "random_split"]
    shapes = {tuple(eqn.params["shape"]) for eqn in splits}
    if len(shapes) > 1:
        raise NoKernel("a client that splits its key in several ways")
    return shapes.pop() if shapes else ()
