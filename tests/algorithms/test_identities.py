"""Identities of Algorithm 1, FedMid, FedDA, Fast-FedDA, proximal gradient and FISTA (rows of the table of identities).

The oracles are NumPy iterations written out here, other algorithms, and the certified minimiser.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import quadratic_oracle, quadratics, soft

import compfed as cf
from compfed.algorithms import FISTA, DecoupledProx, FastFedDA, FedAvg, FedDA, FedMid, ProximalGradient
from compfed.algorithms.fast_fedda import Constant, Linear, Quadratic
from compfed.algorithms.fista import Plain, Restart, StronglyConvex
from compfed.studies.ablation import AblatedProx
from compfed.studies.paper.experiments import eq2_gap, from_fixed_point

SEEDS = [0, 1, 3]
ROUNDS = 12


def keep_model(loss, g, data, algorithm, server, clients):
    return {"model": algorithm.solution(g, server)}


def models(problem: cf.Problem, algorithm: cf.algorithms.Algorithm, rounds: int = ROUNDS, **options) -> np.ndarray:
    """The model after each round."""
    return cf.simulate(problem, algorithm, rounds, measure=keep_model, **options)["model"][1:]


def close(a: np.ndarray, b: np.ndarray, tol: float) -> bool:
    return float(np.abs(a - b).max()) <= tol * max(1.0, float(np.abs(b).max()))


@pytest.fixture(scope="module", params=SEEDS)
def problem(request) -> cf.Problem:
    return quadratics(request.param)


@pytest.fixture(scope="module")
def star(problem) -> cf.PooledSolution:
    return cf.solve_pooled(problem)


def proximal_gradient_by_hand(problem: cf.Problem, step: float, rounds: int, lam: float = 1.0) -> np.ndarray:
    H, b = quadratic_oracle(problem)
    x, out = np.zeros(problem.d), []
    for _ in range(rounds):
        x = soft(x - step * (H.mean(0) @ x - b.mean(0)), step * lam)
        out.append(x)
    return np.array(out)


@pytest.mark.identity(1, "DecoupledProx", "ProximalGradient")
@pytest.mark.parametrize("eta_g", [1.0, 1.7])
def test_one_local_step_is_proximal_gradient(problem, eta_g):
    ours = models(problem, DecoupledProx(eta=0.1, eta_g=eta_g, tau=1))
    by_hand = proximal_gradient_by_hand(problem, 0.1 * eta_g, ROUNDS)
    assert close(ours, by_hand, 1e-14)
    assert close(models(problem, ProximalGradient(eta=0.1 * eta_g)), by_hand, 1e-14)


@pytest.mark.identity(3, "DecoupledProx")
@pytest.mark.parametrize(("eta", "eta_g", "tau"), [(0.1, 1.0, 5), (0.05, 2.0, 3)])
@pytest.mark.parametrize("upload", ["model", "gradient-sum"])
def test_fixed_point(problem, star, eta, eta_g, tau, upload):
    trace = from_fixed_point(problem, star, DecoupledProx(eta=eta, eta_g=eta_g, tau=tau, upload=upload), rounds=10)
    assert trace["optimality"].max() <= 1e-14


@pytest.mark.identity(4, "DecoupledProx")
@pytest.mark.parametrize("rule", ["eta", "eta-tilde", "none"])
def test_other_local_prox_rules_leave_the_minimiser(problem, star, rule):
    trace = from_fixed_point(problem, star, AblatedProx(eta=0.1, tau=5, rule=rule), rounds=60)
    assert trace["optimality"][-1] > 1e-2


@pytest.mark.parametrize("rule", ["growing", "eta", "eta-tilde", "none"])
def test_the_local_prox_shows_in_the_drift(rule):
    """One round from zero, where c = 0, written out: the drift is that of the local models z_tau of the rule itself."""
    problem, eta, tau = quadratics(0), 0.1, 3
    H, b = quadratic_oracle(problem)
    zhat, z = np.zeros((5, 8)), np.zeros((5, 8))
    length = {"growing": lambda t: (t + 1) * eta, "eta": lambda t: eta, "eta-tilde": lambda t: tau * eta}
    for t in range(tau):
        zhat = zhat - eta * (np.einsum("ijk,ik->ij", H, z) - b)
        z = soft(zhat, length.get(rule, lambda t: 0.0)(t))
    ours = DecoupledProx(eta=eta, tau=tau) if rule == "growing" else AblatedProx(eta=eta, tau=tau, rule=rule)
    drift = cf.simulate(problem, ours, 1)["drift"][-1]
    np.testing.assert_allclose(drift, np.linalg.norm(z - z.mean(0), axis=1).mean(), rtol=1e-12)


@pytest.mark.identity(5, "DecoupledProx")
@pytest.mark.parametrize("batch_size", [None, 5])
def test_mean_correction_is_zero_and_server_averages_gradients(problem, batch_size):
    algorithm = DecoupledProx(eta=0.1, eta_g=1.3, tau=4, upload="model")
    trace = cf.simulate(problem, algorithm, 40, batch_size=batch_size, measure=eq2_gap)
    assert trace["correction"].max() <= 1e-12
    assert trace["eq2_gap"][1:].max() <= 1e-12
    assert trace["drift"][1:].max() > 1e-3  # there was something to correct


@pytest.mark.identity(6, "DecoupledProx")
@pytest.mark.parametrize("batch_size", [None, 5])
def test_both_uploads_give_the_same_sequence(problem, batch_size):
    ours = DecoupledProx(eta=0.1, eta_g=1.2, tau=4)
    kinds = [replace(ours, upload=kind) for kind in ("model", "gradient-sum")]
    a, b = (cf.simulate(problem, kind, 60, batch_size=batch_size, seed=3) for kind in kinds)
    assert close(a.x, b.x, 1e-12)
    assert close(a["objective"], b["objective"], 1e-12)


@pytest.mark.identity(7, "DecoupledProx")
@pytest.mark.parametrize("rule", ["eta", "eta-tilde"])
def test_for_an_indicator_the_local_prox_parameter_does_not_matter(rule):
    problem = quadratics(1, g=cf.regularisers.Box(-0.2, 0.3))
    growing, ablated = DecoupledProx(eta=0.1, tau=4), AblatedProx(eta=0.1, tau=4, rule=rule)
    a, b = (cf.simulate(problem, alg, 30) for alg in (growing, ablated))
    assert close(a.x, b.x, 1e-14)
    assert np.isin(a.x, [-0.2, 0.3]).any()  # the box is active


@pytest.mark.identity(8, "DecoupledProx")
def test_converges_to_the_minimiser(problem, star):
    trace = cf.simulate(problem, DecoupledProx(eta=0.05, tau=5), 1500, x_star=star, record_every=500)
    assert np.linalg.norm(trace.x - star) < 1e-12
    assert trace["nonzeros"][-1] == np.count_nonzero(star.x) < problem.d


def fedavg_by_hand(problem: cf.Problem, eta: float, tau: int, rounds: int) -> np.ndarray:
    H, b = quadratic_oracle(problem)
    w, out = np.zeros(problem.d), []
    for _ in range(rounds):
        local = []
        for i in range(problem.n):
            z = w
            for _ in range(tau):
                z = z - eta * (H[i] @ z - b[i])
            local.append(z)
        w = np.mean(local, axis=0)
        out.append(w)
    return np.array(out)


@pytest.mark.identity(11, "FedMid", "FedDA", "FedAvg")
def test_without_a_regulariser_fedmid_and_fedda_are_fedavg():
    problem = quadratics(0, g=cf.regularisers.Zero())
    average = models(problem, FedAvg(eta=0.1, tau=4))
    assert close(average, fedavg_by_hand(problem, 0.1, 4, ROUNDS), 1e-13)
    for prox in ("full", "single", "none"):
        assert np.array_equal(models(problem, FedMid(eta=0.1, tau=4, server_prox=prox)), average)
    assert np.array_equal(models(problem, FedDA(eta=0.1, tau=4)), average)


def one_client(seed: int) -> cf.Problem:
    return quadratics(seed, n=1)


@pytest.mark.identity(12, "FedMid")
@pytest.mark.parametrize("seed", SEEDS)
def test_fedmid_with_full_server_prox_regularises_twice(seed):
    problem = one_client(seed)
    twice = cf.solve_pooled(problem.replace(regulariser=cf.regularisers.L1(2.0)))
    trace = cf.simulate(problem, FedMid(eta=0.1, tau=1), 3000, x_star=twice, record_every=3000)
    assert trace["optimality"][-1] <= 1e-12
    once = cf.simulate(problem, FedMid(eta=0.1, tau=1, server_prox="none"), 3000, record_every=3000)
    assert close(once.x, cf.solve_pooled(problem).x, 1e-12)


def test_fedmid_single_and_full_differ_by_the_number_of_local_steps():
    problem = one_client(0)
    # one round from zero: the local models are the same, only the server's prox differs
    local = cf.simulate(problem, FedMid(eta=0.1, tau=4, server_prox="none"), 1).x
    assert close(cf.simulate(problem, FedMid(eta=0.1, tau=4, server_prox="single"), 1).x, soft(local, 0.1), 1e-14)
    assert close(cf.simulate(problem, FedMid(eta=0.1, tau=4, server_prox="full"), 1).x, soft(local, 0.4), 1e-14)


@pytest.mark.identity(13, "FedDA")
def test_fedda_with_one_step_is_central_dual_averaging(problem):
    H, b = quadratic_oracle(problem)
    z, out = np.zeros(problem.d), []
    for k in range(ROUNDS):
        w = soft(z, 0.1 * k)
        z = z - 0.1 * (H.mean(0) @ w - b.mean(0))
        out.append(soft(z, 0.1 * (k + 1)))
    assert close(models(problem, FedDA(eta=0.1, tau=1)), np.array(out), 1e-14)


@pytest.mark.identity(14, "FedDA")
@pytest.mark.parametrize("seed", SEEDS)
def test_fedda_with_one_client_is_exact(seed):
    problem = one_client(seed)
    star = cf.solve_pooled(problem)
    trace = cf.simulate(problem, FedDA(eta=0.1, tau=5), 2000, x_star=star, record_every=2000)
    assert trace["optimality"][-1] <= 1e-12


def test_fedda_with_different_clients_keeps_a_floor(problem, star):
    trace = cf.simulate(problem, FedDA(eta=0.1, tau=5), 1000, x_star=star, record_every=500)
    assert trace["optimality"][-1] > 1e-2
    assert abs(trace["optimality"][-1] - trace["optimality"][-2]) < 1e-6


@pytest.mark.identity(15, "FastFedDA")
@pytest.mark.parametrize("seed", SEEDS)
def test_fast_fedda_with_one_client_converges(seed):
    problem = one_client(seed)
    star = cf.solve_pooled(problem)
    mu, L = problem.strong_convexity, problem.lipschitz
    trace = cf.simulate(problem, FastFedDA(mu, Constant(L), tau=5), 8000, x_star=star, record_every=8000)
    assert np.linalg.norm(trace.x - star) <= 1e-9


def fast_fedda_by_hand(problem: cf.Problem, mu: float, schedule: str, L: float, tau: int, rounds: int) -> np.ndarray:
    H, b = quadratic_oracle(problem)
    alpha = {"Constant": lambda t: 1.0, "Linear": lambda t: t + 1.0, "Quadratic": lambda t: (t + 1.0) ** 2}[schedule]
    gamma = (lambda t: L) if schedule == "Constant" else (lambda t: L * alpha(t))
    d, n = problem.d, problem.n
    w0 = np.full(d, 0.1)

    def point(G, W, t):
        A = sum(alpha(j) for j in range(t + 1))
        q = 0.5 * mu * A + gamma(t)
        return soft((0.5 * mu * W + gamma(t) * w0 - G) / q, A / q)

    G, W, w, out = np.zeros(d), np.zeros(d), w0, []
    for r in range(rounds):
        sums = []
        for i in range(n):
            g_i, w_i, x = G.copy(), W.copy(), w
            for k in range(tau):
                t = r * tau + k
                g_i, w_i = g_i + alpha(t) * (H[i] @ x - b[i]), w_i + alpha(t) * x
                x = point(g_i, w_i, t)
            sums.append((g_i, w_i))
        G, W = np.mean([s[0] for s in sums], axis=0), np.mean([s[1] for s in sums], axis=0)
        w = point(G, W, r * tau + tau - 1)
        out.append(w)
    return np.array(out)


@pytest.mark.parametrize("schedule", [Constant, Linear, Quadratic])
def test_fast_fedda_is_its_formula(problem, schedule):
    L = problem.lipschitz
    ours = models(problem, FastFedDA(0.1, schedule(L), tau=3), 6, x0=np.full(problem.d, 0.1))
    assert close(ours, fast_fedda_by_hand(problem, 0.1, schedule.__name__, L, 3, 6), 1e-12)


def test_fast_fedda_quadratic_sum_for_any_offset():
    alpha, total, _ = Quadratic(1.0, a=2.5)(7)
    assert np.isclose(total, sum((j + 2.5) ** 2 for j in range(8)), rtol=1e-14)
    assert np.isclose(alpha, 9.5**2, rtol=1e-15)


def fista_by_hand(problem: cf.Problem, rule: str, step: float, q: float, rounds: int) -> np.ndarray:
    H, b = quadratic_oracle(problem)
    x = y = np.zeros(problem.d)
    t, out = 1.0, []
    for _ in range(rounds):
        new = soft(y - step * (H.mean(0) @ y - b.mean(0)), step)
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        beta = (t - 1) / t_new
        if rule == "StronglyConvex":
            t_new, beta = t, (1 - np.sqrt(q)) / (1 + np.sqrt(q))
        if rule == "Restart" and (y - new) @ (new - x) > 0:
            t_new, beta = 1.0, 0.0
        y, x, t = new + beta * (new - x), new, t_new
        out.append(x)
    return np.array(out)


@pytest.mark.parametrize("rule", [Plain(), StronglyConvex(0.05), Restart()])
def test_fista_is_its_formula_and_converges(problem, star, rule):
    step = 1.0 / problem.lipschitz
    name = type(rule).__name__
    assert close(models(problem, FISTA(step, rule), 30), fista_by_hand(problem, name, step, 0.05, 30), 1e-12)
    trace = cf.simulate(problem, FISTA(step, rule), 400, x_star=star, record_every=400)
    assert trace["optimality"][-1] <= (1e-6 if name == "Plain" else 1e-12)


def test_proximal_gradient_rate(problem, star):
    """||x_k - x*||^2 <= (1 - mu/L)^k ||x_0 - x*||^2 with step 1/L."""
    H, _ = quadratic_oracle(problem)
    eigenvalues = np.linalg.eigvalsh(H.mean(0))
    trace = cf.simulate(problem, ProximalGradient(1.0 / eigenvalues[-1]), 60, x_star=star)
    bound = (1 - eigenvalues[0] / eigenvalues[-1]) ** (trace["round"] / 2)
    assert (trace["optimality"] <= bound * (1 + 1e-9) + 1e-13).all()


def test_self_healing_upload_forgets_a_lost_state_and_the_paper_s_does_not(problem, star):
    """One client loses its memory: the gradient sum heals at once, zhat carries the error for ever."""
    final = {}
    for upload in ("model", "gradient-sum"):
        algorithm = DecoupledProx(eta=0.05, tau=5, upload=upload)
        trace = cf.simulate(problem, algorithm, 100, x_star=star, record_every=100)
        assert trace.state is not None
        trace.state.clients[0][2] = 0.0  # the correction of client 2
        final[upload] = cf.simulate(problem, algorithm, 1500, x_star=star, resume=trace)["optimality"][-1]
    assert final["gradient-sum"] < 1e-12
    assert final["model"] > 1e-3
