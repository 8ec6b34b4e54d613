"""A method from outside the package takes part in everything ours do: by name, compared, tuned, listed and checked.

The method is examples/my_method.py, whose module is on the path as a user's would be.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from places import ROOT
from problems import logistic, quadratics

import compfed as cf
from compfed.algorithms import ALGORITHMS, Algorithm, FedMid, count, positive, record
from compfed.cli import main
from compfed.studies.method_table import entries


@pytest.fixture
def LocalProx(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return cf.algorithms.find("my_method:LocalProx")


@pytest.fixture
def registered(LocalProx) -> Any:
    return cf.register(LocalProx)


def test_by_name_it_is_fedmid_without_server_prox(registered):
    """The example with eta_g = 1 is FedMid with server_prox="none", which has tests of its own."""
    problem = logistic()
    algorithm: Any = cf.algorithms.default_steps("local-prox", problem, tau=3)
    assert type(algorithm) is registered
    assert algorithm.eta == pytest.approx(1.0 / problem.client_lipschitz.max())
    theirs = cf.simulate(problem, FedMid(eta=algorithm.eta, tau=3, server_prox="none"), 20)
    np.testing.assert_allclose(cf.simulate(problem, algorithm, 20).x, theirs.x, rtol=1e-12)


def test_minimise_takes_its_name(registered):
    """With one site it is proximal gradient, whose limit is the minimiser."""
    problem = quadratics(0, n=1)
    minimum = cf.solve_federated(problem, "LocalProx", tol=1e-8)
    assert type(minimum.algorithm) is registered
    np.testing.assert_allclose(minimum.x, cf.solve_pooled(problem).x, atol=1e-6)


@pytest.mark.thorough
def test_compared_in_python_nothing_is_written_without_a_folder(registered, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = logistic()
    star = cf.solve_pooled(problem)
    compared = cf.compare_methods(problem, ["DecoupledProx", registered], rounds=40, candidates=3)
    assert list(tmp_path.iterdir()) == []
    tuning: Any = compared.results["LocalProx"]["tuning"]
    scales = [tried["scale"] for tried in tuning["tried"]]
    assert scales[:3] == [0.5, 1.0, 2.0]
    alone = [
        cf.simulate(problem, cf.algorithms.default_steps(registered, problem, 5, scale), 40, x_star=star)["optimality"][
            -1
        ]
        for scale in scales
    ]
    np.testing.assert_allclose([tried["score"] for tried in tuning["tried"]], alone, rtol=1e-6)
    assert tuning["chosen"] == {"scale": scales[int(np.argmin(alone))]}
    assert compared.traces["LocalProx"][0].provenance["algorithm"]["name"] == "LocalProx"
    assert str(compared).splitlines()[0].startswith("method")
    assert "LocalProx" in str(compared)
    cf.compare_methods(problem, [registered], rounds=2, candidates=1, out=tmp_path / "kept")
    content = json.loads((tmp_path / "kept" / "comparison.json").read_text())
    assert list(content["methods"]) == ["LocalProx"]


@pytest.mark.parametrize(
    ("methods", "options", "message"),
    [
        ("FedDA", {}, r"give a list of names, classes or instances"),
        ([FedMid(eta=1.0), FedMid(eta=1.0)], {}, r"FedMid\(eta=1, .*\) is asked for twice.*Give a dict from labels"),
        (["FedDA"], {"tune": {"lam": [1.0]}}, r"no method has 'lam'; known: batch_size, eta, eta_g, scale, tau"),
        (["FedDA"], {"tune": {"FedDR": {"lam": [1.0]}}}, r"there is no method 'FedDR'; there are FedDA"),
        (["FedDA"], {"tune": {"eta": []}}, r"give a list of values for 'eta'"),
        (["FedDA"], {"seed": 1}, r"takes no 'seed'.*Give seeds="),
        (["FedDA"], {"criterion": "bytes_up"}, r"criterion='bytes_up' is no measure of a model"),
        (["FedDA"], {"x_star": np.ones(8)}, r"x_star has a gradient mapping of norm"),
        ([], {}, r"the list is empty"),
        (["FedDA", "fed-da"], {}, r"FedDA is asked for twice"),
        (["FedDA"], {"rounds": 1, "bytes": 100}, r"give one budget: rounds or bytes"),
        (["FedDA"], {"rounds": 0}, r"rounds=0 must be at least 1"),
        (["FedDA"], {"candidates": 0}, r"candidates=0 must be a whole number >= 1"),
    ],
)
def test_comparisons_that_cannot_be_made(methods, options, message):
    with pytest.raises(cf.InputError, match=message):
        cf.compare_methods(quadratics(0), methods, **options)


def test_without_a_list_registered_methods_take_part(registered):
    from compfed.studies.compare_methods import methods_for

    composite = methods_for(quadratics(0))
    assert registered in composite
    assert ALGORITHMS["FedAvg"] not in composite
    assert ALGORITHMS["FedAvg"] in methods_for(quadratics(0, g=cf.regularisers.Zero()))


@pytest.mark.thorough
def test_the_command_line_takes_a_module_of_the_current_folder(tmp_path):
    """In a process of its own: nothing is registered there, and the folder is not on the path."""
    command = [sys.executable, "-m", "compfed.cli", "compare", "--methods", "my_method:LocalProx,FedDA", "--quick"]
    command += ["--clients", "4", "--features", "5", "--out", str(tmp_path)]
    # -P: as the console script does, Python leaves the current folder off the path
    command.insert(1, "-P")
    done = subprocess.run(command, cwd=ROOT / "examples", capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "LocalProx" in done.stdout
    assert set(json.loads((tmp_path / "comparison.json").read_text())["methods"]) == {"LocalProx", "FedDA"}
    assert cf.Trace.load(tmp_path / "traces" / "LocalProx").provenance["algorithm"]["name"] == "LocalProx"


def test_the_command_line_lists_it(capsys, LocalProx):
    assert main(["list", "algorithms", "--methods", "my_method:LocalProx"]) == 0
    printed = capsys.readouterr().out
    assert "my_method.py" in printed
    assert len(printed.splitlines()) == 3
    assert main(["list", "algorithms", "--methods", "my_method:Localprox"]) == 2
    assert "its algorithms: LocalProx" in capsys.readouterr().err


def test_it_is_in_the_table_and_not_in_that_of_the_readme(registered):
    (row,) = [entry for entry in entries() if entry.name == "LocalProx"]
    assert (row.cells()[1], row.method.composite, row.method.exact) == ("unknown", True, False)
    assert row.cost is not None
    assert (row.cost.vectors_up, row.cost.vectors_down, row.cost.gradients) == (1, 1, 5)
    assert "LocalProx" not in (ROOT / "README.md").read_text()
    assert "LocalProx" not in {entry.name for entry in entries(ALGORITHMS.values())}


# --- cf.testing.check ---


def verdicts(report: cf.testing.Checked) -> dict[str, str]:
    return {line.what: line.verdict for line in report.lines}


def test_check_holds_the_example_to_its_claims(registered, capsys, monkeypatch):
    report = cf.testing.check(registered)
    assert report.ok
    assert capsys.readouterr().out == f"{report}\n"
    assert set(verdicts(report).values()) == {"holds", "not claimed"}
    assert any(line.what == "limit, quadratic" and "floor" in line.found for line in report.lines)
    monkeypatch.setattr(registered, "exact", True)  # a claim too many
    wrong = cf.testing.check(registered, quiet=True)
    assert not wrong.ok
    assert verdicts(wrong)["limit, quadratic"] == verdicts(wrong)["limit, logistic"] == "fails"
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(registered, "exact", None)
    monkeypatch.setattr(registered, "composite", None)
    unknown = cf.testing.check(registered, quiet=True)
    assert unknown.ok
    assert verdicts(unknown)["limit, quadratic"] == verdicts(unknown)["a regulariser"] == "not claimed"


class Update(NamedTuple):
    z: Array


@record
class Dishonest(Algorithm[Array, None, Array, Update]):
    """Proximal gradient that claims everything: smooth only and not exact (it is both), sampling (it may not)."""

    composite = False
    exact = False
    sampling = "proved"
    eta: float = positive()
    tau: int = count(default=1)

    def init(self, x0):
        return x0, None

    def broadcast(self, g, s):
        return s

    def client_update(self, f, g, d, c, key):
        return Update(z=f.grad(d, key)), c, d

    def server_update(self, g, s, mean, weight):
        return g.prox(s - self.eta * mean.z, self.eta)

    def solution(self, g, s):
        return s

    def bind(self, problem, participants):
        return self  # refuses nothing

    @classmethod
    def from_bounds(cls, b, scale):
        return cls(eta=scale / b.L)


@pytest.mark.thorough
def test_check_finds_claims_that_are_wrong():
    report = cf.testing.check(Dishonest, quiet=True)
    assert not report.ok
    found = verdicts(report)
    assert found["limit, logistic"] == found["limit, quadratic"] == "fails"  # exact, although it denies it
    assert found["a regulariser"] == "fails"  # not refused
    assert found["engines agree, full gradients"] == found["engines agree, mini-batches"] == "holds"
    assert "64 bytes up, 64 down, 1 gradients, 0 proxes" in str(report)
    assert "not registered" in str(report)


def test_check_reports_a_broken_contract_and_goes_no_further(monkeypatch):
    monkeypatch.setattr(Dishonest, "client_update", lambda self, f, g, d, c, key: (Update(z=jnp.sum(d)), c, d))
    broken = type("Broken", (Dishonest,), {"__annotations__": {}})
    report = cf.testing.check(record(broken), quiet=True)
    assert [line.verdict for line in report.lines] == ["fails"]
    assert "Broken.client_update: u.z is a single number" in report.lines[0].found


def test_check_reports_steps_that_diverge():
    report = cf.testing.check(Dishonest(eta=1e3), quiet=True)
    assert verdicts(report)["limit, quadratic"] == "fails"
    assert any("diverged in round" in line.found for line in report.lines)


@pytest.mark.thorough
def test_check_finds_an_engine_that_disagrees(monkeypatch):
    """A method whose local work depends on how it is run: a global counter, read when it is traced."""
    calls = []

    def client_update(self, f, g, d, c, key):
        calls.append(1)
        return Update(z=f.grad(d, key) * (1.0 + 0.01 * len(calls))), c, d

    monkeypatch.setattr(Dishonest, "client_update", client_update)
    counting = record(type("Counting", (Dishonest,), {"__annotations__": {}}))
    assert verdicts(cf.testing.check(counting, quiet=True))["engines agree, full gradients"] == "fails"


def test_check_takes_methods_only():
    with pytest.raises(
        cf.InputError,
        match=r"check takes a class of algorithms, or an instance of one, of a penalty or of a loss; got 3",
    ):
        cf.testing.check(3)  # pyright: ignore[reportArgumentType]  # the mistake
