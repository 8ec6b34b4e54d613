"""The base class of all estimators: scikit-learn's interface over the server programs."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import re
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeVar, cast, dataclass_transform

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from compfed._utils.plain import json_safe
from compfed._utils.text import join_names, log, progress_bar
from compfed._utils.validation import (
    check_bool,
    check_choice,
    check_int,
    check_nonnegative,
    check_numbers,
    check_same_index,
    is_number,
)
from compfed.algorithms import Algorithm
from compfed.data import Sites
from compfed.data.adapter import Frame, as_frame
from compfed.data.columns import check_roles, take_column
from compfed.data.encoding import Encoded, encode
from compfed.data.frames import encode_frame, encode_to_predict, labels_as_encoded
from compfed.data.raw_table import RawTable
from compfed.errors import InputError, NotUniqueWarning, UnknownArgument
from compfed.estimators import table as tables
from compfed.estimators.evaluation import Evaluation
from compfed.estimators.programs import fit as programs
from compfed.estimators.programs import scores
from compfed.estimators.programs.fit import Family, FitOptions, Fitted, Labels, PreparedProblem
from compfed.estimators.programs.inference import ERRORS, Inferred, infer, is_penalised
from compfed.estimators.programs.likelihood import Likelihood
from compfed.estimators.programs.plan import plan_fit, plan_scores, plan_summary, said_about
from compfed.estimators.summary import REFIT, UNPENALISED, Summary, make_summary
from compfed.estimators.table import UNSPECIFIED, CheckedTable, Features, Offset, RowWeights, SchemaLike, SiteOfRows
from compfed.federation.accounting import Communication
from compfed.federation.server.program import Federation, is_federation, run_program, state
from compfed.federation.site.disclosure import site_intercept
from compfed.federation.site.in_process import InProcess
from compfed.losses import Loss
from compfed.report.run_result import NETWORK, ONE_PROCESS
from compfed.schema import NumericColumn, Schema
from compfed.simulation.local_federation import Simulated, rounds_over
from compfed.solvers.auto import check_profile_method
from compfed.solvers.base import SearchOptions, SecondOrder
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
    """Base class of the estimators: a linear model of rows that several sites hold.

    Parameters
    ----------
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is never penalised.
    standardize : bool, default=False
        Whether to penalise coefficients in units of the pooled standard deviation, `coef_ * feature_scale_`, so that the model does
        not depend on the units of the columns. Without an intercept the standard deviation is still about the mean, as in
        glmnet and in ``StandardScaler(with_mean=False)``. `coef_` is on the original scale either way.
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
        Whether to report progress: a bar on a terminal and in a notebook, lines on the error stream elsewhere; to the logger
        "compfed" instead where that has a handler at level INFO (``logging.basicConfig(level="INFO")``).
    site_effects : {None, "profile"}, default=None
        "profile": every site has an intercept of its own, as with an unpenalised dummy variable for each site. It is minimised out
        at the site and stays there. `intercept_` is then the best common intercept beside `coef_`, for rows of a new site;
        it takes a few messages more. For one prediction per row, with ProximalNewton or ProximalBFGS.

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
    algorithm_ : Algorithm, ProximalNewton, ProximalBFGS or PartialNewton
        The method that was used, with its steps.
    site_names_ : ndarray of str
        The sites.
    site_intercepts_ : dict of str to float
        The intercept of each site, with `site_effects="profile"`; only where all sites are in this process, without a policy.
    has_offset_ : bool
        Whether rows had offsets at fit.
    n_features_in_ : int
        Number of features.
    feature_scale_ : ndarray of shape (n_features,)
        Standard deviation of every feature over the rows of all sites; 1 for a feature that does not vary.
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
    site_effects: str | None = None

    _progress = cast(Any, None)  # of a command, which shows it itself

    def family(self) -> Family:
        """Loss and penalty, from the parameters; refuses parameters that cannot be used."""
        raise NotImplementedError

    @property
    def ratio_name(self) -> str | None:
        """The statistician's word for exp(coef_), such as "odds ratio"; None where it has no meaning."""
        return None

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
        offset: Offset = None,
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
        offset : array of shape (n_rows,) or str, optional
            Added to the linear predictor of each row, such as the log of a time at risk; or the name of a column of X. For one
            prediction per row. A prediction then needs an offset, too.
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
            table = self.make_table(X, y, sites, sample_weight, schema, offset)
            self._fit_table(table, (X, y, sites, sample_weight))
            if isinstance(sites, str):
                self.site_column_ = sites
            if isinstance(y, str):
                self.label_column_ = y
            if isinstance(offset, str):
                self.offset_column_ = offset
            if table.labels is not None:
                self.column_labels_ = table.labels
            tables.warn_of_one_site(type(self).__name__, sites)
        return self

    def _fit_table(self, table: CheckedTable, given: tuple[object, ...]) -> None:
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
        self._check_schema(federation.schema)
        alpha = float(self.get_params(deep=False)["alpha"])
        plan = plan_fit(
            federation, type(self).__name__, self._changed(), self.fit_options(), self._numbers_after, self._turns
        )
        if not self._is_stated:
            state(federation, plan.stated)
        fitted, cost = run_program(federation, programs.fit(federation, plan.options, alpha))
        with self._restored_on_failure():
            self._set_attributes(federation, fitted, cost)
            if not fitted.minimum.converged:
                warnings.warn(self._why_not_converged(fitted), ConvergenceWarning, stacklevel=2)
            self._warn_if_not_certified(fitted, stacklevel=3)
            self._warn_if_not_unique(fitted, stacklevel=3)
        return self

    _numbers_after = 0  # that a fit asks for once it has its minimum
    _turns = 1  # fits that are one computation
    _is_stated = False  # whether an earlier turn stated it

    def _changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults: what the statement of a run says of them."""
        plain = inspect.signature(type(self).__init__).parameters
        given = self.get_params(deep=False).items()
        return {name: value for name, value in given if name == "alpha" or repr(value) != repr(plain[name].default)}

    def _warn_if_not_certified(self, fitted: Fitted, stacklevel: int) -> None:
        """Warn where the search met its tolerance, and rounding may hide more than that."""
        if fitted.minimum.converged and not fitted.certificate.holds:
            warnings.warn(
                f"{type(self).__name__}: {fitted.certificate.words}", ConvergenceWarning, stacklevel=stacklevel
            )

    def _warn_if_not_unique(self, fitted: Fitted, stacklevel: int) -> None:
        if fitted.undecided:
            warnings.warn(
                f"{type(self).__name__}: these coefficients are one choice of many with the same objective: those of "
                f"{join_names(fitted.undecided)} can change together at no cost. Some of these columns are the same, or add up to others. "
                "Drop one, or give a penalty with a ridge (l1_ratio < 1), which has one minimiser.",
                NotUniqueWarning,
                stacklevel=stacklevel,
            )

    def _why_not_converged(self, fitted: Fitted) -> str:
        """Why the certificate does not hold, for a person."""
        me, minimum = type(self).__name__, fitted.minimum
        if minimum is fitted.model.refit:
            me += " (the refit without a penalty, relax=True)"
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
            progress=self._progress or (progress_bar(me, quiet=0.0) if self.verbose else None), rounds=rounds_over,
        )  # fmt: skip
        equal, profile = self.site_weights == "equal", self._has_site_effects(search)
        return FitOptions(
            self.family(), search, bool(self.fit_intercept), bool(self.standardize), equal, self._gammas(), profile
        )  # fmt: skip

    def _gammas(self) -> tuple[float, ...]:
        """The shares of the penalised fit to try, the largest first; 1 alone without a refit."""
        return (1.0,)

    def _has_site_effects(self, search: SearchOptions) -> bool:
        if self.site_effects is None:
            return False
        me = type(self).__name__
        check_choice(self.site_effects, f"{me}: site_effects", ("profile",), " None is for a common intercept.")
        if not self.fit_intercept:
            raise InputError(
                f"{me}: site_effects='profile' fits an intercept for every site; leave out fit_intercept=False."
            )
        if search.algorithm != "auto":
            check_profile_method(search.algorithm)
        return True

    def make_table(
        self,
        X: Features,
        y: npt.ArrayLike | str,
        sites: SiteOfRows,
        sample_weight: RowWeights,
        schema: SchemaLike = None,
        offset: Offset = None,
    ) -> CheckedTable:
        """The arguments of `fit`, checked, as a table. Nothing is computed before this has passed."""
        self.fit_options()
        me = type(self).__name__
        check_roles(**{role: c for role, c in (("y", y), ("sites", sites), ("offset", offset)) if isinstance(c, str)})
        X = tables.as_rows(me, X)
        if isinstance(sites, str):
            X, sites = take_column(as_frame(X), "sites", sites)
        if isinstance(offset, str):
            X, offset = take_column(as_frame(X), "offset", offset)
        if schema is not None:
            return self._encoded_table(X, y, sites, sample_weight, schema, offset)
        if isinstance(y, str):
            X, y = take_column(as_frame(X), "y", y)
        tables.check_rows(me, X, y, sites, sample_weight, offset)
        y = tables.as_labels(me, y)
        tables.check_labels(me, y)
        return self._checked_table(X, y, sites, sample_weight, offset)

    def _encoded_table(
        self, X: Any, y: npt.ArrayLike | str, sites: SiteOfRows, sample_weight: RowWeights, schema: SchemaLike,
        offset: Offset,
    ) -> CheckedTable:  # fmt: skip
        """The table of a frame with words and missing values."""
        me, classifies = type(self).__name__, self.family().classifies
        tables.check_rows(me, X, [] if isinstance(y, str) else y, sites, sample_weight, offset)
        # encode_frame refuses what is no frame
        where = tables.site_of_rows(me, sites, len(X)) if isinstance(X, Frame) else None
        found = encode_frame(X, y, where, cast(Any, schema), classifies=classifies, name=f"{me}: X")
        self._check_schema(found.schema)
        part = found.encoded
        weight = part.weights if sample_weight is None else sample_weight
        added = part.offset if offset is None else offset
        table = self._checked_table(part.A, cast(Any, part.y), where, weight, added, part.columns)
        return replace(table, raw=found.raw, schema=found.schema)

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
        offset: Offset = None,
        columns: Sequence[str] | None = None,
    ) -> CheckedTable:
        """The table of features and labels that are numbers; `columns` are their names unless X has them."""
        me = type(self).__name__
        labels = None
        if isinstance(X, Frame):
            columns = tables.names_of(X)
            labels = X.columns if columns is None else None  # which are no names, and may mislead
            if not X.columns:
                raise InputError(f"{me}: X has 0 feature(s) (shape={X.shape}); keep at least one column.")
        rows = tables.as_array(me, X, tables.AUTO_SCHEMA)
        multi = self.__sklearn_tags__().target_tags.multi_output
        checked = copy.copy(self)  # validate_data sets attributes, which belong to a fit that succeeds
        given: Any = (rows, y)  # scikit-learn's annotations say str
        try:
            rows, y = validate_data(
                checked, *given, accept_sparse="csr", multi_output=multi, y_numeric=not hasattr(self, "predict_proba"),
                dtype=np.float64,
            )  # fmt: skip
        except ValueError as problem:
            if str(problem).startswith("Input X contains"):
                tables.refuse_missing(me, rows, columns)
            raise
        names = labels if columns is None else columns
        self.family().with_columns(None if names is None else tuple(map(str, names)), checked.n_features_in_)
        y, weights = np.asarray(y), tables.as_weights(rows, sample_weight)
        if weights is None or weights.all():
            y = self._check_labels(y)
        elif not weights.any():
            raise InputError(f"{me}: all sample weights are zero; at least one row must count.")
        else:  # a row that does not count may have any label
            counted = self._check_labels(y[weights > 0])
            y = y.astype(counted.dtype)
            y[weights > 0] = counted
        return tables.make_table(me, rows, y, sites, weights, columns, offset, labels)

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        """The labels of a table, checked at once; the sites check their own again."""
        return y

    def _set_attributes(self, federation: Federation, fitted: Fitted, cost: Communication) -> None:
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit
            delattr(self, name)
        vars(self).pop("_summary", None)
        self._last_fit = federation, fitted  # for `summary`; a copy does not have it
        prepared, minimum = fitted.prepared, fitted.minimum
        summary = prepared.summary
        self.coef_, self.intercept_ = fitted.coef_and_intercept
        self.has_offset_ = summary.offset
        if prepared.options.site_effects and (own := site_intercepts(federation, prepared, fitted.model.x)) is not None:
            self.site_intercepts_ = own
        schema = federation.schema
        if schema is not None:
            self.schema_ = schema
        if summary.labels.classes is not None:
            self.classes_ = summary.labels.classes
            if schema is not None and schema.label is not None and schema.label.classes is not None:
                self.classes_ = np.array(schema.label.classes)[summary.labels.classes.astype(int)]
        self.n_features_in_ = summary.width
        self.feature_scale_ = summary.spread_about()
        if summary.columns is not None:
            self.feature_names_in_ = np.array(summary.columns, dtype=object)
        self.trace_ = minimum.trace
        self._set_cost(cost)
        self.trace_.provenance.update(place_of(federation))
        if federation.problems:  # of a network: messages repeated, states lost and restored
            self.trace_.provenance["problems"] = [_problem_text(problem) for problem in federation.problems]
        self.trace_.provenance.update(said_about(federation, cost))
        self.certificate_ = fitted.certificate
        self.algorithm_ = minimum.algorithm
        self.site_names_ = np.array(federation.names)
        self.one_outcome_ = summary.labels.one_column
        if self.verbose:
            reached = "reached" if minimum.converged else "NOT reached"
            sent = f"{cost.rounds} messages to each of {len(federation.names)} site(s)"
            sent += f", {cost.bytes_up / 1e3:.3g} kB up from each" if place_of(federation)["place"] == NETWORK else ""
            log(f"{type(self).__name__}: tol={self.tol:g} {reached}; {sent}")

    def _set_cost(self, cost: Communication) -> None:
        """What the fit took, in all places that say so."""
        self.communication_ = cost
        self.n_rounds_ = self.n_iter_ = cost.rounds
        # set-up and certificate are counted before the first row of the trace: its last row has the whole cost
        spent = {"round": cost.rounds, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
        self.trace_ = self.trace_.after(**{name: n - self.trace_[name][-1] for name, n in spent.items()})

    # --- inference ---

    def summary(
        self, *, se: str = "model", level: float = 0.95, refit: bool = False, weights: str = "frequency"
    ) -> Summary:
        """Standard errors, tests and confidence intervals of the coefficients, and the likelihood of the fit.

        For fits without a penalty (``alpha=0``). Of a penalised fit ``refit=True`` fits the columns it chose again without a penalty:
        naive after selection, and labelled so. The sites are asked once more, for the Hessian at the optimum: call this where they can
        still be reached, after `fit` and before the model is saved or copied.

        Parameters
        ----------
        se : {"model", "HC0", "HC1", "cluster"}, default="model"
            Standard errors from the model, robust ones (a sandwich), or robust ones clustered by site, from ten sites on.
        level : float, default=0.95
            Of the confidence intervals.
        refit : bool, default=False
            Whether to refit the columns of a penalised fit without a penalty.
        weights : {"frequency", "sampling"}, default="frequency"
            What `sample_weight` means: a row of weight 2 is two rows, or stands for others that were not sampled, which needs
            robust errors.

        Returns
        -------
        Summary
            Print it, or take `to_frame()`, `to_csv()`, `plot()` or `likelihood_ratio_test(reduced)`. The last one is in
            `to_result()` and in reports.

        Examples
        --------
        >>> import compfed as cf
        >>> table = cf.data.bundled.diabetes()
        >>> model = cf.FederatedLasso(alpha=0).fit(table.X, table.y, sites=table.sites)
        >>> found = model.summary()
        >>> found.terms[2], round(float(found.standard_errors[2]), 1), found.distribution
        ('column 2', 66.5, "Student's t with 431 degrees of freedom")
        """
        check_is_fitted(self)
        me = f"{type(self).__name__}.summary"
        check_choice(weights, f"{me}: weights", ("frequency", "sampling"))
        check_bool(refit, f"{me}: refit")
        if not is_number(level) or not 0 < level < 1:
            raise InputError(f"{me}(level={level!r}): level must be a number between 0 and 1, such as 0.95.")
        likelihood = self._check_summary(se)
        if (last := vars(self).get("_last_fit")) is None:
            raise InputError(
                f"{me} asks the sites for the Hessian at the optimum, and a model that was read from a file or copied does not know them. "
                "Fit it again and call summary first; `compfed fit --summary` saves one beside the model."
            )
        federation, fitted = last
        refit = self._checks_refit(me, fitted, refit)
        theta = getattr(self, "theta_", None)
        program = infer(
            federation,
            fitted,
            likelihood,
            se,
            refit,
            weights == "sampling",
            theta is not None and self._estimates_theta,
        )
        asked = {"se": se, "refit": refit, "weights": weights}
        state(federation, plan_summary(federation, me, asked, self.fit_options(), refit).stated)
        found, cost = run_program(federation, program)
        features = self._names_at_fit()
        features = [f"column {j}" for j in range(self.n_features_in_)] if features is None else list(map(str, features))
        classes = [str(c) for c in self.classes_.tolist()] if fitted.prepared.scaling.outputs > 1 else []
        notes = self._notes_of_summary(found, classes)
        self._summary = make_summary(
            found, estimator=type(self).__name__, kind=REFIT if refit else UNPENALISED, errors=se, weights=weights, level=float(level),
            features=features, compared=comparisons_of(self), classes=classes,
            ratio_name="relative risk ratio" if classes else self.ratio_name, student=likelihood.student, theta=theta, notes=notes,
            communication=cost,
        )  # fmt: skip
        return self._summary

    def _check_summary(self, se: str) -> Likelihood:
        """The likelihood that `summary` describes; refuses a kind of standard errors, or an estimator, that has none."""
        me = f"{type(self).__name__}.summary"
        check_choice(se, f"{me}: se", ERRORS)
        likelihood = self.family().likelihood(Labels(getattr(self, "classes_", None), None, np.ones(1)))
        if se != "model" and not likelihood.is_sum_over_rows:
            raise InputError(
                f'{me}(se={se!r}): a partial likelihood is no sum over rows, which robust errors need. Take se="model".'
            )
        return likelihood

    _estimates_theta = False
    evaluates_folds = True  # is there an `evaluate(cv=...)`?

    def _checks_refit(self, me: str, fitted: Fitted, refit: bool) -> bool:
        """Whether the summary is of a refit; refuses fits that have no standard errors of their own."""
        alpha = float(getattr(self, "alpha_", self.get_params(deep=False).get("alpha", 0.0)))
        mixed = fitted.model.refit is not None and fitted.model.gamma > 0
        penalised = is_penalised(fitted.prepared, alpha)
        if penalised and not refit and (fitted.model.refit is None or mixed):
            raise InputError(
                f"{me}: this fit is penalised (alpha={alpha:g}): its coefficients are shrunk, and have no standard errors that tell how "
                "far they are off. Fit with alpha=0, or take refit=True for the naive errors of a refit of the columns it chose."
            )
        if not penalised and not fitted.minimum.converged:
            raise InputError(
                f"{me}: there is no maximum of the likelihood to describe. {self._why_not_converged(fitted)}"
            )
        if not penalised and fitted.undecided:
            raise InputError(
                f"{me}: the coefficients of {join_names(fitted.undecided)} are not determined: these columns are the same, or add up to "
                "others. Drop one."
            )
        return penalised

    def _notes_of_summary(self, found: Inferred, classes: Sequence[str]) -> list[str]:
        said = []
        if classes:
            said.append(f"Coefficients are differences from those of the first class, {classes[0]}.")
        if self.site_effects is not None:
            said.append(
                f"The {found.sites} intercepts of the sites are parameters, and stay there; no common intercept has a standard error."
            )
        return said

    def __getstate__(self) -> dict[str, Any]:
        """Without the sites of the fit, which a copy or a file must not bring along."""
        state = cast(dict[str, Any], super().__getstate__())
        return {name: value for name, value in state.items() if name != "_last_fit"}

    def to_result(self) -> dict[str, Any]:
        """The result of the fit as JSON has it: what a run folder keeps, and `cf.write_report` reads.

        Numbers, words, lists and dicts, with None for a number that is not defined: ``json.dumps(model.to_result())`` works.
        """
        from compfed.estimators.export import result_of

        check_is_fitted(self)
        return json_safe(result_of(self))

    def to_sklearn(self) -> BaseEstimator:
        """The fitted scikit-learn estimator that makes the same predictions, for tools that know those of scikit-learn only.

        Its coefficients are those of this model, on the original scale of the features. Its other parameters are scikit-learn's
        defaults: it is there to predict, and a new fit of it is another model. Of a model with a schema it takes the encoded
        features, `feature_names_in_`.

        Returns
        -------
        estimator
            Lasso, ElasticNet, LogisticRegression, PoissonRegressor, GammaRegressor, HuberRegressor, MultiTaskLasso or
            LinearRegression of scikit-learn.

        Raises
        ------
        InputError
            If scikit-learn has no such estimator: of negative binomial models, and of those with an offset.

        Examples
        --------
        >>> import compfed as cf
        >>> table = cf.data.bundled.diabetes()
        >>> model = cf.FederatedLasso(alpha=1.0).fit(table.X, table.y, sites=table.sites)
        >>> there = model.to_sklearn()
        >>> type(there).__name__, bool((there.predict(table.X) == model.predict(table.X)).all())
        ('Lasso', True)
        """
        from compfed.estimators.to_sklearn import to_sklearn

        check_is_fitted(self)
        return to_sklearn(self)

    # --- prediction ---

    def predict(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict the outcome of every row."""
        raise NotImplementedError

    def score(
        self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights = None, offset: Offset = None
    ) -> float:
        """How well the predictions of rows fit their outcomes: 1 is perfect."""
        raise NotImplementedError

    def evaluate(
        self,
        X: Features | Sites | Federation,
        y: npt.ArrayLike | None = None,
        *,
        sites: SiteOfRows = None,
        sample_weight: RowWeights = None,
        offset: Offset = None,
        cv: int | str | None = None,
        per_site: bool = False,
        threshold: float = 0.5,
        seed: int = 0,
    ) -> Evaluation:
        """Measure how well the model predicts rows that several sites hold.

        The sites add sums and counts; over a network no prediction of a row leaves its site. Two classes: AUC with its
        rounding bounds, ROC and calibration curves, calibration slope and intercept, Brier score, log-loss, confusion
        matrix. Several classes: the same without calibration. Numbers: R^2, errors, deviance explained, calibration.

        Parameters
        ----------
        X : Federation, Sites, or array, DataFrame or sparse matrix of shape (n_rows, n_features)
            Where the rows are.
        y, sites, sample_weight, offset
            As in `fit`, where X is a table; of a model with a schema, a table like that of the fit.
        cv : int or "leave-one-site-out", optional
            Fit again without each fold of the sites' rows, or without each site, with the same parameters and alpha, and score
            every row by the model that has not seen it. Without it the fitted model is scored: on the rows of its fit that is
            optimistic.
        per_site : bool, default=False
            Whether to give the evaluation of every site too; not where sums are masked. With "leave-one-site-out" it always is.
        threshold : float, default=0.5
            The second of two classes is predicted where its risk is above this.
        seed : int, default=0
            Seed of the folds.

        Returns
        -------
        Evaluation

        Examples
        --------
        >>> import compfed as cf
        >>> table = cf.data.bundled.breast_cancer()
        >>> model = cf.FederatedLogisticRegression(alpha=0.01).fit(table.X, table.y, sites=table.sites)
        >>> found = model.evaluate(table.federation())
        >>> round(found.auc.value, 3), round(found.brier, 3)
        (0.992, 0.033)
        """
        check_is_fitted(self)
        me = type(self).__name__
        check_bool(per_site, f"{me}.evaluate: per_site")
        if not is_number(threshold) or not 0 < threshold < 1:
            raise InputError(f"{me}.evaluate(threshold={threshold!r}): threshold must be a risk between 0 and 1.")
        federation = self._federation_to_score(X, y, sites, sample_weight, offset)
        model = self._linear_model(federation.schema)
        if cv is None:
            program = scores.evaluate(federation, model, float(threshold), per_site)
        else:
            alpha = float(self.alpha_ if hasattr(self, "alpha_") else self.get_params(deep=False)["alpha"])  # pyright: ignore[reportAttributeAccessIssue]  # of a CV estimator
            seed = check_int(seed, f"{me}.evaluate: seed", 0)
            program = scores.cross_evaluate(
                federation, self._options_to_repeat(), alpha, model, cv, seed, float(threshold), per_site
            )
        classes = 0 if model.classes is None else len(model.classes)
        plan = plan_scores(federation, f"{me}.evaluate", self.fit_options(), classes, cv, per_site)
        state(federation, plan.stated)
        (whole, each), cost = run_program(federation, program)
        if cv is not None and hasattr(self, "alpha_"):
            whole = replace(whole, how=f"{whole.how}; alpha was chosen on all rows, which is a little optimistic")
        named = None if each is None else dict(zip(federation.names, each, strict=True))
        return whole.with_sites(named, cost).with_classes(getattr(self, "classes_", None))

    def _options_to_repeat(self) -> FitOptions:
        """The parameters, with the gamma that a cross-validation chose."""
        options = self.fit_options()
        return replace(options, gammas=(float(self.gamma_),)) if hasattr(self, "gamma_") else options  # pyright: ignore[reportAttributeAccessIssue]  # of a CV estimator

    def _federation_to_score(
        self, X: Any, y: npt.ArrayLike | None, sites: SiteOfRows, sample_weight: RowWeights, offset: Offset
    ) -> Federation:
        """The sites of rows to score: given, or made of a table."""
        if is_federation(X):
            return X
        if isinstance(X, Sites):
            return Simulated(X)
        if y is None:
            raise InputError(
                f"{type(self).__name__}.evaluate needs a federation, sites from compfed.data, or rows with their labels: "
                "evaluate(X, y, sites=...)."
            )
        me = type(self).__name__
        X = tables.as_rows(me, X)
        there = X.columns if isinstance(X, Frame) else ()
        known = (getattr(self, "site_column_", None), getattr(self, "offset_column_", None))
        of_site, of_offset = (column if column is not None and column in there else None for column in known)
        schema = getattr(self, "schema_", None) if isinstance(X, Frame) else None
        sites, offset = of_site if sites is None else sites, of_offset if offset is None else offset
        if schema is None and isinstance(X, Frame):
            beside = [name for name in (y, sites, offset) if isinstance(name, str)]
            needed = np.ones(np.shape(self.coef_)[-1], bool)
            found = tables.columns_of_fit(me, X.without(beside), self._names_at_fit(), len(needed), needed)
            X = X if found is None else X.select([*found.columns, *beside])
        return self.make_table(X, y, sites, sample_weight, schema, offset).federation()

    def _linear_model(self, schema: Schema | None) -> scores.LinearModel:
        """The fitted model as the server programs take it; labels that a schema encoded are the numbers of its classes."""
        coef, intercept = np.atleast_2d(self.coef_).T, np.atleast_1d(np.asarray(self.intercept_, float))
        classes, names = getattr(self, "classes_", None), self._names_at_fit()
        if classes is not None and schema is not None and schema.label is not None and schema.label.classes is not None:
            listed = list(schema.label.classes)
            classes = np.array([listed.index(c) for c in classes.tolist()], float)
        labels = Labels(classes, None, None if classes is not None else np.ones(len(intercept)))
        columns = None if names is None else tuple(map(str, names))
        offset = bool(getattr(self, "has_offset_", False))
        return scores.LinearModel(self._unweighted_loss(labels), coef, intercept, classes, columns, offset)

    def _unweighted_loss(self, labels: Labels) -> Loss:
        """The loss of one row, without weights of classes."""
        return self.family().loss(labels)

    def linear_predictor(self, X: Features, offset: Offset = None) -> np.ndarray:
        """The linear predictor z = X w + b + offset, of shape (rows, outputs)."""
        check_is_fitted(self)
        X = tables.as_rows(type(self).__name__, X)
        encoded = self._encode(X)
        of_schema = None if encoded is None or offset is not None else encoded.offset
        added = self._offset_of(X, offset) if of_schema is None else of_schema
        rows = self._rows_to_predict(X, offset) if encoded is None else encoded.A
        z = np.asarray(rows @ np.atleast_2d(self.coef_).T + np.atleast_1d(self.intercept_))
        return z if added is None else z + np.reshape(added, (-1, 1))

    def _rows_to_predict(self, X: Any, offset: Offset) -> Any:
        """Rows that need no schema, as an array with the columns of the fit: those of a frame are found by their names."""
        me, width = type(self).__name__, np.shape(self.coef_)[-1]
        needed: Any = np.any(np.atleast_2d(self.coef_), axis=0)
        found = None
        if isinstance(X, Frame):
            X = self._features_of(X, offset)
            found = tables.columns_of_fit(me, X, self._names_at_fit(), width, needed)
        rows = tables.as_array(me, X if found is None else found)
        try:
            if found is None:
                return validate_data(self, rows, reset=False, accept_sparse="csr", dtype=np.float64)
            A = np.zeros((len(rows), width))  # a column without a coefficient adds nothing, whatever it holds
            A[:, needed] = check_array(rows, dtype=cast(Any, np.float64), ensure_min_features=0, input_name="X")
            return A
        except ValueError as problem:
            if str(problem).startswith("Input X contains"):
                columns = None if found is None else [str(c) for c in found.columns]
                tables.refuse_missing(me, rows, columns, tables.AT_FIT)
            raise

    def _offset_of(self, X: Features, offset: Offset) -> np.ndarray | None:
        """The offset of every row of a prediction: as given, or from the column of X that the fit took it from."""
        me = type(self).__name__
        if not getattr(self, "has_offset_", False):
            if offset is not None:
                raise InputError(f"{me} was fitted without an offset; leave out offset here, or fit with one.")
            return None
        of_schema, given = getattr(getattr(self, "schema_", None), "offset", None), cast(Any, X)
        known = (offset,) if isinstance(offset, str) else (getattr(self, "offset_column_", None), of_schema)
        column = next((name for name in known if name is not None and name in getattr(given, "columns", ())), None)
        if isinstance(offset, str) or (offset is None and column is not None):
            offset = take_column(as_frame(given), "offset", column or str(offset))[1].values
        if offset is None:
            raise InputError(
                f"{me} was fitted with an offset, and a prediction needs one: give offset=..., one number per row, or offset=0 to "
                "predict without."
            )
        check_same_index(given, offset, "offset")
        length = given.shape[0] if hasattr(given, "shape") else len(given)
        return tables.as_offset(me, np.full(length, offset) if np.ndim(cast(Any, offset)) == 0 else offset, length)

    def _encode(self, X: Any) -> Encoded | None:
        """The rows of a frame or file with the columns of the schema, encoded; None for rows that are encoded already.

        A column whose features all have a coefficient of zero need not be there, and is not read.
        """
        schema = getattr(self, "schema_", None)
        if isinstance(X, RawTable) and schema is None:  # of a file
            schema = Schema({str(name): NumericColumn() for name in self._names_at_fit()})
        if schema is None or not isinstance(X, (Frame, RawTable)):
            return None
        coef: Any = np.any(np.atleast_2d(self.coef_), axis=0)
        used = {column for column, needed in zip(schema.source_columns, coef, strict=True) if needed}
        needed = replace(schema, columns={name: column for name, column in schema.columns.items() if name in used})
        if isinstance(X, RawTable):
            found = encode(X, needed, label=False)
        else:
            names = {str(c).strip() for c in X.columns}
            if not used <= names and set(needed.feature_names) <= names:
                return None
            found = encode_to_predict(X, needed, f"{type(self).__name__}: X")
        A = np.zeros((len(found.A), len(coef)))
        A[:, [column in used for column in schema.source_columns]] = found.A
        return replace(found, A=A, columns=schema.feature_names)

    def _names_at_fit(self) -> Any:
        """The names of the columns at fit, words or not; None without any."""
        return getattr(self, "feature_names_in_", getattr(self, "column_labels_", None))

    def _labels_to_score(self, X: Features, y: npt.ArrayLike | str, sample_weight: RowWeights) -> Any:
        """The labels to score with: a column of X by name, and raw labels as the schema reads them.

        Refuses labels and weights whose index is not that of X.
        """
        if isinstance(y, str):
            y = take_column(tables.as_rows(type(self).__name__, X), "y", y)[1]
        for what, given in (("y", y), ("sample_weight", sample_weight)):
            check_same_index(X, given, what)
        schema = getattr(self, "schema_", None)
        if schema is None or schema.label is None or schema.label.classes is None:
            y = tables.as_labels(type(self).__name__, y)
            tables.check_labels(type(self).__name__, y)
            return y
        codes = labels_as_encoded(y, schema, f"{type(self).__name__}: y")
        return np.array(schema.label.classes)[codes.astype(int)]

    def _features_of(self, X: Frame, offset: Offset = None) -> Frame:
        """A frame without the columns of sites, labels and offsets that were given by name."""
        names = ("site_column_", "label_column_", "offset_column_")
        taken = {getattr(self, name, None) for name in names} | {offset if isinstance(offset, str) else None}
        return X.without([c for c in X.columns if isinstance(c, str) and c in taken])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


# --- penalties of single coefficients or groups of them ---


@estimator
class RelaxedModel(FederatedModel):
    """An estimator whose penalty acts on coefficients or groups of them: with a support, and with factors.

    Parameters
    ----------
    penalty_factors : array of shape (n_features,), Series or dict, optional
        Factor of alpha for each feature; a dict or Series from column name (or position) to factor, 1 for all others. With a
        schema, the name of a column of words stands for all its levels, and "sex=male" for one. 0: not penalised.
        inf: left out, its coefficient is 0. glmnet rescales its factors to sum to the number of features; these are taken as
        they are.
    relax : bool, default=False
        Whether to refit without the penalty (its ridge included) the coefficients that the penalised fit uses, and those of
        factor 0. Bounds still hold. `certificate_` and `trace_` are then those of the refit.
    gamma : float, default=0.0
        With `relax`: the model is gamma * penalised fit + (1 - gamma) * refit, coefficients and intercepts. 0 is the refit.

    Attributes
    ----------
    gamma_ : float
        Share of the penalised fit in the model: 1.0 without `relax`.
    """

    penalty_factors: npt.ArrayLike | Mapping[Any, float] | None = None
    relax: bool = False
    gamma: float | Sequence[float] = 0.0

    several_gammas = False  # may gamma be a list?

    @property
    def has_own_penalty(self) -> bool:
        """Whether penalty factors, bounds or a refit make the objective another one than without these parameters."""
        return bool(self.relax) or self.penalty_factors is not None or getattr(self, "bounds", None) is not None

    def _set_attributes(self, federation: Federation, fitted: Fitted, cost: Communication) -> None:
        super()._set_attributes(federation, fitted, cost)
        self.gamma_ = fitted.model.gamma

    def _gammas(self) -> tuple[float, ...]:
        me = type(self).__name__
        relax, given = check_bool(self.relax, f"{me}: relax"), self.gamma
        values = check_numbers(given, f"{me}: gamma")
        if values.ndim > int(self.several_gammas) or not values.size or not ((values >= 0) & (values <= 1)).all():
            several = ", or a list of them" if self.several_gammas else ""
            raise InputError(f"{me}: gamma={given!r} must be a number between 0 and 1{several}.")
        if not relax and values.any():
            raise InputError(f"{me}: gamma={given!r} needs relax=True: it mixes the penalised fit with its refit.")
        return tuple(np.unique(values)[::-1].tolist()) if relax else (1.0,)


@estimator
class BoundedModel(RelaxedModel):
    """An estimator with an elastic-net penalty, whose coefficients may have bounds.

    Parameters
    ----------
    bounds : pair or dict, optional
        (lower, upper), each a number, an array of shape (n_features,), a Series or dict by column name, or None for none; or a
        dict from column name (or position, or a column of words for all its levels) to such a pair of numbers. lower <= 0 <= upper,
        in the units of `coef_`, also with `standardize`. With several classes they hold for the coefficients of each class.
    """

    bounds: Any = None


def comparisons_of(model: FederatedModel) -> tuple[str, ...]:
    """What the coefficient of each feature compares: "per unit", or "against" the reference level."""
    schema, width = getattr(model, "schema_", None), np.shape(model.coef_)[-1]
    return ("per unit",) * width if schema is None else schema.comparisons


def place_of(federation: Federation) -> dict[str, Any]:
    """Where the rows were, and whether sums were exact: what the result of a run says about the federation."""
    here = isinstance(federation, InProcess)
    return {"place": ONE_PROCESS if here else NETWORK, "exact_sums": not here or federation.exact}


def _problem_text(problem: str | Mapping[str, Any]) -> str:
    """A problem on the way of a run, as a sentence."""
    if isinstance(problem, str):
        return problem
    where = f", site {problem['site']}" if problem["site"] else ""
    return f"message {problem['number']}{where}: {problem['problem']}"


def site_intercepts(federation: Any, prepared: PreparedProblem, x: np.ndarray) -> dict[str, float] | None:
    """The intercept of each site at a model of a profile, where there is no wall around the sites; None elsewhere."""
    if not isinstance(federation, InProcess) or federation.walled:
        return None
    objective, centre = prepared.spec.objective, prepared.scaling.centre
    moved = float(centre @ prepared.scaling.coefficients(x)[0][:, 0])
    found = {}
    for site in federation.sites:
        shift, finite = site_intercept(objective, site.rows.dataset(objective), x)
        found[site.name] = shift - moved if finite else float(np.copysign(np.inf, shift))
    return found


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
    "penalty_factor penalty.factor penalties weights_l1 adaptive_weights": "penalty_factors, where the model has it",
    "exclude": "penalty_factors with inf for a column, which leaves it out",
    "lower_limits upper_limits lower.limits upper.limits limits lower upper nonneg non_negative nonnegative":
        "bounds=(lower, upper), where the model has it",
    "lambda_1se lambda.1se one_se": "rule='one_standard_error' to the estimator with CV in its name",
    "lambda_min lambda.min": "rule='best' to the estimator with CV in its name",
    "nlambda": "n_alphas to the estimator with CV in its name",
    "lambda_min_ratio lambda.min.ratio": "eps to the estimator with CV in its name",
    "nfolds folds n_folds": "cv to the estimator with CV in its name",
    "relaxed": "relax, where the model has it",
    "intercept": "fit_intercept",
    "intercept_scaling": "fit_intercept alone: the intercept is never penalised",
    "multi_class": "nothing: more than two classes are fitted together (multinomial)",
    "class_weight sample_weight": "fit(..., sample_weight=...), the weight of every row",
    "offset": "fit(..., offset=...), a number for every row or the name of a column",
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
