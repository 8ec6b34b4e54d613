"""The study of rounds and bytes: its counts are those of a network, its problems what they claim, its page current."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import compfed as cf
from compfed.cli import main
from compfed.federation.queries.lipschitz import DIGITS
from compfed.solvers import auto as choice_of_method
from compfed.solvers.second_order import SOLVERS
from compfed.studies.compare_methods import solver_trace
from compfed.studies.few_rounds import ACCURACIES, METHODS, cell, problems, raw_columns, run, wide
from compfed.trace import Trace

NAMES = [method.__name__ for method in METHODS]
PAGE = ROOT / "docs" / "explanation" / "few-rounds.md"


@pytest.fixture(scope="module")
def quick() -> dict[str, cf.Problem]:
    return problems(quick=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, str]:
    """What the command writes and prints, at its quick size and with few rounds."""
    folder, printed = tmp_path_factory.mktemp("few-rounds"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["compare", "--few-rounds", "--quick", "--rounds", "60", "--out", str(folder)]) == 0
    return folder, printed.getvalue()


def star(problem: cf.Problem) -> np.ndarray:
    return cf.solve_federated(problem, "ProximalNewton", tol=1e-15).x


@pytest.mark.thorough
def test_the_command_writes_and_prints_what_the_traces_say(written):
    folder, printed = written
    results = json.loads((folder / "few-rounds.json").read_text())
    assert list(results) == ["paper", "raw columns", "wide"]
    assert {path.suffix for path in folder.glob("few-rounds.*")} == {".json", ".svg", ".png", ".pdf"}
    reached = 0
    for problem, found in results.items():
        assert list(found["methods"]) == NAMES
        for name, method in found["methods"].items():
            trace = Trace.load(folder / "traces" / problem.replace(" ", "-") / name)
            assert trace["round"][0] == 1  # the first message counts
            assert trace["round"][-1] <= 60
            assert sum(line.startswith(f"{name} ") for line in printed.splitlines()) == 6  # three problems, two units
            for level in ACCURACIES:
                paid = {"rounds": None, "bytes": None}
                for i, error in enumerate(trace["optimality"]):
                    if error <= level:
                        paid = {"rounds": trace["round"][i], "bytes": trace["bytes_up"][i] + trace["bytes_down"][i]}
                        reached += 1
                        break
                assert method["to_accuracy"][f"{level:g}"] == paid
    assert reached > 12


@pytest.mark.parametrize("name", ["ProximalNewton", "ProximalBFGS"])
def test_messages_and_bytes_of_a_search_are_those_of_its_conversation(name, quick):
    """`solve_federated` counts what travels in another place."""
    for problem in quick.values():
        x = star(problem)
        trace = solver_trace(problem, SOLVERS[name], x, 40)
        alone = cf.solve_federated(problem, name, max_rounds=39)
        cached = alone.communication
        assert cached is not None
        assert (trace["round"][-1], trace["bytes_up"][-1], trace["bytes_down"][-1]) == (
            cached.rounds, cached.bytes_up, cached.bytes_down,
        )  # fmt: skip
        assert trace["optimality"][-1] == pytest.approx(np.linalg.norm(alone.x - x) / np.linalg.norm(x), abs=1e-14)


def test_a_row_is_what_one_has_who_stops_there(quick):
    """On the wide problem some early trials are refused, and then the model before them is what counts."""
    problem = quick["wide"]
    x = star(problem)
    trace = solver_trace(problem, SOLVERS["ProximalBFGS"], x, 13)
    stopped = [cf.solve_federated(problem, "ProximalBFGS", max_rounds=k).x for k in range(1, 13)]
    expected = [np.linalg.norm(model - x) / np.linalg.norm(x) for model in stopped]
    np.testing.assert_allclose(trace["optimality"][1:], expected, rtol=1e-10)
    assert len(set(expected)) < 12  # refused


def test_bytes_of_proximal_newton_by_hand(quick):
    problem = quick["paper"]
    trace = run(problem, SOLVERS["ProximalNewton"], star(problem), 90)
    d = problem.d
    beside = 8 + 8 + 8  # the factor of the site and two flags, or one flag and L_i
    every = 8 * d + beside + 8 + 8 + 8 * d  # the model; value, size of the gradient's terms, gradient
    hessian = 4 * d + 8 * d * (d + 1) // 2  # its coordinates, and its upper triangle
    asked = np.minimum(trace["round"], trace["round"][-1] - 1)  # the last trial is expected to be the last
    first = 8 * d + 8 + beside  # x of the query for the Lipschitz constant, and the ridge, which travels once
    np.testing.assert_array_equal(trace["bytes"], first + every * trace["round"] + hessian * asked)


def test_rounds_of_other_methods_are_those_of_the_engine_and_one_message(quick):
    problem = quick["paper"]
    x, d = star(problem), problem.d
    trace = run(problem, cf.algorithms.FISTA, x, 130)
    plain = cf.simulate(problem, cf.algorithms.default_steps("FISTA", problem), 129, x_star=x)
    np.testing.assert_allclose(trace["optimality"], plain["optimality"], rtol=1e-6, atol=1e-13)
    np.testing.assert_array_equal(trace["round"], plain["round"] + 1)
    beside = 8 + 8 + 8  # the factor of the site and two flags, or one flag and L_i
    first = 8 * d + 8 * d + 8 * d + 8 * 3 + 2 * beside  # x of two queries; gradient; value, terms and the ridge
    first += 8 * DIGITS  # of the fourth power of L_i
    np.testing.assert_array_equal(trace["bytes"], first + 16 * d * plain["round"])


def test_a_method_that_does_not_arrive_is_stopped_after_so_many_messages():
    problem = raw_columns()
    trace = run(problem, cf.algorithms.FISTA, star(problem), 40)
    assert trace["round"][-1] == 40
    assert trace["optimality"].min() > 0.9


@pytest.mark.thorough
def test_the_order_on_the_paper_s_problem(problem, star):
    """Curvature, memory at the server, local steps with momentum, momentum, local steps: fewest rounds first."""
    rounds = [run(problem, method, star.x, 400).first("optimality", 1e-6) or np.inf for method in METHODS]
    assert max(rounds) < 400
    assert rounds == sorted(set(rounds))
    assert NAMES == ["ProximalNewton", "ProximalBFGS", "AcceleratedDecoupledProx", "FISTA", "DecoupledProx"]


def test_x_star_is_that_of_another_solver(quick):
    for name in ("paper", "wide"):
        x = cf.solve_pooled(quick[name]).x
        assert np.linalg.norm(star(quick[name]) - x) <= 1e-11 * np.linalg.norm(x)
    table = cf.data.bundled.breast_cancer()  # FISTA on standardised columns, where it arrives
    model = cf.FederatedLogisticRegression(0.01, algorithm="FISTA", tol=1e-13).fit(table.X, table.y, sites=table.sites)
    x = np.append(model.coef_, model.intercept_)
    assert np.linalg.norm(star(raw_columns()) - x) <= 1e-9 * np.linalg.norm(x)


def test_the_wide_problem_is_what_it_says():
    problem = wide()
    X, y = np.vstack(problem.sites.features), problem.sites.labels
    assert [len(labels) for labels in y] == [100, 40, 40, 20]
    assert [len(np.unique(labels)) for labels in y] == [2, 2, 2, 1]
    neighbours = [np.corrcoef(X[:, j], X[:, j + 1])[0, 1] for j in range(0, 2000, 10)]
    assert np.mean(neighbours) == pytest.approx(0.5, abs=0.02)
    lam = problem.regulariser.lam  # pyright: ignore[reportAttributeAccessIssue]  # an L1
    assert problem.replace(regulariser=cf.regularisers.L1(10 * lam)).gradient_mapping(np.zeros(2000)).max() <= 1e-12


def test_x_star_is_unique():
    """Columns that are linearly independent, or those where the gradient is as large as lambda (Tibshirani 2013)."""
    assert np.linalg.matrix_rank(np.vstack(raw_columns().sites.features)) == 31
    problem = wide()
    lam = problem.regulariser.lam  # pyright: ignore[reportAttributeAccessIssue]
    active = np.abs(problem.gradient(star(problem))) >= lam * (1 - 1e-6)
    X = np.vstack(problem.sites.features)[:, active]
    assert np.linalg.matrix_rank(X) == X.shape[1] > 20


def rows_of_page(width: int) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines if len(cells) == width}


def test_the_table_on_the_page_is_that_of_the_stored_runs():
    stored = json.loads((ROOT / "docs" / "explanation" / "few-rounds.json").read_text())
    table = rows_of_page(7)
    for name in NAMES:
        expected = []
        for found in stored.values():
            method = found["methods"][name]
            rounds, size = (cell(method, "1e-06", unit) for unit in ("rounds", "bytes"))
            expected.append(rounds if size == "-" else f"{rounds}, {size}")
        assert table[name][2:5] == expected, (
            "run: compfed compare --few-rounds; JSON, SVG and numbers go to docs/explanation/"
        )


@pytest.mark.parametrize("name", ["ProximalNewton", "ProximalBFGS"])
def test_the_stored_runs_are_those_of_today(name):
    stored = json.loads((ROOT / "docs" / "explanation" / "few-rounds.json").read_text())
    for case, problem in problems().items():
        if (name, case) == ("ProximalBFGS", "wide"):  # a minute
            continue
        found = run(problem, SOLVERS[name], star(problem), 5000).first("optimality", 1e-6)
        assert found is not None
        assert abs(found - stored[case]["methods"][name]["to_accuracy"]["1e-06"]["rounds"]) <= 1


def test_what_the_page_says_of_the_choice_is_what_the_code_does():
    text = PAGE.read_text()
    for name, rounds in choice_of_method.ROUNDS.items():
        said = {"first-order": "the better of the first-order methods"}.get(name, name)
        assert re.search(rf"{rounds:,}\s+(rounds\s+)?for\s+{said}", text), name
    assert f"{choice_of_method.BANDWIDTH / 1e6:g} MB/s)" in text
    for number in (choice_of_method.WHOLE, *choice_of_method.WIDTH, choice_of_method.WIDEST):
        assert f" {number:,} " in text


@pytest.mark.parametrize(
    ("name", "model", "table"),
    [
        ("lasso, diabetes", cf.FederatedLasso(), cf.data.bundled.diabetes),
        ("logistic, cancer", cf.FederatedLogisticRegression(), cf.data.bundled.breast_cancer),
        ("huber, diabetes", cf.FederatedHuber(), cf.data.bundled.diabetes),
    ],
)
def test_rounds_of_a_fit_are_those_on_the_page(name, model, table):
    rows = table()
    before, after = (int(cell.replace(",", "")) for cell in rows_of_page(3)[name])
    assert abs(model.fit(rows.X, rows.y, sites=rows.sites).n_rounds_ - after) <= 1
    assert after < before


def test_rounds_of_a_cross_validation_are_those_on_the_page():
    said = re.search(r"are (\d+) fits in (\d+) messages", PAGE.read_text())
    assert said is not None
    table = cf.data.bundled.breast_cancer()
    chosen = cf.FederatedLogisticRegressionCV(n_alphas=20, cv=5).fit(table.X, table.y, sites=table.sites)
    assert chosen.n_fits_ == int(said[1])
    assert abs(chosen.n_rounds_ - int(said[2])) <= 1
