"""`check` of a penalty g: whether prox and value belong together, and whether g is as convex as it says.

With u = prox_{t g}(x) and g + (rho / 2) ||.||^2 convex (rho = 0 for a convex g, 1 / largest_step for a weakly convex one), for all w

    t g(w) >= t g(u) + <x - u, w - u> - (t rho / 2) ||w - u||^2

A u that violates this is not the prox, or g is not as convex as it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from compfed._utils.compilation import precision
from compfed._utils.validation import check_int
from compfed.errors import InputError
from compfed.regularisers import Regulariser, Scaled, from_object, largest_step
from compfed.testing.report import Checked, Verdict, line, verdict

WIDTH, WIDEST = 12, 200  # coefficients to try with, and the most that are looked for
AGREE = 1e-10  # relative, of inequalities and of NumPy against JAX


def check_penalty(g: Any, d: int | None = None) -> Checked:
    """The report on a penalty."""
    case = _Case(g, d)
    lines = [
        line("prox inequality", case.inequality),
        line("convex" if case.rho == 0 else "weakly convex", case.midpoints),
        line("NumPy and JAX agree", case.engines),
        line("float32", case.single),
    ]
    if hasattr(g, "alpha_max"):
        lines.append(line("alpha_max", case.alpha_max))
    return Checked(type(g).__name__, tuple(lines))


class _Case:
    """A penalty, and random points."""

    def __init__(self, g: Any, d: int | None):
        self.given, self.g = g, from_object(g)
        self.limit = largest_step(self.g)
        self.rho = 0.0 if np.isinf(self.limit) else 1.0 / self.limit
        self.d = _width(self.g) if d is None else check_int(d, "d", 1)
        rng = np.random.default_rng(0)
        scales = np.repeat([0.1, 1.0, 10.0], 6)[:, None]
        self.points = scales * rng.standard_normal((18, self.d))
        self.points[1::3] *= rng.random((6, self.d)) < 0.5  # some of the coordinates are zero
        self.steps = [0.3 * self.limit, 0.9 * self.limit] if self.rho else [0.01, 0.5, 5.0]
        self.rng = rng
        # traced once: penalties are tried at thousands of points
        self._values = jax.jit(jax.vmap(self.g))
        self._proxes = jax.jit(jax.vmap(self.g.prox, (0, None)))

    def values(self, X: Any) -> np.ndarray:
        with precision(np.dtype(float)):
            return np.asarray(self._values(np.asarray(X)))

    def proxes(self, X: Any, t: float) -> np.ndarray:
        with precision(np.dtype(float)):
            return np.asarray(self._proxes(np.asarray(X), t))

    def inequality(self) -> tuple[Verdict, str]:
        worst, where, size = 0.0, "", np.linalg.norm
        for t in self.steps:
            U = self.proxes(self.points, t)
            at_U = self.values(U)
            if not (np.isfinite(U).all() and np.isfinite(at_U).all()):
                return "fails", f"a prox with parameter {t:g}, or the value there, is not finite"
            for x, u, at_u in zip(self.points, U, at_U, strict=True):
                W = self._near(u, U)
                at_W, apart = self.values(W), W - u
                W, apart, at_W = (part[np.isfinite(at_W)] for part in (W, apart, at_W))
                short = t * (at_u - at_W) + apart @ (x - u) - 0.5 * t * self.rho * (apart**2).sum(axis=1)
                scale = size(x) * (size(u) + size(W, axis=1)) + t * (abs(at_u) + abs(at_W)) + 1e-12
                if len(W) and (short / scale).max() > worst:
                    worst, where = float((short / scale).max()), f" (parameter {t:g})"
        how = "holds to rounding" if worst <= AGREE else f"is violated by {worst:.1e} of its terms{where}"
        return verdict(
            worst <= AGREE, f"at {len(self.points) * len(self.steps)} points the inequality of the prox {how}"
        )

    def _near(self, u: np.ndarray, proxes: np.ndarray) -> np.ndarray:
        """Points to compare a prox with: other points and proxes, close ones, and those with one coordinate changed."""
        directions = self.rng.standard_normal((6, self.d)) * np.repeat([1.0, 1e-2, 1e-4], 2)[:, None]
        one = np.eye(self.d)[self.rng.integers(0, self.d, 3)]
        close = [u + directions, u * (1.0 - one), u + 0.1 * one, 0.5 * u[None], 0.0 * u[None]]
        return np.concatenate([self.points[::3], proxes[::3], *close])

    def midpoints(self) -> tuple[Verdict, str]:
        inside = np.concatenate([self.points, self.proxes(self.points, self.steps[0])])
        inside = inside[np.isfinite(self.values(inside))]
        X, W = inside[:, None], inside[None, ::2]
        shape = (X + W).shape
        middle = self.values((0.5 * (X + W)).reshape(-1, self.d)).reshape(shape[:2])
        ends = 0.5 * (self.values(inside)[:, None] + self.values(inside[::2]))
        allowed = self.rho / 8.0 * ((X - W) ** 2).sum(axis=2)
        worst = float(((middle - ends - allowed) / (abs(ends) + allowed + 1e-12)).max(initial=0.0))
        modulus = f", with the modulus {self.rho:.3g} of its largest_step," if self.rho else ""
        found = "no value is" if worst <= AGREE else f"a value is {worst:.0e} of it"
        return verdict(worst <= AGREE, f"at {middle.size} midpoints{modulus} {found} above the chord")

    def engines(self) -> tuple[Verdict, str]:
        apart = 0.0
        for t in self.steps[:2]:
            there = self.proxes(self.points, t)
            values = self.values(there)
            for x, u, value in list(zip(self.points, there, values, strict=True))[::2]:
                with precision(np.dtype(float)):
                    here, value_here = np.asarray(self.g.prox(x, t)), float(self.g(u))
                apart = max(apart, float(np.abs(here - u).max() / (np.abs(u).max() + 1e-9)))
                apart = max(apart, abs(value_here - value) / (abs(value) + 1e-9))
        return verdict(apart <= AGREE, f"values and proxes are {apart:.0e} apart")

    def single(self) -> tuple[Verdict, str]:
        with precision(np.dtype("float32")):
            x = jnp.asarray(self.points[0], jnp.float32)
            dtypes = {str(jnp.asarray(found).dtype) for found in (self.g.prox(x, 0.1 * self.steps[0]), self.g(x))}
        return verdict(dtypes == {"float32"}, f"a float32 point gives {' and '.join(sorted(dtypes))}")

    def alpha_max(self) -> tuple[Verdict, str]:
        """Zero minimises <gradient, x> + alpha g(x) just above alpha_max, and not just below."""
        tried = 0
        for gradient in self.points[::3]:
            gradient = gradient * (
                self.proxes(0.0 * gradient[None] + 1e-6, 1e-3)[0] < 1e-6
            )  # of what g does not shrink: 0
            alpha = float(self.given.alpha_max(gradient))
            if not 0 < alpha < self.limit / 2:
                continue
            tried += 1
            above, below = (np.asarray(Scaled(self.g, factor * alpha).prox(-gradient, 1.0)) for factor in (1.001, 0.99))
            if above.any() or not below.any():
                side = "above, the minimiser is not zero" if above.any() else "below, the minimiser is still zero"
                return "fails", f"alpha_max is {alpha:.4g}; just {side}"
        return "holds", f"zero is the minimiser from there on, and not below, for {tried} gradients"


def _width(g: Regulariser) -> int:
    """12 coefficients, or the first number that g takes."""

    def takes(d: int) -> Callable[[], bool] | bool:
        try:
            point = np.linspace(-1.0, 1.0, d)
            return np.shape(g.prox(point, 1e-3)) == (d,) and np.shape(g(point)) == ()
        except Exception:  # an object from elsewhere may raise anything on a size it does not take
            return False

    found = next((d for d in (WIDTH, *range(1, WIDEST + 1)) if takes(d)), None)
    if found is None:
        raise InputError(f"{type(g).__name__} takes none of 1 to {WIDEST} coefficients; give check(..., d=).")
    return found
