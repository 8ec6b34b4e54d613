"""The disclosure policy of a site: which queries it refuses, and why.

`Site` asks here before it answers (`site.py`); what would take too much memory or time is refused in `federation/limits.py`.
A reason names the rule and, where there is one, the column. It never holds a value, a label or a count of the site.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Collection, Iterator, Sequence
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
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Query,
    Score,
    Tabulate,
)
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
    from compfed.federation.site.site import Site
    from compfed.problem.evaluation import LocalLoss

VANISHING = 1e-6  # a curvature below this share of its bound is nearly zero
MIN_SCALE = 0.01  # of the spread of the labels: the least width of the curved part of a loss
TRAINING = 0.5  # of min_rows: the effective rows that the rows to train with must have
CONTRIBUTORS = 3  # sites that have a value of few rows, where sums are masked
HESSIAN_BITS = 20  # of an entry of a Hessian, relative to the diagonal
CLASS_WEIGHTED = (ClassWeightedLogistic, ClassWeightedSoftmax)
MAX_CLASS_RATIO = 1000.0  # of the weights of two classes
POLICY_EDGES = 100  # thresholds of a score under a policy
DOMINANT = 0.5  # the largest share of one row in the variance of a column


@dataclass(frozen=True)
class DisclosurePolicy:
    """What a site refuses to reveal. The defaults protect single rows from a server that chooses its queries.

    A site with a policy deals its rows once, with a secret of its own, into buckets of at least `min_rows` rows. Folds and
    hold-outs are unions of buckets, whatever the server asks for. A model is evaluated only if the loss has curvature on at
    least `min_rows` rows there: with h_l the second derivative times the weight of row l, (sum h)^2 / sum h^2 is at least
    `min_rows`, half of that over the rows to train with, and sum h does not nearly vanish.

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
        Scores (`evaluate`) over the life of the table. An evaluation takes two, one with `cv=5` ten.

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
    """A query breaks a rule of the policy; the text is the reason."""


def blanket_reason(policy: DisclosurePolicy | None, query: Query, rows: int, not_encoded: str = "") -> str | None:
    """Why a site refuses every query of this kind; None if it does not. Names the rule, never the number of rows.

    Decided before anything else of a query is read: the reason of a limit may depend on the rows.
    """
    name = type(query).__name__
    if type(query) not in QUERIES:  # a closed list: a subclass is another query
        return f"{name} is not a query it knows"
    if policy is not None and name in policy.queries:
        return f"it does not answer {name}"
    if rows < (1 if policy is None else policy.min_rows):
        return "it has fewer rows than its min_rows"
    if not_encoded and not isinstance(query, Tabulate):
        return f"it {not_encoded.removesuffix('.')}"
    return None


def reason(policy: DisclosurePolicy, query: Query, site: Site) -> str | None:
    """Why a site with a policy refuses this query; None if it does not. Counts the models that are evaluated.

    The table as it is comes first, then what the query says by itself, and the values of rows last.
    """
    if isinstance(query, Tabulate):  # rounded, and withheld, column by column (`tabulation`)
        return None
    for problem in site.table_problems:
        return problem
    try:
        match query:
            case Describe() | Moments():
                _check_subset(query.subset, site)
            case Lipschitz():
                at = None if query.objective.loss.curvature is not None or query.x is None else query.x[None]
                _check_objective(policy, query.objective, site)
                _check_models(policy, query.objective, at, site)
            case Evaluate():
                _check_objective(policy, query.objective, site)
                _check_dual(query)
                columns = _check_hessian(policy, query, site)
                _check_models(policy, query.objective, query.x, site)
                site.hessian_columns |= columns
            case HeldOut():
                _check_objective(policy, query.objective, site)
                _check_subset(query.subset, site)
                _check_models(policy, query.objective, query.x, site)
            case Score():
                _check_objective(policy, query.objective, site)
                _check_subset(query.subset, site)
                _check_scored(policy, query, site)
                _check_models(policy, query.objective, query.x[None], site)
            case LocalUpdate() | FinishRound():
                _check_run(policy, query.run_spec, site)
                start = isinstance(query, LocalUpdate) and query.r == query.exchange == 0
                at = query.run_spec.x0[None] if start else None  # later models are guarded inside the local steps
                site.models += isinstance(query, LocalUpdate) and not start
                _check_models(policy, query.run_spec.objective, at, site)
    except _Broken as broken:
        return str(broken)
    return None


def _check_subset(subset: RowSubset | None, site: Site) -> None:
    if isinstance(subset, PredefinedSplit):
        raise _Broken("its folds are unions of its own buckets; give cv as a number")
    if isinstance(subset, Fold) and subset.folds > site.buckets:
        raise _Broken(f"{subset.folds} folds are more than it has buckets of min_rows rows; use a smaller cv")


def _check_objective(policy: DisclosurePolicy, objective: ObjectiveSpec, site: Site) -> None:
    loss = unwrapped(objective.loss)
    kind = type(loss)
    _check_subset(objective.subset, site)
    if not kind.__module__.startswith("compfed.losses.") or kind.__name__ == "FromFunction":
        name = f"{kind.__module__}:{kind.__qualname__}"
        if name not in policy.accepts:
            raise _Broken(f"{name} is not a loss that it accepts; the site may add it to its policy (accepts)")
    if objective.classes is not None or isinstance(loss, (Logistic, SquaredHinge, Softmax)):
        site.check_classes()
    width = loss.delta if isinstance(loss, Huber) else loss.smoothing if isinstance(loss, SmoothedQuantile) else None
    if width is not None and site.labels.dtype.kind in "biuf" and width < MIN_SCALE * float(np.std(site.labels)):
        name = "delta" if isinstance(loss, Huber) else "smoothing"
        raise _Broken(f"{name}={width:g} is below {MIN_SCALE:.0%} of the spread of its labels; use a larger {name}")
    if site.offset is not None and not isinstance(objective.loss, WithOffset):
        raise _Broken("its rows have an offset and this loss has none: two sums could differ by the rows with one")
    if isinstance(loss, CLASS_WEIGHTED):
        rows = np.unique(site.labels[site.row_weights > 0], return_counts=True)[1]
        if rows.min() < TRAINING * policy.min_rows:
            raise _Broken("class weights need half of its min_rows rows of every class; leave out class_weight")
        weights = np.asarray(loss.class_weights)
        if not weights.max() <= MAX_CLASS_RATIO * weights.min():
            raise _Broken(
                f"a class weighs over {MAX_CLASS_RATIO:g} times as much as another; use class weights that are closer together"
            )


def _check_dual(query: Evaluate) -> None:
    """The conjugate must be finite for every row there could be: where it is infinite would tell single labels."""
    if query.dual is None or isinstance(unwrapped(query.objective.loss), Squared):
        return
    if not isinstance(query.objective.loss, Logistic):
        raise _Broken("it gives a conjugate (dual) of Squared and Logistic only")
    shift, stretch, mix, z = np.asarray(query.dual, float).T
    margin = np.array([query.objective.loss.conjugate_margin(at) for at in z])
    # -y theta = stretch ((1 - mix) (s + y shift) + mix t) with s in [0, 1], t in [margin, 1 - margin]: all in [0, 1]?
    spare = mix * margin - (1 - mix) * np.abs(shift)
    if not ((mix >= 0) & (mix <= 1) & (stretch >= 0) & (stretch <= 1) & ((spare >= 0) | (shift == 0))).all():
        raise _Broken("the dual point is one at which the conjugate of a row may be infinite")


def _check_hessian(policy: DisclosurePolicy, query: Evaluate, site: Site) -> set[int]:
    """The columns of the table whose second derivatives are asked for."""
    if query.coords is None:
        return set()
    loss = unwrapped(query.objective.loss)
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
    columns = {int(j) for j in used}
    union = len(site.hessian_columns | columns)
    rows = int(np.count_nonzero(site.shares_of(query.objective.subset)))
    if union > policy.max_hessian_share * rows or policy.max_hessian_share == 0:
        raise _Broken(
            f"{max(union, 1)} coordinates are more than {policy.max_hessian_share:g} of the number of its rows; a Hessian on "
            "so many says too much about single rows"
        )
    return columns


def _check_run(policy: DisclosurePolicy, run: RunSpec, site: Site) -> None:
    _check_objective(policy, run.objective, site)
    if run.batch_size is not None:
        if not policy.allow_minibatches:
            raise _Broken("it allows no mini-batches (allow_minibatches); use full gradients")
        if run.batch_size < policy.min_rows or run.objective.subset is not None:
            raise _Broken("a mini-batch needs min_rows rows or more, of all rows and not of a fold")
    if not np.isfinite(float(run.regulariser(np.zeros_like(run.x0)))):
        raise _Broken("the regulariser is infinite at the model zero; bounds must contain 0")


def _check_scored(policy: DisclosurePolicy, query: Score, site: Site) -> None:
    """Count the scores: each tells where rows are along one direction, to the step of `scoring.ScoreRounding`."""
    site.models += len(query.lines)
    if query.edges.shape[1] > 0 or not len(query.lines):
        # a model of several classes has a score for each: no more of them for one than there are classes here
        mine = len(np.unique(site.labels[site.row_weights > 0])) if len(query.edges) > 1 else 1
        site.scored_models += -(-max(len(query.edges), 1) // mine)
    if site.scored_models > policy.max_scored_models:
        raise _Broken("the models scored on this table have reached its max_scored_models")
    if query.edges.shape[1] > POLICY_EDGES:
        raise _Broken(f"a score has at most {POLICY_EDGES} thresholds here")


TOO_FEW = (
    "a model rests on fewer rows than its min_rows; use a stronger penalty (alpha, or eps of a path), or a wider loss (delta, "
    "smoothing)"
)
DIVERGED = "a local model rests on fewer rows than its min_rows, or the local steps diverged"


def _check_models(policy: DisclosurePolicy, objective: ObjectiveSpec, x: np.ndarray | None, site: Site) -> None:
    """Count the models, and refuse those that rest on too few rows."""
    if x is None:
        return
    site.models += len(x)
    if site.models > policy.max_models:
        raise _Broken("the models evaluated on this table have reached its max_models")
    loss, data = objective.loss, site.dataset(objective)
    rule = EffectiveRows.of(policy.min_rows, loss, data.y, data.q, site.shares_of(None))
    if objective.columns is not None and objective.columns.size == 0:
        return  # an intercept alone says nothing about features
    for model in (
        x[:1] if isinstance(unwrapped(loss), (Squared, MultiSquared)) else x
    ):  # their h is the same at every model
        inner, y = profiled(objective, data, model) if objective.profile else (loss, data.y)
        if not rule.holds(inner, model.astype(data.A.dtype), data.A, y):
            raise _Broken(TOO_FEW)


def rounded_hessian(policy: DisclosurePolicy | None, loss: Loss, packed: np.ndarray) -> np.ndarray:
    """A packed Hessian, rounded to `HESSIAN_BITS` bits of sqrt(H_ii H_jj).

    A fit asks for hundreds of Hessians. Each is a sum of matrices of rank one, and with all their digits the rows that stand out
    are in their span: a default cross-validation over four sites would show some rows. Second derivatives that are the same at
    every model say nothing more the second time, and are not rounded.
    """
    if policy is None or policy.max_hessian_share == np.inf or isinstance(unwrapped(loss), (Squared, MultiSquared)):
        return packed
    w = (int(np.sqrt(8 * packed.size + 1)) - 1) // 2
    size = np.sqrt(np.abs(np.diag(symmetric_matrix(packed, w))))
    with np.errstate(divide="ignore"):
        unit = np.ldexp(1.0, np.frexp(upper_triangle(np.outer(size, size)))[1] - HESSIAN_BITS)
    shift = upper_triangle(0.5 * w * np.eye(w))  # larger than what rounding takes from any direction: steps stay short
    return (np.rint(packed / unit) + np.ceil(shift)) * unit


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
    with; and sum h does not nearly vanish. A model at which the derivatives of all rows are equal is allowed too: the gradient
    is then a multiple of the mean of the rows.
    """

    q: Numbers  # shares of the rows to train with
    share: Numbers  # of all rows
    min_rows: Numbers
    least: Numbers  # a curvature below this nearly vanishes

    @classmethod
    def of(cls, min_rows: int, loss: Loss, y: Numbers, q: Numbers, share: Numbers) -> EffectiveRows:
        return cls(q, share, float(min_rows), VANISHING * loss.usual_curvature(y, share))  # pyright: ignore[reportAttributeAccessIssue]  # of linear models

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
        total = (self.share * second).sum()
        enough = _effective(self.share * second, self.min_rows) & _effective(self.q * second, TRAINING * self.min_rows)
        found = (enough & (total >= self.least) & (total > 0)) | same
        inner = unwrapped(loss)
        if not isinstance(inner, CLASS_WEIGHTED):
            return found
        # Two choices of class weights give the gradient of each class alone: it must rest on enough rows, too.
        size, label = self.share * abs(derivative).sum(axis=-1), y[:, 0] if isinstance(loss, WithOffset) else y
        codes = (-1, 1) if isinstance(inner, ClassWeightedLogistic) else range(inner.outputs)
        each = [_effective(namespace(z).where(label == c, size, 0.0), TRAINING * self.min_rows) for c in codes]
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

    def _guard(self, x: Array, result: Array) -> Array:
        xp = namespace(result)
        holds = self.rule.holds(self.loss, x, self.A, self.y)
        return xp.where(holds, result, xp.full_like(result, xp.nan))


def secret_words(secret: bytes) -> np.ndarray:
    """Two words of 32 bits for the mini-batches of a site."""
    return np.frombuffer(hmac.digest(secret, b"compfed/batches/1", "sha256")[:8], np.uint32)


# --- the table as it is ---


def check_table(site: Site, policy: DisclosurePolicy) -> list[str]:
    """Reasons for which a site with this table refuses every query, one sentence each; none if it answers.

    Where sums are masked, a value of few rows is no reason yet: `rare_values` decides once the other sites are known.
    """
    weights = site.row_weights
    problems = []
    if weights.sum() ** 2 < (policy.min_rows - 1e-6) * (weights**2).sum():
        problems.append("its row weights rest on fewer rows than its min_rows")
    for column in site.varying:
        if column.few and not site.secure_sum:
            problems.append(f"{column.name} {FEW}")
        elif column.dominated and not column.few and policy.min_level_rows > 1:
            problems.append(
                f"{column.name} has over half of its variance from one row; drop it, or cut off its extremes"
            )
    return problems


FEW = "has one value in all but a few rows, fewer than its min_level_rows; drop it"


def rare_values(site: Site, enrolments: Sequence[Enrolment]) -> list[str]:
    """Reasons to refuse every query where sums are masked: values of few rows that fewer than three sites have."""
    others = [e.varies for i, e in enumerate(enrolments) if i != site.index]
    return [
        f"{column.name} {FEW}, or ask for it where three sites have such rows"
        for k, column in enumerate(site.varying)
        if column.few and sum(bool(varies[k]) for varies in others) < CONTRIBUTORS - 1
    ]


def rare_class(site: Site, policy: DisclosurePolicy) -> str | None:
    """Why a site with labels that are classes lists none of them; None if it does.

    Where sums are masked, a class of few rows is allowed if two other sites have enough rows of it.
    """
    found, counts = np.unique(site.labels[site.row_weights > 0], return_counts=True)
    rare = found[counts < policy.min_level_rows]
    if site.secure_sum and site.agreement is not None:
        listed = [
            e.classes for i, e in enumerate(site.agreement.enrolments) if i != site.index and e.classes is not None
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


def varying_columns(site: Site, least: int) -> Iterator[Varying]:
    """How every column varies, and the labels that are numbers."""
    used = site.row_weights > 0
    weights, A = site.row_weights[used], site.features[used]
    names = [f"column {name!r}" for name in site.columns or range(1, site.width + 1)]
    blocks = [(names[j : j + 64], A[:, j : j + 64]) for j in range(0, site.width, 64)]
    if site.labels.dtype.kind in "biuf":
        labels = site.labels[used].reshape(len(weights), -1)
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
