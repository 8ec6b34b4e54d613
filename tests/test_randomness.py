"""Randomness: uniform subsets, and draws that depend on (seed, round, client) alone."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import logistic
from scipy import stats

import compfed as cf
from compfed import sampling as randomness
from compfed.sampling import client_key, participation_scores, run_key, sample_rows

# Fixed seeds: a p-value below this is not bad luck that may come back, it is a change to look at.
LEAST_P = 1e-4
TIMES = 4000


@jax.jit
def keys(seed, client):
    """The keys that a client gets in rounds 0, 1, 2, ..., TIMES - 1."""
    return jax.vmap(lambda r: client_key(run_key(seed), r, client))(jnp.arange(TIMES))


@partial(jax.jit, static_argnames=("capacity", "size"))
def subsets(keys, rows, capacity, size):
    """One subset for each key; `rows` is traced."""
    return jax.vmap(lambda key: sample_rows(key, rows, capacity, size))(keys)


def draws(seed: int, rows: int, capacity: int, size: int, client: int = 3) -> np.ndarray:
    return np.asarray(subsets(keys(seed, client), rows, capacity, size))


# (rows, capacity, size): what decides between the ways of drawing
REGIMES = {
    "hashed": (20, 20, 6),  # size <= 64
    "hashed, most of the rows": (20, 20, 15),
    "hashed, little of the capacity in use": (20, 50_000, 6),
    "hashed, large batch": (900, 900, 80),  # size > 64 and size^2 <= 8 capacity
    "smallest scores": (90, 90, 80),  # size > 64 and size^2 > 8 capacity
    "smallest scores, not all of the capacity in use": (90, 110, 80),
    "many rows": (20, 2**16, 6),  # capacity >= 2^16
    "many rows, large batch": (900, 2**16, 80),
    "one row": (5, 5, 1),
    "every row, hashed": (12, 12, 12),
    "every row, smallest scores": (70, 70, 70),
}


def p_values(found: np.ndarray, rows: int) -> list[float]:
    """Are single rows, and pairs of rows, drawn equally often? One p-value each.

    Counts of a random k-subset are correlated, but in a known way: the covariance of the pair counts has three
    eigenspaces (constants, row effects, the rest), so squared norms within each are chi-square after division by the
    eigenvalue. P_j is the probability that j given rows are all in the subset.
    """
    times, k = found.shape
    P = [np.prod([(k - j) / (rows - j) for j in range(i)]) for i in range(5)]
    member = np.zeros((times, rows))
    np.put_along_axis(member, found, 1.0, axis=1)
    single = member.sum(axis=0) - times * P[1]
    variance = P[1] * (1 - P[1]) * rows / (rows - 1)
    tests = [stats.chi2(rows - 1).sf((single**2).sum() / (times * variance))]
    if k > 1:
        pairs = member.T @ member - times * P[2]
        np.fill_diagonal(pairs, 0.0)
        effect = pairs.sum(axis=0) / (rows - 2)
        rest = (pairs - effect[:, None] - effect)[np.triu_indices(rows, 1)]
        variance = (P[2] - P[2] ** 2) - 2 * (P[3] - P[2] ** 2) + (P[4] - P[2] ** 2)
        tests.append(stats.chi2(rows * (rows - 3) / 2).sf((rest**2).sum() / (times * variance)))
    return tests


def subset_p_value(found: np.ndarray, rows: int) -> float:
    """Is every subset drawn equally often?"""
    names = {subset: i for i, subset in enumerate(combinations(range(rows), found.shape[1]))}
    counts = np.bincount([names[tuple(batch)] for batch in np.sort(found, axis=1).tolist()], minlength=len(names))
    return stats.chisquare(counts).pvalue


def test_the_p_values_are_right_for_a_generator_that_is():
    """The statistics themselves, on NumPy's subsets; and they convict a slightly uneven generator."""
    rng = np.random.default_rng(0)
    fair = np.array([[rng.choice(20, 6, replace=False) for _ in range(200)] for _ in range(50)])
    uneven = rng.permuted(np.tile(np.arange(19), (6000, 1)), axis=1)[:, :6]  # never row 19
    p = np.array([p_values(batch, 20) for batch in fair])
    assert all(stats.kstest(column, "uniform").pvalue > LEAST_P for column in p.T)
    assert min(p_values(uneven, 20)) < 1e-10
    paired = np.sort(uneven, axis=1)
    paired[:, 1] = np.where(paired[:, 1] > paired[:, 0] + 3, paired[:, 0] + 1, paired[:, 1])  # neighbours too often
    assert p_values(paired, 20)[1] < 1e-10


@pytest.mark.parametrize("regime", REGIMES)
def test_rows_are_distinct_and_within_range(regime):
    rows, capacity, size = REGIMES[regime]
    found = draws(0, rows, capacity, size)
    assert found.shape == (TIMES, size)
    assert found.min() >= 0
    assert found.max() < rows
    assert all(len(set(batch)) == size for batch in found.tolist())


@pytest.mark.parametrize("regime", [r for r in REGIMES if not r.startswith("every")])
def test_rows_and_pairs_are_equally_likely(regime):
    rows, capacity, size = REGIMES[regime]
    found = draws(1, rows, capacity, size)
    assert min(p_values(found, rows)) > LEAST_P


@pytest.mark.parametrize(
    ("rows", "capacity", "size"),
    [(6, 6, 3), (6, 2**16, 3), (67, 600, 66), (67, 67, 66)],
    ids=["hashed", "many rows", "hashed, large batch", "smallest scores"],
)
def test_every_subset_is_equally_likely(rows, capacity, size):
    found = draws(2, rows, capacity, size)
    assert subset_p_value(found, rows) > LEAST_P


@pytest.mark.parametrize(("rows", "size"), [(6, 3), (20, 20), (70, 60), (2000, 20), (1, 1)])
def test_without_loops_the_same_rows_are_drawn(monkeypatch, rows, size):
    """As on a GPU. The oracle is Floyd's algorithm as published, with the same draws."""
    keys = jax.random.split(jax.random.key(5), 200)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = np.asarray(jax.vmap(lambda key: randomness.sample_rows(key, rows, rows, size))(keys))
    last = np.arange(rows - size, rows)
    draws = np.asarray(jax.vmap(lambda key: randomness._integers(key, jnp.asarray(last) + 1, rows))(keys))
    for drawn, batch in zip(draws, found, strict=True):
        taken: list[int] = []
        for t, end in zip(drawn, last, strict=True):
            taken.append(int(end if t in taken else t))
        assert taken == batch.tolist()


def test_the_number_of_rows_may_differ_between_clients():
    """One compiled program, clients with few and with many rows: each stays within its own."""
    rows = jnp.array([6, 9, 700, 7])

    @jax.jit
    def all_clients(r):
        return jax.vmap(lambda i, m: sample_rows(client_key(run_key(0), r, i), m, 700, 6))(jnp.arange(4), rows)

    found = np.array([all_clients(r) for r in range(200)])
    assert (found < np.asarray(rows)[:, None]).all()
    assert all(len(set(batch)) == 6 for batch in found.reshape(-1, 6).tolist())
    assert found[:, 2].max() > 600, "the large client uses all of its rows"
    np.testing.assert_array_equal(np.sort(found[:, 0]), np.tile(np.arange(6), (200, 1)))


# --- keys ---


def test_every_seed_round_and_client_has_its_own_key():
    keys = {
        jax.random.key_data(client_key(run_key(seed), r, i)).tobytes()
        for seed in range(4)
        for r in range(6)
        for i in range(6)
    }
    assert len(keys) == 4 * 6 * 6


def test_different_rounds_and_clients_draw_different_rows():
    found = [
        np.asarray(sample_rows(client_key(run_key(0), r, i), 10_000, 10_000, 8)).tolist()
        for r, i in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    # two batches of 8 from 10,000 rows share a row with probability 0.006
    assert len({row for batch in found for row in batch}) == 4 * 8


def test_successive_draws_of_a_client_are_independent():
    """Rows drawn in round r say nothing of those in round r + 1, nor do those of the next client."""
    first, neighbour = draws(3, 5, 5, 1)[:, 0], draws(3, 5, 5, 1, client=4)[:, 0]
    for one, other in ((first[:-1], first[1:]), (first, neighbour)):
        table = np.zeros((5, 5))
        np.add.at(table, (one, other), 1)
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        # 25 cells, 16 degrees of freedom
        assert stats.chisquare(table.ravel(), expected.ravel(), ddof=8).pvalue > LEAST_P


def test_keys_do_not_depend_on_visiting_order_or_on_vmap():
    run = run_key(5)
    together = jax.random.key_data(jax.vmap(lambda i: client_key(run, 7, i))(jnp.arange(6)))
    for i in (4, 0, 5, 2):
        np.testing.assert_array_equal(jax.random.key_data(client_key(run, 7, i)), together[i])
    with jax.enable_x64(True):  # nor on the precision of the run
        np.testing.assert_array_equal(jax.random.key_data(client_key(run_key(5), 7, 2)), together[2])


def test_a_permuted_federation_runs_the_same():
    sites = cf.data.synthetic(clients=5, samples=[12, 30, 7, 25, 9], features=8, seed=1)
    models = []
    for s in (sites, sites.permuted([3, 0, 4, 2, 1])):
        problem = cf.Problem(cf.losses.Logistic(ridge=0.05), cf.regularisers.L1(1e-3), s)
        models.append(cf.simulate(problem, cf.algorithms.FedDA(eta=1.0), 5, batch_size=4, participants=3, seed=2).x)
    np.testing.assert_allclose(models[0], models[1], rtol=1e-12, atol=1e-15)


# --- participation ---


@jax.jit
def all_scores(run, clients):
    return jax.vmap(lambda r: participation_scores(run, r, clients))(jnp.arange(TIMES))


def test_each_client_and_each_group_is_chosen_equally_often():
    scores = np.asarray(all_scores(run_key(0), jnp.arange(6)))
    for k in (1, 3):
        chosen = np.argsort(scores, axis=1)[:, :k]
        assert min(p_values(chosen, 6)) > LEAST_P
        assert subset_p_value(chosen, 6) > LEAST_P


def test_a_score_belongs_to_the_client_not_to_its_place():
    scores = np.asarray(all_scores(run_key(0), jnp.arange(6)))
    order = np.array([5, 2, 0, 1, 4, 3])
    np.testing.assert_array_equal(all_scores(run_key(0), jnp.asarray(order)), scores[:, order])


@pytest.mark.parametrize("engine", [cf.simulate, cf.simulation.run_plain], ids=["simulate", "reference"])
def test_the_engines_choose_k_distinct_clients_by_the_scores(engine):
    problem = logistic()
    chosen = set()
    for seed in range(4):
        trace = engine(problem, cf.algorithms.DecoupledProx(eta=0.1), 1, participants=2, seed=seed)
        sums = trace.state.clients[2]  # only participants remember a gradient sum after the first round
        worked = tuple(np.flatnonzero(np.abs(sums).sum(axis=1)))
        expected = np.argsort(np.asarray(participation_scores(run_key(seed), 0, jnp.arange(5))))[:2]
        assert worked == tuple(sorted(expected))
        chosen.add(worked)
    assert len(chosen) > 1
