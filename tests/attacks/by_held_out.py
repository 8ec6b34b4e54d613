"""Losses of models of one or two columns on rows held out: few unknowns, though each is counted against all columns.

    PYTHONPATH=src:tests python -m attacks.by_held_out

The attacker knows the means and spreads of other rows, asks for the losses of gentle models on each set of rows in one query, and
solves for the rows by least squares. Sites with a policy round such losses to 14 bits since this was found.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
from attacks.by_models import fold
from attacks.shares import _breast_cancer, _scaling
from attacks.target import POLICY, Target, make_site
from scipy.optimize import least_squares
from scipy.special import expit

from compfed.federation import DisclosurePolicy, HeldOut, Refusal
from compfed.federation.spec import ObjectiveSpec
from compfed.losses import Logistic

SETS = 4


class Read(NamedTuple):
    """Rows whose columns were found to a thousandth, and to a tenth, of a standard deviation."""

    three_digits: int
    tenth: int
    share: float


def read(columns: list[int], share: float, policy: DisclosurePolicy | None = POLICY, starts: int = 10) -> Read:
    """The attack on 45 rows of the breast cancer table; `share` of the numbers in each set of rows is asked for."""
    table = _breast_cancer(45, 0)
    site = make_site(table.rows, table.labels, policy)
    target, scaling, rng = Target(site, line=0.5), _scaling(table.others), np.random.default_rng(1)
    d, c, three_digits, tenth = table.rows.shape[1], len(columns), 0, 0
    known = ((table.others - scaling.centre) / scaling.scale)[:, columns]
    truth = ((table.rows - scaling.centre) / scaling.scale)[:, columns]
    for k in range(SETS):
        subset = fold(target, k, SETS)
        held = site.rows.weights_of(subset) > 0
        m, U = int(held.sum()), _gentle(known, int((share * 45 / SETS * d - 4) // 3), rng)
        X = np.zeros((len(U), d + 1))
        X[:, [*columns, d]] = U
        (reply,) = target.ask(HeldOut(ObjectiveSpec(Logistic(), scaling), subset, X))
        if isinstance(reply, Refusal):
            break
        P = _solve(U, np.asarray(reply.loss), m, c, starts, rng)
        away = np.abs(P[:, None] - truth[held][None]).max(axis=2).min(axis=0)
        three_digits, tenth = three_digits + int((away < 1e-3).sum()), tenth + int((away < 0.1).sum())
    return Read(three_digits, tenth, target.share)


def _gentle(known: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Models that rest on many rows like those that are known."""
    found = list[np.ndarray]()
    while len(found) < count:
        u = rng.standard_normal(known.shape[1] + 1)
        u *= rng.uniform(0.5, 2.5) / np.linalg.norm(u[:-1])
        h = expit(z := known @ u[:-1] + u[-1]) * expit(-z)
        if h.sum() ** 2 / (h @ h) / len(known) * 45 > 15 and abs(u[-1]) < 2.5:
            found.append(u)
    return np.array(found)


def _solve(U: np.ndarray, losses: np.ndarray, m: int, c: int, starts: int, rng: np.random.Generator) -> np.ndarray:
    """The columns of m rows, and the sums of labels times rows, that explain the losses best."""

    def residuals(p: np.ndarray) -> np.ndarray:
        z = p[: m * c].reshape(m, c) @ U[:, :c].T + U[:, c]
        return np.logaddexp(0, -z).mean(axis=0) + U @ p[m * c :] - losses

    def jacobian(p: np.ndarray) -> np.ndarray:
        q = -expit(-(p[: m * c].reshape(m, c) @ U[:, :c].T + U[:, c])) / m
        return np.hstack([(q[:, :, None] * U[None, :, :c]).transpose(1, 0, 2).reshape(len(U), m * c), U])

    best = None
    for _ in range(starts):
        start = np.concatenate([rng.standard_normal(m * c), np.zeros(c + 1)])
        method = "lm" if len(U) >= start.size else "trf"
        found = least_squares(residuals, start, jac=jacobian, method=method, max_nfev=500)  # pyright: ignore[reportArgumentType]
        best = found if best is None or found.cost < best.cost else best
        if best.cost < 1e-24:
            break
    assert best is not None
    return best.x[: m * c].reshape(m, c)


def main() -> None:
    for columns, share in (([0], 0.19), ([0, 1], 0.29), ([0, 1], 0.48)):
        for policy, name in ((None, "without"), (POLICY, "with")):
            sys.stdout.write(
                f"columns {columns}, {share:g} of the numbers, {name} the policy: {read(columns, share, policy)}\n"
            )


if __name__ == "__main__":
    main()
