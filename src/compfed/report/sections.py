"""The contents of a page, by the kind of the result: sentences first, then figures and tables, then provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from compfed._utils.plain import JsonObject, Record
from compfed._utils.text import join_names, short, shorten
from compfed.report import html, words
from compfed.report.coefficient_figures import (
    ZERO_NOTE,
    coefficient_plot,
    coefficients_of,
    comparison_figure,
    cv_plot,
    path_marks,
    path_plot,
)  # fmt: skip
from compfed.report.draw import svg_of
from compfed.report.evaluation_figure import calibration_by_site, calibration_plot, roc_by_site, roc_plot
from compfed.report.figures import FLOOR
from compfed.report.forest_figure import INTERCEPT, draw_forest, forest_rows
from compfed.report.plots import Part, Plot, Series, thinned
from compfed.report.run_result import NETWORK
from compfed.report.style import AXES, GREY

X_AXES = (
    ("round", "rounds"),
    ("bytes", "bytes per site"),
    ("seconds", "seconds"),
    ("gradients", "gradients per client"),
)
Y_AXES = ("optimality", "relative_gradient_mapping", "gradient_mapping")
MOST_LINES = 60  # of a path that a reader can point at
MOST_NAMES = 120  # variables with a zero that are named
MOST_TABLE_ROWS = 200
BEYOND = "beyond the paper"  # where a claim of ours stands
MOST_CURVES = 8  # sites with a line of their own


@dataclass(frozen=True)
class Page:
    """A title, one sentence below it, the parts in their order, and the last line."""

    title: str
    lead: str
    parts: list[Part] = field(default_factory=list)
    footer: str = ""


def contents(record: Record, folder: Path | None) -> Page:
    """The contents of a page."""
    makers = {
        "fit": fit_page,
        "methods": methods_page,
        "sites": sites_page,
        "paper": paper_page,
        "leaderboard": leaderboard_page,
    }
    page = makers[record["kind"]](record, folder)
    version = record.get("versions", {}).get("compfed", "")
    when = record.get("created")
    said = f"Made by compfed {version}".rstrip() + (f", {when}" if when else "")
    return replace(page, footer=f"{said}. This page is one file: it loads nothing and works offline.")


# --- a fit ---


def fit_page(record: Record, folder: Path | None) -> Page:
    """The result of a fit."""
    cards = [html.card("Which variables?", words.variables(record))]
    if good := words.goodness(record):
        cards.append(html.card("How good?", good))
    if (sure := words.certainty(record)) is not None:
        cards.append(html.card("How sure?", sure[0], "good" if sure[1] else "bad"))
    if (moved := words.traffic(record)) is not None:
        cards.append(html.card(*moved))
    parts: list[Part] = [f'<div class="cards">{"".join(cards)}</div>', _table_section(record.get("table") or {})]
    parts += [
        *_coefficient_parts(record),
        *_summary_parts(record),
        *_evaluation_parts(record),
        *_path_parts(record),
        *_fit_convergence(record),
    ]
    parts += [_traffic_section(record), _methods_section(record), _provenance(record)]
    return Page(words.fit_title(record), words.fit_lead(record), parts)


def _model(record: Record) -> Any:
    """The record with the attribute names of a fitted estimator, which the figures read."""
    coef = np.atleast_2d(np.asarray(record["coef"], float))
    scale = record.get("feature_scale")
    classes = record.get("classes")
    found: JsonObject = {"coef_": coef, "feature_names_in_": list(map(str, record["features"]))}
    if scale is not None:
        found["feature_scale_"] = np.asarray(scale, float)
    if classes is not None and len(classes) == len(coef):
        found["classes_"] = classes
    if path := record.get("path"):
        found |= {"alphas_": np.asarray(path["alphas"], float), "coef_path_": np.asarray(path["coefs"], float)}
    if cv := record.get("cv"):
        within = cv.get("one_standard_error")
        found |= {"alphas_": np.asarray(cv["alphas"], float), "cv_loss_": np.asarray(cv["losses"], float)}
        found |= {
            "alpha_": record["alpha"],
            "alpha_best_": cv["best"],
            "alpha_one_standard_error_": np.nan if within is None else within,
        }
    return SimpleNamespace(**found)


def _table_section(table: Record) -> str:
    """For whom: what was made of the tables, and Table 1 where the rows were in this process."""
    if not table:
        return ""
    found = table.get("table_one")
    one = "" if not found else _table_one(found)
    return html.section("The table", html.paragraphs(words.table_sentences(table)), one)


def _table_one(found: Record) -> str:
    """Table 1: overall and by site, with the names of columns once."""
    header, rows = found["header"], found["rows"]
    shown = [header[0], *header[2:]]
    body, before = [], None
    for column, statistic, *cells in rows[:MOST_TABLE_ROWS]:
        first = ", ".join(filter(None, (column, statistic.strip())))
        body.append([first if column != before else f"· {statistic.strip()}", *cells])
        before = column
    lead = "Table 1: the columns as they are in the files, before anything stands for a missing value."
    lead += " SMD: the largest standardised difference between two sites; above 0.1 it is commonly called an imbalance."
    return html.paragraph(lead, "note") + html.table(shown, body, "numbers labels")


def _methods_section(record: Record) -> str:
    """A paragraph to paste into a paper."""
    lead = html.paragraph(
        "A paragraph to paste into a paper. It says only what this run recorded; edit the rest.", "note"
    )
    return html.section("Methods", lead, html.paragraph(words.methods_paragraph(record), "paste"))


def _coefficient_parts(record: Record) -> list[Part]:
    model = _model(record)
    found = coefficients_of(model)
    caption = (
        f"Coefficients, the largest first ({ZERO_NOTE}). Per standard deviation they can be compared with each other."
    )
    ratios, coef = _ratios(record), np.atleast_2d(np.asarray(record["coef"], float))
    hover = {"coefficient": np.vectorize(_coefficient_text, [object])(coef.T)}
    if ratios is not None:
        hover[ratios[0]] = np.array(ratios[1], object)[:, None]
    return [
        html.heading("Coefficients"),
        coefficient_plot(found, caption, hover),
        _coefficient_table(record),
    ]


def _coefficient_table(record: Record) -> str:
    """Coefficients that are not zero, and the names of those that are."""
    coef = np.atleast_2d(np.asarray(record["coef"], float))
    names = [str(name) for name in record["features"]]
    used = np.flatnonzero(coef.any(axis=0))
    scale = np.asarray(record.get("feature_scale", np.ones(len(names))), float)
    order = used[np.argsort(-np.abs(coef[:, used] * scale[used]).max(axis=0), kind="stable")]
    classes = record.get("classes") if len(coef) > 1 else None
    heads = [str(c) for c in classes] if classes is not None else ["coefficient"] * len(coef)
    has_scale, ratios, rows = record.get("feature_scale") is not None and len(coef) == 1, _ratios(record), []
    compared = record.get("comparisons") or ["per unit"] * len(names)
    says = any(each != "per unit" for each in compared)  # otherwise the heading does
    for j in order[:MOST_TABLE_ROWS]:
        row = [names[j], *[compared[j]] * says, *(_coefficient_text(value) for value in coef[:, j])]
        row += [] if ratios is None else [ratios[1][j]]
        rows.append([*row, words.number(coef[0, j] * scale[j], 3)] if has_scale else row)
    heads += [] if ratios is None else [ratios[0]]
    heads += ["coefficient per standard deviation"] if has_scale else []
    if words.has_intercept(record):
        intercept = np.ravel(np.asarray(record.get("intercept", []), float))
        rows.append(
            ["(intercept)", *[""] * says, *map(_coefficient_text, intercept), *[""] * (len(heads) - len(intercept))]
        )
    text = html.table([*(["variable", "compared"] if says else ["variable, per unit"]), *heads], rows, "numbers")
    if (event := words.event_text(record)) is not None:
        text = html.paragraph(f"The event is {event}: the coefficients add up to its log-odds.", "note") + text
    if words.is_cox(record):
        lead = (
            "The coefficients add up to the log of the hazard, relative to the baseline hazard; there is no intercept."
        )
        text = html.paragraph(lead, "note") + text
    if len(order) > MOST_TABLE_ROWS:
        text += html.paragraph(f"{len(order) - MOST_TABLE_ROWS} smaller ones are in result.json.", "note")
    zero = [name for j, name in enumerate(names) if j not in set(used.tolist())]
    if zero:
        text += html.paragraph(f"Exactly zero: {join_names(zero, most=MOST_NAMES)}.", "note")
    return text


def _coefficient_text(value: float) -> str:
    return words.number(value, 4) if value else "0"


def _ratios(record: Record) -> tuple[str, list[str]] | None:
    """The name of exp(coefficient), and its value for every feature, as the table and the figure show it."""
    found = record.get("ratios")
    if not found or np.shape(found["values"])[0] != 1:
        return None
    return found["name"], [words.ratio_text(value) for value in np.asarray(found["values"], float)[0]]


def _summary_parts(record: Record) -> list[Part]:
    """Standard errors, tests and intervals, with a forest plot."""
    found = record.get("summary")
    if not found:
        return []
    title = "Standard errors and intervals"
    notes = [html.paragraph(note, "note") for note in found.get("notes", ())]
    said = [
        f"{found['kind'][0].upper()}{found['kind'][1:]}; standard errors: {words.ERRORS.get(found['errors'], found['errors'])}."
    ]
    if found.get("why_no_errors"):
        said = [f"No standard errors: {found['why_no_errors'].removesuffix('.')}."]
    level, ratio = f"{found['level']:.0%} interval", found.get("ratio_name")
    says = any(each not in ("per unit", "") for each in found["compared"])  # otherwise the heading does
    named = ["terms"] + ["classes"] * any(found["classes"]) + ["compared"] * says
    heads = ["variable" if says else "variable, per unit", *["class"] * any(found["classes"]), *["compared"] * says]
    heads += ["coefficient", "standard error"]
    heads += [found["statistic_name"], "p", level, *([ratio, level] if ratio else [])]
    columns = {
        name: _floats(found[name])
        for name in ("coefficients", "standard_errors", "statistics", "p_values", "low", "high")
    }
    ratios = [_floats(found[name]) for name in ("ratios", "ratio_low", "ratio_high")] if ratio else []
    rows = []
    for k in range(len(found["terms"])):
        b, error, z, p, low, high = (values[k] for values in columns.values())
        row = [
            *(found[name][k] for name in named),
            _coefficient_text(b),
            words.number(error, 4),
            words.number(round(z, 2), 4),
        ]
        row += [words.p_text(p), words.interval(low, high, words.number)]
        if ratio and found["terms"][k] == INTERCEPT:
            row += ["", ""]
        elif ratio:
            value, least, most = (each[k] for each in ratios)
            row += [words.ratio_text(value), words.interval(least, most, words.ratio_text)]
        rows.append(row)
    parts: list[Part] = [html.section(title, html.paragraphs(said), html.table(heads, rows, "numbers"), *notes)]
    facts = {"log-likelihood": "log_likelihood", "AIC": "aic", "BIC": "bic"}
    facts |= {name: name for name in ("deviance", "theta", "dispersion")}
    shown = [f"{name} {found[key]:.8g}" for name, key in facts.items() if found.get(key) is not None]
    if test := found.get("null_test"):
        p = words.p_text(test["p_value"])
        shown.append(
            f"likelihood-ratio test against no features: chi-squared {test['statistic']:.4g}, df {test['df']}, p {p}"
        )
    parts.append(html.paragraph(f"{'; '.join(shown)}.", "note") if shown else "")
    if forest_rows(found)[0] and (static := svg_of(lambda: draw_forest(found), "forest")):
        parts.append(
            html.static_figure(
                static, f"Forest plot: {ratio or 'coefficients'} with {found['level']:.0%} confidence intervals."
            )
        )
    return parts


def _path_parts(record: Record) -> list[Part]:
    if not record.get("cv") and not record.get("path"):
        return []
    model, parts = _model(record), list[Part]()
    parts.append(html.section("How the strength of the penalty was chosen", html.paragraph(_choice_words(record))))
    if record.get("cv") and np.count_nonzero(model.alphas_ > 0) > 1:
        parts.append(cv_plot(model))
    if record.get("path") and np.count_nonzero(model.alphas_ > 0) > 1:
        parts.append(_path_plot(record, model))
    return parts


def _choice_words(record: Record) -> str:
    cv = record.get("cv")
    if not cv:
        return "The coefficients at many strengths of the penalty (alpha)."
    losses = np.asarray(cv["losses"])
    rule = {
        "best": "the alpha with the least loss on rows held out",
        "one_standard_error": "the largest alpha whose loss is within one standard error of the least",
    }.get(cv.get("rule", ""), "an alpha")
    way = f"Cross-validation over {words.plural(losses.shape[1], 'split')}"
    way = "Approximate leave-one-out" if cv.get("leave_one_out") else way
    text = f"{way} tried {losses.shape[0]} values of alpha{words.grid_text(record)} and took {rule}: {words.number(record['alpha'])}."
    alphas = np.asarray(cv["alphas"], float)
    at = float(record["alpha"])
    if at in (alphas.min(), alphas.max()):
        text += " This is the end of the grid: give more alphas, or standardise the columns."
    return text


def _path_plot(record: Record, model: Any) -> Plot:
    """The coefficients per standard deviation, where that is known, against alpha."""
    W, width = np.asarray(model.coef_path_, float), len(record["features"])
    W = W.reshape(len(W), -1)
    scale = np.resize(getattr(model, "feature_scale_", np.ones(width)), W.shape[1])
    outputs = W.shape[1] // width
    kinds = getattr(model, "classes_", range(outputs))
    names = [n if outputs == 1 else f"{c}: {n}" for c in kinds for n in model.feature_names_in_]
    label = "coefficient per standard deviation" if hasattr(model, "feature_scale_") else "coefficient"
    marks = path_marks(model) if record.get("cv") else ()
    return path_plot(model.alphas_, W * scale, names, marks, label, MOST_LINES)


def _fit_convergence(record: Record) -> list[Part]:
    """How the fit converged; a single row needs no figure."""
    trace = {name: _floats(values) for name, values in record.get("trace", {}).items()}
    certificate = record.get("certificate") or {}
    if len(trace.get("round", ())) < 2:
        return []
    if "gradient_mapping" in trace and certificate.get("scale"):
        trace["relative_gradient_mapping"] = trace["gradient_mapping"] / certificate["scale"]
    name = str(record.get("provenance", {}).get("algorithm", {}).get("name", "fit"))
    of = " of the model with the chosen alpha" if record.get("cv") else ""
    caption = (
        f"How the search{of} came to the minimum: the gradient mapping is zero there. The dashed line is the tolerance."
    )
    plot = convergence_plot("convergence", {name: trace}, caption, certificate.get("tol"))
    return [html.heading("Convergence"), plot] if plot else []


# --- convergence of any run ---


def convergence_plot(
    key: str,
    runs: Mapping[str, Record],
    caption: str,
    tol: float | None = None,
    styles: Mapping[str, int] | None = None,
    measure: str | None = None,
) -> Plot | None:
    """Runs by name as curves; the horizontal axis is one of the costs that all runs have. None where there is no measure."""
    prepared = {name: _with_bytes(columns) for name, columns in runs.items()}
    every = list(prepared.values())
    y = next((c for c in ([measure] if measure else Y_AXES) if all(c in columns for columns in every)), None)
    choices = [(c, label) for c, label in X_AXES if all(c in columns for columns in every)]
    if y is None or not choices:
        return None
    series, ends, log, label = [], dict[str, list[float]](), measure is None or measure in Y_AXES, AXES.get(y, y)
    for k, (name, columns) in enumerate(prepared.items()):
        some = thinned(len(columns["round"]))
        values = np.maximum(np.asarray(columns[y], float)[some], FLOOR if log else -np.inf)
        data = {c: np.asarray(columns[c], float)[some] for c, _ in choices} | {"y": values}
        style = (styles or {}).get(name, k)
        series.append(Series(name, data, "dots" if len(some) < 40 else "line", style, legend=name))
        for c, _ in choices:
            ends.setdefault(c, []).append(float(np.nanmax(data[c])))
    if tol is not None and y == "relative_gradient_mapping":
        data = {c: [float(np.nanmin(series[0].columns[c])), max(ends[c])] for c, _ in choices}
        series.append(Series("tolerance", data | {"y": [tol, tol]}, "ruler", colour=GREY))
    tips = [
        (label, "@" + c + ("{0,0} bytes" if c == "bytes" else "{0.000}" if c == "seconds" else "{0,0}"))
        for c, label in choices
    ]
    return Plot(
        key, series, choices, label, caption, y_log=log, choose_log=True, size=(7.0, 3.6 if len(series) < 12 else 5.2),
        tooltips=[*tips, (label.split("  ")[0], "@y{%.3g}")], height=400,
    )  # fmt: skip


def _with_bytes(columns: Record) -> JsonObject:
    found = {name: _floats(values) for name, values in columns.items()}
    if "bytes" not in found and "bytes_up" in found:
        found["bytes"] = found["bytes_up"] + found.get("bytes_down", 0)
    return found


# --- evaluation ---


def _evaluation_parts(record: Record) -> list[Part]:
    evaluation = record.get("evaluation")
    if not evaluation:
        return []
    columns = {"all sites": evaluation, **(evaluation.get("per_site") or {})}
    found = {name: {key: rest for key, *rest in words.measures(each)} for name, each in columns.items()}
    keys = [key for key in words.MEASURES if any(key in each for each in found.values())]
    weighted = evaluation.get("rows") != evaluation.get("weight")
    heads = {"rows": "rows", "weight": "weight of the rows", "events": "weight of the events" if weighted else "events"}
    rows = [
        [head, *(words.number(each.get(name)) for each in columns.values())]
        for name, head in heads.items()
        if (name != "weight" or weighted) and any(each.get(name) is not None for each in columns.values())
    ]
    for key in keys:
        if key != "auc":
            each = [found[name].get(key) for name in columns]
            rows.append([words.measure_name(key, evaluation), *map(_measure, each)])
            if any(one is not None and _is_wide(one[1], one[2]) for one in each):
                rows.append(
                    [
                        f"rounding bounds of the {words.measure_name(key, evaluation)}",
                        *("-" if one is None else _bounds(*one) for one in each),
                    ]
                )
            if key in (evaluation.get("confidence") or {}):
                head = f"95 % confidence interval of the {words.measure_name(key, evaluation)} (Wilson)"
                rows.append([head, *(words.share_interval(one, key) for one in columns.values())])
            continue
        each = [found[name].get(key) for name in columns]
        rows.append(["AUC (ties count half)", *("-" if one is None else words.auc_text(*one) for one in each)])
        rows.append(["rounding bounds of the AUC", *("-" if one is None else _bounds(*one) for one in each)])
        rows.append(["95 % confidence interval of the AUC (DeLong)", *map(words.confidence, columns.values())])
    if any(each.get("pairs") for each in columns.values()):
        counts = [each.get("pairs") for each in columns.values()]
        rows.append(["pairs of rows compared", *(words.number(c and sum(c.values())) for c in counts)])
    note = ""
    if any(" to " in cell for row in rows for cell in row[1:] if row[0].startswith("rounding")):
        why = {
            True: ": counts are known to blocks of rows only",
            False: ": some scores were not told apart",
        }.get(evaluation.get("rounded_counts"), "")
        note = html.paragraph(
            f"Rounding bounds contain the value of these rows for certain{why}; the value is their middle.", "note"
        )
    if any(row[0].startswith("95 %") and " to " in "".join(row[1:]) for row in rows):
        note += html.paragraph(
            "Confidence intervals are about other rows like these; the rows are taken as independent.", "note"
        )
    parts: list[Part] = [html.section("Evaluation", html.table(["", *columns], rows, "numbers labels"), note)]
    parts += [plots for plots in (_curves(evaluation), _curves_by_site(evaluation)) if plots]
    return parts


def _curves(evaluation: Record) -> tuple[Plot, ...]:
    """ROC and calibration curve of all sites together."""
    plots = []
    if roc := evaluation.get("roc"):
        auc = "-"
        for key, value, low, high in words.measures(evaluation):
            if key == "auc" and low is not None and high is not None:
                bounds = _bounds(value, low, high)
                auc = f"between {low:.3f} and {high:.3f}" if " to " in bounds else f"{value:.3f}"
        plots.append(roc_plot(roc, f"ROC curve over all sites; AUC {auc}."))
    if curve := evaluation.get("calibration"):
        text = "Calibration over all sites: on the dashed line risks are right."
        if evaluation.get("rounded_counts"):
            text += " The band contains the share of events for certain: counts are known to blocks of rows."
        plots.append(calibration_plot(curve, text))
    return tuple(plots)


def _curves_by_site(evaluation: Record) -> tuple[Plot, ...]:
    """ROC and calibration curves of every site, where sites may be asked alone."""
    sites = dict(list((evaluation.get("per_site") or {}).items())[:MOST_CURVES])
    rounded = evaluation.get("rounded_counts")
    middle = " Counts are known to blocks of rows: each line is the middle of its rounding bounds." if rounded else ""
    rest = len(evaluation.get("per_site") or {}) - len(sites)
    more = f" {words.plural(rest, 'more site is', 'more sites are')} not drawn." if rest > 0 else ""
    made = (
        roc_by_site(sites, f"ROC curve of each site.{middle}{more}"),
        calibration_by_site(sites, f"Calibration of each site.{middle}{more}"),
    )
    return tuple(plot for plot in made if plot is not None)


def _is_wide(low: float | None, high: float | None) -> bool:
    """Whether rounding bounds are so far apart that they are said."""
    return low is not None and high is not None and high - low > words.BOUNDED


def _bounds(value: Any, low: Any, high: Any) -> str:
    if high - low > words.BOUNDED:
        return f"{low:.3f} to {high:.3f}"
    return f"within {high - low:.4f}" if high - low > 5e-5 else "exact"


def _measure(found: Sequence[Any] | None) -> str:
    if found is None:
        return "-"
    value = found[0]
    return f"{value:.3f}" if abs(value) < 100 else words.number(value)


# --- what left the sites, provenance ---


def _traffic_section(record: Record) -> str:
    cost = record.get("communication")
    if not cost:
        return ""
    rows = [
        [
            q["query"],
            str(q.get("leaves") or "").capitalize(),
            words.number(q["models"]),
            words.size(q["bytes_up"]),
            words.size(q["bytes_down"]),
        ]
        for q in cost["queries"]
    ]
    total = [
        "all",
        f"{words.plural(int(cost['rounds']), 'message')} to each site",
        "",
        words.size(cost["bytes_up"]),
        words.size(cost["bytes_down"]),
    ]
    counted = "the message bodies" if record.get("place") == NETWORK else "the numbers"
    lead = (
        "Each row is a kind of query, and what a site adds to the sum that answers it. Bytes are those of "
        f"{counted}, per site on average."
    )
    lead += " ".join(["", *words.size_explained(record), *words.scoring(record)])
    if record.get("place") == NETWORK:
        title, header = "What left each site", ["sent by a site", "sent to a site"]
        lead += " Before the first query a site enrolled: it named its rows, columns and classes, and its rules."
    else:
        title, header = "What would leave each site", ["from a site", "to a site"]
        if not record.get("exact_sums"):
            lead += " Sums were in double precision; the exact sums of a network take about twice as many bytes from a site, or more."
    lead += " Over a network the disclosure policy of a site may refuse a query, and sums are masked where site.toml says so (secure_sum)."
    header = ["query", "what leaves the site", "models", *header]
    return html.section(title, html.paragraph(lead), html.table(header, [*rows, total], "wide"))


def _provenance(record: Record) -> str:
    provenance, run = record.get("provenance", {}), record.get("run") or {}
    problems = list(map(str, provenance.get("problems", ())))
    algorithm = provenance.get("algorithm")
    algorithm = algorithm.get("name") if isinstance(algorithm, Mapping) else algorithm or record.get("algorithm")
    facts = {
        "estimator": record.get("estimator"),
        "method": algorithm,
        "alpha": None if record.get("alpha") is None else f"{record['alpha']:.6g}",
        "theta": None if record.get("theta") is None else f"{record['theta']:.6g}",
        "sites": join_names([shorten(str(s), 40) for s in record.get("sites", ())], most=40) or None,
        "seed of the folds": record.get("parameters", {}).get("seed"),
        "command": run.get("command"),
        "device": provenance.get("device"),
        "versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items()) or None,
        "commit of compfed": run.get("commit"),
        "date": record.get("created"),
        "problems on the way": len(problems) or None,
    }
    table = html.table(["", ""], [[name, value] for name, value in facts.items() if value is not None], "wide facts")
    parameters = record.get("parameters", {})
    rows = [[name, short(value) if value is not None else "-"] for name, value in parameters.items()]
    schema = html.details("Schema of the table", record["schema"]) if record.get("schema") else ""
    trouble = html.details("Problems on the way", "\n".join(problems)) if problems else ""
    choice = html.paragraph(f"Why this method: {provenance['choice']}", "note") if provenance.get("choice") else ""
    settings = html.table(["parameter", "value"], rows) if rows else ""
    files = [[each["name"], words.size(each["bytes"]), each["sha256"]] for each in run.get("files", ())]
    read = html.table(["file read", "size", "SHA-256"], files, "wide files") if files else ""
    return html.section("Provenance", table, read, trouble, choice, settings, schema)


# --- comparisons ---


def methods_page(record: Record, folder: Path | None) -> Page:
    """Methods compared on one problem, or on several."""
    parts: list[Part] = [f'<div class="cards">{"".join(_method_cards(record))}</div>']
    for number, (group, runs) in enumerate(record["runs"].items()):
        caption = f"{_ranked_by(record).capitalize()}, against the cost. The buttons hide and show methods."
        plot = convergence_plot(
            f"convergence-{number}", runs, caption, measure=record.get("criterion", {}).get("column")
        )
        parts.append(html.heading(f"Convergence: {group}" if group else "Convergence"))
        if plot:
            parts.append(plot)
        parts.append(_cost_tables(record["results"][group], _ranked_by(record)))
    problems = html.details("The problem, in full", json.dumps(record.get("problem", {}), indent=1))
    facts = [
        ["date", record.get("created", "-")],
        ["versions", ", ".join(f"{k} {v}" for k, v in record.get("versions", {}).items())],
    ]
    parts.append(html.section("Provenance", html.table(["", ""], facts, "wide"), problems))
    return Page(record.get("title", "Methods compared"), record.get("lead", ""), parts)


def _method_cards(record: Record) -> list[str]:
    """For every problem: how many methods reach the last accuracy, and which needs the fewest rounds and bytes."""
    cards = []
    for group, results in record["results"].items():
        level = list(next(iter(results.values()))["to_accuracy"])[-1]
        reached = {
            name: r["to_accuracy"][level]
            for name, r in results.items()
            if r["to_accuracy"][level].get("rounds") is not None
        }
        said = [f"{len(reached)} of {words.plural(len(results), 'method')} reach {level} ({_ranked_by(record)})."]
        if reached:
            first = min(reached, key=lambda name: reached[name]["rounds"])
            said.append(f"Fewest rounds: {first}, {words.plural(int(reached[first]['rounds']), 'round')}.")
            if all(r.get("bytes") is not None for r in reached.values()):
                least = min(reached, key=lambda name: reached[name]["bytes"])
                said.append(f"Fewest bytes: {least}, {words.size(reached[least]['bytes'])} per site.")
        else:
            nearest = _order(record, results)[0]
            said.append(f"Nearest: {nearest}, {_end(results[nearest])}.")
        cards.append(html.card(group or "Who arrives?", said))
    return cards


def _ranked_by(record: Record) -> str:
    """What methods are ranked by, in words."""
    return record.get("criterion", {}).get("words", "||x - x*|| / ||x*||")


def _order(record: Record, results: Record) -> list[str]:
    """The methods, the one that ends best first."""
    sign = -1.0 if record.get("criterion", {}).get("rises") else 1.0
    return sorted(results, key=lambda n: np.inf if results[n]["final"] is None else sign * results[n]["final"])


def _end(result: Record) -> str:
    return "diverged" if result["final"] is None else words.number(result["final"])


def _cost_tables(results: Record, ranked_by: str) -> str:
    """Cost per client to each level, one table per unit, the methods that get furthest first."""
    first = next(iter(results.values()))["to_accuracy"]
    units, tables = list(next(iter(first.values()))), ""
    for unit in units:

        def furthest(name: str, unit: str = unit) -> list[float]:
            paid = [costs[unit] for costs in results[name]["to_accuracy"].values()]
            return [np.inf if cost is None else cost for cost in reversed(paid)]

        rows = []
        for name in sorted(results, key=furthest):
            paid = [costs[unit] for costs in results[name]["to_accuracy"].values()]
            show = words.size if unit == "bytes" else words.number
            cells = ["-" if cost is None else show(cost) for cost in paid]
            rows.append([name, *cells, _end(results[name])])
        tables += html.paragraph(
            f"{unit.capitalize()} per client to reach a level ({ranked_by}); - where it was not reached",
            "note",
        )
        tables += html.table(["method", *(f"to {level}" for level in first), "at the end"], rows, "numbers")
    return tables


def sites_page(record: Record, folder: Path | None) -> Page:
    """Models of single sites, their average, the federated and the pooled model."""
    c = SimpleNamespace(**{name: record.get(name) for name in ("sites", "models", "features", "status", "notes")})
    for name in ("coefficients", "scale", "used", "distance"):
        setattr(c, name, _floats(record[name]))
    c.scores = {measure: _floats(values) for measure, values in record["scores"].items()}
    c.own = {measure: _floats(values) for measure, values in record["own"].items()}
    cards = [html.card("Same as pooling?", _pooling_words(c)), html.card("Better than alone?", _score_words(c))]
    if (moved := words.traffic(record)) is not None:
        cards.append(html.card(*moved))
    caption = f"Coefficients per standard deviation, the largest first ({ZERO_NOTE})."
    plot = coefficient_plot(coefficients_of(c), caption)
    parts: list[Part] = [f'<div class="cards">{"".join(cards)}</div>', html.heading("Coefficients"), plot]
    static = svg_of(lambda: comparison_figure(c), "scores")  # pyright: ignore[reportArgumentType]  # duck typing
    parts.append(html.section("Scores on rows held out", *(_score_table(c, measure) for measure in c.scores)))
    if static:
        parts.append(html.static_figure(static, "Coefficients and held-out scores, site by site."))
    notes = html.paragraphs(c.notes or ())
    facts = [
        ["estimator", record.get("estimator", "-")],
        ["pooled model", record.get("pooled_by") or "-"],
        ["date", record.get("created", "-")],
    ]
    parts += [
        _traffic_section(record),
        html.section("Notes", notes),
        html.section("Provenance", html.table(["", ""], facts, "wide")),
    ]
    return Page(
        "Each site alone, together, and pooled",
        f"{words.plural(len(c.sites), 'site')}: {join_names(list(c.sites), most=8)}.",
        parts,
    )


def _floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=float)  # None becomes NaN


def _pooling_words(c: Any) -> list[str]:
    used = {model: int(k) for model, k in zip(c.models, c.used, strict=True) if np.isfinite(k)}
    said = [f"The federated model uses {words.plural(used['federated'], 'variable')} of {len(c.features)}."]
    if "pooled" in used:
        apart = float(c.distance[list(c.models).index("federated")])
        same = apart <= 1e-6
        said[0] = (
            "The federated model is the pooled model." if same else "The federated model differs from the pooled model."
        )
        said.append(
            f"Their coefficients differ by {words.number(apart)}, relative; they use {used['federated']} and {used['pooled']} variables."
        )
    if used.get("average of local", 0) > used["federated"]:
        said.append(
            f"The average of the local models uses {used['average of local']} variables: averaging does not keep zeros."
        )
    return said


def _score_words(c: Any) -> list[str]:
    measure = next(iter(c.scores))
    federated, own = c.scores[measure][list(c.models).index("federated")], c.own[measure]
    better = (federated < own) if "loss" in measure else (federated > own)
    count = int(np.sum(better[:-1] & np.isfinite(own[:-1])))
    n = int(np.isfinite(own[:-1]).sum())
    return [
        f"At {count} of {words.plural(n, 'site')} the federated model predicts held-out rows better than the site's own.",
        f"{measure.replace('^2', '²').capitalize()} over all rows: {words.number(federated[-1])} federated, "
        f"{words.number(own[-1])} with each site's own model.",
    ]


def _score_table(c: Any, measure: str) -> str:
    n = len(c.sites)
    rows = [["each site its own", *map(words.number, c.own[measure])]]
    rows += [
        [model, *map(words.number, scores)] for model, scores in zip(c.models[n:], c.scores[measure][n:], strict=True)
    ]
    return html.paragraph(measure.replace("^2", "²"), "note") + html.table(["model", *c.sites, "all"], rows, "numbers")


# --- the paper ---


def paper_page(record: Record, folder: Path | None) -> Page:
    """The claims of the paper and its figures."""
    claims = record["claims"]
    ours, papers = (
        [bool(c["holds"]) for c in claims if (c["where"] == "beyond the paper") == mine] for mine in (True, False)
    )
    failed = [claim["id"] for claim in claims if not claim["holds"]]
    said = [f"{sum(papers)} of {len(papers)} claims of the paper hold."]
    if ours:
        said.append(f"Of our own beyond it {sum(ours)} of {len(ours)} hold.")
    said.append(
        f"These do not: {join_names(failed, most=10)}."
        if failed
        else "Every claim was checked by a measurement; the table has the numbers."
    )
    if ours := sum(claim["where"] == BEYOND for claim in claims):
        said.append(f"{words.plural(ours, 'of these is ours', 'of these are ours')}, beyond the paper.")
    if weak := [claim["id"] for claim in claims if claim["measured"].get("note")]:
        said.append(f"Read the note before you rely on this: {join_names(weak, most=10)}.")
    parts: list[Part] = [
        f'<div class="cards">{html.card("Does it reproduce?", said, "bad" if failed else "good")}</div>'
    ]
    for number, (group, runs) in enumerate(record.get("runs", {}).items()):
        plot = convergence_plot(
            f"convergence-{number}",
            runs,
            "The runs of Figure 1; the buttons hide and show methods.",
            styles=record.get("styles"),
        )
        if plot:
            parts += [html.heading(group), plot]
    parts.append(html.section("Claims", _claims_table(claims)))
    figures = []
    for number, figure in enumerate(record.get("figures", ())):
        path = None if folder is None else folder / figure["file"]
        if path is not None and path.exists():
            svg = html.inline_svg(path.read_text(encoding="utf-8"), f"paper-{number}")
            figures.append(html.static_figure(svg, figure["caption"]))
    parts += [
        html.section("Figures", *figures),
        html.section("Settings", html.details("All settings", json.dumps(record.get("settings", {}), indent=2))),
    ]
    return Page(record.get("title", "The paper, reproduced"), record.get("lead", ""), parts)


def _claims_table(claims: Sequence[Record]) -> str:
    """What the paper says, in its words without a number of its own, beside what we measured."""
    rows = ""
    for claim in claims:
        note = claim["measured"].get("note")
        mark, verdict = ("yes", "holds") if claim["holds"] else ("no", "does not hold")
        mark, verdict = ("weak", "holds, weakly") if note and claim["holds"] else (mark, verdict)
        measured = "<br>".join(
            f"{html.text(name.replace('_', ' '))}: {html.text(short(value))}"
            for name, value in claim["measured"].items()
            if name != "note"
        )
        said = f"<br><strong>{html.text(f'{str(note)[:1].upper()}{str(note)[1:]}')}</strong>" if note else ""
        rows += (
            f'<tr id="{html.text(claim["id"])}"><td class="{mark}">{verdict}</td><td>{html.text(claim["claim"])}{said}'
            f'<div class="measured">{measured}</div></td><td>{html.text(claim.get("paper", ""))}</td>'
            f'<td class="where">{html.text(claim["where"])}</td></tr>'
        )
    columns = ("Verdict", "Claim and measurements", "What the paper says", "Where")
    head = f"<thead><tr>{''.join(f'<th>{column}</th>' for column in columns)}</tr></thead>"
    return f'<div class="scroll"><table class="wide claims">{head}<tbody>{rows}</tbody></table></div>'


# --- the leaderboard ---


UNITS = ("rounds", "bytes", "rows", "seconds")


def leaderboard_page(record: Record, folder: Path | None) -> Page:
    """Who is first on each problem of the suite, the totals, and every method with what it paid."""
    standings = record["standings"]
    parts: list[Part] = [f'<div class="cards">{"".join(_board_cards(record))}</div>']
    parts.append(
        html.section("Who is first", html.paragraph(_FIRST_NOTE, "note"), _firsts_table(standings, record["paper"]))
    )
    parts.append(
        html.section("Over the convex problems", html.paragraph(_TOTALS_NOTE, "note"), _totals_table(record["totals"]))
    )
    parts.append(html.section("How to read this", html.paragraphs(_board_rules(standings))))
    parts += [_problem_section(problem) for problem in standings]
    work = record.get("work") or {}
    facts = [
        ["suite", f"version {record['suite']}, {record['mode']}"],
        ["date", record.get("created") or "-"],
        ["versions", ", ".join(f"{k} {v}" for k, v in (record.get("versions") or {}).items())],
        ["work", ", ".join(f"{value:,.0f} {name.replace('_', ' ')}" for name, value in work.items()) or "-"],
        ["results of others", ", ".join(record["added"]) or "none"],
    ]
    parts.append(html.section("Provenance", html.table(["", ""], facts, "wide")))
    count = words.plural(sum(bool(problem["methods"]) for problem in standings), "problem")
    lead = (
        f"{words.plural(len(record['totals']), 'method')} for min f + g on {count}, each with the same number of settings and rounds, "
        "ranked by what they pay to reach an accuracy. Ours are ranked like all others."
    )
    return Page("Leaderboard of composite federated methods", lead, parts)


_FIRST_NOTE = (
    "The method with the least cost per client to the level, and the cost; bytes are those both ways, seconds are simulated. The last "
    "column has the places of Algorithm 1 of the paper (DecoupledProx) by rounds, bytes, rows and seconds, of so many that arrive."
)
_TOTALS_NOTE = (
    "Problems with a certified x*, on which all methods are tried. Times the first (x): the median, over the problems on which a method "
    "arrives, of its cost as a multiple of the least one. Firsts are those by rounds, bytes, rows and seconds. A method that applies to "
    "few problems has few to be first on."
)


def _board_rules(standings: Sequence[Record]) -> list[str]:
    """The terms of the contest, and what they do not show."""
    settings = max((problem["terms"]["settings"] for problem in standings), default=0)
    more = ", then two more: beyond an edge where the best one lies there, else beside it" if settings > 3 else ""
    return [
        f"Every method with a step tries {settings} settings, multiples of its default steps: 1/4, 1 and 4 times{more}. The multiple "
        "applies to the gradient step of every method, also where it solves local problems. Settings are compared on a seed of their "
        "own. A setting is better if it reaches the harder level, then if it needs fewer rounds to it.",
        "The second-order solvers have nothing to tune. All other methods know a bound on the curvature of every site, from which "
        "their default steps follow. What tuning and these bounds cost is not counted, for anybody.",
        "Rows are those that a client reads for values, gradients, Hessians and Hessian-vector products. A row of a Hessian counts like "
        "a row of a gradient, although it takes about d times the arithmetic: rows and seconds flatter methods that ask for Hessians.",
        "A round may be several exchanges: two of Mime, and of DecoupledProx where clients are sampled. Seconds show that, rounds do "
        "not.",
        "All methods start at the same point. The number of local steps is the same for all methods that have them; it is not tuned.",
        "Not reached: not within the budget of rounds. Open: likewise, but the run had spent less than the first one's cost when its "
        "rounds ended; a budget in that unit could change the ranking.",
        "Methods joined by = have the same cost. Several are one method where all clients send full gradients, or where g = 0.",
    ]


def _board_cards(record: Record) -> list[str]:
    """Who arrives most often, where ours is first, and where it is not."""
    rows, standings = record["totals"], [problem for problem in record["standings"] if problem["methods"]]
    cards = []
    if rows:
        top = rows[0]
        following = [f"{row['method']} ({row['arrives']} of {row['applies']})" for row in rows[1:4]]
        said = [
            f"{top['method']} arrives on {top['arrives']} of the {words.plural(top['applies'], 'problem')} that it applies to."
        ]
        cards.append(html.card("Who arrives?", said + ([f"Next: {join_names(following)}."] if following else [])))
    firsts, losses = [], []
    for problem in standings:
        found = {row["method"]: row["costs"]["rounds"]["rank"] for row in problem["methods"]}
        if record["paper"] not in found:
            continue
        place, arrived = found[record["paper"]], sum(rank is not None for rank in found.values())
        if place == 1:
            firsts.append(problem["problem"])
        else:
            losses.append(f"{problem['problem']} ({'does not arrive' if place is None else f'{place} of {arrived}'})")
    said = [f"By rounds it is first on {len(firsts)} of {words.plural(len(firsts) + len(losses), 'problem')}."]
    said += [f"First: {join_names(firsts, most=20)}."] if firsts else []
    said += [f"Not first: {join_names(losses, most=20)}."] if losses else []
    return [*cards, html.card("And Algorithm 1 of the paper?", said)]


def _board_cost(unit: str, value: float) -> str:
    """A cost in a few characters."""
    if unit == "bytes":
        return words.size(value)
    if unit == "seconds" and value < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.1f}"


def _firsts_table(standings: Sequence[Record], paper: str) -> str:
    """By problem: the first method in each unit of cost, and the ranks of the method named `paper` (the paper's own)."""
    rows = []
    for problem in standings:
        if not problem["methods"]:
            rows.append(
                [problem["problem"], "-", f"skipped: it {problem.get('skipped') or 'was not run'}", "", "", "", ""]
            )
            continue
        cells = []
        for unit in UNITS:
            first = [row for row in problem["methods"] if row["costs"][unit]["rank"] == 1]
            paid = f": {_board_cost(unit, first[0]['costs'][unit]['cost'])}" if first else ""
            names = sorted((row["method"] for row in first), key=len)
            most = 1 if any(len(name) > 20 for name in names) else 2  # the table stays as wide as a page
            cells.append((join_names(names, " = ", most=most) or "nobody") + paid)
        mine = next((row for row in problem["methods"] if row["method"] == paper), None)
        arrived = sum(row["costs"]["rounds"]["rank"] is not None for row in problem["methods"])
        if mine is None:
            place = "was not run"
        elif mine["costs"]["rounds"]["rank"] is None:
            place = mine["costs"]["rounds"]["words"]
        else:
            place = ", ".join(str(mine["costs"][unit]["rank"] or "-") for unit in UNITS) + f" of {arrived}"
        rows.append([problem["problem"], problem["level"], *cells, place])
    return html.table(["problem", "to", *UNITS, paper], rows, "wide board")


def _totals_table(rows: Sequence[Record]) -> str:
    cells = []
    for row in rows:
        times = ["-" if row["behind"][unit] is None else f"{row['behind'][unit]:.3g}" for unit in UNITS]
        firsts = ", ".join(str(row["first"][unit]) for unit in UNITS)
        cells.append([_named(row), row["applies"], row["arrives"], firsts, *times])
    header = ["method", "applies", "arrives", "firsts", *(f"{unit} x" for unit in UNITS)]
    return html.table(header, cells, "numbers board")


def _named(row: Record) -> str:
    """A method with what it is to this project."""
    return row["method"] + (" (ours)" if row["kind"] == "ours" else "")


def _problem_section(problem: Record) -> str:
    title = f"Problem: {problem['problem']}"
    if not problem["methods"]:
        return html.section(title, html.paragraph(f"Skipped: it {problem.get('skipped') or 'was not run.'}"))
    terms, level = problem["terms"], problem["level"]
    size = [f"{problem[name]:,} {said}" for name, said in _SIZES if name in problem]
    said = [
        f"{problem.get('words') or problem['problem']}; {', '.join(size)}.",
        f"Budget: {terms['rounds']:,} rounds for each of {terms['settings']} settings on seed {terms['tuning_seed']}; reported on "
        f"{words.plural(len(terms['seeds']), 'other seed')}. Local steps: {terms['tau']}. Seconds: cost model {terms['clock']!r}.",
        f"Cost per client to {terms['criterion']} = {level}, and the place by it; then rounds to the other levels, the end, and the "
        "multiple of the default steps (* at the edge of what was tried).",
    ]
    rows, others = [], dict[tuple[str, str], list[str]]()
    for row in problem["methods"]:
        if row["status"] in ("does not apply", "stopped"):
            reason = (row["reason"] or "").replace(row["method"], "It", 1)
            others.setdefault((row["status"], reason), []).append(_named(row))
            continue
        costs = []
        for unit in UNITS:
            at = row["costs"][unit]
            said_before = unit != "rounds" and at["words"] == row["costs"]["rounds"]["words"]
            words_or_dash = "-" if said_before else at["words"]
            costs.append(words_or_dash if at["rank"] is None else f"{_board_cost(unit, at['cost'])} · {at['rank']}")
        reached = ["-" if cost is None else f"{cost:,.4g}" for name, cost in row["rounds"].items() if name != level]
        end = "diverged" if row["final"] is None else f"{row['final']:.1e}"
        setting = (row["setting"] or "-").replace("nothing to tune", "-").replace("scale = ", "x ")
        rows.append([_named(row), *costs, *reached, end, setting + (" *" if row["at_edge"] else "")])
    header = ["method", *UNITS, *(f"to {each}" for each in terms["levels"] if each != level), "end", "setting"]
    why = [[status, ", ".join(names), reason] for (status, reason), names in others.items()]
    return html.section(
        title,
        html.paragraphs(said),
        html.paragraph(problem.get("reference") or "", "note"),
        html.table(header, rows, "numbers board") if rows else "",
        html.table(["", "methods", "why"], why, "wide board") if why else "",
    )


_SIZES = (("rows", "rows"), ("columns", "coefficients"), ("sites", "sites"))
