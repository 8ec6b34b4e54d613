"""theta of the negative binomial distribution at the server: its maximum likelihood estimate at given means, from sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compfed.estimators.programs.fit import PreparedProblem
from compfed.federation.queries import Evaluate
from compfed.federation.server.program import Program, Request
from compfed.losses import NegativeBinomialLikelihood, WithOffset

LEAST, LARGEST = 1e-5, 1e5  # theta; beyond the largest, counts are as good as Poisson's
POINTS = 11  # values of theta in a message
WIDTHS = (11.0, 2.4, 0.5, 0.1, 0.02)  # of log(theta) around the best so far, in turn
NEAR = 2  # place in WIDTHS of the first one around a theta that is known roughly
MOVES = 20  # of the interval, at most, where the best is at its end


def best_theta(prepared: PreparedProblem, x: np.ndarray, start: float | None) -> Program[float]:
    """The theta of least negative log-likelihood, with the linear predictor of the model x; `start` is near it, if given.

    Each message has the likelihood at several values of log(theta), ever closer together. The last ones are joined by a cubic.
    """
    spec = prepared.at(1.0)
    inner = spec.objective.loss.loss if isinstance(spec.objective.loss, WithOffset) else spec.objective.loss
    best = 0.0 if start is None else float(np.log(start))
    points = values = np.zeros(1)
    for width in WIDTHS[0 if start is None else NEAR :]:
        for _ in range(MOVES):
            points = best + width * np.linspace(-1, 1, POINTS)
            losses = [NegativeBinomialLikelihood(theta=float(np.exp(p)), ridge=inner.ridge) for p in points]  # pyright: ignore[reportAttributeAccessIssue]
            if isinstance(spec.objective.loss, WithOffset):
                losses = [WithOffset(loss) for loss in losses]
            queries = tuple(Evaluate(replace(spec.objective, loss=loss), x[None]) for loss in losses)
            (found,) = yield [Request(queries, weights=spec.weights, weighting=spec.weighting)]
            values = np.array([summed.value[0] for summed in found])
            at = int(values.argmin())
            best = float(points[at])
            if not np.log(LEAST) < best < np.log(LARGEST):
                return LARGEST if best > 0 else LEAST
            if 0 < at < POINTS - 1:
                break
    cubic = np.polynomial.Polynomial.fit(points, values, 3).deriv()
    roots = [r.real for r in cubic.roots() if abs(r.imag) < 1e-9 and points[0] <= r.real <= points[-1]]
    return float(np.exp(min(roots, key=lambda root: abs(root - best), default=best)))
