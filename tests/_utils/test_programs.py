"""Compiled programs: those of shapes that are not used any more go."""

from __future__ import annotations

import gc

import jax
import pytest

import compfed as cf
from compfed._utils import compilation as programs
from compfed._utils import precision


def alive() -> int:
    """Programs that the compiler holds for this process, whoever made them."""
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def run(rows: int) -> None:
    sites = cf.data.synthetic(clients=2, samples=rows, features=3)
    problem = cf.Problem(cf.losses.Squared(), cf.regularisers.L1(0.1), sites)
    cf.simulate(problem, cf.algorithms.ProximalGradient(eta=0.1), 2)


@pytest.mark.thorough
def test_a_loop_over_new_shapes_keeps_no_more_programs_than_the_bound(monkeypatch):
    monkeypatch.setattr(precision, "limit_programs", lambda: programs.limit_programs(3))
    run(10)
    before = alive()
    for rows in (11, 12, 13, 14):
        run(rows)
        assert programs.count_programs() <= 3 + 3  # the bound, and those of one run
    assert alive() <= before + 3


def test_programs_of_the_same_shape_stay():
    programs.limit_programs(0)  # or the second run might drop what other tests left
    run(10)
    kept = programs.count_programs()
    assert kept > 0
    run(10)
    assert programs.count_programs() == kept
