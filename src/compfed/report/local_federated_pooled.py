"""The figure of a comparison: coefficients model by model, zeros visible, above held-out scores site by site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compfed._utils.text import shorten
from compfed.report.figures import COLOURS, blank, plain, styled

GREY, ORANGE, BLUE, BLACK = "#7A7A7A", COLOURS[4], COLOURS[0], COLOURS[6]
JOINT = (ORANGE, BLUE, BLACK)  # of the three models over all sites, which come after the local ones
SHOWN = {"R^2": "R²", "D^2": "D²", "log loss": "log loss\n(lower is better)"}
MOST_PANELS = 5  # sites with a panel of their own; the coefficients of more are drawn over each other
MOST_FEATURES = 40  # shown, the largest in the pooled model first
NAMED_SITES = 20  # of more, scores are drawn without names
BEYOND = 2.0  # a coefficient this many times the largest of the joint models is cut off, and marked
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
) -> Any:
    """A matplotlib figure. `coefficients` (features, models) in comparable units, the sites' own models first."""
    order = _order(coefficients)
    panels = _panels(sites, models, status, coefficients)
    top = 0.9 + 0.17 * max(4, len(order))
    with styled():
        width = max(7.2, 1.6 + 1.15 * len(panels))
        figure = blank(width, top + 2.5)
        above, below = figure.subfigures(2, 1, height_ratios=[top, 2.5], hspace=0.02)
        cut = _draw_coefficients(above, panels, [str(features[j]) for j in order], order)
        above.supxlabel(_legend(coefficients, len(order), cut), fontsize=8)
        _draw_scores(below, width / len(scores) - 1.0, sites, models, scores, own)
    return figure


# --- coefficients ---

Panel = tuple[str, str, np.ndarray]  # title, colour, columns


def _order(coefficients: np.ndarray) -> np.ndarray:
    """Features that some model uses, from the largest pooled coefficient to the smallest."""
    size = np.abs(np.nan_to_num(coefficients))
    order = np.lexsort((-size.max(axis=1), -size[:, -1]))
    return order[size[order].any(axis=1)][:MOST_FEATURES]


def _legend(coefficients: np.ndarray, shown: int, cut: bool) -> str:
    used = int(np.nan_to_num(coefficients).any(axis=1).sum())
    text = "coefficient per standard deviation of the feature; hollow: exactly zero" + (
        "; arrow: further out" if cut else ""
    )
    if used > shown:
        text += f"; the {shown} largest of {used} that some model uses"
    zero = len(coefficients) - used
    return text + (f"\n{zero} more {'is' if zero == 1 else 'are'} zero in every model" if zero else "")


def _panels(sites: Sequence[str], models: Sequence[str], status: Sequence[str], values: np.ndarray) -> list[Panel]:
    n, used = len(sites), np.count_nonzero(np.nan_to_num(values), axis=0)
    remark = [
        f"{kind}{said or f'{count} used'}"
        for kind, said, count in zip(["local, "] * n + [""] * len(JOINT), status, used, strict=True)
    ]
    joint = [(f"{models[k]}\n{remark[k]}", JOINT[k - n], values[:, [k]]) for k in range(n, len(models))]
    if n > MOST_PANELS:
        known = used[:n][~np.isnan(values[:, :n]).any(axis=0)]
        title = f"{len(known)} local models\n" + (f"{known.min()} to {known.max()} used" if len(known) else "")
        return [(title, GREY, values[:, :n]), *joint]
    return [(f"{_site(site)}\n{remark[i]}", GREY, values[:, [i]]) for i, site in enumerate(sites)] + joint


def _draw_coefficients(figure: Any, panels: Sequence[Panel], names: Sequence[str], order: np.ndarray) -> bool:
    """Draw, and say whether a coefficient was too large for its panel."""
    all_values = [np.nan_to_num(values[order]) for *_, values in panels]
    # a local model with a coefficient far beyond all others must not flatten the rest
    cut = BEYOND * max(float(np.abs(v).max(initial=0.0)) for v in all_values[-len(JOINT) :]) or np.inf
    low = max(-cut, min(float(v.min(initial=0.0)) for v in all_values))
    high = min(cut, max(float(v.max(initial=0.0)) for v in all_values))
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for ax, (title, colour, values) in zip(axes, panels, strict=True):
        _coefficient_panel(ax, values[order], colour, low, high)
        ax.set_title(title, fontsize=8)
    axes[0].set_yticks(range(len(names)), [plain(shorten(name, 26)) for name in names], fontsize=8)
    axes[0].set_ylim(max(4, len(names)) - 0.4, -0.6)
    return any(bool(((v < low) | (v > high)).any()) for v in all_values)


def _coefficient_panel(ax: Any, values: np.ndarray, colour: str, low: float, high: float) -> None:
    rows = np.repeat(np.arange(len(values)), values.shape[1])
    v, many = values.ravel(), values.shape[1] > 1
    shown = np.clip(v, low, high)
    ax.axvline(0.0, color="#BBBBBB", linewidth=0.8, zorder=1)
    look: dict[str, Any] = {"s": 9 if many else 16, "alpha": 0.4 if many else 1.0, "linewidth": 0, "zorder": 3}
    for mask, marker in ((v == shown, "o"), (v > shown, ">"), (v < shown, "<")):
        mask = mask & (v != 0)
        ax.scatter(shown[mask], rows[mask], color=colour, marker=marker, **look)
        if not many:
            ax.hlines(rows[mask], 0.0, shown[mask], color=colour, linewidth=1.4)
    ax.scatter(v[v == 0], rows[v == 0], facecolor="white", edgecolor=colour, linewidth=0.8, s=14, zorder=4)
    pad = 0.12 * (high - low) or 1.0
    ax.set_xlim(low - pad, high + pad)
    ax.locator_params(axis="x", nbins=3)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="x", labelsize=7, length=2)
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="x")


# --- scores ---


def _draw_scores(
    figure: Any,
    width: float,
    sites: Sequence[str],
    models: Sequence[str],
    scores: dict[str, np.ndarray],
    own: dict[str, np.ndarray],
) -> None:
    axes = figure.subplots(1, len(scores), squeeze=False)[0]
    for ax, (measure, values) in zip(axes, scores.items(), strict=True):
        groups = [own[measure], *values[-len(JOINT) :]]
        gap = 0.25 if len(scores) > 1 or len(sites) > 8 else 0.12
        _score_panel(ax, groups, ["each site its own model", *models[-len(JOINT) :]], gap)
        _name_sites(ax, width, sites)
        ax.set_ylabel(f"held-out {SHOWN.get(measure) or plain(measure)}", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8, handletextpad=0.2)


def _positions(n: int) -> np.ndarray:
    """Of n sites, and further to the right of all of them together."""
    return np.append(np.arange(n), n - 1 + max(1.3, 0.06 * n))


def _score_panel(ax: Any, groups: Sequence[np.ndarray], labels: Sequence[str], gap: float) -> None:
    n = len(groups[0]) - 1
    named, x = n <= NAMED_SITES, _positions(n)
    order = np.arange(n) if named else np.argsort(np.nan_to_num(groups[0][:-1], nan=-np.inf), kind="stable")
    shifts = np.array([-1, 0, 1, 1]) * (gap if named else 0.0)
    for values, label, shift, colour, marker in zip(groups, labels, shifts, (GREY, *JOINT), "sDoo", strict=True):
        ring = label == labels[-1]  # around the federated dot: they are to coincide
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": colour} if ring else {"color": colour}
        size = (30 if named else 9) * (2.4 if ring else 0.8)
        shown = np.where(np.isfinite(values), values, np.nan)[np.append(order, n)]
        ax.scatter(x + shift, shown, marker=marker, s=size, linewidth=0.9 * ring, label=label, zorder=3 - ring, **look)
    ax.axvline((x[-2] + x[-1]) / 2, color="#BBBBBB", linewidth=0.8)
    ax.set_xlim(-0.5, x[-1] + (x[-1] - x[-2]) * 0.4)
    ax.tick_params(axis="y", labelsize=7)
    ax.grid(visible=False, axis="x")


def _name_sites(ax: Any, width: float, sites: Sequence[str]) -> None:
    x = _positions(len(sites))
    if len(sites) > NAMED_SITES:
        ax.set_xticks(x[-1:], ["all"], fontsize=8)
        ax.set_xlabel(f"{len(sites)} sites, ordered by the score of their own model", fontsize=8)
        return
    names = [*(_site(site) for site in sites), "all"]
    letters = np.array([len(name) + 1 for name in names])
    room = np.diff(x) * LETTERS * width / np.ptp(ax.get_xlim())
    crowded = ((letters[:-1] + letters[1:]) / 2 > room).any()
    turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    ax.set_xticks(x, names, fontsize=8, **turned)


def _site(name: str) -> str:
    return f"site {name}" if name.isdigit() else plain(shorten(name, 14))
