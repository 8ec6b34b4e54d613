"""Where a disclosure policy allows second derivatives on some columns only: they are used, and the model is the same."""

from __future__ import annotations

import numpy as np
import pytest

import compfed as cf
from compfed.federation import DisclosurePolicy, Evaluate, InProcess
from compfed.federation.enrolment import hessian_note

WIDTH, ROWS = 30, 80  # max_hessian_share 0.33 of 80 rows allows 26 of 30 columns


def table(sites: int, rows: int = ROWS) -> cf.data.Sites:
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, (sites * rows, WIDTH))
    w = np.where(np.arange(WIDTH) % 3 == 0, rng.normal(0, 1, WIDTH), 0.0)
    y = (rng.random(len(X)) < 1 / (1 + np.exp(-2 * X @ w))).astype(int)
    return cf.data.from_table(X, y, np.repeat(np.arange(sites), rows))


class Listening(InProcess):
    """Records the coordinates of the Hessians that it is asked for."""

    asked: set[tuple[int, ...]]

    def _carry(self, messages):
        queries = [weighted.query for asked in messages.values() for weighted in asked]
        self.asked |= {tuple(q.coords.tolist()) for q in queries if isinstance(q, Evaluate) and q.coords is not None}
        return super()._carry(messages)


def listening(sites: cf.data.Sites, policy: DisclosurePolicy | None) -> Listening:
    made = Listening(sites, policy=policy, exact=policy is not None)
    made.asked = set()
    return made


@pytest.mark.parametrize(
    ("model", "most"),
    [
        (cf.FederatedLogisticRegression(alpha=0.01, tol=1e-10), 32),  # 64 messages without any Hessian
        (cf.FederatedLogisticRegressionCV(tol=1e-10, n_alphas=20), 46),  # 139 with 50 alphas
    ],
    ids=["fit", "cross-validation"],
)
def test_the_allowed_columns_are_used_and_no_other(model, most):
    """The model is that of sites without a policy; what is asked for stays on 26 columns and the intercept, always the same."""
    sites = table(4)
    walled = listening(sites, DisclosurePolicy(max_hessian_share=0.33))
    model.fit_federation(walled)
    assert len(walled.asked) == 1
    (columns,) = walled.asked
    assert len(columns) == 27
    assert columns[-1] == WIDTH
    assert model.n_rounds_ <= most
    assert model.certificate_.holds
    fixed = {"alpha": getattr(model, "alpha_", 0.01), "tol": 1e-10}
    expected = cf.FederatedLogisticRegression(**fixed).fit_federation(InProcess(sites))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(model.coef_ == 0, expected.coef_ == 0)


def test_a_squared_loss_asks_once():
    """Its second derivatives are the same at every model: 340 messages where they were never asked for."""
    found = cf.FederatedLasso(alpha=0.01).fit_federation(
        walled := listening(table(4), DisclosurePolicy(max_hessian_share=0.33))
    )
    assert len(walled.asked) == 1
    assert found.n_rounds_ <= 20
    expected = cf.FederatedLasso(alpha=0.01).fit_federation(InProcess(table(4)))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(found.coef_ == 0, expected.coef_ == 0)


def test_all_columns_of_all_rows_and_not_of_a_fold():
    """0.33 of 100 rows are more than 30, and of the rows that a fold leaves they are fewer: gradients alone inside the folds."""
    grid = {"alphas": [0.05, 0.02], "cv": 5}
    found = cf.FederatedLogisticRegressionCV(**grid).fit_federation(
        listening(table(4, 100), DisclosurePolicy(max_hessian_share=0.33))
    )
    assert found.n_fits_not_converged_ == 0
    fixed = cf.FederatedLogisticRegression(alpha=found.alpha_).fit_federation(InProcess(table(4, 100)))
    np.testing.assert_allclose(found.coef_, fixed.coef_, rtol=0, atol=1e-8)
    np.testing.assert_array_equal(found.coef_ == 0, fixed.coef_ == 0)


def test_refits_of_folds_ask_for_no_hessian():
    """The columns of all rows are too many for the rows of a fold: over a network a refusal would end the run."""
    grid = {"alphas": [0.05, 0.02], "cv": 5, "relax": True, "gamma": [0.0, 1.0]}
    walled = listening(table(4), DisclosurePolicy(max_hessian_share=0.33))
    found = cf.FederatedLogisticRegressionCV(**grid).fit_federation(walled)
    assert len(walled.asked) == 1
    assert found.n_fits_not_converged_ == 0
    fixed = cf.FederatedLogisticRegression(alpha=found.alpha_, relax=True, gamma=found.gamma_)
    fixed.fit_federation(InProcess(table(4)))
    np.testing.assert_allclose(found.coef_, fixed.coef_, rtol=0, atol=1e-8)


def test_the_note_names_the_sites_and_the_way_out():
    federation = InProcess(table(4), policy=DisclosurePolicy(max_hessian_share=0.33))
    note = hessian_note(federation.names, federation.enrolments)
    assert "0 on 26, 1 on 26, 2 on 26 and 1 more" in note
    assert "at most 26 columns" in note
    assert "about 20 messages" in note
    assert hessian_note(federation.names, InProcess(table(4)).enrolments) == ""


def test_a_tolerance_for_folds_alone():
    """The model of all rows keeps its own tolerance; the losses that choose alpha move by far less than they differ."""
    data = cf.data.bundled.breast_cancer()
    exact, loose = (cf.FederatedLogisticRegressionCV(n_alphas=12, cv=3, cv_tol=tol) for tol in (None, 1e-6))
    for model in (exact, loose):
        model.fit(data.X, data.y, sites=data.sites)
    assert loose.alpha_ == exact.alpha_
    assert loose.certificate_.relative <= 1e-12
    np.testing.assert_allclose(loose.coef_, exact.coef_, rtol=0, atol=1e-9 * np.abs(exact.coef_).max())
    np.testing.assert_allclose(loose.cv_loss_, exact.cv_loss_, atol=2e-4)
    assert loose.communication_.bytes_up < exact.communication_.bytes_up
    with pytest.raises(cf.InputError, match="cv_tol"):
        cf.FederatedLassoCV(cv_tol=-1.0).fit(data.X, data.y, sites=data.sites)
