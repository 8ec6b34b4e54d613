"""One pass through what compfed does: fit, cross-validation, simulation, a saved model, Table 1, a report, commands.

    python tests/smoke.py

Needs the core and the extras report, pandas and parquet, and none of the tools of the tests; prints the versions it found. The
oracles are scikit-learn on the pooled rows, and the model itself read back from its file.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.preprocessing import StandardScaler

import compfed as cf

PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "matplotlib", "bokeh", "pandas", "pyarrow")


def command(*words: str) -> str:
    """The output of a command of compfed."""
    done = subprocess.run([sys.executable, "-m", "compfed.cli", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fits() -> None:
    table = cf.data.bundled.diabetes()
    lasso = cf.FederatedLasso(alpha=0.5).fit(table.X, table.y, sites=table.sites)
    pooled = Lasso(alpha=0.5, tol=1e-12, max_iter=10**6).fit(table.X, table.y)
    np.testing.assert_allclose(lasso.coef_, pooled.coef_, atol=1e-6)
    assert ((lasso.coef_ == 0) == (pooled.coef_ == 0)).all()
    assert lasso.certificate_.holds
    two = cf.data.bundled.breast_cancer()
    X = StandardScaler().fit_transform(two.X)  # scikit-learn's solver needs it
    logistic = cf.FederatedLogisticRegression(alpha=0.1).fit(X, two.y, sites=two.sites)
    l1: Any = (
        {"penalty": "l1"} if tuple(map(int, version("scikit-learn").split(".")[:2])) < (1, 8) else {"l1_ratio": 1.0}
    )
    pooled = LogisticRegression(C=1 / (0.1 * len(two.y)), solver="saga", tol=1e-9, max_iter=10**5, **l1)
    np.testing.assert_allclose(logistic.coef_, pooled.fit(X, two.y).coef_, atol=1e-5)
    evaluation = logistic.evaluate(X, two.y, sites=two.sites, cv=3)
    assert 0.9 < evaluation.auc <= 1.0
    best = cf.FederatedLassoCV(n_alphas=8, cv=3).fit(table.X, table.y, sites=table.sites)
    assert best.alpha_ in best.alphas_


def simulation() -> None:
    sites = cf.data.synthetic(clients=5, samples=50, features=10)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)
    x_star = cf.solve_pooled(problem)
    trace = cf.simulate(problem, cf.algorithms.DecoupledProx(eta=0.5, tau=5), 400, x_star=x_star)
    assert trace["optimality"][-1] < 1e-8
    runs = cf.grid(problem, cf.algorithms.DecoupledProx(eta=0.5, tau=5), 20, {"eta": [0.1, 0.5]}, batch_size=10)
    assert len(runs) == 2


def frames_and_files(folder: Path) -> None:
    rng = np.random.default_rng(0)
    sex = np.where(rng.random(120) < 0.5, "f", "m")
    frame = pd.DataFrame({"age": rng.normal(60, 9, 120), "bmi": rng.normal(25, 3, 120), "sex": sex})
    frame["died"] = np.where(frame["age"] - 60 + rng.logistic(0, 9, 120) > 0, "yes", "no")
    frame.loc[3, "bmi"] = np.nan
    model = cf.FederatedLogisticRegression(alpha=0.02).fit(frame, "died", sites=np.arange(120) % 2, schema="auto")
    cf.save_model(model, folder / "model")
    again = cf.load_model(folder / "model")
    np.testing.assert_array_equal(again.predict_proba(frame), model.predict_proba(frame))  # pyright: ignore
    parts = [frame[:70], frame[70:]]
    parts[0].to_csv(folder / "rome.csv", index=False)
    parts[1].to_parquet(folder / "oslo.parquet", index=False)
    files = [str(folder / "rome.csv"), str(folder / "oslo.parquet")]
    run = folder / "run"
    said = command("fit", *files, "--label", "died", "--model", "logistic", "--alpha", "0.02", "--out", str(run))
    assert "120 rows of 2 site(s)" in said
    assert "with report.html" in said
    assert "<svg" in (run / "report.html").read_text() or "bokeh" in (run / "report.html").read_text().lower()
    np.testing.assert_allclose(cf.load_model(run).coef_, model.coef_, atol=1e-8)  # pyright: ignore
    assert command("predict", str(run), files[0]).count("\n") > 70
    assert "bmi" in command("describe", *files)
    assert "DecoupledProx" in command("list", "algorithms")
    command("report", str(run), "--out", str(folder / "again.html"))
    assert (folder / "again.html").exists()


def main() -> None:
    print(", ".join(f"{name} {version(name)}" for name in PACKAGES), flush=True)
    fits()
    simulation()
    with tempfile.TemporaryDirectory() as folder:
        frames_and_files(Path(folder))
    print("fit, cross-validation, simulation, model file, Table 1, report and commands: right")


if __name__ == "__main__":
    main()
