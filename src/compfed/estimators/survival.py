"""Survival: the Cox model over sites, stratified by site, with the coefficients of the pooled table."""
# pyright: reportIncompatibleVariableOverride=false
# A Cox model has no intercept, so that the parameters about one are none of its own.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.utils import Tags

from compfed._utils.text import join_names
from compfed._utils.validation import check_choice
from compfed.data.adapter import Column, Frame, as_column, as_frame
from compfed.data.columns import as_floats, read_frame, take_column
from compfed.errors import InputError
from compfed.estimators import table as tables
from compfed.estimators.base import BoundedModel, estimator, first
from compfed.estimators.path_and_cv import CrossValidated
from compfed.estimators.programs.fit import ElasticNetFamily, Family, FitOptions, Labels
from compfed.estimators.table import UNSPECIFIED, CheckedTable, Features, Offset, RowWeights, SchemaLike, SiteOfRows
from compfed.losses import CoxPartialLikelihood
from compfed.solvers.auto import check_site_loss_method
from compfed.splits import LEAVE_ONE_OUT

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

    def null_intercept(self, labels: Labels) -> np.ndarray | None:
        return None


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

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,)
        Log hazard ratios, on the original scale of the features.
    intercept_ : float
        0.0: a constant would be part of the baseline hazard.

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
        if self.algorithm != "auto":
            check_site_loss_method(CoxPartialLikelihood(), self.algorithm)
        return super().fit_options()

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
        y = survival_labels(type(self).__name__, X, y)[1]
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

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        tags.target_tags.required = True
        return tags


@estimator
class FederatedCoxCV(CrossValidated, FederatedCox):
    """Cox proportional hazards over sites, with alpha chosen by cross-validation.

    The loss of a fold is by how much all rows lose more than those to train with, at the model without the fold, per event of the
    fold: -(l_all(w) - l_train(w)) / events, with the log partial likelihood l (Verweij and van Houwelingen, Statistics in Medicine
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

    def fit_options(self) -> FitOptions:
        if isinstance(self.cv, str) and self.cv == LEAVE_ONE_OUT:
            raise InputError(
                f"{type(self).__name__}(cv='loo'): approximate leave-one-out needs the loss of every row, and a partial likelihood "
                "has none. Give a number of folds, such as cv=5."
            )
        return super().fit_options()


# --- labels ---


def survival_labels(name: str, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    """X without the columns of y that were given by name, and y as (time, event) or (entry, time, event), in numbers."""
    if isinstance(y, str):
        raise InputError(f"{name}: y={y!r} is one column; a Cox model needs time and event: y=('time', 'event').")
    if isinstance(y, (tuple, list)) and len(y) in (2, 3) and all(isinstance(part, str) for part in y):
        found = []
        for part in y:
            X, column = take_column(as_frame(X), "y", part)
            found.append(_numbers(name, part, column))
        return X, np.column_stack(found)
    values: Any = y
    if getattr(getattr(values, "dtype", None), "names", None):
        return X, _of_structured(name, values)
    frame = y if isinstance(y, Frame) else read_frame(y, f"{name}: y")
    if frame is not None:
        tables.check_rows(name, X, y, None, None)
        if len(frame.columns) not in (2, 3):
            raise InputError(f"{name}: y has {len(frame.columns)} columns. {WAY_OUT}")
        return X, np.column_stack([_numbers(name, str(c), frame[c]) for c in frame.columns])
    found = np.asarray(values)
    if found.ndim != 2 or found.shape[1] not in (2, 3):
        raise InputError(f"{name}: y has shape {found.shape}. {WAY_OUT}")
    return X, as_floats(found, f"{name}: y")


def _numbers(name: str, label: str, column: Column) -> np.ndarray:
    values = column.values
    if column.missing.any():
        raise InputError(f"{name}: column {label!r} of y has no value in some rows. Drop these rows.")
    return values.astype(float) if values.dtype.kind == "b" else as_floats(column, f"{name}: y, column {label!r}")


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
