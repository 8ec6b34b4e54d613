"""Write the survival tables of these tests, `tables/*.csv`; run once. Every program reads the same rounded values.

python tests/survival/make_survival_tables.py
"""

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "tables"


def drawn(seed: int, rows: int, *, ties: bool, entry: bool, weights: bool) -> dict[str, np.ndarray]:
    """Exponential times with four features; three sites of unequal size, two strata, an offset, and folds."""
    rng = np.random.default_rng(seed)
    X = np.round(rng.standard_normal((rows, 4)) * [1, 10, 0.1, 1] + [0, 60, 1, 0], 3)
    X[:, 3] = rng.integers(0, 2, rows)  # the treatment group
    risk = 0.7 * X[:, 0] - 0.04 * (X[:, 1] - 60) + 2.0 * (X[:, 2] - 1) - 0.5 * X[:, 3]
    time, censored = 30 * rng.exponential(np.exp(-risk)), 45 * rng.exponential(size=rows)
    event, time = (time <= censored).astype(int), np.minimum(time, censored) + 0.5
    start = np.round(0.6 * time * rng.random(rows) * (rng.random(rows) < 0.5), 2)
    time = np.ceil(time) if ties else np.round(time, 4)
    start = np.minimum(start, time - 0.25) + (
        0.11 if ties else 0.0
    )  # never at an event time: statsmodels counts such a row
    found = {f"x{k + 1}": X[:, k] for k in range(4)}
    found |= {"site": np.sort(rng.choice(3, rows, p=[0.5, 0.3, 0.2])), "stratum": rng.integers(0, 2, rows)}
    found |= {"entry": np.round(start, 2) if entry else np.zeros(rows), "time": time, "event": event}
    found["weight"] = np.round(0.5 + 2 * rng.random(rows), 2) if weights else np.ones(rows)
    found |= {"offset": np.round(0.3 * rng.standard_normal(rows), 3), "fold": rng.permutation(np.arange(rows) % 4)}
    return found


TABLES = {
    "plain": drawn(1, 160, ties=False, entry=False, weights=False),
    "ties": drawn(2, 200, ties=True, entry=False, weights=False),
    "truncated": drawn(3, 180, ties=True, entry=True, weights=False),
    "weighted": drawn(4, 160, ties=True, entry=False, weights=True),
    "everything": drawn(5, 240, ties=True, entry=True, weights=True),
}
lonely = drawn(6, 150, ties=True, entry=False, weights=False)  # a site without an event, and one of a single row
lonely["event"][lonely["site"] == 2] = 0
lonely["site"][-1] = 3
TABLES["lonely"] = lonely

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, table in TABLES.items():
        lines = [
            ",".join(table),
            *(",".join(f"{value:.10g}" for value in row) for row in zip(*table.values(), strict=True)),
        ]
        (FOLDER / f"{name}.csv").write_text("\n".join(lines) + "\n")
