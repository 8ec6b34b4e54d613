"""Kernels for a GPU, and the choice of one for a run (`choose_kernel`).

- `gradients`: grad_i = A_i^T (q_i * slope(A_i x_i, y_i)) for many clients. XLA reads A_i twice, once for the predictions and
  once for the sum; this kernel reads each block of rows once. A client with many rows is split over several programs.
- `rounds_of_clients`: the algorithm's own `client_update`, one program per client, whose rows stay on chip for all local steps.
- `rounds_fetching_rows`: the same for mini-batches, and for full gradients of sampled clients. All draws of a round are made
  before it, so inside the kernel a key is the number of its mini-batch. Without mini-batches all rows of a client stay on
  chip; beside them full gradients go over the rows in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_batching import custom_vmap
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.extend import core

from compfed._utils.text import shapes_shown
from compfed.algorithms.base import Algorithm, PyTree, dense
from compfed.algorithms.round import Message, Reply, drive_round, run_round
from compfed.errors import InputError
from compfed.losses import Loss
from compfed.losses.base import OneOutput
from compfed.problem.local_loss import FullGradient, LocalLoss
from compfed.problem.problem import Problem
from compfed.regularisers import Regulariser
from compfed.sampling import sample_rows
from compfed.simulation import kernel_lowering
from compfed.simulation.kernel_lowering import NoKernel, PaddedRows, Rules, Value, lowered, power

Kind = Literal["whole round", "one pass", "rows fetched"]
Storage = Literal["float32", "bfloat16"]
Ref: TypeAlias = Any  # an array in the memory of the GPU, as Pallas passes it
ClientUpdate = Callable[..., tuple[PyTree, PyTree, Array]]  # (f_i, c_i, key) -> (u_i, c_i, z_i)
INTERPRET = False  # tests run kernels on a CPU
CACHED = 40 * 2**20  # bytes that the cache of a large GPU holds: reading them twice costs little
ON_CHIP = 32_768  # numbers of a client's rows that a program can hold in registers
BLOCK = 4096  # numbers of a block of fetched rows


# --- the choice of a kernel ---


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
    if not isinstance(problem.loss, OneOutput) or problem.dataset.y.ndim > 1:
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
    if batch_size is not None and batch_size > problem.sizes.min():
        return None, "some clients have fewer rows than a mini-batch"
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
    d, g = power(problem.d), kernel_lowering.for_kernels(problem.regulariser, problem.d)
    if d != problem.d:
        zero = np.asarray(g.prox(jnp.zeros(d, problem.dtype), 1.0)) if _takes(g, d) else None
        if zero is None or zero[problem.d :].any():
            raise NoKernel(f"{type(g).__name__} cannot be filled up from {problem.d} to {d} coefficients")

    def one_client(A: Array, y: Array, q: Array) -> PyTree:
        s, c = algorithm.init(jnp.zeros(d, problem.dtype))
        c = jax.tree.map(lambda leaf: leaf[None], c)
        key = jax.random.key(0)

        def reply_to(message: Message) -> Reply | None:
            nonlocal c
            exchange, down = message
            if exchange is None:
                return None

            def client(f: LocalLoss, c: PyTree, key: Array = key) -> tuple[PyTree, PyTree, Array]:
                return exchange.client_update(f, g, down, c, key)

            if fetched:
                zero = jnp.zeros(1, jnp.int32)
                where = ClientRows(jax.random.split(key, 1), zero, zero, 2 * (batch_size or 16))
                u, c, _ = rounds_fetching_rows(client, problem.loss, PaddedRows(A[0], y[0], q[0]), where, batch_size, c)
            else:
                u, c, _ = rounds_of_clients(client, problem.loss, A, y, q, c)
            return dense(jax.tree.map(lambda leaf: leaf[0], u), d), jnp.ones((), problem.dtype)

        return drive_round(run_round(algorithm, g, s), reply_to)

    jax.eval_shape(one_client, *(jax.ShapeDtypeStruct(s, problem.dtype) for s in ((1, 16, d), (1, 16), (1, 16))))


def _takes(g: Regulariser, d: int) -> bool:
    """Whether a regulariser accepts d coefficients."""
    try:
        jax.eval_shape(lambda x: g.prox(x, 1.0), jax.ShapeDtypeStruct((d,), np.float32))
    except Exception:  # a regulariser may refuse another length than its own in any way
        return False
    return True


# --- gradients in one pass ---


class Tuning(NamedTuple):
    """How rows are cut up. The best of 72 each for widths 64 and 512, on an H200 in float32."""

    block: int  # numbers of a block of rows
    warps: int
    stages: int
    late: bool  # add up rows at the end: threads wait less for each other, and hold one more block


NARROW = Tuning(block=1024, warps=1, stages=1, late=True)
WIDE = Tuning(block=8192, warps=2, stages=3, late=False)
PROGRAMS = 1024  # at least so many, to keep all processors busy


def gradients(
    loss: Loss, A: Array, y: Array, q: Array, x: Array, interpret: bool = False, who: Array | None = None
) -> Array:
    """sum_l q_l grad loss(x; a_l, y_l) of every client, or of the clients `who`: A is (clients, rows, width), x (those, width)."""
    n, (_, m, d) = len(x), A.shape
    assert d == power(d), "columns are padded before"
    tuned = NARROW if d <= 128 else WIDE
    rows = max(16, min(power(m), tuned.block // d))
    blocks = pl.cdiv(m, rows)
    splits = min(blocks, pl.cdiv(PROGRAMS, n))
    each = pl.cdiv(blocks, splits)  # blocks of rows per program
    leaves, form = jax.tree.flatten(loss)

    def kernel(A_ref: Ref, y_ref: Ref, q_ref: Ref, x_ref: Ref, *rest: Ref) -> None:
        numbers, out_ref = rest[: len(leaves)], rest[-1]
        here: OneOutput = jax.tree.unflatten(form, [ref[0] for ref in numbers])
        v = x_ref[:]
        client = () if who is None else (rest[len(leaves)][0],)
        start = pl.program_id(1) * each * rows

        def add(k: Array, total: Array) -> Array:
            first = start + k * rows
            inside = first + jnp.arange(rows) < m
            block = triton.load(A_ref.at[*client, pl.ds(first, rows), :], mask=inside[:, None], other=0.0)
            block = block.astype(x.dtype)  # rows may be stored in fewer bits than sums
            labels = triton.load(y_ref.at[*client, pl.ds(first, rows)], mask=inside, other=1.0)
            weights = triton.load(q_ref.at[*client, pl.ds(first, rows)], mask=inside, other=0.0)
            slope = lowered(here.derivative, jnp.sum(block * v[None, :], axis=1), labels)
            terms = block * (weights * slope)[:, None]
            return total + (terms if tuned.late else jnp.sum(terms, axis=0))

        total = jax.lax.fori_loop(0, each, add, jnp.zeros((rows, d) if tuned.late else (d,), x.dtype))
        out_ref[:] = jnp.sum(total, axis=0) if tuned.late else total

    of_client = [
        pl.BlockSpec((None, m, d), lambda i, j: (i, 0, 0)), *[pl.BlockSpec((None, m), lambda i, j: (i, 0))] * 2,
    ]  # fmt: skip
    of_all = [pl.BlockSpec(a.shape, lambda i, j, rank=a.ndim: (0,) * rank) for a in (A, y, q)]
    vector = pl.BlockSpec((None, d), lambda i, j: (i, 0))
    number = pl.BlockSpec((1,), lambda i, j: (0,))
    own = [] if who is None else [(who[:, None], pl.BlockSpec((None, 1), lambda i, j: (i, 0)))]
    parts = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((n, splits, d), x.dtype),
        grid=(n, splits),
        in_specs=[
            *(of_client if who is None else of_all), vector, *[number] * len(leaves), *(spec for _, spec in own),
        ],
        out_specs=pl.BlockSpec((None, None, d), lambda i, j: (i, j, 0)),
        compiler_params=triton.CompilerParams(num_warps=tuned.warps, num_stages=tuned.stages),
        interpret=interpret,
    )(A, y, q, x, *[jnp.reshape(jnp.asarray(leaf, x.dtype), (1,)) for leaf in leaves], *(a for a, _ in own))  # fmt: skip
    return parts.sum(axis=1)


class OnePass(NamedTuple):
    """f_i with a gradient that, for all clients at once, is one pass over their rows.

    With `place` the rows are those of all clients, and f_i is read where it is: nothing is copied.
    """

    loss: Loss
    A: Array  # (rows, padded width)
    y: Array
    q: Array
    interpret: bool
    place: Array | None = None
    __repr__ = shapes_shown

    def value(self, x: Array) -> Array:
        return self._unpadded(x).value(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        return self._unpadded(x).hessian(x, W)

    @property
    def steps_per_epoch(self) -> Array:
        return jnp.int32(1)

    def _unpadded(self, x: Array) -> FullGradient:
        A, y, q = (a if self.place is None else a[self.place] for a in (self.A, self.y, self.q))
        return FullGradient(self.loss, A[:, : x.size].astype(x.dtype), y, q)

    def full_grad(self, x: Array) -> Array:
        wide = jnp.pad(x, (0, self.A.shape[-1] - x.size))
        leaves, form = jax.tree.flatten(self.loss)
        rows = (leaves, self.A, self.y, self.q)
        if self.place is None:
            found = _gradient(form, self.interpret)(*rows, wide)
        else:
            found = _gradient_there(form, self.interpret)(*rows, self.place, wide)
        return found[: x.size] + self.loss.ridge * x

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)


def _gradient(form: PyTree, interpret: bool) -> Callable[..., Array]:
    """The gradient of one client, which becomes the kernel where it is mapped over clients."""

    @custom_vmap
    def gradient(leaves: PyTree, A: Array, y: Array, q: Array, x: Array) -> Array:
        return jax.tree.unflatten(form, leaves).gradient(x, A.astype(x.dtype), y, q)

    @gradient.def_vmap
    def of_all(
        size: int, batched: PyTree, leaves: PyTree, A: Array, y: Array, q: Array, x: Array
    ) -> tuple[Array, bool]:
        of_loss, *of_rows, of_x = batched
        if any(jax.tree.leaves(of_loss)) or not all(of_rows):
            axes = jax.tree.map(lambda b: 0 if b else None, batched)
            plain = jax.vmap(lambda p, *rest: jax.tree.unflatten(form, p).gradient(rest[3], *rest[:3]), in_axes=axes)
            return plain(leaves, A.astype(x.dtype), y, q, x), True
        each = x if of_x else jnp.broadcast_to(x, (size, *x.shape))
        return gradients(jax.tree.unflatten(form, leaves), A, y, q, each, interpret), True

    return gradient


def _gradient_there(form: PyTree, interpret: bool) -> Callable[..., Array]:
    """The same of the client at a place among all clients, whose rows are not mapped over."""

    @custom_vmap
    def gradient(leaves: PyTree, A: Array, y: Array, q: Array, place: Array, x: Array) -> Array:
        return jax.tree.unflatten(form, leaves).gradient(x, A[place].astype(x.dtype), y[place], q[place])

    @gradient.def_vmap
    def of_all(
        size: int, batched: PyTree, leaves: PyTree, A: Array, y: Array, q: Array, place: Array, x: Array
    ) -> tuple[Array, bool]:
        *shared, of_place, of_x = batched
        if any(jax.tree.leaves(shared)) or not of_place:
            axes = jax.tree.map(lambda b: 0 if b else None, batched)
            return jax.vmap(gradient.fun, in_axes=axes)(leaves, A, y, q, place, x), True
        each = x if of_x else jnp.broadcast_to(x, (size, *x.shape))
        return gradients(jax.tree.unflatten(form, leaves), A, y, q, each, interpret, place), True

    return gradient


# --- a client's whole round ---


class _ClientKernel:
    """A client's round as a jaxpr, run by one program per client.

    `client(f, c, *more)` is traced for one client of the stacked `states`, with `more` further arguments.
    """

    def __init__(self, client: Callable[..., PyTree], loss: Loss, states: PyTree, *more: Value):
        self.states, form = jax.tree.flatten(states)
        first = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in self.states]
        self.closed, self.form = kernel_lowering.traced(client, jax.tree.unflatten(form, first), *more)
        leaves, self.loss_form = jax.tree.flatten(loss)
        self.shared = [jnp.asarray(const) for const in (*self.closed.consts, *leaves)]
        self.counts = len(self.states), len(self.closed.consts), len(leaves)

    def __call__(
        self, n: int, data: Sequence[tuple[Array, pl.BlockSpec]], rules: Callable[..., Rules], more: Sequence[Value],
        warps: int, interpret: bool,
    ) -> PyTree:  # fmt: skip
        """Run n clients. `rules(loss, *refs of data)` says how the kernel computes gradients; `more` are the arguments."""
        closed, (a, b, _) = self.closed, self.counts
        total = sum(self.counts)

        def kernel(*refs: Ref) -> None:
            of_data, refs = refs[: len(data)], refs[len(data) :]
            read = [ref[0] if ref.shape == (1,) else ref[:] for ref in refs[:total]]
            loss = jax.tree.unflatten(self.loss_form, read[a + b :])
            results = kernel_lowering.run(closed, [*read[:a], *more], rules(loss, *of_data), consts=read[a : a + b])
            for ref, value in zip(refs[total:], results, strict=True):
                ref[...] = jnp.reshape(value, ref.shape)

        out = [jax.ShapeDtypeStruct((n, *v.aval.shape), v.aval.dtype) for v in closed.jaxpr.outvars]
        found = pl.pallas_call(
            kernel,
            out_shape=[jax.ShapeDtypeStruct(s.shape if len(s.shape) > 1 else (n, 1), s.dtype) for s in out],
            grid=(n,),
            in_specs=[
                *[spec for _, spec in data], *[_of_client(leaf.shape[1:]) for leaf in self.states], *map(_whole, self.shared),
            ],
            out_specs=[_of_client(s.shape[1:]) for s in out],
            compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
            interpret=interpret,
        )(
            *[array for array, _ in data],
            *[leaf if leaf.ndim > 1 else leaf[:, None] for leaf in self.states],
            *[array if array.ndim else array[None] for array in self.shared],
        )  # fmt: skip
        return jax.tree.unflatten(self.form, [v.reshape(s.shape) for v, s in zip(found, out, strict=True)])


def _of_client(shape: tuple[int, ...]) -> pl.BlockSpec:
    """A client's part of a stacked array."""
    shape = shape or (1,)
    return pl.BlockSpec((None, *shape), lambda i: (i, *[0] * len(shape)))


def _whole(a: Array) -> pl.BlockSpec:
    shape = a.shape or (1,)
    return pl.BlockSpec(shape, lambda i: (0,) * len(shape))


_batch_p = core.Primitive("local_mini_batch_gradient")
_batch_p.def_abstract_eval(lambda x, key: x)
_full_p = core.Primitive("local_full_gradient")
_full_p.def_abstract_eval(lambda x: x)


class KernelLoss:
    """f_i inside a kernel: it has gradients only."""

    def __init__(self, ridge: Value, batch: int | None = None):
        self.ridge, self.batch = ridge, batch

    @property
    def steps_per_epoch(self) -> Array:
        raise NoKernel("a number of steps that differs between clients has no translation")

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x) if self.batch is None else _batch_p.bind(x, key) + self.ridge * x

    def full_grad(self, x: Array) -> Array:
        return _full_p.bind(x) + self.ridge * x

    def __getattr__(self, name: str) -> Value:
        raise NoKernel(f"a client that asks for {name} of its loss")


def rounds_of_clients(
    client: ClientUpdate, loss: Loss, A: Array, y: Array, q: Array, c: PyTree,
    interpret: bool = False,
) -> PyTree:  # fmt: skip
    """client(f_i, c_i) of every client: A is (clients, rows, width), sides powers of two; c stacked along clients."""
    n, m, d = A.shape
    f = KernelLoss(loss.ridge)
    round_ = _ClientKernel(lambda c: client(f, c), loss, c)

    def rules(loss: Loss, A_ref: Ref, y_ref: Ref, q_ref: Ref) -> Rules:
        rows, labels, weights = A_ref[:, :].astype(q_ref.dtype), y_ref[:], q_ref[:]
        return {
            "local_full_gradient": lambda eqn, values, _: [lowered(loss.gradient, values[0], rows, labels, weights)],
        }

    data = [(A, _of_client((m, d))), (y, _of_client((m,))), (q, _of_client((m,)))]
    return round_(n, data, rules, [], warps=4 if m * d <= 8192 else 8, interpret=interpret)


class ClientRows(NamedTuple):
    """The rows of some clients in `Rows`. Stacked, except `capacity`: no client has more rows."""

    keys: Array
    offset: Array  # the first row
    size: Array
    capacity: int
    __repr__ = shapes_shown


class Keys(kernel_lowering.Numbered):
    """Keys split off a client's own: number `first`, `first` + 1, ..., in the shape they were asked for."""

    def __init__(self, shape: tuple[int, ...], first: Value):
        self.shape, self.first = shape, first

    def item(self, k: Value) -> Keys:
        return Keys(self.shape[1:], self.first + k * int(np.prod(self.shape[1:], dtype=int)))


class OwnKey(Keys):
    """A client's own key: it is split once, or used as it is."""


def rounds_fetching_rows(
    client: ClientUpdate, loss: Loss, data: PaddedRows, clients: ClientRows,
    batch: int | None, c: PyTree, interpret: bool = False,
) -> PyTree:  # fmt: skip
    """client(f_i, c_i, key_i) of every client, c stacked along them; `batch` rows per gradient, or all."""
    n = len(clients.keys)
    f = KernelLoss(loss.ridge, batch)
    own_key = jax.ShapeDtypeStruct((), clients.keys.dtype)
    round_ = _ClientKernel(lambda c, key: client(f, c, key), loss, c, own_key)
    split = _split_shape(round_.closed.jaxpr)
    drawn, largest = _draw(clients, split, batch), power(clients.capacity)

    def rules(loss: Loss, A_ref: Ref, y_ref: Ref, q_ref: Ref, drawn_ref: Ref, offset_ref: Ref, size_ref: Ref) -> Rules:
        m = size_ref[0]

        def fetched(rows: Array, factor: Array) -> tuple[Array, Array, Array]:
            return A_ref[rows, :].astype(q_ref.dtype), y_ref[rows], q_ref[rows] * factor

        def of_client(at: Array) -> tuple[Array, Array, Array]:
            inside = at < m
            return fetched(offset_ref[0] + jnp.where(inside, at, 0), jnp.where(inside, 1.0, 0.0))

        def of_batch(eqn: core.JaxprEqn, values: list[Value], _: Rules) -> list[Array]:
            x, key = values
            assert batch is not None
            if split and isinstance(key, OwnKey):
                raise NoKernel("a client that both splits its key and uses it")
            rows = drawn_ref[key.first, :]
            scale = m.astype(x.dtype) / batch
            return [lowered(loss.gradient, x, *fetched(rows, jnp.where(jnp.arange(rows.size) < batch, scale, 0.0)))]

        def of_all(eqn: core.JaxprEqn, values: list[Value], _: Rules) -> list[Array]:
            x, width = values[0], max(16, min(power(clients.capacity), BLOCK // A_ref.shape[1]))

            def add(k: Array, total: Array) -> Array:
                return total + lowered(loss.gradient, x, *of_client(k * width + jnp.arange(width)))

            return [jax.lax.fori_loop(0, pl.cdiv(m, width), add, jnp.zeros_like(x))]

        def split_key(eqn: core.JaxprEqn, values: list[Value], _: Rules) -> list[Keys]:
            if not isinstance(values[0], OwnKey):
                raise NoKernel("a client that splits its key more than once")
            return [Keys(split, 0)]

        if batch is None:  # `choose_kernel` asks whether they fit
            rows = of_client(jnp.arange(largest))
            on_chip: Rules = {"local_full_gradient": lambda eqn, values, _: [lowered(loss.gradient, values[0], *rows)]}
            return {**on_chip, "random_split": split_key}
        return {"local_mini_batch_gradient": of_batch, "local_full_gradient": of_all, "random_split": split_key}

    own = [drawn, clients.offset[:, None], clients.size.astype(jnp.int32)[:, None]]
    read = [*((a, _whole(a)) for a in data), *((a, _of_client(a.shape[1:])) for a in own)]
    few, many, limit = (4, 8, 8192) if batch is None else (1, 4, 2048)
    numbers = (largest if batch is None else drawn.shape[2]) * data.A.shape[1]
    warps = few if numbers <= limit else many
    return round_(n, read, rules, [OwnKey((), 0)], warps=warps, interpret=interpret)


def _draw(clients: ClientRows, split: tuple[int, ...], batch: int | None) -> Array:
    """The rows of every client and mini-batch, padded to a power of two with the first of them."""
    if batch is None:
        return jnp.zeros((len(clients.keys), 1, 1), jnp.int32)

    def of_client(key: Array, m: Array) -> Array:
        each = jax.random.split(key, split).reshape(-1) if split else key[None]
        return jax.vmap(lambda key: sample_rows(key, m, clients.capacity, batch))(each)

    rows = jax.vmap(of_client)(clients.keys, clients.size.astype(jnp.int32)) + clients.offset[:, None, None]
    more = jnp.broadcast_to(rows[..., :1], (*rows.shape[:2], power(batch) - batch))
    return jnp.concatenate([rows, more], axis=2).astype(jnp.int32)


def _split_shape(jaxpr: core.Jaxpr) -> tuple[int, ...]:
    """The shape that a client's key is split into; () if it is used as it is."""
    operations = [eqn for inner in kernel_lowering.jaxprs_within(jaxpr) for eqn in inner.eqns]
    shapes = {tuple(eqn.params["shape"]) for eqn in operations if eqn.primitive.name == "random_split"}
    if len(shapes) > 1:
        raise NoKernel("a client that splits its key in several ways")
    return shapes.pop() if shapes else ()
