"""Figures of coefficients: a regularisation path, and several models side by side with their held-out scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.report.figures import COLOURS, DASHES, blank, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

    from compfed.estimators.path_and_cv import CrossValidated, Path
    from compfed.studies.compare_sites import SiteComparison

# --- a regularisation path ---

NAMED = 10  # coefficients with a colour and a name, the largest on the path; all others are grey
COUNTS = 7  # places along the path where the number of non-zero coefficients is written


def plot_path(fitted: Path | CrossValidated, names: Sequence[str] | np.ndarray | None = None) -> Figure:
    """Draw coefficients against alpha, and the cross-validation that chose one.

    Parameters
    ----------
    fitted : Path or fitted estimator
        The result of `regularisation_path`, or a fitted ``...CV`` estimator, whose held-out loss gets a second panel.
    names : sequence of str, optional
        Names of the features. A fitted estimator may know them.

    Returns
    -------
    matplotlib.figure.Figure

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
    order = np.argsort(-alphas)
    order = order[alphas[order] > 0]  # alpha = 0 has no place on a log axis
    if len(order) < 2:
        raise InputError(f"the figure of a path needs two alphas above 0; got {alphas}.")
    with styled():
        figure = blank(6.4, 5.6 if cross_validated else 3.6)
        axes = figure.subplots(2 if cross_validated else 1, 1, sharex=True, squeeze=False)[:, 0]
        _coefficients(axes[0], alphas[order], W[order], labels)
        if cross_validated:
            _cross_validation(figure, axes, found, order)
        axes[-1].set_xlabel("alpha (largest to the left)")
    return figure


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


def _coefficients(ax: Axes, alphas: np.ndarray, coefs: np.ndarray, names: Sequence[str]) -> None:
    """One line per coefficient; the largest ones have a colour and a name, in the order of their right ends."""
    size = np.abs(coefs).max(axis=0)
    chosen = [j for j in np.argsort(-size, kind="stable")[:NAMED] if size[j] > 0]
    ax.axhline(0.0, color="#BBBBBB", linewidth=0.8)
    ax.plot(alphas, np.delete(coefs, chosen, axis=1), color="#B5B5B5", linewidth=0.7)
    for k, j in enumerate(sorted(chosen, key=lambda j: -coefs[-1, j])):
        label, dash = plain(shorten(str(names[j]), 22)), DASHES[k // 8]
        ax.plot(alphas, coefs[:, j], color=COLOURS[k % 8], linestyle=dash, linewidth=1.3, label=label)
    if chosen:
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    ax.set_xscale("log")
    ax.set_xlim(alphas[0] * 1.05, alphas[-1])
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter(lambda value, _: "")
    ax.set_ylabel("coefficient")
    ax.margins(y=0.06)
    _count_above(ax, alphas, np.count_nonzero(coefs, axis=1))


def _count_above(ax: Axes, alphas: np.ndarray, counts: np.ndarray) -> None:
    places = np.unique(np.linspace(0, len(alphas) - 1, COUNTS).round().astype(int))
    above = ax.twiny()
    above.set_xscale("log")
    above.set_xlim(ax.get_xlim())
    above.set_xticks(alphas[places], [str(counts[k]) for k in places], fontsize=7.5)
    above.set_xticks([], minor=True)
    above.tick_params(length=2)
    above.grid(visible=False)
    above.set_xlabel("coefficients that are not zero", fontsize=8)


def _cross_validation(figure: Figure, axes: np.ndarray, model: CrossValidated, order: np.ndarray) -> None:
    """The held-out loss in the second panel, and lines through both at the alphas that the two rules choose."""
    alphas, loss = model.alphas_[order], model.cv_loss_[order]
    mean, marks, label = loss.mean(axis=1), {"best": model.alpha_best_}, "held-out loss"
    if loss.shape[1] > 1:  # a single split has no standard error
        error = loss.std(axis=1, ddof=1) / np.sqrt(loss.shape[1])
        axes[1].fill_between(alphas, mean - error, mean + error, color=COLOURS[0], alpha=0.2, linewidth=0)
        marks["one standard error"] = model.alpha_one_standard_error_
        label += "\n(mean ± standard error)"
    axes[1].plot(alphas, mean, color=COLOURS[0], linewidth=1.4, marker="o", markersize=2.5)
    axes[1].set_ylabel(label)
    handles = []
    for (name, alpha), dash in zip(marks.items(), ("--", ":"), strict=False):
        style = {"color": "black", "linewidth": 1.0, "linestyle": dash, "label": f"{name}: alpha = {alpha:.3g}"}
        handles.append([ax.axvline(alpha, **style) for ax in axes][-1])
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)


# --- models side by side ---

GREY = "#7A7A7A"  # of the models of single sites
JOINT = (COLOURS[4], COLOURS[0], COLOURS[6])  # of the average, the federated and the pooled model, which come last
MOST_COLUMNS = 6  # local models whose columns of coefficients are named
MOST_FEATURES = 40  # features shown, the largest in the last model first
NAMED_SITES = 20  # with more sites, scores are drawn without names
LETTERS = 15.0  # per inch


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
    n = len(c.sites)
    named = n <= NAMED_SITES
    x = np.append(np.arange(n), n - 1 + max(1.3, 0.06 * n))
    gap = (0.25 if len(c.scores) > 1 or n > 8 else 0.12) if named else 0.0
    axes = figure.subplots(1, len(c.scores), squeeze=False)[0]
    for ax, (measure, scores) in zip(axes, c.scores.items(), strict=True):
        own = c.own[measure]
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
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, handletextpad=0.2)


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
