"""compfed: composite federated learning, min_x sum_i p_i f_i(x) + g(x) over data that stays at n sites."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compfed import algorithms, data, engines, federation, testing
    from compfed import network as network
    from compfed._utils.compilation import use_all_cores
    from compfed._utils.progress import progress_bar
    from compfed.algorithms import register
    from compfed.errors import Divergence, InputError, NotUniqueWarning, OneSiteWarning, RunWarning, StepSizeWarning
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
    from compfed.problem import LazyProblem, Problem, losses, regularisers
    from compfed.report.paths import plot_path
    from compfed.simulation import grid, simulate, simulate_cohorts
    from compfed.solvers import Minimum, Solution, minimise, solve, steps
    from compfed.studies.local_federated import compare_local_federated
    from compfed.studies.local_federated_pooled import compare_local_federated_pooled
    from compfed.studies.methods_compared import compare_methods
    from compfed.trace import Trace

try:
    __version__ = version("compfed")
except PackageNotFoundError:  # the source folder on a path, not installed
    __version__ = "0+unknown"
__all__ = [
    "Divergence", "FederatedElasticNet", "FederatedElasticNetCV", "FederatedGroupLasso",
    "FederatedGroupLassoCV", "FederatedHuber", "FederatedHuberCV", "FederatedLasso", "FederatedLassoCV",
    "FederatedLogisticRegression", "FederatedLogisticRegressionCV", "FederatedMultiTaskLasso",
    "FederatedMultiTaskLassoCV", "FederatedNuclearRegressor", "FederatedNuclearRegressorCV",
    "FederatedPoissonRegressor", "FederatedPoissonRegressorCV", "InputError", "LazyProblem", "Minimum", "NotUniqueWarning",
    "OneSiteWarning", "Problem", "RunWarning", "Solution", "StepSizeWarning", "Trace", "algorithms", "compare_local_federated",
    "compare_local_federated_pooled",
    "compare_methods", "data", "engines", "federation", "grid", "losses", "minimise", "plot_path",
    "progress_bar", "register", "regularisation_path", "regularisers", "simulate", "simulate_cohorts",
    "solve", "steps", "testing", "use_all_cores",
]  # fmt: skip


# Where the names are. JAX, scikit-learn and matplotlib take seconds to import, and a user of one name needs few of them.
_PLACES = {
    "algorithms": "register",
    "engines": "grid simulate simulate_cohorts",
    "errors": "Divergence InputError NotUniqueWarning OneSiteWarning RunWarning StepSizeWarning",
    "problem": "LazyProblem Problem losses regularisers",
    "report.paths": "plot_path",
    "solve": "Solution minimise solve suggest",
    "solvers.search": "Minimum",
    "studies.local_federated": "compare_local_federated",
    "studies.local_federated_pooled": "compare_local_federated_pooled",
    "studies.methods_compared": "compare_methods",
    "tools.host_devices": "use_all_cores",
    "tools.progress": "progress_bar",
    "trace": "Trace",
}
_PLACE = {name: f"compfed.{place}" for place, names in _PLACES.items() for name in names.split()}
_MODULES = (
    "algorithms", "data", "engines", "errors", "estimators", "federation", "problem", "report", "solvers", "studies", "testing",
    "tools", "trace",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used; `network` needs an extra and is in no list."""
    if name == "network":
        return importlib.import_module("compfed.network")
    if name in _MODULES:
        return importlib.import_module(f"compfed.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'compfed' has no attribute {name!r}")
    found = getattr(importlib.import_module(_PLACE.get(name, "compfed.estimators")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
