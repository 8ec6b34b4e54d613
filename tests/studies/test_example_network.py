"""The sparse network of the examples: drops pixels exactly, and still reads digits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from places import ROOT
from sklearn.linear_model import LogisticRegression

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def example() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import sparse_network  # pyright: ignore[reportMissingImports]  # on the path only here

        return sparse_network


@pytest.mark.thorough
def test_the_quick_run_is_sparse_and_accurate(example, capsys):
    """The floor is a pooled logistic regression, less 3 points; chance is 10 %."""
    fedavg, sparse = example.main(["--quick"])
    digits = example.load(None)
    baseline = LogisticRegression(max_iter=2000).fit(*digits.train).score(*digits.test)
    assert baseline > 0.9
    assert fedavg.accuracy > baseline - 0.03
    assert sparse.accuracy > baseline - 0.03
    assert fedavg.used.all()
    assert fedavg.zeros == 0
    assert 10 <= (~sparse.used).sum() <= 40
    weights = digits.train[0].shape[1] * 32 + 32 * 10 + 32 + 10
    # whole pixels, and nothing else, are zero
    np.testing.assert_allclose(sparse.zeros, 32 * (~sparse.used).sum() / weights)
    # one vector of float32 per round
    np.testing.assert_allclose(sparse.megabytes, 4 * weights * 150 / 1e6, rtol=1e-3)
    shown = capsys.readouterr().out
    assert "DecoupledProx" in shown
    assert f"{sparse.used.sum()} of 64" in shown


def test_another_file_of_digits_is_read(example, tmp_path):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (40, 784)), np.repeat(np.arange(10), 4)
    np.savetxt(tmp_path / "digits.csv.gz", np.column_stack([pixels, labels]), fmt="%d", delimiter=",")
    digits = example.load(tmp_path / "digits.csv.gz")
    assert digits.train[0].shape == (30, 784)
    assert sorted(digits.test[1].tolist()) == list(range(10))
    np.testing.assert_allclose(digits.train[0].mean(axis=0), 0.0, atol=1e-12)


@pytest.mark.thorough
def test_the_quick_comparison_on_a_loss_that_is_not_convex(tmp_path):
    """Six methods, one figure, one command. What is reported is F at the models, and the share of digits that they read right."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        import nonconvex  # pyright: ignore[reportMissingImports]  # on the path only here
    compared = nonconvex.main(["--quick", "--out", str(tmp_path / "figure")])
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".png", ".pdf"}
    X, y, out = nonconvex.digits()
    problem = nonconvex.problem_of(X[~out], y[~out])
    assert compared.criterion.column == "objective"
    assert compared.certificate is None
    assert len(compared.results) == 6
    for label, result in compared.results.items():
        for trace, end in zip(compared.traces[label], result["finals"], strict=True):
            assert end == pytest.approx(problem.objective(trace.x), rel=1e-4)
            w = problem.loss.unravel(np.asarray(trace.x, float))
            scores = np.tanh(X[out] @ w["W_in"] + w["b_in"]) @ w["W_out"] + w["b_out"]
            assert trace["accuracy"][-1] == pytest.approx(np.mean(scores.argmax(axis=1) == y[out]), abs=0.005)
        assert result["final"] < 0.4 * np.log(10)  # chance
