"""A long step at a point that meets the tolerance: a model that grows for ever, or another minimiser of the same penalised problem."""

from __future__ import annotations

import numpy as np
import pytest
from problems import logistic

import compfed as cf
from compfed.federation.server.trial import Evaluated
from compfed.federation.spec import FederatedProblem
from compfed.regularisers import L1, GroupL2, OnBlock, Zero
from compfed.stopping import STILL_GROWS, StoppingRule

D = logistic().d


@pytest.mark.parametrize(
    ("g", "moving", "held"),
    [
        (L1(0.01), [0, 1], True),
        (GroupL2(0.01, tuple(range(D))), [0, 1], True),
        (Zero(), [0, 1], False),
        (OnBlock(L1(0.01), 0, D - 1), [0, D - 1], False),  # the last coefficient has no penalty
        (OnBlock(L1(0.01), 0, D - 1), [0, 1], True),
    ],
)
def test_only_what_no_penalty_holds_grows_for_ever(g, moving, held):
    spec = FederatedProblem.of(cf.Problem(logistic().loss, g, logistic().sites))
    rule, step, x = StoppingRule(spec, 1e-12, 1.0), np.zeros(D), np.ones(D)
    step[moving] = 1.0, -1.0
    at = Evaluated(x, 0.3, 1e-13 * step, 1e-14)  # a gradient along the step that rounding does not explain
    rule.observe(at, 0.3, 0.0)
    said = [rule.at_convergence(at, step) for _ in range(3)]
    assert said[0] is not None if held else said[:2] == [None, None]
    last = said[-1]
    assert last is not None
    assert last.converged is held
    assert (last.note == STILL_GROWS) is not held
