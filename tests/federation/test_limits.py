"""Limits of a site: queries that ask for too much, or do not fit, are refused from their shapes alone."""

from __future__ import annotations

import re
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation.wired import replies, sites_of, table

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.algorithms.base import Bounds
from compfed.federation import (
    Describe,
    Evaluate,
    FinishRound,
    HeldOut,
    Inference,
    InProcess,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    QueryLimits,
    Refusal,
    Rows,
    Score,
    Site,
    Tabulate,
    ask,
)
from compfed.federation.limits import QueryChecks
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.splits import Fold, Holdout, PredefinedSplit, SiteFold

D = 5  # four columns and an intercept
SCALING = FeatureScaling(np.zeros(4), np.ones(4), intercept=True)
OBJECTIVE = ObjectiveSpec(cf.losses.Squared(), SCALING)
X = np.zeros((2, D))
WIDE = ObjectiveSpec(cf.losses.MultiSquared(outputs=128))  # of 512 coefficients
FOLD = Fold(0, 3, 7, np.array([0, 12]), by_class=False, held_out=True)
BOUNDS = Bounds(L=1.0, L_max=2.0, mu=0.1, tau=3, d=D)
METHOD = cf.algorithms.DecoupledProx(eta=0.1, tau=3)
RUN = RunSpec(0, METHOD, cf.regularisers.L1(0.1), OBJECTIVE, np.zeros(D), 0, None, 20)
ROUND = LocalUpdate(RUN, 0, 0, {"x": np.zeros(D)})


def site(kind: str = "numbers") -> Site:
    return sites_of(table(kind), QueryLimits())[1]


SCORE = Score(
    ObjectiveSpec(cf.losses.Logistic(), SCALING, np.array(["ill", "well"])), X[0], np.array([[-1.0, 0.0, 1.0]]), np.empty(0),
    np.array([[0.0, 1.0]]),
)  # fmt: skip
LEFT_OUT = LeaveOneOut(OBJECTIVE, X, np.array([4, 0]), np.array([[9e4, 1.0, 9e4]] * 2))
INFERENCE = Inference(OBJECTIVE, X[0], np.array([4, 0]))
HONEST: dict[str, tuple[Any, str]] = {
    "describe": (Describe(), "numbers"),
    "describe classes": (Describe(classes=True, subset=replace(FOLD, by_class=True)), "words"),
    "tabulate": (Tabulate(("0", "1"), (np.array([0.0, 1.0]), np.empty(0)), ("label",), (("0", "2"),)), "numbers"),
    "moments": (Moments(subset=Holdout(0.25, 3, by_class=False, held_out=True)), "numbers"),
    "Lipschitz constant": (Lipschitz(OBJECTIVE, np.zeros(D)), "numbers"),
    "gradient": (Evaluate(OBJECTIVE, X, dual=np.ones((2, 4))), "numbers"),
    "gradient in single precision": (Evaluate(replace(OBJECTIVE, dtype="float32"), X.astype("f4")), "numbers"),
    "intercept alone": (
        Evaluate(
            ObjectiveSpec(
                cf.losses.Squared(), FeatureScaling(np.empty(0), np.empty(0), True), columns=np.empty(0, int)
            ),
            X[:, :1],
        ),
        "numbers",
    ),
    "classes": (
        Evaluate(ObjectiveSpec(cf.losses.Logistic(), SCALING, np.array(["ill", "well"])), X), "words"
    ),
    "softmax": (
        Evaluate(ObjectiveSpec(cf.losses.Softmax(outputs=3), SCALING, np.arange(3)), np.zeros((1, 3 * D))), "three"
    ),
    "Hessian": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.array([4, 0], np.int8)), "numbers"),
    "profile": (Evaluate(replace(OBJECTIVE, profile=True), X, np.array([4, 0], np.int8)), "numbers"),
    "class weights": (
        Evaluate(ObjectiveSpec(cf.losses.ClassWeightedLogistic(class_weights=[1.0, 2.0]), SCALING, np.array(["ill", "well"])), X),
        "words",
    ),
    "held out": (HeldOut(OBJECTIVE, SiteFold(-1, held_out=False), X), "numbers"),
    "left out": (LEFT_OUT, "numbers"),
    "left out of an intercept alone": (LeaveOneOut(OBJECTIVE, X, np.empty(0, int), np.empty((2, 0))), "numbers"),
    "products": (INFERENCE, "numbers"),
    "products of none": (replace(INFERENCE, coords=np.empty(0, int)), "numbers"),
    "score": (SCORE, "words"),
    "score of numbers": (Score(OBJECTIVE, X[0], np.empty((0, 0)), np.zeros(1), np.empty((0, 2))), "numbers"),
    "round": (ROUND, "numbers"),
    "round of mini-batches": (replace(ROUND, run_spec=replace(RUN, batch_size=5)), "numbers"),
    "result": (FinishRound(RUN, 0, {"x": np.zeros(D)}), "numbers"),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_honest_queries_are_answered(name):
    query, kind = HONEST[name]
    here = site(kind)
    if isinstance(query, FinishRound):
        here.reply([ROUND])
    assert here.guard.limits is not None
    assert here.guard.limits.reason(query, QueryChecks(here.guard.limits, here.guard)) is None
    (reply,) = here.reply([query])
    assert not isinstance(reply, Refusal)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_of_the_registry_is_within_the_limits(name):
    here = site()
    run_spec = replace(RUN, algorithm=ALGORITHMS[name].from_bounds(BOUNDS, 1.0))
    assert QueryLimits().reason(LocalUpdate(run_spec, 0, 0, {}), QueryChecks(QueryLimits(), here.guard)) is None


def objective(**changes: Any) -> Evaluate:
    return Evaluate(replace(OBJECTIVE, **changes), X)


def run(**changes: Any) -> LocalUpdate:
    return replace(ROUND, run_spec=replace(RUN, **changes))


def nested(depth: int) -> Any:
    return cf.regularisers.L1(0.1) if depth == 0 else 2.0 * cf.regularisers.Shifted(nested(depth - 1), 0.0)


HOSTILE: dict[str, tuple[Any, str]] = {
    # sizes
    "coords repeats a coordinate": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.zeros(300_000, np.int8)), "coords has 300000 entries"),
    "coords repeats two": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.array([1, 1])), "coords must have different whole numbers from 0 to 4"),
    "coords below 0": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.array([-1])), "coords must have different"),
    "coords beyond d": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.array([D])), "coords must have different"),
    "coords of floats": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.zeros(1)), "coords must be a list of whole numbers"),
    "coords of two dimensions": (Evaluate(OBJECTIVE, np.zeros((1, D)), np.zeros((1, 1), int)), "coords must be a list"),
    "Hessians of many models": (Evaluate(WIDE, np.zeros((600, 512)), np.arange(512)), "Hessians on 512 coordinates would take more"),
    "a billion outputs": (objective(loss=cf.losses.Softmax(outputs=10**9)), "1000000000 outputs would take more numbers"),
    "many outputs": (objective(loss=cf.losses.MultiSquared(outputs=10**8)), "would take more numbers"),
    "models": (Evaluate(OBJECTIVE, np.zeros((10_001, D))), "at most 10000"),
    "an offset that is not there": (objective(loss=cf.losses.WithOffset(cf.losses.Squared())), "its rows have no offset"),
    "a profile of many outputs": (objective(loss=cf.losses.MultiSquared(outputs=2), profile=True), "one prediction per row"),
    "a profile that is a word": (objective(profile="yes"), "profile must be True or False"),
    "local steps with a profile": (run(objective=replace(OBJECTIVE, profile=True)), "local steps know no profile"),
    "no model": (Evaluate(OBJECTIVE, np.zeros((0, D))), "x must be"),
    "keep": (run(algorithm=cf.algorithms.CompressedDecoupledProx(eta=1.0, keep=10**9)), "keep=1000000000"),
    "capacity": (run(batch_size=5, capacity=2**40), "a capacity of 1099511627776 rows"),
    "epochs": (run(algorithm=cf.algorithms.FedAvg(eta=0.1, epochs=10**4), batch_size=1), "rounds of 150000 local steps"),
    "batch beyond capacity": (run(batch_size=50), "batch_size=50"),
    # steps
    "tau": (run(algorithm=cf.algorithms.DecoupledProx(eta=0.1, tau=2 * 10**9)), "makes rounds of 2000000000 local steps"),
    "tau in a field": (
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
    "x of another width": (Evaluate(OBJECTIVE, np.zeros((1, 6))), r"x has shape \(1, 6\); expected \(1, 5\)"),
    "x of one dimension": (Evaluate(OBJECTIVE, np.zeros(D)), "x must be an array with a model in each row"),
    "x of whole numbers": (Evaluate(OBJECTIVE, np.zeros((1, D), int)), "x must be an array of float64"),
    "x of words": (Evaluate(OBJECTIVE, np.full((1, D), "a")), "x must be an array of float64"),
    "x of nan": (Evaluate(OBJECTIVE, np.full((1, D), np.nan)), "x has numbers that are NaN or infinite"),
    "no x": (Evaluate(OBJECTIVE, None), "x must be"),  # pyright: ignore[reportArgumentType]
    "dual": (Evaluate(OBJECTIVE, X, dual=np.zeros((2, 5))), "dual has shape"),
    "dual without conjugate": (Evaluate(replace(OBJECTIVE, loss=cf.losses.Huber()), X, dual=np.zeros((2, 4))), "no conjugate"),
    "x of a Hessian": (Evaluate(OBJECTIVE, np.zeros(D), np.arange(2)), "x must be an array with a model in each row"),
    "x of a Lipschitz constant": (Lipschitz(OBJECTIVE, X), "x has shape"),
    "upper_bound": (Lipschitz(OBJECTIVE, None, 3), "upper_bound must be"),  # pyright: ignore[reportArgumentType]
    "dtype": (objective(dtype="float16"), "dtype must be"),
    "dtype of words": (objective(dtype="U100000000"), "dtype must be"),
    "no objective": (Evaluate(SCALING, X), "must be an ObjectiveSpec; got a FeatureScaling"),  # pyright: ignore[reportArgumentType]
    "no loss": (objective(loss=SCALING), "loss must be a loss; got a FeatureScaling"),
    "ridge of many": (objective(loss=cf.losses.Squared(ridge=np.ones(10**6))), "ridge"),  # pyright: ignore[reportArgumentType]
    "scaling": (objective(scaling=FeatureScaling(np.zeros(3), np.ones(3), True)), r"centre has shape \(3,\); expected \(4,\)"),
    "scaling of two dimensions": (objective(scaling=FeatureScaling(np.zeros((4, 1)), np.ones(4), True)), "centre has shape"),
    "scale of zero": (objective(scaling=FeatureScaling(np.zeros(4), np.zeros(4), True)), "scale must be > 0"),
    "scale of nan": (objective(scaling=FeatureScaling(np.zeros(4), np.full(4, np.nan), True)), "scale has numbers that are NaN"),
    "intercept": (objective(scaling=FeatureScaling(np.zeros(4), np.ones(4), 2**40)), "intercept must be"),  # pyright: ignore
    "columns repeated": (objective(columns=np.zeros(300_000, np.int8)), "columns has 300000 entries"),
    "columns beyond": (objective(columns=np.array([4])), "columns must have different"),
    "columns of truths": (objective(columns=np.ones(4, bool)), "columns must be a list"),
    "classes of a regression": (objective(classes=np.arange(3.0)), "Unknown label type"),
    "subset": (Moments(subset=OBJECTIVE), "subset must be a subset of the rows; got a ObjectiveSpec"),  # pyright: ignore[reportArgumentType]
    "folds": (Moments(subset=replace(FOLD, folds=10**12)), "folds=1000000000000 must be"),
    "fold number": (Moments(subset=replace(FOLD, number=3)), "number=3 must be"),
    "first too short": (Moments(subset=replace(FOLD, first=np.array([0]))), "first has 1 entries"),
    "first below 0": (Moments(subset=replace(FOLD, first=np.array([0, -1]))), "first=-1"),
    "first of floats": (Describe(subset=replace(FOLD, first=np.zeros(2))), "first must be a list"),
    "seed below 0": (Moments(subset=replace(FOLD, seed=-1)), "seed=-1"),
    "by class of a number": (Moments(subset=replace(FOLD, by_class=7)), "by_class must be"),
    "a listed split": (HeldOut(OBJECTIVE, PredefinedSplit(0, True), X), "number=0 must be"),
    "a site far away": (HeldOut(OBJECTIVE, SiteFold(10**9, True), X), "number=1000000000"),
    "no subset": (HeldOut(OBJECTIVE, None, X), "subset is missing"),  # pyright: ignore[reportArgumentType]
    "left out with another width": (replace(LEFT_OUT, hessian=np.zeros((2, 6))), r"hessian has shape \(2, 6\); expected \(2, 3\)"),
    "left out with a Hessian of nan": (replace(LEFT_OUT, hessian=np.full((2, 3), np.nan)), "hessian has numbers that are NaN"),
    "left out on coordinates beyond": (replace(LEFT_OUT, coords=np.array([4, 5])), "coords must have different whole numbers"),
    "left out of a fold": (replace(LEFT_OUT, objective=replace(OBJECTIVE, subset=FOLD)), "LeaveOneOut is of all rows"),
    "left out with a profile": (replace(LEFT_OUT, objective=replace(OBJECTIVE, profile=True)), "without a profile"),
    "left out with kinks": (replace(LEFT_OUT, objective=replace(OBJECTIVE, loss=cf.losses.Huber())), "Huber is no loss of"),
    "left out of sites": (replace(LEFT_OUT, equal_sites=3), "equal_sites must be"),
    "products at nan": (replace(INFERENCE, x=np.full(D, np.nan)), "x has numbers that are NaN"),
    "products of two models": (replace(INFERENCE, x=X), r"x has shape \(2, 5\); expected \(5,\)"),
    "products on coordinates beyond": (replace(INFERENCE, coords=np.array([4, 5])), "coords must have different whole numbers"),
    "products of a fold": (replace(INFERENCE, objective=replace(OBJECTIVE, subset=FOLD)), "Inference is of all rows"),
    "products with kinks": (replace(INFERENCE, objective=replace(OBJECTIVE, loss=cf.losses.Huber())), "Huber is no loss of"),
    "products with a shape of none": (replace(INFERENCE, shape=True), "Squared has no shape"),
    "products of flags": (replace(INFERENCE, clustered=2), "clustered must be"),
    "a share of all": (Moments(subset=Holdout(1.0, 0, False, True)), "share must be"),
    "a share that is none": (Moments(subset=Holdout(float("nan"), 0, False, True)), "share must be"),
    "thresholds without classes": (replace(SCORE, objective=OBJECTIVE), "edges has shape"),
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
    "no algorithm": (run(algorithm=cf.losses.Squared()), "algorithm must be an Algorithm; got a Squared"),
    "no regulariser": (run(regulariser=SCALING), "regulariser must be a regulariser; got a FeatureScaling"),
    "regulariser of a matrix": (run(regulariser=cf.regularisers.L1(np.ones((5, 1)))), r"lam has shape \(5, 1\)"),
    "regulariser of many": (run(regulariser=cf.regularisers.L1(np.ones(10**6))), "lam has shape"),
    "nested": (run(regulariser=nested(8)), "nested more than 10 deep"),
    "everyone": (run(everyone=None), "everyone must be"),
    "no run": (LocalUpdate(OBJECTIVE, 0, 0, {}), "run_spec must be a RunSpec; got a ObjectiveSpec"),  # pyright: ignore[reportArgumentType]
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_queries_are_refused_without_allocation(name):
    query, reason = HOSTILE[name]
    here = site()
    here.reply([ROUND])  # compiled beforehand
    tracemalloc.start()
    (reply,) = here.reply([query])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(reply, Refusal), reply
    assert peak < 5e6
    assert re.search(reason, reply.reason), reply.reason
    assert not re.search(r"\b15\b", reply.reason)  # the number of its rows


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
    (reply,) = site(kind).reply([Evaluate(ObjectiveSpec(cf.losses.Logistic(), SCALING, classes), X)])
    assert isinstance(reply, Refusal)
    assert re.search(reason, reply.reason), reply.reason
    assert "well" not in reply.reason


WRONG_SCORES = {
    "nan": ({"edges": np.array([[np.nan]])}, "edges has numbers that are NaN"),
    "infinite": ({"edges": np.array([[0.0, np.inf]])}, "edges has numbers that are NaN or infinite"),
    "unsorted": ({"edges": np.array([[1.0, 0.0]])}, "edges must increase"),
    "twice": ({"edges": np.array([[1.0, 1.0]])}, "edges must increase"),
    "huge": ({"edges": np.broadcast_to(0.0, (1, 2**40))}, "at most 4096 thresholds"),
    "many rows": ({"edges": np.broadcast_to(np.arange(2.0), (2**40, 2))}, "edges has shape"),
    "flat": ({"edges": np.arange(2.0)}, "edges must be an array"),
    "words": ({"edges": np.array([["a"]])}, "edges must be an array of float64"),
    "centre": ({"centre": np.zeros(1)}, "centre has shape"),
    "model": ({"x": np.zeros((1, D))}, "x has shape"),
    "lines": ({"lines": np.zeros((17, 2))}, "at most 16 of them"),
    "line of nan": ({"lines": np.full((1, 2), np.nan)}, "lines has numbers that are NaN"),
    "triples": ({"lines": np.zeros((1, 3))}, "lines has shape"),
    "softmax": ({"objective": replace(SCORE.objective, loss=cf.losses.Softmax(outputs=3))}, "x has shape"),
    "a hinge": ({"objective": replace(SCORE.objective, loss=cf.losses.SquaredHinge())}, "Logistic and Softmax, and with no other"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_a_score_that_is_hostile_is_refused_without_allocation(name):
    change, reason = WRONG_SCORES[name]
    here = site("words")
    here.reply([SCORE])
    tracemalloc.start()
    (reply,) = here.reply([replace(SCORE, **change)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(reply, Refusal), reply
    assert peak < 5e6
    assert re.search(reason, reply.reason), reply.reason


@pytest.mark.parametrize("limits", [QueryLimits(), None])
def test_classes_are_no_oracle_for_the_labels_of_a_regression(limits):
    """Whatever classes are named, all labels or none of them, the refusal is the same."""
    rows = table("numbers")
    here = sites_of(rows, limits)[0]
    labels = np.sort(rows[0][1])
    tries = [labels, labels[:3], np.append(labels[1:], 99.0), np.arange(3.0)]
    reasons = {replies(here, Evaluate(ObjectiveSpec(cf.losses.Squared(), SCALING, c), X))[0].reason for c in tries}
    reasons.add(replies(here, Describe(classes=True))[0].reason)
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
    here = Site(Rows(np.ones((3, 1)), labels, name="a", index=0))
    size = loss.size(1)
    (reply,) = here.reply([Evaluate(ObjectiveSpec(loss), np.zeros((1, size)))])
    assert isinstance(reply, Refusal)
    assert not {"7.25", "42", "3,", "3 "} & set(reply.reason.replace("(", " ").split(" "))


def test_limits_are_a_choice_of_the_site():
    rows = table("numbers")
    query = Evaluate(OBJECTIVE, np.zeros((3, D)))
    few = sites_of(rows, QueryLimits(max_models=2))[0]
    assert isinstance(few.reply([query])[0], Refusal)
    assert few.guard.limits == QueryLimits(max_models=2)
    with pytest.raises(cf.InputError, match="max_models=0"):
        QueryLimits(max_models=0)


def test_sites_in_this_process_have_no_limits():
    """Simulations are nobody's victims: a table of their own has none."""
    A, y = table("numbers")[0]
    federation = InProcess(cf.data.from_arrays([A], [y]))
    assert [here.guard.limits for here in federation.sites] == [None]
    many = Evaluate(OBJECTIVE, np.zeros((10_001, D)))
    assert ask(federation, many)[0].value.shape == (10_001,)
