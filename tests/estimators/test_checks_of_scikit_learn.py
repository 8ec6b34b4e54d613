"""scikit-learn's own checks of what calls itself an estimator."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

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
    cf.FederatedMultiTaskLassoCV(**SMALL),
    cf.FederatedNuclearRegressorCV(**SMALL),
]
# All estimators share `fit`, and every check compiles for new shapes. `make test` runs all checks of these three, and for
# the others those that fit nothing; `make test-all` runs everything.
REPRESENTATIVE = ("FederatedLasso", "FederatedLogisticRegression", "FederatedLassoCV")
WITHOUT_FIT = (
    "check_estimator_cloneable", "check_estimator_repr", "check_no_attributes_set_in_init", "check_get_params_invariance",
    "check_set_params", "check_parameters_default_constructible", "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_tags_renamed", "check_valid_tag_types", "check_mixin_order", "check_estimators_unfitted",
)  # fmt: skip
# scikit-learn knows of no sites, and some of its tables have more columns than rows
ONE_SITE = pytest.mark.filterwarnings("ignore::compfed.OneSiteWarning", "ignore::compfed.NotUniqueWarning")


def checks(everything: bool) -> list[Any]:
    """(estimator, check) pairs: those of `make test`, or the others."""
    pairs: list[Any] = [pair for estimator in ESTIMATORS for pair in estimator_checks_generator(estimator)]

    def quick(estimator: Any, check: Any) -> bool:
        return type(estimator).__name__ in REPRESENTATIVE or check.func.__name__ in WITHOUT_FIT

    return [
        pytest.param(estimator, check, id=f"{type(estimator).__name__}-{check.func.__name__}")
        for estimator, check in pairs
        if quick(estimator, check) != everything
    ]


@ONE_SITE
@pytest.mark.parametrize(("estimator", "check"), checks(everything=False))
def test_scikit_learn_check(estimator, check):
    check(estimator)


@ONE_SITE
@pytest.mark.thorough
@pytest.mark.parametrize(("estimator", "check"), checks(everything=True))
def test_the_other_checks(estimator, check):
    check(estimator)


def test_every_estimator_is_here():
    assert {type(e).__name__ for e in ESTIMATORS} == {name for name in cf.__all__ if name.startswith("Federated")}
