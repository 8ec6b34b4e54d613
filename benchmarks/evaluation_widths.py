"""Widths of certified intervals of `evaluate` under the default disclosure policy, and without one, as a Markdown table.

    PYTHONPATH=src python benchmarks/evaluation_widths.py [FOLDER OF THE HEART TABLE]

Every interval is checked to contain scikit-learn's value on the pooled rows.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from sklearn.metrics import accuracy_score, recall_score, roc_auc_score

import compfed as cf
from compfed.federation import DisclosurePolicy, InProcess


def synthetic(rows: int = 10_000, sites: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 8))
    risk = 1 / (1 + np.exp(-(X @ np.array([1.0, -0.8, 0.5, 0, 0, 0, 0, 0]) - 1)))
    return X, (rng.uniform(size=rows) < risk).astype(int), np.arange(rows) % sites


def tables(heart: str | None) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    cancer = cf.data.bundled.breast_cancer()
    yield "breast cancer, 4 sites of 142 rows", cancer.X, cancer.y, cancer.sites
    if heart is not None:
        table = cf.data.bundled.heart(heart)
        large = np.isin(table.sites, [s for s in np.unique(table.sites) if _accepted(table.y[table.sites == s])])
        X = (table.X - table.X.mean(axis=0)) / table.X.std(axis=0)
        yield (
            f"heart, {len(np.unique(table.sites[large]))} sites, {large.sum()} rows",
            X[large],
            table.y[large],
            table.sites[large],
        )
    for sites in (4, 20):
        yield f"synthetic, {sites} sites of {10_000 // sites} rows", *synthetic(sites=sites)


def _accepted(y: np.ndarray) -> bool:
    """Whether each class has the rows that the default policy asks for."""
    return bool(np.unique(y, return_counts=True)[1].min() >= DisclosurePolicy().min_level_rows)


def main() -> None:
    print("| rows | AUC, pooled | interval, no policy | interval, policy | sensitivity | accuracy |")
    print("|---|---|---|---|---|---|")
    for name, X, y, sites in tables(sys.argv[1] if len(sys.argv) > 1 else None):
        model = cf.FederatedLogisticRegression(alpha=0.02).fit(X, y, sites=sites)
        rows = cf.data.from_table(X, y, sites)
        free, ruled = (model.evaluate(InProcess(rows, policy=policy)) for policy in (None, DisclosurePolicy()))
        pooled = {
            "auc": roc_auc_score(y, model.decision_function(X)), "sensitivity": recall_score(y, model.predict(X)),
            "accuracy": accuracy_score(y, model.predict(X)),
        }  # fmt: skip
        for one in (free, ruled):
            for key, value in pooled.items():
                low, high = one.bounds(key)
                assert low - 1e-12 <= value <= high + 1e-12, (name, key)
        shown = [f"{one.auc.rounding_low:.4f} to {one.auc.rounding_high:.4f}" for one in (free, ruled)]
        shown += ["{:.3f} to {:.3f}".format(*ruled.bounds(key)) for key in ("sensitivity", "accuracy")]
        print(f"| {name} | {pooled['auc']:.4f} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
