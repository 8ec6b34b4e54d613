"""`model.summary()` against statsmodels on the pooled rows, and what it refuses."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

import compfed as cf
from compfed.errors import InputError
from compfed.federation import Rows, Site

N, SITES = 420, 12


def table(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, 3)) * [1.0, 20.0, 0.1] + [0.0, 5.0, 3.0]
    eta = X @ [0.5, -0.03, 2.0] - 6.0
    return X, eta, np.arange(N) % SITES


X, ETA, SITE = table()
SITE4 = SITE % 4
DESIGN = np.column_stack([X, np.ones(N)])  # the intercept last
RNG = np.random.default_rng(1)
OFFSET = RNG.uniform(-0.5, 0.5, N)
LOG_GAMMA = sm.families.Gamma(sm.families.links.Log())
LABELS: dict[str, np.ndarray] = {
    "linear": ETA + RNG.standard_normal(N),
    "logistic": (RNG.uniform(size=N) < 1 / (1 + np.exp(-ETA - OFFSET))).astype(float),
    "poisson": RNG.poisson(np.exp(ETA + OFFSET)).astype(float),
    "gamma": RNG.gamma(2.0, np.exp(ETA + OFFSET) / 2),
    "negative binomial": RNG.poisson(RNG.gamma(1.5, np.exp(ETA + 1 + OFFSET) / 1.5)).astype(float),
    "several classes": (np.argmax(RNG.gumbel(size=(N, 3)) + np.outer(ETA, [0.0, 0.7, -0.4]), axis=1)).astype(float),
}
MODELS: dict[str, Any] = {
    "linear": cf.FederatedLasso(alpha=0),
    "logistic": cf.FederatedLogisticRegression(alpha=0),
    "poisson": cf.FederatedPoissonRegressor(alpha=0),
    "gamma": cf.FederatedGammaRegressor(alpha=0),
    "negative binomial": cf.FederatedNegativeBinomialRegressor(alpha=0, theta="ml"),
    "several classes": cf.FederatedLogisticRegression(alpha=0),
}
WITH_OFFSET = ("logistic", "poisson", "gamma", "negative binomial")
COV: dict[str, dict[str, Any]] = {
    "model": {}, "HC0": {"cov_type": "HC0"}, "HC1": {"cov_type": "HC1"},
    "cluster": {"cov_type": "cluster", "cov_kwds": {"groups": SITE}},
}  # fmt: skip


def pooled(family: str, se: str, design: np.ndarray = DESIGN, rows: Any = slice(None)) -> Any:
    """The same fit by statsmodels."""
    y, A, o, cov = LABELS[family][rows], design[rows], OFFSET[rows], COV[se]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match family:
            case "linear":
                return sm.OLS(y, A).fit(**cov, use_t=True)
            case "several classes":
                return sm.MNLogit(y, A).fit(disp=0, method="newton", tol=1e-14, **cov)
            case "negative binomial":
                model: Any = sm.NegativeBinomial(y, A, offset=o)
                start = model.fit(disp=0, maxiter=300, gtol=1e-10, method="bfgs").params
                return model.fit(start_params=start, disp=0, method="newton", tol=1e-14, **cov)
        family_of = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson(), "gamma": LOG_GAMMA}[family]
        return sm.GLM(y, A, family=family_of, offset=o).fit(tol=1e-14, maxiter=200, **cov)


def fitted(family: str, A: np.ndarray = X, rows: Any = slice(None), model: Any = None, **given: Any) -> Any:
    if family in WITH_OFFSET:
        given |= {"offset": OFFSET[rows]}
    model = copy.deepcopy(MODELS[family]) if model is None else model
    return model.fit(A[rows], LABELS[family][rows], sites=SITE[rows], **given)


def close(mine: Any, theirs: Any, tol: float = 1e-8) -> None:
    np.testing.assert_allclose(np.ravel(mine), np.ravel(theirs), rtol=tol, atol=tol * 1e-3)


@pytest.mark.parametrize("family", LABELS)
def test_a_summary_is_that_of_statsmodels(family):
    """Oracle: statsmodels on the pooled rows: errors, tests, intervals and likelihood, model-based, robust and clustered."""
    model = fitted(family)
    for se in COV:
        found, expected = model.summary(se=se), pooled(family, se)
        params, errors, p_values = (np.asarray(getattr(expected, name)) for name in ("params", "bse", "pvalues"))
        if se == "HC1" and family != "linear":  # statsmodels leaves its factor out there
            errors = errors * np.sqrt(N / (N - len(found.terms)))
        if family == "several classes" and se == "cluster":
            continue
        if family == "negative binomial":
            if se == "cluster":  # where statsmodels counts theta, too
                errors = errors * np.sqrt((N - 5) / (N - 4))
            close(found.theta, 1 / params[-1], 1e-6)
            params, errors, p_values = params[:-1], errors[:-1], p_values[:-1]
        close(found.coefficients, params, 1e-7)
        if not (family == "linear" and se == "cluster"):
            close(found.standard_errors, errors)
        if se in ("model", "HC0"):
            close(found.p_values, p_values, 1e-5)
        if family not in ("negative binomial", "several classes") and se == "model":
            low, high = expected.conf_int().T
            close(found.low, low, 1e-7)
            close(found.high, high, 1e-7)
    expected = pooled(family, "model")
    found = model.summary()
    close(found.log_likelihood, expected.llf)
    close(found.aic, expected.aic)
    close(found.bic, expected.bic_llf if hasattr(expected, "bic_llf") else expected.bic)
    if family in ("logistic", "poisson", "gamma"):
        close(found.deviance, expected.deviance)
    if family in ("logistic", "poisson"):
        close(found.null_log_likelihood, expected.llnull)
        close(found.null_test.statistic, 2 * (expected.llf - expected.llnull))


def test_clustered_errors_of_least_squares():
    """Oracle: statsmodels, which takes Student's t with one degree of freedom less than there are sites."""
    found = fitted("linear").summary(se="cluster")
    expected = sm.OLS(LABELS["linear"], DESIGN).fit(**COV["cluster"], use_t=True)
    close(found.standard_errors, expected.bse)
    close(found.p_values, expected.pvalues, 1e-6)
    assert found.student_df == SITES - 1


def test_theta_of_a_given_size_is_no_parameter():
    """Oracle: the observed information of the model with theta given, summed over the rows by hand."""
    found = fitted("negative binomial", model=cf.FederatedNegativeBinomialRegressor(alpha=0, theta=2.0)).summary()
    mean = np.exp(DESIGN @ found.coefficients + OFFSET)
    y = LABELS["negative binomial"]
    H = DESIGN.T @ (DESIGN * ((y + 2) * 2 * mean / (2 + mean) ** 2)[:, None])
    close(found.standard_errors, np.sqrt(np.diag(np.linalg.inv(H))))
    assert found.parameters == 4
    assert found.theta == 2.0
    assert found.theta_error is None
    close(found.log_likelihood, stats.nbinom.logpmf(y, 2.0, 2 / (2 + mean)).sum())


@pytest.mark.parametrize("family", ["linear", "logistic", "gamma", "several classes"])
@pytest.mark.parametrize("se", ["model", "HC0", "HC1"])
def test_frequency_weights_are_repeated_rows(family, se):
    """Identity: a row of weight 2 is two rows, and a row of weight 0 is none."""
    weights = np.arange(N) % 3
    rows = np.repeat(np.arange(N), weights)
    one = fitted(family, sample_weight=weights.astype(float)).summary(se=se)
    other = fitted(family, rows=rows).summary(se=se)
    close(one.standard_errors, other.standard_errors)
    close(
        [one.log_likelihood, one.aic, one.bic, one.deviance],
        [other.log_likelihood, other.aic, other.bic, other.deviance],
    )


@pytest.mark.parametrize("se", ["HC0", "HC1"])
def test_sampling_weights_have_squares_in_the_sandwich(se):
    """Oracle: weighted least squares of statsmodels, whose errors do not depend on the unit of the weights."""
    weights = np.random.default_rng(2).uniform(0.2, 5.0, N)
    expected: Any = sm.WLS(LABELS["linear"], DESIGN, weights=cast(Any, weights)).fit(**COV[se])
    for unit in (1.0, 7.0):
        found = fitted("linear", sample_weight=unit * weights).summary(se=se, weights="sampling")
        close(found.standard_errors, expected.bse)
        assert found.log_likelihood is None
    with pytest.raises(InputError, match="weights='sampling' has no model-based"):
        fitted("linear", sample_weight=weights).summary(weights="sampling")


@pytest.mark.parametrize("family", ["linear", "logistic", "gamma"])
@pytest.mark.parametrize("se", ["model", "HC0", "HC1"])
def test_site_effects_are_dummy_variables(family, se):
    """Identity: the profile over the intercepts of the sites is the fit with a column for each site, by statsmodels."""
    dummies = (SITE[:, None] % 4 == np.arange(4)).astype(float)
    expected = pooled(family, se, np.column_stack([X, dummies]))
    given = {"offset": OFFSET} if family in WITH_OFFSET else {}
    model = MODELS[family].__class__(alpha=0, site_effects="profile").fit(X, LABELS[family], sites=SITE % 4, **given)
    found = model.summary(se=se)
    assert found.terms == ("column 0", "column 1", "column 2")
    factor = np.sqrt(N / (N - 7)) if se == "HC1" and family != "linear" else 1.0  # as above
    close(found.standard_errors, factor * np.asarray(expected.bse)[:3])
    close([found.log_likelihood, found.aic], [expected.llf, expected.aic])


@pytest.mark.parametrize("change", [{"standardize": True}, {"fit_intercept": False}, {"penalty_factors": {0: np.inf}}])
def test_the_scaling_of_the_fit_does_not_matter(change):
    """Oracle: statsmodels with the same columns."""
    columns = [3, *range(3)]
    columns = (
        columns[1:]
        if "fit_intercept" in change
        else columns[0:1] + columns[2:]
        if "penalty_factors" in change
        else columns
    )
    expected = sm.GLM(LABELS["poisson"], DESIGN[:, columns], family=sm.families.Poisson(), offset=OFFSET).fit(tol=1e-14)
    found = fitted("poisson", model=cf.FederatedPoissonRegressor(alpha=0, **change)).summary()
    order = columns if "fit_intercept" in change else [*columns[1:], 3]
    close(found.standard_errors, [expected.bse[columns.index(j)] for j in order])
    close(found.log_likelihood, expected.llf)


def test_class_weights_are_robust_only():
    """Oracle: the sandwich of the weighted score equations, by hand."""
    model = fitted("logistic", model=cf.FederatedLogisticRegression(alpha=0, class_weight={1.0: 3.0}))
    with pytest.raises(InputError, match="with class_weight the loss is no likelihood"):
        model.summary()
    found, y = model.summary(se="HC0"), LABELS["logistic"]
    p = 1 / (1 + np.exp(-(DESIGN @ found.coefficients + OFFSET)))
    w = np.where(y > 0, 3.0, 1.0)
    bread = np.linalg.inv(DESIGN.T @ (DESIGN * (w * p * (1 - p))[:, None]))
    meat = DESIGN.T @ (DESIGN * (w * (y - p))[:, None] ** 2)
    close(found.standard_errors, np.sqrt(np.diag(bread @ meat @ bread)))
    assert found.log_likelihood is None
    assert found.aic is None


def test_likelihood_ratio_tests():
    """Oracle: statsmodels' compare_lr_test, and the difference of log-likelihoods with theta estimated in both."""
    full, small = (fitted("linear", A).summary() for A in (X, X[:, :2]))
    expected = pooled("linear", "model").compare_lr_test(sm.OLS(LABELS["linear"], DESIGN[:, [0, 1, 3]]).fit())
    close(full.likelihood_ratio_test(small), [expected[0], expected[2], expected[1]], 1e-6)
    full, small = (fitted("negative binomial", A).summary() for A in (X, X[:, :1]))
    statistic = 2 * (
        pooled("negative binomial", "model").llf - pooled("negative binomial", "model", DESIGN[:, [0, 3]]).llf
    )
    found = full.likelihood_ratio_test(small)
    close(found, [statistic, 2, stats.chi2.sf(statistic, 2)], 1e-6)
    full, small = (fitted("gamma", A).summary() for A in (X, X[:, :2]))
    expected, less = pooled("gamma", "model"), pooled("gamma", "model", DESIGN[:, [0, 1, 3]])
    close(full.likelihood_ratio_test(small).statistic, (less.deviance - expected.deviance) / expected.scale)
    for wrong, match in ((full, "needs nested fits"), (fitted("linear").summary(), "fits of one kind")):
        with pytest.raises(InputError, match=match):
            small.likelihood_ratio_test(wrong)
    with pytest.raises(InputError, match="the same rows"):
        full.likelihood_ratio_test(fitted("gamma", X[:, :2], slice(0, N - SITES)).summary())


# --- penalised fits ---


def test_a_refit_is_labelled_as_naive():
    """Oracle: statsmodels on the columns that the lasso kept."""
    model = fitted("logistic", model=cf.FederatedLogisticRegression(alpha=0.15))
    with pytest.raises(InputError, match=r"this fit is penalised \(alpha=0.15\)"):
        model.summary()
    found, used = model.summary(refit=True), np.flatnonzero(model.coef_[0])
    assert 0 < len(used) < 3
    assert "Naive after selection" in str(found)
    assert found.kind.startswith("refit")
    expected = sm.GLM(LABELS["logistic"], DESIGN[:, [*used, 3]], family=sm.families.Binomial(), offset=OFFSET).fit(
        tol=1e-14
    )
    close(found.coefficients, expected.params, 1e-7)
    close(found.standard_errors, expected.bse)
    relaxed = fitted("logistic", model=cf.FederatedLogisticRegression(alpha=0.15, relax=True)).summary()
    close(relaxed.standard_errors, expected.bse)
    assert "Naive after selection" in str(relaxed)
    smaller = fitted("logistic", X[:, :1])
    with pytest.raises(InputError, match="without a penalty"):
        found.likelihood_ratio_test(replace(smaller.summary(), terms=("(intercept)",), classes=("",), parameters=1))


def test_a_refit_of_several_classes_has_whole_features():
    """Oracle: MNLogit on the features that a class uses."""
    model = fitted("several classes", model=cf.FederatedLogisticRegression(alpha=0.05))
    used = np.flatnonzero(model.coef_.any(axis=0))
    assert 0 < len(used) < 3
    found = model.summary(refit=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = sm.MNLogit(LABELS["several classes"], DESIGN[:, [*used, 3]]).fit(disp=0, method="newton", tol=1e-14)
    close(found.standard_errors, expected.bse)
    assert found.ratio_name == "relative risk ratio"
    assert found.classes[:2] == ("1.0", "2.0")


# --- under a policy, and over exact sums ---


@pytest.mark.parametrize("family", ["linear", "logistic", "gamma", "negative binomial"])
@pytest.mark.parametrize("se", ["model", "HC1"])
def test_under_the_default_policy_errors_have_six_digits(family, se):
    """Identity: the summary without a policy, to the bound that the summary states; exact where the Hessian is not rounded."""
    offset = OFFSET if family in WITH_OFFSET else None
    sites = []
    for i in range(4):
        here = np.flatnonzero(i == SITE4)
        rows = Rows(
            X[here], LABELS[family][here], name=f"site {i}", index=i, offset=None if offset is None else offset[here]
        )
        sites.append(Site(rows, policy=cf.federation.DisclosurePolicy()))
    walled = copy.deepcopy(MODELS[family]).fit_federation(cf.federation.InProcess(sites, exact=True))
    one, other = fitted(family).summary(se=se), walled.summary(se=se)
    exact = se == "model" and family in ("linear", "gamma")
    assert (other.rounding == 0) == exact
    if not exact:
        assert other.rounding < 1e-3
        assert "at most" in str(other)
        assert not np.array_equal(other.standard_errors, one.standard_errors)
    assert np.abs(other.standard_errors / one.standard_errors - 1).max() <= max(other.rounding, 1e-9)
    close(other.log_likelihood, one.log_likelihood)


def walled(**rules: Any) -> Any:
    A, y = ([values[i == SITE4] for i in range(4)] for values in (X, LABELS["logistic"]))
    return cf.federation.InProcess(cf.data.from_arrays(A, y), policy=cf.federation.DisclosurePolicy(**rules))


@pytest.mark.parametrize(
    ("rules", "se", "why"),
    [
        ({"max_hessian_share": 0.02}, "model", "second derivatives on 2 columns, and the model has 3"),
    ],
)
def test_a_refusal_leaves_the_errors_empty(rules, se, why):
    """The likelihood and the coefficients are there, and the reason."""
    found = cf.FederatedLogisticRegression(alpha=0).fit_federation(walled(**rules)).summary(se=se)
    assert why in found.why_no_errors
    assert np.isnan(found.standard_errors).all()
    assert found.covariance is None
    assert "No standard errors" in str(found)
    expected = cf.FederatedLogisticRegression(alpha=0).fit(X, LABELS["logistic"], sites=SITE).summary()
    close([found.log_likelihood, found.aic], [expected.log_likelihood, expected.aic])
    close(found.coefficients, expected.coefficients, 1e-6)


def test_residuals_of_a_few_rows_leave_the_likelihood_empty_and_the_errors_as_they_are():
    """Six counts of 60 have most of the squared residuals: no sum of those leaves a site, and the Hessian does."""
    y = LABELS["poisson"].copy()
    y[np.concatenate([np.flatnonzero(i == SITE4)[:6] for i in range(4)])] = 60.0
    A, labels = ([values[i == SITE4] for i in range(4)] for values in (X, y))
    federation = cf.federation.InProcess(cf.data.from_arrays(A, labels), policy=cf.federation.DisclosurePolicy())
    model = cf.FederatedPoissonRegressor(alpha=0).fit_federation(federation)
    found, robust = model.summary(), model.summary(se="HC0")
    expected = sm.GLM(y, DESIGN, family=sm.families.Poisson()).fit(tol=1e-14)
    assert np.abs(found.standard_errors / expected.bse - 1).max() <= found.rounding
    assert found.why_no_errors == ""
    assert (found.log_likelihood, found.deviance, found.aic, found.null_test) == (None,) * 4
    assert "squared residuals of a few rows" in robust.why_no_errors
    assert np.isnan(robust.standard_errors).all()


# --- refusals ---


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (cf.FederatedHuber(alpha=0), "FederatedHuber has no summary"),
        (cf.FederatedMultiTaskLasso(alpha=0.1), "several outcomes"),
        (cf.FederatedNuclearRegressor(alpha=0.1), "several outcomes"),
        (cf.FederatedLasso(alpha=0, site_weights="equal"), "site_weights='equal'"),
        (cf.FederatedLasso(alpha=0, bounds=(0, None)), "at their bounds"),
    ],
)
def test_what_has_no_standard_errors_says_why(model, match):
    y = LABELS["linear"]
    y = np.column_stack([y, y]) if "outcomes" in match else y
    with pytest.raises(InputError, match=match):
        model.fit(X, y, sites=SITE).summary()


def test_refusals_name_the_way_out():
    y = LABELS["linear"]
    model = cf.FederatedLasso(alpha=0).fit(X, y, sites=SITE % 9)
    with pytest.raises(InputError, match="needs at least 10 sites; there are 9"):
        model.summary(se="cluster")
    with pytest.raises(InputError, match="se='HC3' must be"):
        model.summary(se="HC3")
    with pytest.raises(InputError, match="level must be"):
        model.summary(level=95)
    for lost in (copy.deepcopy(model),):
        with pytest.raises(InputError, match="Fit it again and call summary first"):
            lost.summary()
    twice = np.column_stack([X, X[:, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        double = cf.FederatedLasso(alpha=0).fit(twice, y, sites=SITE)
    with pytest.raises(InputError, match="are not determined"):
        double.summary()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        separated = cf.FederatedLogisticRegression(alpha=0).fit(X, (X[:, 0] > 0).astype(float), sites=SITE)
    with pytest.raises(InputError, match="no maximum of the likelihood"):
        separated.summary()


# --- as text and files ---


def test_text_frame_and_csv_have_the_numbers():
    found = fitted("logistic").summary()
    text = str(found)
    assert "odds ratio" in text
    assert "95% interval" in text
    frame = found.to_frame()
    assert frame.loc["column 1", "standard error"] == found.standard_errors[1]
    assert frame.loc["column 1", "odds ratio 95% high"] == np.exp(found.high[1])
    lines = found.to_csv().splitlines()
    assert len(lines) == 5
    assert float(lines[2].split(",")[2]) == found.standard_errors[1]
    figure = found.plot()
    assert figure.axes[0].get_xlabel() == "odds ratio with 95% confidence interval"
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["column 0", "column 1", "column 2"]
