"""What all estimators share: from a table and its sites to coefficients on the original scale."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from compfed.algorithms import Algorithm
from compfed.data import Sites, from_table
from compfed.data.moments import moments, root_mean_square
from compfed.data.sites import one_per_row
from compfed.engines.run import whole
from compfed.errors import InputError
from compfed.estimators.duality import duality_gap
from compfed.estimators.frame import Frame
from compfed.problem.losses import Loss
from compfed.problem.problem import Problem
from compfed.problem.regularisers import OnBlock, Regulariser
from compfed.solvers.federated import Minimum, minimise
from compfed.tools.progress import progress_bar


@dataclass(frozen=True)
class Federation:
    """A checked table: what `fit` was given, with labels as the loss wants them."""

    sites: Sites  # original features
    weights: np.ndarray  # p_i
    rows: tuple[np.ndarray, ...]  # where each site's rows are in the table
    length: int  # rows of the table, those of weight 0 included


@dataclass(frozen=True)
class Prepared:
    """A problem in its frame, before a penalty is chosen, and its null model: no feature, the best intercept."""

    problem: Problem
    frame: Frame
    null: np.ndarray

    @property
    def null_gradient(self) -> np.ndarray:
        return self.problem.gradient(self.null)


class FederatedModel(BaseEstimator):
    """A linear model whose rows stay at their sites. Subclasses say which loss, which penalty, which parameters."""

    alpha: float
    fit_intercept: bool
    standardize: bool
    site_weights: str
    algorithm: str | Algorithm
    tau: int
    tol: float
    max_rounds: int
    verbose: bool

    # --- what a subclass says ---

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Labels as the loss wants them; sets classes_ where there are any."""
        return y

    def _loss(self, y: np.ndarray) -> Loss:
        raise NotImplementedError

    def _penalty(self, scale: np.ndarray, outputs: int) -> Regulariser:
        """The penalty of u = scale * w, for coefficients w of shape (width, outputs)."""
        raise NotImplementedError

    def _column_scale(self, scale: np.ndarray) -> np.ndarray:
        """The scale of each column that the penalty can live with (one per group, for a penalty of groups)."""
        return scale

    def _null_intercept(self, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """The best intercepts without features; weight sums to 1 over all rows."""
        return np.atleast_1d(weight @ y)

    def _publish(self, coef: np.ndarray, intercept: np.ndarray) -> None:
        """Set coef_ and intercept_ from (width, outputs) and (outputs,)."""
        self.coef_, self.intercept_ = coef[:, 0], float(intercept[0])

    # --- scikit-learn's face ---

    def fit(self, X: Any, y: Any, sites: Any = None, sample_weight: Any = None) -> Any:
        """Fit over all sites; the coefficients are those of the pooled rows.

        - `sites`: the site of every row, or the name of a column of a DataFrame X; all rows are one site without it.
        - `sample_weight`: how much each row counts.
        """
        prepared = self._prepare(self._federation(X, y, sites, sample_weight))
        minimum = self._solve(prepared)
        self._finish(prepared, minimum)
        if not minimum.converged:
            warnings.warn(
                f"{type(self).__name__} stopped after {minimum.rounds} rounds with a gradient mapping of "
                f"{minimum.certificate.relative:.1e} of its scale; tol is {self.tol:g}. Give more max_rounds"
                + (", or another algorithm: this one is not exact." if not minimum.algorithm.exact else "."),
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def fit_sites(self, sites: Sites) -> Any:
        """Fit over a federation from `compfed.data`."""
        if not isinstance(sites, Sites):
            raise InputError(f"fit_sites takes what compfed.data makes (from_files, ...); got {type(sites).__name__}.")
        X, y = sites.pooled()
        weights = None if sites.row_weights is None else np.concatenate(sites.row_weights)
        where = np.repeat(sites.names, sites.sizes)
        self.fit(X, y, sites=where, sample_weight=weights)
        if sites.columns is not None:
            self.feature_names_in_ = np.array(sites.columns, dtype=object)
        return self

    def _decision(self, X: Any) -> np.ndarray:
        """Predictions z of shape (rows, outputs)."""
        check_is_fitted(self)
        X = validate_data(self, self._without_sites(X), reset=False, accept_sparse="csr")
        z = X @ np.atleast_2d(self.coef_).T + np.atleast_1d(self.intercept_)
        return np.asarray(z)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # --- the way there ---

    def _without_sites(self, X: Any) -> Any:
        column = getattr(self, "site_column_", None)
        return X.drop(columns=column) if column is not None and column in getattr(X, "columns", ()) else X

    def _check_parameters(self) -> None:
        me = type(self).__name__
        for name in ("alpha", "tol", "l1_ratio"):
            value = getattr(self, name, 0.0)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
                raise InputError(f"{me}({name}={value!r}): {name} must be a finite number >= 0.")
        for name in ("tau", "max_rounds"):
            whole(getattr(self, name), f"{me}: {name}", 1)
        l1_ratio = getattr(self, "l1_ratio", 0.0)
        if l1_ratio > 1:
            raise InputError(f"{me}(l1_ratio={l1_ratio}): l1_ratio must be between 0 and 1.")
        if self.site_weights not in ("rows", "equal"):
            raise InputError(
                f"{me}(site_weights={self.site_weights!r}): site_weights must be 'rows' (every row "
                "counts the same, as if pooled) or 'equal' (every site counts the same)."
            )

    def _federation(self, X: Any, y: Any, sites: Any, sample_weight: Any) -> Federation:
        """What was given, checked: nothing is computed before this has passed."""
        self._check_parameters()
        self.__dict__.pop("site_column_", None)
        if isinstance(sites, str):
            if sites not in getattr(X, "columns", ()):
                raise InputError(
                    f"sites={sites!r} names a column, and X has none of that name. Give a DataFrame with that column, "
                    "or one site per row."
                )
            self.site_column_, sites = sites, np.asarray(X[sites])
            X = self._without_sites(X)
        multi = self.__sklearn_tags__().target_tags.multi_output
        X, y = validate_data(
            self, X, y, accept_sparse="csr", multi_output=multi, y_numeric=not hasattr(self, "predict_proba"),
            dtype=np.float64,
        )  # fmt: skip
        X = X.toarray() if hasattr(X, "toarray") else X
        need = f"{type(self).__name__}: sites must be the site of every row"
        where = np.zeros(len(X), int) if sites is None else one_per_row(need, sites)
        if len(where) != len(X):
            raise InputError(f"sites has {len(where)} entries; X has {len(X)} rows: give the site of every row.")
        keep = np.arange(len(X))
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            keep = np.flatnonzero(sample_weight)  # a row of weight 0 is no row
            sample_weight = sample_weight[keep]
        y, where = self._targets(y[keep]), where[keep]
        table = from_table(X[keep], y, where, row_weights=sample_weight)
        p = table.shares if self.site_weights == "rows" else np.full(len(table), 1 / len(table))
        return Federation(table, p, tuple(keep[where == name] for name in np.unique(where)), len(X))

    def _prepare(self, federation: Federation) -> Prepared:
        """The smooth part of the problem in well-conditioned coordinates."""
        sites, p = federation.sites, federation.weights
        y = np.concatenate(sites.labels)
        loss = self._loss(y)
        outputs = loss.size(1)
        # without an intercept columns are not centred
        centre, scale = moments(sites, p) if self.fit_intercept else (np.zeros(sites.width), root_mean_square(sites, p))
        frame = Frame(centre, self._column_scale(scale), intercept=self.fit_intercept, outputs=outputs)
        framed = replace(sites, features=tuple(frame.features(A) for A in sites.features))
        problem = Problem(loss, self._regulariser(frame), framed, weights=p)
        null = np.zeros(problem.d)
        if self.fit_intercept:
            null[frame.penalised :] = self._null_intercept(y, _row_weights(federation))
        return Prepared(problem, frame, null)

    def _regulariser(self, frame: Frame) -> Regulariser:
        penalty = self._penalty(np.ones_like(frame.scale) if self.standardize else frame.scale, frame.outputs)
        return OnBlock(penalty, 0, frame.penalised) if frame.intercept else penalty

    def _solve(self, prepared: Prepared, x0: np.ndarray | None = None) -> Minimum:
        return minimise(
            prepared.problem,
            self.algorithm,
            tau=self.tau,
            tol=self.tol,
            max_rounds=self.max_rounds,
            x0=prepared.null if x0 is None else x0,
            scale=float(np.linalg.norm(prepared.null_gradient)),
            progress=progress_bar(type(self).__name__) if self.verbose else None,
        )

    def _finish(self, prepared: Prepared, minimum: Minimum) -> None:
        self._publish(*prepared.frame.coefficients(minimum.x))
        gap = duality_gap(prepared.problem, prepared.frame, minimum.x)
        self.n_rounds_, self.trace_ = minimum.rounds, minimum.trace
        self.certificate_ = replace(minimum.certificate, duality_gap=gap)
        self.n_iter_ = minimum.rounds
        self.algorithm_ = minimum.algorithm
        self.site_names_ = np.array(prepared.problem.sites.names)


def _row_weights(federation: Federation) -> np.ndarray:
    """p_i q_il of all rows, site after site."""
    return np.concatenate([p * q for p, q in zip(federation.weights, federation.sites.row_shares, strict=True)])
