"""Sums of replies: against NumPy on the pooled rows; a server program never receives a list of replies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from federation.wired import sites_of, table
from sklearn.exceptions import ConvergenceWarning

import compfed as cf
from compfed import estimators
from compfed.federation import Describe, Evaluate, HeldOut, InProcess, Lipschitz, LocalUpdate, Moments, Rows, Site, ask
from compfed.federation.queries import Description, FinishRound, HeldOutSum, MomentsSum, UpdateSum
from compfed.federation.queries.at_risk import AtRisk
from compfed.federation.queries.lipschitz import BINS, largest_lipschitz, lipschitz_bin
from compfed.federation.server import program
from compfed.federation.server.moments import standardisation
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.splits import Fold

SITES = 7  # no other axis in these tests is as long: an array with this axis would hold one entry per site


def sites(kind: str = "numbers") -> InProcess:
    return InProcess(sites_of(table(kind, sites=SITES)))


def pooled(kind: str = "numbers") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows, all labels, and the number of rows of each site."""
    rows = table(kind, sites=SITES)
    return (
        np.concatenate([A for A, _ in rows]),
        np.concatenate([y for _, y in rows]),
        np.array([len(y) for _, y in rows]),
    )


def test_evaluate_is_the_loss_of_the_pooled_rows():
    """With p_i the shares of the rows: value, gradient and Hessian of the mean squared error over all rows, halved."""
    A, y, rows = pooled()
    x = np.array([[0.3, -1.0, 0.2, 0.0], [0.0, 2.0, 0.0, 1.0]])
    coords = np.array([2, 0])
    query = Evaluate(ObjectiveSpec(cf.losses.Squared()), x, coords)
    (summed,) = ask(sites(), query, weights=rows / rows.sum())
    for k, v in enumerate(x):
        residual = A @ v - y
        np.testing.assert_allclose(summed.value[k], residual @ residual / (2 * len(y)), rtol=1e-12)
        np.testing.assert_allclose(summed.gradient[k], A.T @ residual / len(y), rtol=1e-11)
        hessian = A[:, coords].T @ A[:, coords] / len(y)
        np.testing.assert_allclose(summed.hessian[k], hessian[np.triu_indices(2)], rtol=1e-12)


def test_equal_weights_count_every_site_once():
    """With p_i = 1/n the gradient is the mean of the sites' gradients, however many rows they have."""
    x = np.array([[0.3, -1.0, 0.2, 0.0]])
    (summed,) = ask(sites(), Evaluate(ObjectiveSpec(cf.losses.Squared()), x), weights=np.full(SITES, 1 / SITES))
    each = [A.T @ (A @ x[0] - y) / len(y) for A, y in table("numbers", sites=SITES)]
    np.testing.assert_allclose(summed.gradient[0], np.mean(each, axis=0), rtol=1e-12)


def test_held_out_losses_and_descriptions_are_those_of_the_pooled_rows():
    A, y, rows = pooled("three")
    x = np.array([[0.3, -1.0, 0.2, 0.0]])
    folds = [Fold(k, 3, 5, np.arange(SITES), by_class=False, held_out=True) for k in range(3)]
    federation, objective = sites("three"), ObjectiveSpec(cf.losses.Squared())
    description, *held_out = ask(federation, Describe(classes=True), *(HeldOut(objective, fold, x) for fold in folds))
    # every row is held out once
    assert sum(found.weight for found in held_out) == len(y)
    np.testing.assert_allclose(sum(found.loss for found in held_out), np.sum((A @ x[0] - y) ** 2) / 2, rtol=1e-12)
    classes, counts = np.unique(y, return_counts=True)
    np.testing.assert_array_equal(description.classes, classes)
    np.testing.assert_array_equal(description.class_weights, counts)
    np.testing.assert_array_equal(description.rows, rows)
    (numbers,) = ask(federation, Describe())
    np.testing.assert_allclose(numbers.label_sum, y.sum(), rtol=1e-12)


def test_updates_are_added_with_the_weights_of_the_participants():
    """FISTA uploads a gradient: the weighted sum of the sites' gradients at the broadcast point."""
    y0 = np.array([0.5, 0.0, -0.2, 0.1])
    objective = ObjectiveSpec(cf.losses.Squared())
    run = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), objective, np.zeros(4), 0, None, 40)
    weights = np.arange(1.0, 1.0 + SITES)
    (summed,) = ask(sites(), LocalUpdate(run, 0, 0, {"y": y0}), weights=weights)
    rows = table("numbers", sites=SITES)
    expected = sum(w * A.T @ (A @ y0 - b) / len(b) for w, (A, b) in zip(weights, rows, strict=True))
    assert summed.finite
    np.testing.assert_allclose(summed.u.gradient, expected, rtol=1e-11)


# --- the largest Lipschitz constant, from counts ---


def test_the_sum_of_the_counts_bounds_the_largest_lipschitz_constant():
    """Within 9 % of the largest eigenvalue of A^T A / rows over the sites, from counts that name no site."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = [(rng.standard_normal((12, 3)) * 10 ** rng.uniform(-3, 3), np.zeros(12)) for _ in range(SITES)]
        (summed,) = ask(InProcess(sites_of(rows)), Lipschitz(ObjectiveSpec(cf.losses.Squared())))
        exact = [np.linalg.eigvalsh(A.T @ A / len(A))[-1] for A, _ in rows]
        assert summed.counts.sum() == SITES
        np.testing.assert_allclose(summed.L, sum(exact), rtol=1e-6)
        assert max(exact) * (1 - 1e-9) <= largest_lipschitz(summed.counts) <= 1.0906 * max(exact)


@pytest.mark.parametrize("L", [1.0, 1.09, 2.0**-255.99, 3e76, 2.0**-8 * (1 - 1e-12)])
def test_bins_of_lipschitz_constants(L):
    counts = np.zeros(BINS, int)
    counts[lipschitz_bin(L)] = 1
    assert L <= largest_lipschitz(counts) <= L * 2**0.125 * (1 + 1e-12)


def test_lipschitz_constants_beyond_the_bins():
    for L, bound in ((0.0, 2.0**-255.875), (1e-300, 2.0**-255.875), (1e300, np.inf)):
        counts = np.zeros(BINS, int)
        counts[lipschitz_bin(L)] = 1
        assert largest_lipschitz(counts) == pytest.approx(bound)


def test_an_upper_bound_has_no_counts():
    (summed,) = ask(sites(), Lipschitz(ObjectiveSpec(cf.losses.Squared()), upper_bound=True))
    assert summed.counts is None
    exact = [np.linalg.eigvalsh(A.T @ A / len(A))[-1] for A, _ in table("numbers", sites=SITES)]
    assert sum(exact) <= summed.L


# --- a server program receives sums only ---

SUM_TYPES = (
    AtRisk.Reply,
    Description,
    HeldOutSum,
    MomentsSum,
    UpdateSum,
    Evaluate.Reply,
    Lipschitz.Reply,
    FinishRound.Reply,
)
# of a description
PER_SITE = {
    "rows",
    "weights",
    "widths",
    "columns",
    "label_kinds",
    "label_shapes",
    "offsets",
    "site_classes",
}


def values(thing: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """(field, value) of every array and every sequence in a sum."""
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        for name, value in zip(thing._fields, thing, strict=True):  # pyright: ignore[reportAttributeAccessIssue]
            yield from values(value, name)
    elif is_dataclass(thing):
        for f in fields(thing):
            yield from values(getattr(thing, f.name), f.name)
    elif isinstance(thing, dict):
        for name, value in thing.items():
            yield from values(value, name)
    elif isinstance(thing, (tuple, list)):
        yield field, thing
        for value in thing:
            yield from values(value, field)
    elif np.ndim(thing):
        yield field, thing


@pytest.fixture
def received(monkeypatch) -> list[object]:
    """All sums that any server program is handed while the test runs."""
    seen: list[object] = []
    advance = program._advance

    def recording(running: Any, sums: Any) -> Any:
        seen.extend(summed for request in sums or () for summed in request)
        return advance(running, sums)

    monkeypatch.setattr(program, "_advance", recording)
    return seen


ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "FederatedLasso": ("numbers", {"alpha": 0.3}),
    "FederatedElasticNet": ("numbers", {"alpha": 0.3}),
    "FederatedHuber": ("numbers", {"alpha": 0.3}),
    "FederatedGroupLasso": ("numbers", {"alpha": 0.3, "groups": [0, 0, 1, 1]}),
    "FederatedLogisticRegression": ("words", {"alpha": 0.05}),
    "FederatedPoissonRegressor": ("counts", {"alpha": 0.1}),
    "FederatedNegativeBinomialRegressor": ("counts", {"alpha": 0.1}),
    "FederatedGammaRegressor": ("amounts", {"alpha": 0.1}),
    "FederatedCox": ("survival", {"alpha": 0.05, "times": [3.0, 9.0]}),
    "FederatedMultiTaskLasso": ("two", {"alpha": 0.3}),
    "FederatedNuclearRegressor": ("two", {"alpha": 0.3}),
}


def check_sums(received: list[object]) -> None:
    assert received
    for summed in received:
        assert isinstance(summed, SUM_TYPES), type(summed)
        for field, value in values(summed):
            if not (isinstance(summed, Description) and field in PER_SITE):
                assert SITES not in np.shape(value), (type(summed).__name__, field)


@pytest.mark.parametrize("name", [n for n in estimators.__all__ if n.startswith("Federated")])
def test_no_estimator_receives_a_list_of_replies(name, received):
    kind, options = ESTIMATORS[name.removesuffix("CV")]
    if name.endswith("CV"):
        options = {key: value for key, value in options.items() if key != "alpha"} | {
            "n_alphas": 2,
            "eps": 0.3,
            "cv": 3,
        }
    getattr(cf, name)(**options).fit_federation(sites(kind))
    check_sums(received)


@pytest.mark.parametrize("name", ["DecoupledProx", "CompressedDecoupledProx", "FedDR"])
def test_no_method_receives_a_list_of_replies(name, received):
    model = cf.FederatedLasso(0.3, algorithm=name, max_rounds=12)
    with pytest.warns(ConvergenceWarning):
        model.fit_federation(sites())
    check_sums(received)
    assert any(isinstance(summed, UpdateSum) for summed in received)


def test_moments_of_sites_with_other_columns_are_not_added():
    A, y = table("numbers")[0]
    odd = InProcess([Site(Rows(A, y, name="a", index=0)), Site(Rows(A[:, :3], y, name="b", index=1))])
    for add in (lambda: ask(odd, Moments()), lambda: standardisation(odd)):
        with pytest.raises(cf.InputError, match="site 'b' has 3 columns, site 'a' has 4 columns"):
            add()
    with pytest.raises(cf.InputError, match="site 'b' has 3 columns, site 'a' has 4 columns"):
        cf.FederatedLasso().fit_federation(odd)
