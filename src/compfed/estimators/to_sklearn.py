"""A fitted model as the scikit-learn estimator that makes the same predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import linear_model
from sklearn.base import BaseEstimator

from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.estimators.classification import FederatedLogisticRegression
from compfed.estimators.regression import (
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedMultiTaskLasso,
    FederatedNuclearRegressor,
    FederatedPoissonRegressor,
)

# The first class that a model is an instance of, and the estimator with the same predictions. Where scikit-learn does not have the
# penalty, plain least squares has the same line.
TWINS: dict[type[FederatedModel], type[Any]] = {
    FederatedLogisticRegression: linear_model.LogisticRegression,
    FederatedPoissonRegressor: linear_model.PoissonRegressor,
    FederatedGammaRegressor: linear_model.GammaRegressor,
    FederatedHuber: linear_model.HuberRegressor,
    FederatedLasso: linear_model.Lasso,
    FederatedElasticNet: linear_model.ElasticNet,
    FederatedGroupLasso: linear_model.LinearRegression,
    FederatedMultiTaskLasso: linear_model.MultiTaskLasso,
    FederatedNuclearRegressor: linear_model.LinearRegression,
}


def to_sklearn(model: Any) -> BaseEstimator:
    """The twin of a fitted model, with its coefficients; refuses a model that scikit-learn has no estimator for."""
    me = type(model).__name__
    found = next((twin for kind, twin in TWINS.items() if isinstance(model, kind)), None)
    if found is None:
        raise InputError(f"{me}.to_sklearn: scikit-learn has no such estimator. Save the model with cf.save_model.")
    if getattr(model, "has_offset_", False):
        raise InputError(
            f"{me}.to_sklearn: the model has an offset, and estimators of scikit-learn take none. Save the model with "
            "cf.save_model, or fit without offset=."
        )
    coef, intercept = np.array(model.coef_, float), np.array(model.intercept_, float)
    if isinstance(model, FederatedMultiTaskLasso | FederatedNuclearRegressor) and model.one_outcome_:
        found, coef, intercept = linear_model.LinearRegression, coef.reshape(-1), intercept.reshape(-1)[0]
    twin: Any = found(fit_intercept=bool(model.fit_intercept))
    if found in (linear_model.LogisticRegression, linear_model.PoissonRegressor, linear_model.GammaRegressor):
        # a fit to one row of zeros for each class sets what scikit-learn keeps to itself, such as the link
        labels: Any = getattr(model, "classes_", np.ones(1))
        twin.fit(np.zeros((len(labels), model.n_features_in_)), labels)
    twin.coef_, twin.n_features_in_, twin.n_iter_ = coef, model.n_features_in_, model.n_iter_
    twin.intercept_ = intercept if intercept.ndim else float(intercept)
    for name in ("classes_", "feature_names_in_"):
        if (value := getattr(model, name, None)) is not None:
            setattr(twin, name, np.array(value))
    return twin
