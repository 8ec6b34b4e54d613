"""Figures show where they are made: in a script with `plt.show()`. Notebooks: tests/docs/test_notebook.py."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import compfed as cf
from compfed.report import showing
from compfed.report.style import blank

WITH_WINDOWS = """
import sys, types
import matplotlib
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

class Manager(FigureManagerBase):
    @classmethod
    def pyplot_show(cls, *, block=None):
        import matplotlib.pyplot as plt
        print("shown:", len(plt.get_fignums()), all(plt.figure(k).axes for k in plt.get_fignums()))

class Canvas(FigureCanvasAgg):
    manager_class = Manager

windows = types.ModuleType("windows")  # a backend that has windows
windows.FigureCanvas, windows.FigureManager = Canvas, Manager
sys.modules["windows"] = windows
matplotlib.use("module://windows")
import numpy as np
import compfed as cf
cf.plot_coefficients({"a": np.ones(3)})
import matplotlib.pyplot as plt
for _ in range(2):
    cf.plot_coefficients({"b": np.ones(3)}, names=list("abc"))
ax = plt.figure().subplots()
cf.plot_coefficients({"c": np.ones(3)}, ax=ax)
plt.show()
"""


def test_in_a_script_pyplot_shows_our_figures_with_its_own():
    """Those made after pyplot was imported: before, nobody asked for windows."""
    said = subprocess.run([sys.executable, "-c", WITH_WINDOWS], capture_output=True, text=True)
    assert said.stdout.splitlines()[-1:] == ["shown: 3 True"], said.stderr


def test_without_a_window_or_pyplot_nothing_is_kept(monkeypatch):
    figure = cf.plot_coefficients({"a": np.ones(3)})
    assert figure.canvas.manager is None
    assert showing._waiting == []


def test_figures_of_a_page_show_nowhere(monkeypatch):
    handed = []
    monkeypatch.setattr(showing, "_hand_on", handed.append)
    draw = showing.shown(lambda: blank(1, 1))
    with showing.unshown():
        draw()
    assert handed == []
    figure = draw()
    assert handed == [figure]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("a.png", ["a.png"]),
        ("a.PDF", ["a.pdf"]),
        ("a", ["a.svg", "a.png", "a.pdf"]),
        ("v0.1", ["v0.1.svg", "v0.1.png", "v0.1.pdf"]),
    ],
)
def test_a_figure_is_saved_under_the_name_that_was_given(name, files, tmp_path):
    assert [path.name for path in cf.save_figure(blank(1, 1), tmp_path / name)] == files
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
