"""More columns than rows: few rounds, the support of the pooled rows, and no array of columns times columns."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from skglm import SparseLogisticRegression
from wide_fits import SHARES, wide

SCRIPT = Path(__file__).with_name("wide_fits.py")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPerformanceWarning")  # of skglm's own code
@pytest.mark.parametrize(("n", "d"), [(100, 20_000), (2_000, 5_000)])
def test_wide_problems(tmp_path, n, d):
    out = tmp_path / "fits.npz"
    subprocess.run([sys.executable, str(SCRIPT), str(n), str(d), str(out)], check=True)
    found = np.load(out)
    assert found["certified"].all()
    assert found["rounds"].max() <= 25
    if np.isfinite(found["gigabytes"]):  # where the system tells
        assert 0.1 < found["gigabytes"] < 2  # one array of 20,000 x 20,000 would be 3
    X, y, _, largest = wide(n, d)
    for share, coef in zip(SHARES, found["coefs"], strict=True):
        other = SparseLogisticRegression(share * largest, tol=1e-9 * largest, max_iter=500, max_epochs=100_000).fit(
            X, y
        )
        np.testing.assert_array_equal(coef != 0, other.coef_[0] != 0)
        assert 0 < np.count_nonzero(coef) < d
        size = np.linalg.norm(other.coef_)
        assert np.linalg.norm(coef - other.coef_[0]) <= 1e-4 * size
