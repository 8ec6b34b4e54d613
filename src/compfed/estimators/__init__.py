"""Estimators with scikit-learn's habits: fit(X, y, sites=...) gives the coefficients of the pooled rows."""

from compfed.estimators.classification import FederatedLogisticRegression
from compfed.estimators.evaluation import Evaluation
from compfed.estimators.path_and_cv import (
    FederatedElasticNetCV,
    FederatedGroupLassoCV,
    FederatedHuberCV,
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedMultiTaskLassoCV,
    FederatedNuclearRegressorCV,
    FederatedPoissonRegressorCV,
    Path,
    regularisation_path,
)
from compfed.estimators.regression import (
    FederatedElasticNet,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedMultiTaskLasso,
    FederatedNuclearRegressor,
    FederatedPoissonRegressor,
)

__all__ = [
    "Evaluation", "FederatedElasticNet", "FederatedElasticNetCV", "FederatedGroupLasso", "FederatedGroupLassoCV", "FederatedHuber",
    "FederatedHuberCV", "FederatedLasso", "FederatedLassoCV", "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV", "FederatedMultiTaskLasso", "FederatedMultiTaskLassoCV",
    "FederatedNuclearRegressor", "FederatedNuclearRegressorCV",
    "FederatedPoissonRegressor", "FederatedPoissonRegressorCV", "Path", "regularisation_path",
]  # fmt: skip
