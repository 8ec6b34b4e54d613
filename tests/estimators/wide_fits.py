"""Fits of wide problems in a process of their own, to measure their memory: python wide_fits.py ROWS COLUMNS OUT."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

SHARES = (0.5, 0.1, 0.02)  # of the least alpha at which all coefficients are zero


def wide(n: int, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Columns correlated with their neighbours, two classes, four unequal sites of which one has a single class."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    for j in range(1, d):
        X[:, j] = 0.5 * X[:, j - 1] + 0.75**0.5 * X[:, j]
    y = (X[:, rng.choice(d, 20, replace=False)] @ rng.standard_normal(20) * 2 + rng.standard_normal(n) > 0).astype(int)
    sites = rng.choice([1, 2, 3], n, p=[0.2, 0.3, 0.5])
    sites[np.flatnonzero(y == 0)[: n // 10]] = 0
    return X, y, sites, float(np.abs((X - X.mean(axis=0)).T @ (y - y.mean())).max() / n)


def most_memory() -> float:
    """The most memory this process has had, in GiB; what `resource` says counts that of the process it was started from."""
    status = Path("/proc/self/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 2**20 if found else np.nan


if __name__ == "__main__":
    import compfed as cf

    X, y, sites, largest = wide(int(sys.argv[1]), int(sys.argv[2]))
    fits = [cf.FederatedLogisticRegression(alpha=s * largest, tol=1e-8).fit(X, y, sites=sites) for s in SHARES]
    np.savez(
        sys.argv[3],
        coefs=np.array([m.coef_[0] for m in fits]),
        rounds=np.array([m.n_rounds_ for m in fits]),
        certified=np.array([m.certificate_.holds for m in fits]),
        gigabytes=most_memory(),
    )
