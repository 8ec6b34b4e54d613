"""Checks of replies: honest ones pass, to the last bit of a fit; each field that is wrong is named."""

from __future__ import annotations

import re
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation.wired import sites_of, table, wired
from scipy.sparse import csr_matrix

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.algorithms.base import Bounds
from compfed.federation import (
    Describe,
    DisclosurePolicy,
    Evaluate,
    FinishRound,
    HeldOut,
    InProcess,
    Lipschitz,
    LocalUpdate,
    Moments,
    QueryLimits,
    Refusal,
    Score,
    Site,
    Tabulate,
)
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.queries import LIPSCHITZ_BINS
from compfed.federation.server.replies import enrolment_fault, fault
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.spec import FeatureScaling, FederatedProblem, ObjectiveSpec, RunSpec
from compfed.splits import Fold, SiteFold

FITS: list[tuple[str, Any]] = [
    ("numbers", cf.FederatedLasso(0.1)),
    ("numbers", cf.FederatedHuber(alpha=0.1)),
    ("numbers", cf.FederatedLassoCV(cv=3, n_alphas=3)),
    ("numbers", cf.FederatedLassoCV(cv="leave-one-site-out", n_alphas=3)),
    ("words", cf.FederatedLogisticRegressionCV(n_alphas=2, eps=0.3, cv=3, tol=1e-6)),
    ("three", cf.FederatedLogisticRegression(alpha=0.02)),
    ("counts", cf.FederatedPoissonRegressor(alpha=0.1)),
    ("two", cf.FederatedMultiTaskLasso(0.1)),
    ("numbers", cf.FederatedLasso(0.1, algorithm="DecoupledProx", tol=1e-3)),
]


@pytest.mark.parametrize(("kind", "model"), FITS, ids=lambda v: v if isinstance(v, str) else type(v).__name__)
def test_honest_fits_are_the_same_to_the_last_bit(kind, model):
    """`Wired` asserts that no reply is at fault, and its sites have the limits of a network."""
    rows = table(kind)
    federation = wired(rows)
    coef = model.fit_federation(federation).coef_.copy()
    np.testing.assert_array_equal(coef, model.fit_federation(InProcess(sites_of(rows))).coef_)
    assert len(federation.sent) > 4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["FISTA", "CompressedDecoupledProx", "ProximalNewton"])
def test_honest_methods_pass_in_both_precisions(name, dtype):
    sites = cf.data.synthetic(clients=2, samples=16, features=4, seed=0)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites, dtype=dtype)
    rows = list(zip(sites.features, sites.labels, strict=True))
    there, here = (
        cf.solve_federated(problem, name, tol=1e-2, max_rounds=12, federation=f)
        for f in (wired(rows), InProcess(sites))
    )
    np.testing.assert_array_equal(there.x, here.x)


def test_honest_sparse_sites_and_other_dtypes_pass():
    for A, y in table("three"):
        for features in (A.astype(np.float32), csr_matrix(A), csr_matrix(A, dtype=np.float32), A.astype(int)):
            for labels in (y, y.astype(np.int8), y.astype(float), y > 0, y.astype(str)):
                site = Site(features, labels, name="a", index=0)
                queries = [
                    Describe(classes=True),
                    Tabulate(("0", "3"), (np.array([0.0, 1.0]), np.empty(0)), ("label",), (("0", "2"),)),
                    Moments(),
                    *([Lipschitz(OBJECTIVE), Evaluate(OBJECTIVE, X)] if labels.dtype.kind != "U" else []),
                ]
                replies = site.reply(queries)
                assert not any(isinstance(reply, Refusal) for reply in replies)
                assert fault(queries, replies) is None
    assert "site1" in str(cf.describe(InProcess(sites_of(table("numbers")))))


# --- replies that are wrong in one place ---

D = 5
OBJECTIVE = ObjectiveSpec(cf.losses.Squared(), FeatureScaling(np.zeros(4), np.ones(4), intercept=True))
X = np.array([[0.0, 1.0, 0.5, -1.0, 2.0], [1.0] * 5])
FOLD = Fold(0, 3, 7, np.array([0, 12]), by_class=False, held_out=True)
RUN = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.L1(0.1), OBJECTIVE, np.zeros(D), 0, None, 20)
QUERIES: dict[str, Any] = {
    "describe": Describe(),
    "subset": Describe(subset=FOLD),
    "classes": Describe(classes=True),
    "tabulate": Tabulate(("0", "1"), (np.array([0.0, 1.0]), np.empty(0)), ("label",), (("0", "2"),)),
    "moments": Moments(),
    "Lipschitz": Lipschitz(OBJECTIVE),
    "upper bound": Lipschitz(OBJECTIVE, upper_bound=True),
    "gradient": Evaluate(OBJECTIVE, X, dual=np.ones((2, 4))),
    "plain": Evaluate(OBJECTIVE, X),
    "Hessian": Evaluate(OBJECTIVE, X[:1], np.arange(3)),
    "held out": HeldOut(OBJECTIVE, FOLD, X),
    "score": Score(
        replace(OBJECTIVE, loss=cf.losses.Logistic(), classes=np.array(["ill", "well"])),
        X[0],
        np.array([[-1.0, 1.0]]),
        np.empty(0),
        np.array([[0.0, 1.0]]),
    ),
    "numbers": Score(OBJECTIVE, X[0], np.empty((0, 0)), np.zeros(1), np.empty((0, 2)), FOLD),
    "round": LocalUpdate(RUN, 0, 0, {"y": np.zeros(D)}),
    "result": FinishRound(replace(RUN, algorithm=cf.algorithms.DecoupledProx(eta=0.1)), 0, {"x": np.zeros(D)}),
}


def honest(name: str) -> Any:
    """The reply of a site to a query."""
    query = QUERIES[name]
    rows = table("words" if name in ("classes", "score") else "numbers")[0]
    if name == "facts":
        rows = (rows[0], np.arange(len(rows[0])) % 3)
    columns = ["age", "bmi", "bp", "sex"] if name == "describe" else None
    site = Site(*rows, name="a", index=0, columns=columns)
    if name == "result":
        site.reply([LocalUpdate(query.run_spec, 0, 0, {"x": np.zeros(D)})])
    (reply,) = site.reply([query])
    assert not isinstance(reply, Refusal), reply
    return reply


REPLIES = {name: honest(name) for name in QUERIES}


@pytest.mark.parametrize("name", QUERIES)
def test_honest_replies_have_no_fault(name):
    assert fault([QUERIES[name]], (REPLIES[name],)) is None


def put(array: np.ndarray, value: float, at: Any = 0) -> np.ndarray:
    array = np.array(array)
    array[at] = value
    return array


NAN, INF = float("nan"), float("inf")
PAIRS = ("mean", "mean_low", "square", "square_low")
R = REPLIES
WRONG: list[tuple[str, dict[str, Any], str]] = [
    # scores
    ("score", {"low": np.zeros((1, 2, 2, 3))}, "low has shape"),
    ("score", {"low": np.full((1, 2, 2, 2), 9e9)}, "a lower bound is above"),
    ("score", {"low": np.full((1, 2, 2, 2), NAN)}, "low has 8 number"),
    ("score", {"low": np.zeros((1, 2, 2, 2)), "high": np.array([[[[1.0, 0.0]] * 2] * 2])}, "must not fall"),
    ("score", {"high": np.full((1, 2, 2, 2), 99.0)}, "above the weight of the rows"),
    ("score", {"class_weights": np.array([1.0, 1.0])}, "class_weights do not add up"),
    ("score", {"lines": np.full((1, 6), INF)}, "lines has 6 number"),
    ("score", {"brier": -1.0}, "brier is -1"),
    ("numbers", {"loss": NAN}, "loss is nan"),
    ("numbers", {"moments": np.zeros((7, 2))}, "moments has shape"),
    ("numbers", {"weight": 0.5}, "weight is 0.5"),
    # counts and weights
    *[("describe", {"rows": v}, "rows is") for v in (0, -1, 2**48, 12.0, True, None, "12", np.zeros(3))],
    ("subset", {"rows": -1}, "rows is -1"),
    *[("describe", {"weight": v}, "weight is") for v in (0.0, 1e308, 13.0, -12.0, NAN, INF, 12, None, 11.5)],
    ("subset", {"weight": 5.0}, "weight is 5 for"),
    *[("describe", {"width": v}, "width is") for v in (-1, 10_000_001, 4.0, False, None)],
    # columns
    ("describe", {"columns": ("a", "b", "c")}, "it names 3 columns; its width is 4"),
    ("describe", {"columns": ("a", "b", "c", "a")}, "a column twice"),
    ("describe", {"columns": ("a", "b", "c", "")}, "1 to 200 printable characters"),
    ("describe", {"columns": ("a", "b", "c", "d" * 201)}, "1 to 200 printable"),
    ("describe", {"columns": ("a", "b", "c", "\x1b[2J")}, r"named '\\\\x1b\[2J'; a name has"),
    ("describe", {"columns": ("a", "b", "c", 3)}, "a column is named 3"),
    ("describe", {"columns": "abcd"}, "it names a str of columns"),
    # labels
    *[("describe", {"label_mean": v}, "label_mean") for v in
      (np.array(NAN), np.array(INF), np.zeros((1, 1)), np.zeros(10_001), np.array(1), np.array(True), 1.0, None)],
    ("describe", {"classes": np.arange(3.0)}, "classes has shape"),
    ("describe", {"class_weights": np.zeros(1)}, "class_weights has shape"),
    ("classes", {"classes": R["classes"].classes[::-1]}, "sorted, each once"),
    ("classes", {"classes": R["classes"].classes[[0, 0]]}, "sorted, each once"),
    ("classes", {"classes": R["classes"].classes[None]}, "must be a list"),
    ("classes", {"classes": np.array([0.5, 1.0])}, "must be whole"),
    ("classes", {"classes": np.array([0.0, INF])}, "must be whole"),
    ("classes", {"classes": np.array(["ill", "\x1b"])}, "sorted|printable"),
    ("classes", {"classes": np.array(["a\nb", "well"])}, "printable characters"),
    ("classes", {"classes": np.array(["a" * 201, "well"])}, "at most 200"),
    ("classes", {"classes": np.arange(10**6), "class_weights": np.ones(10**6)}, "at most 1000 are taken"),
    ("classes", {"classes": None}, "must be a list"),
    ("classes", {"class_weights": np.array([1.0, 1.0])}, "add up to 2; weight is 12"),
    ("classes", {"class_weights": np.array([13.0, -1.0])}, "finite and >= 0"),
    ("classes", {"class_weights": np.array([NAN, 1.0])}, "finite and >= 0"),
    ("classes", {"class_weights": np.array([6, 6])}, "class_weights is of int64"),
    ("classes", {"class_weights": np.full(3, 4.0)}, "class_weights has shape"),
    ("classes", {"label_mean": np.zeros(3)}, "label_mean has shape"),
    ("classes", {"label_mean": np.array(0.5)}, "label_mean must be NaN"),
    # a table
    *[("tabulate", {"rows": v}, "rows is") for v in (0, -1, 2.0, None)],
    *[("tabulate", {name: v}, words) for name in ("missing", "below", "levels") for v, words in (
        (np.zeros((2, 3)), f"{name} has shape"), (put(getattr(R["tabulate"], name), NAN), f"{name} has 2 number"),
        (put(getattr(R["tabulate"], name), 0.5), f"{name} does not count its rows"), ("junk", f"{name} is not an array"),
        (put(getattr(R["tabulate"], name), 1e9), f"{name} does not count its rows"),
        (-1.0 - getattr(R["tabulate"], name), f"{name} has numbers below 0"),
    )],
    ("tabulate", {"values": np.array([1e9, 1.0])}, "values does not count its rows"),
    ("tabulate", {"mean": np.array([INF, 1.0])}, "mean has 1 number"),
    ("tabulate", {"mean_low": np.array([NAN, 1.0])}, "mean_low is NaN where another moment"),
    ("tabulate", {"square": np.array([-1.0, 1.0])}, "square has numbers below 0"),
    # moments
    *[("moments", {name: put(getattr(R["moments"], name), v)}, f"{name} has 1 number") for name in PAIRS
      for v in (NAN, INF, -INF)],
    ("moments", {"square": put(R["moments"].square, -1e-9)}, "square has numbers below 0"),
    ("moments", {"mean": np.zeros(5)}, r"mean_low has shape \(4,\); expected \(5,\)"),
    ("moments", {"mean": np.zeros((2, 2))}, "one number per column"),
    ("moments", {"mean": np.zeros(4, np.float32)}, "mean is of float32; expected float64"),
    ("moments", {"mean_low": np.zeros(4, int)}, "mean_low is of int64"),
    ("moments", {"mean_low": put(R["moments"].mean_low, 0.5)}, "mean_low is larger than what rounding can lose"),
    ("moments", {"square_low": put(R["moments"].square_low, 1e-3)}, "square_low is larger than what rounding can lose"),
    *[("moments", {"weight": v}, "weight is") for v in (NAN, INF, -1.0, 0.5, 12)],
    ("moments", {"square": None}, "square is not an array"),
    # Lipschitz constants
    *[("Lipschitz", {"L": v}, "L is") for v in (NAN, INF, -INF, -1.0, 3, None, "2", np.float64(2) * np.ones(1))],
    *[("Lipschitz", {"counts": counts}, words) for counts, words in (
        (None, "counts is not an array"), (np.zeros(LIPSCHITZ_BINS, np.uint8), "a single 1, in the bin of L"),
        (R["Lipschitz"].counts[:-1], "counts has shape"), (2 * R["Lipschitz"].counts, "a single 1, in the bin of L"),
        (np.roll(R["Lipschitz"].counts, 1), "a single 1, in the bin of L"), (R["Lipschitz"].counts + 0.0, "counts is of float64"),
        (R["Lipschitz"].counts + np.roll(R["Lipschitz"].counts, 9), "a single 1"),
    )],
    ("Lipschitz", {"L": 2.5 * R["Lipschitz"].L}, "in the bin of L"),
    ("upper bound", {"counts": R["Lipschitz"].counts}, "counts are there without being asked for"),
    # values and gradients
    *[("gradient", {"value": put(R["gradient"].value, v)}, "NaN or minus infinity") for v in (NAN, -INF)],
    *[("gradient", {"conjugate": put(R["gradient"].conjugate, v)}, "conjugate has numbers") for v in (NAN, -INF)],
    *[("gradient", {"gradient": put(R["gradient"].gradient, v, (1, 2))}, "gradient has 1 number") for v in (NAN, INF, -INF)],
    *[("gradient", {"terms": put(R["gradient"].terms, v)}, "terms has 1 number") for v in (NAN, INF, -INF)],
    ("gradient", {"terms": put(R["gradient"].terms, -1.0)}, "terms has numbers below 0"),
    ("gradient", {"value": put(R["gradient"].value, INF), "gradient": np.full((2, D), NAN)}, "gradient has 5 number"),
    ("gradient", {"value": np.zeros(3)}, "value has shape"),
    ("gradient", {"gradient": np.zeros((2, D + 1))}, "gradient has shape"),
    ("gradient", {"gradient": np.zeros((2, D), np.float32)}, "gradient is of float32; expected float64"),
    ("gradient", {"value": np.zeros(2, bool)}, "value is of bool"),
    ("gradient", {"value": np.array(["a", "b"])}, "value is of str"),
    ("gradient", {"conjugate": None}, "without being asked for, or missing"),
    ("plain", {"conjugate": np.zeros(2)}, "without being asked for"),
    # Hessians
    *[("Hessian", {"hessian": put(R["Hessian"].hessian, v, (0, 0))}, "hessian has 1 number") for v in (NAN, INF, -INF)],
    ("Hessian", {"hessian": np.zeros((1, 10**6))}, r"hessian has shape \(1, 1000000\); expected \(1, 6\)"),
    ("Hessian", {"hessian": np.zeros((1, 3, 3))}, "hessian has shape"),
    ("Hessian", {"hessian": None}, "a hessian is there without being asked for, or missing"),
    ("plain", {"hessian": np.zeros((2, 6))}, "a hessian is there without being asked for"),
    # held-out rows
    *[("held out", {"weight": v}, "weight is") for v in (NAN, INF, -1.0, 1e308, 0.5, 4)],
    *[("held out", {"loss": put(R["held out"].loss, v)}, "loss has numbers") for v in (NAN, -INF)],
    ("held out", {"loss": np.zeros(1)}, "loss has shape"),
    # rounds
    ("round", {"u": {}}, r"has the fields \[\]"),
    ("round", {"u": {"gradient": np.zeros(D), "more": np.zeros(1)}}, "has the fields"),
    ("round", {"u": {"gradient": np.zeros(D + 1)}}, "has shape"),
    ("round", {"u": {"gradient": np.zeros(D, np.float32)}}, "dtype float32"),
    ("round", {"u": {"gradient": 1.0}}, "not a table of arrays"),
    ("round", {"u": (1,)}, "not a table of arrays"),
    ("round", {"u": {f"\x1b{i}": np.zeros(1) for i in range(1000)}}, "has the fields"),
    ("round", {"finite": 1}, "finite is 1; expected true or false"),
    ("result", {"finite": "yes"}, "finite is 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "words"), WRONG, ids=[f"{i}-{w[0]}-{'-'.join(w[1])}" for i, w in enumerate(WRONG)]
)
def test_a_wrong_field_is_named(name, change, words):
    wrong = fault([QUERIES[name]], (REPLIES[name]._replace(**change),))
    assert wrong is not None
    assert re.search(words, wrong), wrong
    assert wrong.startswith(f"{type(QUERIES[name]).__name__}: ")
    assert "\x1b" not in wrong
    assert len(wrong) < 600


def test_infinite_where_a_model_is_far_out():
    far = R["gradient"]._replace(
        value=put(R["gradient"].value, INF),
        gradient=put(R["gradient"].gradient, NAN),
        terms=put(R["gradient"].terms, NAN),
    )
    far = far._replace(conjugate=put(far.conjugate, INF))
    assert fault([QUERIES["gradient"]], (far,)) is None
    curved = R["Hessian"]._replace(hessian=np.full((1, 6), INF))
    wrong = "Evaluate: hessian has 6 number(s) that are NaN or infinite"
    assert fault([QUERIES["Hessian"]], (curved,)) == wrong
    infinite = {"value": np.array([INF]), "gradient": np.full((1, D), NAN), "terms": np.array([NAN])}
    assert fault([QUERIES["Hessian"]], (curved._replace(**infinite),)) is None
    held = R["held out"]._replace(loss=put(R["held out"].loss, INF))
    assert fault([QUERIES["held out"]], (held,)) is None


def test_an_honest_poisson_loss_that_overflows_passes():
    """exp(1000) is infinite: the honest reply says so, and its Hessian is not finite."""
    A, y = table("counts")[0]
    objective = ObjectiveSpec(cf.losses.Poisson(), FeatureScaling(np.zeros(4), np.ones(4), intercept=True))
    x = np.array([0.0, 0.0, 0.0, 0.0, 1000.0])
    queries = [Evaluate(objective, x[None], np.arange(D))]
    replies = Site(A, y, name="a", index=0).reply(queries)
    assert replies[0].value[0] == INF
    assert not np.isfinite(replies[0].hessian).all()
    assert fault(queries, replies) is None


def test_widths_agree_within_a_message_and_with_what_is_known():
    both = [QUERIES["describe"], QUERIES["moments"]]
    other = REPLIES["moments"]._replace(**{name: np.zeros(3) for name in PAIRS})
    assert fault(both, (REPLIES["describe"], other)) == "Moments: mean has shape (3,); expected (4,)"
    assert fault([QUERIES["moments"]], (other,)) is None
    assert fault([QUERIES["moments"]], (other,), width=4) is not None
    assert fault([QUERIES["describe"]], (REPLIES["describe"],), width=9) == "Describe: width is 4; it was 9"


def test_weights_of_rows_where_there_are_some():
    A, y = table("words")[0]
    weights = np.linspace(0.0, 1.1, len(y))
    site = Site(A, y, name="a", index=0, row_weights=weights)
    queries = [Describe(classes=True), HeldOut(replace(OBJECTIVE, loss=cf.losses.Logistic(), classes=np.array(["ill", "well"])),
                                              SiteFold(-1, held_out=False), X)]  # fmt: skip
    replies = site.reply(queries)
    assert fault(queries, replies, weighted=True) is None
    assert "without row weights" in str(fault(queries, replies))


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        (None, "a NoneType to 1 queries"),
        ([Refusal("no")], "a list to 1 queries"),
        ((), "0 replies to 1 queries"),
        ((Refusal("a"), Refusal("b")), "2 replies"),
        ((Refusal("a" * 1001),), "at most 1000 characters"),
        ((Refusal(3),), "at most 1000 characters"),  # pyright: ignore[reportArgumentType]
        ((REPLIES["moments"],), "the reply to Describe is a Moments.Reply"),
        ((None,), "the reply to Describe is a NoneType"),
        (("words",), "the reply to Describe is a str"),
    ],
)
def test_replies_of_another_kind(replies, words):
    wrong = fault([Describe()], replies)
    assert wrong is not None
    assert words in wrong


def test_a_refusal_is_a_reply():
    assert fault([Describe()], (Refusal("a" * 1000),)) is None
    words = Site(np.ones((2, 1)), np.array(["a", "b"]), name="x" * 5000, index=0)  # its name is in its refusals
    for query in (Describe(), Evaluate(OBJECTIVE, X)):
        (reply,) = words.reply([query])
        assert isinstance(reply, Refusal)
        assert fault([query], (reply,)) is None


class Trap(tuple):
    """Raises wherever it is touched."""

    def __len__(self):
        raise MemoryError


def test_a_check_that_fails_is_a_fault():
    class Odd(np.ndarray):
        @property
        def shape(self):  # pyright: ignore
            raise RuntimeError("no shape")

    reply = REPLIES["moments"]._replace(mean_low=np.zeros(4).view(Odd))
    assert fault([Moments()], (reply,)) == "the reply cannot be checked: RuntimeError"
    assert fault([Moments()], Trap()) == "a Trap to 1 queries"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_replies_of_every_algorithm_are_checked_by_shape(name):
    """What a round of each sends back passes; with one number more it does not."""
    rows = table("numbers")[:1]
    method = ALGORITHMS[name].from_bounds(Bounds(L=1.0, L_max=2.0, mu=0.1, tau=2, d=D), 1.0)
    g = cf.regularisers.L1(0.1) if method.composite else cf.regularisers.Zero()
    run_spec = replace(RUN, algorithm=method, regulariser=g)
    spec = FederatedProblem(
        objective=OBJECTIVE,
        regulariser=g,
        weights=np.ones(1),
        names=("site0",),
        numbers=(0,),
        sizes=np.array([12]),
        width=D,
    )
    loop = ServerLoop(run_spec, spec)
    query: Any = next(loop.round())[0].queries[0]  # pyright: ignore[reportIndexIssue]  # its first request
    (reply,) = sites_of(rows, QueryLimits())[0].reply([query])
    assert not isinstance(reply, Refusal), reply
    assert fault([query], (reply,)) is None
    for key, array in reply.u.items():
        longer = reply._replace(u={**reply.u, key: np.zeros((*array.shape, 1), array.dtype)})
        assert "has shape" in str(fault([query], (longer,)))


# --- enrolments that are wrong in one place ---

ENROLLED = Site(*table("words")[0], name="a", index=0, columns=["age", "bmi", "bp", "sex"]).enrol()


@pytest.mark.parametrize("kind", ["numbers", "words", "three", "counts", "two"])
def test_honest_enrolments_have_no_fault(kind):
    for A, y in table(kind):
        for policy in (None, DisclosurePolicy(min_rows=2, min_level_rows=1, max_hessian_share=0)):
            site = Site(A, y, name="a", index=0, policy=policy)
            assert enrolment_fault(site.enrol()) is None


EVIL = "\x1b[2J"
WRONG_ENROLMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "no rows": ({"rows": 0}, "rows is 0; expected a whole number from 1"),
    "rows below 0": ({"rows": -3}, "rows is -3"),
    "half a row": ({"rows": 2.5}, "rows is 2.5"),
    "many rows": ({"rows": 2**62}, "rows is "),
    "true rows": ({"rows": True}, "rows is True"),
    "weight": ({"weight": np.nan}, "weight is nan; expected a finite number"),
    "weight below 0": ({"weight": -1.0}, "weight is -1.0"),
    "infinite weight": ({"weight": np.inf}, "weight is inf"),
    "whole weight": ({"weight": 12}, "weight is 12"),
    "width": ({"width": 5}, "it names 4 columns; its width is 5"),
    "wide": ({"width": 2**40, "columns": None}, "width is "),
    "width below 0": ({"width": -1, "columns": None}, "width is -1"),
    "a column twice": ({"columns": ("a", "a", "b", "c")}, "it names a column twice"),
    "a column for a screen": ({"columns": (EVIL, "a", "b", "c")}, "a column is named"),
    "a list of columns": ({"columns": ["a", "b", "c", "d"]}, "it names a list of columns; its width is 4"),
    "kind of labels": ({"label_kind": "V"}, "label_kind is not a letter"),
    "two letters": ({"label_kind": "bi"}, "label_kind is not a letter"),
    "shape of labels": ({"label_shape": (2, 2)}, "label_shape is not that of one label per row"),
    "a list of shapes": ({"label_shape": [2]}, "label_shape is not that of one label per row"),
    "outcomes": ({"label_shape": (0,)}, "outcomes is 0"),
    "many outcomes": ({"label_shape": (2**40,)}, "outcomes is "),
    "unsorted": ({"classes": np.array(["b", "a"])}, "classes must be sorted, each once"),
    "a class twice": ({"classes": np.array([1.0, 1.0])}, "classes must be sorted, each once"),
    "continuous": ({"classes": np.array([0.5, 1.0])}, "classes that are numbers must be whole"),
    "nan": ({"classes": np.array([1.0, np.nan])}, "classes that are numbers must be whole"),
    "objects": ({"classes": np.array(["a", 1], object)}, "classes must be a list of words or numbers"),
    "a table of classes": ({"classes": np.zeros((2, 2))}, "classes must be a list of words or numbers"),
    "a class for a screen": ({"classes": np.array([EVIL])}, "a class is named"),
    "many classes": ({"classes": np.arange(10**6)}, "it lists 1000000 classes"),
    "reason": ({"no_classes": EVIL}, "no_classes is not a text"),
    "long reason": ({"no_classes": "x" * 10**6}, "no_classes is not a text"),
    "table": ({"table": None}, "table is not a text"),
    "version": ({"version": EVIL}, "version is not a text"),
    "bits of another type": ({"column_bits": np.zeros(4)}, "column_bits is of float64; expected int32"),
    "bits of other columns": ({"column_bits": np.zeros(3, np.int32)}, r"column_bits has shape \(3,\); expected \(4,\)"),
    "a list of bits": ({"column_bits": (16,) * 4}, "column_bits is not an array"),
    "bits": ({"column_bits": np.full(4, 2**20, np.int32)}, "column_bits has numbers beyond"),
    "the least bits": ({"column_bits": np.full(4, -(2**31), np.int32)}, "column_bits has numbers beyond"),
    "label bits": ({"label_bits": 2**20}, "label_bits is "),
    "label bits as a number": ({"label_bits": 1.0}, "label_bits is 1.0"),
    "min_rows": ({"min_rows": 0}, "min_rows is 0"),
    "buckets": ({"buckets": 0}, "buckets is 0"),
    "share": ({"max_hessian_share": -0.1}, "max_hessian_share is -0.1; expected a number >= 0"),
    "no share": ({"max_hessian_share": np.nan}, "max_hessian_share is nan"),
    "masks": ({"secure_sum": 1}, "secure_sum is 1; expected true or false"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ENROLMENTS)
def test_each_wrong_field_of_an_enrolment_is_named(name):
    fields, message = WRONG_ENROLMENTS[name]
    assert enrolment_fault(ENROLLED) is None
    found = enrolment_fault(replace(ENROLLED, **fields))
    assert found is not None
    assert re.search(message, found), found
    assert "\x1b" not in found
    assert len(found) < 500


def test_what_is_no_enrolment_is_named():
    class Other(Enrolment):
        pass

    other = Other(**{field.name: getattr(ENROLLED, field.name) for field in dataclass_fields(Enrolment)})
    for value in (None, {}, (), Moments.Reply(2.0, *np.zeros((4, 2))), Refusal("no"), other):
        assert enrolment_fault(value) == "it is not an enrolment"


def test_a_site_whose_numbers_dwarf_all_others_is_named():
    """Its units would round the gradients of all other sites to zero, and a null model would be certified."""
    honest = [site.enrol() for site in InProcess(cf.data.bundled.diabetes().federation()).sites[:3]]
    Agreement(("a", "b", "c"), tuple(honest)).check_encoded()
    for change in ({"label_bits": 256}, {"column_bits": honest[1].column_bits + 96}):
        with pytest.raises(cf.InputError, match="site 'b' has numbers over 2\\*\\*64 times those of all other sites"):
            Agreement(("a", "b", "c"), (honest[0], replace(honest[1], **change), honest[2])).check_encoded()
