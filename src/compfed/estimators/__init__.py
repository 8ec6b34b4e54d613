"""Estimators with scikit-learn's habits: fit(X, y, sites=...) gives the coefficients of the pooled rows."""

from compfed.estimators.linear import (
    FederatedElasticNet,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedPoissonRegressor,
)
from compfed.estimators.logistic import FederatedLogisticRegression
from compfed.estimators.many_outcomes import FederatedMultiTaskLasso, FederatedNuclearRegressor

__all__ = [
    "FederatedElasticNet", "FederatedGroupLasso", "FederatedHuber", "FederatedLasso", "FederatedLogisticRegression",
    "FederatedMultiTaskLasso", "FederatedNuclearRegressor", "FederatedPoissonRegressor",
]  # fmt: skip
