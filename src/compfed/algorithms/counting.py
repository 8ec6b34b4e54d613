"""The calls that a client makes to its loss and its regulariser, counted exactly.

A call is counted as the client makes it when it runs alone: every turn of a loop until its own condition ends it, and the branch of
`lax.cond` that it takes. A step that is computed and then discarded by `jnp.where` was computed, and counts. A result that
nothing depends on is not computed by XLA, and does not count.

Results of f and g are marked with an operation that does nothing. Where every loop around a mark has a fixed length, the count
is a constant that is read from the jaxpr, and the program stays as it was. Otherwise the program is bound anew with a counter in the state
of the loops that need one. Both look at one client: `jax.vmap` over clients then keeps a counter for each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend import core
from jax.interpreters import ad, batching, mlir, partial_eval

from compfed.errors import InputError

# The first two read a mini-batch where there is one, the next four all rows.
KINDS = ("grad", "hvp", "value", "full_grad", "full_hvp", "hessian", "prox")
GRADIENTS, HVPS = [0, 3], [1, 4]
VALUES, HESSIANS, PROXES = 2, 5, 6
OF_BATCH, OF_ALL = slice(0, 2), slice(2, 6)
_MARKED = ("grad", "value", "full_grad", "hessian", "prox")  # methods of f and g whose calls count
_DERIVATIVE = {"value": "full_grad", "grad": "hvp", "full_grad": "full_hvp"}
Calls: TypeAlias = Any  # one whole number for each of KINDS: an array of NumPy where it is a constant, else of JAX


class Uncountable(InputError):
    """A client calls its loss or regulariser where calls cannot be counted."""


def rows_read(calls: np.ndarray, batch_rows: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows that these calls read, at clients with so many rows in a mini-batch and in all."""
    calls = np.asarray(calls, np.int64)
    return calls[..., OF_BATCH].sum(-1) * batch_rows + calls[..., OF_ALL].sum(-1) * rows


# --- marks ---

call_p = core.Primitive("call_to_count")
call_p.def_abstract_eval(lambda x, **_: x)
call_p.def_impl(lambda x, **_: x)
mlir.register_lowering(call_p, mlir.lower_fun(lambda x, **_: x, multiple_results=False))


def _batch(args: Any, dims: Any, *, kind: str, times: int) -> Any:
    """A client that maps over several points calls once for each."""
    return call_p.bind(args[0], kind=kind, times=times * args[0].shape[dims[0]]), dims[0]


def _jvp(primals: Any, tangents: Any, *, kind: str, times: int) -> Any:
    """The derivative of a value is a gradient, that of a gradient a Hessian-vector product."""
    (x,), (t,) = primals, tangents
    dt = t if type(t) is ad.Zero else call_p.bind(t, kind=_DERIVATIVE.get(kind, kind), times=times)
    return call_p.bind(x, kind=kind, times=times), dt


def _transpose(ct: Any, x: Any, **params: Any) -> list[Any]:
    return [ct if type(ct) is ad.Zero else call_p.bind(ct, **params)]


batching.primitive_batchers[call_p] = _batch
ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose


class Marked:
    """A loss or a regulariser whose results are marked."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in _MARKED:
            return found
        return lambda *args, **named: call_p.bind(found(*args, **named), kind=name, times=1)

    def __call__(self, x: Array) -> Array:
        return self._inner(x)


class SmoothStandIn:
    """A smooth function in the place of f_i: counts follow from what depends on what, and need no rows.

    It is not zero: what is passed to it would be dead code.
    """

    def value(self, x: Array) -> Array:
        return jnp.cos(x).sum()

    def grad(self, x: Array, key: Array) -> Array:
        return self.full_grad(x)

    def full_grad(self, x: Array) -> Array:
        return -jnp.sin(x)

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        return -jnp.diag(jnp.cos(x if W is None else x[W]))

    @property
    def steps_per_epoch(self) -> Array:
        """A number that is not known while a program is traced, as that of a client."""
        return jax.lax.optimization_barrier(jnp.int32(1))


# --- counting ---


def counted(stage: Callable[..., Any]) -> Callable[..., tuple[Any, Calls]]:
    """stage(f, g, *args) as a function that returns (its result, its calls)."""

    def run(f: Any, g: Any, *args: Any) -> tuple[Any, Calls]:
        def marked(*args: Any) -> Any:
            return stage(Marked(f), Marked(g), *args)

        with jax.disable_jit(False):  # loops must be loops in the jaxpr
            closed, shape = jax.make_jaxpr(marked, return_shape=True)(*args)
        constant = fixed_calls(closed)
        if constant is not None:
            return stage(f, g, *args), constant
        results, calls = _run(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), results), calls

    return run


def fixed_calls(closed: core.ClosedJaxpr) -> np.ndarray | None:
    """The calls of a program that has marks; None where they depend on data."""
    return _fixed(closed.jaxpr)


def _fixed(jaxpr: core.Jaxpr) -> np.ndarray | None:
    total = np.zeros(len(KINDS), np.int64)
    depends = False
    for eqn in _live(jaxpr).eqns:  # all of them: one that cannot be counted is refused
        found = _fixed_of(eqn)
        depends = depends or found is None
        total += 0 if found is None else found
    return None if depends else total


def _fixed_of(eqn: core.JaxprEqn) -> np.ndarray | None:
    """The calls of one operation; None where they depend on data."""
    name = eqn.primitive.name
    if eqn.primitive is call_p:
        return eqn.params["times"] * (np.array(KINDS) == eqn.params["kind"]).astype(np.int64)
    inner = list(_inner(eqn))
    if not any(map(_has_marks, inner)):
        return np.zeros(len(KINDS), np.int64)
    if name not in _RULES:
        raise Uncountable(
            f"a method calls its loss or regulariser inside the JAX operation {name}{_place(eqn)}, where calls are not counted. "
            "Use lax.scan, lax.fori_loop, lax.while_loop or lax.cond there, or leave the costs out: columns=['objective']."
        )
    if name == "while":
        return None
    if name == "custom_linear_solve":
        inner = [eqn.params["jaxprs"].solve.jaxpr]
    each = [_fixed(jaxpr) for jaxpr in inner]
    first = each[0]
    if first is None or any(other is None or (other != first).any() for other in each):
        return None  # in a branch, or because branches differ
    return first * (eqn.params["length"] if name == "scan" else 1)


def _live(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Without dead code, such as the gradient in jvp(f.grad) where only the product is used."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def _inner(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    """The jaxprs among the parameters of an operation."""

    def is_jaxpr(value: object) -> bool:
        return hasattr(value, "eqns") or hasattr(value, "jaxpr")

    for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr):
        if is_jaxpr(value):
            yield getattr(value, "jaxpr", value)


def _has_marks(jaxpr: core.Jaxpr) -> bool:
    return any(eqn.primitive is call_p or any(map(_has_marks, _inner(eqn))) for eqn in jaxpr.eqns)


def _place(eqn: core.JaxprEqn) -> str:
    """Where the operation is in the user's file."""
    frames = getattr(eqn.source_info.traceback, "frames", [])
    own = [frame for frame in frames if "/jax/" not in frame.file_name and frame.file_name != __file__]
    return f" ({own[0].file_name}:{own[0].line_num})" if own else ""


# --- a program bound anew, with a counter ---


def _run(jaxpr: core.Jaxpr, consts: Sequence[Any], args: Sequence[Any]) -> tuple[list[Any], Calls]:
    """The results of a jaxpr and its calls; loops and branches whose calls depend on data carry a counter."""
    env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    calls: Calls = np.zeros(len(KINDS), np.int32)

    def read(v: Any) -> Any:
        return v.val if isinstance(v, core.Literal) else env[v]

    for eqn in _live(jaxpr).eqns:
        values, more = [read(v) for v in eqn.invars], _fixed_of(eqn)
        name = eqn.primitive.name
        if eqn.primitive is call_p:
            results = values
        elif more is None or name in _CALLS:  # the latter cannot be bound by their parameters alone
            results, more = _RULES[name](eqn, values)
        else:
            results = eqn.primitive.bind(*values, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        calls = calls + (more.astype(np.int32) if isinstance(more, np.ndarray) else more)
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars], calls


def _run_inner(inner: Any, args: Sequence[Any]) -> tuple[list[Any], Array]:
    results, calls = _run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), args)
    return results, jnp.asarray(calls, jnp.int32)


def _none() -> Array:
    return jnp.zeros(len(KINDS), jnp.int32)


def _scan(eqn: core.JaxprEqn, values: list[Any]) -> tuple[list[Any], Calls]:
    body = eqn.params["jaxpr"]

    def as_they_are(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        # A scanned array has one axis more outside than inside; JAX does not guarantee how `eqn.params` counts them.
        return sum(o.aval.ndim == i.aval.ndim for o, i in zip(outside, inside, strict=True))

    carried = as_they_are(eqn.outvars, body.jaxpr.outvars)
    passed = as_they_are(eqn.invars, body.jaxpr.invars)
    fixed = values[: passed - carried]

    def step(state: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        out, more = _run_inner(body, [*fixed, *state[1:], *xs])
        return (state[0] + more, *out[:carried]), tuple(out[carried:])

    start = (_none(), *values[len(fixed) : passed])
    options = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    (calls, *carry), ys = jax.lax.scan(step, start, tuple(values[passed:]), **options)
    return [*carry, *ys], calls


def _while(eqn: core.JaxprEqn, values: list[Any]) -> tuple[list[Any], Calls]:
    """A loop whose condition is worked out in its state, since calls in the condition count too."""
    p = eqn.params
    split = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    of_condition, of_body, start = values[: split[0]], values[split[0] : split[1]], values[split[1] :]

    def with_condition(calls: Array, x: Sequence[Any]) -> tuple[Any, ...]:
        (go_on,), more = _run_inner(p["cond_jaxpr"], [*of_condition, *x])
        return calls + more, go_on, *x

    def turn(state: tuple[Any, ...]) -> tuple[Any, ...]:
        x, more = _run_inner(p["body_jaxpr"], [*of_body, *state[2:]])
        return with_condition(state[0] + more, x)

    calls, _, *x = jax.lax.while_loop(lambda state: state[1], turn, with_condition(_none(), start))
    return x, calls


def _cond(eqn: core.JaxprEqn, values: list[Any]) -> tuple[list[Any], Calls]:
    branches = [lambda *args, branch=branch: _run_inner(branch, args) for branch in eqn.params["branches"]]
    return jax.lax.switch(values[0], branches, *values[1:])


def _call(eqn: core.JaxprEqn, values: list[Any]) -> tuple[list[Any], Calls]:
    p = eqn.params
    return _run_inner(p["call_jaxpr"] if "call_jaxpr" in p else p["jaxpr"], values)


def _linear_solve(eqn: core.JaxprEqn, values: list[Any]) -> tuple[list[Any], Calls]:
    """jax.scipy.sparse.linalg.cg and its like: of its functions, `solve` is run."""
    lengths, solve = eqn.params["const_lengths"], eqn.params["jaxprs"].solve
    first = lengths.matvec + lengths.vecmat
    return _run_inner(solve, [*values[first : first + lengths.solve], *values[sum(lengths) :]])


_CALLS = {"closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"}
_RULES: dict[str, Callable[[core.JaxprEqn, list[Any]], tuple[list[Any], Calls]]] = {
    "scan": _scan, "while": _while, "cond": _cond, "custom_linear_solve": _linear_solve,
} | dict.fromkeys(_CALLS | {"jit", "pjit", "remat", "remat2", "checkpoint"}, _call)  # fmt: skip
