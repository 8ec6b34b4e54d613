"""Figures of coefficients: a path, cross-validation, models side by side, and held-out scores site by site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.report.draw import draw_plot
from compfed.report.figures import plot_convergence
from compfed.report.plots import Plot, Series
from compfed.report.showing import shown
from compfed.report.style import (
    BLACK,
    BLUE,
    COLOURS,
    GREY,
    MARKERS,
    ORANGE,
    PAGE,
    PALE,
    blank,
    figure_and_axes,
    plain,
    styled,
)  # fmt: skip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from compfed.estimators.path_and_cv import CrossValidated, Path
    from compfed.studies.compare_sites import SiteComparison

# --- a regularisation path ---

NAMED = 10  # coefficients with a colour and a name, the largest on the path; all others are grey
ALPHA_AXIS = "alpha (largest to the left)"
COUNTS = 7  # places along the path where the number of non-zero coefficients is written


@shown
def plot_path(
    fitted: Path | CrossValidated, names: Sequence[str] | np.ndarray | None = None, *, ax: Axes | None = None
) -> Figure:
    """Draw coefficients against alpha, and the cross-validation that chose one.

    Parameters
    ----------
    fitted : Path or fitted estimator
        The result of `regularisation_path`, or a fitted ``...CV`` estimator, whose held-out loss gets a second panel.
    names : sequence of str, optional
        Names of the features. A fitted estimator may know them.
    ax : matplotlib.axes.Axes, optional
        Where to draw the coefficients, without a second panel; a new figure unless given.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of `ax`, or the new one.

    Raises
    ------
    InputError
        If `fitted` is something else, or the number of names is not that of the features.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> path = cf.regularisation_path(cf.FederatedLasso(), table.X, table.y, table.sites, n_alphas=5)
    >>> figure = cf.plot_path(path, names=table.feature_names)
    >>> figure.axes[0].get_ylabel()
    'coefficient'
    """
    found: Any = fitted
    cross_validated = hasattr(found, "coef_path_")
    if not cross_validated and not hasattr(found, "coefs"):
        raise InputError(
            f"plot_path takes the result of regularisation_path or a fitted ...CV estimator; got {type(found).__name__}."
        )
    alphas, coefs = (found.alphas_, found.coef_path_) if cross_validated else (found.alphas, found.coefs)
    names = getattr(found, "feature_names_in_", None) if names is None else names
    W, labels = _flat(coefs, names, getattr(found, "classes_", None))
    marks = path_marks(found) if cross_validated else []
    upper = path_plot(np.asarray(alphas), W, labels, marks)
    two = cross_validated and ax is None
    with styled():
        figure = blank(6.4, 5.6 if two else 3.6) if ax is None else figure_and_axes(ax, 0, 0)[0]
        axes = figure.subplots(2 if two else 1, 1, sharex=True, squeeze=False)[:, 0] if ax is None else np.array([ax])
        # The marks have a legend of their own below two panels; in one panel they stand with the coefficients.
        draw_plot(upper if not two else _without_legend(upper, marks), axes[0])
        if two:
            axes[0].set_xlabel("")
            draw_plot(cv_plot(found), axes[1], legend=False)
            handles = dict(zip(*reversed(axes[1].get_legend_handles_labels()), strict=True))
            shown = [mark.label for mark in marks]
            figure.legend([handles[name] for name in shown], shown, loc="outside lower center", ncols=3, fontsize=8)
    return figure


@shown
def plot_cv(model: CrossValidated, *, ax: Axes | None = None) -> Figure:
    """Draw the held-out loss against alpha, with the alphas that the two rules choose.

    The line is the mean over the splits, the band one standard error on each side.

    Parameters
    ----------
    model : fitted estimator
        An estimator with CV at the end of its name.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of `ax`, or the new one.

    Raises
    ------
    InputError
        If the estimator has not chosen its alpha by cross-validation.

    Examples
    --------
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedLassoCV(n_alphas=10, cv=3).fit(table.X, table.y, sites=table.sites)
    >>> cf.plot_cv(model).axes[0].get_xlabel()
    'alpha (largest to the left)'
    """
    found: Any = model
    if not hasattr(found, "cv_loss_"):
        raise InputError(f"plot_cv takes a fitted ...CV estimator; got {type(found).__name__}, which has no cv_loss_.")
    with styled():
        figure, ax = figure_and_axes(ax, 6.4, 3.2)
        draw_plot(cv_plot(found), ax)
    return figure


# --- their descriptions ---


class Mark(NamedTuple):
    """An alpha with a name, and whether it is the one that was taken."""

    name: str
    alpha: float

    @property
    def label(self) -> str:
        return f"{self.name}: alpha = {self.alpha:.3g}"


def path_marks(model: Any) -> list[Mark]:
    """The alphas that the two rules choose, and the one that was taken where it is neither."""
    found = [Mark("best", float(model.alpha_best_)), Mark("one standard error", float(model.alpha_one_standard_error_))]
    found = [mark for mark in found if np.isfinite(mark.alpha) and mark.alpha > 0]
    taken = getattr(model, "alpha_", None)
    if taken is None or not taken > 0:
        return found
    same = [k for k, mark in enumerate(found) if np.isclose(mark.alpha, taken, rtol=1e-9, atol=0)]
    if not same:
        return [*found, Mark("chosen", float(taken))]
    return [Mark(f"{mark.name}, chosen", mark.alpha) if k == same[0] else mark for k, mark in enumerate(found)]


def _rulers(marks: Sequence[Mark], low: float, high: float) -> list[Series]:
    """A line from below to above for every mark."""
    return [
        Series(
            mark.label, {"x": [mark.alpha] * 2, "y": [low, high]}, "ruler", k, GREY if k % 2 else BLACK, legend=mark.label
        )
        for k, mark in enumerate(marks)
    ]  # fmt: skip


def _without_legend(plot: Plot, marks: Sequence[Mark]) -> Plot:
    """The plot without the names of its marks."""
    names = {mark.label for mark in marks}
    return replace(plot, series=[replace(s, legend=None) if s.legend in names else s for s in plot.series])


def path_plot(
    alphas: np.ndarray,
    coefs: np.ndarray,
    names: Sequence[str],
    marks: Sequence[Mark] = (),
    label: str = "coefficient",
    most: int | None = None,
) -> Plot:
    """Coefficients (alphas, features) against alpha: the largest with a colour and a name, in the order of their right ends."""
    order = _falling(alphas)
    alphas, W = alphas[order], coefs[order]
    size = np.abs(W).max(axis=0)
    largest = [int(j) for j in np.argsort(-size, kind="stable") if size[j] > 0]
    chosen = sorted(largest[:NAMED], key=lambda j: -W[-1, j])
    others = largest[NAMED:most] if most is not None else [j for j in range(W.shape[1]) if j not in set(chosen)]
    series = [Series("zero", {"x": [alphas[0], alphas[-1]], "y": [0.0, 0.0]}, "axis", colour=PALE)]
    for j in others:
        series.append(Series(shorten(names[j], 60), {"x": alphas, "y": W[:, j]}, colour=PALE, width=1))
    for k, j in enumerate(chosen):
        name = shorten(names[j], 30)
        series.append(Series(name, {"x": alphas, "y": W[:, j]}, "line", k, legend=name))
    series += _rulers(marks, float(W.min()), float(W.max()))
    places = np.unique(np.linspace(0, len(alphas) - 1, COUNTS).round().astype(int))
    return Plot(
        "path", series, [("x", ALPHA_AXIS)], label,
        "The coefficients as the penalty weakens, from left to right. A variable enters where its line leaves zero.", x_log=True,
        flip_x=True, tooltips=[("alpha", "@x{%.3g}"), ("coefficient", "@y{%.4g}")], height=380, size=(6.4, 3.6), legend="right",
        above=[(float(alphas[k]), str(np.count_nonzero(W[k]))) for k in places], above_label="coefficients that are not zero",
    )  # fmt: skip


def cv_plot(model: Any) -> Plot:
    """The held-out loss against alpha: the mean over the splits, a band of one standard error on each side, and the marks."""
    order = _falling(model.alphas_)
    order = order[np.isfinite(model.cv_loss_[order]).all(axis=1)]  # of leave-one-out it may not be known
    alphas, loss = model.alphas_[order], model.cv_loss_[order]
    mean, label, series = loss.mean(axis=1), "held-out loss", list[Series]()
    low = high = mean
    if loss.shape[1] > 1:
        error = loss.std(axis=1, ddof=1) / np.sqrt(loss.shape[1])
        low, high = mean - error, mean + error
        label += " (mean ± standard error)"
        series.append(Series("standard error", {"x": alphas, "low": low, "high": high}, "band", colour=BLUE))
    series.append(Series("held-out loss", {"x": alphas, "y": mean, "low": low, "high": high}, "dots", colour=BLUE))
    series += _rulers(path_marks(model), float(low.min()), float(high.max()))
    return Plot(
        "cv", series, [("x", ALPHA_AXIS)], label, "Mean loss on rows held out, with a band of one standard error.",
        x_log=True, flip_x=True, tooltips=[("alpha", "@x{%.3g}"), ("loss", "@y{%.4g}"), ("band", "@low{%.4g} to @high{%.4g}")],
        height=300, size=(6.4, 3.2), legend="above",
    )  # fmt: skip


def _falling(alphas: np.ndarray) -> np.ndarray:
    """Positions of the alphas that a log axis has, the largest first."""
    order = np.argsort(-alphas)
    order = order[alphas[order] > 0]  # alpha = 0 has no place on a log axis
    if len(order) < 2:
        raise InputError(f"the figure of a path needs two alphas above 0; got {alphas}.")
    return order


def _flat(
    coefs: np.ndarray, names: Sequence[str] | np.ndarray | None, classes: np.ndarray | None
) -> tuple[np.ndarray, list[str]]:
    """One column per coefficient, and its name; with several outputs "class: feature"."""
    W, width = coefs.reshape(len(coefs), -1), coefs.shape[-1]
    labels = [f"feature {j}" for j in range(width)] if names is None else [str(name) for name in names]
    if len(labels) != width:
        raise InputError(f"names has {len(labels)} entries; there are {width} features: give one for each.")
    if W.shape[1] > width:
        outputs = range(W.shape[1] // width) if classes is None else classes
        labels = [f"{output}: {label}" for output in outputs for label in labels]
    return W, labels


# --- coefficients of several models ---

MOST_ROWS = 30  # variables with a row of their own
ZERO_NOTE = "hollow: exactly zero"


@dataclass(frozen=True)
class Coefficients:
    """Coefficients of several models side by side, as plain arrays.

    `groups` has the label of each model; models with the same label share colour, marker and legend.
    """

    features: tuple[str, ...]
    groups: tuple[str, ...]
    values: np.ndarray  # (features, models); NaN for a model that cannot be fitted
    axis: str = "coefficient"

    def largest(self, most: int = MOST_ROWS) -> np.ndarray:
        """Positions of the variables that are used anywhere, the largest in the last model first."""
        size = np.abs(np.nan_to_num(self.values))
        used = np.flatnonzero(size.any(axis=1))
        return used[np.lexsort((-size[used].max(axis=1), -size[used, -1]))][:most]

    def rows(self) -> np.ndarray:
        """Positions of the variables with a row: those that are used and, of a single model, zeros as far as there is room."""
        order = self.largest()
        if len(order) and len(set(self.groups)) > 1:
            return order
        others = np.setdiff1d(np.arange(len(self.features)), order)
        return np.concatenate([order, others])[:MOST_ROWS]


def coefficients_of(
    models: Any, names: Sequence[str] | np.ndarray | None = None, scale: Sequence[float] | np.ndarray | None = None
) -> Coefficients:
    """The coefficients of all that `plot_coefficients` takes."""
    if all(hasattr(models, name) for name in ("coefficients", "models", "features", "scale")):  # a comparison of sites
        n = len(models.sites)
        groups = (*["each site alone"] * n, *models.models[n:])
        sd = models.scale if scale is None else np.asarray(scale, float)
        features = tuple(map(str, models.features if names is None else names))
        return Coefficients(features, groups, models.coefficients * sd[:, None], _axis(sd))
    named = models if isinstance(models, Mapping) else {"coefficient": models}
    if not named:
        raise InputError("plot_coefficients got an empty dict; give at least one model.")
    columns, groups = [], []
    for label, model in named.items():
        W = np.atleast_2d(np.asarray(getattr(model, "coef_", model), float))
        kinds = getattr(model, "classes_", range(len(W)))
        columns += list(W)
        groups += [str(label)] if len(W) == 1 else [str(k) if len(named) == 1 else f"{label}: {k}" for k in kinds]
    if len({len(column) for column in columns}) > 1:
        raise InputError(
            f"the models have {sorted({len(c) for c in columns})} coefficients; all need the same features."
        )
    first = next(iter(named.values()))
    names = getattr(first, "feature_names_in_", None) if names is None else names
    _, features = _flat(np.array(columns)[:1], names, None)
    sd = getattr(first, "feature_scale_", None) if scale is None else np.asarray(scale, float)
    values = np.array(columns).T
    return Coefficients(tuple(features), tuple(groups), values if sd is None else values * sd[:, None], _axis(sd))


def _axis(scale: np.ndarray | None) -> str:
    return "coefficient" if scale is None else "coefficient per standard deviation"


@shown
def plot_coefficients(
    models: Any,
    names: Sequence[str] | np.ndarray | None = None,
    *,
    scale: Sequence[float] | np.ndarray | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw coefficients, one row per variable and one marker per model; a hollow marker is exactly zero.

    Parameters
    ----------
    models : fitted estimator, comparison, or dict
        One model; the result of `compare_local_federated`; or fitted estimators or arrays of coefficients by name, such as
        ``{"local": a, "federated": b, "pooled": c}``. The last one sets the order of the rows.
    names : sequence of str, optional
        Names of the features. A fitted estimator may know them.
    scale : array of shape (n_features,), optional
        Factors of the coefficients. Standard deviations of the features make coefficients comparable; a fitted estimator and
        a comparison know them, and use them unless `scale` is given.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure unless given.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of `ax`, or the new one.

    Raises
    ------
    InputError
        If models have different numbers of features, or names and features do not match.

    Examples
    --------
    >>> import numpy as np
    >>> import compfed as cf
    >>> coefficients = {"local": np.array([2.0, 0.3]), "federated": np.array([1.5, 0.0])}
    >>> figure = cf.plot_coefficients(coefficients, names=["age", "sex"])
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['age', 'sex']
    """
    plot = coefficient_plot(coefficients_of(models, names, scale))
    with styled():
        figure, ax = figure_and_axes(ax, *plot.size)
        draw_plot(plot, ax)
    return figure


def coefficient_plot(
    found: Coefficients, caption: str = "", hover: Mapping[str, np.ndarray] | None = None, key: str = "coefficients"
) -> Plot:
    """One row per variable, one marker per model, hollow where the coefficient is zero.

    `hover` has further texts of a marker by name, of shape (features, models).
    """
    order, labels = found.rows(), list(dict.fromkeys(found.groups))
    lanes = max(1, len(labels))
    series = [Series("zero", {"x": [0, 0], "y": [-0.6, len(order) - 0.4]}, "axis", colour=GREY)]
    for k in range(len(labels)):
        series += _lane(found, order, k, labels, hover or {})
    tips = [("variable", "@variable"), *((name, f"@{name.replace(' ', '_')}") for name in hover or {})]
    tips.append(("coefficient" if hover is None else found.axis.removeprefix("coefficient "), "@x{%.4g}"))
    rest = len(found.features) - len(order)
    zero = len(found.features) - len(found.largest(len(found.features)))
    more = f"; {rest} more, of which {zero} zero in every model" if rest else ""
    return Plot(
        key, series, [("x", found.axis)], "", caption, rows=[shorten(found.features[j], 32) for j in order],
        tooltips=[*tips, ("model", "@model")] if lanes > 1 else tips, height=120 + (16 + 6 * min(lanes, 5)) * max(4, len(order)),
        size=(0.75 * PAGE, 1.0 + (0.2 + 0.06 * min(lanes, 5)) * max(3, len(order))), legend="above",
        faint=[k for k, j in enumerate(order) if found.values[j, -1] == 0], x_note=f"{ZERO_NOTE}{more}",
    )  # fmt: skip


def _lane(
    found: Coefficients, order: np.ndarray, k: int, labels: Sequence[str], hover: Mapping[str, np.ndarray]
) -> list[Series]:
    """The markers of one group of models, in their lane of every row."""
    label = labels[k]
    colour, marker = group_style(label, k)
    columns = [c for c, group in enumerate(found.groups) if group == label]
    y = np.repeat(np.arange(len(order)), len(columns)) + (k - (len(labels) - 1) / 2) * min(0.2, 0.8 / len(labels))
    names = np.repeat([shorten(found.features[j], 60) for j in order], len(columns))
    flat, made = found.values[order][:, columns].ravel(), []
    texts = {name: of[order][:, columns].ravel() for name, of in hover.items()}
    for zero in (False, True):
        some = (flat == 0) if zero else (flat != 0) & np.isfinite(flat)
        if some.any():
            data = {"x": flat[some], "y": y[some], "variable": names[some], "model": [label] * int(some.sum())}
            data |= {name.replace(" ", "_"): list(of[some]) for name, of in texts.items()}
            name, size = label if len(labels) > 1 else None, 9 if len(labels) == 1 else 7
            made.append(Series(label, data, "points", k, colour, marker, hollow=zero, legend=name, size=size))
    return made


def group_style(label: str, k: int) -> tuple[str, str]:
    """Colour and marker of a group of models: fixed for local, average, federated and pooled models."""
    roles = {
        "each site alone": (GREY, "s"), "local": (GREY, "s"), "average of local": (ORANGE, "D"), "federated": (BLUE, "o"),
        "pooled": (BLACK, "^"),
    }  # fmt: skip
    return roles.get(label, (COLOURS[k % len(COLOURS)], MARKERS[k % len(MARKERS)]))


# --- models side by side ---

JOINT = (ORANGE, BLUE, BLACK)  # of the average, the federated and the pooled model, which come last
MOST_COLUMNS = 6  # local models whose columns of coefficients are named
MOST_FEATURES = 40  # features shown, the largest in the last model first
NAMED_SITES = 20  # with more sites, scores are drawn without names
LETTERS = 15.0  # per inch


@shown
def plot_comparison(comparison: Any, *, ax: Axes | None = None) -> Figure:
    """Draw a comparison: methods by their convergence, or models of sites by coefficients and held-out scores.

    Parameters
    ----------
    comparison : result of `compare_methods` or `compare_local_federated`
    ax : matplotlib.axes.Axes, optional
        Where to draw one panel: convergence in the unit of the budget, or the first held-out score site by site. A new
        figure unless given.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of `ax`, or the new one.

    Raises
    ------
    InputError
        If `comparison` is something else.

    Examples
    --------
    >>> import compfed as cf
    >>> t = cf.data.bundled.diabetes()
    >>> compared = cf.compare_local_federated(cf.FederatedLasso(1.0, standardize=True), t.X, t.y, t.sites)
    >>> len(cf.plot_comparison(compared).axes) >= 2
    True
    """
    if hasattr(comparison, "traces") and hasattr(comparison, "unit"):
        column = {"rounds": "round", "bytes": "bytes_up"}.get(comparison.unit, str(comparison.unit))
        return plot_convergence(comparison, x=column, y=comparison.criterion.column, ax=ax)
    if not hasattr(comparison, "coefficients") or not hasattr(comparison, "own"):
        raise InputError(
            "plot_comparison takes the result of compare_methods or compare_local_federated; got "
            f"{type(comparison).__name__}."
        )
    if ax is None:
        return comparison_figure(comparison)
    with styled():
        _scores(ax, 4.0, comparison, next(iter(comparison.scores)), 0.12)
        ax.legend()
    return figure_and_axes(ax, 0, 0)[0]


def comparison_figure(c: SiteComparison) -> Figure:
    """Draw coefficients per standard deviation of their feature above held-out scores, site by site."""
    values, n = c.coefficients * c.scale[:, None], len(c.sites)
    size = np.abs(np.nan_to_num(values))
    used = np.flatnonzero(size.any(axis=1))
    order = used[np.lexsort((-size[used].max(axis=1), -size[used, -1]))][:MOST_FEATURES]
    heads = [*(f"{_site(site)}\nlocal, " for site in c.sites), *(f"{model}\n" for model in c.models[n:])]
    counts = np.count_nonzero(size, axis=0)
    titles = [head + (why or f"{k} used") for head, why, k in zip(heads, c.status, counts, strict=True)]
    note, left, zero = "circle: exactly zero", len(values) - len(order), len(values) - len(used)
    if left:
        note += f"; {left} more features, of which {zero} zero in every model"
    top, width = 1.4 + 0.17 * max(4, len(order)), 7.2 + 0.5 * max(0, min(len(c.models), NAMED_SITES) - 8)
    with styled():
        figure = blank(width, top + 2.5)
        above, below = figure.subfigures(2, 1, height_ratios=[top, 2.5], hspace=0.02, squeeze=False)[:, 0]
        names = [plain(shorten(c.features[j], 26)) for j in order]
        _draw_coefficients(above, values[order], names, titles, n)
        above.supxlabel(note, fontsize=8)
        _draw_scores(below, width / len(c.scores) - 1.0, c)
    return figure


def _draw_coefficients(figure: SubFigure, values: np.ndarray, names: list[str], titles: list[str], n: int) -> None:
    """Draw coefficients (features, models) as colours; n local models come first. The others set the scale."""
    ax = figure.subplots()
    largest = float(np.nanmax(np.abs(values[:, n:]), initial=0.0)) or 1.0
    beyond = bool((np.abs(np.nan_to_num(values)) > largest).any())
    image = ax.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    rows, columns = np.nonzero(values == 0)
    ax.scatter(columns, rows, facecolor="white", edgecolor=GREY, linewidth=0.8, s=14)
    ax.axvline(n - 0.5, color="black", linewidth=0.8)
    named = list(range(0 if n <= MOST_COLUMNS else n, len(titles)))
    turn, side = (0, "center") if n <= MOST_COLUMNS else (30, "left")
    ax.set_xticks(named, [titles[k] for k in named], fontsize=7, rotation=turn, ha=side)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.tick_params(length=0, top=False, labeltop=True, labelbottom=False)
    ax.grid(visible=False)
    label = "per standard deviation\nof the feature"
    figure.colorbar(image, ax=ax, extend="both" if beyond else "neither").set_label(label, fontsize=7)


def _draw_scores(figure: SubFigure, width: float, c: SiteComparison) -> None:
    """A panel per measure, `width` inches wide: the sites from left to right, then all of them together."""
    axes = figure.subplots(1, len(c.scores), squeeze=False)[0]
    for ax, measure in zip(axes, c.scores, strict=True):
        _scores(ax, width, c, measure, 0.25 if len(c.scores) > 1 or len(c.sites) > 8 else 0.12)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, handletextpad=0.2)


def _scores(ax: Axes, width: float, c: SiteComparison, measure: str, gap: float) -> None:
    """Held-out scores by one measure: the sites, then all of them together."""
    n, scores, own = len(c.sites), c.scores[measure], c.own[measure]
    named = n <= NAMED_SITES
    gap = gap if named else 0.0
    x = np.append(np.arange(n), n - 1 + max(1.3, 0.06 * n))
    order = np.append(np.arange(n) if named else np.argsort(np.nan_to_num(own[:-1], nan=-np.inf), kind="stable"), n)
    groups = zip([own, *scores[n:]], ["each site its own model", *c.models[n:]], (GREY, *JOINT), strict=False)
    for k, (values, label, colour) in enumerate(groups):
        ring = k == len(JOINT)  # the pooled model, around the federated dot: they should coincide
        ax.scatter(
            x + (-gap, 0, gap, gap)[k], np.where(np.isfinite(values), values, np.nan)[order], marker="sDoo"[k],
            s=(30 if named else 9) * (2.4 if ring else 0.8), linewidth=0.9 * ring, label=label, zorder=3 - ring,
            facecolor="none" if ring else colour, edgecolor=colour,
        )  # fmt: skip
    ax.axvline((x[-2] + x[-1]) / 2, color="#BBBBBB", linewidth=0.8)
    ax.set_xlim(-0.5, x[-1] + (x[-1] - x[-2]) * 0.4)
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(visible=False, axis="x")
    _name_sites(ax, width, x, c.sites)
    better = "\n(lower is better)" if "loss" in measure else ""
    ax.set_ylabel(f"held-out {measure.replace('^2', '²')}{better}", fontsize=8)


def _name_sites(ax: Axes, width: float, x: np.ndarray, sites: Sequence[str]) -> None:
    """Write the names of the sites below the axis, at an angle where they would overlap; of many sites only "all"."""
    if len(sites) > NAMED_SITES:
        ax.set_xticks(x[-1:], ["all"], fontsize=8)
        ax.set_xlabel(f"{len(sites)} sites, ordered by the score of their own model", fontsize=8)
        return
    names = [*map(_site, sites), "all"]
    crowded = (max(map(len, names)) + 1) * len(names) > LETTERS * width
    ax.set_xticks(x, names, fontsize=8, rotation=35 if crowded else 0, ha="right" if crowded else "center")


def _site(name: str) -> str:
    return f"site {name}" if name.isdigit() else plain(shorten(name, 14))
