"""What joining the sites is worth, over any federation: local, averaged and federated models on rows none of them saw.

Everything is one conversation, and no row leaves its site: the local models are fitted with one site each, in the same
messages as the federated one, and all are judged by their loss on rows that every site holds out itself. With the rows in
this process, `compare_local_federated_pooled` compares with the pooled model too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compfed._utils.text import number_table
from compfed.errors import InputError
from compfed.estimators.base import FederatedModel
from compfed.estimators.programs.fit import Fitted, Plan, fitting
from compfed.federation.accounting import Communication
from compfed.federation.queries import HeldOut
from compfed.federation.server.program import Federation, Program, Request, SingleSite, for_site, gather, run_program
from compfed.splits import Holdout

AVERAGE, FEDERATED = "average of local", "federated"


@dataclass(frozen=True)
class LocalFederated:
    """One row per model: those of the sites alone, their average, the federated one. `str` gives the table."""

    sites: tuple[str, ...]
    models: tuple[str, ...]  # "local: SITE" in the order of the sites, then the two others
    coefficients: (
        np.ndarray
    )  # (models, features, outputs), on the original scale; NaN for a model that cannot be fitted
    intercepts: np.ndarray  # (models, outputs)
    losses: np.ndarray  # (models, sites + 1): mean loss on held-out rows of each site, and of all
    rows: np.ndarray  # (sites,): weight of the rows held out
    communication: Communication

    def __str__(self) -> str:
        cells = [
            [name, *("-" if np.isnan(v) else f"{v:.4g}" for v in losses), "-" if np.isnan(w).all() else str(used)]
            for name, losses, w, used in zip(
                self.models,
                self.losses,
                self.coefficients,
                (self.coefficients != 0).any(axis=2).sum(axis=1),
                strict=True,
            )
        ]
        head = f"mean loss on held-out rows; {self.communication.rounds} rounds for all models together"
        return f"{head}\n\n" + number_table(["model", *self.sites, "all", "features"], cells)


def compare_local_federated(
    estimator: Any, federation: Federation, *, test_size: float = 0.3, seed: int = 0
) -> LocalFederated:
    """Fit `estimator` at every site alone and over all sites; judge all by rows that the sites hold out.

    >>> import compfed as cf
    >>> t = cf.data.bundled.diabetes()
    >>> federation = cf.federation.InProcess(cf.data.from_table(t.X, t.y, t.sites))
    >>> found = compare_local_federated(cf.FederatedLasso(1.0, tol=1e-6), federation)
    >>> found.models[-2:], bool((found.losses[-1, -1] <= found.losses[:-1, -1]).all())
    (('average of local', 'federated'), True)
    """
    if not isinstance(estimator, FederatedModel) or not hasattr(estimator, "alpha"):
        raise InputError(
            f"compare_local_federated needs an estimator with a given alpha, such as FederatedLasso(alpha=0.1); got "
            f"{type(estimator).__name__}."
        )
    if not 0 < test_size < 1:
        raise InputError(f"test_size={test_size!r} must be between 0 and 1.")
    plan, alpha = estimator.plan(), float(estimator.alpha)  # pyright: ignore[reportAttributeAccessIssue]  # checked above
    talk = _comparing(federation, plan, alpha, test_size, seed)
    (coefficients, intercepts, losses, rows), cost = run_program(federation, talk)
    names = (*(f"local: {name}" for name in federation.names), AVERAGE, FEDERATED)
    return LocalFederated(federation.names, names, coefficients, intercepts, losses, rows, cost)


def _comparing(federation: Federation, plan: Plan, alpha: float, test_size: float, seed: int) -> Program[Any]:
    kept, out = (Holdout(test_size, seed, plan.family.of_classes, held_out) for held_out in (False, True))
    talks: list[Program[Any]] = [fitting(federation, plan, alpha, kept)]
    n = len(federation.names)
    talks += [for_site(i, n, _locally(_alone(federation, i), plan, alpha, kept)) for i in range(n)]
    fitted, *local = yield from gather(talks)
    models = _models(fitted, local)
    usable = [m for m in models if m is not None]
    scaling, objective = fitted.prepared.scaling, fitted.prepared.spec.objective
    x = np.array([scaling.model(coef, intercept) for coef, intercept in usable])
    query = HeldOut(objective, out, x)
    requests = [Request((query,), (i,), models=len(x) if i == 0 else 0, counts=i == 0) for i in range(n)]
    said = [held_out for (held_out,) in (yield requests)]  # of each site by itself
    rows = np.array([held_out.weight for held_out in said])
    each = np.array([held_out.means if held_out.sites else np.full(len(x), np.nan) for held_out in said]).T
    together = np.nan_to_num(each) @ rows / rows.sum()
    losses, k = np.full((len(models), len(rows) + 1), np.nan), 0
    shape = usable[-1][0].shape
    coefficients, intercepts = np.full((len(models), *shape), np.nan), np.full((len(models), shape[1]), np.nan)
    for i, model in enumerate(models):
        if model is not None:
            losses[i], (coefficients[i], intercepts[i]), k = [*each[k], together[k]], model, k + 1
    return coefficients, intercepts, losses, rows


def _alone(federation: Federation, i: int) -> Federation:
    """Site i as a federation of its own, compiled where the whole one is."""
    own = getattr(federation, "alone", None)
    return own(i) if own is not None else SingleSite(federation, i)


def _locally(federation: Federation, plan: Plan, alpha: float, kept: Holdout) -> Program[Fitted | None]:
    """The fit with one site; None where it cannot be made, as with rows of a single class."""
    try:
        return (yield from fitting(federation, plan, alpha, kept))
    except InputError:
        return None


def _models(fitted: Fitted, local: Sequence[Fitted | None]) -> list[tuple[np.ndarray, np.ndarray] | None]:
    """(coef, intercept) on the original scale: local ones of the same shape, their average by rows, the federated one."""
    own = fitted.prepared.scaling.coefficients(fitted.minimum.x)
    models: list[tuple[np.ndarray, np.ndarray] | None] = []
    weights = []
    for fit, weight in zip(local, fitted.prepared.gathered.totals, strict=True):
        found = None if fit is None else fit.prepared.scaling.coefficients(fit.minimum.x)
        same = found is not None and fit is not None and _same_outputs(fit, fitted)
        models.append(found if same else None)
        weights += [weight] if same else []
    usable = [m for m in models if m is not None]
    average = None
    if usable:
        mean = np.average(np.array([m[0] for m in usable]), axis=0, weights=weights)
        average = mean, np.average(np.array([m[1] for m in usable]), axis=0, weights=weights)
    return [*models, average, own]


def _same_outputs(one: Fitted, other: Fitted) -> bool:
    a, b = (fit.prepared.gathered.labels.classes for fit in (one, other))
    return (a is None) == (b is None) and (a is None or b is None or np.array_equal(a, b))
