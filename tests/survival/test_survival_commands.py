"""`compfed fit --model cox` and `compfed survival`: the numbers of the library, and mistakes that are told."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from survival_oracles import table

import compfed as cf
from compfed.cli import main


@pytest.fixture
def wards(tmp_path):
    t = table("ties")
    for k in np.unique(t.site):
        mine = t.site == k
        frame = pd.DataFrame(
            {"score": t.X[mine, 0], "age": t.X[mine, 1], "arm": np.where(t.X[mine, 3] > 0, "new", "old")}
        )
        frame["months"], frame["died"] = t.y[mine, 0], t.y[mine, 1].astype(int)
        frame["ward"] = np.where(t.stratum[mine] > 0, "icu", "general")
        (tmp_path / "wards").mkdir(exist_ok=True)
        frame.to_csv(tmp_path / "wards" / f"w{k:g}.csv", index=False)
    return tmp_path / "wards"


def test_a_cox_fit_of_files(wards, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["--model", "cox", "--time", "months", "--event", "died", "--strata", "ward", "--alpha", "0"]
    assert main(["fit", str(wards), *arguments, "--times", "1:60:1", "--out", str(out), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    t = table("ties")
    X = np.column_stack([t.X[:, 1], t.X[:, 0]])
    expected = cf.FederatedCox().fit(np.column_stack([X, t.X[:, 3] == 0]), t.y, sites=t.site, strata=t.stratum)
    order = [["age", "score", "arm=old"].index(name) for name in shown["features"]]
    np.testing.assert_allclose(np.ravel(shown["coef"]), expected.coef_[order], rtol=1e-9)
    assert shown["ratios"]["name"] == "hazard ratio"
    assert 0.5 < shown["evaluation"]["concordance"] < 1
    model = cf.load_model(out)
    assert model.predict_survival_function(pd.read_csv(wards / "w0.csv")).shape[1] == 60  # pyright: ignore[reportAttributeAccessIssue]
    assert "hazard ratio" in (out / "report.html").read_text()


def test_curves_of_files(wards, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    figure, options = tmp_path / "curves.svg", ["--time", "months", "--event", "died", "--by", "arm"]
    assert main(["survival", str(wards), *options, "--times", "5,10,20,40", "--figure", str(figure), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    t = table("ties")
    expected = cf.kaplan_meier(
        pd.DataFrame(t.X, columns=list("abcd")), t.y, times=[5, 10, 20, 40], by="d", sites=t.site
    )
    np.testing.assert_allclose(found["groups"]["arm=new"]["survival"], expected.survival[1])
    assert found["log_rank"]["statistic"] == pytest.approx(expected.log_rank.statistic)  # pyright: ignore[reportOptionalMemberAccess]
    assert figure.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "cox", "--label", "died"], "--label died is not for --model cox"),
        (["--model", "cox", "--time", "months"], "needs --time COL and --event COL"),
        (["--model", "lasso", "--label", "age", "--time", "months"], "--time is for --model cox"),
        (["--model", "lasso"], "--label is missing"),
        (["--model", "cox", "--time", "months", "--event", "died", "--times", "1:x:2"], "START:STOP:STEP"),
        (
            ["--model", "cox", "--time", "months", "--event", "died", "--site-effects"],
            "--site-effects is not for --model cox",
        ),
        (
            ["--model", "cox", "--time", "months", "--event", "died", "--evaluate", "leave-one-site-out"],
            "Take --evaluate rows",
        ),
        (["--model", "cox", "--time", "months", "--event", "died", "--folds", "loo"], "leave-one-out"),
    ],
)
def test_a_mistake_is_told(arguments, told, wards, tmp_path, capsys):
    assert main(["fit", str(wards), *arguments, "--out", str(tmp_path / "run")]) != 0
    assert told in capsys.readouterr().err
