"""The figure of a regularisation path: coefficients against alpha, and the cross-validation that chose one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compfed._utils.text import shorten
from compfed.errors import InputError
from compfed.report.figures import COLOURS, DASHES, blank, plain, styled

NAMED = 10  # coefficients with a colour and a name, the largest on the path; all others are grey
COUNTS = 7  # places along the path where the number of non-zero coefficients is given


def plot_path(fitted: Any, names: Sequence[str] | np.ndarray | None = None) -> Any:
    """The figure of a path: of what `regularisation_path` returned, or of a fitted estimator that chose its alpha.

    `names` are those of the features; a fitted estimator may know them itself.

    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> path = cf.regularisation_path(cf.FederatedLasso(), table.X, table.y, table.sites, n_alphas=5)
    >>> figure = cf.plot_path(path, names=table.feature_names)
    >>> [ax.get_ylabel() for ax in figure.axes][0]
    'coefficient'
    """
    if hasattr(fitted, "coefs"):
        return path_figure(fitted.alphas, *_flat(fitted.coefs, names, None))
    if not hasattr(fitted, "coef_path_"):
        raise InputError(
            f"plot_path takes the result of regularisation_path or a fitted ...CV estimator; got {type(fitted).__name__}."
        )
    names = getattr(fitted, "feature_names_in_", None) if names is None else names
    loss, marks = fitted.cv_loss_, {"best": fitted.alpha_best_}
    error = None  # of a single split nothing is known
    if loss.shape[1] > 1:
        error = loss.std(axis=1, ddof=1) / np.sqrt(loss.shape[1])
        marks["one standard error"] = fitted.alpha_one_standard_error_
    coefs, labels = _flat(fitted.coef_path_, names, fitted)
    return path_figure(fitted.alphas_, coefs, labels, cv_mean=loss.mean(axis=1), cv_error=error, marks=marks)


def _flat(coefs: np.ndarray, names: Any, fitted: Any) -> tuple[np.ndarray, list[str]]:
    """One column per coefficient, and its name; with several outputs "class: feature"."""
    coefs = np.asarray(coefs)
    width = coefs.shape[-1]
    features = [f"feature {j}" for j in range(width)] if names is None else [str(name) for name in names]
    outputs = coefs.shape[1] if coefs.ndim == 3 else 1
    if outputs == 1:
        return coefs.reshape(len(coefs), width), features
    classes = getattr(fitted, "classes_", range(outputs))
    return coefs.reshape(len(coefs), -1), [f"{c}: {feature}" for c in classes for feature in features]


def path_figure(
    alphas: Any,
    coefs: Any,
    names: Sequence[str] | None = None,
    *,
    cv_mean: Any = None,
    cv_error: Any = None,
    marks: dict[str, float] | None = None,
) -> Any:
    """A matplotlib figure of coefs (alphas, features) against alpha, on a log axis with the largest alpha to the left.

    Above it the number of coefficients that are not zero. With `cv_mean`, a second panel: the held-out loss at each
    alpha, with a band of `cv_error` to either side. `marks` are vertical lines, such as {"best": 0.03}. alpha = 0 has
    no place on a log axis and is left out.
    """
    a, W = _checked(alphas, coefs)
    labels = [str(j) for j in range(W.shape[1])] if names is None else [str(name) for name in names]
    if len(labels) != W.shape[1]:
        raise InputError(f"names has {len(labels)} entries; there are {W.shape[1]} coefficients: give one for each.")
    order = np.argsort(-a)
    order = order[a[order] > 0]
    with styled():
        figure = blank(6.4, 3.6 if cv_mean is None else 5.6)
        axes = figure.subplots(1 if cv_mean is None else 2, 1, sharex=True, squeeze=False)[:, 0]
        _coefficients(axes[0], a[order], W[order], labels)
        if cv_mean is not None:
            error = np.zeros(len(a)) if cv_error is None else np.asarray(cv_error, float)
            _cross_validation(axes[1], a[order], np.asarray(cv_mean, float)[order], error[order])
        for i, (name, alpha) in enumerate((marks or {}).items()):
            for ax in axes:
                ax.axvline(
                    alpha, color="black", linewidth=1.0, linestyle=("--", ":", "-.")[i % 3], label=_mark(name, alpha)
                )
        if marks:
            handles = [line for line in axes[-1].get_lines() if line.get_label() in {_mark(*m) for m in marks.items()}]
            figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)
        axes[-1].set_xlabel("alpha (largest to the left)")
    return figure


def _checked(alphas: Any, coefs: Any) -> tuple[np.ndarray, np.ndarray]:
    a, W = np.asarray(alphas, float), np.asarray(coefs, float)
    if a.ndim != 1 or W.ndim != 2 or len(a) != len(W) or (a > 0).sum() < 2:
        raise InputError(
            f"a path needs alphas of shape (k,), two of them above 0, and coefs of shape (k, features); got {a.shape} "
            f"and {W.shape}."
        )
    return a, W


def _mark(name: str, alpha: float) -> str:
    return plain(f"{name}: alpha = {alpha:.3g}")


def _coefficients(ax: Any, alphas: np.ndarray, coefs: np.ndarray, names: Sequence[str]) -> None:
    size = np.abs(coefs).max(axis=0)
    chosen = [j for j in np.argsort(-size, kind="stable")[:NAMED] if size[j] > 0]
    ax.axhline(0.0, color="#BBBBBB", linewidth=0.8)
    ax.plot(alphas, np.delete(coefs, chosen, axis=1), color="#B5B5B5", linewidth=0.7)
    for k, j in enumerate(chosen):
        ax.plot(alphas, coefs[:, j], color=COLOURS[k % 8], linestyle=DASHES[k // 8], linewidth=1.3)
    ax.set_xscale("log")
    ax.set_xlim(alphas[0] * 1.05, alphas[-1])
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter(lambda value, _: "")
    ax.set_ylabel("coefficient")
    ax.margins(y=0.06)
    _name_lines(ax, [coefs[-1, j] for j in chosen], [str(names[j]) for j in chosen])
    _count_above(ax, alphas, np.count_nonzero(coefs, axis=1))


def _name_lines(ax: Any, ends: Sequence[float], names: Sequence[str]) -> None:
    """Names at the right ends of their lines, moved apart where they would overlap."""
    low, high = ax.get_ylim()
    for k, place in enumerate(_apart(np.array(ends, float), (high - low) / 14, low, high)):
        ax.annotate(
            plain(shorten(names[k], 22)), (1.0, ends[k]), xycoords=("axes fraction", "data"), xytext=(1.035, place),
            textcoords=("axes fraction", "data"), va="center", fontsize=7.5, color=COLOURS[k % 8], annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": COLOURS[k % 8], "linewidth": 0.5, "shrinkA": 0, "shrinkB": 0, "relpos": (0, 0.5)},
        )  # fmt: skip


def _apart(places: np.ndarray, room: float, low: float, high: float) -> np.ndarray:
    """Places moved as little as need be for gaps of at least `room` between low and high."""
    order = np.argsort(places, kind="stable")
    placed = places[order]
    for _ in range(200):
        overlap = np.maximum(0.0, room - np.diff(placed)) / 2
        placed[:-1] -= overlap
        placed[1:] += overlap
        placed = np.clip(placed, low, high)
    return placed[np.argsort(order)]


def _count_above(ax: Any, alphas: np.ndarray, counts: np.ndarray) -> None:
    places = np.unique(np.linspace(0, len(alphas) - 1, COUNTS).round().astype(int))
    above = ax.twiny()
    above.set_xscale("log")
    above.set_xlim(ax.get_xlim())
    above.set_xticks(alphas[places], [str(counts[k]) for k in places], fontsize=7.5)
    above.set_xticks([], minor=True)
    above.tick_params(length=2)
    above.grid(visible=False)
    above.set_xlabel("coefficients that are not zero", fontsize=8)


def _cross_validation(ax: Any, alphas: np.ndarray, mean: np.ndarray, error: np.ndarray) -> None:
    ax.fill_between(alphas, mean - error, mean + error, color=COLOURS[0], alpha=0.2, linewidth=0)
    ax.plot(alphas, mean, color=COLOURS[0], linewidth=1.4, marker="o", markersize=2.5)
    ax.set_ylabel("held-out loss" if not error.any() else "held-out loss\n(mean ± standard error)")
