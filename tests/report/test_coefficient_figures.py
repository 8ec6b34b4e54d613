"""The figure of a path shows the numbers it was given."""

from __future__ import annotations

import html
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest

from compfed.errors import InputError
from compfed.report.coefficient_figures import comparison_figure, plot_path

ALPHAS = np.geomspace(1.0, 0.01, 9)
COEFS = np.maximum(0.0, np.outer(1 - ALPHAS, np.arange(1, 13)) - 3.0)


def path_of(alphas=ALPHAS, coefs=COEFS) -> Any:
    return SimpleNamespace(alphas=np.asarray(alphas), coefs=np.asarray(coefs))


def test_every_coefficient_is_a_line_from_the_largest_alpha_to_the_smallest():
    shuffled = np.random.default_rng(0).permutation(9)
    axes: Any = plot_path(path_of(ALPHAS[shuffled], COEFS[shuffled]), names=list("abcdefghijkl")).axes
    lines = [line for line in axes[0].get_lines() if len(line.get_xdata()) == 9]
    np.testing.assert_array_equal(sorted(line.get_ydata()[-1] for line in lines), COEFS[-1])
    for line in lines:
        np.testing.assert_array_equal(line.get_xdata(), ALPHAS)
    left, right = axes[0].get_xlim()
    assert left > right
    named = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert named == list("lkjihgfed")  # as the lines end, from above; the first three are zero throughout


def test_the_axis_above_counts_coefficients_that_are_not_zero():
    above = plot_path(path_of()).axes[-1]
    for alpha, label in zip(above.get_xticks(), above.get_xticklabels(), strict=True):
        assert int(label.get_text()) == np.count_nonzero(COEFS[np.argmin(np.abs(ALPHAS - alpha))])


def test_marks_and_cross_validation():
    mean, error = (np.log10(ALPHAS) + 1) ** 2, np.full(9, 0.1)
    loss = mean[:, None] + 0.1 * np.sqrt(4) * np.array([-1, -1, 1, 1]) * np.sqrt(3 / 4)  # whose standard error is 0.1
    model: Any = SimpleNamespace(
        alphas_=ALPHAS, coef_path_=COEFS, cv_loss_=loss, alpha_best_=0.1, alpha_one_standard_error_=0.3
    )
    figure: Any = plot_path(model)
    curve = figure.axes[1].get_lines()[0]
    np.testing.assert_allclose(curve.get_ydata(), mean, atol=1e-15)
    band = figure.axes[1].collections[0].get_paths()[0].vertices
    np.testing.assert_allclose([band[:, 1].min(), band[:, 1].max()], [(mean - error).min(), (mean + error).max()])
    for ax in figure.axes[:2]:
        assert [line.get_xdata()[0] for line in ax.get_lines() if len(line.get_xdata()) == 2][-2:] == [0.1, 0.3]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["best: alpha = 0.1", "one standard error: alpha = 0.3"]


def test_alpha_zero_is_left_out():
    figure: Any = plot_path(path_of(np.append(ALPHAS, 0.0), np.vstack([COEFS, COEFS[-1]])))
    assert all(len(line.get_xdata()) in (2, 9) for line in figure.axes[0].get_lines())


@pytest.mark.parametrize(
    ("alphas", "coefs", "names", "message"),
    [([0.1], [[1.0]], None, "two alphas above 0"), (ALPHAS, COEFS, ["a"], "1 entries")],
)
def test_mistakes_are_named(alphas, coefs, names, message):
    with pytest.raises(InputError, match=message):
        plot_path(path_of(alphas, coefs), names=names)


def test_names_are_drawn_as_they_are_also_by_who_saves_the_figure(tmp_path):
    """A name with a $ is no formula, and one that begins with _ is shown, whatever matplotlib's settings are by then."""
    alphas, names = np.array([1.0, 0.5, 0.1]), ["$a$ and $", "_b", "two\nlines"]
    path = plot_path(path_of(alphas, np.outer([0.0, 1.0, 2.0], [1.0, -2.0, 3.0])), names)
    rng = np.random.default_rng(0)
    models = ["$n$ $", "_s", "average", "federated", "pooled"]
    compared: Any = SimpleNamespace(
        sites=["$n$ $", "_s"], models=models, status=[""] * 5, features=names, coefficients=rng.standard_normal((3, 5)),
        scale=np.ones(3), scores={"R^2": rng.random((5, 3))}, own={"R^2": rng.random(3)},
    )  # fmt: skip
    for number, (figure, shown) in enumerate(
        [(path, [*names[:2], "two lines"]), (comparison_figure(compared), ["$n$ $", "_s"])]
    ):
        with matplotlib.rc_context({"svg.fonttype": "none"}):
            figure.savefig(tmp_path / f"{number}.svg")
        text = html.unescape((tmp_path / f"{number}.svg").read_text(encoding="utf-8"))
        assert all(name in text for name in shown)
