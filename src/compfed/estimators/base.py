"""What all estimators share: scikit-learn's face over the pipeline.

Arguments that an estimator does not take, as people who know scikit-learn give them: each is told what to give instead.
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, dataclass_transform

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from compfed._utils.progress import progress_bar
from compfed._utils.text import join_names
from compfed._utils.validation import check_bool, check_int, is_number
from compfed.algorithms import Algorithm
from compfed.data import Sites
from compfed.data.columns import check_column_names, check_same_index
from compfed.errors import InputError, NotUniqueWarning, UnknownArgument
from compfed.estimators.programs.fit import Family, Fitted, Plan, fitting
from compfed.estimators.programs.score import scoring
from compfed.estimators.table import (
    NOT_SAID,
    Table,
    check_features,
    check_same_columns,
    check_table,
    column_labels,
    tabulated,
    warn_of_one_site,
)
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, run_program
from compfed.simulation.federation import Simulated
from compfed.solvers.certificate import OUT_OF_REACH
from compfed.solvers.search import FederatedSolution, Search
from compfed.trace import Trace

T = TypeVar("T")
TRUTHS = ("fit_intercept", "standardize", "positive", "verbose")  # parameters that are True or False


def first(default: Any, *, kw_only: Literal[False] = False) -> Any:
    """A field that may also be given by position."""
    return field(default=default, kw_only=kw_only)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(first,))
def estimator(cls: type[T]) -> type[T]:
    """Class decorator: parameters are fields, and the constructor only stores them, as scikit-learn wants it."""
    made: Any = dataclass(eq=False, repr=False, kw_only=True)(cls)
    store, known = made.__init__, [name for name in inspect.signature(made).parameters]

    @functools.wraps(store)
    def __init__(self: Any, *given: Any, **named: Any) -> None:
        check_known(type(self).__name__, named, known)
        store(self, *given, **named)

    made.__init__ = __init__
    return made


@estimator
class FederatedModel(BaseEstimator):
    """A linear model whose rows stay at their sites. Subclasses say which family, and which parameters."""

    fit_intercept: bool = True
    standardize: bool = False
    site_weights: str = "rows"
    algorithm: str | Algorithm = "auto"
    tau: int = 5
    tol: float = 1e-12
    max_rounds: int = 20_000
    seconds_per_round: float = 1.0
    verbose: bool = False

    scored_by_squares = False  # is `score` R^2 of a linear prediction?

    def family(self) -> Family:
        """What is fitted, from the parameters; refuses those that cannot be used."""
        raise NotImplementedError

    # --- fitting ---

    def set_params(self, **params: Any) -> Any:
        """scikit-learn's, with a hint for a name of scikit-learn that is another one here."""
        check_known(type(self).__name__, [name for name in params if "__" not in name], self.get_params(deep=False))
        return super().set_params(**params)

    def fit(self, X: Any, y: Any, *more: Any, sites: Any = NOT_SAID, sample_weight: Any = None) -> Any:
        """Fit over all sites; the coefficients are those of the pooled rows.

        - `sites`: the site of every row, or the name of a column of a DataFrame X. None says that all rows are at one
          site; without a word about sites they are taken for that, too, with a `OneSiteWarning`.
        - `sample_weight`: how much each row counts.
        """
        check_nothing_third(type(self).__name__, more)
        with self._restored_on_failure():
            self.fit_federation(self.tabulated(X, y, sites, sample_weight).federation())
            self._after_a_table(X, sites)
        return self

    @contextmanager
    def _restored_on_failure(self) -> Iterator[None]:
        """Undo every change of attributes if a fit raises: the model of an earlier fit stays complete."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    def _after_a_table(self, X: Any, sites: Any) -> None:
        """What only a fit to a table has to say."""
        if isinstance(sites, str):
            self.site_column_ = sites
        labels = column_labels(self._without_sites(X))
        if labels is not None:
            self.column_labels_ = labels
        warn_of_one_site(type(self).__name__, sites, stacklevel=4)

    def fit_sites(self, sites: Sites) -> Any:
        """Fit over sites from `compfed.data`."""
        if not isinstance(sites, Sites):
            raise InputError(f"fit_sites takes what compfed.data makes (from_files, ...); got {type(sites).__name__}.")
        return self.fit_federation(Simulated(sites))

    def fit_federation(self, federation: Federation) -> Any:
        """Fit over whoever answers: sites in this process, or sites across a network."""
        alpha: Any = getattr(self, "alpha")  # noqa: B009  # a field of every subclass with a given alpha
        fitted, cost = run_program(federation, fitting(federation, self.plan(), float(alpha)))
        with self._restored_on_failure():
            self._publish(federation, fitted, cost)
            minimum = fitted.minimum
            if not minimum.converged:
                warnings.warn(self._why_not(minimum), ConvergenceWarning, stacklevel=2)
            self._warn_if_undecided(fitted, stacklevel=3)
        return self

    def _warn_if_undecided(self, fitted: Fitted, stacklevel: int) -> None:
        named = fitted.undecided
        if named:
            warnings.warn(
                f"{type(self).__name__}: these coefficients are one choice of many with the same objective: those of "
                f"{join_names(named)} can change together at no cost. Some of these columns are the same, or add up to others. "
                "Drop one, or give a penalty with a ridge (l1_ratio < 1), which has one minimiser.",
                NotUniqueWarning,
                stacklevel=stacklevel,
            )

    def _why_not(self, minimum: FederatedSolution) -> str:
        """Why the certificate does not hold, for a person."""
        me = type(self).__name__
        if not minimum.certificate.minimiser_exists:
            return f"{me}: {minimum.notes[-1]}."
        said = f"{minimum.notes[-1][0].upper()}{minimum.notes[-1][1:]}. " if minimum.notes else ""
        stopped = (
            f"{me} stopped after {minimum.rounds} rounds with a gradient mapping of {minimum.certificate.relative:.1e} of "
            f"its scale; tol is {self.tol:g}. {said}"
        )
        if OUT_OF_REACH in minimum.notes:
            return stopped.rstrip()
        return f"{stopped}Give more max_rounds" + (
            ", or another algorithm: this one is not exact." if minimum.algorithm.exact is False else "."
        )

    def plan(self) -> Plan:
        """What to fit and how, from the parameters, checked."""
        me = type(self).__name__
        finite(me, "alpha", getattr(self, "alpha", 0.0))
        tol = finite(me, "tol", self.tol)
        tau, max_rounds = (check_int(getattr(self, name), f"{me}: {name}", 1) for name in ("tau", "max_rounds"))
        if not isinstance(self.site_weights, str) or self.site_weights not in ("rows", "equal"):
            raise InputError(
                f"{me}(site_weights={self.site_weights!r}): site_weights must be 'rows' (every row "
                "counts the same, as if pooled) or 'equal' (every site counts the same)."
            )
        for name in TRUTHS:
            if hasattr(self, name):
                check_bool(getattr(self, name), f"{me}: {name}")
        progress = progress_bar(me, quiet=0.0) if self.verbose else None
        price = finite(me, "seconds_per_round", self.seconds_per_round)
        search = Search(self.algorithm, tau, tol, max_rounds, progress=progress, seconds_per_round=price)
        return Plan(
            self.family(), search, bool(self.fit_intercept), bool(self.standardize), self.site_weights == "equal"
        )

    def tabulated(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> Table:
        """What was given, checked: nothing is computed before this has passed."""
        self.plan()
        if isinstance(sites, str):
            if sites not in getattr(X, "columns", ()):
                raise InputError(
                    f"sites={sites!r} names a column, and X has none of that name. Give a DataFrame with that column, "
                    "or one site per row."
                )
            check_column_names("X", X.columns)
            X, sites = X.drop(columns=sites), X[sites]
        check_table(type(self).__name__, X, y, sites, sample_weight)
        labels = column_labels(X)
        if labels is not None:
            self.family().with_columns(tuple(map(str, labels)))  # which refuses groups that could be meant in two ways
        multi = self.__sklearn_tags__().target_tags.multi_output
        checked = copy.copy(self)  # validate_data sets attributes, which belong to a fit that succeeds
        X, y = validate_data(
            checked, X, y, accept_sparse="csr", multi_output=multi, y_numeric=not hasattr(self, "predict_proba"),
            dtype=np.float64,
        )  # fmt: skip
        columns = getattr(checked, "feature_names_in_", None)
        return tabulated(type(self).__name__, X, self._checked_labels(y), sites, sample_weight, columns)

    def _checked_labels(self, y: np.ndarray) -> np.ndarray:
        """The labels of a table, checked at once; the sites check their own again."""
        return y

    def _publish(self, federation: Federation, fitted: Fitted, cost: Communication) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        prepared, minimum = fitted.prepared, fitted.minimum
        self.coef_, self.intercept_ = prepared.published(minimum.x)
        if prepared.gathered.labels.classes is not None:
            self.classes_ = prepared.gathered.labels.classes
        self.n_features_in_ = prepared.gathered.width
        if prepared.gathered.columns is not None:
            self.feature_names_in_ = np.array(prepared.gathered.columns, dtype=object)
        self.communication_ = cost
        self.n_rounds_ = self.n_iter_ = cost.rounds
        self.trace_ = _with_everything(minimum.trace, cost)
        if events := getattr(
            federation, "events", None
        ):  # of a network: messages repeated, memories lost and made again
            self.trace_.provenance["events"] = list(events)
        self.certificate_ = fitted.certificate
        self.algorithm_ = minimum.algorithm
        self.site_names_ = np.array(federation.names)
        self.one_outcome_ = prepared.gathered.labels.one_column
        if self.verbose:
            reached = "reached" if minimum.converged else "NOT reached"
            told = f"{cost.rounds} messages to each of {len(federation.names)} site(s), {cost.bytes_up / 1e3:.3g} kB up from each"
            sys.stderr.write(f"{type(self).__name__}: tol={self.tol:g} {reached}; {told}\n")

    # --- prediction ---

    def score_federation(self, federation: Federation) -> float:
        """What `score` would give on the rows of all sites together, which stay where they are: R^2, in two messages.

        Only where sums over rows are enough: one outcome, predicted by a line. Other scores look at every row; the mean loss
        on rows that sites hold out is `cf.compare_local_federated`.
        """
        check_is_fitted(self)
        if np.ndim(self.coef_) != 1 or not self.scored_by_squares:
            raise InputError(
                f"the score of {type(self).__name__} needs a prediction for every row, and no site tells those. "
                "cf.compare_local_federated(estimator, federation) gives the mean loss on rows that the sites hold out."
            )
        names = self._names_at_fit()
        columns = None if names is None else tuple(map(str, names))
        return run_program(federation, scoring(federation, self.coef_, float(self.intercept_), columns))[0]  # pyright: ignore[reportArgumentType]  # one outcome

    def linear_predictor(self, X: Any) -> np.ndarray:
        """Predictions z of shape (rows, outputs)."""
        check_is_fitted(self)
        X = self._without_sites(X)
        check_features(type(self).__name__, X)
        check_same_columns(type(self).__name__, X, self._names_at_fit(), np.shape(self.coef_)[-1])
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=np.float64)
        z = X @ np.atleast_2d(self.coef_).T + np.atleast_1d(self.intercept_)
        return np.asarray(z)

    def _names_at_fit(self) -> Any:
        """The names of the columns at fit, words or not; None without any."""
        return getattr(self, "feature_names_in_", getattr(self, "column_labels_", None))

    def _check_scored(self, X: Any, y: Any, sample_weight: Any) -> None:
        """Refuse labels and weights to score with whose index is not that of X."""
        for what, given in (("y", y), ("sample_weight", sample_weight)):
            check_same_index(X, given, what)

    def _without_sites(self, X: Any) -> Any:
        column = getattr(self, "site_column_", None)
        return X.drop(columns=column) if column is not None and column in getattr(X, "columns", ()) else X

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _with_everything(trace: Trace, cost: Communication) -> Trace:
    """The trace of a fit, with set-up and certificates counted before its first row: its last row is the whole."""
    spent = {"round": cost.rounds, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
    return trace.after(**{name: total - trace[name][-1] for name, total in spent.items()})


def finite(me: str, name: str, value: Any) -> float:
    """A parameter, if it is a finite number >= 0."""
    if not is_number(value) or not 0 <= float(value) < np.inf:
        raise InputError(f"{me}({name}={value!r}): {name} must be a finite number >= 0.")
    return float(value)


def checked_ratio(me: str, l1_ratio: Any) -> float:
    """l1_ratio, if it is between 0 and 1."""
    if finite(me, "l1_ratio", l1_ratio) > 1:
        raise InputError(f"{me}(l1_ratio={l1_ratio}): l1_ratio must be between 0 and 1.")
    return float(l1_ratio)


ALWAYS = "there is nothing to set"
# name: what to give instead; {alpha} is "alphas" for an estimator that chooses among several
INSTEAD = {
    "C": "{alpha} = 1 / (C * n) with n rows in all: alpha is the weight of the penalty beside the mean loss",
    "Cs": "{alpha} = 1 / (C * n) with n rows in all: alpha is the weight of the penalty beside the mean loss",
    "penalty": "l1_ratio=1 for 'l1' and l1_ratio=0 for 'l2', where the model has it, and {alpha}=0 for no penalty",
    "alpha": "alphas, a list to choose from; with a given alpha, use the estimator without CV in its name",
    "alphas": "alpha, a number; to choose among several, use the estimator with CV at the end of its name",
    "n_alphas": "alpha, a number; to choose among several, use the estimator with CV at the end of its name",
    "cv": "nothing: alpha is given. To choose it, use the estimator with CV at the end of its name",
    "l1_ratio": "FederatedElasticNet (or FederatedLogisticRegression, FederatedHuber, FederatedPoissonRegressor), which has it",
    "l1_ratios": "one l1_ratio; scikit-learn's GridSearchCV compares several",
    "max_iter": "max_rounds, the most messages to each site",
    "n_iter": "max_rounds, the most messages to each site",
    "solver": "algorithm, 'auto' or a name from `compfed list algorithms`",
    "method": "algorithm, 'auto' or a name from `compfed list algorithms`",
    "n_jobs": f"nothing: all sites work at the same time, and {ALWAYS}",
    "epsilon": "delta, in the units of y",
    "normalize": "standardize=True",
    "standardise": "standardize",
    "normalise": "standardize=True",
    "random_state": f"seed, where folds are drawn; a fit with a given alpha has nothing random and {ALWAYS}",
    "warm_start": f"nothing: a fit takes about a dozen messages from the start, and {ALWAYS}",
    "precompute": f"nothing: {ALWAYS}",
    "copy_X": f"nothing: X is never changed, and {ALWAYS}",
    "selection": f"nothing: {ALWAYS}",
    "dual": f"nothing: {ALWAYS}",
    "intercept_scaling": "fit_intercept alone: the intercept is never penalised",
    "multi_class": "nothing: more than two classes are fitted together (multinomial)",
    "class_weight": "fit(..., sample_weight=...), the weight of every row",
    "sample_weight": "fit(..., sample_weight=...), the weight of every row",
    "sites": "fit(..., sites=...), the site of every row",
    "intercept": "fit_intercept",
}  # fmt: skip
INSTEAD |= dict.fromkeys(
    ("lam", "lambda", "lambda_", "lmbda", "reg", "reg_param", "regularization", "regularisation", "strength"),
    "{alpha}, the weight of the penalty beside the mean loss",
)


def check_known(estimator: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse the first name that is not known."""
    for name in given:
        if name in known:
            continue
        alpha = "alphas" if "alphas" in known else "alpha"
        near = difflib.get_close_matches(name, known, n=1)
        if name in INSTEAD:
            hint = f"Give {INSTEAD[name].format(alpha=alpha)}."
        elif near:
            hint = f"Did you mean {near[0]}?"
        else:
            hint = f"It takes {', '.join(sorted(known))}."
        raise UnknownArgument(f"{estimator} has no parameter {name!r}. {hint}")


def check_nothing_third(estimator: str, given: tuple[Any, ...]) -> None:
    """Refuse fit(X, y, z): to scikit-learn z is the rows' weights, and here it might be their sites."""
    if given:
        raise UnknownArgument(
            f"{estimator}.fit takes X and y by position, and {len(given)} more came: say which they are. "
            "sites=... is the site of every row, sample_weight=... how much every row counts (what scikit-learn takes third)."
        )
