"""A statistician's first day: dirty files, the README's command, and what it says before, during and after the fit."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from test_cli_fit import ALL, FRAMES, dummies, fit

import compfed as cf
from compfed.cli import main
from compfed.estimators import run_files
from compfed.report import sections, words
from compfed.report.run_result import read_result

ALPHA = 0.02


@pytest.fixture(autouse=True)
def no_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a run takes a second: only the tests that read it write one."""
    if "page" not in request.fixturenames:
        monkeypatch.setattr(run_files, "write_run_report", lambda folder: None)


@pytest.fixture
def page() -> str:
    """The page of a run, for a test that reads it."""
    return "report.html"


def write(folder: Path, frames: dict[str, pd.DataFrame]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def printed(argv: Sequence[object], out: Path, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    """What a fit prints."""
    capsys.readouterr()
    assert main(["fit", *map(str, argv), "--out", str(out), "--overwrite"]) == status
    return capsys.readouterr().out


# --- odds ratios ---


@pytest.fixture(scope="module")
def died(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("died"), {name: frame.drop(columns="days") for name, frame in FRAMES.items()})


def test_odds_ratios_are_those_of_statsmodels_per_unit_and_per_level(died, tmp_path, capsys):
    sm = pytest.importorskip("statsmodels.api")
    argv = [died, "--label", "died", "--model", "logistic", "--alpha", 0, "--evaluate", "none"]
    found = fit(argv, tmp_path / "run", capsys)
    X, y = dummies(), (ALL["died"] == "yes").astype(float)
    oracle = np.exp(sm.Logit(y, sm.add_constant(X)).fit(disp=0, method="newton", tol=1e-14).params.iloc[1:])
    place = [found["features"].index(name) for name in X.columns]
    assert found["ratios"]["name"] == "odds ratio"
    np.testing.assert_allclose(np.array(found["ratios"]["values"][0])[place], oracle, rtol=1e-8)
    compared = dict(zip(found["features"], found["comparisons"], strict=True))
    assert (compared["age"], compared["sex=male"]) == ("per unit", "against female")
    assert found["event"] == "yes"


def test_the_same_ratio_is_on_the_screen_in_the_table_in_the_hover_and_in_the_csv(died, tmp_path, capsys):
    run = tmp_path / "run"
    text = printed(
        [died, "--label", "died", "--model", "logistic", "--alpha", ALPHA, "--evaluate", "none"], run, capsys
    )
    assert "Event: died = yes. The coefficients add up to its log-odds." in text
    record = read_result(run)
    rows = list(csv.DictReader((run / "coefficients.csv").read_text().splitlines()))
    figure: Any = sections._coefficient_parts(record)[1]
    hover = {
        variable: ratio
        for s in figure.series if "variable" in s.columns
        for variable, ratio in zip(s.columns["variable"], s.columns["odds_ratio"], strict=True)
    }  # fmt: skip
    assert ("odds ratio", "@odds_ratio") in figure.tooltips
    table = sections._coefficient_table(record)
    assert "The event is died = yes" in table
    seen = 0
    for row in rows[:-1]:
        assert float(row["odds ratio"]) == pytest.approx(np.exp(float(row["coefficient"])), rel=1e-12)
        shown = hover[row["feature"]]
        assert float(shown) == pytest.approx(float(row["odds ratio"]), rel=1e-2)
        if float(row["coefficient"]):
            seen += 1
            assert re.search(rf"^{re.escape(row['feature'])} .* {re.escape(shown)}$", text, re.MULTILINE)
            assert f">{shown}</td>" in table[table.index(f">{row['feature']}<") :][:300]
    assert seen >= 3


def test_the_event_can_be_chosen(died, tmp_path, capsys):
    argv = [died, "--label", "died", "--model", "logistic", "--alpha", ALPHA, "--evaluate", "rows"]
    usual = fit(argv, tmp_path / "run", capsys)
    other = fit([*argv, "--positive-class", "no"], tmp_path / "run", capsys)
    assert (usual["event"], other["event"], other["classes"]) == ("yes", "no", ["yes", "no"])
    np.testing.assert_allclose(other["coef"], -np.array(usual["coef"]), atol=1e-10)
    assert other["evaluation"]["auc"]["value"] == pytest.approx(usual["evaluation"]["auc"]["value"], abs=1e-9)
    assert other["evaluation"]["sensitivity"] == pytest.approx(usual["evaluation"]["specificity"])
    model: Any = cf.load_model(tmp_path / "run")
    assert model.classes_.tolist() == ["yes", "no"]
    assert main(["fit", *map(str, argv), "--out", str(tmp_path / "other"), "--positive-class", "may"]) == 2
    assert "--positive-class 'may' is not a class of 'died'. Give 'no' or 'yes'." in capsys.readouterr().err


def test_an_event_of_numbers(tmp_path, capsys):
    numbered = {name: frame.assign(died=(frame["died"] == "yes").astype(int)) for name, frame in FRAMES.items()}
    folder = write(tmp_path / "in", {name: frame.drop(columns="days") for name, frame in numbered.items()})
    argv = [folder, "--label", "died", "--model", "logistic", "--alpha", ALPHA, "--evaluate", "none"]
    usual = fit(argv, tmp_path / "run", capsys)
    other = fit([*argv, "--positive-class", "0"], tmp_path / "run", capsys)
    assert (other["classes"], other["event"]) == ([1, 0], 0)
    np.testing.assert_allclose(other["coef"], -np.array(usual["coef"]), atol=1e-10)
    assert "Event: died = 0." in printed([*argv, "--positive-class", "0"], tmp_path / "run", capsys)


def test_counts_have_rate_ratios(tmp_path, capsys):
    folder = write(tmp_path / "in", {name: frame.drop(columns="died") for name, frame in FRAMES.items()})
    argv = [folder, "--label", "days", "--model", "poisson", "--alpha", ALPHA, "--evaluate", "none"]
    found = fit(argv, tmp_path / "run", capsys)
    assert found["ratios"]["name"] == "rate ratio"
    np.testing.assert_allclose(found["ratios"]["values"], np.exp(found["coef"]), rtol=1e-12)
    assert "event" not in found or found["event"] is None
    assert json.dumps(found["comparisons"])


# --- columns that are no variables ---


def with_more(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """With an identifier, dates and names, as an export of a hospital has them."""
    rng, made = np.random.default_rng(4), {}
    for k, (name, frame) in enumerate(frames.items()):
        days: Any = pd.to_datetime("2019-01-01") + pd.to_timedelta(rng.integers(0, 700, len(frame)), "D")
        made[name] = frame.assign(
            patient_id=1000 * k + rng.permutation(len(frame)), visit=days.strftime("%Y-%m-%d"),
            name=rng.choice([f"name {j}" for j in range(90)], len(frame)),
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def dirty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frames = with_more({name: frame.drop(columns="days") for name, frame in FRAMES.items()})
    return write(tmp_path_factory.mktemp("dirty"), frames)


GIVEN = ["--label", "died", "--model", "logistic", "--alpha", ALPHA, "--evaluate", "none"]


def test_dates_identifiers_and_names_are_left_out_and_said_before_the_fit(dirty, died, tmp_path, capsys):
    found = fit([dirty, *GIVEN], tmp_path / "run", capsys)
    plain = fit([died, *GIVEN], tmp_path / "plain", capsys)
    assert (found["features"], found["coef"]) == (plain["features"], plain["coef"])
    text = printed([dirty, *GIVEN], tmp_path / "run", capsys)
    before, after = text.split("alpha = ")
    assert "210 rows of 3 sites: 5 columns make 7 features." in before
    assert (
        "patient_id: numbers its rows, left out as an identifier; --keep 'patient_id' uses it all the same." in before
    )
    assert re.search(
        r"visit: dates \(2019-01-\d\d to 2020-11-\d\d\), left out; --dates 'visit=year' uses the year, ", before
    )
    assert re.search(
        r"name: \d+ different values in 210 rows, left out as names, codes or free text; --keep 'name'", before
    )
    missing = int(np.sum(ALL["bmi"].isna()))
    mean = f"{ALL['bmi'].mean():.4g}"
    assert f"bmi: {missing} of 210 values are missing ({missing / 210:.0%}); {mean}, the mean of the others" in before
    assert "Reference levels: sex = female; smoker = no; ward = day; short." in before
    assert "left out" not in after
    page = sections.contents(read_result(tmp_path / "run"), None)
    said = "".join(part for part in page.parts if isinstance(part, str))
    assert "patient_id: numbers its rows, left out" in said
    assert f"{mean}, the mean of the others, stands for them" in said
    assert main(["predict", str(tmp_path / "run"), str(died / "oslo.csv")]) == 0  # none of them is needed


def test_a_date_may_be_its_year_or_the_days_since_a_date(dirty, tmp_path, capsys):
    frames = {path.stem: pd.read_csv(path) for path in sorted(dirty.iterdir())}
    visits = np.concatenate([pd.to_datetime(frame["visit"]) for frame in frames.values()])
    for given, expected in (("year", visits.astype("datetime64[Y]").astype(float) + 1970),
                            ("2019-06-01", (visits - np.datetime64("2019-06-01")) / np.timedelta64(1, "D"))):  # fmt: skip
        sites = cf.data.from_files(dirty, "died", schema="auto", features=["age", "visit"], dates={"visit": given})
        np.testing.assert_array_equal(np.concatenate(sites.features)[:, 1], expected)
    run = tmp_path / "run"
    found = fit([dirty, *GIVEN, "--dates", "visit=2019-06-01"], run, capsys)
    assert found["comparisons"][found["features"].index("visit")] == "per day"
    schema = cf.Schema.read(run / "schema.toml")
    assert schema.columns["visit"] == cf.NumericColumn(date="2019-06-01")
    first = next(iter(frames.values())).head(3)
    first.assign(visit=["31.12.2020", "01.02.2019", "01JAN2020"][0:1] * 3).to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 0
    first.assign(visit="03/04/2020").to_csv(tmp_path / "new.csv", index=False)
    capsys.readouterr()
    assert main(["predict", str(run), str(tmp_path / "new.csv")]) == 2
    assert "whose month may come first or second; write them as 2019-04-03" in capsys.readouterr().err
    assert main(["fit", str(dirty), *map(str, GIVEN), "--features", "age,visit"]) == 2
    assert "which number do they stand for? --dates 'visit=year'" in capsys.readouterr().err


def test_a_column_that_looks_like_names_can_be_kept(dirty, tmp_path, capsys):
    found = fit([dirty, *GIVEN, "--keep", "name,patient_id"], tmp_path / "run", capsys)
    frames = [pd.read_csv(path) for path in sorted(dirty.iterdir())]
    levels = set(pd.concat(frames)["name"])
    assert sum(name.startswith("name=") for name in found["features"]) == len(levels) - 1
    assert "patient_id" in found["features"]


@pytest.mark.parametrize(
    ("name", "values", "left_out"),
    [
        ("patient_id", np.random.default_rng(0).permutation(60) + 1, True),
        ("PatientID", np.random.default_rng(0).permutation(60) + 1, True),
        ("covid", np.random.default_rng(0).permutation(60) + 1, False),
        ("uric_acid", np.random.default_rng(0).permutation(60) + 100, False),
        ("row", np.arange(60) + 7, True),  # in order
        ("weight", np.random.default_rng(0).normal(70, 9, 60), False),
        ("age", np.random.default_rng(0).integers(20, 90, 60), False),
        ("day", 20190101 + np.arange(60) % 28, True),  # dates as numbers
        ("cost", 10**7 + 10**6 * np.random.default_rng(1).permutation(60), False),
        ("town", np.array(["oslo", "rome", "bonn"])[np.arange(60) % 3], False),
        ("icd", np.array([f"I{k}" for k in range(40)])[np.arange(60) % 40], True),
        ("us", [f"{1 + k % 12}/{1 + k % 28}/2020" for k in range(60)], True),
        ("month", ["jan", "feb", "mar"] * 20, False),
    ],
)
def test_what_looks_like_a_variable_and_what_does_not(name, values, left_out):
    frame = pd.DataFrame({name: values, "x": np.random.default_rng(2).normal(size=60), "y": np.arange(60) % 7})
    model, given = cf.FederatedLasso(alpha=0.01), {"sites": None, "schema": "auto"}
    if left_out:
        with pytest.warns(cf.LeftOutWarning, match=f"^{name}: .*, left out"):
            model.fit(frame, "y", **given)
    else:
        model.fit(frame, "y", **given)
    assert (name in model.schema_.columns) != left_out


# --- rows without a label ---


def test_rows_without_a_label_are_dropped_and_counted_on_request(died, tmp_path, capsys):
    frames = {path.stem: pd.read_csv(path) for path in sorted(died.iterdir())}
    gaps = {
        name: frame.assign(died=frame["died"].mask(np.arange(len(frame)) % 20 == k))
        for k, (name, frame) in enumerate(frames.items())
    }
    folder = write(tmp_path / "in", gaps)
    assert main(["fit", str(folder), *map(str, GIVEN), "--out", str(tmp_path / "run")]) == 2
    assert "Drop rows without a label, or say --drop-unlabelled." in capsys.readouterr().err
    found = fit([folder, *GIVEN, "--drop-unlabelled"], tmp_path / "run", capsys)
    counts = {name: int(np.sum(frame["died"].isna())) for name, frame in gaps.items()}
    assert found["sites"] == {name: len(gaps[name]) - counts[name] for name in gaps}
    each = ", ".join(f"{count} of {name}.csv" for name, count in counts.items())
    assert found["table"]["notes"] == [f"{sum(counts.values())} rows without a label dropped: {each}"]
    dropped = write(tmp_path / "dropped", {name: frame.dropna(subset="died") for name, frame in gaps.items()})
    assert fit([dropped, *GIVEN], tmp_path / "run", capsys)["coef"] == found["coef"]


def test_advice_with_a_dotted_name_is_toml():
    import tomllib

    with pytest.raises(cf.InputError, match=r"\[columns\.\"a\.b\"\]: impute = 'none'") as error:
        cf.Schema.from_toml('[columns."a.b"]\nimpute = "none"\n')
    head = re.findall(r"\[columns[^\]]*\]", str(error.value))[0]
    assert tomllib.loads(head) == {"columns": {"a.b": {}}}


# --- theta of the negative binomial ---


def visits(folder: Path) -> tuple[Path, pd.DataFrame]:
    """Counts with a theta of two, by site."""
    rng, frames = np.random.default_rng(8), {}
    for name in ("bonn", "oslo", "rome"):
        age, sex = rng.normal(60, 10, 120).round(1), rng.choice(["female", "male"], 120)
        mean = np.exp(0.03 * (age - 60) + 0.4 * (sex == "male") + 1)
        frames[name] = pd.DataFrame({"age": age, "sex": sex, "visits": rng.poisson(rng.gamma(2.0, mean / 2.0))})
    return write(folder, frames), pd.concat(frames.values(), ignore_index=True)


def test_theta_is_estimated_and_the_model_is_that_of_statsmodels(tmp_path, capsys):
    sm = pytest.importorskip("statsmodels.api")
    folder, pooled = visits(tmp_path / "in")
    argv = [folder, "--label", "visits", "--model", "negative-binomial", "--alpha", 0, "--evaluate", "none"]
    found = fit(argv, tmp_path / "run", capsys)
    X = sm.add_constant(np.column_stack([pooled["age"], pooled["sex"] == "male"]).astype(float))
    oracle = sm.NegativeBinomial(pooled["visits"], X).fit(disp=0, method="newton", maxiter=200)
    assert found["theta"] == pytest.approx(1 / oracle.params.iloc[-1], rel=1e-6)
    np.testing.assert_allclose(found["coef"][0], oracle.params.iloc[1:3], rtol=1e-6)
    assert found["ratios"]["name"] == "rate ratio"
    np.testing.assert_allclose(found["ratios"]["values"][0], np.exp(oracle.params.iloc[1:3]), rtol=1e-6)
    assert f"theta = {found['theta']:.6g}" in printed(argv, tmp_path / "run", capsys)
    again: Any = cf.load_model(tmp_path / "run")
    assert again.theta_ == found["theta"]
    assert fit([*argv, "--theta", 1], tmp_path / "run", capsys)["theta"] == 1.0
    assert main(["fit", *map(str, argv), "--theta", "x", "--out", str(tmp_path / "run")]) == 2
    assert "--theta x: give a number > 0." in capsys.readouterr().err


def test_theta_with_an_offset_and_a_penalty_is_where_neither_can_improve():
    """The joint objective: coefficients of the fit at this theta, and theta of SciPy at these coefficients."""
    from scipy.optimize import minimize_scalar
    from scipy.stats import nbinom

    rng = np.random.default_rng(3)
    X, offset, sites = rng.normal(size=(200, 3)), 0.3 * rng.normal(size=200), np.arange(200) % 3
    y = rng.poisson(rng.gamma(1.5, np.exp(X[:, 0] + offset + 1) / 1.5)).astype(float)
    model = cf.FederatedNegativeBinomialRegressor(alpha=0.1, theta="ml").fit(X, y, sites=sites, offset=offset)
    fixed = cf.FederatedNegativeBinomialRegressor(alpha=0.1, theta=model.theta_).fit(X, y, sites=sites, offset=offset)
    np.testing.assert_allclose(model.coef_, fixed.coef_, rtol=1e-9)
    m = model.predict(X, offset)
    best = minimize_scalar(
        lambda t: -nbinom.logpmf(y, np.exp(t), np.exp(t) / (np.exp(t) + m)).sum(), options={"xtol": 1e-10}
    )
    assert model.theta_ == pytest.approx(np.exp(best.x), rel=1e-6)
    assert model.communication_.rounds == model.n_rounds_ == model.trace_["round"][-1]
    assert model.score(X, y, offset=offset) == fixed.score(X, y, offset=offset)


def test_counts_without_overdispersion_have_the_largest_theta_and_theta_comes_with_an_alpha():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y = np.minimum(rng.poisson(np.exp(0.3 * X[:, 0] + 1)), 4).astype(float)  # less dispersed than Poisson's
    sites = np.arange(150) % 3
    model = cf.FederatedNegativeBinomialRegressor(alpha=0.01, theta="ml").fit(X, y, sites=sites)
    poisson = cf.FederatedPoissonRegressor(alpha=0.01).fit(X, y, sites=sites)
    assert model.theta_ == 1e5
    np.testing.assert_allclose(model.coef_, poisson.coef_, rtol=1e-3)
    alphas = [0.1, 0.01]
    z = rng.poisson(rng.gamma(2.0, np.exp(0.5 * X[:, 0] + 1) / 2.0)).astype(float)
    chosen = cf.FederatedNegativeBinomialRegressorCV(alphas=alphas, cv=3, theta="ml").fit(X, z, sites=sites)
    given = cf.FederatedNegativeBinomialRegressorCV(alphas=alphas, cv=3, theta=chosen.theta_).fit(X, z, sites=sites)
    np.testing.assert_array_equal(chosen.coef_, given.coef_)
    alone = cf.FederatedNegativeBinomialRegressor(alpha=chosen.alpha_, l1_ratio=chosen.l1_ratio, theta="ml").fit(
        X, z, sites=sites
    )
    assert chosen.theta_ == pytest.approx(alone.theta_, rel=1e-6)
    with pytest.raises(cf.InputError, match="theta='max' must be a number > 0, or 'ml'"):
        cf.FederatedNegativeBinomialRegressor(theta="max").fit(X, z, sites=sites)


# --- progress ---


def test_progress_has_the_step_its_share_and_the_time_that_is_left(monkeypatch):
    """A line within a second of the start, without a terminal; the time left is that of equal steps."""
    import io
    import time

    from compfed._utils import text

    assert text.FIRST_SECONDS < 1
    out, clock = io.StringIO(), iter([100.0, 112.0])
    monkeypatch.setattr(text, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr("compfed._utils.text.time.monotonic", lambda: next(clock, 112.0))
    with text.working("[2/4] fitting", out) as progress:
        progress(10, 50)
        while not out.getvalue():
            time.sleep(0.001)
    assert out.getvalue().splitlines()[0] in (
        "[2/4] fitting ... 12 s, 10 of 50 (20%), about 48 s left", "[2/4] fitting ... 12 s",
    )  # fmt: skip
    assert text._reached(12.0, 10, 50) == "12 s, 10 of 50 (20%), about 48 s left"


def test_the_steps_of_a_fit_are_numbered_and_know_their_share(died, tmp_path, capsys, monkeypatch):
    from contextlib import contextmanager

    seen, shares = [], []

    @contextmanager
    def working(label):
        seen.append(label)
        yield lambda done, total: shares.append((done, total))

    monkeypatch.setattr("compfed.cli.fit.working", working)
    argv = [died, "--label", "died", "--model", "logistic", "--folds", 2]
    fit(argv, tmp_path / "run", capsys)
    assert seen == ["[1/4] reading", "[2/4] fitting 50 values of alpha in 2 folds", "[2/4] writing the model",
                    "[3/4] evaluating by 2 fits without their folds", "[4/4] writing"]  # fmt: skip
    assert shares[-1][0] == shares[-1][1] >= 50
    assert 0 < shares[0][0] < shares[0][1]


def test_a_notebook_has_a_bar_that_moves(monkeypatch):
    import sys
    from types import ModuleType

    shown: list[str] = []

    class ZMQInteractiveShell:
        """The shell of a notebook."""

    class Handle:
        def update(self, page: str) -> None:
            shown.append(page)

    def display(page: str, display_id: bool) -> Handle:
        shown.append(page)
        return Handle()

    module, shows = ModuleType("IPython"), ModuleType("IPython.display")
    module.get_ipython = ZMQInteractiveShell  # pyright: ignore[reportAttributeAccessIssue]
    shows.HTML, shows.display = str, display  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", shows)
    show = cf.progress_bar("a < b", quiet=0)
    show(1, 4)
    show(4, 4)
    assert len(shown) == 2
    assert '<progress value="1" max="4"></progress> 1/4' in shown[0]
    assert "a &lt; b" in shown[1]
    rng = np.random.default_rng(0)
    model = cf.FederatedLassoCV(alphas=[0.1, 0.01], cv=2, verbose=True)
    model.fit(rng.normal(size=(30, 2)), rng.normal(size=30), sites=None)
    assert any("FederatedLassoCV" in page for page in shown)


# --- six tables as they come, with the README's command alone ---


def patients(seed: int, rows: int = 60) -> pd.DataFrame:
    """Rows of one hospital, with a yes/no outcome."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.normal(60, 10, rows).round(1), "sex": rng.choice(["female", "male"], rows)})
    frame["crp"] = rng.gamma(2.0, 5.0, rows).round(1)
    risk = 0.08 * (frame["age"] - 60) + (frame["sex"] == "male") - 0.05 * (frame["crp"] - 10)
    return frame.assign(died=np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no"))


def encoded(frame: pd.DataFrame) -> pd.DataFrame:
    """The features as a statistician would make them by hand."""
    return pd.DataFrame({"age": frame["age"], "sex=male": (frame["sex"] == "male").astype(float),
                         "crp": frame["crp"].fillna(frame["crp"].mean())})  # fmt: skip


TOWNS = ("lyon", "oslo", "rome")  # in the order of their names, as the files are read


def with_a_date(frame: pd.DataFrame, k: int) -> pd.DataFrame:
    days: Any = pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(len(frame)) * 3 + k, "D")
    return frame.assign(admitted=days.strftime("%d.%m.%Y %H:%M"))


def with_names(frame: pd.DataFrame, k: int) -> pd.DataFrame:
    return frame.assign(name=[f"Patient {chr(65 + j % 26)}. of {k}" for j in range(len(frame))])


def with_an_identifier(frame: pd.DataFrame, k: int) -> pd.DataFrame:
    frame.insert(0, "CaseID", np.random.default_rng(k).permutation(len(frame)) + 100_000 * (k + 1))
    return frame


def with_three_rows(frame: pd.DataFrame, k: int) -> pd.DataFrame:
    return frame.head(3) if k == 1 else frame


def with_blanks(frame: pd.DataFrame, k: int) -> pd.DataFrame:
    return frame.assign(crp=frame["crp"].mask(np.arange(len(frame)) % 9 == k))


def in_german(frame: pd.DataFrame, k: int) -> pd.DataFrame:
    return frame


TABLES = {f.__name__: f for f in (with_a_date, with_names, with_an_identifier, with_three_rows, with_blanks, in_german)}


@pytest.mark.parametrize("make", TABLES.values(), ids=TABLES)
def test_six_dirty_tables_go_from_files_to_a_report(make, tmp_path, page, capsys):
    """The README's command; its odds ratios are those of another solver at the alpha that it chose, and of statsmodels at 0."""
    sm = pytest.importorskip("statsmodels.api")
    frames = {town: make(patients(20 + k), k) for k, town in enumerate(TOWNS)}
    for town, frame in frames.items():
        form: dict[str, Any] = {"sep": ";", "decimal": ",", "encoding": "cp1252"} if make is in_german else {}
        frame.to_csv(tmp_path / f"{town}.csv", index=False, **form)
    pooled = pd.concat(frames.values(), ignore_index=True)
    X, died = encoded(pooled), (pooled["died"] == "yes").to_numpy(float)
    argv = [*(tmp_path / f"{town}.csv" for town in TOWNS), "--label", "died", "--model", "logistic"]
    text = printed(argv, tmp_path / "run", capsys)
    assert f"{len(pooled)} rows of 3 sites: 3 columns make 3 features." in text
    found = read_result(tmp_path / "run")
    place = [found["features"].index(name) for name in X.columns]
    ratios = np.array(found["ratios"]["values"])[0][place]
    np.testing.assert_allclose(ratios, np.exp(_proximal_gradient(X.to_numpy(), died, found["alpha"])), rtol=1e-5)
    for name, ratio in zip(X.columns, ratios, strict=True):
        if ratio != 1:
            assert re.search(rf"^{name} .* {re.escape(words.ratio_text(ratio))}$", text, re.MULTILINE)
    report = (tmp_path / "run" / page).read_text(encoding="utf-8")
    for said in ("The event is died = yes", "Reference levels: sex = female.", "AUC (ties count half)", "Rehearsal"):
        assert said in report
    assert (", left out" in report) == (make in (with_a_date, with_names, with_an_identifier))
    exact = fit([*argv, "--alpha", 0, "--evaluate", "none"], tmp_path / "exact", capsys)
    logit = sm.Logit(died, sm.add_constant(X)).fit(disp=0, method="newton", tol=1e-14)
    np.testing.assert_allclose(np.array(exact["ratios"]["values"][0])[place], np.exp(logit.params.iloc[1:]), rtol=1e-8)


def _proximal_gradient(X: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    """The logistic lasso by accelerated proximal gradients in the units of X, each coordinate with a step of its own."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    Z, weights = (X - mean) / scale, alpha / scale  # the same objective in the coordinates w * scale
    step = 4 * len(Z) / np.linalg.norm(np.column_stack([Z, np.ones(len(Z))]), 2) ** 2
    w = v = np.zeros(Z.shape[1] + 1)
    for k in range(5_000):
        residual = 1 / (1 + np.exp(-(Z @ v[:-1] + v[-1]))) - y
        moved = v - step * np.append(Z.T @ residual, residual.sum()) / len(Z)
        moved[:-1] = np.sign(moved[:-1]) * np.maximum(np.abs(moved[:-1]) - step * weights, 0)
        w, v = moved, moved + k / (k + 3) * (moved - w)
    return w[:-1] / scale


def test_ten_hospitals_have_a_line_each(tmp_path, capsys):
    frames = {f"town {k}": patients(40 + k, 30) for k in range(10)}
    argv = [
        write(tmp_path / "in", frames),
        "--label",
        "died",
        "--model",
        "logistic",
        "--alpha",
        ALPHA,
        "--evaluate",
        "rows",
    ]
    text = printed(argv, tmp_path / "run", capsys)
    assert re.search(
        r"^site +rows +events +AUC +Brier score +calibration slope +deviance explained$", text, re.MULTILINE
    )
    for name, frame in frames.items():
        events = int(np.sum(frame["died"] == "yes"))
        assert re.search(rf"^{name} +30 +{events} +[01]\.\d{{3}} ", text, re.MULTILINE)


def test_the_deviance_explained_with_an_offset_is_that_of_statsmodels():
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(2)
    X, years, sites = rng.normal(size=(160, 2)), rng.uniform(1, 500, 160), np.arange(160) % 4
    y = rng.poisson(years * np.exp(0.4 * X[:, 0] - 1)).astype(float)
    for family, model in (
        (sm.families.Poisson(), cf.FederatedPoissonRegressor(alpha=0)),
        (sm.families.NegativeBinomial(alpha=0.5), cf.FederatedNegativeBinomialRegressor(alpha=0, theta=2.0)),
        (sm.families.Gamma(sm.families.links.Log()), cf.FederatedGammaRegressor(alpha=0)),
        (sm.families.Gaussian(), cf.FederatedLasso(alpha=0)),
    ):
        offset = np.log(years) if not isinstance(family, sm.families.Gaussian) else years
        label = y + 1.0
        found = model.fit(X, label, sites=sites, offset=offset).evaluate(
            X, label, sites=sites, offset=offset, per_site=True
        )
        oracle = sm.GLM(label, sm.add_constant(X), family, offset=offset).fit(tol=1e-14, maxiter=200)
        null = sm.GLM(label, np.ones(len(label)), family, offset=offset).fit(tol=1e-14, maxiter=200)
        assert found.deviance_explained == pytest.approx(1 - oracle.deviance / null.deviance, abs=1e-9)
        assert set(found.per_site) == {"0", "1", "2", "3"}
        assert all(one.deviance_explained < 1 for one in found.per_site.values())
