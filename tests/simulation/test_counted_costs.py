"""Counted work against plain Python loops in NumPy that count their own calls, for methods whose loops depend on data.

The loops share no code with the library. Every decision of a loop is asserted to be at least 1 % away from its threshold, so that
rounding cannot change a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array, lax
from problems import soft

import compfed as cf
from compfed.algorithms import Algorithm, DecoupledProx, Mime, Scaffnew, record
from compfed.algorithms.counting import Uncountable
from compfed.algorithms.scaffnew import Random
from compfed.sampling import client_key, run_key
from compfed.simulation import run_plain, simulate_out_of_core

SIZES, D, RIDGE, LAM, ROUNDS, SEED = [7, 20, 40, 13], 5, 0.1, 0.02, 3, 4
positive = cf.algorithms.positive


def sites():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(m, D)) * scale for m, scale in zip(SIZES, (0.5, 1.0, 2.0, 4.0), strict=True)]
    return cf.data.from_arrays(X, [np.sign(rng.normal(size=m)) for m in SIZES])


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    return cf.Problem(cf.losses.Logistic(ridge=RIDGE), cf.regularisers.L1(LAM), sites())


# --- the instruments ---


class F:
    """f_i in NumPy: counts calls and the rows they read."""

    def __init__(self, A, y, count, batch):
        self.A, self.y, self.count, self.batch = A, y, count, batch

    def _read(self, kind, rows=None):
        self.count[kind] += 1
        self.count["rows"] += len(self.y) if rows is None else min(rows, len(self.y))

    def value(self, x):
        self._read("values")
        return np.logaddexp(0, -self.y * (self.A @ x)).mean() + RIDGE / 2 * x @ x

    def _gradient(self, x):
        return -(self.y / (1 + np.exp(self.y * (self.A @ x)))) @ self.A / len(self.y) + RIDGE * x

    def full_grad(self, x):
        self._read("gradients")
        return self._gradient(x)

    def grad(self, x):
        self._read("gradients", self.batch)
        return self._gradient(x)  # of all rows: where there is a batch, models are not compared

    def _hessian(self, x):
        s = 1 / (1 + np.exp(-(self.A @ x)))
        return (self.A.T * (s * (1 - s))) @ self.A / len(self.y) + RIDGE * np.eye(D)

    def hessian(self, x):
        self._read("hessians")
        return self._hessian(x)

    def hvp(self, x, v):
        self._read("hvps")
        return self._hessian(x) @ v


class G:
    def __init__(self, count, kind):
        self.count, self.kind = count, kind

    def prox(self, x, t):
        self.count[self.kind] += 1
        return soft(x, t * LAM)


def above(value, threshold):
    """value > threshold, by a clear margin."""
    assert abs(value - threshold) > 0.01 * max(abs(value), abs(threshold)), (value, threshold)
    return value > threshold


# --- methods of one exchange whose clients return a model, and the same in NumPy ---


class Global(NamedTuple):
    x: Array


class Update(NamedTuple):
    z: Array


class LocalSolve(Algorithm[Global, None, Global, Update]):
    """The mean of local models."""

    composite, sampling, schemes, state_depends_on = True, "observed", ("self-normalised",), ()

    def init(self, x0):
        return Global(x0), None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        z = self.local(f, g, d.x, key)
        return Update(z), c, z

    def local(self, f, g, x, key) -> Array:
        raise NotImplementedError

    def server_update(self, g, s, mean, weight):
        return Global(mean.z)

    def solution(self, g, s):
        return s.x


@record
class Tolerance(LocalSolve):
    """Gradient steps until the gradient is small; the bound is a number of the record."""

    eta: float = positive(default=0.2)
    bound: float = positive(default=0.0631)

    def local(self, f, g, x, key):
        def step(s):
            z = s[0] - self.eta * s[1]
            return z, f.full_grad(z)

        return lax.while_loop(lambda s: jnp.linalg.norm(s[1]) > self.bound, step, (x, f.full_grad(x)))[0]


def tolerance(a, f, g, x, who):
    q = f.full_grad(x)
    while above(np.linalg.norm(q), a.bound):
        x = x - a.eta * q
        q = f.full_grad(x)
    return x


@record
class ProximalTolerance(LocalSolve):
    """Mini-batch-free proximal gradient steps until a step is short, and one prox on top."""

    eta: float = positive(default=0.2)
    bound: float = positive(default=0.0227)

    def local(self, f, g, x, key):
        def step(s):
            z = g.prox(s[0] - self.eta * f.grad(s[0], key), self.eta)
            return z, jnp.linalg.norm(z - s[0])

        x = lax.while_loop(lambda s: s[1] > self.bound, step, (x, jnp.inf))[0]
        return g.prox(x, 0.01)


def proximal_tolerance(a, f, g, x, who):
    length = np.inf
    while length == np.inf or above(length, a.bound):
        z = g.prox(x - a.eta * f.grad(x), a.eta)
        x, length = z, np.linalg.norm(z - x)
    return g.prox(x, 0.01)


@record
class LineSearch(LocalSolve):
    """Three gradient steps, each with a backtracking line search that starts at 8."""

    start: float = positive(default=8.0)
    share: float = positive(default=0.46)

    def local(self, f, g, x, key):
        def step(x, _):
            v, q = f.value(x), f.full_grad(x)
            short = lambda t: v - f.value(x - t * q) < self.share * t * q @ q  # noqa: E731
            return x - lax.while_loop(short, lambda t: t / 2, jnp.asarray(self.start, x.dtype)) * q, None

        return lax.scan(step, x, length=3)[0]


def line_search(a, f, g, x, who):
    for _ in range(3):
        v, q, t = f.value(x), f.full_grad(x), a.start
        while above(a.share * t * q @ q, v - f.value(x - t * q)):
            t /= 2
        x = x - t * q
    return x


@record
class Masked(LocalSolve):
    """Four steps, of which a client with a small gradient takes one: the others are branches not taken."""

    eta: float = positive(default=0.05)
    bound: float = positive(default=0.501)

    def local(self, f, g, x, key):
        steps = jnp.where(jnp.linalg.norm(f.full_grad(x)) > self.bound, 4, 1)

        def step(x, t):
            return lax.cond(t < steps, lambda x: g.prox(x - self.eta * f.grad(x, key), self.eta), lambda x: x, x), None

        return lax.scan(step, x, jnp.arange(4))[0]


def masked(a, f, g, x, who):
    for _ in range(4 if above(np.linalg.norm(f.full_grad(x)), a.bound) else 1):
        x = g.prox(x - a.eta * f.grad(x), a.eta)
    return x


@record
class DrawnLength(LocalSolve):
    """As many steps as each client draws."""

    eta: float = positive(default=0.05)

    def local(self, f, g, x, key):
        steps = jax.random.randint(key, (), 0, 6, jnp.int32)
        return lax.fori_loop(0, steps, lambda t, x: x - self.eta * f.grad(x, jax.random.fold_in(key, t)), x)


def drawn_length(a, f, g, x, who):
    r, i = who
    for _ in range(int(jax.random.randint(client_key(run_key(SEED), r, i), (), 0, 6, jnp.int32))):
        x = x - a.eta * f.grad(x)
    return x


@record
class LocalNewton(LocalSolve):
    """Newton steps until the gradient is small."""

    bound: float = positive(default=6.7e-5)

    def local(self, f, g, x, key):
        def step(s):
            z = s[0] - jnp.linalg.solve(f.hessian(s[0]), s[1])
            return z, f.full_grad(z)

        return lax.while_loop(lambda s: jnp.linalg.norm(s[1]) > self.bound, step, (x, f.full_grad(x)))[0]


def local_newton(a, f, g, x, who):
    q = f.full_grad(x)
    while above(np.linalg.norm(q), a.bound):
        x = x - np.linalg.solve(f.hessian(x), q)
        q = f.full_grad(x)
    return x


@record
class NewtonCG(LocalSolve):
    """One Newton step by conjugate gradients, with Hessian-vector products as derivatives of the gradient."""

    forcing: float = positive(default=0.265)

    def local(self, f, g, x, key):
        b = f.full_grad(x)

        def turn(s):
            v, r, p, _ = s
            Hp = jax.jvp(f.full_grad, (x,), (p,))[1]
            a = (r @ r) / (p @ Hp)
            new = r - a * Hp
            return v + a * p, new, new + (new @ new) / (r @ r) * p, jnp.linalg.norm(new)

        size = jnp.linalg.norm(b)
        return x - lax.while_loop(lambda s: s[3] > self.forcing * size, turn, (jnp.zeros_like(b), b, b, size))[0]


def newton_cg(a, f, g, x, who):
    b = f.full_grad(x)
    v, r, p = np.zeros(D), b, b
    while above(np.linalg.norm(r), a.forcing * np.linalg.norm(b)):
        Hp = f.hvp(x, p)
        t = (r @ r) / (p @ Hp)
        v, new = v + t * p, r - t * Hp
        r, p = new, new + (new @ new) / (r @ r) * p
    return x - v


@record
class LocalBFGS(LocalSolve):
    """BFGS with a backtracking line search, until the gradient is small."""

    bound: float = positive(default=0.0203)

    def local(self, f, g, x, key):
        eye = jnp.eye(D, dtype=x.dtype)

        def step(s):
            x, q, B, v = s
            p = -B @ q
            long = lambda t: v[0] - f.value(x + t * p) < -0.1 * t * (q @ p)  # noqa: E731
            t = lax.while_loop(long, lambda t: t / 2, jnp.ones((), x.dtype))
            new = x + t * p
            after = f.full_grad(new)
            dx, dq = new - x, after - q
            rho = 1 / (dx @ dq)
            left = eye - rho * jnp.outer(dx, dq)
            return new, after, left @ B @ left.T + rho * jnp.outer(dx, dx), f.value(new)[None]

        start = (x, f.full_grad(x), eye, f.value(x)[None])
        return lax.while_loop(lambda s: jnp.linalg.norm(s[1]) > self.bound, step, start)[0]


def local_bfgs(a, f, g, x, who):
    q, B, v = f.full_grad(x), np.eye(D), f.value(x)
    while above(np.linalg.norm(q), a.bound):
        p, t = -B @ q, 1.0
        while above(-0.1 * t * (q @ p), v - f.value(x + t * p)):
            t /= 2
        new = x + t * p
        after, v = f.full_grad(new), None
        dx, dq = new - x, after - q
        rho = 1 / (dx @ dq)
        left = np.eye(D) - rho * np.outer(dx, dq)
        x, q, B, v = new, after, left @ B @ left.T + rho * np.outer(dx, dx), f.value(new)
    return x


@record
class Nested(LocalSolve):
    """A loop inside a loop, a fixed loop inside it, and one of three branches."""

    eta: float = positive(default=0.1)
    bound: float = positive(default=0.567)

    def local(self, f, g, x, key):
        def outer(s):
            x, k = s
            inner = lambda s: (g.prox(s[0] - self.eta * f.grad(s[0], key), self.eta), s[1] + 1)  # noqa: E731
            x, _ = lax.while_loop(lambda s: (s[1] <= k) & (f.value(s[0]) > self.bound), inner, (x, 0))
            x = lax.scan(lambda x, _: (x - self.eta * f.full_grad(x), None), x, length=2)[0]
            hessian = lambda x: x - 0.01 * f.hessian(x) @ x  # noqa: E731
            return lax.switch(k % 3, [lambda x: x - self.eta * f.full_grad(x), hessian, lambda x: x], x), k + 1

        return lax.while_loop(lambda s: s[1] < 2 + (jnp.linalg.norm(f.full_grad(x)) > 0.3), outer, (x, 0))[0]


def nested(a, f, g, x0, who):
    x, k = x0, 0
    while k < 2 + above(np.linalg.norm(f.full_grad(x0)), 0.3):
        turns = 0
        while (high := above(f.value(x), a.bound)) and turns <= k:
            x, turns = g.prox(x - a.eta * f.grad(x), a.eta), turns + 1
        del high
        for _ in range(2):
            x = x - a.eta * f.full_grad(x)
        if k % 3 == 0:
            x = x - a.eta * f.full_grad(x)
        elif k % 3 == 1:
            x = x - 0.01 * f.hessian(x) @ x
        k += 1
    return x


# --- methods of the library, and one of two exchanges ---


class Seen(NamedTuple):
    x: Array
    q: Array


@record
class ServerSearch(Algorithm[Seen, None, Seen, Update]):
    """An exchange of gradients; the server takes proximal steps until one is short; an exchange of local steps from there."""

    composite, state_depends_on = True, ()
    eta: float = positive(default=0.3)

    def init(self, x0):
        return Seen(x0, jnp.zeros_like(x0)), None

    @property
    def exchanges(self):
        return _Ask(self), self

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        z = d.x - 0.1 * f.full_grad(d.x)
        return Update(z), c, z

    def server_update(self, g, s, mean, weight):
        return s._replace(x=g.prox(mean.z, 0.1))

    def solution(self, g, s):
        return s.x


@record
class _Ask:
    method: ServerSearch = cf.algorithms.part()

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        return Update(f.full_grad(d.x)), c, d.x

    def server_update(self, g, s, mean, weight):
        def step(state):
            z = g.prox(state[0] - self.method.eta * (mean.z + 0.5 * (state[0] - s.x)), self.method.eta)
            return z, jnp.linalg.norm(z - state[0])

        return s._replace(x=lax.while_loop(lambda state: state[1] > 0.02, step, (s.x, jnp.inf))[0], q=mean.z)


OWN: dict[str, tuple[Algorithm, Callable]] = {
    "tolerance": (Tolerance(), tolerance),
    "proximal, tolerance": (ProximalTolerance(), proximal_tolerance),
    "line search": (LineSearch(), line_search),
    "masked steps": (Masked(), masked),
    "drawn lengths": (DrawnLength(), drawn_length),
    "Newton": (LocalNewton(), local_newton),
    "Newton-CG": (NewtonCG(), newton_cg),
    "BFGS": (LocalBFGS(), local_bfgs),
    "nested loops": (Nested(), nested),
}
WORK = ("gradients", "rows", "values", "hessians", "hvps", "client_proxes")


def clients(problem, count, batch=None):
    return [F(A, y, count, batch) for A, y in zip(problem.sites.features, problem.sites.labels, strict=True)]


def by_hand(problem, a, local, batch=None):
    """(the model and the counts so far, after each round) of a method that returns the mean of local models."""
    count, x = Counter(), np.zeros(D)
    g = G(count, "client_proxes")
    found = [(x, Counter())]
    for r in range(ROUNDS):
        x = np.mean([local(a, f, g, x, (r, i)) for i, f in enumerate(clients(problem, count, batch))], axis=0)
        count["exchanges"] += 1
        found.append((x, count.copy()))
    return found


def check(trace, found, compare_models=True):
    for name in WORK:
        np.testing.assert_array_equal(trace[name], [count[name] / len(SIZES) for _, count in found], err_msg=name)
    for name in ("server_proxes", "exchanges"):  # not of a client
        np.testing.assert_array_equal(trace[name], [count[name] for _, count in found], err_msg=name)
    if compare_models:
        np.testing.assert_allclose(trace.x, found[-1][0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", OWN)
def test_counts_of_loops_that_depend_on_data(problem, name):
    a, local = OWN[name]
    found = by_hand(problem, a, local)
    trace = cf.simulate(problem, a, ROUNDS, seed=SEED)
    check(trace, found)
    once = found[1][1]
    of_rounds = any(count[kind] != r * once[kind] for r, (_, count) in enumerate(found) for kind in WORK)
    assert of_rounds or any(once[kind] % len(SIZES) for kind in WORK[2:])  # rounds or clients differ


def test_counts_of_algorithm_1(problem):
    a, count = DecoupledProx(eta=0.1, tau=3), Counter()
    x, c, found, g, server = np.zeros(D), [np.zeros(D)] * 4, [(np.zeros(D), Counter())], None, None
    length = a.eta * a.eta_g * a.tau
    for _ in range(ROUNDS):
        g, server = G(count, "client_proxes"), G(count, "server_proxes")
        sums = []
        for f, ci in zip(clients(problem, count), c, strict=True):
            z = zhat = p = g.prox(x, length)
            S = 0
            for t in range(a.tau):
                q = f.grad(z)
                zhat, S = zhat - a.eta * (q + ci), S + q
                z = g.prox(zhat, (t + 1) * a.eta)
            sums.append(S)
        p = server.prox(x, length)
        x = p - a.eta * a.eta_g * np.mean(sums, axis=0)
        c = [(p - x) / length - S / a.tau for S in sums]
        count["exchanges"] += 1
        found.append((soft(x, length * LAM), count.copy()))
    check(cf.simulate(problem, a, ROUNDS), found)


def test_counts_of_two_exchanges_with_mini_batches(problem):
    smooth, a, count, found = problem.replace(regulariser=cf.regularisers.Zero()), Mime(eta=0.1, tau=2), Counter(), []
    for r in range(ROUNDS + 1):
        found.append((None, count.copy()))
        if r == ROUNDS:
            break
        for f in clients(smooth, count, batch=10):  # more than the rows of the first site
            f.full_grad(np.zeros(D))
        count["exchanges"] += 1
        for f in clients(smooth, count, batch=10):
            for _ in range(a.tau):
                f.grad(np.zeros(D))
                f.grad(np.ones(D))  # the same rows at two models
        count["exchanges"] += 1
    check(cf.simulate(smooth, a, ROUNDS, batch_size=10), found, compare_models=False)


def test_counts_of_a_server_that_searches(problem):
    a, count, x = ServerSearch(), Counter(), np.zeros(D)
    found = [(x, Counter())]
    for _ in range(ROUNDS):
        server = G(count, "server_proxes")
        q = np.mean([f.full_grad(x) for f in clients(problem, count)], axis=0)
        z, length = x, np.inf
        while length == np.inf or above(length, 0.02):
            new = server.prox(z - a.eta * (q + 0.5 * (z - x)), a.eta)
            z, length = new, np.linalg.norm(new - z)
        x = server.prox(np.mean([z - 0.1 * f.full_grad(z) for f in clients(problem, count)], axis=0), 0.1)
        count["exchanges"] += 2
        found.append((x, count.copy()))
    check(cf.simulate(problem, a, ROUNDS), found)


def test_counts_of_rounds_of_random_length(problem):
    a, count, found = Scaffnew(eta=0.1, steps=Random(p=0.4)), Counter(), [(None, Counter())]
    for r in range(ROUNDS):
        steps = int(a.with_seed(SEED).steps.drawn(r))
        for f in clients(problem, count):
            for _ in range(steps):
                f.grad(np.zeros(D))
        count["exchanges"] += 1
        count["server_proxes"] += 1
        found.append((None, count.copy()))
    check(cf.simulate(problem, a, ROUNDS, seed=SEED), found, compare_models=False)


@pytest.mark.parametrize("name", ["proximal, tolerance", "BFGS"])
def test_every_loop_counts_the_same(problem, name):
    """Message by message, as a grid, out of core, and resumed."""
    a, local = OWN[name]
    found = by_hand(problem, a, local)
    check(run_plain(problem, a, ROUNDS, seed=SEED), found)
    first, second = cf.grid(problem, a, ROUNDS, {"seed": [SEED, 1]})
    check(first, found)
    np.testing.assert_array_equal(second["gradients"], first["gradients"])  # nothing is drawn
    lazy = cf.LazyProblem(problem.loss, problem.regulariser, problem.sites)
    check(simulate_out_of_core(lazy, a, ROUNDS, participants=len(SIZES), seed=SEED), found)
    half = cf.simulate(problem, a, 1, seed=SEED)
    check(cf.simulate(problem, a, ROUNDS - 1, seed=SEED, resume=half), found)


def test_counts_of_sampled_clients_are_those_of_who_took_part(problem):
    """Rows too: those of the participants' own sites, where all sites are not equally large."""
    a, local = OWN["Newton-CG"]
    lazy = cf.LazyProblem(problem.loss, problem.regulariser, problem.sites)
    columns = [..., "participants"]
    for method, work in (
        (a, local),
        (DecoupledProx(eta=0.1, tau=3), lambda a, f, g, x, who: [f.grad(x) for _ in range(3)]),
    ):
        trace = cf.simulate(problem, method, 4, participants=2, seed=SEED, columns=columns)
        took_part = np.diff(trace["participants"], axis=0)
        assert (took_part.sum(axis=1) == 2).all()
        assert len(np.unique(took_part, axis=0)) > 1
        count, expected, x = Counter(), [(0.0, 0.0)], np.zeros(D)
        for r, here in enumerate(took_part):
            fs = clients(problem, count)
            local_models = [work(method, fs[i], None, x, (r, i)) for i in np.flatnonzero(here)]
            x = np.mean(local_models, axis=0) if method is a else x
            expected.append((count["gradients"] / 4, count["rows"] / 4))
        np.testing.assert_allclose(np.column_stack([trace["gradients"], trace["rows"]]), expected, rtol=1e-14)
        for other in (
            run_plain(problem, method, 4, participants=2, seed=SEED, columns=columns),
            simulate_out_of_core(lazy, method, 4, participants=2, seed=SEED, columns=columns),
        ):
            for name in ("participants", "gradients", "rows", "exchanges", "bytes_up", "client_proxes"):
                np.testing.assert_array_equal(other[name], trace[name], err_msg=name)


def test_constants_leave_the_program_as_it_is(problem):
    """Where loops are fixed there is no counter in the rounds, and where they are not the model is the same number."""
    assert cf.simulate(problem, DecoupledProx(eta=0.1), 1, columns=["bytes_up"])["bytes_up"].tolist() == [0, 40]
    counted = cf.simulate(problem, Tolerance(), ROUNDS)
    without = cf.simulate(problem, Tolerance(), ROUNDS, columns=["objective"])
    np.testing.assert_array_equal(counted.x, without.x)
    assert set(without) == {"round", "objective", "seconds"}


@record
class Hidden(LocalSolve):
    """Calls its loss inside an operation whose turns nobody can count."""

    def local(self, f, g, x, key):
        gradient = jax.custom_batching.custom_vmap(lambda x: f.full_grad(x))
        gradient.def_vmap(lambda size, batched, x: (jax.vmap(f.full_grad)(x), True))
        return x - 0.1 * gradient(x)

    unused: float = positive(default=1.0)


def test_what_cannot_be_counted_is_refused_with_a_way_out(problem):
    with pytest.raises(Uncountable, match=r"custom_vmap.*test_counted_costs.py:\d+.*columns=\['objective'\]"):
        cf.simulate(problem, Hidden(), 1)
    assert set(run_plain(problem, Hidden(), 1, columns=["objective"])) == {"round", "objective", "seconds"}


def test_derivatives_and_maps_are_counted_as_what_they_compute():
    from compfed.algorithms.counting import KINDS, SmoothStandIn, counted

    x = jnp.ones(D)

    def calls(stage):
        return {k: int(v) for k, v in zip(KINDS, counted(stage)(SmoothStandIn(), None, x)[1], strict=True) if v}

    keys = jax.random.split(jax.random.key(0), 9)
    assert calls(lambda f, g, x: jax.jvp(lambda x: f.grad(x, keys[0]), (x,), (x,))[1]) == {"hvp": 1}
    assert calls(lambda f, g, x: jax.jacfwd(f.full_grad)(x)) == {"full_hvp": D}
    assert calls(lambda f, g, x: jax.value_and_grad(f.value)(x)) == {"value": 1, "full_grad": 1}
    assert calls(lambda f, g, x: jax.grad(f.value)(x)) == {"full_grad": 1}
    assert calls(lambda f, g, x: jax.vmap(f.full_grad)(jnp.ones((9, D)))) == {"full_grad": 9}
    assert calls(lambda f, g, x: (f.value(x), x)[1]) == {}  # never computed
    assert calls(lambda f, g, x: jax.grad(jax.checkpoint(lambda x: jnp.sin(f.value(x))))(x)) == {
        "value": 1,
        "full_grad": 1,
    }
    solve = lambda f, g, x: jax.scipy.sparse.linalg.cg(jax.linearize(f.full_grad, x)[1], x, maxiter=3, tol=0.0)[0]  # noqa: E731
    assert calls(solve)["full_hvp"] == 2  # the first residual is zero turns away from x = 0: see below
