"""Which method "auto" runs: the one expected to cost the least, with its reasons, and what happens if a site refuses."""

from __future__ import annotations

import re
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from problems import logistic
from sklearn.exceptions import ConvergenceWarning

import compfed as cf
from compfed.algorithms import FISTA, AcceleratedDecoupledProx
from compfed.estimators.path_and_cv import path_over
from compfed.estimators.programs.path_and_cv import AlphaGrid
from compfed.federation import DisclosurePolicy, InProcess, SiteRefusal
from compfed.federation.spec import FederatedProblem
from compfed.solvers.auto import BANDWIDTH, ROUNDS, Choice, choose_method
from compfed.solvers.second_order import ProximalBFGS, ProximalNewton
from compfed.stopping import NO_MINIMISER

SMALL = logistic()
FIRST_ORDER = (AcceleratedDecoupledProx, FISTA)


def matrix_model(loss: Any) -> cf.Problem:
    """A 40 x 40 model whose penalty couples all its 1600 coefficients."""
    rng = np.random.default_rng(0)
    many = isinstance(loss, cf.losses.MultiSquared)
    y = [rng.standard_normal((20, 40)) if many else rng.integers(0, 40, 20) for _ in range(2)]
    sites = cf.data.from_arrays([rng.standard_normal((20, 40)) for _ in range(2)], y)
    return cf.Problem(loss, cf.regularisers.Nuclear(0.1, columns=40), sites)


def choice(problem: cf.Problem, seconds_per_round: float) -> Choice:
    """The automatic choice for a problem."""
    return choose_method(FederatedProblem.of(problem), seconds_per_round)


# --- what it costs ---


def test_an_expensive_round_asks_for_hessians_and_a_free_one_for_gradients():
    """Of 1600 coupled coefficients the Hessian is ten megabytes: worth it only if messages themselves are expensive."""
    problem = matrix_model(cf.losses.Softmax(40))
    assert choice(problem, 10.0).method is ProximalNewton
    assert choice(problem, 0.0).method is ProximalBFGS


def test_the_price_at_which_the_choice_changes_by_hand():
    """N (r + n / b) = B (r + v / b) for rounds N and B, bytes n and v, bandwidth b, solved for the price r of a round."""
    d, N, B = 1600, ROUNDS["ProximalNewton"], ROUNDS["ProximalBFGS"]
    vector = 16 * d  # one each way
    curved = vector + 4 * d + 8 * d * (d + 1) / 2
    price = (N * curved - B * vector) / BANDWIDTH / (B - N)
    assert price > 0
    problem = matrix_model(cf.losses.Softmax(40))
    assert choice(problem, 1.01 * price).method is ProximalNewton
    assert choice(problem, 0.99 * price).method is ProximalBFGS


def test_outputs_that_share_their_hessian_send_it_once():
    """Of squared losses 40 x 40 / 2 numbers serve all forty outputs: worth it at any price."""
    assert choice(matrix_model(cf.losses.MultiSquared(40)), 0.0).method is ProximalNewton


def test_a_model_too_wide_for_its_hessian():
    """3001 coupled coefficients: 36 MB a message are not asked for, however expensive a round is."""
    rng = np.random.default_rng(0)
    sites = cf.data.from_arrays([rng.standard_normal((3, 3001))], [rng.standard_normal(3)])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.TotalVariation1D(0.1), sites)
    assert choice(problem, 1e6).method is ProximalBFGS
    free = problem.replace(regulariser=cf.regularisers.L1(0.1))  # a working set will do
    assert choice(free, 1e6).method is ProximalNewton


def my_loss(w: Any, a: Any, y: Any) -> Any:
    return jnp.logaddexp(0.0, -y * (a @ w))


FIRST_ORDER_CASES = {
    "a penalty that is not convex": lambda: SMALL.replace(regulariser=cf.regularisers.MCP(2e-3, gamma=100.0)),
    "a loss from a function": lambda: cf.Problem(
        cf.losses.from_function(my_loss, np.zeros(8), ridge=0.05), SMALL.regulariser, SMALL.sites
    ),
    "single precision": lambda: SMALL.astype("float32"),
}


@pytest.mark.parametrize("name", FIRST_ORDER_CASES)
def test_first_order_methods_where_second_order_ones_do_not_apply(name):
    """A quadratic model of what is not convex need not have a minimum, and the server computes in double precision."""
    problem = FIRST_ORDER_CASES[name]()
    found = choice(problem, 10.0)
    assert found.method in FIRST_ORDER
    assert "Proximal" not in found.why
    if name == "a loss from a function":  # by its values it is the logistic loss
        minimum = cf.solve_federated(problem, tol=1e-8)
        assert isinstance(minimum.algorithm, FIRST_ORDER)
        np.testing.assert_allclose(minimum.x, cf.solve_pooled(SMALL).x, rtol=0, atol=1e-6)


def test_the_reasons_are_in_the_provenance():
    """All candidates with rounds, bytes and seconds, the chosen one first, and the price."""
    minimum = cf.solve_federated(SMALL, seconds_per_round=0.25)
    why = minimum.trace.provenance["choice"]
    assert "at 0.25 s a round and 10 MB/s" in why
    listed = why.split(": ", 1)[1].split("; ")
    assert [line.split(":")[0] for line in listed] == ["ProximalNewton", "ProximalBFGS", "AcceleratedDecoupledProx"]
    # 12 rounds of 16 * 8 + 4 * 8 + 8 * 36 = 448 bytes, 3 s for the rounds and next to nothing for the bytes
    assert listed[0] == "ProximalNewton: about 12 rounds of 0.448 kB, 3 s"
    assert isinstance(minimum.algorithm, ProximalNewton)
    assert "choice" not in cf.solve_federated(SMALL, "ProximalBFGS").trace.provenance  # nothing was chosen


@pytest.mark.parametrize("price", [-1.0, np.nan, "dear"])
def test_a_price_is_a_number(price):
    with pytest.raises(cf.InputError, match="seconds_per_round"):
        cf.solve_federated(SMALL, seconds_per_round=price)
    with pytest.raises(cf.InputError, match="seconds_per_round"):
        cf.FederatedLasso(seconds_per_round=price).fit(np.eye(3), np.arange(3.0), sites=None)


# --- a site that refuses the Hessian ---


def refusing(sites: cf.data.Sites, refusal: DisclosurePolicy) -> InProcess:
    """The last site refuses, the others do not."""
    return InProcess([*InProcess(sites).sites[:-1], InProcess(sites, refusal).sites[-1]])


NEVER = DisclosurePolicy(max_hessian_share=0.0)


@pytest.mark.parametrize("refusal", [NEVER, DisclosurePolicy(max_hessian_share=0.1)], ids=["never", "so many rows"])
def test_without_a_hessian_it_continues_with_gradients(refusal):
    minimum = cf.solve_federated(SMALL, federation=refusing(SMALL.sites, refusal))
    assert isinstance(minimum.algorithm, ProximalBFGS)
    assert minimum.converged
    assert "site '4' refuses Evaluate" in minimum.trace.provenance["choice"]
    assert "ProximalNewton" not in minimum.trace.provenance["choice"]
    np.testing.assert_allclose(minimum.x, cf.solve_federated(SMALL).x, rtol=0, atol=1e-9)


def test_the_refusal_is_in_the_notes():
    minimum = cf.solve_federated(SMALL, federation=refusing(SMALL.sites, NEVER))
    assert any("site '4' refuses Evaluate" in note for note in minimum.notes)


def test_a_refusal_in_the_midst_of_a_search():
    """The Hessian of a wide model is asked for once its working set is known: that is when the site refuses."""
    rng = np.random.default_rng(0)
    A = [rng.standard_normal((25, 300)) for _ in range(2)]
    sites = cf.data.from_arrays(A, [np.sign(a[:, 0] + 0.5 * rng.standard_normal(25)) for a in A])
    problem = cf.Problem(cf.losses.Logistic(ridge=1e-2), cf.regularisers.L1(0.1), sites)
    minimum = cf.solve_federated(
        problem, federation=refusing(sites, DisclosurePolicy(min_rows=1, min_level_rows=1, max_hessian_share=1.0))
    )
    assert isinstance(minimum.algorithm, ProximalBFGS)
    assert minimum.converged
    for note in (minimum.notes[0], minimum.trace.provenance["choice"]):
        assert re.search(r"site '1' refuses Evaluate: \d+ coordinates are more than 1 of the number of its rows;", note)
    np.testing.assert_allclose(minimum.x, cf.solve_federated(problem).x, rtol=0, atol=1e-8)


@pytest.mark.parametrize("refusal", [NEVER, DisclosurePolicy(max_hessian_share=0.1)], ids=["never", "so many rows"])
def test_asked_for_by_name_the_refusal_is_an_error(refusal):
    with pytest.raises(SiteRefusal, match=r"site '4' refuses Evaluate"):
        cf.solve_federated(SMALL, "ProximalNewton", federation=refusing(SMALL.sites, refusal))


@pytest.fixture(scope="module")
def cancer() -> cf.data.Sites:
    table = cf.data.bundled.breast_cancer()
    return cf.data.from_table(table.X, table.y, table.sites)


def test_a_fit_has_the_same_coefficients_with_and_without_a_refusal(cancer):
    plain, without = (
        cf.FederatedLogisticRegression(0.01).fit_federation(f) for f in (InProcess(cancer), refusing(cancer, NEVER))
    )
    assert isinstance(plain.algorithm_, ProximalNewton)
    assert isinstance(without.algorithm_, ProximalBFGS)
    size = np.concatenate(cancer.features).std(axis=0)
    assert np.linalg.norm((plain.coef_ - without.coef_) * size) <= 1e-6 * np.linalg.norm(plain.coef_ * size)
    np.testing.assert_array_equal(plain.coef_ != 0, without.coef_ != 0)
    assert "allow second derivatives on 0 of " in without.trace_.provenance["choice"]
    # the enrolments say so before the first query: it is never asked for
    assert without.n_rounds_ == 1 + 1 + without.trace_.provenance["rounds"] + 1  # describe, start, search, duality gap
    with pytest.raises(SiteRefusal, match=r"refuses Evaluate"):
        cf.FederatedLogisticRegression(0.01, algorithm="ProximalNewton").fit_federation(refusing(cancer, NEVER))


def test_a_path_has_the_same_coefficients_with_and_without_a_refusal(cancer):
    """Here models share their memory of f instead of its curvature."""
    plain, without = (
        path_over(f, cf.FederatedLogisticRegression(), AlphaGrid("test", None, 10, 0.01))
        for f in (InProcess(cancer), refusing(cancer, NEVER))
    )
    assert plain.converged
    assert without.converged
    size = np.concatenate(cancer.features).std(axis=0)
    whole = np.linalg.norm(plain.coefs[-1] * size)
    assert np.abs((plain.coefs - without.coefs) * size).max() <= 1e-6 * whole
    np.testing.assert_array_equal(plain.coefs[1:] != 0, without.coefs[1:] != 0)


# --- no minimiser ---


def separable() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    return X, (X[:, 0] + X[:, 1] > 0).astype(int), np.arange(60) % 3


@pytest.mark.parametrize("algorithm", ["auto", "ProximalNewton", "ProximalBFGS"])
def test_separable_classes_without_a_penalty_have_no_best_model(algorithm):
    """In a few dozen rounds, and not for ever: F has no minimum, and its gradient vanishes only far away."""
    X, y, sites = separable()
    with pytest.warns(ConvergenceWarning, match="the classes are perfectly separable") as found:
        model = cf.FederatedLogisticRegression(alpha=0.0, algorithm=algorithm).fit(X, y, sites=sites)
    assert [str(w.message) for w in found] == [f"FederatedLogisticRegression: {NO_MINIMISER}."]
    assert "Give a larger alpha" in NO_MINIMISER
    assert model.n_rounds_ <= 100
    assert not model.certificate_.holds
    assert model.score(X, y) == 1.0


@pytest.mark.parametrize("algorithm", ["ProximalNewton", "ProximalBFGS"])
@pytest.mark.parametrize("seed", range(6))
def test_three_separable_classes_have_no_best_model(seed, algorithm):
    """A shift of all classes changes no probability: the Hessian is singular, and vanishes as the coefficients grow."""
    X = np.random.default_rng(seed).standard_normal((100, 5))
    y = np.digitize(X @ [2.0, -1.0, 0.0, 0.0, 1.0], [-1.0, 1.0])
    with pytest.warns(ConvergenceWarning, match="the classes are perfectly separable"):
        model = cf.FederatedLogisticRegression(alpha=0.0, algorithm=algorithm).fit(X, y, sites=np.arange(100) % 3)
    assert not model.certificate_.minimiser_exists
    assert not model.certificate_.holds
    assert model.n_rounds_ <= 100
    assert np.abs(model.coef_).max() < 1e4  # no step into nowhere
    assert model.score(X, y) == 1.0


LOGISTIC, FREE = cf.losses.Logistic(), cf.regularisers.Zero()


@pytest.mark.parametrize("algorithm", ["ProximalNewton", "ProximalBFGS"])
@pytest.mark.parametrize(
    ("loss", "g"),
    [(LOGISTIC, cf.regularisers.Box(-600.0, 600.0)), (cf.losses.Logistic(ridge=1e-12), FREE)],
    ids=["in a box", "with a ridge"],
)
def test_bounds_and_the_least_ridge_make_a_best_model(loss, g, algorithm):
    """A continuous function has a minimum in a box, and a strongly convex one everywhere, however small the loss is there."""
    X, y, sites = separable()
    data = cf.data.from_table(X, np.where(y > 0, 1.0, -1.0), sites)
    minimum = cf.solve_federated(cf.Problem(loss, g, data), algorithm)
    assert minimum.certificate.holds
    z = X @ minimum.x * np.where(y > 0, 1.0, -1.0)
    assert np.logaddexp(0.0, -z).mean() < 1e-6 * np.log(2)  # all but zero, as without a minimum
    assert minimum.certificate.minimiser_exists


def in_part(kind: str) -> tuple[Any, np.ndarray, np.ndarray]:
    """A column that is there in one class alone, or where counts are zero alone: the more of it, the better, without end."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((150, 4))
    there = rng.random(150) < 0.2
    noisy = X[:, 0] + rng.logistic(size=150)
    if "counts" in kind:
        X[:, 3] = there
        log_mean = 0.3 * X[:, 0] + (3.0 if kind == "large counts" else 0.0)  # large counts have a negative loss
        return cf.FederatedPoissonRegressor, X, rng.poisson(np.exp(log_mean)) * ~there
    y = np.digitize(noisy, [0.0] if kind == "two classes" else [-1.0, 1.0])
    X[:, 3] = there & (y == y.max())
    return cf.FederatedLogisticRegression, X, y


@pytest.mark.parametrize("kind", ["two classes", "three classes", "counts", "large counts"])
def test_a_column_that_decides_some_rows_leaves_no_best_model(kind):
    """The gradient vanishes as the coefficient grows, so that a certificate alone would hold."""
    estimator, X, y = in_part(kind)
    sites = np.arange(150) % 3
    with pytest.warns(ConvergenceWarning, match="and the coefficients still grow: a column"):
        model = estimator(alpha=0.0).fit(X, y, sites=sites)
    assert not model.certificate_.minimiser_exists
    assert model.certificate_.relative <= model.tol
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert estimator(alpha=1e-4).fit(X, y, sites=sites).certificate_.holds
        X[:3, 3], y[:3] = 1.0, [0, 1, y.max()]  # and now it is there in all of them
        assert estimator(alpha=0.0).fit(X, y, sites=sites).certificate_.holds


@pytest.mark.parametrize("seed", range(4))
def test_columns_that_add_up_to_others_are_no_reason_to_say_so(seed):
    """There the Hessian has no inverse, and a step is as long as rounding makes it; minimisers there are many of."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((100, 5))
    y = (X[:, 0] + rng.logistic(size=100) > 0).astype(int)
    X = np.column_stack([X, X[:, 0], X[:, 1] + X[:, 2]])
    with pytest.warns(cf.NotUniqueWarning):
        model = cf.FederatedLogisticRegression(alpha=0.0).fit(X, y, sites=np.arange(100) % 3)
    assert model.certificate_.holds


def test_with_a_penalty_or_with_overlap_there_is_a_best_model_and_no_warning():
    X, y, sites = separable()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cf.FederatedLogisticRegression(alpha=1e-4).fit(X, y, sites=sites).certificate_.holds
        y[:6] = 1 - y[:6]
        model = cf.FederatedLogisticRegression(alpha=0.0).fit(X, y, sites=sites)
    assert model.certificate_.holds
    # without a penalty, scores of all columns are in balance with their labels
    z = X @ model.coef_[0] + model.intercept_
    np.testing.assert_allclose(X.T @ (1 / (1 + np.exp(-z)) - y) / 60, 0.0, atol=1e-10)


def test_labels_that_are_met_exactly_have_a_best_model():
    """Squares can be zero at a minimum that exists: that is no reason to warn."""
    X = np.random.default_rng(0).standard_normal((20, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = cf.FederatedLasso(alpha=0.0).fit(X, X @ [1.0, -2.0, 0.5] + 3.0, sites=np.arange(20) % 2)
    np.testing.assert_allclose(model.coef_, [1.0, -2.0, 0.5], rtol=1e-9)
