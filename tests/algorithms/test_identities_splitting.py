"""FedProx, Scaffold, Mime, MimeLite, FedSplit, FedPD, FedDR, FedADMM: identities, limits, floors, costs, engines.

The oracles are plain NumPy on quadratics, with exact proximal steps by linear solves, and identities between methods.
Problem 0 has equal weights, problems 1 and 2 have unequal ones, so every mean below is a weighted one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import quadratic_oracle, quadratics, soft

import compfed as cf
from compfed._utils.compilation import precision
from compfed.algorithms import DecoupledProx, FedAvg
from compfed.algorithms import mime as mime_file
from compfed.algorithms.base import Algorithm
from compfed.algorithms.costs import cost_of_a_round
from compfed.algorithms.fedadmm import FedADMM
from compfed.algorithms.feddr import FedDR
from compfed.algorithms.fedpd import FedPD
from compfed.algorithms.fedprox import FedProx
from compfed.algorithms.fedsplit import FedSplit
from compfed.algorithms.mime import Mime, MimeLite
from compfed.algorithms.scaffold import Scaffold

# Every (method, tau) compiles once for all problems, so there are few of them.
N, D, TAU = 5, 8, 3
LAM = 0.5
EXACT, SHORT = 36, 0.1  # with prox parameter SHORT, EXACT local steps solve a subproblem to rounding level
THETA = 1.0  # weight of the L1 norm in the composite problems
SEEDS = pytest.mark.parametrize("seed", [0, 1, 2])


@dataclass(frozen=True)
class Case:
    """One problem, with and without its regulariser, its quadratics in NumPy, and a start away from zero."""

    composite: cf.Problem
    smooth: cf.Problem  # g = Zero()
    unpenalised: cf.Problem  # g = L1(0): also zero, in the compiled programs of the composite problem
    H: np.ndarray
    b: np.ndarray
    p: np.ndarray
    x0: np.ndarray

    @property
    def L(self) -> float:
        return float(np.linalg.eigvalsh(self.H).max())

    def inner(self, t: float = LAM) -> float:
        """A safe step for f_i(u) + ||u - v||^2 / (2 t)."""
        return 1.0 / (self.L + 1.0 / t)

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """grad f_i at x (one point for all), or at x_i (one row per client)."""
        return np.einsum("ijk,ik->ij", self.H, np.broadcast_to(x, (N, D))) - self.b

    def proxes(self, t: float, v: np.ndarray) -> np.ndarray:
        """prox_{t f_i}(v_i), by linear solves."""
        rhs = np.broadcast_to(v, (N, D)) + t * self.b
        return np.linalg.solve(np.eye(D) + t * self.H, rhs[..., None])[..., 0]

    def steps(self, u: np.ndarray, centre: np.ndarray, dual: np.ndarray | float = 0.0) -> np.ndarray:
        """TAU gradient steps on f_i(u) + <dual_i, u> + ||u - centre_i||^2 / (2 LAM) from u_i."""
        for _ in range(TAU):
            u = u - self.inner() * (self.gradients(u) + dual + (u - centre) / LAM)
        return u

    def minimiser(self) -> np.ndarray:
        """The minimiser of the smooth problem."""
        return np.linalg.solve(np.einsum("i,ijk->jk", self.p, self.H), self.p @ self.b)


@lru_cache
def case(seed: int) -> Case:
    composite = quadratics(seed, n=N, d=D, g=cf.regularisers.L1(THETA))
    rng = np.random.default_rng(100 + seed)
    if seed:
        weights = 0.5 + rng.random(N)
        composite = cf.Problem(composite.loss, composite.regulariser, composite.sites, weights / weights.sum())
    H, b = quadratic_oracle(composite)
    smooth = composite.replace(regulariser=cf.regularisers.Zero())
    unpenalised = composite.replace(regulariser=cf.regularisers.L1(0.0))
    return Case(composite, smooth, unpenalised, H, b, composite.weights, rng.standard_normal(D))


@lru_cache
def minimiser(seed: int) -> np.ndarray:
    return cf.solve_pooled(case(seed).composite).x


def model(loss, g, store, algorithm, server, clients) -> dict[str, jax.Array]:
    return {"model": algorithm.solution(g, server)}


def run(problem: cf.Problem, algorithm: Algorithm, rounds: int, **options) -> cf.Trace:
    return cf.simulate(problem, algorithm, rounds, measure=model, **options)


def path(problem: cf.Problem, algorithm: Algorithm, rounds: int, **options) -> np.ndarray:
    """The model after every round, from the start on."""
    return run(problem, algorithm, rounds, **options)["model"]


def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest distance of two paths, relative to the largest model on them."""
    scale = np.linalg.norm(theirs, axis=1).max()
    return float(np.linalg.norm(ours - theirs, axis=1).max() / scale)


def iterate(step: Callable[[np.ndarray], np.ndarray], x0: np.ndarray, rounds: int) -> np.ndarray:
    out = [x0]
    for _ in range(rounds):
        out.append(step(out[-1]))
    return np.array(out)


def relative(x: np.ndarray, x_star: np.ndarray) -> float:
    return float(np.linalg.norm(x - x_star) / np.linalg.norm(x_star))


# --- identities ---


@pytest.mark.identity(2, "DecoupledProx", "Scaffold")
@SEEDS
def test_decoupled_prox_without_g_is_scaffold(seed):
    """With the paper's upload; that the other upload gives the same sequence is an identity of DecoupledProx alone."""
    k = case(seed)
    ours = path(k.smooth, Scaffold(eta=0.2 / k.L, eta_g=1.3, tau=TAU), 20, x0=k.x0)
    paper = path(k.smooth, DecoupledProx(eta=0.2 / k.L, eta_g=1.3, tau=TAU, upload="model"), 20, x0=k.x0)
    assert gap(ours, paper) < 1e-14


@pytest.mark.identity(16, "FedDR", "FedADMM")
@pytest.mark.parametrize("participants", [None, 2])
@SEEDS
def test_feddr_is_fedadmm(seed, participants):
    """For any number of local steps, not only for exact solves, and whoever takes part."""
    k = case(seed)
    dr = path(k.composite, FedDR(eta=k.inner(), lam=LAM, tau=TAU), 40, x0=k.x0, participants=participants)
    admm = path(k.composite, FedADMM(eta=k.inner(), rho=1.0 / LAM, tau=TAU), 40, x0=k.x0, participants=participants)
    assert gap(dr, admm) < 1e-14


@pytest.mark.identity(17, "FedDR", "FedSplit")
@SEEDS
def test_feddr_with_alpha_2_is_fedsplit(seed):
    """Round for round: without FedDR's preparatory round there is nothing to shift."""
    k = case(seed)
    dr = path(k.unpenalised, FedDR(eta=k.inner(), lam=LAM, alpha=2.0, tau=TAU), 40, x0=k.x0)
    split = path(k.smooth, FedSplit(eta=k.inner(), s=LAM, tau=TAU), 40, x0=k.x0)
    assert gap(dr, split) < 1e-14


def fed_plt(k: Case, rounds: int) -> np.ndarray:
    """y = prox_{rho g}(mean z), x_i = prox_{rho f_i}(2 y - z_i), z_i += 2 (x_i - y), with exact proximal steps."""
    z = np.tile(k.x0, (N, 1))
    models = [soft(k.p @ z, SHORT * THETA)]
    for _ in range(rounds):
        y = models[-1]
        z = z + 2.0 * (k.proxes(SHORT, 2.0 * y - z) - y)
        models.append(soft(k.p @ z, SHORT * THETA))
    return np.array(models)


@pytest.mark.identity(18, "FedDR")
@SEEDS
def test_feddr_with_exact_solves_is_fed_plt(seed):
    """Round for round, as both start from the same z_i = xhat_i."""
    k = case(seed)
    dr = path(k.composite, FedDR(eta=k.inner(SHORT), lam=SHORT, alpha=2.0, tau=EXACT), 40, x0=k.x0)
    assert gap(dr, fed_plt(k, 40)) < 1e-14


@pytest.mark.identity(19, "FedDR")
@SEEDS
def test_feddr_with_one_warm_started_step_is_exact(seed):
    k = case(seed)
    trace = run(k.composite, FedDR(eta=k.inner(), lam=LAM, tau=1), 600, x0=k.x0, record_every=100)
    assert relative(trace.x, minimiser(seed)) < 1e-12


@pytest.mark.identity(20, "FedDR")
@SEEDS
def test_feddr_started_at_the_centre_stalls(seed):
    k = case(seed)
    algorithm = FedDR(eta=k.inner(), lam=LAM, tau=1, start="centre")
    trace = run(k.composite, algorithm, 600, x0=k.x0, record_every=100, x_star=minimiser(seed))
    assert trace["optimality"][-1] > 1e-2
    assert np.ptp(trace["optimality"][-2:]) < 1e-6  # it has settled there


@pytest.mark.identity(21, "FedPD", "FedADMM")
@SEEDS
def test_fedpd_is_fedadmm_without_g(seed):
    """Not bit for bit: FedADMM's server adds up changes of xhat_i and FedPD's averages the xhat_i themselves."""
    k = case(seed)
    pd = path(k.smooth, FedPD(eta=k.inner(), eta_pd=LAM, tau=TAU), 40, x0=k.x0)
    admm = path(k.unpenalised, FedADMM(eta=k.inner(), rho=1.0 / LAM, tau=TAU), 40, x0=k.x0)
    assert gap(pd, admm) < 1e-15


@pytest.mark.identity(22, "FedProx", "FedAvg")
@SEEDS
def test_fedprox_without_its_term_is_fedavg(seed):
    k = case(seed)
    prox = path(k.smooth, FedProx(eta=0.5 / k.L, mu=0.0, eta_g=1.2, tau=TAU), 20, x0=k.x0)
    avg = path(k.smooth, FedAvg(eta=0.5 / k.L, eta_g=1.2, tau=TAU), 20, x0=k.x0)
    np.testing.assert_array_equal(prox, avg)


@pytest.mark.identity(22, "FedProx")
@pytest.mark.parametrize("mu", [0.1, 10.0])
@SEEDS
def test_fedprox_with_one_step_is_gradient_descent(seed, mu):
    """Not bit for bit: clients send differences of models, gradient descent subtracts gradients."""
    k = case(seed)
    eta, eta_g = 0.5 / k.L, 1.2
    descent = iterate(lambda x: x - eta * eta_g * k.p @ k.gradients(x), k.x0, 20)
    assert gap(path(k.smooth, FedProx(eta=eta, mu=mu, eta_g=eta_g, tau=1), 20, x0=k.x0), descent) < 1e-15


def momentum_descent(k: Case, eta: float, beta: float, rounds: int) -> np.ndarray:
    """x - eta (beta m + (1 - beta) grad f(x)), m the exponential mean of past gradients."""
    m, models = np.zeros(D), [k.x0]
    for _ in range(rounds):
        m = beta * m + (1.0 - beta) * k.p @ k.gradients(models[-1])
        models.append(models[-1] - eta * m)
    return np.array(models)


@pytest.mark.identity(23, "Mime", "MimeLite")
@pytest.mark.parametrize("method", [Mime, MimeLite])
@SEEDS
def test_mime_with_one_step_is_momentum_descent(seed, method):
    k = case(seed)
    ours = path(k.smooth, method(eta=0.5 / k.L, eta_g=1.2, tau=1, beta=0.8), 40, x0=k.x0)
    assert gap(ours, momentum_descent(k, 1.2 * 0.5 / k.L, 0.8, 40)) < 1e-14


@pytest.mark.identity(24, "MimeLite", "FedAvg")
@SEEDS
def test_mime_lite_without_momentum_is_fedavg(seed):
    k = case(seed)
    lite = path(k.smooth, MimeLite(eta=0.5 / k.L, eta_g=1.2, tau=TAU, beta=0.0), 20, x0=k.x0)
    avg = path(k.smooth, FedAvg(eta=0.5 / k.L, eta_g=1.2, tau=TAU), 20, x0=k.x0)
    np.testing.assert_array_equal(lite, avg)


@pytest.mark.identity(30, "FedProx")
@pytest.mark.parametrize("alpha", [1.0, 1.5])
@SEEDS
def test_fedprox_with_exact_solves_is_fedexprox(seed, alpha):
    """alpha = 1 is the row of the table; another alpha is the server step.

    Not bit for bit: the oracle solves linear systems, the method takes steps until they are lost in rounding.
    """
    k = case(seed)
    fedexprox = iterate(lambda x: x + alpha * (k.p @ k.proxes(SHORT, x) - x), k.x0, 20)
    ours = path(k.smooth, FedProx(eta=k.inner(SHORT), mu=1.0 / SHORT, eta_g=alpha, tau=EXACT), 20, x0=k.x0)
    assert gap(ours, fedexprox) < 1e-15


# --- paths with a few local steps, against NumPy ---


def scaffold(k: Case, eta: float, eta_g: float, option: str, rounds: int) -> np.ndarray:
    """Option II as the mean of the gradients used, which the method reads off the distance walked."""
    c, c_i, models = np.zeros(D), np.zeros((N, D)), [k.x0]
    for _ in range(rounds):
        x = models[-1]
        y, used = np.tile(x, (N, 1)), np.zeros((N, D))
        for _ in range(TAU):
            q = k.gradients(y)
            y, used = y - eta * (q - c_i + c), used + q / TAU
        models.append(x + eta_g * (k.p @ y - x))
        c_i = k.gradients(x) if option == "I" else used
        c = k.p @ c_i
    return np.array(models)


@pytest.mark.parametrize("option", ["I", "II"])
@SEEDS
def test_scaffold_against_numpy(seed, option):
    k = case(seed)
    ours = path(k.smooth, Scaffold(eta=0.2 / k.L, eta_g=1.3, tau=TAU, option=option), 20, x0=k.x0)
    assert gap(ours, scaffold(k, 0.2 / k.L, 1.3, option, 20)) < 1e-14


def mime(k: Case, eta: float, beta: float, corrected: bool, rounds: int) -> np.ndarray:
    m, models = np.zeros(D), [k.x0]
    for _ in range(rounds):
        x = models[-1]
        at_x, y = k.gradients(x), np.tile(x, (N, 1))
        for _ in range(TAU):
            v = k.gradients(y) - at_x + k.p @ at_x if corrected else k.gradients(y)
            y = y - eta * ((1.0 - beta) * v + beta * m)
        models.append(k.p @ y)
        m = (1.0 - beta) * k.p @ at_x + beta * m
    return np.array(models)


@pytest.mark.parametrize("method", [Mime, MimeLite])
@SEEDS
def test_mime_against_numpy(seed, method):
    k = case(seed)
    ours = path(k.smooth, method(eta=0.2 / k.L, tau=TAU, beta=0.7), 20, x0=k.x0)
    assert gap(ours, mime(k, 0.2 / k.L, 0.7, method is Mime, 20)) < 1e-14


def fedsplit(k: Case, rounds: int) -> np.ndarray:
    z = h = np.tile(k.x0, (N, 1))
    models = [k.x0]
    for _ in range(rounds):
        x = models[-1]
        h = k.steps(h, 2.0 * x - z)
        z = z + 2.0 * (h - x)
        models.append(k.p @ z)
    return np.array(models)


@SEEDS
def test_fedsplit_against_numpy(seed):
    k = case(seed)
    assert gap(path(k.smooth, FedSplit(eta=k.inner(), s=LAM, tau=TAU), 20, x0=k.x0), fedsplit(k, 20)) < 1e-14


def fedpd(k: Case, updates: int, rounds: int) -> np.ndarray:
    x, lam, models = np.tile(k.x0, (N, 1)), np.zeros((N, D)), [k.x0]
    for _ in range(rounds):
        x0 = np.tile(models[-1], (N, 1))
        for _ in range(updates):
            x = k.steps(x, x0, lam)
            lam = lam + (x - x0) / LAM
            x0 = x + LAM * lam
        models.append(k.p @ x0)
    return np.array(models)


@pytest.mark.parametrize("updates", [1, 2])
@SEEDS
def test_fedpd_against_numpy(seed, updates):
    k = case(seed)
    ours = path(k.smooth, FedPD(eta=k.inner(), eta_pd=LAM, tau=TAU, updates=updates), 20, x0=k.x0)
    assert gap(ours, fedpd(k, updates, 20)) < 1e-14


def fedadmm(k: Case, rounds: int) -> np.ndarray:
    """With everyone present xtilde is the mean of all xhat_i; nothing has to be added up."""
    x_i, z = np.tile(k.x0, (N, 1)), np.zeros((N, D))
    models = [soft(k.x0, LAM * THETA)]
    for _ in range(rounds):
        x = models[-1]
        x_i = k.steps(x_i, x, z)
        z = z + (x_i - x) / LAM
        models.append(soft(k.p @ (x_i + LAM * z), LAM * THETA))
    return np.array(models)


@SEEDS
def test_fedadmm_against_numpy(seed):
    k = case(seed)
    ours = path(k.composite, FedADMM(eta=k.inner(), rho=1.0 / LAM, tau=TAU), 20, x0=k.x0)
    assert gap(ours, fedadmm(k, 20)) < 1e-14


class Exact(NamedTuple):
    """f(x) = x^T H x / 2 - b^T x, as a client sees it."""

    H: np.ndarray
    b: np.ndarray

    def grad(self, x, key):
        return self.full_grad(x)

    def full_grad(self, x):
        return jnp.asarray(self.H) @ x - jnp.asarray(self.b)


class Noisy(NamedTuple):
    """The same with mini-batches: their gradients have an error that depends on the key alone."""

    H: np.ndarray
    b: np.ndarray

    def grad(self, x, key):
        return self.full_grad(x) + jax.random.normal(key, x.shape, x.dtype)

    def full_grad(self, x):
        return jnp.asarray(self.H) @ x - jnp.asarray(self.b)


def test_mime_uses_one_mini_batch_for_both_gradients():
    """Then an error that depends on the mini-batch alone cancels: the steps are those of full gradients."""
    k = case(0)
    rng = np.random.default_rng(1)
    m, c = rng.standard_normal((2, D))
    with precision(np.dtype("float64")):
        algorithm = Mime(eta=0.1, tau=TAU, beta=0.7)
        f: Any = Noisy(k.H[0], k.b[0])
        memory = mime_file.Client(x=jnp.asarray(k.x0))
        down = mime_file.Broadcast(m=jnp.asarray(m), c=jnp.asarray(c))
        up, _, local = algorithm.client_update(f, cf.regularisers.Zero(), down, memory, jax.random.key(0))
    y = k.x0
    for _ in range(TAU):
        y = y - 0.1 * (0.3 * (k.H[0] @ (y - k.x0) + c) + 0.7 * m)
    np.testing.assert_allclose(up.delta, y - k.x0, rtol=0, atol=1e-14)
    np.testing.assert_allclose(local, y, rtol=0, atol=1e-14)


def test_uploaded_gradients_are_full_gradients():
    """Scaffold's option I, Mime and MimeLite ask for the gradient over all rows at x, whatever the batch size."""
    k = case(0)
    full = k.gradients(k.x0)[0]
    with precision(np.dtype("float64")):
        f: Any = Noisy(k.H[0], k.b[0])
        g, x, key = cf.regularisers.Zero(), jnp.asarray(k.x0), jax.random.key(0)
        methods: list[tuple[Algorithm, str]] = [
            (Scaffold(eta=0.1, tau=TAU, option="I"), "dc"),
            (MimeLite(eta=0.1, tau=TAU), "gradient"),
        ]
        for algorithm, field in methods:
            s, c = algorithm.init(x)
            up, _, _ = algorithm.client_update(f, g, algorithm.broadcast(g, s), c, key)
            np.testing.assert_allclose(getattr(up, field), full, rtol=0, atol=1e-14)
        s, c = Mime(eta=0.1).init(x)
        first = Mime(eta=0.1).exchanges[0]
        answer, _, _ = first.client_update(f, g, first.broadcast(g, s), c, key)
        np.testing.assert_allclose(answer.gradient, full, rtol=0, atol=1e-14)


# --- limits and floors, full gradients ---


COMPOSITE = ("FedDR", "FedADMM")
EVERYONE_ONLY = ("FedSplit", "FedPD")
EXACT_METHODS = {
    "Scaffold I": lambda k: Scaffold(eta=0.5 / (k.L * TAU), tau=TAU, option="I"),
    "Scaffold II": lambda k: Scaffold(eta=0.5 / (k.L * TAU), tau=TAU),
    "Mime": lambda k: Mime(eta=0.2 / k.L, tau=TAU, beta=0.0),
    "Mime, momentum": lambda k: Mime(eta=0.2 / k.L, tau=TAU),
    "FedSplit": lambda k: FedSplit(eta=k.inner(), s=LAM, tau=TAU),
    "FedPD": lambda k: FedPD(eta=k.inner(), eta_pd=LAM, tau=TAU),
    "FedDR": lambda k: FedDR(eta=k.inner(), lam=LAM, tau=TAU),
    "FedADMM": lambda k: FedADMM(eta=k.inner(), rho=1.0 / LAM, tau=TAU),
}


@pytest.mark.parametrize("name", EXACT_METHODS)
@SEEDS
def test_reaches_the_minimiser_of_smooth_problems(seed, name):
    k = case(seed)
    problem = k.unpenalised if name in COMPOSITE else k.smooth
    trace = run(problem, EXACT_METHODS[name](k), 1500, x0=k.x0, record_every=50)
    assert relative(trace.x, k.minimiser()) < 1e-10
    assert trace["drift"][-1] < 1e-9  # at the limit every local model is x*


@pytest.mark.parametrize("name", COMPOSITE)
@pytest.mark.parametrize("participants", [None, 2])
@SEEDS
def test_reaches_the_minimiser_of_composite_problems(seed, participants, name):
    k = case(seed)
    trace = run(k.composite, EXACT_METHODS[name](k), 2000, x0=k.x0, participants=participants, record_every=100)
    assert relative(trace.x, minimiser(seed)) < 1e-10


@pytest.mark.parametrize("option", ["I", "II"])
@SEEDS
def test_scaffold_with_sampled_clients(seed, option):
    """The server's c stays the mean of all c_i, present or not, and the limit is exact: c_i = grad f_i(x*)."""
    k = case(seed)
    algorithm = Scaffold(eta=0.2 / (k.L * TAU), tau=TAU, option=option)
    early = run(k.smooth, algorithm, 5, x0=k.x0, participants=2)
    assert early.state is not None
    np.testing.assert_allclose(early.state.server[1], k.p @ early.state.clients[0], rtol=0, atol=1e-12)
    late = run(k.smooth, algorithm, 6000, x0=k.x0, participants=2, record_every=1000)
    assert late.state is not None
    assert relative(late.x, k.minimiser()) < 1e-10
    np.testing.assert_allclose(late.state.clients[0], k.gradients(k.minimiser()), rtol=0, atol=1e-8)


def fixed_point(phi: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The fixed point of an affine map."""
    constant = phi(np.zeros(D))
    linear = np.stack([phi(e) - constant for e in np.eye(D)], axis=1)
    return np.linalg.solve(np.eye(D) - linear, constant)


def local_descent(k: Case, w: np.ndarray, eta: float, mu: float) -> np.ndarray:
    """The mean of the local models after TAU steps on f_i(u) + (mu/2) ||u - w||^2 from w."""
    u = np.tile(w, (N, 1))
    for _ in range(TAU):
        u = u - eta * (k.gradients(u) + mu * (u - w))
    return k.p @ u


@pytest.mark.parametrize("mu", [0.0, 1.0])
@SEEDS
def test_fedavg_and_fedprox_keep_a_floor(seed, mu):
    k = case(seed)
    eta = 0.5 / k.L
    expected = fixed_point(lambda w: local_descent(k, w, eta, mu))
    algorithm = FedProx(eta=eta, mu=mu, tau=TAU) if mu else FedAvg(eta=eta, eta_g=1.0, tau=TAU)
    trace = run(k.smooth, algorithm, 1000, x0=k.x0, record_every=200)
    assert relative(trace.x, expected) < 1e-12
    assert relative(trace.x, k.minimiser()) > 5e-2
    assert trace["drift"][-1] > 1e-2


def test_the_floor_of_fedprox_falls_with_its_term():
    """With exact solves the floor is proportional to 1/mu: ten times the term, a tenth of the floor."""
    k = case(0)
    floors = []
    for mu in (10.0, 100.0):
        expected = fixed_point(lambda w, mu=mu: k.p @ k.proxes(1.0 / mu, w))
        trace = run(k.smooth, FedProx(eta=1 / (k.L + mu), mu=mu, tau=EXACT), 10_000, x0=k.x0, record_every=1000)
        assert relative(trace.x, expected) < 1e-10
        floors.append(relative(trace.x, k.minimiser()))
    assert 8 < floors[0] / floors[1] < 12


@SEEDS
def test_mime_lite_keeps_a_floor_and_mime_does_not(seed):
    k = case(seed)
    eta, beta = 0.2 / k.L, 0.9

    def phi(x: np.ndarray) -> np.ndarray:
        """A round of MimeLite whose momentum is that of its fixed point, grad f(x)."""
        y, m = np.tile(x, (N, 1)), k.p @ k.gradients(x)
        for _ in range(TAU):
            y = y - eta * ((1.0 - beta) * k.gradients(y) + beta * m)
        return k.p @ y

    lite = run(k.smooth, MimeLite(eta=eta, tau=TAU, beta=beta), 2000, x0=k.x0, record_every=500)
    full = run(k.smooth, Mime(eta=eta, tau=TAU, beta=beta), 2000, x0=k.x0, record_every=500)
    assert relative(lite.x, fixed_point(phi)) < 1e-11
    assert relative(lite.x, k.minimiser()) > 1e-4
    assert relative(full.x, k.minimiser()) < 1e-12


@SEEDS
def test_fedpd_that_skips_communication_does_not_converge(seed):
    k = case(seed)
    algorithm = FedPD(eta=k.inner(), eta_pd=LAM, tau=TAU, updates=2)
    trace = run(k.smooth, algorithm, 1000, x0=k.x0, record_every=100, x_star=k.minimiser())
    assert trace["optimality"][-5:].min() > 0.1


@pytest.mark.parametrize("participants", [None, 2])
@pytest.mark.parametrize("option", ["I", "II"])
def test_the_corrections_of_scaffold_sum_to_zero(option, participants):
    """c = sum_i p_i c_i in every round, absent clients included, so that sum_i p_i (c - c_i) = 0."""
    k = case(1)
    algorithm = Scaffold(eta=0.2 / k.L, tau=TAU, option=option)
    trace = run(k.smooth, algorithm, 40, x0=k.x0, participants=participants)
    assert trace.state is not None
    c, (c_i,) = trace.state.server[1], trace.state.clients
    assert trace["correction"].max() < 1e-12 * np.abs(c_i).max()
    np.testing.assert_allclose(c, k.p @ c_i, rtol=1e-12)
    assert np.linalg.norm(c - c_i, axis=1).min() > 1e-3  # there was something to cancel


# --- what a round costs, and what the local model is ---


@pytest.mark.parametrize(
    ("algorithm", "up", "down", "gradients", "server_proxes"),
    [
        (FedProx(eta=1.0, mu=1.0, tau=TAU), 1, 1, TAU, 0),
        (Scaffold(eta=1.0, tau=TAU), 2, 2, TAU, 0),
        (Scaffold(eta=1.0, tau=TAU, option="I"), 2, 2, TAU + 1, 0),
        (Mime(eta=1.0, tau=TAU), 2, 3, 2 * TAU + 1, 0),
        (MimeLite(eta=1.0, tau=TAU), 2, 2, TAU + 1, 0),
        (FedSplit(eta=1.0, s=1.0, tau=TAU), 1, 1, TAU, 0),
        (FedPD(eta=1.0, eta_pd=1.0, tau=TAU), 1, 1, TAU, 0),
        (FedPD(eta=1.0, eta_pd=1.0, tau=TAU, updates=2), 1, 1, 2 * TAU, 0),
        (FedDR(eta=1.0, lam=1.0, tau=TAU), 1, 1, TAU, 1),
        (FedADMM(eta=1.0, rho=1.0, tau=TAU), 1, 1, TAU, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else str(value),
)
def test_cost_of_a_round(algorithm, up, down, gradients, server_proxes):
    cost = cost_of_a_round(algorithm, d=D, dtype=np.dtype("float64"), everyone=True)
    assert (cost.vectors_up, cost.vectors_down, cost.gradients) == (up, down, gradients)
    assert (cost.bytes_up, cost.bytes_down) == (8 * D * up, 8 * D * down)  # vectors and nothing else
    assert (cost.client_proxes, cost.server_proxes) == (0, server_proxes)


@pytest.mark.parametrize(
    "algorithm",
    [
        FedProx(eta=0.1, mu=1.0, tau=1),
        Scaffold(eta=0.1, tau=1),
        Mime(eta=0.1, tau=1, beta=0.0),
        MimeLite(eta=0.1, tau=1, beta=0.0),
        FedSplit(eta=0.1, s=1.0, tau=1),
        FedPD(eta=0.1, eta_pd=1.0, tau=1),
        FedDR(eta=0.1, lam=1.0, tau=1),
        FedADMM(eta=0.1, rho=1.0, tau=1),
    ],
    ids=lambda a: type(a).__name__,
)
def test_local_model_after_one_step(algorithm):
    """In the first round, with one step, every method takes a plain gradient step from x0."""
    k = case(0)
    with precision(np.dtype("float64")):
        f, g, key, weight = Exact(k.H[0], k.b[0]), cf.regularisers.Zero(), jax.random.key(0), jnp.ones(())
        local = jnp.asarray(k.x0)
        s, c = algorithm.init(local)
        for exchange in algorithm.exchanges:
            u, c, local = exchange.client_update(f, g, exchange.broadcast(g, s), c, key)
            s = exchange.server_update(g, s, u, weight)
    np.testing.assert_allclose(local, k.x0 - 0.1 * (k.H[0] @ k.x0 - k.b[0]), rtol=0, atol=1e-14)


# --- refusals ---


METHODS = {
    "FedProx": lambda k: FedProx(eta=0.3 / k.L, mu=0.5, tau=TAU),
    "Scaffold I": lambda k: Scaffold(eta=0.2 / k.L, tau=TAU, option="I"),
    "Scaffold II": lambda k: Scaffold(eta=0.2 / k.L, tau=TAU),
    "Mime": lambda k: Mime(eta=0.2 / k.L, tau=TAU),
    "MimeLite": lambda k: MimeLite(eta=0.2 / k.L, tau=TAU),
    "FedSplit": lambda k: FedSplit(eta=k.inner(), s=LAM, tau=TAU),
    "FedPD": lambda k: FedPD(eta=k.inner(), eta_pd=LAM, tau=TAU),
    "FedDR": lambda k: FedDR(eta=k.inner(), lam=LAM, tau=TAU),
    "FedADMM": lambda k: FedADMM(eta=k.inner(), rho=1.0 / LAM, tau=TAU),
}


@pytest.mark.parametrize("name", [m for m in METHODS if m not in COMPOSITE])
def test_smooth_methods_refuse_a_regulariser(name):
    k = case(0)
    with pytest.raises(cf.InputError, match="smooth"):
        cf.simulate(k.composite, METHODS[name](k), 1)


@pytest.mark.parametrize("name", EVERYONE_ONLY)
def test_methods_that_need_everyone_refuse_sampling(name):
    k = case(0)
    with pytest.raises(cf.InputError, match="every client"):
        cf.simulate(k.smooth, METHODS[name](k), 1, participants=2)
