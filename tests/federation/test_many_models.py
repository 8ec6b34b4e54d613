"""Sums for many models at once: with rows by fold as without, and with rows that do not count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compfed.federation import Evaluate, HeldOut, Rows, Site
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Gamma, Logistic, MultiSquared, NegativeBinomial, Poisson, Softmax, Squared, many_models
from compfed.splits import Fold, training_rows

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 4))
LOSSES: dict[str, tuple[Any, np.ndarray]] = {
    "squared": (Squared(), X[:, 0] + RNG.standard_normal(300)),
    "logistic": (Logistic(), RNG.integers(0, 2, 300)),
    "poisson": (Poisson(), RNG.poisson(2.0, 300)),
    "gamma": (Gamma(), RNG.gamma(2.0, 1.0, 300)),
    "negative binomial": (NegativeBinomial(1.0), RNG.poisson(2.0, 300)),
    "softmax": (Softmax(3), RNG.integers(0, 3, 300)),
    "several": (MultiSquared(3), RNG.standard_normal((300, 3))),
}


def fold(k: int) -> Fold:
    return Fold(k, 4, 0, np.zeros(1, int), by_class=False, held_out=True)


def site(y: np.ndarray, weights: np.ndarray | None = None, rows: np.ndarray = X) -> Site:
    return Site(Rows(rows, y, name="a", index=0, sample_weight=weights), limits=None)


def objective(name: str) -> ObjectiveSpec:
    loss, y = LOSSES[name]
    classes = np.unique(y) if name in ("logistic", "softmax") else None
    return ObjectiveSpec(loss, FeatureScaling(np.zeros(4), np.ones(4), True, getattr(loss, "outputs", 1)), classes)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-14 * max(np.abs(expected).max(), 1.0))


@pytest.mark.parametrize("block", [16, 256])
@pytest.mark.parametrize("name", LOSSES)
def test_rows_by_fold_give_the_sums_of_rows_in_their_own_order(name, block, monkeypatch):
    """One message about all folds, against the formula of each row on the rows that are left; in small blocks and in one."""
    monkeypatch.setattr(many_models, "LEAST_ROWS", block)
    monkeypatch.setattr(many_models, "PREDICTIONS", 1)
    (loss, y), spec = LOSSES[name], objective(name)
    weights = RNG.exponential(size=300)
    weights[::9] = 0
    A = np.column_stack([X, np.ones(300)])
    labels = loss.encode(np.searchsorted(spec.classes, y).astype(float) if spec.classes is not None else y)
    models = 0.3 * RNG.standard_normal((3, loss.size(5)))
    subsets = [None, *(training_rows(fold(k)) for k in range(4))]
    queries = [Evaluate(replace(spec, subset=subset), models + k) for k, subset in enumerate(subsets)]
    queries += [HeldOut(spec, fold(k), models) for k in range(4)]
    here = site(y, weights)
    replies: Any = here.reply(queries)
    for query, reply in zip(queries, replies, strict=True):
        subset = query.rows
        keep = np.ones(300, bool) if subset is None else subset.mask(here.rows)
        assert 0 < keep.sum() <= 300
        for m, x in enumerate(query.x):
            values = loss.values(x, A[keep], labels[keep])
            q = weights[keep] / weights[keep].sum()
            if isinstance(query, HeldOut):
                close(reply.loss[m], q @ values)
                continue
            close(reply.value[m], q @ values)
            close(reply.gradient[m], loss.gradient(x, A[keep], labels[keep], q))
    alone: Any = [here.reply([query])[0] for query in queries]
    for one, together in zip(alone, replies, strict=True):
        close(one[1], together[1])


@pytest.mark.parametrize("name", ["poisson", "gamma", "negative binomial", "squared", "logistic"])
def test_rows_without_a_weight_may_have_an_infinite_loss(name):
    """A row of weight 0, or of the fold that is held out, with features of 1e60: the sums are those without it."""
    (_, y), spec = LOSSES[name], objective(name)
    wild = X.copy()
    wild[7] = -1e60 if name == "gamma" else 1e60
    weights = np.ones(300)
    weights[7] = 0
    models, W = 0.2 + 0.01 * RNG.random((2, 5)), np.arange(5)
    rest = np.arange(300) != 7
    plain: Any = site(y[rest], None, X[rest]).reply([Evaluate(spec, models, W)])[0]
    here: Any = site(y, weights, wild).reply([Evaluate(spec, models, W), Evaluate(spec, models, W, single=True)])
    for reply in here:
        close(reply.value, plain.value)
        close(reply.gradient, plain.gradient)
    close(here[0].hessian, plain.hessian)
    np.testing.assert_allclose(here[1].hessian, plain.hessian, rtol=1e-4, atol=1e-5)
    # held out by a fold
    there = site(y, None, wild)
    out = int(fold(0).assign_folds(there.rows)[7])
    train = replace(spec, subset=training_rows(fold(out)))
    keep = fold(out).assign_folds(there.rows) != out
    reply: Any = there.reply([Evaluate(train, models, W)])[0]
    plain = site(y[keep], None, X[keep]).reply([Evaluate(spec, models, W)])[0]
    for found, expected in zip(
        (reply.value, reply.gradient, reply.hessian), (plain.value, plain.gradient, plain.hessian), strict=True
    ):
        close(found, expected)
