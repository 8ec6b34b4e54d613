"""The style of figures: colours that colour-blind readers and greyscale keep apart, and lines that hold the given numbers."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import compfed as cf
from compfed.errors import InputError
from compfed.report.coefficient_figures import group_style
from compfed.report.style import COLOURS, DASHES, MARKERS, line_style

# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision deficiency", IEEE TVCG 2009: the
# matrices of severity 1, for linear RGB.
BLINDNESS = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
# of sRGB (IEC 61966-2-1)
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, matrix: Any = None) -> np.ndarray:
    """CIE L*, a*, b* of a colour, as a colour-blind reader sees it if a matrix is given."""
    rgb = np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    if matrix is not None:
        linear = np.clip(np.asarray(matrix) @ linear, 0, 1)
    x, y, z = TO_XYZ @ linear / TO_XYZ.sum(axis=1)
    f = [np.cbrt(v) if v > (6 / 29) ** 3 else v / (3 * (6 / 29) ** 2) + 4 / 29 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_lightness_of_black_white_and_grey():
    np.testing.assert_allclose([lab(c)[0] for c in ("#000000", "#FFFFFF", "#777777")], [0, 100, 50.03], atol=0.05)


def test_the_first_four_colours_stay_apart_in_greyscale():
    light = [lab(c)[0] for c in COLOURS]
    assert min(abs(a - b) for a, b in itertools.combinations(light[:4], 2)) >= 10
    assert max(light) <= 75  # no line is too light for white paper


def test_local_average_federated_and_pooled_stay_apart_in_greyscale():
    roles = [group_style(name, 0) for name in ("each site alone", "average of local", "federated", "pooled")]
    light = sorted(lab(colour)[0] for colour, _ in roles)
    assert min(np.diff(light)) >= 10
    assert len({marker for _, marker in roles}) == 4


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colour_blind_readers_tell_the_lines_apart(kind):
    """By colour (CIE76 distance 10; 2.3 is just noticeable), or by dash and marker."""
    seen = [lab(colour, BLINDNESS[kind]) for colour in COLOURS]
    for i, j in itertools.combinations(range(4), 2):
        assert np.linalg.norm(seen[i] - seen[j]) >= 10
    close = [(i, j) for i, j in itertools.combinations(range(8), 2) if np.linalg.norm(seen[i] - seen[j]) < 10]
    for i, j in close:
        assert DASHES[i] != DASHES[j]
        assert MARKERS[i] != MARKERS[j]


def test_sixty_four_lines_have_styles_of_their_own():
    assert len({str(line_style(k)) for k in range(64)}) == 64


# --- the numbers in the figures ---


def trace_of(values: np.ndarray, **columns: np.ndarray) -> cf.Trace:
    return cf.Trace({"round": np.arange(len(values)), "gradient_mapping": values, **columns}, np.zeros(1))


def test_convergence_lines_are_the_columns_of_the_traces():
    rng = np.random.default_rng(0)
    seeds = [trace_of(rng.random(20), bytes_up=np.arange(20) * 8.0) for _ in range(5)]
    single = trace_of(0.5 ** np.arange(20), bytes_up=np.arange(20) * 4.0)
    figure: Any = cf.plot_convergence({"five seeds": seeds, "one": single}, x="bytes_up")
    first, second = figure.axes[0].get_lines()
    np.testing.assert_array_equal(first.get_xdata(), seeds[0]["bytes_up"])
    np.testing.assert_array_equal(first.get_ydata(), np.median([t["gradient_mapping"] for t in seeds], axis=0))
    np.testing.assert_array_equal(second.get_ydata(), single["gradient_mapping"])
    assert figure.axes[0].get_yscale() == "log"
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["five seeds", "one"]


def test_every_figure_draws_on_the_axes_that_are_given(tmp_path):
    alphas = np.geomspace(1, 0.01, 5)
    path: Any = SimpleNamespace(alphas=alphas, coefs=np.outer(1 - alphas, [1.0, 0.0]))
    cv: Any = SimpleNamespace(
        alphas_=alphas, cv_loss_=np.ones((5, 2)), alpha_best_=0.1, alpha_one_standard_error_=np.nan
    )
    methods: Any = SimpleNamespace(
        traces={"a": trace_of(np.ones(3))}, unit="rounds", criterion=SimpleNamespace(column="gradient_mapping")
    )
    draws = [
        lambda ax: cf.plot_path(path, ax=ax), lambda ax: cf.plot_cv(cv, ax=ax), lambda ax: cf.plot_coefficients([1.0, 0.0], ax=ax),
        lambda ax: cf.plot_convergence(trace_of(np.ones(3)), ax=ax), lambda ax: cf.plot_comparison(methods, ax=ax),
    ]  # fmt: skip
    figure = Figure()
    for k, draw in enumerate(draws):
        ax = figure.add_subplot(1, len(draws), k + 1)
        assert draw(ax) is figure
        assert ax.has_data()
    written = cf.save_figure(figure, tmp_path / "all.of.them")
    assert [path.name for path in written] == ["all.of.them.svg", "all.of.them.png", "all.of.them.pdf"]
    assert written[1].read_bytes()[:4] == b"\x89PNG"
    assert written[2].read_bytes()[:4] == b"%PDF"


def test_coefficients_are_where_they_belong_and_zeros_are_hollow():
    local, federated = np.array([2.0, 0.0, -1.0]), np.array([1.0, 0.0, -3.0])
    figure = cf.plot_coefficients(
        {"local": local, "federated": federated}, names=["a", "b", "c"], scale=[1.0, 1.0, 2.0]
    )
    ax: Any = figure.axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["c", "a"]  # by size in the last; b is zero in both
    drawn = {}
    for points in ax.collections:
        white = np.allclose(points.get_facecolor()[:, :3], 1.0) if len(points.get_offsets()) else None
        drawn.setdefault(white, []).extend(np.asarray(points.get_offsets())[:, 0].tolist())
    assert sorted(drawn[False]) == [-6.0, -2.0, 1.0, 2.0]
    assert "1 more, of which 1 zero in every model" in ax.get_xlabel()


def test_a_zero_in_one_model_is_a_hollow_marker_at_zero():
    figure: Any = cf.plot_coefficients({"local": [2.0, 0.5], "federated": [1.0, 0.0]}, names=["a", "b"])
    hollow = [
        np.asarray(p.get_offsets())
        for p in figure.axes[0].collections
        if len(p.get_offsets()) and np.allclose(p.get_facecolor()[:, :3], 1.0)
    ]
    assert len(hollow) == 1
    assert hollow[0][0, 0] == 0.0
    assert round(hollow[0][0, 1]) == 1  # the row of b


def test_held_out_loss_is_the_mean_over_the_splits():
    alphas, loss = np.geomspace(1, 0.01, 5), np.random.default_rng(0).random((5, 3))
    model: Any = SimpleNamespace(alphas_=alphas, cv_loss_=loss, alpha_best_=0.1, alpha_one_standard_error_=0.3)
    ax: Any = cf.plot_cv(model).axes[0]
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), loss.mean(axis=1))
    assert [line.get_xdata()[0] for line in ax.get_lines()[1:]] == [0.1, 0.3]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: cf.plot_convergence(3), "got int"),
        (lambda: cf.plot_convergence({}), "got dict"),
        (lambda: cf.plot_convergence({"a": []}), "no trace under a"),
        (lambda: cf.plot_convergence(trace_of(np.ones(2)), x="bytes"), "no column 'bytes'"),
        (lambda: cf.plot_cv(cf.FederatedLasso()), "no cv_loss_"),  # pyright: ignore[reportArgumentType]  # the mistake
        (lambda: cf.plot_coefficients({}), "empty dict"),
        (lambda: cf.plot_coefficients({"a": [1.0], "b": [1.0, 2.0]}), "same features"),
        (lambda: cf.plot_comparison(3), "got int"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
