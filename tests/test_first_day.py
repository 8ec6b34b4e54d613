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
from compfed.report import sections
from compfed.report.run_result import read_result

ALPHA = 0.02


@pytest.fixture(autouse=True)
def no_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page of a run takes a second: only the tests that read it write one."""
    if "page" not in request.keywords:
        monkeypatch.setattr(run_files, "write_run_report", lambda folder: None)


def write(folder: Path, frames: dict[str, pd.DataFrame]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, frame in frames.items():
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


def printed(argv: Sequence[object], out: Path, capsys: pytest.CaptureFixture[str], status: int = 0) -> str:
    """What a fit prints."""
    capsys.readouterr()
    assert main(["fit", *map(str, argv), "--out", str(out)]) == status
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
    assert main(["fit", *map(str, argv), "--out", str(tmp_path / "run"), "--positive-class", "may"]) == 2
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
