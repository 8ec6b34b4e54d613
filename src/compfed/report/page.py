"""`write_report`: the result of a run as one HTML page that works offline, on a phone, in print and without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from compfed._utils.files import write_text
from compfed._utils.plain import Record
from compfed.errors import InputError
from compfed.report import html
from compfed.report.draw import static_svg
from compfed.report.plots import Part, Plot, bokeh_script, figure_html, plot_data
from compfed.report.run_result import read_result
from compfed.report.sections import contents

NAME = "report.html"


def write_report(run: Any, out: str | Path | None = None) -> Path:
    """Write the result of a run as one self-contained HTML page.

    The page works offline, on a phone and in print. It needs no JavaScript: tables and figures are in the page, and the script
    replaces the figures by interactive ones. These are drawn by bokeh (see `compfed.report.plots` for why), from a script
    inside the page. Nothing is loaded from anywhere; a content-security policy in the page says so to the browser.

    Parameters
    ----------
    run : path, fitted estimator, comparison or dict
        The folder of a run, a fitted estimator, the result of `compare_methods` or `compare_local_federated`, or a record as
        `compfed.report.run_result` describes it.
    out : path, optional
        The file to write; report.html in the folder of the run unless given.

    Returns
    -------
    path
        The file.

    Raises
    ------
    InputError
        If there is no result in the folder, or `out` is missing where there is no folder.

    Notes
    -----
    Figures need the extra `report` (matplotlib and bokeh). Without it the page has words and tables, and says how to
    install it.

    Examples
    --------
    >>> import tempfile
    >>> import compfed as cf
    >>> table = cf.data.bundled.diabetes()
    >>> model = cf.FederatedLasso(alpha=1.0).fit(table.X, table.y, sites=table.sites)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = cf.write_report(model, f"{folder}/diabetes.html").read_text(encoding="utf-8")
    >>> "Rehearsal: all rows were in this process." in page
    True
    """
    if isinstance(run, (str, Path)):
        record, folder = read_result(run), Path(run) if Path(run).is_dir() else Path(run).parent
    else:
        record, folder = run if isinstance(run, Mapping) else _record(run), None
    if out is None and folder is None:
        raise InputError("out is missing: give the name of the file to write, such as 'report.html'.")
    target = Path(out) if out is not None else Path(folder or ".") / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, page_text(record, folder))
    return target


def _record(run: Any) -> Record:
    to_result = getattr(run, "to_result", None)
    if not callable(to_result):
        raise InputError(
            f"write_report takes the folder of a run, a fitted estimator, a comparison or a dict; got {type(run).__name__}."
        )
    return to_result()  # pyright: ignore[reportReturnType]  # checked when it is read


def write_run_report(folder: Path) -> Path | None:
    """Write the report at the end of a run. A problem is printed, and never loses the run; returns None then."""
    try:
        return write_report(folder)
    except Exception as problem:  # a page never costs a run whose result is on the disk already
        what = str(problem) or type(problem).__name__
        print(f"The report was not written: {what} Try again: compfed report {folder}", file=sys.stderr)
        return None


def page_text(record: Record, folder: Path | None = None) -> str:
    """The page of a record; `folder` has the figures that a record refers to."""
    page = contents(record, folder)
    script = bokeh_script()
    plots = [plot for part in page.parts for plot in _plots(part)]
    live = script is not None and bool(plots)
    static = {plot.key: static_svg(plot) for plot in plots}
    inside = "".join(_part(part, static, live) for part in page.parts)
    if plots and not (live and all(static.values())):
        install = "Some figures are missing: bokeh or matplotlib is not installed. In a clone of compfed, run: pip install '.[report]'"
        inside = html.paragraph(install, "note") + inside
        print(install, file=sys.stderr)
    scripts, hashes = "", ["'none'"]
    if live:
        data = html.json_for_script([plot_data(plot) for plot in plots])
        own = files("compfed.report").joinpath("page.js").read_text(encoding="utf-8")
        scripts = (
            f'<script type="application/json" id="plots">{data}</script><script>{script}</script><script>{own}</script>'
        )
        hashes = [_hash(str(script)), _hash(own)]
    template = Template(files("compfed.report").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.text(page.title), lead=html.text(page.lead), contents=html.table_of_contents(inside), content=inside,
        footer=html.text(page.footer), scripts=scripts, hashes=" ".join(hashes),
    )  # fmt: skip


def _hash(script: str) -> str:
    """The script as a content-security policy allows it: by its hash, so that no other script runs."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _plots(part: Part) -> Sequence[Plot]:
    return [part] if isinstance(part, Plot) else list(part) if isinstance(part, tuple) else []


def _part(part: Part, static: Mapping[str, str], live: bool) -> str:
    if isinstance(part, str):
        return part
    figures = "".join(figure_html(plot, static[plot.key], live) for plot in _plots(part))
    return figures if isinstance(part, Plot) else f'<div class="pair">{figures}</div>'
