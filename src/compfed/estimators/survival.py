"""Survival: the Cox model over sites, stratified by site, with the coefficients of the pooled table."""
# pyright: reportIncompatibleVariableOverride=false
# A Cox model has no intercept, so that the parameters about one are none of its own.

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from compfed._utils.text import join_names
from compfed._utils.validation import check_choice, check_int, check_numbers
from compfed.data import Sites
from compfed.data.adapter import Column, Frame, as_column, as_frame
from compfed.data.columns import as_floats, read_frame, take_column
from compfed.data.encoding import codes_of
from compfed.errors import InputError, RunWarning
from compfed.estimators import table as tables
from compfed.estimators.base import BoundedModel, estimator, first
from compfed.estimators.path_and_cv import CrossValidated
from compfed.estimators.programs import survival
from compfed.estimators.programs.fit import ElasticNetFamily, Family, FitOptions, Fitted, Labels
from compfed.estimators.programs.likelihood import Likelihood, PartialLikelihood
from compfed.estimators.programs.plan import plan_common, plan_scores
from compfed.estimators.table import UNSPECIFIED, CheckedTable, Features, Offset, RowWeights, SchemaLike, SiteOfRows
from compfed.federation.accounting import Communication
from compfed.federation.queries.at_risk import MAX_TIMES
from compfed.federation.query import SiteRefusal
from compfed.federation.server.program import Federation, is_federation, run_program, state, state_query
from compfed.federation.site.at_risk import ordered_pairs
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import CoxPartialLikelihood
from compfed.report.words import HOW
from compfed.schema import sorted_levels
from compfed.solvers.auto import check_site_loss_method
from compfed.splits import LEAVE_ONE_OUT

LARGER = 8  # times that relative risks are asked for, where they are larger than usual
WAY_OUT = (
    "Give a structured array as scikit-survival's (event, time); an array or DataFrame of two columns (time, event) or three "
    "(entry, time, event); or the names of these columns of X."
)


@dataclass(frozen=True, eq=False)
class Survival(ElasticNetFamily):
    """The Cox partial likelihood with an elastic net."""

    has_intercept: ClassVar[bool] = False
    ties: str = "efron"

    def loss(self, labels: Labels) -> CoxPartialLikelihood:
        if labels.mean is not None and len(labels.mean) not in (2, 3):
            raise InputError(f"a Cox model needs labels (time, event) or (entry, time, event). {WAY_OUT}")
        if labels.mean is not None and not labels.mean[-1] > 0:
            raise InputError("no row of any site has an event; a Cox model needs some.")
        return CoxPartialLikelihood(ties=self.ties)

    def likelihood(self, labels: Labels) -> Likelihood:
        return PartialLikelihood()

    def null_intercept(self, labels: Labels) -> np.ndarray | None:
        return None


@dataclass(frozen=True)
class SurvivalEvaluation:
    """How well a survival model orders rows; ``print`` shows it.

    Attributes
    ----------
    concordant, discordant, same : float
        Pairs of rows of one site, in a stratum, of which one had an event while the other was at risk: the larger risk was that of the
        event, the smaller, or both were the same. Under a policy each site rounds them to multiples of its rows.
    how : str
        Which model scored which rows.
    communication : Communication
    """

    concordant: float
    discordant: float
    same: float
    communication: Communication
    how: str = "as given"

    @property
    def concordance(self) -> float:
        """Harrell's C: the share of pairs in order, pairs of the same risk counted half; NaN without a pair."""
        pairs = self.concordant + self.discordant + self.same
        return (self.concordant + 0.5 * self.same) / pairs if pairs else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """The evaluation as plain data."""
        pairs = {"concordant": self.concordant, "discordant": self.discordant, "same": self.same}
        cost = self.communication
        took = {"rounds": cost.rounds, "bytes_up": cost.bytes_up, "bytes_down": cost.bytes_down}
        return {
            "kind": "survival",
            "how": self.how,
            "concordance": self.concordance,
            "pairs": pairs,
            "communication": took,
        }

    def __str__(self) -> str:
        pairs = self.concordant + self.discordant + self.same
        how = HOW.get(self.how, self.how)
        return f"Concordance (Harrell's C): {self.concordance:.4f}, of {pairs:,.0f} pairs of rows within sites; {how}."


@estimator
class FederatedCox(BoundedModel):
    """Cox proportional hazards over sites, with the coefficients of the pooled table stratified by site.

    Minimises over w::

        - 1 / n * log_partial_likelihood(w) + alpha * (l1_ratio * ||w||_1 + (1 - l1_ratio) / 2 * ||w||**2)

    Every site has a baseline hazard of its own, and every stratum within a site, too: rows are compared with rows at risk at
    the same site, so that no event time leaves it. Each site adds its row count, column moments, gradients and Hessians to sums. With
    alpha = 0 it is R's ``coxph(Surv(time, event) ~ x + strata(site))``, with Breslow ties and ``standardize=True`` the objective of glmnet.

    Parameters
    ----------
    alpha : float, default=0.0
        Weight of the penalty beside the mean negative log partial likelihood, as in glmnet.
    l1_ratio : float, default=1.0
        Share of the l1 norm in the penalty: 1 is the l1 norm alone, 0 the ridge alone.
    ties : {"efron", "breslow"}, default="efron"
        What stands for the unknown order of events at the same time of a stratum. R's coxph has Efron's, glmnet Breslow's.
    times : array of shape (n_times,), optional
        Times that the sites agree on, such as every month, for `predict_survival_function`: after the fit one message more asks
        for the events and the rows at risk at each. Rows have their time rounded up to the next one.
    baseline : {"site", "common"}, default="site"
        "site": every site has a baseline hazard of its own. "common": one for all sites, as in R's coxph without strata; `times` are
        then those of the partial likelihood, at most 40 columns, sites without a disclosure policy, and a given alpha.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Log hazard ratios, on the original scale of the features.
    intercept_ : float
        0.0: a constant would be part of the baseline hazard.
    baseline_times_ : ndarray of shape (n_times,)
        `times`, where they were given.
    baseline_cumulative_hazard_ : ndarray of shape (n_times,)
        Breslow's estimate over all sites together, for a row with the mean of every feature.
    log_risk_at_mean_ : float
        The log risk of that row.

    See Also
    --------
    FederatedCoxCV : chooses alpha by cross-validation.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.standard_normal((300, 3)), rng.choice(["north", "south", "west"], 300)
    >>> time, censored = rng.exponential(np.exp(-X[:, 0])), rng.exponential(2.0, 300)
    >>> y = np.column_stack([np.minimum(time, censored), time <= censored])
    >>> model = cf.FederatedCox().fit(X, y, sites=hospital)
    >>> bool(abs(model.coef_[0] - 1) < 0.2), model.certificate_.holds, model.n_rounds_ <= 15
    (True, True, True)
    """

    alpha: float = first(default=0.0)
    l1_ratio: float = 1.0
    ties: str = "efron"
    times: npt.ArrayLike | None = None
    baseline: str = "site"

    evaluates_folds = False
    fit_intercept: ClassVar[bool] = False
    site_effects: ClassVar[str | None] = None

    _given_strata = None  # of the fit that is under way

    @property
    def ratio_name(self) -> str | None:
        """The statistician's word for exp(coef_)."""
        return "hazard ratio"

    def family(self) -> Family:
        return Survival(self.l1_ratio, False, self.penalty_factors, self.bounds, ties=self.ties)

    def fit_options(self) -> FitOptions:
        me = type(self).__name__
        check_choice(self.ties, f"{me}: ties", ("efron", "breslow"))
        check_choice(self.baseline, f"{me}: baseline", ("site", "common"))
        times = self._grid()
        if self.baseline == "common" and (times is None or hasattr(self, "cv") or getattr(self, "relax", False)):
            raise InputError(
                f"{me}: baseline='common' needs times=..., the times that the sites agree on, and one alpha: no cross-validation, "
                "and no relax."
            )
        if self.algorithm != "auto":
            check_site_loss_method(CoxPartialLikelihood(), self.algorithm)
        return super().fit_options()

    @property
    def _numbers_after(self) -> int:
        """Of the baseline hazard: events and risks at each time, and a flag."""
        return 0 if (times := self._grid()) is None else 2 * len(times) + 1

    def _grid(self) -> np.ndarray | None:
        """`times`, checked."""
        if self.times is None:
            return None
        times = check_numbers(self.times, f"{type(self).__name__}: times")
        rising = times.ndim == 1 and 0 < times.size <= MAX_TIMES and (np.diff(times) > 0).all()
        if not rising or not np.isfinite(times).all():
            raise InputError(f"{type(self).__name__}: times must be at most {MAX_TIMES} finite numbers that increase.")
        return times.astype(float)

    def fit_federation(self, federation: Federation) -> Self:
        """Fit over a federation: sites in this process, or sites across a network."""
        if self.baseline == "site":
            return super().fit_federation(federation)
        self._check_schema(federation.schema)
        options, alpha, times = self.fit_options(), float(self.alpha), self._grid()
        assert times is not None
        plan = plan_common(federation, type(self).__name__, self._changed(), options, times)
        state(federation, plan.stated)
        fitted, cost = run_program(federation, survival.fit_common(federation, options, alpha, times, self.ties))
        with self._restored_on_failure():
            self._set_attributes(federation, fitted, cost)
            if not fitted.minimum.converged:
                warnings.warn(self._why_not_converged(fitted), ConvergenceWarning, stacklevel=2)
            self._warn_if_not_certified(fitted, stacklevel=3)
            self._warn_if_not_unique(fitted, stacklevel=3)
        return self

    def _set_attributes(self, federation: Federation, fitted: Fitted, cost: Communication) -> None:
        """The attributes of a fit, and the baseline hazard where times were given."""
        times, found = self._grid(), None
        if times is not None:
            prepared = fitted.prepared
            asked = survival.at_risk(prepared.spec.objective, fitted.model.x, times)
            try:
                found, more = run_program(federation, survival.ask_at_risk(asked))
                cost = cost.then(more)
            except SiteRefusal as refusal:  # the coefficients stand
                warnings.warn(f"{type(self).__name__} has no baseline hazard: {refusal}", RunWarning, stacklevel=4)
        super()._set_attributes(federation, fitted, cost)
        if found is not None and times is not None:
            self.baseline_times_ = times
            self.baseline_cumulative_hazard_ = survival.cumulative_hazard(found)
            self.log_risk_at_mean_ = float(fitted.prepared.scaling.centre @ self.coef_)

    def fit(
        self,
        X: Features,
        y: npt.ArrayLike | str | Sequence[str],
        *more: object,
        sites: SiteOfRows = UNSPECIFIED,
        sample_weight: RowWeights = None,
        offset: Offset = None,
        strata: npt.ArrayLike | str | None = None,
        schema: SchemaLike = None,
    ) -> Self:
        """Fit over all sites. The coefficients are those of the pooled rows, stratified by site.

        Parameters
        ----------
        X : array, DataFrame or sparse matrix of shape (n_rows, n_features)
        y : structured array, array or DataFrame of shape (n_rows, 2) or (n_rows, 3), or names of columns of X
            (time, event) or (entry, time, event), in this order; of a structured array as scikit-survival's, its field of truth
            values is the event. A row is at risk after its entry and until its time. The event is 1 or True, 0 or False where the
            row was censored.
        sites : array of shape (n_rows,), str or None
            The site of every row, or the name of a column of X. None means that all rows are at one site; if `sites` is left
            out, so does a `OneSiteWarning`.
        sample_weight : array of shape (n_rows,), optional
            How much each row counts.
        offset : array of shape (n_rows,) or str, optional
            Added to the log hazard of each row; or the name of a column of X. A prediction then needs an offset, too.
        strata : array of shape (n_rows,) or str, optional
            The stratum of every row within its site, or the name of a column of X: each has a baseline hazard of its own. A schema
            may name the column, too.
        schema : "auto", Schema or path, optional
            How words and missing values of the DataFrame X become numbers. "auto" proposes a schema from the table; after the
            fit it is `schema_`, and `predict` takes DataFrames like X. Without one all values must be numbers.

        Returns
        -------
        self
        """
        me = type(self).__name__
        X = tables.as_rows(me, X)
        X, outcome = survival_labels(me, X, y)
        if isinstance(strata, str):
            X, strata = take_column(as_frame(X), "strata", strata)
        given, self._given_strata = self._given_strata, strata
        try:
            return super().fit(
                X, outcome, *more, sites=sites, sample_weight=sample_weight, offset=offset, schema=schema
            )
        finally:
            self._given_strata = given

    def _checked_table(
        self,
        X: Features,
        y: npt.ArrayLike,
        sites: SiteOfRows,
        sample_weight: RowWeights,
        offset: Offset = None,
        columns: Sequence[str] | None = None,
    ) -> CheckedTable:
        y = survival_labels(type(self).__name__, X, y, self._events())[1]
        found = super()._checked_table(X, y, sites, sample_weight, offset, columns)
        return found if self._given_strata is None else replace(found, strata=self._strata(found.length))

    def _strata(self, rows: int) -> np.ndarray:
        """The strata that fit was given, as the number of each."""
        given: Any = self._given_strata
        column = as_column(given)
        values = np.asarray(given if column is None else column.values)
        if values.shape != (rows,):
            raise InputError(
                f"{type(self).__name__}: strata has shape {values.shape}; it must be the stratum of each of {rows} rows."
            )
        return np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)[1]

    def _encoded_table(
        self, X: Any, y: npt.ArrayLike | str, sites: SiteOfRows, sample_weight: RowWeights, schema: SchemaLike,
        offset: Offset,
    ) -> CheckedTable:  # fmt: skip
        found = super()._encoded_table(X, y, sites, sample_weight, schema, offset)
        column = None if found.schema is None else found.schema.stratum
        if column is None or found.strata is not None or found.raw is None:
            return found
        words = found.raw.columns[column].words().astype(str)
        return replace(found, strata=np.unique(words, return_inverse=True)[1])

    def _events(self) -> tuple[Any, Any] | None:
        """The words of the events in tables like that of the fit, if its schema has some."""
        label = getattr(getattr(self, "schema_", None), "label", None)
        return None if label is None else label.events

    def _check_labels(self, y: np.ndarray) -> np.ndarray:
        """Times and events, checked at once; the sites check their own again."""
        try:
            CoxPartialLikelihood().encode(y)
        except InputError as problem:
            raise InputError(f"{type(self).__name__}: y: {problem}") from None
        if not y[:, -1].any():
            raise InputError(f"{type(self).__name__}: no row has an event; a Cox model needs some.")
        return y

    def predict(self, X: Features, offset: Offset = None) -> np.ndarray:
        """Predict the log risk of every row: X w, the log of its hazard relative to that of a row of zeros at the same site."""
        return self.linear_predictor(X, offset)[:, 0]

    def predict_cumulative_hazard(
        self, X: Features, times: npt.ArrayLike | None = None, offset: Offset = None
    ) -> np.ndarray:
        """Predict the cumulative hazard of every row at `times`, of shape (n_rows, n_times); at `baseline_times_` unless given.

        The baseline is that of all sites together. Between its times it is constant, as a step function is.
        """
        check_is_fitted(self)
        if not hasattr(self, "baseline_times_"):
            raise InputError(
                f"{type(self).__name__} was fitted without times, and has no baseline hazard. Give them before the fit, such as "
                "FederatedCox(times=np.arange(1, 61)) for every month of five years."
            )
        at = self.baseline_times_ if times is None else np.atleast_1d(check_numbers(times, "times"))
        if (at > self.baseline_times_[-1]).any():
            raise InputError(
                f"times go up to {at.max():g}; the baseline hazard is known up to {self.baseline_times_[-1]:g}. Give earlier times, "
                "or fit with later ones."
            )
        steps = np.concatenate([[0.0], self.baseline_cumulative_hazard_])
        baseline = steps[np.searchsorted(self.baseline_times_, at, side="right")]
        return np.exp(self.predict(X, offset) - self.log_risk_at_mean_)[:, None] * baseline

    def predict_survival_function(
        self, X: Features, times: npt.ArrayLike | None = None, offset: Offset = None
    ) -> np.ndarray:
        """Predict the probability of no event up to `times`, of shape (n_rows, n_times): exp(-cumulative hazard)."""
        return np.exp(-self.predict_cumulative_hazard(X, times, offset))

    def evaluate(  # pyright: ignore[reportIncompatibleMethodOverride]  # by the order of rows: no threshold, no folds
        self,
        X: Features | Sites | Federation,
        y: npt.ArrayLike | Sequence[str] | None = None,
        *,
        sites: SiteOfRows = None,
        sample_weight: RowWeights = None,
        offset: Offset = None,
        strata: npt.ArrayLike | str | None = None,
        cv: int | None = None,
        seed: int = 0,
    ) -> SurvivalEvaluation:
        """Measure how well the model orders rows: Harrell's concordance of the pairs of rows of a site, in a stratum.

        The sites add numbers of pairs; no prediction leaves one. Without `cv` it is optimistic on the rows of the fit.

        Parameters
        ----------
        X : Federation, Sites, or array or DataFrame of shape (n_rows, n_features)
            Where the rows are.
        y, sites, sample_weight, offset, strata
            As in `fit`, where X is a table.
        cv : int, optional
            Fit again without each fold of the sites' rows, with the same parameters and alpha, and count the pairs within a fold by
            the model that has not seen it. Not at sites with a disclosure policy, and not with a common baseline.
        seed : int, default=0
            Seed of the folds.

        Returns
        -------
        SurvivalEvaluation
        """
        check_is_fitted(self)
        me, given = type(self).__name__, self._given_strata
        outcome: Any = y
        if y is not None and not is_federation(X) and not isinstance(X, Sites):
            X, outcome = survival_labels(me, tables.as_rows(me, X), y, self._events())
        if isinstance(strata, str):
            X, strata = take_column(as_frame(X), "strata", strata)
        self._given_strata = strata
        try:
            federation = self._federation_to_score(X, outcome, sites, sample_weight, offset)
        finally:
            self._given_strata = given
        coef, width = np.asarray(self.coef_, float), len(self.coef_)
        if any(e.width != width for e in federation.enrolments):
            raise InputError(f"{me}: the sites have other columns than the model, which has {width}.")
        scaling = FeatureScaling(np.zeros(width), np.ones(width), False)
        objective = ObjectiveSpec(CoxPartialLikelihood(ties=self.ties), scaling)
        if cv is not None:
            return self._evaluate_folds(federation, objective, check_int(cv, f"{me}.evaluate: cv", 2), seed)
        query = survival.at_risk(objective, coef, np.array([1.0]), pairs=True)
        state_query(federation, f"{me}.evaluate", query, times=LARGER)
        found, cost = run_program(federation, survival.ask_at_risk(query))
        concordant, discordant, same = found.pairs.tolist()
        return SurvivalEvaluation(concordant, discordant, same, cost)

    def _evaluate_folds(
        self, federation: Federation, objective: ObjectiveSpec, folds: int, seed: int
    ) -> SurvivalEvaluation:
        """The concordance of rows that the model of each fold has not seen."""
        me = type(self).__name__
        seed = check_int(seed, f"{me}.evaluate: seed", 0)
        if self.baseline != "site":
            raise InputError(f"{me}.evaluate(cv={folds}) is for baseline='site'. Leave out cv.")
        alpha = float(getattr(self, "alpha_", self.get_params(deep=False).get("alpha", 0.0)))
        options, width = self._options_to_repeat(), len(self.coef_)
        state(federation, plan_scores(federation, f"{me}.evaluate", options, 0, folds, False).stated)
        program = survival.pairs_of_folds(federation, options, alpha, objective, width, folds, seed)
        pairs, cost = run_program(federation, program)
        how = f"each row by a model without its fold, {folds} folds"
        if hasattr(self, "alpha_"):
            how += "; alpha was chosen on all rows, which is a little optimistic"
        concordant, discordant, same = pairs.tolist()
        return SurvivalEvaluation(concordant, discordant, same, cost, how)

    def score(
        self,
        X: Features,
        y: npt.ArrayLike | str | Sequence[str],
        sample_weight: RowWeights = None,
        offset: Offset = None,
    ) -> float:
        """Harrell's concordance of rows that are here, as those of one site: 1 is perfect, 0.5 is chance."""
        labels = survival_labels(type(self).__name__, tables.as_rows(type(self).__name__, X), y, self._events())[1]
        z = self.predict(X, offset)
        found = ordered_pairs(labels[:, -2], labels[:, -1] > 0, z, np.zeros(len(z)))
        concordant, discordant, same = found.tolist()
        return SurvivalEvaluation(concordant, discordant, same, Communication()).concordance

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.target_tags.required = True
        return tags


@estimator
class FederatedCoxCV(CrossValidated, FederatedCox):
    """Cox proportional hazards over sites, with alpha chosen by cross-validation.

    Attributes
    ----------
    cv_loss_ : ndarray of shape (n_alphas, n_splits)
        By how much all rows lose more than those to train with, at the model without the fold, per event of the fold:
        -(l_all(w) - l_train(w)) / events, with the log partial likelihood l (Verweij and van Houwelingen, Statistics in Medicine
        1993; "grouped" in glmnet).

    See Also
    --------
    FederatedCox : with a given alpha.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> rng = np.random.default_rng(0)
    >>> X, hospital = rng.standard_normal((300, 3)), rng.choice(["north", "south", "west"], 300)
    >>> y = np.column_stack([rng.exponential(np.exp(-X[:, 0])), rng.random(300) < 0.7])
    >>> model = cf.FederatedCoxCV(n_alphas=10, cv=3).fit(X, y, sites=hospital)
    >>> model.cv_loss_.shape, bool(model.coef_[0] > 0.5), model.n_rounds_ <= 40
    ((10, 3), True, True)
    """

    fit_intercept: ClassVar[bool] = False  # again: the other base class has them as parameters
    site_effects: ClassVar[str | None] = None

    def fit_options(self) -> FitOptions:
        if isinstance(self.cv, str) and self.cv == LEAVE_ONE_OUT:
            raise InputError(
                f"{type(self).__name__}(cv='loo'): approximate leave-one-out needs the loss of every row, and a partial likelihood "
                "has none. Give a number of folds, such as cv=5."
            )
        return super().fit_options()


# --- labels ---


def survival_labels(name: str, X: Any, y: Any, events: tuple[Any, Any] | None = None) -> tuple[Any, np.ndarray]:
    """X without the columns of y that were given by name, and y as (time, event) or (entry, time, event), in numbers.

    `events` are the words of a schema for no event and the event.
    """
    if isinstance(y, str):
        raise InputError(f"{name}: y={y!r} is one column; a Cox model needs time and event: y=('time', 'event').")
    if isinstance(y, (tuple, list)) and len(y) in (2, 3) and all(isinstance(part, str) for part in y):
        found = []
        for part in y:
            X, column = take_column(as_frame(X), "y", part)
            found.append(_happened(name, part, column, events) if part == y[-1] else _numbers(name, part, column))
        return X, np.column_stack(found)
    values: Any = y
    if getattr(getattr(values, "dtype", None), "names", None):
        return X, _of_structured(name, values)
    frame = y if isinstance(y, Frame) else read_frame(y, f"{name}: y")
    if frame is not None:
        tables.check_rows(name, X, cast(Any, y), None, None)
        if len(frame.columns) not in (2, 3):
            raise InputError(f"{name}: y has {len(frame.columns)} columns. {WAY_OUT}")
        *times, last = frame.columns
        return X, np.column_stack(
            [*(_numbers(name, str(c), frame[c]) for c in times), _happened(name, str(last), frame[last], events)]
        )
    found = np.asarray(values)
    if found.ndim != 2 or found.shape[1] not in (2, 3):
        raise InputError(f"{name}: y has shape {found.shape}. {WAY_OUT}")
    return X, as_floats(found, f"{name}: y")


def _numbers(name: str, label: str, column: Column) -> np.ndarray:
    values = column.values
    if column.missing.any():
        raise InputError(f"{name}: column {label!r} of y has no value in some rows. Drop these rows.")
    return values.astype(float) if values.dtype.kind == "b" else as_floats(column, f"{name}: y, column {label!r}")


def _happened(name: str, label: str, column: Column, events: tuple[Any, Any] | None) -> np.ndarray:
    """Whether the event happened, as 0 and 1: from numbers, truth values, or the words of a schema."""
    values = column.values
    if values.dtype.kind in "OUT" and not column.missing.any():
        words = np.array([str(value) for value in values.tolist()], object)
        if events is not None and (codes := codes_of(words, events)).min(initial=0) >= 0:
            return codes.astype(float)
        if not set(words.tolist()) <= {"0", "1", "True", "False"}:
            found = sorted_levels(set(words.tolist()))
            raise InputError(
                f"{name}: y, column {label!r}, has {join_names([repr(word) for word in found])}; the event is 1 or True, and 0 or False "
                f"where it did not happen. Give such a column, as of frame[{label!r}] == {found[-1]!r}."
            )
    return _numbers(name, label, column)


def _of_structured(name: str, y: np.ndarray) -> np.ndarray:
    """(time, event) of a structured array: its field of truth values is the event, and (entry, time) stand in their order."""
    names: Any = y.dtype.names
    events = [field for field in names if y.dtype[field].kind == "b"]
    if len(events) != 1 or len(names) not in (2, 3):
        raise InputError(
            f"{name}: y has the fields {join_names([repr(field) for field in names])}; one of truth values (the event) and one or "
            f"two of numbers (entry, time) are needed. {WAY_OUT}"
        )
    times = [field for field in names if field not in events]
    return np.column_stack([np.asarray(y[field], float) for field in (*times, *events)])
