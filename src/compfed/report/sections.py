"""The contents of a page, by the kind of the result: sentences first, then figures and tables, then provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.plain import JsonObject, Record
from compfed._utils.text import join_names, short, shorten
from compfed.report import html, words
from compfed.report.coefficient_figures import (
    ZERO_NOTE,
    Coefficients,
    coefficients_of,
    comparison_figure,
    group_style,
    plot_coefficients,
    plot_cv,
    plot_path,
)  # fmt: skip
from compfed.report.figures import FLOOR, Curve, Panel, draw_panel
from compfed.report.plots import Part, Plot, Series, static_svg, thinned
from compfed.report.run_result import NETWORK
from compfed.report.style import AXES, BLACK, BLUE, DASHES, GREY, PALE, blank
from compfed.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

X_AXES = (
    ("round", "rounds"),
    ("bytes", "bytes per site"),
    ("seconds", "seconds"),
    ("gradients", "gradients per client"),
)
Y_AXES = ("optimality", "relative_gradient_mapping", "gradient_mapping")
MOST_LINES = 60  # of a path that a reader can point at
NAMED_LINES = 10  # of these with a button
MOST_NAMES = 120  # variables with a zero that are named
MOST_TABLE_ROWS = 200


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
    parts: list[Part] = [f'<div class="cards">{"".join(cards)}</div>', *_coefficient_parts(record)]
    parts += [*_path_parts(record), *_evaluation_parts(record), *_fit_convergence(record)]
    if record.get("table"):
        parts.append(html.section("The table", html.paragraphs(words.table_sentences(record["table"]))))
    parts += [_traffic_section(record), _provenance(record)]
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
        found |= {"alpha_best_": cv["best"], "alpha_one_standard_error_": np.nan if within is None else within}
    return SimpleNamespace(**found)


def _coefficient_parts(record: Record) -> list[Part]:
    model = _model(record)
    found = coefficients_of(model)
    static = static_svg(lambda: plot_coefficients(model), "coefficients")
    caption = (
        f"Coefficients, the largest first ({ZERO_NOTE}). Per standard deviation they can be compared with each other."
    )
    ratios, coef = _ratios(record), np.atleast_2d(np.asarray(record["coef"], float))
    hover = {"coefficient": np.vectorize(_coefficient_text, [object])(coef.T)}
    if ratios is not None:
        hover[ratios[0]] = np.array(ratios[1], object)[:, None]
    return [
        html.heading("Coefficients"),
        coefficient_plot(found, "coefficients", caption, static, hover),
        _coefficient_table(record),
    ]


def coefficient_plot(
    found: Coefficients, key: str, caption: str, static: str, hover: Mapping[str, np.ndarray] | None = None
) -> Plot:
    """An interactive figure: one row per variable, one marker per model, hollow where zero.

    `hover` has further texts of a marker by name, of shape (features, models).
    """
    order, labels = found.rows(), list(dict.fromkeys(found.groups))
    series = [Series("zero", {"x": [0, 0], "y": [-0.6, len(order) - 0.4]}, "ruler", colour=GREY)]
    for k, label in enumerate(labels):
        colour, marker = group_style(label, k)
        columns = [c for c, group in enumerate(found.groups) if group == label]
        values = found.values[order][:, columns]
        y = np.repeat(np.arange(len(order)), len(columns)) + (k - (len(labels) - 1) / 2) * min(0.2, 0.8 / len(labels))
        names = np.repeat([shorten(found.features[j], 60) for j in order], len(columns))
        flat = values.ravel()
        texts = {name: of[order][:, columns].ravel() for name, of in (hover or {}).items()}
        for zero in (False, True):
            some = (flat == 0) if zero else (flat != 0) & np.isfinite(flat)
            if some.any():
                data = {"x": flat[some], "y": y[some], "variable": names[some], "model": [label] * int(some.sum())}
                data |= {name.replace(" ", "_"): list(of[some]) for name, of in texts.items()}
                name = label if len(labels) > 1 else None
                series.append(
                    Series(
                        label,
                        data,
                        "points",
                        k,
                        colour,
                        marker,
                        hollow=zero,
                        legend=name,
                        size=9 if len(labels) == 1 else 7,
                    )
                )
    tips = [("variable", "@variable"), *((name, f"@{name.replace(' ', '_')}") for name in hover or {})]
    tips.append(("coefficient" if hover is None else found.axis.removeprefix("coefficient "), "@x{%.4g}"))
    return Plot(
        key, series, [("x", found.axis)], "", caption, rows=[shorten(found.features[j], 32) for j in order], static=static,
        tooltips=[*tips, ("model", "@model")] if len(labels) > 1 else tips,
        height=120 + (16 + 6 * min(len(labels), 5)) * max(4, len(order)),
    )  # fmt: skip


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
    for j in order[:MOST_TABLE_ROWS]:
        row = [names[j], compared[j], *(_coefficient_text(value) for value in coef[:, j])]
        row += [] if ratios is None else [ratios[1][j]]
        rows.append([*row, words.number(coef[0, j] * scale[j], 3)] if has_scale else row)
    heads += [] if ratios is None else [ratios[0]]
    heads += ["coefficient per standard deviation"] if has_scale else []
    intercept = np.ravel(np.asarray(record.get("intercept", []), float))
    rows.append(["(intercept)", "", *map(_coefficient_text, intercept), *[""] * (len(heads) - len(intercept))])
    text = html.table(["variable", "compared", *heads], rows, "numbers")
    if (event := words.event_text(record)) is not None:
        text = html.paragraph(f"The event is {event}: the coefficients add up to its log-odds.", "note") + text
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


def _path_parts(record: Record) -> list[Part]:
    if not record.get("cv") and not record.get("path"):
        return []
    model, parts = _model(record), list[Part]()
    parts.append(html.section("How the strength of the penalty was chosen", html.paragraph(_choice_words(record))))
    if record.get("cv") and np.count_nonzero(model.alphas_ > 0) > 1:
        parts.append(cv_plot(model, static_svg(lambda: plot_cv(model), "cv")))
    if record.get("path") and np.count_nonzero(model.alphas_ > 0) > 1:
        parts.append(path_plot(model))
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
    text = f"{way} tried {losses.shape[0]} values of alpha and took {rule}: {words.number(record['alpha'])}."
    alphas = np.asarray(cv["alphas"], float)
    at = float(record["alpha"])
    if at in (alphas.min(), alphas.max()):
        text += " This is the end of the grid: give more alphas, or standardise the columns."
    return text


def cv_plot(model: Any, static: str) -> Plot:
    """The held-out loss against alpha."""
    keep = (model.alphas_ > 0) & np.isfinite(model.cv_loss_).all(axis=1)  # of leave-one-out it may not be known
    alphas, loss = model.alphas_[keep], model.cv_loss_[keep]
    mean = loss.mean(axis=1)
    series = []
    low, high = mean, mean
    if loss.shape[1] > 1:
        error = loss.std(axis=1, ddof=1) / np.sqrt(loss.shape[1])
        low, high = mean - error, mean + error
        series.append(Series("standard error", {"x": alphas, "low": low, "high": high}, "band", colour=BLUE))
    series.append(Series("held-out loss", {"x": alphas, "y": mean, "low": low, "high": high}, "dots", colour=BLUE))
    bottom, top = float(low.min()), float(high.max())
    for name, alpha in (("best", model.alpha_best_), ("one standard error", model.alpha_one_standard_error_)):
        if np.isfinite(alpha) and alpha > 0:
            label = f"{name}: alpha = {alpha:.3g}"
            series.append(
                Series(
                    label,
                    {"x": [alpha] * 2, "y": [bottom, top]},
                    "ruler",
                    colour=BLACK if name == "best" else GREY,
                    legend=label,
                )
            )
    return Plot(
        "cv", series, [("x", "alpha (largest to the left)")], "held-out loss",
        "Mean loss on rows held out, with a band of one standard error.", x_log=True, flip_x=True, static=static,
        tooltips=[("alpha", "@x{%.3g}"), ("loss", "@y{%.4g}"), ("band", "@low{%.4g} to @high{%.4g}")], height=300,
    )  # fmt: skip


def path_plot(model: Any) -> Plot:
    """The coefficients against alpha, the largest with a name."""
    keep = np.flatnonzero(model.alphas_ > 0)
    alphas = model.alphas_[keep]
    W = model.coef_path_[keep].reshape(len(keep), -1)
    width = model.coef_path_.shape[-1]
    scale = np.resize(getattr(model, "feature_scale_", np.ones(width)), W.shape[1])
    outputs = W.shape[1] // width
    classes = getattr(model, "classes_", range(outputs))
    labels = [n if outputs == 1 else f"{c}: {n}" for c in classes for n in model.feature_names_in_]
    W = W * scale
    size = np.abs(W).max(axis=0)
    order = [j for j in np.argsort(-size, kind="stable")[:MOST_LINES] if size[j] > 0]
    series = []
    for k, j in reversed(list(enumerate(order))):
        named = k < NAMED_LINES
        name = shorten(labels[j], 60)
        series.append(
            Series(
                name,
                {"x": alphas, "y": W[:, j]},
                "line",
                k,
                None if named else PALE,
                width=2 if named else 1,
                legend=name if named else None,
            )
        )
    series.reverse()
    shown = SimpleNamespace(
        alphas=model.alphas_, coefs=(model.coef_path_.reshape(len(model.alphas_), -1) * scale)[:, order]
    )
    per = "coefficient per standard deviation" if hasattr(model, "feature_scale_") else "coefficient"

    def draw() -> Figure:
        figure = plot_path(shown, [labels[j] for j in order])  # pyright: ignore[reportArgumentType]  # duck typing
        figure.axes[0].set_ylabel(per)
        return figure

    static = static_svg(draw, "path") if order else ""
    return Plot(
        "path", series, [("x", "alpha (largest to the left)")], per,
        "The coefficients as the penalty weakens, from left to right. A variable enters where its line leaves zero.", x_log=True,
        flip_x=True, static=static, tooltips=[("alpha", "@x{%.3g}"), ("coefficient", "@y{%.4g}")], height=340,
    )  # fmt: skip


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
    static = static_svg(lambda: _static_convergence(prepared, y, styles, tol, log), key)
    return Plot(
        key, series, choices, label, caption, y_log=log, choose_log=True, static=static,
        tooltips=[*tips, (label.split("  ")[0], "@y{%.3g}")], height=400,
    )  # fmt: skip


def _with_bytes(columns: Record) -> JsonObject:
    found = {name: _floats(values) for name, values in columns.items()}
    if "bytes" not in found and "bytes_up" in found:
        found["bytes"] = found["bytes_up"] + found.get("bytes_down", 0)
    return found


def _static_convergence(
    runs: Mapping[str, Record], y: str, styles: Mapping[str, int] | None, tol: float | None, log: bool
) -> Figure:
    lines = []
    for k, (name, columns) in enumerate(runs.items()):
        some = thinned(len(columns["round"]))
        trace = Trace({c: np.asarray(columns[c])[some] for c in ("round", y)}, np.zeros(1))
        lines.append(Curve(name, [trace], (styles or {}).get(name, k), dots=len(some) < 15))
    figure = blank(7.0, 3.6 if len(lines) < 12 else 5.2)
    ax = figure.subplots()
    draw_panel(Panel("", lines, y=y, log=log), ax)
    if tol is not None and y == "relative_gradient_mapping":
        ax.axhline(tol, color=GREY, linestyle="--", linewidth=1.0)
    return figure


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
            rows.append([words.MEASURES[key], *(_measure(found[name].get(key)) for name in columns)])
            continue
        each = [found[name].get(key) for name in columns]
        rows.append(["AUC (ties count half)", *("-" if one is None else f"{one[0]:.3f}" for one in each)])
        rows.append(["rounding bounds of the AUC", *("-" if one is None else _bounds(*one) for one in each)])
        rows.append(["confidence interval of the AUC", *map(words.confidence, columns.values())])
    note = ""
    if any(" to " in cell for row in rows for cell in row[1:]):
        why = {
            True: ": counts are known to blocks of rows only",
            False: ": some scores were not told apart",
        }.get(evaluation.get("rounded_counts"), "")
        note = html.paragraph(f"Rounding bounds, a to b, contain the value for certain{why}.", "note")
    parts: list[Part] = [html.section("Evaluation", html.table(["", *columns], rows, "numbers"), note)]
    plots = tuple(p for p in (_roc_plot(evaluation), _calibration_plot(evaluation)) if p is not None)
    return [*parts, plots] if plots else parts


def _bounds(value: Any, low: Any, high: Any) -> str:
    if high - low > words.BOUNDED:
        return f"{low:.3f} to {high:.3f}"
    return f"within {high - low:.4f}" if high - low > 5e-5 else "exact"


def _measure(found: Sequence[Any] | None) -> str:
    if found is None:
        return "-"
    value, low, high = found
    if low is not None and high is not None and high - low > words.BOUNDED:
        return f"{low:.3f} to {high:.3f}"
    return f"{value:.3f}" if abs(value) < 100 else words.number(value)


def _roc_plot(evaluation: Record) -> Plot | None:
    roc = evaluation.get("roc")
    if not roc:
        return None
    curves = {}
    for label, (x, y) in {"best case": ("low", "high"), "worst case": ("high", "low")}.items():
        fp, tp = (np.asarray(roc[f"{kind}_positive_{end}"], float) for kind, end in (("false", x), ("true", y)))
        order = np.lexsort([tp, fp])
        curves[label] = np.concatenate([[0.0], fp[order], [1.0]]), np.concatenate([[0.0], tp[order], [1.0]])
    if np.allclose(curves["best case"], curves["worst case"], atol=1e-9):
        curves = {"ROC curve": curves["best case"]}
    series = [Series("chance", {"x": [0, 1], "y": [0, 1]}, "ruler", colour=GREY)]
    for k, (label, (x, y)) in enumerate(curves.items()):
        some = thinned(len(x))
        series.append(Series(label, {"x": x[some], "y": y[some]}, "line", k, legend=label if len(curves) > 1 else None))
    auc = "-"
    for key, value, low, high in words.measures(evaluation):
        if key == "auc" and low is not None and high is not None:
            bounds = _bounds(value, low, high)
            auc = f"{value:.3f}" + (f", rounding bounds {bounds}" if " to " in bounds else "")
    return _square("roc", series, "1 - specificity", "sensitivity", f"ROC curve; AUC {auc}.")


def _calibration_plot(evaluation: Record) -> Plot | None:
    curve = evaluation.get("calibration")
    if not curve:
        return None
    low, high = (np.asarray(curve[f"observed_{end}"], float) for end in ("low", "high"))
    x = (np.asarray(curve["predicted_low"], float) + np.asarray(curve["predicted_high"], float)) / 2
    series = [
        Series("perfect", {"x": [0, 1], "y": [0, 1]}, "ruler", colour=GREY),
        Series("bounds", {"x": x, "low": low, "high": high}, "band", colour=BLUE),
        Series("groups of rows", {"x": x, "y": (low + high) / 2, "low": low, "high": high}, "dots", colour=BLUE),
    ]
    return _square(
        "calibration", series, "predicted risk", "share of events", "Calibration: on the dashed line risks are right."
    )


def _square(key: str, series: list[Series], x_label: str, y_label: str, caption: str) -> Plot:
    def draw() -> Figure:
        figure = blank(3.5, 3.3)
        ax = figure.subplots()
        for s in series:
            if s.kind == "band":
                ax.fill_between(
                    s.columns["x"], s.columns["low"], s.columns["high"], color=s.paint, alpha=0.2, linewidth=0
                )
                continue
            style: JsonObject = {
                "color": s.paint,
                "linestyle": "--" if s.kind == "ruler" else DASHES[s.style],
                "marker": "o" if s.kind == "dots" else "",
            }
            ax.plot(s.columns["x"], s.columns["y"], label=s.name, **style)
        ax.set(xlabel=x_label, ylabel=y_label)
        if sum(s.legend is not None for s in series) > 1:
            ax.legend(loc="lower right")
        return figure

    tips = [(x_label, "@x{%.3f}"), (y_label, "@y{%.3f}")]
    return Plot(
        key, series, [("x", x_label)], y_label, caption, tooltips=tips, height=330, static=static_svg(draw, key)
    )


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
    lead += " ".join(["", *words.scoring(record)])
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
    provenance = record.get("provenance", {})
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
        "device": provenance.get("device"),
        "versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items()) or None,
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
    return html.section("Provenance", table, trouble, choice, settings, schema)


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
    plot = coefficient_plot(
        coefficients_of(c), "coefficients", caption, static_svg(lambda: plot_coefficients(c), "coefficients")
    )
    parts: list[Part] = [f'<div class="cards">{"".join(cards)}</div>', html.heading("Coefficients"), plot]
    static = static_svg(lambda: comparison_figure(c), "scores")  # pyright: ignore[reportArgumentType]  # duck typing
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
    held = sum(bool(claim["holds"]) for claim in claims)
    failed = [claim["id"] for claim in claims if not claim["holds"]]
    said = [f"{held} of {len(claims)} claims hold."]
    said.append(
        f"These do not: {join_names(failed, most=10)}."
        if failed
        else "Every claim was checked by a measurement; the table has the numbers."
    )
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
    rows = ""
    for claim in claims:
        mark, verdict = ("yes", "holds") if claim["holds"] else ("no", "does not hold")
        measured = "<br>".join(
            f"{html.text(name)}: {html.text(short(value))}" for name, value in claim["measured"].items()
        )
        rows += (
            f'<tr id="{html.text(claim["id"])}"><td class="{mark}">{verdict}</td><td>{html.text(claim["claim"])}'
            f'<div class="measured">{measured}</div></td><td class="where">{html.text(claim["where"])}</td></tr>'
        )
    head = "<thead><tr><th>Verdict</th><th>Claim and measurements</th><th>Where</th></tr></thead>"
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
