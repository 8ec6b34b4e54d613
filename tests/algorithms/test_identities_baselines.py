"""DANE, SDANE, FedDyn, ProxGIANT, FedNL: identities, known limits, and costs.

The oracles are linear solves, coordinate descent on quadratic models, spectral radii, and identities between methods.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from problems import logistic, quadratic_oracle, quadratics, soft

import compfed as cf
from compfed.algorithms import DANE, SDANE, FedADMM, FedDyn, FedNL, FedPD, Mime, ProxGIANT, ProximalGradient
from compfed.algorithms.base import Algorithm
from compfed.algorithms.costs import cost_of_a_round
from compfed.simulation import run_plain
from compfed.studies.paper.experiments import paper_problem

N, D = 5, 8
X0 = np.linspace(-1.0, 2.0, D)
BETA, EXACT = 8.0, 60  # with a term BETA, EXACT local steps solve the local problem to rounding
SEEDS = pytest.mark.parametrize("seed", [0, 2])  # 2 has unequal weights


class Case(NamedTuple):
    composite: cf.Problem
    smooth: cf.Problem
    H: np.ndarray  # grad f_i(x) = H_i x - b_i
    b: np.ndarray
    p: np.ndarray
    L: float


@cache
def case(seed: int) -> Case:
    problem = quadratics(seed)
    if seed:
        problem = cf.Problem(problem.loss, problem.regulariser, problem.sites, np.arange(1.0, 6.0) / 15.0)
    H, b = quadratic_oracle(problem)
    L = float(np.linalg.eigvalsh(H).max())
    return Case(problem, problem.replace(regulariser=cf.regularisers.Zero()), H, b, problem.weights, L)


@cache
def alike(loss: str, copies: int = 3) -> cf.Problem:
    """The same rows at every site."""
    one = quadratics(0, n=1, rows=30) if loss == "squared" else logistic(n=1, samples=60)
    A, y = one.sites.features[0], one.sites.labels[0]
    return cf.Problem(one.loss, one.regulariser, cf.data.from_arrays([A] * copies, [y] * copies))


def path(problem: cf.Problem, algorithm: Algorithm, rounds: int, engine=cf.simulate, **options) -> np.ndarray:
    """The model after every round, from the start on."""

    def model(loss, g, data, algorithm, server, clients):
        return {"model": algorithm.solution(g, server)}

    return engine(problem, algorithm, rounds, measure=model, x0=X0, **options)["model"]


def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


# --- DANE ---


@pytest.mark.identity(33, "DANE", "ProximalGradient")
@SEEDS
def test_dane_with_one_local_step_is_proximal_gradient(seed):
    k = case(seed)
    eta = 0.7 / k.L
    ours = path(k.composite, DANE(eta=eta, beta=3.0, tau=1), 30)
    assert gap(ours, path(k.composite, ProximalGradient(eta=eta), 30)) < 1e-14


@pytest.mark.identity(34, "DANE", "Mime")
@SEEDS
def test_dane_without_its_term_is_mime_without_momentum(seed):
    k = case(seed)
    eta = 0.2 / k.L
    ours = path(k.smooth, DANE(eta=eta, gamma=0.8, tau=4), 20)
    assert gap(ours, path(k.smooth, Mime(eta=eta, eta_g=0.8, tau=4, beta=0.0), 20)) < 1e-13


@pytest.mark.identity(35, "DANE", "SDANE")
@pytest.mark.parametrize("algorithm", [DANE(eta=0.05, beta=BETA, tau=200), SDANE(eta=0.08, lam=BETA, tau=300)])
def test_with_one_client_it_is_the_proximal_point_method(algorithm):
    problem = quadratics(1, n=1, g=cf.regularisers.Zero())
    (H,), (b,) = quadratic_oracle(problem)
    assert np.linalg.eigvalsh(H)[-1] < 1 / 0.08
    x, models = X0, [X0]
    for _ in range(10):
        x = np.linalg.solve(H + BETA * np.eye(D), b + BETA * x)
        models.append(x)
    assert gap(path(problem, algorithm, 10), np.array(models)) < 1e-12


@pytest.mark.identity(36, "DANE", "ProxGIANT")
@pytest.mark.parametrize("algorithm", [DANE(eta=0.08, tau=3000), ProxGIANT(inner=400)])
def test_equal_losses_are_solved_in_one_round(algorithm):
    """Also EDSL and CSL, in which one site solves the tilted problem that all sites have here."""
    problem = alike("squared")
    x_star = cf.solve_pooled(problem).x
    assert 0 < (x_star == 0).sum() < D
    assert gap(path(problem, algorithm, 1)[1], x_star) < 1e-9


@pytest.mark.parametrize("beta", [0.0, BETA])
def test_dane_with_exact_solves_is_a_linear_map_on_quadratics(beta):
    """The error is multiplied by I - sum_i p_i (H_i + beta I)^-1 H: with beta = 0 its largest eigenvalue is above 1."""
    k = case(0)
    H = np.einsum("i,ijk->jk", k.p, k.H)
    solved = np.linalg.solve(k.H + beta * np.eye(D), np.broadcast_to(H, k.H.shape))
    M = np.eye(D) - np.einsum("i,ijk->jk", k.p, solved)
    assert (np.abs(np.linalg.eigvals(M)).max() > 1) == (beta == 0)
    x_star, error = np.linalg.solve(H, k.p @ k.b), path(k.smooth, DANE(eta=1 / (k.L + beta), beta=beta, tau=800), 20)
    expected = [X0 - x_star]
    for _ in range(20):
        expected.append(M @ expected[-1])
    assert gap(error - x_star, np.array(expected)) < 1e-9


# --- S-DANE ---


@pytest.mark.identity(37, "SDANE", "DANE")
@pytest.mark.parametrize("mu", [0.0, 0.1, 5.0])
@SEEDS
def test_sdane_with_exact_solves_is_dane(seed, mu):
    """Whatever mu is: v+ = x then. With five local steps they differ."""
    k = case(seed)
    dane = path(k.composite, DANE(eta=1 / (k.L + BETA), beta=BETA, tau=2 * EXACT), 20)
    assert gap(path(k.composite, SDANE(eta=1 / k.L, lam=BETA, mu=mu, tau=EXACT), 20), dane) < 1e-10
    assert gap(path(k.composite, SDANE(eta=1 / k.L, lam=BETA, mu=mu, tau=2), 20), dane) > 1e-4


def sdane(k: Case, eta: float, lam: float, mu: float, tau: int, rounds: int) -> np.ndarray:
    """Smooth, as the authors' code has it: the local step, h_i = grad f_i(v) - mean, and the step of v."""
    v, models = X0, [X0]
    for _ in range(rounds):
        h = np.einsum("ijk,k->ij", k.H, v) - k.b
        h = h - k.p @ h
        x = np.tile(v, (N, 1))
        for _ in range(tau):
            gradient = np.einsum("ijk,ik->ij", k.H, x) - k.b
            x = (h - gradient + x / eta + lam * v) / (1 / eta + lam)
        a, mean = 1 / lam, k.p @ x
        v = (mu * a * mean + v - a * (k.p @ (np.einsum("ijk,ik->ij", k.H, x) - k.b))) / (mu * a + 1)
        models.append(mean)
    return np.array(models)


@SEEDS
def test_sdane_against_numpy(seed):
    k = case(seed)
    ours = path(k.smooth, SDANE(eta=0.9 / k.L, lam=2.0, mu=0.3, tau=3), 20)
    assert gap(ours, sdane(k, 0.9 / k.L, 2.0, 0.3, 3, 20)) < 1e-13


# --- FedDyn ---


@pytest.mark.identity(38, "FedDyn", "FedADMM", "FedPD")
@SEEDS
def test_feddyn_with_exact_solves_is_fedadmm_and_fedpd(seed):
    k = case(seed)
    eta, unpenalised = 1 / (k.L + BETA), k.composite.replace(regulariser=cf.regularisers.L1(0.0))
    ours = path(k.smooth, FedDyn(eta=eta, alpha=BETA, tau=EXACT), 20)
    assert gap(ours, path(k.smooth, FedPD(eta=eta, eta_pd=1 / BETA, tau=EXACT), 20)) < 1e-10
    assert gap(ours, path(unpenalised, FedADMM(eta=eta, rho=BETA, tau=EXACT), 20)) < 1e-10
    # with two local steps from another start they differ
    few = path(k.smooth, FedDyn(eta=eta, alpha=BETA, tau=2), 20)
    assert gap(few, path(k.smooth, FedPD(eta=eta, eta_pd=1 / BETA, tau=2), 20)) > 1e-3


@pytest.mark.parametrize("participants", [None, 2])
def test_the_server_of_feddyn_keeps_the_mean_of_the_linear_terms(participants):
    """h = sum_i p_i q_i after every round, absent clients included; at the limit q_i = grad f_i(x*)."""
    k = case(2)
    trace = cf.simulate(k.smooth, FedDyn(eta=0.5 / k.L, alpha=1.0, tau=3), 7, participants=participants, x0=X0)
    assert trace.state is not None
    (q,) = trace.state.clients
    assert np.abs(q).max() > 0.1
    np.testing.assert_allclose(trace.state.server[1], k.p @ q, rtol=0, atol=1e-13)


# --- ProxGIANT and FedNL: Hessians ---


def penalty(problem: cf.Problem) -> float:
    assert isinstance(problem.regulariser, cf.regularisers.L1)
    return float(problem.regulariser.lam)


def newton_model(gradient: np.ndarray, H: np.ndarray, x: np.ndarray, lam: float) -> np.ndarray:
    """argmin_u <gradient, u - x> + (u - x)^T H (u - x) / 2 + lam ||u||_1, by coordinate descent."""
    u = x.copy()
    for _ in range(2000):
        before = u.copy()
        for j in range(len(u)):
            slope = gradient[j] + H[j] @ (u - x)
            u[j] = soft(u[j] - slope / H[j, j], lam / H[j, j])
        if np.abs(u - before).max() < 1e-14:
            break
    return u


class Logistic(NamedTuple):
    """f_i of a problem with labels of -1 and 1, and its derivatives."""

    A: np.ndarray
    y: np.ndarray
    ridge: float

    def value(self, x: np.ndarray) -> float:
        return float(np.log1p(np.exp(-self.y * (self.A @ x))).mean() + 0.5 * self.ridge * x @ x)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        return -self.A.T @ (self.y / (1 + np.exp(self.y * (self.A @ x)))) / len(self.y) + self.ridge * x

    def hessian(self, x: np.ndarray) -> np.ndarray:
        s = 1 / (1 + np.exp(-(self.A @ x)))
        return (self.A.T * (s * (1 - s))) @ self.A / len(self.y) + self.ridge * np.eye(len(x))


def losses_of(problem: cf.Problem) -> list[Logistic]:
    sites = zip(problem.sites.features, problem.sites.labels, strict=True)
    return [Logistic(A, y, float(problem.loss.ridge)) for A, y in sites]


@pytest.mark.identity(39, "ProxGIANT")
def test_prox_giant_with_equal_hessians_is_proximal_newton():
    """Its step, and the best of its lengths."""
    problem, (f, *_) = alike("logistic"), losses_of(alike("logistic"))
    lam = penalty(problem)
    x, models = X0, [X0]
    for _ in range(4):
        P = newton_model(f.gradient(x), f.hessian(x), x, lam) - x
        trials = [x + 0.5**j * P for j in range(8)]
        x = min(trials, key=lambda u: f.value(u) + lam * np.abs(u).sum())
        models.append(x)
    assert gap(path(problem, ProxGIANT(inner=600), 4), np.array(models)) < 1e-9


@SEEDS
def test_prox_giant_against_the_mean_of_newton_steps(seed):
    """Different Hessians, unequal weights: the mean of the steps, whose limit is x* all the same."""
    k = case(seed)
    lam = penalty(k.composite)

    def objective(x: np.ndarray) -> float:
        return float(k.p @ (0.5 * np.einsum("j,ijk,k->i", x, k.H, x) - k.b @ x) + lam * np.abs(x).sum())

    x, models = X0, [X0]
    for _ in range(3):
        c = k.p @ (k.H @ x - k.b)
        P = k.p @ [newton_model(c, H, x, lam) - x for H in k.H]
        x = min((x + 0.5**j * P for j in range(8)), key=objective)
        models.append(x)
    assert gap(path(k.composite, ProxGIANT(inner=600), 3), np.array(models)) < 1e-9
    assert gap(path(k.composite, ProxGIANT(), 60)[-1], cf.solve_pooled(k.composite).x) < 1e-10


def fednl(problem: cf.Problem, rank: int, rounds: int) -> np.ndarray:
    """Estimates H_i, their errors l_i, and the step with both as they were before the update."""
    fs, p, lam = losses_of(problem), problem.weights, penalty(problem)
    estimates, x, models = np.zeros((len(fs), D, D)), X0, [X0]
    for _ in range(rounds):
        difference = np.array([f.hessian(x) for f in fs]) - estimates
        l = p @ np.sqrt((difference**2).sum(axis=(1, 2)))
        H = np.einsum("i,ijk->jk", p, estimates) + l * np.eye(D)
        x = newton_model(p @ [f.gradient(x) for f in fs], H, x, lam)
        values, vectors = np.linalg.eigh(difference)
        for i in range(len(fs)):
            for j in np.argsort(-np.abs(values[i]))[:rank]:
                estimates[i] += values[i, j] * np.outer(vectors[i, :, j], vectors[i, :, j])
        models.append(x)
    return np.array(models)


@pytest.mark.identity(40, "FedNL")
def test_fednl_that_sends_everything_is_proximal_newton_one_hessian_late():
    problem = logistic(1, weights=True, samples=[30, 60, 30, 20, 40])
    assert gap(path(problem, FedNL(rank=D, inner=600), 5), fednl(problem, D, 5)) < 1e-9


def test_fednl_with_few_eigenvectors_learns_the_hessians(monkeypatch):
    """Against NumPy, without the splitting of equal eigenvalues; with it the limit is the same."""
    problem = logistic(1, weights=True, samples=[30, 60, 30, 20, 40])
    expected = fednl(problem, 2, 6)
    assert gap(path(problem, FedNL(rank=2, inner=601), 40)[-1], cf.solve_pooled(problem).x) < 1e-10
    monkeypatch.setattr("compfed.algorithms.fednl.SPLIT", 0.0)
    assert gap(path(problem, FedNL(rank=2, inner=602), 6), expected) < 1e-9  # another number: compiled anew


@pytest.mark.identity(40, "FedNL")
def test_fednl_that_sends_everything_solves_quadratics_in_two_rounds():
    """The first round learns the Hessian, and the second has l = 0."""
    k = case(2)
    assert gap(path(k.composite, FedNL(rank=D, inner=600), 2)[2], cf.solve_pooled(k.composite).x) < 1e-10


@pytest.mark.identity(41, "FedNL", "ProximalGradient")
@SEEDS
def test_fednl_that_sends_nothing_of_the_hessian_has_a_fixed_metric(seed):
    """l I, which on quadratics is proximal gradient with a step of 1/l."""
    k = case(seed)
    step = 1.0 / float(k.p @ np.sqrt((k.H**2).sum(axis=(1, 2))))
    ours = path(k.composite, FedNL(rank=0), 30)
    assert gap(ours, path(k.composite, ProximalGradient(eta=step), 30)) < 1e-12


def test_a_rank_above_the_dimension_is_refused():
    with pytest.raises(cf.InputError, match=r"FedNL\(rank=9\) sends more eigenvectors than the 8"):
        cf.simulate(case(0).composite, FedNL(rank=9), 1)


# --- on the paper's problem, as theory and earlier measurements have it ---


@pytest.fixture(scope="module")
def paper():
    problem = paper_problem(500)
    return problem, cf.solve_pooled(problem)


@pytest.mark.thorough
def test_prox_giant_and_fednl_on_the_papers_problem(paper):
    """8 and 16 rounds to 1e-3 and 1e-6; FedNL needs 4 and 5, the first of them with all of the Hessians."""
    problem, star = paper
    giant = cf.simulate(problem, ProxGIANT(inner=400), 18, x_star=star)
    assert [giant.first("optimality", level) for level in (1e-3, 1e-6)] == [8, 16]
    full = cf.simulate(problem, FedNL(rank=60, inner=400), 1, x_star=star)
    trace = cf.simulate(problem, FedNL(rank=1, inner=400), 8, x_star=star, resume=full)
    assert [trace.first("optimality", level) for level in (1e-3, 1e-6)] == [4, 5]
    assert trace["optimality"][-1] < 1e-10


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("beta", "tau", "rounds", "error"), [(1.0, 60, 40, 0.62), (0.3, 200, 40, 0.22), (0.1, 400, 25, 6.6e-2)]
)
def test_dane_with_exact_solves_on_the_papers_problem(paper, beta, tau, rounds, error):
    problem, star = paper
    eta = 1 / (float(problem.client_lipschitz.max()) + beta)
    trace = cf.simulate(problem, DANE(eta=eta, beta=beta, tau=tau), rounds, x_star=star, record_every=rounds)
    assert trace["optimality"][-1] == pytest.approx(error, rel=0.02)


# --- costs ---


@pytest.mark.parametrize(
    ("algorithm", "exchanges", "up", "down", "gradients", "values", "hessians", "proxes"),
    [
        (DANE(eta=0.1, tau=3), 2, 2, 2, 4, 0, 0, (3, 0)),
        (SDANE(eta=0.1, lam=1.0, tau=3), 2, 3, 2, 5, 0, 0, (3, 0)),
        (FedDyn(eta=0.1, alpha=1.0, tau=3), 1, 1, 1, 3, 0, 0, (0, 0)),
        (ProxGIANT(inner=7, lengths=D - 1), 3, 3, 3, 1, D, 1, (7, 0)),  # D values up: as many numbers as one vector
        (FedNL(rank=2, inner=7), 1, 1 + 2 + 2 / D, 1, 1, 0, 1, (0, 7)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_cost_of_a_round(algorithm, exchanges, up, down, gradients, values, hessians, proxes):
    cost = cost_of_a_round(algorithm, d=D, dtype=np.dtype("float64"), everyone=True)
    assert (cost.exchanges, cost.vectors_up, cost.vectors_down, cost.gradients) == (exchanges, up, down, gradients)
    scalars = 8 * isinstance(algorithm, FedNL)  # l is not part of a vector, and is sent all the same
    assert (cost.bytes_up, cost.bytes_down) == (8 * D * up + scalars, 8 * D * down)
    assert cost.calls is not None
    assert (cost.calls[2], cost.calls[5]) == (values, hessians)
    assert (cost.client_proxes, cost.server_proxes) == proxes


def test_a_trace_counts_what_was_computed():
    """Rows: one Hessian, one gradient and 9 values of ProxGIANT read every row once each."""
    problem = quadratics(0, n=3, rows=12)
    trace = run_plain(problem, ProxGIANT(), 4)
    assert trace["rows"][-1] == 4 * 12 * (1 + 1 + 9)
    assert (trace["hessians"][-1], trace["values"][-1], trace["exchanges"][-1]) == (4, 36, 12)
