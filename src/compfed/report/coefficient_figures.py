"""Figures of coefficients: a regularisation path, and several models side by side with their held-out scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np
import numpy.typing as npt

from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.report.figures import COLOURS, DASHES, blank, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# --- a regularisation path ---

NAMED = 10  # coefficients with a colour and a name, the largest on the path; all others are grey
COUNTS = 7  # places along the path where the number of non-zero coefficients is written


class RegularisationPath(Protocol):
    """The result of `regularisation_path`."""

    @property
    def alphas(self) -> np.ndarray: ...
    @property
    def coefs(self) -> np.ndarray: ...


class FittedCV(Protocol):
    """A fitted estimator that chose its alpha by cross-validation."""

    alphas_: np.ndarray
    coef_path_: np.ndarray
    cv_loss_: np.ndarray
    alpha_best_: float
    alpha_one_standard_error_: float


def plot_path(fitted: RegularisationPath | FittedCV, names: Sequence[str] | np.ndarray | None = None) -> Figure:
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
    if not hasattr(fitted, "coefs") and not hasattr(fitted, "coef_path_"):
        raise InputError(
            f"plot_path takes the result of regularisation_path or a fitted ...CV estimator; got {type(fitted).__name__}."
        )
    if not hasattr(fitted, "coef_path_"):
        path = cast("RegularisationPath", fitted)
        return path_figure(path.alphas, *_flat(path.coefs, names))
    model = cast("FittedCV", fitted)
    names = getattr(model, "feature_names_in_", None) if names is None else names
    loss, marks = model.cv_loss_, {"best": model.alpha_best_}
    error = None  # a single split has no standard error
    if loss.shape[1] > 1:
        error = loss.std(axis=1, ddof=1) / np.sqrt(loss.shape[1])
        marks["one standard error"] = model.alpha_one_standard_error_
    coefs, labels = _flat(model.coef_path_, names, getattr(model, "classes_", None))
    return path_figure(model.alphas_, coefs, labels, cv_mean=loss.mean(axis=1), cv_error=error, marks=marks)


def _flat(
    coefs: np.ndarray, names: Sequence[str] | np.ndarray | None, classes: np.ndarray | None = None
) -> tuple[np.ndarray, list[str]]:
    """One column per coefficient, and its name; with several outputs "class: feature"."""
    width = coefs.shape[-1]
    features = [f"feature {j}" for j in range(width)] if names is None else [str(name) for name in names]
    flat = coefs.reshape(len(coefs), -1)
    if flat.shape[1] == width:
        return flat, features
    outputs = range(flat.shape[1] // width) if classes is None else classes
    return flat, [f"{output}: {feature}" for output in outputs for feature in features]


def path_figure(
    alphas: npt.ArrayLike,
    coefs: npt.ArrayLike,
    names: Sequence[str] | None = None,
    *,
    cv_mean: np.ndarray | None = None,
    cv_error: np.ndarray | None = None,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Draw coefs (alphas, features) against alpha, on a log axis with the largest alpha to the left.

    The upper axis counts the coefficients that are not zero. With `cv_mean`, a second panel shows the held-out loss at each
    alpha, with a band of `cv_error` to either side. `marks` are vertical lines, such as {"best": 0.03}. alpha = 0 has
    no place on a log axis and is left out.
    """
    a, W = np.asarray(alphas, float), np.asarray(coefs, float)
    if a.ndim != 1 or W.ndim != 2 or len(a) != len(W) or (a > 0).sum() < 2:
        raise InputError(
            f"a path needs alphas of shape (k,), two of them above 0, and coefs of shape (k, features); got {a.shape} "
            f"and {W.shape}."
        )
    labels = [str(name) for name in (range(W.shape[1]) if names is None else names)]
    if len(labels) != W.shape[1]:
        raise InputError(f"names has {len(labels)} entries; there are {W.shape[1]} coefficients: give one for each.")
    order = np.argsort(-a)
    order = order[a[order] > 0]
    with styled():
        figure = blank(6.4, 3.6 if cv_mean is None else 5.6)
        axes = figure.subplots(1 if cv_mean is None else 2, 1, sharex=True, squeeze=False)[:, 0]
        _coefficients(axes[0], a[order], W[order], labels)
        if cv_mean is not None:
            _cross_validation(axes[1], a[order], cv_mean[order], None if cv_error is None else cv_error[order])
        handles = []
        for i, (name, alpha) in enumerate((marks or {}).items()):
            label = plain(f"{name}: alpha = {alpha:.3g}")
            style = {"color": "black", "linewidth": 1.0, "linestyle": ("--", ":", "-.")[i % 3], "label": label}
            handles.append([ax.axvline(alpha, **style) for ax in axes][-1])
        if handles:
            figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
        axes[-1].set_xlabel("alpha (largest to the left)")
    return figure


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


def _cross_validation(ax: Axes, alphas: np.ndarray, mean: np.ndarray, error: np.ndarray | None) -> None:
    if error is not None:
        ax.fill_between(alphas, mean - error, mean + error, color=COLOURS[0], alpha=0.2, linewidth=0)
    ax.plot(alphas, mean, color=COLOURS[0], linewidth=1.4, marker="o", markersize=2.5)
    ax.set_ylabel("held-out loss" if error is None else "held-out loss\n(mean ± standard error)")


# --- models side by side ---

GREY = "#7A7A7A"  # of the models of single sites
JOINT = (COLOURS[4], COLOURS[0], COLOURS[6])  # of the average, the federated and the pooled model, which come last
SHOWN = {"R^2": "R²", "D^2": "D²"}
MOST_COLUMNS = 6  # local models whose columns of coefficients are named
MOST_FEATURES = 40  # features shown, the largest in the last model first
NAMED_SITES = 20  # with more sites, scores are drawn without names
LETTERS = 15.0  # per inch


def comparison_figure(
    *,
    sites: Sequence[str],
    models: Sequence[str],
    status: Sequence[str],
    features: Sequence[str],
    coefficients: np.ndarray,
    scores: dict[str, np.ndarray],
    own: dict[str, np.ndarray],
) -> Figure:
    """Draw coefficients (features, models) in comparable units above held-out scores, site by site.

    The models of the sites come first, then those over all sites: the average, the federated and perhaps the pooled one.
    """
    order = _order(coefficients)
    top = 1.4 + 0.17 * max(4, len(order))
    width = 7.2 + 0.5 * max(0, min(len(models), NAMED_SITES) - 8)
    used = np.count_nonzero(np.nan_to_num(coefficients), axis=0)
    titles = [f"{_site(name)}\nlocal, {why or f'{k} used'}" for name, why, k in zip(sites, status, used, strict=False)]
    titles += [f"{models[k]}\n{status[k] or f'{used[k]} used'}" for k in range(len(sites), len(models))]
    with styled():
        figure = blank(width, top + 2.5)
        above, below = figure.subfigures(2, 1, height_ratios=[top, 2.5], hspace=0.02, squeeze=False)[:, 0]
        names = [plain(shorten(str(features[j]), 26)) for j in order]
        _draw_coefficients(above, coefficients[order], names, titles, len(sites))
        zero = int((~np.nan_to_num(coefficients).any(axis=1)).sum())
        left = f"; {len(coefficients) - len(order)} more features, of which {zero} zero in every model"
        note = "circle: exactly zero" + (left if len(order) < len(coefficients) else "")
        above.supxlabel(note, fontsize=8)
        _draw_scores(below, width / len(scores) - 1.0, sites, models, scores, own)
    return figure


def _order(coefficients: np.ndarray) -> np.ndarray:
    """Features that some model uses, from the largest coefficient of the last model to the smallest."""
    size = np.abs(np.nan_to_num(coefficients))
    order = np.lexsort((-size.max(axis=1), -size[:, -1]))
    return order[size[order].any(axis=1)][:MOST_FEATURES]


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


# --- scores ---


def _draw_scores(
    figure: SubFigure,
    width: float,
    sites: Sequence[str],
    models: Sequence[str],
    scores: dict[str, np.ndarray],
    own: dict[str, np.ndarray],
) -> None:
    axes = figure.subplots(1, len(scores), squeeze=False)[0]
    for ax, (measure, values) in zip(axes, scores.items(), strict=True):
        groups = [own[measure], *values[len(sites) :]]
        gap = 0.25 if len(scores) > 1 or len(sites) > 8 else 0.12
        _score_panel(ax, groups, ["each site its own model", *models[len(sites) :]], gap)
        _name_sites(ax, width, sites)
        better = "\n(lower is better)" if "loss" in measure else ""
        ax.set_ylabel(f"held-out {SHOWN.get(measure) or plain(measure)}{better}", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, handletextpad=0.2)


def _positions(n: int) -> np.ndarray:
    """Places of n sites, and further to the right of all of them together."""
    return np.append(np.arange(n), n - 1 + max(1.3, 0.06 * n))


def _score_panel(ax: Axes, groups: Sequence[np.ndarray], labels: Sequence[str], gap: float) -> None:
    n = len(groups[0]) - 1
    named, x = n <= NAMED_SITES, _positions(n)
    order = np.arange(n) if named else np.argsort(np.nan_to_num(groups[0][:-1], nan=-np.inf), kind="stable")
    shifts = np.array([-1, 0, 1, 1]) * (gap if named else 0.0)
    for k, (values, label, colour) in enumerate(zip(groups, labels, (GREY, *JOINT), strict=False)):
        ring = k == len(JOINT)  # the pooled model, around the federated dot: they should coincide
        size = (30 if named else 9) * (2.4 if ring else 0.8)
        shown = np.where(np.isfinite(values), values, np.nan)[np.append(order, n)]
        ax.scatter(
            x + shifts[k], shown, marker="sDoo"[k], s=size, linewidth=0.9 * ring, label=label, zorder=3 - ring,
            facecolor="none" if ring else colour, edgecolor=colour,
        )  # fmt: skip
    ax.axvline((x[-2] + x[-1]) / 2, color="#BBBBBB", linewidth=0.8)
    ax.set_xlim(-0.5, x[-1] + (x[-1] - x[-2]) * 0.4)
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(visible=False, axis="x")


def _name_sites(ax: Axes, width: float, sites: Sequence[str]) -> None:
    """Write the names of the sites below the axis, at an angle where they would overlap; of many sites only "all"."""
    x = _positions(len(sites))
    if len(sites) > NAMED_SITES:
        ax.set_xticks(x[-1:], ["all"], fontsize=8)
        ax.set_xlabel(f"{len(sites)} sites, ordered by the score of their own model", fontsize=8)
        return
    names = [*(_site(site) for site in sites), "all"]
    crowded = (max(map(len, names)) + 1) * len(names) > LETTERS * width
    ax.set_xticks(x, names, fontsize=8, rotation=35 if crowded else 0, ha="right" if crowded else "center")


def _site(name: str) -> str:
    return f"site {name}" if name.isdigit() else plain(shorten(name, 14))
