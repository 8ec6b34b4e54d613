"""What a report of files says: for whom, how it was done, and how to run it again; and one description for both renderers."""

from __future__ import annotations

import csv
import hashlib
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import compfed as cf
from compfed.cli import main
from compfed.report.coefficient_figures import cv_plot, path_marks, path_plot
from compfed.report.draw import figure_of, static_svg
from compfed.report.evaluation_figure import calibration_plot, roc_by_site
from compfed.report.page import page_text
from compfed.report.plots import Plot, Series, plot_data
from compfed.report.run_result import read_result
from compfed.report.style import styled
from compfed.report.words import fit_title, goodness, methods_paragraph, ratio_text, table_sentences, variables

SITES = {"rome": 60, "oslo": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run folder of two files with words and blanks, and the files."""
    home = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    for name, rows in SITES.items():
        with (home / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "sex", "died"])
            for k in range(rows):
                age = int(rng.integers(30, 90))
                writer.writerow(["" if k % 10 == 0 else age, "fm"[k % 2], "yes" if rng.random() < age / 120 else "no"])
    files = [str(home / f"{name}.csv") for name in SITES]
    model = ["--label", "died", "--model", "logistic", "--alpha", "0.01"]
    assert main(["fit", *files, *model, "--out", str(home / "run")]) == 0
    return home


@pytest.fixture(scope="module")
def page(folder) -> str:
    return (folder / "run" / "report.html").read_text(encoding="utf-8")


def cells(page: str, row: str) -> list[str]:
    found = re.search(rf'<th scope="row">{re.escape(row)}</th>(.*?)</tr>', page)
    assert found is not None, row
    return re.findall(r"<td>(.*?)</td>", found[1])


def test_the_contents_lead_to_every_heading(page):
    links = re.findall(r'<li><a href="#([^"]+)">([^<]+)</a></li>', page)
    headings = re.findall(r'<h2 id="([^"]+)">([^<]+)</h2>', page)
    assert links == headings
    assert {"the-table", "coefficients", "evaluation", "methods", "provenance"} <= {name for name, _ in links}


def test_table_1_counts_the_rows_of_the_files(folder, page):
    """The oracle counts in the files themselves."""
    tables = {}
    for name in SITES:
        with (folder / f"{name}.csv").open() as file:
            tables[name] = list(csv.DictReader(file))
    assert cells(page, "· f")[:3] == [
        f"{count} ({count / rows:.1%})".replace("%", "")
        for table in ([row for table in tables.values() for row in table], *tables.values())
        for count, rows in [(sum(row["sex"] == "f" for row in table), len(table))]
    ]
    blank = sum(row["age"] == "" for table in tables.values() for row in table)
    assert cells(page, "· missing, n (%)")[0].startswith(f"{blank} ")


def test_the_files_are_named_with_their_hashes(folder, page):
    for name in SITES:
        content = (folder / f"{name}.csv").read_bytes()
        assert cells(page, str(folder / f"{name}.csv"))[1] == hashlib.sha256(content).hexdigest()


def test_a_threshold_is_named_and_the_strength_is_that_of_the_coefficient(folder, page):
    assert "sensitivity at a predicted risk of 0.5" in page
    coef = dict(
        zip(read_result(folder / "run")["features"], np.ravel(read_result(folder / "run")["coef"]), strict=True)
    )
    ratio = re.search(r"age \(odds ratio ([0-9.]+) per unit\)", page)
    assert ratio is not None
    np.testing.assert_allclose(float(ratio[1]), np.exp(coef["age"]), rtol=1e-3)


def test_the_methods_say_what_was_done_and_no_more(folder):
    record = read_result(folder / "run")
    said = methods_paragraph(record)
    for part in (
        "110 rows of 2 sites (rome, oslo)",
        "event: died = yes",
        "sex: f",
        "age, 11 of 110",
        "alpha, was 0.01",
        "not scaled",
    ):
        assert part in said
    assert "cross-validation over" not in said  # alpha was given
    assert "All rows were read by one process." in said
    assert "were not penalised" in methods_paragraph(record | {"alpha": 0})
    assert methods_paragraph({"kind": "fit"}) == "A model was fitted."


def test_bytes_are_explained_by_the_numbers_sent(folder, page):
    record = read_result(folder / "run")
    numbers = round(record["communication"]["bytes_up"] / 8)
    assert f"That is about {numbers:,} numbers (64 bits a number)" in page
    assert f"The table of an average site has {110 // 2 * 3:,} numbers." in page


def test_wide_rounding_bounds_are_shown_in_place_of_their_middle():
    auc = {"value": 0.6, "rounding_low": 0.3, "rounding_high": 0.9}
    bare: Any = {"kind": "fit", "features": ["a"], "coef": [[1.0]], "intercept": [0.0], "evaluation": {"auc": auc}}
    assert goodness(bare)[0] == "AUC: between 0.300 and 0.900."
    assert ">0.600<" not in page_text(bare)
    curve = {f"{kind}_{end}": [0.5] for kind in ("predicted",) for end in ("low", "high")}
    wide = calibration_plot(curve | {"observed_low": [0.0], "observed_high": [1.0]}, "")
    assert [series.kind for series in wide.series] == ["ruler", "band"]


# --- one description, two renderers ---

ALPHAS = np.geomspace(1.0, 0.01, 9)
COEFS = np.maximum(0.0, np.outer(1 - ALPHAS, np.arange(1, 4)))
MODEL: Any = SimpleNamespace(
    alphas_=ALPHAS, coef_path_=COEFS, cv_loss_=np.add.outer((np.log10(ALPHAS) + 1) ** 2, [0.0, 0.2]), alpha_=0.3,
    alpha_best_=0.1, alpha_one_standard_error_=0.3,
)  # fmt: skip


@pytest.mark.parametrize(
    "plot", [path_plot(ALPHAS, COEFS, ["a", "b", "c"], path_marks(MODEL)), cv_plot(MODEL)], ids=["path", "cv"]
)
def test_both_renderers_have_the_numbers_of_the_description(plot):
    pytest.importorskip("bokeh")
    with styled():
        ax = figure_of(plot).axes[0]
    lines = [(line.get_xdata(), line.get_ydata()) for line in ax.get_lines()]
    described = [series for series in plot.series if series.kind != "band"]
    assert len(lines) == len(described)
    for (x, y), series in zip(lines, described, strict=True):
        np.testing.assert_array_equal(x, series.columns["x"])
        np.testing.assert_array_equal(y, series.columns["y"])
    for sent, series in zip(plot_data(plot)["series"], plot.series, strict=True):
        for name, values in series.columns.items():
            np.testing.assert_allclose(sent["columns"][name], np.asarray(values, float), rtol=1e-5, atol=1e-12)


def test_the_alpha_that_was_taken_is_marked():
    assert [mark.label for mark in path_marks(MODEL)] == [
        "best: alpha = 0.1",
        "one standard error, chosen: alpha = 0.3",
    ]
    other = SimpleNamespace(**{**vars(MODEL), "alpha_": 0.05})
    assert [mark.name for mark in path_marks(other)] == ["best", "one standard error", "chosen"]


def test_every_site_has_a_curve_and_the_middle_of_bounds_lies_between_them():
    ends = {
        "false_positive_low": [0.1],
        "false_positive_high": [0.3],
        "true_positive_low": [0.5],
        "true_positive_high": [0.9],
    }
    exact = {name: [0.2 if "false" in name else 0.7] for name in ends}
    plot = roc_by_site({"a": {"roc": exact}, "b": {"roc": ends}, "c": {}}, "")
    assert plot is not None
    assert [series.legend for series in plot.series] == [None, "a", "b"]
    np.testing.assert_allclose(plot.series[1].columns["y"], [0, 0.7, 1])
    middle = np.interp(0.2, plot.series[2].columns["x"], plot.series[2].columns["y"])
    best, worst = np.interp(0.2, [0, 0.1, 1], [0, 0.9, 1]), np.interp(0.2, [0, 0.3, 1], [0, 0.5, 1])
    np.testing.assert_allclose(middle, (best + worst) / 2, atol=1e-9)


def test_a_long_name_is_short_on_paper_and_a_dollar_is_no_formula():
    svg = static_svg(
        Plot(
            "p",
            [Series(name, {"x": [1, 2], "y": [1, 2]}, legend=name) for name in ("$a$" * 30, "b")],
            [("x", "x")],
            "",
            "",
        )
    )
    assert "$a$$a$" in svg
    assert "$a$" * 30 not in svg


# --- on a dark screen, and in print ---


def test_figures_are_dark_on_a_dark_screen_and_light_in_print(folder):
    from test_report_page import BROWSERS

    api = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
    import shutil

    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no browser is installed")
    faults: list[str] = []
    look = "() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('.live')).filter]"
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(color_scheme="dark")
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda problem: faults.append(str(problem)))
        page.goto((folder / "run" / "report.html").as_uri())
        page.wait_for_selector("body[data-ready]", timeout=30_000)
        dark = page.evaluate(look)
        page.emulate_media(media="print", color_scheme="dark")
        paper = page.evaluate(look)
        shown = page.locator("figure.plot .static svg").first.is_visible()
        browser.close()
    assert faults == []
    assert dark[0] == "rgb(22, 25, 29)"
    assert dark[1].startswith("invert")
    assert paper == ["rgb(255, 255, 255)", "none"]
    assert shown


def test_a_report_of_rows_in_a_notebook_has_no_table_1_and_no_files():
    table = cf.data.bundled.diabetes()
    text = page_text(cf.FederatedLasso(alpha=1.0).fit(table.X, table.y, sites=table.sites).to_result())
    assert "Table 1" not in text
    assert "SHA-256" not in text
    assert 'id="methods"' in text


def test_rows_left_out_are_counted_beside_the_rows(folder, page, tmp_path):
    assert "Fitted to 110 rows of rome, oslo. No row was left out." in page
    assert "No row was left out." in methods_paragraph(read_result(folder / "run"))
    assert "left out" not in methods_paragraph({"kind": "fit", "table": {"rows": 3}})  # not recorded
    counts = {}
    for k, name in enumerate(SITES):
        header, *rows = (folder / f"{name}.csv").read_text().splitlines()
        rows = [row.rpartition(",")[0] + "," if i % (9 + k) == 3 else row for i, row in enumerate(rows)]
        counts[name] = sum(row.endswith(",") for row in rows)
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows]))
    files, model = [str(tmp_path / f"{name}.csv") for name in SITES], ["--label", "died", "--model", "logistic"]
    options = ["--alpha", "0.1", "--drop-unlabelled", "--evaluate", "none", "--out", str(tmp_path / "run")]
    assert main(["fit", *files, *model, *options]) == 0
    each = ", ".join(f"{count} of {name}.csv" for name, count in counts.items())
    told = f"{sum(counts.values())} rows without a label dropped: {each}."
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"Fitted to {110 - sum(counts.values())} rows of rome, oslo. {told}" in text
    assert f"</p><p>{told}</p>" in text
    assert text.count(told) == 3  # the lead, the table, the methods
    assert "No row was left out" not in text


# --- the words of each model ---


@pytest.mark.parametrize(
    ("estimator", "parameters", "title", "raised"),
    [
        ("FederatedElasticNet", {"l1_ratio": 0.0}, "A ridge regression", "the prediction"),
        ("FederatedElasticNetCV", {"l1_ratio": 0.5}, "An elastic-net regression", "the prediction"),
        ("FederatedHuber", {}, "A Huber regression", "the prediction"),
        ("FederatedGammaRegressor", {}, "A Gamma regression", "the expected amount"),
        ("FederatedPoissonRegressorCV", {}, "A Poisson regression", "the expected count"),
        ("FederatedNegativeBinomialRegressor", {}, "A negative binomial regression", "the expected count"),
    ],
)
def test_a_model_has_the_name_that_a_paper_gives_it(estimator, parameters, title, raised):
    record: Any = {"kind": "fit", "estimator": estimator, "parameters": parameters, "label": "cost"}
    record |= {"features": ["age"], "coef": [[0.5]], "intercept": [1.0]}
    assert methods_paragraph(record).startswith(f"{title} of cost was fitted")
    assert fit_title(record).lower().startswith(title.lower().split(maxsplit=1)[1])
    assert variables(record)[1] == f"Larger values raise {raised}: age."


def test_an_extended_grid_of_alpha_is_said_with_what_was_asked_for():
    """Six values are asked for, and the loss still falls at the last one: the count of the model is the oracle."""
    table = cf.data.bundled.diabetes()
    with pytest.warns(UserWarning, match="extended"):
        model = cf.FederatedLassoCV(n_alphas=6, eps=0.5, cv=3).fit(table.X, table.y, sites=table.sites)
    tried = len(model.alphas_)
    assert tried > 6
    record = model.to_result()
    for text in (page_text(record), methods_paragraph(record)):
        assert f"{tried} values of alpha (6 at first, then {tried - 6} smaller ones" in text.replace(
            f"{tried} values (", f"{tried} values of alpha ("
        )
    short = record | {"parameters": record["parameters"] | {"n_alphas": tried}}
    assert "at first" not in methods_paragraph(short)


@pytest.mark.parametrize("ratio", [0.14, 0.0123, 0.98765, 0.99616, 1.0038, 1.1, 2.062, 12.345])
def test_a_ratio_has_three_digits_and_shows_its_effect(ratio):
    text = ratio_text(ratio)
    assert len(text.replace(".", "").lstrip("0")) >= 3  # a trailing zero is a digit, too
    assert abs(float(text) - ratio) <= 5e-3 * ratio
    assert abs(float(text) - ratio) <= 0.05 * abs(ratio - 1)  # two digits of the distance from 1
    assert len(text) <= 6


def test_what_stands_for_missing_values_is_said_once():
    gaps = [{"column": name, "missing": k, "instead": k + 0.5} for name, k in (("age", 3), ("bmi", 60), ("dose", 1))]
    table = {"rows": 100, "sites": {"a": 100}, "columns": 3, "features": 3, "references": {}, "notes": []}
    said = " ".join(table_sentences(table | {"missing": gaps}))
    assert said.count("stands for them") == 1
    for name, missing, mean in (("age", "3, 3%", "3.5"), ("bmi", "60, 60%", "60.5"), ("dose", "1, 1%", "1.5")):
        assert f"{name} ({missing}; mean {mean})" in said
    assert "Most values are not known in: bmi." in said
    one = " ".join(table_sentences(table | {"missing": gaps[:1]}))
    assert "age: 3 of 100 values are missing (3%); 3.5, the mean of the others, stands for them." in one


def test_a_column_of_one_value_at_a_whole_site_is_told_before_the_fit(tmp_path, capsys):
    rng = np.random.default_rng(3)
    for name, chol in (("bern", np.zeros(20)), ("rome", rng.integers(150, 300, 30))):
        lines = [
            f"{a},{c:g},1,{int(d)}"
            for a, c, d in zip(rng.integers(30, 80, 50), chol, rng.random(50) < 0.5, strict=False)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,chol,always,died", *lines]))
    files, run = [str(tmp_path / f"{name}.csv") for name in ("bern", "rome")], tmp_path / "run"
    options = ["--label", "died", "--model", "logistic", "--alpha", "0.1", "--evaluate", "none", "--out", str(run)]
    assert main(["fit", *files, *options]) == 0
    told = "One value wherever it is known at a site: chol is 0 at bern; if this stands for a missing value, leave those cells empty."
    assert told in capsys.readouterr().out  # "always" is the same everywhere
    assert (run / "report.html").read_text(encoding="utf-8").count(told) == 1
    (tmp_path / "bern.csv").write_text((tmp_path / "bern.csv").read_text().replace(",0,1,", ",,1,", 15))
    assert main(["fit", *files, *options, "--overwrite"]) == 0
    assert "One value wherever" not in capsys.readouterr().out  # five values are too few to tell
