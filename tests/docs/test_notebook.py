"""An example of the gallery as a notebook, in a kernel of Jupyter: it runs, and figures show wherever they are made."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from places import ROOT

nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (extra dev)")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra dev)")
py_source_parser = pytest.importorskip("sphinx_gallery.py_source_parser")

EXAMPLE = ROOT / "examples" / "gallery" / "plot_01_four_hospitals.py"
MORE = [
    "for k in range(2):\n    cf.plot_coefficients(model)\nprint('two figures, and no expression')",
    "cf.plot_coefficients(model)",  # as the last expression, too: once
    "figure = cf.plot_convergence(model)\ncf.write_report(model, 'page.html')",  # a page's figures stay there
    "ax = plt.figure().subplots()\ncf.plot_convergence(model, ax=ax)\nplt.close('all')",  # the user's own figure is the user's
    "found = model.evaluate(table.federation())\nfound",
    "model.certificate_",
    "model.trace_",
    "model.communication_",
    "lasso.set_params(verbose=True).fit(table.X, table.y, sites=table.sites)\nNone",
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> list[Any]:
    """The cells of the example and those above, after they were run."""
    folder = tmp_path_factory.mktemp("notebook")
    blocks = py_source_parser.split_code_and_text_blocks(str(EXAMPLE))[1]
    made = [nbformat.v4.new_code_cell(text) for kind, text, _ in blocks if kind == "code"]
    book = nbformat.v4.new_notebook(cells=[*made, *map(nbformat.v4.new_code_cell, MORE)])
    client = nbclient.NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable  # of this environment, whatever "python3" is on the machine
    client.execute()
    return book.cells


def pictures(cell: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


def html(cell: Any) -> str:
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)


def printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def test_an_example_of_the_gallery_runs_as_a_notebook(cells):
    example = cells[: -len(MORE)]
    assert "certified: True" in "".join(map(printed, example))
    assert sum(map(pictures, example)) == 1  # pyplot's own


def test_figures_show_once_wherever_they_are_made(cells):
    loop, last, with_page, own, *_ = cells[-len(MORE) :]
    assert [pictures(cell) for cell in (loop, last, with_page, own)] == [2, 1, 1, 0]
    data = next(output.data for output in loop.outputs if "image/png" in output.get("data", {}))
    assert len(data["image/png"]) > 10_000


def test_records_are_tables_and_progress_is_a_bar(cells):
    evaluation, certificate, trace, communication, progress = cells[-5:]
    for cell, text in (
        (evaluation, "<th>AUC (ties count half)</th>"), (certificate, "Certified"), (trace, "<th>objective</th>"),
        (communication, "<th>Evaluate</th>"), (progress, "<progress "),
    ):  # fmt: skip
        assert text in html(cell)
