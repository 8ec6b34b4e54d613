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
from compfed.errors import InputError
from compfed.federation.queries import (
    QUERIES,
    Concordance,
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Score,
    Tabulate,
)
from compfed.federation.query import Query
from compfed.federation.spec import ObjectiveSpec, RunSpec
from compfed.losses import (
    ClassWeightedLogistic,
    ClassWeightedSoftmax,
    Huber,
    Logistic,
    Loss,
    MultiSquared,
    OneOutput,
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
DOMINANT = 0.5  # the largest share of one row in the variance of a column


@dataclass(frozen=True)
class DisclosurePolicy:
    """What a site refuses to reveal. The defaults protect single rows from a server that chooses its queries.

    A site with a policy deals its rows once, with a secret of its own, into ten buckets or fewer of at least `min_rows` rows. Folds
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
        (classes) in every bucket, or none. Also, no row has over half of the variance of a column. 1 for no such rule.
    max_hessian_share : float, default=0.33
        The columns with second derivatives, counted over all runs of the table, are at most this share of the rows; 0 for no
        Hessian at all. Hessians are rounded to six digits: enough for steps, and certificates rest on gradients. Those of
        losses whose second derivative jumps (`Huber`, `SquaredHinge`, `SmoothedQuantile`) are refused, as two of them may
        differ by one row. ``inf`` for none of these rules.
    allow_minibatches : bool, default=False
        Whether a run may draw mini-batches. The site then draws them with its own secret.
    queries : names, default=()
        Names of queries that are always refused, such as "HeldOut".
    max_models : int, default=100_000
        Models evaluated over the life of the table.
    accepts : names, default=()
        "module:class" of losses that are not compfed's and may be evaluated here.
    max_scored_models : int, default=50
        Scores (`evaluate`) over the life of the table. An evaluation takes two, or three where sums are masked; one with
        `cv=5` five times as many.

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
    max_hessian_share: float = 0.33
    allow_minibatches: bool = False
    queries: Collection[str] = ()
    max_models: int = 100_000
    accepts: Collection[str] = ()
    max_scored_models: int = 50

    def __post_init__(self) -> None:
        for name in ("min_rows", "min_level_rows", "max_models", "max_scored_models"):
            check_int(getattr(self, name), f"DisclosurePolicy: {name}", 1)
        if self.max_hessian_share != np.inf:
            check_nonnegative(self.max_hessian_share, "DisclosurePolicy: max_hessian_share")
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
    """A query breaks a rule of the policy; the text is the reason. What it asked for may be charged all the same."""

    def __init__(self, reason: str, charge: Charge | None = None):
        super().__init__(reason)
        self.charge = charge or Charge()


class Charge(NamedTuple):
    """What the answer to a query, or to all queries so far, is charged to a table."""

    models: int = 0  # evaluated
    scored_models: int = 0  # likewise, by `Score`
    hessian_columns: frozenset[int] = frozenset()  # with second derivatives

    def plus(self, other: Charge) -> Charge:
        columns = self.hessian_columns | other.hessian_columns
        return Charge(self.models + other.models, self.scored_models + other.scored_models, columns)


NOTHING = Charge()


class Verdict(NamedTuple):
    """Whether a query is answered, and what is charged, also where it is refused."""

    reason: str | None
    charge: Charge


def verdict(policy: DisclosurePolicy, query: Query, guard: Guard) -> Verdict:
    """Why a site with a policy refuses this query, None if it does not; and what it is charged.

    What the query says by itself comes first, and the values of rows last.
    """
    if query.is_encoded:
        for problem in guard.table_problems:
            return Verdict(problem, NOTHING)
    try:
        return Verdict(None, RULES[type(query)](policy, query, guard))
    except _Broken as broken:
        return Verdict(str(broken), broken.charge)


def _describe_rule(policy: DisclosurePolicy, query: Describe | Moments, guard: Guard) -> Charge:
    _check_subset(query.subset, guard)
    return NOTHING


def _lipschitz_rule(policy: DisclosurePolicy, query: Lipschitz, guard: Guard) -> Charge:
    _admitted(policy, query.objective, guard)
    at = None if query.objective.loss.curvature is not None or query.x is None else query.x[None]
    return _check_models(policy, query.objective, at, guard, NOTHING)


def _evaluate_rule(policy: DisclosurePolicy, query: Evaluate, guard: Guard) -> Charge:
    _check_dual(query, _admitted(policy, query.objective, guard).loss)
    columns = _check_hessian(policy, query, guard)
    charge = _check_models(policy, query.objective, query.x, guard, NOTHING)
    return charge._replace(hessian_columns=columns)


def _held_out_rule(policy: DisclosurePolicy, query: HeldOut, guard: Guard) -> Charge:
    _admitted(policy, query.objective, guard)
    _check_subset(query.subset, guard)
    return _check_models(policy, query.objective, query.x, guard, NOTHING)


def _left_out_rule(policy: DisclosurePolicy, query: LeaveOneOut, guard: Guard) -> Charge:
    """As a Hessian on the same columns. That the Hessian has the rows of the site in it is checked in `site.leave_one_out`."""
    columns = _check_hessian(policy, query, guard)
    charge = _check_models(policy, query.objective, query.x, guard, NOTHING)
    return charge._replace(hessian_columns=columns)


def _score_rule(policy: DisclosurePolicy, query: Score, guard: Guard) -> Charge:
    """Count the scores: each tells where rows are along one direction, to the step of `scoring.ScoreRounding`."""
    _admitted(policy, query.objective, guard)
    _check_subset(query.subset, guard)
    scored = 0
    if query.edges.shape[1] > 0 or not len(query.lines):
        # a model of several classes has a score for each: no more of them for one than there are classes here
        mine = len(np.unique(guard.rows.labels[guard.rows.used])) if len(query.edges) > 1 else 1
        scored = -(-max(len(query.edges), 1) // mine)
    charge = Charge(models=len(query.lines), scored_models=scored)
    if guard.charged.scored_models + scored > policy.max_scored_models:
        raise _Broken("the models scored on this table have reached its max_scored_models", charge)
    if query.edges.shape[1] > POLICY_EDGES:
        raise _Broken(f"a score has at most {POLICY_EDGES} thresholds here", charge)
    return _check_models(policy, query.objective, query.x[None], guard, charge)


def _update_rule(policy: DisclosurePolicy, query: LocalUpdate, guard: Guard) -> Charge:
    _check_run(policy, query.run_spec, guard)
    if query.r == query.exchange == 0:
        return _check_models(policy, query.run_spec.objective, query.run_spec.x0[None], guard, NOTHING)
    return Charge(models=1)  # later models are guarded inside the local steps


def _finish_rule(policy: DisclosurePolicy, query: FinishRound, guard: Guard) -> Charge:
    _check_run(policy, query.run_spec, guard)
    return NOTHING


def _tabulate_rule(policy: DisclosurePolicy, query: Tabulate, guard: Guard) -> Charge:
    return NOTHING  # counts are rounded, and columns withheld, one by one (`tabulation`)


def _concordance_rule(policy: DisclosurePolicy, query: Concordance, guard: Guard) -> Charge:
    """Counts in threes are for totals over sites. Each step that has thresholds counts as a score of each model."""
    if not guard.secure_sum:
        raise _Broken("it counts scores in threes only where sums are masked")
    _admitted(policy, query.objective, guard)
    for subset in query.subsets_of_x:
        _check_subset(subset, guard)
    charge = Charge(scored_models=len(query.x) if query.edges.size and not query.counts.size else 0)
    if guard.charged.scored_models + charge.scored_models > policy.max_scored_models:
        raise _Broken("the models scored on this table have reached its max_scored_models", charge)
    return _check_models(policy, query.objective, query.x, guard, charge)


RULES: dict[type[Query], Callable[[DisclosurePolicy, Any, Guard], Charge]] = {
    Concordance: _concordance_rule,
    Describe: _describe_rule,
    Moments: _describe_rule,
    Lipschitz: _lipschitz_rule,
    Evaluate: _evaluate_rule,
    HeldOut: _held_out_rule,
    LeaveOneOut: _left_out_rule,
    Score: _score_rule,
    LocalUpdate: _update_rule,
    FinishRound: _finish_rule,
    Tabulate: _tabulate_rule,
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
    rule: EffectiveRows

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
    if guard.rows.offset is not None and not isinstance(objective.loss, WithOffset):
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


def _check_hessian(policy: DisclosurePolicy, query: Evaluate | LeaveOneOut, guard: Guard) -> frozenset[int]:
    """The columns of the table whose second derivatives are asked for."""
    if query.coords is None:
        return frozenset()
    known = _admitted(policy, query.objective, guard)
    loss = known.loss
    if getattr(loss, "jumps", False) and policy.max_hessian_share != np.inf:
        raise _Broken(
            f"the second derivatives of {type(loss).__name__} jump, so that two Hessians may differ by one row; use ProximalBFGS or a "
            "first-order method"
        )
    scaling, outputs = query.objective.scaling, getattr(query.objective.loss, "outputs", 1)
    features = np.unique(np.asarray(query.coords) // outputs)
    if scaling is not None and scaling.intercept:
        features = features[features < scaling.centre.size]
    used = features if query.objective.columns is None else query.objective.columns[features]
    columns = frozenset(int(j) for j in used)
    union = len(guard.charged.hessian_columns | columns)
    rows = int(np.count_nonzero(known.rule.q))
    if union > policy.max_hessian_share * rows or policy.max_hessian_share == 0:
        raise _Broken(
            f"{max(union, 1)} coordinates are more than {policy.max_hessian_share:g} of the number of its rows; a Hessian on "
            "so many says too much about single rows"
        )
    return columns


def _check_run(policy: DisclosurePolicy, run: RunSpec, guard: Guard) -> None:
    _admitted(policy, run.objective, guard)
    if run.batch_size is not None:
        if not policy.allow_minibatches:
            raise _Broken("it allows no mini-batches (allow_minibatches); use full gradients")
        if run.batch_size < policy.min_rows or run.objective.subset is not None:
            raise _Broken("a mini-batch needs min_rows rows or more, of all rows and not of a fold")
    if not np.isfinite(float(run.regulariser(np.zeros_like(run.x0)))):
        raise _Broken("the regulariser is infinite at the model zero; bounds must contain 0")


TOO_FEW = (
    "a model rests on fewer rows than its min_rows; use a stronger penalty (alpha, or eps of a path), or a wider loss (delta, "
    "smoothing)"
)
DIVERGED = "a local model rests on fewer rows than its min_rows, or the local steps diverged"


def _check_models(
    policy: DisclosurePolicy, objective: ObjectiveSpec, x: np.ndarray | None, guard: Guard, charge: Charge
) -> Charge:
    """The charge with these models; refuses those that rest on too few rows."""
    if x is None:
        return charge
    charge = charge._replace(models=charge.models + len(x))
    if guard.charged.models + charge.models > policy.max_models:
        raise _Broken("the models evaluated on this table have reached its max_models", charge)
    known, data = _admitted(policy, objective, guard), guard.rows.dataset(objective)
    try:
        _check_coefficients(objective, x, guard)
    except _Broken as broken:
        raise _Broken(str(broken), charge) from None
    if objective.columns is not None and objective.columns.size == 0:
        return charge  # an intercept alone says nothing about features; of labels, see `rounded_intercepts`
    for model in x[:1] if known.is_quadratic else x:
        loss, y = profiled(objective, data, model) if objective.profile else (objective.loss, data.y)
        if not known.rule.holds(loss, model.astype(data.A.dtype), data.A, y):
            raise _Broken(TOO_FEW, charge)
    return charge


def rounded_hessian(policy: DisclosurePolicy | None, loss: Loss, packed: np.ndarray) -> np.ndarray:
    """A packed Hessian, rounded to `HESSIAN_BITS` bits of sqrt(H_ii H_jj).

    A fit asks for hundreds of Hessians. Each is a sum of matrices of rank one, and with all their digits the rows that stand out
    are in their span: a default cross-validation over four sites would show some rows. Second derivatives that are the same at
    every model say nothing more the second time, and are not rounded.
    """
    if policy is None or policy.max_hessian_share == np.inf or getattr(loss, "quadratic", False):
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
    for column in guard.varying:
        if column.few and not guard.secure_sum:
            problems.append(f"{column.name} {FEW}")
        elif column.dominated and not column.few and policy.min_level_rows > 1:
            problems.append(
                f"{column.name} has over half of its variance from one row; drop it, or cut off its extremes"
            )
    return problems


FEW = "has one value in all but a few rows, fewer than its min_level_rows; drop it"


def rare_values(guard: Guard, enrolments: Sequence[Enrolment]) -> list[str]:
    """Reasons to refuse every query where sums are masked: values of few rows that fewer than three sites have."""
    others = [e.varies for i, e in enumerate(enrolments) if i != guard.rows.index]
    return [
        f"{column.name} {FEW}, or ask for it where three sites have such rows"
        for k, column in enumerate(guard.varying)
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
    weights, A = rows.weights[used], rows.features[used]
    names = [f"column {name!r}" for name in rows.columns or range(1, rows.width + 1)]
    blocks = [(names[j : j + 64], A[:, j : j + 64]) for j in range(0, rows.width, 64)]
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
