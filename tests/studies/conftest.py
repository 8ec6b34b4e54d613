"""The paper's problem, at a quarter of its rows, and its minimiser."""

from __future__ import annotations

import pytest

import compfed as cf
from compfed.studies.paper.experiments import paper_problem


@pytest.fixture(scope="session")
def problem() -> cf.Problem:
    return paper_problem(500)


@pytest.fixture(scope="session")
def star(problem) -> cf.PooledSolution:
    return cf.solve_pooled(problem)
