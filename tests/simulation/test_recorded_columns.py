"""What is measured at a recorded round, against the formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import compfed as cf
from compfed.losses.lipschitz import largest_eigenvalue
from compfed.problem import local_loss as measures
from compfed.problem import problem as problem_module
from compfed.simulation import columns

D = 5


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    sites = cf.data.synthetic(clients=4, samples=[20, 13, 20, 8], features=D, seed=3)
    return cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(0.01), sites, weights=[0.4, 0.1, 0.2, 0.3])


def by_hand(problem: cf.Problem, ridge: float, lam: float, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """F(x) and ||(x - prox(x - grad f(x) / L)) L|| of each model."""
    A, y = np.concatenate(problem.sites.features), np.concatenate(problem.sites.labels)
    w = np.concatenate([np.full(m, p / m) for m, p in zip(problem.sites.sizes, problem.weights, strict=True)])
    L = 0.25 * np.linalg.eigvalsh((A.T * w) @ A)[-1] + ridge
    margin = y * (X @ A.T)
    objective = np.log1p(np.exp(-margin)) @ w + ridge / 2 * (X**2).sum(axis=1) + lam * np.abs(X).sum(axis=1)
    forward = X - ((-y * w / (1 + np.exp(margin))) @ A + ridge * X) / L
    ahead = np.sign(forward) * np.maximum(np.abs(forward) - lam / L, 0)
    return objective, np.linalg.norm(L * (X - ahead), axis=1)


@pytest.mark.parametrize("at_once", [7, 10, 1000])  # rows of the 80, padding included: with a rest, without, all
def test_models_of_several_problems_are_measured_together(problem, monkeypatch, at_once):
    monkeypatch.setattr(measures, "PREDICTIONS", at_once * columns.BLOCK)
    columns._values_and_gradients.clear_cache()
    measures.objectives_and_mappings.clear_cache()
    assert len(problem.dataset.A) == 80
    settings = [(0.1, 0.01), (0.1, 0.2), (0.3, 0.01), (0.3, 0.01)]
    problems = [problem.replace(cf.losses.Logistic(ridge=r), cf.regularisers.L1(lam)) for r, lam in settings]
    rng = np.random.default_rng(0)
    models = [rng.standard_normal((k, D)) for k in (3, 70, 0, 1)]  # several, more than a block, none, one
    found = columns.evaluate_together(problems, [1.0 / member.lipschitz for member in problems], models)
    for member, (ridge, lam), X, columns_found in zip(problems, settings, models, found, strict=True):
        objective, mapping = by_hand(problem, ridge, lam, X)
        for said in (columns_found, columns.evaluate_models(member, X, 1.0 / member.lipschitz)):
            np.testing.assert_allclose(said["objective"], objective, rtol=1e-12)
            np.testing.assert_allclose(said["gradient_mapping"], mapping, rtol=1e-10)


@pytest.mark.parametrize("count", [2, 16, 17, 33, 64, 100, 128, 230])
def test_blocks_of_any_size_say_the_same_of_every_model(problem, monkeypatch, count):
    """Of large data few models are not filled up to a whole block, and many are more than one."""
    X = np.random.default_rng(1).standard_normal((count, D))
    shapes = []

    def counted(look):
        def of_some(*arrays):
            shapes.append(len(arrays[3]))
            return look(*arrays)

        return of_some

    monkeypatch.setattr(columns, "MANY_ROWS", 1)
    monkeypatch.setattr(columns, "MANY", 128)
    monkeypatch.setattr(columns, "objectives_and_mappings", counted(measures.objectives_and_mappings))
    objective, mapping = by_hand(problem, 0.1, 0.01, X)
    said = columns.evaluate_models(problem, X, 1.0 / problem.lipschitz)
    np.testing.assert_allclose(said["objective"], objective, rtol=1e-12)
    np.testing.assert_allclose(said["gradient_mapping"], mapping, rtol=1e-10)
    assert set(shapes) <= {1, 16, 64, 128}
    assert sum(shapes) < count + 32  # models that nobody asked for


def test_what_follows_from_the_rows_is_worked_out_once(problem, monkeypatch):
    asked = []

    def counted(rows, weights):
        asked.append(len(rows))
        return largest_eigenvalue(rows, weights)

    monkeypatch.setattr(problem_module, "largest_eigenvalue", counted)
    fresh = cf.Problem(problem.loss, problem.regulariser, problem.sites, problem.weights)
    cf.grid(fresh, cf.algorithms.FedDA(eta=0.5, tau=2), 2, {"eta": [0.1, 0.5], "lam": [0.01, 0.1]})
    assert fresh.lipschitz > 0
    assert asked == [4]  # of all four sites together
