"""The newer methods, against one another, against theorems, and against the formulas written out in NumPy."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import quadratic_oracle, quadratics, soft

import compfed as cf
from compfed._utils.compilation import precision
from compfed.algorithms.accelerated_decoupled_prox import AcceleratedDecoupledProx
from compfed.algorithms.base import Algorithm
from compfed.algorithms.compressed_decoupled_prox import CompressedDecoupledProx
from compfed.algorithms.costs import cost_of_a_round
from compfed.algorithms.coupled_control_variates import CoupledControlVariates
from compfed.algorithms.decoupled_prox import DecoupledProx
from compfed.algorithms.fedplt import FedPLT
from compfed.algorithms.fista import FISTA, Restart
from compfed.algorithms.naive_coupled import NaiveCoupled
from compfed.algorithms.normal_map import NormalMap
from compfed.algorithms.scaffnew import Fixed, Random, Scaffnew
from compfed.algorithms.server_prox import ServerProx
from compfed.studies.ablation import AblatedProx

LAM = 1.0  # of the L1 in `quadratics`


class Case(NamedTuple):
    problem: cf.Problem
    x_star: np.ndarray
    H: np.ndarray  # grad f_i(x) = H_i x - b_i
    b: np.ndarray
    L: float  # of the worst client

    @property
    def p(self) -> np.ndarray:
        return self.problem.weights

    def gradients(self, X: np.ndarray) -> np.ndarray:
        """Row i: grad f_i(X_i), or grad f_i(X) for one point X."""
        X = np.broadcast_to(X, self.b.shape)
        return np.einsum("ijk,ik->ij", self.H, X) - self.b


@cache
def case(name: str, smooth: bool = False) -> Case:
    """Two draws with equal weights and one with unequal ones."""
    problem = quadratics({"first": 0, "second": 1, "weighted": 2}[name], g=cf.regularisers.Zero() if smooth else None)
    if name == "weighted":
        weights = np.arange(1.0, 6.0) / 15.0
        problem = cf.Problem(problem.loss, problem.regulariser, problem.sites, weights=weights)
    H, b = quadratic_oracle(problem)
    L = float(max(np.linalg.eigvalsh(h)[-1] for h in H))
    return Case(problem, cf.solve_pooled(problem).x, H, b, L)


NAMES = pytest.mark.parametrize("name", ["first", "second", "weighted"])
X0 = np.linspace(-1.0, 2.0, 8)


def models(
    problem: cf.Problem, algorithm: Algorithm, at: tuple[int, ...], x0: Any = None, engine: Any = cf.simulate
) -> list[np.ndarray]:
    """The model after each of the rounds in `at`."""
    return [engine(problem, algorithm, r, x0=x0, record_every=r).x for r in at]


def pgd(k: Case, step: float, rounds: int, x: np.ndarray) -> np.ndarray:
    for _ in range(rounds):
        x = soft(x - step * (k.p @ k.gradients(x)), step * LAM)
    return x


def scaffold_two(k: Case, eta: float, eta_g: float, tau: int, rounds: int) -> np.ndarray:
    """SCAFFOLD, option II, all clients, from x = c = c_i = 0, with g = 0."""
    x, c, c_i = np.zeros(8), np.zeros(8), np.zeros((5, 8))
    for _ in range(rounds):
        y = np.tile(x, (5, 1))
        for _ in range(tau):
            y = y - eta * (k.gradients(y) - c_i + c)
        new = c_i - c + (x - y) / (tau * eta)
        x, c, c_i = x + eta_g * (k.p @ (y - x)), c + k.p @ (new - c_i), new
    return x


def scaffnew(k: Case, gamma: float, p: float, lengths: list[int], x: np.ndarray) -> np.ndarray:
    """Composite Scaffnew, `lengths` being the numbers of steps between communications."""
    h = np.zeros((5, 8))
    for steps in lengths:
        y = np.tile(x, (5, 1))
        for _ in range(steps):
            y = y - gamma * (k.gradients(y) - h)
        x = soft(k.p @ (y - (gamma / p) * h), (gamma / p) * LAM)
        h = h + (p / gamma) * (x - y)
    return x


def compressed(
    k: Case, feedback: str, keep: int, eta: float, eta_g: float, tau: int, rounds: int, x: np.ndarray
) -> np.ndarray:
    """Algorithm 1 with top-k messages; plain error feedback in its usual scaling, m = e - eta S."""
    total = eta * eta_g * tau
    memory, sum_of_memories, c = np.zeros((5, 8)), np.zeros(8), np.zeros((5, 8))
    for _ in range(rounds):
        p = soft(x, total * LAM)
        pre, z, S = np.tile(p, (5, 1)), np.tile(p, (5, 1)), np.zeros((5, 8))
        for t in range(tau):
            q = k.gradients(z)
            pre, S = pre - eta * (q + c), S + q
            z = soft(pre, (t + 1) * eta * LAM)
        news = S / tau - memory if feedback == "EF21" else memory - eta * S
        small = np.argsort(-np.abs(news), axis=1)[:, keep:]
        sent = news.copy()
        np.put_along_axis(sent, small, 0.0, axis=1)
        if feedback == "EF21":
            memory, sum_of_memories = memory + sent, sum_of_memories + k.p @ sent
            x = p - total * sum_of_memories
        else:
            memory, x = news - sent, p + eta_g * (k.p @ sent)
        c = (p - x) / total - S / tau
    return soft(x, total * LAM)


# --- the table of identities ---


@pytest.mark.identity(9, "NaiveCoupled")
@NAMES
def test_naive_coupling_integrates_the_subgradients_until_the_model_is_zero(name):
    k = case(name)
    trace = cf.simulate(k.problem, NaiveCoupled(eta=0.05, tau=5), 300)
    assert (trace.x == 0.0).all()
    assert np.linalg.norm(k.x_star) > 0.1
    mean_c = trace["correction"]
    assert mean_c[0] == 0.0
    assert 0.0 < mean_c[1] < mean_c[2] <= mean_c[-1]


@pytest.mark.parametrize("eta_g", [1.0, 0.6])
def test_naive_coupling_step_by_step(eta_g):
    k, eta, tau = case("weighted"), 0.05, 5
    x, c, integral = X0, np.zeros((5, 8)), np.zeros(8)
    for _ in range(4):
        p = soft(x, eta * eta_g * tau * LAM)
        z, S = np.tile(p, (5, 1)), np.zeros((5, 8))
        for t in range(tau):
            q = k.gradients(z)
            v = z - eta * (q + c)
            z, S = soft(v, (t + 1) * eta * LAM), S + q
            integral = integral + k.p @ (v - z) / (eta * tau)
        x = p + eta_g * (k.p @ z - p)
        c = (p - x) / (eta * eta_g * tau) - S / tau
    trace = cf.simulate(k.problem, NaiveCoupled(eta=eta, eta_g=eta_g, tau=tau), 4, x0=X0)
    assert_allclose(trace.x, soft(x, eta * eta_g * tau * LAM), atol=1e-13)
    # what the proxes took away is what the corrections hold
    assert_allclose(trace["correction"][-1], np.linalg.norm(integral), rtol=1e-12)


@pytest.mark.identity(10, "CoupledControlVariates")
@NAMES
def test_coupling_with_two_vectors_is_exact(name):
    k = case(name)
    trace = cf.simulate(k.problem, CoupledControlVariates(eta=0.2 / k.L, tau=5), 400)
    assert_allclose(trace.x, k.x_star, atol=1e-13)
    assert trace["correction"].max() < 1e-13
    assert trace["drift"][-1] < 1e-13


@pytest.mark.identity(18, "FedPLT", "FedDR")
@NAMES
def test_fedplt_with_exact_prox_is_feddr_with_relaxation_two(name):
    k, rho = case(name), 0.05

    def exact(y):  # argmin f_i(u) + ||u - y_i||^2 / (2 rho)
        return np.stack(
            [np.linalg.solve(h + np.eye(8) / rho, b + v / rho) for h, b, v in zip(k.H, k.b, y, strict=True)]
        )

    y = np.zeros((5, 8))
    x = exact(y)
    bar = soft(k.p @ (2 * x - y), rho * LAM)
    algorithm = FedPLT(eta=1 / (k.L + 1 / rho), rho=rho, tau=24)
    for r in range(6):  # FedDR's round r, counted from 0, is the (r + 2)-nd of FedPLT
        y = y + 2.0 * (bar - x)
        x = exact(y)
        bar = soft(k.p @ (2 * x - y), rho * LAM)
        (model,) = models(k.problem, algorithm, (r + 2,))
        assert_allclose(model, bar, atol=1e-14 * max(1.0, np.abs(y).max()))


@pytest.mark.identity(25, "Scaffnew")
@pytest.mark.parametrize(
    ("name", "steps"), [("first", Fixed(tau=1)), ("weighted", Fixed(tau=1)), ("second", Random(p=1.0))]
)
def test_scaffnew_that_always_communicates_is_proximal_gradient(name, steps):
    k = case(name)
    step = 1 / k.L
    for r, model in zip((1, 2, 30), models(k.problem, Scaffnew(eta=step, steps=steps), (1, 2, 30), X0), strict=True):
        assert_allclose(model, pgd(k, step, r, X0), atol=1e-14)


@pytest.mark.identity(26, "Scaffnew")
@NAMES
def test_scaffnew_with_fixed_steps_and_no_g_is_scaffold(name):
    k = case(name, smooth=True)
    found = models(k.problem, Scaffnew(eta=0.2 / k.L, steps=Fixed(tau=5)), (1, 2, 15))
    for r, model in zip((1, 2, 15), found, strict=True):
        assert_allclose(model, scaffold_two(k, 0.2 / k.L, 1.0, 5, r), atol=1e-14)


@pytest.mark.parametrize(
    ("algorithm", "eta_g"),
    [(CoupledControlVariates(eta=0.06, tau=5), 1.0), (NormalMap(eta=0.06, gamma=0.3, eta_g=0.8, tau=5), 0.8)],
)
def test_without_g_other_corrections_are_scaffold_too(algorithm, eta_g):
    k = case("weighted", smooth=True)
    for r, model in zip(
        (1, 2, 15), models(k.problem, algorithm, (1, 2, 15), engine=cf.simulation.run_plain), strict=True
    ):
        assert_allclose(model, scaffold_two(k, 0.06, eta_g, 5, r), atol=1e-13)


@pytest.mark.identity(27, "Scaffnew")
@pytest.mark.parametrize(
    ("name", "steps"), [("first", Fixed(tau=5)), ("weighted", Fixed(tau=5)), ("second", Random(p=0.2, seed=3))]
)
def test_scaffnew_finds_the_minimiser_and_the_local_gradients_there(name, steps):
    k = case(name)
    trace = cf.simulate(k.problem, Scaffnew(eta=1 / k.L, steps=steps), 300, record_every=300)
    assert_allclose(trace.x, k.x_star, atol=1e-12)
    assert trace.state is not None
    h, _ = trace.state.clients
    assert_allclose(h, k.gradients(k.x_star), atol=1e-12)
    assert np.linalg.norm(k.p @ h) > 0.5  # the mean of h is grad f(x*), not zero
    assert "correction" not in trace


@pytest.mark.identity(28, "NormalMap")
@pytest.mark.parametrize("eta_g", [1.0, 0.6])
@NAMES
def test_one_step_of_the_normal_map_is_proximal_gradient(name, eta_g):
    k = case(name)
    step = eta_g / k.L
    found = models(k.problem, NormalMap(eta=1 / k.L, gamma=step, eta_g=eta_g, tau=1), (1, 2, 30), X0)
    for r, model in zip((1, 2, 30), found, strict=True):
        assert_allclose(model, pgd(k, step, r, soft(X0, step * LAM)), atol=1e-14)


@pytest.mark.identity(29, "CompressedDecoupledProx", "DecoupledProx")
@NAMES
def test_sending_every_coordinate_is_no_compression(name):
    k, at = case(name), (1, 2, 60)
    whole = models(k.problem, DecoupledProx(eta=0.2 / k.L, eta_g=0.8, tau=5), at, X0)
    compressed = CompressedDecoupledProx(eta=0.2 / k.L, eta_g=0.8, keep=8, tau=5)
    assert_allclose(models(k.problem, compressed, at, X0), whole, atol=1e-12)


# --- identities of our own ---


@NAMES
def test_accelerated_with_one_step_is_restarted_fista(name):
    k, at = case(name), (1, 2, 3, 20, 60)
    fista = models(k.problem, FISTA(eta=0.9 / k.L, momentum=Restart()), at, X0)
    ours = models(k.problem, AcceleratedDecoupledProx(eta=1 / k.L, eta_g=0.9, tau=1), at, X0)
    assert_allclose(ours, fista, atol=1e-13)


@NAMES
def test_accelerated_needs_only_one_vector_down(name):
    k, at = case(name), (1, 2, 3, 15, 60)
    one, two = (
        models(k.problem, AcceleratedDecoupledProx(eta=0.8 / k.L, eta_g=0.9, tau=5, down_vectors=v), at, X0)
        for v in ("one", "two")
    )
    assert_allclose(one, two, atol=1e-13)


@pytest.mark.parametrize(("feedback", "keep"), [("EF21", 2), ("EF14", 4)])
def test_compression_step_by_step(feedback, keep):
    k, at = case("weighted"), (1, 2, 6)
    algorithm = CompressedDecoupledProx(eta=0.05, eta_g=0.8, keep=keep, tau=5, feedback=feedback)
    for r, model in zip(at, models(k.problem, algorithm, at, X0), strict=True):
        assert_allclose(model, compressed(k, feedback, keep, 0.05, 0.8, 5, r, X0), atol=1e-12)


def test_random_scaffnew_step_by_step():
    k, steps, p = case("weighted"), Random(p=0.3, seed=5), 0.3
    with precision(np.dtype("float64")):
        lengths = [int(steps.drawn(r)) for r in range(12)]
    assert len(set(lengths)) > 3
    assert lengths != [int(Random(p=0.3, seed=6).drawn(r)) for r in range(12)]
    (model,) = models(k.problem, Scaffnew(eta=0.5 / k.L, steps=steps), (12,), X0)
    assert_allclose(model, scaffnew(k, 0.5 / k.L, p, lengths, X0), atol=1e-12)


def test_random_lengths_are_geometric():
    drawn = np.asarray(jax.vmap(Random(p=0.25).drawn)(np.arange(4000)))
    with precision(np.dtype("float64")):  # the same in either precision
        assert (drawn[:50] == np.asarray(jax.vmap(Random(p=0.25).drawn)(np.arange(50)))).all()
    for length in (1, 2, 3, 8):
        chance = 0.25 * 0.75 ** (length - 1)
        assert abs((drawn == length).mean() - chance) < 5 * np.sqrt(chance / 4000)
    assert drawn.min() == 1


def test_server_prox_is_the_ablation_of_decoupled_prox():
    k, at = case("weighted"), (1, 2, 40)
    ablation = AblatedProx(eta=0.02, eta_g=0.8, tau=5, rule="none")
    assert_allclose(
        models(k.problem, ServerProx(eta=0.02, eta_g=0.8, tau=5), at, X0),
        models(k.problem, ablation, at, X0, engine=cf.simulation.run_plain),
        atol=1e-13,
    )


# --- limits ---


def exact_methods(L: float) -> dict[str, Algorithm]:
    """Methods that should reach x* with full gradients and constant steps (Scaffnew: row 27 above)."""
    return {
        "FedPLT": FedPLT(eta=1 / (L + 1), rho=1.0, tau=5),
        "FedPLT one step": FedPLT(eta=1 / (L + 1), rho=1.0, tau=1),
        "NormalMap": NormalMap(eta=0.25 / L, gamma=1 / L, tau=5),
        "CompressedDecoupledProx 1": CompressedDecoupledProx(eta=0.3 / L, keep=1, tau=5),
        "CompressedDecoupledProx 2": CompressedDecoupledProx(eta=0.3 / L, keep=2, tau=5),
        "AcceleratedDecoupledProx": AcceleratedDecoupledProx(eta=0.8 / L, tau=5),
    }


@pytest.mark.parametrize("method", exact_methods(1.0))
def test_reaches_the_minimiser(method):
    for name in ("first", "second", "weighted"):
        k = case(name)
        trace = cf.simulate(k.problem, exact_methods(k.L)[method], 400, record_every=100, x_star=k.x_star)
        assert trace["optimality"][-1] < 1e-10, name
        if "correction" in trace:
            assert trace["correction"][-1] < 1e-12, name
        assert trace["drift"][-1] < 1e-9, name  # at the fixed point every client ends its round at x*


def test_fedplt_is_exact_when_clients_are_sampled():
    k = case("weighted")
    algorithm = FedPLT(eta=1 / (k.L + 1), rho=1.0, tau=5)
    trace = cf.simulate(k.problem, algorithm, 600, participants=2, x_star=k.x_star, record_every=600)
    assert trace["optimality"][-1] < 1e-10


@NAMES
def test_server_prox_has_a_floor_proportional_to_eta(name):
    k = case(name)
    floor = [
        cf.simulate(k.problem, ServerProx(eta=eta, tau=5), 4000, x_star=k.x_star, record_every=4000)["optimality"][-1]
        for eta in (0.01, 0.005, 0.0025)
    ]
    assert floor[0] > 1e-3
    assert_allclose(np.divide(floor[:-1], floor[1:]), 2.0, rtol=0.2)


def test_plain_error_feedback_has_a_floor():
    for name in ("first", "second"):
        k = case(name)
        algorithm = CompressedDecoupledProx(eta=0.3 / k.L, keep=4, tau=5, feedback="EF14")
        trace = cf.simulate(k.problem, algorithm, 400, x_star=k.x_star)
        assert trace["optimality"][300:].min() > 1e-2


@pytest.mark.parametrize("method", ["NormalMap", "AcceleratedDecoupledProx"])
def test_single_precision_does_not_drift(method):
    k = case("first")
    problem = k.problem.astype("float32")
    trace = cf.simulate(problem, exact_methods(k.L)[method], 1000, record_every=500, x_star=k.x_star)
    assert (trace["optimality"][1:] < 1e-4).all()


# --- what a round costs, and who may be absent ---

EVERY = {
    "NaiveCoupled": (NaiveCoupled(eta=0.05, tau=5), 1, 1, 5),
    "CoupledControlVariates": (CoupledControlVariates(eta=0.05, tau=5), 2, 2, 5),
    "Scaffnew fixed": (Scaffnew(eta=0.2, steps=Fixed(tau=5)), 1, 1, 5),
    "FedPLT": (FedPLT(eta=0.15, rho=1.0, tau=5), 1, 1, 5),
    "NormalMap": (NormalMap(eta=0.05, gamma=0.2, tau=5), 1, 1, 5),
    "ServerProx": (ServerProx(eta=0.02, tau=5), 1, 1, 5),
    "CompressedDecoupledProx": (CompressedDecoupledProx(eta=0.05, keep=2, tau=5), 0.5, 1, 5),
    "AcceleratedDecoupledProx one": (AcceleratedDecoupledProx(eta=0.05, tau=5), 1, 1, 5),
    "AcceleratedDecoupledProx two": (AcceleratedDecoupledProx(eta=0.05, tau=5, down_vectors="two"), 1, 2, 5),
}


@pytest.mark.parametrize("method", EVERY)
def test_cost_of_a_round(method):
    algorithm, up, down, gradients = EVERY[method]
    cost = cost_of_a_round(algorithm, d=8, dtype=np.dtype("float64"), everyone=True)
    assert (cost.vectors_up, cost.vectors_down, cost.gradients) == (up, down, gradients)


def test_cost_of_proxes_and_of_compressed_bytes():
    cost = {m: cost_of_a_round(a, d=8, dtype=np.dtype("float64"), everyone=True) for m, (a, *_) in EVERY.items()}
    proxes = {m: (c.client_proxes, c.server_proxes) for m, c in cost.items()}
    assert proxes["NaiveCoupled"] == (6, 1)
    assert proxes["CoupledControlVariates"] == (5, 0)
    assert proxes["Scaffnew fixed"] == proxes["FedPLT"] == (0, 1)
    assert proxes["NormalMap"] == (6, 0)  # one for each step, one for the local model at the end
    assert proxes["ServerProx"] == (1, 1)
    assert cost["CompressedDecoupledProx"].bytes_up == 2 * 8 + 2 * 4  # two float64 values, two int32 indices


def test_cost_of_rounds_of_random_length():
    cost = cost_of_a_round(Scaffnew(eta=0.2, steps=Random(p=0.5)), d=8, dtype=np.dtype("float64"), everyone=True)
    assert (cost.vectors_up, cost.vectors_down, cost.server_proxes) == (1, 1, 1)
    assert cost.calls is None  # drawn in each round, and counted as they are made


@pytest.mark.parametrize("method", [m for m in EVERY if m != "FedPLT"])
def test_refuses_sampling(method):
    with pytest.raises(cf.InputError, match="needs every client"):
        cf.simulate(case("first").problem, EVERY[method][0], 1, participants=2)


def test_refuses_what_cannot_work():
    with pytest.raises(cf.InputError, match="keep <= 8"):
        cf.simulate(case("first").problem, CompressedDecoupledProx(eta=0.1, keep=9), 1)
    with pytest.raises(cf.InputError, match="must be <= 1"):
        Random(p=1.5)
    with pytest.raises(cf.InputError, match="whole number"):
        Random(p=0.5, seed=0.5)  # pyright: ignore[reportArgumentType]  # the point of the test


# --- the two engines ---


def check_engines(algorithm: Algorithm, **how: Any) -> None:
    k = case("weighted")
    slow, fast = (
        engine(k.problem, algorithm, 50, seed=4, x0=X0, **how) for engine in (cf.simulation.run_plain, cf.simulate)
    )
    for column in ("objective", "gradient_mapping", "drift"):
        assert_allclose(fast[column], slow[column], rtol=1e-10, atol=1e-10)
    assert_allclose(fast.x, slow.x, atol=1e-10)
    assert slow.state is not None
    assert fast.state is not None
    for theirs, ours in zip(slow.state.clients, fast.state.clients, strict=True):
        assert_allclose(ours, theirs, atol=1e-10)


@pytest.mark.parametrize(
    "algorithm",
    [
        Scaffnew(eta=0.2, steps=Random(p=0.5)),  # with full gradients it is compared with NumPy above
        EVERY["AcceleratedDecoupledProx two"][0] if "AcceleratedDecoupledProx two" in EVERY else EVERY["FedPLT"][0],
    ],
    ids=["random lengths", "two vectors down"],
)
@pytest.mark.thorough  # the engines' own tests have every method
def test_engines_agree(algorithm):
    check_engines(algorithm, batch_size=5)
