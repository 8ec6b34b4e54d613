"""Attacks on the sums of survival: event times from grids that move, rows from risks at many models, rows of few events."""

from __future__ import annotations

from typing import Any

import numpy as np

from compfed.federation import DisclosurePolicy, Evaluate, Site
from compfed.federation.queries import AtRisk
from compfed.federation.query import Refusal
from compfed.federation.site import at_risk as site_at_risk
from compfed.federation.site.rows import Rows
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import CoxPartialLikelihood

COX = ObjectiveSpec(CoxPartialLikelihood())
NO_FEATURES = ObjectiveSpec(CoxPartialLikelihood(), columns=np.empty(0, int))


def clinic(rows=100, seed=0, events=0.7):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (rows, 2))
    y = np.column_stack([np.minimum(rng.exponential(10, rows) + 0.5, 40), rng.random(rows) < events])
    return X, y


def site_of(X, y, policy=True):
    return Site(Rows(X, y, name="a", index=0), policy=DisclosurePolicy() if policy else None, secret=b"s", limits=None)


def jumps(site, resolution):
    """Where the count of events rises, found by grids that are ever finer around each jump; as many queries as are answered."""
    low, found = [(0.0, 50.0)], []
    while low:
        a, b = low.pop()
        grid = np.linspace(a, b, 1001)[1:]
        (reply,) = site.reply([AtRisk(NO_FEATURES, np.empty(0), grid)])
        if isinstance(reply, Refusal):
            break
        # events up to the first time of a grid are counted there
        (before,) = site.reply([AtRisk(NO_FEATURES, np.empty(0), np.array([a, b]))])
        events = reply.events[0].copy()
        events[0] -= 0 if isinstance(before, Refusal) else before.events[0][0]
        for k in np.flatnonzero(events):
            cell = (a if k == 0 else grid[k - 1], grid[k])
            found.append(cell) if cell[1] - cell[0] < resolution else low.append(cell)
    return found


def test_a_moving_grid_finds_event_times_without_a_policy_and_means_of_blocks_with_one():
    X, y = clinic(60)
    times = np.unique(y[y[:, 1] > 0, 0])
    open_site = jumps(site_of(X, y, policy=False), 1e-3)
    assert sum(any(a < t <= b for a, b in open_site) for t in times) == len(times)
    # each jump is a mean of ten events or more
    guarded = Site(Rows(X, y, name="a", index=0), policy=DisclosurePolicy(), secret=b"s", limits=None)
    found = jumps(guarded, 1e-3)
    assert 1 <= len(found) <= len(times) // 10
    assert not any(a < t <= b for a, b in found for t in times)
    assert len(jumps(site_of(X, y), 1e-6)) <= 25


def rows_of_blocks(site, h=0.3, nodes=10):
    """Prony's method: sums of exp(k h a) over the rows of each block, k = 0, 1, ..., give a: roots of a polynomial."""
    sums = []
    for k in range(nodes + 1):
        x = np.array([h * (k - nodes / 2), 0.0])
        (reply,) = site.reply([AtRisk(COX, x, np.linspace(0.5, 45, 900))])
        if isinstance(reply, Refusal):
            return np.empty(0)
        at = reply.at_risk[0]
        ends = np.append(np.flatnonzero(np.diff(at)), -1)
        sums.append(-np.diff(np.append(at[ends], 0.0)) if len(ends) > 1 else at[:1])
    blocks, found = min(map(len, sums)), []
    for b in range(blocks):
        s = np.array([each[b] for each in sums], float)  # s_k = sum_j u_j v_j^k: shifted powers with weights
        half = nodes // 2
        T = np.array([s[k : k + half] for k in range(half + 1)])
        try:
            c = np.linalg.lstsq(T[:half], -T[half], rcond=1e-14)[0]
        except np.linalg.LinAlgError:
            continue
        roots = np.roots(np.append(1.0, c[::-1]))
        real = roots[(np.abs(roots.imag) < 1e-6 * np.abs(roots)) & (roots.real > 0)].real
        found += list(np.log(real) / h)
    return np.array(found)


def hits(found, X, within=1e-3):
    return sum(np.abs(found - a).min(initial=np.inf) < within for a in X[:, 0])


def test_risks_of_blocks_at_many_models_give_no_row(monkeypatch):
    """With five different rows in a block of ten, all digits of the sums give the rows; rounded sums give none."""
    rng = np.random.default_rng(3)
    rows = 40
    values = np.repeat(rng.uniform(-1, 1, 5 * 4).reshape(4, 5), 2, axis=0).reshape(4, 10)  # each row twice in its block
    X = np.column_stack([values.ravel(), rng.uniform(-1, 1, rows)])
    y = np.column_stack([np.arange(rows) + 1.0, np.ones(rows)])
    guarded = hits(rows_of_blocks(site_of(X, y)), X)
    monkeypatch.setattr(site_at_risk, "_rounded", lambda sums: sums)
    assert hits(rows_of_blocks(site_of(X, y)), X) >= 10
    assert guarded == 0


def test_a_model_that_points_at_one_row_is_refused():
    X, y = clinic(200)
    for x in (np.array([40.0, 0.0]), np.array([0.0, -60.0])):
        for query in (AtRisk(COX, x, np.arange(1.0, 40.0)), Evaluate(COX, x[None])):
            (reply,) = site_of(X, y).reply([query])
            assert isinstance(reply, Refusal)
            assert "min_rows" in reply.reason or "over 16 standard deviations" in reply.reason


def test_the_gradient_of_one_event_would_give_its_row_and_is_refused():
    """At x = 0 the gradient of a single early event is the mean of all rows less its own row."""
    X, y = clinic(200)
    y[:, 1] = 0
    first = int(y[:, 0].argmin())
    y[first, 1] = 1
    reply: Any = site_of(X, y, policy=False).reply([Evaluate(COX, np.zeros((1, 2)))])[0]
    np.testing.assert_allclose(X.mean(axis=0) - 200 * reply.gradient[0], X[first], atol=1e-9)
    (reply,) = site_of(X, y).reply([Evaluate(COX, np.zeros((1, 2)))])
    assert isinstance(reply, Refusal)


def test_matrices_at_every_time_are_refused():
    X, y = clinic(200)
    (reply,) = site_of(X, y).reply([AtRisk(COX, np.zeros(2), np.arange(1.0, 40.0), second=True)])
    assert isinstance(reply, Refusal)
    times = np.unique(y[y[:, 1] > 0, 0])
    reply: Any = site_of(X, y, policy=False).reply([AtRisk(COX, np.zeros(2), times, second=True)])[0]
    single = reply.died_first[reply.counts == 1]
    assert len(single) > 100
    assert all(np.abs(X - row).sum(axis=1).min() < 1e-9 for row in single)  # without a policy each event shows its row
