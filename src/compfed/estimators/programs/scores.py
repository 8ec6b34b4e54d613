"""How well models predict rows that several sites hold, at the server: from sums and bounds of counts (`Score`).

The rows of class 1 ("positives", of weight P) and of all others ("negatives", N) have scores z. With P(e) and N(e) the weights of
those with z <= e, AUC = (weight of the pairs in which the positive has the larger score, ties by half) / (P N).

**The interval.** At thresholds e_1 < ... < e_E, let P-(j) <= P(e_j) <= P+(j), and N- and N+ likewise; all are 0 at j = 0 and the
whole weight at j = E + 1. Then

    sum_j (P+(j) - P+(j-1)) N-(j-1)  <=  AUC P N  <=  sum_j (P-(j) - P-(j-1)) N+(j),     j = 1..E+1.

Proof. A positive in bin j, e_{j-1} < z <= e_j, is above the negatives with z <= e_{j-1}, and above or level with those with z <= e_j
at most. So with p_j the weight of the positives in bin j, sum_j p_j N(e_{j-1}) <= AUC P N <= sum_j p_j N(e_j). Replace N by N- on
the left: sum_j p_j N-(j-1) = sum_j (P - P(e_j)) (N-(j) - N-(j-1)), j = 1..E, by summation by parts. N- does not fall, so this
falls as P(e_j) grows; P+(j) in its place, and back by parts, gives the left side. The right side is the same with all signs
turned. Both ends are attained by some rows, so no interval from these numbers is narrower. With exact counts its width is
sum_j p_j n_j / (P N): the pairs that share a bin. Scores that share a bin narrower than `TIE` are equal, and their pairs count half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from compfed.errors import InputError
from compfed.estimators.evaluation import WILSON, Auc, CalibrationCurve, Evaluation, RocCurve, wilson
from compfed.estimators.programs import fit
from compfed.estimators.programs.fit import FitOptions
from compfed.estimators.programs.path_and_cv import check_classes_of_splits, check_cv
from compfed.federation.queries import Concordance, Describe, Evaluate, Score
from compfed.federation.server.program import Federation, Program, Request, gather
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Gamma, Logistic, Loss, MultiSquared, NegativeBinomial, Poisson, Squared, WithOffset
from compfed.splits import LEAVE_ONE_SITE_OUT, RowSubset, SiteFold, cv_splits, training_rows

EDGES, RANGE = 1000, 1e8  # thresholds of the first message, and the largest of them
POLICY_EDGES, POLICY_RANGE = 100, 1e3  # the same, where a site has a disclosure policy
WIDTH = 5e-4  # of an AUC interval that needs no further message
REFINEMENTS = 12  # messages after the first, at most: scores that are not tied take three
TIE = 1e-9  # scores (log-odds) that differ by less, or by a smaller share, are equal
NO_LINES = np.empty((0, 2))
CONCORDANCE_EDGES = 200  # thresholds between which the larger class has about equally many rows
NORMAL_QUANTILES = np.concatenate([[-6.0, -3.5], ndtri((np.arange(28) + 0.5) / 28), [3.5, 6.0]])
GROUPS = 10  # of predicted risk, in a calibration curve
NEWTON_MESSAGES, NEWTON_MESSAGES_WALLED = 25, 10
NULL_MESSAGES = 40  # for the model without features, where rows have offsets
LENGTHS = (1.0, 0.5, 0.25, 0.125)  # of a Newton step
STEEPEST = 1e4  # standard deviations of a + b z: beyond, the classes are separated


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A fitted model: coefficients (width, outputs) and intercepts (outputs,) on the original scale, and its loss."""

    loss: Loss
    coef: np.ndarray
    intercept: np.ndarray
    classes: np.ndarray | None
    columns: tuple[str, ...] | None  # names at fit
    offset: bool = False  # do rows have offsets?

    @property
    def objective(self) -> ObjectiveSpec:
        """The objective whose linear predictor is that of the model: features as they are, and an intercept."""
        width, outputs = self.coef.shape
        scaling = FeatureScaling(np.zeros(width), np.ones(width), True, outputs)
        return ObjectiveSpec(WithOffset(self.loss) if self.offset else self.loss, scaling, self.classes)

    @property
    def x(self) -> np.ndarray:
        """The flat model of this objective."""
        return np.concatenate([self.coef.ravel(), self.intercept])


@dataclass(frozen=True, eq=False)
class Part:
    """One model, and the rows it is scored on: a subset of those of all sites, or of one."""

    model: LinearModel
    subset: RowSubset | None = None
    site: int | None = None

    @property
    def sites(self) -> tuple[int, ...] | None:
        return None if self.site is None else (self.site,)


# --- the whole evaluation ---


def evaluate(
    federation: Federation, model: LinearModel, threshold: float, per_site: bool
) -> Program[tuple[Evaluation, list[Evaluation] | None]]:
    """One model on all rows; with `per_site`, on those of each site too."""
    names = federation.names
    if per_site:
        check_sites_alone(federation, "per_site=True")
    parts = [Part(model, site=i) for i in range(len(names))] if per_site else [Part(model)]
    groups = [list(range(len(parts))), *([i] for i in range(len(names)) if per_site)]
    everything, *each = yield from _evaluate_parts(federation, parts, groups, threshold, "as given")
    return everything, each if per_site else None


def cross_evaluate(
    federation: Federation, options: FitOptions, alpha: float, model: LinearModel, cv: object, seed: int, threshold: float,
    per_site: bool,
) -> Program[tuple[Evaluation, list[Evaluation] | None]]:  # fmt: skip
    """Every row scored by a model that was fitted without it: without its fold, or without its site."""
    by_site = isinstance(cv, str) and cv == LEAVE_ONE_SITE_OUT
    check_cv(federation.names, federation.enrolments, cv)
    if per_site:
        check_sites_alone(federation, "per_site=True")
    everything = yield from fit.describe_sites(federation, options)
    splits = cv_splits(cv, seed, everything.rows.tolist(), options.family.classifies)
    models = yield from models_without(federation, options, alpha, model, splits, everything)
    if by_site:
        parts = [
            Part(one, site=split.number)
            for one, split in zip(models, splits, strict=True)
            if isinstance(split, SiteFold)
        ]
    elif per_site:
        pairs = zip(models, splits, strict=True)
        parts = [Part(one, split, i) for one, split in pairs for i in range(len(federation.names))]
    else:
        parts = [Part(one, split) for one, split in zip(models, splits, strict=True)]
    sites = range(len(federation.names)) if by_site or per_site else ()
    groups = [list(range(len(parts))), *([k for k, part in enumerate(parts) if part.site == i] for i in sites)]
    how = (
        "each site by a model of the other sites"
        if by_site
        else f"each row by a model without its fold, {len(splits)} folds"
    )
    whole, *each = yield from _evaluate_parts(federation, parts, groups, threshold, how)
    return whole, each if sites else None


def check_sites_alone(federation: Federation, what: str) -> None:
    """Refuse to ask single sites where sums are masked, before the first query."""
    if federation.enrolments[0].secure_sum:
        raise InputError(
            f"{what}: sums are masked, and the score of one site would show its part of a sum by subtraction. Leave it out, or "
            "let every site set secure_sum = false in its site.toml."
        )


def models_without(
    federation: Federation,
    options: FitOptions,
    alpha: float,
    model: LinearModel,
    splits: Sequence[RowSubset],
    everything: Any,
) -> Program[list[LinearModel]]:
    """The model of the training rows of every split; all share their messages."""
    classes = everything.labels.classes
    training = [fit.describe_sites(federation, options, training_rows(split)) for split in splits]
    summaries = yield from gather(training)
    if classes is not None:
        check_classes_of_splits("evaluate", federation.names, summaries, everything.rows.tolist(), classes)

    def search(summary: fit.PooledSummary) -> Program[LinearModel]:
        prepared = yield from fit.prepare(federation, options, summary, classes)
        found = yield from fit.search(federation, prepared, alpha)
        (found,) = yield from fit.with_common_intercepts(prepared, [found])
        coef, intercept = prepared.mixture(found)
        return replace(model, coef=np.atleast_2d(coef).T, intercept=np.atleast_1d(intercept), classes=classes)

    return (yield from gather([search(summary) for summary in summaries]))


def _evaluate_parts(
    federation: Federation, parts: Sequence[Part], groups: Sequence[Sequence[int]], threshold: float, how: str
) -> Program[list[Evaluation]]:
    """The evaluation of every group of parts: describe, then score and recalibrate in the same messages."""
    walled = has_policy(federation)
    centre, rows, weights, each = yield from _describe(federation, parts)
    loss = parts[0].model.loss
    recalibrated = isinstance(loss, Logistic)
    pooled = recalibrated and counts_in_threes(federation)
    programs: list[Program[Any]] = [_scores(parts, groups, centre, threshold, walled, refined=not pooled)]
    for group in groups if recalibrated else ():
        programs += [_calibrate([parts[k] for k in group], slope, walled) for slope in (True, False)]
    # under a policy a query more is a number more that leaves
    by_offset = parts[0].model.classes is None and parts[0].model.offset and not walled
    for group in groups if by_offset else ():
        programs.append(_null_with_offset([parts[k] for k in group], [weights[k] for k in group], centre))
    for group in groups if pooled else ():
        programs.append(concordance([parts[k] for k in group], np.sum([each[k] for k in group], axis=0)))
    scored, *found = yield from gather(programs)
    ranked = [found.pop() for _ in groups][::-1] if pooled else [None] * len(groups)
    nulls = found if by_offset else [None] * len(groups)
    lines = [(*found[2 * g], *found[2 * g + 1]) if recalibrated else (np.nan,) * 3 for g in range(len(groups))]
    return [
        _evaluation(parts[0].model, one, line, centre, threshold, how, walled, sum(rows[k] for k in group), null, auc)
        for one, line, null, auc, group in zip(scored, lines, nulls, ranked, groups, strict=True)
    ]


def _describe(
    federation: Federation, parts: Sequence[Part]
) -> Program[tuple[np.ndarray, list[int], list[float], list[np.ndarray]]]:
    """One message: check columns and labels of the sites; the mean of labels that are numbers; rows of every part, their weight, and
    that of each class."""
    model = parts[0].model
    described = yield [
        Request((Describe(model.classes is not None, part.subset),), sites=part.sites, counts=False) for part in parts
    ]
    (width, outputs), summed = model.coef.shape, np.zeros(model.coef.shape[1])
    for part, (found,) in zip(parts, described, strict=True):
        names = federation.names if part.site is None else [federation.names[part.site]]
        facts = zip(names, found.widths, found.columns, found.label_shapes, strict=True)
        for name, here, columns, shape in facts:
            if here != width or (model.columns is not None and columns not in (None, model.columns)):
                raise InputError(f"site {name!r} has other columns than the model was fitted with; nothing was scored.")
            if model.classes is None and (shape[0] if shape else 1) != outputs:
                raise InputError(
                    f"site {name!r} has {shape[0] if shape else 1} outcomes per row; the model has {outputs}."
                )
        if model.classes is None:
            summed = summed + np.ravel(found.label_sum)
    total = sum(float(found.weight) for (found,) in described)
    if not total:
        raise InputError(fit.NO_ROWS)
    rows = [found.row_count for (found,) in described]
    weights = [float(found.weight) for (found,) in described]
    each = [_class_weights(found, model.classes) for (found,) in described]
    return np.empty(0) if model.classes is not None else summed / total, rows, weights, each


def _class_weights(found: Any, classes: np.ndarray | None) -> np.ndarray:
    """The weight of the rows of each class of a model; a class that it does not know is the sites' to refuse."""
    known = dict(zip(found.classes.tolist(), found.class_weights.tolist(), strict=True))
    return np.array([known.get(c, 0.0) for c in ([] if classes is None else classes.tolist())])


def _null_with_offset(parts: Sequence[Part], weights: Sequence[float], centre: np.ndarray) -> Program[float]:
    """The summed loss of the best model of an intercept and the offsets alone, by Newton's method; NaN where it has no minimum."""
    model = parts[0].model
    x = np.zeros(model.x.size)
    at = np.array([x.size - 1])
    mean = float(centre[0])
    x[at] = mean if isinstance(model.loss, Squared) else np.log(max(mean, np.finfo(float).tiny))
    for _ in range(NULL_MESSAGES):
        found = yield [
            Request(
                (Evaluate(replace(part.model.objective, subset=part.subset), x[None], at),),
                sites=part.sites,
                weighting="rows",
            )
            for part in parts
        ]
        sums = [(float(s.value[0]), float(s.gradient[0, -1]), float(s.hessian[0, 0])) for (s,) in found]
        value, slope, curvature = (sum(w * each[k] for w, each in zip(weights, sums, strict=True)) for k in range(3))
        if not np.isfinite(slope) or not curvature > 0:
            return np.nan
        step = -slope / curvature
        if abs(step) <= 1e-9 * max(1.0, abs(float(x[-1]))):
            return value
        x[at] += step if isinstance(model.loss, Squared) else np.clip(step, -2.0, 2.0)
    return np.nan


# --- scores: counts below thresholds, refined where pairs share a bin ---


@dataclass(eq=False)
class Scored:
    """The sums of one group of parts, and the bounds on its counts at all thresholds so far."""

    sums: Score.Reply
    edges: list[np.ndarray]  # of each score
    low: list[np.ndarray]  # (2, 2, E) of each score
    high: list[np.ndarray]

    @classmethod
    def of(cls, sums: Score.Reply, edges: np.ndarray) -> Scored:
        return cls(sums, list(edges), list(np.asarray(sums.low)), list(np.asarray(sums.high)))

    def add(self, sums: Score.Reply, edges: np.ndarray) -> None:
        """Insert more thresholds; bounds at one hold for those beyond it too."""
        for k, new in enumerate(edges):
            every = np.concatenate([self.edges[k], new])
            order = np.argsort(every, kind="stable")
            self.edges[k] = every[order]
            low = np.concatenate([self.low[k], sums.low[k]], axis=-1)[..., order]
            high = np.concatenate([self.high[k], sums.high[k]], axis=-1)[..., order]
            self.low[k] = np.maximum.accumulate(low, axis=-1)
            self.high[k] = np.minimum.accumulate(high[..., ::-1], axis=-1)[..., ::-1]

    def totals(self, k: int) -> tuple[float, float]:
        """The weight of the rows of other classes than that of score k, and of its class."""
        each = self.sums.class_weights
        inside = float(each[1] if len(each) == 2 else each[k])
        return float(each.sum()) - inside, inside

    def auc(self, k: int) -> tuple[float, float]:
        """The bounds on the AUC of score k, with ties by half; NaN without rows of both kinds."""
        N, P = self.totals(k)
        if not (N > 0 and P > 0):
            return np.nan, np.nan
        low, high = auc_bounds(self.low[k][:, 0], self.high[k][:, 0], N, P)
        ties = float(self._pairs(k)[self._tied(k)].sum()) if (self.low[k] == self.high[k]).all() else 0.0
        ends = low + ties / 2, high - ties / 2  # which rounding may turn around
        return min(ends), max(ends)

    def error(self, k: int) -> float | None:
        """The standard error of the AUC of score k by DeLong's formula, from the rows in each bin; None without two rows of each kind.

        A row of the class is above a share v of the others, those in its bin by half, and likewise a row of the others: the variance is
        that of v over the rows of the class, divided by their number, and the same the other way round. Where no two rows with
        different scores share a bin this is the formula for single rows.
        """
        N, P = self.totals(k)
        if not (N > 1 and P > 1):
            return None
        middle = (self.low[k][:, 0] + self.high[k][:, 0]) / 2
        n, p = (np.diff(middle[g], prepend=0.0, append=whole) for g, whole in ((0, N), (1, P)))
        below, above = (np.cumsum(n) - n / 2) / N, 1.0 - (np.cumsum(p) - p / 2) / P
        of_class, of_others = (
            float(rows @ (v - rows @ v / rows.sum()) ** 2) / (whole - 1) / whole
            for rows, v, whole in ((p, below, P), (n, above, N))
        )
        return float(np.sqrt(of_class + of_others))

    def uncertainty(self, k: int) -> np.ndarray:
        """The share of the pairs that each bin holds, the two open ones included; 0 for a bin of equal scores."""
        return np.where(self._tied(k), 0.0, self._pairs(k))

    def _pairs(self, k: int) -> np.ndarray:
        N, P = self.totals(k)
        if not (N > 0 and P > 0):
            return np.zeros(len(self.edges[k]) + 1)
        middle = (self.low[k][:, 0] + self.high[k][:, 0]) / 2
        n, p = (np.diff(middle[g], prepend=0.0, append=whole) for g, whole in ((0, N), (1, P)))
        return n * p / (N * P)

    def _tied(self, k: int) -> np.ndarray:
        """Which bins are so narrow that their scores are equal."""
        edges = self.edges[k]
        narrow = np.diff(edges) <= TIE * np.maximum(1.0, np.abs(edges[1:]))
        return np.concatenate([[False], narrow, [False]])


def auc_bounds(low: np.ndarray, high: np.ndarray, N: float, P: float) -> tuple[float, float]:
    """The interval of the module's docstring, from bounds (2, E) on the negatives (row 0) and the positives (row 1)."""
    n_low, n_high = np.append(low[0], N), np.append(high[0], N)
    p_low, p_high = np.append(low[1], P), np.append(high[1], P)
    least = np.diff(p_high, prepend=0.0) @ np.append(0.0, n_low[:-1])
    most = np.diff(p_low, prepend=0.0) @ n_high
    return float(np.clip(least / (N * P), 0.0, 1.0)), float(np.clip(most / (N * P), 0.0, 1.0))


def first_edges(threshold: float, walled: bool) -> np.ndarray:
    """Thresholds on the log-odds: even near 0, in even ratios far out; and that of the confusion matrix."""
    count, largest = (POLICY_EDGES, POLICY_RANGE) if walled else (EDGES, RANGE)
    end = np.arcsinh(largest)
    grid = np.sinh(np.linspace(-end, end, count - 1))
    return np.unique(np.append(grid, threshold_edge(threshold)))


def threshold_edge(threshold: float) -> float:
    """The log-odds of a risk."""
    return float(np.log(threshold) - np.log1p(-threshold))


def refined_edges(edges: np.ndarray, uncertainty: np.ndarray, count: int) -> np.ndarray:
    """`count` thresholds inside the bins that hold most pairs: sum_j u_j / k_j is least for k_j in the ratio of sqrt(u_j)."""
    inside = np.sqrt(np.maximum(uncertainty[1:-1], 0.0))
    new = np.empty(0)
    if inside.any():
        each = np.floor(count * inside / inside.sum()).astype(int)
        each[inside.argmax()] += count - each.sum()
        within = [np.linspace(edges[j], edges[j + 1], each[j] + 2)[1:-1] for j in np.flatnonzero(each)]
        new = np.setdiff1d(np.concatenate(within), edges)  # a bin of neighbouring numbers has none inside
    spare = edges[-1] + (1.0 + abs(edges[-1])) * np.arange(1, count - len(new) + 1)
    return np.concatenate([new, spare])


def _scores(
    parts: Sequence[Part],
    groups: Sequence[Sequence[int]],
    centre: np.ndarray,
    threshold: float,
    walled: bool,
    refined: bool,
) -> Program[list[Scored]]:
    """The sums of every group of parts; where there are classes, with thresholds refined until the AUC is known well."""
    model = parts[0].model
    by_class = model.classes is not None
    edges = np.tile(first_edges(threshold, walled), (model.loss.size(1), 1)) if by_class else np.empty((0, 0))
    sums = yield from _score(parts, groups, edges, centre)
    scored = [Scored.of(one, edges) for one in sums]
    for _ in range((1 if walled else REFINEMENTS) if by_class and refined else 0):
        worst = [np.max([one.uncertainty(k) for one in scored], axis=0) for k in range(len(edges))]
        if not walled and all(u.sum() <= WIDTH for u in worst):
            break
        count = POLICY_EDGES if walled else EDGES
        edges = np.stack([refined_edges(scored[0].edges[k], u, count) for k, u in enumerate(worst)])
        for one, more in zip(scored, (yield from _score(parts, groups, edges, centre)), strict=True):
            one.add(more, edges)
    return scored


def _score(
    parts: Sequence[Part], groups: Sequence[Sequence[int]], edges: np.ndarray, centre: np.ndarray
) -> Program[list[Score.Reply]]:
    """One message: the sum of the scores of the parts of every group."""
    found = yield [
        Request(
            (Score(part.model.objective, part.model.x, edges, centre, NO_LINES, part.subset),),
            sites=part.sites,
            counts=k == 0,
        )
        for k, part in enumerate(parts)
    ]

    def together(group: Sequence[int]) -> Score.Reply:
        fields = zip(*(found[k][0] for k in group), strict=True)
        added: list[Any] = [sum(values) for values in fields]
        return Score.Reply(*added)

    return [together(group) for group in groups]


def has_policy(federation: Federation) -> bool:
    """Whether a site rounds its counts to blocks of rows."""
    return any(e.min_rows > 1 for e in federation.enrolments)


# --- the pairs of all rows, where sums are masked ---


def counts_in_threes(federation: Federation) -> bool:
    """Whether the sites answer `Concordance`: their sums are masked, and rows have no weights."""
    every = federation.enrolments
    return all(e.secure_sum and not e.weighted for e in every)


def concordance(parts: Sequence[Part], each: np.ndarray) -> Program[tuple[float, float]]:
    """Bounds on the AUC of all rows of these parts together, each scored by the model of its part, with ties by half.

    First the mean and the spread of the scores of the larger class, then its counts at normal quantiles, then at 200 thresholds
    between which it has about equally many rows. The sites then rank the rows of the smaller class among their own rows exactly,
    and among those of other sites by bounds of their counts.
    """
    minority = int(each[1] <= each[0])
    few, many = float(each[minority]), float(each[1 - minority])
    none = np.empty(0)
    if not (few > 0 and many > 0):
        return np.nan, np.nan

    def asked(edges: np.ndarray, counts: np.ndarray) -> Program[Concordance.Reply]:
        x, subsets = np.stack([part.model.x for part in parts]), tuple(part.subset for part in parts)
        query = Concordance(parts[0].model.objective, x, subsets, minority, edges, counts)
        ((found,),) = yield [Request((query,), counts=False)]
        return found

    number, total, squares = (yield from asked(none, none)).moments
    mean = total / number
    spread = float(np.sqrt(max(squares / number - mean**2, 0.0)))
    spread = spread if 0 < spread < np.inf else 1.0
    edges = np.unique(mean + spread * NORMAL_QUANTILES) if np.isfinite(mean) else NORMAL_QUANTILES
    counts = np.maximum.accumulate((yield from asked(edges, none)).below)
    share = np.concatenate([[0.0], np.minimum(counts, many), [many]]) + 1e-9 * np.arange(len(counts) + 2)
    ends = np.concatenate([[edges[0] - spread], edges, [edges[-1] + spread]])
    edges = np.unique(np.interp((np.arange(CONCORDANCE_EDGES) + 0.5) / CONCORDANCE_EDGES * many, share, ends))
    counts = (yield from asked(edges, none)).below
    own, low, high = (yield from asked(edges, np.append(np.maximum.accumulate(counts), many))).pairs
    least, most = sorted(np.clip(np.array([own + low, own + high]) / (few * many), 0.0, 1.0).tolist())
    return (least, most) if minority else (1 - most, 1 - least)


# --- recalibration: logistic regression of the labels on the linear predictor ---


def _calibrate(parts: Sequence[Part], slope: bool, walled: bool) -> Program[tuple[float, ...]]:
    """(slope, intercept) of P(y = 1) = sigmoid(intercept + slope z), or, without `slope`, the intercept for slope 1.

    Newton's method in two numbers, from the model as it is or from equal predictions, whichever has the lesser loss; four lengths
    of each step share a message. NaN where there is no minimiser (separated
    classes), or a site does not give the sums there.
    """
    free, nothing = np.array([True, slope]), (np.nan,) * (1 + slope)  # intercept, slope
    tried = np.array([[0.0, 1.0], [0.0, 0.0]])[: 1 + slope]
    summed = yield from _lines(parts, tried)
    flat = summed[-1]  # all predictions are equal there: its sums tell the spread of z
    spread = float(np.sqrt(max(flat[5] / flat[3] - (flat[4] / flat[3]) ** 2, 0.0))) if slope else 0.0
    units = np.array([1.0, 1 / spread if spread > 0 else 1.0])
    theta, best = np.zeros(2), np.inf
    for steps in range(NEWTON_MESSAGES_WALLED if walled else NEWTON_MESSAGES):
        values = np.where(np.isnan(summed[:, 0]), np.inf, summed[:, 0])
        k = int((values <= best + 1e-12 * abs(best)).argmax()) if np.isfinite(best) else int(values.argmin())
        if not values[k] <= best + 1e-12 * abs(best) or not np.isfinite(values[k]):
            return nothing
        moved, theta, best = tried[k] - theta, tried[k], float(values[k])
        if steps and k == 0 and (np.abs(moved) <= 1e-9 * np.maximum(units, np.abs(theta))).all():
            return (float(theta[1]), float(theta[0])) if slope else (float(theta[0]),)
        _, r, rz, h, hz, hzz = summed[k]
        gradient, hessian = np.array([r, rz])[free], np.array([[h, hz], [hz, hzz]])[np.ix_(free, free)]
        size = np.sqrt(np.diag(hessian))
        if not (size > 0).all() or not np.linalg.cond(hessian / np.outer(size, size)) < 1e13:
            return nothing
        step = np.zeros(2)
        step[free] = -np.linalg.solve(hessian / np.outer(size, size), gradient / size) / size
        tried = np.array([theta + t * step for t in LENGTHS])
        if not np.isfinite(tried).all() or abs(tried[0, 1]) * spread > STEEPEST:
            return nothing
        summed = yield from _lines(parts, tried)
    return nothing


def _lines(parts: Sequence[Part], lines: np.ndarray) -> Program[np.ndarray]:
    """One message: the sums of the recalibrated models over the rows of all parts."""
    found = yield [
        Request((Score(part.model.objective, part.model.x, np.empty((1, 0)), np.empty(0), lines, part.subset),),
                sites=part.sites, models=len(lines))
        for part in parts
    ]  # fmt: skip
    return np.asarray(sum(summed.lines for (summed,) in found))


# --- metrics ---


def _evaluation(
    model: LinearModel,
    scored: Scored,
    line: Sequence[float],
    centre: np.ndarray,
    threshold: float,
    how: str,
    walled: bool,
    rows: int,
    null_with_offset: float | None = None,
    ranked: tuple[float, float] | None = None,
) -> Evaluation:
    sums, classes = scored.sums, model.classes
    weight = float(sums.weight)
    if classes is None:
        null = np.nan if model.offset and null_with_offset is None else null_with_offset
        numbers = replace(_regression(model.loss, sums, centre, how, null), rows=rows)
        # under a policy sites round their sums of absolute errors
        return replace(numbers, mae=None, rounded_counts=True) if walled else numbers
    each = np.asarray(sums.class_weights)
    shares = each[each > 0]
    null = float(-shares @ np.log(shares / weight))
    found: dict[str, Any] = {
        "brier": float(sums.brier) / weight, "log_loss": float(sums.loss) / weight,
        "deviance_explained": 1.0 - float(sums.loss) / null if null > 0 else np.nan,
    }  # fmt: skip
    kind = "two classes" if len(classes) == 2 else "several classes"
    found |= {"how": how, "weight": weight, "classes": tuple(classes.tolist()), "class_weights": each, "kind": kind}
    found |= {"rounded_counts": walled, "rows": rows}
    counted = rows == weight  # each row once: what a sampling interval takes
    by_class = np.array([scored.auc(k) if ranked is None else ranked for k in range(len(scored.edges))])
    errors = [scored.error(k) if counted else None for k in range(len(scored.edges))]
    each_auc = tuple(Auc.within(low, high, error) for (low, high), error in zip(by_class.tolist(), errors, strict=True))
    found |= {
        "auc": each_auc[0] if len(each_auc) == 1 else Auc.within(*by_class.mean(axis=0)),
        "auc_by_class": each_auc,
    }
    if len(classes) > 2:
        table = _table(sums, weight)
        return Evaluation(
            **found, **table, **(_wilson({"accuracy": (table["accuracy"] * weight, weight)}) if counted else {})
        )
    slope, intercept, in_the_large = line
    at = _at_threshold(scored, threshold)
    return Evaluation(
        **found, threshold=threshold, events=float(each[1]), **at, **(_wilson(_shares(at["confusion"])) if counted else {}),
        calibration_slope=slope, calibration_intercept=intercept, calibration_in_the_large=in_the_large,
        roc=_roc(scored), calibration=_calibration_curve(scored),
    )  # fmt: skip


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else float("nan")


def _at_threshold(scored: Scored, threshold: float) -> dict[str, Any]:
    """The confusion matrix at a threshold and what follows from it, each with bounds."""
    N, P = scored.totals(0)
    at = int(np.searchsorted(scored.edges[0], threshold_edge(threshold)))
    tables = []
    for negative, positive in ((scored.low, scored.high), (scored.high, scored.low)):  # worst and best for accuracy
        tn, fn = float(negative[0][0, 0, at]), float(positive[0][1, 0, at])
        tables.append((tn, N - tn, fn, P - fn))
    worst, best = tables
    middle = tuple((a + b) / 2 for a, b in zip(worst, best, strict=True))
    measures = {
        "sensitivity": lambda tn, fp, fn, tp: _ratio(tp, P),
        "specificity": lambda tn, fp, fn, tp: _ratio(tn, N),
        "ppv": lambda tn, fp, fn, tp: _ratio(tp, tp + fp),
        "npv": lambda tn, fp, fn, tp: _ratio(tn, tn + fn),
        "accuracy": lambda tn, fp, fn, tp: _ratio(tn + tp, N + P),
    }
    found: dict[str, Any] = {name: measure(*middle) for name, measure in measures.items()}
    bounds = {name: (measure(*worst), measure(*best)) for name, measure in measures.items()}
    if worst != best:  # a ratio of no rows may be anything
        bounds = {
            name: (float(np.nan_to_num(a, nan=0.0)), float(np.nan_to_num(b, nan=1.0)))
            for name, (a, b) in bounds.items()
        }
    found["intervals"] = bounds
    matrices = [np.reshape(table, (2, 2)) for table in (middle, worst, best)]
    found["confusion"] = matrices[0]
    found["confusion_low"], found["confusion_high"] = np.minimum(*matrices[1:]), np.maximum(*matrices[1:])
    return found


def _shares(confusion: np.ndarray) -> dict[str, tuple[float, float]]:
    """The rows that each share at a threshold counts, and of how many."""
    (tn, fp), (fn, tp) = confusion.tolist()
    return {
        "sensitivity": (tp, tp + fn), "specificity": (tn, tn + fp), "ppv": (tp, tp + fp), "npv": (tn, tn + fn),
        "accuracy": (tp + tn, tn + fp + fn + tp),
    }  # fmt: skip


def _wilson(shares: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """The confidence intervals of shares of rows."""
    found = {name: wilson(*share) for name, share in shares.items()}
    return {"confidence": {name: ends for name, ends in found.items() if ends is not None}, "confidence_method": WILSON}


def _table(sums: Score.Reply, weight: float) -> dict[str, Any]:
    """The table of classes (rows) and most likely classes (columns), and the accuracy."""
    low, high = np.asarray(sums.confusion_low), np.asarray(sums.confusion_high)
    each = np.asarray(sums.class_weights)[:, None]
    low = np.maximum(low, each - (high.sum(axis=1, keepdims=True) - high))  # a row of the table adds up to its class
    high = np.minimum(high, each - (low.sum(axis=1, keepdims=True) - low))
    bounds = (_ratio(float(np.trace(low)), weight), _ratio(float(np.trace(high)), weight))
    return {
        "confusion": (low + high) / 2, "confusion_low": low, "confusion_high": high, "accuracy": sum(bounds) / 2,
        "intervals": {"accuracy": bounds},
    }  # fmt: skip


def _roc(scored: Scored) -> RocCurve:
    N, P = scored.totals(0)
    low, high = scored.low[0][:, 0], scored.high[0][:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = [1 - bound / whole for whole, g in ((N, 0), (P, 1)) for bound in (high[g], low[g])]
    return RocCurve(1 / (1 + np.exp(-np.clip(scored.edges[0], -700, 700))), *rates)


def _calibration_curve(scored: Scored) -> CalibrationCurve:
    """Groups of about equal weight, cut at thresholds that were asked for: exact where counts are."""
    low, high, edges = scored.low[0], scored.high[0], scored.edges[0]
    N, P = scored.totals(0)
    middle = (low[:, 0] + high[:, 0]).sum(axis=0) / 2
    cuts = np.unique([int(np.abs(middle - share * (N + P)).argmin()) for share in np.arange(1, GROUPS) / GROUPS])
    cuts = cuts[(middle[cuts] > 0) & (middle[cuts] < N + P)]
    cuts = cuts[np.concatenate([[True], np.diff(middle[cuts]) > 0])] if len(cuts) else cuts
    risk = 1 / (1 + np.exp(-np.clip(edges[cuts], -700, 700)))
    ends = [np.concatenate([np.zeros((2, 1)), bound[:, 0][:, cuts], [[N], [P]]], axis=1) for bound in (low, high)]
    least, most = (np.maximum(a[:, 1:] - b[:, :-1], 0.0) for a, b in (ends, ends[::-1]))
    exact = bool((low == high).all())
    with np.errstate(divide="ignore", invalid="ignore"):
        observed = [least[1] / (least[1] + most[0]), most[1] / (most[1] + least[0])]
        predicted = [np.append(0.0, risk), np.append(risk, 1.0)]
    if (
        exact
    ):  # the sum of the predicted risks is known below each threshold, but not above all of them: ask at the last one
        below = low[:, 1].sum(axis=0)
        inner = np.diff(np.concatenate([[0.0], below[cuts], [below[-1]]]))
        mean = inner / (least[0] + least[1])
        predicted = [mean, mean]
    return CalibrationCurve(least.sum(axis=0), most.sum(axis=0), *predicted, *observed)


def _regression(loss: Loss, sums: Score.Reply, centre: np.ndarray, how: str, null: float | None) -> Evaluation:
    """R^2, errors and calibration of numbers. `null` is the loss without features where rows have offsets, NaN if not known."""
    W = float(sums.weight)
    u, v, uu, vv, uv, squared, absolute = np.asarray(sums.moments)
    total = np.maximum(vv - v * v / W, 0.0)
    r2 = np.where(total > 0, 1 - squared / np.where(total > 0, total, 1.0), np.where(squared == 0, 1.0, 0.0))
    spread, together = uu - u * u / W, uv - u * v / W
    slope = np.where(spread > 0, together / np.where(spread > 0, spread, 1.0), np.nan)
    intercept = centre + v / W - slope * (centre + u / W)
    null = null_loss(loss, W, centre + v / W, total) if null is None else null
    deviance = float(sums.loss) - float(sums.saturated)
    base = None if null is None or np.isnan(null) else null - float(sums.saturated)
    explained = None if base is None else 1 - deviance / base if base > 0 else float(deviance == 0)
    one = len(r2) == 1
    return Evaluation(
        kind="regression", how=how, weight=W, r2=float(r2.mean()), rmse=float(np.sqrt(squared / W).mean()),
        mae=float(absolute.mean() / W), mean_loss=float(sums.loss) / W, deviance_explained=explained,
        calibration_slope=float(slope[0]) if one else None, calibration_intercept=float(intercept[0]) if one else None,
        r2_by_outcome=None if one else r2,
    )  # fmt: skip


def null_loss(loss: Loss, weight: float, mean: np.ndarray, total: np.ndarray) -> float | None:
    """The loss of the best constant prediction, from the mean label and the sum of squares around it; None if not known."""
    match loss:
        case Squared() | MultiSquared():
            return 0.5 * float(total.sum())
        case Gamma():
            return weight * float(1 + np.log(mean[0]))
        case NegativeBinomial():
            m, theta = float(mean[0]), float(loss.theta)
            return weight * ((m + theta) * np.log1p(m / theta) - (m * np.log(m) if m > 0 else 0.0))
        case Poisson():
            return weight * float(mean[0] - mean[0] * np.log(mean[0])) if mean[0] > 0 else 0.0
    return None
