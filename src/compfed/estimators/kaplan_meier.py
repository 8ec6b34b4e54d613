"""Kaplan-Meier curves and the log-rank test over sites, from events and rows at risk at agreed times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, norm

from compfed._utils.plain import JsonObject
from compfed._utils.text import join_names, text_table
from compfed._utils.validation import check_numbers
from compfed.data import Sites
from compfed.data.adapter import as_frame
from compfed.data.columns import take_column
from compfed.errors import InputError
from compfed.estimators import table as tables
from compfed.estimators.programs.plan import announce, plan_at_risk
from compfed.estimators.programs.survival import ask_at_risk
from compfed.estimators.survival import FederatedCox, survival_labels
from compfed.estimators.table import Features, RowWeights, SchemaLike, SiteOfRows
from compfed.federation.accounting import Communication
from compfed.federation.queries.at_risk import MAX_TIMES
from compfed.federation.server.program import Federation, is_federation, run_program
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import CoxPartialLikelihood
from compfed.schema import CategoricalColumn
from compfed.simulation.local_federation import Simulated

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVEL = 0.95  # of confidence intervals
SHOWN = 8  # times of a printed table


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of equal hazards of all groups.

    Attributes
    ----------
    statistic : float
        Chi-squared, with `degrees` degrees of freedom.
    degrees : int
    p_value : float
    observed, expected : ndarray of shape (n_groups,)
        Events of each group, and those that equal hazards would give.
    """

    statistic: float
    degrees: int
    p_value: float
    observed: np.ndarray
    expected: np.ndarray


@dataclass(frozen=True)
class KaplanMeier:
    """Kaplan-Meier curves over sites; ``print`` shows them.

    Attributes
    ----------
    times : ndarray of shape (n_times,)
        The agreed times.
    groups : tuple of str
        The groups; one called "all rows" without a column of groups.
    survival : ndarray of shape (n_groups, n_times)
        The probability of no event up to each time: prod (1 - events / at risk).
    low, high : ndarray of shape (n_groups, n_times)
        95 % confidence intervals, from Greenwood's variance of log(-log(survival)).
    events : ndarray of shape (n_groups, n_times)
        Events between a time and the one before.
    at_risk : ndarray of shape (n_groups, n_times)
        Rows at risk just before each time: the table under the curves.
    log_rank : LogRank or None
        The test of equal hazards; None with one group.
    communication : Communication
    """

    times: np.ndarray
    groups: tuple[str, ...]
    survival: np.ndarray
    low: np.ndarray
    high: np.ndarray
    events: np.ndarray
    at_risk: np.ndarray
    log_rank: LogRank | None
    communication: Communication

    def to_dict(self) -> JsonObject:
        """The curves as plain data, by group."""
        names = ("survival", "low", "high", "events", "at_risk")
        curves = {g: {name: getattr(self, name)[k].tolist() for name in names} for k, g in enumerate(self.groups)}
        test = None
        if self.log_rank is not None:
            test = {name: float(getattr(self.log_rank, name)) for name in ("statistic", "degrees", "p_value")}
        return {"times": self.times.tolist(), "groups": curves, "log_rank": test}

    def median(self) -> dict[str, float]:
        """The first time at which survival is at most one half, by group; NaN where it stays above."""
        below = self.survival <= 0.5
        return {
            g: float(self.times[below[k].argmax()]) if below[k].any() else float("nan")
            for k, g in enumerate(self.groups)
        }

    def plot(self, axes: Any = None) -> Figure:
        """Draw the curves with their intervals, and the numbers at risk below (needs matplotlib)."""
        from compfed.report.survival_figure import draw_survival

        return draw_survival(self, axes)

    def __str__(self) -> str:
        shown = np.unique(np.linspace(0, len(self.times) - 1, min(SHOWN, len(self.times))).round().astype(int))
        lines = [
            [g, f"{self.times[k]:g}", f"{self.at_risk[i, k]:g}", f"{self.survival[i, k]:.3f}",
             f"{self.low[i, k]:.3f} to {self.high[i, k]:.3f}"]
            for i, g in enumerate(self.groups) for k in shown
        ]  # fmt: skip
        text = text_table(["group", "time", "at risk", "survival", "95 % interval"], lines)
        if (test := self.log_rank) is not None:
            text += f"\nLog-rank test: chi-squared {test.statistic:.3f} on {test.degrees} degrees of freedom, p = {test.p_value:.3g}."
        return text


def kaplan_meier(
    X: Features | Sites | Federation,
    y: npt.ArrayLike | Sequence[str] | None = None,
    *,
    times: npt.ArrayLike,
    by: str | None = None,
    sites: SiteOfRows = None,
    sample_weight: RowWeights = None,
    schema: SchemaLike = None,
) -> KaplanMeier:
    """Kaplan-Meier curves over all sites, by group, and the log-rank test. One message.

    Rows have their time rounded up to the next of `times`: with all event times among them, the curves are those of the pooled
    table. Under a disclosure policy the times of a site are those of blocks of `min_rows` events.

    Parameters
    ----------
    X : Federation, Sites, or array or DataFrame of shape (n_rows, n_features)
        Where the rows are.
    y : structured array, array or DataFrame of shape (n_rows, 2) or (n_rows, 3), or names of columns of X
        (time, event) or (entry, time, event), where X is a table.
    times : array of shape (n_times,)
        Increasing times that the sites agree on. A row whose time is later has no event here.
    by : str, optional
        A column of words, or of 0 and 1: a curve for each level.
    sites : array of shape (n_rows,), str or None
        The site of every row, where X is a table.
    sample_weight : array of shape (n_rows,), optional
        How much each row counts.
    schema : "auto", Schema or path, optional
        How words of a DataFrame are read.

    Returns
    -------
    KaplanMeier

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> y = np.array([[6.0, 1], [7, 0], [10, 1], [15, 1], [19, 0], [25, 1]])
    >>> curves = cf.kaplan_meier(np.zeros((6, 1)), y, times=[6, 7, 10, 15, 19, 25], sites=[0, 1, 0, 1, 0, 1])
    >>> curves.survival.round(3)
    array([[0.833, 0.833, 0.625, 0.417, 0.417, 0.   ]])
    """
    grid = np.atleast_1d(check_numbers(times, "times")).astype(float)
    if grid.ndim != 1 or grid.size > MAX_TIMES or not np.isfinite(grid).all() or not (np.diff(grid) > 0).all():
        raise InputError(f"kaplan_meier: times must be at most {MAX_TIMES} finite numbers that increase.")
    federation = _federation(X, y, by, sites, sample_weight, schema)
    columns, names = _groups(federation, by)
    objective = ObjectiveSpec(CoxPartialLikelihood(), columns=np.empty(0, int))
    asked, options = {"times": grid, "by": by}, FederatedCox().fit_options()
    announce(federation, plan_at_risk(federation, "kaplan_meier", asked, options, len(grid), len(names)))
    found, cost = run_program(federation, ask_at_risk(objective, np.empty(0), grid, columns))
    events, at = found.events, found.at_risk
    survival, low, high = _curves(events, at)
    test = _log_rank(events, at) if len(names) > 1 else None
    return KaplanMeier(grid, names, survival, low, high, events, at, test, cost)


def _federation(
    X: Any, y: Any, by: str | None, sites: SiteOfRows, sample_weight: RowWeights, schema: SchemaLike
) -> Federation:
    if is_federation(X):
        return X
    if isinstance(X, Sites):
        return Simulated(X)
    if y is None:
        raise InputError(
            "kaplan_meier needs a federation, sites from compfed.data, or rows with times: kaplan_meier(X, y, ...)."
        )
    model = FederatedCox()
    X, labels = survival_labels("kaplan_meier", tables.as_rows("kaplan_meier", X), y)
    if isinstance(sites, str):
        X, sites = take_column(as_frame(X), "sites", sites)
    if by is None:  # no column plays a part
        return model.make_table(np.zeros((len(labels), 1)), labels, sites, sample_weight).federation()
    frame = as_frame(X)
    if frame is None:
        raise InputError(
            f"kaplan_meier(by={by!r}): X has no names of columns. Give a DataFrame, whose columns have them."
        )
    if by not in frame.columns:
        has = join_names([str(c) for c in frame.columns])
        raise InputError(f"kaplan_meier(by={by!r}): X has no column of this name; it has {has}.")
    words = not frame[by].is_numeric
    X, schema = frame.select([by]), "auto" if schema is None and words else schema
    return model.make_table(X, labels, sites, sample_weight, schema).federation()


def _groups(federation: Federation, by: str | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The columns of groups, and what each group is called."""
    if by is None:
        return (), ("all rows",)
    known = federation.enrolments[0].columns or ()
    found = [j for j, name in enumerate(known) if name == by or name.startswith(f"{by}=")]
    if not found:
        raise InputError(
            f"by={by!r}: the sites have no column of this name; they have {join_names(list(known), most=12)}."
        )
    schema = federation.schema
    column = None if schema is None else schema.columns.get(by)
    if isinstance(column, CategoricalColumn):
        return tuple(found), (f"{by}={column.levels[0]}", *(known[j] for j in found))
    return tuple(found), (f"{by}=0", f"{by}=1")


def _curves(events: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Survival and its intervals; where nobody is at risk, as before."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(at > 0, events / at, 0.0)
        survival = np.cumprod(1 - share, axis=1)
        variance = np.cumsum(np.where(events > 0, events / (at * (at - events)), 0.0), axis=1)  # of log survival
        wide = norm.ppf(0.5 + LEVEL / 2) * np.sqrt(variance) / np.abs(np.log(survival))
        low, high = survival ** np.exp(wide), survival ** np.exp(-wide)
    none = variance == 0
    low, high = (np.where(none, survival, side) for side in (low, high))
    gone = survival <= 0
    return survival, np.where(gone, np.nan, low), np.where(gone, np.nan, high)


def _log_rank(events: np.ndarray, at: np.ndarray) -> LogRank:
    """Mantel's test, from the hypergeometric mean and covariance of events of each group at each time."""
    d, n = events.sum(axis=0), at.sum(axis=0)
    used = (d > 0) & (n > 0)
    d, n, share = d[used], n[used], at[:, used] / n[used]
    expected = (d * share).sum(axis=1)
    spread = d * (n - d) / np.maximum(n - 1, 1)  # the last row at risk adds nothing
    V = np.diag(share @ spread) - (share * spread) @ share.T
    away = (events.sum(axis=1) - expected)[1:]
    statistic = float(away @ np.linalg.pinv(V[1:, 1:]) @ away)
    degrees = len(events) - 1
    return LogRank(statistic, degrees, float(chi2.sf(statistic, degrees)), events.sum(axis=1), expected)
