"""The rules of a disclosure policy: what a site refuses, in which words, and that ordinary work goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from federation.wired import replies
from hypothesis import given, settings
from hypothesis import strategies as st

import compfed as cf
from compfed._utils.compilation import precision
from compfed.algorithms.base import Bounds
from compfed.federation import (
    Describe,
    DisclosurePolicy,
    Evaluate,
    HeldOut,
    InProcess,
    Lipschitz,
    LocalUpdate,
    Moments,
    Refusal,
    Rows,
    Site,
)
from compfed.federation.codec import named
from compfed.federation.enrolment import Agreement, left_out_note
from compfed.federation.site.disclosure import EffectiveRows, GuardedLoss
from compfed.federation.site.scoring import ScoreRounding
from compfed.federation.spec import FeatureScaling, ObjectiveSpec, RunSpec
from compfed.problem.local_loss import FullGradient
from compfed.splits import (
    BUCKETS,
    Fold,
    Holdout,
    PredefinedSplit,
    SiteFold,
    check_folds,
    content_order,
    cv_splits,
    deal_buckets,
    training_rows,
)

ROWS, WIDTH = 60, 4


def make_site(kind: str = "numbers", rows: int = ROWS, secret: bytes = b"s", **rules: Any) -> Site:
    rng = np.random.default_rng(3)
    A = rng.standard_normal((rows, WIDTH))
    z = A @ [1.0, -1.0, 0.5, 0.0] + rng.standard_normal(rows)
    y = {"numbers": z, "classes": (z > 0).astype(float), "counts": np.rint(np.exp(z.clip(-2, 2)))}[kind]
    policy = DisclosurePolicy(**rules)
    return Site(Rows(A, y, name="north", index=0, columns=["a", "b", "c", "d"]), policy=policy, secret=secret)


def refusal(site: Site, query: Any) -> str:
    (reply,) = site.reply([query])
    return reply.reason if isinstance(reply, Refusal) else ""


SQUARED, LOGISTIC = ObjectiveSpec(cf.losses.Squared()), ObjectiveSpec(cf.losses.Logistic())


# --- buckets ---


@given(
    rows=st.integers(1, 200),
    min_rows=st.integers(1, 25),
    rarest=st.sampled_from([None, 0.02, 0.1, 0.5]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_buckets_have_enough_rows_and_enough_of_every_class(rows, min_rows, rarest, seed):
    labels = np.random.default_rng(seed).random(rows) < (rarest or 0.5)
    counts = np.unique(labels, return_counts=True)[1]
    by_class = rarest is not None and counts.min() >= 3
    bucket = deal_buckets(labels.astype(float), min_rows, order_of(rows, bytes([seed % 256])), by_class, 3)
    sizes = np.bincount(bucket)
    assert sizes.min() >= min(min_rows, rows)
    if not by_class:
        assert sizes.max() - sizes.min() <= 1
        assert len(sizes) == max(b for b in BUCKETS if b <= max(rows // min_rows, 1))
        return
    for value in (False, True):
        each = np.bincount(bucket[labels == value], minlength=len(sizes))
        assert ((each == 0) | (each >= 3)).all()


def test_rare_classes_do_not_cost_buckets():
    """Of 143 rows 3 have the rare class, as at a site of the breast cancer table: they share one bucket of ten."""
    labels = np.r_[np.zeros(3), np.ones(140)]
    bucket = deal_buckets(labels, 10, order_of(143, b""), True, 3)
    assert bucket.max() + 1 == 10
    assert len(set(bucket[:3])) == 1
    assert (deal_buckets(labels, 10, order_of(143, b"x"), True, 3) != bucket).any()  # the secret decides


def order_of(rows: int, secret: bytes) -> np.ndarray:
    return content_order([bytes([i]) for i in range(rows)], secret)


def test_rows_in_another_order_share_buckets_with_the_same_rows():
    """A table that is sorted and exported again is dealt as before: otherwise two sums would differ by a few rows."""
    site, order = make_site("classes"), np.random.default_rng(1).permutation(ROWS)
    again = Site(
        Rows(site.rows.features[order], site.rows.labels[order], name="north", index=0),
        policy=site.policy,
        secret=b"secret",
    )
    first = Site(
        Rows(site.rows.features, site.rows.labels, name="north", index=0), policy=site.policy, secret=b"secret"
    )
    assert first.rows.buckets_of_rows is not None
    np.testing.assert_array_equal(first.rows.buckets_of_rows[order], again.rows.buckets_of_rows)
    assert len(set(first.rows.buckets_of_rows.tolist())) == 5


@given(
    sizes=st.lists(st.integers(12, 150), min_size=3, max_size=5),
    share=st.floats(0.01, 0.99),
    cv=st.sampled_from([2, 4, 5, 10]),
)
@settings(max_examples=40, deadline=None)
def test_every_site_of_a_masked_run_holds_out_the_same_buckets(sizes, share, cv):
    """Whatever the sizes: the buckets have the same numbers, so that no two sums differ in one site alone."""
    policy, rng = DisclosurePolicy(), np.random.default_rng(0)
    tables = [
        Rows(rng.permutation(n)[:, None] + 0.5, rng.permutation(n) + 0.5, name=f"s{i}", index=i)
        for i, n in enumerate(sizes)
    ]
    found = [Site(rows, policy=policy, secret=bytes([rows.index]), secure_sum=True) for rows in tables]
    agreement = Agreement(tuple(site.name for site in found), tuple(site.enrol() for site in found))
    for site in found:
        site.guard.join(agreement)
    subsets: list[Any] = [Holdout(share, 0, False, True)]
    agreed = min(site.rows.buckets for site in found)
    if agreed % cv == 0:
        subsets += [Fold(k, cv, 0, np.zeros(len(sizes), int), False, True) for k in range(cv)]
    for subset in subsets:
        held = [set(np.asarray(site.rows.buckets_of_rows)[subset.mask(site.rows)].tolist()) for site in found]
        assert all(one == held[0] for one in held)
        assert agreed == 1 or 0 < len(held[0]) < agreed


@given(
    rows=st.integers(1, 150),
    min_rows=st.integers(1, 20),
    kind=st.sampled_from(["numbers", "classes"]),
    asked=st.lists(
        st.one_of(
            st.builds(
                lambda folds, k, seed, first, out: Fold(k % folds, folds, seed, np.array([first]), True, out),
                st.integers(1, 300), st.integers(0, 299), st.integers(0, 2**32), st.integers(0, 500), st.booleans(),
            ),
            st.builds(lambda share, seed, out: Holdout(share, seed, True, out),
                      st.floats(0.01, 0.99), st.integers(0, 2**32), st.booleans()),
            st.builds(SiteFold, st.integers(-1, 2), st.booleans()),
        ),
        min_size=1, max_size=6,
    ),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_set_of_rows_that_a_server_can_name_is_small(rows, min_rows, kind, asked):
    site = make_site(kind, max(rows, min_rows), min_rows=min_rows)
    masks = [subset.mask(site.rows) for subset in asked]
    masks += [~mask for mask in masks] + [np.ones(len(site.rows.labels), bool)]
    for one in masks:
        for other in masks:
            for part in (one, one & ~other, one & other):
                assert part.sum() == 0 or part.sum() >= min_rows


def test_the_seed_of_the_server_changes_no_fold_and_every_row_is_held_out_once():
    site = make_site("classes")
    assert site.rows.buckets == 5
    folds: Any = cv_splits(5, 5, [site.rows.buckets], True)
    held = np.array([fold.mask(site.rows) for fold in folds])
    assert (held.sum(axis=0) == 1).all()
    assert (held.sum(axis=1) == 12).all()
    other = cv_splits(5, 6, [site.rows.buckets], True)[0].mask(site.rows)
    assert (other == held[0]).all()
    for mask in (other, *held):  # whole buckets
        assert {float(mask[site.rows.buckets_of_rows == b].mean()) for b in range(5)} <= {0.0, 1.0}
    assert (training_rows(folds[0]).mask(site.rows) == ~held[0]).all()


def test_without_a_policy_every_row_is_a_unit():
    site = Site(Rows(np.eye(5), np.arange(5.0), name="a", index=0))
    assert site.rows.buckets_of_rows is None
    assert Fold(0, 5, 0, np.array([0]), False, True).mask(site.rows).sum() == 1


def test_more_folds_than_buckets_are_refused_before_the_first_query_and_at_the_site():
    check_folds(["a", "b"], [10, 5], [10, 10], 5)
    with pytest.raises(cf.InputError, match=r"cv = 4 is no divisor of 10, .* use cv = 2 or 5 or 10"):
        check_folds(["a", "b"], [10, 10], [10, 10], 4)
    with pytest.raises(
        cf.InputError, match=r"^cv = 5 needs 5 buckets of 10 rows at site 'x': use cv = 4, or leave the"
    ):
        check_folds(["a", "x"], [30, 4], [10, 10], 5)
    with pytest.raises(cf.InputError, match=r"at site 'x': leave the site out\.$"):
        check_folds(["x"], [1], [10], 2)
    site = make_site()
    fold = Fold(0, 7, 0, np.array([0]), False, True)
    for query in (Moments(fold), Evaluate(replace(SQUARED, subset=fold), np.zeros((1, WIDTH)))):
        assert "7 folds are more than it has buckets of min_rows rows; use a smaller cv" in refusal(site, query)
    assert refusal(site, Moments(replace(fold, folds=5))) == ""
    assert "4 is no divisor of the number of buckets" in refusal(site, Moments(replace(fold, folds=4)))
    masks = [(np.arange(ROWS) > 0, np.arange(ROWS) == 0)]
    given = Site(Rows(site.rows.features, site.rows.labels, name="n", index=0, splits=masks), policy=DisclosurePolicy())
    assert "give cv as a number" in refusal(given, Moments(PredefinedSplit(0, True)))


# --- the policy and the table ---


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"min_rows": 0}, "min_rows"),
        ({"min_level_rows": 1.5}, "min_level_rows"),
        ({"max_hessian_share": -1.0}, "max_hessian_share"),
        ({"allow_minibatches": "yes"}, "allow_minibatches"),
        ({"queries": ("Rows",)}, "'Rows' is not a query"),
        ({"queries": "Moments"}, "must be a list of names"),
        ({"share_by_rule": -0.5}, "share_by_rule"),
        ({"share_by_rule": 2.0, "max_share": 1.0}, r"share_by_rule=2 is beyond max_share=1"),
    ],
)
def test_a_policy_is_checked(rules, message):
    with pytest.raises(cf.InputError, match=message):
        DisclosurePolicy(**rules)


def test_fewer_rows_than_min_rows_are_refused_whatever_the_query():
    site = make_site(rows=9)
    for query in (Describe(), Moments(), Evaluate(SQUARED, np.zeros((1, WIDTH)))):
        assert (
            refusal(site, query) == f"site 'north' refuses {type(query).__name__}: it has fewer rows than its min_rows."
        )


def table_site(column: np.ndarray, labels: np.ndarray | None = None, **rules: Any) -> Site:
    A = np.random.default_rng(0).standard_normal((len(column), 2))
    A[:, 1] = column
    labels = A[:, 0] if labels is None else labels
    return Site(Rows(A, labels, name="n", index=0, columns=["fine", "odd"]), policy=DisclosurePolicy(**rules))


LEVELS, VARIANCE = "'odd' has one value in all but a few rows", "'odd' has over 83% of its variance from one row"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([1.0] * 2, LEVELS),
        ([1.0] * 3, ""),
        ([5.3, 7.1], LEVELS),  # not two values, but as rare
        ([], ""),  # constant
        ([1.0, 1.0, 1.0, 40.0], VARIANCE),
        ([1.0, 1.0, 1.0, 2.0], ""),  # 4 of 7, less the mean
        ([1.0, 1.0, 1.0, 3.6], ""),
        ([2.0, 2.0, 2.0, 1.0], ""),
    ],
)
def test_columns_in_which_single_rows_can_be_seen(values, problem):
    column = np.r_[values, np.zeros(40 - len(values))]
    if len(values):  # the p % rule with p = 10: knowing the next largest, nobody knows the largest to 10 %
        part = np.sort((column - column.mean()) ** 2)[::-1]
        assert (part[1:].sum() < 0.205 * part[0]) == (problem == VARIANCE)
    site = table_site(column)
    assert list(site.guard.withheld) == ([1] if problem else [])
    assert all(problem in why for why in site.guard.withheld.values())
    assert site.enrol().withholds.tolist() == list(site.guard.withheld)
    # until a run leaves the column out, nothing is answered
    assert (problem in refusal(site, Describe())) == (refusal(site, Describe()) != "" or not problem)
    assert not any(character.isdigit() for why in site.guard.withheld.values() for character in why.replace("83%", ""))
    site.rows.leave_out(site.guard.withheld)
    assert refusal(site, Moments()) == ""
    assert replies(site, Moments())[0].mean.size == 2 - bool(problem)
    site.guard.policy = DisclosurePolicy(min_level_rows=1)
    del site.guard.varying, site.guard.withheld
    assert site.guard.withheld == {}


def test_a_column_that_one_site_withholds_is_left_out_at_all_sites_and_the_fit_is_that_of_the_others():
    rng = np.random.default_rng(3)
    A = [rng.standard_normal((rows, 4)) for rows in (50, 60, 70)]
    A[1][:, 2] = 0.0
    A[1][7, 2] = 30.0  # one row has all of the variance
    y = [a[:, 0] - a[:, 3] + 0.1 * rng.standard_normal(len(a)) for a in A]
    columns = ("age", "bmi", "crp", "dose")
    federation = InProcess(cf.data.from_arrays(A, y, columns=columns), policy=DisclosurePolicy(min_level_rows=1))
    assert all(e.columns == columns for e in federation.enrolments)
    federation = InProcess(cf.data.from_arrays(A, y, columns=columns), policy=DisclosurePolicy())
    assert federation.enrolments[0].columns == ("age", "bmi", "dose")
    assert "left out at all sites: crp" in left_out_note(federation.enrolments)
    model = cf.FederatedLasso(alpha=0.01).fit_federation(federation)
    plain = cf.FederatedLasso(alpha=0.01).fit(np.delete(np.concatenate(A), 2, axis=1), np.concatenate(y), sites=None)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-10)
    assert model.feature_names_in_.tolist() == ["age", "bmi", "dose"]


def test_sparse_rows_are_checked_alike():
    from scipy.sparse import csr_matrix

    A = np.zeros((40, 2))
    A[:, 0], A[:2, 1] = np.arange(40), 1.0
    site = Site(Rows(csr_matrix(A), np.arange(40.0), name="n", index=0), policy=DisclosurePolicy())
    assert "column 2 has one value" in site.guard.withheld[1]
    site.rows.leave_out([1])
    assert replies(site, Moments())[0].mean.size == 1


def test_a_rare_class_is_not_listed_and_not_named():
    labels = np.array(["ill"] * 2 + ["well"] * 20 + ["unknown"] * 18)
    site = table_site(np.arange(40.0), labels)
    softmax = ObjectiveSpec(cf.losses.Softmax(outputs=3), classes=np.array(["ill", "unknown", "well"]))
    for query in (Describe(classes=True), Evaluate(softmax, np.zeros((1, 6)))):
        reason = refusal(site, query)
        assert "a class has fewer rows than its min_level_rows" in reason
        assert "ill" not in reason
    codes = ObjectiveSpec(cf.losses.Softmax(outputs=3))  # classes that are numbers already
    numbers = table_site(np.arange(40.0), np.repeat([0.0, 1.0, 2.0], [2, 20, 18]))
    assert "min_level_rows" in refusal(numbers, Evaluate(codes, np.zeros((1, 6))))
    assert refusal(numbers, Moments()) == ""


def test_row_weights_on_few_rows_are_refused():
    weights = np.r_[np.full(3, 100.0), np.ones(37)]
    A = np.random.default_rng(0).standard_normal((40, 2))
    site = Site(Rows(A, A[:, 0], name="n", index=0, sample_weight=weights), policy=DisclosurePolicy())
    assert "its row weights rest on fewer rows than its min_rows" in refusal(site, Moments())
    zero = np.r_[np.zeros(31), np.ones(9)]
    site = Site(Rows(A, A[:, 0], name="n", index=0, sample_weight=zero), policy=DisclosurePolicy())
    assert "fewer rows than its min_rows" in refusal(site, Moments())


# --- models ---


def active_rows(site: Site, x: np.ndarray) -> float:
    """(sum h)^2 / sum h^2 of the logistic loss, by its definition."""
    z = site.rows.features @ x
    h = np.exp(-np.logaddexp(0, z) - np.logaddexp(0, -z))
    if not (h * h).any():
        return 0.0
    return h.sum() ** 2 / (h * h).sum()


def test_a_model_that_looks_at_few_rows_is_refused():
    site = make_site("classes")
    direction = np.array([1.0, 0.3, -0.2, 0.1])
    seen = set()
    for size in np.geomspace(0.1, 1e6, 40):
        x = size * direction
        allowed = active_rows(site, x) >= 10
        seen.add(bool(allowed))
        queries = [
            Evaluate(LOGISTIC, x[None]),
            HeldOut(LOGISTIC, Holdout(0.5, 0, True, True), np.stack([np.zeros(WIDTH), x])),
        ]
        for query in queries:
            reason = refusal(site, query)
            assert (reason != "") == (not allowed)
            assert allowed or "fewer rows than its min_rows" in reason or "over 16 standard deviations" in reason
    assert seen == {True, False}
    assert refusal(make_site("classes", min_rows=1), Evaluate(LOGISTIC, 5 * direction[None])) == ""
    # the scaling is a part of the model
    tiny = FeatureScaling(np.zeros(WIDTH), np.full(WIDTH, 1e-6), False)
    assert "far from those of its own rows" in refusal(site, Evaluate(replace(LOGISTIC, scaling=tiny), direction[None]))


def test_a_model_without_curvature_is_refused():
    """Half-space: with steep slopes and all rows far from the boundary, h is equal and nearly zero."""
    site = make_site("classes")
    site.rows.features = np.sign(site.rows.features)  # all |z| are alike
    x = np.array([[15.5, 0.0, 0.0, 0.0]])
    assert active_rows(site, x[0]) >= 59
    assert "fewer rows" in refusal(site, Evaluate(LOGISTIC, x))
    assert refusal(site, Evaluate(LOGISTIC, x / 20)) == ""


def test_the_rows_to_train_with_have_half_of_the_effective_rows():
    site = make_site("classes")
    subset = Fold(0, 5, 1, np.array([0]), True, held_out=True)
    objective = replace(LOGISTIC, subset=subset)
    mask, outcomes = subset.mask(site.rows), set()
    for seed in range(200):
        x = 4 * np.random.default_rng(seed).standard_normal(WIDTH)
        h = site.rows.features @ x
        h = np.exp(-np.logaddexp(0, h) - np.logaddexp(0, -h))
        part = h[mask].sum() ** 2 / (h[mask] ** 2).sum()
        first = np.abs(1 / (1 + np.exp(-site.rows.features @ x)) - site.rows.labels)
        each = [d.sum() ** 2 / (d**2).sum() for d in (first, first[mask])]
        allowed = active_rows(site, x) >= 10 and part >= 5 and min(each) >= 3
        outcomes.add((bool(active_rows(site, x) >= 10), bool(part >= 5)))
        assert (refusal(site, Evaluate(objective, x[None])) == "") == allowed
    assert len(outcomes) >= 3


def test_many_outputs_use_the_trace():
    site = make_site("classes")
    x = np.random.default_rng(0).standard_normal((WIDTH, 2)) * 3
    z = site.rows.features @ x
    p = np.exp(z - np.logaddexp.reduce(z, axis=1)[:, None])
    h = 1 - (p * p).sum(axis=1)
    softmax = cf.losses.Softmax(outputs=2)
    q = np.full(ROWS, 1 / ROWS)
    most = h.sum() ** 2 / (h * h).sum()
    for least in (most - 0.01, most + 0.01):
        rule = EffectiveRows.of(1, softmax, site.rows.labels, q, q)._replace(min_rows=least)
        assert bool(rule.holds(softmax, x.ravel(), site.rows.features, site.rows.labels)) == (least < most)


def test_counts_have_no_bound_and_the_rule_still_holds():
    site, poisson = make_site("counts"), ObjectiveSpec(cf.losses.Poisson())
    x = np.array([[0.1, 0.1, 0.0, 0.0]])
    assert refusal(site, Evaluate(poisson, x)) == ""
    assert "fewer rows" in refusal(site, Evaluate(poisson, 50 * x))
    assert "fewer rows" in refusal(site, Lipschitz(poisson, 50 * x[0]))
    assert refusal(site, Lipschitz(LOGISTIC, 50 * x[0])) != ""  # labels that are no classes of two
    assert "a coefficient is over 16" in refusal(site, Evaluate(poisson, 1e9 * x))  # which overflows


def test_huber_far_from_all_labels_says_nothing_and_is_allowed():
    site = make_site()
    shift = FeatureScaling(np.zeros(WIDTH), np.ones(WIDTH), True)
    huber = ObjectiveSpec(cf.losses.Huber(delta=1.0), shift)
    far, near = np.zeros((2, 1, WIDTH + 1))
    far[0, -1], near[0, -1] = 100.0, 3.0
    assert (np.abs(3.0 - site.rows.labels) <= 1).sum() < 10
    assert refusal(site, Evaluate(huber, far)) == ""
    assert "fewer rows" in refusal(site, Evaluate(huber, near))


@pytest.mark.parametrize("loss", [cf.losses.Huber(delta=1e-3), cf.losses.SmoothedQuantile(smoothing=1e-3)])
def test_a_loss_that_is_narrow_for_the_labels_is_refused(loss):
    reason = refusal(make_site(), Evaluate(ObjectiveSpec(loss), np.zeros((1, WIDTH))))
    assert "=0.001 is below 1% of the spread of its labels" in reason


def test_losses_of_others_need_the_acceptance_of_the_site():
    class Own(cf.losses.Squared):
        """Anything at all."""

    objective = ObjectiveSpec(Own())
    name = f"{Own.__module__}:{Own.__qualname__}"
    assert "is not a loss that it accepts" in refusal(make_site(), Evaluate(objective, np.zeros((1, WIDTH))))
    assert refusal(make_site(accepts=(name,)), Evaluate(objective, np.zeros((1, WIDTH)))) == ""


def test_a_conjugate_that_may_be_infinite_is_refused_whatever_the_rows():
    site, x = make_site("classes"), np.zeros((1, WIDTH))
    for dual, allowed in [
        ([0.0, 1.0, 0.0, 0.0], True),
        ([0.0, 1.1, 0.0, 0.0], False),  # infinite if a row has -y theta > 1 / 1.1
        ([0.1, 1.0, 0.0, 0.0], False),
        ([0.1, 1.0, 0.5, 0.0], True),  # 0.5 * 0.1 of shift against 0.5 * 0.5 of margin
        ([0.1, 1.0, 0.5, 9.0], False),
        ([0.0, np.nan, 0.0, 0.0], False),
    ]:
        assert (refusal(site, Evaluate(LOGISTIC, x, dual=np.array([dual]))) == "") == allowed
    rng = np.random.default_rng(0)  # where it is allowed it is finite for every prediction
    for _ in range(300):
        dual = np.array([[rng.normal() * 0.2, rng.random(), rng.random(), rng.normal()]])
        (reply,) = replies(site, Evaluate(LOGISTIC, rng.standard_normal((1, WIDTH)), dual=dual))
        assert isinstance(reply, Refusal) or np.isfinite(reply.conjugate).all()


def test_a_stricter_site_gives_hessians_on_few_columns():
    site = make_site(max_hessian_share=0.05)  # 3 of 60
    x = np.zeros((1, WIDTH))
    assert refusal(site, Evaluate(SQUARED, x, np.array([0, 1, 2]))) == ""
    assert "4 coordinates are more than 0.05 of the number of its rows" in refusal(
        site, Evaluate(SQUARED, x, np.arange(4))
    )
    # the intercept is not counted, outcomes share columns, and columns keep their place in the table
    scaling = FeatureScaling(np.zeros(2), np.ones(2), True, outputs=2)
    labels = np.c_[site.rows.labels, site.rows.labels]
    two = Site(Rows(site.rows.features, labels, name="n", index=0), policy=DisclosurePolicy(max_hessian_share=0.04))
    objective = ObjectiveSpec(cf.losses.MultiSquared(outputs=2), scaling, columns=np.array([1, 3]))
    assert refusal(two, Evaluate(objective, np.zeros((1, 6)), np.arange(6))) == ""
    assert "a Hessian on so many" in refusal(make_site(max_hessian_share=0), Evaluate(SQUARED, x, np.array([0])))


@pytest.mark.parametrize(
    "loss",
    [cf.losses.Huber(delta=1.0), cf.losses.SmoothedQuantile(smoothing=1.0), cf.losses.SquaredHinge()],
    ids=lambda loss: type(loss).__name__,
)
def test_hessians_of_losses_whose_second_derivative_jumps_are_refused(loss):
    site, x = make_site("classes"), np.zeros((1, WIDTH))
    asked = Evaluate(ObjectiveSpec(loss), x, np.array([0, 1]))
    assert "jump, so that two Hessians may differ by one row" in refusal(site, asked)
    assert "jump" not in refusal(make_site("classes", min_rows=1), asked)
    assert refusal(site, Evaluate(ObjectiveSpec(cf.losses.Logistic()), x, np.array([0, 1]))) == ""


def test_hessians_have_six_digits_and_are_never_too_small():
    """Rounded to 2^-20 of sqrt(H_ii H_jj), with that much added to the diagonal: no direction loses curvature."""
    site, every = make_site("classes"), np.arange(WIDTH)
    free = Site(Rows(site.rows.features, site.rows.labels, name="free", index=0))
    x = np.zeros((1, WIDTH))
    for seed in range(20):
        x = 0.5 * np.random.default_rng(seed).standard_normal((1, WIDTH))
        given, exact = (
            LOGISTIC.loss.unpack_hessian(replies(s, Evaluate(LOGISTIC, x, every))[0].hessian[0], every)
            for s in (site, free)
        )
        size = np.sqrt(np.diag(exact))
        off = (given - exact) / np.outer(size, size)
        assert 2.0**-24 < np.abs(off).max() < 2.0**-17
        assert np.linalg.eigvalsh(off).min() >= 0
    squared = [replies(s, Evaluate(SQUARED, x, every))[0].hessian for s in (site, free)]
    np.testing.assert_array_equal(*squared)  # the same at every model


# --- rounds ---


ZERO = cf.regularisers.Zero()


def first_round(
    site: Site, objective: ObjectiveSpec, x0: np.ndarray, batch_size: int | None = None, eta: float = 0.1,
    regulariser: Any = ZERO,
) -> Any:  # fmt: skip
    """The update of a site after three local steps."""
    algorithm: Any = cf.algorithms.FedAvg(eta=eta, tau=3)
    run = RunSpec(0, algorithm, regulariser, objective, x0, 0, batch_size, len(site.rows.labels))
    with precision(np.dtype(float)):
        d = named(algorithm.broadcast(regulariser, algorithm.init(jnp.asarray(x0))[0]))
    (reply,) = site.reply([LocalUpdate(run, 0, 0, d)])
    return reply


def test_local_steps_are_those_without_a_policy():
    site = make_site("classes")
    free = Site(Rows(site.rows.features, site.rows.labels, name="free", index=0))
    x0 = np.full(WIDTH, 0.1)
    with_rules, without = (first_round(s, LOGISTIC, x0).u for s in (site, free))
    assert with_rules.keys() == without.keys()
    for name in with_rules:
        np.testing.assert_array_equal(with_rules[name], without[name])


@pytest.mark.parametrize("name", ["FedNL", "ProxGIANT", "DANE", "SDANE"])
def test_updates_made_of_hessians_are_refused(name):
    """They would leave unrounded. A site that rounds no Hessian and limits none allows these."""
    algorithm: Any = cf.algorithms.find(name).from_bounds(Bounds(L=1.0, L_max=2.0, mu=0.1, tau=2, d=WIDTH), 1.0)
    with precision(np.dtype(float)):
        d = named(algorithm.exchanges[0].broadcast(ZERO, algorithm.init(jnp.zeros(WIDTH))[0]))
    for share, min_rows in ((np.inf, 10), (0.33, 1), (np.inf, 1)):
        site = make_site("classes", max_hessian_share=share, min_rows=min_rows)
        run = RunSpec(0, algorithm, ZERO, LOGISTIC, np.zeros(WIDTH), 0, None, len(site.rows.labels))
        refused = f"{name} makes its updates of Hessians" in refusal(site, LocalUpdate(run, 0, 0, d))
        assert refused == ((share, min_rows) != (np.inf, 1) and name in ("FedNL", "ProxGIANT"))


def test_local_steps_to_a_model_of_few_rows_are_refused():
    """The first gradient is allowed; a long step leads to models that look at few rows, whose gradients are NaN."""
    site, x0 = make_site("classes"), np.zeros(WIDTH)
    assert not isinstance(first_round(site, LOGISTIC, x0), Refusal)
    reply = first_round(site, LOGISTIC, x0, eta=1e4)
    assert reply.reason == (
        "site 'north' refuses LocalUpdate: a local model rests on fewer rows than its min_rows, or the local steps diverged."
    )
    free = Site(Rows(site.rows.features, site.rows.labels, name="free", index=0))
    assert all(np.isfinite(u).all() for u in first_round(free, LOGISTIC, x0, eta=1e4).u.values())
    assert "a coefficient is over 16" in first_round(site, LOGISTIC, np.array([1e5, 1.0, 0.0, 0.0])).reason


def test_every_derivative_inside_the_local_steps_is_guarded():
    site = make_site("classes")
    y, q = 2 * site.rows.labels - 1, np.full(ROWS, 1 / ROWS)
    loss = cf.losses.Logistic()
    with precision(np.dtype(float)):
        check_guards(site, loss, y, q)


def check_guards(site: Site, loss: Any, y: np.ndarray, q: np.ndarray) -> None:
    f = FullGradient(loss, jnp.asarray(site.rows.features), jnp.asarray(y), jnp.asarray(q))
    rule = EffectiveRows.of(10, loss, y, q, q)
    guarded = GuardedLoss(f, loss, f.A, f.y, rule, jnp.zeros(2, jnp.uint32))
    for x, allowed in ((jnp.zeros(WIDTH), True), (jnp.full(WIDTH, 1e3), False)):
        for found in (guarded.value(x), guarded.grad(x, jax.random.key(0)), guarded.full_grad(x), guarded.hessian(x)):
            assert bool(jnp.isfinite(found).all()) == allowed
            assert bool(jnp.isnan(found).all()) == (not allowed)


def test_mini_batches_are_the_choice_of_the_site():
    x0 = np.zeros(WIDTH)
    assert "it allows no mini-batches (allow_minibatches)" in first_round(make_site(), SQUARED, x0, 20).reason
    site = make_site(allow_minibatches=True)
    assert "a mini-batch needs min_rows rows or more" in first_round(site, SQUARED, x0, 9).reason
    fold = replace(SQUARED, subset=Fold(0, 5, 0, np.array([0]), False, False))
    assert "of all rows and not of a fold" in first_round(site, fold, x0, 20).reason
    free = Site(Rows(site.rows.features, site.rows.labels, name="free", index=0))
    updates = [
        next(iter(first_round(s, SQUARED, x0, 20).u.values()))
        for s in (free, site, make_site(allow_minibatches=True), make_site(allow_minibatches=True, secret=b"t"))
    ]
    assert (updates[1] == updates[2]).all()
    for one, other in ((0, 1), (1, 3)):  # not those that the server's seed draws, and others for another secret
        assert (updates[one] != updates[other]).any()


def test_bounds_contain_zero():
    box = cf.regularisers.Box(0.5, 1.0)
    assert "bounds must contain 0" in first_round(make_site(), SQUARED, np.zeros(WIDTH), regulariser=box).reason
    assert not isinstance(
        first_round(make_site(), SQUARED, np.zeros(WIDTH), regulariser=cf.regularisers.Box(-1, 1)), Refusal
    )


# --- ordinary work ---


@pytest.mark.filterwarnings("ignore::compfed.EdgeOfGridWarning")  # columns in raw units
@pytest.mark.parametrize("secret", [b"", b"1", b"2"])
def test_default_cross_validation_of_a_logistic_model_goes_through(secret):
    """Its smallest alpha has 12.7 effective rows at the worst site, 9.4 in the worst fold."""
    federation = InProcess(cf.data.bundled.breast_cancer().federation(), policy=DisclosurePolicy())
    for site in federation.sites:
        site.memory.secret = secret
    model = cf.FederatedLogisticRegressionCV().fit_federation(federation)
    assert model.certificate_.holds


@pytest.mark.parametrize(
    "estimator",
    [
        cf.FederatedLassoCV(n_alphas=5), cf.FederatedPoissonRegressorCV(n_alphas=5), cf.FederatedHuberCV(delta=50, n_alphas=5),
        cf.FederatedGroupLassoCV(n_alphas=5, groups=[[0, 1], [2, 3], [4, 5, 6, 7, 8, 9]]), cf.FederatedLasso(),
    ],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_ordinary_regressions_go_through(estimator):
    sites = cf.data.bundled.diabetes().federation()
    model = estimator.fit_federation(InProcess(sites, policy=DisclosurePolicy()))
    assert model.certificate_.holds


def test_a_default_huber_on_labels_in_large_units_is_refused_with_the_way_out():
    federation = InProcess(cf.data.bundled.diabetes().federation(), policy=DisclosurePolicy())
    with pytest.raises(cf.InputError, match=r"rests on fewer rows than its min_rows; use .* a wider loss \(delta"):
        cf.FederatedHuber().fit_federation(federation)


# --- scores ---


@pytest.mark.parametrize("rows", [3, 9, 10, 19, 20, 25, 57])
@pytest.mark.parametrize("min_rows", [1, 10])
def test_counts_of_a_score_are_rounded_to_blocks(rows, min_rows):
    """They bound the count, do not fall, and every difference of two of them is of no row or of min_rows rows."""
    rounding, counts = ScoreRounding(min_rows), np.arange(rows + 1)
    low, high = rounding.down(counts, rows), rounding.up(counts, rows)
    assert (low <= counts).all()
    assert (counts <= high).all()
    assert (np.diff(low) >= 0).all()
    assert (np.diff(high) >= 0).all()
    cuts = np.unique([*low, *high, 0, rows])
    assert np.diff(cuts).min() >= min(min_rows, rows)
    if min_rows == 1:
        assert (low == high).all()


def test_bounds_of_a_score_hold_for_the_rows_at_every_threshold():
    rng = np.random.default_rng(0)
    for n in (1, 12, 35, 300):
        z, q = np.round(rng.standard_normal(n), 1), rng.uniform(0.5, 2, n)
        edges = np.sort(rng.uniform(-3, 3, 50))
        rounding = ScoreRounding.of(10, z)
        (low,), (high,) = rounding.bounds(z, q[None], edges)
        for e, a, b in zip(edges, low, high, strict=True):
            assert a - 1e-12 <= q[z <= e].sum() <= b + 1e-12


def test_thresholds_of_a_score_are_moved_to_the_grid_of_the_site():
    """Thresholds between two points of the grid say nothing: a row's score is not found by bisection."""
    z = np.random.default_rng(0).standard_normal(200)
    rounding = ScoreRounding.of(10, z)
    assert rounding.step / z.std() == pytest.approx(10 / 200)
    away = np.floor((z[0] - z.mean()) / rounding.step) + np.array([0.1, 0.5, 0.9])
    between = away * rounding.step + z.mean()
    low, high = rounding.bounds(z, np.ones((1, 200)), between)
    assert len(np.unique(low)) == len(np.unique(high)) == 1
