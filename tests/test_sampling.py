"""Schemes of sampling, over all samples there are: how often each is drawn, and what the mean of the means is."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from samples import WEIGHTS, samples

from compfed.sampling import (
    SCHEMES,
    inclusion_probabilities,
    is_drawn,
    mean_weights,
    participants,
    participation_ranks,
    run_key,
    scheme_in_use,
)

U = np.random.default_rng(0).standard_normal((len(WEIGHTS), 3))  # what clients would answer


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_mean_over_all_samples_is_that_over_all_clients_unless_it_is_a_ratio(scheme, k):
    given = inclusion_probabilities(WEIGHTS, k)
    expected, in_all = np.zeros(3), 0.0
    for who, chance in samples(scheme, WEIGHTS, k):
        assert len(who) == k
        weight, share = mean_weights(scheme, given, WEIGHTS, who)
        if scheme != "uniform":
            assert weight.sum() == pytest.approx(1.0, abs=1e-9)
        if scheme != "proportional":
            np.testing.assert_allclose(share * (weight @ U[who]), WEIGHTS[who] @ U[who], rtol=1e-12)
        expected, in_all = expected + chance * (weight @ U[who]), in_all + chance
    assert in_all == pytest.approx(1.0)
    error = np.abs(expected - WEIGHTS @ U).max()
    assert error > 0.01 if scheme == "self-normalised" else error < 1e-8  # chances are multiples of 2^-32


def test_a_client_is_drawn_in_proportion_to_its_weight_or_always():
    even = inclusion_probabilities(np.array([0.3, 0.25, 0.2, 0.15, 0.1]), 2)
    np.testing.assert_allclose(even.chance / 2**32, [0.6, 0.5, 0.4, 0.3, 0.2], atol=1e-9)
    np.testing.assert_array_equal(even.weight, 0.5)  # a plain mean
    heavy = inclusion_probabilities(np.array([0.6, 0.25, 0.1, 0.05]), 3)  # 3 * 0.6 > 1, and then 2 * 0.25 / 0.4 > 1
    np.testing.assert_array_equal(heavy.always, [True, True, False, False])
    np.testing.assert_allclose(heavy.chance[2:] / 2**32, [2 / 3, 1 / 3], atol=1e-9)
    np.testing.assert_allclose(heavy.weight, [0.6, 0.25, 0.15, 0.15])


@pytest.mark.parametrize(
    "weights", [[0.5, 0.5 - 1e-12, 1e-12], [1 - 2e-300, 1e-300, 1e-300], [0.2 + 4e-16] + [0.2] * 4]
)
def test_weights_of_any_size_give_samples_of_the_size_asked_for(weights):
    p = np.array(weights)
    for k in range(1, len(p)):
        given = inclusion_probabilities(p, k)
        assert int(given.chance.astype(np.int64).sum()) == (k - int(given.always.sum())) * 2**32
        for start in (0, 1, 2**31, 2**32 - 1):
            assert int(is_drawn(given, jnp.arange(len(p)), jnp.uint32(start)).sum()) == k


@pytest.mark.parametrize("k", [1, 2, 3])
def test_what_is_drawn_is_where_the_comb_falls(k):
    """For every order and many places to start, against intervals of real numbers."""
    given = inclusion_probabilities(WEIGHTS, k)
    pi = np.where(given.always, 1.0, given.chance / 2**32)
    mask = jax.jit(is_drawn)
    for order in itertools.islice(itertools.permutations(range(5)), 0, None, 3):
        ends = np.cumsum(pi[list(order)])
        for start in (0.037, 0.313, 0.621, 0.977):
            comb = np.searchsorted(ends, start + np.arange(k))
            who = np.flatnonzero(mask(given, jnp.array(order), jnp.uint32(int(start * 2**32))))
            assert who.tolist() == sorted(order[j] for j in comb)


def test_where_all_schemes_agree_the_draws_are_the_uniform_ones():
    assert scheme_in_use("proportional", np.full(5, 0.2), 2) == "self-normalised"
    assert scheme_in_use("uniform", WEIGHTS, len(WEIGHTS)) == "self-normalised"
    assert scheme_in_use("uniform", WEIGHTS, 2) == "uniform"


def test_over_many_rounds_clients_take_part_as_often_as_they_should_and_all_pairs_meet():
    k, rounds = 2, 4000
    given = inclusion_probabilities(WEIGHTS, k)
    draw = jax.vmap(lambda r: participants("proportional", given, run_key(0), r, jnp.arange(5), k))
    who = np.asarray(draw(jnp.arange(rounds)))
    assert (np.diff(who, axis=1) > 0).all()  # in order, nobody twice
    seen = np.bincount(who.ravel(), minlength=5) / rounds
    np.testing.assert_allclose(seen, k * WEIGHTS, atol=4 * np.sqrt(0.25 / rounds))
    assert {tuple(pair) for pair in who} == set(itertools.combinations(range(5), 2))


def test_few_of_many_are_any_of_them_whatever_their_order():
    n, k, key = 1024, 16, run_key(0)
    ids = jnp.asarray(np.random.default_rng(0).permutation(n) * 3)

    def chosen(r, ids):
        return ids[participants("self-normalised", None, key, r, ids, k)]

    rounds = jnp.arange(4000)
    drawn = np.asarray(jax.vmap(lambda r: chosen(r, ids))(rounds))
    again = np.asarray(jax.vmap(lambda r: chosen(r, jnp.sort(ids)))(rounds[:50]))
    np.testing.assert_array_equal(np.sort(drawn[:50], axis=1), again)
    assert all(len(set(row)) == k for row in drawn.tolist())
    # each is in k/n of the samples, each pair in k(k-1)/(n(n-1)): counts of 62.5 and of 0.91, whose deviations have mean square 1
    counts = np.bincount(drawn.ravel() // 3, minlength=n)
    assert ((counts - 62.5) ** 2 / (62.5 * (1 - k / n))).mean() == pytest.approx(1.0, abs=0.2)
    pairs = np.zeros((n, n))
    for row in drawn // 3:
        pairs[np.ix_(row, row)] += 1
    expected = len(rounds) * k * (k - 1) / (n * (n - 1))
    off_diagonal = pairs[np.triu_indices(n, 1)]
    assert ((off_diagonal - expected) ** 2 / expected).mean() == pytest.approx(1.0, abs=0.02)


def test_the_draw_of_few_of_many_has_no_number_for_each_of_them():
    drawing = str(jax.make_jaxpr(lambda r: participation_ranks(run_key(0), r, 10**6, 100))(0))
    assert "[100]" in drawing
    assert "1000000]" not in drawing  # no array of all clients
