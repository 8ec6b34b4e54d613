"""Attacks by `Score`, `Tabulate`, enrolments and profiles that are about budgets, words and time rather than the rows of a table."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from attacks.target import BEYOND, POLICY, Target, breast_cancer, make_site

import compfed as cf
from compfed.data.raw_table import RawColumn, RawTable, words_array
from compfed.federation import Evaluate, Score, Site, Tabulate
from compfed.federation.site.rows import Rows
from compfed.federation.spec import FeatureScaling, ObjectiveSpec
from compfed.losses import Huber, Logistic, Softmax

ROWS = 143
X, Y = breast_cancer(ROWS)
NO_LINES = np.empty((0, 2))


def scored(target: Target, x: np.ndarray, edges: np.ndarray, scaling: FeatureScaling):
    objective = ObjectiveSpec(Logistic(), scaling, np.array([0, 1]))
    return target.ask(Score(objective, x, edges[None], np.empty(0), NO_LINES))[0]


# --- scores ---


def test_a_model_of_a_hundred_classes_counts_as_a_hundred_scores():
    """Each output is a direction of its own, and each bound on a count is a number."""
    target, outputs = Target(make_site(X, Y, POLICY), line=0.5), 100
    scaling = replace(target.scaling(), outputs=outputs)
    objective = ObjectiveSpec(Softmax(outputs=outputs), scaling, np.arange(float(outputs)))
    edges = np.tile(np.linspace(-3, 3, 10), (outputs, 1))
    query = Score(objective, np.zeros(31 * outputs), edges, np.empty(0), NO_LINES)
    assert BEYOND in target.ask(query)[0].reason
    assert target.share < 0.05  # nothing of it left


def test_the_intercept_and_the_length_of_a_model_move_no_count():
    """Thresholds that move with the scores give the same counts: there is nothing to bisect."""
    target = Target(make_site(X, Y, POLICY))
    scaling, w, t = target.scaling(), np.random.default_rng(0).normal(size=30) / 8, np.linspace(-3.001, 3.002, 90)
    first = scored(target, np.append(w, 0.0), t, scaling)
    for shift, length in ((0.0123, 1.0), (-0.3, 1.0), (0.0, 1.37), (0.01, 0.9)):
        other = scored(target, length * np.append(w, shift), length * (t + shift), scaling)
        np.testing.assert_array_equal(other.low, first.low)
        np.testing.assert_array_equal(other.high, first.high)


def test_extreme_scores_show_at_whole_standard_deviations_only():
    target = Target(make_site(X, Y, POLICY))
    scaling, t = target.scaling(), np.linspace(-5, 12, 97)
    step = t[1] - t[0]
    for j in range(10):
        reply = scored(target, np.eye(31)[j], t, scaling)
        none, every = reply.high[0, :, 0] == 0, reply.low[0, :, 0] == reply.class_weights[:, None]
        for shows, last in ((none, True), (every, False)):
            for group in shows:
                at = t[np.flatnonzero(group)[-1 if last else 0]]  # a threshold beside the one at which it shows
                assert min(at % 1, 1 - at % 1) <= 1.01 * step


def test_sums_of_probabilities_in_blocks_are_withheld():
    """Ten of them in a block, exact at many models, would be ten unknowns with many equations."""
    target = Target(make_site(X, Y, POLICY))
    reply = scored(target, np.eye(31)[0], np.linspace(-4, 8, 100), target.scaling())
    assert not reply.low[:, :, 1].any()
    np.testing.assert_array_equal(reply.high[:, :, 1], reply.high[:, :, 0])


# --- tables ---

RNG = np.random.default_rng(0)
AGE = np.rint(RNG.normal(60, 12, ROWS))
NAMES = words_array([f"person {k % 40}" for k in range(ROWS)])  # three visits each, and more: names, not levels
LEVELS = words_array(RNG.choice(["a", "b"], ROWS).tolist())


def raw_site(policy, **columns: np.ndarray) -> Site:
    raw = RawTable("north", {name: RawColumn(values) for name, values in columns.items()}, np.arange(ROWS))
    schema = cf.Schema({name: cf.NumericColumn() for name in columns if name != "label"}, cf.Label("label"))
    return Site(Rows.to_agree(raw, schema, "has no schema.", name="north", index=0), policy=policy)


@pytest.mark.parametrize("policy", [None, POLICY], ids=["none", "policy"])
@pytest.mark.parametrize(("column", "guess"), [("name", "person 3"), ("age", str(int(np.median(AGE))))])
def test_a_guessed_name_or_number_is_not_confirmed(column, guess, policy):
    """Both are there in three rows and more, so that they would be levels if the column had any."""
    site = raw_site(policy, age=AGE, name=NAMES, label=Y.astype(float))
    found, absent = Target(site).ask(Tabulate((), (), (column,), ((guess, "17.5"),)))[0].levels
    assert np.array_equal(found, absent) == (policy is not None)
    assert policy is None or found.tolist() == [0, ROWS]


def test_levels_and_classes_are_counted():
    site = raw_site(POLICY, kind=LEVELS, label=Y.astype(float))
    (reply,) = Target(site).ask(Tabulate((), (), ("kind", "label"), (("a", "b"), ("0", "1"))))
    exact = [(LEVELS == "a").sum(), (LEVELS == "b").sum(), (Y == 0).sum(), (Y == 1).sum()]
    assert (reply.levels[:, 0] <= exact).all()
    assert (reply.levels[:, 1] >= exact).all()
    assert (np.diff(reply.levels) == POLICY.min_level_rows - 1).all()


def test_no_word_of_fewer_than_min_level_rows_rows_is_in_an_enrolment():
    """Words of random counts as levels and as labels: those of one or two rows are nowhere in what leaves."""
    seen = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        tables = {}
        for name in ("kind", "label"):
            counts = rng.integers(1, 8, int(rng.integers(2, 30)))
            words = [f"{name}-{k}-" for k, count in enumerate(counts) for _ in range(count)]
            tables[name] = (words + [f"{name}-often-"] * ROWS)[:ROWS]
        columns = {name: words_array(rng.permutation(words).tolist()) for name, words in tables.items()}
        enrolment = raw_site(POLICY, **columns).enrol()
        text = " ".join(str(value) for value in vars(enrolment).values())
        rare = [word for words in tables.values() for word in set(words) if words.count(word) < POLICY.min_level_rows]
        seen += len(rare)
        assert not [word for word in rare if word in text]
    assert seen > 100


# --- time ---


@pytest.mark.parametrize("size", [1.0, 1e150, 1e300])
def test_the_intercept_of_a_site_is_found_soon_at_any_model(size):
    """A model of 1e300 took a thousand passes over the rows to find an interval, and one of 1 threads for each pass."""
    A = np.random.default_rng(0).normal(size=(5_000, 3))
    for loss in (Huber(), Logistic()):
        site = make_site(A, (A[:, 0] > 0).astype(int), None)
        classes = np.array([0, 1]) if isinstance(loss, Logistic) else None
        objective = ObjectiveSpec(loss, FeatureScaling(np.zeros(3), np.ones(3), False), classes, profile=True)
        start = time.process_time()
        site.reply((Evaluate(objective, size * np.ones((20, 3))),))
        assert time.process_time() - start < 2.0
