"""The choice of a kernel for a run, and the reason for none."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from compfed.algorithms.base import Algorithm, dense
from compfed.algorithms.round import Message, Reply, drive_round, run_round
from compfed.errors import InputError
from compfed.losses.base import OneOutput
from compfed.problem.problem import Problem
from compfed.simulation.pallas.kernels import ON_CHIP, ClientRows, gradients, rounds_fetching_rows, rounds_of_clients
from compfed.simulation.pallas.layout import Flat, for_kernels, power
from compfed.simulation.pallas.lowering import NoKernel

Kind = Literal["whole round", "one pass", "rows fetched"]
Storage = Literal["float32", "bfloat16"]
INTERPRET = False  # tests run kernels on a CPU
CACHED = 40 * 2**20  # bytes that the cache of a large GPU holds: reading them twice costs little


class Kernel(NamedTuple):
    """The static options of a kernel. `interpret` runs it on any device, slowly, for tests; rows are kept in `storage`."""

    kind: Kind
    interpret: bool = False
    storage: Storage = "float32"


Choice = tuple[Kernel | None, str]  # with the reason


def choose_kernel(problem: Problem, algorithm: Algorithm, batch_size: int | None, participants: int) -> Choice:
    """A client's whole round where its rows fit on chip, else gradients in one pass; None on a CPU, or where neither applies."""
    if jax.devices()[0].platform != "gpu" and not INTERPRET:
        return None, "kernels are for a GPU"
    if problem.dtype != np.float32:
        return None, f"kernels are for float32; the problem is {problem.dtype.name}"
    if not isinstance(problem.loss, OneOutput):
        return None, f"kernels are for linear models with one output; the loss is {type(problem.loss).__name__}"
    largest = max(rows for _, rows in problem.dataset.buckets)
    small = power(largest) * power(problem.sites.width) <= ON_CHIP
    if batch_size is not None or (participants != problem.n and small):
        return _fetching(problem, algorithm, batch_size)
    if not small:
        return _one_pass(problem, "the rows of a client do not fit on chip")
    try:
        _trace_round(problem, algorithm)
    except NoKernel as reason:
        return _one_pass(problem, f"not a whole round: {reason}")
    return Kernel("whole round", INTERPRET), "the rows of a client stay on chip for its whole round"


def with_storage(kernel: Kernel | None, why: str, storage: object) -> Kernel | None:
    """The kernel with rows kept in `storage`, which only kernels can do."""
    if storage not in ("float32", "bfloat16"):
        raise InputError(
            f"storage={storage!r} is not how rows can be kept. Use 'float32' or 'bfloat16', or leave it out."
        )
    if storage == "bfloat16" and kernel is None:
        raise InputError(f"storage='bfloat16' is for kernels on a GPU, and this run has none: {why}. Leave it out.")
    return None if kernel is None else kernel._replace(storage=storage)


def _fetching(problem: Problem, algorithm: Algorithm, batch_size: int | None) -> Choice:
    if power(batch_size or 16) * power(problem.sites.width) > ON_CHIP:
        return None, "the rows of a mini-batch do not fit on chip"
    try:
        _trace_round(problem, algorithm, True, batch_size)
    except NoKernel as reason:
        return None, str(reason)
    what = "rows it draws" if batch_size else "participants' rows"
    return Kernel("rows fetched", INTERPRET), f"a client's whole round at once, on the {what}"


def _one_pass(problem: Problem, because: str) -> Choice:
    if problem.dataset.A.nbytes < CACHED and not INTERPRET:
        return None, f"{because}, and all rows together stay in the cache"
    try:
        A, y, q, x = (jax.ShapeDtypeStruct(s, problem.dtype) for s in ((1, 16, 16), (1, 16), (1, 16), (1, 16)))
        jax.eval_shape(lambda *rows: gradients(problem.loss, *rows), A, y, q, x)
    except NoKernel as reason:
        return None, f"{type(problem.loss).__name__}: {reason}"
    return Kernel("one pass", INTERPRET), f"gradients in one pass over the rows; {because}"


def _trace_round(problem: Problem, algorithm: Algorithm, fetched: bool = False, batch_size: int | None = None) -> None:
    """Trace a round of one client in a kernel. Raises NoKernel where its update has no translation."""
    d, g = power(problem.d), for_kernels(problem.regulariser, problem.d)
    if d != problem.d:
        zero = np.asarray(g.prox(jnp.zeros(d, problem.dtype), 1.0)) if _takes(g, d) else None
        if zero is None or zero[problem.d :].any():
            raise NoKernel(f"{type(g).__name__} cannot be filled up from {problem.d} to {d} coefficients")

    def one_client(A: Any, y: Any, q: Any) -> Any:
        x = jnp.zeros(d, problem.dtype)
        s, c = algorithm.init(x)
        c = jax.tree.map(lambda leaf: leaf[None], c)

        def reply_to(message: Message) -> Reply | None:
            nonlocal c
            exchange, down = message
            if exchange is None:
                return None

            def client(f: Any, c: Any, key: Any = None) -> Any:
                return exchange.client_update(f, g, down, c, jax.random.key(0) if key is None else key)

            if fetched:
                keys, zero = jax.random.split(jax.random.key(0), 1), jnp.zeros(1, jnp.int32)
                where = ClientRows(keys, zero, zero, 2 * (batch_size or 16))
                u, c, _ = rounds_fetching_rows(client, problem.loss, Flat(A[0], y[0], q[0]), where, batch_size, c)
            else:
                u, c, _ = rounds_of_clients(client, problem.loss, A, y, q, c)
            return dense(jax.tree.map(lambda leaf: leaf[0], u), d), jnp.ones((), problem.dtype)

        return drive_round(run_round(algorithm, g, s), reply_to)

    shape = (1, 16, d)
    jax.eval_shape(one_client, *(jax.ShapeDtypeStruct(s, problem.dtype) for s in (shape, shape[:2], shape[:2])))


def _takes(g: Any, d: int) -> bool:
    """Whether a regulariser accepts d coefficients."""
    try:
        jax.eval_shape(lambda x: g.prox(x, 1.0), jax.ShapeDtypeStruct((d,), np.float32))
    except Exception:  # a regulariser may refuse another length than its own in any way
        return False
    return True
