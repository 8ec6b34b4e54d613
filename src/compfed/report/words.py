"""The result of a fit in plain sentences, for readers who do not know the method."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from compfed._utils.plain import Record
from compfed._utils.text import PROMISE, join_names, shorten
from compfed.report.run_result import NETWORK, ONE_PROCESS

FAMILIES = {
    "FederatedLasso": "Lasso regression",
    "FederatedElasticNet": "Elastic-net regression",
    "FederatedHuber": "Huber regression (robust to outliers)",
    "FederatedPoissonRegressor": "Poisson regression",
    "FederatedNegativeBinomialRegressor": "Negative binomial regression",
    "FederatedGammaRegressor": "Gamma regression",
    "FederatedGroupLasso": "Group lasso regression",
    "FederatedLogisticRegression": "Logistic regression",
    "FederatedCox": "Cox regression",
    "FederatedMultiTaskLasso": "Multi-task lasso regression",
    "FederatedNuclearRegressor": "Low-rank regression",
}
EXPECTED = {  # what a model with a log link predicts
    "FederatedPoissonRegressor": "the expected count",
    "FederatedNegativeBinomialRegressor": "the expected count",
    "FederatedGammaRegressor": "the expected amount",
}
ERRORS = {  # where standard errors come from
    "model": "from the model (the Hessian of the log-likelihood)",
    "HC0": "robust, HC0 (sandwich)",
    "HC1": "robust, HC1 (sandwich, times n / (n - k))",
    "cluster": "robust, clustered by site",
}
MEASURES = {  # of an evaluation, the most telling first
    "auc": "AUC", "concordance": "concordance (Harrell's C)", "r2": "R²", "deviance_explained": "deviance explained",
    "brier": "Brier score", "log_loss": "log-loss",
    "rmse": "RMSE", "mae": "mean absolute error", "mean_loss": "mean loss", "calibration_slope": "calibration slope",
    "calibration_intercept": "calibration intercept", "calibration_in_the_large": "calibration in the large",
    "sensitivity": "sensitivity", "specificity": "specificity", "ppv": "positive predictive value",
    "npv": "negative predictive value", "accuracy": "accuracy",
}  # fmt: skip
MEANINGS = {
    "auc": "the chance that a row with the event gets a higher risk than one without; ties count half",
    "concordance": "the share of pairs of rows, of one site and stratum, whose events came in the order of their risks; ties count half",
    "r2": "the share of the variance that is explained; below 0, the mean outcome predicts better",
    "brier": "the mean squared error of the predicted risks; 0 is perfect",
}
MOST_NAMES = 8
BOUNDED = 2e-3  # a value whose rounding bounds are further apart is shown with them
WIDE = 0.05  # and their middle is no estimate where they are further apart than this
REHEARSAL = "Rehearsal: all rows were in this process."
HOW = {"as given": "this model on the rows given; optimistic if it was fitted to them"}


def number(value: object, digits: int = 3) -> str:
    """A number for people: 0.301, 1,234, 3.2e-13; "-" for what is missing."""
    if value is None or isinstance(value, str):
        return "-" if value is None else value
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    x = float(value)  # pyright: ignore[reportArgumentType]  # a number
    if not np.isfinite(x):
        return "-"
    if x == int(x) and abs(x) < 1e9:
        return f"{int(x):,}"
    return f"{x:.{digits}g}" if 1e-3 <= abs(x) < 1e6 else f"{x:.{max(digits - 2, 1)}e}"


def ratio_text(ratio: float) -> str:
    """An odds, rate or hazard ratio with three digits, and with more near 1: with two of its distance from 1.

    >>> [ratio_text(ratio) for ratio in (0.14, 0.99616, 1.000312, 1.0, 2.5, 4.6187, 1234.5)]
    ['0.140', '0.9962', '1.00031', '1', '2.50', '4.62', '1,234']
    """
    away = abs(ratio - 1)
    if not 1e-3 <= ratio < 1e6 or away < 1e-10:
        return number(ratio, 9)
    decimals = [digits - 1 - int(np.floor(np.log10(value))) for digits, value in ((3, ratio), (2, away))]
    return f"{ratio:,.{max(0, *decimals)}f}"


def p_text(p: float) -> str:
    """A p-value with three digits.

    >>> p_text(0.01234), p_text(1e-9)
    ('0.0123', '< 0.001')
    """
    return "-" if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3g}"


def interval(low: float, high: float, shown: Callable[[float], str]) -> str:
    """An interval in words; "-" where there is none."""
    return "-" if np.isnan(low) else f"{shown(low)} to {shown(high)}"


def size(count: float) -> str:
    """A number of bytes for people: 300 bytes, 12.3 kB, 2.5 MB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} bytes"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: 1 site, 4 sites."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


# --- a fit ---


def fit_title(result: Record) -> str:
    """The model in a few words."""
    family = _family(result) or "Model"
    label = f" of {outcome_text(result)}" if result.get("label") else ""
    sites = len(result.get("sites", ()))
    return f"{family}{label}" + (f" over {plural(sites, 'site')}" if sites else "")


def _family(result: Record) -> str:
    """The kind of regression; that of an elastic net without one of its penalties has a name of its own."""
    name = str(result.get("estimator", "")).removesuffix("CV")
    if name == "FederatedElasticNet":
        ratio = (result.get("parameters") or {}).get("l1_ratio")
        if ratio in (0, 1):
            return "Lasso regression" if ratio else "Ridge regression"
    return FAMILIES.get(name, name)


def is_cox(result: Record) -> bool:
    """Whether the model is one of hazards, which has no intercept."""
    return str(result.get("estimator", "")).removesuffix("CV") == "FederatedCox"


def outcome_text(result: Record) -> str:
    """The outcome in a few words: died, or months (event: died)."""
    found = result.get("survival")
    if not found:
        return shorten(str(result["label"]), 60)
    entry = f"{shorten(found['entry'], 40)} to " if found.get("entry") else ""
    return f"{entry}{shorten(found['time'], 40)} (event: {shorten(found['event'], 40)})"


def has_intercept(result: Record) -> bool:
    """Whether the model has an intercept."""
    return not is_cox(result) and (result.get("parameters") or {}).get("fit_intercept") is not False


def fit_lead(result: Record) -> str:
    """One sentence about how many rows were fitted, and of which sites."""
    sites = [shorten(str(site), 40) for site in result.get("sites", ())]
    rows = rows_of(result)
    where = f"Fitted to {plural(rows, 'row')} of " if rows else "Fitted to the rows of "
    read = {ONE_PROCESS: f" {REHEARSAL}", NETWORK: " Each site read its own rows."}.get(result.get("place", ""), "")
    left_out = "".join(f" {said}" for said in rows_left_out(result.get("table") or {}))
    return f"{where}{join_names(sites, most=6)}.{left_out}{read}" if sites else ""


def rows_left_out(table: Record) -> list[str]:
    """How many rows were left out of a table, and why; that there are none; or nothing, where it is not recorded."""
    if "dropped" not in table:
        return []
    return [f"{str(note).removesuffix('.')}." for note in table["dropped"]] or ["No row was left out."]


def table_sentences(table: Record) -> list[str]:
    """What was made of the tables of a fit: features, missing values, reference levels, and what was left out."""
    sites = plural(len(table["sites"]), "site")
    columns = plural(int(table["columns"]), "column makes", "columns make")
    said = [f"{plural(int(table['rows']), 'row')} of {sites}: {columns} {plural(int(table['features']), 'feature')}."]
    said += rows_left_out(table)
    said += _missing_sentences(table)
    if references := table["references"]:
        each = [f"{shorten(str(name), 40)} = {shorten(str(level), 40)}" for name, level in references.items()]
        said.append(f"Reference levels: {join_names(each, '; ', most=12)}.")
    found = [*table["notes"], *(table.get("table_one") or {}).get("notes", ())]
    return said + [f"{str(note).removesuffix('.')}." for note in found if note not in table.get("dropped", ())]


def _missing_sentences(table: Record) -> list[str]:
    """Which values are missing, how many, and what stands for them: one sentence for all columns of numbers."""
    rows = table["rows"]
    means = [gap for gap in table["missing"] if isinstance(gap["instead"], (int, float))]
    alone = [gap for gap in table["missing"] if gap not in means or len(means) == 1]
    said = [
        f"{shorten(str(gap['column']), 60)}: {gap['missing']:,} of {rows:,} values are missing ({_share(gap['missing'] / rows)}); "
        f"{_instead(gap['instead'])}." + (" Most of this column is not known." if gap["missing"] > rows / 2 else "")
        for gap in alone
    ]
    if len(means) > 1:
        each = [
            f"{shorten(str(gap['column']), 40)} ({gap['missing']:,}, {_share(gap['missing'] / rows)}; mean {gap['instead']:.4g})"
            for gap in means
        ]
        lead = f"{len(means)} columns of numbers have missing values ({rows:,} rows); the mean of the others stands for them"
        said.append(f"{lead}: {join_names(each, most=len(each))}.")
        if most := [shorten(str(gap["column"]), 40) for gap in means if gap["missing"] > rows / 2]:
            said.append(f"Most values are not known in: {join_names(most, most=len(most))}.")
    return said


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "under 1%"


def _instead(instead: object) -> str:
    """What stands for missing values, in words."""
    if isinstance(instead, (int, float)):
        return f"{instead:.4g}, the mean of the others, stands for them"
    return "they are a level of their own" if instead == "level" else f"the level {instead!r} stands for them"


def variables(result: Record) -> list[str]:
    """Which variables the model uses, and in which direction."""
    coef, names = np.atleast_2d(np.asarray(result["coef"], float)), [str(name) for name in result["features"]]
    used = np.flatnonzero(coef.any(axis=0))
    total = plural(len(names), "variable")
    if not len(used):
        return [
            f"None of {total} is in the model.",
            "All coefficients are exactly zero: the model predicts the same for everybody.",
        ]
    scale = np.asarray(result.get("feature_scale", np.ones(len(names))), float)
    order = used[np.argsort(-np.abs(coef[:, used] * scale[used]).max(axis=0), kind="stable")]
    zero = len(names) - len(used)
    said = [f"{len(used)} of {total} {'is' if len(used) == 1 else 'are'} in the model."]
    if zero:
        said[0] = said[0][:-1] + f"; the other {zero} have a coefficient of exactly zero."
    if len(coef) == 1:
        what = _what_rises(result)
        for words, sign in ((f"Larger values raise {what}", 1), (f"Larger values lower {what}", -1)):
            some = [f"{shorten(names[j], 60)}{_strength(result, int(j))}" for j in order if sign * coef[0, j] > 0]
            if some:
                said.append(f"{words}: {join_names(some, most=MOST_NAMES)}.")
    else:
        said.append(f"The largest effects: {join_names([shorten(names[j], 60) for j in order], most=MOST_NAMES)}.")
    return said


def _strength(result: Record, j: int) -> str:
    """How strong a variable is, where exp(coefficient) has a name: (odds ratio 1.05 per unit)."""
    ratios = result.get("ratios")
    if not ratios or np.shape(ratios["values"])[0] != 1:
        return ""
    ratio = float(np.asarray(ratios["values"], float)[0][j])
    compared = (result.get("comparisons") or ["per unit"] * (j + 1))[j]
    return f" ({ratios['name']} {ratio_text(ratio)} {compared})"


def _what_rises(result: Record) -> str:
    if (event := event_text(result)) is not None:
        return f"the odds of {event}"
    if is_cox(result):
        event = (result.get("survival") or {}).get("event")
        return f"the hazard of the event ({shorten(event, 40)})" if event else "the hazard of the event"
    classes = result.get("classes")
    if classes:
        return f"the odds of class {shorten(str(classes[-1]), 40)!r}"
    name = str(result.get("estimator", "")).removesuffix("CV")
    return EXPECTED.get(name, "the prediction")


def event_text(result: Record) -> str | None:
    """The event of a model of two classes: died = yes."""
    event = result.get("event")
    if event is None:
        return None
    event = int(event) if isinstance(event, float) and event.is_integer() else event
    label = result.get("label")
    return f"{shorten(str(label), 40)} = {shorten(str(event), 40)}" if label else f"class {shorten(str(event), 40)!r}"


def goodness(result: Record) -> list[str]:
    """How well the model predicts: from its evaluation, otherwise from cross-validation. Empty without both."""
    said, evaluation = [], result.get("evaluation") or {}
    for key, value, low, high in measures(evaluation)[:3]:
        name = MEASURES[key]
        bounded = low is not None and high is not None and high - low > BOUNDED
        shown = f"{value:.3f}, with rounding bounds {low:.3f} to {high:.3f}" if bounded else number(value)
        if low is not None and high is not None and high - low > WIDE:
            shown = f"between {low:.3f} and {high:.3f}"
        said.append(f"{name[0].upper()}{name[1:]}: {shown}.")
        if key in MEANINGS:
            said.append(f"This is {MEANINGS[key]}.")
        if bounded:
            why = {True: ": counts are known to blocks of rows", False: ": some scores were not told apart", None: ""}
            said.append(
                f"These are rounding bounds, which contain it for certain{why[evaluation.get('rounded_counts')]}."
            )
        if key == "auc":
            said.append(f"95 % confidence interval (DeLong): {confidence(evaluation)}.")
    if how := _scored_how(evaluation):
        said.append(f"Scored: {how}.")
    cv = result.get("cv")
    if cv:
        alphas, losses = np.asarray(cv["alphas"], float), np.asarray(cv["losses"], float)
        mean, at = losses.mean(axis=1), int(np.argmin(np.abs(alphas - float(result["alpha"]))))
        error = f" ± {number(losses[at].std(ddof=1) / np.sqrt(losses.shape[1]))}" if losses.shape[1] > 1 else ""
        splits = f"over {plural(losses.shape[1], 'split')}"
        rows = ("left out one at a time", "approximately") if cv.get("leave_one_out") else ("held out", splits)
        said.append(
            f"Mean loss on rows {rows[0]}: {number(mean[at])}{error} {rows[1]}, at alpha = {number(result['alpha'])}."
        )
        null = _null_loss(result, mean)
        if null is not None and null > 0:
            change = 1 - mean[at] / null
            said.append(
                f"That is {abs(change):.0%} {'lower' if change >= 0 else 'higher'} than without any variable ({number(null)})."
            )
    return said


def _scored_how(evaluation: Record) -> str:
    """Which model scored which rows; of survival data the model itself, where nothing else is said."""
    how = str(evaluation.get("how") or ("as given" if evaluation.get("kind") == "survival" else ""))
    return HOW.get(how, how)


def _null_loss(result: Record, mean: np.ndarray) -> float | None:
    """The held-out loss at the largest alpha, where no variable is in the model."""
    path = result.get("path")
    if not path:
        return None
    first = int(np.argmax(np.asarray(path["alphas"], float)))
    return None if np.asarray(path["coefs"])[first].any() else float(mean[first])


def auc_text(value: float | None, low: float | None, high: float | None) -> str:
    """An AUC to three digits; the middle of wide bounds is no estimate, and is not shown."""
    wide = low is not None and high is not None and high - low > WIDE
    return "see its bounds" if wide else "-" if value is None else f"{value:.3f}"


def confidence(evaluation: Record | None) -> str:
    """The confidence interval of the AUC."""
    auc = (evaluation or {}).get("auc") or {}
    low, high = auc.get("confidence_low"), auc.get("confidence_high")
    return "not computed" if low is None or high is None else f"{low:.3f} to {high:.3f}"


def share_interval(evaluation: Record | None, key: str) -> str:
    """The confidence interval of a share of rows, such as the sensitivity."""
    found = ((evaluation or {}).get("confidence") or {}).get(key)
    return "-" if not found else f"{found[0]:.3f} to {found[1]:.3f}"


def measures(evaluation: Record | None) -> list[tuple[str, float, float | None, float | None]]:
    """(key of `MEASURES`, value, low, high) of every measure that an evaluation has; low and high are its rounding bounds."""
    given, found = evaluation or {}, []
    for key in MEASURES:
        value = given.get(key)
        low, high = given.get("intervals", {}).get(key, (None, None))
        if key == "auc" and value is not None:
            value, low, high = value["value"], value["rounding_low"], value["rounding_high"]
        if value is not None and np.isfinite(value):
            found.append((key, float(value), low, high))
    return found


def certainty(result: Record) -> tuple[list[str], bool] | None:
    """What the certificate says, and whether it holds; None without one."""
    certificate = result.get("certificate")
    if not certificate:
        return None
    tol, relative = number(certificate.get("tol"), 2), number(certificate.get("relative"), 3)
    checked = f"The gradient mapping, which is zero at the minimum, is {relative} of its scale; {tol} was asked for."
    if not certificate.get("holds"):
        said = ["Not certified: the search did not reach the minimum.", checked]
        if not certificate.get("minimiser_exists", True):
            said = ["There is no best model: the coefficients grow for ever.", "Give a larger alpha."]
        return said, False
    if certificate.get("claim") != "minimum":
        return [
            "Certified to be stationary.",
            "The loss is not known to be convex: another model may be better.",
            checked,
        ], True
    said, others = {
        True: (
            ["Certified: the same coefficients that pooling the rows would give, zeros included."],
            "No other model reaches the minimum.",
        ),
        False: (
            ["Certified: a minimum of the objective over the pooled rows."],
            "Other coefficients reach it too: some columns are the same, or add up to others.",
        ),
    }.get(
        certificate.get("unique"),
        (
            ["Certified: the minimum of the objective over the pooled rows."],
            "Whether other coefficients reach it is not known.",
        ),
    )
    gap = certificate.get("duality_gap")
    within = f"The objective is at most {number(gap, 3)} above its minimum. " if gap is not None else ""
    said.append(f"{within}{others}")
    said.append("This is about the computation; whether the variables are causes is not for the computer to say.")
    return said, True


def traffic(result: Record) -> tuple[str, list[str]] | None:
    """A heading, and what left the sites in a few sentences; of a rehearsal, what a network would have carried."""
    cost = result.get("communication")
    if not cost:
        return None
    messages = (
        f"{plural(int(cost['rounds']), 'message')} to each of {plural(len(result.get('sites', ())) or 1, 'site')}"
    )
    updates = any(query["query"] == "LocalUpdate" for query in cost["queries"])
    sums = f"counts, means, losses and their derivatives{', and models after local steps' if updates else ''}"
    scored = scoring(result)
    if result.get("place") == NETWORK:
        sent = f"{messages}; each site sent {size(cost['bytes_up'])} on average."
        said = result.get("provenance") or {}
        counted = [f"Released: {said['released']}."] if said.get("released") else []
        planned = [said[key] for key in ("left_out", "plan") if said.get(key)]
        return "What left the sites?", [
            sent,
            *counted,
            *planned,
            *scored,
            f"What left a site are sums over its rows: {sums}.",
            PROMISE,
        ]
    said = [REHEARSAL] if result.get("place") == ONE_PROCESS else []
    sent = f"A network would have carried {messages}, and {carried(result, cost)} from each of them on average."
    return "What would leave the sites?", [*said, sent, *scored, f"What leaves a site are sums over its rows: {sums}."]


def scoring(result: Record) -> list[str]:
    """What the evaluation took beside the fit, in a sentence; none without an evaluation."""
    cost = (result.get("evaluation") or {}).get("communication")
    if not cost:
        return []
    took = "took" if result.get("place") == NETWORK else "would take"
    count = plural(int(cost["rounds"]), "message")
    return [f"The evaluation {took} {count} more, and {carried(result, cost)} from each site."]


def carried(result: Record, cost: Record) -> str:
    """The bytes that a network carries from a site; an estimate, where sums were in double precision."""
    # a number of 64 bits has 128 in an exact sum, and every query has a few words more
    return size(cost["bytes_up"]) if result.get("exact_sums") else f"about {size(2 * cost['bytes_up'])} or more"


# --- a paragraph for a paper ---

PENALTIES = {
    "FederatedLasso": "a lasso (l1) penalty",
    "FederatedElasticNet": "an elastic-net penalty",
    "FederatedGroupLasso": "a group-lasso penalty",
    "FederatedMultiTaskLasso": "a penalty that takes a variable into all outcomes or none",
    "FederatedNuclearRegressor": "a nuclear-norm (low-rank) penalty",
}
PROPER = ("Cox", "Gamma", "Huber", "Poisson")  # names that are not written small
PER_THRESHOLD = ("sensitivity", "specificity", "ppv", "npv", "accuracy")


def measure_name(key: str, evaluation: Record) -> str:
    """The name of a measure; of those that depend on a threshold with it."""
    threshold = evaluation.get("threshold")
    of = key in PER_THRESHOLD and threshold is not None
    return f"{MEASURES[key]} at a predicted risk of {number(threshold)}" if of else MEASURES[key]


def methods_paragraph(result: Record) -> str:
    """What was done, for the methods section of a paper: only what the record of this run says."""
    table = result.get("table") or {}
    said = [_fitted_sentence(result), *_hazard_sentences(result), *rows_left_out(table), *_table_methods(table)]
    said += [_penalty_sentence(result), _alpha_sentence(result), *_further_sentences(result)]
    said += [_minimum_sentence(result), _scored_sentence(result)]
    said.append(_where_sentence(result))
    return " ".join(sentence for sentence in said if sentence)


def _fitted_sentence(result: Record) -> str:
    family = (_family(result) or "model").split(" (")[0]
    article = "An" if family[:1] in "AEIOU" else "A"
    family = family if family.startswith(PROPER) else family[:1].lower() + family[1:]
    event = event_text(result)
    of = f" of {outcome_text(result)}" if result.get("label") else ""
    of += f" (event: {event})" if event is not None else ""
    sites = [shorten(str(site), 40) for site in result.get("sites", ())]
    rows, where = rows_of(result), f" of {plural(len(sites), 'site')} ({join_names(sites, most=20)})" if sites else ""
    data = f" was fitted to {plural(rows, 'row')}{where}" if rows else f" was fitted{where and ' to the rows' + where}"
    version = result.get("versions", {}).get("compfed")
    return f"{article} {family}{of}{data}{f' with compfed {version}' if version else ''}."


def _hazard_sentences(result: Record) -> list[str]:
    """What a Cox model assumed of the baseline hazard, and what stood for the order of tied events."""
    if not is_cox(result):
        return []
    given, columns = result.get("parameters") or {}, result.get("survival") or {}
    stratum = columns.get("stratum")
    within = f" and every stratum ({shorten(stratum, 40)}) within it" if stratum else ""
    said = {
        "site": f"The model was stratified by site: every site{within} had a baseline hazard of its own.",
        "common": f"One baseline hazard was common to all sites{', in every stratum' if stratum else ''}, on an agreed grid of times.",
    }.get(given.get("baseline", ""))
    ties = {"efron": "Efron's", "breslow": "Breslow's"}.get(given.get("ties", ""))
    entry = columns.get("entry")
    return [
        *([said] if said else []),
        *([f"Events at the same time were handled by {ties} method."] if ties else []),
        *([f"Rows were at risk from {shorten(entry, 40)} on (left truncation)."] if entry else []),
    ]


def rows_of(result: Record) -> int | None:
    """How many rows a fit had."""
    samples = result.get("provenance", {}).get("problem", {}).get("samples", {})
    rows = samples.get("total") if isinstance(samples, Mapping) else None
    return int(rows) if rows else None


def _table_methods(table: Record) -> list[str]:
    said = []
    if references := table.get("references"):
        each = [f"{shorten(str(name), 40)}: {shorten(str(level), 40)}" for name, level in references.items()]
        said.append(
            f"Columns of words became indicators of their levels against a reference ({join_names(each, most=20)})."
        )
    means = [gap for gap in table.get("missing", ()) if isinstance(gap["instead"], (int, float))]
    others = [gap for gap in table.get("missing", ()) if not isinstance(gap["instead"], (int, float))]
    if means:
        each = [f"{shorten(str(gap['column']), 40)}, {gap['missing']:,} of {table['rows']:,}" for gap in means]
        said.append(
            f"Missing numbers were replaced by the mean of the values known ({join_names(each, '; ', most=20)})."
        )
    said += [
        f"Missing values of {shorten(str(g['column']), 40)} ({g['missing']:,}): {_instead(g['instead'])}."
        for g in others
    ]
    return said


def _penalty_sentence(result: Record) -> str:
    given, name = result.get("parameters") or {}, str(result.get("estimator", "")).removesuffix("CV")
    if result.get("alpha") is None:
        return ""
    if result["alpha"] == 0:
        return "The coefficients were not penalised."
    ratio = given.get("l1_ratio")
    penalty = PENALTIES.get(name)
    if penalty is None and ratio is not None:
        penalty = {0.0: "a ridge (l2) penalty", 1.0: "a lasso (l1) penalty"}.get(float(ratio), "an elastic-net penalty")
    penalty = penalty or "a penalty"
    share = f" with an l1 share of {number(ratio)}" if penalty == "an elastic-net penalty" and ratio is not None else ""
    scale = {True: ", on columns scaled to a standard deviation of 1", False: ", on columns as they are (not scaled)"}
    intercept = "; the intercept had none" if has_intercept(result) else "; there was no intercept"
    intercept = "" if is_cox(result) else intercept
    return f"The coefficients had {penalty}{share}{scale.get(given.get('standardize', ''), '')}{intercept}."


def _alpha_sentence(result: Record) -> str:
    cv = result.get("cv")
    if result.get("alpha") in (None, 0):
        return ""
    if not cv:
        return f"The weight of the penalty, alpha, was {number(result['alpha'])}."
    losses = np.asarray(cv["losses"])
    way = (
        "approximate leave-one-out"
        if cv.get("leave_one_out")
        else f"cross-validation over {plural(losses.shape[1], 'split')}"
    )
    rule = {
        "best": "the one with the least held-out loss",
        "one_standard_error": "the largest one within one standard error of the least held-out loss",
    }.get(cv.get("rule", ""), "one of them")
    chosen = f"Its weight alpha was chosen among {losses.shape[0]} values{grid_text(result)} by {way}"
    return f"{chosen}: {rule}, alpha = {number(result['alpha'])}."


def grid_text(result: Record) -> str:
    """Where the values of alpha are more than were asked for: that the grid was extended; otherwise nothing."""
    given, tried = result.get("parameters") or {}, len(result["cv"]["alphas"])
    asked = given.get("n_alphas")
    if given.get("alphas") is not None or not isinstance(asked, int) or tried <= asked:
        return ""
    return f" ({asked} at first, then {tried - asked} smaller ones, because the loss on rows held out still fell at the last)"


def _further_sentences(result: Record) -> list[str]:
    given, said = result.get("parameters") or {}, []
    if (weight := given.get("class_weight")) is not None:
        balanced = "Rows were weighted so that every class counts the same."
        said.append(balanced if weight == "balanced" else "Rows were weighted by their class.")
    if given.get("bounds") is not None:
        said.append("Coefficients were kept within bounds.")
    if given.get("penalty_factors") is not None:
        said.append("The penalty of single columns was multiplied by factors.")
    if given.get("site_effects"):
        said.append("Every site had an intercept of its own, which was not penalised.")
    if given.get("relax"):
        said.append("The variables chosen were fitted again with less or no penalty (relaxed fit).")
    if result.get("theta") is not None:
        how = " (estimated)" if given.get("theta") == "ml" else ""
        said.append(f"The size theta of the negative binomial distribution was {number(result['theta'])}{how}.")
    return said


def _minimum_sentence(result: Record) -> str:
    certificate = result.get("certificate") or {}
    if not certificate.get("holds"):
        return ""
    gap = certificate.get("duality_gap")
    return (
        ""
        if gap is None
        else f"The objective was minimised to within {number(gap, 2)}, by a duality gap over all rows."
    )


def _scored_sentence(result: Record) -> str:
    evaluation = result.get("evaluation")
    if not evaluation:
        return ""
    how = _scored_how(evaluation)
    said = f"Predictions were scored as follows: {how}." if how else ""
    if evaluation.get("concordance") is not None:
        said += f" Harrell's concordance, {evaluation['concordance']:.3f}, is over pairs of rows of one site"
        said += " and stratum." if (result.get("survival") or {}).get("stratum") else "."
        said = said.strip()
    if evaluation.get("threshold") is not None and evaluation.get("sensitivity") is not None:
        said += f" Sensitivity, specificity and predictive values are at a predicted risk of {number(evaluation['threshold'])}."
    return said


def _where_sentence(result: Record) -> str:
    if result.get("place") == NETWORK:
        return "Each site read its own rows; sums over them were sent to the server."
    return "All rows were read by one process." if result.get("place") == ONE_PROCESS else ""


# --- bytes ---


def size_explained(result: Record) -> list[str]:
    """Why a site sends as much as it does: the numbers of its sums, against those of its table."""
    cost, rows, sites = result["communication"], rows_of(result), len(result.get("sites", ()))
    bytes_of_number = 16 if result.get("exact_sums") else 8
    numbers = cost["bytes_up"] / bytes_of_number
    largest = max(cost["queries"], key=lambda query: query["bytes_up"], default=None)
    if largest is None or not numbers:
        return []
    bits = "exact sums take 128 bits a number" if result.get("exact_sums") else "64 bits a number"
    said = [
        f"That is about {number(round(numbers))} numbers ({bits}), most of them for {largest['query']} at "
        f"{plural(int(largest['models']), 'model')}."
    ]
    if result.get("cv"):
        said[0] += " Every value of alpha and every split needs models of its own."
    if rows and sites:
        table = rows / sites * (len(result["features"]) + 1)
        said.append(f"The table of an average site has {number(round(table))} numbers.")
        if numbers > table:
            said.append(
                "More numbers than the table has can tell rows: what leaves a site, in the documentation, says when."
            )
    return said
