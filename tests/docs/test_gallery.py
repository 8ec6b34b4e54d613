"""The examples of the gallery: each runs without a warning and draws a figure. Their own asserts are the oracles."""

from __future__ import annotations

import ast
import re
import runpy

import matplotlib as mpl
import pytest
from places import ROOT

EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("*.py"))
QUICK = ("plot_01_four_hospitals", "plot_02_which_variables")  # a few seconds each
NEEDS = {"plot_03_words_and_blanks": "pandas", "plot_08_federation_on_this_laptop": "flwr"}


def _example(path):
    return pytest.param(path, id=path.stem, marks=[] if path.stem in QUICK else [pytest.mark.thorough])


@pytest.mark.parametrize("path", [_example(path) for path in EXAMPLES])
def test_an_example_runs_and_draws(path, monkeypatch):
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(len(plt.get_fignums())))
    try:
        runpy.run_path(str(path), run_name="__main__")
        for number in plt.get_fignums():
            plt.figure(number).canvas.draw()  # labels that cannot be laid out are a warning, hence an error
        assert shown
        assert min(shown) > 0
    finally:
        plt.close("all")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_the_format_of_the_gallery(path):
    """A title, what the reader learns, text between the code, and a name that sorts and that the site runs."""
    source = path.read_text(encoding="utf-8")
    title, underline, blank, first, *_ = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    assert re.fullmatch(r"plot_\d\d_[a-z_]+", path.stem)
    assert underline == "=" * len(title)
    assert (blank, first.split()[:2]) == ("", ["You", "learn"])
    assert source.count("\n# %%\n") >= 2
