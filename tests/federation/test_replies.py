"""Checks of replies: honest ones pass, to the last bit of a fit; each field that is wrong is named."""

from __future__ import annotations

import re
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
    describe,
)
from compfed.federation.server.replies import fault
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.spec import FeatureScaling, FederatedProblem, Fold, ObjectiveSpec, RunSpec, SiteFold

FITS: list[tuple[str, Any]] = [
    ("numbers", cf.FederatedLasso(0.1)),
    ("numbers", cf.FederatedHuber(alpha=0.1)),
    ("numbers", cf.FederatedLassoCV(cv=3, n_alphas=3)),
    ("numbers", cf.FederatedLassoCV(cv="leave-one-site-out", n_alphas=3)),
    ("words", cf.FederatedLogisticRegressionCV(n_alphas=3, eps=0.3, cv=3, tol=1e-6)),
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
                    *([Describe(detail=True)] if labels.dtype.kind != "U" else []),
                    Moments(),
                    *([Lipschitz(VIEW), ValueAndGradient(VIEW, X)] if labels.dtype.kind != "U" else []),
                ]
                answers = site.answer(queries)
                assert not any(isinstance(answer, Refusal) for answer in answers)
                assert fault(queries, answers) is None
    assert "site1" in str(describe(wired(table("numbers"))))


def test_sites_that_do_not_fit_together_are_named():
    (A, y), (B, z) = table("numbers")
    with pytest.raises(
        cf.InputError, match=r"site 'site1' has 3 columns and 1 label\(s\) per row; site 'site0' has 4 and 1"
    ):
        describe(wired([(A, y), (B[:, :3], z)]))
    with pytest.raises(cf.InputError, match=r"site 'site1' has 4 columns and 2 label\(s\)"):
        describe(wired([(A, y), (B, np.c_[z, z])]))


# --- replies that are wrong in one place ---

D = 5
VIEW = ObjectiveSpec(cf.losses.Squared(), FeatureScaling(np.zeros(4), np.ones(4), intercept=True))
X = np.array([[0.0, 1.0, 0.5, -1.0, 2.0], [1.0] * 5])
FOLD = Fold(0, 3, 7, np.array([0, 12]), by_class=False, held_out=True)
JOB = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.L1(0.1), VIEW, np.zeros(D), 0, None, 20)
QUERIES: dict[str, Any] = {
    "describe": Describe(),
    "part": Describe(subset=FOLD),
    "classes": Describe(classes=True),
    "facts": Describe(detail=True),
    "moments": Moments(),
    "steepness": Lipschitz(VIEW),
    "gradient": ValueAndGradient(VIEW, X, np.ones((2, 4))),
    "plain": ValueAndGradient(VIEW, X),
    "curvature": Curvature(VIEW, X[0], np.arange(3)),
    "held out": HeldOut(VIEW, FOLD, X),
    "round": Round(JOB, 0, 0, {"y": np.zeros(D)}),
    "result": Result(replace(JOB, algorithm=cf.algorithms.DecoupledProx(eta=0.1)), 0, {"x": np.zeros(D)}),
}


def honest(name: str) -> Any:
    """The reply of a site to a query."""
    query = QUERIES[name]
    rows = table("words" if name == "classes" else "numbers")[0]
    if name == "facts":
        rows = (rows[0], np.arange(len(rows[0])) % 3)
    columns = ["age", "bmi", "bp", "sex"] if name == "describe" else None
    site = Site(*rows, name="a", index=0, columns=columns)
    if name == "result":
        site.answer([Round(query.run_spec, 0, 0, {"x": np.zeros(D)})])
    (answer,) = site.answer([query])
    assert not isinstance(answer, Refusal), answer
    return answer


REPLIES = {name: honest(name) for name in QUERIES}


@pytest.mark.parametrize("name", QUERIES)
def test_honest_replies_have_no_fault(name):
    assert fault([QUERIES[name]], (REPLIES[name],)) is None


def put(array: np.ndarray, value: float, at: Any = 0) -> np.ndarray:
    array = np.array(array)
    array[at] = value
    return array


NAN, INF = float("nan"), float("inf")
R = REPLIES
WRONG: list[tuple[str, dict[str, Any], str]] = [
    # counts and weights
    *[("describe", {"rows": v}, "rows is") for v in (0, -1, 2**48, 12.0, True, None, "12", np.zeros(3))],
    ("part", {"rows": -1}, "rows is -1"),
    *[("describe", {"weight": v}, "weight is") for v in (0.0, 1e308, 13.0, -12.0, NAN, INF, 12, None, 11.5)],
    ("part", {"weight": 5.0}, "weight is 5 for"),
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
    # facts
    ("describe", {"facts": R["facts"].facts}, "facts are there without being asked for"),
    ("facts", {"facts": None}, "facts are there without being asked for, or missing"),
    ("facts", {"facts": {"rows": 12}}, "facts are none"),
    *[("facts", {"facts": R["facts"].facts._replace(**change)}, words) for change, words in (
        ({"rows": 11}, "facts are about 11 rows"), ({"rows": 2.0}, "facts.rows is 2.0"),
        ({"mean": np.zeros(3)}, "facts.mean has shape"), ({"mean": np.full(4, NAN)}, "facts.mean has 4 number"),
        ({"mean": np.zeros(4, int)}, "facts.mean is of int64"), ({"square": np.full(4, -1.0)}, "facts.square has numbers below 0"),
        ({"square": np.full(4, INF)}, "facts.square has 4"), ({"varies": np.ones(4)}, "facts.varies is of float64"),
        ({"varies": np.ones(3, bool)}, "facts.varies has shape"), ({"classes": np.arange(21)}, "at most 20"),
        ({"classes": np.zeros((1, 3))}, "must be a list"), ({"classes": np.array(["a", "b", "c"])}, "must be a list"),
        ({"counts": np.array([4, 4, 5])}, "do not add up to 12 rows"), ({"counts": np.array([13, -1, 0])}, "do not add up"),
        ({"counts": np.full(3, 4.0)}, "facts.counts is of float64"), ({"counts": np.array([2**62] * 3)}, "do not add up"),
        ({"label_mean": np.array([NAN])}, "facts.label_mean"), ({"label_mean": np.zeros(2)}, "facts.label_square has shape"),
        ({"label_square": np.array([-1.0])}, "below 0"), ({"label_square": "junk"}, "is no array"),
    )],
    # moments
    *[("moments", {name: put(getattr(R["moments"], name), v)}, f"{name} has 1 number") for name in ("mean", "rest", "square")
      for v in (NAN, INF, -INF)],
    ("moments", {"square": put(R["moments"].square, -1e-9)}, "square has numbers below 0"),
    ("moments", {"mean": np.zeros(5)}, r"rest has shape \(4,\); expected \(5,\)"),
    ("moments", {"mean": np.zeros((2, 2))}, "one number per column"),
    ("moments", {"mean": np.zeros(4, np.float32)}, "mean is of float32; expected float64"),
    ("moments", {"rest": np.zeros(4, int)}, "rest is of int64"),
    ("moments", {"square": None}, "square is no array"),
    # Lipschitz constants
    *[("steepness", {"L": v}, "L is") for v in (NAN, INF, -INF, -1.0, 3, None, "2", np.float64(2) * np.ones(1))],
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
    # curvature
    *[("curvature", {"triangle": put(R["curvature"].triangle, v)}, "triangle has 1 number") for v in (NAN, INF, -INF)],
    ("curvature", {"triangle": np.zeros(10**6)}, r"triangle has shape \(1000000,\); expected \(6,\)"),
    ("curvature", {"triangle": np.zeros((3, 3))}, "triangle has shape"),
    # held-out rows
    *[("held out", {"weight": v}, "weight is") for v in (NAN, INF, -1.0, 1e308, 0.5, 4)],
    *[("held out", {"loss": put(R["held out"].loss, v)}, "loss has numbers") for v in (NAN, -INF)],
    ("held out", {"loss": np.zeros(1)}, "loss has shape"),
    # rounds
    ("round", {"u": {}}, r"has the fields \[\]"),
    ("round", {"u": {"gradient": np.zeros(D), "more": np.zeros(1)}}, "has the fields"),
    ("round", {"u": {"gradient": np.zeros(D + 1)}}, "has shape"),
    ("round", {"u": {"gradient": np.zeros(D, np.float32)}}, "dtype float32"),
    ("round", {"u": {"gradient": 1.0}}, "no table of arrays"),
    ("round", {"u": (1,)}, "no table of arrays"),
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
    curved = R["curvature"]._replace(triangle=np.full(6, INF))
    both = [QUERIES["gradient"], QUERIES["curvature"]]  # of the same first model
    assert fault(both, (far, curved)) is None
    assert fault(both, (R["gradient"], curved)) == "Curvature: triangle has 6 number(s) that are NaN or infinite"
    elsewhere = replace(QUERIES["curvature"], x=X[1])
    assert fault([QUERIES["gradient"], elsewhere], (far, curved)) is not None
    held = R["held out"]._replace(loss=put(R["held out"].loss, INF))
    assert fault([QUERIES["held out"]], (held,)) is None


def test_an_honest_poisson_loss_that_overflows_passes():
    """exp(1000) is infinite: the honest reply says so, and its curvature is no number."""
    A, y = table("counts")[0]
    objective = ObjectiveSpec(cf.losses.Poisson(), FeatureScaling(np.zeros(4), np.ones(4), intercept=True))
    x = np.array([0.0, 0.0, 0.0, 0.0, 1000.0])
    queries = [ValueAndGradient(objective, x[None]), Curvature(objective, x, np.arange(D))]
    answers = Site(A, y, name="a", index=0).answer(queries)
    assert answers[0].value[0] == INF
    assert not np.isfinite(answers[1].triangle).all()
    assert fault(queries, answers) is None


def test_widths_agree_within_a_message_and_with_what_is_known():
    both = [QUERIES["describe"], QUERIES["moments"]]
    other = REPLIES["moments"]._replace(**{name: np.zeros(3) for name in ("mean", "rest", "square")})
    assert fault(both, (REPLIES["describe"], other)) == "Moments: mean has shape (3,); expected (4,)"
    assert fault([QUERIES["moments"]], (other,)) is None
    assert fault([QUERIES["moments"]], (other,), width=4) is not None
    assert fault([QUERIES["describe"]], (REPLIES["describe"],), width=9) == "Describe: width is 4; it was 9"


def test_weights_of_rows_where_there_are_some():
    A, y = table("words")[0]
    weights = np.linspace(0.0, 1.1, len(y))
    site = Site(A, y, name="a", index=0, row_weights=weights)
    queries = [Describe(classes=True), HeldOut(replace(VIEW, loss=cf.losses.Logistic(), classes=np.array(["ill", "well"])),
                                              SiteFold(-1, held_out=False), X)]  # fmt: skip
    answers = site.answer(queries)
    assert fault(queries, answers, weighted=True) is None
    assert "without row weights" in str(fault(queries, answers))


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (None, "a NoneType to 1 queries"),
        ([Refusal("no")], "a list to 1 queries"),
        ((), "0 replies to 1 queries"),
        ((Refusal("a"), Refusal("b")), "2 replies"),
        ((Refusal("a" * 1001),), "at most 1000 characters"),
        ((Refusal(3),), "at most 1000 characters"),  # pyright: ignore[reportArgumentType]
        ((REPLIES["moments"],), "Describe is answered with Moments.Answer"),
        ((None,), "Describe is answered with NoneType"),
        (("words",), "Describe is answered with str"),
    ],
)
def test_replies_of_another_kind(answers, words):
    wrong = fault([Describe()], answers)
    assert wrong is not None
    assert words in wrong


def test_a_refusal_is_a_reply():
    assert fault([Describe()], (Refusal("a" * 1000),)) is None
    words = Site(np.ones((2, 1)), np.array(["a", "b"]), name="x" * 5000, index=0)  # its name is in its refusals
    for query in (Describe(), ValueAndGradient(VIEW, X)):
        (answer,) = words.answer([query])
        assert isinstance(answer, Refusal)
        assert fault([query], (answer,)) is None


class Trap(tuple):
    """Raises wherever it is touched."""

    def __len__(self):
        raise MemoryError


def test_a_check_that_fails_is_a_fault():
    class Odd(np.ndarray):
        @property
        def shape(self):  # pyright: ignore
            raise RuntimeError("no shape")

    answer = REPLIES["moments"]._replace(rest=np.zeros(4).view(Odd))
    assert fault([Moments()], (answer,)) == "the reply cannot be checked: RuntimeError"
    assert fault([Moments()], Trap()) == "a Trap to 1 queries"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_replies_of_every_algorithm_are_checked_by_shape(name):
    """What a round of each sends back passes; with one number more it does not."""
    rows = table("numbers")[:1]
    method = ALGORITHMS[name].from_bounds(Bounds(L=1.0, L_max=2.0, mu=0.1, tau=2, d=D), 1.0)
    g = cf.regularisers.L1(0.1) if method.composite else cf.regularisers.Zero()
    run_spec = replace(JOB, algorithm=method, regulariser=g)
    spec = FederatedProblem(
        objective=VIEW, regulariser=g, weights=np.ones(1), names=("site0",), numbers=(0,), sizes=np.array([12]), width=D
    )
    loop = ServerLoop(run_spec, spec)
    query = Round(run_spec, 0, 0, loop._message(0))
    (answer,) = sites_of(rows, QueryLimits())[0].answer([query])
    assert not isinstance(answer, Refusal), answer
    assert fault([query], (answer,)) is None
    for key, array in answer.u.items():
        longer = answer._replace(u={**answer.u, key: np.zeros((*array.shape, 1), array.dtype)})
        assert "has shape" in str(fault([query], (longer,)))
