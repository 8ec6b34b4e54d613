"""Standard errors over a network: `compfed federation run` with a summary, through the services of the sites and over processes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")
pytest.importorskip("statsmodels", reason="an oracle for standard errors")

import statsmodels.api as sm
from network.memory_link import MemoryLink, approving, exact, furnish, key_of, remote
from network.processes import Processes, command

import compfed as cf
from compfed.data import Sites
from compfed.network import keys, operator, server
from compfed.network.settings import FederationSettings, admit, new_federation
from compfed.network.site_settings import SiteSettings

ROWS, NAMES = (160, 130, 140), ("north", "south", "east")


def sites(kind: str = "classes") -> Sites:
    rng = np.random.default_rng(8)
    X = [rng.standard_normal((m, 3)) + k / 4 for k, m in enumerate(ROWS)]
    z = [x @ [0.7, -0.4, 0.0] - 0.2 for x in X]
    if kind == "classes":
        y = [(rng.uniform(size=len(v)) < 1 / (1 + np.exp(-v))).astype(float) for v in z]
    else:
        y = [np.column_stack([rng.exponential(np.exp(-v)), rng.random(len(v)) < 0.7]) for v in z]
    return cf.data.from_arrays(X, y, NAMES, columns=["age", "dose", "bmi"])


def settings(home: Path, head: str) -> FederationSettings:
    path = new_federation(home, NAMES)
    path.write_text(head + "\n[network]" + path.read_text().partition("\n[network]")[2])
    return FederationSettings.read(home)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """`operator.run` with the services of sites in this process, and what a person there does about a run that waits."""

    def start(paths: list[Path], head: str, person: Callable[[MemoryLink], MemoryLink] | None = None) -> Any:
        def connected(_: FederationSettings, folder: Path | None) -> Any:
            federation, link = remote(paths, folder)
            if person is not None:
                person(link)
            return federation

        monkeypatch.setattr(operator, "_connect", connected)
        monkeypatch.setattr(server, "PENDING_PAUSE", 0.05)
        home = settings(tmp_path / "operator", head).home
        for name, path in zip(NAMES, paths, strict=True):
            admit(home, name, keys.public_line(key_of(path).public_key()))
        return operator.run(FederationSettings.read(home), tmp_path / "run")

    return start


def denying(link: MemoryLink) -> MemoryLink:
    """With a person at every site who denies each run that waits there."""

    def meddle(name: str, data: bytes, reply: Callable[[], bytes]) -> bytes:
        if b'"pending"' in (found := reply()):
            approvals = SiteSettings.read(link.paths[name]).approvals()
            for asked in approvals.all():
                if asked.state == "waiting":
                    approvals.deny(asked, "not agreed")
        return found

    link.meddle = meddle
    return link


@pytest.mark.parametrize(
    ("errors", "secure_sum"), [pytest.param("model", True, marks=pytest.mark.thorough), ("HC1", False)]
)
def test_a_summary_has_the_bits_of_one_process_and_the_numbers_of_the_pooled_table(errors, secure_sum, tmp_path):
    table = sites()
    paths = furnish(tmp_path, table, secure_sum=secure_sum)
    model = cf.FederatedLogisticRegression(alpha=0)
    there = model.fit_federation(remote(paths)[0]).summary(se=errors)
    here = model.fit_federation(exact(paths)).summary(se=errors)
    for name in ("coefficients", "standard_errors", "covariance", "low", "high"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    assert there.to_csv() == here.to_csv()
    X, y = sm.add_constant(np.concatenate(table.features)), np.concatenate(table.labels)
    robust: dict[str, Any] = {} if errors == "model" else {"cov_type": "HC0"}
    pooled = sm.GLM(y, X, sm.families.Binomial()).fit(tol=1e-14, **robust)
    factor = 1.0 if errors == "model" else np.sqrt(len(y) / (len(y) - 4))
    np.testing.assert_allclose(there.standard_errors, factor * np.roll(pooled.bse, -1), rtol=1e-8)
    assert there.log_likelihood == pytest.approx(pooled.llf, rel=1e-10)


def test_a_cox_model_has_the_bits_of_one_process_under_the_default_policy_and_masks(tmp_path):
    paths = furnish(tmp_path, sites("survival"), "", "", secure_sum=True)
    model = cf.FederatedCox()
    there = model.fit_federation(remote(paths)[0]).summary()
    here = model.fit_federation(exact(paths)).summary()
    np.testing.assert_array_equal(there.standard_errors, here.standard_errors)
    np.testing.assert_array_equal(there.covariance, here.covariance)
    assert 0 < there.rounding < 1e-3
    paths = furnish(tmp_path / "free", sites("survival"))
    free = model.fit_federation(exact(paths)).summary()
    pairs = [model.evaluate(f, cv=3).to_dict()["pairs"] for f in (exact(paths), remote(paths)[0])]
    assert pairs[0] == pairs[1]
    np.testing.assert_allclose(there.standard_errors, free.standard_errors, rtol=there.rounding)


def test_a_run_writes_the_table_and_the_forest_plot(run, tmp_path):
    paths = furnish(tmp_path / "sites", sites(), "", "", secure_sum=True)
    head = 'estimator = "FederatedLogisticRegression"\nsummary = "HC1"\n[parameters]\nalpha = 0\n'
    model, _ = run(paths, head)
    out = tmp_path / "run"
    again = cf.FederatedLogisticRegression(alpha=0).fit_federation(exact(paths)).summary(se="HC1")
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["standard error"]) for row in rows] == again.standard_errors.tolist()
    assert [row["term"] for row in rows] == ["age", "dose", "bmi", "(intercept)"]
    assert json.loads((out / "result.json").read_text())["summary"]["errors"] == "HC1"
    page = (out / "report.html").read_text()
    assert "robust, HC1 (sandwich, times n / (n - k))" in page
    assert "Forest plot: odds ratio with 95% confidence intervals." in page
    assert cf.load_model(out).coef_.tolist() == model.coef_.tolist()


def sites_with_kinds(folder: Path) -> list[Path]:
    """Sites whose rule allows the fit alone: its summary needs a person."""
    paths = furnish(folder, sites(), "", "")
    for path in paths:
        path.write_text(path.read_text().replace("by_rule = true", 'by_rule = true\nkinds = ["FederatedLasso"]'))
    return paths


LASSO = 'estimator = "FederatedLasso"\nsummary = true\n[parameters]\nalpha = 0.1\n'


@pytest.mark.thorough
def test_a_person_approves_a_summary_apart_from_its_fit(run, tmp_path):
    paths = sites_with_kinds(tmp_path / "sites")
    model, _ = run(paths, LASSO, approving)
    assert vars(model)["_summary"].notes[0].startswith("Naive after selection")
    assert "Naive after selection" in (tmp_path / "run" / "report.html").read_text()
    (asked,) = SiteSettings.read(paths[0]).approvals().all()
    assert any("FederatedLasso.summary" in words for words in asked.words)


def test_a_denied_summary_leaves_the_model_and_a_line(run, tmp_path, capsys):
    model, _ = run(sites_with_kinds(tmp_path / "sites"), LASSO, denying)
    assert "_summary" not in vars(model)
    assert "The model is saved; it has no standard errors" in capsys.readouterr().out
    assert not (tmp_path / "run" / "summary.csv").exists()
    np.testing.assert_array_equal(cf.load_model(tmp_path / "run").coef_, model.coef_)


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ('estimator = "FederatedLasso"\nsummary = "HC3"', "summary = 'HC3' must be 'model', 'HC0', 'HC1', 'cluster', true or false"),
        ('estimator = "FederatedHuber"\nsummary = true', "summary = 'model': FederatedHuber has no summary"),
        ('estimator = "FederatedCox"\nsummary = "HC0"', "a partial likelihood is no sum over rows"),
        ('estimator = "FederatedLasso"\nsummary = "cluster"', "needs at least 10 sites; there are 3"),
        ('estimator = "FederatedCox"\nevaluate = 5', "Write evaluate = true or evaluate = false"),
    ],
)  # fmt: skip
def test_what_an_estimator_does_not_have_is_refused_before_the_run(head, said, tmp_path):
    with pytest.raises(cf.InputError) as refused:
        settings(tmp_path / "f", head)
    assert said in str(refused.value)
    assert "federation.toml" in str(refused.value)


@pytest.mark.thorough
def test_a_run_over_processes_has_the_standard_errors_of_one_process(tmp_path):
    table = sites()
    tables = {}
    for name, A, y in zip(table.names, table.features, table.labels, strict=True):
        lines = [
            "age,dose,bmi,ill",
            *(",".join(map(repr, [*a, b])) for a, b in zip(A.tolist(), y.tolist(), strict=True)),
        ]
        tables[name] = "\n".join(lines).encode()
    head = 'estimator = "FederatedLogisticRegression"\nsummary = true\n[parameters]\nalpha = 0\n'
    federation = Processes(tmp_path / "clinics", tables, 'label = "ill"', federation=head)
    with federation, federation.approving():
        federation.start()
        printed = command("federation", "run", federation.home)
    assert "std. error" in printed
    assert "The standard errors took 1 more." in printed
    found = json.loads((federation.home / "run" / "result.json").read_text())["summary"]
    here = cf.FederatedLogisticRegression(alpha=0)
    here.fit_federation(exact([federation.site_folder(name) / "site.toml" for name in federation.names]))
    assert found["standard_errors"] == here.summary().standard_errors.tolist()


def test_a_person_approves_the_concordance_and_the_curves_of_a_survival_analysis(tmp_path, monkeypatch):
    """Each step states how many numbers leave: no more than that do."""
    monkeypatch.setattr(server, "PENDING_PAUSE", 0.0)
    table, times = sites("survival"), [0.3, 0.6, 1.0]
    paths = furnish(tmp_path / "sites", table, "", "", secure_sum=True, counted=True)
    for path in paths:
        path.write_text(path.read_text().replace("by_rule = true", "by_rule = false"))
    federation, link = remote(paths)
    approving(link)
    model = cf.FederatedCox().fit_federation(federation)
    steps: dict[str, Callable[[], Any]] = {
        "FederatedCox.evaluate": lambda: model.evaluate(federation),
        "kaplan_meier": lambda: cf.kaplan_meier(federation, times=times),
    }
    found = {}
    for kind, compute in steps.items():
        before = federation.numbers
        found[kind] = compute()
        stated = json.loads(federation.sentence)
        assert stated["kind"] == kind
        assert 6 <= federation.numbers - before <= stated["numbers"]
    (here, there) = (cf.FederatedCox().fit_federation(f) for f in (exact(paths), federation))
    assert here.evaluate(exact(paths)).to_dict()["pairs"] == there.evaluate(federation).to_dict()["pairs"]
    np.testing.assert_array_equal(found["kaplan_meier"].survival, cf.kaplan_meier(exact(paths), times=times).survival)
    names = [words for asked in SiteSettings.read(paths[0]).approvals().all() for words in asked.words]
    assert any("kaplan_meier" in words for words in names)


def test_a_run_of_a_cox_model_evaluates_it(run, tmp_path):
    """`evaluate = true` is what a new federation.toml has."""
    paths = furnish(tmp_path / "sites", sites("survival"), "", "", secure_sum=True)
    _, found = run(paths, 'estimator = "FederatedCox"\nsummary = true\nevaluate = true\n')
    model = cf.FederatedCox().fit_federation(exact(paths))
    assert found.concordance == model.evaluate(exact(paths)).concordance
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Forest plot: hazard ratio" in page
    assert "optimistic if it was fitted to them" in page
