"""The result of `evaluate`: how well a model predicts rows that several sites hold, as a record and a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from compfed._utils.html_table import html_table
from compfed._utils.text import shapes_shown, text_table
from compfed.federation.accounting import Communication
from compfed.report.evaluation_figure import draw_evaluation
from compfed.report.showing import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Number: TypeAlias = Any  # a float, or None where it does not apply
Array: TypeAlias = Any  # an array, or None


@dataclass(frozen=True)
class Auc:
    """Area under the ROC curve: the chance that a row with the event has a higher score than one without; ties count half.

    Attributes
    ----------
    value : float
        The AUC; where its bounds differ, the middle of them.
    rounding_low, rounding_high : float
        Rounding bounds: they contain the AUC of these rows for certain. They differ where counts are known to blocks of rows, or
        scores were not all told apart.
    confidence_low, confidence_high : float or None
        Confidence interval of 95 %, from the sampling of the rows: the value plus and minus 1.96 standard errors by DeLong's formula,
        within 0 and 1. None where rows have weights, a class has fewer than two rows, or no pair of rows is in the wrong order.
    confidence_method : str or None
        "DeLong".
    """

    value: float
    rounding_low: float
    rounding_high: float
    confidence_low: float | None = None
    confidence_high: float | None = None
    confidence_method: str | None = None

    @classmethod
    def within(cls, low: float, high: float, error: float | None = None) -> Auc:
        """The AUC between two rounding bounds, with the confidence interval of a standard error."""
        value = float((low + high) / 2)
        if error is None or not error > 0:
            return cls(value, float(low), float(high))
        reach = QUANTILE * error
        return cls(value, float(low), float(high), max(value - reach, 0.0), min(value + reach, 1.0), DELONG)


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Rates of false and true positives at thresholds of the predicted risk; lower and upper bounds are equal where exact."""

    thresholds: np.ndarray
    false_positive_low: np.ndarray
    false_positive_high: np.ndarray
    true_positive_low: np.ndarray
    true_positive_high: np.ndarray

    __repr__ = shapes_shown


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Groups of predicted risk: their weight, mean predicted risk and share of events, each with lower and upper bound."""

    weight_low: np.ndarray
    weight_high: np.ndarray
    predicted_low: np.ndarray
    predicted_high: np.ndarray
    observed_low: np.ndarray
    observed_high: np.ndarray

    __repr__ = shapes_shown


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluation:
    """How well a model predicts rows that several sites hold. Fields that do not apply to the model are None.

    Every sum is over rows, with their weights. Where sites have a disclosure policy, counts are known to whole blocks of rows:
    what follows from them has rounding bounds, and its value is the middle. The MAE is off by at most the largest error over
    the mean number of rows of a site. Everything else is exact.

    Attributes
    ----------
    kind : {"two classes", "several classes", "regression"}
    how : str
        Which model scored which rows.
    rows : int
        Rows that were scored, without those of weight 0.
    weight : float
        Of all rows; their number unless rows are weighted.
    classes, class_weights
        The classes of the model and how much the rows of each weigh.
    events : float
        Weight of the rows of the second class.
    auc : Auc
        Area under the ROC curve: value, rounding bounds and confidence interval; over several classes the mean of one against the
        others.
    auc_by_class : tuple of Auc
        Of every score.
    brier, log_loss : float
        Mean squared difference of probabilities and outcomes (summed over the classes if there are several); mean -log P(y).
    deviance_explained : float
        1 - deviance / deviance of the best constant prediction.
    calibration_slope, calibration_intercept : float
        b and a of the logistic regression of the outcome on a + b z, z the log-odds predicted; of numbers, of the least squares
        line of the outcome on the prediction. NaN where they do not exist or a policy does not allow them.
    calibration_in_the_large : float
        a for b = 1.
    threshold : float
        The risk above which the second class is predicted.
    confusion, confusion_low, confusion_high : ndarray of shape (classes, classes)
        Weight of the rows of each class (row) by predicted class (column).
    sensitivity, specificity, ppv, npv, accuracy : float
        From the confusion matrix.
    intervals : dict of (float, float)
        Rounding bounds on these, by name.
    confidence : dict of (float, float)
        Confidence intervals of 95 % on these, by name, from the sampling of the rows: Wilson's. Empty where rows have weights.
    confidence_method : str or None
        "Wilson".
    rounded_counts : bool
        Whether counts are known to blocks of rows.
    roc : RocCurve
    calibration : CalibrationCurve
    r2, rmse, mae, mean_loss : float
        Of numbers; over several outcomes the mean.
    r2_by_outcome : ndarray
    per_site : dict of Evaluation, by site
        Where sites may be asked alone.
    communication : Communication
        Messages and bytes that the evaluation took.
    """

    kind: Literal["two classes", "several classes", "regression"]
    how: str
    weight: float
    rows: int | None = None
    classes: tuple[Any, ...] | None = None
    class_weights: Array = None
    events: Number = None
    auc: Any = None
    auc_by_class: tuple[Auc, ...] | None = None
    brier: Number = None
    log_loss: Number = None
    deviance_explained: Number = None
    calibration_slope: Number = None
    calibration_intercept: Number = None
    calibration_in_the_large: Number = None
    threshold: Number = None
    confusion: Array = None
    confusion_low: Array = None
    confusion_high: Array = None
    sensitivity: Number = None
    specificity: Number = None
    ppv: Number = None
    npv: Number = None
    accuracy: Number = None
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    confidence: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    confidence_method: str | None = None
    rounded_counts: bool = False
    roc: Any = None
    calibration: Any = None
    r2: Number = None
    rmse: Number = None
    mae: Number = None
    mean_loss: Number = None
    r2_by_outcome: Array = None
    per_site: Any = None
    communication: Any = None

    def with_sites(self, per_site: Mapping[str, Evaluation] | None, cost: Communication) -> Evaluation:
        """This evaluation with those of its sites, and what they took."""
        return replace(self, per_site=per_site, communication=cost)

    def with_classes(self, names: np.ndarray | None) -> Evaluation:
        """This evaluation, and those of its sites, with the names of the classes."""
        if names is None:
            return self
        each = (
            None
            if self.per_site is None
            else {site: found.with_classes(names) for site, found in self.per_site.items()}
        )
        return replace(self, classes=tuple(names.tolist()), per_site=each)

    def metrics(self) -> dict[str, float]:
        """The single numbers that apply, by name."""
        found = {name: value for name in MEASURES if (value := getattr(self, name)) is not None}
        return {name: value.value if isinstance(value, Auc) else value for name, value in found.items()}

    def bounds(self, name: str) -> tuple[float, float]:
        """The rounding bounds of a measure; of an exact one, its value twice."""
        if name == "auc":
            return self.auc.rounding_low, self.auc.rounding_high
        value = self.metrics()[name]
        return self.intervals.get(name, (value, value))

    def is_bounded(self, name: str) -> bool:
        """Whether the rounding bounds of a measure differ in three digits."""
        low, high = self.intervals.get(name, (0.0, 0.0))
        return bool(high - low > EXACT)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and dictionaries, for JSON."""
        return {
            f.name: _without_records(getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not None
        }

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """The header and the rows of the table: a column for all sites, and one for each unless there are many."""
        sites = self.per_site or {}
        columns = {"all sites": self, **(sites if len(sites) <= MOST_COLUMNS else {})}
        rows = [[label, *(_shown(one, name) for one in columns.values())] for name, label in self._lines()]
        return list(columns), rows

    def _repr_html_(self) -> str:
        columns, rows = self._table()
        return html_table(f"Evaluation, {self.kind}: {HOW.get(self.how, self.how)}.", rows, ["", *columns])

    def __repr__(self) -> str:
        measures = (
            f"{name}={_shown(self, name)}" for name in OF_MANY_SITES if name == "rows" or name in self.metrics()
        )
        return f"Evaluation({self.kind}, {', '.join(measures)})"

    def __str__(self) -> str:
        sites, (columns, rows) = self.per_site or {}, self._table()
        table = text_table(["", *columns], rows, numbers=True)
        bounded = any(" to " in cell for label, *cells in rows for cell in cells if label == BOUNDS_OF_AUC)
        sampled = any(" to " in cell for label, *cells in rows for cell in cells if label.startswith("  95 %"))
        note = "".join(f"\n\n{said}" for said, there in ((BOUNDS_NOTE, bounded), (SAMPLING_NOTE, sampled)) if there)
        many = f"\n\n{self._site_lines()}" if len(sites) > MOST_COLUMNS else ""
        return f"Evaluation, {self.kind}: {HOW.get(self.how, self.how)}.\n\n{table}{note}{many}"

    def _site_lines(self) -> str:
        """One line for each of many sites, with the measures that matter most."""
        shown = {"rows": "rows"} | {name: label.partition(" (")[0] for name, label in MEASURES.items()}
        names = [name for name in OF_MANY_SITES if name == "rows" or getattr(self, name) is not None]
        rows = [[site, *(_shown(one, name) for name in names)] for site, one in self.per_site.items()]
        return text_table(["site", *(shown[name] for name in names)], rows, numbers=True)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """The measures that some column of the table has."""
        weighted = self.rows != self.weight
        if self.rows is not None:
            yield "rows", "rows"
        if weighted:
            yield "weight", "weight of the rows"
        for name, label in MEASURES.items():
            if getattr(self, name) is not None:
                label = "weight of the events" if name == "events" and weighted else label
                yield name, label.format(threshold=self.threshold)
            if name == "auc" and self.auc is not None:
                yield "rounding", BOUNDS_OF_AUC
                yield "confidence", f"  95 % confidence interval{f' ({DELONG})' if self.auc.confidence_method else ''}"
            elif any(one.is_bounded(name) for one in (self, *(self.per_site or {}).values())):
                yield f"rounding {name}", BOUNDS_OF_AUC
            if name in self.confidence:
                yield f"confidence {name}", f"  95 % confidence interval ({self.confidence_method})"

    @shown
    def plot(self, ax: Any = None) -> Figure:
        """Draw the ROC curve and the calibration curve, with their bounds; returns the figure.

        Parameters
        ----------
        ax : pair of matplotlib axes, optional
            Where to draw; a new figure unless given.
        """
        return draw_evaluation(self, ax)


MEASURES = {
    "events": "events", "auc": "AUC (ties count half)", "brier": "Brier score", "log_loss": "log-loss", "r2": "R^2",
    "rmse": "RMSE", "mae": "MAE", "mean_loss": "mean loss", "deviance_explained": "deviance explained",
    "calibration_slope": "calibration slope", "calibration_intercept": "calibration intercept",
    "calibration_in_the_large": "calibration in the large", "sensitivity": "sensitivity at {threshold}",
    "specificity": "specificity", "ppv": "PPV", "npv": "NPV", "accuracy": "accuracy",
}  # fmt: skip
BOUNDS_OF_AUC = "  rounding bounds"
BOUNDS_NOTE = "Rounding bounds contain the value of these rows for certain; the value is their middle."
SAMPLING_NOTE = (
    "Confidence intervals are about other rows like these; they take the rows as independent, and the model as given."
)
DELONG, WILSON = "DeLong", "Wilson"
QUANTILE = 1.959963984540054  # of the normal distribution, at 0.975
MOST_COLUMNS = 8  # sites with a column of their own; of more each has a line
OF_MANY_SITES = ("rows", "events", "auc", "brier", "calibration_slope", "r2", "rmse", "deviance_explained")
EXACT = 0.002  # a value whose rounding bounds are closer is known to three digits
HOW = {"as given": "one model on all rows; optimistic if it was fitted to them (cv=5 is not)"}


def _shown(one: Evaluation, name: str) -> str:
    """A number, as its rounding bounds where it is not known to three digits; the AUC has lines of its own for its intervals."""
    if name == "rows":
        return f"{one.rows}"
    if name == "weight":
        return f"{one.weight:g}"
    if name in ("rounding", "confidence"):
        return "" if one.auc is None else auc_interval(one.auc, name)
    kind, _, of = name.partition(" ")
    if of:
        found = (one.intervals if kind == "rounding" else one.confidence).get(of)
        return (
            ""
            if found is None or (kind == "rounding" and not one.is_bounded(of))
            else f"{found[0]:.3f} to {found[1]:.3f}"
        )
    if name not in one.metrics():
        return ""
    value = one.metrics()[name]
    return f"{value:g}" if name == "events" else f"{value:.3f}"


def wilson(count: float, rows: float) -> tuple[float, float] | None:
    """Wilson's confidence interval of 95 % of a share, count of rows; None without rows."""
    if not rows > 0:
        return None
    share, z2 = count / rows, QUANTILE**2
    middle = (share + z2 / (2 * rows)) / (1 + z2 / rows)
    reach = QUANTILE / (1 + z2 / rows) * float(np.sqrt(share * (1 - share) / rows + z2 / (4 * rows**2)))
    return max(float(middle - reach), 0.0), min(float(middle + reach), 1.0)


def auc_interval(auc: Auc, kind: str) -> str:
    """The rounding bounds of an AUC, or its confidence interval, in words."""
    low, high = (getattr(auc, f"{kind}_{end}") for end in ("low", "high"))
    if low is None:
        return "not computed"
    if high - low > EXACT or kind == "confidence":
        return f"{low:.3f} to {high:.3f}"
    return f"within {high - low:.4f}" if high - low > 5e-5 else "exact"


def _without_records(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _without_records(item) for key, item in value.items()}
    if isinstance(value, Evaluation):
        return value.to_dict()
    if isinstance(value, Auc | RocCurve | CalibrationCurve):
        return {f.name: _without_records(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Communication):
        return {"rounds": value.rounds, "bytes_up": value.bytes_up, "bytes_down": value.bytes_down}
    return [_without_records(item) for item in value] if isinstance(value, tuple | list) else value
