"""How much of a table is read when so many numbers have left: attacks that know the rules and spend a whole budget.

    PYTHONPATH=src:tests python -m attacks.shares --jobs 16 --out shares.json

For each table, attack, share and seed one task, in a process of its own: the sites answer under the default policy, `federation.numbers`
counts what they release, and answers end where the share of the numbers in the table is spent. The attacker then solves for the rows.

    gradients            chosen gentle models, values and gradients over all rows                                     (F2)
    class weights        the same, half of the models with weights of the classes: labels, too                         (F2)
    four columns         the same on four columns: fewer rows x columns to be counted against, and fewer unknowns      (F2)
    Hessians             the same with second derivatives, which are counted and rounded                               (F2)
    folds                the same over all rows and over each group that rows are dealt into: smaller sets             (F2)
    local steps          rounds of one local step: no words beside the gradient but three                              (F2)
    a site that lies     steers honest fits to gentle models, and is shown the sums                                    (F1)
    honest runs          an honest cross-validation and fits after it, whose reader chooses nothing                    (F4)

What the attacker has besides: the numbers of rows, the mean and the covariance of *other* rows of the same kind, which columns are yes
or no, and which group of rows a sum is about. Rows are unknown, one by one, and so are labels. The solver is nonlinear least squares: the
numbers as equations, yes and no as 0 <= b <= 1 and then b (1 - b) = 0, the covariance as a prior that vanishes, several random starts.
A file of results is continued where it ended; a limit on seconds ends a call early, and the next one does the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SHARES = (0.25, 0.5, 1.0, 2.0, 5.0)
SEEDS = (0, 1, 2)
FEW = 4  # columns of the attack on few
LIMIT = 150.0  # seconds of a task
LARGE = "breast cancer, 87 x 30"  # with a few of the attacks


# --- tables ---


class Table(NamedTuple):
    """Rows to attack, and what is known from elsewhere."""

    rows: np.ndarray
    labels: np.ndarray  # -1 or 1
    others: np.ndarray  # other rows of the same kind: the attacker knows their mean and covariance
    yes_no: np.ndarray  # columns that are 0 or 1


def _labelled(A: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    Z = (A - A.mean(axis=0)) / A.std(axis=0)
    z = Z @ rng.standard_normal(A.shape[1]) / np.sqrt(A.shape[1])
    return np.where(rng.random(len(A)) < 1 / (1 + np.exp(-2 * z)), 1.0, -1.0)


def _breast_cancer(rows: int, seed: int) -> Table:
    import compfed as cf

    table = cf.data.bundled.breast_cancer()
    order = np.random.default_rng(seed).permutation(len(table.y))
    here, elsewhere = order[:rows], order[rows:]
    y = np.where(table.y == np.max(table.y), 1.0, -1.0)
    return Table(table.X[here], y[here], table.X[elsewhere], np.zeros(table.X.shape[1], bool))


def _mixed(rows: int, seed: int) -> Table:
    """Two log-normal columns, two normal ones, eight yes/no ones, all of them related."""
    rng = np.random.default_rng(100 + seed)
    shared = rng.standard_normal((rows + 2000, 2))
    own = rng.standard_normal((rows + 2000, 12))
    mixing = np.random.default_rng(9).standard_normal((2, 12)) * 0.6
    latent = (shared @ mixing + own) / np.sqrt(1 + (mixing**2).sum(axis=0))
    A = np.column_stack(
        [
            np.exp(latent[:, :2]),
            60 + 12 * latent[:, 2:3],
            latent[:, 3:4],
            (latent[:, 4:] > np.array([0, 0, 0.3, 0.3, -0.3, 0.5, 0.8, -0.8])).astype(float),
        ]
    )
    y = _labelled(A, rng)
    return Table(A[:rows], y[:rows], A[rows:], np.arange(12) >= 4)


def _narrow(rows: int, columns: int, seed: int) -> Table:
    rng = np.random.default_rng(200 + seed)
    mixing = np.random.default_rng(8).standard_normal((columns, columns)) / np.sqrt(columns)
    A = rng.standard_normal((rows + 2000, columns)) @ (np.eye(columns) + mixing)
    y = _labelled(A, rng)
    return Table(A[:rows], y[:rows], A[rows:], np.zeros(columns, bool))


def _levels(rows: int, seed: int) -> Table:
    """Four normal columns and seven columns of words with four levels, three columns of yes and no each: most cells are 0."""
    rng = np.random.default_rng(300 + seed)
    latent = rng.standard_normal((rows + 2000, 11))
    latent[:, 1:] = (latent[:, 1:] + 0.5 * latent[:, :1]) / np.sqrt(1.25)
    dummies = [np.digitize(a, [0.2, 0.8, 1.3])[:, None] == np.array([1, 2, 3]) for a in latent[:, 4:].T]
    A = np.column_stack([latent[:, :4], *dummies]).astype(float)
    y = _labelled(A, rng)
    if A[:rows, 4:].sum(axis=0).min() < 4:  # a level that the rules would not let through
        return _levels(rows, seed + 1000)
    return Table(A[:rows], y[:rows], A[rows:], np.arange(25) >= 4)


TABLES: dict[str, Callable[[int], Table]] = {
    "breast cancer, 45 x 30": lambda seed: _breast_cancer(45, seed),
    LARGE: lambda seed: _breast_cancer(87, seed),
    "mixed, 60 x 12": lambda seed: _mixed(60, seed),
    "levels, 60 x 25": lambda seed: _levels(60, seed),
    "narrow, 60 x 8": lambda seed: _narrow(60, 8, seed),
    "narrow, 36 x 4": lambda seed: _narrow(36, 4, seed),
}


# --- what was seen ---


@dataclass
class Seen:
    """Sums that an attacker has received, each about one model: logistic losses, gradients and Hessians."""

    columns: np.ndarray  # numbers of the columns that models are of
    x: list[np.ndarray] = field(default_factory=list)
    centre: list[np.ndarray] = field(default_factory=list)
    scale: list[np.ndarray] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)  # which rows, as shares that add up to 1
    weights: list[np.ndarray] = field(default_factory=list)  # of the classes -1 and 1
    value: list[float] = field(default_factory=list)  # NaN where it was not told
    gradient: list[np.ndarray] = field(default_factory=list)
    hessian: list[np.ndarray | None] = field(default_factory=list)
    means: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)  # rows, mean, mean square

    def add(
        self, objective: Any, x: np.ndarray, rows: np.ndarray, value: float, gradient: np.ndarray, hessian: Any = None
    ) -> None:
        self.x.append(np.asarray(x, float))
        self.centre.append(np.asarray(objective.scaling.centre, float))
        self.scale.append(np.asarray(objective.scaling.scale, float))
        self.rows.append(rows)
        self.weights.append(np.asarray(getattr(objective.loss, "class_weights", (1.0, 1.0)), float))
        self.value.append(float(value))
        self.gradient.append(np.asarray(gradient, float))
        self.hessian.append(None if hessian is None else np.asarray(hessian, float))

    def of(self, objective: Any) -> bool:
        """Whether an objective is of the columns of the others."""
        return objective.columns is None and len(objective.scaling.centre) == len(self.columns)

    def evaluation(self, query: Any, reply: Any, rows: np.ndarray) -> None:
        """The values, gradients and full Hessians of a reply."""
        loss = query.objective.loss
        ridge = float(getattr(loss, "ridge", 0.0))
        for m, x in enumerate(query.x):
            value, gradient = reply.value[m] - 0.5 * ridge * float(x @ x), reply.gradient[m] - ridge * x
            H = None
            if query.coords is not None and len(query.coords) == len(x) and reply.hessian is not None:
                H = loss.unpack_hessian(reply.hessian[m], query.coords)
            self.add(query.objective, x, rows, value, gradient, H)


def equations(
    seen: Seen, wanted: int, rng: np.random.Generator
) -> tuple[Callable[..., Any], np.ndarray, np.ndarray, np.ndarray, int]:
    """What one row adds to every number, in at most so many of them.

    Returns phi(a, t), a vector; the numbers; a matrix (rows, numbers) of shares; which of them are rounded; how many there were.
    """
    import jax
    import jax.numpy as jnp

    k, M = len(seen.columns), len(seen.x)
    X, C, S = np.array(seen.x), np.array(seen.centre), np.array(seen.scale)
    W = np.array(seen.weights)
    H = [m for m in range(M) if seen.hessian[m] is not None]
    upper = np.triu_indices(k + 1)
    numbers = [np.array(seen.value), np.array(seen.gradient).ravel()]
    shares = [np.array(seen.rows), np.repeat(np.array(seen.rows), k + 1, axis=0)]
    if H:
        numbers.append(np.array([seen.hessian[m][upper] for m in H]).ravel())  # pyright: ignore[reportOptionalSubscript]
        shares.append(np.repeat(np.array([seen.rows[m] for m in H]), len(upper[0]), axis=0))
    first, second = [mean for _, mean, _ in seen.means], [square for _, _, square in seen.means]
    if seen.means:
        numbers += [np.array(first).ravel(), np.array(second).ravel()]
        shares += 2 * [np.repeat(np.array([rows for rows, _, _ in seen.means]), k, axis=0)]
    b, q = np.concatenate(numbers), np.concatenate(shares)
    rounded = np.zeros(len(b), bool)
    before = len(numbers[0]) + len(numbers[1])
    rounded[before : before + len(H) * len(upper[0])] = True
    told = np.flatnonzero(np.isfinite(b))
    count = len(told)
    if count > wanted:
        told = np.sort(rng.choice(told, wanted, replace=False))
    some = jnp.asarray(told)
    Xj, Cj, Sj, Wj, Hj = jnp.asarray(X), jnp.asarray(C), jnp.asarray(S), jnp.asarray(W), jnp.asarray(np.array(H, int))

    def phi(a: Any, t: Any) -> Any:
        Z = (a - Cj) / Sj
        z = (Z * Xj[:, :-1]).sum(axis=1) + Xj[:, -1]
        minus, plus = (1 - t) * Wj[:, 0], t * Wj[:, 1]
        value = minus * jax.nn.softplus(z) + plus * jax.nn.softplus(-z)
        slope = minus * jax.nn.sigmoid(z) - plus * jax.nn.sigmoid(-z)
        A = jnp.concatenate([Z, jnp.ones((M, 1))], axis=1)
        parts = [value, (slope[:, None] * A).ravel()]
        if H:
            h = ((minus + plus) * jax.nn.sigmoid(z) * jax.nn.sigmoid(-z))[Hj]
            B = A[Hj]
            parts.append((h[:, None] * B[:, upper[0]] * B[:, upper[1]]).ravel())
        if seen.means:
            parts += [jnp.tile(a, len(first)), jnp.tile(a * a, len(first))]
        return jnp.concatenate(parts)[some]

    return phi, b[told], q[told].T, rounded[told], count


# --- solving for the rows ---


class Found(NamedTuple):
    rows: np.ndarray
    labels: np.ndarray  # the share of class 1
    residual: float  # of the numbers, each relative to what a standard deviation in one value of a row changes
    starts: int
    equations: int


def solve(
    seen: Seen, n: int, others: np.ndarray, yes_no: np.ndarray, seed: int, until: float, most_starts: int = 1000
) -> Found:
    """Rows and labels that agree with what was seen."""
    import jax

    with jax.enable_x64(True):
        return _solved(seen, n, others, yes_no, seed, until, most_starts)


def _solved(
    seen: Seen, n: int, others: np.ndarray, yes_no: np.ndarray, seed: int, until: float, most_starts: int
) -> Found:
    import jax
    import jax.numpy as jnp
    from scipy.linalg import cho_factor, cho_solve

    rng, k = np.random.default_rng(seed), len(seen.columns)
    mean, spread = others.mean(axis=0), others.std(axis=0)
    w, V = np.linalg.eigh(np.corrcoef(others.T) if k > 1 else np.ones((1, 1)))
    L = spread[:, None] * V * np.sqrt(np.maximum(w, 1e-6))  # a = mean + L w, w about standard normal
    phi, b, q, rounded, count = equations(seen, int(2.2 * n * (k + 1)) + 400, rng)
    Lj, meanj = jnp.asarray(L), jnp.asarray(mean)

    def of_row(theta: Any) -> Any:
        return phi(meanj + Lj @ theta[:k], theta[k])

    values, jacobians = jax.jit(jax.vmap(of_row)), jax.jit(jax.vmap(jax.jacfwd(of_row)))
    size = np.ones(len(b))

    def residual(theta: np.ndarray) -> np.ndarray:
        return (np.einsum("ne,ne->e", q, np.asarray(values(theta))) - b) / size

    def normal(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        J = np.asarray(jacobians(theta)) * (q / size)[:, :, None]  # (rows, numbers, k + 1)
        J = np.moveaxis(J, 1, 0).reshape(len(b), -1)
        r = residual(theta)
        return J.T @ J, J.T @ r, r

    start = np.column_stack([rng.standard_normal((n, k)), np.full(n, 0.5)])
    J = np.asarray(jacobians(start)) * q[:, :, None]
    size = np.sqrt((J**2).sum(axis=(0, 2)))
    size = np.where(size > 1e-6 * size.max(), size, np.inf)  # numbers that no row changes
    bits = np.flatnonzero(yes_no)
    Lb = L[bits]

    box = False

    def pull(theta: np.ndarray, mu: float, rho: float) -> tuple[float, np.ndarray, np.ndarray]:
        """The prior, and yes and no as b (1 - b) = 0: value, gradient, and the blocks of the Gauss-Newton matrix."""
        W, t = theta[:, :k], theta[:, k]
        cost = mu * ((W**2).sum() + 4 * ((t - 0.5) ** 2).sum())
        g = np.column_stack([mu * W, 4 * mu * (t - 0.5)])
        B = np.zeros((n, k + 1, k + 1))
        B[:, np.arange(k), np.arange(k)] = mu
        B[:, k, k] = 4 * mu
        if rho > 0:
            bit = mean[bits] + W @ Lb.T
            if box:  # between 0 and 1
                e, et = bit - np.clip(bit, 0, 1), t - np.clip(t, 0, 1)
                de, dt = (e != 0).astype(float), (et != 0).astype(float)
            else:
                e, de, et, dt = bit * (1 - bit), 1 - 2 * bit, t * (1 - t), 1 - 2 * t
            cost += rho * ((e**2).sum() + (et**2).sum())
            g[:, :k] += rho * (e * de) @ Lb
            g[:, k] += rho * et * dt
            B[:, :k, :k] += rho * np.einsum("nb,bi,bj->nij", de**2, Lb, Lb)
            B[:, k, k] += rho * dt**2
        return cost, g, B

    def descend(theta: np.ndarray, mu: float, rho: float, steps: int, slow: float = 1e-3) -> tuple[np.ndarray, float]:
        damping = 1e-3
        N, g, r = normal(theta)
        cost, gp, B = pull(theta, mu, rho)
        best = float(r @ r) + cost
        for _ in range(steps):
            if time.time() > until:
                break
            for i in range(n):
                here = slice(i * (k + 1), (i + 1) * (k + 1))
                N[here, here] += B[i]
            full = g + gp.ravel()
            before = best
            while damping < 1e8 and time.time() < until:
                trial_N = N.copy()
                trial_N[np.diag_indices(len(N))] += damping * 1e-2 + 1e-13
                try:
                    step = cho_solve(
                        cho_factor(trial_N, overwrite_a=True, check_finite=False), full, check_finite=False
                    )
                except np.linalg.LinAlgError:
                    damping = max(10 * damping, 1e-12)
                    continue
                step = np.clip(step, -1.5, 1.5).reshape(theta.shape)
                trial = theta - step
                rt = residual(trial)
                now = float(rt @ rt) + pull(trial, mu, rho)[0]
                if np.isfinite(now) and now < best:
                    theta, best = trial, now
                    damping = max(damping / 6, 1e-13)
                    break
                damping = max(6 * damping, 1e-12)
            if damping >= 1e8 or best > before * (1 - slow) or best < 1e-24 * len(b):
                break
            N, g, r = normal(theta)
            cost, gp, B = pull(theta, mu, rho)
        r = residual(theta)
        return theta, float(np.sqrt(np.mean(r**2)))

    exact = ~rounded
    plain, fine = (
        size,
        np.where(rounded & exact.any(), 1e3 * size, size),
    )  # Hessians are rounded: at the end others count for more
    found, starts = None, 0
    while starts < most_starts and (starts == 0 or time.time() < until):
        size = plain
        theta = np.column_stack([rng.standard_normal((n, k)), rng.normal(0.5, 0.1, n)])
        determined = count >= n * k
        way = ("box", "none", "late", "box")[starts % 4] if len(bits) else "none"
        box = way == "box"
        for mu in np.geomspace(1.0, 1e-8, 9):
            theta, error = descend(theta, mu, 1.0 if box else 0.0, 8)
        if way != "none":
            box = False
            for rho in np.geomspace(1e-5, 1.0, 6):
                theta, error = descend(theta, 1e-9, rho, 10)
        size = fine
        theta, error = descend(theta, 0.0 if determined else 1e-12, 1.0 if way != "none" else 0.0, 150, 1e-5)
        bit = mean[bits] + theta[:, :k] @ Lb.T
        merit = error
        if len(bits) and not (determined and error < 1e-9):
            merit += float(np.sqrt(np.mean((bit * (1 - bit)) ** 2)))
        if not determined and not len(bits) and merit < 1e-5:  # many tables agree: the likeliest one
            merit = 1e-5 * float((theta[:, :k] ** 2).mean())
        starts += 1
        if found is None or merit < found[0]:
            found = merit, theta.copy(), error
        if found[0] < 1e-9 or (not determined and not len(bits) and starts >= 4 and found[0] < 1e-4):
            break
    assert found is not None
    _, theta, error = found
    return Found(mean + theta[:, :k] @ L.T, theta[:, k], error, starts, count)


# --- what leaves ---


def gentle(others: np.ndarray, rng: np.random.Generator, models: int) -> np.ndarray:
    """Models in standardised columns, whose predictions have spreads of 1 to 3.5 over rows of this kind."""
    Z = (others - others.mean(axis=0)) / others.std(axis=0)
    x = rng.standard_normal((models, Z.shape[1]))
    x *= (rng.uniform(1.0, 3.5, models) / (Z @ x.T).std(axis=0))[:, None]
    x = np.clip(x, -12.0, 12.0)
    return np.column_stack([x, rng.normal(0.0, 0.7, models)])


def _scaling(others: np.ndarray) -> Any:
    from compfed.federation.spec import FeatureScaling

    return FeatureScaling(others.mean(axis=0), others.std(axis=0), intercept=True)


def _kept(site: Any) -> np.ndarray:
    """The columns that are not withheld in a run."""
    return np.array([j for j in range(site.rows.every_feature.shape[1]) if j not in site.rows.left_out], int)


def _columns(table: Table, few: bool) -> np.ndarray:
    d = table.rows.shape[1]
    return np.flatnonzero(~table.yes_no)[:FEW] if few and d > FEW else np.arange(d)


def chosen_models(table: Table, share: float, seed: int, how: str) -> tuple[Seen, dict[str, Any]]:
    """A server or a participant who chooses models, and spends the share."""
    from attacks.by_models import fold
    from attacks.target import POLICY, Target, make_site

    from compfed.federation import Evaluate, Refusal
    from compfed.federation.spec import ObjectiveSpec
    from compfed.losses import ClassWeightedLogistic, Logistic

    rng = np.random.default_rng([seed, 17])
    columns = _columns(table, how == "four columns")
    site = make_site(table.rows, table.labels, POLICY)
    target = Target(site, line=share)
    others, n, k = table.others[:, columns], len(table.rows), len(columns)
    scaling = _scaling(others)
    seen, all_rows = Seen(columns), np.full(n, 1 / n)
    own = None if k == table.rows.shape[1] else columns
    groups = site.rows.buckets if how == "folds" else 1
    subsets: list[tuple[Any, np.ndarray]] = [(None, all_rows)]
    if groups > 1:
        for g in range(groups):
            subset = fold(target, g, groups)
            held = site.rows.weights_of(subset)
            subsets.append((subset, held / held.sum()))
    coords = np.arange(k + 1, dtype=np.int32) if how == "Hessians" else None
    refused, asked, block = 0, 0, 4
    while refused < 40 and block:
        X = gentle(others, rng, block)
        # class weights tell sums over one class: without them labels are in one sum of all gradients alone
        loss: Any = (
            ClassWeightedLogistic(class_weights=(0.6, 1.5)) if how == "class weights" and asked % 2 else Logistic()
        )
        queries = [Evaluate(ObjectiveSpec(loss, scaling, columns=own, subset=s), X, coords=coords) for s, _ in subsets]
        before = len(target.refusals)
        replies = target.ask(*queries)
        beyond = any("more numbers" in reason for _, reason in target.refusals[before:])
        asked += 1
        if beyond:
            block //= 2
            if not block and len(subsets) > 1:  # what is left buys models over all rows
                subsets, block = subsets[:1], 1
            continue
        refused += any(isinstance(reply, Refusal) for reply in replies)
        for query, reply, (_, rows) in zip(queries, replies, subsets, strict=True):
            if not isinstance(reply, Refusal):
                seen.evaluation(query, reply, rows)
    return seen, {"share_used": target.share, "models": len(seen.x), "refused": refused, "groups": groups}


def local_steps(table: Table, share: float, seed: int) -> tuple[Seen, dict[str, Any]]:
    """Rounds of one local step: a gradient each, and three words more."""
    from attacks.by_subsets import fedavg_run, update_query
    from attacks.target import POLICY, Target, make_site

    from compfed.federation import Refusal
    from compfed.federation.spec import ObjectiveSpec
    from compfed.losses import Logistic

    rng = np.random.default_rng([seed, 18])
    target = Target(make_site(table.rows, table.labels, POLICY), line=share)
    n, d = table.rows.shape
    objective = ObjectiveSpec(Logistic(), _scaling(table.others))
    seen, refused, beyond = Seen(np.arange(d)), 0, False
    while not beyond and refused < 40:
        (x,) = gentle(table.others, rng, 1)
        run = replace(fedavg_run(objective, d + 1, n, None), x0=x)
        before = len(target.refusals)
        (reply,) = target.ask(update_query(run, 0))
        beyond = any("more numbers" in reason for _, reason in target.refusals[before:])
        if isinstance(reply, Refusal):
            refused += not beyond
            continue
        gradient = -reply.u["delta"] / run.algorithm.eta  # pyright: ignore[reportAttributeAccessIssue]
        seen.add(objective, x, np.full(n, 1 / n), np.nan, gradient)
    return seen, {"share_used": target.share, "models": len(seen.x), "refused": refused, "groups": 1}


def _fits(seed: int, groups: int) -> Iterator[Any]:
    """Honest analyses, one after another."""
    import compfed as cf

    if groups > 1:
        yield cf.FederatedLogisticRegressionCV(cv=groups, n_alphas=50)
    for alpha in np.geomspace(0.1, 1e-3, 12):
        yield cf.FederatedLogisticRegression(alpha=float(alpha))
    for ratio in (0.0, 0.5, 0.9):
        for alpha in np.geomspace(0.1, 1e-3, 8):
            yield cf.FederatedLogisticRegression(alpha=float(alpha), l1_ratio=ratio)


def honest_runs(table: Table, share: float, seed: int) -> tuple[Seen, dict[str, Any]]:
    """Ordinary estimators, one after another until the share is spent. The reader chooses nothing."""
    from attacks.by_federation import SpiedSite
    from attacks.target import Target, make_site

    import compfed as cf
    from compfed.federation import DisclosurePolicy, Evaluate, InProcess, Moments, Refusal, Site

    class Read(SpiedSite):
        def enrol(self) -> Any:
            return Site.enrol(self)

    free = DisclosurePolicy(
        share_by_rule=1e6, max_share=1e6
    )  # so that a run does not plan with less; the target counts
    site = make_site(table.rows, table.labels, free)
    target = Target(site, line=share)
    seen = Seen(np.arange(table.rows.shape[1]))
    runs = full = 0
    for estimator in _fits(seed, site.rows.buckets):
        spied, before = Read(target, 10**9), len(target.refusals)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                estimator.fit_federation(InProcess([spied]))
        except (cf.InputError, cf.Divergence):
            pass
        runs += 1
        for query, reply in spied.seen:
            if isinstance(reply, Refusal):
                continue
            if isinstance(query, Evaluate):
                held = site.rows.weights_of(query.objective.subset)
                known = query.objective.scaling is not None and not query.objective.profile
                if known and np.isfinite(reply.gradient).all() and seen.of(query.objective):
                    seen.evaluation(query, reply, held / held.sum())
            elif isinstance(query, Moments):
                held = site.rows.weights_of(query.subset)
                seen.means.append((held / held.sum(), reply.mean + reply.mean_low, reply.square + reply.square_low))
        full += any("more numbers" in reason for _, reason in target.refusals[before:])
        if full == 4:  # shorter fits may still fit in
            break
    return seen, {"share_used": target.share, "models": len(seen.x), "runs": runs, "groups": site.rows.buckets}


def lying_site(table: Table, share: float, seed: int) -> tuple[Seen, dict[str, Any]]:
    """One of three sites, the largest, lies about its sums: honest fits go to gentle models of its choice; the sums are shown to it."""
    from attacks.by_federation import LyingSite, asked_and_summed, steerable
    from attacks.target import POLICY, make_site

    import compfed as cf
    from compfed.federation import Evaluate, InProcess, Refusal
    from compfed.federation import numbers as count
    from compfed.federation.query import Weighted

    rng = np.random.default_rng([seed, 19])
    n, d = table.rows.shape
    sizes = (n - n // 2, n // 2)
    victims = [
        make_site(table.rows[a:b], table.labels[a:b], POLICY, i)
        for i, (a, b) in enumerate(((0, sizes[0]), (sizes[0], n)))
    ]
    # its rows are others of the same kind; it is the largest, so the count is against the rows of the two
    many = rng.permutation(len(table.others))[: n + 10]
    labels = np.where(np.arange(len(many)) % 2 == 0, 1.0, -1.0)
    liar = make_site(table.others[many], labels, POLICY, 2)
    seen, spent, told = Seen(np.arange(d)), 0.0, Counter[count.About]()
    whole = np.full(n, 1 / n)

    class Spent(Exception):
        pass

    class Steering(LyingSite):
        def _reply(self, query: Any, honest: Any) -> Any:
            if not steerable(query) or isinstance(honest, Refusal) or not seen.of(query.objective):
                return honest
            scaling = query.objective.scaling
            others = table.others[:, seen.columns]
            (goal,) = gentle(others, rng, 1)
            # the same model in the coordinates of the run
            w = goal[:-1] * scaling.scale / others.std(axis=0)
            b = goal[-1] + float(((scaling.centre - others.mean(axis=0)) / others.std(axis=0)) @ goal[:-1])
            step = np.append(w, b) - query.x[0]
            c, size = 1e3 / self.share, len(query.coords)
            self.value -= 10 * c * float(step @ step)
            self.said, self.false = -c * step, (c * np.eye(size), self.value)
            packed = (c * np.eye(size))[np.triu_indices(size)]
            return honest._replace(value=np.array([self.value]), gradient=self.said[None], hessian=packed[None])

    class Showing(InProcess):
        def exchange(self, requests: Any) -> Any:
            nonlocal told, spent
            asked = [w for request in requests for w in _weighted(request)]
            new = told + count.released(asked, victims[0].rows, self.messages.agreement)
            seen.columns = _kept(victims[0])
            at = count.Table(n, len(seen.columns), count.table_of(victims[0].rows).groups)
            if count.largest_share([(at, new)]) > share:
                raise Spent
            told, spent = new, count.largest_share([(at, new)])
            sums, cost = super().exchange(requests)
            for query, mean in asked_and_summed(requests, sums):
                if isinstance(query, Evaluate) and steerable(query) and seen.of(query.objective):
                    total = n + len(many)
                    false_H, false_value = false.false
                    ridge = float(getattr(query.objective.loss, "ridge", 0.0))
                    x = query.x[0]
                    own = len(many)
                    # the rows' part: what the liar said itself is taken away
                    gradient = (total * mean.gradient[0] - own * false.said) / n - ridge * x
                    H = query.objective.loss.unpack_hessian(mean.hessian[0], query.coords)
                    H = (total * H - own * false_H) / n
                    del false_value  # too large beside a loss to leave digits of it
                    seen.add(query.objective, x, whole, np.nan, gradient, H)
            return sums, cost

    def _weighted(request: Any) -> list[Weighted]:
        return [Weighted(q, getattr(request, "weighting", None) or q.own_weighting) for q in request.queries]

    false = Steering(liar, len(many) / (n + len(many)), n, 10**9)
    runs, failed = 0, 0
    while failed < 5 and runs < 400:
        false.value, before = 1e9, len(seen.x)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cf.FederatedLogisticRegression(alpha=0.01, algorithm="ProximalNewton").fit_federation(
                    Showing([*victims, false])
                )
        except Spent:
            break
        except (cf.InputError, cf.Divergence):
            pass
        runs, failed = runs + 1, failed + (len(seen.x) <= before + 1)
    return seen, {"share_used": spent, "models": len(seen.x), "runs": runs, "groups": 1}


ATTACKS: dict[str, Callable[[Table, float, int], tuple[Seen, dict[str, Any]]]] = {
    "gradients": lambda t, s, seed: chosen_models(t, s, seed, "gradients"),
    "class weights": lambda t, s, seed: chosen_models(t, s, seed, "class weights"),
    "four columns": lambda t, s, seed: chosen_models(t, s, seed, "four columns"),
    "Hessians": lambda t, s, seed: chosen_models(t, s, seed, "Hessians"),
    "folds": lambda t, s, seed: chosen_models(t, s, seed, "folds"),
    "local steps": local_steps,
    "a site that lies": lying_site,
    "honest runs": honest_runs,
}


# --- one task ---


def matched(candidates: np.ndarray, rows: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row its candidate, and the largest error over the columns, in standard deviations."""
    from scipy.optimize import linear_sum_assignment

    apart = np.abs((candidates[:, None] - rows[None]) / scale).max(axis=2)
    one, other = linear_sum_assignment(np.log(apart + 1e-12))
    place = np.empty(len(rows), int)
    place[other] = one
    return place, apart[place, np.arange(len(rows))]


def _answered(name: str, seed: int) -> Table:
    """The first table of a kind of which no column is withheld."""
    from attacks.target import POLICY, make_site

    for again in range(seed, seed + 100_000, 1000):
        table = TABLES[name](again)
        if not make_site(table.rows, table.labels, POLICY).enrol().withholds.size:
            return table
    raise ValueError(f"{name}: a column is withheld of every draw")


def task(attack: str, name: str, share: float, seed: int, limit: float) -> dict[str, Any]:
    """What one attacker reads."""
    from attacks.measure import recovered

    began = time.time()
    table = _answered(name, seed)
    seen, said = ATTACKS[attack](table, share, seed)
    out: dict[str, Any] = {
        "attack": attack,
        "table": name,
        "share": share,
        "seed": seed,
        "rows": len(table.rows),
        **said,
    }
    out |= {"recovered": 0, "three_digits": 0, "tenth": 0, "labels": 0, "equations": 0}
    out |= {"unknowns": len(table.rows) * len(seen.columns)}
    if not seen.x:
        return out | {"seconds": time.time() - began}
    truth = table.rows[:, seen.columns]
    out["check"] = _agreement(seen, truth, table.labels)
    found = solve(
        seen, len(truth), table.others[:, seen.columns], table.yes_no[seen.columns], seed, began + 0.8 * limit
    )
    candidates = np.full(table.rows.shape, np.nan)
    candidates[:, seen.columns] = found.rows
    place, error = matched(found.rows, truth, truth.std(axis=0))
    near = error <= 1e-3
    right = (found.labels[place] > 0.5) == (table.labels > 0)
    sure = np.abs(found.labels[place] - 0.5) > 0.4  # known, and not the likelier one
    return out | {
        "recovered": recovered(candidates, table.rows),
        "three_digits": int(near.sum()),
        "tenth": int((error <= 0.1).sum()),
        "labels": int((right & sure & near).sum()),
        "equations": found.equations,
        "residual": found.residual,
        "starts": found.starts,
        "seconds": round(time.time() - began, 1),
    }


def _agreement(seen: Seen, truth: np.ndarray, labels: np.ndarray) -> float:
    """The largest difference between what was seen and what the true rows give: the attacker's formulas are right."""
    import jax

    with jax.enable_x64(True):
        phi, b, q, _, _ = equations(seen, 10**9, np.random.default_rng(0))
        t = (labels > 0).astype(float)
        told = np.einsum("ne,ne->e", q, np.asarray(jax.vmap(phi)(truth, t)))
    return float(np.max(np.abs(told - b) / (1 + np.abs(b))))


# --- all tasks ---


def tasks(quick: bool = False) -> list[tuple[str, str, float, int]]:
    """Every (attack, table, share, seed)."""
    if quick:
        return [(attack, "narrow, 36 x 4", share, 0) for share in (0.5, 2.0) for attack in ATTACKS]
    found = [
        (attack, name, share, seed)
        for seed in SEEDS
        for share in (0.5, 1.0, 2.0, 5.0, 0.25)  # what matters most first
        for name in TABLES
        for attack in ATTACKS
        if not (attack == "four columns" and name == "narrow, 36 x 4")
        if name != LARGE or attack in ("gradients", "four columns", "honest runs")
    ]
    found.sort(key=lambda t: (t[3], t[1] == LARGE))
    return found


THREADS = {
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
} | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "CUDA_VISIBLE_DEVICES": "",
}


def run_task(of: tuple[str, str, float, int], limit: float) -> dict[str, Any]:
    """One task in a process of its own."""
    attack, name, share, seed = of
    said = {"attack": attack, "table": name, "share": share, "seed": seed}
    command = [sys.executable, "-m", "attacks.shares", "--task", json.dumps(of), "--limit", str(limit)]
    try:
        done = subprocess.run(
            command, env=os.environ | THREADS, capture_output=True, text=True, timeout=1.2 * limit + 20
        )
    except subprocess.TimeoutExpired:
        return said | {"failed": f"over {limit:.0f} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return said | {"failed": done.stderr[-800:]}
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("shares.json"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a task")
    parser.add_argument("--seconds", type=float, default=np.inf, help="begin no task later than this")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--only", default="", help="a regular expression that 'attack; table' has")
    parser.add_argument("--shares", type=float, nargs="*", default=list(SHARES))
    parser.add_argument("--task", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        print(json.dumps(task(*json.loads(args.task), limit=args.limit)))
        return
    began = time.time()
    wanted = [
        t
        for t in tasks(args.quick)
        if t[3] in args.seeds and t[2] in args.shares and re.search(args.only, f"{t[0]}; {t[1]}")
    ]
    results: list[dict[str, Any]] = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(r["attack"], r["table"], r["share"], r["seed"]) for r in results if "failed" not in r}
    results = [r for r in results if "failed" not in r]
    wanted = [t for t in wanted if t not in done]

    def one(of: tuple[str, str, float, int]) -> dict[str, Any] | None:
        return run_task(of, args.limit) if time.time() - began < args.seconds else None

    with ThreadPoolExecutor(args.jobs) as pool:
        for number, future in enumerate(as_completed([pool.submit(one, of) for of in wanted]), 1):
            result = future.result()
            if result is None:
                continue
            results.append(result)
            partial = args.out.with_suffix(".part")
            partial.write_text("[\n" + ",\n".join(json.dumps(r) for r in results) + "\n]\n")
            partial.replace(args.out)
            print(f"{number}/{len(wanted)} {time.time() - began:.0f} s {line(result)}", flush=True)


def line(r: dict[str, Any]) -> str:
    of = f"{r['attack']}; {r['table']}; {r['share']:g}; seed {r['seed']}: "
    if "failed" in r:
        return of + f"failed: {r['failed'].strip().splitlines()[-1] if r['failed'].strip() else ''}"
    return of + (
        f"{r['recovered']} of {r['rows']}, {r['three_digits']} to 1e-3, {r['tenth']} to 0.1 sd, {r['labels']} labels, "
        f"used {r['share_used']:.2f}, {r['equations']} of {r['unknowns']}, residual {r.get('residual', np.nan):.0e}, "
        f"check {r.get('check', np.nan):.0e}, {r.get('starts', 0)} starts, {r['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
