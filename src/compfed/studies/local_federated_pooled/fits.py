"""The models that are compared: one per site, and their average."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from compfed._utils.text import shapes_shown
from compfed.errors import InputError

AVERAGE, FEDERATED, POOLED = "average of local", "federated", "pooled"


@dataclass(frozen=True)
class Table:
    """The rows of all sites."""

    X: np.ndarray
    y: np.ndarray
    where: np.ndarray  # the name of the site of every row
    names: tuple[str, ...]
    __repr__ = shapes_shown

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(np.unique(self.where).tolist())


@dataclass(frozen=True)
class Fit:
    """A fitted estimator, or None and the reason."""

    label: str
    model: Any
    status: str = ""
    notes: Sequence[str] = ()
    rows: int = 0  # of its site, for a local model


def local_fits(estimator: Any, table: Table, train: np.ndarray) -> list[Fit]:
    """The estimator fitted to each site's own rows."""
    members = [np.flatnonzero(train & (table.where == site)) for site in table.sites]
    size = max(map(len, members))
    classes = len(np.unique(table.y[train])) if is_classifier(estimator) else 0
    return [
        _local_fit(f"local: {site}", clone(estimator), table, rows, size, classes)
        for site, rows in zip(table.sites, members, strict=True)
    ]


def _local_fit(label: str, model: Any, table: Table, rows: np.ndarray, size: int, classes: int) -> Fit:
    found, count = len(np.unique(table.y[rows])) if classes else 0, len(rows)
    if classes and found == 1:
        return Fit(label, None, "one class")
    weight = None
    if not hasattr(model, "cv"):  # copies must not meet across folds
        # k copies of a row, each of weight 1/k, are that row: all sites then have one size and share one program
        rows = np.resize(rows, size)
        weight = 1.0 / np.bincount(rows)[rows]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model.fit(table.X[rows], table.y[rows], sites=None, sample_weight=weight)
        except InputError as problem:
            return Fit(label, None, "cannot be fitted", [f"{label}: {problem}"])
    status = f"{found} of {classes} classes" if found < classes else ""
    return Fit(label, model, status, [f"{label}: {w.message}" for w in caught], count)


def plain(fitted: Any) -> Any:
    """The estimator with the alpha that a fitted one has, or has chosen."""
    cls = getattr(fitted, "model", type(fitted))
    parameters = {k: v for k, v in fitted.get_params(deep=False).items() if k in inspect.signature(cls).parameters}
    return cls(**parameters | {"alpha": getattr(fitted, "alpha_", parameters.get("alpha"))})


def average(federated: Any, local: Sequence[Fit]) -> Fit:
    """The mean of the local coefficients, by rows, over the models that have the coefficients of the federated one."""
    usable = [fit for fit in local if fit.model is not None and not fit.status]
    if not usable:
        return Fit(AVERAGE, None, "no local model")
    weights = [fit.rows if federated.site_weights == "rows" else 1 for fit in usable]
    model = plain(federated)
    model.__dict__.update({k: v for k, v in vars(federated).items() if k not in federated.get_params()})
    model.coef_ = np.average([fit.model.coef_ for fit in usable], axis=0, weights=weights)
    model.intercept_ = np.average([fit.model.intercept_ for fit in usable], axis=0, weights=weights)
    return Fit(AVERAGE, model, "" if len(usable) == len(local) else f"{len(usable)} of {len(local)} sites")
