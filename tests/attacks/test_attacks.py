"""Attacks of a server that chooses its queries, and of a site that lies: each works on a site without a policy.

Under the default policy no row is recovered, but for the attacks of `WITHIN_THE_RULES`: their numbers are in README.md, and the
tests here keep them true. What the operator of a network sees is in test_operator.py; the measure is in measure.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attacks import by_federation, by_models, by_sandwich
from attacks.by_federation import Sums
from attacks.by_subsets import fedavg_run, fold, update_query
from attacks.measure import Totals, recovered
from attacks.registry import ATTACKS, WITHIN_THE_RULES
from attacks.target import BEYOND, POLICY, SumTarget, Target, breast_cancer, make_site

import compfed as cf
from compfed.federation import (
    Describe,
    DisclosurePolicy,
    Evaluate,
    HeldOut,
    Inference,
    InProcess,
    Lipschitz,
    Moments,
    Query,
    Refusal,
    Request,
    ask,
    run_program,
)
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Logistic, Poisson, Softmax, Squared
from compfed.losses.base import symmetric_matrix

TABLE = cf.data.bundled.breast_cancer()
README = (Path(__file__).parent / "README.md").read_text()
# rows of 40 that an attack must recover from a site without a policy; all of them unless named here
LEAST = dict.fromkeys(("tiny delta", "kinks of Huber", "kinks of the hinge", "kinks of the quantile"), 36)
LEAST |= {
    "Lipschitz of one row": 36,
    "half-space by rounds": 36,
    "Hessian pieces": 25,
    "sums of sigmoids": 15,
    "conjugate": 8,
    "absolute errors": 3,
    "extreme scores": 1,
    "largest prediction": 1,
    "poles of leave-one-out": 1,
    "half-space by products": 3,
    "largest residuals": 15,
}
both = pytest.mark.parametrize("policy", [None, POLICY], ids=["none", "policy"])


# --- the rows of one site ---


@pytest.mark.parametrize("name", ATTACKS | WITHIN_THE_RULES)
def test_the_attack_recovers_rows_of_a_site_without_a_policy(name):
    X, y = breast_cancer(40)
    found = (ATTACKS | WITHIN_THE_RULES)[name].quick(Target(make_site(X, y, None)))
    assert recovered(found, X) >= LEAST.get(name, 40)


@pytest.mark.parametrize("rows", [pytest.param(143, marks=pytest.mark.thorough), 40])
@pytest.mark.parametrize("name", ATTACKS)
def test_the_attack_recovers_no_row_under_the_default_policy(name, rows):
    X, y = breast_cancer(rows)
    target = Target(make_site(X, y, POLICY))
    assert recovered(ATTACKS[name].quick(target), X) == 0
    assert not isinstance(target.ask(Moments())[0], Refusal)  # it met the rules for queries, and not a closed door


def stated(name: str) -> list[int]:
    """The numbers of an attack in the table of README.md: before (of 143, of 40), after (of 143, of 40)."""
    (line,) = [line for line in README.splitlines() if line.startswith(f"| {name} |") and line.count("|") > 7]
    return [int(cell) for cell in line.split("|")[3:7]]


@pytest.mark.parametrize("name", ATTACKS)
def test_the_table_states_that_no_row_is_recovered(name):
    assert stated(name)[2:] == [0, 0]


@pytest.mark.parametrize("rows", [pytest.param(143, marks=pytest.mark.thorough), 40])
@pytest.mark.parametrize("name", WITHIN_THE_RULES)
def test_an_attack_within_the_rules_recovers_no_more_than_the_table_states(name, rows):
    X, y = breast_cancer(rows)
    attack, most = WITHIN_THE_RULES[name], stated(name)[2 if rows == 143 else 3]
    count = recovered((attack.run if rows == 143 else attack.quick)(Target(make_site(X, y, POLICY))), X)
    assert count <= most
    assert rows == 40 or count >= 0.9 * most  # the table is not out of date


@pytest.mark.parametrize("rows", [pytest.param(143, marks=pytest.mark.thorough), 40])
@pytest.mark.parametrize("name", WITHIN_THE_RULES)
def test_an_attack_within_the_rules_recovers_nothing_with_the_numbers_that_a_rule_may_approve(name, rows):
    """The attacker spends what there is: messages beyond the line are refused, and smaller ones follow."""
    X, y = breast_cancer(rows)
    attack, target = WITHIN_THE_RULES[name], Target(make_site(X, y, POLICY), line=POLICY.share_by_rule)
    assert recovered((attack.run if rows == 143 else attack.quick)(target), X) == 0
    assert target.share <= POLICY.share_by_rule
    assert any(BEYOND in reason for _, reason in target.refusals) or name in REFUSED_BEFORE


REFUSED_BEFORE = ()  # attacks that need fewer numbers than a rule may approve


@pytest.mark.thorough
def test_totals_of_four_sites_give_rows_of_a_fold_within_the_rules():
    """A fold has 60 rows of four sites; 3,906 gradients of its totals give them all, and nobody knows whose they are."""
    sites = [make_site(TABLE.X[TABLE.sites == i], TABLE.y[TABLE.sites == i], POLICY, i) for i in range(4)]
    found = by_models.span_by_gradients(SumTarget(sites), 5_000)
    assert recovered(found, TABLE.X) == 60


def _weighted_by_rows(query: Query) -> Any:
    (sums,) = yield [Request((query,), weighting="rows", weights=np.ones(3) / 3)]
    return sums


@pytest.mark.parametrize("policy", [None, POLICY, DisclosurePolicy(min_rows=1, max_hessian_share=np.inf)])
def test_a_covariance_clustered_over_three_sites_gives_a_colluding_one_the_gradients_of_the_others(policy):
    """At the optimum the three gradients add up to zero: one of them and the sum of their products give the two others."""
    sites = [make_site(TABLE.X[TABLE.sites == i, :4], TABLE.y[TABLE.sites == i], policy, i) for i in range(3)]
    federation, objective = (
        InProcess(sites),
        ObjectiveSpec(Squared(), FeatureScaling(np.full(4, 10.0), np.ones(4), True)),
    )
    X, y = (np.concatenate([values[TABLE.sites == i] for i in range(3)]) for values in (TABLE.X, TABLE.y))
    A = np.column_stack([X[:, :4] - 10.0, np.ones(len(X))])
    x = np.linalg.lstsq(A, y, rcond=None)[0]
    asked = Inference(objective, x, np.arange(5), clustered=True)
    if policy is not None:
        with pytest.raises(cf.InputError, match="needs at least 10 sites: of fewer, gradients of single sites follow"):
            ask(federation, asked)
        return
    where = np.concatenate([np.full(int((TABLE.sites == i).sum()), i) for i in range(3)])
    true = [((A @ x - y)[where == i]) @ A[where == i] for i in range(3)]
    (reply,) = run_program(federation, _weighted_by_rows(asked))[0]
    total = len(X) * symmetric_matrix(reply.products, 5)  # the server is sent the sum over the number of rows
    found = by_sandwich.scores_of_two_sites(total, true[2])
    off = min(np.abs(np.array(found) - np.array(order)).max() for order in (true[:2], true[1::-1]))
    assert off < 1e-9 * np.abs(true).max()


@both
def test_moments_of_a_site_of_one_row_are_the_row(policy):
    X, y = breast_cancer(1)
    found = by_federation.moments_of_a_row(Target(make_site(X, y, policy)))
    assert recovered(found, X, Totals.of(TABLE.X)) == (1 if policy is None else 0)


@both
@pytest.mark.parametrize("rows", [143, 40])
def test_a_tiny_delta_on_one_column_reads_the_feature_and_the_label_of_two_rows(rows, policy):
    pairs = breast_cancer(rows)[0][:, :2]  # the label is the second column
    found = by_federation.huber_parameters(Target(make_site(pairs[:, :1], pairs[:, 1], policy)))
    off = np.abs(pairs - found[:, None]) / np.ptp(pairs, axis=0)
    known = {int(row) for row, error in zip(*_nearest(off), strict=True) if error < 2e-3}
    assert len(known) == (2 if policy is None else 0)


def _nearest(off: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest row of each candidate, and how far it is."""
    worst = off.max(axis=-1)
    return (worst.argmin(axis=1), worst.min(axis=1)) if len(worst) else (np.empty(0, int), np.empty(0))


DIABETES = cf.data.bundled.diabetes()  # its labels are numbers of a measurement, and whole


@both
@pytest.mark.parametrize(("rows", "alphas"), [pytest.param(143, 50, marks=pytest.mark.thorough), (40, 15)])
def test_hessians_of_an_honest_fit_that_differ_by_one_row(rows, alphas, policy):
    """An ordinary FederatedHuberCV: nobody chose a model, and the server subtracts what it was sent."""
    X, y = DIABETES.X[:rows], DIABETES.y[:rows]
    estimator = cf.FederatedHuberCV(delta=80, n_alphas=alphas, cv=2)
    found = by_federation.hessians_of_an_honest_fit(Target(make_site(X, y, policy)), estimator)
    count = recovered(found, X)
    assert count >= 5 if policy is None else count == 0


@pytest.mark.thorough
@both
def test_the_span_of_the_hessians_of_an_honest_fit(policy):
    """The default cross-validation of the README, over four sites: the server keeps the totals, and no model was chosen."""
    sites = [make_site(TABLE.X[TABLE.sites == i], TABLE.y[TABLE.sites == i], policy, i) for i in range(4)]
    count = recovered(by_federation.span_of_an_honest_fit(sites, cf.FederatedLogisticRegressionCV()), TABLE.X)
    assert count >= 2 if policy is None else count == 0


# --- the Hessian of all rows beside that of a fold ---


def hessian_of(target: Target, loss: Any, subset: Any, coords: Any, x: Any = None) -> Any:
    objective = target.objective(loss, target.scaling(), subset)
    return target.ask(
        Evaluate(objective, np.zeros((1, target.width + 1)) if x is None else x, coords=np.asarray(coords))
    )[0]


def test_what_is_left_of_the_hessian_of_all_rows_is_that_of_the_rows_held_out():
    """To rounding for squared loss. For logistic loss Hessians are rounded, and so is the difference."""
    X, y = breast_cancer(143)
    site = make_site(X, y, POLICY)
    target, coords = Target(site), np.array([0, 1, 2, 30])
    out = fold(target, 0, 5)
    scaling, held = target.scaling(), out.mask(site.rows)
    Z = np.column_stack([(X - scaling.centre) / scaling.scale, np.ones(143)])[:, coords]
    for loss, curvature, error in ((Squared(), 1.0, 1e-12), (Logistic(), 0.25, 1e-3)):
        whole, train = (
            143 * loss.unpack_hessian(hessian_of(target, loss, subset, coords).hessian[0], coords) * share
            for subset, share in ((None, 1.0), (fold(target, 0, 5, held_out=False), (~held).sum() / 143))
        )
        expected = curvature * Z[held].T @ Z[held]
        off = np.abs(whole - train - expected).max() / np.abs(whole).max()
        assert off < error
        assert loss.quadratic or off > 1e-9


def test_hessians_of_all_rows_and_of_a_fold_count_about_the_rows_held_out():
    """Their difference is the Gram matrix of the rows held out: as many numbers as the smaller of the two has."""
    X, y = breast_cancer(143)
    target, coords = Target(make_site(X, y, POLICY)), np.arange(31)
    hessian_of(target, Squared(), None, coords)
    one = target.share
    hessian_of(target, Squared(), fold(target, 0, 5, held_out=False), coords)
    held = fold(target, 0, 5).mask(target._site.rows).sum()
    gram = 31 * 32 // 2
    # the groups of rows that are held out may be a row larger or smaller than others
    assert target.share >= 0.95 * gram / (30 * held) > 0.5
    assert one < 0.2


# --- totals of several sites ---


def sites_of(rows: list[int], policy: DisclosurePolicy | None) -> tuple[list[Any], np.ndarray]:
    ends = np.cumsum(rows)
    mixed = np.random.default_rng(1).permutation(len(TABLE.y))
    parts = [mixed[end - n : end] for end, n in zip(ends, rows, strict=True)]
    return [make_site(TABLE.X[p], TABLE.y[p], policy, i) for i, p in enumerate(parts)], TABLE.X[mixed[: ends[-1]]]


@both
def test_mini_batches_give_the_rows_of_all_sites_from_the_totals_alone(policy):
    sites, rows = sites_of([40, 30, 30], policy)
    assert recovered(by_federation.total_batches(Sums(sites)), rows) == (len(rows) if policy is None else 0)


@both
@pytest.mark.parametrize(("rows", "least"), [(143, 80), (40, 25)])
def test_a_site_that_lies_steers_an_honest_fit_to_the_rows_of_another(rows, least, policy):
    X, y = breast_cancer(rows)
    liar = make_site(TABLE.X[-30:], TABLE.y[-30:], None, 1)
    found, _ = by_federation.lying_site([make_site(X, y, policy, 0)], liar)
    count = recovered(found, X)
    assert count >= least if policy is None else count == 0


# --- labels and refusals ---


@both
@pytest.mark.parametrize("rows", [143, 40])
def test_labels_that_few_rows_have_are_listed_as_classes(rows, policy):
    labels = DIABETES.y[:rows]
    values, counts = np.unique(labels, return_counts=True)
    rare = {float(v): float(c) for v, c in zip(values, counts, strict=True) if c < 3}
    found = by_federation.listed_labels(Target(make_site(DIABETES.X[:rows], labels, policy)))
    assert {v: c for v, c in found.items() if c < 3} == (rare if policy is None else {})


@both
@pytest.mark.parametrize("rows", [143, 40])
def test_classes_are_an_oracle_for_labels(rows, policy):
    labels = DIABETES.y[:rows]
    target = Target(make_site(DIABETES.X[:rows], labels, policy))
    found = by_federation.labels_by_refusals(target, range(20, 360))
    assert found == (np.unique(labels).tolist() if policy is None else [])


@pytest.mark.parametrize("least", [0.0, -1.0])
def test_a_refusal_of_poisson_is_one_bit_about_the_smallest_label(least):
    """A known rest: a regression of counts must be refused where a label is negative. Which label it is stays unknown."""
    y = DIABETES.y[:40] - DIABETES.y[:40].min() + least
    target = Target(make_site(DIABETES.X[:40], y, POLICY))
    assert by_federation.negative_label(target) == (least < 0)
    assert not any(re.search(r"-\d", reason) for _, reason in target.refusals)


def refused_queries(width: int) -> list[Query]:
    """Queries that a site refuses for each of its reasons."""
    scaling = FeatureScaling(np.zeros(width), np.ones(width), intercept=True)
    objective, x = ObjectiveSpec(Squared(), scaling), np.zeros((1, width + 1))
    one = fold(Target(make_site(np.zeros((2, width)), np.zeros(2), None)), 0, 5_000)
    return [
        Evaluate(objective, x, coords=np.arange(width + 1)),
        Moments(subset=one),
        HeldOut(objective, one, x),
        Lipschitz(ObjectiveSpec(Squared(), scaling, subset=one)),
        Evaluate(ObjectiveSpec(Squared(), scaling, subset=one), x),
        Describe(classes=True),
        *[Evaluate(ObjectiveSpec(loss, scaling), x) for loss in (Poisson(), Logistic())],
        Evaluate(ObjectiveSpec(Softmax(outputs=2), scaling), np.zeros((1, 2 * width + 2))),
        Evaluate(ObjectiveSpec(Logistic(), scaling, classes=np.array([7.0, 8.0])), x),
        *[update_query(fedavg_run(objective, width + 1, capacity, 500), 0) for capacity in (500, 600)],
    ]


@pytest.mark.parametrize(
    "policy",
    [None, DisclosurePolicy(min_rows=200), DisclosurePolicy(max_hessian_share=0.05)],
    ids=["none", "rows", "share"],
)
def test_a_refusal_is_the_same_text_whatever_the_rows_and_says_no_count_and_no_label(policy):
    """Two sites of one name that differ in rows and labels: a text that depends on them differs."""
    rng = np.random.default_rng(0)
    texts, count = [], 0
    for n, shift in ((143, 0.25), (37, 0.75)):
        X, y = rng.standard_normal((n, 6)), np.arange(n) - 3 + shift
        texts.append(
            [getattr(r, "reason", None) for r in make_site(X, y, policy, name="north").reply(refused_queries(6))]
        )
    for one, other in zip(*texts, strict=True):
        if one is not None and other is not None:
            count += 1
            assert one == other
            assert not {"143", "37", "-3", "-2.75", "-2.25"} & set(re.findall(r"-?\d+(?:\.\d+)?", one))
    assert count >= 4


def test_the_attacks_count_their_queries_and_keep_refusals():
    target = Target(make_site(*breast_cancer(40), DisclosurePolicy(min_rows=41)))
    for attack in ATTACKS.values():
        assert len(attack.quick(target)) == 0  # everything is refused, and no attack fails of it
    assert target.queries == len(target.refusals) > 100
    assert all(isinstance(reason, str) for _, reason in target.refusals)
    assert isinstance(target.ask(Moments())[0], Refusal)
