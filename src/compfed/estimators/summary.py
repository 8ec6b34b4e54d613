"""`model.summary()`: coefficients with standard errors, tests and intervals, and the likelihood of the fit."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import stats

from compfed._utils.files import write_private
from compfed._utils.text import printable, text_table
from compfed.errors import InputError, MissingExtra
from compfed.estimators.programs.inference import Inferred
from compfed.federation.accounting import Communication
from compfed.report.forest_figure import INTERCEPT, draw_forest
from compfed.report.words import ERRORS, interval, p_text, ratio_text

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

UNPENALISED = "fit without a penalty"
REFIT = "refit without a penalty of the columns that a penalised fit chose"
NAIVE = (
    "Naive after selection: these errors, p-values and intervals take the columns as if they had been chosen before the data were seen. "
    "They are too small."
)


class LikelihoodRatio(NamedTuple):
    """A likelihood-ratio test of two nested fits: 2 (log-likelihood - log-likelihood), chi-squared with `df` degrees of freedom."""

    statistic: float
    df: int
    p_value: float

    def __str__(self) -> str:
        p = p_text(self.p_value)
        return f"chi-squared = {self.statistic:.4g}, df = {self.df}, p {p if p.startswith('<') else f'= {p}'}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Summary:
    """The table of a fit: one line per coefficient, and the likelihood.

    Attributes
    ----------
    estimator : str
    kind : str
        "fit without a penalty", or "refit without a penalty of the columns that a penalised fit chose": naive after selection.
    errors : {"model", "HC0", "HC1", "cluster"}
        Where standard errors come from.
    weights : {"frequency", "sampling"}
        What a weight of a row means, where rows have weights.
    level : float
        Of the confidence intervals.
    terms, compared, classes : tuple of str
        Of every coefficient: its feature or "(intercept)"; "per unit" or "against" the reference level; of several classes, the class
        that is compared with the first one.
    coefficients, standard_errors, statistics, p_values, low, high : ndarray of shape (n_terms,)
        statistics are z, or Student's t for least squares and clustered errors. NaN where there are no standard errors.
    ratio_name : str or None
        The word for exp(coefficient): odds ratio, rate ratio, hazard ratio, ratio of means, relative risk ratio.
    ratios, ratio_low, ratio_high : ndarray or None
    covariance : ndarray of shape (n_terms, n_terms) or None
    why_no_errors : str
        Why there are no standard errors, such as the refusal of a site; "" where there are.
    rounding : float
        Bound on the relative error of a standard error, where a disclosure policy rounds Hessians; 0.0 elsewhere.
    weight, parameters, df_residual : float
        Rows (or their weight), parameters of the likelihood, n less the number of coefficients.
    dispersion, theta, theta_error : float or None
        Variance (least squares) or dispersion (Gamma); theta of a negative binomial model and its standard error, if it was estimated.
    log_likelihood, null_log_likelihood, deviance, aic, bic : float or None
    null_test : LikelihoodRatio or None
        Against the model without features.
    notes : tuple of str
    communication : Communication
        What the summary took.
    """

    estimator: str
    kind: str
    errors: str
    weights: str
    level: float
    terms: tuple[str, ...]
    compared: tuple[str, ...]
    classes: tuple[str, ...]
    coefficients: np.ndarray
    standard_errors: np.ndarray
    statistics: np.ndarray
    p_values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ratio_name: str | None
    ratios: np.ndarray | None
    ratio_low: np.ndarray | None
    ratio_high: np.ndarray | None
    covariance: np.ndarray | None
    why_no_errors: str
    rounding: float
    student_df: float | None
    weight: float
    parameters: int
    df_residual: float
    dispersion: float | None
    theta: float | None
    theta_error: float | None
    log_likelihood: float | None
    null_log_likelihood: float | None
    deviance: float | None
    aic: float | None
    bic: float | None
    null_test: LikelihoodRatio | None
    notes: tuple[str, ...]
    communication: Communication

    # --- as text, table and file ---

    def __str__(self) -> str:
        head = f"Summary of {self.estimator}: {self.kind}, {self.weight:g} rows."
        how = f"Standard errors: {ERRORS[self.errors]}. Intervals of {self.level:.0%}, {self.distribution}."
        lines = [
            head,
            self._errors_missing if self.why_no_errors else how,
            "",
            self._table(),
            "",
            *self._likelihood_lines(),
        ]
        return "\n".join([*lines, *self.notes])

    __repr__ = __str__

    @property
    def _errors_missing(self) -> str:
        return f"No standard errors: {self.why_no_errors.removesuffix('.')}."

    @property
    def distribution(self) -> str:
        """The distribution of the tests and intervals, in words."""
        return "normal" if self.student_df is None else f"Student's t with {self.student_df:g} degrees of freedom"

    @property
    def statistic_name(self) -> str:
        return "z" if self.student_df is None else "t"

    def _heads(self) -> list[str]:
        ends = [f"{self.level:.0%} low", f"{self.level:.0%} high"]
        heads = ["coefficient", "standard error", self.statistic_name, "p", *ends]
        return (
            heads
            if self.ratio_name is None
            else [*heads, self.ratio_name, *(f"{self.ratio_name} {end}" for end in ends)]
        )

    def _columns(self) -> list[np.ndarray]:
        found = [self.coefficients, self.standard_errors, self.statistics, self.p_values, self.low, self.high]
        if self.ratio_name is not None:
            found += [np.asarray(each) for each in (self.ratios, self.ratio_low, self.ratio_high)]
        return found

    def _named(self) -> dict[str, list[str]]:
        """The columns of words that say something."""
        found = {"term": list(self.terms)}
        if any(self.classes):
            found["class"] = list(self.classes)
        if set(self.compared) - {"per unit", ""}:
            found["compared"] = list(self.compared)
        return found

    def _table(self) -> str:
        named = {head: [printable(word, 60) for word in words] for head, words in self._named().items()}
        heads = ["coefficient", "std. error", self.statistic_name, "p", f"{self.level:.0%} interval"]
        cells = [
            _numbers(self.coefficients), _numbers(self.standard_errors), [_short(z) for z in self.statistics],
            [p_text(p) for p in self.p_values], _ranges(self.low, self.high, _number),
        ]  # fmt: skip
        if self.ratio_name is not None:
            heads += [self.ratio_name, f"{self.level:.0%} interval"]
            ratios, low, high = (np.asarray(each) for each in (self.ratios, self.ratio_low, self.ratio_high))
            cells += [list(map(ratio_text, ratios)), _ranges(low, high, ratio_text)]
            cells[-2:] = [
                ["" if t == INTERCEPT else c for t, c in zip(self.terms, each, strict=True)] for each in cells[-2:]
            ]
        return text_table([*named, *heads], list(zip(*named.values(), *cells, strict=True)))

    def _likelihood_lines(self) -> list[str]:
        named = {
            "theta": self.theta, "dispersion": self.dispersion, "log-likelihood": self.log_likelihood, "deviance": self.deviance,
            "AIC": self.aic, "BIC": self.bic,
        }  # fmt: skip
        shown = [f"{name} = {value:.8g}" for name, value in named.items() if value is not None]
        if self.theta_error is not None:
            shown[0] += f" (standard error {self.theta_error:.4g})"
        said = [", ".join([*shown, f"parameters = {self.parameters}"])]
        if self.null_test is not None:
            said.append(f"Likelihood-ratio test against the model without features: {self.null_test}.")
        return said

    def to_frame(self) -> pd.DataFrame:
        """The table as a DataFrame of pandas, one line per coefficient."""
        try:
            import pandas as pd
        except ImportError:
            raise MissingExtra("pandas", "pandas", "Summary.to_frame()") from None
        numbers = dict(zip(self._heads(), self._columns(), strict=True))
        named = self._named()
        return pd.DataFrame(numbers, index=pd.Index(named.pop("term"), name="term")).assign(**named)

    def to_csv(self, path: str | Path | None = None) -> str:
        """The table as CSV with all digits, written to a file if one is named; returns the text. No value is an empty cell."""
        out = io.StringIO()
        lines, named = csv.writer(out, lineterminator="\n"), self._named()
        lines.writerow([*named, *self._heads()])
        for words, row in zip(zip(*named.values(), strict=True), zip(*self._columns(), strict=True), strict=True):
            lines.writerow([*words, *("" if np.isnan(value) else repr(float(value)) for value in row)])
        if path is not None:
            write_private(Path(path), out.getvalue().encode())
        return out.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and words, for JSON; None for a number that is not there."""
        found: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "communication" or value is None:
                continue
            if isinstance(value, LikelihoodRatio):
                value = value._asdict()
            found[f.name] = _plain(value)
        return found | {"statistic_name": self.statistic_name, "distribution": self.distribution}

    def plot(self, ax: Any = None) -> Figure:
        """Draw a forest plot: every coefficient, or its ratio on a log axis, with its interval.

        Parameters
        ----------
        ax : matplotlib axes, optional
            Where to draw; a new figure unless given.
        """
        return draw_forest(self.to_dict(), ax)

    # --- tests ---

    def likelihood_ratio_test(self, reduced: Summary) -> LikelihoodRatio:
        """Test this fit against one whose features are some of its own, to the same rows.

        The statistic is twice the difference of the log-likelihoods; theta of a negative binomial model that was estimated, is so in
        both. Of a Gamma model it is the difference of the deviances over the dispersion of the larger fit, as in R's
        ``anova(test="Chisq")``.

        Parameters
        ----------
        reduced : Summary
            Of the smaller model.

        Returns
        -------
        LikelihoodRatio

        Raises
        ------
        InputError
            If the two are not nested, not of one kind and of as many rows, or have no likelihood.
        """
        self._check_nested(reduced)
        df = self.parameters - reduced.parameters
        if self.estimator.startswith("FederatedGamma"):
            assert reduced.deviance is not None
            assert self.deviance is not None
            assert self.dispersion is not None
            statistic = (reduced.deviance - self.deviance) / self.dispersion
        else:
            assert self.log_likelihood is not None
            assert reduced.log_likelihood is not None
            statistic = 2 * (self.log_likelihood - reduced.log_likelihood)
        return ratio_test(statistic, df)

    def _check_nested(self, reduced: Summary) -> None:
        if not isinstance(reduced, Summary):
            raise InputError(
                f"likelihood_ratio_test takes the summary of a smaller model; got a {type(reduced).__name__}."
            )
        mine, other = (set(zip(s.terms, s.classes, strict=True)) for s in (self, reduced))
        if self.estimator.removesuffix("CV") != reduced.estimator.removesuffix("CV"):
            raise InputError(
                f"likelihood_ratio_test compares fits of one kind; got {self.estimator} and {reduced.estimator}."
            )
        if not other < mine or not self.parameters > reduced.parameters:
            extra = ", ".join(sorted(term for term, _ in other - mine)) or "all of them"
            raise InputError(
                f"likelihood_ratio_test needs nested fits: the terms of the smaller one must be some of the larger's, and fewer; {extra} "
                "is not so. Call it on the larger fit."
            )
        if self.weight != reduced.weight:
            raise InputError(
                f"likelihood_ratio_test compares fits to the same rows; these have {self.weight:g} and {reduced.weight:g}."
            )
        if self.log_likelihood is None or reduced.log_likelihood is None:
            raise InputError("likelihood_ratio_test needs likelihoods: weights='frequency', and no class_weight.")
        if self.kind != UNPENALISED or reduced.kind != UNPENALISED:
            raise InputError(
                "likelihood_ratio_test compares fits without a penalty; a refit chose its columns by the same rows."
            )


def ratio_test(statistic: float, df: int) -> LikelihoodRatio:
    """The p-value of a likelihood ratio."""
    return LikelihoodRatio(float(statistic), int(df), float(stats.chi2.sf(max(statistic, 0.0), df)))


def make_summary(
    found: Inferred, *, estimator: str, kind: str, errors: str, weights: str, level: float, features: Sequence[str],
    compared: Sequence[str], classes: Sequence[str], ratio_name: str | None, student: bool, theta: float | None,
    notes: Sequence[str], communication: Communication,
) -> Summary:  # fmt: skip
    """The summary of what the sites' sums say."""
    outputs, k = max(len(classes), 1), len(found.places)
    j, output = divmod(found.places, outputs)
    names = [*features, INTERCEPT]
    error = np.full(k, np.nan) if found.covariance is None else np.sqrt(np.diag(found.covariance))
    df = float(found.sites - 1) if errors == "cluster" else found.df_residual if student else None
    law: Any = stats.norm() if df is None else stats.t(df)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = found.estimate / error
        p, reach = 2 * law.sf(np.abs(z)), float(law.ppf(0.5 + level / 2)) * error
        low, high = found.estimate - reach, found.estimate + reach
        ratios = None if ratio_name is None else [np.exp(each) for each in (found.estimate, low, high)]
    fit, null = found.log_likelihood, found.null_log_likelihood
    test = None if fit is None or null is None or not found.null_df else ratio_test(2 * (fit - null), found.null_df)
    theta_error = (
        None if theta is None or found.theta_error is None else theta * found.theta_error
    )  # from that of log(theta)
    said = [NAIVE] if kind == REFIT else []
    if found.rounding:
        said.append(
            f"Sites round second derivatives under their disclosure policies: a standard error is off by at most {found.rounding:.1g} of "
            "itself."
        )
    return Summary(
        estimator=estimator, kind=kind, errors=errors, weights=weights, level=level,
        terms=tuple(names[place] for place in j), compared=tuple([*compared, ""][place] for place in j),
        classes=tuple(str(classes[place]) if len(classes) else "" for place in output),
        coefficients=found.estimate, standard_errors=error, statistics=z, p_values=p, low=low, high=high,
        ratio_name=ratio_name, ratios=None if ratios is None else ratios[0], ratio_low=None if ratios is None else ratios[1],
        ratio_high=None if ratios is None else ratios[2], covariance=found.covariance, why_no_errors=found.reason,
        rounding=found.rounding, student_df=df, weight=found.weight, parameters=found.parameters, df_residual=found.df_residual,
        dispersion=found.dispersion, theta=theta, theta_error=theta_error,
        log_likelihood=fit, null_log_likelihood=null, deviance=found.deviance,
        aic=None if fit is None else 2 * found.parameters - 2 * fit,
        bic=None if fit is None else found.parameters * float(np.log(found.weight)) - 2 * fit,
        null_test=test, notes=(*said, *notes), communication=communication,
    )  # fmt: skip


# --- numbers as words ---


def _number(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.4g}"


def _short(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"


def _numbers(values: np.ndarray) -> list[str]:
    return [_number(value) for value in values]


def _ranges(low: np.ndarray, high: np.ndarray, shown: Callable[[float], str]) -> list[str]:
    return [interval(a, b, shown) for a, b in zip(low, high, strict=True)]


def _plain(value: Any) -> Any:
    """Numbers that are not there as None."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return None if isinstance(value, float) and not np.isfinite(value) else value
