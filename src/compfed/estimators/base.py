"""The base class of all estimators: scikit-learn's interface over the server programs."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from compfed._utils.text import join_names, progress_bar
from compfed._utils.validation import check_bool, check_choice, check_int, check_nonnegative, check_same_index
from compfed.algorithms import Algorithm
from compfed.data import Sites
from compfed.data.columns import is_dataframe
from compfed.data.encoding import Encoded
from compfed.data.frames import encode_frame, encode_to_predict, labels_as_encoded
from compfed.errors import InputError, NotUniqueWarning, UnknownArgument
from compfed.estimators import table as tables
from compfed.estimators.programs import fit as programs
from compfed.estimators.programs.fit import Family, FitOptions, Fitted
from compfed.estimators.table import UNSPECIFIED, Features, RowWeights, SchemaLike, SiteOfRows, Table
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, run_program
from compfed.schema import Schema
from compfed.simulation.local_federation import Simulated
from compfed.solvers.base import FederatedSolution, SearchOptions, SecondOrder
from compfed.stopping import OUT_OF_REACH

T = TypeVar("T")


# --- how an estimator is defined ---


def first(default: Any, *, kw_only: Literal[False] = False) -> Any:
    """A field that may also be given by position."""
    return field(default=default, kw_only=kw_only)


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(first,))
def estimator(cls: type[T]) -> type[T]:
    """Class decorator: fields are parameters, which the constructor only stores, and the docstring lists all of them."""
    made: Any = dataclass(eq=False, repr=False, kw_only=True)(cls)
    store, known = made.__init__, list(inspect.signature(made).parameters)

    @functools.wraps(store)
    def __init__(self: BaseEstimator, *given: object, **named: object) -> None:
        check_known(type(self).__name__, named, known)
        store(self, *given, **named)

    made.__init__ = __init__
    if made.__doc__:  # python -OO has none
        made._own_doc, made.__doc__ = made.__doc__, _full_docstring(made, known)
    return made


def _full_docstring(cls: type, parameters: Collection[str]) -> str:
    """The docstring of an estimator, with the parameters and attributes that its base classes document.

    A class documents its own ones, and overrides those of its bases by name. Without a description of its own, it has the
    descriptions of its bases.
    """
    bases = [base for base in cls.__mro__ if issubclass(base, BaseEstimator) and base is not BaseEstimator]
    docs = [_sections(vars(base).get("_own_doc", base.__doc__) or "") for base in bases]
    summary, _, description = docs[0].pop("").partition("\n\n")
    inherited = [doc[""].partition("\n\n")[2] for doc in reversed(docs[1:])]
    entries: dict[str, dict[str, str]] = {"Parameters": {}, "Attributes": {}}
    for name, found in entries.items():
        for doc in reversed(docs):
            found |= {entry.split(" : ")[0]: entry for entry in re.split(r"\n(?=\S)", doc.get(name, "")) if entry}
    declared = dict.fromkeys(name for base in bases for name in vars(base).get("__annotations__", ()))
    listed = {
        "Parameters": [text for name in declared if name in parameters and (text := entries["Parameters"].get(name))],
        "Attributes": list(entries["Attributes"].values()),
    }
    sections = {name: "\n".join(texts) for name, texts in listed.items()}
    sections |= {name: text for name, text in docs[0].items() if name not in sections}
    text = [summary, description or "\n\n".join(filter(None, inherited))]
    return "\n\n".join([*text, *(f"{name}\n{'-' * len(name)}\n{body}" for name, body in sections.items())])


def _sections(doc: str) -> dict[str, str]:
    """The numpydoc sections of a docstring; "" is the text before the first."""
    before, *rest = re.split(r"^(\w[\w ]+)\n-{3,}\n", inspect.cleandoc(doc), flags=re.MULTILINE)
    return {"": before.strip()} | {name: body.strip("\n") for name, body in zip(rest[::2], rest[1::2], strict=True)}


# --- the base class ---


@estimator
class FederatedModel(BaseEstimator):
    """Base class of the estimators: a linear model whose rows stay at their sites.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is never penalised.
    standardize : bool, default=False
        Whether to penalise the coefficients of standardised features (pooled mean and standard deviation, from sums over
        the sites). `coef_` is on the original scale either way.
    site_weights : {"rows", "equal"}, default="rows"
        "rows": every row counts the same, as in the pooled table. "equal": every site counts the same; the mean over rows
        is then the mean over sites of each site's own mean.
    algorithm : str, Algorithm, ProximalNewton or ProximalBFGS, default="auto"
        "auto", the name of a method (`compfed list algorithms`), or one with steps of your own. "auto" takes the method
        whose rounds and bytes are expected to cost the least; ``trace_.provenance["choice"]`` says why.
    tau : int, default=5
        Local steps per round, for methods that have them.
    tol : float, default=1e-12
        Stop when the gradient mapping is at most `tol` times the gradient at the null model, which has no features.
    max_rounds : int, default=20000
        Stop after so many rounds, with a ConvergenceWarning.
    seconds_per_round : float, default=1.0
        Cost of a message beside its bytes, for the choice that "auto" makes.
    verbose : bool, default=False
        Whether to report progress on the error stream: a bar on a terminal, lines elsewhere.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Coefficients, on the original scale of the features.
    intercept_ : float
        The intercept; 0.0 without one.
    certificate_ : Certificate
        How far the model can be from the minimiser: gradient mapping, duality gap, uniqueness, rounding.
    n_rounds_ : int
        Messages to each site, set-up and certificate included. `n_iter_` is the same number.
    communication_ : Communication
        Messages and bytes, by query.
    trace_ : Trace
        Objective, gradient mapping and costs, one row per evaluation.
    algorithm_ : Algorithm, ProximalNewton or ProximalBFGS
        The method that was used, with its steps.
    site_names_ : ndarray of str
        The sites.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of str
        Names of the features, where the columns of X have names; with a schema those of the encoded ones ("sex=male").
    schema_ : Schema
        How the features and labels were encoded, where the fit had a schema.
    """

    fit_intercept: bool = True
    standardize: bool = False
    site_weights: str = "rows"
    algorithm: str | Algorithm | SecondOrder = "auto"
    tau: int = 5
    tol: float = 1e-12
    max_rounds: int = 20_000
    seconds_per_round: float = 1.0
    verbose: bool = False

    scored_by_squares = False  # is `score` R^2 of a linear prediction?

    def family(self) -> Family:
        """Loss and penalty, from the parameters; refuses parameters that cannot be used."""
        raise NotImplementedError

    # --- fitting ---

    def set_params(self, **params: object) -> Self:
        """Set parameters, as in scikit-learn, with a hint for a parameter of scikit-learn that has another name here."""
        check_known(type(self).__name__, [name for name in params if "__" not in name], self.get_params(deep=False))
        return super().set_params(**params)

    def fit(
        self,
        X: Features,
        y: npt.ArrayLike | str,
        *more: object,
        sites: SiteOfRows = UNSPECIFIED,
        sample_weight: RowWeights = None,
        schema: SchemaLike = None,
    ) -> Self:
        """Fit over all sites. The coefficients are those of the pooled rows.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_rows, n_features)
        y : array of shape (n_rows,), or (n_rows, n_outcomes) where the estimator takes several; or str
            The labels, or the name of a column of the DataFrame X.
        sites : array of shape (n_rows,), str or None
            The site of every row, or the name of a column of X. None means that all rows are at one site; if `sites` is left
            out, so does a `OneSiteWarning`.
        sample_weight : array of shape (n_rows,), optional
            How much each row counts.
        schema : "auto", Schema or path, optional
            How words and missing values of the DataFrame X become numbers. "auto" proposes a schema from the table; after the
            fit it is `schema_`, and `predict` takes DataFrames like X. Without one all values must be numbers.

        Returns
        -------
        self
        """
        if more:  # to scikit-learn a third one is the rows' weights, and here it might be their sites
            raise UnknownArgument(
                f"{type(self).__name__}.fit takes X and y by position, and {len(more)} more came: say which they are. sites=... is "
                "the site of every row, sample_weight=... how much every row counts (what scikit-learn takes third)."
            )
        with self._restored_on_failure():
            table = self.make_table(X, y, sites, sample_weight, schema)
            self._fit_table(table, (X, y, sites, sample_weight))
            for name, column in (("site_column_", sites), ("label_column_", y)):
                if isinstance(column, str):
                    setattr(self, name, column)
            labels = tables.column_labels(self._features_of(X)) if table.schema is None else None
            if labels is not None:
                self.column_labels_ = labels
            tables.warn_of_one_site(type(self).__name__, sites)
        return self

    def _fit_table(self, table: Table, given: tuple[object, ...]) -> None:
        """Fit to a table made of the `given` arguments of fit."""
        self.fit_federation(table.federation())

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

    def fit_sites(self, sites: Sites) -> Self:
        """Fit over sites from `compfed.data`."""
        if not isinstance(sites, Sites):
            raise InputError(f"fit_sites takes what compfed.data makes (from_files, ...); got {type(sites).__name__}.")
        return self.fit_federation(Simulated(sites))

    def fit_federation(self, federation: Federation) -> Self:
        """Fit over a federation: sites in this process, or sites across a network."""
        self._check_schema(getattr(federation, "schema", None))
        alpha = float(self.get_params(deep=False)["alpha"])
        fitted, cost = run_program(federation, programs.fit(federation, self.fit_options(), alpha))
        with self._restored_on_failure():
            self._set_attributes(federation, fitted, cost)
            if not fitted.minimum.converged:
                warnings.warn(self._why_not_converged(fitted.minimum), ConvergenceWarning, stacklevel=2)
            self._warn_if_not_unique(fitted, stacklevel=3)
        return self

    def _warn_if_not_unique(self, fitted: Fitted, stacklevel: int) -> None:
        if fitted.undecided:
            warnings.warn(
                f"{type(self).__name__}: these coefficients are one choice of many with the same objective: those of "
                f"{join_names(fitted.undecided)} can change together at no cost. Some of these columns are the same, or add up to others. "
                "Drop one, or give a penalty with a ridge (l1_ratio < 1), which has one minimiser.",
                NotUniqueWarning,
                stacklevel=stacklevel,
            )

    def _why_not_converged(self, minimum: FederatedSolution) -> str:
        """Why the certificate does not hold, for a person."""
        me = type(self).__name__
        if not minimum.certificate.minimiser_exists:
            return f"{me}: {minimum.notes[-1]}."
        note = f"{minimum.notes[-1][0].upper()}{minimum.notes[-1][1:]}. " if minimum.notes else ""
        stopped = (
            f"{me} stopped after {minimum.rounds} rounds with a gradient mapping of {minimum.certificate.relative:.1e} of "
            f"its scale; tol is {self.tol:g}. {note}"
        )
        if OUT_OF_REACH in minimum.notes:
            return stopped.rstrip()
        inexact = isinstance(minimum.algorithm, Algorithm) and minimum.algorithm.exact is False
        return f"{stopped}Give more max_rounds" + (", or another algorithm: this one is not exact." if inexact else ".")

    def fit_options(self) -> FitOptions:
        """The parameters, checked."""
        me, none = type(self).__name__, 0.0
        for name in ("alpha", "l1_ratio", "tol", "seconds_per_round"):
            check_nonnegative(getattr(self, name, none), f"{me}: {name}")
        if (l1_ratio := getattr(self, "l1_ratio", none)) > 1:
            raise InputError(f"{me}: l1_ratio={l1_ratio} must be between 0 and 1.")
        tau, max_rounds = (check_int(getattr(self, name), f"{me}: {name}", 1) for name in ("tau", "max_rounds"))
        every = " With 'rows' every row counts the same, as if pooled; with 'equal' every site does."
        check_choice(self.site_weights, f"{me}: site_weights", ("rows", "equal"), every)
        for name in ("fit_intercept", "standardize", "positive", "verbose"):
            check_bool(getattr(self, name, False), f"{me}: {name}")
        search = SearchOptions(
            self.algorithm, tau, float(self.tol), max_rounds, seconds_per_round=float(self.seconds_per_round),
            progress=progress_bar(me, quiet=0.0) if self.verbose else None,
        )  # fmt: skip
        equal = self.site_weights == "equal"
        return FitOptions(self.family(), search, bool(self.fit_intercept), bool(self.standardize), equal)

    def make_table(
        self,
        X: Features,
        y: npt.ArrayLike | str,
        sites: SiteOfRows,
        sample_weight: RowWeights,
        schema: SchemaLike = None,
    ) -> Table:
        """The arguments of `fit`, checked, as a table. Nothing is computed before this has passed."""
        self.fit_options()
        me = type(self).__name__
        if isinstance(sites, str):
            X, sites = tables.take_site_column(X, sites)
        if schema is not None:
            return self._encoded_table(X, y, sites, sample_weight, schema)
        if isinstance(y, str):
            X, y = tables.take_label_column(X, y)
        tables.check_table(me, X, y, sites, sample_weight)
        return self._checked_table(X, y, sites, sample_weight)

    def _encoded_table(
        self, X: Features, y: npt.ArrayLike | str, sites: SiteOfRows, sample_weight: RowWeights, schema: SchemaLike
    ) -> Table:
        """The table of a DataFrame with words and missing values."""
        me, classifies = type(self).__name__, self.family().classifies
        tables.check_rows(me, X, None if isinstance(y, str) else y, sites, sample_weight)
        where = tables.site_of_rows(me, sites, len(X)) if is_dataframe(X) else None  # encode_frame refuses others
        found = encode_frame(X, y, where, cast(Any, schema), classifies=classifies, name=f"{me}: X")
        self._check_schema(found.schema)
        part = found.encoded
        weight = part.weights if sample_weight is None else sample_weight
        table = self._checked_table(part.A, cast(Any, part.y), where, weight, part.columns)
        return replace(table, raw=found.raw, schema=found.schema, offset=part.offset)

    def _check_schema(self, schema: Schema | None) -> None:
        """Refuse classes that are words where the outcome is a number."""
        label = None if schema is None else schema.label
        if label is None or label.classes is None or self.family().classifies:
            return
        if list(label.classes) != list(range(len(label.classes))):
            classes = join_names([repr(c) for c in label.classes])
            raise InputError(
                f"{type(self).__name__} predicts numbers, and the label {label.column!r} has classes: {classes}. Take "
                "FederatedLogisticRegression, or labels that are numbers."
            )

    def _checked_table(
        self,
        X: Features,
        y: npt.ArrayLike,
        sites: SiteOfRows,
        sample_weight: RowWeights,
        columns: Sequence[str] | None = None,
    ) -> Table:
        """The table of features and labels that are numbers; `columns` are their names unless X has them."""
        me = type(self).__name__
        labels = tables.column_labels(X) if columns is None else columns
        if labels is not None:
            self.family().with_columns(tuple(map(str, labels)))  # which refuses groups that could be meant in two ways
        multi = self.__sklearn_tags__().target_tags.multi_output
        checked = copy.copy(self)  # validate_data sets attributes, which belong to a fit that succeeds
        given: Any = (X, y)  # scikit-learn's annotations say str
        try:
            X, y = validate_data(
                checked, *given, accept_sparse="csr", multi_output=multi, y_numeric=not hasattr(self, "predict_proba"),
                dtype=np.float64,
            )  # fmt: skip
        except ValueError as problem:
            if str(problem).startswith("Input X contains"):
                tables.refuse_missing(me, X, getattr(checked, "feature_names_in_", None))
            raise
        columns = getattr(checked, "feature_names_in_", None) if columns is None else columns
        return tables.make_table(me, X, self._check_labels(np.asarray(y)), sites, sample_weight, columns)

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        """The labels of a table, checked at once; the sites check their own again."""
        return y

    def _set_attributes(self, federation: Federation, fitted: Fitted, cost: Communication) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        prepared, minimum = fitted.prepared, fitted.minimum
        summary = prepared.summary
        self.coef_, self.intercept_ = prepared.coef_and_intercept(minimum.x)
        schema = getattr(federation, "schema", None)
        if schema is not None:
            self.schema_ = schema
        if summary.labels.classes is not None:
            self.classes_ = summary.labels.classes
            if schema is not None and schema.label is not None and schema.label.classes is not None:
                self.classes_ = np.array(schema.label.classes)[summary.labels.classes.astype(int)]
        self.n_features_in_ = summary.width
        if summary.columns is not None:
            self.feature_names_in_ = np.array(summary.columns, dtype=object)
        self.communication_ = cost
        self.n_rounds_ = self.n_iter_ = cost.rounds
        # set-up and certificate are counted before the first row of the trace: its last row has the whole cost
        spent = {"round": cost.rounds, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
        self.trace_ = minimum.trace.after(**{name: n - minimum.trace[name][-1] for name, n in spent.items()})
        if events := getattr(federation, "events", None):  # of a network: messages repeated, states lost and restored
            self.trace_.provenance["events"] = list(events)
        self.certificate_ = fitted.certificate
        self.algorithm_ = minimum.algorithm
        self.site_names_ = np.array(federation.names)
        self.one_outcome_ = summary.labels.one_column
        if self.verbose:
            reached = "reached" if minimum.converged else "NOT reached"
            sent = f"{cost.rounds} messages to each of {len(federation.names)} site(s), {cost.bytes_up / 1e3:.3g} kB up from each"
            sys.stderr.write(f"{type(self).__name__}: tol={self.tol:g} {reached}; {sent}\n")

    # --- prediction ---

    def predict(self, X: Features) -> np.ndarray:
        """Predict the outcome of every row."""
        raise NotImplementedError

    def score(self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights = None) -> float:
        """How well the predictions of rows fit their outcomes: 1 is perfect."""
        raise NotImplementedError

    def score_federation(self, federation: Federation) -> float:
        """R^2 of the model on the rows of all sites together, which stay where they are. Two messages.

        Only where sums over rows are enough: one outcome with a linear prediction. Other scores need the prediction of every
        row; `cf.compare_local_federated` gives the mean loss on rows that the sites hold out.
        """
        check_is_fitted(self)
        if np.ndim(self.coef_) != 1 or not self.scored_by_squares:
            raise InputError(
                f"the score of {type(self).__name__} needs a prediction for every row, and no site tells those. "
                "cf.compare_local_federated(estimator, federation) gives the mean loss on rows that the sites hold out."
            )
        names = self._names_at_fit()
        columns = None if names is None else tuple(map(str, names))
        return run_program(federation, programs.r2_score(federation, self.coef_, float(self.intercept_), columns))[0]  # pyright: ignore[reportArgumentType]  # one outcome

    def linear_predictor(self, X: Features) -> np.ndarray:
        """The linear predictor z = X w + b, of shape (rows, outputs)."""
        check_is_fitted(self)
        me, encoded = type(self).__name__, self._encode(X)
        if encoded is not None:
            rows = encoded.A
        else:
            rows = self._features_of(X)
            tables.check_features(me, rows)
            tables.check_same_columns(me, rows, self._names_at_fit(), np.shape(self.coef_)[-1])
            try:
                rows = validate_data(self, rows, reset=False, accept_sparse="csr", dtype=np.float64)
            except ValueError as problem:
                if str(problem).startswith("Input X contains"):
                    tables.refuse_missing(me, rows, None, "Drop these rows, or impute as at the fit.")
                raise
        return np.asarray(rows @ np.atleast_2d(self.coef_).T + np.atleast_1d(self.intercept_))

    def _encode(self, X: Features) -> Encoded | None:
        """The rows of a DataFrame with the columns of the schema, encoded; None for rows that are encoded already."""
        schema, frame = getattr(self, "schema_", None), cast(Any, X)
        if schema is None or not is_dataframe(frame):
            return None
        names = {str(c).strip() for c in frame.columns}
        if not set(schema.columns) <= names and set(schema.feature_names) <= names:
            return None
        return encode_to_predict(frame, schema, f"{type(self).__name__}: X")

    def _names_at_fit(self) -> Any:
        """The names of the columns at fit, words or not; None without any."""
        return getattr(self, "feature_names_in_", getattr(self, "column_labels_", None))

    def _labels_to_score(self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights) -> Any:
        """The labels to score with: a column of X by name, and raw labels as the schema reads them.

        Refuses labels and weights whose index is not that of X.
        """
        if isinstance(y, str):
            y = tables.take_label_column(X, y)[1]
        for what, given in (("y", y), ("sample_weight", sample_weight)):
            check_same_index(X, given, what)
        schema = getattr(self, "schema_", None)
        if schema is None or schema.label is None or schema.label.classes is None:
            return y
        codes = labels_as_encoded(y, schema, f"{type(self).__name__}: y")
        return np.array(schema.label.classes)[codes.astype(int)]

    def _features_of(self, X: Features) -> Any:
        """A DataFrame without the columns of sites and labels that `fit` was given by name."""
        taken = {getattr(self, "site_column_", None), getattr(self, "label_column_", None)} - {None}
        there, frame = [c for c in getattr(X, "columns", ()) if isinstance(c, str) and c in taken], cast(Any, X)
        return frame.drop(columns=there) if there else X

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


# --- names of parameters ---

ALWAYS = "there is nothing to set"
OF_CV = "to choose among several, use the estimator with CV at the end of its name"
# What to give instead of parameters of scikit-learn; {alpha} is "alphas" for an estimator that chooses among several
INSTEAD_OF_EACH = {
    "C Cs": "{alpha} = 1 / (C * n) with n rows in all: alpha is the weight of the penalty beside the mean loss",
    "lam lambda lambda_ lmbda reg reg_param regularization regularisation strength":
        "{alpha}, the weight of the penalty beside the mean loss",
    "penalty": "l1_ratio=1 for 'l1' and l1_ratio=0 for 'l2', where the model has it, and {alpha}=0 for no penalty",
    "alpha": "alphas, a list to choose from; with a given alpha, use the estimator without CV in its name",
    "alphas n_alphas": f"alpha, a number; {OF_CV}",
    "cv": f"nothing: alpha is given; {OF_CV}",
    "l1_ratio": "FederatedElasticNet (or FederatedLogisticRegression, FederatedHuber, FederatedPoissonRegressor), which has it",
    "l1_ratios": "one l1_ratio; scikit-learn's GridSearchCV compares several",
    "max_iter n_iter": "max_rounds, the most messages to each site",
    "solver method": "algorithm, 'auto' or a name from `compfed list algorithms`",
    "epsilon": "delta, in the units of y",
    "normalize normalise": "standardize=True",
    "standardise": "standardize",
    "random_state": f"seed, where folds are drawn; a fit with a given alpha has nothing random and {ALWAYS}",
    "n_jobs": f"nothing: all sites work at the same time, and {ALWAYS}",
    "warm_start": f"nothing: a fit takes about a dozen messages from the start, and {ALWAYS}",
    "copy_X": f"nothing: X is never changed, and {ALWAYS}",
    "precompute selection dual": f"nothing: {ALWAYS}",
    "intercept": "fit_intercept",
    "intercept_scaling": "fit_intercept alone: the intercept is never penalised",
    "multi_class": "nothing: more than two classes are fitted together (multinomial)",
    "class_weight sample_weight": "fit(..., sample_weight=...), the weight of every row",
    "sites": "fit(..., sites=...), the site of every row",
}  # fmt: skip
INSTEAD = {name: text for names, text in INSTEAD_OF_EACH.items() for name in names.split()}


def check_known(estimator: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse a parameter that the estimator does not have, and say what to give instead."""
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
