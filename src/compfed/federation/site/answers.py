"""How a site answers each query from its own rows. Pure, but for the client state of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse

from compfed._utils.array_namespace import product
from compfed._utils.arrays import two_product, two_sum
from compfed.errors import InputError
from compfed.federation.queries import (
    AtRisk,
    Concordance,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Inference,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Score,
    Tabulate,
)
from compfed.federation.queries.lipschitz import BINS, lipschitz_bin
from compfed.federation.query import Query
from compfed.federation.site.at_risk import at_risk
from compfed.federation.site.concordance import concordance
from compfed.federation.site.disclosure import (
    profiled,
    rounded_held_out,
    rounded_hessian,
    rounded_intercepts,
    site_intercept,
)
from compfed.federation.site.inference import inference
from compfed.federation.site.leave_one_out import left_out, rounded
from compfed.federation.site.rows import FoldOrder
from compfed.federation.site.scoring import score
from compfed.federation.site.tabulation import tabulated
from compfed.federation.spec import ObjectiveSpec
from compfed.losses.base import upper_triangle, weighted
from compfed.losses.lipschitz import gram
from compfed.losses.many_models import LossEvaluation
from compfed.losses.offset import FAR, shifted
from compfed.problem.padded_dataset import LocalDataset, sparse_moments

if TYPE_CHECKING:
    from compfed.federation.site.site import Site

TOGETHER = 2**22  # numbers in the models that are evaluated together


class Answers:
    """The replies of one site to the queries of one message. Evaluations of the same objective are worked out together."""

    def __init__(self, queries: Sequence[Query], site: Site):
        self.site = site
        self.order = FoldOrder.of(subset for query in queries for subset in query.subsets)
        self._waiting = [query for query in queries if isinstance(query, Evaluate)]
        self._evaluated: dict[int, LossEvaluation] = {}

    def answer(self, query: Query) -> object:
        """The reply to one query; an error is the site's reason not to give one."""
        return ANSWERS[type(query)](query, self)

    def dataset(self, objective: ObjectiveSpec) -> LocalDataset:
        """The rows as an objective sees them; by fold, where the message is about folds."""
        return self.site.rows.dataset(objective, self.order)

    def evaluation(self, query: Evaluate) -> LossEvaluation:
        """f and its gradient without the ridge, at the models of a query."""
        if id(query) not in self._evaluated:
            group = self._take_like(query)
            self._evaluated |= dict(zip(map(id, group), self._evaluate(group), strict=True))
        return self._evaluated.pop(id(query))

    def _take_like(self, query: Evaluate) -> list[Evaluate]:
        """This query and those that wait whose objectives differ in their subset alone, up to `TOGETHER` numbers."""
        name, group, numbers = self.site.rows.view_name(query.objective), list[Evaluate](), 0
        for one in [query, *(other for other in self._waiting if other is not query)]:
            numbers += one.x.size
            if one is query or (numbers <= TOGETHER and self.site.rows.view_name(one.objective) == name):
                group.append(one)
        self._waiting = [one for one in self._waiting if not any(one is taken for taken in group)]
        return group

    def _evaluate(self, queries: Sequence[Evaluate]) -> list[LossEvaluation]:
        datasets = [self.dataset(query.objective) for query in queries]
        A, loss, sizes = datasets[0].A, queries[0].objective.loss, [len(query.x) for query in queries]
        X, Q = np.concatenate([query.x for query in queries]).astype(A.dtype), np.stack([data.q for data in datasets])
        which = np.repeat(np.arange(len(queries)), sizes)
        found = loss.evaluate(X, A, datasets[0].y, Q, which, datasets[0].row_norms)
        cuts = np.cumsum(sizes)[:-1]
        return [LossEvaluation(*each) for each in zip(*(np.split(part, cuts) for part in found), strict=True)]


def _described(query: Describe, site: Site) -> Describe.Reply:
    data, weights = site.rows, site.rows.weights_of(query.subset)
    rows, weight = int(np.count_nonzero(weights)), float(weights.sum())
    if query.classes:
        site.guard.check_classes()
        found, codes = np.unique(data.labels[weights > 0], return_inverse=True)
        # of no rows it is of int
        each = np.bincount(codes, weights[weights > 0], minlength=len(found)).astype(float)
        return query.Reply(rows, weight, found, each, np.zeros(()))
    if data.labels.dtype.kind not in "biuf":
        raise InputError(f"the labels of site {site.name!r} are words, not numbers. Use a classifier, or encode them.")
    mean = np.asarray((weights / weight if weight > 0 else weights) @ data.labels)
    return query.Reply(rows, weight, np.empty(0), np.empty(0), mean)


def _moments(query: Moments, site: Site) -> Moments.Reply:
    """Means around a row of the site's own, so that a constant column has exactly its value as mean."""
    A, weights = site.rows.features, site.rows.weights_of(query.subset)
    weight = float(weights.sum())
    q = weights / (weight or 1.0)
    if issparse(A):
        mean, low, spread = sparse_moments(A, q)
    else:
        away = np.subtract(A, A[0], dtype=float)
        mean = A[0] + q @ away
        np.subtract(A, mean, out=away)  # in place, as rows may be many
        low = q @ away
        spread = q @ np.square(away, out=away)
    # with a = mean + (a - mean): E a^2 = mean^2 + 2 mean low + spread, as a pair of doubles
    if weight == 0:
        mean = low = spread = np.zeros(site.rows.width)
    square, square_low = two_product(mean, mean)
    return query.Reply(weight, mean, low, *two_sum(square, square_low + (2 * mean * low + spread)))


def _lipschitz(query: Lipschitz, message: Answers) -> Lipschitz.Reply:
    data, loss = message.dataset(query.objective), query.objective.loss
    at = None if loss.curvature is not None else (data.start if query.x is None else query.x)
    y = data.y
    if query.objective.profile and at is not None:  # without the profile L is larger: a bound holds for both
        loss, y = profiled(query.objective, data, at)
    if query.upper_bound:
        bound = loss.lipschitz_upper_bound(data.A, data.q, data.row_norms, at, y)
        return query.Reply(float(bound) + float(loss.ridge), None)
    L = float(loss.lipschitz(data.A, data.q, at, y)) + float(loss.ridge)
    counts = np.zeros(BINS, np.uint8)
    counts[lipschitz_bin(L)] = 1
    return query.Reply(L, counts)


def _evaluated(query: Evaluate, message: Answers) -> Evaluate.Reply:
    objective, loss = query.objective, query.objective.loss
    data = message.dataset(objective)
    x = np.asarray(query.x, data.A.dtype)
    half = 0.5 * float(loss.ridge)
    at: list[tuple[Any, np.ndarray]] = [(loss, data.y)] * len(x)  # the loss and the labels for each model
    if objective.profile:
        at, q, first = [profiled(objective, data, v) for v in x], data.q[None], np.zeros(1, int)
        found = [
            inner.evaluate(v[None], data.A, y, q, first, data.row_norms) for v, (inner, y) in zip(x, at, strict=True)
        ]
        value, gradient, terms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    else:
        value, gradient, terms = message.evaluation(query)
    if message.site.policy is not None:  # exact, the sums of absolute residuals of many models would tell single ones
        with np.errstate(divide="ignore"):
            terms = np.where(terms > 0, np.exp2(np.ceil(np.log2(terms))), 0.0)
    value, gradient = rounded_intercepts(message.site.policy, objective, data, x, value, gradient)
    value, gradient = value + half * np.sum(x * x, axis=1), gradient + 2 * half * x
    hessian = conjugate = None
    if query.coords is not None:
        W, single, policy = query.coords, query.single, message.site.guard.policy
        every = [
            _profile_hessian(inner, v, data, y, W)
            if objective.profile
            else inner.packed_hessian(v, data.A, y, data.q, W, single)
            for v, (inner, y) in zip(query.x, at, strict=True)
        ]
        hessian = np.stack([rounded_hessian(policy, loss, np.asarray(each)) for each in every])
    if query.dual is not None:
        models = zip(x, at, query.dual, strict=True)
        conjugate = np.array([_conjugate(query, data, v, inner, *point) for v, inner, point in models])
    return query.Reply(value, gradient, terms, hessian, conjugate)


def _profile_hessian(loss: Any, x: np.ndarray, data: LocalDataset, y: np.ndarray, W: np.ndarray) -> np.ndarray:
    """The Hessian of the profile: A^T D A - (A^T d) (A^T d)^T / sum d, the Schur complement of the intercept.

    It is the Gram matrix of the columns around their means with the weights d, which rounds less.
    """
    weights = weighted(data.q, loss.model_second_derivative(product(data.A, x), y))
    A, total = data.A[:, W], float(weights.sum())
    return upper_triangle(gram(A - (weights @ A) / (total or 1.0), weights))


def _conjugate(
    query: Evaluate, data: LocalDataset, x: np.ndarray, at: tuple[Any, np.ndarray], shift: float, stretch: float,
    mix: float, z: float,
) -> float:  # fmt: skip
    loss = query.objective.loss  # the server asks this only of a loss with a conjugate
    theta = (1 - mix) * (at[0].derivative(data.A @ x, at[1]) - shift)
    if mix > 0:
        theta = theta + mix * loss.derivative(np.full(len(theta), z), data.y)  # pyright: ignore[reportAttributeAccessIssue]
    return float(data.q @ loss.conjugate(stretch * theta, data.y))  # pyright: ignore[reportAttributeAccessIssue]


def _held_out(query: HeldOut, message: Answers) -> HeldOut.Reply:
    rows, objective = message.site.rows, query.objective
    data, weights = message.dataset(objective), rows.weights_of(query.subset)
    total = float(weights.sum())
    q = data.in_order(weights / (total or 1.0))
    if objective.profile:
        found = _held_out_profile(query, message.site, data, q)
    else:
        found = objective.loss.held_out(np.asarray(query.x, data.A.dtype), data.A, data.y, q)
    policy = message.site.policy
    if policy is not None and total > 0:
        # exact ones are equations about the few columns that a model is of, counted against all
        found = rounded(
            np.array([rounded_held_out(policy, objective, data, x, q, f) for x, f in zip(query.x, found, strict=True)])
        )
    return query.Reply(total, found)


def _held_out_profile(query: HeldOut, site: Site, data: LocalDataset, q: np.ndarray) -> np.ndarray:
    """The loss of held-out rows with the intercept of the rows to train with; infinite where that has no finite one."""
    objective = query.objective
    if q.any() and not site.rows.weights_of(objective.subset).any():
        raise InputError(
            f"site {site.name!r} has no rows to fit its own intercept to (site_effects='profile'). Use folds inside the "
            "sites (cv=5), or a common intercept (site_effects=None)."
        )
    found = []
    for x in query.x:
        shift, finite = site_intercept(objective, data, x)
        loss, y = shifted(objective.loss, data.y, shift)  # pyright: ignore[reportArgumentType]  # one output
        values = np.asarray(loss.values(np.asarray(x, data.A.dtype), data.A, y))
        found.append(q @ np.where((values > FAR / 2) & (q > 0) & (not finite), np.inf, values))
    return np.array(found)


ANSWERS: dict[type[Query], Callable[[Any, Answers], object]] = {
    Concordance: lambda query, message: concordance(query, message.site),
    Describe: lambda query, message: _described(query, message.site),
    Moments: lambda query, message: _moments(query, message.site),
    Lipschitz: _lipschitz,
    Evaluate: _evaluated,
    HeldOut: _held_out,
    Inference: lambda query, message: inference(query, message.site),
    LeaveOneOut: lambda query, message: left_out(query, message.site),
    Score: lambda query, message: score(query, message.site),
    LocalUpdate: lambda query, message: message.site.memory.take_part(query),
    FinishRound: lambda query, message: message.site.memory.finish_round(query),
    Tabulate: lambda query, message: tabulated(query, message.site),
    AtRisk: lambda query, message: at_risk(query, message.site),
}
