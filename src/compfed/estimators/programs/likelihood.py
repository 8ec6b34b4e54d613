"""The likelihoods of the estimators: log-likelihood, deviance and dispersion from sums over the rows.

A family names its likelihood (`Family.likelihood`), or says why it has none. What a summary needs of one is here and nowhere else: how
the dispersion is estimated, what the log-likelihood is, and whether tests are Student's or normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.special import gammaln

from compfed.losses import Loss, Squared


class LikelihoodSums(NamedTuple):
    """Sums over the rows of all sites at the optimum."""

    weight: float  # n: the number of rows, or their weight
    loss: float  # sum of the losses
    saturated: float  # sum of the least losses of the labels
    constant: float  # sum of `Loss.of_label`
    squares: float  # sum of the squared derivatives of the losses in the predictions
    df_residual: float  # n less the number of coefficients


@dataclass(frozen=True)
class Likelihood:
    """loss = -log P(y) but for a function of the label: the log-likelihood is -(loss + constant), the dispersion is 1.

    A likelihood whose value and Hessian say everything, such as that of least squares or a partial likelihood, asks for no sums of labels:
    `asks_labels` is False. A partial likelihood has no deviance either.
    """

    asks_labels: ClassVar[bool] = True
    has_dispersion: ClassVar[bool] = False
    is_sum_over_rows: ClassVar[bool] = True  # which robust errors need
    student: ClassVar[bool] = False  # tests by Student's t, rather than the normal distribution
    expected: ClassVar[Loss | None] = (
        None  # whose Hessian is the expected information, where model-based errors take that
    )

    def dispersion(self, sums: LikelihoodSums) -> float:
        return 1.0

    def log_likelihood(self, sums: LikelihoodSums) -> float:
        return -(sums.loss + sums.constant)

    def deviance(self, sums: LikelihoodSums) -> float | None:
        return 2.0 * (sums.loss - sums.saturated)


@dataclass(frozen=True)
class PartialLikelihood(Likelihood):
    """Cox's: its value and Hessian are all there is. No deviance, as no model fits every row; no sums of residuals of rows."""

    asks_labels = False
    is_sum_over_rows = False

    def log_likelihood(self, sums: LikelihoodSums) -> float:
        return -sums.loss

    def deviance(self, sums: LikelihoodSums) -> float | None:
        return None


@dataclass(frozen=True)
class Normal(Likelihood):
    """Least squares: the variance is RSS / (n - k), and RSS / n in the log-likelihood."""

    asks_labels = False
    has_dispersion = True
    student = True

    def dispersion(self, sums: LikelihoodSums) -> float:
        return 2.0 * sums.loss / sums.df_residual

    def log_likelihood(self, sums: LikelihoodSums) -> float:
        return -0.5 * sums.weight * (np.log(2 * np.pi * 2 * sums.loss / sums.weight) + 1.0)


@dataclass(frozen=True)
class GammaLikelihood(Likelihood):
    """Gamma with a log link: the dispersion is Pearson's X^2 / (n - k), the variance of y / mean.

    Model-based standard errors are from the expected information A^T A, which is that of `Squared`.
    """

    has_dispersion = True
    expected = Squared()

    def dispersion(self, sums: LikelihoodSums) -> float:
        return sums.squares / sums.df_residual

    def log_likelihood(self, sums: LikelihoodSums) -> float:
        nu = 1.0 / self.dispersion(sums)
        of_nu = nu * np.log(nu) - float(gammaln(nu))
        return float(sums.weight * of_nu - nu * sums.loss + (nu - 1.0) * sums.constant)
