"""Accelerated and compressed Algorithm 1: what they promise over the plain one."""

from __future__ import annotations

import numpy as np
import pytest
from places import SHARED

import compfed as cf
from compfed.algorithms import FISTA, AcceleratedDecoupledProx, CompressedDecoupledProx, DecoupledProx

A9A = SHARED / "adult_a9a" / "a9a"


def rounds_to(
    problem: cf.Problem, algorithm: cf.algorithms.Algorithm, star: cf.PooledSolution, rounds: int, every: int = 1
) -> float:
    found = cf.simulate(problem, algorithm, rounds, x_star=star, record_every=every).first("optimality", 1e-6)
    return np.inf if found is None else found


@pytest.mark.thorough
def test_acceleration_saves_a_quarter_of_fista_s_rounds(problem, star):
    L_max = problem.client_lipschitz.max()
    ours = rounds_to(problem, AcceleratedDecoupledProx(eta=4 / (5 * L_max), tau=5), star, 120)
    fista = min(rounds_to(problem, FISTA(eta=1 / L), star, 120) for L in (L_max, problem.lipschitz))
    assert ours <= 0.75 * fista


@pytest.mark.thorough
def test_compression_costs_no_more_rounds_and_a_tenth_of_the_bytes(problem, star):
    plain = cf.simulate(problem, DecoupledProx(eta=1.0, tau=5), 500, x_star=star)
    compressed = cf.simulate(problem, CompressedDecoupledProx(eta=1.0, keep=3, tau=5), 500, x_star=star)
    assert compressed["optimality"][plain.first("optimality", 1e-6)] <= 1e-6  # recorded every round
    assert compressed["optimality"][-1] <= 1e-10
    per_round = compressed["bytes_up"][-1] / 500
    assert per_round == 3 * (8 + 4)  # three float64 values and three int32 indices
    assert per_round < 0.1 * plain["bytes_up"][-1] / 500


@pytest.mark.thorough
@pytest.mark.skipif(not A9A.exists(), reason="the a9a data set is not part of the repository")
def test_acceleration_on_a9a():
    from sklearn.datasets import load_svmlight_file

    X, y = load_svmlight_file(str(A9A), n_features=123)  # pyright: ignore[reportAssignmentType]  # two values are returned
    X = X.toarray()
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(y))
    parts = np.array_split(order, 10)
    sites = cf.data.from_arrays([X[p] for p in parts], [y[p] for p in parts])
    problem = cf.Problem(cf.losses.Logistic(ridge=1e-4), cf.regularisers.L1(1e-4), sites)
    star = cf.solve_pooled(problem)
    L_max = problem.client_lipschitz.max()
    eta = 6 / (5 * L_max)
    assert rounds_to(problem, AcceleratedDecoupledProx(eta=eta, tau=5), star, 300, every=20) <= 300
    assert rounds_to(problem, DecoupledProx(eta=eta, tau=5), star, 300, every=20) == np.inf
    assert rounds_to(problem, FISTA(eta=1 / problem.lipschitz), star, 300, every=20) == np.inf
