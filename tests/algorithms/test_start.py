"""x0 means one thing: the method's own variable starts there. The oracle is the prox of an l1 norm, written out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from places import ROOT

from compfed.algorithms import ALGORITHMS
from compfed.algorithms.base import Bounds
from compfed.regularisers import L1, Zero

LAM = 0.1
X0 = np.array([1.0, -2.0, 0.5, 3.0, -0.004])
BOUNDS = Bounds.of(np.array([1.0, 2.0]), np.array([0.5, 0.5]), 0.1, 3, X0.size)


def shrunk_by(method) -> float:
    """t, if the first model is the soft thresholding of x0 at t lam; 0 if it is x0."""
    with jax.enable_x64(True):
        algorithm = method.from_bounds(BOUNDS, 1.0)
        state, _ = algorithm.init(jnp.asarray(X0))
        without, first = (np.asarray(algorithm.solution(g, state)) for g in (Zero(), L1(LAM)))
    np.testing.assert_array_equal(without, X0)
    t = (X0[0] - first[0]) / LAM
    np.testing.assert_allclose(first, np.sign(X0) * np.maximum(np.abs(X0) - t * LAM, 0.0), rtol=1e-12, atol=1e-15)
    return float(t)


@pytest.mark.parametrize("method", ALGORITHMS.values(), ids=ALGORITHMS)
def test_the_first_model_is_x0_or_its_prox(method):
    assert shrunk_by(method) >= 0


def test_the_documentation_lists_those_that_start_before_their_prox():
    text = (ROOT / "docs" / "howto" / "problems.md").read_text()
    section = text[text.index("## Where a run starts") : text.index("## Sites")]
    listed = {method.__name__ for method in ALGORITHMS.values() if method.__name__ in section.replace(",", " ").split()}
    assert listed == {method.__name__ for method in ALGORITHMS.values() if shrunk_by(method) > 0}
