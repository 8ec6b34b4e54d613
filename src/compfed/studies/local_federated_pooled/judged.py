"""In which respects models are compared: their coefficients, and how they do on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.metrics import d2_tweedie_score, r2_score

from compfed.estimators import FederatedPoissonRegressor
from compfed.studies.local_federated_pooled.fits import Fit, Table

SAME = 1e-6  # coefficients that differ by less are the same


def of_coefficients(fits: Sequence[Fit], names: Sequence[str], X: np.ndarray) -> dict[str, Any]:
    """The fields of `Comparison` about coefficients; the last fit is the pooled one, X what it was fitted to."""
    pooled = fits[-1].model
    outputs, width = np.atleast_2d(pooled.coef_).shape
    W, b, used = np.full((width * outputs, len(fits)), np.nan), np.full((outputs, len(fits)), np.nan), []
    for k, fit in enumerate(fits):
        coef = np.full((1, 1), np.nan) if fit.model is None else np.atleast_2d(fit.model.coef_)
        used.append(np.nan if fit.model is None else np.any(coef != 0, axis=0).sum())
        if fit.model is not None and coef.shape == (outputs, width):
            W[:, k], b[:, k] = coef.T.ravel(), fit.model.intercept_
    scale = np.repeat(X.std(axis=0), outputs)
    known, there = ~np.isnan(W).any(axis=0), W != 0
    reference = there[:, [-1]]
    size = np.linalg.norm(W[:, -1] * scale) or 1.0
    kinds = output_names(pooled, outputs)
    return {
        "features": tuple(name + kind for name in names for kind in kinds),
        "outputs": tuple(kinds),
        "coefficients": W,
        "intercepts": b,
        "scale": scale,
        "used": np.array(used, float),
        "extra": np.where(known, (there & ~reference).sum(axis=0), np.nan),
        "missing": np.where(known, (~there & reference).sum(axis=0), np.nan),
        "distance": np.linalg.norm((W - W[:, [-1]]) * scale[:, None], axis=0) / size,
    }


def disagreement(distance: float, federated: Any, pooled: Any, X: np.ndarray) -> list[str]:
    """What to say when the two are not the same: coefficients may differ where predictions cannot."""
    if distance <= SAME:
        return []
    z, reference = federated.linear_predictor(X), pooled.linear_predictor(X)
    off = float(np.abs(z - reference).max() / (np.ptp(reference) or 1.0))
    said = f"federated and pooled differ by {distance:.1g} in coefficients and by {off:.1g} in predictions"
    return [said + (", for some columns are combinations of others" if off < 1e-3 * distance else "")]


def output_names(model: Any, outputs: int) -> list[str]:
    """What to add to the name of a feature: nothing, or the class or the number of an outcome."""
    if outputs == 1:
        return [""]
    return [f" [{kind}]" for kind in getattr(model, "classes_", range(outputs))]


def of_held_out_rows(fits: Sequence[Fit], table: Table, out: np.ndarray) -> dict[str, Any]:
    """The fields `scores` and `own` of `Comparison`."""
    X, y, where = table.X[out], table.y[out], table.where[out]
    masks = [*(where == site for site in table.sites), np.ones(len(y), bool)]
    seen = [None if fit.model is None else _per_row(fit.model, X, y) for fit in fits]
    own, scores = {}, {}
    for measure, values in _per_row(fits[-1].model, X, y).items():
        nothing = np.full(values.shape, np.nan)
        columns = [nothing if rows is None else rows[measure] for rows in seen]
        alone = nothing.copy()
        for column, mask in zip(columns, masks[:-1], strict=False):  # the local models come first
            alone[mask] = column[mask]
        scores[measure] = np.array([[_score(measure, y[m], c[m]) for m in masks] for c in columns])
        own[measure] = np.array([_score(measure, y[m], alone[m]) for m in masks])
    return {"scores": scores, "own": own}


def _per_row(model: Any, X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """What each measure needs to know of each row."""
    if is_classifier(model):
        log_p = model.predict_log_proba(X)
        known = model.classes_ == y[:, None]
        # a class that a model does not know has probability 0
        loss = np.where(known.any(axis=1), -np.where(known, log_p, 0.0).sum(axis=1), np.inf)
        return {"accuracy": (model.predict(X) == y).astype(float), "log loss": loss}
    return {"D^2" if isinstance(model, FederatedPoissonRegressor) else "R^2": model.predict(X)}


def _score(measure: str, y: np.ndarray, values: np.ndarray) -> float:
    """The score of some rows; NaN where it is not defined."""
    if not len(y) or np.isnan(values).any():
        return np.nan
    if measure in ("accuracy", "log loss"):
        return float(values.mean())
    if (np.ptp(y, axis=0) == 0).any():
        return np.nan
    return float(r2_score(y, values) if measure == "R^2" else d2_tweedie_score(y, values, power=1))
