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
    page = (out / "report.html").read_text()
    assert "hazard ratio" in page
    assert f"(Harrell's C): {shown['evaluation']['concordance']:.3f}" in page.replace("&#x27;", "'").replace(
        "&#39;", "'"
    )
    assert "each row by a model without its fold, 5 folds" in page
    again = [*arguments, "--out", str(tmp_path / "rows"), "--evaluate", "rows"]
    assert main(["fit", str(wards), *again]) == 0
    assert "optimistic if it was fitted to them" in capsys.readouterr().out
    assert "optimistic if it was fitted to them" in (tmp_path / "rows" / "report.html").read_text()


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


WORDS = {
    "yes and no": ("yes", "no", []),
    "true and false": ("true", "false", []),
    "dead and alive": ("dead", "alive", ["--positive-class", "dead"]),
    "deceased and living": ("deceased", "living", ["--positive-class", "deceased"]),  # not in the order of letters
    "as R has it": (2, 1, ["--positive-class", "2"]),
    "censored": (0, 1, ["--positive-class", "0"]),
}
COX = ["--model", "cox", "--time", "months", "--event", "died", "--strata", "ward", "--alpha", "0"]


def rewritten(wards, event, censored):
    """The same files with other values for the events."""
    for path in wards.iterdir():
        frame = pd.read_csv(path)
        frame["died"] = np.where(frame["died"] == 1, event, censored)
        frame.to_csv(path, index=False)


NOW = ("yes and no", "deceased and living", "as R has it")


@pytest.mark.parametrize("words", [w if w in NOW else pytest.param(w, marks=pytest.mark.thorough) for w in WORDS])
def test_events_in_words_are_those_in_numbers(words, wards, tmp_path, capsys):
    t = table("ties")
    event, censored, options = WORDS[words]
    rewritten(wards, event, censored)
    assert main(["fit", str(wards), *COX, *options, "--out", str(tmp_path / "run"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    X = np.column_stack([t.X[:, 1], t.X[:, 0], t.X[:, 3] == 0])
    expected = cf.FederatedCox().fit(X, t.y, sites=t.site, strata=t.stratum)
    order = [["age", "score", "arm=old"].index(name) for name in shown["features"]]
    np.testing.assert_allclose(np.ravel(shown["coef"]), expected.coef_[order], rtol=1e-9)
    if words == "deceased and living":
        model = cf.load_model(tmp_path / "run")
        rows = pd.read_csv(wards / "w0.csv")
        here = model.score(rows, ("months", "died"))  # pyright: ignore[reportArgumentType]
        assert here == pytest.approx(model.score(rows, np.column_stack([rows["months"], rows["died"] == "deceased"])))
        assert 0.5 < here < 1


def test_curves_of_events_in_words(wards, capsys):
    arguments = ["survival", str(wards), "--time", "months", "--event", "died", "--times", "5,10,20", "--json"]
    assert main(arguments) == 0
    in_numbers = json.loads(capsys.readouterr().out)
    rewritten(wards, "deceased", "living")
    assert main([*arguments, "--positive-class", "deceased"]) == 0
    assert json.loads(capsys.readouterr().out) == in_numbers


@pytest.mark.parametrize(
    ("event", "censored", "options", "told"),
    [
        ("deceased", "living", [], "has 'deceased' and 'living'. Say which is the event, such as --positive-class"),
        (2, 1, [], "has '1' and '2'. Say which is the event, such as --positive-class '2'"),
        ("deceased", "living", ["--positive-class", "dead"], "--positive-class 'dead' is not a value of the column 'died'"),
    ],
)  # fmt: skip
def test_events_that_are_not_known_are_named(event, censored, options, told, wards, tmp_path, capsys):
    rewritten(wards, event, censored)
    assert main(["fit", str(wards), *COX, *options, "--out", str(tmp_path / "run")]) != 0
    assert told in capsys.readouterr().err


def test_three_kinds_of_events_are_refused(wards, tmp_path, capsys):
    rewritten(wards, "death", "none")
    path = wards / "w0.csv"
    path.write_text(path.read_text().replace("death", "relapse"))
    assert main(["fit", str(wards), *COX, "--out", str(tmp_path / "run")]) != 0
    assert "has 3 values: 'death' and 'none' and 'relapse'. Give a column of two" in capsys.readouterr().err


def test_a_schema_names_both_values_of_the_events(wards):
    rewritten(wards, "dead", "alive")
    schema = cf.data.from_files(
        wards, ["months", "died"], stratum="ward", schema="auto", events=True, positive_class="dead"
    ).schema
    assert schema is not None
    assert 'events = ["alive", "dead"]' in schema.to_toml()
    assert cf.Schema.from_toml(schema.to_toml()).label == schema.label
    again = cf.data.from_files(wards, schema=cf.Schema.from_toml(schema.to_toml()))
    np.testing.assert_array_equal(np.concatenate(again.labels)[:, 1], table("ties").y[:, 1])
    for wrong in ('["dead"]', '["dead", "dead"]', '["a", "b", "c"]', "3"):
        with pytest.raises(cf.InputError, match="must be two words or two numbers, no event and the event"):
            cf.Schema.from_toml(schema.to_toml().replace('["alive", "dead"]', wrong))
    rewritten(wards, "dead", "lost")
    with pytest.raises(cf.InputError, match=r"has 'lost' .* not one of the classes \('alive', 'dead'\)"):
        cf.data.from_files(wards, schema=schema)


def test_words_in_a_frame_say_what_to_give(wards):
    frame = pd.read_csv(wards / "w0.csv").assign(died=lambda d: np.where(d["died"] == 1, "yes", "no"))
    with pytest.raises(cf.InputError, match=r"column 'died', has 'no', 'yes'; .* as of frame\['died'\] == 'yes'"):
        cf.FederatedCox().fit(frame, ("months", "died"), schema="auto")
