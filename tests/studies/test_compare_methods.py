"""`compare_methods`: solvers and local-update methods on the same axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compfed as cf
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
        trace, result = found.traces[name], found.results[name]
        alone = cf.solve_federated(small, name, max_rounds=7)
        assert alone.communication is not None
        assert result["rounds"] == trace["round"][-1] == alone.communication.rounds <= 8
        assert trace["bytes_up"][-1] == alone.communication.bytes_up
        expected = np.linalg.norm(alone.x - star) / np.linalg.norm(star)
        assert result["final_optimality"] == pytest.approx(expected, abs=1e-12)
        assert result.get("tuning") is None
        assert any(line.startswith(f"{name} ") and line.endswith(" -") for line in str(found).splitlines())
    assert found.results["ProximalNewton"]["final_optimality"] < found.results["DecoupledProx"]["final_optimality"]
    assert {path.stem for path in (tmp_path / "traces").iterdir()} == set(found.results)


@pytest.mark.parametrize("unit", ["bytes", "gradients"])
def test_a_solver_keeps_to_its_budget(small, unit):
    column = {"bytes": "bytes_up", "gradients": "gradients"}[unit]
    budget = {"bytes": 600.0, "gradients": 3.0}[unit]
    given: dict[str, Any] = {unit: budget}
    found = cf.compare_methods(small, ["ProximalNewton"], candidates=1, **given)
    whole = cf.compare_methods(small, ["ProximalNewton"], candidates=1).traces["ProximalNewton"][column]
    np.testing.assert_array_equal(found.traces["ProximalNewton"][column], whole[whole <= budget])
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
