"""`compfed fit` and `compfed predict`: files as hospitals have them, to a model and back, with one command each."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import (
    ElasticNet,
    GammaRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, mean_absolute_error, r2_score, roc_auc_score

import compfed as cf
from compfed.cli import main
from compfed.estimators import run_files
from compfed.report.page import page_text
from compfed.report.run_result import read_result
from compfed.report.sections import _choice_words
from compfed.report.words import goodness

ALPHA = 0.02
NAMES = ("01", "1", "oslo")


def hospital(seed: int, rows: int = 70) -> pd.DataFrame:
    """Rows with words, blanks and a yes/no outcome."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"age": rng.normal(60, 10, rows).round(1), "bmi": rng.normal(25, 3, rows).round(2)})
    table["sex"], table["smoker"] = rng.choice(["female", "male"], rows), rng.choice(["no", "yes", ""], rows)
    table["ward"] = rng.choice(["müde", "day; short", "night"], rows)
    risk = 0.08 * (table["age"] - 60) + (table["sex"] == "male") + (table["ward"] == "müde")
    table["died"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no")
    table["days"] = rng.poisson(np.exp(0.02 * (table["age"] - 60) + 1.0)) + 1
    table.loc[rng.random(rows) < 0.1, "bmi"] = np.nan
    return table


FRAMES = {name: hospital(seed) for seed, name in enumerate(NAMES)}
ALL = pd.concat(FRAMES.values(), ignore_index=True)
SITE: Any = np.repeat(NAMES, [len(frame) for frame in FRAMES.values()])


def dummies(frame: pd.DataFrame = ALL) -> pd.DataFrame:
    """The features as a statistician would encode them by hand, in the order of the table."""
    smoker = pd.Categorical(frame["smoker"].replace("", "(missing)"), ["no", "yes", "(missing)"])
    made = frame[["age", "bmi", "sex", "ward"]].assign(bmi=frame["bmi"].fillna(ALL["bmi"].mean()), smoker=smoker)
    return pd.get_dummies(made, prefix_sep="=", drop_first=True).astype(float)


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a run has its own tests, and takes a second."""
    monkeypatch.setattr(run_files, "write_run_report", lambda folder: None)
    monkeypatch.setattr("compfed._utils.text.FIRST_SECONDS", 60.0)  # progress, on a slow machine


def fit(argv: Sequence[object], out: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The result of a fit, as JSON from the command."""
    status = main(["fit", *map(str, argv), "--out", str(out), "--overwrite", "--json"])
    text, error = capsys.readouterr()
    assert status == 0, error
    return json.loads(text)


def coefficients(found: dict[str, Any], X: Any) -> np.ndarray:
    """The coefficients in the order of the columns of X."""
    return np.array([found["coef"][0][found["features"].index(name)] for name in X.columns])


# --- files as hospitals have them ---


def european(folder: Path) -> list[object]:
    for name, frame in FRAMES.items():
        frame.to_csv(folder / f"{name}.csv", index=False, sep=";", decimal=",", encoding="latin-1")
    return [folder]


def words_and_blanks(folder: Path) -> list[object]:
    for blank, (name, frame) in zip(("NA", "", "?"), FRAMES.items(), strict=True):
        frame.replace("", blank).to_csv(folder / f"{name}.csv", index=False, na_rep=blank)
    return [folder]


def other_order_and_byte_order_mark(folder: Path) -> list[object]:
    for k, (name, frame) in enumerate(FRAMES.items()):
        columns = list(np.roll(frame.columns, k))
        frame[columns].to_csv(folder / f"{name}.csv", index=False, encoding="utf-8-sig")
    return [folder]


def index_and_newlines(folder: Path) -> list[object]:
    for name, frame in FRAMES.items():
        frame.assign(note="two\nlines, and a comma").to_csv(folder / f"{name}.csv")
    return [folder, "--drop", "note"]


def site_column(folder: Path) -> list[object]:
    ALL.assign(clinic=SITE).to_csv(folder / "all.csv", index=False)
    return [folder / "all.csv", "--site", "clinic"]


def parquet(folder: Path) -> list[object]:
    pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    for name, frame in FRAMES.items():
        frame.to_parquet(folder / f"{name}.parquet")
    return [folder]


DIRT: list[Callable[[Path], list[object]]] = [
    european, words_and_blanks, other_order_and_byte_order_mark, index_and_newlines, site_column, parquet
]  # fmt: skip


@pytest.mark.parametrize("write", DIRT, ids=lambda write: write.__name__)
def test_from_files_to_a_model_with_one_command(write, tmp_path, capsys):
    (tmp_path / "in").mkdir()
    argv = ["--label", "died", "--model", "logistic", "--alpha", ALPHA, "--l1-ratio", 0, "--evaluate", "rows"]
    drop = ["days", *(["note"] if write is index_and_newlines else [])]
    files = [given for given in write(tmp_path / "in") if given not in ("--drop", "note")]
    found = fit([*files, *argv, "--drop", ",".join(drop)], tmp_path / "run", capsys)
    X = dummies()
    oracle = LogisticRegression(C=1 / (ALPHA * len(X)), tol=1e-12, solver="newton-cholesky").fit(X, ALL["died"])
    np.testing.assert_allclose(coefficients(found, X), oracle.coef_[0], atol=1e-8)
    assert found["sites"] == {name: len(frame) for name, frame in FRAMES.items()}
    measured, p, died = found["evaluation"], oracle.predict_proba(X)[:, 1], ALL["died"] == "yes"
    assert measured["auc"]["rounding_low"] - 1e-12 <= roc_auc_score(died, p) <= measured["auc"]["rounding_high"] + 1e-12
    assert measured["auc"]["rounding_high"] - measured["auc"]["rounding_low"] <= 0.002
    assert measured["brier"] == pytest.approx(brier_score_loss(died, p), abs=1e-8)
    assert measured["log_loss"] == pytest.approx(log_loss(died, p), abs=1e-8)
    assert measured["accuracy"] == pytest.approx(accuracy_score(died, p > 0.5))
    part = SITE == "1"
    assert measured["per_site"]["1"]["brier"] == pytest.approx(brier_score_loss(died[part], p[part]), abs=1e-8)
    _check_predictions(tmp_path, oracle, capsys)


def _check_predictions(folder: Path, oracle: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """`compfed predict` of new rows in another form, against scikit-learn."""
    new = hospital(9, 20)
    new[["smoker", "ward", "sex", "bmi", "age"]].to_csv(folder / "new.csv", index=False, sep=";", decimal=",")
    assert main(["predict", str(folder / "run"), str(folder / "new.csv"), "--out", str(folder / "p.csv")]) == 0
    capsys.readouterr()
    predicted = pd.read_csv(folder / "p.csv")
    np.testing.assert_allclose(predicted["probability of yes"], oracle.predict_proba(dummies(new))[:, 1], atol=1e-8)
    assert predicted["prediction"].tolist() == oracle.predict(dummies(new)).tolist()


# --- models and options ---


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    for name, frame in FRAMES.items():
        frame.assign(log_age=np.log(frame["age"]), times=1 + np.arange(len(frame)) % 3).to_csv(
            folder / f"{name}.csv", index=False
        )
    return folder


BESIDE = "died,log_age,times"
REGRESSIONS: dict[str, tuple[Any, list[object]]] = {
    "lasso": (Lasso(ALPHA, tol=1e-14, max_iter=100_000), []),
    "elastic-net": (ElasticNet(ALPHA, l1_ratio=0.3, tol=1e-14, max_iter=100_000), ["--l1-ratio", 0.3]),
    "ridge": (Ridge(ALPHA * len(ALL)), []),
    "poisson": (PoissonRegressor(alpha=ALPHA, tol=1e-12, solver="newton-cholesky"), ["--l1-ratio", 0]),
    "gamma": (GammaRegressor(alpha=ALPHA, tol=1e-12, solver="newton-cholesky"), ["--l1-ratio", 0]),
    "huber": (cf.FederatedHuber(alpha=ALPHA), []),  # of the table encoded by hand
    "negative-binomial": (cf.FederatedNegativeBinomialRegressor(alpha=ALPHA, theta=1.0), ["--theta", 1]),
}


@pytest.mark.parametrize("model", REGRESSIONS)
def test_every_regression_is_the_pooled_one(model, files, tmp_path, capsys):
    oracle, options = REGRESSIONS[model]
    given = [files, "--label", "days", "--model", model, "--alpha", ALPHA, "--drop", BESIDE, "--evaluate", "rows"]
    found = fit([*given, *options], tmp_path / "run", capsys)
    X, y = dummies(), ALL["days"].to_numpy(float)
    federated = isinstance(oracle, cf.FederatedHuber | cf.FederatedNegativeBinomialRegressor)
    oracle = oracle.fit(X, y, sites=None) if federated else oracle.fit(X, y)
    np.testing.assert_allclose(coefficients(found, X), oracle.coef_, atol=1e-8)
    predicted = oracle.predict(X)
    assert found["evaluation"]["r2"] == pytest.approx(r2_score(y, predicted), abs=1e-8)
    assert found["evaluation"]["mae"] == pytest.approx(mean_absolute_error(y, predicted), abs=1e-8)


def test_cross_validation_and_the_one_standard_error_rule(files, tmp_path, capsys):
    given = [
        files,
        "--label",
        "died",
        "--model",
        "logistic",
        "--drop",
        "days,log_age,times",
        "--folds",
        3,
        "--evaluate",
        "none",
    ]
    sites = cf.data.from_files(files, "died", drop=["days", "log_age", "times"], schema="auto")
    for options, rule in (([], "best"), (["--one-standard-error"], "one_standard_error")):
        found = fit([*given, *options], tmp_path / "run", capsys)
        same: Any = cf.FederatedLogisticRegressionCV(cv=3, rule=rule).fit_sites(sites)
        assert found["alpha"] == same.alpha_
        assert found["coef"] == same.coef_.tolist()
        assert found["evaluation"] is None
    assert not (tmp_path / "run" / "evaluation.json").exists()


def test_leave_one_out_in_place_of_folds(files, tmp_path, capsys):
    given = [files, "--label", "died", "--model", "logistic", "--drop", "days,log_age,times", "--folds", "loo"]
    sites = cf.data.from_files(files, "died", drop=["days", "log_age", "times"], schema="auto")
    same: Any = cf.FederatedLogisticRegressionCV(cv="loo").fit_sites(sites)
    assert same.cv_loss_.shape[1] == 1
    found = fit([*given, "--evaluate", "cv"], tmp_path / "run", capsys)
    assert found["alpha"] == same.alpha_
    assert found["coef"] == same.coef_.tolist()
    again = same.evaluate(sites, cv=5)
    assert found["evaluation"]["log_loss"] == pytest.approx(again.log_loss)  # by five folds
    record = read_result(tmp_path / "run")
    assert record["cv"]["leave_one_out"]
    (loss,) = [line for line in goodness(record) if line.startswith("Mean loss on rows")]
    assert re.match(r"Mean loss on rows left out one at a time: [\d.]+ approximately, at alpha = ", loss)
    assert _choice_words(record).startswith("Approximate leave-one-out tried ")


def test_offset_and_weight_are_those_of_statsmodels(files, tmp_path, capsys):
    sm = pytest.importorskip("statsmodels.api")
    given = [files, "--label", "days", "--model", "poisson", "--alpha", 0, "--drop", "died"]
    found = fit([*given, "--offset", "log_age", "--weight", "times", "--evaluate", "none"], tmp_path / "run", capsys)
    times = np.concatenate([1 + np.arange(len(frame)) % 3 for frame in FRAMES.values()])
    X, offset = dummies(), np.log(ALL["age"])
    oracle = sm.GLM(ALL["days"], sm.add_constant(X), sm.families.Poisson(), offset=offset, freq_weights=times).fit(
        tol=1e-14
    )
    np.testing.assert_allclose(coefficients(found, X), oracle.params.iloc[1:], atol=1e-8)
    assert main(["predict", str(tmp_path / "run"), str(files / "oslo.csv"), "--json"]) == 0
    predicted = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines()]
    np.testing.assert_allclose(predicted, oracle.fittedvalues[SITE == "oslo"], rtol=1e-7)
    FRAMES["oslo"].to_csv(tmp_path / "new.csv", index=False)
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 2
    assert "new.csv has no column 'log_age'" in capsys.readouterr().err


def test_a_column_of_words_has_one_factor_for_all_its_levels(files, tmp_path, capsys):
    """Columns that are not penalised can be regressed out of the others first (Frisch, Waugh, Lovell)."""
    given = [files, "--label", "days", "--model", "lasso", "--alpha", ALPHA, "--drop", BESIDE, "--evaluate", "none"]
    found = fit([*given, "--penalty-factors", "smoker=0,ward=inf"], tmp_path / "run", capsys)
    X = dummies()
    free = [name for name in X.columns if name.startswith("smoker=")]
    used = [name for name in X.columns if name not in free and not name.startswith("ward=")]
    rest = X[used] - LinearRegression().fit(X[free], X[used]).predict(X[free])
    y = ALL["days"] - LinearRegression().fit(X[free], ALL["days"]).predict(X[free])
    oracle = Lasso(ALPHA, fit_intercept=False, tol=1e-14, max_iter=100_000).fit(rest, y)
    np.testing.assert_allclose(coefficients(found, X[used]), oracle.coef_, atol=1e-8)
    assert not coefficients(found, X[[name for name in X.columns if name.startswith("ward=")]]).any()


def test_bounds_take_the_name_of_a_column_of_words():
    given: Any = {"bounds": {"ward": (0, None), "ward=night": (0, 0)}}
    sites = ALL.drop(columns=["died"]).assign(town=SITE)
    model = cf.FederatedLasso(0.0, **given).fit(sites, "days", sites="town", schema="auto")
    named = dict(zip(model.feature_names_in_, model.coef_, strict=True))
    assert named["ward=night"] == 0.0
    assert named["ward=müde"] >= 0.0
    X = dummies().drop(columns="ward=night")
    oracle = cf.FederatedLasso(0.0, bounds={"ward=müde": (0, None)}).fit(X, ALL["days"], sites=None)
    np.testing.assert_allclose([named[name] for name in X.columns], oracle.coef_, atol=1e-8)


def test_site_effects_are_dummies_of_the_sites(files, tmp_path, capsys):
    given = [files, "--label", "days", "--model", "lasso", "--alpha", ALPHA, "--drop", BESIDE, "--evaluate", "none"]
    found = fit([*given, "--site-effects"], tmp_path / "run", capsys)
    X, y = dummies(), ALL["days"].astype(float)
    oracle = Lasso(ALPHA, fit_intercept=False, tol=1e-14, max_iter=100_000)
    oracle.fit(X - X.groupby(SITE).transform("mean"), y - y.groupby(SITE).transform("mean"))
    np.testing.assert_allclose(coefficients(found, X), oracle.coef_, atol=1e-8)


def test_class_weights_and_a_refit_are_those_of_scikit_learn(files, tmp_path, capsys):
    given = [files, "--label", "died", "--model", "logistic", "--drop", "days,log_age,times", "--evaluate", "none"]
    found = fit([*given, "--alpha", ALPHA, "--l1-ratio", 0, "--class-weight", "balanced"], tmp_path / "run", capsys)
    X = dummies()
    options: Any = {"tol": 1e-12, "solver": "newton-cholesky"}
    oracle = LogisticRegression(C=1 / (ALPHA * len(X)), class_weight="balanced", **options).fit(X, ALL["died"])
    np.testing.assert_allclose(coefficients(found, X), oracle.coef_[0], atol=1e-8)
    found = fit([*given, "--alpha", 0.05, "--relax"], tmp_path / "run", capsys)
    used = [name for name, value in zip(X.columns, coefficients(found, X), strict=True) if value]
    assert 0 < len(used) < X.shape[1]
    oracle = LogisticRegression(C=np.inf, **options).fit(X[used], ALL["died"])
    np.testing.assert_allclose(coefficients(found, X[used]), oracle.coef_[0], atol=1e-6)


def test_a_schema_file_and_leave_one_site_out(files, tmp_path, capsys):
    schema = tmp_path / "schema.toml"
    schema.write_text('[columns.age]\n[columns.sex]\nlevels = ["male", "female"]\n[label]\ncolumn = "days"\n')
    given = [files, "--label", "days", "--model", "ridge", "--alpha", ALPHA, "--schema", schema]
    found = fit([*given, "--evaluate", "leave-one-site-out"], tmp_path / "run", capsys)
    X = pd.DataFrame({"age": ALL["age"], "sex=female": (ALL["sex"] == "female").astype(float)})
    np.testing.assert_allclose(coefficients(found, X), Ridge(ALPHA * len(X)).fit(X, ALL["days"]).coef_, atol=1e-8)
    for name in NAMES:
        train, test = name != SITE, name == SITE
        left = Ridge(ALPHA * train.sum()).fit(X[train], ALL["days"][train])
        r2 = r2_score(ALL["days"][test], left.predict(X[test]))
        assert found["evaluation"]["per_site"][name]["r2"] == pytest.approx(r2, abs=1e-7)


# --- the run folder and the screen ---


def test_the_run_folder_is_for_its_owner_and_an_earlier_fit_is_replaced_on_request_only(files, tmp_path, capsys):
    run = tmp_path / "run"
    argv = [
        "fit",
        str(files),
        "--label",
        "days",
        "--model",
        "ridge",
        "--alpha",
        "1",
        "--drop",
        BESIDE,
        "--out",
        str(run),
    ]
    before = os.umask(0o022)
    try:
        assert main([*argv, "--evaluate", "rows"]) == 0
        written = (run / "model.safetensors").read_bytes()
        assert main([*argv, "--alpha", "2"]) == 2
        assert f"Replace it with --overwrite, or keep it with --out {run}-2." in capsys.readouterr().err
        assert (run / "model.safetensors").read_bytes() == written
        assert main([*argv, "--evaluate", "none", "--overwrite"]) == 0
    finally:
        os.umask(before)
    text = capsys.readouterr().out
    assert "210 rows of 3 sites: 5 columns make 7 features." in text
    assert "Rehearsal: all rows were in this process." in text
    assert "ward=müde" in text
    assert f"Next: compfed predict {run} NEW.csv" in text
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in run.iterdir()} == dict.fromkeys(
        [
            "coefficients.csv",
            "config.json",
            "model.safetensors",
            "result.json",
            "result.npz",
            "schema.toml",
            "trace.npz",
        ],
        0o600,
    )
    model: Any = cf.load_model(run)
    assert model.schema_.label.column == "days"
    (run / "thesis.doc").write_text("")
    assert main([*argv, "--overwrite"]) == 2
    assert "holds other files than those of a fit ('thesis.doc'). Give a new folder" in capsys.readouterr().err
    assert main(["predict", str(run), str(files / "01.csv"), "--out", str(tmp_path / "p.csv")]) == 0
    assert stat.S_IMODE((tmp_path / "p.csv").stat().st_mode) == 0o600
    (tmp_path / "p.csv").write_text("mine")
    again = ["predict", str(run), str(files / "01.csv"), "--out", str(tmp_path / "p.csv")]
    assert main(again) == 2
    assert f"--out {tmp_path / 'p-2.csv'}." in capsys.readouterr().err
    assert (tmp_path / "p.csv").read_text() == "mine"
    assert main([*again, "--overwrite"]) == 0
    assert (tmp_path / "p.csv").read_text() != "mine"


def test_classes_that_are_numbers_are_printed_as_in_the_file(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2)).round(2)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "ill": (X[:, 0] + rng.standard_normal(60) > 0).astype(int)})
    frame.to_csv(tmp_path / "all.csv", index=False)
    given = [tmp_path / "all.csv", "--label", "ill", "--model", "logistic", "--alpha", 0.1, "--evaluate", "none"]
    fit(given, tmp_path / "run", capsys)
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "all.csv")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "prediction,probability of 0,probability of 1"
    assert {line.split(",")[0] for line in lines[1:]} == {"0", "1"}


def test_slow_work_says_what_it_does_in_plain_lines(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("compfed._utils.text.FIRST_SECONDS", 0.0)
    argv = ["fit", str(files), "--label", "days", "--model", "ridge", "--alpha", "1", "--drop", BESIDE]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    steps = {line.split(" ...")[0] for line in lines}
    assert {"[1/4] reading", "[2/4] fitting", "[4/4] writing"} <= steps
    assert any(step.startswith("[3/4] evaluating") for step in steps)
    assert not any("\r" in line or "\033" in line for line in lines)


def test_a_column_that_the_reader_left_out_is_on_the_screen(tmp_path, capsys):
    for name in NAMES:
        FRAMES[name][["age", "bmi", "days"]].to_csv(tmp_path / f"{name}.csv")  # with the index of pandas
    argv = ["fit", str(tmp_path), "--label", "days", "--model", "ridge", "--alpha", "1", "--evaluate", "none"]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "210 rows of 3 sites: 2 columns make 2 features."
    said = "the first column has no name and numbers the rows; it was left out."
    assert lines[1] == "No row was left out."
    assert lines[3:8] == [*(f"{name}.csv: {said}" for name in sorted(NAMES)), lines[6], ""]
    assert lines[6].startswith("Rehearsal")


def test_the_screen_says_what_is_there(files, tmp_path, capsys):
    run = tmp_path / "run"
    given = ["fit", str(files), "--label", "days", "--model", "poisson", "--features", "age", "--weight", "times"]
    assert main([*given, "--alpha", "0", "--evaluate", "rows", "--out", str(run)]) == 0
    shown = capsys.readouterr().out
    assert "Summary of FederatedPoissonRegressor: fit without a penalty" in shown
    assert f"Run folder: {run}\n" in shown  # no page was written
    times = sum((1 + np.arange(len(frame)) % 3).sum() for frame in FRAMES.values())
    assert re.search(rf"\nrows +{len(ALL)} ", shown)
    assert re.search(rf"\nweight of the rows +{times} ", shown)


# --- the model is on the disk before it is evaluated ---


def check_saved(run: Path, X: pd.DataFrame, y: Any) -> None:
    """The folder has the model of the pooled rows, and nothing of an evaluation or of an earlier fit."""
    oracle = Ridge(ALPHA * len(X)).fit(X, y)
    record, model = read_result(run), cf.load_model(run)
    np.testing.assert_allclose(coefficients(record, X), oracle.coef_, atol=1e-8)
    np.testing.assert_array_equal(np.ravel(record["coef"]), model.coef_)  # pyright: ignore[reportAttributeAccessIssue]
    assert "evaluation" not in record
    assert not {"evaluation.json", "report.html"} & {path.name for path in run.iterdir()}


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), ValueError("a defect"), MemoryError(), cf.InputError("No.")])
def test_an_evaluation_that_fails_leaves_the_saved_model(failure, files, tmp_path, capsys, monkeypatch):
    def evaluate(*given: Any, **named: Any) -> None:
        raise failure

    run = tmp_path / "run"
    argv = ["fit", str(files), "--label", "days", "--model", "ridge", "--out", str(run), "--drop", BESIDE]
    assert main([*argv, "--alpha", "3"]) == 0
    (run / "report.html").write_text("the page of the earlier fit")
    monkeypatch.setattr(cf.FederatedElasticNet, "evaluate", evaluate)
    capsys.readouterr()
    argv += ["--alpha", str(ALPHA), "--overwrite"]
    said = f"he model is saved in {run}"
    if isinstance(failure, ValueError) and not isinstance(failure, cf.InputError):
        with pytest.raises(ValueError, match="a defect") as raised:
            main(argv)
        assert said in raised.value.__notes__[0]
    else:
        assert main(argv) == (130 if isinstance(failure, KeyboardInterrupt) else 1)
        out, error = capsys.readouterr()
        assert error.strip().count("\n") == 0
        assert said in error
        assert ("coefficients are not zero" in out) == (not isinstance(failure, KeyboardInterrupt))
    check_saved(run, dummies(), ALL["days"].to_numpy(float))


def test_a_class_of_one_row_has_a_model_and_no_cross_validation(tmp_path, capsys):
    for k, name in enumerate(("a", "b")):
        frame = FRAMES[NAMES[k]][["age", "bmi"]].fillna(25.0).assign(ward=["north", "south"] * 35)
        frame.assign(ward=["east", *frame["ward"][1:]] if k else frame["ward"]).to_csv(tmp_path / f"{name}.csv")
    paths = [str(tmp_path / f"{name}.csv") for name in ("a", "b")]
    run = tmp_path / "run"
    status = main(["fit", *paths, "--label", "ward", "--model", "logistic", "--alpha", "0.1", "--out", str(run)])
    out, error = capsys.readouterr()
    assert (status, error.count("\n")) == (1, 1)
    assert f"the model is saved in {run}, and was not evaluated: " in error
    assert "to learn from" in error
    assert f"Next: compfed predict {run} NEW.csv" in out
    assert cf.load_model(run).classes_.tolist() == ["east", "north", "south"]  # pyright: ignore[reportAttributeAccessIssue]


def test_an_evaluation_that_these_sites_cannot_have_is_refused_before_the_fit(files, tmp_path, capsys):
    argv = ["--label", "days", "--model", "ridge", "--alpha", "1", "--drop", BESIDE, "--out", str(tmp_path / "run")]
    assert main(["fit", str(files), *argv, "--folds", "300"]) == 2
    assert "300 folds need at least 300 rows" in capsys.readouterr().err
    assert main(["fit", str(files / "1.csv"), *argv, "--evaluate", "leave-one-site-out"]) == 2
    assert "needs at least two sites; there is one. Give a file for every site" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


# --- a user's mistakes ---


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--alpha", "-1"], "--alpha -1.0 must be a finite number >= 0"),
        (["--alpha", "nan"], "must be a finite number >= 0"),
        (["--alpha", "much"], "--alpha much: give a number, or cv."),
        (["--alpha", "1", "--one-standard-error"], "Leave out --alpha"),
        (["--label", "wrong"], "has no column 'wrong'"),
        (["--model", "lasso", "--label", "died"], "Take --model logistic, or labels that are numbers"),
        (["--model", "ridge", "--class-weight", "balanced"], "--class-weight is not for --model ridge"),
        (["--drop", "nothing"], "--drop 'nothing': no file has this column"),
        (["--site", "town"], "has no column 'town'"),
        (["--penalty-factors", "sexx=0", "--alpha", "1"], "there is no column 'sexx'"),
        (["--penalty-factors", "sex"], "give COLUMN=NUMBER"),
        (["--penalty-factors", "sex=0,age=1,sex=2"], "column sex has two factors. Give one of them."),
        (["--penalty-factors", "sex=no"], "give a number >= 0, or inf"),
        (["--l1-ratio", "2", "--alpha", "1"], "between 0 and 1"),
        (["--schema", "none.toml"], "none.toml"),
        (["--offset", "sex"], "column 'sex' must be numbers"),
        (["--weight", "w"], "has no column 'w'"),
        (["--folds", "1"], "--folds 1 must be at least 2"),
        (["--folds", "300"], "--folds 300 folds need at least 300 rows"),
        (["--decimal", ","], "column 'age' has numbers with a decimal point"),
        (["--sep", ";;"], "--sep ';;' must be one character"),
        (["--encoding", "klingon"], "--encoding 'klingon' is not known"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_a_mistake_is_one_line_and_status_2(change, message, files, tmp_path, capsys):
    argv = ["fit", str(files), "--label", "days", "--model", "ridge", "--out", str(tmp_path / "run"), *change]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1 or re.match(r"compfed fit: \d+ problems:\n(  .*\n)+", error)  # a line for each
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


def bad_file(name: str, folder: Path) -> Path:
    path = folder / f"{name}.csv"
    content = {
        "empty": b"",
        "binary": bytes(range(256)) * 20,
        "header": b"a,died\n",
        "one": b"a,died\n1,yes\n2,yes\n3,yes\n4,yes\n5,yes\n",
    }
    if name == "folder":
        (folder / "sub").mkdir()
        return folder / "sub"
    if name != "absent":
        path.write_bytes(content.get(name, b"a,died\n1,yes\n2,no\n"))
    if name == "forbidden":
        path.chmod(0)
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "there is no file"),
        ("empty", "it is empty"),
        ("binary", "bytes that are no text"),
        ("header", "header.csv has a header and no rows"),
        ("one", "class"),
        ("folder", "has no .csv, .csv.gz or .parquet file"),
        ("forbidden", "ermission"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_status_2(name, message, tmp_path, capsys):
    path = bad_file(name, tmp_path)
    if name == "forbidden" and os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    argv = ["fit", str(path), "--label", "died", "--model", "logistic", "--alpha", "1", "--out", str(tmp_path / "run")]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_disk_that_is_full_in_the_end_is_one_line_and_status_2(files, tmp_path, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.safetensors")

    monkeypatch.setattr(run_files, "save_model", full)
    argv = [
        "fit",
        str(files),
        "--label",
        "days",
        "--model",
        "ridge",
        "--alpha",
        "1",
        "--drop",
        BESIDE,
        "--evaluate",
        "none",
    ]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == "compfed fit: model.safetensors: No space left on device.\n"


def test_rows_that_cannot_be_predicted_are_one_line_and_status_2(files, tmp_path, capsys):
    argv = [
        "fit",
        str(files),
        "--label",
        "days",
        "--model",
        "ridge",
        "--alpha",
        "1",
        "--drop",
        BESIDE,
        "--evaluate",
        "none",
    ]
    assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    new = hospital(3, 3)
    new.assign(sex="other").to_csv(tmp_path / "level.csv", index=False)
    new.drop(columns="age").to_csv(tmp_path / "column.csv", index=False)
    for name, message in (
        ("level", "has 'other' on lines 2, 3, 4, not one of its levels ('female', 'male')"),
        ("column", "has no column 'age'"),
        ("absent", "absent.csv"),
    ):
        capsys.readouterr()
        assert main(["predict", str(tmp_path / "run"), str(tmp_path / f"{name}.csv")]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    assert main(["predict", str(tmp_path / "nowhere"), str(files / "01.csv")]) == 2
    assert "nowhere holds no model: there is no model.safetensors. Give the folder of a run" in capsys.readouterr().err
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "absent.csv")]) == 2
    assert "absent.csv cannot be read as CSV: No such file or directory.\n" in capsys.readouterr().err  # no "[Errno 2]"
    assert main(["predict", str(tmp_path / "run"), str(tmp_path)]) == 2
    assert "is a folder; name one CSV or Parquet file" in capsys.readouterr().err


def test_a_fit_without_a_penalty_has_standard_errors_on_the_screen_and_in_its_folder(files, tmp_path, capsys):
    """Oracle: statsmodels on the pooled rows, with frequency weights."""
    sm = pytest.importorskip("statsmodels.api")
    run, given = (
        tmp_path / "run",
        [files, "--label", "days", "--model", "poisson", "--alpha", 0, "--drop", "died,log_age"],
    )
    assert main(["fit", *map(str, given), "--weight", "times", "--evaluate", "none", "--out", str(run)]) == 0
    text = capsys.readouterr().out
    times = np.concatenate([1 + np.arange(len(frame)) % 3 for frame in FRAMES.values()])
    oracle = sm.GLM(ALL["days"], sm.add_constant(dummies()), sm.families.Poisson(), freq_weights=times).fit(tol=1e-14)
    table = pd.read_csv(run / "summary.csv", index_col="term")
    assert table.loc["age", "standard error"] == pytest.approx(oracle.bse["age"], rel=1e-8)
    assert table.loc["(intercept)", "p"] == pytest.approx(oracle.pvalues["const"], rel=1e-6)
    for said in ("Standard errors: from the model", "rate ratio", "95% interval", f"log-likelihood = {oracle.llf:.8g}"):
        assert said in text
    found = read_result(run)
    assert found["summary"]["aic"] == pytest.approx(oracle.aic)
    page = page_text(found)
    for said in ("Standard errors and intervals", "Forest plot: rate ratio with 95% confidence intervals", "age"):
        assert said in page


def test_a_penalised_fit_has_naive_errors_by_name_only_when_asked(files, tmp_path, capsys):
    given = [
        "fit",
        str(files),
        "--label",
        "died",
        "--model",
        "logistic",
        "--alpha",
        "0.05",
        "--drop",
        "days,log_age,times",
    ]
    given += ["--evaluate", "none"]
    assert main([*given, "--out", str(tmp_path / "plain")]) == 0
    assert "Standard errors" not in capsys.readouterr().out
    assert not (tmp_path / "plain" / "summary.csv").exists()
    assert main([*given, "--summary", "HC1", "--out", str(tmp_path / "refit")]) == 0
    text = capsys.readouterr().out
    assert "refit without a penalty of the columns that a penalised fit chose" in text
    assert "Naive after selection" in text
    assert "robust, HC1" in text
    huber = [word if word != "logistic" else "huber" for word in given]
    huber = [
        {"died": "days", "0.05": "0", "days,log_age,times": "died,log_age,times"}.get(word, word) for word in huber
    ]
    assert main([*huber, "--out", str(tmp_path / "huber")]) == 0
    assert "No standard errors: FederatedHuber has no summary" in capsys.readouterr().out
