"""Estimators with scikit-learn's habits: fit(X, y, sites=...) gives the coefficients of the pooled rows."""

from compfed.estimators.cross_validation import (
    FederatedElasticNetCV,
    FederatedGroupLassoCV,
    FederatedHuberCV,
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedMultiTaskLassoCV,
    FederatedNuclearRegressorCV,
    FederatedPoissonRegressorCV,
)
from compfed.estimators.grouped import FederatedGroupLasso
from compfed.estimators.linear import (
    FederatedElasticNet,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
)
from compfed.estimators.logistic import FederatedLogisticRegression
from compfed.estimators.many_outcomes import FederatedMultiTaskLasso, FederatedNuclearRegressor
from compfed.estimators.path import Path, regularisation_path

__all__ = [
    "FederatedElasticNet", "FederatedElasticNetCV", "FederatedGroupLasso", "FederatedGroupLassoCV", "FederatedHuber",
    "FederatedHuberCV", "FederatedLasso", "FederatedLassoCV", "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV", "FederatedMultiTaskLasso", "FederatedMultiTaskLassoCV",
    "FederatedNuclearRegressor", "FederatedNuclearRegressorCV",
    "FederatedPoissonRegressor", "FederatedPoissonRegressorCV", "Path", "regularisation_path",
]  # fmt: skip
