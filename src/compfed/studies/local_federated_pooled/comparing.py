"""compare_local_federated_pooled: split every site's rows, fit, judge."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier

from compfed._utils.validation import check_unmasked
from compfed.data.columns import as_floats, as_site_labels
from compfed.data.splits import held_out, names_rows
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.studies.local_federated_pooled.fits import FEDERATED, POOLED, Fit, Table, average, local_fits, plain
from compfed.studies.local_federated_pooled.judged import disagreement, of_coefficients, of_held_out_rows
from compfed.studies.local_federated_pooled.pooled import fit_pooled
from compfed.studies.local_federated_pooled.result import Comparison


def compare_local_federated_pooled(
    estimator: Any, X: Any, y: Any, sites: Any, *, test_size: float = 0.3, seed: int = 0, feature_names: Any = None
) -> Comparison:
    """Fit `estimator` at every site alone, over all sites, and to the pooled rows; judge all on rows held out.

    Every site holds out the share `test_size` of its rows, class by class for a classifier. The pooled model comes from
    an independent solver (scikit-learn, wherever it has the same objective; `pooled_by` says which). The average of the
    local coefficients, by rows, is there because it is often used; it is not the pooled model.

    - `sites`: the site of every row, or the name of a column of a DataFrame X.

    An estimator that chooses its alpha chooses it once per local model and once over all sites; the pooled model has
    the alpha chosen over all sites.

    >>> from compfed.data import bundled
    >>> from compfed.estimators import FederatedLasso
    >>> t = bundled.diabetes()
    >>> c = compare_local_federated_pooled(FederatedLasso(1.0, standardize=True), t.X, t.y, t.sites)
    >>> c.models[-3:], c.used[-3:].astype(int).tolist(), (c.distance[-3:] < 1e-6).tolist()
    (('average of local', 'federated', 'pooled'), [10, 9, 9], [False, True, True])
    """
    table = _checked(estimator, X, y, sites, feature_names)
    out = held_out(table.where, test_size, seed, table.y if is_classifier(estimator) else None)
    return _compared(estimator, table, out)


def _compared(estimator: Any, table: Table, out: np.ndarray) -> Comparison:
    """All fits to the rows that are not `out`, judged by those that are."""
    fits = local_fits(estimator, table, ~out)
    train = table.X[~out], table.y[~out], table.where[~out]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        federated: Any = clone(estimator)
        federated.fit(train[0], train[1], sites=train[2])
        pooled, pooled_by = fit_pooled(plain(federated), *train)
    notes = tuple(f"{FEDERATED} or {POOLED}: {w.message}" for w in caught)
    fits += [average(federated, fits), Fit(FEDERATED, federated, notes=notes), Fit(POOLED, pooled)]
    found = of_coefficients(fits, table.names, train[0])
    differ = disagreement(found["distance"][-2], federated, pooled, train[0])
    return Comparison(
        **found,
        **of_held_out_rows(fits, table, out),
        sites=table.sites,
        models=tuple(fit.label for fit in fits),
        rows=np.array([[np.sum(~out[table.where == s]), np.sum(out[table.where == s])] for s in table.sites]),
        status=tuple(fit.status for fit in fits),
        pooled_by=pooled_by,
        estimator=" ".join(repr(estimator).split()),
        notes=(*(note for fit in fits for note in fit.notes), *differ),
    )


def _checked(estimator: Any, X: Any, y: Any, sites: Any, names: Any) -> Table:
    if not isinstance(estimator, FederatedModel):
        raise InputError(
            f"compare_local_federated_pooled needs an estimator of compfed, such as FederatedLasso(alpha=0.1); got "
            f"{type(estimator).__name__}."
        )
    if names_rows(getattr(estimator, "cv", 5)):
        raise InputError(
            f"{type(estimator).__name__}: its cv speaks of the rows of one table, and a comparison fits to several parts of "
            "it. Give a number of folds, 'leave-one-site-out' or a splitter."
        )
    if isinstance(y, str):
        raise InputError(f"y={y!r}: give the outcome of every row, such as X[{y!r}], and X without that column.")
    if isinstance(sites, str):
        if sites not in getattr(X, "columns", ()):
            raise InputError(f"sites={sites!r} names a column, and X has none of that name. Give one site per row.")
        sites, X = X[sites], X.drop(columns=sites)
    found = getattr(X, "columns", None) if names is None else names
    X = as_floats(X, "X")
    check_unmasked(y, "y")
    y, where = np.asarray(y), as_site_labels("sites: the site of every row is needed", sites).astype(str)
    if X.ndim != 2 or not len(X) == len(y) == len(where):
        raise InputError(f"X, y and sites need the same rows; their shapes are {X.shape}, {y.shape} and {where.shape}.")
    if len(np.unique(where)) < 2:
        raise InputError("a comparison needs at least two sites; all rows are at one.")
    labels = tuple(str(name) for name in (range(X.shape[1]) if found is None else found))
    if len(labels) != X.shape[1]:
        raise InputError(f"feature_names has {len(labels)} names; X has {X.shape[1]} columns: give one for each.")
    return Table(X, y, where, labels)
