"""scikit-learn's own checks of what calls itself an estimator."""

from __future__ import annotations

from sklearn.utils.estimator_checks import parametrize_with_checks

import compfed as cf

SMALL = {"alphas": [0.1, 0.01], "cv": 2}
ESTIMATORS = [
    cf.FederatedLasso(),
    cf.FederatedElasticNet(),
    cf.FederatedLogisticRegression(),
    cf.FederatedPoissonRegressor(),
    cf.FederatedHuber(),
    cf.FederatedGroupLasso(),
    cf.FederatedMultiTaskLasso(),
    cf.FederatedNuclearRegressor(),
    cf.FederatedLassoCV(**SMALL),
    cf.FederatedElasticNetCV(**SMALL),
    cf.FederatedLogisticRegressionCV(**SMALL),
    cf.FederatedPoissonRegressorCV(**SMALL),
    cf.FederatedHuberCV(**SMALL),
    cf.FederatedGroupLassoCV(**SMALL),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    check(estimator)


def test_every_estimator_is_here():
    assert {type(e).__name__ for e in ESTIMATORS} == {name for name in cf.__all__ if name.startswith("Federated")}
