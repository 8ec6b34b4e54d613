"""Three CSV files as hospitals have them, through `fit`, `compfed fit` and a federation of processes: one model.

The files differ in separator, decimal mark, encoding and order of columns; they have words, blanks, yes/no labels and weights.
Masks and the default disclosure policy are on.
"""

from __future__ import annotations

import csv
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from network.memory_link import assert_whole_messages
from network.processes import Processes, command

import compfed as cf
from compfed.cli.demo import rehearsal
from compfed.estimators.export import result_of
from compfed.network.run_folder import read_status

pytestmark = pytest.mark.thorough  # run by `make test-federation`

ALPHA = 0.02
ESTIMATOR = f'estimator = "FederatedLogisticRegression"\nevaluate = true\n[parameters]\nalpha = {ALPHA}\n'
RUN_FILES = {  # of `compfed fit`
    "coefficients.csv", "config.json", "evaluation.json", "model.safetensors", "report.html", "result.json", "result.npz",
    "schema.toml", "trace.npz",
}  # fmt: skip


def frame(seed: int, rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    found = pd.DataFrame({
        "age": rng.normal(60, 12, rows).round(1), "größe": rng.normal(1.7, 0.1, rows).round(3),
        "sex": rng.choice(["female", "male"], rows), "pressure": rng.choice(["erhöht", "niedrig", "normal"], rows),
        "smoker": rng.choice(["no", "yes"], rows), "w": rng.choice([0.5, 1.0, 2.0], rows),
    })  # fmt: skip
    risk = (found["age"] - 60) / 10 + 0.8 * (found["sex"] == "male") + (found["pressure"] == "erhöht")
    found["died"] = np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no")
    found.loc[rng.random(rows) < 0.08, "age"] = np.nan
    found.loc[rng.random(rows) < 0.08, "smoker"] = None
    return found


NORTH, SOUTH, EAST = frame(0, 150), frame(1, 110), frame(2, 130)
NEW = frame(3, 40).drop(columns=["died", "w"])
TABLES = {
    "north": NORTH.to_csv(index=False, sep=";", decimal=",").encode("latin-1"),
    "south": SOUTH.to_csv(index=False, na_rep="NA").encode(),
    "east": EAST[["died", "smoker", "w", "pressure", "größe", "sex", "age"]].to_csv(index=False).encode("utf-8-sig"),
}


def load(folder: Path) -> Any:
    return cf.load_model(folder)


def rows() -> pd.DataFrame:
    named = [table.assign(site=name) for name, table in zip(TABLES, (NORTH, SOUTH, EAST), strict=True)]
    return pd.concat(named, ignore_index=True)


def encoded(table: pd.DataFrame, schema: cf.Schema) -> np.ndarray:
    """The rows as numbers, with pandas alone."""
    age: cf.NumericColumn = schema.columns["age"]  # pyright: ignore[reportAssignmentType]
    smoker = table["smoker"].fillna("(missing)")
    columns = [
        table["age"].fillna(age.impute), table["größe"], table["sex"] == "male", table["pressure"] == "niedrig",
        table["pressure"] == "normal", smoker == "yes", smoker == "(missing)",
    ]  # fmt: skip
    return np.column_stack(columns).astype(float)


class Clinics(NamedTuple):
    federation: Processes
    home: Path
    state_when_killed: str
    shown: str  # by the command that continued the run


@pytest.fixture(scope="module")
def clinics(tmp_path_factory) -> Iterator[Clinics]:
    """The sites with the schema that they agreed on, and a finished run that was killed while it evaluated its model."""
    home = tmp_path_factory.mktemp("dirty") / "clinics"
    with Processes(home, TABLES, 'label = "died"', federation=ESTIMATOR) as made:
        toml = made.site_folder("south") / "site.toml"
        ends = toml.read_text().replace("share_by_rule = inf", "share_by_rule = 2.5")
        toml.write_text(ends.replace("max_share = inf", "max_share = 2.5"))
        made.start()
        command("federation", "schema", home)
        agreed = cf.Schema.read(home / "schema.toml")
        columns = {name: column for name, column in agreed.columns.items() if name != "w"}
        made.adopt(replace(agreed, columns=columns, weight="w").to_toml())
        killed = made.start_run(home / "run", home / "killed.log")
        end = time.monotonic() + 60
        while not (home / "run" / "model.safetensors").exists() and time.monotonic() < end:
            time.sleep(0.01)
        killed.kill()
        killed.wait()
        state = str(read_status(home / "run").get("state"))
        yield Clinics(made, home, state, command("federation", "run", home))


@pytest.fixture(scope="module")
def schema(clinics) -> cf.Schema:
    return cf.Schema.read(clinics.federation.site_folder("north") / "schema.toml")


@pytest.fixture(scope="module")
def by_command(clinics) -> Path:
    """The run folder of `compfed fit` on the files of the sites."""
    home = clinics.home
    for name, data in TABLES.items():
        (home / f"{name}.csv").write_bytes(data)
    files, schema = [home / f"{name}.csv" for name in TABLES], clinics.federation.site_folder("north") / "schema.toml"
    options = ("--model", "logistic", "--alpha", ALPHA, "--schema", schema, "--evaluate", "rows")
    command("fit", *files, "--label", "died", *options, "--out", home / "fit")
    return home / "fit"


def test_the_same_model_from_files_here_and_over_processes(clinics, schema, by_command):
    """Within 1e-12; the network has the bits of its rehearsal. Without a policy the differences are of the order of 1e-16."""
    network, files = load(clinics.home / "run"), load(by_command)
    here = cf.FederatedLogisticRegression(alpha=ALPHA).fit(rows(), "died", sites="site", schema=schema)
    for other in (files, here):
        np.testing.assert_allclose(network.coef_, other.coef_, rtol=0, atol=1e-12)
        np.testing.assert_allclose(network.intercept_, other.intercept_, rtol=1e-12)
        np.testing.assert_array_equal(network.coef_ == 0, other.coef_ == 0)
        np.testing.assert_allclose(network.predict_proba(NEW), other.predict_proba(NEW), rtol=0, atol=1e-12)
        assert network.predict(NEW).tolist() == other.predict(NEW).tolist()
        assert other.schema_ == schema
    rehearsed = cf.FederatedLogisticRegression(alpha=ALPHA).fit_federation(rehearsal(clinics.federation))
    np.testing.assert_array_equal(network.coef_, rehearsed.coef_)
    np.testing.assert_array_equal(network.intercept_, rehearsed.intercept_)


def test_the_model_has_the_optimality_conditions_of_the_pooled_rows(clinics, schema):
    """Weighted rows, encoded with pandas, in NumPy alone."""
    model, table = load(clinics.home / "run"), rows()
    X, weight = encoded(table, schema), table["w"].to_numpy()
    assert model.feature_names_in_.tolist() == list(schema.feature_names)
    residual = weight * (1 / (1 + np.exp(-(X @ model.coef_[0] + model.intercept_))) - (table["died"] == "yes"))
    gradient = X.T @ residual / weight.sum()
    used = model.coef_[0] != 0
    assert abs(residual.sum() / weight.sum()) < 1e-11
    np.testing.assert_allclose(gradient[used], -ALPHA * np.sign(model.coef_[0][used]), atol=1e-10)
    assert (np.abs(gradient[~used]) <= ALPHA).all()
    assert 0 < used.sum() < len(used)


def test_predictions_of_a_file_by_command(clinics, by_command, tmp_path):
    """A file with semicolons, decimal commas and blanks, from the run folders of the network and of `compfed fit`."""
    path = tmp_path / "new.csv"
    path.write_bytes(NEW.to_csv(index=False, sep=";", decimal=",").encode("latin-1"))
    found = [
        list(csv.DictReader(command("predict", run, path).splitlines())) for run in (clinics.home / "run", by_command)
    ]
    assert [row["prediction"] for row in found[0]] == [row["prediction"] for row in found[1]]
    risks = [[float(row["probability of yes"]) for row in each] for each in found]
    np.testing.assert_allclose(*risks, rtol=0, atol=1e-12)
    np.testing.assert_allclose(risks[0], load(by_command).predict_proba(NEW)[:, 1], atol=1e-12)


def test_a_run_leaves_the_files_of_compfed_fit(clinics, schema, by_command):
    run = clinics.home / "run"
    assert {path.name for path in by_command.iterdir()} == RUN_FILES
    assert {path.name for path in run.iterdir()} == RUN_FILES | {"lock", "log.jsonl", "status.json", "write_ahead.log"}
    assert cf.Schema.read(run / "schema.toml") == schema
    results = [json.loads((folder / "result.json").read_text()) for folder in (run, by_command)]
    for name in ("estimator", "label", "features", "classes", "schema", "sites"):
        assert results[0][name] == results[1][name], name


def bodies_at_sites(clinics: Clinics, run: str) -> dict[int, np.ndarray]:
    """Bytes to and from an average site in each message of a run, as the processes of the sites counted them."""
    found = defaultdict[int, np.ndarray](lambda: np.zeros(2))
    for name in TABLES:
        for line in (clinics.federation.site_folder(name) / "state" / "log.jsonl").read_text().splitlines():
            entry = json.loads(line)
            if entry.get("run") == run and "bytes_in" in entry:
                found[entry["number"]] += np.array([entry["bytes_in"], entry["bytes_out"]]) / len(TABLES)
    return dict(found)


def test_the_byte_axis_of_a_network_is_that_of_the_message_bodies(clinics):
    """Both ways, without the framing of TLS and HTTP. A run of its own: what a killed operator sent is not in its log."""
    with cf.network.connect(clinics.home, folder=clinics.home / "counted", progress=False) as federation:
        model = cf.FederatedLogisticRegression(alpha=ALPHA).fit_federation(federation)
        bodies, problems = bodies_at_sites(clinics, federation.log.run), federation.problems
    assert problems == []
    record = result_of(model)
    trace, total, sizes = record["trace"], record["communication"], np.array([bodies[k] for k in sorted(bodies)])
    assert len(sizes) == 1 + total["rounds"]  # the first one asks the sites to enrol
    for found in ((trace["bytes_down"][-1], trace["bytes_up"][-1]), (total["bytes_down"], total["bytes_up"])):
        assert found == pytest.approx(sizes.sum(axis=0), rel=1e-12)
    assert_whole_messages(trace, sizes)


def test_a_run_that_was_killed_while_it_evaluated_continues(clinics):
    """The evaluation is that of scikit-learn on the pooled rows, in intervals where the policy says so."""
    assert clinics.state_when_killed not in ("finished", "failed")
    assert "Continuing run" in clinics.shown
    assert "Evaluation, two classes" in clinics.shown
    assert read_status(clinics.home / "run")["state"] == "finished"
    found = json.loads((clinics.home / "run" / "evaluation.json").read_text())
    table = rows()
    died, weight = table["died"] == "yes", table["w"]
    risk = load(clinics.home / "run").predict_proba(table)[:, 1]
    assert (
        found["auc"]["rounding_low"] <= roc_auc_score(died, risk, sample_weight=weight) <= found["auc"]["rounding_high"]
    )
    assert found["brier"] == pytest.approx(brier_score_loss(died, risk, sample_weight=weight), rel=1e-8)
    assert found["log_loss"] == pytest.approx(log_loss(died, risk, sample_weight=weight), rel=1e-8)


def test_an_evaluation_that_is_refused_does_not_lose_the_model(clinics):
    """So many numbers may leave a site, whoever approves; the first run took most of them."""
    home = clinics.home
    shown = command("federation", "run", home, "--out", home / "again")
    assert "The model is saved; it was not evaluated: site 'south' does not take part in this run" in shown
    assert "its end is 250% (max_share)" in shown
    assert read_status(home / "again")["state"] == "finished"
    names = {path.name for path in (home / "again").iterdir()}
    assert RUN_FILES - names == {"evaluation.json"}
    np.testing.assert_array_equal(load(home / "again").coef_, load(home / "run").coef_)


def test_table_one_over_processes(clinics):
    shown, table = command("federation", "describe", clinics.home), rows()
    assert shown.startswith("3 site(s), 390 rows")
    assert f"{table['age'].mean():.1f} ({table['age'].std():.1f})" in shown
    assert "the sums are masked" in shown
