"""Checks of what arrives: honest fits pass, to the last bit; each field of an enrolment that is wrong is named."""

from __future__ import annotations

import re
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from federation.wired import replies, sites_of, table, wired
from scipy.sparse import csr_matrix

import compfed as cf
from compfed.algorithms import ALGORITHMS
from compfed.algorithms.base import Bounds
from compfed.federation import (
    Describe,
    DisclosurePolicy,
    Evaluate,
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
    SiteRefusal,
    Tabulate,
    ask,
    exact_sum,
)
from compfed.federation.adding import ALWAYS_THERE, Exactly, MessageLayout, encode
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.limits import MAX_REASON
from compfed.federation.query import Weighted
from compfed.federation.server.arrivals import check_totals, enrolment_fault, words_fault
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.site import answers
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
    """`Wired` asserts that no words are at fault, and its sites have the limits of a network."""
    rows = table(kind)
    federation = wired(rows)
    coef = model.fit_federation(federation).coef_.copy()
    np.testing.assert_array_equal(coef, model.fit_federation(InProcess(sites_of(rows), exact=True)).coef_)
    assert len(federation.sent) > 4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", ["FISTA", "CompressedDecoupledProx", "ProximalNewton"])
def test_honest_methods_pass_in_both_precisions(name, dtype):
    sites = cf.data.synthetic(clients=2, samples=16, features=4, seed=0)
    problem = cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites, dtype=dtype)
    rows = list(zip(sites.features, sites.labels, strict=True))
    there, here = (
        cf.solve_federated(problem, name, tol=1e-2, max_rounds=12, federation=f)
        for f in (wired(rows), InProcess(sites, exact=True))
    )
    np.testing.assert_array_equal(there.x, here.x)


def test_honest_sparse_sites_and_other_dtypes_have_the_same_sums():
    """The rows are whole numbers or doubles of single precision: every way to store them has the sums of doubles."""
    scaled = ObjectiveSpec(cf.losses.Squared(), SCALING)
    for A, y in table("three"):
        for of_numbers in (A.astype(np.float32), np.rint(A).astype(int)):
            for labels in (y, y.astype(np.int8), y.astype(float), y > 0, y.astype(str)):
                queries: list[Any] = [Describe(classes=True), Moments()]
                queries += [Tabulate(("0", "3"), (np.array([0.0, 1.0]), np.empty(0)), ("label",), (("0", "2"),))]
                queries += [Lipschitz(scaled), Evaluate(scaled, X)] if labels.dtype.kind != "U" else []
                expected = all_sums(of_numbers.astype(float), labels, queries)
                for features in (of_numbers, csr_matrix(of_numbers)):
                    for one, other in zip(all_sums(features, labels, queries), expected, strict=True):
                        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def all_sums(features: Any, labels: np.ndarray, queries: list[Any]) -> list[np.ndarray]:
    """The fields of the contributions of a site, each in the shape of its layout, as exact sums carry them."""
    site = Site(Rows(features, labels, name="a", index=0))
    agreement = InProcess([site], exact=True).messages.agreement
    asked = [Weighted(query, "rows") for query in queries]
    given: Any = site.contributions(asked, agreement)
    assert not any(isinstance(part, Refusal) for part in given)
    words = Exactly().encode(asked, given, agreement)
    assert words_fault(words, exact_sum.FRAME + sum(weighted.layout(agreement).words for weighted in asked)) is None
    # digits are the fourth power of L, which is among the others
    found = zip(asked, given, strict=True)
    return [
        part[name] for weighted, part in found for name, field in weighted.layout(agreement).items() if not field.digits
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_updates_of_every_algorithm_are_checked_by_shape(name):
    """What a round of each adds has the shapes of its layout; with one number more it is no contribution."""
    method = ALGORITHMS[name].from_bounds(Bounds(L=1.0, L_max=2.0, mu=0.1, tau=2, d=5), 1.0)
    g = cf.regularisers.L1(0.1) if method.composite else cf.regularisers.Zero()
    spec = FederatedProblem(
        objective=SQUARED,
        regulariser=g,
        weights=np.ones(1),
        names=("site0",),
        numbers=(0,),
        sizes=np.array([12]),
        width=5,
    )
    query: Any = next(ServerLoop(replace(RUN, algorithm=method, regulariser=g), spec).round())[0].queries[0]  # pyright: ignore[reportIndexIssue]
    (site,) = sites_of(table("numbers")[:1], QueryLimits())
    weighted, agreement = Weighted(query, "rows"), InProcess([site], exact=True).messages.agreement
    (given,) = site.contributions([weighted], agreement)
    assert not isinstance(given, Refusal), given
    assert {key: value.shape for key, value in given.items()} == {
        key: field.shape for key, field in weighted.layout(agreement).items()
    }
    assert np.isfinite(np.concatenate([value.ravel() for value in given.values()])).all()
    for key in (key for key in given if key.startswith("u.")):
        longer = {**given, key: np.zeros((*given[key].shape, 1))}
        with pytest.raises(cf.InputError, match=f"it computed a field {re.escape(key)} of shape"):
            Exactly().encode([weighted], [longer], agreement)


# --- what a site refuses to add: numbers that are not finite would be noise in the sum ---

SCALING = FeatureScaling(np.zeros(4), np.ones(4), intercept=True)
FOLD = Fold(0, 3, 7, np.array([0, 12, 27]), by_class=False, held_out=True)
SQUARED, X = ObjectiveSpec(cf.losses.Squared(), SCALING), np.array([[0.3, -1.0, 0.2, 0.0, 1.0], [0.0] * 5])
LOGISTIC = ObjectiveSpec(cf.losses.Logistic(), SCALING, classes=np.array(["ill", "well"]))
RUN = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), SQUARED, np.zeros(5), 0, None, 40)
REFUSED: dict[str, tuple[str, Any]] = {  # the whole reply
    "labels": ("numbers", Describe()),
    "classes": ("words", Describe(classes=True)),
    "moments": ("numbers", Moments()),
    "Lipschitz": ("numbers", Lipschitz(SQUARED)),
    "score": ("words", Score(LOGISTIC, X[0], np.array([[-1.0, 0.5]]), np.empty(0), np.empty((0, 2)))),
}
HIDDEN: dict[str, tuple[str, Any, str]] = {  # one model, with a flag
    "evaluate": ("numbers", Evaluate(SQUARED, X, np.arange(2)), "infinite"),
    "held out": ("numbers", HeldOut(SQUARED, SiteFold(0, held_out=True), X), "infinite"),
    "left out": ("numbers", LeaveOneOut(SQUARED, X, np.array([4]), np.array([[9e4], [1e5]])), "infinite"),
    "products": ("numbers", Inference(SQUARED, X[0], np.arange(2)), "infinite"),
    "round": ("numbers", LocalUpdate(RUN, 0, 0, {"y": np.zeros(5)}), "not_finite"),
}
# or bounds, tested by their own
NOT_SUMS = (
    "classes",
    "counts",
    "finite",
    "low",
    "high",
    "confusion_low",
    "confusion_high",
)


def with_number(value: Any, number: float) -> Any:
    """A reply's value with its last number replaced; None where it has none."""
    if isinstance(value, float):
        return number
    if isinstance(value, dict):
        return {name: with_number(array, number) for name, array in value.items()}
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return None
    changed = value.copy()
    changed.reshape(-1)[-1] = number
    return changed


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", [*REFUSED, *HIDDEN])
def test_numbers_that_are_not_finite_do_not_enter_a_sum(name, number):
    kind, query = (REFUSED | {key: value[:2] for key, value in HIDDEN.items()})[name]
    (site,) = sites_of(table(kind)[:1])
    (reply,), agreement = replies(site, query), InProcess([site], exact=True).messages.agreement
    tried = 0
    for field, value in reply._asdict().items():
        if field in NOT_SUMS or (changed := with_number(value, number)) is None:
            continue
        tried += 1
        wrong = reply._replace(**{field: changed})
        broken = name == "evaluate" and field == "gradient" and np.isnan(number)
        if name in HIDDEN and field != "weight" and not broken:
            given = query.contribution(wrong, 12.0, agreement)
            assert np.isnan(given[HIDDEN[name][2]]).any(), field
            assert all(np.isfinite(v).all() or np.isnan(v).any() for v in given.values())  # hidden, not infinite
        elif name == "score" and field in ("loss", "saturated", "moments"):
            assert np.isnan(query.contribution(wrong, 12.0, agreement)["infinite"])
        else:
            with pytest.raises(cf.InputError, match=r"not finite|no finite curvature"):
                query.contribution(wrong, 12.0, agreement)
    assert tried


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", [Describe, Moments, Lipschitz])
def test_a_site_whose_numbers_are_not_finite_says_so_and_adds_nothing(kind, exact, monkeypatch):
    """Whichever way sums are added: a broken computation at a site ends the query with its name."""
    federation = InProcess(sites_of(table("numbers", sites=3)), exact=exact)
    query, honest = (Lipschitz(SQUARED) if kind is Lipschitz else kind()), answers.ANSWERS[kind]
    field = {Describe: "label_mean", Moments: "square", Lipschitz: "L"}[kind]

    def broken(query: Any, message: answers.Answers) -> Any:
        reply: Any = honest(query, message)
        wrong = with_number(getattr(reply, field), np.inf)
        return reply._replace(**{field: wrong}) if message.site.name == "site1" else reply

    monkeypatch.setitem(answers.ANSWERS, kind, broken)
    reason = (
        "its loss has no finite curvature"
        if kind is Lipschitz
        else f"reply to {kind.__name__} whose {field} is not finite"
    )
    with pytest.raises(SiteRefusal, match=f"^site 'site1': .*{reason}"):
        ask(federation, query)


def test_a_gradient_that_is_nan_beside_an_ordinary_loss_is_no_model_far_out():
    """A broken installation: hidden as a number that overflowed, it would only slow a fit down."""
    query, agreement = (
        Evaluate(SQUARED, np.zeros((2, 4))),
        InProcess(sites_of(table("numbers", sites=3))).messages.agreement,
    )
    good = Evaluate.Reply(np.array([1.0, np.inf]), np.array([[1.0] * 4, [np.nan] * 4]), np.array([1.0, np.nan]))
    far_out = query.contribution(good, 1.0, agreement)["infinite"]
    assert np.isnan(far_out).tolist() == [False, True]
    with pytest.raises(cf.InputError, match="reply to Evaluate whose gradient is not finite"):
        query.contribution(good._replace(gradient=np.full((2, 4), np.nan)), 1.0, agreement)


def test_a_refusal_fits_into_a_message():
    """A site names itself in its refusals, however long its name is."""
    words = Site(Rows(np.ones((2, 1)), np.array(["a", "b"]), name="x" * 5000, index=0))
    for query in (Describe(), Evaluate(SQUARED, X)):
        (reply,) = replies(words, query)
        assert isinstance(reply, Refusal)
        assert 0 < len(reply.reason) <= MAX_REASON


# --- what a server checks: words, and the totals that they give ---


def test_words_of_another_kind_or_number_are_at_fault():
    words = np.zeros((7, 2), np.uint64)
    assert words_fault(words, 7) is None
    for wrong in (None, [[0, 0]] * 7, words[:-1], words.astype(np.int64), words.ravel(), words.astype(float)):
        assert words_fault(wrong, 7) == "it is not an array of 7 words of 128 bits"


def totals_of(federation: InProcess, weighted: Weighted) -> dict[str, np.ndarray]:
    """The total of every field, by NumPy."""
    agreement = federation.messages.agreement
    parts: Any = [site.contributions([weighted], agreement)[0] for site in federation.sites]
    return {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}


WRONG_TOTALS: dict[str, tuple[str, Any, str, Any, str]] = {  # query, weighting, field, what is added to it, the fault
    "factor below 0": ("evaluate", "rows", "factor", -100.0, "the sum of the field factor is below 0"),
    "factor of other rows": ("evaluate", "rows", "factor", 1.0, "the weight of all rows is not that of the enrolments"),
    "factor of fewer rows": (
        "evaluate",
        "rows",
        "factor",
        -1.0,
        "the weight of all rows is not that of the enrolments",
    ),
    "more than all rows": ("fold", "rows", "factor", 40.0, "rows weigh more than the enrolments say"),
    "weight of other rows": ("describe", "once", "weight", 0.5, "the weight of all rows is not that of the enrolments"),
    "held out": ("held out", "once", "weight", 100.0, "rows weigh more than the enrolments say"),
    "rows below 0": ("describe", "once", "rows", -100.0, "the sum of the field rows is below 0"),
    "half a site": ("describe", "once", "sites", -0.5, "the field sites does not count sites"),
    "a site too many": ("held out", "once", "sites", 1.0, "the field sites does not count sites"),
    "a class below 0": (
        "classes",
        "rows",
        "class_weights",
        [-50.0, 50.0],
        "the sum of the field class_weights is below 0",
    ),
    "counts of scores": ("score", "once", "low", -100.0, "the sum of the field low is below 0"),
}
ASKED: dict[str, tuple[str, Any]] = {
    "describe": ("numbers", Describe()),
    "classes": ("words", Describe(classes=True)),
    "evaluate": ("numbers", Evaluate(SQUARED, X)),
    "fold": ("numbers", Evaluate(replace(SQUARED, subset=FOLD), X)),
    "held out": ("numbers", HeldOut(SQUARED, FOLD, X)),
    "score": REFUSED["score"],
}


@pytest.mark.parametrize("name", WRONG_TOTALS)
def test_totals_that_honest_sites_cannot_give_are_refused(name):
    asked, weighting, field, more, fault = WRONG_TOTALS[name]
    kind, query = ASKED[asked]
    federation = InProcess(sites_of(table(kind, sites=3)), exact=True)
    weighted, enrolments = Weighted(query, weighting), federation.enrolments
    totals = totals_of(federation, weighted)
    check_totals(weighted, totals, enrolments, ALWAYS_THERE)  # honest ones pass
    wrong = {**totals, field: totals[field] + np.asarray(more)}
    with pytest.raises(cf.InputError, match=f"^{type(query).__name__}: {fault}"):
        check_totals(weighted, wrong, enrolments, ALWAYS_THERE)
    # the same over words: whoever sent them is not known, and the run ends
    adder, agreement = Exactly(), federation.messages.agreement
    parts = {
        i: adder.encode([weighted], site.contributions([weighted], agreement), agreement)
        for i, site in enumerate(federation.sites)
    }
    adder.sums([weighted], [range(3)], parts, agreement)
    message, extra = (
        MessageLayout([weighted], agreement),
        {key: np.zeros(f.shape) for key, f in weighted.layout(agreement).items()},
    )
    extra |= {f"{key}_low": np.zeros(f.shape) for key, f in weighted.layout(agreement).items() if f.pair}
    change, _ = encode(message, [{**extra, field: np.broadcast_to(more, extra[field].shape)}])
    parts[0] = np.concatenate([parts[0][: exact_sum.FRAME], exact_sum.add(parts[0][exact_sum.FRAME :], change)])
    with pytest.raises(cf.InputError, match=fault):
        adder.sums([weighted], [range(3)], parts, agreement)


def test_a_field_that_is_noise_is_not_checked():
    """Where a model is hidden its numbers mean nothing, and the server asks again: only what is always there is checked."""
    federation = InProcess(sites_of(table("words", sites=3)), exact=True)
    weighted = Weighted(REFUSED["score"][1], "once")
    totals = totals_of(federation, weighted)
    noise = {**totals, "low": totals["low"] - 1e6, "outside": np.array(np.nan)}
    check_totals(weighted, noise, federation.enrolments, ALWAYS_THERE)
    with pytest.raises(cf.InputError, match="the weight of all rows is not that of the enrolments"):
        check_totals(weighted, {**noise, "weight": totals["weight"] + 1}, federation.enrolments, ALWAYS_THERE)


# --- enrolments that are wrong in one place ---

ENROLLED = Site(Rows(*table("words")[0], name="a", index=0, columns=["age", "bmi", "bp", "sex"])).enrol()


@pytest.mark.parametrize("kind", ["numbers", "words", "three", "counts", "two"])
def test_honest_enrolments_have_no_fault(kind):
    for A, y in table(kind):
        for policy in (None, DisclosurePolicy(min_rows=2, min_level_rows=1, max_hessian_share=0)):
            site = Site(Rows(A, y, name="a", index=0), policy=policy)
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
    "part of a row": ({"weight": 11.5}, "without row weights it is a number of rows"),
    "weight of other rows": ({"weight": 13.0}, "weight is 13 for 12 rows; over a network it is their number"),
    "no weight": ({"weighted": True, "weight": 0.0}, "weight is 0; expected a number > 0"),
    "weights": ({"weighted": 1}, "weighted is 1; expected true or false"),
    "offsets": ({"offset": None}, "offset is None; expected true or false"),
    "agreed": ({"agreed": "yes"}, "agreed is 'yes'; expected true or false"),
    "varies": ({"varies": np.ones(3, bool)}, "varies has not one entry for every column"),
    "varies of another type": ({"varies": np.ones(4)}, "varies is of float64; expected bool"),
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
    assert Agreement(("a", "b", "c"), tuple(honest)).exact_problem == ""
    for change in ({"label_bits": 256}, {"column_bits": honest[1].column_bits + 96}):
        wrong = Agreement(("a", "b", "c"), (honest[0], replace(honest[1], **change), honest[2]))
        assert "site 'b' has numbers over 2**64 times those of all other sites" in wrong.exact_problem
