"""The disclosure policy of a site: which queries it refuses, and why.

`Site` asks here before it answers (`site.py`); what would take too much memory or time is refused in `federation/limits.py`.
A reason names the rule and, where there is one, the column. It never holds a value, a label or a count of the site.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import and_
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from scipy.sparse import issparse

from compfed._utils.array_namespace import Numbers, namespace, product
from compfed._utils.text import shapes_shown
from compfed._utils.validation import check_bool, check_int, check_nonnegative
from compfed.algorithms.round import uses_hessian
from compfed.errors import InputError
from compfed.federation.queries import (
    QUERIES,
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
from compfed.federation.queries.inference import CLUSTERS
from compfed.federation.query import Query
from compfed.federation.site.at_risk import times_at_risk
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.losses import (
    ClassWeightedLogistic,
    ClassWeightedSoftmax,
    Huber,
    Logistic,
    Loss,
    MultiSquared,
    OneOutput,
    SiteLoss,
    SmoothedQuantile,
    Softmax,
    Squared,
    SquaredHinge,
    WithOffset,
)
from compfed.losses.base import ignore_overflow, symmetric_matrix, upper_triangle
from compfed.losses.offset import best_shift, shifted, unwrapped
from compfed.problem.padded_dataset import LocalDataset
from compfed.splits import Fold, PredefinedSplit, RowSubset

if TYPE_CHECKING:
    from jax import Array

    from compfed.federation.enrolment import Enrolment
    from compfed.federation.site.guard import Guard
    from compfed.federation.site.rows import Rows
    from compfed.problem.local_loss import LocalLoss

VANISHING = 1e-6  # a curvature below this share of its bound is nearly zero
MIN_SCALE = 0.01  # of the spread of the labels: the least width of the curved part of a loss
TRAINING = 0.5  # of min_rows: the effective rows that the rows to train with must have
DERIVATIVES = 0.3  # of min_rows: the effective rows of first derivatives, of all rows and of those to train with
HELD_OUT_BITS = 7  # of the largest loss of a row, in a sum over held-out rows that rests on few of them
CONTRIBUTORS = 3  # sites that have a value of few rows, where sums are masked
HESSIAN_BITS = 20  # of an entry of a Hessian, relative to the diagonal
IN_LABELS = (Squared, MultiSquared, Huber, SmoothedQuantile)  # whose predictions have the unit of the labels
CLASS_WEIGHTED = (ClassWeightedLogistic, ClassWeightedSoftmax)
MAX_CLASS_RATIO = 1000.0  # of the weights of two classes
MOST_COEFFICIENT = 2.0**4  # of a coefficient times the spread of its column here, in units of the predictions
MOST_CONSTANT = (
    2.0**6
)  # of a coefficient times the value of a column that is constant here: two must not round a prediction
MOST_TERM = 2.0**30  # of a coefficient times the largest value of its column: beyond, predictions are rounded coarsely
MOST_SCALE = 2.0**10  # between a scale, or how far a centre is from the values here, and the spread of a column here
POLICY_EDGES = 100  # thresholds of a score under a policy
DOMINANT = (
    0.83  # the largest share of one row in the variance of a column: the p % rule of statistical offices with p = 10
)


@dataclass(frozen=True)
class DisclosurePolicy:
    """What a site refuses to reveal. The defaults protect single rows from a server that chooses its queries.

    A site with a policy deals its rows once, with a secret of its own, into 10, 5, 4, 3, 2 buckets or 1, of at least `min_rows` rows. Folds
    and hold-outs are unions of buckets, the same ones at every site, whatever the server asks for. A model is evaluated only if the
    loss has curvature on at least `min_rows` rows there: with h_l the second derivative times the weight of row l,
    (sum h)^2 / sum h^2 is at least `min_rows`, half of that over the rows to train with, and sum h does not nearly vanish.

    Parameters
    ----------
    min_rows : int, default=10
        With fewer rows than this the site refuses everything. Also the least number of rows in a bucket and in a mini-batch,
        and the least number of effective rows of a model.
    min_level_rows : int, default=3
        Classes, and the rows that differ from the most common value of a column, are at least this many, at the site and
        (classes) in every bucket, or none. Also, no row has over 83 % of the variance of a column. 1 for no such rule.
    max_hessian_share : float, default=inf
        The columns of one Hessian are at most this share of the rows; 0 for no Hessian at all. All are counted (`share_by_rule`),
        and rounded to six digits: enough for steps, and certificates rest on gradients. Those of losses whose second derivative
        jumps (`Huber`, `SquaredHinge`, `SmoothedQuantile`) are refused, as two of them may differ by one row.
    allow_minibatches : bool, default=False
        Whether a run may draw mini-batches. The site then draws them with its own secret.
    queries : names, default=()
        Names of queries that are always refused, such as "HeldOut".
    share_by_rule : float, default=0.5
        How many numbers a run may release without a person, as a share of the numbers in the table (rows x columns), together with
        all that left before. Checked by the service of a site, which has a ledger (`federation.numbers`).
    max_share : float, default=10
        The same with the approval of a person at the site.
    accepts : names, default=()
        "module:class" of losses that are not compfed's and may be evaluated here.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.breast_cancer()
    >>> policy = cf.federation.DisclosurePolicy(queries=["HeldOut"])
    >>> federation = cf.federation.InProcess(table.federation(), policy=policy)
    >>> cf.FederatedLogisticRegression(alpha=0.01).fit_federation(federation).certificate_.holds
    True
    """

    min_rows: int = 10
    min_level_rows: int = 3
    max_hessian_share: float = np.inf
    allow_minibatches: bool = False
    queries: Collection[str] = ()
    share_by_rule: float = 0.5
    max_share: float = 10.0
    accepts: Collection[str] = ()

    def __post_init__(self) -> None:
        for name in ("min_rows", "min_level_rows"):
            check_int(getattr(self, name), f"DisclosurePolicy: {name}", 1)
        for name in ("max_hessian_share", "share_by_rule", "max_share"):
            if getattr(self, name) != np.inf:
                check_nonnegative(getattr(self, name), f"DisclosurePolicy: {name}")
        if self.share_by_rule > self.max_share:
            raise InputError(
                f"DisclosurePolicy: share_by_rule={self.share_by_rule:g} is beyond max_share={self.max_share:g}; a person may approve "
                "what a rule may."
            )
        check_bool(self.allow_minibatches, "DisclosurePolicy: allow_minibatches")
        for name in ("queries", "accepts"):
            given = getattr(self, name)
            if isinstance(given, str) or not all(isinstance(item, str) for item in given):
                raise InputError(f"DisclosurePolicy({name}={given!r}): {name} must be a list of names.")
            object.__setattr__(self, name, tuple(given))
        known = [query.__name__ for query in QUERIES]
        for name in self.queries:
            if name not in known:
                raise InputError(
                    f"DisclosurePolicy: {name!r} is not a query; leave it out. The queries are {', '.join(known)}."
                )


# --- the rules ---


class _Broken(Exception):
    """A query breaks a rule of the policy; the text is the reason."""


def reason_of(policy: DisclosurePolicy, query: Query, guard: Guard) -> str | None:
    """Why a site with a policy refuses this query; None if it does not.

    What the query says by itself comes first, and the values of rows last.
    """
    if query.is_encoded and guard.problems:
        return guard.problems[0]
    try:
        RULES[type(query)](policy, query, guard)
    except _Broken as broken:
        return str(broken)
    return None


def _describe_rule(policy: DisclosurePolicy, query: Describe | Moments, guard: Guard) -> None:
    _check_subset(query.subset, guard)


def _lipschitz_rule(policy: DisclosurePolicy, query: Lipschitz, guard: Guard) -> None:
    _admitted(policy, query.objective, guard)
    at = None if query.objective.loss.curvature is not None or query.x is None else query.x[None]
    _check_models(policy, query.objective, at, guard)


def _evaluate_rule(policy: DisclosurePolicy, query: Evaluate, guard: Guard) -> None:
    _check_dual(query, _admitted(policy, query.objective, guard).loss)
    _check_hessian(policy, query, guard)
    _check_models(policy, query.objective, query.x, guard)


def _held_out_rule(policy: DisclosurePolicy, query: HeldOut, guard: Guard) -> None:
    _admitted(policy, query.objective, guard)
    _check_subset(query.subset, guard)
    _check_models(policy, query.objective, query.x, guard)


def _left_out_rule(policy: DisclosurePolicy, query: LeaveOneOut, guard: Guard) -> None:
    """As a Hessian on the same columns. That the Hessian has the rows of the site in it is checked in `site.leave_one_out`."""
    _check_hessian(policy, query, guard)
    _check_models(policy, query.objective, query.x, guard)


def _inference_rule(policy: DisclosurePolicy, query: Inference, guard: Guard) -> None:
    """As a Hessian on the same columns, with the squared residuals in place of second derivatives: they rest on enough rows, too.

    Without a rule of their own they would be those of a few rows with large residuals.
    """
    known = _admitted(policy, query.objective, guard)
    if query.coords.size:
        _check_hessian(policy, query, guard)
        if isinstance(known.loss, CLASS_WEIGHTED):
            raise _Broken("robust covariances with class weights would show each class alone; leave out class_weight")
    if query.clustered and (guard.agreement is None or len(guard.agreement.names) < CLUSTERS):
        raise _Broken(
            f"a covariance clustered by site needs at least {CLUSTERS} sites: of fewer, gradients of single sites follow from it"
        )
    _check_models(policy, query.objective, query.x[None], guard)
    if not _effective(_squared_residuals(query, guard), float(policy.min_rows)):
        raise _Broken("the squared residuals of a few rows are most of their sum; use standard errors of the model")


def _squared_residuals(query: Inference, guard: Guard) -> np.ndarray:
    """The weight of each row in the products of `Inference`."""
    data, x = guard.rows.dataset(query.objective), np.asarray(query.x, float)
    loss, y = profiled(query.objective, data, x) if query.objective.profile else (query.objective.loss, data.y)
    z = loss.predictions(x, data.A) if hasattr(loss, "predictions") else product(data.A, x)  # pyright: ignore[reportAttributeAccessIssue]
    r = np.asarray(loss.derivative(z, y), float).reshape(len(y), -1)  # pyright: ignore[reportAttributeAccessIssue]  # of linear models
    weights = np.asarray(guard.rows.weights, float)
    return np.where(weights > 0, weights ** (2 if query.squared_weights else 1) * (r**2).sum(axis=1), 0.0)


def _score_rule(policy: DisclosurePolicy, query: Score, guard: Guard) -> None:
    """A score tells where rows are along one direction, to the step of `scoring.ScoreRounding`."""
    _admitted(policy, query.objective, guard)
    _check_subset(query.subset, guard)
    if query.edges.shape[1] > POLICY_EDGES:
        raise _Broken(f"a score has at most {POLICY_EDGES} thresholds here")
    _check_models(policy, query.objective, query.x[None], guard)


def _update_rule(policy: DisclosurePolicy, query: LocalUpdate, guard: Guard) -> None:
    """Later models are guarded inside the local steps."""
    _check_run(policy, query.run_spec, guard)
    if query.r == query.exchange == 0:
        _check_models(policy, query.run_spec.objective, query.run_spec.x0[None], guard)


def _finish_rule(policy: DisclosurePolicy, query: FinishRound, guard: Guard) -> None:
    _check_run(policy, query.run_spec, guard)


def _tabulate_rule(policy: DisclosurePolicy, query: Tabulate, guard: Guard) -> None:
    """Counts are rounded, and columns withheld, one by one (`tabulation`)."""


def _at_risk_rule(policy: DisclosurePolicy, query: AtRisk, guard: Guard) -> None:
    """Each tells where blocks of rows are along one direction. A block has enough rows at every model."""
    if query.second:
        raise _Broken("matrices at every time rest on the rows of a few events; a fit stratified by site needs none")
    if query.subset is not None:
        raise _Broken("rows at risk are counted over all rows: those of a fold would tell others by subtraction")
    _admitted(policy, query.objective, guard)
    _check_models(policy, query.objective, query.x[None], guard)
    t = times_at_risk(query, guard.rows, 1)
    groups = np.unique(t.group)
    if (np.array([np.count_nonzero(t.event & (t.group == g)) for g in groups]) < policy.min_rows).any():
        raise _Broken("it has fewer events than its min_rows, of all rows or of a group; join groups")
    coarse = times_at_risk(query, guard.rows, policy.min_rows)
    block = np.unique(coarse.time, return_inverse=True)[1] * len(groups) + np.searchsorted(groups, coarse.group)
    r = coarse.weight * np.exp(coarse.risk - coarse.risk.max())
    total, squares = np.bincount(block, r), np.bincount(block, r * r)
    there = np.unique(block)
    if not (total**2 >= (1 - 1e-6) * min(policy.min_level_rows, policy.min_rows) * squares)[there].all():
        raise _Broken(TOO_FEW)


def _concordance_rule(policy: DisclosurePolicy, query: Concordance, guard: Guard) -> None:
    """Counts in threes are for totals over sites."""
    if not guard.secure_sum:
        raise _Broken("it counts scores in threes only where sums are masked")
    _admitted(policy, query.objective, guard)
    for subset in query.subsets_of_x:
        _check_subset(subset, guard)
    _check_models(policy, query.objective, query.x, guard)


RULES: dict[type[Query], Callable[[DisclosurePolicy, Any, Guard], None]] = {
    Concordance: _concordance_rule,
    Describe: _describe_rule,
    Moments: _describe_rule,
    Lipschitz: _lipschitz_rule,
    Evaluate: _evaluate_rule,
    HeldOut: _held_out_rule,
    Inference: _inference_rule,
    LeaveOneOut: _left_out_rule,
    Score: _score_rule,
    LocalUpdate: _update_rule,
    FinishRound: _finish_rule,
    Tabulate: _tabulate_rule,
    AtRisk: _at_risk_rule,
}


def _check_subset(subset: RowSubset | None, guard: Guard) -> None:
    if isinstance(subset, PredefinedSplit):
        raise _Broken("its folds are unions of its own buckets; give cv as a number")
    if isinstance(subset, Fold) and subset.folds > guard.rows.buckets:
        raise _Broken(f"{subset.folds} folds are more than it has buckets of min_rows rows; use a smaller cv")
    if isinstance(subset, Fold) and guard.rows.agreed_buckets % subset.folds:
        raise _Broken(f"{subset.folds} is no divisor of the number of buckets of every site; use another cv")


class Admitted(NamedTuple):
    """An objective that a policy admits, and the rule for its models."""

    loss: Loss  # without its offset
    rule: Any  # EffectiveRows, or RowsAtRisk of a loss of a whole site

    @property
    def is_quadratic(self) -> bool:
        """Whether second derivatives are the same at every model."""
        return getattr(self.loss, "quadratic", False)


def _admitted(policy: DisclosurePolicy, objective: ObjectiveSpec, guard: Guard) -> Admitted:
    """An objective that keeps the rules; worked out once in a run."""
    found = guard.admitted.get(objective)
    if found is None:
        _check_objective(policy, objective, loss := unwrapped(objective.loss), guard)
        data, all_rows = guard.rows.dataset(objective), guard.rows.shares_of(None)
        if isinstance(loss, SiteLoss):
            rule = RowsAtRisk(data.q, all_rows, float(policy.min_rows))
        else:
            rule = EffectiveRows.of(policy.min_rows, objective.loss, data.y, data.q, all_rows)
        found = guard.admitted[objective] = Admitted(loss, rule)
    return found


def _check_objective(policy: DisclosurePolicy, objective: ObjectiveSpec, loss: Loss, guard: Guard) -> None:
    kind = type(loss)
    _check_subset(objective.subset, guard)
    _check_scaling(objective, guard)
    if not kind.__module__.startswith("compfed.losses.") or kind.__name__ == "FromFunction":
        name = f"{kind.__module__}:{kind.__qualname__}"
        if name not in policy.accepts:
            raise _Broken(f"{name} is not a loss that it accepts; the site may add it to its policy (accepts)")
    if objective.classes is not None or isinstance(loss, (Logistic, SquaredHinge, Softmax)):
        guard.check_classes()
    width = loss.delta if isinstance(loss, Huber) else loss.smoothing if isinstance(loss, SmoothedQuantile) else None
    if (
        width is not None
        and guard.rows.labels.dtype.kind in "biuf"
        and width < MIN_SCALE * float(np.std(guard.rows.labels))
    ):
        name = "delta" if isinstance(loss, Huber) else "smoothing"
        raise _Broken(f"{name}={width:g} is below {MIN_SCALE:.0%} of the spread of its labels; use a larger {name}")
    if isinstance(loss, SiteLoss):
        _check_events(policy, objective, guard)
    elif guard.rows.offset is not None and not isinstance(objective.loss, WithOffset):
        raise _Broken("its rows have an offset and this loss has none: two sums could differ by the rows with one")
    if isinstance(loss, CLASS_WEIGHTED):
        rows = np.unique(guard.rows.labels[guard.rows.used], return_counts=True)[1]
        if rows.min() < TRAINING * policy.min_rows:
            raise _Broken("class weights need half of its min_rows rows of every class; leave out class_weight")
        weights = np.asarray(loss.class_weights)
        if not weights.max() <= MAX_CLASS_RATIO * weights.min():
            raise _Broken(
                f"a class weighs over {MAX_CLASS_RATIO:g} times as much as another; use class weights that are closer together"
            )


def _check_events(policy: DisclosurePolicy, objective: ObjectiveSpec, guard: Guard) -> None:
    """Events of too few rows would be told by a sum: a site has enough of them, or none, to train with and held out."""
    happened = guard.rows.labels.reshape(len(guard.rows.labels), -1)[:, -1] > 0
    all_rows, kept = guard.rows.used, guard.rows.weights_of(objective.subset) > 0
    for rows in (all_rows, kept, all_rows & ~kept):
        if 0 < np.count_nonzero(happened & rows) < policy.min_level_rows:
            raise _Broken(
                "fewer rows than its min_level_rows have an event, of all rows or of a fold; use a smaller cv"
            )


class Spreads(NamedTuple):
    """What a site knows of its own columns, to compare the numbers of a server with."""

    low: np.ndarray
    high: np.ndarray
    spread: np.ndarray  # standard deviation; 0 of a column that is constant here

    @classmethod
    def of(cls, A: Any) -> Spreads:
        if issparse(A):
            low, high = A.min(axis=0).toarray().ravel(), A.max(axis=0).toarray().ravel()
            mean = np.asarray(A.mean(axis=0)).ravel()
            square = np.asarray(A.multiply(A).mean(axis=0)).ravel()
            spread = np.sqrt(np.maximum(square - mean**2, 0.0))
        else:
            low, high, spread = A.min(axis=0), A.max(axis=0), A.std(axis=0, dtype=float)
        return cls(low.astype(float), high.astype(float), np.where(low == high, 0.0, spread))

    def of_columns(self, columns: np.ndarray | None) -> Spreads:
        return self if columns is None else Spreads(*(part[columns] for part in self))


def _check_scaling(objective: ObjectiveSpec, guard: Guard) -> None:
    """Centre and scale must be near what this site has; raw units, 0 and 1, are for models as they are printed."""
    if objective.scaling is None:
        return
    own, centre, scale = guard.spreads.of_columns(objective.columns), objective.scaling.centre, objective.scaling.scale
    varies = own.spread > 0
    away = np.maximum(np.maximum(own.low - centre, centre - own.high), 0.0)
    far = varies & (centre != 0) & (away > MOST_SCALE * own.spread)
    unlike = varies & (scale != 1) & ((scale > MOST_SCALE * own.spread) | (scale < own.spread / MOST_SCALE))
    if far.any() or unlike.any():
        raise _Broken(
            "a column is centred or scaled by numbers that are far from those of its own rows; drop it, or change its units"
        )


def _check_coefficients(objective: ObjectiveSpec, x: np.ndarray, guard: Guard) -> None:
    """A model must neither switch rows of a level on and off nor be so large that predictions are rounded to steps."""
    loss, scaling = unwrapped(objective.loss), objective.scaling
    own = guard.spreads.of_columns(objective.columns)
    outputs = getattr(loss, "outputs", 1)
    centre, scale = (0.0, 1.0) if scaling is None else (scaling.centre, scaling.scale)
    w = np.abs(x[:, : own.spread.size * outputs].reshape(len(x), own.spread.size, outputs))
    largest = np.maximum(np.abs(own.low - centre), np.abs(own.high - centre)) / scale
    unit = 1.0
    if isinstance(loss, IN_LABELS) and guard.rows.labels.dtype.kind in "biuf":
        unit = max(float(np.std(guard.rows.labels)), float(np.abs(guard.rows.labels).max()) * 2.0**-20) or 1.0
    term = max((w * largest[:, None]).max(initial=0.0), np.abs(x[:, own.spread.size * outputs :]).max(initial=0.0))
    constant = own.spread == 0
    if (
        not term <= MOST_TERM * max(unit, 1.0)
        or not (w[:, constant] * largest[constant, None] <= MOST_CONSTANT * unit).all()
    ):
        raise _Broken("a model has terms so large that its predictions are rounded")
    if not (w * (own.spread / scale)[:, None] <= MOST_COEFFICIENT * unit).all():
        raise _Broken(
            "a coefficient is over 16 standard deviations of its column; use a stronger penalty (alpha, or eps of a path)"
        )


def _check_dual(query: Evaluate, loss: Loss) -> None:
    """The conjugate must be finite for every row there could be: where it is infinite would tell single labels."""
    if query.dual is None or isinstance(loss, Squared):
        return
    if not isinstance(query.objective.loss, Logistic):
        raise _Broken("it gives a conjugate (dual) of Squared and Logistic only")
    shift, stretch, mix, z = np.asarray(query.dual, float).T
    margin = np.array([query.objective.loss.conjugate_margin(at) for at in z])
    # -y theta = stretch ((1 - mix) (s + y shift) + mix t) with s in [0, 1], t in [margin, 1 - margin]: all in [0, 1]?
    spare = mix * margin - (1 - mix) * np.abs(shift)
    if not ((mix >= 0) & (mix <= 1) & (stretch >= 0) & (stretch <= 1) & ((spare >= 0) | (shift == 0))).all():
        raise _Broken("the dual point is one at which the conjugate of a row may be infinite")


def _check_hessian(policy: DisclosurePolicy, query: Evaluate | Inference | LeaveOneOut, guard: Guard) -> None:
    """Second derivatives on few columns beside the rows, and of smooth losses. Over many queries they are counted (`numbers`)."""
    if query.coords is None:
        return
    known = _admitted(policy, query.objective, guard)
    if getattr(known.loss, "jumps", False) and policy.min_rows > 1:
        raise _Broken(
            f"the second derivatives of {type(known.loss).__name__} jump, so that two Hessians may differ by one row; use "
            "ProximalBFGS or a first-order method"
        )
    scaling, outputs = query.objective.scaling, getattr(query.objective.loss, "outputs", 1)
    features = np.unique(np.asarray(query.coords) // outputs)
    if scaling is not None and scaling.intercept:
        features = features[features < scaling.centre.size]
    rows = int(np.count_nonzero(known.rule.q))
    if features.size > policy.max_hessian_share * rows or policy.max_hessian_share == 0:
        raise _Broken(
            f"{max(features.size, 1)} coordinates are more than {policy.max_hessian_share:g} of the number of its rows; a Hessian on "
            "so many says too much about single rows"
        )


def _check_run(policy: DisclosurePolicy, run: RunSpec, guard: Guard) -> None:
    _admitted(policy, run.objective, guard)
    if run.batch_size is not None:
        if not policy.allow_minibatches:
            raise _Broken("it allows no mini-batches (allow_minibatches); use full gradients")
        if run.batch_size < policy.min_rows or run.objective.subset is not None:
            raise _Broken("a mini-batch needs min_rows rows or more, of all rows and not of a fold")
    x0 = run.x0
    has_rule = policy.min_rows > 1 or policy.max_hessian_share != np.inf
    if has_rule and uses_hessian(run.algorithm, run.regulariser, x0.size, x0.dtype):
        raise _Broken(
            f"{type(run.algorithm).__name__} makes its updates of Hessians, which would not be rounded; use "
            "ProximalNewton, or a first-order method"
        )
    if not np.isfinite(float(run.regulariser(np.zeros_like(run.x0)))):
        raise _Broken("the regulariser is infinite at the model zero; bounds must contain 0")


TOO_FEW = (
    "a model rests on fewer rows than its min_rows; use a stronger penalty (alpha, or eps of a path), or a wider loss (delta, "
    "smoothing)"
)
DIVERGED = "a local model rests on fewer rows than its min_rows, or the local steps diverged"


def _check_models(policy: DisclosurePolicy, objective: ObjectiveSpec, x: np.ndarray | None, guard: Guard) -> None:
    """Refuse models that rest on too few rows."""
    if x is None:
        return
    known, data = _admitted(policy, objective, guard), guard.rows.dataset(objective)
    _check_coefficients(objective, x, guard)
    if objective.columns is not None and objective.columns.size == 0:
        return  # an intercept alone says nothing about features; of labels, see `rounded_intercepts`
    for model in x[:1] if known.is_quadratic else x:
        loss, y = profiled(objective, data, model) if objective.profile else (objective.loss, data.y)
        if not known.rule.holds(loss, model.astype(data.A.dtype), data.A, y):
            raise _Broken(TOO_FEW)


def rounded_hessian(policy: DisclosurePolicy | None, loss: Loss, packed: np.ndarray) -> np.ndarray:
    """A packed Hessian, rounded to `HESSIAN_BITS` bits of sqrt(H_ii H_jj).

    A fit asks for hundreds of Hessians. Each is a sum of matrices of rank one, and with all their digits the rows that stand out
    are in their span: a default cross-validation over four sites would show some rows. Second derivatives that are the same at
    every model say nothing more the second time, and are not rounded.
    """
    return packed if getattr(loss, "quadratic", False) else rounded(policy, packed)


def rounded(policy: DisclosurePolicy | None, packed: np.ndarray) -> np.ndarray:
    """The upper triangle of a sum of squares, rounded to `HESSIAN_BITS` bits of sqrt(H_ii H_jj) under a policy with that rule."""
    if policy is None or policy.min_rows == 1:
        return packed
    w = (int(np.sqrt(8 * packed.size + 1)) - 1) // 2
    size = np.sqrt(np.abs(np.diag(symmetric_matrix(packed, w))))
    with np.errstate(divide="ignore"):
        unit = np.ldexp(1.0, np.frexp(upper_triangle(np.outer(size, size)))[1] - HESSIAN_BITS)
    shift = upper_triangle(0.5 * w * np.eye(w))  # larger than what rounding takes from any direction: steps stay short
    return (np.rint(packed / unit) + np.ceil(shift)) * unit


def rounded_held_out(
    policy: DisclosurePolicy, objective: ObjectiveSpec, data: LocalDataset, x: np.ndarray, q: np.ndarray, mean: float
) -> float:
    """The mean loss of held-out rows at a model; where it rests on few of them, to 1/128 of the largest that a row adds.

    Honest cross-validations have such models, and choose alpha by sums that need no more digits.
    """
    loss, y = profiled(objective, data, x) if objective.profile else (objective.loss, data.y)
    x = np.asarray(x, data.A.dtype)
    z: Any = loss.predictions(x, data.A) if hasattr(loss, "predictions") else product(data.A, x)  # pyright: ignore[reportAttributeAccessIssue]
    size = np.abs(np.asarray(loss.derivative(z, y)))  # pyright: ignore[reportAttributeAccessIssue]
    terms = q * np.abs(np.asarray(loss.values(x, data.A, y)))
    each = (terms, q * size.reshape(len(q), -1).sum(axis=1))
    largest = float(terms.max(initial=0.0))
    if not 0 < largest < np.inf or all(_effective(h, TRAINING * policy.min_rows) for h in each):
        return mean
    unit = 2.0 ** (np.ceil(np.log2(largest)) - HELD_OUT_BITS)
    return float(np.rint(mean / unit) * unit)


def rounded_intercepts(
    policy: DisclosurePolicy | None,
    objective: ObjectiveSpec,
    data: LocalDataset,
    x: np.ndarray,
    value: np.ndarray,
    gradient: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Value and gradient of models of an intercept alone, where the second derivative of the loss jumps, to the size of a few rows.

    Exact, they have a kink at every label plus and minus delta. The intercept of a model with features is found with features.
    """
    loss: Any = objective.loss
    without = objective.columns is not None and objective.columns.size == 0
    if policy is None or not without or not getattr(unwrapped(loss), "jumps", False):
        return value, gradient
    z = data.A @ x.T
    sizes = [
        data.q[:, None] * np.abs(f(z, data.y[:, None] if data.y.ndim == 1 else data.y))
        for f in (loss.value, loss.derivative)
    ]
    units = [np.exp2(np.ceil(np.log2(np.maximum(TRAINING * policy.min_rows * s.max(axis=0), 1e-300)))) for s in sizes]
    return np.rint(value / units[0]) * units[0], np.rint(gradient / units[1][:, None]) * units[1][:, None]


# --- the intercept of a site ---


def profiled(objective: ObjectiveSpec, data: LocalDataset, x: np.ndarray) -> tuple[OneOutput, np.ndarray]:
    """The loss and the labels at a model x with the best intercept of this site: its derivatives in x are those of the profile."""
    loss: Any = objective.loss  # limits.py refuses a profile of several outputs
    return shifted(loss, data.y, site_intercept(objective, data, x)[0])


def site_intercept(objective: ObjectiveSpec, data: LocalDataset, x: np.ndarray) -> tuple[float, bool]:
    """The intercept that minimises f_i at x, and whether there is one."""
    loss: Any = objective.loss
    return best_shift(loss, product(data.A, np.asarray(x, data.A.dtype)), data.y, data.q)


# --- effective rows ---


class EffectiveRows(NamedTuple):
    """The rule for a model: its curvature rests on `min_rows` rows of the site.

    With h_l the second derivative of the loss in the prediction of row l (its trace, if there are several) times the weight
    of the row, (sum h)^2 / sum h^2 is at least `min_rows` over all rows, and at least half of that over the rows to train
    with; and sum h does not nearly vanish. The same for first derivatives, of which 0.3 times as many are enough: honest models of
    classes that are nearly separated have few rows with large ones. A model at which the derivatives of all rows are equal is
    allowed too: the gradient is then a multiple of the mean of the rows.
    """

    q: Numbers  # shares of the rows to train with
    share: Numbers  # of all rows
    min_rows: Numbers
    least: Numbers  # a curvature below this nearly vanishes
    codes: tuple[Numbers, ...]  # of the classes whose gradients a server can tell apart

    @classmethod
    def of(cls, min_rows: int, loss: Loss, y: Numbers, q: Numbers, share: Numbers) -> EffectiveRows:
        least, inner = VANISHING * loss.usual_curvature(y, share), unwrapped(loss)  # pyright: ignore[reportAttributeAccessIssue]  # of linear models
        # Two choices of class weights give the gradient of each class alone: it must rest on enough rows, too.
        classes = range(inner.outputs) if isinstance(inner, ClassWeightedSoftmax) else (-1, 1)
        codes = tuple(map(float, classes)) if isinstance(inner, CLASS_WEIGHTED) else ()
        return cls(q, share, float(min_rows), least, codes)

    @ignore_overflow
    def holds(self, loss: Any, x: Numbers, A: Numbers, y: Numbers) -> Numbers:
        """Whether the rule holds for the model x."""
        return self.holds_at(loss, loss.predictions(x, A) if hasattr(loss, "predictions") else product(A, x), y)

    def holds_at(self, loss: Any, z: Numbers, y: Numbers) -> Numbers:
        """Whether the rule holds for a model with the predictions z."""
        if hasattr(loss, "second_derivative_parts"):
            c, r = loss.second_derivative_parts(z, y)
            second, same, derivative = (c - r * r).sum(axis=-1), False, loss.derivative(z, y)
        else:
            second, derivative = loss.second_derivative(z, y), loss.derivative(z, y)
            used = self.share > 0
            first = derivative[used.argmax()]
            same = (namespace(z).where(used, derivative, first) == first).all()
            derivative = derivative[..., None]
        total, size = (self.share * second).sum(), abs(derivative).sum(axis=-1)
        enough = _effective(self.share * second, self.min_rows) & _effective(self.q * second, TRAINING * self.min_rows)
        for weights in (self.share, self.q):
            enough = enough & _effective(weights * size, DERIVATIVES * self.min_rows)
        found = (enough & (total >= self.least) & (total > 0)) | same
        if not self.codes:
            return found
        label = y[:, 0] if isinstance(loss, WithOffset) else y
        each = [
            _effective(namespace(z).where(label == c, self.share * size, 0.0), TRAINING * self.min_rows)
            for c in self.codes
        ]
        return functools.reduce(and_, each, found)


class RowsAtRisk(NamedTuple):
    """The same rule for a loss of a whole site: a_l, the part of row l in the second derivatives, takes the place of h_l.

    It holds in every stratum that has an event: the sums of a stratum rest on its own rows alone.
    """

    q: np.ndarray  # shares of the rows to train with
    share: np.ndarray  # of all rows
    min_rows: float

    def holds(self, loss: SiteLoss, x: np.ndarray, A: Numbers, y: np.ndarray) -> bool:
        """Whether the rule holds for the model x."""
        for shares, least in ((self.share, self.min_rows), (self.q, TRAINING * self.min_rows)):
            a, stratum = loss.row_curvatures(x, A, y, shares)
            if not np.isfinite(a).all():
                return False
            total, squares = np.bincount(stratum, a), np.bincount(stratum, a * a)
            if not (total**2 >= (1 - 1e-6) * least * squares).all():
                return False
        return True


def _effective(h: Numbers, least: Numbers) -> Numbers:
    squares = (h * h).sum()
    return (h.sum() ** 2 >= (1 - 1e-6) * least * squares) & (squares < np.inf)


class GuardedLoss(NamedTuple):
    """f_i as an algorithm uses it, NaN at every model that rests on too few rows. NaN passes through to the update."""

    f: LocalLoss
    loss: Any
    A: Array
    y: Array
    rule: EffectiveRows
    secret: Array  # two words that the server does not know, for mini-batches
    __repr__ = shapes_shown

    def value(self, x: Array) -> Array:
        return self._guard(x, self.f.value(x))

    def grad(self, x: Array, key: Array) -> Array:
        for word in self.secret:
            key = jax.random.fold_in(key, word)
        return self._guard(x, self.f.grad(x, key))

    def full_grad(self, x: Array) -> Array:
        return self._guard(x, self.f.full_grad(x))

    def hessian(self, x: Array, W: Array | None = None) -> Array:
        return self._guard(x, self.f.hessian(x, W))

    @property
    def steps_per_epoch(self) -> Array:
        return self.f.steps_per_epoch

    def _guard(self, x: Array, result: Array) -> Array:
        xp = namespace(result)
        holds = self.rule.holds(self.loss, x, self.A, self.y)
        return xp.where(holds, result, xp.full_like(result, xp.nan))


def secret_words(secret: bytes) -> np.ndarray:
    """Two words of 32 bits for the mini-batches of a site."""
    return np.frombuffer(hmac.digest(secret, b"compfed/batches/1", "sha256")[:8], np.uint32)


# --- the table as it is ---


def check_table(guard: Guard, policy: DisclosurePolicy) -> list[str]:
    """Reasons for which a site with this table refuses every query, one sentence each; none if it answers.

    Where sums are masked, a value of few rows is no reason yet: `rare_values` decides once the other sites are known.
    """
    weights = guard.rows.weights
    problems = []
    if weights.sum() ** 2 < (policy.min_rows - 1e-6) * (weights**2).sum():
        problems.append("its row weights rest on fewer rows than its min_rows")
    for column in guard.varying[guard.rows.every_feature.shape[1] :]:  # labels
        if why := _why_withheld(column, guard.secure_sum, policy):
            problems.append(why)
    return problems


FEW = "has one value in all but a few rows, fewer than its min_level_rows"
ONE_ROW = f"has over {DOMINANT:.0%} of its variance from one row"


def _why_withheld(column: Varying, masked: bool, policy: DisclosurePolicy) -> str:
    if column.few and not masked:
        return f"{column.name} {FEW}; drop it"
    if column.dominated and not column.few and policy.min_level_rows > 1:
        return f"{column.name} {ONE_ROW}; drop it, take its logarithm, or cut off its extremes"
    return ""


def withheld_columns(guard: Guard, policy: DisclosurePolicy) -> dict[int, str]:
    """The columns that a site gives no sums of, and why. A run leaves them out at all sites (`enrolment.left_out`)."""
    columns = guard.varying[: guard.rows.every_feature.shape[1]]
    each = {j: _why_withheld(column, guard.secure_sum, policy) for j, column in enumerate(columns)}
    return {j: why for j, why in each.items() if why}


def rare_values(guard: Guard, enrolments: Sequence[Enrolment]) -> list[str]:
    """Reasons to refuse every query where sums are masked: values of few rows that fewer than three sites have."""
    others = [e.varies for i, e in enumerate(enrolments) if i != guard.rows.index]
    columns = [column for j, column in enumerate(guard.varying) if j not in guard.rows.left_out]
    return [
        f"{column.name} {FEW}; drop it, or ask for it where three sites have such rows"
        for k, column in enumerate(columns)
        if column.few and sum(bool(varies[k]) for varies in others) < CONTRIBUTORS - 1
    ]


def rare_class(guard: Guard, policy: DisclosurePolicy) -> str | None:
    """Why a site with labels that are classes lists none of them; None if it does.

    Where sums are masked, a class of few rows is allowed if two other sites have enough rows of it.
    """
    found, counts = np.unique(guard.rows.labels[guard.rows.used], return_counts=True)
    rare = found[counts < policy.min_level_rows]
    if guard.secure_sum and guard.agreement is not None:
        listed = [
            e.classes
            for i, e in enumerate(guard.agreement.enrolments)
            if i != guard.rows.index and e.classes is not None
        ]
        rare = [c for c in rare if sum(c in classes for classes in listed) < CONTRIBUTORS - 1]
    if len(rare):
        return "a class has fewer rows than its min_level_rows; join classes, or leave those rows out"
    return None


class Varying(NamedTuple):
    """How a column varies."""

    name: str
    few: bool  # few rows are off its most common value
    dominated: bool  # one row has most of its variance
    many: bool  # at least `min_level_rows` rows are off its most common value


def varying_columns(rows: Rows, least: int) -> Iterator[Varying]:
    """How every column varies, and the labels that are numbers."""
    used = rows.used
    weights, A = rows.weights[used], rows.every_feature[used]
    names = [f"column {name!r}" for name in rows.every_column or range(1, A.shape[1] + 1)]
    blocks = [(names[j : j + 64], A[:, j : j + 64]) for j in range(0, A.shape[1], 64)]
    if rows.labels.dtype.kind in "biuf":
        labels = rows.labels[used].reshape(len(weights), -1)
        blocks.append(
            ([f"label {k + 1}" if labels.shape[1] > 1 else "the label" for k in range(labels.shape[1])], labels)
        )
    for heads, block in blocks:
        Z = np.asarray(block.toarray() if issparse(block) else block, float)
        # a value of more than half of the rows is the one in the middle
        off = (np.partition(Z, len(Z) // 2, axis=0)[len(Z) // 2] != Z).sum(axis=0)
        spread = weights[:, None] * (Z - weights @ Z / weights.sum()) ** 2
        few, dominated = (off > 0) & (off < least), spread.max(axis=0) > DOMINANT * spread.sum(axis=0)
        many = (off >= least).tolist()
        yield from map(Varying, heads, few.tolist(), (dominated & (off > 0)).tolist(), many)
