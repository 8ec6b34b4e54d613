"""Estimators with scikit-learn's habits: fit(X, y, sites=...) gives the coefficients of the pooled rows."""

from compfed.estimators.classification import FederatedLogisticRegression
from compfed.estimators.evaluation import Evaluation
from compfed.estimators.kaplan_meier import KaplanMeier, kaplan_meier
from compfed.estimators.path_and_cv import (
    FederatedElasticNetCV,
    FederatedGammaRegressorCV,
    FederatedGroupLassoCV,
    FederatedHuberCV,
    FederatedLassoCV,
    FederatedLogisticRegressionCV,
    FederatedMultiTaskLassoCV,
    FederatedNegativeBinomialRegressorCV,
    FederatedNuclearRegressorCV,
    FederatedPoissonRegressorCV,
    Path,
    regularisation_path,
)
from compfed.estimators.regression import (
    FederatedElasticNet,
    FederatedGammaRegressor,
    FederatedGroupLasso,
    FederatedHuber,
    FederatedLasso,
    FederatedMultiTaskLasso,
    FederatedNegativeBinomialRegressor,
    FederatedNuclearRegressor,
    FederatedPoissonRegressor,
)
from compfed.estimators.summary import Summary
from compfed.estimators.survival import FederatedCox, FederatedCoxCV

__all__ = [
    "Evaluation", "FederatedCox", "FederatedCoxCV",
    "FederatedElasticNet", "FederatedElasticNetCV", "FederatedGammaRegressor", "FederatedGammaRegressorCV",
    "FederatedGroupLasso", "FederatedGroupLassoCV", "FederatedHuber",
    "FederatedHuberCV", "FederatedLasso", "FederatedLassoCV", "FederatedLogisticRegression",
    "FederatedLogisticRegressionCV", "FederatedMultiTaskLasso", "FederatedMultiTaskLassoCV",
    "FederatedNegativeBinomialRegressor", "FederatedNegativeBinomialRegressorCV", "FederatedNuclearRegressor",
    "FederatedNuclearRegressorCV",
    "FederatedPoissonRegressor", "FederatedPoissonRegressorCV", "KaplanMeier", "Path", "Summary",
    "kaplan_meier", "regularisation_path",
]  # fmt: skip
