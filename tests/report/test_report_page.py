"""The report page in a real browser: quiet, offline, safe from names, and its buttons, axes and tooltips work."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compfed as cf
from compfed.errors import InputError
from compfed.report.coefficient_figures import plot_coefficients
from compfed.report.page import page_text, write_report
from compfed.report.plots import Plot, plot_data
from compfed.report.run_result import read_result, write_result
from compfed.report.style import save_figure

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
HOSTILE = [
    "<script>window.hacked = 1</script>", '"><img src=x onerror="window.hacked = 1">', "</script><b>bold</b>", "$$\\frac{1}{2}$$", "<!--",
    "a\u2028b\x00c", "javascript:alert(1)", "{{7*7}}",
]  # fmt: skip
PLACE = """([plot, name, k]) => {
  const view = Bokeh.index.roots.find((v) => document.getElementById("live-" + plot).contains(v.el));
  const data = view.model.renderers.find((r) => r.name === name).data_source.data;
  const box = view.el.getBoundingClientRect(), frame = view.frame;
  return [box.x + frame.x_scale.compute(data.x[k]), box.y + frame.y_scale.compute(data.y[k])];
}"""
RENDERERS = """(plot) => {
  const view = Bokeh.index.roots.find((v) => document.getElementById("live-" + plot).contains(v.el));
  const data = (r, name) => Array.from(r.data_source.data[name] || []);
  const lines = view.model.renderers.map((r) => [r.name, { visible: r.visible, x: data(r, "x"), y: data(r, "y") }]);
  return { label: view.model.below[0].axis_label, kind: view.model.x_scale.type, lines: Object.fromEntries(lines) };
}"""


def methods_record(count: int = 3) -> dict[str, Any]:
    """Runs of made-up methods."""
    r = np.arange(60)
    runs = {
        f"method {k}": {
            "round": r,
            "optimality": 0.5 * (0.6 + 0.1 * k) ** r,
            "bytes_up": 80.0 * r,
            "bytes_down": 40.0 * r,
            "seconds": r / 7,
        }
        for k in range(count)
    }
    results = {
        name: {
            "to_accuracy": {"0.01": {"rounds": 5 + k, "bytes": 400.0 * (k + 1)}},
            "final": 1e-9,
            "rounds": 59,
        }
        for k, name in enumerate(runs)
    }
    return {"kind": "methods", "title": "Methods compared", "results": {"": results}, "runs": {"": runs}}


def leaderboard_record() -> dict[str, Any]:
    """A board of made-up results whose methods and makers have hostile names: one that arrives, one that does not, one not run."""
    from compfed.studies.leaderboard.ranks import record_of

    levels, units = ["0.01", "0.0001", "1e-06"], ("rounds", "bytes", "rows", "seconds")
    terms = {
        "rounds": 300,
        "settings": 5,
        "tuning_seed": 7,
        "seeds": [0],
        "tau": 5,
        "clock": "phone",
        "criterion": "||x - x*|| / ||x*||",
        "levels": levels,
    }
    entries = [
        {"problem": HOSTILE[0], "method": f"{name} {k}", "kind": "added", "by": HOSTILE[1], "status": "ran", "final": 1e-9, "tried": 5,
         "setting": HOSTILE[2], "spent": dict.fromkeys(units, 1e9),
         "to_accuracy": {level: dict.fromkeys(units, 1e6 + k if k % 2 else None) for level in levels}}
        for k, name in enumerate(HOSTILE)
    ]  # fmt: skip
    entries.append({"problem": HOSTILE[0], "method": "none", "status": "does not apply", "reason": HOSTILE[0] * 5})
    about = {HOSTILE[0]: {"words": HOSTILE[3], "terms": terms}, "other": {"terms": terms, "skipped": HOSTILE[2]}}
    return record_of({"suite": "1", "mode": "full", "problems": about, "entries": entries})


def fit_record(names: list[str], sites: list[str]) -> dict[str, Any]:
    """The result of a made-up fit."""
    coef = np.array([[1.5, -0.5, *np.zeros(len(names) - 2)]])
    return {
        "kind": "fit", "estimator": "FederatedLogisticRegression", "features": names, "sites": sites, "coef": coef,
        "intercept": [0.1], "classes": [names[0], names[1]], "alpha": 0.1, "label": names[2],
        "evaluation": {
            "weight": 100.0, "events": 40.0, "how": "as given", "brier": 0.2,
            "auc": {"value": 0.81, "rounding_low": 0.8, "rounding_high": 0.82},
            "intervals": {},
            "roc": {f"{kind}_positive_{end}": [0.0, 0.2, 1.0] for kind in ("false", "true") for end in ("low", "high")},
            "calibration": {f"{kind}_{end}": [0.1, 0.5, 0.9] for kind in ("weight", "predicted", "observed") for end in ("low", "high")},
            "per_site": {site: {"weight": 50.0, "auc": {"value": 0.8, "rounding_low": 0.8, "rounding_high": 0.8}} for site in sites},
        },
        "schema": names[3],
    }  # fmt: skip


@pytest.fixture(scope="module")
def model():
    table = cf.data.bundled.breast_cancer()
    pandas = pytest.importorskip("pandas")
    X = pandas.DataFrame(table.X, columns=list(table.feature_names))
    return cf.FederatedLogisticRegressionCV(n_alphas=8, cv=3, standardize=True).fit(X, table.y, sites=table.sites)


def paper_folder(folder: Path) -> Path:
    """A reproduction with one figure, two claims and the runs of one group."""
    save_figure(plot_coefficients([1.0, 0.0]), folder / "figures" / "one", ("svg",))
    claims = [
        {
            "id": name,
            "claim": f"It is {name}.",
            "where": "Fig. 1",
            "measured": {"error": 1e-13},
            "holds": name == "exact",
        }
        for name in ("exact", "slow")
    ]
    figures = [{"file": "figures/one.svg", "caption": "One figure."}]
    write_result(
        folder,
        {"kind": "paper", "claims": claims, "figures": figures, "runs": {"Figure 1": methods_record()["runs"][""]}},
    )
    return folder


def sites_comparison() -> Any:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 4))
    y = X[:, 0] + 0.3 * rng.standard_normal(90)
    return cf.compare_local_federated(cf.FederatedLasso(0.1), X, y, np.repeat(HOSTILE[:3], 30), pooled=True)


@pytest.fixture(scope="module")
def pages(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    record = fit_record(HOSTILE, HOSTILE[:3])
    return {
        "paper": write_report(paper_folder(folder / "paper")),
        "sites": write_report(sites_comparison(), folder / "sites.html"),
        "fit": write_report(model, folder / "fit.html"),
        "methods": write_report(methods_record(), folder / "methods.html"),
        "many": write_report(methods_record(20), folder / "many.html"),
        "hostile": write_report(record, folder / "hostile.html"),
        "leaderboard": write_report(leaderboard_record(), folder / "leaderboard.html"),
    }


# --- without a browser ---


def test_the_page_is_small_and_whole(pages):
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        assert len(text.encode()) < 2_000_000
        assert text.rstrip().endswith("</html>")
        outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
        assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", outside)


def test_the_words_are_those_of_the_model(model, pages):
    text = pages["fit"].read_text(encoding="utf-8")
    used = int(np.count_nonzero(model.coef_))
    assert f"{used} of 30 variables are in the model; the other {30 - used} have a coefficient of exactly zero." in text
    assert "Certified: the same coefficients that pooling the rows would give, zeros included." in text
    assert f"{model.communication_.rounds} messages to each of 4 sites" in text
    null = model.cv_loss_.mean(axis=1)[0]
    at = model.cv_loss_.mean(axis=1).min()
    assert f"That is {1 - at / null:.0%} lower than without any variable" in text
    zero = [name for name, w in zip(model.feature_names_in_, model.coef_[0], strict=True) if w == 0]
    assert f"Exactly zero: {', '.join(zero)}." in text
    largest = np.argmax(np.abs(model.coef_[0] * model.feature_scale_))
    row = re.search(rf'<th scope="row">{model.feature_names_in_[largest]}</th>(.*?)</tr>', text)
    assert row is not None
    cells = re.findall(r"<td>(.*?)</td>", row[1])
    assert '<th scope="col">variable, per unit</th>' in text
    effect = model.coef_[0, largest] * model.feature_scale_[largest]
    coefficient = model.coef_[0, largest]
    np.testing.assert_allclose([float(cell) for cell in cells], [coefficient, np.exp(coefficient), effect], rtol=6e-3)


def test_a_certificate_that_does_not_hold_is_said_first(model):
    record = model.to_result()
    record["certificate"] |= {"holds": False}
    text = page_text(record)
    assert "Not certified: the search did not reach the minimum." in text
    assert "the same coefficients that pooling" not in text


def test_only_a_minimiser_that_is_unique_is_said_to_have_the_pooled_coefficients(model):
    """A column that is there twice: any split of its coefficient has the same objective, so that a pooled fit may differ."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal(60)
    with pytest.warns(cf.NotUniqueWarning):
        twice = cf.FederatedLasso(0.1).fit(
            np.column_stack([a, a]), a + rng.standard_normal(60), sites=np.arange(60) % 2
        )
    same, record = "the same coefficients that pooling the rows would give", twice.to_result()
    text = page_text(record)
    assert same not in text
    assert "Certified: a minimum of the objective over the pooled rows." in text
    assert "Other coefficients reach it too" in text
    record["certificate"]["unique"] = None
    text = page_text(record)
    assert same not in text
    assert "Whether other coefficients reach it is not known." in text


def test_a_negative_r2_is_no_share():
    bare = {"kind": "fit", "features": ["a"], "coef": [[1.0]], "intercept": [0.0], "evaluation": {"r2": -0.1}}
    assert "the share of the variance that is explained; below 0, the mean outcome predicts better" in page_text(bare)


def test_what_is_missing_is_left_out():
    bare = {"kind": "fit", "features": ["a", "b"], "coef": [[1.0, 0.0]], "intercept": [0.0]}
    text = page_text(bare)
    for word in ("Convergence", "Evaluation", "Schema", "What left each site", "How good?", "How sure?"):
        assert word not in text
    assert "1 of 2 variables is in the model" in text


def test_a_comparison_of_sites_says_whether_federated_is_pooled(pages):
    text = pages["sites"].read_text(encoding="utf-8")
    assert "The federated model is the pooled model." in text
    assert "<script>window.hacked" not in text


def test_the_page_of_the_paper_names_the_claims_that_fail(pages):
    text = pages["paper"].read_text(encoding="utf-8")
    assert "1 of 2 claims of the paper hold." in text
    assert "These do not: slow." in text
    assert "One figure." in text


def test_names_are_text_and_nothing_else(pages):
    text = pages["hostile"].read_text(encoding="utf-8")
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<img" not in outside
    assert "<b>bold" not in outside
    assert "&lt;script&gt;window.hacked = 1&lt;/script&gt;" in outside
    assert text.count("<script") == 3  # data, bokeh and page.js
    assert text.count("</script") == 3


@pytest.mark.parametrize("name", ["$$a$$", "\\[a\\]", "x \\(a\\) y", "$$$$", "$5", "plain"])
def test_bokeh_finds_no_formula_in_a_name(name):
    """It would look for MathJax. The delimiters are those of bokeh's documentation; the name reads as before."""
    (row,) = plot_data(Plot("p", [], [("x", "x")], "", "", rows=[name]))["rows"]
    assert not re.search(r"\$\$.*\$\$|\\\[.*\\\]|\\\(.*\\\)", row)
    assert row.replace("\u200b", "") == name


def test_without_bokeh_or_matplotlib_there_are_words_and_tables(monkeypatch, capsys):
    for module in ("bokeh", "matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    text = page_text(methods_record())
    assert "<svg" not in text
    assert "<script" not in text
    assert "method 2" in text
    assert "pip install '.[report]'" in capsys.readouterr().err


def test_a_folder_keeps_the_result(model, tmp_path, capsys):
    record = model.to_result()
    write_result(tmp_path / "run", record)
    back = read_result(tmp_path / "run")
    for name in ("coef", "intercept", "feature_scale"):
        np.testing.assert_array_equal(np.asarray(back[name]), np.asarray(record[name]))
    np.testing.assert_array_equal(np.asarray(back["cv"]["losses"]), model.cv_loss_)
    np.testing.assert_array_equal(np.asarray(back["trace"]["objective"]), model.trace_["objective"])
    assert back["features"] == list(model.feature_names_in_)
    from compfed.cli import main

    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'run' / 'report.html'}\n"
    other = tmp_path / "elsewhere" / "page.html"
    assert main(["report", str(tmp_path / "run" / "result.json"), "--out", str(other)]) == 0
    assert other.read_text(encoding="utf-8") == (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        ("{", "damaged"),
        ("[]", "not the result"),
        ('{"kind": "other"}', "kind"),
        ('{"kind": "fit", "x": {"npz": "a"}}', "damaged"),
        ('{"kind": "fit"}', "EOFError"),
    ],
)
def test_a_folder_without_a_result_is_refused(content, message, tmp_path, capsys):
    from compfed.cli import main

    if content is not None:
        (tmp_path / "result.json").write_text(content)
    if message == "EOFError":
        (tmp_path / "result.npz").write_bytes(b"")
    assert main(["report", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    with pytest.raises(InputError, match="out is missing"):
        write_report(methods_record())
    with pytest.raises(InputError, match="got int"):
        write_report(3, tmp_path / "page.html")


# --- in a browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="drives the browser: pip install playwright")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no browser is installed: none of {', '.join(BROWSERS)} is on the path")
    with api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture
def opened(browser, pages):
    """Open a page at a width; every message of the console but plain logs, and every request but the page, is a fault."""
    faults, contexts = [], []

    def open_page(name: str, width: int = 1280, javascript: bool = True):
        context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=javascript)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda problem: faults.append(str(problem)))
        page.on("request", lambda asked: faults.append(asked.url) if asked.url != pages[name].as_uri() else None)
        page.goto(pages[name].as_uri())
        if javascript:
            page.wait_for_selector("body[data-ready]", timeout=30_000)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert faults == []


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["fit", "methods", "many", "hostile", "paper", "sites"])
def test_quiet_offline_and_no_wider_than_the_screen(opened, name, width):
    page = opened(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("figure.plot.on").count() == page.locator("figure.plot").count() > 0
    assert page.locator("figure.plot .static").first.is_hidden()
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("width", [1280, 390])
def test_a_leaderboard_needs_no_script_and_is_no_wider_than_the_screen(opened, width):
    page = opened("leaderboard", width, javascript=False)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.hacked") is None
    assert page.locator("script").count() == 0
    rows = page.locator("section", has=page.get_by_role("heading", name="Over the convex problems")).locator("tbody tr")
    assert rows.count() == len(HOSTILE) + 1


def test_a_button_of_the_legend_hides_a_line(opened):
    page = opened("methods")
    before = page.locator(".live").screenshot()
    page.get_by_role("button", name="method 1").click()
    lines = page.evaluate(RENDERERS, "convergence-0")["lines"]
    assert {name: line["visible"] for name, line in lines.items()} == {
        "method 0": True,
        "method 1": False,
        "method 2": True,
    }
    page.wait_for_timeout(200)
    assert page.locator(".live").screenshot() != before
    page.get_by_role("button", name="method 1").click()
    assert all(line["visible"] for line in page.evaluate(RENDERERS, "convergence-0")["lines"].values())


def test_axes_can_be_switched_and_the_numbers_are_those_of_the_record(opened):
    page, runs = opened("methods"), methods_record()["runs"][""]
    for button, label, column in (
        ("rounds", "rounds", "round"),
        ("bytes per site", "bytes per site", "bytes"),
        ("seconds", "seconds", "seconds"),
    ):
        page.get_by_role("button", name=button, exact=True).click()
        found = page.evaluate(RENDERERS, "convergence-0")
        assert found["label"] == label
        for name, columns in runs.items():
            x = columns["bytes_up"] + columns["bytes_down"] if column == "bytes" else columns[column]
            np.testing.assert_allclose(found["lines"][name]["x"], x, rtol=1e-5)
            np.testing.assert_allclose(found["lines"][name]["y"], np.maximum(columns["optimality"], 1e-14), rtol=1e-5)
    page.get_by_role("button", name="method 0").click()
    page.get_by_label("log axis").check()
    page.wait_for_function("() => Bokeh.index.roots.some((v) => v.model.x_scale?.type === 'LogScale')")
    found = page.evaluate(RENDERERS, "convergence-0")
    assert found["kind"] == "LogScale"
    assert not found["lines"]["method 0"]["visible"]  # as before the switch


def tooltip(page) -> str:
    """The text of the tooltip that is shown; bokeh keeps it in a shadow tree."""
    tip = page.locator(".bk-Tooltip:visible")
    tip.wait_for(timeout=5_000)
    return tip.evaluate("(host) => Array.from(host.shadowRoot.children).map((part) => part.innerText || '').join(' ')")


def test_pointing_at_a_line_shows_its_numbers(opened):
    page = opened("methods")
    page.locator("[data-plot=convergence-0]").scroll_into_view_if_needed()
    page.mouse.move(*page.evaluate(PLACE, ["convergence-0", "method 2", 30]))
    words = tooltip(page)
    assert "method 2" in words
    assert "30" in words
    assert f"{0.5 * 0.8**30:.3g}" in words  # 0.000619


def test_a_hostile_name_is_text_in_a_tooltip_too(opened):
    page = opened("hostile")
    page.locator("[data-plot=coefficients]").scroll_into_view_if_needed()
    page.mouse.move(*page.evaluate(PLACE, ["coefficients", "coefficient", 0]))
    assert HOSTILE[0] in tooltip(page)
    assert page.evaluate("window.hacked") is None


def test_everything_is_there_without_javascript(opened, model):
    page = opened("fit", 390, javascript=False)
    words = page.inner_text("body")
    assert "Which variables?".upper() in words.upper()
    for name, value in zip(model.feature_names_in_, model.coef_[0], strict=True):
        assert name in words, value
    assert page.locator("figure.plot .static svg").first.is_visible()
    assert page.locator(".live").first.is_hidden()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
