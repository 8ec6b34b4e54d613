"""Which kernel a run gets, and why none."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from compfed.errors import InputError
from compfed.losses.base import OneOutput
from compfed.simulation.pallas.fetched_rows import Clients, Flat, rounds_fetching_rows
from compfed.simulation.pallas.groups import for_kernels
from compfed.simulation.pallas.lowering import NoKernel
from compfed.simulation.pallas.one_pass import gradients, power
from compfed.simulation.pallas.whole_round import ON_CHIP, rounds_of_clients

Kind = Literal["whole round", "one pass", "rows fetched"]
Storage = Literal["float32", "bfloat16"]
INTERPRET = False  # tests run kernels on a CPU
CACHED = 40 * 2**20  # bytes that the cache of a large GPU holds: reading them twice costs little


class Kernel(NamedTuple):
    """What shapes the program. `interpret` runs kernels on any device, slowly, for tests; rows are kept in `storage`."""

    kind: Kind
    interpret: bool = False
    storage: Storage = "float32"


class Choice(NamedTuple):
    kernel: Kernel | None
    why: str


def chosen(problem: Any, algorithm: Any, batch_size: int | None, participants: int) -> Choice:
    """A client's whole round where its rows fit on chip, else gradients in one pass; None on a CPU, and where neither applies."""
    interpret = INTERPRET
    why = _why_not(problem, interpret)
    if why:
        return Choice(None, why)
    largest = max(rows for _, rows in problem.dataset.buckets)
    small = power(largest) * power(problem.sites.width) <= ON_CHIP
    if batch_size is not None or (participants != problem.n and small):
        return _fetched(problem, algorithm, batch_size, interpret)
    if small:
        try:
            _traced(problem, algorithm)
            return Choice(Kernel("whole round", interpret), "the rows of a client stay on chip for its whole round")
        except NoKernel as reason:
            return _one_pass(problem, interpret, f"not a whole round: {reason}")
    return _one_pass(problem, interpret, "the rows of a client do not fit on chip")


def stored_as(found: Choice, storage: Any) -> Choice:
    """The choice with rows kept in `storage`, which only kernels know."""
    if storage not in ("float32", "bfloat16"):
        raise InputError(
            f"storage={storage!r} is not how rows can be kept. Use 'float32' or 'bfloat16', or leave it out."
        )
    if storage == "bfloat16" and found.kernel is None:
        raise InputError(
            f"storage='bfloat16' is for kernels on a GPU, and this run has none: {found.why}. Leave it out."
        )
    return found if found.kernel is None else found._replace(kernel=found.kernel._replace(storage=storage))


def _fetched(problem: Any, algorithm: Any, batch_size: int | None, interpret: bool) -> Choice:
    if power(batch_size or 16) * power(problem.sites.width) > ON_CHIP:
        return Choice(None, "the rows of a mini-batch do not fit on chip")
    try:
        _traced(problem, algorithm, True, batch_size)
    except NoKernel as reason:
        return Choice(None, str(reason))
    what = "rows it draws" if batch_size else "participants' rows"
    return Choice(Kernel("rows fetched", interpret), f"a client's whole round at once, on the {what}")


def _one_pass(problem: Any, interpret: bool, because: str) -> Choice:
    if problem.dataset.A.nbytes < CACHED and not interpret:
        return Choice(None, f"{because}, and all rows together stay in the cache")
    try:
        A, y, q, x = (jax.ShapeDtypeStruct(s, problem.dtype) for s in ((1, 16, 16), (1, 16), (1, 16), (1, 16)))
        jax.eval_shape(lambda *rows: gradients(problem.loss, *rows), A, y, q, x)
    except NoKernel as reason:
        return Choice(None, f"{type(problem.loss).__name__}: {reason}")
    return Choice(Kernel("one pass", interpret), f"gradients in one pass over the rows; {because}")


def _why_not(problem: Any, interpret: bool) -> str:
    if jax.devices()[0].platform != "gpu" and not interpret:
        return "kernels are for a GPU"
    if problem.dtype != np.float32:
        return f"kernels are for float32; the problem is {problem.dtype.name}"
    if not isinstance(problem.loss, OneOutput):
        return f"kernels are for linear models with one output; the loss is {type(problem.loss).__name__}"
    return ""


def _traced(problem: Any, algorithm: Any, fetched: bool = False, batch_size: int | None = None) -> None:
    """Raises NoKernel where the client's work has no translation."""
    d, g = power(problem.d), for_kernels(problem.regulariser, problem.d)
    if d != problem.d:
        zero = np.asarray(g.prox(jnp.zeros(d, problem.dtype), 1.0)) if _takes(g, d) else None
        if zero is None or zero[problem.d :].any():
            raise NoKernel(f"{type(g).__name__} cannot be filled up from {problem.d} to {d} coefficients")
    shape = (1, 16, d)
    A, y, q = (jax.ShapeDtypeStruct(s, problem.dtype) for s in (shape, shape[:2], shape[:2]))

    def work(A, y, q):
        x = jnp.zeros(d, problem.dtype)
        s, c = algorithm.init(x)
        c = jax.tree.map(lambda leaf: leaf[None], c)
        for exchange in algorithm.exchanges:
            down = exchange.broadcast(g, s)
            client = partial(_client, exchange, g, down)
            if not fetched:
                rounds_of_clients(client, problem.loss, A, y, q, c)
            else:
                keys, zero = jax.random.split(jax.random.key(0), 1), jnp.zeros(1, jnp.int32)
                where = Clients(keys, zero, zero, 2 * (batch_size or 16))
                rounds_fetching_rows(client, problem.loss, Flat(A[0], y[0], q[0]), where, batch_size, c)
        return x

    jax.eval_shape(work, A, y, q)


def _client(exchange: Any, g: Any, down: Any, f: Any, c: Any, key: Any = None) -> Any:
    return exchange.client_update(f, g, down, c, jax.random.key(0) if key is None else key)


def _takes(g: Any, d: int) -> bool:
    try:
        jax.eval_shape(lambda x: g.prox(x, 1.0), jax.ShapeDtypeStruct((d,), np.float32))
    except Exception:  # whatever it says of a length that is not its own
        return False
    return True
