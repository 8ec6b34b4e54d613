"""compfed: composite federated learning, min_x sum_i p_i f_i(x) + g(x) over data that stays at n sites."""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from compfed import algorithms, data, engines, federation
from compfed.algorithms import register
from compfed.engines import grid, simulate
from compfed.errors import Divergence, InputError, NotUniqueWarning, OneSiteWarning, RunWarning, StepSizeWarning
from compfed.problem import Problem, losses, regularisers
from compfed.solvers import Minimum, Solution, minimise, solve, steps
from compfed.tools.host_devices import use_all_cores
from compfed.tools.progress import progress_bar
from compfed.trace import Trace

if TYPE_CHECKING:
    from compfed import testing
    from compfed.estimators import (
        FederatedElasticNet,
        FederatedElasticNetCV,
        FederatedGroupLasso,
        FederatedGroupLassoCV,
        FederatedHuber,
        FederatedHuberCV,
        FederatedLasso,
        FederatedLassoCV,
        FederatedLogisticRegression,
        FederatedLogisticRegressionCV,
        FederatedMultiTaskLasso,
        FederatedMultiTaskLassoCV,
        FederatedNuclearRegressor,
        FederatedNuclearRegressorCV,
        FederatedPoissonRegressor,
        FederatedPoissonRegressorCV,
        regularisation_path,
    )
    from compfed.report.paths import plot_path
    from compfed.studies.local_federated import compare_local_federated
    from compfed.studies.local_federated_pooled import compare_local_federated_pooled
    from compfed.studies.methods_compared import compare_methods

__version__ = version("compfed")
__all__ = [
    "Divergence", "FederatedElasticNet", "FederatedElasticNetCV", "FederatedGroupLasso",
    "FederatedGroupLassoCV", "FederatedHuber", "FederatedHuberCV", "FederatedLasso", "FederatedLassoCV",
    "FederatedLogisticRegression", "FederatedLogisticRegressionCV", "FederatedMultiTaskLasso",
    "FederatedMultiTaskLassoCV", "FederatedNuclearRegressor", "FederatedNuclearRegressorCV",
    "FederatedPoissonRegressor", "FederatedPoissonRegressorCV", "InputError", "Minimum", "NotUniqueWarning", "OneSiteWarning",
    "Problem", "RunWarning", "Solution", "StepSizeWarning", "Trace", "algorithms", "compare_local_federated",
    "compare_local_federated_pooled",
    "compare_methods", "data", "engines", "federation", "grid", "losses", "minimise", "plot_path",
    "progress_bar", "register", "regularisation_path", "regularisers", "simulate", "solve", "steps", "testing", "use_all_cores",
]  # fmt: skip


# Where the names are that come with scikit-learn or matplotlib, which take a second to import.
_LATER = {
    "compare_local_federated": "compfed.studies.local_federated",
    "compare_local_federated_pooled": "compfed.studies.local_federated_pooled",
    "compare_methods": "compfed.studies.methods_compared",
    "plot_path": "compfed.report.paths",
}


def __getattr__(name: str) -> Any:
    """Estimators and studies are fetched when first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'compfed' has no attribute {name!r}")
    if name == "testing":
        return importlib.import_module("compfed.testing")
    return getattr(importlib.import_module(_LATER.get(name, "compfed.estimators")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
