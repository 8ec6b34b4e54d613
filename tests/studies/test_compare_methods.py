"""`compare_methods`: solvers and local-update methods on the same axes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import compfed as cf
import compfed.algorithms as alg
from compfed._utils.text import latex_table
from compfed.algorithms import record
from compfed.solvers.second_order import SOLVERS
from compfed.studies.compare_methods import methods_for


@pytest.fixture(scope="module")
def small() -> cf.Problem:
    sites = cf.data.synthetic(clients=4, samples=20, features=5)
    return cf.Problem(cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(1e-3), sites)


def test_solvers_and_algorithms_share_the_axes(small, tmp_path):
    """The rounds, bytes and accuracy of a solver are those of `solve_federated` stopped at the budget."""
    names = ["DecoupledProx", "ProximalNewton", "proximal-bfgs"]
    found = cf.compare_methods(small, names, rounds=8, candidates=1, out=tmp_path)
    assert list(found.results) == ["DecoupledProx", "ProximalNewton", "ProximalBFGS"]
    star = cf.solve_pooled(small).x
    for name in SOLVERS:
        (trace,), result = found.traces[name], found.results[name]
        alone = cf.solve_federated(small, name, max_rounds=7)
        assert alone.communication is not None
        assert result["rounds"] == trace["round"][-1] == alone.communication.rounds <= 8
        assert trace["bytes_up"][-1] == alone.communication.bytes_up
        expected = np.linalg.norm(alone.x - star) / np.linalg.norm(star)
        assert result["final"] == pytest.approx(expected, abs=1e-12)
        assert result.get("tuning") is None
        assert any(line.startswith(f"{name} ") and line.endswith(" -") for line in str(found).splitlines())
    finals = {name: result["finals"][0] or np.inf for name, result in found.results.items()}
    assert finals["ProximalNewton"] < finals["DecoupledProx"]
    assert {path.stem for path in (tmp_path / "traces").iterdir()} == set(found.results)


@pytest.mark.parametrize("unit", ["bytes", "gradients"])
def test_a_solver_keeps_to_its_budget(small, unit):
    column = {"bytes": "bytes_up", "gradients": "gradients"}[unit]
    budget = {"bytes": 600.0, "gradients": 3.0}[unit]
    given: dict[str, Any] = {unit: budget}
    found = cf.compare_methods(small, ["ProximalNewton"], candidates=1, **given)
    whole = cf.compare_methods(small, ["ProximalNewton"], candidates=1).traces["ProximalNewton"][0][column]
    np.testing.assert_array_equal(found.traces["ProximalNewton"][0][column], whole[whole <= budget])
    assert len(whole) > (whole <= budget).sum() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"participants": 2}, "ProximalNewton needs every client and full gradients"),
        ({"batch_size": 5}, "ProximalNewton needs every client and full gradients"),
        ({"bytes": 10}, "does not buy one round of ProximalNewton"),
        ({"bytes": 50}, "does not buy one round of ProximalNewton"),  # a gradient, but not the Hessian
    ],
)
def test_a_solver_that_cannot_run_is_refused(small, options, message):
    with pytest.raises(cf.InputError, match=message):
        cf.compare_methods(small, ["ProximalNewton"], candidates=1, **options)


def test_without_a_list_solvers_take_part_where_they_can(small):
    solvers = set(SOLVERS.values())
    assert solvers <= set(methods_for(small))
    assert not solvers & set(methods_for(small.replace(regulariser=cf.regularisers.MCP(0.1))))  # not convex


# --- for a paper ---


@pytest.fixture(scope="module")
def seeded(small) -> Any:
    """Mini-batches, three seeds: a schedule given by hand, a step to tune, and one instance."""
    schedule = cf.algorithms.fast_fedda.Linear(0.3)
    methods = {
        "linear": cf.algorithms.FastFedDA(mu=0.05, schedule=schedule, tau=2),
        "tuned": "DecoupledProx",
        "as given": cf.algorithms.FedDA(eta=0.25, tau=2),
    }
    return cf.compare_methods(
        small, methods, rounds=12, tau=2, batch_size=5, seeds=3, tuning_seeds=2, accuracies=[0.9, 0.6, 1e-9],
        tune={"tuned": {"eta": [0.1, 0.4], "eta_g": [0.5, 1.0]}},
    )  # fmt: skip


def test_a_configured_instance_runs_as_it_is_on_every_seed(small, seeded):
    """Each trace is that of `simulate` with the instance and the seed; costs, medians and ranges follow by hand."""
    star = cf.solve_pooled(small)
    schedule = cf.algorithms.fast_fedda.Linear(0.3)
    alone = {
        "linear": cf.algorithms.FastFedDA(mu=0.05, schedule=schedule, tau=2),
        "as given": cf.algorithms.FedDA(eta=0.25, tau=2),
    }
    for label, algorithm in alone.items():
        ends, first = [], []
        for seed, trace in enumerate(seeded.traces[label]):
            expected = cf.simulate(small, algorithm, 12, batch_size=5, seed=seed, x_star=star)
            np.testing.assert_allclose(trace.x, expected.x, rtol=1e-12, atol=1e-15)
            ends.append(expected["optimality"][-1])
            first.append(next((r for r, e in enumerate(expected["optimality"]) if e <= 0.9), np.inf))
        result = seeded.results[label]
        assert len(set(ends)) == 3
        np.testing.assert_allclose(result["finals"], ends, rtol=1e-12)
        assert result["final"] == pytest.approx(sorted(ends)[1], rel=1e-12)
        assert result["to_accuracy"]["0.9"]["rounds"] == sorted(first)[1]
        assert result["range"]["0.9"]["rounds"] == [min(first), max(first)]
        assert result["to_accuracy"]["1e-09"]["rounds"] is None
        assert result["tuning"] is None


def test_settings_are_chosen_on_tuning_seeds_and_reported_on_others(small, seeded):
    """The choice has the least mean error on seeds 3 and 4; what is reported is that of seeds 0 to 2."""
    star, tuning = cf.solve_pooled(small), seeded.results["tuned"]["tuning"]
    assert tuning["seeds"] == [3, 4]
    assert seeded.seeds == (0, 1, 2)
    means = []
    for tried in tuning["tried"]:
        algorithm = cf.algorithms.DecoupledProx(eta=tried["eta"], eta_g=tried["eta_g"], tau=2)
        runs = [cf.simulate(small, algorithm, 12, batch_size=5, seed=s, x_star=star) for s in (3, 4)]
        means.append(np.mean([run["optimality"][-1] for run in runs]))
    np.testing.assert_allclose([tried["score"] for tried in tuning["tried"]], means, rtol=1e-10)
    best = tuning["tried"][int(np.argmin(means))]
    assert {name: best[name] for name in ("eta", "eta_g")} == tuning["chosen"]
    assert {(t["eta"], t["eta_g"]) for t in tuning["tried"]} >= {(0.1, 0.5), (0.1, 1.0), (0.4, 0.5), (0.4, 1.0)}
    assert [t.provenance["seed"] for t in seeded.traces["tuned"]] == [0, 1, 2]


def test_tables_frames_and_a_repr_in_one_line(seeded, tmp_path):
    assert "\n" not in repr(seeded)
    assert len(repr(seeded)) < 120
    latex = seeded.to_latex()
    assert latex.startswith("\\begin{tabular}{lrrrrr}")
    assert latex.count("\\\\\n") == 4
    assert seeded.to_markdown().splitlines()[0] == "| method | to 0.9 | to 0.6 | to 1e-09 | final | setting |"
    frame: Any = seeded.to_pandas()
    assert list(frame.index) == ["linear", "tuned", "as given"]
    for label, result in seeded.results.items():
        assert frame.loc[label, "bytes to 0.9"] == 5 * 8 * result["to_accuracy"]["0.9"]["rounds"] * (
            1 + (label == "linear")
        )
        assert frame.loc[label, "final, high"] == max(result["finals"])
    rounds: Any = cf.to_frame(seeded)
    assert len(rounds) == 3 * 3 * 13
    mean = rounds[(rounds["run"] == "linear") & (rounds["round"] == 12)]["optimality"].mean()
    assert mean == pytest.approx(np.mean(seeded.results["linear"]["finals"]))
    assert set(rounds["seed"]) == {0, 1, 2}
    seeded.save(tmp_path)
    assert (tmp_path / "traces" / "as-given-seed-2.npz").exists()
    line: Any = cf.plot_comparison(seeded).axes[0].get_lines()[0]
    by_round = np.array([trace["optimality"] for trace in seeded.traces["linear"]])
    np.testing.assert_allclose(line.get_ydata(), np.median(by_round, axis=0))


def test_latex_sets_powers_of_ten_and_escapes():
    found = latex_table(["a_b", "x"], [["50 %", "1.5e-07 (1e-08 to -)"], ["-", "3e+20"]]).splitlines()
    assert found[0] == "\\begin{tabular}{lr}"
    assert found[2] == "a\\_b & x \\\\"
    assert found[4] == "50 \\% & $1.5 \\cdot 10^{-7}$ ($10^{-8}$ to -) \\\\"
    assert found[5] == "-- & $3 \\cdot 10^{20}$ \\\\"


def test_a_grid_widens_until_the_best_setting_lies_inside():
    """One quadratic coefficient of curvature 1: gradient descent ends nearest at eta = 1, three settings beyond the grid."""
    sites = cf.data.from_arrays([np.ones((1, 1))], [np.array([3.0])])
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.Zero(), sites)
    grid = {"eta": [0.05, 0.1]}
    found = cf.compare_methods(problem, ["ProximalGradient"], rounds=3, tune=grid, candidates=7, accuracies=[0.5])
    tuning: Any = found.results["ProximalGradient"]["tuning"]
    etas = [tried["eta"] for tried in tuning["tried"]]
    np.testing.assert_allclose(sorted(etas), 0.05 * 2.0 ** np.arange(len(etas)))
    np.testing.assert_allclose([t["score"] for t in tuning["tried"]], [abs(1 - eta) ** 3 for eta in etas], rtol=1e-9)
    assert tuning["chosen"] == {"eta": 0.8}
    assert tuning["at_edge"] == []
    few = cf.compare_methods(problem, ["ProximalGradient"], rounds=3, tune=grid, candidates=2, accuracies=[0.5])
    tuning = few.results["ProximalGradient"]["tuning"]
    assert len(tuning["tried"]) == 4  # as many again, and no more
    assert (tuning["chosen"], tuning["at_edge"]) == ({"eta": 0.4}, ["eta"])
    assert "eta = 0.4 (edge of eta)" in str(few)


def test_every_method_tries_as_many_settings_and_one_without_steps_runs_once(small):
    @record
    class NewtonStep(alg.Algorithm):
        """The mean of Newton's steps of the sites: nothing to tune."""

        def init(self, x0):
            return x0, None

        def broadcast(self, g, s):
            return s

        def client_update(self, f, g, d, c, key):
            return (d - jnp.linalg.solve(f.hessian(d), f.full_grad(d)),), c, d

        def server_update(self, g, s, mean, weight):
            return mean[0]

        def solution(self, g, s):
            return s

        @classmethod
        def from_bounds(cls, b, scale):
            return cls()

    smooth = small.replace(regulariser=cf.regularisers.Zero())
    tune = {"FedAvg": {"eta": [0.1, 0.2, 0.3], "eta_g": [0.8, 0.9, 1.0]}, "ProximalGradient": {"eta": [0.3, 0.5, 0.4]}}
    found = cf.compare_methods(smooth, [NewtonStep, "FedAvg", "ProximalGradient"], rounds=3, candidates=3, tune=tune)
    tuning: dict[str, Any] = {label: result["tuning"] for label, result in found.results.items()}
    assert tuning["NewtonStep"]["tried"] == [{"score": tuning["NewtonStep"]["tried"][0]["score"]}]
    assert tuning["NewtonStep"]["chosen"] == {}
    inside = {(eta, eta_g) for eta in (0.1, 0.2, 0.3) for eta_g in (0.8, 0.9, 1.0)}
    drawn = [(t["eta"], t["eta_g"]) for t in tuning["FedAvg"]["tried"][:3]]
    assert len(set(drawn)) == 3  # three of nine
    assert set(drawn) <= inside
    assert all(len(tuning[label]["tried"]) <= 6 for label in tuning)


def test_a_problem_that_is_not_convex_is_ranked_by_its_objective(small):
    """(w^2 - 1)^2 / 4 + w / 8 per coordinate: the start is nearer to the worse minimum. Nothing is measured from a point
    that is no optimum, and what is asked for is refused."""
    well = cf.losses.from_function(lambda w, a, y: (((w**2 - 1.0) ** 2) / 4 + w / 8).sum() + 0 * y, np.full(5, 0.5))
    problem = small.replace(loss=well)
    methods = {"short": cf.algorithms.ProximalGradient(eta=0.1), "long": cf.algorithms.ProximalGradient(eta=0.3)}
    found = cf.compare_methods(problem, methods, rounds=20, accuracies=[0.5, 1e-12])
    assert found.criterion.column == "objective"
    assert found.certificate is None
    assert "optimality" not in found.traces["long"][0]
    assert "not known to be convex" in str(found)
    F = {label: [problem.objective(traces[0].x)] for label, traces in found.traces.items()}
    low = min(F["short"][0], F["long"][0])
    assert found.criterion.low == pytest.approx(low, rel=1e-12)
    assert found.results["short"]["final"] == pytest.approx(F["short"][0], rel=1e-12)
    start = problem.objective(found.traces["short"][0].x * 0 + 0.5)
    objective = found.traces["short"][0]["objective"]
    half = next(r for r, value in enumerate(objective) if (value - low) / (start - low) <= 0.5)
    assert found.results["short"]["to_accuracy"]["0.5"]["rounds"] == half
    by_gradient = cf.compare_methods(problem, methods, rounds=20, criterion="gradient_mapping")
    ends = {label: traces[0]["gradient_mapping"][-1] for label, traces in by_gradient.traces.items()}
    assert {label: result["final"] for label, result in by_gradient.results.items()} == ends
    with pytest.raises(cf.InputError, match="needs a certified x"):
        cf.compare_methods(problem, methods, rounds=2, criterion="optimality")
    with pytest.raises(cf.InputError, match="x_star has a gradient mapping"):
        cf.compare_methods(problem, methods, rounds=2, x_star=np.full(5, 0.4))


def test_an_uncertified_x_star_is_no_silent_change_of_criterion(small):
    """|a x - y| has no Lipschitz gradient, so no step certifies its minimum: said by a warning, the table and the report."""
    loss = cf.losses.from_function(lambda w, a, y: jnp.abs(a @ w - y), np.zeros(5), ridge=0.1, convex=True)
    problem, methods = cf.Problem(loss, cf.regularisers.Zero(), small.sites), {"own": cf.algorithms.FedDA(eta=0.01)}
    said = r"by the objective, not by the distance .* uncertified reference point is refused as x_star: .* gradient .* jumps"
    with pytest.warns(UserWarning, match=said):
        found = cf.compare_methods(problem, methods, rounds=3)
    assert (found.criterion.column, found.certificate) == ("objective", None)
    assert "refused as x_star" in str(found)
    assert "refused as x_star" in found.to_result()["lead"]
    with pytest.raises(cf.InputError, match=r"uncertified reference point is refused as x_star.* or rank by"):
        cf.compare_methods(problem, methods, rounds=3, criterion="optimality")


def test_a_metric_ranks_and_an_x_star_is_taken(small):
    metrics = {"length": jnp.linalg.norm}
    methods = {"short": cf.algorithms.FedDA(eta=0.1), "long": cf.algorithms.FedDA(eta=1.0), "solver": "ProximalNewton"}
    own: dict[str, Any] = {"criterion": "length", "metrics": metrics, "x_star": cf.solve_pooled(small)}
    rises, falls = (
        cf.compare_methods(small, methods, rounds=5, larger_is_better=larger, **own) for larger in (None, False)
    )
    for label, traces in rises.traces.items():
        assert rises.results[label]["final"] == pytest.approx(np.linalg.norm(traces[0].x))
    order = sorted(methods, key=lambda label: np.linalg.norm(rises.traces[label][0].x))
    assert [line.split()[0] for line in str(falls).splitlines()[2:5]] == order
    assert [line.split()[0] for line in str(rises).splitlines()[2:5]] == order[::-1]
    longest = max(float(np.linalg.norm(traces[0].x)) for traces in rises.traces.values())
    assert rises.criterion.levels[-1] == pytest.approx(0.99 * longest, rel=1e-2)
    assert "optimality" in rises.traces["long"][0]


def test_a_budget_of_rows_and_simulated_seconds(small):
    """Mini-batches of 5 rows, two local steps: 10 rows a round. A local solver that stops at a tolerance has no such price."""
    found = cf.compare_methods(small, [cf.algorithms.FedDA(eta=0.5, tau=2)], rows=75, batch_size=5, clock="hospital")
    (trace,) = found.traces["FedDA"]
    assert (trace["round"][-1], trace["rows"][-1]) == (7, 70)
    assert {"rows", "exchanges", "seconds of the clock"} <= set(found.units)
    first = found.results["FedDA"]["to_accuracy"]["0.1"]
    assert (first["rows"] is None) == (first["seconds of the clock"] is None)

    @record
    class UntilSmall(alg.FedDA):
        def client_update(self, f, g, d, c, key):
            def go(z):
                return jnp.linalg.norm(f.full_grad(z)) > 0.3

            z = jax.lax.while_loop(go, lambda z: z - self.eta * f.full_grad(z), d.z)
            return type(super().client_update(f, g, d, c, key)[0])(delta=z - d.z), c, z

    with pytest.raises(cf.InputError, match=r"gradients=50 is no budget for UntilSmall.*Give rounds= or bytes="):
        cf.compare_methods(small, [UntilSmall(eta=0.1)], gradients=50)


def test_a_seed_that_diverges_counts_as_that(small):
    """Its setting is not taken; in a report it is named, and its end is no number."""
    tuned = cf.compare_methods(small, ["ProximalGradient"], rounds=40, tune={"eta": [1e6, 0.5]}, candidates=2)
    tuning: Any = tuned.results["ProximalGradient"]["tuning"]
    assert tuning["tried"][0]["score"] is None
    assert tuning["chosen"]["eta"] < 1e3
    given = cf.compare_methods(small, [cf.algorithms.ProximalGradient(eta=1e6)], rounds=40)
    assert given.results["ProximalGradient"]["final"] is None
    assert "ProximalGradient diverged on 1 of 1 seeds." in str(given)
    assert "diverged" in given.table()
