"""compfed: composite federated learning, min_x sum_i p_i f_i(x) + g(x) over data that n sites hold."""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compfed import algorithms as algorithms
    from compfed import data as data
    from compfed import federation as federation
    from compfed import losses as losses
    from compfed import network as network
    from compfed import regularisers as regularisers
    from compfed import simulation as simulation
    from compfed import testing as testing
    from compfed._utils.compilation import use_all_cores as use_all_cores
    from compfed._utils.text import progress_bar as progress_bar
    from compfed.algorithms import register as register
    from compfed.errors import ClassesDifferWarning as ClassesDifferWarning
    from compfed.errors import Divergence as Divergence
    from compfed.errors import EdgeOfGridWarning as EdgeOfGridWarning
    from compfed.errors import InputError as InputError
    from compfed.errors import LeftOutWarning as LeftOutWarning
    from compfed.errors import NotUniqueWarning as NotUniqueWarning
    from compfed.errors import OneSiteWarning as OneSiteWarning
    from compfed.errors import RunWarning as RunWarning
    from compfed.errors import StepSizeWarning as StepSizeWarning
    from compfed.estimators import *  # noqa: F403  # pyright: ignore[reportWildcardImportFromLibrary]  # the estimators, and `regularisation_path`
    from compfed.estimators.model_file import load_model as load_model
    from compfed.estimators.model_file import save_model as save_model
    from compfed.federation.tables import describe as describe
    from compfed.problem import LazyProblem as LazyProblem
    from compfed.problem import Problem as Problem
    from compfed.report.coefficient_figures import plot_coefficients as plot_coefficients
    from compfed.report.coefficient_figures import plot_comparison as plot_comparison
    from compfed.report.coefficient_figures import plot_cv as plot_cv
    from compfed.report.coefficient_figures import plot_path as plot_path
    from compfed.report.figures import plot_convergence as plot_convergence
    from compfed.report.page import write_report as write_report
    from compfed.report.style import save_figure as save_figure
    from compfed.schema import CategoricalColumn as CategoricalColumn
    from compfed.schema import Label as Label
    from compfed.schema import NumericColumn as NumericColumn
    from compfed.schema import Schema as Schema
    from compfed.simulation import grid as grid
    from compfed.simulation import simulate as simulate
    from compfed.simulation import simulate_out_of_core as simulate_out_of_core
    from compfed.solve import PooledSolution as PooledSolution
    from compfed.solve import solve_federated as solve_federated
    from compfed.solve import solve_pooled as solve_pooled
    from compfed.solvers.base import FederatedSolution as FederatedSolution
    from compfed.studies.compare_methods import compare_methods as compare_methods
    from compfed.studies.compare_sites import compare_local_federated as compare_local_federated
    from compfed.studies.frames import to_frame as to_frame
    from compfed.trace import Trace as Trace

try:
    __version__ = version("compfed")
except PackageNotFoundError:  # the source folder on a path, not installed
    __version__ = "0+unknown"

# Public names, by the module they come from. Each is imported when it is first used: JAX, scikit-learn and matplotlib take
# seconds to import, and a user of one name needs few of them.
_NAMES = {
    "_utils.compilation": "use_all_cores",
    "_utils.text": "progress_bar",
    "algorithms": "register",
    "errors": "ClassesDifferWarning Divergence EdgeOfGridWarning InputError LeftOutWarning NotUniqueWarning OneSiteWarning RunWarning "
    "StepSizeWarning",
    "estimators": "Evaluation FederatedCox FederatedCoxCV "
    "FederatedElasticNet FederatedElasticNetCV FederatedGammaRegressor FederatedGammaRegressorCV "
    "FederatedGroupLasso FederatedGroupLassoCV FederatedHuber "
    "FederatedHuberCV FederatedLasso FederatedLassoCV FederatedLogisticRegression FederatedLogisticRegressionCV "
    "FederatedMultiTaskLasso FederatedMultiTaskLassoCV FederatedNegativeBinomialRegressor "
    "FederatedNegativeBinomialRegressorCV FederatedNuclearRegressor FederatedNuclearRegressorCV "
    "FederatedPoissonRegressor FederatedPoissonRegressorCV KaplanMeier Summary kaplan_meier regularisation_path",
    "estimators.model_file": "load_model save_model",
    "federation.tables": "describe",
    "problem": "LazyProblem Problem",
    "report.coefficient_figures": "plot_coefficients plot_comparison plot_cv plot_path",
    "report.figures": "plot_convergence",
    "report.page": "write_report",
    "report.style": "save_figure",
    "simulation": "grid simulate simulate_out_of_core",
    "schema": "CategoricalColumn Label NumericColumn Schema",
    "solve": "PooledSolution solve_federated solve_pooled",
    "solvers.base": "FederatedSolution",
    "studies.compare_methods": "compare_methods",
    "studies.compare_sites": "compare_local_federated",
    "studies.frames": "to_frame",
    "trace": "Trace",
}
_MODULES = ["algorithms", "data", "federation", "losses", "regularisers", "simulation", "testing"]
_HOME = {name: f"compfed.{module}" for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_HOME, *_MODULES])  # pyright: ignore[reportUnsupportedDunderAll]  # `network` needs an extra


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name in _HOME:
        globals()[name] = found = getattr(importlib.import_module(_HOME[name]), name)
        return found
    if name in (*_MODULES, "network", "errors", "estimators", "problem", "report", "solvers", "studies", "trace"):
        return importlib.import_module(f"compfed.{name}")
    raise AttributeError(f"module 'compfed' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
