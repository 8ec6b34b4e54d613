"""Estimators with scikit-learn's habits: fit(X, y, sites=...) gives the coefficients of the pooled rows."""

from compfed.estimators.classification import FederatedLogisticRegression
from compfed.estimators.cv import (
    FederatedElasticNetCV,
    FederatedGroupLassoCV,
    FederatedHuberCV,
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedMultiTaskLassoCV,
    FederatedNuclearRegressorCV,
    FederatedPoissonRegressorCV,
)
from compfed.estimators.linear import (
    FederatedElasticNet,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
)
from compfed.estimators.multi_output import FederatedMultiTaskLasso, FederatedNuclearRegressor
from compfed.estimators.path import Path, regularisation_path

__all__ = [
    "FederatedElasticNet", "FederatedElasticNetCV", "FederatedGroupLasso", "FederatedGroupLassoCV", "FederatedHuber",
    "FederatedHuberCV", "FederatedLasso", "FederatedLassoCV", "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV", "FederatedMultiTaskLasso", "FederatedMultiTaskLassoCV",
    "FederatedNuclearRegressor", "FederatedNuclearRegressorCV",
    "FederatedPoissonRegressor", "FederatedPoissonRegressorCV", "Path", "regularisation_path",
]  # fmt: skip
