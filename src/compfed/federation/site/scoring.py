"""The reply of a site to `Score`: sums over its rows, and rows of each class below thresholds.

Under a disclosure policy a threshold is moved to a grid of the site, and a count to whole blocks of `min_rows` rows of its
class: down for a lower bound, up for an upper bound. So bounds of the sites add up to bounds of the total, and every
difference of two counts is of no row or of at least `min_rows` rows. The outer ends of the first and of the last block, the
least and the largest score of a class, show at a grid of a standard deviation only. Sums of probabilities in blocks are
withheld, and the sum of absolute errors is rounded to the size of one error: many models of either tell single rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compfed._utils.array_namespace import logsumexp, product
from compfed.errors import InputError
from compfed.federation.queries import Score
from compfed.federation.site.disclosure import TRAINING, DisclosurePolicy, EffectiveRows
from compfed.losses import Softmax, WithOffset
from compfed.problem.padded_dataset import LocalDataset

if TYPE_CHECKING:
    from compfed.federation.site.site import Site


EXTREME = 1.0  # standard deviations of a score between the thresholds at which its least and its largest value may show


class ScoreRounding(NamedTuple):
    """How far a site rounds thresholds and counts; (1, 0) rounds nothing.

    Thresholds are moved to a grid around the mean of the scores, in steps of their standard deviation. So the intercept and
    the length of a model move the grid with the rows: shifting them tells nothing new.
    """

    min_rows: int = 1
    step: float = 0.0  # of the grid of thresholds
    centre: float = 0.0
    wide: float = 0.0  # the step at which it shows that no row, or every row, is below; 0 for never

    @classmethod
    def of(cls, min_rows: int, z: np.ndarray) -> ScoreRounding:
        """A grid on which `min_rows` rows are about four steps."""
        with np.errstate(over="ignore", invalid="ignore"):
            spread, centre = (float(np.std(z)), float(np.mean(z))) if len(z) else (0.0, 0.0)
        if not 0 < spread < np.inf:
            return cls(min_rows)
        step = spread * min_rows / len(z)
        return cls(min_rows, step, centre, max(EXTREME * spread, 8 * step))

    def thresholds(self, edges: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of a grid at or below each threshold, and at or above."""
        if step == 0:
            return edges, edges
        away = (edges - self.centre) / step
        low, high = np.floor(away) * step + self.centre, np.ceil(away) * step + self.centre
        return np.minimum(low, edges), np.maximum(high, edges)  # whatever rounding did

    def down(self, count: np.ndarray, rows: int) -> np.ndarray:
        """Counts of `rows` rows at whole blocks: multiples of `min_rows`, at most where the last block begins."""
        if self.min_rows == 1:
            return count
        last = max(rows // self.min_rows - 1, 0) * self.min_rows
        return np.minimum(count // self.min_rows * self.min_rows, last)

    def up(self, count: np.ndarray, rows: int) -> np.ndarray:
        """The same upwards, at least where the first block ends."""
        if self.min_rows == 1:
            return count
        last = max(rows // self.min_rows - 1, 0) * self.min_rows
        above = np.maximum(-(-count // self.min_rows), 1) * self.min_rows
        return np.where(above > last, rows, above)

    def bounds(self, z: np.ndarray, values: np.ndarray, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds of the sums of values (kinds, rows) over the rows with z at most each edge."""
        order, rows = np.argsort(z, kind="stable"), len(z)
        sums = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values[:, order], axis=1)], axis=1)

        def counts(step: float) -> list[np.ndarray]:
            return [np.searchsorted(z[order], at, side="right") for at in self.thresholds(edges, step)]

        below, above = counts(self.step)
        none = every = np.array(False)
        if self.wide > 0:
            outer = counts(self.wide)
            none, every = outer[1] == 0, outer[0] == rows
        return sums[:, np.where(every, rows, self.down(below, rows))], sums[:, np.where(none, 0, self.up(above, rows))]


def linear_predictor(loss: Any, x: np.ndarray, data: LocalDataset) -> tuple[Any, np.ndarray, np.ndarray]:
    """z and y of every row, its offset added to z, and the loss of both: the one place where a score of a row is computed."""
    z = np.asarray(loss.predictions(x, data.A) if hasattr(loss, "predictions") else product(data.A, x), float)
    y = np.asarray(data.y, float)
    return (loss.loss, z + y[:, 1], y[:, 0]) if isinstance(loss, WithOffset) else (loss, z, y)


def score(query: Score, site: Site) -> Score.Reply:
    """The sums of `Score` over the rows of its subset."""
    data, weights = site.rows.dataset(query.objective), site.rows.weights_of(query.subset)
    used = weights > 0
    x = np.asarray(query.x, data.A.dtype)
    loss, z, y = linear_predictor(query.objective.loss, x, data)
    z, y, q = z[used], y[used], weights[used]
    shapes = query.shapes()
    found: dict[str, Any] = {name: np.zeros(shape) for name, shape in shapes.items()}
    if query.objective.classes is None:
        mean = loss.inverse_link(z)
        if site.policy is not None and mean is not z:
            _check_predictions(site.policy, mean, q, site.name)
        found["moments"] = _moments(mean, y, q, query.centre, walled=site.policy is not None)
    else:
        found |= _counted(query, loss, site, z, y, q)
    sums = [q.sum(), np.sum(q * loss.value(z, y)), np.sum(q * loss.saturated(y)), found.pop("brier", 0.0)]
    numbers: list[Any] = [float(value) for value in sums]
    return Score.Reply(*numbers, **found)


def _check_predictions(policy: DisclosurePolicy, mean: np.ndarray, q: np.ndarray, name: str) -> None:
    """Refuse predictions exp(z) whose sum, or sum of squares, is that of a few rows: the curvature of a loss does not tell."""
    for power, least in ((1, TRAINING * policy.min_rows), (2, policy.min_level_rows)):
        h = q * mean**power
        with np.errstate(over="ignore", invalid="ignore"):
            total, squares = h.sum() ** 2, (h * h).sum()
        if not (len(h) == 0 or (total >= (1 - 1e-6) * least * squares and squares < np.inf)):
            raise InputError(
                f"site {name!r} refuses Score: the predictions of a few rows are most of their sum; use a stronger penalty, or "
                "evaluate on more rows at once."
            )


def _moments(mean: np.ndarray, y: np.ndarray, q: np.ndarray, centre: np.ndarray, walled: bool) -> np.ndarray:
    u, v = mean.reshape(len(q), len(centre)) - centre, y.reshape(len(q), len(centre)) - centre
    errors = q[:, None] * np.abs(u - v)
    absolute = _to_one_row(errors) if walled else errors.sum(axis=0)
    found = np.array([q @ u, q @ v, q @ u**2, q @ v**2, q @ (u * v), q @ (u - v) ** 2, absolute])
    return np.where(np.isnan(found), np.inf, found)  # of a prediction that is infinite


def _to_one_row(terms: np.ndarray) -> np.ndarray:
    """Sums of columns, to multiples of a power of two that is at least the largest term.

    Exact, sum |u| + sum u would be twice the sum over the rows with u > 0, of which a server could make one row.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        unit = np.exp2(np.ceil(np.log2(terms.max(axis=0, initial=0.0))))
        return np.where(unit > 0, np.rint(terms.sum(axis=0) / unit) * unit, 0.0)


def _counted(query: Score, loss: Any, site: Site, z: np.ndarray, y: np.ndarray, q: np.ndarray) -> dict[str, Any]:
    """Rows of classes below thresholds, the table of classes and most likely classes, and the Brier score."""
    shapes = query.shapes()
    many = isinstance(loss, Softmax)
    p = np.asarray(loss.inverse_link(z))
    p = p if many else p[:, None]
    codes = y.astype(int) if many else (y > 0).astype(int)
    classes = shapes["class_weights"][0]
    is_class = codes[:, None] == (np.arange(classes) if many else np.array([1]))
    low, high = np.zeros(shapes["low"]), np.zeros(shapes["high"])
    for k in range(len(query.edges)):
        log_odds = z[:, k] - np.asarray(logsumexp(np.delete(z, k, axis=1))) if many else z
        rounding = _rounding(site, log_odds)
        for group in (0, 1):
            rows = is_class[:, k] == bool(group)
            values = np.stack([q[rows], q[rows] * p[rows, k]])
            low[k, group], high[k, group] = rounding.bounds(log_odds[rows], values, query.edges[k])
    if site.policy is not None:  # of probabilities, no more than that they are from 0 to 1
        low[:, :, 1], high[:, :, 1] = 0.0, high[:, :, 0]
    found = {
        "low": low,
        "high": high,
        "lines": _lines(query, loss, site, z, y, q),
        "brier": np.sum(q * ((p - is_class) ** 2).sum(axis=1)),
    }
    found["class_weights"] = np.bincount(codes, q, minlength=classes).astype(float)
    if many:
        found["confusion_low"], found["confusion_high"] = _confusion(
            codes, z.argmax(axis=1), q, classes, _rounding(site)
        )
    return found


def _lines(query: Score, loss: Any, site: Site, z: np.ndarray, y: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sums of every recalibrated model; NaN where the policy would refuse it."""
    data, found = site.rows.dataset(query.objective), np.zeros(query.shapes()["lines"])
    _, every, labels = linear_predictor(query.objective.loss, np.asarray(query.x, data.A.dtype), data)
    for row, (a, b) in zip(found, query.lines, strict=True):
        if site.policy is not None:
            rule = EffectiveRows.of(site.policy.min_rows, loss, labels, data.q, site.rows.shares_of(None))
            if not rule.holds_at(loss, a + b * every, labels):
                row[:] = np.nan
                continue
        line = a + b * z
        value, r, h = (f(line, y) for f in (loss.value, loss.derivative, loss.second_derivative))
        row[:] = [np.sum(q * each) for each in (value, r, r * z, h, h * z, h * z * z)]  # a dot product starts threads
    return found


def _rounding(site: Site, z: np.ndarray | None = None) -> ScoreRounding:
    if site.policy is None:
        return ScoreRounding()
    return ScoreRounding(site.policy.min_rows) if z is None else ScoreRounding.of(site.policy.min_rows, z)


def _confusion(
    codes: np.ndarray, predicted: np.ndarray, q: np.ndarray, classes: int, rounding: ScoreRounding
) -> tuple[np.ndarray, np.ndarray]:
    """Bounds on the weight of the rows of each class (row) with each prediction (column)."""
    low, high = np.zeros((classes, classes)), np.zeros((classes, classes))
    for i in range(classes):
        rows = codes == i
        for j in range(classes):
            first = (predicted[rows] != j).astype(float)  # rows predicted as j come first
            bounds = rounding.bounds(first, q[None, rows], np.zeros(1))
            low[i, j], high[i, j] = (bound.item() for bound in bounds)
    return low, high
