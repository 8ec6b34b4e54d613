"""The report of a Cox model: the numbers of statsmodels and of pairs counted one by one, and what its methods must say."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

import compfed as cf
from compfed.cli import main
from compfed.report.forest_figure import draw_forest
from compfed.report.page import page_text
from compfed.report.run_result import read_result
from compfed.report.words import fit_title, methods_paragraph

SIZES = {"rome": 70, "oslo": 50, "bern": 60}


def survival_tables():
    rng = np.random.default_rng(5)
    for name, rows in SIZES.items():
        X = np.column_stack([rng.normal(60, 10, rows).round(1), rng.integers(0, 2, rows)])
        ward = rng.integers(0, 2, rows)
        died = rng.exponential(np.exp(2.5 - 0.05 * (X[:, 0] - 60) - 0.8 * X[:, 1]))
        left = rng.exponential(20, rows)
        yield name, X, ward, np.ceil(np.minimum(died, left)), (died <= left).astype(int)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("wards")
    for name, X, ward, time, event in survival_tables():
        rows = [
            f"{a},{('no', 'yes')[int(s)]},{('icu', 'general')[w]},{t:g},{e}"
            for (a, s), w, t, e in zip(X, ward, time, event, strict=True)
        ]
        (home / f"{name}.csv").write_text("\n".join(["age,smokes,ward,months,died", *rows]))
    files = [str(home / f"{name}.csv") for name in SIZES]
    options = [
        "--model",
        "cox",
        "--time",
        "months",
        "--event",
        "died",
        "--strata",
        "ward",
        "--alpha",
        "0",
        "--evaluate",
        "rows",
    ]
    assert main(["fit", *files, *options, "--out", str(home / "run")]) == 0
    return home / "run"


@pytest.fixture(scope="module")
def page(run) -> str:
    return (run / "report.html").read_text(encoding="utf-8")


def cells(page: str, row: str, section: str) -> list[str]:
    part = page[page.index(f'<h2 id="{section}"') :]
    found = re.search(rf'<th scope="row">{re.escape(row)}</th>(.*?)</tr>', part)
    assert found is not None, row
    return re.findall(r"<td>(.*?)</td>", found[1])


def test_hazard_ratios_and_intervals_are_those_of_statsmodels(page):
    phreg = pytest.importorskip("statsmodels.duration.hazard_regression").PHReg
    X, ward, time, event = (np.concatenate(parts) for parts in list(zip(*survival_tables(), strict=True))[1:])
    strata = np.repeat(np.arange(3), list(SIZES.values())) * 2 + ward
    found = phreg(time, X, status=event, strata=strata, ties="efron").fit()
    for k, name in enumerate(("age", "smokes=yes")):
        *_, ratio, interval = cells(page, name, "standard-errors-and-intervals")
        np.testing.assert_allclose(float(ratio), np.exp(found.params[k]), rtol=5e-3)
        np.testing.assert_allclose([float(x) for x in interval.split(" to ")], np.exp(found.conf_int()[k]), rtol=5e-3)
        assert ratio in cells(page, name, "coefficients")


def test_the_concordance_is_that_of_pairs_counted_one_by_one(page, run):
    coef = read_result(run)["coef"][0]
    order = pairs = 0.0
    for _, X, ward, time, event in survival_tables():
        risk = X @ coef
        for i in np.flatnonzero(event):
            for j in np.flatnonzero((ward == ward[i]) & ((time > time[i]) | ((time == time[i]) & (event == 0)))):
                pairs += 1
                order += 1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
    shown = f"{order / pairs:.3f}"
    assert cells(page, "concordance (Harrell&#x27;s C)", "evaluation") == [shown]
    assert cells(page, "pairs of rows compared", "evaluation") == [f"{int(pairs):,}"]
    assert f"<h3>How good?</h3><p><strong>Concordance (Harrell&#x27;s C): {float(shown):.3g}.</strong>" in page
    assert json.loads((run / "evaluation.json").read_text())["concordance"] == pytest.approx(order / pairs)


def test_the_title_the_methods_and_the_table_are_of_a_cox_model(page, run):
    record = read_result(run)
    assert fit_title(record) == "Cox regression of months (event: died) over 3 sites"
    said = methods_paragraph(record)
    for part in (
        "A Cox regression of months (event: died) was fitted to 180 rows of 3 sites (rome, oslo, bern)",
        "stratified by site: every site and every stratum (ward) within it had a baseline hazard of its own.",
        "Events at the same time were handled by Efron's method.",
        "this model on the rows given; optimistic",
        "pairs of rows of one site and stratum.",
    ):
        assert part in said
    assert "as follows: ." not in said
    assert "intercept)" not in page
    raised = re.search(r"Larger values raise the hazard of the event \(died\): (.*?)</p>", page)
    assert raised is not None
    assert {"age", "smokes=yes"} <= set(re.findall(r"[\w=]+", raised[1]))  # as the table was made
    breslow = methods_paragraph(
        record | {"parameters": record["parameters"] | {"ties": "breslow", "baseline": "common"}}
    )
    assert "Breslow's" in breslow
    assert "common to all sites" in breslow


def test_a_cox_model_of_arrays_names_no_column(run):
    record = {name: value for name, value in read_result(run).items() if name not in ("survival", "label")}
    assert fit_title(record) == "Cox regression over 3 sites"
    assert "every site had a baseline hazard of its own" in methods_paragraph(record)
    assert "hazard of the event:" in page_text(record)


def test_a_forest_plot_has_plain_numbers_at_its_ticks(run):
    pytest.importorskip("matplotlib")
    ax = draw_forest(read_result(run)["summary"]).axes[0]
    low, high = ax.get_xlim()
    found = [(float(text.get_text()), place) for text, place in zip(ax.get_xticklabels(), ax.get_xticks(), strict=True)]
    assert [text for text, _ in found] == [place for _, place in found]
    assert sum(low <= place <= high for _, place in found) >= 3
    assert not any(text.get_text() for text in ax.get_xticklabels(minor=True))


def test_numbers_at_risk_stand_at_the_ticks_of_the_axis():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    time, event = np.ceil(rng.exponential(18, 120)).clip(1, 60), (rng.random(120) < 0.6).astype(float)
    sites, agreed = rng.choice(["a", "b"], 120), np.arange(1.0, 61)
    curves = cf.kaplan_meier(rng.random((120, 1)), np.column_stack([time, event]), times=agreed, sites=sites)
    _, below = curves.plot().axes
    ticks = below.get_xticks().tolist()
    assert [float(text.get_text()) for text in below.get_xticklabels()] == ticks
    assert ticks[1:] == [10, 20, 30, 40, 50, 60]
    found = {text.get_position()[0]: int(text.get_text()) for text in below.texts}
    assert found == {tick: int((time >= tick).sum()) for tick in ticks}  # counted in the rows


def test_no_table_is_cut_on_a_wide_screen_and_names_stay_on_a_phone(run):
    from test_report_page import BROWSERS

    api = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("no browser is installed")
    cut = "() => [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    beyond = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
    name = "() => { const b = [...document.querySelectorAll('.scroll.free')].find(e => e.scrollWidth > e.clientWidth); b.scrollLeft = 150;"
    name += " return b.querySelector('tbody th').getBoundingClientRect().left - b.getBoundingClientRect().left }"
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((run / "report.html").as_uri())
        page.wait_for_selector("body[data-ready]", timeout=30_000)
        wide = page.evaluate(cut), page.evaluate(beyond)
        page.set_viewport_size({"width": 390, "height": 800})
        page.wait_for_function(f"({beyond})() === 0", timeout=30_000)  # figures are laid out anew
        phone = page.evaluate(beyond), page.evaluate(name)
        browser.close()
    assert wide == (0, 0)
    assert phone == (0, 0)
