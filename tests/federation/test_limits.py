"""Limits of a site: queries that ask for too much, or do not fit, are refused from their shapes alone."""

from __future__ import annotations

import re
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation.wired import sites_of, table

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.algorithms.base import Bounds
from compfed.federation import (
    Curvature,
    Describe,
    HeldOut,
    InProcess,
    Lipschitz,
    Moments,
    QueryLimits,
    Refusal,
    Result,
    Round,
    Site,
    ValueAndGradient,
    ask,
)
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.splits import Fold, Holdout, PredefinedSplit, SiteFold

D = 5  # four columns and an intercept
FRAME = FeatureScaling(np.zeros(4), np.ones(4), intercept=True)
VIEW = ObjectiveSpec(cf.losses.Squared(), FRAME)
X = np.zeros((2, D))
FOLD = Fold(0, 3, 7, np.array([0, 12]), by_class=False, held_out=True)
BOUNDS = Bounds(L=1.0, L_max=2.0, mu=0.1, tau=3, d=D)
METHOD = cf.algorithms.DecoupledProx(eta=0.1, tau=3)
JOB = RunSpec(0, METHOD, cf.regularisers.L1(0.1), VIEW, np.zeros(D), 0, None, 20)
ROUND = Round(JOB, 0, 0, {"x": np.zeros(D)})
NEWTON = replace(JOB, algorithm=cf.algorithms.ProximalNewton())


def site(kind: str = "numbers") -> Site:
    return sites_of(table(kind), QueryLimits())[1]


HONEST: dict[str, tuple[Any, str]] = {
    "describe": (Describe(), "numbers"),
    "describe classes": (Describe(classes=True, subset=replace(FOLD, by_class=True)), "words"),
    "describe in detail": (Describe(detail=True), "numbers"),
    "moments": (Moments(subset=Holdout(0.25, 3, by_class=False, held_out=True)), "numbers"),
    "steepness": (Lipschitz(VIEW, np.zeros(D)), "numbers"),
    "gradient": (ValueAndGradient(VIEW, X, np.ones((2, 4))), "numbers"),
    "gradient in single precision": (ValueAndGradient(replace(VIEW, dtype="float32"), X.astype("f4")), "numbers"),
    "intercept alone": (
        ValueAndGradient(
            ObjectiveSpec(
                cf.losses.Squared(), FeatureScaling(np.empty(0), np.empty(0), True), columns=np.empty(0, int)
            ),
            X[:, :1],
        ),
        "numbers",
    ),
    "classes": (
        ValueAndGradient(ObjectiveSpec(cf.losses.Logistic(), FRAME, np.array(["ill", "well"])), X), "words"
    ),
    "softmax": (
        ValueAndGradient(ObjectiveSpec(cf.losses.Softmax(outputs=3), FRAME, np.arange(3)), np.zeros((1, 3 * D))), "three"
    ),
    "curvature": (Curvature(VIEW, np.zeros(D), np.array([4, 0], np.int8)), "numbers"),
    "held out": (HeldOut(VIEW, SiteFold(-1, held_out=False), X), "numbers"),
    "round": (ROUND, "numbers"),
    "round of mini-batches": (replace(ROUND, run_spec=replace(JOB, batch_size=5)), "numbers"),
    "result": (Result(JOB, 0, {"x": np.zeros(D)}), "numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_queries_are_answered(name):
    query, kind = HONEST[name]
    here = site(kind)
    if isinstance(query, Result):
        here.answer([ROUND])
    assert here.limits is not None
    assert here.limits.reason(query, here) is None
    (answer,) = here.answer([query])
    assert not isinstance(answer, Refusal)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_registry_is_within_the_limits(name):
    here = site()
    run_spec = replace(JOB, algorithm=ALGORITHMS[name].from_bounds(BOUNDS, 1.0))
    assert QueryLimits().reason(Round(run_spec, 0, 0, {}), here) is None


def objective(**changes: Any) -> ValueAndGradient:
    return ValueAndGradient(replace(VIEW, **changes), X)


def run(**changes: Any) -> Round:
    return replace(ROUND, run_spec=replace(JOB, **changes))


def nested(depth: int) -> Any:
    return cf.regularisers.L1(0.1) if depth == 0 else 2.0 * cf.regularisers.Shifted(nested(depth - 1), 0.0)


HOSTILE: dict[str, tuple[Any, str]] = {
    # sizes
    "W repeats a coordinate": (Curvature(VIEW, np.zeros(D), np.zeros(300_000, np.int8)), "W has 300000 entries"),
    "W repeats two": (Curvature(VIEW, np.zeros(D), np.array([1, 1])), "W must have different whole numbers from 0 to 4"),
    "W below 0": (Curvature(VIEW, np.zeros(D), np.array([-1])), "W must have different"),
    "W beyond d": (Curvature(VIEW, np.zeros(D), np.array([D])), "W must have different"),
    "W of floats": (Curvature(VIEW, np.zeros(D), np.zeros(1)), "W must be a list of whole numbers"),
    "W of two dimensions": (Curvature(VIEW, np.zeros(D), np.zeros((1, 1), int)), "W must be a list"),
    "W in a round": (Round(NEWTON, 0, 0, {"x": np.zeros(D), "W": np.zeros(300_000, np.int32)}), "W has 300000 entries"),
    "a billion outputs": (objective(loss=cf.losses.Softmax(outputs=10**9)), "1000000000 outputs would take more numbers"),
    "many outputs": (objective(loss=cf.losses.MultiSquared(outputs=10**8)), "would take more numbers"),
    "models": (ValueAndGradient(VIEW, np.zeros((10_001, D))), "at most 10000"),
    "no model": (ValueAndGradient(VIEW, np.zeros((0, D))), "x must be"),
    "memory": (run(algorithm=cf.algorithms.ProximalBFGS(eta=1.0, memory=10**9)), "memory=1000000000"),
    "keep": (run(algorithm=cf.algorithms.CompressedDecoupledProx(eta=1.0, keep=10**9)), "keep=1000000000"),
    "capacity": (run(batch_size=5, capacity=2**40), "a capacity of 1099511627776 rows"),
    "batch": (run(batch_size=16, capacity=20), "batch_size must be at most the number of its rows"),
    "batch beyond capacity": (run(batch_size=50), "batch_size=50"),
    # steps
    "tau": (run(algorithm=cf.algorithms.DecoupledProx(eta=0.1, tau=2 * 10**9)), "makes rounds of 2000000000 local steps"),
    "tau in a part": (
        run(algorithm=cf.algorithms.Scaffnew(eta=0.1, steps=cf.algorithms.scaffnew.Fixed(tau=10**6))),
        "tau=1000000 makes rounds",
    ),
    "rare rounds": (
        run(algorithm=cf.algorithms.Scaffnew(eta=0.1, steps=cf.algorithms.scaffnew.Random(p=1e-9))), "p=1e-09 makes rounds",
    ),
    "steps within steps": (
        run(algorithm=replace(ALGORITHMS["FedPD"].from_bounds(BOUNDS, 1.0), tau=10**4, updates=10**4)),  # pyright: ignore
        "makes rounds of 100000000 local steps",
    ),
    # shapes and types
    "x of another width": (ValueAndGradient(VIEW, np.zeros((1, 6))), r"x has shape \(1, 6\); expected \(1, 5\)"),
    "x of one dimension": (ValueAndGradient(VIEW, np.zeros(D)), "x must be an array with a model in each row"),
    "x of whole numbers": (ValueAndGradient(VIEW, np.zeros((1, D), int)), "x must be an array of float64"),
    "x of words": (ValueAndGradient(VIEW, np.full((1, D), "a")), "x must be an array of float64"),
    "x of nan": (ValueAndGradient(VIEW, np.full((1, D), np.nan)), "x has numbers that are NaN or infinite"),
    "no x": (ValueAndGradient(VIEW, None), "x must be"),  # pyright: ignore[reportArgumentType]
    "dual": (ValueAndGradient(VIEW, X, np.zeros((2, 5))), "dual has shape"),
    "dual without conjugate": (ValueAndGradient(replace(VIEW, loss=cf.losses.Huber()), X, np.zeros((2, 4))), "no conjugate"),
    "x of a curvature": (Curvature(VIEW, X, np.arange(2)), "x has shape"),
    "x of a steepness": (Lipschitz(VIEW, X), "x has shape"),
    "roughly": (Lipschitz(VIEW, None, 3), "roughly must be"),  # pyright: ignore[reportArgumentType]
    "dtype": (objective(dtype="float16"), "dtype must be"),
    "dtype of words": (objective(dtype="U100000000"), "dtype must be"),
    "no view": (ValueAndGradient(FRAME, X), "view is no view"),  # pyright: ignore[reportArgumentType]
    "no loss": (objective(loss=FRAME), "which is no loss"),
    "ridge of many": (objective(loss=cf.losses.Squared(ridge=np.ones(10**6))), "ridge"),  # pyright: ignore[reportArgumentType]
    "frame": (objective(scaling=FeatureScaling(np.zeros(3), np.ones(3), True)), r"centre has shape \(3,\); expected \(4,\)"),
    "frame of two dimensions": (objective(scaling=FeatureScaling(np.zeros((4, 1)), np.ones(4), True)), "centre has shape"),
    "scale of zero": (objective(scaling=FeatureScaling(np.zeros(4), np.zeros(4), True)), "scale must be > 0"),
    "scale of nan": (objective(scaling=FeatureScaling(np.zeros(4), np.full(4, np.nan), True)), "scale has numbers that are NaN"),
    "intercept": (objective(scaling=FeatureScaling(np.zeros(4), np.ones(4), 2**40)), "intercept must be"),  # pyright: ignore
    "columns repeated": (objective(columns=np.zeros(300_000, np.int8)), "columns has 300000 entries"),
    "columns beyond": (objective(columns=np.array([4])), "columns must have different"),
    "columns of truths": (objective(columns=np.ones(4, bool)), "columns must be a list"),
    "classes of a regression": (objective(classes=np.arange(3.0)), "Unknown label type"),
    "part": (Moments(subset=VIEW), "part is no part"),  # pyright: ignore[reportArgumentType]
    "folds": (Moments(subset=replace(FOLD, folds=10**12)), "folds=1000000000000 must be"),
    "fold number": (Moments(subset=replace(FOLD, number=3)), "number=3 must be"),
    "first too short": (Moments(subset=replace(FOLD, first=np.array([0]))), "first has 1 entries"),
    "first below 0": (Moments(subset=replace(FOLD, first=np.array([0, -1]))), "first=-1"),
    "first of floats": (Describe(subset=replace(FOLD, first=np.zeros(2))), "first must be a list"),
    "seed below 0": (Moments(subset=replace(FOLD, seed=-1)), "seed=-1"),
    "by class of what is no class": (Moments(subset=replace(FOLD, by_class=7)), "by_class must be"),
    "a listed split": (HeldOut(VIEW, PredefinedSplit(0, True), X), "number=0 must be"),
    "a site far away": (HeldOut(VIEW, SiteFold(10**9, True), X), "number=1000000000"),
    "no part": (HeldOut(VIEW, None, X), "part is missing"),  # pyright: ignore[reportArgumentType]
    "a share of all": (Moments(subset=Holdout(1.0, 0, False, True)), "share must be"),
    "a share that is none": (Moments(subset=Holdout(float("nan"), 0, False, True)), "share must be"),
    # rounds
    "r": (replace(ROUND, r=2**31), "r=2147483648"),
    "r below 0": (replace(ROUND, r=-1), "r=-1"),
    "exchange": (replace(ROUND, exchange=1), "exchange=1"),
    "d": (replace(ROUND, d=[1]), "d must be a table of arrays"),
    "d of words": (replace(ROUND, d={"x": "a"}), "d must be a table"),
    "d of another shape": (replace(ROUND, d={"x": np.zeros(6)}), "field 'x' of a message has shape"),
    "x0": (run(x0=np.zeros(6)), "x0 has shape"),
    "x0 in single precision": (run(x0=np.zeros(D, np.float32)), "x0 is of float32"),
    "seed": (run(seed=-5), "seed=-5"),
    "no algorithm": (run(algorithm=cf.losses.Squared()), "which is no algorithm"),
    "no regulariser": (run(regulariser=FRAME), "which is no regulariser"),
    "regulariser of a matrix": (run(regulariser=cf.regularisers.L1(np.ones((5, 1)))), r"lam has shape \(5, 1\)"),
    "regulariser of many": (run(regulariser=cf.regularisers.L1(np.ones(10**6))), "lam has shape"),
    "nested": (run(regulariser=nested(8)), "nested more than 10 deep"),
    "everyone": (run(everyone=None), "everyone must be"),
    "no job": (Round(VIEW, 0, 0, {}), "job is no job"),  # pyright: ignore[reportArgumentType]
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_queries_are_refused_without_allocation(name):
    query, reason = HOSTILE[name]
    here = site()
    here.answer([ROUND])  # compiled beforehand
    tracemalloc.start()
    (answer,) = here.answer([query])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(answer, Refusal), answer
    assert peak < 5e6
    assert re.search(reason, answer.reason), answer.reason
    assert not re.search(r"\b15\b", answer.reason)  # the number of its rows


@pytest.mark.parametrize(
    ("classes", "kind", "reason"),
    [
        (np.array(["a", "b"]), "three", "words where labels are words"),
        (np.arange(3), "words", "words where labels are words"),
        (np.array(["well", "ill"]), "words", "sorted, each once"),
        (np.array([["ill", "well"]]), "words", "must be a list"),
        (np.arange(1001), "three", "list of 1 to 1000"),
        (np.array([0.0, 1.0, np.nan]), "three", "sorted, each once"),
        (np.array(["ill", "other"]), "words", r"has a label that is not among the classes\. Which one"),
    ],
)
def test_classes_that_do_not_fit(classes, kind, reason):
    (answer,) = site(kind).answer([ValueAndGradient(ObjectiveSpec(cf.losses.Logistic(), FRAME, classes), X)])
    assert isinstance(answer, Refusal)
    assert re.search(reason, answer.reason), answer.reason
    assert "well" not in answer.reason


@pytest.mark.parametrize("limits", [QueryLimits(), None])
def test_classes_are_no_oracle_for_the_labels_of_a_regression(limits):
    """Whatever classes are named, all labels or none of them, the refusal is the same."""
    rows = table("numbers")
    here = sites_of(rows, limits)[0]
    labels = np.sort(rows[0][1])
    tries = [labels, labels[:3], np.append(labels[1:], 99.0), np.arange(3.0)]
    reasons = {
        here.answer([ValueAndGradient(ObjectiveSpec(cf.losses.Squared(), FRAME, c), X)])[0].reason for c in tries
    }
    reasons.add(here.answer([Describe(classes=True)])[0].reason)
    assert len({reason.partition("Unknown label type")[2] for reason in reasons}) == 1


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (cf.losses.Poisson(), np.array([3.0, -7.25, 2.0])),
        (cf.losses.Logistic(), np.array([1.0, 0.0, 42.0])),
        (cf.losses.Softmax(outputs=2), np.array([1.0, 0.0, 42.0])),
        (cf.losses.Squared(), np.full((3, 2), 7.25)),
    ],
)
def test_a_loss_that_does_not_fit_names_no_label_and_no_count(loss, labels):
    here = Site(np.ones((3, 1)), labels, name="a", index=0)
    size = loss.size(1)
    (answer,) = here.answer([ValueAndGradient(ObjectiveSpec(loss), np.zeros((1, size)))])
    assert isinstance(answer, Refusal)
    assert not {"7.25", "42", "3,", "3 "} & set(answer.reason.replace("(", " ").split(" "))


def test_limits_are_a_choice_of_the_site():
    rows = table("numbers")
    query = ValueAndGradient(VIEW, np.zeros((3, D)))
    few = sites_of(rows, QueryLimits(max_models=2))[0]
    assert isinstance(few.answer([query])[0], Refusal)
    assert few.limits == QueryLimits(max_models=2)
    with pytest.raises(cf.InputError, match="max_models=0"):
        QueryLimits(max_models=0)


def test_sites_in_this_process_have_no_limits():
    """Simulations are nobody's victims: a table of their own has none."""
    A, y = table("numbers")[0]
    federation = InProcess(cf.data.from_arrays([A], [y]))
    assert [here.limits for here in federation.sites] == [None]
    many = ValueAndGradient(VIEW, np.zeros((10_001, D)))
    assert ask(federation, many)[0][0].value.shape == (10_001,)
