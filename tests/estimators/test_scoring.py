"""The score of a model on rows that stay at their sites is the score of scikit-learn on all of them together."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import r2_score

import compfed as cf
from compfed.federation import InProcess


def sites(columns=("a", "b", "c"), seed=0, outcomes=1) -> cf.data.Sites:
    rng = np.random.default_rng(seed)
    A = [rng.standard_normal((m, len(columns))) + i for i, m in enumerate((7, 12, 3))]
    y = [a @ np.arange(1.0, 1 + len(columns)) + rng.standard_normal(len(a)) + 1e3 for a in A]
    return cf.data.from_arrays(A, [np.c_[v, v] if outcomes == 2 else v for v in y], columns=list(columns))


@pytest.mark.parametrize(
    "model", [cf.FederatedLasso(0.5), cf.FederatedHuber(alpha=0.1), cf.FederatedLassoCV(cv=2, n_alphas=3)]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_r2_is_that_of_the_pooled_rows(model, monkeypatch):
    model.fit_federation(InProcess(sites()))
    others = sites(seed=1)
    A, y = np.concatenate(others.features), np.concatenate(others.labels)
    asked = []
    federation = InProcess(others)
    monkeypatch.setattr(federation, "send", lambda m, send=federation.send: (asked.append(m), send(m))[1])
    expected = r2_score(y, A @ model.coef_ + model.intercept_)
    assert model.score_federation(federation) == pytest.approx(expected, rel=1e-12)
    assert len(asked) == 2


def test_labels_that_are_all_the_same():
    same = cf.data.from_arrays([np.eye(3)], [np.ones(3)], columns=["a", "b", "c"])
    model = cf.FederatedLasso(0.5).fit_federation(InProcess(sites()))
    assert model.score_federation(InProcess(same)) == r2_score(np.ones(3), model.coef_ + model.intercept_)


def test_where_sums_are_not_enough_an_error_says_so():
    model = cf.FederatedLasso(0.5).fit_federation(InProcess(sites()))
    with pytest.raises(cf.InputError, match="site '0' has other columns than the model was fitted with"):
        model.score_federation(InProcess(sites(("a", "b", "d"))))
    with pytest.raises(cf.InputError, match="2 outcomes per row; the model has one"):
        model.score_federation(InProcess(sites(outcomes=2)))
    counts = cf.FederatedPoissonRegressor(alpha=1.0).fit_federation(
        InProcess(cf.data.from_arrays([np.eye(3)], [np.arange(3.0)]))
    )
    with pytest.raises(
        cf.InputError, match=r"FederatedPoissonRegressor needs a prediction for every row.*compare_local_federated"
    ):
        counts.score_federation(InProcess(sites()))
