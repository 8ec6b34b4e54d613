"""The gradients of many clients in one pass over their rows.

    grad_i = A_i^T (q_i * slope(A_i x_i, y_i))

XLA reads A_i twice, once for the predictions and once for the sum. Here a program takes a block of rows of one client, works
out their slopes and adds up their share of the gradient before it lets go of them. A client with many rows is split over
several programs; their sums are added at the end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from compfed.simulation.pallas.lowering import lowered


class Tuning(NamedTuple):
    """How rows are cut up. Tried on an H200 in float32: the best of 72 each for widths 64 and 512."""

    block: int  # numbers of a block of rows
    warps: int
    stages: int
    late: bool  # are rows added up at the end? Threads then wait less for each other, and hold a block more


NARROW = Tuning(block=1024, warps=1, stages=1, late=True)
WIDE = Tuning(block=8192, warps=2, stages=3, late=False)
PROGRAMS = 1024  # at least so many, to keep all processors busy


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def gradients(loss: Any, A: Array, y: Array, q: Array, x: Array, interpret: bool = False) -> Array:
    """sum_l q_l grad loss(x; a_l, y_l) of every client: A is (clients, rows, width), x (clients, width)."""
    n, m, d = A.shape
    assert d == power(d), "columns are padded before"
    tuned = NARROW if d <= 128 else WIDE
    rows = max(16, min(power(m), tuned.block // d))
    blocks = pl.cdiv(m, rows)
    splits = min(blocks, pl.cdiv(PROGRAMS, n))
    each = pl.cdiv(blocks, splits)  # blocks of rows per program
    leaves, form = jax.tree.flatten(loss)

    def kernel(A_ref, y_ref, q_ref, x_ref, *rest):
        numbers, out_ref = rest[:-1], rest[-1]
        here = jax.tree.unflatten(form, [ref[0] for ref in numbers])
        v = x_ref[:]
        start = pl.program_id(1) * each * rows

        def add(k, total):
            first = start + k * rows
            row = first + jnp.arange(rows)
            inside = row < m
            block = triton.load(A_ref.at[pl.ds(first, rows), :], mask=inside[:, None], other=0.0)
            block = block.astype(x.dtype)  # rows may be kept in fewer bits than they are added up in
            labels = triton.load(y_ref.at[pl.ds(first, rows)], mask=inside, other=1.0)
            share = triton.load(q_ref.at[pl.ds(first, rows)], mask=inside, other=0.0)
            slope = lowered(here.derivative, jnp.sum(block * v[None, :], axis=1), labels)
            terms = block * (share * slope)[:, None]
            return total + (terms if tuned.late else jnp.sum(terms, axis=0))

        nothing = jnp.zeros((rows, d) if tuned.late else (d,), x.dtype)
        total = jax.lax.fori_loop(0, each, add, nothing)
        out_ref[:] = jnp.sum(total, axis=0) if tuned.late else total

    whole = [pl.BlockSpec((None, m, d), lambda i, j: (i, 0, 0)), *[pl.BlockSpec((None, m), lambda i, j: (i, 0))] * 2]
    vector = pl.BlockSpec((None, d), lambda i, j: (i, 0))
    number = pl.BlockSpec((1,), lambda i, j: (0,))
    parts = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((n, splits, d), x.dtype),
        grid=(n, splits),
        in_specs=[*whole, vector, *[number] * len(leaves)],
        out_specs=pl.BlockSpec((None, None, d), lambda i, j: (i, j, 0)),
        compiler_params=triton.CompilerParams(num_warps=tuned.warps, num_stages=tuned.stages),
        interpret=interpret,
    )(A, y, q, x, *[jnp.reshape(jnp.asarray(leaf, x.dtype), (1,)) for leaf in leaves])
    return parts.sum(axis=1)
