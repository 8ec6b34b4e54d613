"""Standard errors and the likelihood of a fit, at the server: one message with the Hessian at the optimum.

With f the mean loss over the weight n of all rows, H its Hessian at the maximum of the likelihood on the coefficients that are free,
M the mean of the products of row gradients, and phi the dispersion:

    model       phi H^-1 / n
    HC0         H^-1 M H^-1 / n
    HC1         the same times n / (n - k), k coefficients
    cluster     H^-1 (sum_i s_i s_i^T) H^-1 / n^2, s_i the gradient of site i, times G / (G - 1) (n - 1) / (n - k) for G sites

all on scaled columns, and then as w = u / scale, b = b' - centre^T w. Under a profile H is the Schur complement of the intercepts of the
sites: the covariance is that of a model with a dummy variable for each site, of which k counts one each. theta of a negative binomial
model that was estimated is one of the parameters: the derivatives of the likelihood in log(theta) come from its values
and gradients at a few nearby theta, by Chebyshev's interpolation, which is exact to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from compfed._utils.text import join_names
from compfed.errors import InputError
from compfed.estimators.programs.fit import Fitted, PreparedProblem
from compfed.estimators.programs.likelihood import Likelihood, LikelihoodSums
from compfed.federation.queries import Evaluate, Inference
from compfed.federation.queries.inference import CLUSTERS
from compfed.federation.query import Refusal, SiteRefusal
from compfed.federation.server.program import Federation, Program, Request
from compfed.federation.server.trial import Evaluated
from compfed.federation.spec import FederatedProblem
from compfed.losses import ManyOutputs, NegativeBinomial, NegativeBinomialLikelihood, WithOffset
from compfed.losses.base import symmetric_matrix
from compfed.losses.linear import ClassWeightedLogistic, ClassWeightedSoftmax
from compfed.losses.offset import unwrapped
from compfed.regularisers.coordinate_form import coordinate_form
from compfed.solvers.auto import solve

ERRORS = ("model", "HC0", "HC1", "cluster")
SPREAD, POINTS = 0.5, 11  # of log(theta) around the estimate
AT_THE_END = 1e5  # a theta that stands for Poisson's
ROUNDED = 2.0**-19  # the largest unit of a rounded entry, as a share of sqrt(H_ii H_jj)
FLAT = 1e-13  # an eigenvalue of H below this share, its diagonal scaled to ones, is zero
COARSE = 0.05  # standard errors that rounding may change by more than this are not given


@dataclass(frozen=True, eq=False)
class Inferred:
    """Estimates and covariance on the original scale, and the likelihood there."""

    places: np.ndarray  # (k,): j K + output of a coefficient, width K + output of an intercept
    estimate: np.ndarray  # (k,)
    covariance: np.ndarray | None  # (k, k); None where there is none, with the reason
    reason: str
    weight: float  # n
    parameters: int  # coefficients and intercepts, those of the sites and theta included
    df_residual: float
    dispersion: float | None
    log_likelihood: float | None
    deviance: float | None
    null_log_likelihood: float | None
    null_df: int
    rounding: float  # a bound on the relative error of a standard error, from rounded Hessians
    theta_error: float | None
    sites: int


def infer(
    federation: Federation,
    fitted: Fitted,
    likelihood: Likelihood,
    errors: str,
    refit: bool,
    sampling: bool,
    theta: bool,
) -> Program[Inferred]:
    """Estimates, covariance and likelihood of a fit, or of its refit without a penalty.

    `sampling` weights have their squares in a robust covariance. `theta` is whether it was estimated.
    """
    prepared, spec = fitted.prepared, _with_likelihood(fitted.prepared.spec)
    check_request(prepared, errors, sampling, theta, len(federation.names))
    x, at = yield from _optimum(federation, fitted, refit)
    W, null_df = _free(prepared, fitted, refit)
    shaped = theta and unwrapped(spec.loss).theta < AT_THE_END  # pyright: ignore[reportAttributeAccessIssue]  # of a negative binomial
    reason = _no_hessian(prepared, W)
    _check_bounds(prepared, x)
    queries = _queries(spec, likelihood, errors, sampling, shaped, x, W, reason)
    sums, reason = yield from _ask(spec, queries, reason)
    return _inferred(
        prepared, likelihood, errors, sampling, x, at, W, null_df, sums, reason, shaped, theta, len(federation.names)
    )


def check_request(prepared: PreparedProblem, errors: str, sampling: bool, theta: bool, sites: int) -> None:
    """Refuse by name what has no such standard errors."""
    options, loss = prepared.options, unwrapped(prepared.spec.loss)
    if options.equal_sites:
        raise InputError(
            "summary: with site_weights='equal' a row counts by the size of its site, and the objective is no likelihood of the rows. "
            "Fit with site_weights='rows'."
        )
    if isinstance(loss, (ClassWeightedLogistic, ClassWeightedSoftmax)) and errors == "model":
        raise InputError(
            "summary: with class_weight the loss is no likelihood, and model-based standard errors do not hold. Take se='HC0' or se='HC1', "
            "or fit without class_weight."
        )
    if theta and prepared.spec.objective.profile and errors != "model":
        raise InputError(
            "summary: robust standard errors with theta='ml' and site_effects='profile' are not worked out here. Take se='model', or give "
            "theta a number."
        )
    if sampling and errors == "model":
        raise InputError(
            "summary: weights='sampling' has no model-based standard errors. Take se='HC0' or se='HC1', or weights='frequency' where a "
            "row of weight 2 stands for two rows."
        )
    check_clusters(errors, sites)


def check_clusters(errors: str, sites: int) -> None:
    """Refuse errors that are clustered by site where there are few sites."""
    if errors == "cluster" and sites < CLUSTERS:
        raise InputError(
            f"summary: se='cluster' needs at least {CLUSTERS} sites; there are {sites}. With few sites a colluding one can compute the "
            "gradients of the others from the sum, and the errors are too small. Take se='HC1'."
        )


def _with_likelihood(spec: FederatedProblem) -> FederatedProblem:
    """The problem with the loss that has all terms of the likelihood in its parameters."""
    loss: Any = spec.objective.loss
    inner = unwrapped(loss)
    if not isinstance(inner, NegativeBinomial) or isinstance(inner, NegativeBinomialLikelihood):
        return spec
    return _at_theta(spec, inner.theta)


def _at_theta(spec: FederatedProblem, theta: float) -> FederatedProblem:
    loss: Any = NegativeBinomialLikelihood(theta=float(theta), ridge=unwrapped(spec.objective.loss).ridge)
    loss = WithOffset(loss) if isinstance(spec.objective.loss, WithOffset) else loss
    return replace(spec, objective=replace(spec.objective, loss=loss))


def _optimum(federation: Federation, fitted: Fitted, refit: bool) -> Program[tuple[np.ndarray, Evaluated | None]]:
    """The maximum of the likelihood: the fit without a penalty, or a refit on the columns that the fit uses."""
    prepared, model = fitted.prepared, fitted.model
    if not refit:
        return model.penalised.x, model.penalised.at
    found = model.refit
    if found is None or isinstance(prepared.spec.loss, ManyOutputs):
        search = replace(prepared.options.search, progress=None)
        problem = prepared.restricted(_support(prepared, fitted))
        found = yield from solve(federation, problem, search, replace(prepared.null, at=None))
    if not found.converged:
        note = found.notes[-1] if found.notes else "the search did not converge"
        raise InputError(f"summary: the refit without a penalty has no finite maximum of its likelihood ({note}).")
    return found.x, found.at


def _support(prepared: PreparedProblem, fitted: Fitted) -> np.ndarray:
    """The coefficients of a refit; of several outputs, all those of a feature that one of them uses."""
    kept, outputs = prepared.support(fitted.model.penalised.x), prepared.scaling.outputs
    end = prepared.scaling.penalised
    kept[:end] = np.repeat(kept[:end].reshape(-1, outputs).any(axis=1), outputs)
    return kept


def _free(prepared: PreparedProblem, fitted: Fitted, refit: bool) -> tuple[np.ndarray, int]:
    """The positions of the free coefficients, and how many of them are not intercepts.

    Of several classes the first is the reference: its coefficients are zero, those of the others are differences.
    """
    scaling, outputs = prepared.scaling, prepared.scaling.outputs
    form = prepared.form
    free = _support(prepared, fitted) if refit else np.ones(prepared.spec.d, bool)
    free &= form.lower < form.upper
    free[scaling.penalised :] = True
    if outputs > 1:
        free &= np.arange(free.size) % outputs > 0
    return np.flatnonzero(free).astype(np.int32), int(free[: scaling.penalised].sum())


def is_penalised(prepared: PreparedProblem, alpha: float) -> bool:
    """Whether a coefficient that is free to move has a penalty."""
    form = coordinate_form(prepared.at(1.0).regulariser, prepared.spec.d)
    if form is None or not alpha:
        return bool(alpha)
    free = form.lower < form.upper
    free[prepared.scaling.penalised :] = False
    return bool((free & ~prepared.unpenalised()).any())


def _check_bounds(prepared: PreparedProblem, x: np.ndarray) -> None:
    form = prepared.form
    held = ((x == form.lower) | (x == form.upper)) & (form.lower < form.upper)
    held[prepared.scaling.penalised :] = False
    if held.any():
        features, columns = np.unique(np.flatnonzero(held) // prepared.scaling.outputs), prepared.summary.columns
        named = [f"column {j}" if columns is None else repr(columns[j]) for j in features.tolist()]
        raise InputError(
            f"summary: the coefficients of {join_names(named)} are at their bounds, where estimates are not normal. Leave out the bounds, "
            "or those columns."
        )


def _no_hessian(prepared: PreparedProblem, W: np.ndarray) -> str:
    """Why the sites would give no Hessian on these columns, as their enrolments say; "" if they give it."""
    features = np.unique(W[prepared.scaling.penalised > W] // prepared.scaling.outputs).size
    if features <= prepared.own_max:
        return ""
    return (
        f"the disclosure policies of the sites allow second derivatives on {int(prepared.own_max)} columns, and the model has "
        f"{features} (max_hessian_share)"
    )


def _queries(
    spec: FederatedProblem, likelihood: Likelihood, errors: str, sampling: bool, shaped: bool, x: np.ndarray, W: np.ndarray,
    reason: str,
) -> dict[str, Any]:  # fmt: skip
    """What the message asks for, by name."""
    objective, none = spec.objective, np.empty(0, np.int32)
    robust, coords = errors != "model", None if reason else W
    found: dict[str, Any] = {
        "at": Evaluate(objective, x[None], coords if robust or likelihood.expected is None else None)
    }
    if not robust and likelihood.expected is not None:
        loss: Any = likelihood.expected
        loss = WithOffset(loss) if isinstance(objective.loss, WithOffset) else loss
        found["expected"] = Evaluate(replace(objective, loss=loss), x[None], coords)
    if robust or likelihood.asks_labels:
        products = robust and not reason
        found["rows"] = Inference(
            objective, x, W if products else none, squared_weights=sampling, clustered=errors == "cluster" and products,
            shape=shaped and products,
        )  # fmt: skip
    if shaped:
        inner: Any = unwrapped(objective.loss)
        for k, step in enumerate(_points()):
            found[f"theta {k}"] = Evaluate(_at_theta(spec, float(inner.theta * np.exp(step))).objective, x[None])
    return found


def _points() -> np.ndarray:
    """Chebyshev's points, in units of log(theta)."""
    return SPREAD * np.cos(np.pi * (np.arange(POINTS) + 0.5) / POINTS)


def _ask(spec: FederatedProblem, queries: dict[str, Any], reason: str) -> Program[tuple[dict[str, Any], str]]:
    """One message. Where a site refuses second derivatives or products, the rest is kept, with the reason."""
    request = Request(tuple(queries.values()), weights=spec.weights, weighting=spec.weighting)
    try:
        (found,) = yield [request]
    except SiteRefusal as refusal:
        if refusal.sums is None:
            raise
        (found,) = refusal.sums
        named = dict(zip(queries, found, strict=True))
        refused = {name for name, one in named.items() if one is None or isinstance(one, Refusal)}
        plain = {name: _without_matrices(queries[name]) for name in refused}
        matrices = any(name == "expected" or _has_matrix(queries[name]) for name in refused)
        again = Request(tuple(plain.values()), weights=spec.weights, weighting=spec.weighting)
        try:
            (more,) = yield [again]
        except SiteRefusal:
            if refused != {"rows"}:
                raise
            more, plain = (), {}  # no sums of labels and residuals: the likelihood stays empty
            named.pop("rows")
        return named | dict(zip(plain, more, strict=True)), str(refusal) if matrices else reason
    return dict(zip(queries, found, strict=True)), reason


def _has_matrix(query: Any) -> bool:
    return query.coords is not None and len(query.coords) > 0


def _without_matrices(query: Any) -> Any:
    if isinstance(query, Inference):
        return replace(query, coords=np.empty(0, np.int32), clustered=False, shape=False)
    return replace(query, coords=None)


def _inferred(
    prepared: PreparedProblem, likelihood: Likelihood, errors: str, sampling: bool, x: np.ndarray, at: Evaluated | None,
    W: np.ndarray, null_df: int, sums: dict[str, Any], reason: str, shaped: bool, theta: bool, sites: int,
) -> Inferred:  # fmt: skip
    """The record of the numbers of one message."""
    n, spec = float(np.sum(prepared.summary.totals)), prepared.spec
    coefficients = len(W) + (sites if spec.objective.profile else 0)
    count = float(np.sum(prepared.summary.rows)) if sampling else n
    df = count - coefficients
    value, rows = float(sums["at"].value[0]), sums.get("rows")
    saturated, constant, squares = (0.0, 0.0, 0.0) if rows is None else (rows.saturated, rows.constant, rows.squares)
    total = LikelihoodSums(n, n * value, n * saturated, n * constant, n * squares, df)
    pseudo = sampling or isinstance(
        unwrapped(spec.loss), (ClassWeightedLogistic, ClassWeightedSoftmax)
    )  # no likelihood
    unknown = likelihood.asks_labels and rows is None
    if unknown and likelihood.has_dispersion:
        raise InputError(
            "summary: a site refuses the sum of squared residuals, which the dispersion is estimated from: few rows are most of it."
        )
    if not df > 0 and likelihood.has_dispersion:
        raise InputError(
            f"summary: {n:g} rows and {coefficients} coefficients leave nothing to estimate the dispersion from."
        )
    phi = likelihood.dispersion(total)
    estimate, T = _on_original_scale(prepared, x, W)
    covariance, rounding, theta_error = None, 0.0, None
    if not reason:
        scaled, rounding, theta_error, reason = _covariance(
            prepared, errors, phi, n, count, coefficients, W, sums, shaped, sites
        )
        covariance = None if scaled is None else T @ scaled @ T.T
    null = None
    counts = isinstance(unwrapped(spec.loss), NegativeBinomial)
    known = prepared.null.at is not None and (at is not None or not counts)
    if known and not (pseudo or unknown or likelihood.has_dispersion or theta):
        # what the likelihood has of theta alone is not in the loss of the fit
        null_value = float(prepared.null.at.value) + (value - float(at.value) if counts else 0.0)  # pyright: ignore[reportOptionalMemberAccess]
        null = likelihood.log_likelihood(total._replace(loss=n * null_value))
    return Inferred(
        W, estimate, covariance, reason, n, coefficients + int(shaped), df, phi if likelihood.has_dispersion else None,
        None if pseudo or unknown else likelihood.log_likelihood(total),
        None if pseudo or unknown else likelihood.deviance(total),
        null, null_df, rounding, theta_error, sites,
    )  # fmt: skip


def _covariance(
    prepared: PreparedProblem, errors: str, phi: float, n: float, count: float, k: int, W: np.ndarray, sums: dict[str, Any],
    shaped: bool, sites: int,
) -> tuple[np.ndarray | None, float, float | None, str]:  # fmt: skip
    """The covariance on scaled columns, a bound on the rounding of a standard error, that of log(theta), and why there is none."""
    loss, summed = prepared.spec.loss, sums["expected"] if "expected" in sums else sums["at"]
    H = loss.unpack_hessian(summed.hessian[0], W)
    if shaped:
        H = _with_theta(H, W, sums)
    size = np.sqrt(np.maximum(np.diag(H), 0.0))
    flat = "the columns of the model are linearly dependent, or nearly: drop one of them"
    if not len(H) or not np.isfinite(H).all() or not (size > 0).all():
        return None, 0.0, None, flat if len(H) else "the model has no coefficient"
    values, vectors = np.linalg.eigh(H / np.outer(size, size))
    if values[0] <= FLAT * len(values) * values[-1]:
        return None, 0.0, None, flat
    inexact = prepared.spec.policy and not ("expected" in sums or prepared.spec.loss_is_quadratic)
    robust = errors != "model" and prepared.spec.policy
    rounding = 0.5 * (
        int(inexact) * (1 + int(robust)) * ROUNDED * (len(H) + 1) / float(values[0])
    ) + 0.5 * robust * ROUNDED * (len(H) + 1)
    if rounding > COARSE:
        return (
            None,
            rounding,
            None,
            (
                "under a disclosure policy sites round their Hessians to six digits, and columns of this model are so nearly dependent "
                f"this may change a standard error by {rounding:.0%}"
            ),
        )
    inverse = (vectors / values) @ vectors.T / np.outer(size, size)
    if errors == "model":
        found = phi * inverse / n
    else:
        M = symmetric_matrix(sums["rows"].products, len(H)) / n
        factor = {"HC0": 1.0, "HC1": count / (count - k), "cluster": sites / (sites - 1) * (count - 1) / (count - k)}[
            errors
        ]
        found = factor * (inverse @ M @ inverse)
    error = float(np.sqrt(found[-1, -1])) if shaped else None
    return found[: len(W), : len(W)], rounding, error, ""


def _with_theta(H: np.ndarray, W: np.ndarray, sums: dict[str, Any]) -> np.ndarray:
    """H with a last row and column for log(theta)."""
    every = [sums[f"theta {k}"] for k in range(POINTS)]
    at, domain = _points(), [-SPREAD, SPREAD]
    gradients = np.array([one.gradient[0][W] for one in every])
    values = np.polynomial.Chebyshev.fit(at, [float(one.value[0]) for one in every], POINTS - 1, domain=domain)
    coef = chebyshev.chebfit(at / SPREAD, gradients, POINTS - 1)
    cross = np.asarray(chebyshev.chebval(0.0, chebyshev.chebder(coef))) / SPREAD
    corner = float(values.deriv(2)(0.0))
    return np.block([[H, cross[:, None]], [cross[None], np.array([[corner]])]])


def _on_original_scale(prepared: PreparedProblem, x: np.ndarray, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The estimates on W and the matrix from scaled coefficients to them; of several classes, less those of the first."""
    scaling, K = prepared.scaling, prepared.scaling.outputs
    x = x.copy()
    if K > 1:
        x = (x.reshape(-1, K) - x.reshape(-1, K)[:, :1]).ravel()
    coef, intercept = scaling.coefficients(x)
    every = np.concatenate([coef.ravel(), intercept])[W]
    j, output = divmod(W, K)
    slope = scaling.penalised > W
    T = np.diag(np.where(slope, 1.0 / scaling.scale[np.where(slope, j, 0)], 1.0))
    for row in np.flatnonzero(~slope):
        same = slope & (output == output[row])
        T[row, same] = -scaling.centre[j[same]] / scaling.scale[j[same]]
    return every, T
