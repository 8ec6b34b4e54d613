"""scikit-learn's own checks of what calls itself an estimator."""

from __future__ import annotations

import os
from typing import Any

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
# These share `fit` with the other two and differ in their constructor: the checks of that are theirs. All checks, which
# compile for minutes: COMPFED_ALL_CHECKS=1 pytest tests/test_sklearn_checks.py
CONSTRUCTOR_ONLY = ("FederatedElasticNetCV", "FederatedPoissonRegressorCV", "FederatedHuberCV", "FederatedGroupLassoCV")
CONSTRUCTOR_CHECKS = (
    "check_estimator_cloneable", "check_estimator_repr", "check_no_attributes_set_in_init", "check_get_params_invariance",
    "check_set_params", "check_parameters_default_constructible", "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_tags_renamed", "check_valid_tag_types", "check_mixin_order", "check_estimators_unfitted",
)  # fmt: skip


def name_of(check: Any) -> str:
    return getattr(check, "func", check).__name__


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_check(estimator, check):
    thorough = os.environ.get("COMPFED_ALL_CHECKS") or type(estimator).__name__ not in CONSTRUCTOR_ONLY
    if thorough or name_of(check) in CONSTRUCTOR_CHECKS:
        check(estimator)


def test_every_estimator_is_here():
    assert {type(e).__name__ for e in ESTIMATORS} == {name for name in cf.__all__ if name.startswith("Federated")}
