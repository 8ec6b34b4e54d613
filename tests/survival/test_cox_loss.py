"""The partial likelihood of a site: value, gradient and Hessian against its definition and other programs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from statsmodels.duration.hazard_regression import PHReg
from survival_oracles import NAMES, log_likelihood, table

import compfed as cf
from compfed.errors import InputError
from compfed.losses import CoxPartialLikelihood

TIES = ["efron", "breslow"]


def evaluated(loss, x, A, y, q):
    found = loss.evaluate(
        np.atleast_2d(x), A, y, q[None], np.zeros(len(np.atleast_2d(x)), int), np.linalg.norm(A, axis=1)
    )
    return found.value, found.gradient


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", NAMES)
def test_value_gradient_and_hessian_are_those_of_the_definition(name, ties):
    t, loss = table(name), CoxPartialLikelihood(ties=ties)
    W = t.weight.sum()
    y = loss.encode(t.y, t.cell, t.offset, t.weight)
    models = np.array([[0.3, -0.02, 1.0, 0.2], [0.0, 0.0, 0.0, 0.0]])
    value, gradient = evaluated(loss, models, t.X, y, t.weight / W)
    for k, x in enumerate(models):
        exact = -log_likelihood(x.astype(np.longdouble), t, ties, t.cell, t.offset) / W
        assert value[k] == pytest.approx(float(exact), rel=1e-13)
    x, h = (
        models[0].astype(np.longdouble),
        np.longdouble(1e-5),
    )  # central differences in longdouble: errors of h^2 and eps / h^2
    each = np.eye(4, dtype=np.longdouble) * h * np.array([1, 0.02, 5, 1])
    f = lambda v: -log_likelihood(v, t, ties, t.cell, t.offset) / W  # noqa: E731
    step = np.diag(each)
    differences = np.array([(f(x + e) - f(x - e)) / (2 * s) for e, s in zip(each, step, strict=True)])
    np.testing.assert_allclose(gradient[0], differences.astype(float), rtol=1e-7, atol=1e-9)
    H = loss.hessian(models[0], t.X, y, t.weight / W)
    for i in range(4):
        for j in range(i, 4):
            a, b = each[i], each[j]
            second = (f(x + a + b) - f(x + a - b) - f(x - a + b) + f(x - a - b)) / (4 * step[i] * step[j])
            assert H[i, j] == pytest.approx(float(second), rel=1e-5, abs=1e-6 * np.sqrt(H[i, i] * H[j, j]))
    assert np.linalg.eigvalsh(H)[0] > 0
    W2 = np.array([2, 0])
    np.testing.assert_array_equal(loss.hessian(models[0], t.X, y, t.weight / W, W2), H[np.ix_(W2, W2)])


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("name", ["plain", "ties", "truncated", "lonely"])
def test_equals_statsmodels_at_any_model(name, ties):
    t, loss, x = table(name), CoxPartialLikelihood(ties=ties), np.array([0.5, -0.03, 2.0, -0.4])
    m, y, q = len(t.X), loss.encode(t.y, t.cell), np.full(len(t.X), 1 / len(t.X))
    other: Any = PHReg(t.y[:, -2], t.X, status=t.y[:, -1], entry=t.entry, strata=t.cell.astype(int), ties=ties)
    value, gradient = evaluated(loss, x, t.X, y, q)
    assert -m * value[0] == pytest.approx(other.loglike(x), rel=1e-12)
    np.testing.assert_allclose(-m * gradient[0], other.score(x), rtol=1e-10, atol=1e-9)
    np.testing.assert_allclose(-m * loss.hessian(x, t.X, y, q), other.hessian(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ties", TIES)
def test_rows_of_weight_zero_are_in_no_risk_set(ties):
    t, loss, x = table("everything"), CoxPartialLikelihood(ties=ties), np.array([0.5, -0.03, 2.0, -0.4])
    kept = t.fold != 1
    y = loss.encode(t.y, t.cell, t.offset, t.weight)
    q = np.where(kept, t.weight, 0.0) / t.weight[kept].sum()
    A = t.X.copy()
    A[~kept, 0] = 500.0  # exp would overflow
    whole, without = (
        (*evaluated(loss, x, *rows), loss.hessian(x, *rows), loss.row_curvatures(x, *rows)[0])
        for rows in ((A, y, q), (t.X[kept], y[kept], q[kept]))
    )
    for a, b in zip(whole, without, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14, atol=1e-14 * np.abs(b).max())


def test_many_models_and_subsets_at_once_are_those_one_by_one():
    t, loss = table("everything"), CoxPartialLikelihood()
    y = loss.encode(t.y, t.cell, t.offset, t.weight)
    Q = np.array([np.where(t.fold != k, t.weight, 0.0) / t.weight[t.fold != k].sum() for k in range(3)])
    X = np.random.default_rng(0).standard_normal((7, 4)) * [0.5, 0.05, 2, 0.5]
    which = np.array([0, 1, 2, 0, 2, 1, 1])
    found = loss.evaluate(X, t.X, y, Q, which, np.linalg.norm(t.X, axis=1))
    for k in range(7):
        value, gradient = evaluated(loss, X[k], t.X, y, Q[which[k]])
        np.testing.assert_allclose(found.value[k], value[0], rtol=1e-14)
        np.testing.assert_allclose(found.gradient[k], gradient[0], rtol=1e-10, atol=1e-12)


def test_the_bounds_on_curvature_hold():
    t, loss, x = table("ties"), CoxPartialLikelihood(), np.array([0.5, -0.03, 2.0, -0.4])
    y, q = loss.encode(t.y, t.cell), np.full(len(t.X), 1 / len(t.X))
    A = t.X - t.X.mean(axis=0)
    largest = np.linalg.eigvalsh(loss.hessian(x, A, y, q))[-1]
    L = loss.lipschitz(A, q, x, y)
    assert largest <= L <= loss.lipschitz_upper_bound(A, q, np.linalg.norm(A, axis=1), x, y) * (1 + 1e-12)


def test_no_event_no_loss():
    loss = CoxPartialLikelihood()
    y, A, q = loss.encode(np.column_stack([[3.0, 1.0], [0, 0]])), np.ones((2, 1)), np.full(2, 0.5)
    value, gradient = evaluated(loss, np.ones(1), A, y, q)
    assert value[0] == gradient[0, 0] == loss.hessian(np.ones(1), A, y, q)[0, 0] == 0


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (np.ones(3), "two columns"),
        (np.ones((3, 4)), "two columns"),
        ([[1.0, 2.0]], "0 (censored) and 1"),
        ([[5.0, 5.0, 1.0]], "before its time"),
    ],
)
def test_labels_that_are_none_are_refused(labels, told):
    with pytest.raises(InputError, match=told.replace("(", r"\(").replace(")", r"\)")):
        CoxPartialLikelihood().encode(np.asarray(labels, float))


def test_what_needs_single_rows_refuses_it_by_name():
    sites = cf.data.from_arrays([np.ones((4, 1))], [np.column_stack([[1.0, 2, 3, 4], [1, 0, 1, 0]])])
    told = "CoxPartialLikelihood is a loss of a whole site"
    with pytest.raises(InputError, match=told):
        cf.Problem(CoxPartialLikelihood(), cf.regularisers.L1(0.1), sites)
    X, y = table("plain").X, table("plain").y
    for method in ("FISTA", "DecoupledProx"):
        with pytest.raises(InputError, match=told):
            cf.FederatedCox(algorithm=method).fit(X, y, sites=table("plain").site)
    with pytest.raises(InputError, match="leave-one-out needs the loss of every row"):
        cf.FederatedCoxCV(cv="loo").fit(X, y, sites=None)


LARGE = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))
import numpy as np
from compfed.losses import CoxPartialLikelihood
rng = np.random.default_rng(0)
A, loss = rng.standard_normal((100_000, 20)), CoxPartialLikelihood()
time = rng.exponential(size=100_000)
y = loss.encode(np.column_stack([time * rng.random(100_000), time, rng.random(100_000) < 0.5]))
q, x = np.full(100_000, 1e-5), np.full(20, 0.1)
found = loss.evaluate(np.stack([x, 0 * x]), A, y, q[None], np.zeros(2, int), np.linalg.norm(A, axis=1))
H = loss.hessian(x, A, y, q)
print(bool(np.isfinite(found.value).all() and np.linalg.eigvalsh(H)[0] > 0))
"""


def test_a_large_site_fits_into_memory():
    """Nothing is of rows times rows: that would take 80 GB here."""
    done = subprocess.run([sys.executable, "-c", LARGE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"
