"""scikit-learn's own checks of what calls itself an estimator."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

import compfed as cf

SMALL = {"alphas": [0.1, 0.01], "cv": 2}
ESTIMATORS = [
    cf.FederatedLasso(),
    cf.FederatedElasticNet(),
    cf.FederatedLogisticRegression(),
    cf.FederatedPoissonRegressor(),
    cf.FederatedGammaRegressor(),
    cf.FederatedNegativeBinomialRegressor(),
    cf.FederatedHuber(),
    cf.FederatedGroupLasso(),
    cf.FederatedMultiTaskLasso(),
    cf.FederatedNuclearRegressor(),
    cf.FederatedCox(),
    cf.FederatedLassoCV(**SMALL),
    cf.FederatedElasticNetCV(**SMALL),
    cf.FederatedLogisticRegressionCV(**SMALL),
    cf.FederatedPoissonRegressorCV(**SMALL),
    cf.FederatedGammaRegressorCV(**SMALL),
    cf.FederatedNegativeBinomialRegressorCV(**SMALL),
    cf.FederatedHuberCV(**SMALL),
    cf.FederatedGroupLassoCV(**SMALL),
    cf.FederatedMultiTaskLassoCV(**SMALL),
    cf.FederatedNuclearRegressorCV(**SMALL),
    cf.FederatedCoxCV(**SMALL),
]
# All estimators share `fit`, and every check compiles for new shapes. `make test` runs all checks of these three, and for
# the others those that fit nothing; `make test-all` runs everything.
REPRESENTATIVE = ("FederatedLasso", "FederatedLogisticRegression", "FederatedLassoCV")
WITHOUT_FIT = (
    "check_estimator_cloneable", "check_estimator_repr", "check_no_attributes_set_in_init", "check_get_params_invariance",
    "check_set_params", "check_parameters_default_constructible", "check_do_not_raise_errors_in_init_or_set_param",
    "check_estimator_tags_renamed", "check_valid_tag_types", "check_mixin_order", "check_estimators_unfitted",
)  # fmt: skip
# scikit-learn knows of no sites, and some of its tables have more columns than rows, or classes that weigh 1e7 to 1
ONE_SITE = pytest.mark.filterwarnings(
    "ignore::compfed.OneSiteWarning",
    "ignore::compfed.NotUniqueWarning",
    "ignore:.*but rounding can hide:sklearn.exceptions.ConvergenceWarning",
)


def checks(everything: bool) -> list[Any]:
    """(estimator, check) pairs: those of `make test`, or the others."""
    pairs: list[Any] = [pair for estimator in ESTIMATORS for pair in estimator_checks_generator(estimator)]

    def quick(estimator: Any, check: Any) -> bool | None:
        if isinstance(estimator, cf.FederatedCox) and check.func.__name__ not in WITHOUT_FIT:
            return None  # their labels have one column, and no times
        return type(estimator).__name__ in REPRESENTATIVE or check.func.__name__ in WITHOUT_FIT

    return [
        pytest.param(estimator, check, id=f"{type(estimator).__name__}-{check.func.__name__}")
        for estimator, check in pairs
        if quick(estimator, check) is (not everything)
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
    estimators = {name for name in cf.__all__ if name.startswith("Federated")} - {"FederatedSolution"}
    assert {type(e).__name__ for e in ESTIMATORS} == estimators


def sections(estimator: Any) -> dict[str, str]:
    """The numpydoc sections of a docstring."""
    _, *rest = re.split(r"^(\w[\w ]+)\n-+\n", inspect.getdoc(type(estimator)) or "", flags=re.MULTILINE)
    return dict(zip(rest[::2], rest[1::2], strict=True))


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_help_lists_every_parameter_with_its_default(estimator):
    """The oracle is the signature; optional parameters are None unless given."""
    doc = sections(estimator)
    assert list(doc) == ["Parameters", "Attributes", "See Also", "Examples"]
    listed = re.findall(r"^(\w+) : .*?(?:, default=(.*)|, optional)$", doc["Parameters"], flags=re.MULTILINE)
    found = {name: ast.literal_eval(default or "None") for name, default in listed}
    assert found == {name: p.default for name, p in inspect.signature(type(estimator)).parameters.items()}
    assert "as in Federated" not in doc["Parameters"].replace("Not 0 as in FederatedPoissonRegressor", "")


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_help_begins_with_what_is_minimised(estimator):
    summary, objective, formula, *_ = (inspect.getdoc(type(estimator)) or "").split("\n\n")
    assert "over sites" in summary
    assert objective.startswith("Minimises over ")
    assert "alpha * " in formula
    documented = set(re.findall(r"^(\w+_) : ", sections(estimator)["Attributes"], flags=re.MULTILINE))
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 3)), np.arange(30) % 2 + 1
    fitted: Any = clone(estimator)
    y = np.column_stack([1.0 + np.arange(30), y - 1]) if isinstance(estimator, cf.FederatedCox) else y
    fitted.fit(X, y, sites=np.arange(30) % 3)
    internal = {"n_iter_", "one_outcome_"}
    assert {name for name in vars(fitted) if name.endswith("_")} - internal == documented - {
        "feature_names_in_",
        "site_intercepts_",
        "schema_",
        # of a fit with agreed times
        "baseline_times_",
        "baseline_cumulative_hazard_",
        "log_risk_at_mean_",
    }


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if hasattr(e, "cv")], ids=lambda e: type(e).__name__)
def test_alpha_is_no_parameter_of_an_estimator_that_chooses_it(estimator):
    assert "alpha" not in estimator.get_params()
    assert not hasattr(estimator, "alpha")
    with pytest.raises(AttributeError, match=r"has no alpha: fit chooses it, as alpha_"):
        _ = estimator.alpha
    with pytest.raises(TypeError, match=r"has no parameter 'alpha'\. Give alphas, a list to choose from"):
        type(estimator)(alpha=0.1)
    again = pickle.loads(pickle.dumps(clone(estimator)))
    assert str(again) == str(estimator)
