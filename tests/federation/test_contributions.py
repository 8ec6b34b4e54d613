"""Contributions of sites, added exactly: against `math.fsum`, fractions and float sums; in any order, masked or not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from federation.wired import Masked, replies, sites_of, table
from sklearn.exceptions import ConvergenceWarning

import compfed as cf
from compfed import estimators
from compfed._utils.validation import MAX_MAGNITUDE, MIN_MAGNITUDE
from compfed.algorithms import ALGORITHMS, default_steps
from compfed.federation import (
    Describe,
    Evaluate,
    HeldOut,
    Inference,
    InProcess,
    LeaveOneOut,
    Lipschitz,
    LocalUpdate,
    Moments,
    Rows,
    Score,
    Site,
)
from compfed.federation.adding import MessageLayout, encode
from compfed.federation.enrolment import Agreement
from compfed.federation.queries import AtRisk, FinishRound
from compfed.federation.queries.lipschitz import largest_lipschitz
from compfed.federation.query import Weighted, Weighting
from compfed.federation.server.program import Request, run_program
from compfed.federation.server.rounds import ServerLoop
from compfed.federation.spec import FeatureScaling, FederatedProblem, ObjectiveSpec, RunSpec
from compfed.splits import Fold, Holdout, SiteFold

N = 4
ROUNDS = 4


def reordered(sites: list[Site]) -> list[Site]:
    """The same sites in another order; folds and draws follow the number of a site."""
    return [sites[i] for i in (2, 0, 3, 1)]


def asked(federation: InProcess, *queries: Any, weighting: Weighting, weights: np.ndarray | None = None) -> Any:
    """The sums of queries in one message, and the number of messages."""

    def program() -> Any:
        (sums,) = yield [Request(queries, weights=weights, weighting=weighting)]
        return sums

    sums, cost = run_program(federation, program())
    return sums, cost.rounds


def numbers(thing: Any) -> Iterator[np.ndarray]:
    """All numbers of a sum."""
    if isinstance(thing, dict):
        thing = tuple(thing.values())
    if isinstance(thing, (tuple, list)):
        for value in thing:
            yield from numbers(value)
    elif thing is not None and np.asarray(thing).dtype.kind in "biuf":
        yield np.asarray(thing, float)


def bits(thing: Any) -> list[bytes]:
    return [array.tobytes() for array in numbers(thing)]


def assert_close(found: Any, expected: Any, rtol: float = 1e-13) -> None:
    for one, other in zip(numbers(found), numbers(expected), strict=True):
        size = np.max(np.abs(other), initial=0.0, where=np.isfinite(other))
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * size)


# --- every query ---

SCALING = FeatureScaling(np.array([0.5, 0.0, 3.0, 1.0]), np.array([1.0, 0.2, 9.0, 3.0]), intercept=True)
SQUARED = ObjectiveSpec(cf.losses.Squared(ridge=0.1), SCALING)
COX = ObjectiveSpec(cf.losses.CoxPartialLikelihood())
LOGISTIC = ObjectiveSpec(cf.losses.Logistic(), SCALING, classes=np.array(["ill", "well"]))
POISSON = ObjectiveSpec(cf.losses.Poisson(), SCALING)
RAW = ObjectiveSpec(cf.losses.Squared())
X = np.array([[0.3, -1.0, 0.2, 0.0, 1.0], [0.0, 2.0, 0.0, 1.0, -0.5], [0.0] * 5])
FAR = np.array([[1e4, 0.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.0, 0.0, 0.0]])  # of Poisson: infinite at some sites, and usual
FOLD = Fold(1, 3, 7, np.array([0, 12, 27, 45]), by_class=False, held_out=True)
SMALL = Fold(5, 16, 7, np.array([0, 12, 27, 45]), by_class=False, held_out=True)  # some sites have no row of it
TRIANGLES = np.array([[900.0, 7.0, -3.0, 500.0, 2.0, 700.0]] * 3) * [[1.0], [2.0], [5.0]]
QUERIES: dict[str, tuple[str, Any]] = {
    "labels": ("numbers", Describe()),
    "labels of a fold": ("numbers", Describe(subset=FOLD)),
    "labels of few": ("numbers", Describe(subset=SMALL)),
    "outcomes": ("two", Describe(subset=FOLD)),
    "classes": ("words", Describe(classes=True)),
    "classes of a fold": ("three", Describe(classes=True, subset=FOLD)),
    "moments": ("numbers", Moments()),
    "moments of a fold": ("numbers", Moments(FOLD)),
    "moments of few": ("numbers", Moments(SMALL)),
    "Lipschitz": ("numbers", Lipschitz(SQUARED)),
    "Lipschitz at x": ("counts", Lipschitz(POISSON, X[0])),
    "upper bound": ("numbers", Lipschitz(SQUARED, upper_bound=True)),
    "evaluate": ("numbers", Evaluate(SQUARED, X)),
    "raw": ("numbers", Evaluate(RAW, X[:, :4], np.array([2, 0]))),
    "float32": ("numbers", Evaluate(replace(RAW, dtype="float32"), X[:1, :4].astype(np.float32))),
    "Hessian": ("words", Evaluate(LOGISTIC, X, np.array([0, 3, 4]))),
    "dual": ("words", Evaluate(LOGISTIC, X[:1], dual=np.array([[0.0, 0.5, 0.1, 0.2]]))),
    "no conjugate": ("words", Evaluate(LOGISTIC, X[:1], dual=np.array([[0.9, 1.0, 0.0, 0.0]]))),
    "several outputs": ("two", Evaluate(ObjectiveSpec(cf.losses.MultiSquared(2), SCALING), np.ones((1, 10)), np.arange(4))),
    "infinite": ("counts", Evaluate(POISSON, FAR, np.array([1]))),
    "fold": ("numbers", Evaluate(replace(SQUARED, subset=replace(FOLD, held_out=False)), X)),
    "few rows": ("numbers", Evaluate(replace(SQUARED, subset=SMALL), X)),
    "one site less": ("numbers", Evaluate(replace(SQUARED, subset=SiteFold(1, held_out=False)), X)),
    "held out": ("words", HeldOut(LOGISTIC, FOLD, X)),
    "few held out": ("numbers", HeldOut(SQUARED, SMALL, X)),
    "share held out": ("numbers", HeldOut(SQUARED, Holdout(0.3, 1, by_class=False, held_out=True), X)),
    "infinite held out": ("counts", HeldOut(POISSON, FOLD, FAR)),
    "left out": ("words", LeaveOneOut(LOGISTIC, X, np.array([3, 0, 4]), TRIANGLES)),
    "left out, sites alike": ("numbers", LeaveOneOut(SQUARED, X, np.array([3, 0, 4]), TRIANGLES, equal_sites=True)),
    "left out of several outputs": ("two", LeaveOneOut(
        ObjectiveSpec(cf.losses.MultiSquared(2), SCALING), np.ones((3, 10)), np.array([1, 8, 2]), TRIANGLES
    )),
    "infinite left out": ("counts", LeaveOneOut(POISSON, FAR, np.array([2, 4]), np.array([[1e5, 0.0, 1e5], [1e9, 0.0, 1e9]]))),
    "products": ("words", Inference(LOGISTIC, X[0], np.array([0, 3, 4]))),
    "no products": ("counts", Inference(POISSON, X[0] / 10, np.empty(0, int))),
    "products of a sample": ("numbers", Inference(SQUARED, X[1], np.array([2, 0]), squared_weights=True)),
    "products of sites": ("numbers", Inference(SQUARED, X[1], np.array([2, 0]), clustered=True)),
    "products of a profile": ("counts", Inference(
        ObjectiveSpec(cf.losses.Poisson(), replace(SCALING, intercept=False), profile=True), X[0, :4] / 10, np.array([1, 3])
    )),
    "products with theta": ("counts", Inference(
        ObjectiveSpec(cf.losses.NegativeBinomialLikelihood(theta=2.0), SCALING), X[0] / 10, np.array([1, 4]), shape=True
    )),
    "products of three classes": ("three", Inference(
        ObjectiveSpec(cf.losses.Softmax(3), SCALING, np.arange(3.0)), np.arange(15.0) / 10, np.array([1, 2, 7])
    )),
    "at risk": ("survival", AtRisk(COX, np.array([0.1, 2.0, 0.0, 0.1]), np.arange(1.0, 9.0), pairs=True)),
    "matrices at risk": ("survival", AtRisk(COX, np.array([0.1, 2.0, 0.0, 0.1]), np.arange(1.0, 9.0), second=True)),
    "a partial likelihood": ("survival", Evaluate(COX, np.ones((2, 4)) * [0.1, 2.0, 0.0, 0.1], np.arange(3))),
    "score": ("words", Score(LOGISTIC, X[0], np.array([[-1.0, 0.0, 0.5]]), np.empty(0), np.array([[0.1, 2.0]]), FOLD)),
    "score of numbers": ("numbers", Score(SQUARED, X[1], np.empty((0, 0)), np.ones(1), np.empty((0, 2)))),
    "score of counts": ("counts", Score(POISSON, X[1] / 10, np.empty((0, 0)), np.ones(1), np.empty((0, 2)), SMALL)),
    "score of three classes": ("three", Score(
        ObjectiveSpec(cf.losses.Softmax(3), SCALING, np.arange(3.0)), np.arange(15.0) / 10, np.arange(6.0).reshape(3, 2),
        np.empty(0), np.empty((0, 2)),
    )),
}  # fmt: skip


def listed(kind: str, sample_weight: bool = False) -> list[Site]:
    found = []
    for i, (A, y) in enumerate(table(kind, sites=N)):
        weights = (
            np.random.default_rng(i).uniform(0.1, 3.0, len(y)) * (np.arange(len(y)) > i) if sample_weight else None
        )
        found.append(Site(Rows(A, y, name=f"site{i}", index=i, sample_weight=weights), limits=None))
    return found


def weights_of(sites: list[Site], query: Any, weighting: Weighting) -> np.ndarray | None:
    """p_i of the float sums."""
    if weighting == "once":
        return None
    subset = query.objective.subset if hasattr(query, "objective") and not isinstance(query, HeldOut) else None
    rows = np.array([site.rows.weights_of(subset).sum() for site in sites])
    w = rows if weighting == "rows" else (rows > 0).astype(float)
    return w / w.sum()


@pytest.mark.parametrize("sample_weight", [False, True])
@pytest.mark.parametrize("weighting", ["rows", "sites", "once"])
@pytest.mark.parametrize("name", QUERIES)
def test_every_query_has_the_float_sum(name, weighting, sample_weight):
    """To rounding that of `InDoubles`; to the bit the same in another order of the sites, and with masks."""
    kind, query = QUERIES[name]
    own = isinstance(query, (AtRisk, Describe, HeldOut, Score)) or (isinstance(query, Moments) and weighting != "sites")
    sites = listed(kind, sample_weight)
    weights = None if own else weights_of(sites, query, weighting)
    if isinstance(query, Moments):
        weighting = "sites" if weights is not None else "rows"
    plain: Any
    exact: Any
    ((plain,), _), ((exact,), messages) = (
        asked(InProcess(sites, exact=e), query, weighting=weighting, weights=weights) for e in (False, True)
    )
    if isinstance(query, Moments):  # only ratios of weights count
        plain, exact = (
            [np.add(*pair) / w for pair in (s.mean, s.square)] for s in (plain, exact) for w in [s.weight[0]]
        )
    if isinstance(query, Describe):  # of a subset, single sites are estimated
        assert exact.weight == pytest.approx(plain.weight, rel=1e-13)
        names = ("classes", "class_weights", "label_sum", "sites")
        np.testing.assert_array_equal(plain.classes.astype(str), exact.classes.astype(str))
        plain, exact = ([getattr(s, name) for name in names] for s in (plain, exact))
    if name.startswith("infinite"):  # a far model is infinite; the other one is usual
        values = exact.value if isinstance(query, Evaluate) else exact.loss
        assert values[0] == np.inf
        plain, exact = ([f[1:] for f in s if f is not None and np.ndim(f)] for s in (plain, exact))
    if isinstance(query, Lipschitz) and not query.upper_bound:  # exact sums bound the largest by a sum of fourth powers
        largest = [float(replies(s, query)[0].L) for s in sites]
        bound = largest_lipschitz(exact.counts)
        assert max(largest) <= bound <= 1.1 * len(largest) ** 0.25 * max(largest)
        plain, exact = (s._replace(counts=None) for s in (plain, exact))
    if name == "no conjugate":
        assert exact.conjugate[0] == np.inf
        plain, exact = (s._replace(conjugate=None) for s in (plain, exact))
    assert_close(exact, plain, 1e-6 if name == "float32" else 1e-13)
    assert messages == 1
    ((first,), _) = asked(InProcess(sites, exact=True), query, weighting=weighting)
    ((other,), _) = asked(Masked(sites), query, weighting=weighting)
    assert bits(first) == bits(other)
    for i, site in enumerate(again := reordered(listed(kind, sample_weight))):
        site.rows.index = i
    query = moved(query, [site.rows.number for site in again])
    ((other,), _) = asked(InProcess(again, exact=True), query, weighting=weighting)
    if isinstance(query, Describe):  # facts of single sites are in the order of the sites
        first, other = (s._replace(rows=np.sort(s.rows), weights=np.sort(s.weights)) for s in (first, other))
    assert bits(first) == bits(other)


def moved(query: Any, numbers: list[int]) -> Any:
    """The query for sites in another order: `first` of a fold, and the number of a site."""

    def of(subset: Any) -> Any:
        if isinstance(subset, Fold):
            return replace(subset, first=subset.first[numbers])
        return replace(subset, number=numbers.index(subset.number)) if isinstance(subset, SiteFold) else subset

    if hasattr(query, "subset"):
        query = replace(query, subset=of(query.subset))
    return (
        replace(query, objective=replace(query.objective, subset=of(query.objective.subset)))
        if hasattr(query, "objective")
        else query
    )


@pytest.mark.parametrize("name", ["evaluate", "Hessian", "raw", "fold", "several outputs"])
def test_sums_are_rounded_once(name):
    """sum_i w_i v_i / sum_i w_i with both sums rounded once: `math.fsum` of the parts of the sites."""
    kind, query = QUERIES[name]
    sites = listed(kind, sample_weight=True)
    ((exact,), _) = asked(InProcess(sites, exact=True), query, weighting="rows")
    w = [float(site.rows.weights_of(query.objective.subset).sum()) for site in sites]
    replies = [site.reply([query])[0] for site in sites]
    for field in ("value", "gradient", "terms", "hessian"):
        if (found := getattr(exact, field)) is None:
            continue
        parts = np.stack([weight * np.asarray(getattr(reply, field)) for weight, reply in zip(w, replies, strict=True)])
        expected = np.apply_along_axis(math.fsum, 0, parts) / math.fsum(w)
        np.testing.assert_array_equal(found, expected)


def test_cancelling_parts_are_added_exactly():
    """Gradients that cancel to 1e-17 of their size: a float sum has no digit of them, the exact one has all."""
    A = np.array([[1.0, 0.0], [0.0, 3.0], [0.0, 1.0], [0.0, 0.0]])
    labels = [np.array([1e17, 1.0, 2.0, 0.0]), np.array([0.75, 0.5, 1.0, 0.0]), np.array([-1e17, 0.5, 0.25, 0.0])]
    rows = [(A, y) for y in labels]
    x = np.zeros((1, 2))
    ((exact,), _) = asked(InProcess(sites_of(rows), exact=True), Evaluate(RAW, x), weighting="once")
    parts = [replies(site, Evaluate(RAW, x))[0].gradient[0] for site in sites_of(rows)]
    expected = [float(sum(Fraction(float(part[j])) for part in parts)) for j in range(2)]
    assert exact.gradient[0].tolist() == expected
    assert expected[0] != sum(part[0] for part in parts)


# --- moments ---


def test_moments_of_columns_of_all_sizes():
    """From 1e-69 to 1e69 (sites take no others), against sums of fractions over all rows: a pair has 100 bits."""
    rng = np.random.default_rng(3)
    scales = 10.0 ** np.linspace(np.log10(MIN_MAGNITUDE) + 1, np.log10(MAX_MAGNITUDE) - 1, 9)
    rows = [((rng.uniform(-1, 1, (m, 9)) + 3 * i) * scales, np.zeros(m)) for i, m in enumerate((7, 11, 5))]
    ((exact,), messages) = asked(InProcess(sites_of(rows), exact=True), Moments(), weighting="rows")
    pooled = np.concatenate([A for A, _ in rows])
    replies = [site.reply([Moments()])[0] for site in sites_of(rows)]
    for j in range(9):
        column = [Fraction(float(a)) for a in pooled[:, j]]
        for name, power in (("mean", 1), ("square", 2)):
            high, low = getattr(exact, name)
            got, size = Fraction(float(high[j])) + Fraction(float(low[j])), sum(abs(a) ** power for a in column)
            assert abs(got - sum(a**power for a in column)) < Fraction(1, 2**56) * size
            parts = [
                Fraction(float(getattr(r, name)[j])) + Fraction(float(getattr(r, f"{name}_low")[j])) for r in replies
            ]
            summed = sum(len(A) * part for (A, _), part in zip(rows, parts, strict=True))
            assert abs(got - summed) < Fraction(1, 2**85) * size
    assert messages == 1
    assert exact.weight[0] == len(pooled)


def test_moments_tell_the_variance_of_a_column_with_a_large_mean():
    """Mean 1e6 times the spread: the sum of squares has the digits of the variance, as pairs of doubles do."""
    rng = np.random.default_rng(0)
    rows = [(70_000.0 + 0.07 * rng.uniform(-1, 1, (9, 1)), np.zeros(9)) for _ in range(3)]
    ((exact,), _) = asked(InProcess(sites_of(rows), exact=True), Moments(), weighting="rows")
    mean, square = (Fraction(float(a[0])) + Fraction(float(b[0])) for a, b in (exact.mean, exact.square))
    found = float(square / 27 - (mean / 27) ** 2)
    column = [Fraction(float(a)) for A, _ in rows for a in A[:, 0]]
    assert found == pytest.approx(float(sum(a * a for a in column) / 27 - (sum(column) / 27) ** 2), rel=1e-10)


def test_moments_of_twenty_decades_inside_a_column():
    """Sites whose numbers are 1e-10 and 1e10 in size: the small ones keep their digits in the sum."""
    rows = [(np.full((3, 1), value), np.zeros(3)) for value in (1e10, 1e-10 / 3, -1e10)]
    ((exact,), _) = asked(InProcess(sites_of(rows), exact=True), Moments(), weighting="rows")
    assert float(exact.mean[0][0]) == pytest.approx(1e-10, rel=1e-12)


def test_small_and_large_row_weights():
    """Only ratios of row weights count, also of weights of 1e-30 or 1e200."""
    x = np.array([[0.3, -1.0, 0.2, 0.0]])
    results = []
    for size in (1.0, 2.0**-100, 2.0**650):
        sites = listed("numbers", sample_weight=True)
        for site in sites:
            site.rows.weights = site.rows.weights * size
        ((found, held_out), messages) = asked(
            InProcess(sites, exact=True), Evaluate(RAW, x), HeldOut(RAW, FOLD, x), weighting="rows"
        )
        results.append([found.value, found.gradient, held_out.loss / held_out.weight])
        assert messages == 1
    for other in results[1:]:
        assert_close(other, results[0], 1e-15)


# --- numbers out of range ---


def poisson(scale: float) -> Evaluate:
    return Evaluate(ObjectiveSpec(cf.losses.Poisson()), np.array([[scale, 0.0, 0.0, 0.0]]), np.array([0, 1]))


@pytest.mark.parametrize(("scale", "more"), [(1.0, 0), (20.0, 1), (30.0, 1), (100.0, 5)])
def test_far_models_need_larger_fields(scale, more):
    """The message is repeated with fields larger by 2**32; the result is that of the rows, worked out here."""
    rows = table("counts", sites=3)
    A, y = np.concatenate([a for a, _ in rows]), np.concatenate([b for _, b in rows])
    z = A[:, 0] * scale
    for federation in (InProcess(sites_of(rows), exact=True), Masked(sites_of(rows))):
        ((found,), messages) = asked(federation, poisson(scale), weighting="rows")
        assert messages > 1 if more else messages == 1
        np.testing.assert_allclose(found.value[0], np.mean(np.exp(z) - y * z), rtol=1e-12)
        np.testing.assert_allclose(found.gradient[0], A.T @ (np.exp(z) - y) / len(y), rtol=1e-12)
        B = A[:, :2]
        hessian = (B.T * np.exp(z)) @ B / len(y)
        np.testing.assert_allclose(found.hessian[0], hessian[np.triu_indices(2)], rtol=1e-12)


def test_later_sums_have_the_digits_that_a_lift_would_cost():
    rows = table("counts", sites=3)
    ((first,), _) = asked(InProcess(sites_of(rows), exact=True), poisson(0.1), weighting="rows")
    federation = InProcess(sites_of(rows), exact=True)
    asked(federation, poisson(100.0), weighting="rows")
    ((again,), messages) = asked(federation, poisson(0.1), weighting="rows")
    assert bits(first) == bits(again)
    assert messages == 1


def test_a_number_that_is_not_finite_is_an_error():
    federation = InProcess(sites_of(table("counts", sites=3)), exact=True)
    with pytest.raises(cf.InputError, match="site 'site0': its loss has no finite curvature at this model"):
        asked(federation, Lipschitz(ObjectiveSpec(cf.losses.Poisson()), np.full(4, 1e5)), weighting="rows")


def test_far_out_models_are_infinite():
    """Poisson's loss overflows at one site; value inf there, and the models beside it keep their numbers."""
    rows = [(np.full((5, 1), a), np.arange(5.0)) for a in (1.0, 0.1, 0.2)]
    x = np.array([[1000.0], [1.0]])
    for federation in (InProcess(sites_of(rows), exact=True), Masked(sites_of(rows))):
        ((found,), _) = asked(federation, Evaluate(ObjectiveSpec(cf.losses.Poisson()), x), weighting="rows")
        assert found.value[0] == np.inf
        assert np.isnan(found.gradient[0]).all()
        z = np.repeat([1.0, 0.1, 0.2], 5)
        np.testing.assert_allclose(found.value[1], np.mean(np.exp(z) - np.tile(np.arange(5.0), 3) * z), rtol=1e-13)


def encoded(site: Site, weighted: Weighted, agreement: Agreement) -> tuple[np.ndarray, int]:
    """The words of a site's contribution, and whether one of its numbers is too large for its field."""
    given: Any = site.contributions([weighted], agreement)
    return encode(MessageLayout([weighted], agreement), given)


def test_what_is_not_there_is_noise():
    """0 in place of a number would tell the total of the other sites: infinite numbers and those out of range are noise."""
    sites = sites_of([(np.full((5, 1), a), np.arange(5.0)) for a in (1.0, 0.1, 0.2)])
    agreement = InProcess(sites, exact=True).messages.agreement
    infinite = Weighted(Evaluate(ObjectiveSpec(cf.losses.Poisson()), np.array([[1000.0], [0.1]])), "rows")
    one, other = (encoded(sites[0], infinite, agreement)[0] for _ in range(2))
    apart = (one != other).all(axis=1).tolist()  # factor, infinite, outside, value, gradient, terms; of two models
    assert apart == [False, True, False, False, False, True, False, True, False, True, False]
    outside = Weighted(Evaluate(ObjectiveSpec(cf.losses.Poisson()), np.array([[300.0], [0.1]])), "rows")
    (one, count), (other, _) = (encoded(sites[0], outside, agreement) for _ in range(2))
    assert count == 1
    apart = (one != other).all(axis=1).tolist()
    assert apart == [False, False, False, True, False, True, False, True, False, True, False]
    bound = Weighted(Lipschitz(ObjectiveSpec(cf.losses.Poisson()), np.array([300.0])), "rows")
    (one, count), (other, _) = (encoded(sites[0], bound, agreement) for _ in range(2))
    assert count == 1
    assert (one != other).all(axis=1).sum() == 2  # L and the flag, beside the factor and the power
    lifted = replace(outside, lift=512)
    (one, count), (other, _) = (encoded(sites[0], lifted, agreement) for _ in range(2))
    assert count == 0
    assert np.array_equal(one, other)


@pytest.mark.parametrize("name", QUERIES)
def test_fields_have_the_names_and_shapes_of_contributions(name):
    """The number of words follows from the query and the enrolments alone."""
    kind, query = QUERIES[name]
    sites = listed(kind)
    agreement = InProcess(sites, exact=True).messages.agreement
    weighted = Weighted(query, "rows")
    given: Any = sites[0].contributions([weighted], agreement)
    words, _ = encode(MessageLayout([weighted], agreement), given)
    assert len(words) == sum(field.words for field in weighted.layout(agreement).values())
    assert {name: given[0][name].shape for name in weighted.layout(agreement)} == {
        name: field.shape for name, field in weighted.layout(agreement).items()
    }


# --- rounds ---


@pytest.fixture(scope="module")
def problem() -> cf.Problem:
    sites = cf.data.synthetic(clients=N, samples=12, features=5, seed=0)
    return cf.Problem(cf.losses.Logistic(ridge=0.1), cf.regularisers.L1(1e-3), sites)


def loop(problem: cf.Problem, name: str, weighting: Any = "rows") -> ServerLoop:
    run_spec = RunSpec(
        0, default_steps(name, problem, tau=3), problem.regulariser, ObjectiveSpec(problem.loss), np.zeros(5), 3, None,
        int(problem.sites.sizes.max()),
    )  # fmt: skip
    return ServerLoop(run_spec, replace(FederatedProblem.of(problem), weighting=weighting), problem.n)


def trajectory(federation: Any, running: ServerLoop, extra: Any = ()) -> np.ndarray:
    models = []
    for _ in range(ROUNDS):
        run_program(federation, running.round(extra))
        models.append(running.model())
    return np.array(models)


METHODS = ["Scaffnew", "DecoupledProx", "FedDR", "Mime", "CompressedDecoupledProx"]
MORE = [name for name in ALGORITHMS if name not in METHODS]


@pytest.mark.parametrize("name", [*METHODS, *(pytest.param(name, marks=pytest.mark.thorough) for name in MORE)])
def test_rounds_of_local_updates(name, problem):
    """Models of every round: as with float sums to rounding; the same bits in another order and with masks."""
    if not ALGORITHMS[name].composite:
        problem = problem.replace(regulariser=cf.regularisers.Zero())
    plain = trajectory(InProcess(problem.sites), loop(problem, name))
    exact = trajectory(InProcess(problem.sites, exact=True), loop(problem, name))
    np.testing.assert_allclose(exact, plain, rtol=1e-9, atol=1e-12)
    assert len(np.unique(exact, axis=0)) == ROUNDS or name == "Scaffnew"  # which skips messages at random
    sites = InProcess(problem.sites).sites
    np.testing.assert_array_equal(trajectory(Masked(sites), loop(problem, name)), exact)
    again = reordered(InProcess(problem.sites).sites)
    np.testing.assert_array_equal(trajectory(InProcess(again, exact=True), loop(problem, name)), exact)


@pytest.mark.parametrize("weighting", ["sites", None])
def test_rounds_with_other_weights(weighting, problem):
    """Each site once; and weights that the server gives, where sums are not masked."""
    given = FederatedProblem.of(problem).weights
    plain = trajectory(InProcess(problem.sites), loop(problem, "DecoupledProx"))
    exact = trajectory(InProcess(problem.sites, exact=True), loop(problem, "DecoupledProx", weighting))
    assert (given == 1 / N).all()  # synthetic sites have as many rows each
    np.testing.assert_allclose(exact, plain, rtol=1e-11)


def test_the_sum_of_one_round_is_that_of_the_updates():
    """FISTA uploads a gradient: `math.fsum` of the sites' gradients."""
    sites = sites_of(table("numbers", sites=N))
    y0 = np.array([0.5, 0.0, -0.2, 0.1])
    run = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), RAW, np.zeros(4), 0, None, 40)
    query = LocalUpdate(run, 0, 0, {"y": y0})
    ((exact,), _) = asked(InProcess(sites, exact=True), query, weighting="rows")
    w = np.array([len(site.rows.labels) for site in sites], float)
    parts = np.stack([n * np.asarray(replies(site, query)[0].u["gradient"]) for n, site in zip(w, sites, strict=True)])
    np.testing.assert_array_equal(exact.u.gradient, np.apply_along_axis(math.fsum, 0, parts) / w.sum())


def test_the_end_of_a_round():
    sites = sites_of(table("numbers", sites=N))
    run = RunSpec(0, cf.algorithms.DecoupledProx(eta=0.01), cf.regularisers.L1(0.1), RAW, np.zeros(4), 0, None, 40)
    federation = InProcess(sites, exact=True)
    asked(federation, LocalUpdate(run, 0, 0, {"x": np.zeros(4)}), weighting="once")
    ((ended,), _) = asked(federation, FinishRound(run, 0, {"x": np.ones(4)}), weighting="once")
    assert ended.finite is True
    ((ended,), _) = asked(federation, FinishRound(run, 0, {"x": np.full(4, np.nan)}), weighting="once")
    assert ended.finite is False


def test_a_round_is_done_once_although_a_query_beside_it_is_repeated(problem):
    """An evaluation and a bound that are out of range travel again; the round that travelled with them does not."""
    rows = [(A, np.abs(y)) for A, y in zip(problem.sites.features, problem.sites.labels, strict=True)]
    x = 300.0 * np.eye(1, 5)
    objective = ObjectiveSpec(cf.losses.Poisson())
    far = Request((Evaluate(objective, x), Lipschitz(objective, x[0])), weighting="rows")
    running = replace(loop(problem, "Scaffold").run_spec, objective=ObjectiveSpec(cf.losses.Squared()))
    alone, *beside = (
        trajectory(federation, ServerLoop(running, loop(problem, "Scaffold").spec, problem.n), extra)
        for federation, extra in (
            (InProcess(sites_of(rows), exact=True), ()),
            (InProcess(sites_of(rows), exact=True), (far,)),
            (Masked(sites_of(rows)), (far,)),
        )
    )
    for found in beside:
        np.testing.assert_array_equal(found, alone)
    assert len(np.unique(alone, axis=0)) == ROUNDS


def test_numbers_that_grow_in_a_round_are_not_finite():
    """Beyond 2**32 times their expected size in a later round: counted as not finite, and not done twice."""
    run = RunSpec(0, cf.algorithms.FISTA(eta=0.1), cf.regularisers.Zero(), RAW, np.zeros(4), 0, None, 40)
    rows = table("numbers", sites=3)
    rows[1][0][:] *= 1e20  # after the enrolments
    for r in (0, 1):
        sites = sites_of(table("numbers", sites=3))
        federation = InProcess(sites, exact=True)
        assert federation.enrolments
        sites[1].rows.features = rows[1][0]
        ((found,), messages) = asked(federation, LocalUpdate(run, r, 0, {"y": np.full(4, 0.5)}), weighting="once")
        assert (not found.finite) == (r == 1)
        assert (messages > 1) == (r == 0)  # the first round begins anew
        if r == 0:
            expected = sum(A.T @ (A @ np.full(4, 0.5) - y) / len(y) for A, y in rows)
            np.testing.assert_allclose(found.u.gradient, expected, rtol=1e-12)


# --- every estimator ---

ESTIMATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "FederatedLasso": ("numbers", {"alpha": 1.0}),
    "FederatedElasticNet": ("numbers", {"alpha": 1.0, "l1_ratio": 0.9}),
    "FederatedHuber": ("numbers", {"alpha": 0.5}),
    "FederatedGroupLasso": ("numbers", {"alpha": 1.0, "groups": [0, 0, 1, 1]}),
    "FederatedLogisticRegression": ("words", {"alpha": 0.1}),
    "FederatedPoissonRegressor": ("counts", {"alpha": 0.3, "l1_ratio": 0.5}),
    "FederatedNegativeBinomialRegressor": ("counts", {"alpha": 0.3, "l1_ratio": 0.5}),
    "FederatedGammaRegressor": ("amounts", {"alpha": 0.1, "l1_ratio": 0.5}),
    "FederatedCox": ("survival", {"alpha": 0.05, "l1_ratio": 0.5}),
    "FederatedMultiTaskLasso": ("two", {"alpha": 1.0}),
    "FederatedNuclearRegressor": ("two", {"alpha": 0.3}),
}
NAMES = [name for name in estimators.__all__ if name.startswith("Federated")]


def estimator(name: str, **more: Any) -> tuple[str, Any]:
    kind, options = ESTIMATORS[name.removesuffix("CV")]
    if name.endswith("CV"):
        options = {k: v for k, v in options.items() if k != "alpha"} | {"n_alphas": 3, "eps": 0.1, "cv": 3}
    return kind, getattr(cf, name)(**options, **more)


FITS = [(name, "rows") for name in NAMES] + [
    (name, "equal")
    if not name.endswith("CV") or name == "FederatedLassoCV"
    else pytest.param(name, "equal", marks=pytest.mark.thorough)
    for name in NAMES
]


@pytest.mark.parametrize(("name", "weights"), FITS)
def test_every_estimator_has_the_coefficients_of_float_sums(name, weights):
    kind, model = estimator(name, site_weights=weights)
    plain, exact = (
        model.fit_federation(InProcess(listed(kind), exact=e)) and vars(model).copy() for e in (False, True)
    )
    size = np.abs(plain["coef_"]).max()
    np.testing.assert_allclose(exact["coef_"], plain["coef_"], rtol=1e-10, atol=1e-10 * size)
    np.testing.assert_array_equal(exact["coef_"] == 0, plain["coef_"] == 0)
    assert exact["n_rounds_"] == plain["n_rounds_"]
    assert exact["certificate_"].holds
    masked = model.fit_federation(Masked(listed(kind)))
    np.testing.assert_array_equal(masked.coef_, exact["coef_"])


def test_there_are_twenty_two_estimators():
    assert len(NAMES) == 22


def test_weighted_rows_and_folds_without_rows_at_a_site():
    """Row weights, and a cross-validation in which a site of two rows has none in one of three folds."""
    rows = [*table("numbers", sites=3), (np.array([[1.0, 0.1, 2.0, 3.0], [0.0, 0.2, 5.0, 1.0]]), np.array([1.0, 2.0]))]
    model = cf.FederatedLassoCV(n_alphas=3, eps=0.1, cv=3)
    coefs = []
    for exact in (False, True):
        sites = sites_of(rows)
        for site in sites:
            site.rows.weights = 0.5 + np.arange(len(site.rows.labels)) % 3
            site.guard.limits = None
        coefs.append(model.fit_federation(InProcess(sites, exact=exact)).coef_.copy())
    np.testing.assert_allclose(coefs[1], coefs[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", ["DecoupledProx", "FedDR"])
def test_local_update_methods_of_an_estimator(name):
    model = cf.FederatedLasso(0.3, algorithm=name, max_rounds=12)
    coefs = []
    for federation in (
        InProcess(listed("numbers")),
        InProcess(listed("numbers"), exact=True),
        Masked(listed("numbers")),
    ):
        with pytest.warns(ConvergenceWarning):
            coefs.append(model.fit_federation(federation).coef_.copy())
    np.testing.assert_allclose(coefs[1], coefs[0], rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(coefs[2], coefs[1])


# --- what exact sums do not give ---


def test_wrong_totals_are_refused():
    """A site that says more than its enrolment: only the total is checked, and no site is blamed."""
    sites = listed("numbers")
    federation = InProcess(sites, exact=True)
    assert federation.enrolments
    sites[1].rows.weights = np.full(len(sites[1].rows.labels), 2.0)
    with pytest.raises(cf.InputError, match="the weight of all rows is not that of the enrolments"):
        asked(federation, Evaluate(RAW, X[:, :4]), weighting="rows")
    sites[1].rows.weights = -np.full(len(sites[1].rows.labels), 5.0)
    with pytest.raises(cf.InputError, match="the sum of the field factor is below 0"):
        asked(federation, Evaluate(RAW, X[:, :4]), weighting="rows")
    sites[1].rows.weights = np.full(len(sites[1].rows.labels), 50.0)
    with pytest.raises(cf.InputError, match="its rows weigh more, or are larger, than its enrolment says"):
        asked(federation, Evaluate(RAW, X[:, :4]), weighting="rows")
